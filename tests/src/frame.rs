//! Builds frames byte by byte, right or wrong as told.
//!
//! Written for the tests alone, from the RFCs, so that a mistake of the parser is not repeated here. Layers
//! are put together from the inside out: `ethernet(&[], IPV4, &V4::from("192.0.2.1").packet(UDP, &udp(1, 2, b"")))`.

use std::net::{Ipv4Addr, Ipv6Addr};

pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
pub const IPV6: u16 = 0x86dd;
/// TPID of a customer tag, 802.1Q.
pub const TAG: u16 = 0x8100;
/// TPID of a service tag, 802.1ad.
pub const SERVICE_TAG: u16 = 0x88a8;
/// EtherType for local experiments (IEEE 802, clause 9.2.4): not IP.
pub const EXPERIMENT: u16 = 0x88b5;

pub const HOP_BY_HOP: u8 = 0;
pub const ICMP: u8 = 1;
pub const IGMP: u8 = 2;
pub const IPIP: u8 = 4;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const IPV6_IN_IP: u8 = 41;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const GRE: u8 = 47;
pub const ESP: u8 = 50;
pub const AUTHENTICATION: u8 = 51;
pub const ICMPV6: u8 = 58;
pub const NO_NEXT: u8 = 59;
pub const DESTINATION: u8 = 60;
pub const SCTP: u8 = 132;
pub const MOBILITY: u8 = 135;
pub const HIP: u8 = 139;
pub const SHIM6: u8 = 140;

/// Address of the guarded end of every pair.
pub const GUARDED_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// Address of the end that sends.
pub const PEER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

/// An Ethernet frame with one tag for each TPID.
pub fn ethernet(tags: &[u16], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(14 + 4 * tags.len() + payload.len());
    frame.extend(GUARDED_MAC);
    frame.extend(PEER_MAC);
    for (index, tag) in tags.iter().enumerate() {
        frame.extend(tag.to_be_bytes());
        frame.extend((index as u16 + 1).to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An IPv4 header, with what it does not set by itself.
#[derive(Clone, Debug)]
pub struct V4 {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub ttl: u8,
    /// At most 40 bytes, a multiple of 4.
    pub options: Vec<u8>,
    pub more_fragments: bool,
    /// In units of 8 bytes.
    pub offset: u16,
    /// Instead of the true one.
    pub total_length: Option<u16>,
    /// Instead of the true one, in units of 4 bytes.
    pub header_length: Option<u8>,
    pub version: u8,
}

impl V4 {
    pub fn from(source: &str) -> Self {
        Self {
            source: source.parse().expect("an IPv4 address"),
            destination: Ipv4Addr::new(198, 51, 100, 1),
            ttl: 64,
            options: Vec::new(),
            more_fragments: false,
            offset: 0,
            total_length: None,
            header_length: None,
            version: 4,
        }
    }

    pub fn to(mut self, destination: &str) -> Self {
        self.destination = destination.parse().expect("an IPv4 address");
        self
    }

    /// No-operation options (RFC 791, type 1) that fill `words` × 4 bytes.
    pub fn option_words(mut self, words: usize) -> Self {
        self.options = vec![1; words * 4];
        self
    }

    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// A fragment at `offset` × 8 bytes.
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        self.offset = offset;
        self.more_fragments = more;
        self
    }

    pub fn total_length(mut self, bytes: u16) -> Self {
        self.total_length = Some(bytes);
        self
    }

    pub fn header_length(mut self, words: u8) -> Self {
        self.header_length = Some(words);
        self
    }

    pub fn version(mut self, version: u8) -> Self {
        self.version = version;
        self
    }

    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header_bytes = 20 + self.options.len();
        let words = self.header_length.unwrap_or((header_bytes / 4) as u8);
        let total = self.total_length.unwrap_or((header_bytes + payload.len()) as u16);
        let flags = u16::from(self.more_fragments) << 13 | self.offset;
        let mut bytes = vec![self.version << 4 | words, 0];
        bytes.extend(total.to_be_bytes());
        bytes.extend(0x1234_u16.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend([self.ttl, protocol, 0, 0]);
        bytes.extend(self.source.octets());
        bytes.extend(self.destination.octets());
        bytes.extend(&self.options);
        let sum = checksum(0, &bytes).to_be_bytes();
        bytes[10..12].copy_from_slice(&sum);
        bytes.extend(payload);
        bytes
    }
}

/// One extension header of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Any header with the common form of RFC 8200, section 4: its number and whole length in units of 8 bytes.
    Common(u8, u8),
    /// RFC 8200, section 4.5: offset in units of 8 bytes, and whether more follow.
    Fragment(u16, bool),
    /// RFC 4302: its whole length in units of 4 bytes, an even number ≥ 4 in IPv6.
    Authentication(u8),
}

impl Extension {
    fn number(self) -> u8 {
        match self {
            Self::Common(number, _) => number,
            Self::Fragment(..) => FRAGMENT,
            Self::Authentication(_) => AUTHENTICATION,
        }
    }

    fn bytes(self, next: u8) -> Vec<u8> {
        match self {
            Self::Common(_, units) => {
                let mut bytes = vec![0; usize::from(units) * 8];
                bytes[0] = next;
                bytes[1] = units - 1;
                // One PadN option fills it (RFC 8200, section 4.2); a routing header of type 0 with nothing left.
                bytes[2] = 1;
                bytes[3] = (bytes.len() - 4) as u8;
                bytes
            }
            Self::Fragment(offset, more) => {
                let mut bytes = vec![next, 0];
                bytes.extend((offset << 3 | u16::from(more)).to_be_bytes());
                bytes.extend(0xdead_beef_u32.to_be_bytes());
                bytes
            }
            Self::Authentication(words) => {
                let mut bytes = vec![0; usize::from(words) * 4];
                bytes[0] = next;
                bytes[1] = words - 2;
                bytes
            }
        }
    }
}

/// Every extension header the parser walks through, the shortest of each.
pub const EXTENSIONS: [(&str, Extension); 8] = [
    ("hop-by-hop", Extension::Common(HOP_BY_HOP, 1)),
    ("routing", Extension::Common(ROUTING, 1)),
    ("fragment", Extension::Fragment(0, false)),
    ("destination", Extension::Common(DESTINATION, 1)),
    ("authentication", Extension::Authentication(4)),
    ("mobility", Extension::Common(MOBILITY, 1)),
    ("hip", Extension::Common(HIP, 1)),
    ("shim6", Extension::Common(SHIM6, 1)),
];

/// An IPv6 header with its chain of extension headers.
#[derive(Clone, Debug)]
pub struct V6 {
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub hop_limit: u8,
    pub chain: Vec<Extension>,
    /// Instead of the true one.
    pub payload_length: Option<u16>,
    pub version: u8,
}

impl V6 {
    pub fn from(source: &str) -> Self {
        Self {
            source: source.parse().expect("an IPv6 address"),
            destination: Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1),
            hop_limit: 64,
            chain: Vec::new(),
            payload_length: None,
            version: 6,
        }
    }

    pub fn to(mut self, destination: &str) -> Self {
        self.destination = destination.parse().expect("an IPv6 address");
        self
    }

    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// One more extension header.
    pub fn with(mut self, extension: Extension) -> Self {
        self.chain.push(extension);
        self
    }

    pub fn payload_length(mut self, bytes: u16) -> Self {
        self.payload_length = Some(bytes);
        self
    }

    pub fn version(mut self, version: u8) -> Self {
        self.version = version;
        self
    }

    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut rest = Vec::new();
        for (index, extension) in self.chain.iter().enumerate() {
            rest.extend(extension.bytes(self.chain.get(index + 1).map_or(protocol, |next| next.number())));
        }
        rest.extend(payload);
        let first = self.chain.first().map_or(protocol, |extension| extension.number());
        let mut bytes = vec![self.version << 4, 0, 0, 0];
        bytes.extend(self.payload_length.unwrap_or(rest.len() as u16).to_be_bytes());
        bytes.extend([first, self.hop_limit]);
        bytes.extend(self.source.octets());
        bytes.extend(self.destination.octets());
        bytes.extend(rest);
        bytes
    }

    /// The packet of an ICMPv6 message whose checksum is right, so that a kernel answers it.
    pub fn icmpv6(&self, message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        message[2..4].fill(0);
        let mut pseudo = self.source.octets().to_vec();
        pseudo.extend(self.destination.octets());
        pseudo.extend((message.len() as u32).to_be_bytes());
        pseudo.extend(u32::from(ICMPV6).to_be_bytes());
        pseudo.extend(&message);
        let sum = checksum(0, &pseudo).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        self.packet(ICMPV6, &message)
    }
}

