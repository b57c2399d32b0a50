//! Who is charged, on real packets: one bucket for a /64, one for all shapes of a source, nothing but the link
//! for a source that is dropped, and a host that stays on its link when everything is dropped.
// suite: budget=90
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{
    net::{IpAddr, Ipv4Addr, UdpSocket},
    time::Duration,
};

use limiter_tests::{
    clock, corpus,
    frame::{
        ACK, DESTINATION, ESP, Extension, GRE, HOP_BY_HOP, ICMP, ICMPV6, IGMP, IPV4, IPV6, SCTP, SERVICE_TAG,
        SYN, TAG, TCP, UDP, V4, V6, checksum, ethernet, icmp, sctp, tcp, udp,
    },
    kernel::Guard,
    namespace::{GUARDED, GUARDED_V4, GUARDED_V6, PEER, PEER_V4, PEER_V6, Pair},
    wire::{RawSocket, Wire},
};

/// Three packets in a quarter of an hour for each source, whatever they are.
const THREE_EACH: &str =
    "version = 1\n[[rule]]\nname = \"three\"\nlimit = [{ per = \"source\", rate = \"3/15m\", burst = 3 }]\n";

fn v6(source: &str, port: u16) -> Vec<u8> {
    ethernet(&[], IPV6, &V6::from(source).packet(UDP, &udp(port, 53, b"")))
}

fn guarded(policy: &str) -> (Pair, Guard, Wire) {
    let pair = Pair::silent();
    let mut guard = Guard::with(policy);
    guard.attach(&pair);
    let wire = Wire::open(&pair);
    (pair, guard, wire)
}

#[test]
fn a_64_shares_a_bucket_and_two_do_not() {
    let (_pair, _guard, mut wire) = guarded(THREE_EACH);
    // One /64, a new address for each packet.
    let one: Vec<Vec<u8>> = (1..=10).map(|host| v6(&format!("2001:db8:0:1::{host}"), host)).collect();
    assert!(wire.pass(&one) == one[..3], "three of ten addresses in one /64 come through");
    let other: Vec<Vec<u8>> = (1..=10).map(|host| v6(&format!("2001:db8:0:2::{host}"), host)).collect();
    assert!(wire.pass(&other) == other[..3], "the next /64 has a bucket of its own");
    let last = v6("2001:db8:0:1:ffff:ffff:ffff:ffff", 99);
    assert!(wire.pass(&[last]).is_empty(), "the last address of the first /64 finds its bucket empty");
}

#[test]
fn all_sources_of_a_prefix_share_its_bucket() {
    let policy = THREE_EACH.replace("\"source\"", "\"source/24,48\"");
    let (_pair, _guard, mut wire) = guarded(&policy);
    let many: Vec<Vec<u8>> =
        (1..=10).map(|network| v6(&format!("2001:db8:7:{network}::1"), network)).collect();
    assert!(wire.pass(&many) == many[..3], "three of ten /64 in one /48 come through");
    let next = v6("2001:db8:8::1", 1);
    assert!(wire.pass(std::slice::from_ref(&next)) == [next], "the next /48 has a bucket of its own");
    let v4 = |network: u8, host: u16| {
        let source = format!("198.51.{network}.{host}");
        ethernet(&[], IPV4, &V4::from(&source).packet(UDP, &udp(host, 53, b"")))
    };
    let many: Vec<Vec<u8>> = (1..=10).map(|host| v4(100, host)).collect();
    assert!(wire.pass(&many) == many[..3], "three of ten addresses in one /24 come through");
    let next = v4(101, 1);
    assert!(wire.pass(std::slice::from_ref(&next)) == [next], "the next /24 has a bucket of its own");
}

#[test]
fn everybody_shares_the_bucket_of_a_rule() {
    let policy = THREE_EACH.replace("\"source\"", "\"rule\"");
    let (_pair, _guard, mut wire) = guarded(&policy);
    let many: Vec<Vec<u8>> = (1..=10).map(|network| v6(&format!("2001:db{network}::1"), network)).collect();
    assert!(wire.pass(&many) == many[..3], "three of ten networks come through");
    let shapes = shapes_v4("198.51.100.1");
    assert!(wire.pass(&shapes).is_empty(), "nobody finds more");
}

