//! Penalties in the program: what counts as a strike, what a mark refuses and for how long, and whom none may hit.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use limiter_common::{
    hash,
    verdict::Outcome::{self, DropOver, DropPenalty, DropRule, PassDefault, PassWithin, WouldDropOver},
};
use limiter_tests::{
    clock,
    frame::{ACK, IPV4, IPV6, TCP, UDP, V4, V6, ethernet, tcp, udp},
    kernel::Guard,
    namespace::{GUARDED_V4, GUARDED_V6, PEER, PEER_V4, PEER_V6, Pair},
    stop::SetOnDrop,
    wire::{RawSocket, Wire},
};
use limiter_user::datapath::{Datapath as _, Refill};

/// Three drops, and no packet more for half an hour; without, one comes back in several minutes.
const POLICY: &str = r#"version = 1
[limits]
shared = { per = "source", rate = "1/15m", burst = 1 }
[[rule]]
name = "own"
to = "udp/1"
limit = [{ per = "source", rate = "2/15m", burst = 2 }]
penalty = { after = 3, within = "15m", for = "30m" }
[[rule]]
name = "other"
to = "udp/2"
limit = [{ per = "source", rate = "2/15m", burst = 2 }]
penalty = { after = 3, within = "15m", for = "30m" }
[[rule]]
name = "shares"
to = "udp/3"
limit = ["shared", { per = "source", rate = "1000/s" }]
penalty = { after = 1, within = "15m", for = "1s" }
[[rule]]
name = "observes"
to = "udp/4"
mode = "observe"
limit = [{ per = "source", rate = "1/15m", burst = 1 }]
penalty = { after = 1, within = "15m", for = "15m" }
[[rule]]
name = "bytes"
to = "udp/5"
limit = [{ per = "source", rate = "16 kB/15m", burst = "16 kB" }, { per = "source", rate = "2/15m", burst = 2 }]
penalty = { after = 2, within = "15m", for = "15m" }
"#;

fn v4(source: &str, port: u16) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from(source).packet(UDP, &udp(4000, port, b"")))
}

fn v6(source: &str, port: u16) -> Vec<u8> {
    ethernet(&[], IPV6, &V6::from(source).packet(UDP, &udp(4000, port, b"")))
}

/// What becomes of a frame sent so many times, one after the other.
fn outcomes(guard: &Guard, frame: &[u8], times: usize) -> Vec<Outcome> {
    (0..times).map(|_| guard.judge(frame).outcome).collect()
}

/// What, frame, and what must become of it each time.
fn check(guard: &Guard, rows: &[(&str, Vec<u8>, &[Outcome])]) {
    for (what, frame, expected) in rows {
        assert_eq!(outcomes(guard, frame, expected.len()), *expected, "{what}");
    }
}

#[test]
fn what_is_a_strike_and_what_a_mark_refuses() {
    let guard = Guard::with(POLICY);
    let own = [PassWithin, PassWithin, DropOver, DropOver, DropOver, DropPenalty, DropPenalty];
    check(
        &guard,
        &[
            ("the third drop penalises", v4("192.0.2.1", 1), &own),
            ("another source is nobody else's", v4("192.0.2.2", 1), &own[..4]),
            ("in another rule nothing happened", v4("192.0.2.1", 2), &own),
            ("by a shared limit", v4("192.0.2.1", 3), &[PassWithin, DropOver, DropOver, DropOver]),
            ("an observing rule", v4("192.0.2.1", 4), &[PassDefault; 4]),
            ("a whole /64 is one source", v6("2001:db8::1", 1), &own[..5]),
            ("the same by another of it", v6("2001:db8::ffff", 1), &[DropPenalty; 2]),
            ("another /64", v6("2001:db8:0:1::1", 1), &own[..4]),
            ("carried in IPv6 the same source", v6("64:ff9b::192.0.2.1", 1), &[DropPenalty]),
            (
                "of two limits of one source",
                v4("192.0.2.1", 5),
                &[PassWithin, PassWithin, DropOver, DropOver, DropPenalty],
            ),
        ],
    );
    for (rule, over, penalty) in
        [("own", 3 + 2 + 3 + 2, 2 + 2 + 1), ("other", 3, 2), ("shares", 3, 0), ("bytes", 2, 1)]
    {
        assert_eq!(guard.counted(rule, DropOver).packets, over, "{rule}");
        assert_eq!(guard.counted(rule, DropPenalty).packets, penalty, "{rule}");
    }
    assert_eq!(guard.counted("observes", WouldDropOver).packets, 3);
    assert_eq!(guard.counted("observes", Outcome::WouldDropPenalty).packets, 0);
    let now = guard.kernel().now();
    let marked: Vec<u64> = guard.buckets().iter().filter_map(|bucket| bucket.penalised_until(now)).collect();
    assert_eq!(marked.len(), 4, "192.0.2.1 in three rules, one /64 in one");
    let minutes = |ticks: u64| ticks / 64_000_000_000 / 60;
    assert!(marked.iter().all(|until| (14..30).contains(&minutes(until - now))), "{marked:?}");
}

