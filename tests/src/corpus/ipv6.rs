//! IPv6: extension headers, payload lengths, IPv4 sources.

use limiter_common::packet::Family;

use super::{Case, case, malformed, v4_in_v6, v6};
use crate::frame::{
    ACK, DESTINATION, ESP, EXTENSIONS, Extension, FRAGMENT, GRE, HOP_BY_HOP, ICMP, ICMPV6, IPIP, IPV6,
    NO_NEXT, ROUTING, SCTP, SYN, TCP, UDP, V6, ethernet, icmp, sctp, tcp, udp,
};

const HERE: &str = "2001:db8::1";

pub fn cases() -> Vec<Case> {
    [
        protocols(),
        each_extension(),
        chains(),
        extension_lengths(),
        payload_lengths(),
        versions(),
        short_l4(),
        embedded(),
        large(),
    ]
    .concat()
}

fn frame(header: V6, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV6, &header.packet(protocol, payload))
}

fn protocols() -> Vec<Case> {
    let here = v6(HERE);
    let mut cases = vec![
        case("UDP over IPv6", frame(V6::from(HERE), UDP, &udp(1000, 53, b"")), here.udp(1000, 53).bytes(48)),
        case(
            "a SYN over IPv6",
            frame(V6::from(HERE), TCP, &tcp(1, 443, SYN)),
            here.tcp_syn(1, 443).bytes(60),
        ),
        case("an ACK over IPv6", frame(V6::from(HERE), TCP, &tcp(1, 443, ACK)), here.tcp(1, 443).bytes(60)),
        case("SCTP over IPv6", frame(V6::from(HERE), SCTP, &sctp(3, 4)), here.sctp(3, 4).bytes(52)),
        case(
            "an echo request over IPv6",
            frame(V6::from(HERE), ICMPV6, &icmp(128, 0)),
            here.icmpv6(128).bytes(48),
        ),
        case("packet too big", frame(V6::from(HERE), ICMPV6, &icmp(2, 0)), here.icmpv6(2).bytes(48)),
    ];
    for (what, protocol) in [
        ("ICMP", ICMP),
        ("IGMP", 2),
        ("IPv4", IPIP),
        ("IPv6", 41),
        ("GRE", GRE),
        ("ESP", ESP),
        ("no next header", NO_NEXT),
        ("OSPF", 89),
        ("UDP-Lite", 136),
        ("an experiment, 253", 253),
        ("protocol 255", 255),
    ] {
        cases.push(case(
            format!("{what} in IPv6"),
            frame(V6::from(HERE).hop_limit(1), protocol, &udp(1000, 53, &[0; 24])),
            here.other().bytes(72),
        ));
    }
    cases
}

/// Each extension header before each kind of L4 header.
fn each_extension() -> Vec<Case> {
    let here = v6(HERE);
    let mut cases = Vec::new();
    for (name, extension) in EXTENSIONS {
        // All of these are 8 bytes long, but for AH with its 16.
        let bytes = if name == "authentication" { 16 } else { 8 };
        let header = || V6::from(HERE).with(extension);
        cases.extend([
            case(
                format!("{name} before UDP"),
                frame(header(), UDP, &udp(1000, 53, b"")),
                here.udp(1000, 53).bytes(48 + bytes),
            ),
            case(
                format!("{name} before a SYN"),
                frame(header(), TCP, &tcp(1, 443, SYN)),
                here.tcp_syn(1, 443).bytes(60 + bytes),
            ),
            case(
                format!("{name} before an echo request"),
                frame(header(), ICMPV6, &icmp(128, 0)),
                here.icmpv6(128).bytes(48 + bytes),
            ),
            case(
                format!("{name} before ESP"),
                frame(header(), ESP, &[0; 16]),
                here.other().bytes(56 + bytes),
            ),
            case(
                format!("{name} before nothing"),
                frame(header(), NO_NEXT, b""),
                here.other().bytes(40 + bytes),
            ),
        ]);
    }
    cases
}

fn chains() -> Vec<Case> {
    let here = v6(HERE);
    let mut cases = Vec::new();
    for count in 1..=9 {
        let mut header = V6::from(HERE);
        header.chain = vec![Extension::Common(DESTINATION, 1); count];
        let length = 48 + 8 * count as u32;
        let expected = if count <= 8 { here.udp(1000, 53) } else { here.other() };
        cases.push(case(
            format!("{count} extension headers before UDP"),
            frame(header, UDP, &udp(1000, 53, b"")),
            expected.bytes(length),
        ));
    }
    let mut all = V6::from(HERE);
    all.chain = EXTENSIONS.iter().map(|&(_, extension)| extension).collect();
    // Seven of 8 bytes, one of 16.
    cases.push(case(
        "all eight before UDP",
        frame(all.clone(), UDP, &udp(1000, 53, b"")),
        here.udp(1000, 53).bytes(120),
    ));
    cases.push(case("all eight before ESP", frame(all.clone(), ESP, &[0; 8]), here.other().bytes(120)));
    for (name, extension) in EXTENSIONS {
        let bytes = if name == "authentication" { 16 } else { 8 };
        cases.push(case(
            format!("all eight, then {name}"),
            frame(all.clone().with(extension), UDP, &udp(1000, 53, b"")),
            here.other().bytes(120 + bytes),
        ));
    }
    cases.push(case(
        "hop-by-hop behind another",
        frame(
            V6::from(HERE).with(Extension::Common(DESTINATION, 1)).with(Extension::Common(HOP_BY_HOP, 1)),
            UDP,
            &udp(1000, 53, b""),
        ),
        here.udp(1000, 53).bytes(64),
    ));
    cases
}