/// Packets of one IPv4 source in every shape.
fn shapes_v4(source: &str) -> Vec<Vec<u8>> {
    let v4 =
        |header: V4, protocol: u8, payload: &[u8]| ethernet(&[], IPV4, &header.packet(protocol, payload));
    let here = || V4::from(source);
    let query = udp(1000, 53, b"");
    let carried = |prefix: &str| V6::from(&format!("{prefix}{source}"));
    vec![
        v4(here(), UDP, &query),
        v4(here(), TCP, &tcp(1, 443, SYN)),
        v4(here(), TCP, &tcp(1, 22, ACK)),
        v4(here(), SCTP, &sctp(1, 2)),
        v4(here(), ICMP, &icmp(8, 0)),
        v4(here(), GRE, &[0; 16]),
        v4(here(), ESP, &[0; 16]),
        v4(here(), 255, &[0; 16]),
        v4(here(), UDP, &query[..7]),
        v4(here(), TCP, b""),
        v4(here().option_words(1), UDP, &query),
        v4(here().option_words(10), TCP, &tcp(1, 443, SYN)),
        v4(here().fragment(0, true), UDP, &query),
        v4(here().fragment(0, true), TCP, &tcp(1, 443, SYN)[..8]),
        v4(here().fragment(1, true), TCP, &tcp(1, 443, SYN)[..8]),
        v4(here().fragment(185, false), UDP, &[0; 32]),
        ethernet(&[TAG], IPV4, &here().packet(UDP, &query)),
        ethernet(&[SERVICE_TAG, TAG], IPV4, &here().packet(TCP, &tcp(1, 80, SYN))),
        ethernet(&[], IPV6, &carried("::ffff:").packet(UDP, &query)),
        ethernet(&[], IPV6, &carried("64:ff9b::").packet(TCP, &tcp(1, 443, SYN))),
        ethernet(&[], IPV6, &carried("::ffff:").with(Extension::Fragment(9, true)).packet(UDP, &query)),
    ]
}

/// Packets of one IPv6 source in every shape.
fn shapes_v6(source: &str) -> Vec<Vec<u8>> {
    let v6 =
        |header: V6, protocol: u8, payload: &[u8]| ethernet(&[], IPV6, &header.packet(protocol, payload));
    let here = || V6::from(source);
    let options = Extension::Common(DESTINATION, 1);
    let query = udp(1000, 53, b"");
    let mut many = here();
    many.chain = vec![options; 9];
    let mut shapes = vec![
        v6(here(), UDP, &query),
        v6(here(), TCP, &tcp(1, 443, SYN)),
        v6(here(), SCTP, &sctp(1, 2)),
        v6(here(), ICMPV6, &icmp(128, 0)),
        v6(here().hop_limit(254), ICMPV6, &icmp(135, 0)),
        v6(here().hop_limit(255), ICMPV6, &icmp(135, 1)),
        v6(here().hop_limit(255).with(Extension::Fragment(0, false)), ICMPV6, &icmp(135, 0)),
        v6(here().hop_limit(1), ICMPV6, &icmp(143, 0)),
        v6(here(), ICMP, &icmp(8, 0)),
        v6(here(), GRE, &[0; 16]),
        v6(here(), 59, b""),
        v6(here(), UDP, &query[..7]),
        v6(here().with(Extension::Fragment(0, true)), UDP, &query),
        v6(here().with(Extension::Fragment(0, true)), TCP, &tcp(1, 2, SYN)[..8]),
        v6(here().with(Extension::Fragment(1, true)), TCP, &tcp(1, 2, SYN)),
        v6(here().with(Extension::Fragment(185, false)), UDP, &[0; 32]),
        v6(here(), 43, &[17, 9]),
        v6(many, UDP, &query),
        ethernet(&[TAG], IPV6, &here().packet(UDP, &query)),
        ethernet(&[SERVICE_TAG, TAG], IPV6, &here().with(options).packet(TCP, &tcp(1, 80, SYN))),
    ];
    shapes.extend(
        limiter_tests::frame::EXTENSIONS
            .iter()
            .map(|&(_, extension)| v6(here().with(extension), UDP, &query)),
    );
    shapes
}

