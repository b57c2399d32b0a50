//! From the bytes of an Ethernet frame to a [`Packet`].
//!
//! The parser never gives up on a source: whatever follows a sound L3 header, the packet is somebody's and is
//! charged to him. **Malformed** is exactly: the fixed L3 header incomplete, the wrong version, an IHL below
//! five, a total or payload length shorter than its header or longer than the frame, more than two tags.
//!
//! Three tags would be a way round everything: Linux strips priority tags in a loop, however many there are.

use crate::packet::{Family, Kind, Packet, Shape, Spared};

/// A frame from its first Ethernet byte.
pub trait Frame {
    /// Bytes of the whole frame, those beyond its first buffer included.
    fn length(&self) -> u32;

    /// Two bytes in network order at `offset`, or `None` where the frame ends before them. (Nothing reads a
    /// single byte: of one the kernel's verifier draws no bound.)
    fn half(&self, offset: u32) -> Option<u16>;

    /// `N` times four bytes in network order at `offset`, or `None` where the frame ends before them.
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]>;

    /// Hides from a static analysis what an offset may be. The kernel's verifier would otherwise follow every
    /// chain of extension headers as a case of its own.
    #[inline(always)]
    fn blur(&self, offset: u32) -> u32 {
        offset
    }

    /// See [`parse_v6`], which the kernel program makes a function of its own.
    #[inline(always)]
    fn parse_v6(&self, start: u32, packet: &mut Packet) {
        parse_v6(self, start, packet);
    }
}

impl Frame for [u8] {
    fn length(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    fn half(&self, offset: u32) -> Option<u16> {
        let start = usize::try_from(offset).ok()?;
        Some(u16::from_be_bytes(self.get(start..start.checked_add(2)?)?.try_into().ok()?))
    }

    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let start = usize::try_from(offset).ok()?;
        let bytes = self.get(start..start.checked_add(4 * N)?)?;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_be_bytes(bytes.try_into().ok()?);
        }
        Some(words)
    }
}

const ETHERTYPE_OFFSET: u32 = 12;
const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_V6: u16 = 0x86dd;
const TAG_BYTES: u32 = 4;
const MAX_TAGS: usize = 2;
const V4_HEADER: u32 = 20;
const V6_HEADER: u32 = 40;

const ICMP: u8 = 1;
const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;

/// Extension headers followed before the rest is [`Kind::Other`].
const MAX_EXTENSIONS: usize = 8;

/// Where the L4 header of a packet begins, and what is known of it.
#[derive(Clone, Copy)]
struct Upper {
    protocol: u8,
    offset: u32,
    /// First byte behind the packet by its own length field: bytes after it are padding.
    end: u32,
    fragment: Fragment,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fragment {
    No,
    /// An IPv6 fragment header that says the packet is whole.
    Atomic,
    First,
    Later,
}

/// Describes a frame. Reads no policy.
#[inline(always)]
pub fn parse<F: Frame + ?Sized>(frame: &F) -> Packet {
    let mut packet = Packet::UNKNOWN;
    parse_into(frame, &mut packet);
    packet
}

/// The same, into a packet that is [`Packet::UNKNOWN`] yet.
#[inline(always)]
pub fn parse_into<F: Frame + ?Sized>(frame: &F, packet: &mut Packet) {
    let (ethertype, offset) = skip_tags(frame);
    if ethertype.is_some() {
        // The EtherType was read, so the frame reaches to here.
        packet.length = frame.length().wrapping_sub(offset);
    }
    match ethertype {
        Some(ETHERTYPE_V4) => parse_v4(frame, offset, packet),
        Some(ETHERTYPE_V6) => frame.parse_v6(offset, packet),
        Some(ETHERTYPE_ARP) => packet.shape = Shape::Link,
        Some(other) if !is_tag(other) => packet.shape = Shape::NonIp,
        // A third tag, or a frame that ends inside a tag.
        _ => packet.shape = Shape::Malformed,
    }
}

/// The EtherType behind at most two tags, and where what it is of begins.
#[inline(always)]
fn skip_tags<F: Frame + ?Sized>(frame: &F) -> (Option<u16>, u32) {
    let mut offset = ETHERTYPE_OFFSET;
    let mut ethertype = frame.half(offset);
    for _ in 0..MAX_TAGS {
        if !ethertype.is_some_and(is_tag) {
            break;
        }
        offset += TAG_BYTES;
        ethertype = frame.half(offset);
    }
    (ethertype, offset + 2)
}

/// Upper and lower 64 bits of the destination address, IPv4 as `::ffff:a.b.c.d`; zeros where the frame has none.
#[inline(always)]
pub fn destination<F: Frame + ?Sized>(frame: &F) -> [u64; 2] {
    let (ethertype, start) = skip_tags(frame);
    match ethertype {
        Some(ETHERTYPE_V4) => match frame.words::<1>(start + 16) {
            Some([address]) => [0, crate::packet::V4_PREFIX_LOW | u64::from(address)],
            None => [0; 2],
        },
        Some(ETHERTYPE_V6) => match frame.words::<4>(start + 24) {
            Some([a, b, c, d]) => [u64::from(a) << 32 | u64::from(b), u64::from(c) << 32 | u64::from(d)],
            None => [0; 2],
        },
        _ => [0; 2],
    }
}

/// What a TCP segment says that somebody off the path of its connection cannot know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Of its addresses and ports, in network order as the kernel takes them to look for a socket.
    pub tuple_bytes: u32,
    pub sequence: u32,
    pub acknowledged: u32,
}

