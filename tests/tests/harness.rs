//! The harness itself: what it builds is what it says, and it leaves nothing behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{collections::BTreeSet, path::Path};

use limiter_tests::{
    corpus,
    frame::{IPV4, UDP, V4, ethernet, udp},
    namespace::{GUARDED_V4, GUARDED_V6, Pair},
    wire::Wire,
};

#[test]
fn table_has_no_frame_under_two_names() {
    let cases = corpus::frames();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.what.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "each case has its own name");
    assert!(cases.len() > 100, "{} frames", cases.len());
}

#[test]
fn frames_cross_a_pair_in_order_and_unchanged() {
    let pair = Pair::silent();
    let mut wire = Wire::open(&pair);
    let frames: Vec<Vec<u8>> = (0..1000_u16)
        .map(|port| ethernet(&[], IPV4, &V4::from("192.0.2.2").packet(UDP, &udp(port, 53, b""))))
        .collect();
    assert!(wire.pass(&frames) == frames, "1000 frames arrive as they were sent");
}

#[test]
fn kernels_of_a_pair_reach_each_other() {
    let pair = Pair::addressed();
    for address in [GUARDED_V4, GUARDED_V6] {
        let output =
            pair.peer.command("ping").args(["-c", "1", "-W", "10", address]).output().expect("ping runs");
        assert!(output.status.success(), "{address}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn nothing_is_left_behind() {
    let pair = Pair::silent();
    let paths = [pair.guarded.path(), pair.peer.path()];
    assert!(paths.iter().all(|path| path.exists()));
    drop(pair);
    assert!(paths.iter().all(|path| !path.exists()), "the namespaces are gone");

    // A run that was killed: its process is no more, its namespace is.
    let stale = "limiter-test-999999999-0g";
    let made = std::process::Command::new("ip").args(["netns", "add", stale]).status().expect("ip runs");
    assert!(made.success());
    drop(Pair::silent());
    assert!(!Path::new("/run/netns").join(stale).exists(), "the next run removes it");
}
