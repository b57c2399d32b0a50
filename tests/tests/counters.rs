//! Counters against packets counted outside: equal, over policy swaps and two CPUs.
// suite: budget=90
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::thread;

use limiter_common::verdict::Outcome::{
    self, DropOver, DropRule, PassDefault, PassNonIp, PassRule, PassWithin,
};
use limiter_tests::{
    clock,
    frame::{ACK, IPV4, IPV6, TCP, UDP, V4, V6, ethernet, tcp, udp},
    kernel::Guard,
    namespace::Pair,
    wire::Wire,
};

fn policy(burst: u32) -> String {
    format!(
        r#"
version = 1

[sets]
bad = ["198.51.100.0/24", "2001:db8:bad::/48"]

[[rule]]
name = "bad"
from = "bad"
verdict = "drop"

[[rule]]
name = "ssh"
to = ["tcp/22"]
verdict = "pass"

[[rule]]
name = "queries"
to = ["udp/53"]
limit = [{{ per = "source", rate = "{burst}/15m", burst = {burst} }}]
"#
    )
}

/// Six kinds of frames: three sources that are dropped, passed and limited, in both families.
fn frames() -> Vec<Vec<u8>> {
    vec![
        ethernet(&[], IPV4, &V4::from("198.51.100.9").packet(UDP, &udp(1, 53, b"four"))),
        ethernet(&[], IPV6, &V6::from("2001:db8:bad::9").packet(UDP, &udp(1, 53, b""))),
        ethernet(&[], IPV4, &V4::from("192.0.2.9").packet(TCP, &tcp(1, 22, ACK))),
        ethernet(&[], IPV6, &V6::from("2001:db8::9").packet(TCP, &tcp(1, 23, ACK))),
        ethernet(&[], IPV4, &V4::from("192.0.2.9").packet(UDP, &udp(1, 53, b""))),
        ethernet(&[], IPV6, &V6::from("2001:db8::9").packet(UDP, &udp(1, 53, b""))),
    ]
}

/// Bytes of the same frames from the IP header on, by hand.
const LENGTHS: [u64; 6] = [20 + 8 + 4, 40 + 8, 20 + 20, 40 + 20, 20 + 8, 40 + 8];

#[test]
fn equal_to_what_was_sent_and_came_through_over_swaps() {
    let pair = Pair::silent();
    let mut guard = Guard::with(&policy(10));
    guard.attach(&pair);
    let mut wire = Wire::open(&pair);
    let frames = frames();
    let mut through = [0_u64; 6];
    const ROUNDS: u64 = 40;
    const EACH: u64 = 25;
    for round in 0..ROUNDS {
        // Numbers go up and down under the traffic; nobody's bucket or counter starts anew.
        guard.publish(&policy(if round % 2 == 0 { 10 } else { 12 }));
        for _ in 0..EACH {
            for frame in wire.pass(&frames) {
                let kind =
                    frames.iter().position(|sent| *sent == frame).expect("only what was sent comes through");
                through[kind] += 1;
            }
        }
    }
    let sent = ROUNDS * EACH;
    assert_eq!(through[..4], [0, 0, sent, sent], "dropped, dropped, passed, passed");
    let counted = |rule: &str, outcome: Outcome| {
        let counter = guard.counted(rule, outcome);
        (counter.packets, counter.bytes)
    };
    assert_eq!(counted("bad", DropRule), (2 * sent, sent * (LENGTHS[0] + LENGTHS[1])));
    assert_eq!(counted("ssh", PassRule), (sent, sent * LENGTHS[2]));
    assert_eq!(counted("", PassDefault), (sent, sent * LENGTHS[3]));
    let within = through[4] + through[5];
    assert!(through[4] >= 10 && through[5] >= 10, "each source had its burst: {through:?}");
    assert_eq!(counted("queries", PassWithin), (within, through[4] * LENGTHS[4] + through[5] * LENGTHS[5]));
    let over = [sent - through[4], sent - through[5]];
    assert_eq!(
        counted("queries", DropOver),
        (over[0] + over[1], over[0] * LENGTHS[4] + over[1] * LENGTHS[5])
    );
    assert_eq!(counted("", PassNonIp).0, wire.fences(), "each fence was counted");
    let all: u64 = guard.totals().iter().map(|(_, counter)| counter.packets).sum();
    assert_eq!(all, 6 * sent + wire.fences(), "nothing else was counted");
}

#[test]
fn two_cpus_lose_no_count() {
    let guard = Guard::with(&policy(1000));
    let frames = frames();
    const ROUNDS: u64 = 20_000;
    thread::scope(|scope| {
        for cpu in 0..2 {
            let (runner, frames) = (guard.runner(), &frames);
            scope.spawn(move || {
                clock::pin_to(cpu);
                for _ in 0..ROUNDS {
                    for frame in frames {
                        runner.judge(frame);
                    }
                }
            });
        }
    });
    let sent = 2 * ROUNDS;
    let packets = |rule: &str, outcome: Outcome| guard.counted(rule, outcome).packets;
    assert_eq!(packets("bad", DropRule), 2 * sent);
    assert_eq!(packets("ssh", PassRule), sent);
    assert_eq!(packets("", PassDefault), sent);
    assert_eq!(packets("queries", PassWithin) + packets("queries", DropOver), 2 * sent);
}
