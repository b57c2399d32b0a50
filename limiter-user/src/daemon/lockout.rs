//! Whether the operator's own ssh session would pass: judged by the compiled policy itself, with the code the kernel
//! runs, on buckets that are full.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use limiter_common::abi::{Ban, Geometry};
use limiter_common::verdict::{Outcome, Verdict};

use super::refusal::{Kind, Refusal};
use super::safelist::ip;
use crate::cli::session::Session;
use crate::datapath::{Host, interface_names};
use crate::policy::Compiled;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A keystroke, encrypted.
const PAYLOAD: usize = 64;

/// The ways out of what can be tried for a time.
pub const CONFIRM_OR_FORCE: &str =
    "`--confirm 60s` goes back by itself if you are cut off; `--force` does it all the same";

/// The way out of all else.
pub const FORCE: &str =
    "`--force` does it all the same; a rule that lets you in, before the others, keeps a way in";

/// Refuses a policy that drops packets of one of these sessions, or its next login. `hint` says what else to do.
pub fn check(compiled: &Compiled, sessions: &[Session], hint: &str) -> Result<(), Refusal> {
    judge(compiled, &[], sessions, hint)
}

/// The same, of bans besides the policy.
pub fn check_with_bans(
    compiled: &Compiled,
    bans: &[(IpNet, Ban)],
    sessions: &[Session],
) -> Result<(), Refusal> {
    judge(compiled, bans, sessions, FORCE)
}

fn judge(
    compiled: &Compiled,
    bans: &[(IpNet, Ban)],
    sessions: &[Session],
    hint: &str,
) -> Result<(), Refusal> {
    for session in sessions {
        for (flags, what) in [(ACK, "your ssh session"), (SYN, "your next ssh login")] {
            let Some(frame) = frame(session, flags) else { continue };
            let geometry = Geometry { sets: 8, seed: [1, 2, 3, 4], ..Geometry::default() };
            let mut host = Host::new(geometry, &compiled.rows);
            bans.iter().for_each(|(prefix, ban)| host.ban(*prefix, *ban));
            let rulings = interfaces_of(compiled, session.server).into_iter().map(|interface| {
                host.set_interface(interface);
                host.judge(&compiled.tables, &frame)
            });
            let Some(ruling) = rulings.into_iter().find(|ruling| ruling.outcome.verdict() == Verdict::Drop)
            else {
                continue;
            };
            let client = SocketAddr::new(session.client, session.client_port);
            if ruling.outcome == Outcome::DropBan {
                return Err(Refusal::new(
                    Kind::NeedsForce,
                    format!("this ban would drop {what} from {client} to port {}", session.server_port),
                    "`--force` does it all the same; a rule with `before = \"bans\"` keeps a way in",
                ));
            }
            let rule = compiled.rules.get(usize::from(ruling.rule)).map_or("", |rule| rule.name.as_str());
            let by = if rule.is_empty() { "`[default]`".to_owned() } else { format!("rule `{rule}`") };
            return Err(Refusal::new(
                Kind::NeedsForce,
                format!("{by} would drop {what} from {client} to port {}", session.server_port),
                hint,
            ));
        }
    }
    Ok(())
}

/// By which of the interfaces that the policy names, as [`Host::set_interface`] takes them, a session may come in: by
/// that which has its address, else by any.
fn interfaces_of(compiled: &Compiled, server: IpAddr) -> Vec<Option<usize>> {
    let named = interface_names(&compiled.tables.places.interface_names);
    if named.is_empty() {
        return vec![None];
    }
    let own = nix::ifaddrs::getifaddrs().into_iter().flatten().find(|interface| {
        interface
            .address
            .as_ref()
            .and_then(ip)
            .is_some_and(|address| address.to_canonical() == server.to_canonical())
    });
    match own {
        Some(own) => vec![named.iter().position(|name| *name == own.interface_name)],
        None => (0..named.len()).map(Some).chain([None]).collect(),
    }
}