/// The internet checksum, RFC 1071.
pub fn checksum(start: u32, bytes: &[u8]) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// A TCP segment of 20 bytes without payload.
pub fn tcp(source_port: u16, destination_port: u16, flags: u8) -> Vec<u8> {
    let mut bytes = ports(source_port, destination_port);
    bytes.extend([0; 8]);
    bytes.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes
}

/// A UDP datagram without checksum.
pub fn udp(source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = ports(source_port, destination_port);
    bytes.extend((8 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

/// The common header of SCTP, 12 bytes.
pub fn sctp(source_port: u16, destination_port: u16) -> Vec<u8> {
    let mut bytes = ports(source_port, destination_port);
    bytes.extend([0; 8]);
    bytes
}

fn ports(source_port: u16, destination_port: u16) -> Vec<u8> {
    let mut bytes = source_port.to_be_bytes().to_vec();
    bytes.extend(destination_port.to_be_bytes());
    bytes
}

/// An ICMP or ICMPv6 message of 8 bytes, checksum of ICMP.
pub fn icmp(kind: u8, code: u8) -> Vec<u8> {
    let mut bytes = vec![kind, code, 0, 0, 0, 1, 0, 1];
    let sum = checksum(0, &bytes).to_be_bytes();
    bytes[2..4].copy_from_slice(&sum);
    bytes
}

/// A neighbour solicitation for `target` (RFC 4861, section 4.3), with the link address of the asker.
pub fn neighbour_solicitation(target: &str) -> Vec<u8> {
    let target: Ipv6Addr = target.parse().expect("an IPv6 address");
    let mut bytes = vec![135, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(target.octets());
    bytes.extend([1, 1]);
    bytes.extend(PEER_MAC);
    bytes
}

/// An ARP request (RFC 826).
pub fn arp_request(sender: &str, target: &str) -> Vec<u8> {
    let sender: Ipv4Addr = sender.parse().expect("an IPv4 address");
    let target: Ipv4Addr = target.parse().expect("an IPv4 address");
    let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, 1];
    bytes.extend(PEER_MAC);
    bytes.extend(sender.octets());
    bytes.extend([0; 6]);
    bytes.extend(target.octets());
    bytes
}

/// A membership report of IGMP version 2 (RFC 2236).
pub fn igmp_report(group: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0x16, 0, 0, 0];
    bytes.extend(group);
    let sum = checksum(0, &bytes).to_be_bytes();
    bytes[2..4].copy_from_slice(&sum);
    bytes
}
