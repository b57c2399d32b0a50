//! What `why` is told of the next packet is what the next packet gets, and asking costs nothing.
//!
//! Limits refill so slowly that no time passes between the question and the packet.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::collections::HashMap;
use std::net::Ipv6Addr;

use limiter_common::abi::{BAN_LIFELINE, Ban, FOREVER};
use limiter_common::parse::{destination, parse};
use limiter_common::verdict::Outcome;
use limiter_tests::frame::{IPV4, UDP, V4, ethernet, udp};
use limiter_tests::{corpus, generate, kernel::Guard, random::Random};
use limiter_user::datapath::{Datapath as _, Explanation, Way};

const POLICIES: u64 = 50;
/// Of each policy, packets that nobody asks about, and packets somebody does.
const UNASKED: u64 = 60;
const ASKED: u64 = 30;

fn ask(guard: &mut Guard, frame: &[u8]) -> Explanation {
    let packet = parse(frame);
    let [high, low] = destination(frame);
    let address = Ipv6Addr::from(u128::from(high) << 64 | u128::from(low));
    // Test runs come in by the loopback interface.
    let way = Way { interface: Some("lo".to_owned()), destination: Some(address.to_canonical()) };
    guard.datapath().explain(&packet, &way).unwrap().expect("a policy is in force")
}

#[test]
fn the_next_packet_gets_what_was_said() {
    let corpus = corpus::frames();
    // Room for as many slow limits as a policy may have here.
    let mut guard = Guard::with_table("version = 1", 1 << 20);
    generate::PROVEN.iter().for_each(|source| guard.prove(source));
    let mut said: HashMap<Outcome, u64> = HashMap::new();
    for seed in 0..POLICIES {
        let mut random = Random::new(1_000 + seed);
        let text = generate::policy(&mut random, seed / 3);
        guard.publish(&text);
        guard.lift(&generate::BANNED);
        if seed % 3 == 2 {
            for prefix in generate::BANNED {
                let flags = if random.one_in(2) { BAN_LIFELINE } else { 0 };
                let until = if random.one_in(4) { 1 } else { FOREVER };
                guard.ban(&[(prefix, Ban { until, own_until: until, flags, by: 0 })]);
            }
        }
        for _ in 0..UNASKED {
            guard.judge(&generate::frame(&mut random, &corpus));
        }
        for number in 0..ASKED {
            let frame = generate::frame(&mut random, &corpus);
            let first = ask(&mut guard, &frame);
            let explained = ask(&mut guard, &frame);
            assert_eq!(first.ruling, explained.ruling, "seed {seed}, {number}: asking twice changed it");
            let (rule, observing) =
                (guard.rule_name(explained.ruling.rule), guard.rule_name(explained.ruling.observing));
            let expected = (explained.ruling.outcome, rule.to_owned(), observing.to_owned());
            let judged = guard.judge(&frame);
            assert_eq!(
                (judged.outcome, judged.rule, judged.observing),
                expected,
                "seed {seed}, {number}: the packet got something else than was said\n{text}"
            );
            *said.entry(judged.outcome).or_default() += 1;
        }
    }
    assert!(said.values().sum::<u64>() >= 1_000);
    for outcome in [
        Outcome::PassWithin,
        Outcome::PassRule,
        Outcome::PassDefault,
        Outcome::DropOver,
        Outcome::DropRule,
        Outcome::DropBan,
    ] {
        assert!(said.get(&outcome).is_some_and(|times| *times >= 5), "{outcome:?}: {said:?}");
    }
}

/// 3 an hour: what was taken is not given back while the test runs.
const THREE: &str = r#"
    version = 1
    [[rule]]
    name = "few"
    limit = [{ per = "source", rate = "3/h", burst = 3 }]
"#;

#[test]
fn asking_charges_nothing_and_levels_are_told() {
    let mut guard = Guard::with(THREE);
    let frame = ethernet(&[], IPV4, &V4::from("203.0.113.9").packet(UDP, &udp(4000, 53, b"query")));
    for _ in 0..10 {
        let explained = ask(&mut guard, &frame);
        assert_eq!(explained.ruling.outcome, Outcome::PassWithin);
        assert!(explained.limits[0].1.is_none(), "nobody has sent anything: there is no bucket");
    }
    assert_eq!(guard.table().used, 0, "a question claims no bucket");
    for left in (0..3).rev() {
        assert_eq!(guard.judge(&frame).outcome, Outcome::PassWithin);
        let explained = ask(&mut guard, &frame);
        let bucket = explained.limits[0].1.expect("there is a bucket now");
        // A third of an hour is 1200 s: so much of 3600 is spent by each.
        let spent = ((bucket.words[0] >> 1) - explained.now) as f64 / 64e9;
        let expected = 1200.0 * f64::from(3 - left);
        assert!((expected - 60.0..=expected + 1.0).contains(&spent), "{spent} s, {left} left");
        assert_eq!(explained.refused_by.is_some(), left == 0, "{left} left");
    }
    assert_eq!(guard.judge(&frame).outcome, Outcome::DropOver);
}
