//! What the parser says of a frame. Decisions read only this.

/// An IPv4 address as the 128 bits it has as a source: `::ffff:a.b.c.d`.
pub const V4_PREFIX_LOW: u64 = 0x0000_ffff_0000_0000;

/// The L3 header's family; the innermost index of the counters.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4 = 0,
    V6 = 1,
    /// ARP and everything that is not IP.
    Other = 2,
}

/// What can be told of the part behind the L3 header.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP, but for a fresh SYN.
    Tcp = 0,
    /// TCP with SYN set and ACK clear.
    TcpSyn = 1,
    Udp = 2,
    Sctp = 3,
    Icmp = 4,
    Icmpv6 = 5,
    /// A later fragment, or a first one without a whole L4 header.
    Fragment = 6,
    /// Every other protocol, and whatever is cut short behind the L3 header.
    Other = 7,
}

/// Traffic a host needs to stay on its link but that can be forged from off the link: spared
/// `[default]`, limits and rules without `from`, within a budget.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// IGMP with TTL 1.
    Igmp = 0,
    /// UDP 67 → 68.
    DhcpReply = 1,
    /// UDP 547 → 546.
    Dhcpv6Reply = 2,
    No = 3,
}

/// Class of a frame before any policy.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The EtherType behind at most two tags is neither IP nor ARP.
    NonIp = 0,
    /// See the parser's list of what is malformed.
    Malformed = 1,
    /// ARP, neighbour discovery, link-local multicast listener discovery.
    Link = 2,
    /// IPv4 or IPv6 to be judged by the policy.
    Ip = 3,
}

/// One frame, described.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address bits 127…64, host order. IPv4, also when carried in IPv6, is `::ffff:a.b.c.d`.
    pub source_high: u64,
    /// Source address bits 63…0.
    pub source_low: u64,
    /// Bytes from the L3 header to the end of the frame.
    pub length: u32,
    /// Destination port, or ICMP type.
    pub destination: u16,
    pub source_port: u16,
    pub shape: Shape,
    pub family: Family,
    pub kind: Kind,
    pub spared: Spared,
    /// Where it came in and where it goes, see [`crate::place`]; 0 where no rule asks.
    pub place: u8,
}

impl Packet {
    /// Nothing known yet.
    pub const UNKNOWN: Self = Self {
        source_high: 0,
        source_low: 0,
        length: 0,
        destination: 0,
        source_port: 0,
        shape: Shape::NonIp,
        family: Family::Other,
        kind: Kind::Other,
        spared: Spared::No,
        place: 0,
    };

    /// Whether the source is an IPv4 address, by itself or carried in IPv6.
    #[inline(always)]
    pub fn source_is_v4(&self) -> bool {
        self.source_high == 0 && self.source_low >> 32 == V4_PREFIX_LOW >> 32
    }
}
