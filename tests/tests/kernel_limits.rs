//! What limits share buckets over, in the program: tables of packets, in the order they come, with verdicts derived by
//! hand. Nothing refills while they do.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{fmt::Write as _, net::Ipv6Addr, time::Duration};

use limiter_common::verdict::{
    Outcome::{self, DropOver, DropOversize, PassDefault, PassWithin},
    Verdict,
};
use limiter_tests::{
    clock,
    frame::{IPV4, IPV6, UDP, V4, V6, ethernet, udp},
    kernel::Guard,
};

/// A UDP packet to a port.
fn packet(source: &str, port: u16) -> Vec<u8> {
    let payload = udp(4000, port, b"query");
    if source.contains(':') {
        ethernet(&[], IPV6, &V6::from(source).packet(UDP, &payload))
    } else {
        ethernet(&[], IPV4, &V4::from(source).packet(UDP, &payload))
    }
}

/// A source that sends some packets to a port, and what becomes of each of them.
type Step<'a> = (&'a str, &'a str, u16, &'a [Outcome]);

fn check(guard: &Guard, steps: &[Step<'_>]) {
    let mut wrong = Vec::new();
    for (what, source, port, expected) in steps {
        let frame = packet(source, *port);
        let found: Vec<Outcome> = expected.iter().map(|_| guard.judge(&frame).outcome).collect();
        if found != *expected {
            wrong.push(format!("{what}, {source}: expected {expected:?}, got {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const IN: Outcome = PassWithin;
const OVER: Outcome = DropOver;

#[test]
fn a_prefix_shares_a_bucket_beside_those_of_its_sources() {
    let guard = Guard::with(
        "version = 1\n[[rule]]\nname = \"both\"\nlimit = [{ per = \"source/24,48\", rate = \"5/15m\", burst = 5 }, \
         { per = \"source\", rate = \"2/15m\", burst = 2 }]\n",
    );
    check(
        &guard,
        &[
            ("two of its own", "192.0.2.1", 1, &[IN, IN, OVER]),
            ("a neighbour, whom that costs nothing", "192.0.2.2", 1, &[IN, IN, OVER]),
            ("the fifth of the /24", "192.0.2.3", 1, &[IN, OVER]),
            ("who had none", "192.0.2.255", 1, &[OVER]),
            ("the next /24", "192.0.3.0", 1, &[IN, IN, OVER]),
            ("the same /24, carried", "::ffff:192.0.2.9", 1, &[OVER]),
            ("the next one, carried", "64:ff9b::192.0.3.9", 1, &[IN, IN]),
            ("a /64 of a /48", "2001:db8:1:1::1", 1, &[IN, IN]),
            ("the same /64", "2001:db8:1:1:ffff::", 1, &[OVER]),
            ("another of the /48", "2001:db8:1:2::", 1, &[IN, IN]),
            ("the fifth of the /48", "2001:db8:1:ffff::", 1, &[IN, OVER]),
            ("the next /48", "2001:db8:2::", 1, &[IN, IN]),
            ("link-local ones are told apart", "fe80::1", 1, &[IN, IN, OVER]),
            ("link-local ones are told apart", "fe80::2", 1, &[IN, IN, OVER]),
            ("link-local ones are told apart", "fe80::3", 1, &[IN, IN, OVER]),
        ],
    );
    // The prefix has a bucket like any other, and what its sources were refused was not charged to it.
    let buckets = guard.buckets();
    let of = |network: &str, width: u8| {
        let network = network.parse::<std::net::IpAddr>().unwrap();
        let found = buckets.iter().find(|bucket| (bucket.network, bucket.width) == (network, width));
        found.map(|bucket| bucket.passed)
    };
    assert_eq!(of("192.0.2.0", 24), Some(5));
    assert_eq!(of("192.0.3.0", 24), Some(4));
    assert_eq!(of("2001:db8:1::", 48), Some(5));
    assert_eq!((of("192.0.2.1", 32), of("2001:db8:2::", 64)), (Some(2), Some(2)));
    // Who was refused by the prefix keeps what is his: one of two.
    assert_eq!(of("192.0.2.3", 32), Some(1));
    assert_eq!(of("192.0.2.255", 32), None);
}

#[test]
fn prefixes_of_several_widths_and_limits_of_one_name() {
    let guard = Guard::with(
        "version = 1\n[limits]\nnet = { per = \"source/16,32\", rate = \"4/15m\", burst = 4 }\n\
         [[rule]]\nname = \"a\"\nto = \"udp/1\"\nlimit = [\"net\"]\n\
         [[rule]]\nname = \"b\"\nto = \"udp/2\"\nlimit = [\"net\", { per = \"source/24,48\", rate = \"2/15m\", burst = 2 }]\n\
         [[rule]]\nname = \"c\"\nto = \"udp/3\"\nmode = \"observe\"\nlimit = [\"net\"]\n",
    );
    check(
        &guard,
        &[
            ("one rule spends", "10.1.0.1", 1, &[IN, IN]),
            ("the other draws from the same, within a narrower one", "10.1.1.1", 2, &[IN]),
            ("what observes has its own", "10.1.1.1", 3, &[PassDefault; 9]),
            ("the last of the /16", "10.1.1.2", 2, &[IN, OVER]),
            ("spent for both", "10.1.9.9", 1, &[OVER]),
            ("the narrower one refuses first", "10.2.1.1", 2, &[IN, IN, OVER]),
            ("so the wider one has two left", "10.2.2.2", 1, &[IN, IN, OVER]),
            ("IPv6", "2001:db8:1::", 2, &[IN, IN, OVER]),
            ("IPv6", "2001:db8:ffff::", 1, &[IN, IN, OVER]),
            ("the next /32", "2001:db9::", 1, &[IN]),
        ],
    );
    assert_eq!(guard.counted("c", Outcome::WouldDropOver).packets, 5);
}

/// Sources that find no bucket share a cell that is as wide as the key of the limit at least.
#[test]
fn a_wide_prefix_in_a_flood_is_one_in_its_crowd_cell_too() {
    // Some 3 300 buckets at once, and fifteen a second more.
    let guard = Guard::with_table(
        "version = 1\n[[rule]]\nname = \"wide\"\nlimit = [{ per = \"source/8,24\", rate = \"1/15m\", burst = 1 }]\n",
        1 << 15,
    );
    let host = |network: u128, rest: u128| Ipv6Addr::from(network << 104 | rest << 96 | 1).to_string();
    for network in 0..8_000 {
        guard.judge(&packet(&host(0x20_0000 + network, 0), 1));
    }
    assert!(guard.counted("wide", Outcome::PassCrowd).packets > 1_000, "the budget of new buckets is spent");
    // 256 networks of /32 in one /24: eight by its cell, and one by a bucket if it came to one.
    let passed = (0..256)
        .filter(|rest| guard.judge(&packet(&host(0x2a_0000, *rest), 1)).outcome.verdict() == Verdict::Pass);
    let passed = passed.count();
    assert!((1..=9).contains(&passed), "{passed} of 256");
}

#[test]
fn a_rule_has_one_bucket_for_everybody() {
    let guard = Guard::with(
        "version = 1\n[[rule]]\nname = \"all\"\nlimit = [{ per = \"rule\", rate = \"4/15m\", burst = 4 }, \
         { per = \"source\", rate = \"2/15m\", burst = 2 }]\n",
    );
    check(
        &guard,
        &[
            ("two of its own", "192.0.2.1", 1, &[IN, IN, OVER]),
            ("which cost the rule no more", "192.0.2.2", 2, &[IN]),
            ("the last of the rule", "2001:db8::1", 3, &[IN, OVER]),
            ("anybody else", "198.51.100.1", 4, &[OVER]),
            ("carried", "::ffff:192.0.2.2", 5, &[OVER]),
        ],
    );
    // What the rule refused was charged to no source.
    let sources: Vec<u64> = guard.buckets().iter().map(|bucket| bucket.passed).collect();
    assert_eq!((sources.len(), sources.iter().sum::<u64>()), (3, 4));
}

#[test]
fn rules_share_a_bucket_by_the_name_of_a_limit() {
    let guard = Guard::with(
        "version = 1\n[limits]\nall = { per = \"rule\", rate = \"5/15m\", burst = 5 }\n\
         [[rule]]\nname = \"trial\"\nto = \"udp/1\"\nmode = \"observe\"\nlimit = [\"all\"]\n\
         [[rule]]\nname = \"a\"\nto = \"udp/1\"\nlimit = [\"all\"]\n\
         [[rule]]\nname = \"b\"\nto = \"udp/2\"\nlimit = [\"all\", { per = \"rule\", rate = \"200 B/15m\", burst = \"200 B\" }]\n\
         [[rule]]\nname = \"c\"\nto = \"udp/3\"\nlimit = [{ per = \"rule\", rate = \"3/15m\", burst = 3 }]\n",
    );
    let long = ethernet(&[], IPV4, &V4::from("192.0.2.9").packet(UDP, &udp(4000, 2, &[0; 173])));
    assert_eq!(guard.judge(&long).outcome, DropOversize, "201 bytes");
    check(
        &guard,
        &[
            ("one rule", "192.0.2.1", 1, &[IN, IN]),
            // 33 bytes each.
            ("the other rule, within its bytes", "192.0.2.1", 2, &[IN, IN, IN, OVER]),
            ("the first again", "192.0.2.3", 1, &[OVER]),
            ("a rule of its own", "192.0.2.3", 3, &[IN, IN, IN, OVER]),
            ("no rule", "192.0.2.3", 4, &[PassDefault]),
        ],
    );
    assert_eq!(guard.counted("trial", Outcome::WouldDropOver).packets, 0);
    check(&guard, &[("what observes has its own", "192.0.2.4", 1, &[OVER, OVER, OVER])]);
    assert_eq!(guard.counted("trial", Outcome::WouldDropOver).packets, 1);
}

/// One packet for each of two hundred rules.
fn one_each(family: &str) -> String {
    let mut text = "version = 1\n".to_owned();
    for rule in 1..=200 {
        write!(
            text,
            "[[rule]]\nname = \"{family}-{rule}\"\nto = \"udp/{rule}\"\nlimit = [{{ per = \"rule\", rate = \"1/15m\", burst = 1 }}]\n"
        )
        .unwrap();
    }
    text
}

#[test]
fn a_bucket_is_not_inherited_by_another_rule() {
    let mut guard = Guard::with(&one_each("first"));
    let all = || (1..=200).map(|port| ("each rule", "192.0.2.1", port, &[IN, OVER] as &[Outcome]));
    check(&guard, &all().collect::<Vec<_>>());
    // There are 256 places: most of these were those of the first family.
    guard.publish(&one_each("second"));
    assert_eq!(guard.retired_meters().len(), 144);
    check(&guard, &all().collect::<Vec<_>>());
    // Who comes back before his place was needed finds it as he left it.
    guard.publish("version = 1");
    guard.publish(&one_each("second"));
    check(&guard, &[("as before", "192.0.2.1", 200, &[OVER]), ("as before", "192.0.2.1", 1, &[OVER])]);
}

#[test]
fn a_rules_bucket_outlives_a_change_of_its_numbers() {
    let policy = |rate: &str, burst: u32| {
        format!(
            "version = 1\n[[rule]]\nname = \"all\"\nlimit = [{{ per = \"rule\", rate = \"{rate}\", burst = {burst} }}]\n"
        )
    };
    let mut guard = Guard::with(&policy("1/15m", 1));
    check(&guard, &[("all there is", "192.0.2.1", 1, &[IN, OVER])]);
    // Twice as fast, with twice the burst: a quarter of an hour was spent, and that is still all of it.
    guard.publish(&policy("2/15m", 2));
    check(&guard, &[("no fresh burst", "192.0.2.1", 1, &[OVER])]);
    // Under numbers of a second it is not refused for the quarter of an hour that the old ones said.
    guard.publish(&policy("100/s", 100));
    let frame = packet("192.0.2.1", 1);
    clock::wait_for("room again", Duration::from_secs(30), || {
        (guard.judge(&frame).outcome == PassWithin).then_some(())
    });
}
