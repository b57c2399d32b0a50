//! Deadlines that the program itself judges: a pause, and a policy that waits to be confirmed.

use std::time::Duration;

use limiter_common::verdict::Outcome;
use limiter_tests::{
    clock::wait_for,
    frame::{IPV4, UDP, V4, ethernet, udp},
    kernel::Guard,
};
use limiter_user::datapath::Datapath as _;

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(60);

const DROPS: &str = "version = 1\n[default]\nverdict = \"drop\"\n";
const PASSES: &str = "version = 1\n[default]\nverdict = \"pass\"\n";
const LIMITS: &str =
    "version = 1\n[[rule]]\nname = \"limited\"\nlimit = [{ per = \"source\", rate = \"1/5m\", burst = 2 }]\n";

fn frame() -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from("198.51.100.7").packet(UDP, &udp(1, 53, b"four")))
}

#[test]
fn while_paused_what_is_to_be_dropped_passes_and_is_counted() {
    let mut guard = Guard::with(DROPS);
    assert!(!guard.passes(&frame()));
    guard.datapath().pause(HOUR);
    assert!(guard.datapath().paused().is_some());
    assert!(guard.passes(&frame()));
    assert_eq!(guard.counted("", Outcome::DropDefault).packets, 2);
    guard.datapath().pause(Duration::ZERO);
    assert_eq!(guard.datapath().paused(), None);
    assert!(!guard.passes(&frame()));
    guard.datapath().pause(SOON);
    wait_for("the pause to end", PATIENCE, || (!guard.passes(&frame())).then_some(()));
}

#[test]
fn a_pause_fills_no_bucket() {
    let mut guard = Guard::with(LIMITS);
    guard.datapath().pause(HOUR);
    for _ in 0..5 {
        assert!(guard.passes(&frame()));
    }
    guard.datapath().pause(Duration::ZERO);
    assert!(!guard.passes(&frame()), "two of the five were within");
    assert_eq!(guard.counted("limited", Outcome::PassWithin).packets, 2);
    assert_eq!(guard.counted("limited", Outcome::DropOver).packets, 4);
}

#[test]
fn an_unconfirmed_policy_falls_back_and_a_confirmed_one_stays() {
    let mut guard = Guard::with(PASSES);
    guard.publish_unless_confirmed(DROPS, HOUR);
    assert!(!guard.passes(&frame()));
    assert!(guard.datapath().confirm());
    assert!(!guard.datapath().confirm(), "nothing waits any longer");
    assert_eq!(guard.datapath().unconfirmed(), None);
    assert!(!guard.passes(&frame()));

    guard.publish_unless_confirmed(PASSES, SOON);
    wait_for("the policy before to come back", PATIENCE, || (!guard.passes(&frame())).then_some(()));
    assert_eq!(guard.datapath().unconfirmed(), None);
    assert!(!guard.datapath().confirm(), "that comes too late");
    assert!(!guard.passes(&frame()));
}

#[test]
fn what_waits_outlives_policies_put_in_its_place() {
    let mut guard = Guard::with(DROPS);
    guard.publish_unless_confirmed(PASSES, HOUR);
    // More of them than there are slots: none takes that of the policy to come back.
    for _ in 0..5 {
        guard.publish(PASSES);
        assert!(guard.passes(&frame()));
        assert!(guard.datapath().unconfirmed().is_some());
    }
    guard.datapath().fall_back();
    assert!(!guard.passes(&frame()));
    guard.publish(PASSES);
    assert!(guard.passes(&frame()));
    assert_eq!(guard.datapath().unconfirmed(), None);
}

#[test]
fn buckets_and_counters_outlive_a_fall_back() {
    let mut guard = Guard::with(LIMITS);
    assert!(guard.passes(&frame()) && guard.passes(&frame()) && !guard.passes(&frame()));
    guard.publish_unless_confirmed(&LIMITS.replace("burst = 2", "burst = 3"), HOUR);
    assert!(guard.passes(&frame()), "two of three are spent");
    guard.datapath().fall_back();
    assert!(!guard.passes(&frame()));
    assert_eq!(guard.counted("limited", Outcome::PassWithin).packets, 3);
    assert_eq!(guard.counted("limited", Outcome::DropOver).packets, 2);
}