/// Extension headers longer than the shortest, and ones that claim more than there is.
fn extension_lengths() -> Vec<Case> {
    let here = v6(HERE);
    let query = udp(1000, 53, b"");
    let mut cases = Vec::new();
    for units in [2, 3, 32, 255] {
        cases.push(case(
            format!("destination options of {units} units"),
            frame(V6::from(HERE).with(Extension::Common(DESTINATION, units)), UDP, &query),
            here.udp(1000, 53).bytes(48 + 8 * u32::from(units)),
        ));
    }
    // RFC 4302 counts in units of four bytes, minus two.
    for words in [2, 3, 6, 255] {
        cases.push(case(
            format!("AH of {words} words"),
            frame(V6::from(HERE).with(Extension::Authentication(words)), UDP, &query),
            here.udp(1000, 53).bytes(48 + 4 * u32::from(words)),
        ));
    }
    for (what, header, length_at) in [
        ("hop-by-hop", Extension::Common(HOP_BY_HOP, 1), 14 + 40 + 1),
        ("routing", Extension::Common(ROUTING, 1), 14 + 40 + 1),
        ("AH", Extension::Authentication(4), 14 + 40 + 1),
    ] {
        let mut claims = frame(V6::from(HERE).with(header), UDP, &query);
        let length = claims.len() as u32 - 14;
        claims[length_at] = 200;
        cases.push(case(
            format!("{what} that claims more than there is"),
            claims,
            here.other().bytes(length),
        ));
    }
    // The second byte of a fragment header is reserved, never a length.
    let mut reserved = frame(V6::from(HERE).with(Extension::Fragment(0, false)), UDP, &query);
    reserved[14 + 40 + 1] = 200;
    cases.push(case("a fragment header with its reserved byte set", reserved, here.udp(1000, 53).bytes(56)));
    cases
}

fn payload_lengths() -> Vec<Case> {
    let here = v6(HERE);
    let query = udp(1000, 53, b"");
    let with = |length: u16| frame(V6::from(HERE).payload_length(length), UDP, &query);
    let options = |length: u16| {
        frame(V6::from(HERE).with(Extension::Common(DESTINATION, 1)).payload_length(length), UDP, &query)
    };
    let jumbo = |payload: &[u8]| {
        frame(V6::from(HERE).with(Extension::Common(HOP_BY_HOP, 1)).payload_length(0), UDP, payload)
    };
    let mut bare = frame(V6::from(HERE).payload_length(0), HOP_BY_HOP, b"");
    let bare_length = bare.len() as u32 - 14;
    let mut trailing = frame(V6::from(HERE), UDP, &query);
    trailing.extend([0; 12]);
    let mut cases = vec![
        case("a payload length of 0 before UDP", with(0), here.other().bytes(48)),
        case("a payload length that cuts UDP by a byte", with(7), here.other().bytes(48)),
        case("the true payload length", with(8), here.udp(1000, 53).bytes(48)),
        case("a payload length one too long", with(9), malformed(Family::V6).bytes(48)),
        case("a payload length of 65535", with(65535), malformed(Family::V6).bytes(48)),
        case("trailing bytes behind IPv6", trailing, here.udp(1000, 53).bytes(60)),
        case("a payload length of 0 before destination options", options(0), here.other().bytes(56)),
        case("a payload length within the extension header", options(7), here.other().bytes(56)),
        case("a payload length of the extension header alone", options(8), here.other().bytes(56)),
        case("an extension header and UDP cut by a byte", options(15), here.other().bytes(56)),
        case("an extension header and UDP", options(16), here.udp(1000, 53).bytes(56)),
        case("an extension header and one too long", options(17), malformed(Family::V6).bytes(56)),
        case("a payload length of 0 before hop-by-hop", jumbo(&query), here.udp(1000, 53).bytes(56)),
        case("a payload length of 0, hop-by-hop, 7 bytes of UDP", jumbo(&query[..7]), here.other().bytes(55)),
        case("a jumbogram", jumbo(&udp(1000, 53, &[0; 9000])), here.udp(1000, 53).bytes(9056)),
        case(
            "a payload length of 0 before a hop-by-hop that is not there",
            bare.clone(),
            here.other().bytes(bare_length),
        ),
    ];
    bare.extend([UDP, 0, 1, 4]);
    cases.push(case("a payload length of 0 before half a hop-by-hop", bare, here.other().bytes(44)));
    cases
}

