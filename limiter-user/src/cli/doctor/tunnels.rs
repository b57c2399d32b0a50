//! Whether most traffic comes in tunnels: then the source limiter sees is a load balancer, not the client.
//!
//! limiter judges the outer header and keeps no count by protocol, so the evidence is the kernel's own: what the
//! host's tunnel interfaces received, beside what this one did. A tunnel that is taken apart by a program before
//! the stack, or inside a guest, leaves no such trace.

use super::{Finding, Level};
use crate::nic::Nic;

const TUNNELS: [&str; 15] = [
    "ipip",
    "sit",
    "gre",
    "gretap",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "vti",
    "vti6",
    "erspan",
    "ip6erspan",
    "vxlan",
    "geneve",
    "bareudp",
    "wireguard",
];

/// Fewer packets than this say nothing.
const ENOUGH: u64 = 1000;

pub fn check(nic: &Nic, nics: &[Nic]) -> Finding {
    const CHECK: &str = "tunnels";
    let is_tunnel = |nic: &Nic| nic.kind.as_deref().is_some_and(|kind| TUNNELS.contains(&kind));
    if is_tunnel(nic) {
        return Finding::ok(CHECK, "a tunnel itself: the sources are those inside");
    }
    let carrying: Vec<&Nic> = nics.iter().filter(|other| is_tunnel(other) && other.received > 0).collect();
    let inside: u64 = carrying.iter().map(|tunnel| tunnel.received).sum();
    let names: Vec<&str> = carrying.iter().map(|tunnel| tunnel.name.as_str()).collect();
    let evidence = format!(
        "{inside} packets came out of tunnel interfaces{}, {} came in here",
        if names.is_empty() { String::new() } else { format!(" (`{}`)", names.join("`, `")) },
        nic.received
    );
    if nic.received < ENOUGH {
        let message = format!("too little traffic to tell ({evidence})");
        return Finding::new(CHECK, Level::Unknown, message).fixed_by("ask again under traffic");
    }
    if inside > nic.received / 2 {
        return Finding::warning(
            CHECK,
            format!(
                "most traffic seems to come in tunnels ({evidence}): limits per source then hit the balancer"
            ),
            format!(
                "guard the tunnel interface (`limiterctl attach {}`), or let the balancers pass by a rule with `from`",
                names[0]
            ),
        );
    }
    Finding::ok(CHECK, format!("{evidence}; tunnels ended elsewhere than in the stack are not seen"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(name: &str, kind: Option<&str>, received: u64) -> Nic {
        Nic { name: name.to_owned(), kind: kind.map(str::to_owned), received, ..Nic::default() }
    }

    #[test]
    fn a_balancer_is_suspected_when_most_comes_out_of_tunnels() {
        let wire = nic("eth0", None, 10_000);
        let status = |tunnel| check(&wire, &[wire.clone(), tunnel]).status;
        assert_eq!(status(nic("tunl0", Some("ipip"), 9_900)), Level::Warning);
        assert_eq!(status(nic("tunl0", Some("ipip"), 4_000)), Level::Ok);
        assert_eq!(status(nic("br0", Some("bridge"), 10_000)), Level::Ok);
        assert_eq!(check(&nic("eth0", None, 10), &[]).status, Level::Unknown);
        assert_eq!(check(&nic("gre1", Some("gre"), 10), &[]).status, Level::Ok);
    }
}
