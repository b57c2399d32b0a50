//! What concerns one interface: its driver, its offloads, what it is part of, and who else is on it.

use super::tunnels;
use super::{Finding, Level, Surroundings};
use crate::datapath::Mode;
use crate::nic::{self, Driver, Features, Nic};

/// The largest MTU that fits a page of 4 KiB with XDP's headroom and the kernel's tail; drivers differ by a few bytes.
const ONE_BUFFER: u32 = 3498;

/// Every driver takes this.
const ETHERNET: u32 = 1500;

/// Drivers with native XDP by Linux 5.15, for kernels that cannot be asked (before 6.3).
const NATIVE_BY_5_15: [&str; 25] = [
    "bnxt_en",
    "bonding",
    "dpaa2-eth",
    "ena",
    "fec",
    "fsl_dpaa2_eth",
    "hv_netvsc",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mlx4_en",
    "mlx5_core",
    "mvneta",
    "mvpp2",
    "nfp",
    "qede",
    "sfc",
    "stmmac",
    "tun",
    "veth",
    "virtio_net",
    "vif",
];

pub fn check(nic: &Nic, surroundings: &Surroundings) -> Vec<Finding> {
    let driver = nic::driver(&nic.name);
    let features = nic::features(nic.index).ok();
    let guard = guard(nic, surroundings);
    let mut findings = vec![
        link(nic),
        native(nic, driver.as_ref(), features, guard),
        mtu(nic, features, guard),
        queues(nic, driver.as_ref()),
        offloads(nic, driver.as_ref()),
        vlan(driver.as_ref()),
        membership(nic, &surroundings.nics),
    ];
    findings.extend(programs(nic, guard, &surroundings.daemon.as_ref().map(drop).map_err(drop)));
    findings.push(tunnels::check(nic, &surroundings.nics));
    findings
}

/// The mode limiterd guards it in.
fn guard(nic: &Nic, surroundings: &Surroundings) -> Option<Mode> {
    let status = surroundings.daemon.as_ref().ok()?;
    let guarded = status
        .interfaces
        .iter()
        .find(|interface| interface.index == nic.index && interface.name == nic.name)?;
    // Another namespace has interfaces of the same name: ours has a program.
    (!nic.programs.is_empty()).then_some(guarded.mode)
}

fn link(nic: &Nic) -> Finding {
    if nic.is_up {
        Finding::ok("link", "up")
    } else {
        Finding::warning("link", "down: nothing arrives", format!("`ip link set {} up`", nic.name))
    }
}

fn native(nic: &Nic, driver: Option<&Driver>, features: Option<Features>, guard: Option<Mode>) -> Finding {
    const CHECK: &str = "driver";
    let name = driver.map(|driver| driver.name.as_str()).filter(|name| !name.is_empty());
    let shown = name.map_or_else(|| "a driver without a name".to_owned(), |name| format!("`{name}`"));
    let slower = "guard it in generic mode, which is slower (`auto` does), or guard the interface below it";
    match (guard, features) {
        (Some(Mode::Native), _) => return Finding::ok(CHECK, format!("{shown}, guarded in native mode")),
        (_, Some(Features { native: true, .. })) if guard == Some(Mode::Generic) => {
            return Finding::warning(
                CHECK,
                format!("{shown} can do native mode, and is guarded in generic mode"),
                format!("`limiterctl attach {} --mode native`; packets pass unjudged for a moment", nic.name),
            );
        }
        (_, Some(Features { native: true, .. })) => {
            return Finding::ok(CHECK, format!("{shown} can do native mode, says the kernel"));
        }
        (_, Some(Features { native: false, .. })) if name == Some("veth") => {
            return Finding::warning(
                CHECK,
                "`veth` cannot do native mode: its peer sends on more queues than it receives on",
                format!(
                    "`ethtool -L {} rx N`, N as many as the peer's send queues; or generic mode",
                    nic.name
                ),
            );
        }
        (_, Some(Features { native: false, .. })) => {
            return Finding::warning(CHECK, format!("{shown} has no native mode, says the kernel"), slower);
        }
        _ => {}
    }
    // The kernel cannot be asked before 6.3.
    match name {
        Some(name) if NATIVE_BY_5_15.contains(&name) => Finding::ok(
            CHECK,
            format!(
                "{shown} is one of the drivers with a native mode (by its name: this kernel cannot be asked)"
            ),
        ),
        _ => Finding::unknown(
            CHECK,
            format!("whether {shown} has a native mode cannot be asked before Linux 6.3"),
            "`limiterctl attach` in mode `auto` finds out, and says which mode it got",
        ),
    }
}

