//! `set-policy --observe` on a real limiterd that guards a veth pair: the policy in force decides alone, the other is judged
//! on every packet and compared, and nothing of it is left when it ends, however it ends.
// suite: budget=120
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests

mod site;

use std::fs;
use std::time::Duration;

use limiter_tests::clock::wait_for;
use limiter_tests::frame::{ACK, IPV4, TCP, UDP, V4, ethernet, tcp, udp};
use limiter_tests::namespace::{GUARDED, Pair};
use limiter_tests::wire::Wire;
use serde_json::{Value, json};
use site::{Site, program};

const PATIENCE: Duration = Duration::from_secs(60);

const POLICY: &str = r#"version = 1
[sets]
suspects = { dynamic = true, max = 10 }
[[rule]]
name = "closed"
to = "tcp/23"
verdict = "drop"
[[rule]]
name = "dns"
to = "udp/53"
limit = [{ per = "source", rate = "1/m", burst = 2 }]
"#;

/// A burst of one instead of two, telnet open, a port closed, a way past bans, and a use for the set.
const NEXT: &str = r#"version = 1
[sets]
suspects = { dynamic = true, max = 10 }
[[rule]]
name = "lifeline"
to = "tcp/22"
before = "bans"
verdict = "pass"
[[rule]]
name = "suspects"
from = "suspects"
verdict = "drop"
[[rule]]
name = "trial"
to = "udp/7000"
verdict = "drop"
[[rule]]
name = "dns"
to = "udp/53"
limit = [{ per = "source", rate = "1/m", burst = 1 }]
"#;

fn started(name: &str) -> (Pair, Site, String) {
    let pair = Pair::silent();
    let mut site = Site::new(name);
    fs::write(site.path("policy.toml"), POLICY).unwrap();
    fs::write(site.path("next.toml"), NEXT).unwrap();
    site.start(&pair, GUARDED);
    let next = site.path("next.toml").display().to_string();
    (pair, site, next)
}

fn run(site: &Site, arguments: &[&str]) -> String {
    let output = site.ctl(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn dns(source: &str) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from(source).packet(UDP, &udp(4321, 53, b"query")))
}

fn telnet(source: &str) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from(source).packet(TCP, &tcp(1000, 23, ACK)))
}

fn ssh(source: &str) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from(source).packet(TCP, &tcp(1000, 22, ACK)))
}

fn trial(source: &str) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from(source).packet(UDP, &udp(1, 7000, b"")))
}

/// Which of the frames passed.
fn passed(wire: &mut Wire, frames: &[Vec<u8>]) -> Vec<usize> {
    let passed = wire.pass(frames);
    let mut free: Vec<Option<&Vec<u8>>> = frames.iter().map(Some).collect();
    let mut place = |frame: &Vec<u8>| {
        let at = free.iter().position(|sent| *sent == Some(frame)).expect("a frame that was sent");
        free[at] = None;
        at
    };
    passed.iter().map(&mut place).collect()
}

/// By rule: still passed, newly dropped, newly passed, still dropped, in packets; first of all of them.
fn compared(observed: &Value) -> Vec<(String, [u64; 4])> {
    let amounts = |found: &Value| {
        ["still_passed", "newly_dropped", "newly_passed", "still_dropped"]
            .map(|name| found[name]["packets"].as_u64().unwrap())
    };
    let mut all = vec![("all".to_owned(), amounts(&observed["all"]))];
    let rules = observed["rules"].as_array().unwrap().iter();
    all.extend(rules.map(|found| (found["rule"].as_str().unwrap().to_owned(), amounts(found))));
    all[1..].sort();
    all
}

fn expect(site: &Site, expected: &[(&str, [u64; 4])]) {
    let observed = site.json(&["observed"]);
    let expected: Vec<_> = expected.iter().map(|(rule, amounts)| ((*rule).to_owned(), *amounts)).collect();
    assert_eq!(compared(&observed), expected, "{observed}");
}

