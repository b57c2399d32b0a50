//! The daemon on a datapath in memory: which policy is in force, and what it says of it.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use std::fs;
use std::os::unix::fs::symlink;

use host::{BAD, Host, bundle, eventually, policy, strings};
use serde_json::json;

#[test]
fn a_first_start_applies_the_file_and_guards() {
    let host = Host::started(&["eth0", "eth1"], &policy(50));
    let status = host.status();
    assert_eq!(status["degraded"], false);
    assert_eq!(status["policy"]["generation"], 1);
    assert_eq!(status["policy"]["rules"], 1);
    assert_eq!(status["policy"]["drift"], json!(null));
    assert_eq!(status["interfaces"][0]["name"], "eth0");
    assert_eq!(status["interfaces"][1]["mode"], "native");
    assert_eq!(host.twin.state().header.unwrap().generation, 1);
    assert_eq!(host.in_force(), policy(50));
}

#[test]
fn a_policy_set_by_hand_outlives_restarts_and_reboots_until_reload() {
    let mut host = Host::started(&["eth0"], &policy(50));
    let (code, answer) = host.put_policy("", &policy(60));
    assert_eq!((code, &answer["applied"], &answer["generation"]), (200, &json!(true), &json!(2)));
    host.restart();
    assert_eq!(host.in_force(), policy(60));
    assert_eq!(host.twin.state().published, 2, "a restart publishes nothing");
    assert_eq!(host.status()["policy"]["drift"], "set by uid 0, not from the file");
    assert_eq!(host.status()["degraded"], false, "drift is no degradation");
    host.reboot();
    assert_eq!(host.in_force(), policy(60));
    assert_eq!(host.status()["policy"]["generation"], 2);
    assert_eq!(host.twin.state().published, 1);
    assert_eq!(host.post("/v1/reload").1["applied"], true);
    assert_eq!(host.in_force(), policy(50));
    assert_eq!(host.status()["policy"]["drift"], json!(null));
}

#[test]
fn a_file_that_changed_while_the_daemon_was_away_is_applied() {
    let mut host = Host::started(&["eth0"], &policy(50));
    host.put_policy("", &policy(60));
    host.stop();
    host.write_policy(&policy(70));
    host.start();
    assert_eq!(host.in_force(), policy(70));
    assert_eq!(host.status()["policy"]["applied_by"], "file at start");
}

#[test]
fn a_file_that_was_set_by_hand_is_not_applied_again_over_what_followed() {
    let mut host = Host::started(&["eth0"], &policy(50));
    host.write_policy(&policy(60));
    assert_eq!(host.put_policy("", &policy(60)).0, 200);
    assert_eq!(host.put_policy("", &policy(70)).0, 200);
    host.restart();
    assert_eq!(host.in_force(), policy(70));
}

#[test]
fn a_bad_policy_changes_nothing() {
    let host = Host::started(&["eth0"], &policy(50));
    let (code, answer) = host.put_policy("", BAD);
    assert_eq!(code, 422);
    let lines: Vec<u64> = answer["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| found["line"].as_u64().unwrap())
        .collect();
    assert!(lines.contains(&4), "{answer}");
    assert_eq!(host.in_force(), policy(50));
    assert_eq!(host.twin.state().published, 1);
    assert_eq!(host.status()["degraded"], false, "a refused set-policy is no degradation");
}

#[test]
fn a_start_with_a_bad_file_enforces_the_last_good_policy() {
    let mut host = Host::started(&["eth0"], &policy(50));
    host.stop();
    host.write_policy(BAD);
    host.start();
    assert_eq!(host.in_force(), policy(50));
    let status = host.status();
    assert_eq!(status["degraded"], true);
    let problems = strings(&status["problems"]);
    assert!(problems[0].starts_with("the policy file was not applied: `policy.toml` has"), "{problems:?}");
    host.reboot();
    assert_eq!(host.in_force(), policy(50));
    assert_eq!(host.status()["degraded"], true);
    host.write_policy(&policy(50));
    assert_eq!(host.post("/v1/reload").0, 200);
    assert_eq!(host.status()["degraded"], false);
}

#[test]
fn a_missing_file_at_start_is_told_and_the_policy_stays() {
    let mut host = Host::started(&["eth0"], &policy(50));
    host.stop();
    fs::remove_file(&host.settings.policy).unwrap();
    host.start();
    assert_eq!(host.in_force(), policy(50));
    assert_eq!(host.status()["degraded"], true);
}

#[test]
fn without_any_policy_everything_passes_and_status_says_so() {
    let host = Host::started(&["eth0"], BAD);
    let status = host.status();
    assert_eq!(status["degraded"], true);
    assert!(strings(&status["problems"]).contains(&"no policy is in force: everything passes".to_owned()));
    assert_eq!(status["interfaces"][0]["name"], "eth0", "it is guarded all the same");
    assert_eq!(host.put_policy("", &policy(5)).0, 200);
    let problems = strings(&host.status()["problems"]);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("the policy file was not applied"));
}