fn mtu(nic: &Nic, features: Option<Features>, guard: Option<Mode>) -> Finding {
    const CHECK: &str = "mtu";
    let mtu = nic.mtu;
    let lower = |to| format!("`ip link set {} mtu {to}`, or generic mode, which is slower", nic.name);
    match (guard, features) {
        (Some(mode), _) => Finding::ok(CHECK, format!("{mtu}, taken in {mode} mode")),
        _ if mtu <= ETHERNET => Finding::ok(CHECK, mtu.to_string()),
        (_, Some(Features { multi_buffer: true, .. })) => {
            Finding::ok(CHECK, format!("{mtu}: the driver hands over frames of several buffers"))
        }
        (_, Some(Features { native: false, .. })) => {
            Finding::ok(CHECK, format!("{mtu}: generic mode takes any"))
        }
        (_, Some(_)) if mtu > ONE_BUFFER => Finding::error(
            CHECK,
            format!(
                "{mtu} does not fit one buffer (about {ONE_BUFFER}), and the driver has no frames of several: native mode is refused"
            ),
            lower(ONE_BUFFER),
        ),
        (_, None) if mtu > ONE_BUFFER => Finding::unknown(
            CHECK,
            format!(
                "{mtu} does not fit one buffer (about {ONE_BUFFER}); whether the driver has frames of several cannot be asked before Linux 6.3"
            ),
            lower(ONE_BUFFER),
        ),
        _ => Finding::warning(
            CHECK,
            format!("{mtu} is more than {ETHERNET} and may be more than the driver takes in native mode"),
            lower(ETHERNET),
        ),
    }
}

fn queues(nic: &Nic, driver: Option<&Driver>) -> Finding {
    const CHECK: &str = "queues";
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let Some(channels) = driver.and_then(|driver| driver.channels).filter(|channels| channels.receive > 0)
    else {
        return Finding::ok(CHECK, "the driver has no receive queues to choose");
    };
    let message = format!("{} receive queues of {} possible, {cpus} CPUs", channels.receive, channels.most);
    if channels.receive < channels.most.min(cpus) {
        let kind = if channels.combined { "combined" } else { "rx" };
        let fix =
            format!("`ethtool -L {} {kind} {}`: more CPUs judge at once", nic.name, channels.most.min(cpus));
        return Finding::warning(CHECK, message, fix);
    }
    Finding::ok(CHECK, message)
}

/// Merged frames are larger than a buffer: drivers refuse XDP with them or turn them off unasked.
fn offloads(nic: &Nic, driver: Option<&Driver>) -> Finding {
    const CHECK: &str = "offloads";
    let Some(driver) = driver else {
        return Finding::unknown(CHECK, "the driver does not tell its offloads", "");
    };
    let on: Vec<&str> = ["rx-lro", "rx-gro-hw"].into_iter().filter(|name| driver.is_on(name)).collect();
    if on.is_empty() {
        return Finding::ok(CHECK, "LRO and hardware GRO are off");
    }
    let fix: Vec<String> = on.iter().map(|name| format!("{name} off")).collect();
    Finding::warning(
        CHECK,
        format!(
            "{} is on: native mode is refused by some drivers, others turn it off unasked",
            on.join(" and ")
        ),
        format!("`ethtool -K {} {}`", nic.name, fix.join(" ")),
    )
}

