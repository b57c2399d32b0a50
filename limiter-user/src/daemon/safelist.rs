//! Whom nothing automatic may ban, and an operator only by force: this host and what it lives by.
//!
//! Its own addresses, its next hops, its resolvers, whomever the daemon itself connects to (the store), and what the policy
//! puts under `never-ban`. Looked up anew each time: addresses and routes change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

use super::lifeline::{holds_some, lists, overlap};
use crate::nic;
use crate::policy::{Policy, Widths};

/// See the module.
pub struct Safelist<'p> {
    /// An address of this host's surroundings, and what it is.
    addresses: Vec<(IpAddr, String)>,
    policy: Option<&'p Policy>,
}

impl<'p> Safelist<'p> {
    /// As things stand now. `peers`: whom the daemon has talked to.
    pub fn look(policy: Option<&'p Policy>, peers: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut addresses = own_addresses();
        addresses.extend(next_hops());
        addresses.extend(resolvers());
        addresses
            .extend(peers.into_iter().map(|peer| (peer, "the store or another peer of limiterd".to_owned())));
        Self { addresses, policy }
    }

    /// The sources of what is not the policy's, as wide as it makes them: link-local ones are whole addresses.
    pub fn sources(&self, widths: Widths) -> Vec<IpNet> {
        let source = |address: IpAddr| {
            let length = match address {
                IpAddr::V4(_) => widths.ipv4,
                IpAddr::V6(address) if address.is_unicast_link_local() => 128,
                IpAddr::V6(_) => widths.ipv6,
            };
            IpNet::new(address, length).ok().map(|net| net.trunc())
        };
        self.addresses.iter().filter_map(|(address, _)| source(canonical(*address))).collect()
    }

    /// The addresses that are not the policy's.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|(address, _)| canonical(*address))
    }

    /// Who of it a ban of this prefix would hit.
    pub fn hit(&self, prefix: &IpNet) -> Option<String> {
        let whole = |address: IpAddr| IpNet::from(canonical(address));
        let address = self.addresses.iter().find(|(address, _)| overlap(&whole(*address), prefix));
        if let Some((address, what)) = address {
            return Some(format!("{}, {what}", canonical(*address)));
        }
        let policy = self.policy.filter(|_| self.is_never_banned(prefix))?;
        let never = &policy.default.never_ban;
        let set = never.sets.iter().filter_map(|set| policy.sets.get(*set));
        let named = set.clone().find(|set| holds_some(&set.prefixes, prefix));
        Some(match named {
            Some(set) => format!("sources of the set `{}`, which is under `never-ban`", set.name),
            None => "sources the policy has under `never-ban`".to_owned(),
        })
    }
}

impl Safelist<'_> {
    /// Whether the policy has somebody of this prefix under `never-ban`.
    pub fn is_never_banned(&self, prefix: &IpNet) -> bool {
        self.policy.is_some_and(|policy| {
            lists(policy, &policy.default.never_ban).any(|list| holds_some(list, prefix))
        })
    }
}

fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn own_addresses() -> Vec<(IpAddr, String)> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let own = interfaces.filter_map(|interface| {
        let address = ip(&interface.address?)?;
        Some((address, format!("an address of this host (`{}`)", interface.interface_name)))
    });
    own.collect()
}

pub(super) fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

/// Gateways of the routes in all tables.
fn next_hops() -> Vec<(IpAddr, String)> {
    let hops = nic::next_hops().unwrap_or_else(|error| {
        tracing::warn!(%error, "the routes cannot be read: next hops are not on the safelist");
        BTreeSet::new()
    });
    hops.into_iter().map(|hop| (hop, "a next hop of this host".to_owned())).collect()
}

fn resolvers() -> Vec<(IpAddr, String)> {
    let mut found = Vec::new();
    for file in ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        found.extend(name_servers(&text).map(|server| (server, "a resolver of this host".to_owned())));
    }
    found
}

fn name_servers(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        // A link-local server has its interface behind a percent sign.
        let address = words.next()?.split('%').next()?.parse().ok()?;
        is_server.then_some(address)
    })
}

