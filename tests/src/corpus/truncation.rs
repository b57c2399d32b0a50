//! Frames cut at every offset.
//!
//! A cut that leaves the length field as it was makes the packet longer than its frame, so malformed. A cut
//! whose length field agrees shows how far the parser must see.

use std::ops::Range;

use limiter_common::packet::Family;

use super::{Case, Expected, case, malformed, non_ip, v4, v6};
use crate::frame::{
    ACK, DESTINATION, EXPERIMENT, Extension, HOP_BY_HOP, IPV4, IPV6, ROUTING, SERVICE_TAG, SYN, TAG, TCP,
    UDP, V4, V6, ethernet, tcp, udp,
};

const V4_HERE: &str = "192.0.2.1";
const V6_HERE: &str = "2001:db8::1";

pub fn cases() -> Vec<Case> {
    [as_it_was(), mended_v4(), mended_v6(), trailing()].concat()
}

/// `frame` cut to each number of bytes, with what is expected of each range. The L3 header starts at `l3`.
fn cut(what: &str, frame: &[u8], l3: usize, ranges: &[(Range<usize>, Expected)]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (range, expected) in ranges {
        for kept in range.clone() {
            let mut expected = *expected;
            if kept >= l3 {
                expected = expected.bytes((kept - l3) as u32);
            }
            cases.push(case(format!("{what}, cut to {kept} bytes"), frame[..kept].to_vec(), expected));
        }
    }
    assert_eq!(cases.len(), frame.len() + 1, "{what}: the ranges cover every cut");
    cases
}

fn as_it_was() -> Vec<Case> {
    // 14 Ethernet, 20 IPv4, 8 options, 8 UDP.
    let plain = ethernet(&[], IPV4, &V4::from(V4_HERE).option_words(2).packet(UDP, &udp(1000, 53, b"")));
    // 14 Ethernet, 8 tags, 20 IPv4, 20 TCP.
    let tagged = ethernet(&[SERVICE_TAG, TAG], IPV4, &V4::from(V4_HERE).packet(TCP, &tcp(1, 80, ACK)));
    // 14 Ethernet, 40 IPv6, 8 hop-by-hop, 8 fragment, 8 UDP.
    let v6_plain = ethernet(
        &[],
        IPV6,
        &V6::from(V6_HERE)
            .with(Extension::Common(HOP_BY_HOP, 1))
            .with(Extension::Fragment(0, true))
            .packet(UDP, &udp(1000, 53, b"")),
    );
    // The same as a jumbogram: no payload length, so the frame's end is the packet's.
    let jumbogram = ethernet(
        &[],
        IPV6,
        &V6::from(V6_HERE)
            .with(Extension::Common(HOP_BY_HOP, 1))
            .with(Extension::Fragment(0, true))
            .payload_length(0)
            .packet(UDP, &udp(1000, 53, b"")),
    );
    let other = ethernet(&[], EXPERIMENT, &[0; 8]);
    [
        cut(
            "IPv4 with options and UDP",
            &plain,
            14,
            &[
                (0..14, malformed(Family::Other)),
                (14..50, malformed(Family::V4)),
                (50..51, v4(V4_HERE).udp(1000, 53)),
            ],
        ),
        cut(
            "IPv4 with TCP behind two tags",
            &tagged,
            22,
            &[
                (0..22, malformed(Family::Other)),
                (22..62, malformed(Family::V4)),
                (62..63, v4(V4_HERE).tcp(1, 80)),
            ],
        ),
        cut(
            "IPv6 with a first fragment of UDP",
            &v6_plain,
            14,
            &[
                (0..14, malformed(Family::Other)),
                (14..78, malformed(Family::V6)),
                (78..79, v6(V6_HERE).udp(1000, 53)),
            ],
        ),
        cut(
            "a jumbogram with a first fragment of UDP",
            &jumbogram,
            14,
            &[
                (0..14, malformed(Family::Other)),
                (14..54, malformed(Family::V6)),
                // Hop-by-hop or fragment header cut: other. From there on a first fragment.
                (54..70, v6(V6_HERE).other()),
                (70..78, v6(V6_HERE).fragment()),
                (78..79, v6(V6_HERE).udp(1000, 53)),
            ],
        ),
        cut("not IP", &other, 14, &[(0..14, malformed(Family::Other)), (14..23, non_ip())]),
    ]
    .concat()
}

/// A packet whose payload is the first `kept` bytes, for each `kept`; `l3` bytes of header before.
fn mended(
    what: &str,
    payload: &[u8],
    l3: u32,
    build: impl Fn(&[u8]) -> Vec<u8>,
    ranges: &[(Range<usize>, Expected)],
) -> Vec<Case> {
    let mut cases = Vec::new();
    for (range, expected) in ranges {
        for kept in range.clone() {
            cases.push(case(
                format!("{what} with {kept} bytes of payload"),
                build(&payload[..kept]),
                expected.bytes(l3 + kept as u32),
            ));
        }
    }
    assert_eq!(cases.len(), payload.len() + 1, "{what}: the ranges cover every cut");
    cases
}