/// A TCP packet from the client; `None` where the addresses are of two families.
fn frame(session: &Session, flags: u8) -> Option<Vec<u8>> {
    let mut tcp = Vec::new();
    tcp.extend(session.client_port.to_be_bytes());
    tcp.extend(session.server_port.to_be_bytes());
    tcp.extend([0; 8]);
    tcp.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    if flags == ACK {
        tcp.extend([0; PAYLOAD]);
    }
    let length = tcp.len() as u16;
    // Destination and source of the link.
    let mut frame = vec![0; 12];
    match (session.client, session.server) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend((20 + length).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
            frame.extend(client.octets());
            frame.extend(server.octets());
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([6, 64]);
            frame.extend(client.octets());
            frame.extend(server.octets());
        }
        _ => return None,
    }
    frame.extend(tcp);
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::Facts;
    use crate::policy::{Adjustments, Bundle, Slots};

    fn session(client: &str, server: &str) -> Session {
        let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
        Session { client, client_port: 50_022, server, server_port: 22 }
    }

    fn refusal(policy: &str, session: Session) -> Option<String> {
        let bundle = Bundle::from_text("policy.toml", &format!("version = 1\n{policy}"));
        let facts = Facts { tick_ns: 4_000_000, buckets: 1 << 20 };
        let (compiled, _) =
            super::super::read(&bundle, &Slots::default(), facts, 1, &Adjustments::default()).unwrap();
        check(&compiled, &[session], FORCE).err().map(|refusal| refusal.failure.error)
    }

    /// The address of the loopback interface is there on every host.
    #[test]
    fn a_session_comes_in_by_the_interface_that_has_its_address() {
        let closed = |interface: &str| {
            format!(
                "[[rule]]\nname = \"closed\"\ninterface = \"{interface}\"\nto = [\"tcp/22\"]\nverdict = \"drop\"\n"
            )
        };
        assert_eq!(refusal(&closed("eth7"), session("127.0.0.2", "127.0.0.1")), None);
        assert!(refusal(&closed("lo"), session("127.0.0.2", "127.0.0.1")).is_some());
    }

    /// What, policy, the session's client, what is said.
    #[test]
    fn it_is_judged_by_the_result() {
        let office = "[[rule]]\nname = \"ssh\"\nfrom = [\"203.0.113.0/24\", \"2001:db8::/32\"]\nto = [\"tcp/22\"]\nverdict = \"pass\"\n";
        let closed = "[[rule]]\nname = \"closed\"\nto = [\"tcp/22\"]\nverdict = \"drop\"\n";
        let logins = "[[rule]]\nname = \"logins\"\nto = [\"tcp-syn/22\"]\nverdict = \"drop\"\n";
        let table = [
            ("nothing said", String::new(), "198.51.100.7", None),
            ("in the office", format!("{office}{closed}"), "203.0.113.9", None),
            ("in the office, by IPv6", format!("{office}{closed}"), "2001:db8::9", None),
            (
                "not in the office",
                format!("{office}{closed}"),
                "198.51.100.7",
                Some("rule `closed` would drop your ssh session from 198.51.100.7:50022 to port 22"),
            ),
            (
                "not in the office, by IPv6",
                format!("{office}{closed}"),
                "2001:db9::9",
                Some("rule `closed` would drop your ssh session from [2001:db9::9]:50022 to port 22"),
            ),
            (
                "no new logins",
                logins.to_owned(),
                "198.51.100.7",
                Some("rule `logins` would drop your next ssh login from 198.51.100.7:50022 to port 22"),
            ),
            (
                "the default",
                "[default]\nverdict = \"drop\"\n".to_owned(),
                "198.51.100.7",
                Some("`[default]` would drop your ssh session from 198.51.100.7:50022 to port 22"),
            ),
            (
                "a limit with room",
                "[[rule]]\nname = \"all\"\nlimit = [{ per = \"source\", rate = \"1/s\" }]\n".to_owned(),
                "198.51.100.7",
                None,
            ),
            (
                "closed at an address that is not the session's",
                closed.replace("verdict", "dest = \"192.0.2.9\"\nverdict"),
                "198.51.100.7",
                None,
            ),
            (
                "closed at the session's address",
                closed.replace("verdict", "dest = [\"192.0.2.0/29\"]\nverdict"),
                "198.51.100.7",
                Some("rule `closed` would drop your ssh session from 198.51.100.7:50022 to port 22"),
            ),
            (
                "closed at some interface, by which it may come in as this host does not have the address",
                closed.replace("verdict", "interface = \"eth7\"\nverdict"),
                "198.51.100.7",
                Some("rule `closed` would drop your ssh session from 198.51.100.7:50022 to port 22"),
            ),
            ("observed", closed.replace("verdict", "mode = \"observe\"\nverdict"), "198.51.100.7", None),
        ];
        for (what, policy, client, said) in table {
            let server = if client.contains(':') { "2001:db8::1" } else { "192.0.2.1" };
            assert_eq!(refusal(&policy, session(client, server)).as_deref(), said, "{what}");
        }
    }
}
