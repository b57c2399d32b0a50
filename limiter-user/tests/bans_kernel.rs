//! Bans of a real limiterd on a real interface: they drop, a crash changes nothing, and what a cleared bpf file system
//! has forgotten the state directory knows.
// suite: budget=120
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use limiter_tests::{
    clock::wait_for,
    frame::{ACK, IPV4, IPV6, TCP, UDP, V4, V6, ethernet, tcp, udp},
    kernel::PinDirectory,
    namespace::{GUARDED, Pair},
    stop::KillOnDrop,
    wire::Wire,
};
use serde_json::Value;

const POLICY: &str = r#"version = 1
[[rule]]
name = "ssh"
from = "203.0.113.0/24"
to = "tcp/22"
verdict = "pass"
before = "bans"
"#;

struct Site {
    directory: tempfile::TempDir,
    pin: PinDirectory,
    pair: Pair,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("policy.toml"), POLICY).unwrap();
        Self { directory, pin: PinDirectory::new(), pair: Pair::silent() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts limiterd in the guarded namespace, and waits until it answers.
    fn start(&self) -> KillOnDrop {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = self.pair.guarded.command(env!("CARGO_BIN_EXE_limiterd"));
        command.env_clear().stderr(log);
        self.name(&mut command);
        command.env("LIMITER_INTERFACES", GUARDED).env("LIMITER_MODE", "native");
        command.env("LIMITER_POLICY", self.path("policy.toml")).env("LIMITER_STATE", self.path("state"));
        command.env("LIMITER_METRICS", "").env("LIMITER_BUCKETS", "16384");
        let mut daemon = KillOnDrop(command.spawn().unwrap());
        wait_for("limiterd to answer", Duration::from_secs(60), || {
            if let Some(status) = daemon.0.try_wait().unwrap() {
                panic!("limiterd ended ({status}): {}", fs::read_to_string(self.path("log")).unwrap());
            }
            self.ctl(&["stats"], "")
        });
        daemon
    }

    fn name(&self, command: &mut Command) {
        command.env("LIMITER_SOCKET", self.path("limiterd.sock")).env("LIMITER_PIN", self.pin.path());
    }

    fn ctl(&self, arguments: &[&str], input: &str) -> Option<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_limiterctl"));
        command.env_clear().args(["-o", "json"]).args(arguments);
        self.name(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // A verb that reads nothing may have ended by now.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }
}

fn frames() -> [Vec<u8>; 5] {
    let v6 = |source: &str| ethernet(&[], IPV6, &V6::from(source).packet(UDP, &udp(1, 53, b"")));
    [
        ethernet(&[], IPV4, &V4::from("203.0.113.9").packet(UDP, &udp(1, 53, b""))),
        ethernet(&[], IPV4, &V4::from("203.0.113.9").packet(TCP, &tcp(1, 22, ACK))),
        v6("2001:db8:bad::9"),
        v6("::ffff:203.0.113.9"),
        ethernet(&[], IPV4, &V4::from("192.0.2.9").packet(UDP, &udp(1, 53, b""))),
    ]
}

/// Of [`frames`], what passes the bans: the lifeline and who is not banned.
const PASSES: [usize; 2] = [1, 4];

#[test]
fn bans_outlive_crash_restart_and_a_cleared_bpf_file_system() {
    let site = Site::new();
    let mut daemon = site.start();
    let mut wire = Wire::open(&site.pair);
    let frames = frames();
    let all: Vec<Vec<u8>> = frames.to_vec();
    let passed: Vec<Vec<u8>> = PASSES.map(|kept| frames[kept].clone()).to_vec();
    assert!(wire.pass(&all) == all, "nobody is banned");

    site.ctl(&["ban", "203.0.113.9", "--for", "1h", "--reason", "scans"], "").expect("a ban");
    site.ctl(&["ban", "2001:db8:bad::/48", "--for", "forever"], "").expect("a ban");
    let listed = site.ctl(&["bans"], "").unwrap();
    assert!(wire.pass(&all) == passed, "the lifeline and the others pass");

    daemon.kill();
    assert!(wire.pass(&all) == passed, "with limiterd dead");
    daemon = site.start();
    assert!(wire.pass(&all) == passed, "with limiterd back");
    let again = site.ctl(&["bans"], "").unwrap();
    let without_times = |bans: &Value| -> Vec<[Value; 3]> {
        let bans = bans["bans"].as_array().unwrap().iter();
        bans.map(|ban| ["source", "reason", "made_by"].map(|key| ban[key].clone())).collect()
    };
    assert_eq!(without_times(&again), without_times(&listed));

    daemon.kill();
    limiter_user::datapath::Kernel::detach_direct(site.pin.path(), None).unwrap();
    assert!(!site.pin.path().exists(), "nothing is pinned any more");
    assert!(wire.pass(&all) == all, "nobody guards");
    daemon = site.start();
    assert!(wire.pass(&all) == passed, "the state directory knew them");

    site.ctl(&["unban", "203.0.113.9"], "").expect("it was banned");
    site.ctl(&["unban", "2001:db8:bad::/48"], "").expect("it was banned");
    assert!(wire.pass(&all) == all, "nobody is banned any more");
    drop(daemon);
}

/// What the policy file holds, or no file; whether another policy waits to be confirmed when the host goes down.
#[test]
fn bans_and_what_was_changed_by_hand_hold_after_a_reboot_whatever_becomes_of_the_policy() {
    let dynamic = "version = 1\n[sets]\nsuspects = { dynamic = true, max = 9 }\n[[rule]]\nname = \"suspects\"\nfrom = \"suspects\"\nverdict = \"drop\"\n[[rule]]\nname = \"dns\"\nto = \"udp/53\"\nverdict = \"drop\"\n";
    let from = |source: &str| ethernet(&[], IPV4, &V4::from(source).packet(UDP, &udp(1, 9, b"")));
    let query = ethernet(&[], IPV4, &V4::from("192.0.2.9").packet(UDP, &udp(1, 53, b"")));
    let [banned, suspect, other] = ["203.0.113.9", "198.51.100.9", "192.0.2.9"].map(from);
    for (what, file, waits) in [
        ("as it was", Some(dynamic), false),
        ("another waits", Some(dynamic), true),
        ("a bad file", Some("version = 1\n[[rule]]\n"), false),
        ("a bad file, and another waits", Some("version = 1\n[[rule]]\n"), true),
        ("no file", None, false),
        ("no file, and another waits", None, true),
    ] {
        let site = Site::new();
        let policy = site.path("policy.toml");
        fs::write(&policy, dynamic).unwrap();
        let mut daemon = site.start();
        site.ctl(&["ban", "203.0.113.9", "--for", "forever"], "").expect(what);
        site.ctl(&["add-to", "suspects", "198.51.100.9", "--for", "1h"], "").expect(what);
        site.ctl(&["override", "dns", "--mode", "off", "--for", "1h"], "").expect(what);
        if waits {
            fs::write(site.path("next.toml"), "version = 1\n").unwrap();
            let next = site.path("next.toml").display().to_string();
            site.ctl(&["set-policy", &next, "--confirm", "1h"], "").expect(what);
        }
        daemon.kill();
        limiter_user::datapath::Kernel::detach_direct(site.pin.path(), None).unwrap();
        match file {
            Some(text) => fs::write(&policy, text).unwrap(),
            None => fs::remove_file(&policy).unwrap(),
        }
        let _daemon = site.start();
        let mut wire = Wire::open(&site.pair);
        let sent = [&banned, &suspect, &other, &query].map(Clone::clone);
        assert!(wire.pass(&sent) == sent[2..], "{what}");
        let bans = site.ctl(&["bans"], "").unwrap();
        assert_eq!(bans["bans"][0]["source"], "203.0.113.9", "{what}");
    }
}

#[test]
fn every_next_hop_is_safe_whatever_table_and_however_many_ways_its_route_has() {
    let site = Site::new();
    let namespace = &site.pair.guarded;
    namespace.ip(&["address", "add", "192.0.2.1/24", "dev", GUARDED]);
    let hop = |last: &str| format!("192.0.2.{last}");
    namespace.ip(&["route", "add", "default", "via", &hop("11")]);
    namespace.ip(&["route", "add", "198.51.100.0/24", "table", "100", "via", &hop("12")]);
    let ways = [hop("13"), hop("14")];
    let ways = ["nexthop", "via", &ways[0], "nexthop", "via", &ways[1]];
    namespace.ip(&[&["route", "add", "203.0.113.0/24"][..], &ways].concat());
    let _daemon = site.start();
    for safe in ["11", "12", "13", "14"] {
        assert_eq!(site.ctl(&["ban", &hop(safe)], ""), None, "{safe}");
    }
    site.ctl(&["ban", &hop("15")], "").expect("nobody in particular");
}

#[test]
fn a_hundred_thousand_bans_load_in_one_call() {
    let site = Site::new();
    let mut daemon = site.start();
    let mut list = String::new();
    for number in 0..100_000_u32 {
        writeln!(list, "{}.{}.{}.7", 11 + (number >> 16), number >> 8 & 255, number & 255).unwrap();
    }
    let answer = site.ctl(&["ban", "-", "--for", "1h"], &list).expect("all of them");
    assert_eq!(answer["banned"], 100_000);
    let mut wire = Wire::open(&site.pair);
    let from = |source: &str| ethernet(&[], IPV4, &V4::from(source).packet(UDP, &udp(1, 53, b"")));
    let sent = [from("11.0.0.7"), from("12.134.159.7"), from("12.134.160.7"), from("11.0.0.8")];
    // 99 999 is 0x1869f: 12.134.159.7 is the last.
    assert!(wire.pass(&sent) == sent[2..], "the first and the last are banned, their neighbours are not");
    daemon.kill();
    let _daemon = site.start();
    assert_eq!(site.ctl(&["status"], "").unwrap()["bans"], 100_000);
    assert!(wire.pass(&sent) == sent[2..]);
}