#[test]
fn a_penalty_ends_and_leaves_a_full_bucket() {
    let guard = Guard::with(
        "version = 1\n[[rule]]\nname = \"own\"\nlimit = [{ per = \"source\", rate = \"20/s\", burst = 20 }]\n\
         penalty = { after = 30, within = \"1m\", for = \"1s\" }\n",
    );
    let frame = v4("192.0.2.1", 1);
    let deadline = Instant::now() + Duration::from_secs(30);
    let until = |expected: fn(Outcome) -> bool| {
        while !expected(guard.judge(&frame).outcome) {
            assert!(Instant::now() < deadline, "it never comes");
        }
        Instant::now()
    };
    let begin = until(|outcome| outcome == DropPenalty);
    assert_eq!(guard.counted("own", DropOver).packets, 30);
    let end = until(|outcome| outcome != DropPenalty);
    // The coarse clock is late by a tick at most.
    assert!((end - begin).as_millis() >= 950, "{:?}", end - begin);
    assert_eq!(guard.judge(&frame).outcome, PassWithin, "its bucket is full");
    // Strikes have hardly come back, one in two seconds: the next few are too many.
    until(|outcome| outcome == DropPenalty);
    let strikes = guard.counted("own", DropOver).packets;
    assert!(strikes < 30 + 15, "{strikes} strikes for two penalties");
}

#[test]
fn a_safelisted_source_is_never_penalised() {
    let policy = POLICY.replace("[limits]", "[default]\nnever-ban = [\"198.51.100.0/24\", \"2001:db8:5::53\", \"friends\"]\n[sets]\nfriends = [\"203.0.113.9\"]\n[limits]");
    let mut guard = Guard::with(&policy);
    guard
        .datapath()
        .keep_safe(&["192.0.2.53/32".parse().unwrap(), "2001:db8:7::/64".parse().unwrap()])
        .unwrap();
    let safe = [PassWithin, PassWithin, DropOver, DropOver, DropOver, DropOver, DropOver, DropOver];
    let penalised = [PassWithin, PassWithin, DropOver, DropOver, DropOver, DropPenalty];
    check(
        &guard,
        &[
            ("under never-ban", v4("198.51.100.7", 1), &safe),
            ("by a set", v4("203.0.113.9", 1), &safe),
            ("beside it", v4("203.0.113.8", 1), &penalised),
            ("of whose /64 one address is", v6("2001:db8:5::1", 1), &safe),
            ("beside that /64", v6("2001:db8:5:1::1", 1), &penalised),
            ("known to the daemon", v4("192.0.2.53", 1), &safe),
            ("beside it", v4("192.0.2.54", 1), &penalised),
            ("of a /64 known to the daemon", v6("2001:db8:7::99", 1), &safe),
        ],
    );
    // Who becomes safe is freed; who no longer is can be penalised.
    guard.datapath().keep_safe(&["192.0.2.54/32".parse().unwrap()]).unwrap();
    check(
        &guard,
        &[
            ("freed", v4("192.0.2.54", 1), &[PassWithin, PassWithin, DropOver, DropOver, DropOver, DropOver]),
            ("safe no longer", v4("192.0.2.53", 1), &[DropOver, DropPenalty]),
        ],
    );
}