fn vlan(driver: Option<&Driver>) -> Finding {
    const CHECK: &str = "vlan";
    match driver {
        Some(driver) if driver.is_on("rx-vlan-hw-parse") => Finding::ok(
            CHECK,
            "the NIC takes tags off; frames of every VLAN are judged alike, with or without a tag",
        ),
        Some(_) => Finding::ok(CHECK, "tags stay in the frame; up to two are read through"),
        None => Finding::unknown(CHECK, "the driver does not tell its offloads", ""),
    }
}

fn membership(nic: &Nic, nics: &[Nic]) -> Finding {
    const CHECK: &str = "membership";
    let master = nic.master.and_then(|index| nics.iter().find(|other| other.index == index));
    let members =
        nics.iter().filter(|other| other.master == Some(nic.index)).map(|other| other.name.as_str());
    let members: Vec<&str> = members.collect();
    match (master, master.and_then(|master| master.kind.as_deref()), nic.kind.as_deref()) {
        (Some(master), Some("bond"), _) if !master.programs.is_empty() => Finding::error(
            CHECK,
            format!(
                "it belongs to the bond `{}`, which has an XDP program: the kernel refuses one here",
                master.name
            ),
            format!("guard the bond: `limiterctl attach {}`", master.name),
        ),
        (Some(master), Some("bond"), _) => Finding::warning(
            CHECK,
            format!(
                "it belongs to the bond `{}`: what the other members receive is not judged here",
                master.name
            ),
            format!("guard the bond instead: `limiterctl attach {}`", master.name),
        ),
        (Some(master), Some("bridge"), _) => Finding::warning(
            CHECK,
            format!(
                "it is a port of the bridge `{}`: frames it only forwards are judged and dropped too",
                master.name
            ),
            "write rules with that in mind, or begin with `mode = \"observe\"`",
        ),
        (Some(master), kind, _) => Finding::ok(
            CHECK,
            format!("it belongs to `{}` ({})", master.name, kind.unwrap_or("of an unknown kind")),
        ),
        (None, _, Some("bond")) => {
            Finding::ok(CHECK, format!("a bond of {}: native mode needs it of every member", list(&members)))
        }
        (None, _, Some("bridge")) => Finding::warning(
            CHECK,
            format!(
                "a bridge of {}: frames have their buffers already when they arrive here",
                list(&members)
            ),
            "guard its ports",
        ),
        (None, _, Some(kind @ ("vlan" | "macvlan" | "ipvlan"))) => Finding::warning(
            CHECK,
            format!("a {kind} interface: frames have their buffers already when they arrive here"),
            "guard the interface below it",
        ),
        _ if nic.master.is_some() => Finding::ok(CHECK, "it belongs to an interface of another namespace"),
        _ => Finding::ok(CHECK, "part of no bond or bridge"),
    }
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { format!("`{}`", names.join("`, `")) }
}

/// Who is on it: limiter, somebody else, nobody.
fn programs(nic: &Nic, guard: Option<Mode>, daemon: &Result<(), ()>) -> Vec<Finding> {
    const CHECK: &str = "program";
    if nic.programs.is_empty() {
        return vec![Finding::ok(CHECK, "no XDP program is attached")];
    }
    let ours = |mode: Mode| guard == Some(mode);
    nic.programs
        .iter()
        .map(|&(mode, id)| {
            if ours(mode) {
                return Finding::ok(CHECK, format!("limiter's own (id {id}, {mode} mode)"));
            }
            match (program_name(id), daemon) {
                (Some(name), _) if name == "limiter" || name.starts_with("limiter_") => Finding::warning(
                    CHECK,
                    format!("a guard of limiter (id {id}, `{name}`) that the limiterd asked does not own"),
                    "start limiterd, which adopts it; or `limiterctl detach --direct IFACE` ends it",
                ),
                (Some(name), _) => Finding::error(
                    CHECK,
                    format!("another XDP program is there (id {id}, `{name}`, {mode} mode)"),
                    format!("`bpftool prog show id {id}` says what it is; `limiterctl attach {} --replace` takes its place", nic.name),
                ),
                (None, _) => Finding::new(
                    CHECK,
                    Level::Unknown,
                    format!("an XDP program is there (id {id}, {mode} mode); its name is for root to read"),
                )
                .fixed_by("run as root"),
            }
        })
        .collect()
}