fn mended_v4() -> Vec<Case> {
    let here = v4(V4_HERE);
    let build = |header: V4, protocol: u8| {
        move |payload: &[u8]| ethernet(&[], IPV4, &header.packet(protocol, payload))
    };
    let syn = tcp(40000, 443, SYN);
    let query = udp(1000, 53, b"data");
    [
        mended(
            "a SYN",
            &syn,
            20,
            build(V4::from(V4_HERE), TCP),
            &[(0..20, here.other()), (20..21, here.tcp_syn(40000, 443))],
        ),
        mended(
            "a SYN behind 40 bytes of options",
            &syn,
            60,
            build(V4::from(V4_HERE).option_words(10), TCP),
            &[(0..20, here.other()), (20..21, here.tcp_syn(40000, 443))],
        ),
        mended(
            "a first fragment of a SYN",
            &syn,
            20,
            build(V4::from(V4_HERE).fragment(0, true), TCP),
            &[(0..20, here.fragment()), (20..21, here.tcp_syn(40000, 443))],
        ),
        mended(
            "UDP",
            &query,
            20,
            build(V4::from(V4_HERE), UDP),
            &[(0..8, here.other()), (8..13, here.udp(1000, 53))],
        ),
        mended(
            "a later fragment of UDP",
            &query,
            20,
            build(V4::from(V4_HERE).fragment(9, false), UDP),
            &[(0..13, here.fragment())],
        ),
    ]
    .concat()
}

fn mended_v6() -> Vec<Case> {
    let here = v6(V6_HERE);
    let chain = |extensions: &[Extension], protocol: u8, l4: &[u8]| {
        let mut header = V6::from(V6_HERE);
        header.chain = extensions.to_vec();
        let packet = header.packet(protocol, l4);
        // The bytes behind the fixed header, cut and given back to a header that counts them.
        let (fixed, rest) = (packet[..40].to_vec(), packet[40..].to_vec());
        let build = move |kept: &[u8]| {
            let mut packet = fixed.clone();
            packet[4..6].copy_from_slice(&(kept.len() as u16).to_be_bytes());
            packet.extend(kept);
            ethernet(&[], IPV6, &packet)
        };
        (rest, build)
    };
    let mut cases = Vec::new();

    // 8 hop-by-hop, 24 routing, 8 destination, 8 UDP. A payload length of 0 before hop-by-hop reaches to the
    // end of the frame, where nothing is.
    let (rest, build) = chain(
        &[Extension::Common(HOP_BY_HOP, 1), Extension::Common(ROUTING, 3), Extension::Common(DESTINATION, 1)],
        UDP,
        &udp(1000, 53, b""),
    );
    cases.extend(mended(
        "three extension headers",
        &rest,
        40,
        build,
        &[(0..48, here.other()), (48..49, here.udp(1000, 53))],
    ));

    // 8 destination, 8 fragment, 16 destination, 8 UDP.
    let first =
        [Extension::Common(DESTINATION, 1), Extension::Fragment(0, true), Extension::Common(DESTINATION, 2)];
    let (rest, build) = chain(&first, UDP, &udp(1000, 53, b""));
    cases.extend(mended(
        "a first fragment behind options",
        &rest,
        40,
        build,
        &[(0..16, here.other()), (16..40, here.fragment()), (40..41, here.udp(1000, 53))],
    ));

    // The same, atomic: nothing of it is `fragment`.
    let atomic =
        [Extension::Common(DESTINATION, 1), Extension::Fragment(0, false), Extension::Common(DESTINATION, 2)];
    let (rest, build) = chain(&atomic, UDP, &udp(1000, 53, b""));
    cases.extend(mended(
        "an atomic fragment behind options",
        &rest,
        40,
        build,
        &[(0..40, here.other()), (40..41, here.udp(1000, 53))],
    ));

    // 8 destination, 8 fragment, then whatever.
    let later = [Extension::Common(DESTINATION, 1), Extension::Fragment(10, true)];
    let (rest, build) = chain(&later, UDP, &[0; 8]);
    cases.extend(mended(
        "a later fragment behind options",
        &rest,
        40,
        build,
        &[(0..16, here.other()), (16..25, here.fragment())],
    ));

    // 24 AH, 20 TCP.
    let (rest, build) = chain(&[Extension::Authentication(6)], TCP, &tcp(1, 80, SYN));
    cases.extend(mended(
        "AH before a SYN",
        &rest,
        40,
        build,
        &[(0..44, here.other()), (44..45, here.tcp_syn(1, 80))],
    ));
    cases
}

/// Bytes behind the packet change its length and nothing else.
fn trailing() -> Vec<Case> {
    let query = ethernet(&[TAG], IPV4, &V4::from(V4_HERE).packet(UDP, &udp(1000, 53, b"")));
    let short = ethernet(&[], IPV6, &V6::from(V6_HERE).packet(UDP, &udp(1000, 53, b"")[..4]));
    let mut cases = Vec::new();
    for more in 1..=32_u32 {
        let behind = vec![0xff; more as usize];
        cases.push(case(
            format!("UDP and {more} bytes behind"),
            [query.as_slice(), &behind].concat(),
            v4(V4_HERE).udp(1000, 53).bytes(28 + more),
        ));
        cases.push(case(
            format!("half of UDP and {more} bytes behind"),
            [short.as_slice(), &behind].concat(),
            v6(V6_HERE).other().bytes(44 + more),
        ));
    }
    cases
}
