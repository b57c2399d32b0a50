//! Prefixes: text to sorted lists without overlap, one family each.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::model::Prefixes;

/// `::ffff:0:0/96`, always an IPv4-in-IPv6 prefix.
pub(super) const MAPPED: Ipv6Net =
    Ipv6Net::new_assert(std::net::Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);

/// Why a text is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotAPrefix {
    /// It is not an address, or the length is not one.
    Text,
    /// Bits behind the length are set; this is it without them.
    HostBits(IpNet),
}

/// A prefix; a bare address is the prefix of that one address.
pub(super) fn parse(text: &str) -> Result<IpNet, NotAPrefix> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => IpNet::from(text.parse::<IpAddr>().map_err(|_| NotAPrefix::Text)?),
    };
    let masked = net.trunc();
    if masked == net { Ok(net) } else { Err(NotAPrefix::HostBits(masked)) }
}

/// Whether a text is meant as an address rather than a name.
pub(super) fn looks_like_a_prefix(text: &str) -> bool {
    text.contains(['/', ':', '.'])
}

/// What collecting prefixes tells besides the lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Collected {
    pub prefixes: Prefixes,
    /// An IPv6 prefix that covers an IPv4-in-IPv6 prefix, and so every IPv4 source with it.
    pub covers_ipv4: Option<Ipv6Net>,
}

/// Sorts, drops what another prefix of the list covers, and takes IPv4 carried in IPv6 for the IPv4 it is.
///
/// `embedded` are the configured IPv4-in-IPv6 prefixes, each a /96.
pub(super) fn collect(nets: impl IntoIterator<Item = IpNet>, embedded: &[Ipv6Net]) -> Collected {
    let mut collected = Collected::default();
    let Prefixes { v4, v6 } = &mut collected.prefixes;
    for net in nets {
        let net = match net {
            IpNet::V4(net) => {
                v4.push(net);
                continue;
            }
            IpNet::V6(net) => net,
        };
        let carriers = || std::iter::once(&MAPPED).chain(embedded);
        if let Some(carrier) = carriers().find(|carrier| carrier.contains(&net)) {
            v4.push(carried(carrier, &net));
            continue;
        }
        if carriers().any(|carrier| net.contains(carrier)) {
            v4.push(Ipv4Net::default());
            collected.covers_ipv4 = Some(net);
        }
        v6.push(net);
    }
    drop_covered(v4, |outer, inner| outer.contains(inner));
    drop_covered(v6, |outer, inner| outer.contains(inner));
    collected
}

/// The IPv4 prefix that a prefix inside a /96 stands for.
fn carried(carrier: &Ipv6Net, net: &Ipv6Net) -> Ipv4Net {
    let address = u128::from(net.network()) as u32;
    let length = net.prefix_len().saturating_sub(carrier.prefix_len());
    Ipv4Net::new(address.into(), length).unwrap_or_default()
}

/// A covering prefix sorts before what it covers, so the last one kept is the only one to ask.
fn drop_covered<N: Ord + Copy>(nets: &mut Vec<N>, covers: impl Fn(&N, &N) -> bool) {
    nets.sort_unstable();
    let mut kept: Option<N> = None;
    nets.retain(|net| {
        if kept.is_some_and(|outer| covers(&outer, net)) {
            return false;
        }
        kept = Some(*net);
        true
    });
}

/// One line of a set file that is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadLine {
    /// Byte offset of the text inside the file.
    pub offset: usize,
    pub text: String,
}

/// A set file, read.
#[derive(Clone, Debug, Default)]
pub(super) struct SetFile {
    pub nets: Vec<IpNet>,
    pub bad: Vec<BadLine>,
    /// Offset, text and masked form of the first prefix with host bits, and how many there are.
    pub host_bits: Option<(usize, String, IpNet, usize)>,
}