/// The segment in a frame whose TCP header follows its IP header; `None` for all others, those without ACK, and SYNs.
/// `tuple` is filled with source, destination and ports.
#[inline(always)]
pub fn segment<F: Frame + ?Sized>(frame: &F, tuple: &mut [u32; 9]) -> Option<Segment> {
    const SYN_AND_ACK: u16 = 0x12;
    const ACK: u16 = 0x10;
    let (ethertype, start) = skip_tags(frame);
    let (at, tuple_bytes) = match ethertype {
        Some(ETHERTYPE_V4) => {
            let [first, fragment, protocol, source, destination] = frame.words::<5>(start)?;
            if (protocol >> 16) as u8 != TCP || fragment & 0x1fff != 0 {
                return None;
            }
            tuple[0] = source.to_be();
            tuple[1] = destination.to_be();
            (start + (first >> 24 & 0x0f) * 4, 12)
        }
        Some(ETHERTYPE_V6) => {
            let [_, second] = frame.words::<2>(start)?;
            if (second >> 8) as u8 != TCP {
                return None;
            }
            let addresses = [frame.words::<4>(start + 8)?, frame.words::<4>(start + 24)?];
            for (index, word) in addresses.iter().flatten().enumerate() {
                tuple[index] = word.to_be();
            }
            (start + V6_HEADER, 36)
        }
        _ => return None,
    };
    let [ports, sequence, acknowledged] = frame.words::<3>(at)?;
    if frame.half(at + 12)? & SYN_AND_ACK != ACK {
        return None;
    }
    tuple[if tuple_bytes == 12 { 2 } else { 8 }] = ports.to_be();
    Some(Segment { tuple_bytes, sequence, acknowledged })
}

#[inline(always)]
fn is_tag(ethertype: u16) -> bool {
    ethertype == 0x8100 || ethertype == 0x88a8
}

#[inline(always)]
fn parse_v4<F: Frame + ?Sized>(frame: &F, start: u32, packet: &mut Packet) {
    packet.family = Family::V4;
    packet.shape = Shape::Malformed;
    let Some([first, fragment_word, protocol_word, source, _]) = frame.words::<5>(start) else { return };
    let header_bytes = (first >> 24 & 0x0f) * 4;
    let total = first & 0xffff;
    if first >> 28 != 4 || header_bytes < V4_HEADER || total < header_bytes || total > packet.length {
        return;
    }
    packet.shape = Shape::Ip;
    packet.source_low = crate::packet::V4_PREFIX_LOW | u64::from(source);

    let fragment = if fragment_word & 0x1fff != 0 {
        Fragment::Later
    } else if fragment_word & 0x2000 != 0 {
        Fragment::First
    } else {
        Fragment::No
    };
    // ICMPv6 over IPv4 means nothing to a host, nor ICMP over IPv6.
    let protocol = (protocol_word >> 16) as u8;
    let protocol = if protocol == ICMPV6 { NO_PROTOCOL } else { protocol };
    let upper = Upper { protocol, offset: start + header_bytes, end: start + total, fragment };
    parse_upper(frame, upper, packet);
    if fragment == Fragment::No {
        if protocol == IGMP && protocol_word >> 24 == 1 {
            packet.spared = Spared::Igmp;
        } else if packet.kind == Kind::Udp && packet.source_port == 67 && packet.destination == 68 {
            packet.spared = Spared::DhcpReply;
        }
    }
}

