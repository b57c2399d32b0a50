//! Tags, EtherTypes, ARP.

use limiter_common::packet::Family;

use super::{Case, case, link, malformed, non_ip, v4, v6};
use crate::frame::{ARP, EXPERIMENT, IPV4, IPV6, SERVICE_TAG, TAG, UDP, V4, V6, arp_request, ethernet, udp};

/// UDP 1000 → 53 over IPv4: 20 + 8 bytes.
fn v4_query() -> Vec<u8> {
    V4::from("192.0.2.1").packet(UDP, &udp(1000, 53, b""))
}

/// UDP 1000 → 53 over IPv6: 40 + 8 bytes.
fn v6_query() -> Vec<u8> {
    V6::from("2001:db8::1").packet(UDP, &udp(1000, 53, b""))
}

pub fn cases() -> Vec<Case> {
    [tags(), other_types(), arp(), cut_tags()].concat()
}

/// 0…10 tags, of one type and of both.
fn tags() -> Vec<Case> {
    let mut cases = Vec::new();
    for count in 0..=10 {
        let customer = vec![TAG; count];
        let service = vec![SERVICE_TAG; count];
        let mixed: Vec<u16> =
            (0..count).map(|index| if index % 2 == 0 { SERVICE_TAG } else { TAG }).collect();
        let (query_v4, query_v6, arp, lldp) = if count <= 2 {
            (
                v4("192.0.2.1").udp(1000, 53).bytes(28),
                v6("2001:db8::1").udp(1000, 53).bytes(48),
                link(Family::Other).bytes(28),
                non_ip(),
            )
        } else {
            // The third EtherType is a tag: what lies behind is not looked at.
            let much = malformed(Family::Other);
            (much, much, much, much)
        };
        cases.extend([
            case(format!("IPv4 behind {count} × 0x8100"), ethernet(&customer, IPV4, &v4_query()), query_v4),
            case(format!("IPv4 behind {count} × 0x88a8"), ethernet(&service, IPV4, &v4_query()), query_v4),
            case(format!("IPv6 behind {count} mixed tags"), ethernet(&mixed, IPV6, &v6_query()), query_v6),
            case(
                format!("ARP behind {count} × 0x8100"),
                ethernet(&customer, ARP, &arp_request("192.0.2.1", "192.0.2.2")),
                arp,
            ),
            case(format!("LLDP behind {count} mixed tags"), ethernet(&mixed, 0x88cc, &[0; 46]), lldp),
        ]);
    }
    cases
}

/// EtherTypes that are neither IP nor ARP nor a tag, among them look-alikes of tags.
fn other_types() -> Vec<Case> {
    let types: [(&str, u16); 12] = [
        ("LLDP", 0x88cc),
        ("LACP", 0x8809),
        ("802.1X", 0x888e),
        ("an 802.3 length", 0x0026),
        ("zero", 0x0000),
        ("0xffff", 0xffff),
        ("RARP", 0x8035),
        ("PPPoE session", 0x8864),
        ("MPLS", 0x8847),
        ("an old double tag, 0x9100", 0x9100),
        ("a backbone tag, 0x88e7", 0x88e7),
        ("local experiment", EXPERIMENT),
    ];
    // What follows looks like IPv4 to whoever skips four bytes.
    let mut payload = vec![0, 1, 8, 0];
    payload.extend(v4_query());
    let mut cases: Vec<Case> = types
        .iter()
        .map(|&(what, ether_type)| case(what, ethernet(&[], ether_type, &payload), non_ip().bytes(32)))
        .collect();
    cases.push(case("a bare EtherType", ethernet(&[], EXPERIMENT, b""), non_ip().bytes(0)));
    cases
}

fn arp() -> Vec<Case> {
    let request = arp_request("192.0.2.1", "192.0.2.2");
    let mut padded = request.clone();
    padded.extend([0; 18]);
    vec![
        case("an ARP request", ethernet(&[], ARP, &request), link(Family::Other).bytes(28)),
        case("a padded ARP request", ethernet(&[], ARP, &padded), link(Family::Other).bytes(46)),
        case("an ARP EtherType alone", ethernet(&[], ARP, b""), link(Family::Other).bytes(0)),
        case(
            "IPv4 under the EtherType of IPv6",
            ethernet(&[], IPV6, &v4_query()),
            malformed(Family::V6).bytes(28),
        ),
        case(
            "IPv6 under the EtherType of IPv4",
            ethernet(&[], IPV4, &v6_query()),
            malformed(Family::V4).bytes(48),
        ),
    ]
}

/// A tag without the EtherType behind it.
fn cut_tags() -> Vec<Case> {
    let mut cases = Vec::new();
    for kept in 0..4 {
        let behind = &[0, 1, 8, 0][..kept];
        cases.push(case(
            format!("one tag and {kept} bytes"),
            ethernet(&[], TAG, behind),
            malformed(Family::Other),
        ));
        cases.push(case(
            format!("two tags, the second with {kept} bytes"),
            ethernet(&[SERVICE_TAG], TAG, behind),
            malformed(Family::Other),
        ));
    }
    cases.push(case("a tag before nothing", ethernet(&[TAG], IPV4, b""), malformed(Family::V4).bytes(0)));
    cases.push(case(
        "two tags before nothing",
        ethernet(&[TAG, TAG], IPV6, b""),
        malformed(Family::V6).bytes(0),
    ));
    cases
}