#[test]
fn a_policy_that_knows_no_such_penalty_takes_it_back() {
    let mut guard = Guard::with(POLICY);
    let frames = [v4("192.0.2.1", 1), v4("192.0.2.1", 2)];
    for frame in &frames {
        assert_eq!(outcomes(&guard, frame, 6)[5], DropPenalty);
    }
    let ahead = |guard: &Guard| {
        let now = guard.kernel().now();
        let all = guard.buckets().iter().filter_map(|bucket| bucket.penalised_until(now)).collect::<Vec<_>>();
        all.into_iter().map(|until| (until - now) / 64_000_000_000).collect::<Vec<u64>>()
    };
    // Longer: what is marked stays as it is.
    guard.publish(&POLICY.replace("for = \"30m\"", "for = \"36m\""));
    assert!(ahead(&guard).iter().all(|seconds| (1700..=1800).contains(seconds)), "{:?}", ahead(&guard));
    // Shorter for one, gone for the other.
    let shorter = POLICY.replacen("for = \"30m\"", "for = \"15m\"", 1);
    let (first, rest) = shorter.split_once("name = \"other\"").unwrap();
    let changed = format!(
        "{first}name = \"other\"{}",
        rest.replacen("penalty = { after = 3, within = \"15m\", for = \"30m\" }\n", "", 1)
    );
    guard.publish(&changed);
    let left = ahead(&guard);
    assert!(left.len() == 1 && (800..=900).contains(&left[0]), "{left:?}");
    assert_eq!(guard.judge(&frames[0]).outcome, DropPenalty);
    assert_eq!(guard.judge(&frames[1]).outcome, PassWithin);
    // By hand.
    assert_eq!(guard.datapath().refill(&"192.0.2.1/32".parse().unwrap(), Refill::Penalties).unwrap(), 1);
    assert_eq!(guard.judge(&frames[0]).outcome, PassWithin);
    // What is tried falls back, and so do its penalties.
    let frame = v4("192.0.2.9", 2);
    guard.publish_unless_confirmed(POLICY, Duration::from_secs(3600));
    assert_eq!(outcomes(&guard, &frame, 6)[5], DropPenalty);
    guard.datapath().fall_back();
    assert_eq!(ahead(&guard), Vec::<u64>::new());
    assert_eq!(guard.judge(&frame).outcome, PassWithin);
}

#[test]
fn half_of_a_set_is_left_to_others() {
    // Ways are held for a second, so many may be claimed.
    let guard = Guard::with_table(
        r#"version = 1
[[rule]]
name = "own"
limit = [{ per = "source", rate = "10/s", burst = 1 }]
penalty = { after = 1, within = "1s", for = "1h", spoofable = "accepted" }
"#,
        1024,
    );
    let geometry = guard.geometry();
    let frame = |number: u32| v4(&format!("10.0.{}.{}", number / 250, number % 250 + 1), 9);
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut most = 0;
    let mut marked = 0;
    while marked < 300 && Instant::now() < deadline {
        for number in 0..2000 {
            outcomes(&guard, &frame(number), 2);
        }
        let now = guard.kernel().now();
        let mut sets: BTreeMap<u32, usize> = BTreeMap::new();
        for bucket in guard.buckets().iter().filter(|bucket| bucket.penalised_until(now).is_some()) {
            let std::net::IpAddr::V4(address) = bucket.network else { panic!("{:?}", bucket.network) };
            let bits = u128::from(address.to_ipv6_mapped());
            let network = hash::network(&geometry, (bits >> 64) as u64, bits as u64);
            *sets.entry(hash::set_index(&geometry, hash::tag(network, bucket.meter))).or_default() += 1;
        }
        most = most.max(sets.values().copied().max().unwrap_or(0));
        marked = sets.values().sum();
    }
    assert!(marked >= 300, "{marked} buckets were marked");
    assert_eq!(most, 4, "of eight ways");
}

