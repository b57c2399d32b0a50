//! What the program tells of the packets it drops: what is in an event, when there is one, and what a flood does to
//! them.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::time::{Duration, Instant};

use limiter_common::{
    abi::{Ban, FOREVER},
    event::{Event, FRAME_BYTES, NOT_OBSERVED},
    packet::{Family, Kind},
    verdict::Outcome::{
        self, DropBan, DropDefault, DropMalformed, DropOver, DropRule, PassWithin, WouldDropOver,
        WouldDropRule,
    },
};
use limiter_tests::{
    frame::{ACK, ARP, ICMP, IPV4, IPV6, SYN, TAG, TCP, UDP, V4, V6, arp_request, ethernet, icmp, tcp, udp},
    kernel::Guard,
};
use limiter_user::datapath::Datapath as _;

const POLICY: &str = r#"
version = 1
[default]
verdict = "drop"
[sets]
bad = ["198.51.100.0/24", "2001:db8:bad::/48"]
[[rule]]
name = "trial"
to = ["udp/7000"]
mode = "observe"
verdict = "drop"
[[rule]]
name = "bad"
from = "bad"
verdict = "drop"
[[rule]]
name = "dns"
to = ["udp/53"]
limit = [{ per = "source", rate = "1/h", burst = 1 }]
[[rule]]
name = "sparse"
to = ["tcp/443"]
mode = "observe"
limit = [{ per = "source", rate = "1/h", burst = 1 }]
[[rule]]
name = "rest"
to = ["udp/7000", "tcp/443"]
limit = [{ per = "source", rate = "1M/s" }]
"#;

const LONG: Duration = Duration::from_secs(3600);
const V4_HIGH: u64 = 0;

fn v4_low(octets: [u8; 4]) -> u64 {
    0x0000_ffff_0000_0000 | u64::from(u32::from_be_bytes(octets))
}

fn v4(source: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from(source).packet(protocol, payload))
}

fn v6(source: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV6, &V6::from(source).packet(protocol, payload))
}

fn events(guard: &mut Guard) -> Vec<Event> {
    let mut all = Vec::new();
    guard.datapath().events(&mut |event| all.push(*event));
    all
}