#[test]
fn shapes_of_one_source_share_one_bucket() {
    let (_pair, guard, mut wire) = guarded(THREE_EACH);
    for (shapes, what) in [(shapes_v4("192.0.2.77"), "IPv4"), (shapes_v6("2001:db8:0:77::1"), "IPv6")] {
        // Whichever three come first take all there is.
        let count = shapes.len();
        let passed = wire.pass(&shapes);
        assert!(
            passed == shapes[..3],
            "three of {count} shapes of one {what} source come through, not {}",
            passed.len()
        );
    }
    let over = guard.counted("three", limiter_common::verdict::Outcome::DropOver).packets;
    let shapes = shapes_v4("192.0.2.77").len() + shapes_v6("2001:db8:0:77::1").len();
    assert_eq!(over, shapes as u64 - 6);
}

#[test]
fn a_dropped_source_gets_only_the_link_through() {
    let policy = "version = 1\n[sets]\nbad = [\"192.0.2.0/24\", \"2001:db8::/32\"]\n\
                  [[rule]]\nname = \"bad\"\nfrom = \"bad\"\nverdict = \"drop\"\n";
    let (_pair, _guard, mut wire) = guarded(policy);
    let mut shapes = shapes_v4("192.0.2.77");
    shapes.extend(shapes_v6("2001:db8:0:77::1"));
    assert!(wire.pass(&shapes).is_empty(), "no shape of a dropped source comes through");

    // All of the corpus is from such sources, or says by hand that it is not.
    let (mut passing, mut dropped) = (Vec::new(), Vec::new());
    for case in corpus::frames() {
        let long_enough = case.frame.len() >= 14 && case.frame.len() <= 1514;
        let from_bad = case.expected.ip.is_some_and(|ip| match ip.source {
            corpus::Source::V4(address) => address.octets()[..3] == [192, 0, 2],
            corpus::Source::V6(address) => {
                address.segments()[..2] == [0x2001, 0xdb8]
                    || address == "64:ff9b::c000:201".parse::<std::net::Ipv6Addr>().unwrap()
            }
        });
        match case.expected.shape {
            limiter_common::packet::Shape::Link | limiter_common::packet::Shape::NonIp if long_enough => {
                passing.push(case.frame);
            }
            limiter_common::packet::Shape::Ip if long_enough && from_bad => dropped.push(case.frame),
            limiter_common::packet::Shape::Malformed if long_enough => dropped.push(case.frame),
            _ => {}
        }
    }
    assert!(dropped.len() > 500 && passing.len() > 50, "{} and {}", dropped.len(), passing.len());
    let through = wire.pass(&dropped);
    assert!(
        through.is_empty(),
        "{} of {} frames came through, the first: {:02x?}",
        through.len(),
        dropped.len(),
        through.first()
    );
    // The receiver's kernel takes the outermost tag off, so these are counted, not compared.
    assert_eq!(wire.pass(&passing).len(), passing.len(), "the link comes through");
}

#[test]
fn a_host_that_drops_everything_stays_on_its_link() {
    let pair = Pair::addressed();
    let mut guard = Guard::with("version = 1\n[default]\nverdict = \"drop\"\n");
    guard.attach(&pair);
    keeps_neighbours(&pair);
    keeps_memberships(&pair);
    keeps_leases(&pair);
}

fn keeps_neighbours(pair: &Pair) {
    // Both forget each other: the answer to the first packet is an ARP or neighbour discovery exchange.
    pair.peer.ip(&["neighbour", "flush", "dev", PEER, "nud", "permanent"]);
    pair.guarded.ip(&["neighbour", "flush", "dev", GUARDED, "nud", "permanent"]);
    for address in [GUARDED_V4, GUARDED_V6] {
        let ping =
            pair.peer.command("ping").args(["-c", "1", "-W", "2", address]).output().expect("ping runs");
        assert!(!ping.status.success(), "{address}: the echo request is dropped");
        let shown = std::process::Command::new("ip")
            .args(["-n", pair.peer.name(), "neighbour", "show", address, "dev", PEER])
            .output()
            .expect("ip runs");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(
            shown.contains("02:00:00:00:00:01"),
            "{address}: the peer learned the link address: `{shown}`"
        );
    }
}

