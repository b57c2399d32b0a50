//! What keeps the host on its link, each condition broken in turn, and what is spared.

use limiter_common::packet::{Family, Spared};

use super::{Case, Expected, case, link, v4, v6};
use crate::frame::{
    DESTINATION, Extension, HOP_BY_HOP, ICMPV6, IGMP, IPV4, IPV6, SYN, TAG, TCP, UDP, V4, V6, ethernet, icmp,
    igmp_report, neighbour_solicitation, tcp, udp,
};

const HERE: &str = "2001:db8::1";
const LINK_LOCAL: &str = "fe80::1";

pub fn cases() -> Vec<Case> {
    [neighbour_discovery(), multicast_listeners(), igmp(), dhcp()].concat()
}

fn frame(header: V6, message: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV6, &header.packet(ICMPV6, message))
}

fn neighbour_discovery() -> Vec<Case> {
    let near = |source: &str| V6::from(source).hop_limit(255);
    let mut cases = Vec::new();
    for kind in 133..=137 {
        cases.push(case(
            format!("ICMPv6 {kind} with hop limit 255"),
            frame(near(HERE), &icmp(kind, 0)),
            link(Family::V6).bytes(48),
        ));
        for hop_limit in [0, 1, 64, 254] {
            cases.push(case(
                format!("ICMPv6 {kind} with hop limit {hop_limit}"),
                frame(V6::from(HERE).hop_limit(hop_limit), &icmp(kind, 0)),
                v6(HERE).icmpv6(kind).bytes(48),
            ));
        }
        for code in [1, 255] {
            cases.push(case(
                format!("ICMPv6 {kind} with code {code}"),
                frame(near(HERE), &icmp(kind, code)),
                v6(HERE).icmpv6(kind).bytes(48),
            ));
        }
        cases.push(case(
            format!("ICMPv6 {kind} in an atomic fragment"),
            frame(near(HERE).with(Extension::Fragment(0, false)), &icmp(kind, 0)),
            v6(HERE).icmpv6(kind).bytes(56),
        ));
        cases.push(case(
            format!("ICMPv6 {kind} in a first fragment"),
            frame(near(HERE).with(Extension::Fragment(0, true)), &icmp(kind, 0)),
            v6(HERE).icmpv6(kind).bytes(56),
        ));
        cases.push(case(
            format!("ICMPv6 {kind} in a later fragment"),
            frame(near(HERE).with(Extension::Fragment(2, false)), &icmp(kind, 0)),
            v6(HERE).fragment().bytes(56),
        ));
        cases.push(case(
            format!("ICMPv6 {kind} of 7 bytes"),
            frame(near(HERE), &icmp(kind, 0)[..7]),
            v6(HERE).other().bytes(47),
        ));
        cases.push(case(
            format!("ICMPv6 {kind} behind hop-by-hop"),
            frame(near(HERE).with(Extension::Common(HOP_BY_HOP, 1)), &icmp(kind, 0)),
            link(Family::V6).bytes(56),
        ));
        cases.push(case(
            format!("ICMPv6 {kind} in IPv4"),
            ethernet(&[], IPV4, &V4::from("192.0.2.1").ttl(255).packet(ICMPV6, &icmp(kind, 0))),
            v4("192.0.2.1").other().bytes(28),
        ));
    }
    for kind in [0, 1, 127, 128, 129, 132, 138, 255] {
        cases.push(case(
            format!("ICMPv6 {kind} with hop limit 255"),
            frame(near(HERE), &icmp(kind, 0)),
            v6(HERE).icmpv6(kind).bytes(48),
        ));
    }
    let solicitation = neighbour_solicitation("2001:db8::2");
    for source in [HERE, LINK_LOCAL, "::"] {
        cases.push(case(
            format!("a neighbour solicitation from {source}"),
            ethernet(&[], IPV6, &near(source).icmpv6(&solicitation)),
            link(Family::V6).bytes(72),
        ));
    }
    cases.push(case(
        "a neighbour solicitation behind two tags",
        ethernet(&[TAG, TAG], IPV6, &near(HERE).icmpv6(&solicitation)),
        link(Family::V6).bytes(72),
    ));
    cases.push(case(
        "a neighbour solicitation behind destination options",
        frame(near(HERE).with(Extension::Common(DESTINATION, 1)), &solicitation),
        link(Family::V6).bytes(80),
    ));
    cases
}