#[test]
fn a_bad_reload_keeps_the_policy_and_degrades() {
    let host = Host::started(&["eth0"], &policy(50));
    host.write_policy(BAD);
    let (code, answer) = host.post("/v1/reload");
    assert_eq!(code, 422, "{answer}");
    assert_eq!(host.in_force(), policy(50));
    assert_eq!(host.status()["degraded"], true);
}

#[test]
fn setting_what_is_in_force_changes_nothing() {
    let host = Host::started(&["eth0"], &policy(50));
    let (code, answer) = host.put_policy("", &policy(50));
    assert_eq!(code, 200);
    assert_eq!((&answer["applied"], &answer["unchanged"]), (&json!(false), &json!(true)));
    assert_eq!(host.twin.state().published, 1);
}

#[test]
fn a_dry_run_tells_and_changes_nothing() {
    let host = Host::started(&["eth0"], &policy(50));
    let (code, answer) = host.put_policy("?dry-run", &policy(60));
    assert_eq!((code, &answer["applied"]), (200, &json!(false)));
    assert_eq!(answer["changes"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!(host.in_force(), policy(50));
}

#[test]
fn rollbacks_walk_back() {
    let mut host = Host::started(&["eth0"], &policy(1));
    host.put_policy("", &policy(2));
    host.put_policy("", &policy(3));
    assert_eq!(host.post("/v1/policy/rollback").0, 200);
    assert_eq!(host.in_force(), policy(2));
    host.restart();
    assert_eq!(host.post("/v1/policy/rollback").0, 200);
    assert_eq!(host.in_force(), policy(1));
    let (code, answer) = host.post("/v1/policy/rollback");
    assert_eq!((code, &answer["error"]), (404, &json!("there is no earlier policy to go back to")));
    // What was set after a rollback rolls back to what that had brought back, then to before it.
    host.put_policy("", &policy(4));
    host.post("/v1/policy/rollback");
    assert_eq!(host.in_force(), policy(1));
    assert_eq!(host.post("/v1/policy/rollback").0, 404);
    let history = host.get("/v1/history");
    let generations: Vec<u64> = history["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["generation"].as_u64().unwrap())
        .collect();
    assert_eq!(generations, [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(history["history"][0]["in_force"], true);
    assert_eq!(history["history"][0]["restores"], 5);
}

#[test]
fn if_match_guards_against_a_policy_changed_meanwhile() {
    let host = Host::started(&["eth0"], &policy(50));
    let hash = host.get("/v1/policy")["hash"].as_str().unwrap().to_owned();
    let put = |hash: &str, rate| {
        let headers = format!("if-match: \"{hash}\"\r\n");
        host.request("PUT", "/v1/policy", &headers, bundle(&policy(rate)).to_string().as_bytes()).0
    };
    assert_eq!(put(&hash, 60), 200);
    assert_eq!(put(&hash, 70), 412);
    assert_eq!(host.in_force(), policy(60));
}

#[test]
fn a_state_directory_that_cannot_be_written_is_a_warning() {
    let mut host = Host::new(&["eth0"], &policy(50));
    fs::write(&host.settings.state, "a file in its place").unwrap();
    host.start();
    assert_eq!(host.put_policy("", &policy(60)).0, 200);
    assert_eq!(host.in_force(), policy(60));
    let status = host.status();
    assert_eq!(status["degraded"], false);
    assert!(
        strings(&status["warnings"]).iter().any(|warning| warning.starts_with("cannot write")),
        "{status}"
    );
    assert_eq!(host.post("/v1/policy/rollback").0, 200);
    assert_eq!(host.in_force(), policy(50));
    host.restart();
    assert_eq!(host.in_force(), policy(50), "the kernel keeps what the disk cannot");
}

#[test]
fn a_kernel_that_refuses_leaves_the_old_policy() {
    let host = Host::started(&["eth0"], &policy(50));
    host.twin.state().refuse_publish = Some("out of memory".to_owned());
    let (code, answer) = host.put_policy("", &policy(60));
    assert_eq!(
        (code, &answer["error"]),
        (500, &json!("the kernel refused the packet program: out of memory"))
    );
    assert_eq!(host.in_force(), policy(50));
    assert_eq!(host.put_policy("", &policy(60)).0, 200);
}

#[test]
fn a_set_file_that_shrank_by_more_than_half_needs_force() {
    let mut host = Host::new(&["eth0"], "");
    let text = "version = 1\n[sets]\nbad = { file = \"bad.txt\" }\n[[rule]]\nname = \"bad\"\nfrom = \"bad\"\nverdict = \"drop\"\n";
    let list = |count: u32| (0..count).map(|n| format!("198.51.{n}.0/24\n")).collect::<String>();
    host.write_policy(text);
    fs::write(host.path("bad.txt"), list(10)).unwrap();
    host.start();
    assert_eq!(host.status()["degraded"], false, "{}", host.status());
    let put = |query: &str, count| {
        let body = json!({"policy": "policy.toml", "files": {"policy.toml": text, "bad.txt": list(count)}});
        host.request("PUT", &format!("/v1/policy{query}"), "", body.to_string().as_bytes())
    };
    let (code, answer) = put("", 4);
    assert_eq!(code, 409, "{answer}");
    assert!(answer["hint"].as_str().unwrap().contains("--force"));
    assert_eq!(put("", 5).0, 200);
    assert_eq!(put("?force", 1).0, 200);
    assert_eq!(host.post("/v1/policy/rollback").0, 200);
}

#[test]
fn a_changed_file_is_applied_by_itself_where_that_is_asked_for() {
    let mut host = Host::new(&["eth0"], &policy(50));
    // As a ConfigMap does it: a link to a directory is replaced, the file itself is not written.
    let (one, two) = (host.path("one"), host.path("two"));
    for (directory, rate) in [(&one, 50), (&two, 60)] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("policy.toml"), policy(rate)).unwrap();
    }
    let current = host.path("current");
    symlink(&one, &current).unwrap();
    host.settings.policy = current.join("policy.toml");
    host.start();
    let daemon = host.daemon.clone().unwrap();
    let mut seen = None;
    daemon.reload_if_changed(&mut seen);
    assert_eq!(host.twin.state().published, 1);
    symlink(&two, host.path("next")).unwrap();
    fs::rename(host.path("next"), &current).unwrap();
    daemon.reload_if_changed(&mut seen);
    assert_eq!(host.in_force(), policy(60));
    // A bad one is tried once, and a file that is gone for a moment is no reason to say anything.
    fs::write(two.join("policy.toml"), BAD).unwrap();
    daemon.reload_if_changed(&mut seen);
    assert_eq!(host.status()["degraded"], true);
    fs::remove_file(two.join("policy.toml")).unwrap();
    daemon.reload_if_changed(&mut seen);
    assert_eq!(host.in_force(), policy(60));
    fs::write(two.join("policy.toml"), policy(70)).unwrap();
    daemon.reload_if_changed(&mut seen);
    assert_eq!(host.in_force(), policy(70));
    assert_eq!(host.status()["degraded"], false);
}

#[test]
fn two_writers_end_in_one_whole_policy() {
    let host = Host::started(&["eth0"], &policy(50));
    std::thread::scope(|scope| {
        for writer in 0..2u32 {
            let host = &host;
            scope.spawn(move || {
                let mut applied = 0;
                let mut rate = 100 + writer;
                eventually("ten policies", || {
                    // One bundle at a time: the other is told to try again.
                    match host.put_policy("", &policy(rate)).0 {
                        200 => {
                            applied += 1;
                            rate += 10;
                        }
                        409 => {}
                        other => panic!("{other}"),
                    }
                    applied == 10
                });
            });
        }
    });
    let status = host.status();
    assert_eq!(status["policy"]["generation"], 21);
    let last = host.in_force();
    assert!(last == policy(190) || last == policy(191), "{last}");
    let sealed: serde_json::Value =
        serde_json::from_slice(&host.twin.state().sealed.clone().unwrap()).unwrap();
    assert_eq!(sealed["generation"], 21);
    assert_eq!(sealed["hash"], status["policy"]["hash"]);
}

#[test]
fn without_interfaces_there_is_no_packet_tier() {
    let host = Host::started(&[], &policy(50));
    let status = host.status();
    assert_eq!((&status["degraded"], &status["table"]), (&json!(false), &json!(null)));
    assert_eq!(host.put_policy("", &policy(60)).0, 200);
    assert_eq!(host.request("PUT", "/v1/interfaces/eth0", "", b"").0, 409);
    assert_eq!(host.get("/v1/stats"), json!({"stats": []}));
}