/// Packets in a victim's name at the sender's full speed: they cost it what they would without a penalty, the bucket of
/// that rule, and for no longer than the policy accepts.
#[test]
fn forged_packets_reach_no_further_than_their_rule() {
    let pair = Pair::silent();
    // 50 × 22 ÷ (100 + 1000) = 1: the most there may be without a word.
    let mut guard = Guard::with(
        r#"version = 1
[[rule]]
name = "forged"
to = "udp/1"
limit = [{ per = "source", rate = "50/s", burst = 100 }]
penalty = { after = 1000, within = "10s", for = "22s" }
[[rule]]
name = "polite"
to = "udp/2"
limit = [{ per = "source", rate = "20k/s" }]
penalty = { after = 1000, within = "10s", for = "1s" , spoofable = "accepted" }
[[rule]]
name = "none"
to = "udp/3"
verdict = "drop"
"#,
    );
    guard.datapath().keep_safe(&["192.0.2.53/32".parse().unwrap()]).unwrap();
    guard.attach(&pair);
    let (victim, resolver) = ("203.0.113.9", "192.0.2.53");
    let flood: Vec<Vec<u8>> =
        (0..64).map(|number| v4(if number % 2 == 0 { victim } else { resolver }, 1)).collect();
    let done = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    let runner = guard.runner();
    let (mut asked, mut served) = (0_u64, 0_u64);
    thread::scope(|scope| {
        scope.spawn(|| {
            clock::pin_to(1);
            pair.peer.enter();
            let socket = RawSocket::open(PEER).expect("a raw socket on the peer's end");
            while !done.load(Ordering::Relaxed) {
                sent.fetch_add(socket.send_batch(&flood).unwrap_or(0) as u64, Ordering::Relaxed);
            }
        });
        let stop = SetOnDrop(&done);
        clock::pin_to(0);
        let end = Instant::now() + Duration::from_secs(3);
        let polite = v4(victim, 2);
        while Instant::now() < end {
            served += u64::from(runner.judge(&polite) == PassWithin);
            asked += 1;
            thread::sleep(Duration::from_micros(200));
        }
        drop(stop);
    });
    // An emulated guest sends 20 000 a second.
    assert!(sent.load(Ordering::Relaxed) > 20_000, "{} sent is no flood", sent.load(Ordering::Relaxed));
    assert_eq!(served, asked, "the victim's other traffic");
    assert!(guard.counted("forged", DropPenalty).packets > 10_000, "it was penalised");
    let now = guard.kernel().now();
    let buckets = guard.buckets();
    let until = |source: &str| {
        let bucket = buckets
            .iter()
            .find(|bucket| bucket.network.to_string() == source && bucket.penalised_until(now).is_some());
        bucket.and_then(|bucket| bucket.penalised_until(now))
    };
    let left = until(victim).expect("the victim is penalised in that rule") - now;
    assert!(left <= 22 * 64_000_000_000, "{left} ticks are more than the penalty");
    assert_eq!(until(resolver), None, "nothing automatic punishes the safelist");
    assert_ne!(guard.judge(&v4(resolver, 1)).outcome, DropPenalty);
    assert_eq!(guard.judge(&v4(victim, 3)).outcome, DropRule);
}

/// A real connection, whose packets are strikes; and forged ones of the same addresses and ports, which are none.
#[test]
fn what_proves_a_handshake_cannot_be_forged() {
    let policy = |proof: &str| {
        format!(
            "version = 1\n[[rule]]\nname = \"service\"\nto = \"tcp/5000\"\n\
             limit = [{{ per = \"source\", rate = \"1/s\", burst = 5 }}]\n\
             penalty = {{ after = 6, within = \"1h\", for = \"10m\", {proof} }}\n"
        )
    };
    for (guarded, peer) in [(GUARDED_V4, PEER_V4), (GUARDED_V6, PEER_V6)] {
        let pair = Pair::addressed();
        let mut guard = Guard::with("version = 1");
        guard.attach(&pair);
        let listener = pair.guarded.run(|| TcpListener::bind((guarded, 5000))).unwrap();
        let mut client = pair.peer.run(|| TcpStream::connect((guarded, 5000))).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.set_nodelay(true).unwrap();
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        guard.publish(&policy("proof = \"handshake\""));

        // Whoever does not see the connection guesses the numbers: a thousand times, all over their range.
        let port = client.local_addr().unwrap().port();
        let forged = |number: u32| {
            let mut segment = tcp(port, 5000, ACK);
            segment[4..8].copy_from_slice(&number.wrapping_mul(4_294_967).to_be_bytes());
            segment[8..12].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
            match guarded.contains(':') {
                false => ethernet(&[], IPV4, &V4::from(peer).to(guarded).packet(TCP, &segment)),
                true => ethernet(&[], IPV6, &V6::from(peer).to(guarded).packet(TCP, &segment)),
            }
        };
        let mut wire = Wire::open(&pair);
        let frames: Vec<Vec<u8>> = (1..=1000).map(forged).collect();
        wire.pass(&frames);
        assert!(guard.counted("service", DropOver).packets > 900, "{:?}", guard.counted("service", DropOver));
        assert_eq!(guard.counted("service", DropPenalty).packets, 0, "{peer}: forged packets are no strikes");

        // The connection's own: more segments at once than there is room for, and again as they are repeated.
        let deadline = Instant::now() + Duration::from_secs(30);
        while guard.counted("service", DropPenalty).packets == 0 {
            assert!(Instant::now() < deadline, "{peer}: the connection's own packets are no strikes");
            let _ = client.write(b"more");
            thread::sleep(Duration::from_millis(5));
        }
        let now = guard.kernel().now();
        let marked = guard.buckets().iter().filter(|bucket| bucket.penalised_until(now).is_some()).count();
        assert_eq!(marked, 1, "{peer}");
        drop((client, server, listener));
    }
}
