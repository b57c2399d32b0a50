//! The client's address, and the source it is counted as.
//!
//! Nothing a client can write by itself is believed: its address is found by walking from the connection
//! outwards past trusted proxies only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// How an address becomes a source. The same widths and embeddings as in the packet tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRules {
    pub ipv4: u8,
    pub ipv6: u8,
    /// /96 prefixes, besides `::ffff:0:0/96`, whose last 32 bits are the IPv4 source.
    pub ipv4_in_ipv6: Vec<Ipv6Net>,
}

impl Default for SourceRules {
    fn default() -> Self {
        let translated = Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
        Self { ipv4: 32, ipv6: 64, ipv4_in_ipv6: vec![translated] }
    }
}

impl SourceRules {
    /// IPv4 where IPv4 is carried in IPv6.
    pub fn canonical(&self, address: IpAddr) -> IpAddr {
        let IpAddr::V6(v6) = address else { return address };
        if let Some(v4) = v6.to_ipv4_mapped() {
            return IpAddr::V4(v4);
        }
        if self.ipv4_in_ipv6.iter().any(|prefix| prefix.contains(&v6)) {
            let [.., a, b, c, d] = v6.octets();
            return IpAddr::V4(Ipv4Addr::new(a, b, c, d));
        }
        address
    }

    /// The source of an address at the policy's widths.
    pub fn source(&self, address: IpAddr) -> IpNet {
        self.at(address, self.ipv4, self.ipv6)
    }

    /// The source at other widths, in bits.
    pub fn at(&self, address: IpAddr, ipv4: u8, ipv6: u8) -> IpNet {
        match self.canonical(address) {
            IpAddr::V4(v4) => IpNet::V4(Ipv4Net::new_assert(v4, ipv4.min(32)).trunc()),
            IpAddr::V6(v6) => IpNet::V6(Ipv6Net::new_assert(v6, ipv6.min(128)).trunc()),
        }
    }
}

/// The client's address out of a list as in `X-Forwarded-For`, nearest hop last.
///
/// Walks from the right past trusted proxies. The first hop that is not trusted is the client; an
/// entry that is no address ends the walk at the proxy that passed it on. `None` without any address.
pub fn client_of(list: &str, trusted: &[IpNet], rules: &SourceRules) -> Option<IpAddr> {
    let mut nearest = None;
    for hop in list.rsplit(',') {
        let Some(address) = parse_hop(hop.trim()) else { break };
        let address = rules.canonical(address);
        nearest = Some(address);
        if !trusted.iter().any(|proxy| proxy.contains(&address)) {
            break;
        }
    }
    nearest
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn parse_hop(hop: &str) -> Option<IpAddr> {
    if let Ok(address) = hop.parse() {
        return Some(address);
    }
    if let Some(rest) = hop.strip_prefix('[') {
        let (inside, port) = rest.split_once(']')?;
        let port_is_one = port.is_empty() || port.strip_prefix(':')?.parse::<u16>().is_ok();
        return if port_is_one { inside.parse::<Ipv6Addr>().ok().map(IpAddr::V6) } else { None };
    }
    let (address, port) = hop.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    address.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn the_client_is_the_first_untrusted_hop_from_the_right() {
        let trusted = nets(&["10.0.0.0/8", "2001:db8:ffff::/48"]);
        // list, client
        let table: &[(&str, Option<&str>)] = &[
            ("203.0.113.9", Some("203.0.113.9")),
            ("203.0.113.9, 10.0.0.1", Some("203.0.113.9")),
            ("198.51.100.1, 203.0.113.9, 10.0.0.1", Some("203.0.113.9")), // what a client forged is never reached
            ("10.9.9.9, 203.0.113.9, 10.0.0.1", Some("203.0.113.9")),
            ("10.0.0.2, 10.0.0.1", Some("10.0.0.2")), // all trusted: the farthest
            ("203.0.113.9, unknown, 10.0.0.1", Some("10.0.0.1")), // no address: the proxy that passed it on
            ("203.0.113.9,, 10.0.0.1", Some("10.0.0.1")),
            ("203.0.113.9:4711,10.0.0.1:80", Some("203.0.113.9")),
            ("[2001:db8::1]:443, 2001:db8:ffff::5", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("203.0.113.9, ::ffff:10.0.0.1", Some("203.0.113.9")),
            ("64:ff9b::cb00:7109, 10.0.0.1", Some("203.0.113.9")),
            ("", None),
            ("unix:", None),
            ("[2001:db8::1]x", None),
            ("203.0.113.9:x", None),
        ];
        for (list, client) in table {
            let found = client_of(list, &trusted, &SourceRules::default());
            assert_eq!(found, client.map(|c| c.parse().unwrap()), "{list:?}");
        }
    }

    #[test]
    fn sources_have_the_packet_tiers_widths() {
        let rules = SourceRules::default();
        let source = |text: &str| rules.source(text.parse().unwrap()).to_string();
        assert_eq!(source("203.0.113.9"), "203.0.113.9/32");
        assert_eq!(source("::ffff:203.0.113.9"), "203.0.113.9/32");
        assert_eq!(source("64:ff9b::203.0.113.9"), "203.0.113.9/32");
        assert_eq!(source("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(rules.at("203.0.113.9".parse().unwrap(), 24, 48).to_string(), "203.0.113.0/24");
        assert_eq!(rules.at("2001:db8:1:2::1".parse().unwrap(), 24, 48).to_string(), "2001:db8:1::/48");
        let wide = SourceRules { ipv4: 24, ipv6: 56, ipv4_in_ipv6: vec![] };
        assert_eq!(wide.source("203.0.113.9".parse().unwrap()).to_string(), "203.0.113.0/24");
        assert_eq!(wide.source("64:ff9b::1".parse().unwrap()).to_string(), "64:ff9b::/56");
    }
}
