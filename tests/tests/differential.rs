//! Random frames under random policies: the kernel and the host, which run the same code on the same tables, say
//! the same of every one, and count the same.
//!
//! Limits refill so slowly that the clocks of the two need not agree to the tick.
// suite: budget=120
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{collections::HashMap, fmt::Write as _};

use limiter_common::{
    abi::{BAN_LIFELINE, Ban, FOREVER},
    parse::parse,
    verdict::{Outcome, Verdict},
};
use limiter_tests::{clock, corpus, generate, host::Host, kernel::Guard, random::Random};
use limiter_user::datapath::interface_names;

const POLICIES: u64 = 60;
const FRAMES: u64 = 2_000;

#[test]
fn kernel_and_host_agree() {
    let corpus = corpus::frames();
    // Room for as many slow limits as a policy may have here.
    let mut guard = Guard::with_table("version = 1", 1 << 20);
    let geometry = guard.geometry();
    let mut host = Host::new(geometry, &[]);
    for source in generate::PROVEN {
        guard.prove(source);
        host.prove(source.parse().expect("an address"));
    }
    // Three policies in a row name their rules alike: those count on, and their limits keep their buckets.
    let mut counted: HashMap<(String, Outcome), (u64, u64)> = HashMap::new();
    let mut offered = 0;
    for seed in 0..POLICIES {
        let mut random = Random::new(seed);
        let text = generate::policy(&mut random, seed / 3);
        guard.publish(&text);
        host.publish(guard.rows(), guard.retired_meters());
        // Test runs come in by the loopback interface.
        let named = interface_names(&guard.tables().places.interface_names);
        host.set_interface(named.iter().position(|name| name == "lo"));
        guard.lift(&generate::BANNED);
        host.lift_bans();
        // Under every third policy some are banned, some of them until a time that is past.
        if seed % 3 == 2 {
            for prefix in generate::BANNED {
                let until = if random.one_in(4) { 1 } else { FOREVER };
                let flags = if random.one_in(2) { BAN_LIFELINE } else { 0 };
                let ban = Ban { until, own_until: until, flags, by: 0 };
                if random.one_in(3) {
                    guard.ban(&[(prefix, ban)]);
                    host.ban(prefix.parse().expect("a prefix"), ban);
                }
            }
        }
        // Every twentieth policy judges the whole table by hand before the random frames.
        let table = if seed % 20 == 0 { corpus.as_slice() } else { &[] };
        let table =
            table.iter().map(|case| case.frame.clone()).filter(|frame| frame.len() >= generate::SHORTEST);
        let frames: Vec<Vec<u8>> =
            table.chain((0..FRAMES).map(|_| generate::frame(&mut random, &corpus))).collect();
        offered += frames.len() as u64;
        for (number, frame) in frames.into_iter().enumerate() {
            host.set_now(clock::coarse_ticks(&geometry));
            let expected = host.judge(guard.tables(), &frame);
            let judged = guard.judge(&frame);
            let rule = guard.rule_name(expected.rule);
            let observing = guard.rule_name(expected.observing);
            assert!(
                (judged.outcome, judged.rule.as_str(), judged.observing.as_str())
                    == (expected.outcome, rule, observing),
                "seed {seed}, frame {number}: the kernel says `{}` {:?}, observed by `{}`; the host `{rule}` {:?}, observed by `{observing}`\nframe {}\n{text}",
                judged.rule,
                judged.outcome,
                judged.observing,
                expected.outcome,
                hex(&frame),
            );
            let bytes = u64::from(parse(frame.as_slice()).length);
            let mut count = |rule: &str, outcome: Outcome| {
                let entry = counted.entry((rule.to_owned(), outcome)).or_default();
                *entry = (entry.0 + 1, entry.1 + bytes);
            };
            count(rule, expected.outcome);
            if expected.observing != 0 {
                count(observing, expected.observed);
            }
        }
    }
    assert_eq!(host.evicted(), guard.table().pressure, "as many live buckets were evicted");
    let mut seen: HashMap<Outcome, u64> = HashMap::new();
    for ((rule, outcome), (packets, bytes)) in &counted {
        let counter = guard.counted(rule, *outcome);
        assert_eq!((counter.packets, counter.bytes), (*packets, *bytes), "`{rule}` {outcome:?}");
        *seen.entry(*outcome).or_default() += packets;
    }
    let totals = guard.totals();
    let judged = totals.iter().filter(|(outcome, _)| outcome.verdict() != Verdict::WouldDrop);
    let total: u64 = judged.map(|(_, counter)| counter.packets).sum();
    assert!(offered >= 100_000, "{offered} frames");
    assert_eq!(total, offered, "passes and drops are the packets seen");
    // The policies and frames are worth something: nearly everything that can be said was said, and often.
    for outcome in [
        Outcome::PassWithin,
        Outcome::PassRule,
        Outcome::PassDefault,
        Outcome::PassNonIp,
        Outcome::PassLink,
        Outcome::PassLinkSpared,
        Outcome::PassMalformed,
        Outcome::DropOver,
        Outcome::DropOversize,
        Outcome::DropPenalty,
        Outcome::DropRule,
        Outcome::DropDefault,
        Outcome::DropMalformed,
        Outcome::DropBan,
        Outcome::DropNewcomer,
        Outcome::WouldDropOver,
        Outcome::WouldDropOversize,
        Outcome::WouldDropRule,
        Outcome::WouldDropNewcomer,
    ] {
        let times = seen.get(&outcome).copied().unwrap_or(0);
        assert!(times >= 50, "{outcome:?} was said {times} times: {seen:?}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes text");
        text
    })
}
