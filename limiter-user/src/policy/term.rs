//! Terms of services: `tcp/443`, `udp-from/53`, `icmp/echo-request`, …

use std::fmt;

use limiter_common::packet::Kind;

/// Ports or ICMP types, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    pub first: u16,
    pub last: u16,
}

impl Range {
    pub const PORTS: Self = Self { first: 0, last: u16::MAX };
    pub const TYPES: Self = Self { first: 0, last: 255 };

    pub fn contains(self, number: u16) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// One term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Term {
    /// By destination port, whatever the flags.
    Tcp(Range),
    /// SYN set and ACK clear.
    TcpSyn(Range),
    /// By source port.
    TcpFrom(Range),
    Udp(Range),
    /// By source port.
    UdpFrom(Range),
    Sctp(Range),
    /// By type.
    Icmp(Range),
    /// By type.
    Icmpv6(Range),
    /// A later fragment, or a first one without a whole L4 header.
    Fragment,
    /// Every other protocol.
    Other,
}

/// Types of `icmp`, the first name of a number being the one shown.
const ICMP_TYPES: &[(&str, u16)] = &[
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
];

/// Types of `icmpv6`.
const ICMPV6_TYPES: &[(&str, u16)] = &[
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("multicast-listener-query", 130),
    ("multicast-listener-report", 131),
    ("multicast-listener-done", 132),
    ("router-solicitation", 133),
    ("router-advertisement", 134),
    ("neighbour-solicitation", 135),
    ("neighbor-solicitation", 135),
    ("neighbour-advertisement", 136),
    ("neighbor-advertisement", 136),
    ("redirect", 137),
    ("multicast-listener-report-v2", 143),
];

/// The words a term may begin with.
pub(super) const PROTOCOLS: &[&str] =
    &["tcp", "tcp-syn", "tcp-from", "udp", "udp-from", "sctp", "icmp", "icmpv6", "fragment", "other"];

/// A text that is not a term: what is wrong, and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotATerm {
    pub message: String,
    pub help: String,
}

impl Term {
    pub(super) fn parse(text: &str) -> Result<Self, NotATerm> {
        let refuse = |message: String, help: &str| Err(NotATerm { message, help: help.to_owned() });
        let (protocol, rest) = match text.split_once('/') {
            Some((protocol, rest)) => (protocol, Some(rest)),
            None => (text, None),
        };
        let ports = |make: fn(Range) -> Self| match rest {
            None => Ok(make(Range::PORTS)),
            Some(rest) => match range(rest, u16::MAX) {
                Some(range) => Ok(make(range)),
                None => refuse(
                    format!("`{rest}` is neither a port nor a range of ports"),
                    "ports are 0 to 65535: write `tcp/443` or `udp/1024-65535`",
                ),
            },
        };
        let types = |make: fn(Range) -> Self, names: &[(&str, u16)]| match rest {
            None => Ok(make(Range::TYPES)),
            Some(rest) => match names.iter().find(|(name, _)| *name == rest) {
                Some((_, number)) => Ok(make(Range { first: *number, last: *number })),
                None => match range(rest, 255) {
                    Some(range) => Ok(make(range)),
                    None => {
                        let near = super::suggest::nearest(rest, names.iter().map(|(name, _)| *name));
                        let example = near.unwrap_or("echo-request");
                        refuse(
                            format!("`{rest}` is not a type of `{protocol}`"),
                            &format!("write `{protocol}/{example}`, or the type's number, 0 to 255"),
                        )
                    }
                },
            },
        };
        match protocol {
            "tcp" => ports(Self::Tcp),
            "tcp-syn" => ports(Self::TcpSyn),
            "tcp-from" => ports(Self::TcpFrom),
            "udp" => ports(Self::Udp),
            "udp-from" => ports(Self::UdpFrom),
            "sctp" => ports(Self::Sctp),
            "icmp" => types(Self::Icmp, ICMP_TYPES),
            "icmpv6" => types(Self::Icmpv6, ICMPV6_TYPES),
            "fragment" | "other" if rest.is_some() => refuse(
                format!("`{protocol}` has neither ports nor types"),
                &format!("write `{protocol}` alone"),
            ),
            "fragment" => Ok(Self::Fragment),
            "other" => Ok(Self::Other),
            _ => {
                let near = super::suggest::nearest(protocol, PROTOCOLS.iter().copied());
                let help = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("terms begin with {}", super::suggest::listed(PROTOCOLS)),
                };
                refuse(format!("`{text}` is not a term"), &help)
            }
        }
    }

    /// Whether all it means is TCP, and not the start of a connection alone.
    pub fn can_be_of_a_connection(self) -> bool {
        matches!(self, Self::Tcp(_) | Self::TcpFrom(_))
    }

    /// Whether the term says something of source ports.
    pub fn is_by_source(self) -> bool {
        matches!(self, Self::TcpFrom(_) | Self::UdpFrom(_))
    }

    /// The ports or types the term says of packets of this kind.
    pub fn range_of(self, kind: Kind) -> Option<Range> {
        match (self, kind) {
            (Self::Tcp(range) | Self::TcpFrom(range), Kind::Tcp | Kind::TcpSyn)
            | (Self::TcpSyn(range), Kind::TcpSyn)
            | (Self::Udp(range) | Self::UdpFrom(range), Kind::Udp)
            | (Self::Sctp(range), Kind::Sctp)
            | (Self::Icmp(range), Kind::Icmp)
            | (Self::Icmpv6(range), Kind::Icmpv6) => Some(range),
            _ => None,
        }
    }

    /// Whether a packet is meant: its kind, its destination port or ICMP type, its source port.
    pub fn matches(self, kind: Kind, destination: u16, source: u16) -> bool {
        match (self, kind) {
            (Self::Fragment, Kind::Fragment) | (Self::Other, Kind::Other) => true,
            _ => self
                .range_of(kind)
                .is_some_and(|range| range.contains(if self.is_by_source() { source } else { destination })),
        }
    }
}

