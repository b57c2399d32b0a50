//! Whom nothing automatic may ban, and an operator only by force: this host and what it lives by.
//!
//! Its own addresses, its next hops, its resolvers, whoever the daemon itself talks to (the store), and what the policy
//! puts under `never-ban`. Looked up anew each time: addresses and routes change.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;

use ipnet::IpNet;
use nix::sys::socket::{SockaddrStorage, getpeername};

use super::lifeline::{holds_some, lists, overlap};
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

    /// Who of it a ban of this prefix would hit.
    pub fn hit(&self, prefix: &IpNet) -> Option<String> {
        let whole = |address: IpAddr| IpNet::from(canonical(address));
        let address = self.addresses.iter().find(|(address, _)| overlap(&whole(*address), prefix));
        if let Some((address, what)) = address {
            return Some(format!("{}, {what}", canonical(*address)));
        }
        let policy = self.policy?;
        let never = &policy.default.never_ban;
        if !lists(policy, never).any(|list| holds_some(list, prefix)) {
            return None;
        }
        let set = never.sets.iter().filter_map(|set| policy.sets.get(*set));
        let named = set.clone().find(|set| holds_some(&set.prefixes, prefix));
        Some(match named {
            Some(set) => format!("sources of the set `{}`, which is under `never-ban`", set.name),
            None => "sources the policy has under `never-ban`".to_owned(),
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

/// Gateways of the routes in the main tables.
fn next_hops() -> Vec<(IpAddr, String)> {
    let v4 = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let v6 = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    gateways_v4(&v4).chain(gateways_v6(&v6)).map(|hop| (hop, "a next hop of this host".to_owned())).collect()
}

/// The third column is the gateway, its bytes as they are in memory.
fn gateways_v4(table: &str) -> impl Iterator<Item = IpAddr> {
    table.lines().skip(1).filter_map(|line| {
        let gateway = u32::from_str_radix(line.split_whitespace().nth(2)?, 16).ok()?;
        (gateway != 0).then(|| IpAddr::V4(Ipv4Addr::from(gateway.to_ne_bytes())))
    })
}

/// The fifth column is the gateway.
fn gateways_v6(table: &str) -> impl Iterator<Item = IpAddr> {
    table.lines().filter_map(|line| {
        let gateway = u128::from_str_radix(line.split_whitespace().nth(4)?, 16).ok()?;
        (gateway != 0).then(|| IpAddr::V6(Ipv6Addr::from(gateway)))
    })
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

/// Whom this process is connected to.
pub fn own_peers() -> Vec<IpAddr> {
    let Ok(listing) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = listing.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    numbers.filter_map(|number| ip(&getpeername::<SockaddrStorage>(number).ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_tell_their_gateways() {
        let v4 = "Iface\tDestination\tGateway \tFlags\n\
                  eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let expected: IpAddr = "192.0.2.1".parse().unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(gateways_v4(v4).collect::<Vec<_>>(), [expected]);
        }
        let v6 = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
                  fe800000000000000000000000000001 00000400 00000000 00000000 00000003     eth0\n\
                  fe800000000000000000000000000000 40 00000000000000000000000000000000 00 \
                  00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n";
        assert_eq!(gateways_v6(v6).collect::<Vec<_>>(), ["fe80::1".parse::<IpAddr>().unwrap()]);
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
