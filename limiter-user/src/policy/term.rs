//! Terms of services: `tcp/443`, `udp-from/53`, `icmp/echo-request`, …

use limiter_common::packet::Kind;

/// Ports or ICMP types, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    pub first: u16,
    pub last: u16,
}

impl Range {
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

impl Term {
    /// Whether the term says something of source ports.
    pub fn is_by_source(self) -> bool {
        matches!(self, Self::TcpFrom(_) | Self::UdpFrom(_))
    }

    /// Whether a packet is meant: its kind, its destination port or ICMP type, its source port.
    pub fn matches(self, kind: Kind, destination: u16, source: u16) -> bool {
        match (self, kind) {
            (Self::Tcp(range), Kind::Tcp | Kind::TcpSyn)
            | (Self::TcpSyn(range), Kind::TcpSyn)
            | (Self::Udp(range), Kind::Udp)
            | (Self::Sctp(range), Kind::Sctp)
            | (Self::Icmp(range), Kind::Icmp)
            | (Self::Icmpv6(range), Kind::Icmpv6) => range.contains(destination),
            (Self::TcpFrom(range), Kind::Tcp | Kind::TcpSyn) | (Self::UdpFrom(range), Kind::Udp) => {
                range.contains(source)
            }
            (Self::Fragment, Kind::Fragment) | (Self::Other, Kind::Other) => true,
            _ => false,
        }
    }
}
