//! The check-then-act race does not exist: two CPUs cannot spend one token twice.
//!
//! The test is worth something because it fails on a bucket that has the race: the same steps, but for a
//! compare-and-swap made of a load, a comparison and a store.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{sync::Barrier, thread};

use limiter_common::verdict::{Outcome, Verdict};
use limiter_tests::{
    clock,
    frame::{IPV4, UDP, V4, ethernet, udp},
    kernel::Guard,
};

const BURST: u64 = 100_000;

/// So slow that neither the interval nor the spread of the coarse clock, a tenth of a packet, hide a race.
fn policy(per: &str, run: u64) -> String {
    format!(
        "version = 1\n[[rule]]\nname = \"race-{run}\"\nlimit = [{{ per = \"{per}\", rate = \"10/s\", burst = {BURST} }}]\n"
    )
}

/// Packets refused in a row after which a bucket is called empty.
const EMPTY: u32 = 200;

/// Two CPUs spend one full bucket, a packet at a time, each from its source. What was admitted, and the most that may
/// be: the burst, the rate times the interval, and one packet for each CPU at the claim.
fn spend(sources: [&str; 2], admits: impl Fn(&[u8]) -> bool + Sync) -> (u64, u64) {
    let frames = sources.map(|source| ethernet(&[], IPV4, &V4::from(source).packet(UDP, &udp(1, 2, b""))));
    let start = Barrier::new(2);
    let begin = clock::precise();
    let admitted = thread::scope(|scope| {
        let spenders: Vec<_> = (0..2)
            .map(|cpu| {
                let (admits, frame, start) = (&admits, &frames[cpu], &start);
                scope.spawn(move || {
                    clock::pin_to(cpu);
                    start.wait();
                    let (mut admitted, mut refused) = (0, 0);
                    while refused < EMPTY {
                        if admits(frame) {
                            admitted += 1;
                            refused = 0;
                        } else {
                            refused += 1;
                        }
                    }
                    admitted
                })
            })
            .collect();
        spenders.into_iter().map(|spender| spender.join().expect("a spending thread")).sum()
    });
    let interval = clock::precise() - begin;
    (admitted, BURST + (10 * interval).div_ceil(1_000_000_000) + 2)
}

#[test]
fn two_cpus_spend_each_token_once() {
    let mut guard = Guard::with("version = 1");
    // A source from both CPUs; two of a prefix; a rule, whoever sends.
    let cases = [
        ("source", ["192.0.2.1", "192.0.2.1"]),
        ("source/24,48", ["192.0.2.1", "192.0.2.2"]),
        ("rule", ["192.0.2.1", "198.51.100.1"]),
    ];
    for run in 0..12 {
        let (per, sources) = cases[run as usize % cases.len()];
        guard.publish(&policy(per, run));
        let runner = guard.runner();
        let (admitted, most) = spend(sources, |frame| runner.judge(frame).verdict() == Verdict::Pass);
        assert!(admitted <= most, "{admitted} admitted of at most {most}");
        assert!(admitted >= BURST * 98 / 100, "{admitted} admitted of a burst of {BURST}");
        assert_eq!(guard.counted(&format!("race-{run}"), Outcome::PassWithin).packets, admitted);
    }
}

#[test]
fn a_bucket_that_checks_and_then_acts_fails_the_same_test() {
    let mut guard = Guard::with("version = 1");
    let runner = guard.racy_runner();
    // Only CPUs that run at the same time race: a busy machine may need some tries.
    let mut seen = Vec::new();
    for run in 0..30 {
        guard.publish(&policy("source", run));
        let (admitted, most) = spend(["192.0.2.1"; 2], |frame| runner.admits(frame));
        if admitted > most {
            return;
        }
        seen.push((admitted, most));
    }
    panic!("a race that nobody saw: {seen:?}");
}
