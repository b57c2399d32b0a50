//! Fragments of each kind.

use super::{Case, case, v4, v6};
use crate::frame::{
    DESTINATION, Extension, GRE, HOP_BY_HOP, ICMP, ICMPV6, IPV4, IPV6, NO_NEXT, SCTP, SYN, TCP, UDP, V4, V6,
    ethernet, icmp, sctp, tcp, udp,
};

const V4_HERE: &str = "192.0.2.1";
const V6_HERE: &str = "2001:db8::1";

pub fn cases() -> Vec<Case> {
    [first_v4(), later_v4(), atomic_v6(), first_v6(), later_v6()].concat()
}

fn frame_v4(header: V4, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV4, &header.packet(protocol, payload))
}

fn frame_v6(header: V6, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV6, &header.packet(protocol, payload))
}

fn first_v4() -> Vec<Case> {
    let here = v4(V4_HERE);
    let first = || V4::from(V4_HERE).fragment(0, true);
    let short_of = |what: &str, protocol: u8, bytes: &[u8]| {
        case(
            format!("a first fragment with {} bytes of {what}", bytes.len()),
            frame_v4(first(), protocol, bytes),
            here.fragment().bytes(20 + bytes.len() as u32),
        )
    };
    let mut outside = frame_v4(first(), UDP, &udp(1000, 53, b"")[..7]);
    outside.push(0);
    vec![
        case(
            "a first fragment with UDP",
            frame_v4(first(), UDP, &udp(1, 53, &[0; 16])),
            here.udp(1, 53).bytes(44),
        ),
        case(
            "a first fragment with UDP's 8 bytes",
            frame_v4(first(), UDP, &udp(1, 53, b"")),
            here.udp(1, 53).bytes(28),
        ),
        case(
            "a first fragment with a SYN",
            frame_v4(first(), TCP, &tcp(1, 80, SYN)),
            here.tcp_syn(1, 80).bytes(40),
        ),
        case("a first fragment with SCTP", frame_v4(first(), SCTP, &sctp(1, 2)), here.sctp(1, 2).bytes(32)),
        case("a first fragment with ICMP", frame_v4(first(), ICMP, &icmp(8, 0)), here.icmp(8).bytes(28)),
        case("a first fragment of GRE", frame_v4(first(), GRE, &[0; 16]), here.other().bytes(36)),
        case(
            "a first fragment with options and UDP",
            frame_v4(first().option_words(10), UDP, &udp(1, 53, b"")),
            here.udp(1, 53).bytes(68),
        ),
        case("a first fragment whose UDP ends in trailing bytes", outside, here.fragment().bytes(28)),
        short_of("UDP", UDP, &udp(1000, 53, b"")[..7]),
        short_of("UDP", UDP, b""),
        short_of("TCP", TCP, &tcp(1, 80, SYN)[..8]),
        short_of("TCP", TCP, &tcp(1, 80, SYN)[..16]),
        short_of("TCP", TCP, &tcp(1, 80, SYN)[..19]),
        short_of("SCTP", SCTP, &sctp(1, 2)[..8]),
        short_of("ICMP", ICMP, &icmp(8, 0)[..4]),
    ]
}

fn later_v4() -> Vec<Case> {
    let here = v4(V4_HERE);
    let mut cases = Vec::new();
    for (offset, more) in
        [(1, true), (1, false), (2, true), (185, true), (185, false), (8191, true), (8191, false)]
    {
        for (what, protocol) in [("TCP", TCP), ("UDP", UDP), ("GRE", GRE)] {
            // What is there looks like a whole TCP header.
            cases.push(case(
                format!("a fragment of {what} at {offset}, more: {more}"),
                frame_v4(V4::from(V4_HERE).fragment(offset, more), protocol, &tcp(1, 80, SYN)),
                here.fragment().bytes(40),
            ));
        }
    }
    cases.push(case(
        "a later fragment without a byte",
        frame_v4(V4::from(V4_HERE).fragment(185, false), UDP, b""),
        here.fragment().bytes(20),
    ));
    cases.push(case(
        "a later fragment behind options",
        frame_v4(V4::from(V4_HERE).option_words(3).fragment(185, false), UDP, &[0; 8]),
        here.fragment().bytes(40),
    ));
    cases
}

/// Offset 0 and no more to come: a whole packet (RFC 6946), judged as one.
fn atomic_v6() -> Vec<Case> {
    let here = v6(V6_HERE);
    let atomic = || V6::from(V6_HERE).with(Extension::Fragment(0, false));
    vec![
        case(
            "an atomic fragment with UDP",
            frame_v6(atomic(), UDP, &udp(1, 53, b"")),
            here.udp(1, 53).bytes(56),
        ),
        case(
            "an atomic fragment with a SYN",
            frame_v6(atomic(), TCP, &tcp(1, 80, SYN)),
            here.tcp_syn(1, 80).bytes(68),
        ),
        case(
            "an atomic fragment with SCTP",
            frame_v6(atomic(), SCTP, &sctp(1, 2)),
            here.sctp(1, 2).bytes(60),
        ),
        case(
            "an atomic fragment with ICMPv6",
            frame_v6(atomic(), ICMPV6, &icmp(128, 0)),
            here.icmpv6(128).bytes(56),
        ),
        case(
            "an atomic fragment with 19 bytes of TCP",
            frame_v6(atomic(), TCP, &tcp(1, 80, SYN)[..19]),
            here.other().bytes(67),
        ),
        case("an atomic fragment without a byte", frame_v6(atomic(), UDP, b""), here.other().bytes(48)),
        case(
            "an atomic fragment, destination options, UDP",
            frame_v6(atomic().with(Extension::Common(DESTINATION, 2)), UDP, &udp(1, 53, b"")),
            here.udp(1, 53).bytes(72),
        ),
        case(
            "two atomic fragment headers",
            frame_v6(atomic().with(Extension::Fragment(0, false)), UDP, &udp(1, 53, b"")),
            here.udp(1, 53).bytes(64),
        ),
        case(
            "an atomic fragment header, then a later one",
            frame_v6(atomic().with(Extension::Fragment(7, false)), UDP, &udp(1, 53, b"")),
            here.fragment().bytes(64),
        ),
    ]
}