/// One prefix per line; `#` starts a comment; CRLF, blank lines and a byte order mark are fine.
pub(super) fn read_set_file(text: &str) -> SetFile {
    let mut file = SetFile::default();
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let start = offset;
        offset += line.len();
        let content = line.split('#').next().unwrap_or("");
        let content = if start == 0 { content.trim_start_matches('\u{feff}') } else { content };
        let trimmed = content.trim();
        if trimmed.is_empty() {
            continue;
        }
        match parse(trimmed) {
            Ok(net) => file.nets.push(net),
            Err(NotAPrefix::HostBits(masked)) => {
                file.nets.push(masked);
                let at = start + line.find(trimmed).unwrap_or(0);
                match &mut file.host_bits {
                    Some((.., count)) => *count += 1,
                    first => *first = Some((at, trimmed.to_owned(), masked, 1)),
                }
            }
            Err(NotAPrefix::Text) => {
                let offset = start + line.find(trimmed).unwrap_or(0);
                file.bad.push(BadLine { offset, text: trimmed.to_owned() });
            }
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(texts: &[&str], embedded: &[&str]) -> (Vec<String>, Vec<String>) {
        let embedded: Vec<Ipv6Net> = embedded.iter().map(|text| text.parse().unwrap()).collect();
        let collected = collect(texts.iter().map(|text| parse(text).unwrap()), &embedded);
        let text = |net: &dyn ToString| net.to_string();
        (
            collected.prefixes.v4.iter().map(|net| text(net)).collect(),
            collected.prefixes.v6.iter().map(|net| text(net)).collect(),
        )
    }

    #[test]
    fn duplicates_and_overlaps_merge() {
        let (v4, v6) = lists(
            &[
                "10.1.0.0/16",
                "10.0.0.0/8",
                "10.0.0.0/8",
                "192.0.2.1",
                "10.255.0.0/24",
                "2001:db8::/32",
                "2001:db8::1",
            ],
            &[],
        );
        assert_eq!(v4, ["10.0.0.0/8", "192.0.2.1/32"]);
        assert_eq!(v6, ["2001:db8::/32"]);
    }

    #[test]
    fn ipv4_carried_in_ipv6_is_ipv4() {
        let (v4, v6) = lists(&["::ffff:192.0.2.0/120", "64:ff9b::198.51.100.7", "64:ff9b::/96"], &[]);
        assert_eq!((v4.as_slice(), v6.len()), (["192.0.2.0/24".to_owned()].as_slice(), 1));
        let (v4, v6) = lists(&["::ffff:192.0.2.0/120", "64:ff9b::198.51.100.7"], &["64:ff9b::/96"]);
        assert_eq!(v4, ["192.0.2.0/24", "198.51.100.7/32"]);
        assert!(v6.is_empty());
        let (v4, v6) = lists(&["64:ff9b::/32"], &["64:ff9b::/96"]);
        assert_eq!((v4, v6), (vec!["0.0.0.0/0".to_owned()], vec!["64:ff9b::/32".to_owned()]));
        assert_eq!(lists(&["::ffff:0:0/96"], &[]).0, ["0.0.0.0/0"]);
    }

    #[test]
    fn a_prefix_is_exact() {
        assert_eq!(parse("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(parse("10.0.0.1").unwrap().to_string(), "10.0.0.1/32");
        assert_eq!(parse("10.0.0.1/8"), Err(NotAPrefix::HostBits("10.0.0.0/8".parse().unwrap())));
        for text in [
            "",
            "10",
            "10.0.0",
            "10.0.0.0/33",
            "10.0.0.0/",
            "2001:db8::/129",
            "office",
            "010.0.0.1",
            "::1%eth0",
        ] {
            assert_eq!(parse(text), Err(NotAPrefix::Text), "{text}");
        }
    }

    #[test]
    fn set_files_as_people_write_them() {
        let file = read_set_file(
            "\u{feff}# list\r\n10.0.0.0/8 # ten\r\n\r\n  nonsense\n10.9.9.9/24\n2001:db8::1\n11.1.1.1/8",
        );
        assert_eq!(
            file.nets.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.0/8", "10.9.9.0/24", "2001:db8::1/128", "11.0.0.0/8"]
        );
        assert_eq!(file.bad, [BadLine { offset: 33, text: "nonsense".to_owned() }]);
        let (_, text, masked, count) = file.host_bits.unwrap();
        assert_eq!((text.as_str(), masked.to_string().as_str(), count), ("10.9.9.9/24", "10.9.9.0/24", 2));
    }
}
