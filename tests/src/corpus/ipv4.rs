//! IPv4: header lengths, total lengths, protocols.

use limiter_common::packet::Family;

use super::{Case, Expected, case, malformed, v4};
use crate::frame::{
    ACK, AUTHENTICATION, ESP, FIN, FRAGMENT, GRE, ICMP, ICMPV6, IPIP, IPV4, IPV6_IN_IP, RST, SCTP, SYN, TCP,
    UDP, V4, ethernet, icmp, sctp, tcp, udp,
};

const HERE: &str = "192.0.2.1";

pub fn cases() -> Vec<Case> {
    [header_lengths(), total_lengths(), protocols(), tcp_flags(), short_l4(), addresses(), large()].concat()
}

fn frame(header: V4, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV4, &header.packet(protocol, payload))
}

/// Every `ihl`, with the options really there; then every one that is too small.
fn header_lengths() -> Vec<Case> {
    let mut cases = Vec::new();
    for words in 5..=15 {
        let header = V4::from(HERE).option_words(words - 5);
        let length = words as u32 * 4;
        cases.push(case(
            format!("UDP behind an ihl of {words}"),
            frame(header.clone(), UDP, &udp(1000, 53, b"")),
            v4(HERE).udp(1000, 53).bytes(length + 8),
        ));
        cases.push(case(
            format!("a SYN behind an ihl of {words}"),
            frame(header.clone(), TCP, &tcp(40000, 443, SYN)),
            v4(HERE).tcp_syn(40000, 443).bytes(length + 20),
        ));
        cases.push(case(
            format!("an ihl of {words} and no payload"),
            frame(header, UDP, b""),
            v4(HERE).other().bytes(length),
        ));
        if words > 5 {
            // 20 bytes of header, then a payload that lies where the options should.
            cases.push(case(
                format!("an ihl of {words} longer than the packet"),
                frame(V4::from(HERE).header_length(words as u8), UDP, b""),
                malformed(Family::V4).bytes(20),
            ));
        }
    }
    for words in 0..5 {
        cases.push(case(
            format!("an ihl of {words}"),
            frame(V4::from(HERE).header_length(words), UDP, &udp(1000, 53, b"")),
            malformed(Family::V4).bytes(28),
        ));
    }
    for version in [0, 3, 5, 6, 15] {
        cases.push(case(
            format!("version {version} under the EtherType of IPv4"),
            frame(V4::from(HERE).version(version), UDP, &udp(1000, 53, b"")),
            malformed(Family::V4).bytes(28),
        ));
    }
    cases
}

fn total_lengths() -> Vec<Case> {
    let query = udp(1000, 53, b"");
    let with = |total: u16| frame(V4::from(HERE).total_length(total), UDP, &query);
    let options = |total: u16| frame(V4::from(HERE).option_words(1).total_length(total), UDP, &query);
    let trailing = |bytes: usize| {
        let mut frame = frame(V4::from(HERE), UDP, &query);
        frame.extend(vec![0; bytes]);
        frame
    };
    let whole = v4(HERE).udp(1000, 53);
    vec![
        case("a total length of 0", with(0), malformed(Family::V4).bytes(28)),
        case("a total length of 19", with(19), malformed(Family::V4).bytes(28)),
        case("a total length of the header alone", with(20), v4(HERE).other().bytes(28)),
        case("a total length that cuts UDP by a byte", with(27), v4(HERE).other().bytes(28)),
        case("the true total length", with(28), whole.bytes(28)),
        case("a total length one too long", with(29), malformed(Family::V4).bytes(28)),
        case("a total length of 65535", with(65535), malformed(Family::V4).bytes(28)),
        case("a total length that cuts the options", options(23), malformed(Family::V4).bytes(32)),
        case("a total length of header and options", options(24), v4(HERE).other().bytes(32)),
        case("options and UDP cut by a byte", options(31), v4(HERE).other().bytes(32)),
        case("one trailing byte", trailing(1), whole.bytes(29)),
        case("padded to 60 bytes", trailing(18), whole.bytes(46)),
        case("1000 trailing bytes", trailing(1000), whole.bytes(1028)),
    ]
}