/// `443` or `1024-65535`, digits only.
fn range(text: &str, most: u16) -> Option<Range> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number| digits && *number <= most)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = Range { first: number(first)?, last: number(last)? };
    (range.first <= range.last).then_some(range)
}

impl fmt::Display for Term {
    /// As it is written in a policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, range, all, names): (_, _, _, &[(&str, u16)]) = match self {
            Self::Tcp(range) => ("tcp", range, Range::PORTS, &[]),
            Self::TcpSyn(range) => ("tcp-syn", range, Range::PORTS, &[]),
            Self::TcpFrom(range) => ("tcp-from", range, Range::PORTS, &[]),
            Self::Udp(range) => ("udp", range, Range::PORTS, &[]),
            Self::UdpFrom(range) => ("udp-from", range, Range::PORTS, &[]),
            Self::Sctp(range) => ("sctp", range, Range::PORTS, &[]),
            Self::Icmp(range) => ("icmp", range, Range::TYPES, ICMP_TYPES),
            Self::Icmpv6(range) => ("icmpv6", range, Range::TYPES, ICMPV6_TYPES),
            Self::Fragment => return f.write_str("fragment"),
            Self::Other => return f.write_str("other"),
        };
        f.write_str(word)?;
        if *range == all {
            return Ok(());
        }
        if range.first < range.last {
            return write!(f, "/{}-{}", range.first, range.last);
        }
        match names.iter().find(|(_, number)| *number == range.first) {
            Some((name, _)) => write!(f, "/{name}"),
            None => write!(f, "/{}", range.first),
        }
    }
}

/// Every type name but the second spelling of a number.
#[cfg(test)]
pub(super) fn type_names() -> impl Iterator<Item = &'static str> {
    ICMP_TYPES.iter().chain(ICMPV6_TYPES).map(|(name, _)| *name).filter(|name| !name.starts_with("neighbor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_reads_back() {
        for text in [
            "tcp",
            "tcp/443",
            "tcp/1024-65535",
            "tcp-syn/80",
            "tcp-syn",
            "tcp-from/53",
            "udp",
            "udp/0",
            "udp/65535",
            "udp-from/123",
            "sctp",
            "sctp/36412",
            "icmp",
            "icmp/echo-request",
            "icmp/42",
            "icmpv6/packet-too-big",
            "icmpv6/200-201",
            "fragment",
            "other",
        ] {
            assert_eq!(Term::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Term::parse("icmp/8"), Term::parse("icmp/echo-request"));
        assert_eq!(Term::parse("icmpv6/neighbor-solicitation"), Term::parse("icmpv6/135"));
    }

    #[test]
    fn what_is_not_a_term_says_what_would_be() {
        for (text, message, help) in [
            ("tpc/80", "`tpc/80` is not a term", "did you mean `tcp`?"),
            (
                "tcp/65536",
                "`65536` is neither a port nor a range of ports",
                "ports are 0 to 65535: write `tcp/443` or `udp/1024-65535`",
            ),
            (
                "udp/90-80",
                "`90-80` is neither a port nor a range of ports",
                "ports are 0 to 65535: write `tcp/443` or `udp/1024-65535`",
            ),
            (
                "icmp/echo-requst",
                "`echo-requst` is not a type of `icmp`",
                "write `icmp/echo-request`, or the type's number, 0 to 255",
            ),
            ("fragment/1", "`fragment` has neither ports nor types", "write `fragment` alone"),
        ] {
            let NotATerm { message: said, help: helped } = Term::parse(text).unwrap_err();
            assert_eq!((said.as_str(), helped.as_str()), (message, help));
        }
        for text in ["tcp/", "tcp/+80", "tcp/80-", "tcp/-80", "icmp/256", "", "TCP/80", "tcp/80/90"] {
            assert!(Term::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn terms_mean_the_packets_they_name() {
        let term = |text| Term::parse(text).unwrap();
        assert!(term("tcp/80").matches(Kind::TcpSyn, 80, 1) && term("tcp/80").matches(Kind::Tcp, 80, 1));
        assert!(
            term("tcp-syn/80").matches(Kind::TcpSyn, 80, 1) && !term("tcp-syn/80").matches(Kind::Tcp, 80, 1)
        );
        assert!(
            term("tcp-from/80").matches(Kind::Tcp, 1, 80) && !term("tcp-from/80").matches(Kind::Tcp, 80, 1)
        );
        assert!(term("udp-from/53").matches(Kind::Udp, 1, 53) && !term("udp/53").matches(Kind::Udp, 1, 53));
        assert!(term("icmp/8").matches(Kind::Icmp, 8, 0) && !term("icmp/8").matches(Kind::Icmpv6, 8, 0));
        assert!(term("other").matches(Kind::Other, 0, 0) && !term("other").matches(Kind::Fragment, 0, 0));
    }
}
