//! Frames with what must be said of them.
//!
//! Every expected value was derived by hand from the parser's contract, never from its code:
//!
//! - Ethernet with up to two tags (0x8100, 0x88a8). **Malformed** is: fixed L3 header incomplete, wrong version,
//!   `ihl` < 5, total or payload length shorter than its header or longer than the frame, more than two tags, no
//!   EtherType behind a tag. A malformed packet's family is told by its EtherType.
//! - Behind at most two tags: ARP is link, neither IP nor ARP nor a tag is non-IP.
//! - IPv4's protocol field alone tells its L4 protocol. IPv6 has up to eight extension headers; one more, or one
//!   cut short, is `other`. A payload length of 0 before a hop-by-hop header means "to the end of the frame".
//! - A full L4 header is TCP 20, UDP 8, SCTP 12, ICMP 8, ICMPv6 8 bytes, all of them within the IP length.
//!   Without it an unfragmented packet is `other`, a first fragment is `fragment`. Every fragment with an offset
//!   is `fragment`. ICMP over IPv6 and ICMPv6 over IPv4 are `other`.
//! - Length counts from the L3 header to the end of the frame.

pub mod ethernet;
pub mod fragments;
pub mod ipv4;
pub mod ipv6;
pub mod link;
pub mod truncation;

use std::net::{Ipv4Addr, Ipv6Addr};

use limiter_common::packet::{Family, Kind, Packet, Shape, Spared};

/// One frame of a table.
#[derive(Clone, Debug)]
pub struct Case {
    pub what: String,
    pub frame: Vec<u8>,
    pub expected: Expected,
}

/// What the parser must say. What is `None` is nobody's business: no verdict depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub shape: Shape,
    pub family: Family,
    /// Of a packet that goes before the policy.
    pub ip: Option<Ip>,
    /// Bytes from the L3 header on, where its place is known.
    pub length: Option<u32>,
}

/// What the policy reads.
#[derive(Clone, Copy, Debug)]
pub struct Ip {
    pub source: Source,
    pub kind: Kind,
    pub source_port: u16,
    pub destination: u16,
    pub spared: Spared,
}

/// Who a packet is charged to.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

impl Source {
    /// The address as the two halves of [`Packet`], host order.
    pub fn halves(self) -> (u64, u64) {
        match self {
            Self::V4(address) => (0, 0xffff_0000_0000 | u64::from(u32::from(address))),
            Self::V6(address) => {
                let bits = u128::from(address);
                ((bits >> 64) as u64, bits as u64)
            }
        }
    }
}

impl Expected {
    fn ip(family: Family, source: Source) -> Self {
        let ip = Ip { source, kind: Kind::Other, source_port: 0, destination: 0, spared: Spared::No };
        Self { shape: Shape::Ip, family, ip: Some(ip), length: None }
    }

    fn of(mut self, kind: Kind, source_port: u16, destination: u16) -> Self {
        let ip = self.ip.as_mut().expect("only an IP packet has a kind");
        (ip.kind, ip.source_port, ip.destination) = (kind, source_port, destination);
        self
    }

    pub fn tcp(self, source_port: u16, destination: u16) -> Self {
        self.of(Kind::Tcp, source_port, destination)
    }

    pub fn tcp_syn(self, source_port: u16, destination: u16) -> Self {
        self.of(Kind::TcpSyn, source_port, destination)
    }

    pub fn udp(self, source_port: u16, destination: u16) -> Self {
        self.of(Kind::Udp, source_port, destination)
    }

    pub fn sctp(self, source_port: u16, destination: u16) -> Self {
        self.of(Kind::Sctp, source_port, destination)
    }

    pub fn icmp(self, kind: u8) -> Self {
        self.of(Kind::Icmp, 0, u16::from(kind))
    }

    pub fn icmpv6(self, kind: u8) -> Self {
        self.of(Kind::Icmpv6, 0, u16::from(kind))
    }

    pub fn fragment(self) -> Self {
        self.of(Kind::Fragment, 0, 0)
    }

    /// Neither TCP, UDP, SCTP, ICMP nor a fragment. What [`v4`] and [`v6`] start with, said aloud.
    pub fn other(self) -> Self {
        self.of(Kind::Other, 0, 0)
    }

    pub fn spared(mut self, spared: Spared) -> Self {
        self.ip.as_mut().expect("only an IP packet is spared").spared = spared;
        self
    }

    pub fn bytes(mut self, length: u32) -> Self {
        self.length = Some(length);
        self
    }

    /// Every difference to what was said, or nothing.
    pub fn differences(&self, said: &Packet) -> Vec<String> {
        let mut all = Vec::new();
        let mut compare = |what: &str, expected: String, said: String| {
            if expected != said {
                all.push(format!("{what}: expected {expected}, got {said}"));
            }
        };
        compare("shape", format!("{:?}", self.shape), format!("{:?}", said.shape));
        compare("family", format!("{:?}", self.family), format!("{:?}", said.family));
        if let Some(length) = self.length {
            compare("length", length.to_string(), said.length.to_string());
        }
        if let Some(ip) = self.ip {
            let (high, low) = ip.source.halves();
            compare(
                "source",
                format!("{high:016x}{low:016x}"),
                format!("{:016x}{:016x}", said.source_high, said.source_low),
            );
            compare("kind", format!("{:?}", ip.kind), format!("{:?}", said.kind));
            compare("source port", ip.source_port.to_string(), said.source_port.to_string());
            compare("destination", ip.destination.to_string(), said.destination.to_string());
            compare("spared", format!("{:?}", ip.spared), format!("{:?}", said.spared));
        }
        all
    }
}

/// IPv4 from `source`.
pub fn v4(source: &str) -> Expected {
    Expected::ip(Family::V4, Source::V4(source.parse().expect("an IPv4 address")))
}

/// IPv6 from `source`.
pub fn v6(source: &str) -> Expected {
    Expected::ip(Family::V6, Source::V6(source.parse().expect("an IPv6 address")))
}

/// IPv6 whose source is an IPv4 address.
pub fn v4_in_v6(source: &str) -> Expected {
    Expected::ip(Family::V6, Source::V4(source.parse().expect("an IPv4 address")))
}

pub fn malformed(family: Family) -> Expected {
    Expected { shape: Shape::Malformed, family, ip: None, length: None }
}

pub fn non_ip() -> Expected {
    Expected { shape: Shape::NonIp, family: Family::Other, ip: None, length: None }
}

/// Link survival.
pub fn link(family: Family) -> Expected {
    Expected { shape: Shape::Link, family, ip: None, length: None }
}

pub(crate) fn case(what: impl Into<String>, frame: Vec<u8>, expected: Expected) -> Case {
    Case { what: what.into(), frame, expected }
}

/// The whole table.
pub fn frames() -> Vec<Case> {
    [ethernet::cases(), ipv4::cases(), ipv6::cases(), fragments::cases(), link::cases(), truncation::cases()]
        .concat()
}
