//! The panic switch and unconfirmed policies on a real kernel, with the daemon killed.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

// suite: budget=240

mod site;

use std::fs;
use std::time::Duration;

use limiter_tests::clock::wait_for;
use limiter_tests::namespace::{GUARDED, GUARDED_V4, PEER_V4, Pair};
use site::Site;

const PASS: &str = "version = 1\n";
const DROP: &str = r#"version = 1

[[rule]]
name = "ping"
to = ["icmp/echo-request"]
verdict = "drop"
"#;

/// Whether a ping is answered.
fn answers(pair: &Pair) -> bool {
    let mut command = pair.peer.command("ping");
    command.args(["-c", "1", "-W", "1", "-q", GUARDED_V4]).output().unwrap().status.success()
}

fn site(name: &str, pair: &Pair, policy: &str) -> Site {
    let mut site = Site::new(name);
    fs::write(site.path("policy.toml"), policy).unwrap();
    fs::write(site.path("next.toml"), DROP).unwrap();
    site.start(pair, GUARDED);
    site
}

fn run(site: &Site, arguments: &[&str]) {
    let output = site.ctl(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_pause_lets_everything_pass_and_ends_without_the_daemon() {
    let pair = Pair::addressed();
    let mut site = site("pause", &pair, DROP);
    assert!(!answers(&pair));
    run(&site, &["pause", "--for", "1h"]);
    assert!(answers(&pair));
    assert_eq!(site.counts("ping"), (0, 2), "what passes by a pause is counted as what it was judged");
    site.end("-KILL");
    assert!(answers(&pair));
    site.start(&pair, GUARDED);
    assert_eq!(site.json(&["status"])["paused"]["by"], "uid 0");
    run(&site, &["resume"]);
    assert!(!answers(&pair));
    run(&site, &["pause", "--for", "2s"]);
    site.end("-KILL");
    wait_for("the pause to end", Duration::from_secs(60), || (!answers(&pair)).then_some(()));
}

#[test]
fn an_unconfirmed_policy_falls_back_without_the_daemon() {
    let pair = Pair::addressed();
    let mut site = site("confirm", &pair, PASS);
    assert!(answers(&pair));
    let next = site.path("next.toml").display().to_string();
    run(&site, &["set-policy", &next, "--confirm", "3s"]);
    site.end("-KILL");
    wait_for("the policy before to come back", Duration::from_secs(60), || answers(&pair).then_some(()));
    site.start(&pair, GUARDED);
    let status = site.json(&["status"]);
    assert_eq!(status["policy"]["generation"], 1, "{status}");
    assert_eq!(site.json(&["history"])["history"][0]["unconfirmed"], true);
    assert!(answers(&pair));
    // The same with the daemon there, and confirmed.
    run(&site, &["set-policy", &next, "--confirm", "1h"]);
    assert!(!answers(&pair));
    run(&site, &["confirm"]);
    site.end("-KILL");
    site.start(&pair, GUARDED);
    assert_eq!(site.json(&["status"])["policy"]["generation"], 3);
    assert!(!answers(&pair));
    assert!(site.counts("ping").1 > 0);
}

#[test]
fn a_member_of_a_dynamic_set_is_dropped_at_once_and_for_its_time() {
    let pair = Pair::addressed();
    let policy = "version = 1\n[sets]\nsuspects = { dynamic = true, max = 10 }\n[[rule]]\nname = \"ping\"\nfrom = \"suspects\"\nverdict = \"drop\"\n";
    let mut site = site("dynamic", &pair, policy);
    assert!(answers(&pair));
    run(&site, &["add-to", "suspects", PEER_V4, "--for", "1h"]);
    assert!(!answers(&pair));
    site.end("-KILL");
    assert!(!answers(&pair));
    site.start(&pair, GUARDED);
    assert!(!answers(&pair));
    run(&site, &["remove-from", "suspects", PEER_V4]);
    assert!(answers(&pair));
    run(&site, &["add-to", "suspects", PEER_V4, "--for", "1s"]);
    wait_for("the member's end", Duration::from_secs(60), || answers(&pair).then_some(()));
}

#[test]
fn a_scaled_limit_keeps_its_bucket() {
    let pair = Pair::addressed();
    let policy = "version = 1\n[[rule]]\nname = \"ping\"\nto = [\"icmp/echo-request\"]\nlimit = [{ per = \"source\", rate = \"1/m\", burst = 4 }]\n";
    let site = site("scale", &pair, policy);
    assert!(answers(&pair));
    assert!(answers(&pair));
    // Two of four are spent: two minutes. At twice the rate these are four of eight.
    run(&site, &["override", "ping", "--scale", "200%", "--for", "1h"]);
    let passed = (0..10).filter(|_| answers(&pair)).count();
    assert!((4..=5).contains(&passed), "{passed}: nobody fills a bucket anew");
    run(&site, &["override", "ping", "--mode", "off", "--for", "1h"]);
    assert!(answers(&pair));
    run(&site, &["clear-override", "ping"]);
    assert!(!answers(&pair));
}