fn first_v6() -> Vec<Case> {
    let here = v6(V6_HERE);
    let first = || V6::from(V6_HERE).with(Extension::Fragment(0, true));
    let options = || first().with(Extension::Common(DESTINATION, 2));
    // The options of 16 bytes are cut to 8; the payload length agrees.
    let cut = {
        let mut packet = options().payload_length(16).packet(UDP, b"");
        packet.truncate(40 + 16);
        ethernet(&[], IPV6, &packet)
    };
    let mut outside = frame_v6(first(), UDP, &udp(1, 53, b"")[..7]);
    outside.push(0);
    vec![
        case(
            "a first fragment with UDP over IPv6",
            frame_v6(first(), UDP, &udp(1, 53, b"")),
            here.udp(1, 53).bytes(56),
        ),
        case(
            "a first fragment with a SYN over IPv6",
            frame_v6(first(), TCP, &tcp(1, 80, SYN)),
            here.tcp_syn(1, 80).bytes(68),
        ),
        case(
            "a first fragment with SCTP over IPv6",
            frame_v6(first(), SCTP, &sctp(1, 2)),
            here.sctp(1, 2).bytes(60),
        ),
        case(
            "a first fragment with ICMPv6",
            frame_v6(first(), ICMPV6, &icmp(128, 0)),
            here.icmpv6(128).bytes(56),
        ),
        case("a first fragment of GRE over IPv6", frame_v6(first(), GRE, &[0; 16]), here.other().bytes(64)),
        case("a first fragment of no next header", frame_v6(first(), NO_NEXT, b""), here.other().bytes(48)),
        case(
            "a first fragment, options, UDP",
            frame_v6(options(), UDP, &udp(1, 53, b"")),
            here.udp(1, 53).bytes(72),
        ),
        case(
            "a first fragment, options, 7 bytes of UDP",
            frame_v6(options(), UDP, &udp(1, 53, b"")[..7]),
            here.fragment().bytes(71),
        ),
        case("a first fragment that ends within its options", cut, here.fragment().bytes(56)),
        case(
            "a first fragment that ends behind its header",
            frame_v6(first(), UDP, b""),
            here.fragment().bytes(48),
        ),
        case(
            "a first fragment with 19 bytes of TCP over IPv6",
            frame_v6(first(), TCP, &tcp(1, 80, SYN)[..19]),
            here.fragment().bytes(67),
        ),
        case(
            "a first fragment with 7 bytes of ICMPv6",
            frame_v6(first(), ICMPV6, &icmp(135, 0)[..7]),
            here.fragment().bytes(55),
        ),
        case(
            "a first fragment whose UDP ends in trailing bytes over IPv6",
            outside,
            here.fragment().bytes(56),
        ),
        case(
            "hop-by-hop, then a first fragment",
            frame_v6(
                V6::from(V6_HERE).with(Extension::Common(HOP_BY_HOP, 1)).with(Extension::Fragment(0, true)),
                UDP,
                &udp(1, 53, b""),
            ),
            here.udp(1, 53).bytes(64),
        ),
    ]
}

fn later_v6() -> Vec<Case> {
    let here = v6(V6_HERE);
    let mut cases = Vec::new();
    for (offset, more) in [(1, true), (1, false), (181, true), (181, false), (8191, true), (8191, false)] {
        for (what, protocol) in
            [("TCP", TCP), ("ICMPv6", ICMPV6), ("GRE", GRE), ("destination options", DESTINATION)]
        {
            cases.push(case(
                format!("a fragment of {what} at {offset} over IPv6, more: {more}"),
                frame_v6(
                    V6::from(V6_HERE).with(Extension::Fragment(offset, more)),
                    protocol,
                    &tcp(1, 80, SYN),
                ),
                here.fragment().bytes(68),
            ));
        }
    }
    let mut eight = V6::from(V6_HERE);
    eight.chain = vec![Extension::Common(DESTINATION, 1); 7];
    eight.chain.push(Extension::Fragment(3, true));
    let mut nine = V6::from(V6_HERE);
    nine.chain = vec![Extension::Common(DESTINATION, 1); 8];
    nine.chain.push(Extension::Fragment(3, true));
    cases.extend([
        case(
            "a later fragment whose header is the eighth",
            frame_v6(eight, UDP, &[0; 8]),
            here.fragment().bytes(112),
        ),
        case(
            "a later fragment whose header is the ninth",
            frame_v6(nine, UDP, &[0; 8]),
            here.other().bytes(120),
        ),
        case(
            "a later fragment without a byte over IPv6",
            frame_v6(V6::from(V6_HERE).with(Extension::Fragment(181, false)), UDP, b""),
            here.fragment().bytes(48),
        ),
    ]);
    cases
}