fn protocols() -> Vec<Case> {
    let here = v4(HERE);
    let inner = V4::from("203.0.113.9").packet(UDP, &udp(5, 6, b""));
    let mut cases = vec![
        case("UDP", frame(V4::from(HERE), UDP, &udp(65535, 1, b"data")), here.udp(65535, 1).bytes(32)),
        case("UDP port 0", frame(V4::from(HERE), UDP, &udp(0, 0, b"")), here.udp(0, 0).bytes(28)),
        case("SCTP", frame(V4::from(HERE), SCTP, &sctp(2905, 36412)), here.sctp(2905, 36412).bytes(32)),
        case("an echo request", frame(V4::from(HERE), ICMP, &icmp(8, 0)), here.icmp(8).bytes(28)),
        case("an echo reply", frame(V4::from(HERE), ICMP, &icmp(0, 0)), here.icmp(0).bytes(28)),
        case("fragmentation needed", frame(V4::from(HERE), ICMP, &icmp(3, 4)), here.icmp(3).bytes(28)),
        case("ICMP type 255", frame(V4::from(HERE), ICMP, &icmp(255, 0)), here.icmp(255).bytes(28)),
        case("IPv4 in IPv4", frame(V4::from(HERE), IPIP, &inner), here.other().bytes(48)),
    ];
    let mut flagged = |what: &str, flags: u8| {
        let mut frame = frame(V4::from(HERE), UDP, &udp(1000, 53, b""));
        frame[14 + 6] |= flags;
        cases.push(case(what, frame, here.udp(1000, 53).bytes(28)));
    };
    flagged("don't fragment", 0x40);
    flagged("the reserved flag", 0x80);
    for (what, protocol) in [
        ("protocol 0", 0),
        ("IGMP", 2),
        ("DCCP", 33),
        ("IPv6 in IPv4", IPV6_IN_IP),
        ("routing, which IPv4 has not", 43),
        ("a fragment header, which IPv4 has not", FRAGMENT),
        ("GRE", GRE),
        ("ESP", ESP),
        ("AH", AUTHENTICATION),
        ("ICMPv6", ICMPV6),
        ("destination options, which IPv4 has not", 60),
        ("OSPF", 89),
        ("UDP-Lite", 136),
        ("protocol 255", 255),
    ] {
        // The payload would be a fine UDP header.
        cases.push(case(
            format!("{what} in IPv4"),
            frame(V4::from(HERE), protocol, &udp(1000, 53, &[0; 24])),
            here.other().bytes(52),
        ));
    }
    cases
}

/// A fresh SYN is SYN set and ACK clear, whatever else is set.
fn tcp_flags() -> Vec<Case> {
    let here = v4(HERE).bytes(40);
    let (ece, cwr) = (0x40, 0x80);
    let table: [(&str, u8, Expected); 10] = [
        ("SYN", SYN, here.tcp_syn(1, 80)),
        ("SYN ACK", SYN | ACK, here.tcp(1, 80)),
        ("ACK", ACK, here.tcp(1, 80)),
        ("no flag", 0, here.tcp(1, 80)),
        ("RST", RST, here.tcp(1, 80)),
        ("FIN ACK", FIN | ACK, here.tcp(1, 80)),
        ("SYN FIN", SYN | FIN, here.tcp_syn(1, 80)),
        ("SYN RST", SYN | RST, here.tcp_syn(1, 80)),
        ("SYN with ECN", SYN | ece | cwr, here.tcp_syn(1, 80)),
        ("every flag", 0xff, here.tcp(1, 80)),
    ];
    table
        .into_iter()
        .map(|(what, flags, expected)| {
            case(format!("TCP {what}"), frame(V4::from(HERE), TCP, &tcp(1, 80, flags)), expected)
        })
        .collect()
}

/// One byte less than a full L4 header, and exactly one.
fn short_l4() -> Vec<Case> {
    let here = v4(HERE);
    let mut cases = Vec::new();
    for (what, protocol, bytes, expected) in [
        ("TCP", TCP, tcp(7, 80, ACK), here.tcp(7, 80)),
        ("UDP", UDP, udp(7, 80, b""), here.udp(7, 80)),
        ("SCTP", SCTP, sctp(7, 80), here.sctp(7, 80)),
        ("ICMP", ICMP, icmp(8, 0), here.icmp(8)),
    ] {
        let full = bytes.len();
        let length = 20 + full as u32;
        cases.push(case(
            format!("{what} of {full} bytes"),
            frame(V4::from(HERE), protocol, &bytes),
            expected.bytes(length),
        ));
        let short = &bytes[..full - 1];
        let cut = here.other().bytes(length - 1);
        cases.push(case(
            format!("{what} of {} bytes", full - 1),
            frame(V4::from(HERE), protocol, short),
            cut,
        ));
        // The missing byte is in the frame, but not in the packet.
        let mut trailing = frame(V4::from(HERE), protocol, short);
        trailing.extend([0; 16]);
        cases.push(case(
            format!("{what} of {} bytes before trailing ones", full - 1),
            trailing,
            here.other().bytes(length - 1 + 16),
        ));
    }
    cases
}

fn addresses() -> Vec<Case> {
    ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.1.2.3"]
        .into_iter()
        .map(|source| {
            case(
                format!("from {source}"),
                frame(V4::from(source), UDP, &udp(1000, 53, b"")),
                v4(source).udp(1000, 53).bytes(28),
            )
        })
        .collect()
}

fn large() -> Vec<Case> {
    let here = v4(HERE).udp(1000, 53);
    [1472, 3000, 8972, 20000, 65507]
        .into_iter()
        .map(|payload: usize| {
            case(
                format!("UDP with {payload} bytes"),
                frame(V4::from(HERE), UDP, &udp(1000, 53, &vec![0; payload])),
                here.bytes(payload as u32 + 28),
            )
        })
        .collect()
}