/// Whom the daemon has connected to, as far as they are remembered: the latest [`Peers::MOST`].
///
/// Who connects to the daemon is none of them, else anybody could put himself on the safelist.
#[derive(Default)]
pub struct Peers {
    /// When each was last seen, in looks.
    seen: BTreeMap<IpAddr, u64>,
    looks: u64,
    looked: Option<Instant>,
}

impl Peers {
    const MOST: usize = 64;

    /// A look at every descriptor costs time, and a connection to a store lasts longer.
    const PERIOD: Duration = Duration::from_secs(2);

    /// Learns whom the daemon is connected to now, unless it has looked a moment ago.
    pub fn look(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < Self::PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        self.learn(connected_to());
    }

    pub fn learn(&mut self, peers: impl IntoIterator<Item = IpAddr>) {
        self.looks += 1;
        self.seen.extend(peers.into_iter().map(|peer| (peer, self.looks)));
        while self.seen.len() > Self::MOST {
            let oldest = self.seen.iter().min_by_key(|(_, look)| **look).map(|(peer, _)| *peer);
            oldest.map(|oldest| self.seen.remove(&oldest));
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.seen.keys().copied()
    }
}

/// Whom this process has connected to: peers of sockets whose port it does not listen at.
fn connected_to() -> BTreeSet<IpAddr> {
    let Ok(listing) = fs::read_dir("/proc/self/fd") else { return BTreeSet::new() };
    let numbers = listing.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    let mut listening = BTreeSet::new();
    let mut peers = Vec::new();
    for number in numbers {
        // Descriptors of other kinds, and those closed meanwhile, have no name.
        let Ok(own) = getsockname::<SockaddrStorage>(number) else { continue };
        let Some(port) = port(&own) else { continue };
        match getpeername::<SockaddrStorage>(number) {
            Ok(peer) => peers.extend(ip(&peer).map(|peer| (port, peer))),
            Err(_) => drop(listening.insert(port)),
        }
    }
    peers.into_iter().filter(|(port, _)| !listening.contains(port)).map(|(_, peer)| peer).collect()
}

fn port(address: &SockaddrStorage) -> Option<u16> {
    let v4 = address.as_sockaddr_in().map(|address| address.port());
    v4.or_else(|| address.as_sockaddr_in6().map(|address| address.port()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_latest_peers_are_remembered() {
        let address = |number: u32| IpAddr::V4(Ipv4Addr::from_bits(number));
        let mut peers = Peers::default();
        peers.learn([address(7)]);
        for number in 100..200 {
            peers.learn([address(number), address(8)]);
        }
        let kept: BTreeSet<IpAddr> = peers.iter().collect();
        assert_eq!(kept.len(), Peers::MOST);
        assert!(kept.contains(&address(8)) && kept.contains(&address(199)));
        assert!(!kept.contains(&address(7)) && !kept.contains(&address(100)));
    }

    #[test]
    fn who_connects_to_this_process_is_no_peer_and_whom_it_connects_to_is() {
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.71:0").unwrap();
        let _outgoing = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        let found = connected_to();
        assert!(found.contains(&"127.0.0.71".parse().unwrap()), "{found:?}");
        assert!(!found.contains(&"127.0.0.1".parse().unwrap()), "{found:?}");
    }

    #[test]
    fn resolvers_are_name_servers() {
        let text = "# made by hand\nsearch example.net\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\n\
                    options ndots:1\nnameserver\n";
        let found: Vec<String> = name_servers(text).map(|server| server.to_string()).collect();
        assert_eq!(found, ["192.0.2.53", "fe80::1"]);
    }

    #[test]
    fn this_host_is_safe() {
        let safelist = Safelist::look(None, ["198.51.100.7".parse().unwrap()]);
        let hit = |text: &str| safelist.hit(&text.parse().unwrap());
        assert!(hit("127.0.0.1/32").unwrap().contains("an address of this host (`lo`)"));
        assert!(hit("0.0.0.0/0").is_some());
        assert!(hit("198.51.100.0/24").unwrap().starts_with("198.51.100.7, the store"));
        assert_eq!(hit("203.0.113.0/24"), None);
    }
}
