//! A policy is swapped under traffic, thousands of times: every packet is judged by one of the two as a whole.
// suite: budget=90
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use limiter_common::verdict::Outcome::{self, DropDefault, DropOver, DropRule, PassDefault, PassWithin};
use limiter_tests::{
    clock,
    frame::{IPV4, IPV6, UDP, V4, V6, ethernet, udp},
    kernel::Guard,
    stop::SetOnDrop,
};

const SWAPS: u64 = 2_000;

/// Drops one network's packets to one port; some hundred more prefixes in each set make the image large.
fn policy(v4: &str, v6: &str, port: u16, default: &str) -> String {
    let mut members = format!("\"{v4}\", \"{v6}\"");
    for host in 0..300 {
        write!(members, ", \"172.16.{}.{}/32\", \"2001:db8:{host:x}::/48\"", host / 200, host % 200 + 1)
            .unwrap();
    }
    format!(
        "version = 1\n[default]\nverdict = \"{default}\"\n[sets]\nthem = [{members}]\n\
         [[rule]]\nname = \"them\"\nfrom = \"them\"\nto = [\"udp/{port}\"]\nverdict = \"drop\"\n"
    )
}

#[test]
fn every_packet_is_judged_by_one_whole_policy() {
    let old = policy("10.0.0.0/8", "2a00::/16", 1000, "pass");
    let new = policy("192.168.0.0/16", "2a01::/16", 2000, "drop");
    let v4 = |source: &str, port: u16| ethernet(&[], IPV4, &V4::from(source).packet(UDP, &udp(1, port, b"")));
    let v6 = |source: &str, port: u16| ethernet(&[], IPV6, &V6::from(source).packet(UDP, &udp(1, port, b"")));
    // By the old policy, by the new one. A mixture of one's sets with the other's services, rules or default
    // would say something else of one of them.
    let table: [(Vec<u8>, Outcome, Outcome); 6] = [
        (v4("10.0.0.1", 1000), DropRule, DropDefault),
        (v4("10.0.0.1", 2000), PassDefault, DropDefault),
        (v4("192.168.0.1", 1000), PassDefault, DropDefault),
        (v4("192.168.0.1", 2000), PassDefault, DropRule),
        (v6("2a00::1", 1000), DropRule, DropDefault),
        (v6("2a01::1", 2000), PassDefault, DropRule),
    ];
    let mut guard = Guard::with(&old);
    let mut waiting = guard.prepare(&new);
    let runner = guard.runner();
    let done = AtomicBool::new(false);
    let judged = [const { AtomicU64::new(0) }; 2];
    thread::scope(|scope| {
        for start in 0..2 {
            let (table, done, judged, runner) = (&table, &done, &judged, runner.clone());
            scope.spawn(move || {
                let mut place = start;
                while !done.load(Ordering::Relaxed) {
                    let (frame, by_old, by_new) = &table[place % table.len()];
                    let outcome = runner.judge(frame);
                    assert!(
                        outcome == *by_old || outcome == *by_new,
                        "frame {}: {outcome:?} is of neither policy",
                        place % table.len()
                    );
                    judged[usize::from(outcome == *by_new)].fetch_add(1, Ordering::Relaxed);
                    place += 1;
                }
            });
        }
        let stop = SetOnDrop(&done);
        for _ in 0..SWAPS {
            guard.publish_prepared(&mut waiting);
        }
        drop(stop);
    });
    let [by_old, by_new] = judged.map(AtomicU64::into_inner);
    assert!(by_old > SWAPS && by_new > SWAPS, "{by_old} and {by_new} packets were judged by each");
    let all: u64 = guard.totals().iter().map(|(_, counter)| counter.packets).sum();
    assert_eq!(all, by_old + by_new, "each packet was counted once");
}

fn limited(rate: &str, burst: u32) -> String {
    format!(
        "version = 1\n[[rule]]\nname = \"limited\"\nlimit = [{{ per = \"source\", rate = \"{rate}\", burst = {burst} }}]\n"
    )
}

fn passed_of(guard: &Guard, frame: &[u8], offered: u32) -> u32 {
    let mut passed = 0;
    for _ in 0..offered {
        match guard.judge(frame).outcome {
            PassWithin => passed += 1,
            DropOver => {}
            other => panic!("{other:?}"),
        }
    }
    passed
}

#[test]
fn a_changed_number_keeps_the_bucket() {
    let frame = ethernet(&[], IPV4, &V4::from("192.0.2.1").packet(UDP, &udp(1, 2, b"")));
    let mut guard = Guard::with(&limited("10/15m", 10));
    assert_eq!(passed_of(&guard, &frame, 6), 6, "6 of 10");
    guard.publish(&limited("10/15m", 20));
    // Six are owed at the same price: 14 of 20 are left.
    assert_eq!(passed_of(&guard, &frame, 30), 14);
    guard.publish(&limited("10/15m", 10));
    assert_eq!(passed_of(&guard, &frame, 5), 0, "no burst for a policy change");
    // Renamed it is another limit.
    guard.publish(&limited("10/15m", 10).replace("limited", "renamed"));
    assert_eq!(passed_of(&guard, &frame, 20), 10);
}

#[test]
fn relaxing_refuses_no_longer_than_the_new_numbers_would() {
    let frame = ethernet(&[], IPV4, &V4::from("192.0.2.1").packet(UDP, &udp(1, 2, b"")));
    // An empty bucket takes a quarter of an hour to fill.
    let mut guard = Guard::with(&limited("10/15m", 10));
    assert_eq!(passed_of(&guard, &frame, 20), 10);
    // By the new numbers an empty one has room for the next packet within 1 ms, by the old ones within 90 s.
    guard.publish(&limited("1k/s", 1000));
    clock::wait_for("room in the bucket", Duration::from_secs(20), || {
        (guard.judge(&frame).outcome == PassWithin).then_some(())
    });
}