/// Routers on the link ask for members, and hear of them.
fn keeps_memberships(pair: &Pair) {
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let _member = pair.guarded.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket in the guarded namespace");
        socket
            .join_multicast_v4(&group, &GUARDED_V4.parse().expect("an address"))
            .expect("the group is joined");
        socket
    });
    let peer = pair.peer.run(|| RawSocket::open(PEER)).expect("a raw socket on the peer's end");

    // RFC 2236: a general query, to be answered within a tenth of a second.
    let mut query = vec![0x11, 1, 0, 0, 0, 0, 0, 0];
    let sum = checksum(0, &query).to_be_bytes();
    query[2..4].copy_from_slice(&sum);
    let mut header = V4::from(PEER_V4).ttl(1);
    header.destination = Ipv4Addr::new(224, 0, 0, 1);
    let mut frame = ethernet(&[], IPV4, &header.packet(IGMP, &query));
    frame[..6].copy_from_slice(&[0x01, 0, 0x5e, 0, 0, 1]);
    let report = exchange(&peer, &frame, |answer| {
        let header = 4 * usize::from(answer[14] & 15);
        answer[12..14] == [8, 0] && answer[23] == IGMP && matches!(answer[14 + header], 0x16 | 0x22)
    });
    assert!(report.windows(4).any(|bytes| bytes == group.octets()), "the report names the group");

    // RFC 3810: a general query of version 1, behind the router alert it must have.
    let mut header = V6::from("fe80::2").hop_limit(1).to("ff02::1");
    header.chain.clear();
    let mut message = icmp(130, 0);
    message[4..8].copy_from_slice(&[0, 100, 0, 0]);
    message.extend([0; 16]);
    let message = header.icmpv6(&message)[40..].to_vec();
    let behind = [&[ICMPV6, 0, 5, 2, 0, 0, 1, 0], message.as_slice()].concat();
    let mut frame = ethernet(&[], IPV6, &header.packet(HOP_BY_HOP, &behind));
    frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    exchange(&peer, &frame, |answer| {
        answer[12..14] == [0x86, 0xdd] && answer[20] == HOP_BY_HOP && matches!(answer[62], 131 | 143)
    });
}

/// A reply of a DHCP server reaches the client.
fn keeps_leases(pair: &Pair) {
    for (server, server_port, client, client_port) in
        [(PEER_V4, 67, GUARDED_V4, 68), (PEER_V6, 547, GUARDED_V6, 546)]
    {
        let (server, client) = (address(server), address(client));
        let waiting = pair.guarded.run(|| UdpSocket::bind((client, client_port)).expect("the client's port"));
        waiting.set_read_timeout(Some(Duration::from_secs(20))).expect("a patience");
        let sending = pair.peer.run(|| UdpSocket::bind((server, server_port)).expect("the server's port"));
        sending.send_to(b"a lease", (client, client_port)).expect("the reply is sent");
        let mut reply = [0; 16];
        let (length, _) = waiting.recv_from(&mut reply).expect("the reply comes through");
        assert_eq!(&reply[..length], b"a lease");
        // What is not a reply does not.
        let sending = pair.peer.run(|| UdpSocket::bind((server, 0)).expect("another port"));
        sending.send_to(b"no lease", (client, client_port)).expect("the packet is sent");
        waiting.set_read_timeout(Some(Duration::from_millis(300))).expect("a patience");
        assert!(waiting.recv_from(&mut reply).is_err(), "a packet from another port is dropped");
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Sends a frame and waits for the answer that is meant.
fn exchange(socket: &RawSocket, frame: &[u8], meant: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    socket.send(frame).expect("the interface takes a frame");
    clock::wait_for("an answer", Duration::from_secs(20), || {
        socket
            .receive(Duration::from_millis(100))
            .expect("the interface is read")
            .filter(|answer| answer.len() > 62 || answer.len() > 45 && answer[12] == 8)
            .filter(|answer| meant(answer))
    })
}