fn versions() -> Vec<Case> {
    let mut cases: Vec<Case> = [0, 4, 5, 7, 15]
        .into_iter()
        .map(|version| {
            case(
                format!("version {version} under the EtherType of IPv6"),
                frame(V6::from(HERE).version(version), UDP, &udp(1000, 53, b"")),
                malformed(Family::V6).bytes(48),
            )
        })
        .collect();
    let mut labelled = frame(V6::from(HERE), UDP, &udp(1000, 53, b""));
    labelled[14..18].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
    cases.push(case("traffic class and flow label set", labelled, v6(HERE).udp(1000, 53).bytes(48)));
    cases
}

fn short_l4() -> Vec<Case> {
    let here = v6(HERE);
    let mut cases = Vec::new();
    for (what, protocol, bytes) in [
        ("TCP", TCP, tcp(7, 80, ACK)),
        ("UDP", UDP, udp(7, 80, b"")),
        ("SCTP", SCTP, sctp(7, 80)),
        ("ICMPv6", ICMPV6, icmp(128, 0)),
    ] {
        let short = &bytes[..bytes.len() - 1];
        let length = 40 + short.len() as u32;
        let name = format!("{what} of {} bytes over IPv6", short.len());
        cases.push(case(&name, frame(V6::from(HERE), protocol, short), here.other().bytes(length)));
        cases.push(case(
            format!("{name}, behind routing"),
            frame(V6::from(HERE).with(Extension::Common(ROUTING, 3)), protocol, short),
            here.other().bytes(length + 24),
        ));
        let mut trailing = frame(V6::from(HERE), protocol, short);
        trailing.extend([0; 16]);
        cases.push(case(format!("{name}, before trailing bytes"), trailing, here.other().bytes(length + 16)));
    }
    cases
}

/// IPv4 sources in IPv6 under `::ffff:0:0/96` and `64:ff9b::/96`, and their neighbours. The parser says what the
/// header says, that is the same 128 bits as of the IPv4 source under the first prefix; what else carries IPv4 is
/// for the policy to say, so the second is an IPv6 source to the parser.
fn embedded() -> Vec<Case> {
    let query = udp(1000, 53, b"");
    let mut cases = Vec::new();
    for (address, here) in [
        ("::ffff:192.0.2.1", v4_in_v6("192.0.2.1")),
        ("::ffff:0.0.0.0", v4_in_v6("0.0.0.0")),
        ("::ffff:255.255.255.255", v4_in_v6("255.255.255.255")),
        ("64:ff9b::192.0.2.1", v6("64:ff9b::c000:201")),
        ("64:ff9b::10.0.0.1", v6("64:ff9b::a00:1")),
    ] {
        cases.push(case(
            format!("UDP from {address}"),
            frame(V6::from(address), UDP, &query),
            here.udp(1000, 53).bytes(48),
        ));
        cases.push(case(
            format!("a later fragment from {address}"),
            frame(V6::from(address).with(Extension::Fragment(185, true)), UDP, &query),
            here.fragment().bytes(56),
        ));
        cases.push(case(
            format!("GRE from {address}"),
            frame(V6::from(address), GRE, &query),
            here.other().bytes(48),
        ));
    }
    for address in [
        "::192.0.2.1",
        "::fffe:192.0.2.1",
        "::1:ffff:192.0.2.1",
        "::ffff:0:192.0.2.1",
        "64:ff9b:1::192.0.2.1",
        "64:ff9b::1:192.0.2.1",
        "64:ff9c::192.0.2.1",
        "2002:c000:201::1",
        "::",
        "::1",
        "fe80::1",
    ] {
        cases.push(case(
            format!("UDP from {address}"),
            frame(V6::from(address), UDP, &query),
            v6(address).udp(1000, 53).bytes(48),
        ));
    }
    cases.push(case(
        "a protocol number of a fragment header and nothing behind",
        frame(V6::from(HERE), FRAGMENT, b""),
        v6(HERE).other().bytes(40),
    ));
    cases
}

fn large() -> Vec<Case> {
    [1452, 4096, 8952, 65527]
        .into_iter()
        .map(|payload: usize| {
            case(
                format!("UDP with {payload} bytes over IPv6"),
                frame(V6::from(HERE), UDP, &udp(1000, 53, &vec![0; payload])),
                v6(HERE).udp(1000, 53).bytes(payload as u32 + 48),
            )
        })
        .collect()
}