#[test]
fn one_decides_and_the_other_is_compared() {
    let (pair, site, next) = started("observe-compared");
    let own = program(&pair);
    run(&site, &["ban", "203.0.113.50", "--for", "1h"]);
    let said = run(&site, &["set-policy", &next, "--observe"]);
    assert!(said.contains("the policy in force goes on deciding"), "{said}");
    assert_ne!(program(&pair), own);

    let frames = [
        dns("203.0.113.9"),
        dns("203.0.113.9"),
        dns("203.0.113.9"),
        telnet("203.0.113.9"),
        trial("203.0.113.9"),
        // Banned: one has a way past bans, the other has not.
        ssh("203.0.113.50"),
        dns("203.0.113.50"),
        ssh("203.0.113.9"),
    ];
    let mut wire = Wire::open(&pair);
    // By the policy in force: two queries, the trial, and ssh of who is not banned.
    assert_eq!(passed(&mut wire, &frames), [0, 1, 4, 7]);
    expect(
        &site,
        &[
            ("all", [3, 2, 2, 2]),
            // Telnet would pass; a query of who is banned is dropped by both; what ends a run on the wire is no IP.
            ("", [1, 0, 1, 1]),
            ("dns", [1, 1, 0, 1]),
            ("lifeline", [1, 0, 1, 0]),
            ("trial", [0, 1, 0, 0]),
        ],
    );
    // What is counted and charged is the one in force, alone.
    assert_eq!((site.counts("dns"), site.counts("closed")), ((2, 1), (0, 1)));
    assert_eq!(site.counts("trial"), (0, 0));

    // Members of sets come and go for both.
    run(&site, &["add-to", "suspects", "203.0.113.9", "--for", "1h"]);
    assert_eq!(passed(&mut wire, &[trial("203.0.113.9")]), [0]);
    run(&site, &["unban", "203.0.113.50"]);
    assert_eq!(passed(&mut wire, &[telnet("203.0.113.50"), ssh("203.0.113.50")]), [1]);
    let expected = [
        ("all", [6, 3, 3, 2]),
        ("", [3, 0, 2, 1]),
        ("dns", [1, 1, 0, 1]),
        ("lifeline", [2, 0, 1, 0]),
        ("suspects", [0, 1, 0, 0]),
        ("trial", [0, 1, 0, 0]),
    ];
    expect(&site, &expected);

    let text = run(&site, &["observed", "--stop"]);
    assert!(text.contains("was observed for") && text.contains("ended by uid 0"), "{text}");
    assert!(
        text.contains("of 14 packets it would drop 3 that passed, and pass 3 that were dropped"),
        "{text}"
    );
    assert_eq!(program(&pair), own);
    assert!(!site.pin.join("shadow").exists() && !site.pin.join("decided").exists());
    // What it found stays, and the bucket is as it was: two of two spent.
    assert_eq!(passed(&mut wire, &[dns("203.0.113.9"), dns("203.0.113.10")]), [1]);
    expect(&site, &expected);
    let again = site.ctl(&["observed", "--stop"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8(again.stderr).unwrap().starts_with("error: no policy is observed\n"));
}

#[test]
fn an_observation_ends_with_its_time_and_with_another_policy() {
    let (pair, site, next) = started("observe-ends");
    let own = program(&pair);
    let ended = |why: &str| {
        wait_for(why, PATIENCE, || {
            let observed = site.json(&["observed"]);
            observed["ended"].as_str().is_some_and(|ended| ended == why).then_some(())
        });
        assert_eq!(program(&pair), own);
    };
    run(&site, &["set-policy", &next, "--observe", "--for", "1s"]);
    ended("its time is over");
    run(&site, &["set-policy", &next, "--observe", "--for", "1h"]);
    // It guards what comes meanwhile too, and a trace for its time.
    run(&site, &["attach", "lo", "--mode", "generic"]);
    run(&site, &["trace", "203.0.113.9", "--for", "1s"]);
    assert_ne!(program(&pair), own);
    let mut wire = Wire::open(&pair);
    assert_eq!(passed(&mut wire, &[trial("203.0.113.9")]), [0]);
    expect(&site, &[("all", [1, 1, 0, 0]), ("", [1, 0, 0, 0]), ("trial", [0, 1, 0, 0])]);
    // Every 32nd drop of a CPU tells of its source: of 69 that are dropped at least one does.
    passed(&mut wire, &vec![dns("203.0.113.77"); 70]);
    let worst = &site.json(&["observed"])["sources"][0];
    assert_eq!((&worst["source"], &worst["rule"]), (&json!("203.0.113.77"), &json!("dns")));
    let found = site.json(&["observed"])["all"].clone();
    // Put in force it decides, and there is nothing to compare it with.
    run(&site, &["set-policy", &next]);
    ended("another policy was put in force");
    assert_eq!(passed(&mut wire, &[trial("203.0.113.9")]), [0; 0]);
    assert_eq!(site.json(&["observed"])["all"], found);
}

#[test]
fn with_the_daemon_the_observation_ends_and_the_guard_stays() {
    let (pair, mut site, next) = started("observe-killed");
    let own = program(&pair);
    run(&site, &["set-policy", &next, "--observe"]);
    let observing = program(&pair);
    site.end("-KILL");
    let mut wire = Wire::open(&pair);
    let frames = [dns("203.0.113.9"), dns("203.0.113.9"), dns("203.0.113.9"), telnet("203.0.113.9")];
    assert_eq!(passed(&mut wire, &frames), [0, 1]);
    assert_eq!(program(&pair), observing);
    site.start(&pair, GUARDED);
    assert_eq!(passed(&mut wire, &[dns("203.0.113.9"), trial("203.0.113.9")]), [1]);
    assert!(![own, observing].contains(&program(&pair)), "a daemon that starts puts its own program there");
    assert!(!site.pin.join("shadow").exists() && !site.pin.join("decided").exists());
    assert_eq!(site.ctl(&["observed"]).status.code(), Some(1));
    assert_eq!((site.counts("dns"), site.counts("closed")), ((2, 2), (0, 1)));
    // Told to end, it leaves the program that only guards.
    let own = program(&pair);
    run(&site, &["set-policy", &next, "--observe"]);
    site.end("-TERM");
    assert_eq!(program(&pair), own);
}

#[test]
fn what_cannot_be_observed_is_refused_with_a_sentence() {
    let (pair, site, next) = started("observe-refused");
    let own = program(&pair);
    fs::write(site.path("bad.toml"), "version = 1\n[[rule]]\nname = \"x\"\n").unwrap();
    let bad = site.path("bad.toml").display().to_string();
    for (arguments, code, says) in [
        (vec!["observed"], 1, "no policy is observed"),
        (vec!["set-policy", &bad, "--observe"], 2, "has a mistake"),
        (vec!["set-policy", &next, "--observe", "--confirm", "1m"], 2, "cannot be used with"),
        (vec!["set-policy", &next, "--observe", "--dry-run"], 2, "cannot be used with"),
        (vec!["set-policy", &next, "--for", "1m"], 2, "--observe"),
        (vec!["set-policy", &next, "--observe", "--for", "8d"], 1, "a time from one second to seven days"),
    ] {
        let output = site.ctl(&arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
    assert_eq!(program(&pair), own);
    run(&site, &["detach", GUARDED]);
    let output = site.ctl(&["set-policy", &next, "--observe"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("no interface is guarded"));
}