/// What an event must say.
struct Expected {
    rule: &'static str,
    outcome: Outcome,
    observed: Option<(&'static str, Outcome)>,
    source: (u64, u64),
    ports: (u16, u16),
    family: Family,
    kind: Kind,
}

struct Row {
    what: &'static str,
    frame: Vec<u8>,
    expected: Option<Expected>,
}

fn rows() -> Vec<Row> {
    let row = |what, frame, expected| Row { what, frame, expected };
    let by = |rule, outcome, source, ports, family, kind| {
        Some(Expected { rule, outcome, observed: None, source, ports, family, kind })
    };
    let polite = (V4_HIGH, v4_low([192, 0, 2, 9]));
    let bad = (V4_HIGH, v4_low([198, 51, 100, 7]));
    let dns = || v4("192.0.2.9", UDP, &udp(4321, 53, b"query"));
    let observed = |rule, outcome, by, observed, kind, ports| {
        Some(Expected {
            rule,
            outcome,
            observed: Some((by, observed)),
            source: polite,
            ports,
            family: Family::V4,
            kind,
        })
    };
    vec![
        row("what passes is not told of", dns(), None),
        row("over a limit", dns(), by("dns", DropOver, polite, (4321, 53), Family::V4, Kind::Udp)),
        row(
            "dropped by a rule",
            v4("198.51.100.7", TCP, &tcp(999, 22, ACK)),
            by("bad", DropRule, bad, (999, 22), Family::V4, Kind::Tcp),
        ),
        row(
            "IPv6",
            v6("2001:db8:bad::7", TCP, &tcp(999, 22, SYN)),
            by("bad", DropRule, (0x2001_0db8_0bad_0000, 7), (999, 22), Family::V6, Kind::TcpSyn),
        ),
        row(
            "carried in IPv6: the IPv4 source it is, by the family it came in",
            v6("::ffff:198.51.100.7", UDP, &udp(1, 2, b"")),
            by("bad", DropRule, bad, (1, 2), Family::V6, Kind::Udp),
        ),
        row(
            "nobody's rule",
            v4("192.0.2.9", ICMP, &icmp(8, 0)),
            by("", DropDefault, polite, (0, 8), Family::V4, Kind::Icmp),
        ),
        row(
            "behind a tag",
            ethernet(&[TAG], IPV4, &V4::from("198.51.100.7").packet(UDP, &udp(5, 6, b"x"))),
            by("bad", DropRule, bad, (5, 6), Family::V4, Kind::Udp),
        ),
        row(
            "malformed",
            ethernet(&[], IPV4, &V4::from("198.51.100.7").version(5).packet(UDP, &udp(5, 6, b""))),
            by("", DropMalformed, (0, 0), (0, 0), Family::V4, Kind::Other),
        ),
        row(
            "banned",
            v4("203.0.113.9", UDP, &udp(5, 7, b"")),
            by("", DropBan, (V4_HIGH, v4_low([203, 0, 113, 9])), (5, 7), Family::V4, Kind::Udp),
        ),
        row("on the link", ethernet(&[], ARP, &arp_request("192.0.2.9", "192.0.2.1")), None),
        row(
            "an observing rule without limits",
            v4("192.0.2.9", UDP, &udp(1, 7000, b"")),
            observed("rest", PassWithin, "trial", WouldDropRule, Kind::Udp, (1, 7000)),
        ),
        row("an observing rule with room", v4("192.0.2.9", TCP, &tcp(1, 443, ACK)), None),
        row(
            "an observing rule without",
            v4("192.0.2.9", TCP, &tcp(1, 443, ACK)),
            observed("rest", PassWithin, "sparse", WouldDropOver, Kind::Tcp, (1, 443)),
        ),
    ]
}

#[test]
fn an_event_says_what_became_of_which_packet() {
    let mut guard = Guard::with(POLICY);
    guard.ban(&[("203.0.113.9/32", Ban { until: FOREVER, own_until: FOREVER, flags: 0, by: 0 })]);
    guard.datapath().watch(LONG);
    for Row { what, frame, expected } in rows() {
        let before = now_ns();
        guard.judge(&frame);
        let told = events(&mut guard);
        let Some(expected) = expected else {
            assert!(told.is_empty(), "{what}: {told:?}");
            continue;
        };
        let [event] = told[..] else { panic!("{what}: {} events", told.len()) };
        assert!((before..=now_ns()).contains(&event.time), "{what}: at {} ns", event.time);
        assert_eq!(event.rule, guard.counter_of(expected.rule), "{what}");
        assert_eq!(event.outcome, expected.outcome as u8, "{what}");
        match expected.observed {
            Some((rule, outcome)) => {
                assert_eq!(
                    (event.observing, event.observed),
                    (guard.counter_of(rule), outcome as u8),
                    "{what}"
                );
            }
            None => assert_eq!(event.observed, NOT_OBSERVED, "{what}"),
        }
        assert_eq!((event.source_high, event.source_low), expected.source, "{what}");
        assert_eq!((event.source_port, event.destination), expected.ports, "{what}");
        assert_eq!((event.family, event.kind), (expected.family as u8, expected.kind as u8), "{what}");
        assert_eq!(event.frame_length as usize, frame.len(), "{what}");
        let captured = usize::from(event.captured);
        assert_eq!(captured, frame.len().min(FRAME_BYTES), "{what}");
        assert_eq!(event.frame[..captured], frame[..captured], "{what}");
    }
    assert_eq!(guard.datapath().events_lost().unwrap(), 0);
}

#[test]
fn a_frame_is_copied_from_either_kind_of_buffer() {
    let mut guard = Guard::with(POLICY);
    guard.datapath().watch(LONG);
    let linear = guard.linear_runner();
    for bytes in [0, 1, 85, 86, 87, 88, 200, 1400] {
        let frame = v4("198.51.100.7", UDP, &udp(1, 2, &vec![0xa5; bytes]));
        guard.judge(&frame);
        linear.judge(&frame);
        let [frags, plain] = events(&mut guard)[..] else { panic!("{bytes}: an event each") };
        let whole = frame.len().min(FRAME_BYTES);
        assert_eq!(usize::from(frags.captured), whole);
        // Without the helpers of later kernels by halves of a word.
        assert_eq!(usize::from(plain.captured), whole & !1);
        assert_eq!(frags.frame[..whole], frame[..whole]);
        assert_eq!(plain.frame[..whole & !1], frame[..whole & !1]);
        assert_eq!((plain.length, plain.frame_length), (frags.length, frags.frame_length));
        assert_eq!(plain.length as usize, frame.len() - 14);
    }
}

#[test]
fn nobody_is_told_unless_he_watches() {
    let mut guard = Guard::with(POLICY);
    let frame = v4("198.51.100.7", UDP, &udp(1, 2, b""));
    guard.repeat(&frame, 1000);
    assert!(events(&mut guard).is_empty());
    guard.datapath().watch(LONG);
    guard.judge(&frame);
    assert_eq!(events(&mut guard).len(), 1);
    guard.datapath().watch(Duration::ZERO);
    guard.repeat(&frame, 1000);
    assert!(events(&mut guard).is_empty());
    // A daemon that dies renews nothing: the program stops by itself.
    guard.datapath().watch(Duration::from_millis(100));
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let lost = guard.datapath().events_lost().unwrap();
        guard.repeat(&frame, 10);
        if events(&mut guard).is_empty() && guard.datapath().events_lost().unwrap() == lost {
            break;
        }
        assert!(Instant::now() < deadline, "the watch does not end");
    }
}