/// Describes what follows the Ethernet header of an IPv6 frame.
#[inline(always)]
pub fn parse_v6<F: Frame + ?Sized>(frame: &F, start: u32, packet: &mut Packet) {
    packet.family = Family::V6;
    packet.shape = Shape::Malformed;
    let Some([first, second, a, b, c, d]) = frame.words::<6>(start) else { return };
    let payload = second >> 16;
    let protocol = (second >> 8) as u8;
    if first >> 28 != 6 || packet.length < V6_HEADER || payload > packet.length - V6_HEADER {
        return;
    }
    packet.shape = Shape::Ip;
    packet.source_high = u64::from(a) << 32 | u64::from(b);
    packet.source_low = u64::from(c) << 32 | u64::from(d);

    // A jumbogram announces no length here; Linux then takes the frame's own.
    let jumbo = payload == 0 && protocol == HOP_BY_HOP;
    let body = start + V6_HEADER;
    let end = if jumbo { start + packet.length } else { body + payload };
    let mut upper = Upper { protocol, offset: body, end, fragment: Fragment::No };
    if !walk_extensions(frame, &mut upper) {
        packet.kind = if upper.fragment == Fragment::First { Kind::Fragment } else { Kind::Other };
        return;
    }
    if upper.protocol == ICMP {
        upper.protocol = NO_PROTOCOL;
    }
    parse_upper(frame, upper, packet);
    if upper.fragment == Fragment::No {
        if packet.kind == Kind::Icmpv6 && survives(frame, packet, &upper, second as u8) {
            packet.shape = Shape::Link;
        } else if packet.kind == Kind::Udp && packet.source_port == 547 && packet.destination == 546 {
            packet.spared = Spared::Dhcpv6Reply;
        }
    }
}

/// Never a protocol this parser knows: stands for "nothing that has ports or types here".
const NO_PROTOCOL: u8 = 59;

/// Follows the extension headers; `false` when one is cut short.
#[inline(always)]
fn walk_extensions<F: Frame + ?Sized>(frame: &F, upper: &mut Upper) -> bool {
    for _ in 0..MAX_EXTENSIONS {
        if !is_extension(upper.protocol) || upper.fragment == Fragment::Later {
            return true;
        }
        if upper.offset + 8 > upper.end {
            return false;
        }
        let Some([extension]) = frame.words::<1>(upper.offset) else { return false };
        let units = extension >> 16 & 0xff;
        let bytes = match upper.protocol {
            FRAGMENT => {
                upper.fragment = if extension & 0xfff8 != 0 {
                    Fragment::Later
                } else if extension & 1 != 0 || upper.fragment == Fragment::First {
                    Fragment::First
                } else {
                    Fragment::Atomic
                };
                8
            }
            AUTHENTICATION => (units + 2) * 4,
            _ => (units + 1) * 8,
        };
        if upper.offset + bytes > upper.end {
            return false;
        }
        upper.offset = frame.blur(upper.offset + bytes);
        upper.protocol = (extension >> 24) as u8;
    }
    true
}

#[inline(always)]
fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION | MOBILITY | HIP | SHIM6
    )
}

/// Ports, flags and types. A header counts only when whole and inside the packet's own length.
#[inline(always)]
fn parse_upper<F: Frame + ?Sized>(frame: &F, upper: Upper, packet: &mut Packet) {
    if upper.fragment == Fragment::Later {
        packet.kind = Kind::Fragment;
        return;
    }
    let (kind, bytes) = match upper.protocol {
        TCP => (Kind::Tcp, 20),
        UDP => (Kind::Udp, 8),
        SCTP => (Kind::Sctp, 12),
        ICMP => (Kind::Icmp, 8),
        ICMPV6 => (Kind::Icmpv6, 8),
        _ => return,
    };
    let ports = if upper.offset + bytes <= upper.end { frame.words::<1>(upper.offset) } else { None };
    let Some([ports]) = ports else {
        if upper.fragment == Fragment::First {
            packet.kind = Kind::Fragment;
        }
        return;
    };
    packet.kind = kind;
    match kind {
        Kind::Icmp | Kind::Icmpv6 => packet.destination = (ports >> 24) as u16,
        _ => {
            packet.source_port = (ports >> 16) as u16;
            packet.destination = ports as u16;
        }
    }
    if kind == Kind::Tcp
        && let Some(flags) = frame.half(upper.offset + 12)
        && flags & 0x12 == 0x02
    {
        packet.kind = Kind::TcpSyn;
    }
}

/// Whether an unfragmented ICMPv6 message keeps a host on its link and cannot come from off it.
#[inline(always)]
fn survives<F: Frame + ?Sized>(frame: &F, packet: &Packet, upper: &Upper, hop_limit: u8) -> bool {
    match packet.destination {
        // Routers lower the hop limit, so 255 proves the neighbour.
        133..=137 => hop_limit == 255 && frame.half(upper.offset).is_some_and(|field| field & 0xff == 0),
        // Listener queries, reports, dones.
        130..=132 | 143 => hop_limit == 1 && packet.source_high >> 54 == 0xfe80 >> 6,
        _ => false,
    }
}