fn multicast_listeners() -> Vec<Case> {
    let near = |source: &str| V6::from(source).hop_limit(1);
    // As RFC 3810, section 5 wants it: behind hop-by-hop.
    let router_alert = |source: &str| near(source).with(Extension::Common(HOP_BY_HOP, 1));
    let mut cases = Vec::new();
    for kind in [130, 131, 132, 143] {
        let broken = v6(LINK_LOCAL).icmpv6(kind);
        cases.extend([
            case(format!("MLD {kind}"), frame(near(LINK_LOCAL), &icmp(kind, 0)), link(Family::V6).bytes(48)),
            case(
                format!("MLD {kind} behind hop-by-hop"),
                frame(router_alert(LINK_LOCAL), &icmp(kind, 0)),
                link(Family::V6).bytes(56),
            ),
            case(
                format!("MLD {kind} from a global address"),
                frame(router_alert(HERE), &icmp(kind, 0)),
                v6(HERE).icmpv6(kind).bytes(56),
            ),
            case(
                format!("MLD {kind} from nobody"),
                frame(router_alert("::"), &icmp(kind, 0)),
                v6("::").icmpv6(kind).bytes(56),
            ),
            case(
                format!("MLD {kind} in an atomic fragment"),
                frame(router_alert(LINK_LOCAL).with(Extension::Fragment(0, false)), &icmp(kind, 0)),
                broken.bytes(64),
            ),
            case(
                format!("MLD {kind} of 7 bytes"),
                frame(router_alert(LINK_LOCAL), &icmp(kind, 0)[..7]),
                v6(LINK_LOCAL).other().bytes(55),
            ),
        ]);
        for hop_limit in [0, 2, 64, 255] {
            cases.push(case(
                format!("MLD {kind} with hop limit {hop_limit}"),
                frame(router_alert(LINK_LOCAL).hop_limit(hop_limit), &icmp(kind, 0)),
                broken.bytes(56),
            ));
        }
    }
    // fe80::/10 ends at febf:ffff:….
    cases.push(case("MLD from febf::1", frame(near("febf::1"), &icmp(143, 0)), link(Family::V6).bytes(48)));
    for source in ["fe7f::1", "fec0::1", "::ffff:192.0.2.1"] {
        let expected = if source.starts_with("::") { super::v4_in_v6("192.0.2.1") } else { v6(source) };
        cases.push(case(
            format!("MLD from {source}"),
            frame(near(source), &icmp(143, 0)),
            expected.icmpv6(143).bytes(48),
        ));
    }
    for kind in [128, 129, 142, 144] {
        cases.push(case(
            format!("ICMPv6 {kind} from a link-local address with hop limit 1"),
            frame(near(LINK_LOCAL), &icmp(kind, 0)),
            v6(LINK_LOCAL).icmpv6(kind).bytes(48),
        ));
    }
    cases
}

