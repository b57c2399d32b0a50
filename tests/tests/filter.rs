//! The filter in front of the bucket table never hides a live bucket, whatever happens while it is thinned.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use limiter_common::{
    abi::Geometry,
    verdict::Outcome::{DropCrowd, DropOver, PassCrowd, PassWithin},
};
use limiter_tests::{
    clock,
    frame::{IPV4, UDP, V4, ethernet, udp},
    host::Host,
    kernel::{Guard, compile},
    random::Random,
};
use limiter_user::datapath::{Datapath as _, Facts};
use limiter_user::policy::Slots;

const POLICY: &str = r#"
version = 1
[[rule]]
name = "slow"
to = ["udp/1"]
limit = [{ per = "source", rate = "1/m", burst = 5 }]
[[rule]]
name = "quick"
to = ["udp/2"]
limit = [{ per = "source", rate = "1000/s", burst = 1 }]
"#;

fn frame(source: u32, port: u16) -> Vec<u8> {
    let source = Ipv4Addr::from(source).to_string();
    ethernet(&[], IPV4, &V4::from(&source).packet(UDP, &udp(9, port, b"")))
}

/// In memory, step by step: packets come between any two steps of the daemon, and time passes.
#[test]
fn every_live_bucket_is_in_the_filter_after_every_step() {
    let facts = Facts { tick_ns: 4_000_000, buckets: 1 << 18 };
    let compiled = compile(POLICY, facts, &Slots::default(), 1);
    let millisecond = 64_000_000;
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let geometry = Geometry { sets: 128, seed: [1, 2, 3, seed], ..Geometry::default() };
        let host = Host::new(geometry, &compiled.rows);
        let mut now = 1_000_000 * millisecond;
        let mut passed = 0;
        for round in 0..200 {
            // The four steps of thinning, over and over.
            let copy = round / 2 % 2;
            if round % 2 == 0 {
                host.clear_filter(copy);
            } else {
                host.fill_filter(copy);
            }
            for _ in 0..random.below(40) {
                now += random.below(3) * millisecond;
                host.set_now(now);
                let ruling = host.judge(&compiled.tables, &frame(random.below(60) as u32, 2));
                passed += u32::from(ruling.outcome == PassWithin);
                assert_eq!(host.missing_from_filter(), 0, "seed {seed}, round {round}");
            }
        }
        assert!(passed > 1000, "{passed} packets found room");
    }
}

/// In the kernel, at once: drained sources are refused by their own buckets. One that the filter hid would be judged
/// by a crowd cell, since the claim budget is spent.
#[test]
fn drained_sources_stay_drained_while_it_is_thinned() {
    let guard = Guard::with(POLICY);
    let drained: Vec<Vec<u8>> = (0..64).map(|host| frame(0xc000_0200 + host, 1)).collect();
    for frame in &drained {
        for _ in 0..5 {
            assert_eq!(guard.judge(frame).outcome, PassWithin);
        }
    }
    let mut claimed = 0;
    while !matches!(guard.judge(&frame(0x0a00_0000 + claimed, 1)).outcome, PassCrowd | DropCrowd) {
        claimed += 1;
        assert!(claimed < 1 << 18, "the claim budget is never spent");
    }

    let done = AtomicBool::new(false);
    let runner = guard.runner();
    let (thinned, judged) = thread::scope(|scope| {
        let judge = scope.spawn(|| {
            clock::pin_to(1);
            let mut judged = 0_u64;
            while !done.load(Ordering::Relaxed) {
                for frame in &drained {
                    assert_eq!(runner.judge(frame), DropOver, "after {judged} packets");
                    judged += 1;
                }
            }
            judged
        });
        clock::pin_to(0);
        let mut daemon = guard.reopened();
        let mut random = Random::new(7);
        let mut thinned = 0;
        while thinned < 4 && !judge.is_finished() {
            for _ in 0..5_000 {
                runner.judge(&frame(0x0b00_0000 | random.below(1 << 24) as u32, 2));
            }
            thinned += u32::from(daemon.tidy());
        }
        done.store(true, Ordering::Relaxed);
        (thinned, judge.join().expect("no drained source was let through"))
    });
    assert!(thinned == 4 && judged > 1000, "thinned {thinned} times under {judged} packets");
}
