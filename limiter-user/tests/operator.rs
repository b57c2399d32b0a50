//! What an operator does by hand at night, on a datapath in memory: every change holds over restarts, and ends.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use std::time::Duration;

use host::{Host, policy, strings};
use serde_json::json;

/// Lets the kernel's clock pass, and the daemon notice.
fn pass(host: &Host, seconds: u64) {
    host.twin.state().now += seconds * 64_000_000_000;
    host.daemon.as_ref().unwrap().tick();
}

fn rate_in_force(host: &Host) -> u32 {
    (1..=200).find(|rate| host.in_force() == policy(*rate)).unwrap()
}

#[test]
fn a_pause_holds_over_restart_and_reboot_and_ends_by_itself() {
    let mut host = Host::started(&["eth0"], &policy(50));
    assert_eq!(host.status()["paused"], json!(null));
    let (code, answer) = host.request("POST", "/v1/pause", "", br#"{"for_s": 3600}"#);
    assert_eq!((code, &answer["paused"]["by"]), (200, &json!("uid 0")));
    assert_eq!(host.twin.state().paused_until, 3600 * 64_000_000_000);
    let status = host.status();
    assert_eq!((&status["degraded"], &status["paused"]["left_s"]), (&json!(false), &json!(3600)));
    assert!(strings(&status["warnings"])[0].starts_with("paused by uid 0 until "), "{status}");
    host.restart();
    assert_eq!(host.status()["paused"]["by"], "uid 0");
    host.reboot();
    let left = host.status()["paused"]["left_s"].as_u64().unwrap();
    assert!((3000..=3600).contains(&left), "{left}");
    pass(&host, 3601);
    assert_eq!(host.status()["paused"], json!(null));
    host.reboot();
    assert_eq!(host.status()["paused"], json!(null), "what is over does not come back");
}

#[test]
fn resume_ends_a_pause() {
    let mut host = Host::started(&["eth0"], &policy(50));
    assert_eq!(host.post("/v1/pause").1["paused"]["left_s"], 900, "a quarter of an hour unless it is said");
    assert_eq!(host.post("/v1/resume").1["was_paused"], true);
    assert_eq!(host.post("/v1/resume").1["was_paused"], false);
    assert_eq!(host.status()["paused"], json!(null));
    host.reboot();
    assert_eq!(host.status()["paused"], json!(null));
    assert_eq!(host.request("POST", "/v1/pause", "", br#"{"for_s": 0}"#).0, 409);
    assert_eq!(host.request("POST", "/v1/pause", "", br#"{"fro_s": 1}"#).0, 400);
}

#[test]
fn a_policy_that_is_confirmed_stays() {
    let mut host = Host::started(&["eth0"], &policy(50));
    let (code, answer) = host.put_policy("?confirm=60s", &policy(60));
    assert_eq!((code, &answer["applied"]), (200, &json!(true)));
    assert!(answer["confirm_until"].is_string());
    assert_eq!(host.status()["pending_confirm"]["generation"], 2);
    host.restart();
    assert_eq!(host.status()["pending_confirm"]["by"], "uid 0", "a restart decides nothing");
    assert_eq!(host.post("/v1/policy/confirm").1["generation"], 2);
    assert_eq!(host.post("/v1/policy/confirm").0, 404);
    pass(&host, 61);
    assert_eq!(rate_in_force(&host), 60);
    assert_eq!(host.status()["pending_confirm"], json!(null));
    host.reboot();
    assert_eq!(rate_in_force(&host), 60);
}

#[test]
fn a_policy_that_is_not_confirmed_falls_back() {
    let mut host = Host::started(&["eth0"], &policy(50));
    host.put_policy("?confirm=60s", &policy(60));
    pass(&host, 59);
    assert_eq!(rate_in_force(&host), 60);
    pass(&host, 1);
    assert_eq!(rate_in_force(&host), 50);
    let status = host.status();
    assert_eq!(status["policy"]["generation"], 1);
    assert_eq!(status["degraded"], false);
    assert_eq!(
        strings(&status["warnings"]),
        ["generation 2, set by uid 0, was not confirmed in time: the policy before it is in force"]
    );
    assert_eq!(host.post("/v1/policy/confirm").0, 404);
    let history = host.get("/v1/history");
    assert_eq!(history["history"][0]["unconfirmed"], true);
    assert_eq!(history["history"][1]["in_force"], true);
    // The next policy is a new generation, and what fell back is nothing to go back to.
    assert_eq!(host.put_policy("", &policy(70)).1["generation"], 3);
    assert_eq!(host.post("/v1/policy/rollback").0, 200);
    assert_eq!(rate_in_force(&host), 50);
    host.reboot();
    assert_eq!(rate_in_force(&host), 50);
}

#[test]
fn what_falls_back_while_no_daemon_runs_is_noticed_by_the_next() {
    let mut host = Host::started(&["eth0"], &policy(50));
    // As an operator does it: the file first, then with care.
    host.write_policy(&policy(60));
    host.put_policy("?confirm=60s", &policy(60));
    host.stop();
    host.twin.state().now += 61 * 64_000_000_000;
    host.start();
    assert_eq!(rate_in_force(&host), 50, "the file that was tried is not applied again by a start");
    assert_eq!(host.get("/v1/history")["history"][0]["unconfirmed"], true);
    assert!(
        strings(&host.status()["warnings"])[0].starts_with("generation 2, set by uid 0, was not confirmed")
    );
    assert_eq!(host.post("/v1/reload").1["applied"], true);
    assert_eq!(rate_in_force(&host), 60, "but by whoever asks for it");
}

#[test]
fn a_reboot_does_not_confirm() {
    let mut host = Host::started(&["eth0"], &policy(50));
    host.write_policy(&policy(60));
    host.put_policy("?confirm=1h", &policy(60));
    host.reboot();
    assert_eq!(rate_in_force(&host), 50);
    assert_eq!(host.status()["pending_confirm"], json!(null));
}

#[test]
fn while_a_policy_waits_no_other_is_applied() {
    let host = Host::started(&["eth0"], &policy(50));
    host.put_policy("?confirm=60s", &policy(60));
    for text in [policy(60), policy(70)] {
        let (code, answer) = host.put_policy("", &text);
        assert_eq!(code, 409);
        let error = answer["error"].as_str().unwrap();
        assert!(error.starts_with("generation 2, set by uid 0, waits to be confirmed until 20"), "{error}");
    }
    assert_eq!(host.post("/v1/reload").0, 409);
    assert_eq!(host.status()["degraded"], false, "a refused reload is no trouble with the file");
    assert_eq!(host.put_policy("?dry-run", &policy(70)).0, 200);
    assert_eq!(host.put_policy("?confirm=soon", &policy(70)).0, 400);
    // Going back need not be waited for.
    assert_eq!(host.post("/v1/policy/rollback").1["generation"], 1);
    assert_eq!(rate_in_force(&host), 50);
    assert_eq!(host.put_policy("", &policy(70)).0, 200);
}

#[test]
fn the_places_of_counters_outlive_a_fall_back() {
    let host = Host::started(&["eth0"], &policy(50));
    let other = policy(50).replace("\"web\"", "\"other\"");
    host.put_policy("?confirm=60s", &other);
    pass(&host, 61);
    let slots = |host: &Host| {
        host.daemon.as_ref().unwrap().core().in_force.as_ref().unwrap().sealed.slots.rules.clone()
    };
    let slots = slots(&host);
    assert_ne!(slots["web"], slots["other"], "what `other` counted is not counted to somebody else");
}

#[test]
fn a_lost_state_directory_does_not_confirm() {
    let mut host = Host::started(&["eth0"], &policy(50));
    host.put_policy("?confirm=60s", &policy(60));
    host.stop();
    std::fs::remove_dir_all(&host.settings.state).unwrap();
    host.start();
    assert_eq!(host.status()["pending_confirm"]["by"], "uid 0");
    pass(&host, Duration::from_secs(61).as_secs());
    assert_eq!(rate_in_force(&host), 50);
}