fn igmp() -> Vec<Case> {
    let source = "192.0.2.1";
    let report = igmp_report([224, 0, 0, 251]);
    let with = |header: V4| ethernet(&[], IPV4, &header.packet(IGMP, &report));
    let spared = v4(source).other().spared(Spared::Igmp);
    vec![
        case("IGMP with TTL 1", with(V4::from(source).ttl(1)), spared.bytes(28)),
        case(
            "IGMP with TTL 1 and router alert",
            with(V4::from(source).ttl(1).option_words(1)),
            spared.bytes(32),
        ),
        case("IGMP with TTL 0", with(V4::from(source).ttl(0)), v4(source).other().bytes(28)),
        case("IGMP with TTL 2", with(V4::from(source).ttl(2)), v4(source).other().bytes(28)),
        case("IGMP with TTL 255", with(V4::from(source).ttl(255)), v4(source).other().bytes(28)),
        case(
            "a first fragment of IGMP with TTL 1",
            with(V4::from(source).ttl(1).fragment(0, true)),
            v4(source).other().bytes(28),
        ),
        case(
            "a later fragment of IGMP with TTL 1",
            with(V4::from(source).ttl(1).fragment(1, false)),
            v4(source).fragment().bytes(28),
        ),
        case(
            "IGMP in IPv6 with hop limit 1",
            ethernet(&[], IPV6, &V6::from(HERE).hop_limit(1).packet(IGMP, &report)),
            v6(HERE).other().bytes(48),
        ),
    ]
}

fn dhcp() -> Vec<Case> {
    let source = "192.0.2.1";
    let over_v4 =
        |header: V4, from: u16, to: u16| ethernet(&[], IPV4, &header.packet(UDP, &udp(from, to, &[2; 4])));
    let over_v6 =
        |header: V6, from: u16, to: u16| ethernet(&[], IPV6, &header.packet(UDP, &udp(from, to, &[2; 4])));
    let v4_pair = |from: u16, to: u16, expected: Expected| {
        case(
            format!("UDP {from} → {to} over IPv4"),
            over_v4(V4::from(source), from, to),
            expected.udp(from, to).bytes(32),
        )
    };
    let v6_pair = |from: u16, to: u16, expected: Expected| {
        case(
            format!("UDP {from} → {to} over IPv6"),
            over_v6(V6::from(LINK_LOCAL), from, to),
            expected.udp(from, to).bytes(52),
        )
    };
    let (here, near) = (v4(source), v6(LINK_LOCAL));
    vec![
        v4_pair(67, 68, here.spared(Spared::DhcpReply)),
        v4_pair(68, 67, here),
        v4_pair(67, 67, here),
        v4_pair(68, 68, here),
        v4_pair(66, 68, here),
        v4_pair(67, 69, here),
        v4_pair(547, 546, here),
        v6_pair(547, 546, near.spared(Spared::Dhcpv6Reply)),
        v6_pair(546, 547, near),
        v6_pair(547, 547, near),
        v6_pair(546, 546, near),
        v6_pair(67, 68, near),
        case(
            "a DHCP reply with options in its IPv4 header",
            over_v4(V4::from(source).option_words(2), 67, 68),
            here.udp(67, 68).spared(Spared::DhcpReply).bytes(40),
        ),
        case(
            "a first fragment of a DHCP reply",
            over_v4(V4::from(source).fragment(0, true), 67, 68),
            here.udp(67, 68).bytes(32),
        ),
        case(
            "TCP 67 → 68",
            ethernet(&[], IPV4, &V4::from(source).packet(TCP, &tcp(67, 68, SYN))),
            here.tcp_syn(67, 68).bytes(40),
        ),
        case(
            "a DHCPv6 reply behind destination options",
            over_v6(V6::from(LINK_LOCAL).with(Extension::Common(DESTINATION, 1)), 547, 546),
            near.udp(547, 546).spared(Spared::Dhcpv6Reply).bytes(60),
        ),
        case(
            "a DHCPv6 reply in an atomic fragment",
            over_v6(V6::from(LINK_LOCAL).with(Extension::Fragment(0, false)), 547, 546),
            near.udp(547, 546).bytes(60),
        ),
        case(
            "a DHCPv6 reply from a global address",
            over_v6(V6::from(HERE), 547, 546),
            v6(HERE).udp(547, 546).spared(Spared::Dhcpv6Reply).bytes(52),
        ),
    ]
}