#[test]
fn a_flood_is_told_of_within_the_budget_and_hides_nobody() {
    const FLOOD: u32 = 300_000;
    let mut guard = Guard::with(POLICY);
    guard.datapath().watch(LONG);
    let flood = v4("198.51.100.7", UDP, &udp(1, 2, b""));
    let start = Instant::now();
    guard.repeat(&flood, FLOOD);
    // Rare: by another rule, and none for the same reason by the same rule.
    let rare = v4("192.0.2.9", UDP, &udp(4321, 53, b"query"));
    guard.repeat(&rare, 4);
    let seconds = start.elapsed().as_secs_f64();
    let told = events(&mut guard);
    let (rare, common): (Vec<&Event>, Vec<&Event>) =
        told.iter().partition(|event| event.rule == guard.counter_of("dns"));
    assert_eq!(rare.len(), 3, "one of four had room, and a flood hides none of the others");
    // 500 at once and 2000 a second, and the row's own 10 and 5; a tick of the coarse clock more.
    let most = 510.0 + 2005.0 * (seconds + 0.02);
    assert!(common.len() >= 510 && common.len() as f64 <= most, "{} in {seconds} s", common.len());
    let lost = guard.datapath().events_lost().unwrap();
    assert_eq!(common.len() as u64 + lost, u64::from(FLOOD), "told of or counted");
}

#[test]
fn a_full_ring_is_counted_and_drops_go_on() {
    let mut guard = Guard::with(POLICY);
    guard.datapath().watch(LONG);
    let frame = v4("198.51.100.7", UDP, &udp(1, 2, b""));
    let mut sent = 0;
    // Nobody reads: the ring fills at 2000 a second.
    let deadline = Instant::now() + Duration::from_secs(30);
    let room = (1 << 20) / 192;
    while guard.counted("bad", DropRule).packets - guard.datapath().events_lost().unwrap() < room {
        guard.repeat(&frame, 2000);
        sent += 2000;
        assert!(Instant::now() < deadline, "the ring does not fill");
    }
    guard.repeat(&frame, 20_000);
    sent += 20_000;
    let told = events(&mut guard).len() as u64;
    assert!(told <= room + 1, "{told}");
    assert_eq!(told + guard.datapath().events_lost().unwrap(), sent);
    guard.judge(&frame);
    std::thread::sleep(Duration::from_millis(300));
    guard.judge(&frame);
    assert!(!events(&mut guard).is_empty(), "it goes on when somebody reads");
}

/// The kernel's monotonic clock.
fn now_ns() -> u64 {
    // SAFETY: a time of zeros is a valid one.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one timespec.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
