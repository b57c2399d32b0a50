//! The panic switch and unconfirmed policies on a real kernel, with the daemon killed.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

// suite: budget=240

mod site;

use std::fs;
use std::time::Duration;

use limiter_tests::clock::wait_for;
use limiter_tests::namespace::{GUARDED, GUARDED_V4, Pair};
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