/// Where the kernel permits to ask.
fn program_name(id: u32) -> Option<String> {
    let programs = aya::programs::loaded_programs().map_while(Result::ok);
    let program = programs.into_iter().find(|program| program.id() == id)?;
    Some(program.name_as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(mtu: u32) -> Nic {
        Nic { name: "eth0".to_owned(), index: 2, mtu, is_up: true, ..Nic::default() }
    }

    fn driver(name: &str, active: &[&str]) -> Driver {
        let active = active.iter().map(|name| (*name).to_owned()).collect();
        Driver { name: name.to_owned(), channels: None, active }
    }

    #[test]
    fn mtus_are_held_against_what_the_driver_can() {
        let single = Some(Features { native: true, multi_buffer: false });
        let several = Some(Features { native: true, multi_buffer: true });
        let none = Some(Features { native: false, multi_buffer: false });
        for (size, features, guard, expected) in [
            (1500, single, None, Level::Ok),
            (1500, None, None, Level::Ok),
            (3000, single, None, Level::Warning),
            (9000, single, None, Level::Error),
            (9000, several, None, Level::Ok),
            (9000, none, None, Level::Ok),
            (9000, None, None, Level::Unknown),
            (9000, single, Some(Mode::Generic), Level::Ok),
        ] {
            assert_eq!(mtu(&nic(size), features, guard).status, expected, "{size} {features:?} {guard:?}");
        }
    }

    #[test]
    fn without_the_kernels_word_the_drivers_name_counts() {
        assert_eq!(native(&nic(1500), Some(&driver("ixgbe", &[])), None, None).status, Level::Ok);
        assert_eq!(native(&nic(1500), Some(&driver("e1000", &[])), None, None).status, Level::Unknown);
        let can = Some(Features { native: true, multi_buffer: false });
        assert_eq!(
            native(&nic(1500), Some(&driver("ixgbe", &[])), can, Some(Mode::Generic)).status,
            Level::Warning
        );
    }

    #[test]
    fn merging_offloads_are_named_with_their_switch() {
        let finding = offloads(&nic(1500), Some(&driver("ixgbe", &["rx-lro", "rx-gro"])));
        assert_eq!(finding.status, Level::Warning);
        assert_eq!(finding.fix.as_deref(), Some("`ethtool -K eth0 rx-lro off`"));
        assert_eq!(offloads(&nic(1500), Some(&driver("ixgbe", &["rx-gro"]))).status, Level::Ok);
    }

    #[test]
    fn a_member_of_a_bond_points_to_the_bond() {
        let mut member = nic(1500);
        member.master = Some(9);
        let mut bond =
            Nic { name: "bond0".to_owned(), index: 9, kind: Some("bond".to_owned()), ..Nic::default() };
        let finding = membership(&member, &[member.clone(), bond.clone()]);
        assert_eq!(finding.status, Level::Warning);
        assert!(finding.fix.unwrap().contains("attach bond0"));
        bond.programs = vec![(Mode::Native, 7)];
        assert_eq!(membership(&member, &[member.clone(), bond]).status, Level::Error);
    }

    #[test]
    fn queues_left_unused_are_named() {
        let mut driver = driver("ixgbe", &[]);
        driver.channels = Some(crate::nic::Channels { receive: 1, most: 1, combined: true });
        assert_eq!(queues(&nic(1500), Some(&driver)).status, Level::Ok);
        assert_eq!(queues(&nic(1500), None).status, Level::Ok);
    }
}
