//! What an operator does by hand at night, on a datapath in memory: every change holds over restarts, and ends.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use std::time::Duration;

use host::{Host, policy, strings};
use limiter_user::cli::session::Session;
use limiter_user::control::api::AddRequest;
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

const DYNAMIC: &str = r#"version = 1

[sets]
suspects = { dynamic = true, max = 3 }
office = ["203.0.113.0/24"]

[[rule]]
name = "suspects"
from = "suspects"
verdict = "drop"

[[rule]]
name = "office"
from = "office"
verdict = "pass"

[[rule]]
name = "web"
to = ["tcp/443"]
limit = [ { per = "source", rate = "100/s", burst = 200 } ]
"#;

fn send(host: &Host, method: &str, path: &str, body: &serde_json::Value) -> (u16, serde_json::Value) {
    host.request(method, path, "", body.to_string().as_bytes())
}

/// The rule as it judges now.
fn rule(host: &Host, name: &str) -> Option<serde_json::Value> {
    let rules = host.get("/v1/rules");
    rules["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == name).cloned()
}

fn published(host: &Host) -> u64 {
    host.twin.state().published
}

#[test]
fn an_override_survives_restart_reboot_and_reload_while_its_rule_exists() {
    let mut host = Host::started(&["eth0"], DYNAMIC);
    let asked = json!({"rule": "web", "scale": 25, "for_s": 3600});
    let (code, answer) = send(&host, "POST", "/v1/overrides", &asked);
    assert_eq!((code, &answer["overridden"]["scale"]), (200, &json!(25)), "{answer}");
    let scaled =
        json!([{"name": null, "per": "source", "rate": "25 % of 100/s", "burst": 50, "unit": "packets"}]);
    assert_eq!(rule(&host, "web").unwrap()["limits"], scaled);
    assert_eq!(host.status()["policy"]["generation"], 1, "the policy is what it was");
    assert!(strings(&host.status()["warnings"])[0].starts_with("rule `web` is overridden by uid 0 until "));
    let before = published(&host);
    host.restart();
    assert_eq!(published(&host), before, "the kernel has it already");
    assert_eq!(rule(&host, "web").unwrap()["limits"], scaled);
    host.reboot();
    assert_eq!(rule(&host, "web").unwrap()["limits"], scaled);
    host.write_policy(&format!("{DYNAMIC}# other\n"));
    assert_eq!(host.post("/v1/reload").1["applied"], true);
    assert_eq!(rule(&host, "web").unwrap()["limits"], scaled);
    // Without its rule it is about nothing.
    host.put_policy("", &policy(50).replace("web", "other"));
    assert_eq!(host.get("/v1/overrides")["overrides"], json!([]));
    host.post("/v1/reload");
    assert_eq!(host.request("DELETE", "/v1/overrides/web", "", b"").1["was_overridden"], true);
    assert_eq!(rule(&host, "web").unwrap()["limits"][0]["burst"], 200);
    assert_eq!(host.request("DELETE", "/v1/overrides/none", "", b"").0, 404);
}

#[test]
fn an_override_ends_by_itself() {
    let host = Host::started(&["eth0"], DYNAMIC);
    assert_eq!(
        send(&host, "POST", "/v1/overrides", &json!({"rule": "web", "mode": "off", "for_s": 1})).0,
        200
    );
    assert_eq!(rule(&host, "web"), None);
    host::eventually("the override's end", || {
        host.daemon.as_ref().unwrap().tick();
        rule(&host, "web").is_some()
    });
    assert_eq!(host.get("/v1/overrides")["overrides"], json!([]));
}

#[test]
fn an_override_that_cannot_be_is_refused_with_a_sentence() {
    let host = Host::started(&["eth0"], DYNAMIC);
    for (asked, code, error) in [
        (json!({"rule": "none", "scale": 25, "for_s": 60}), 404, "no rule is named `none`"),
        (json!({"rule": "office", "scale": 25, "for_s": 60}), 409, "rule `office` has no limits to scale"),
        (json!({"rule": "web", "for_s": 60}), 409, "an override says what changes"),
        (json!({"rule": "web", "scale": 0, "for_s": 60}), 409, "a scale is from 1% to 10000%"),
        (json!({"rule": "web", "scale": 25, "for_s": 0}), 409, "a time is from one second to a year"),
    ] {
        let (found, answer) = send(&host, "POST", "/v1/overrides", &asked);
        assert_eq!((found, answer["error"].as_str().unwrap()), (code, error));
    }
    assert_eq!(published(&host), 1);
}

#[test]
fn members_of_a_dynamic_set_survive_and_end() {
    let mut host = Host::started(&["eth0"], DYNAMIC);
    let asked = json!({"members": ["198.51.100.0/24", "2001:db8::1"], "for_s": 3600});
    let (code, answer) = send(&host, "POST", "/v1/sets/suspects/members", &asked);
    assert_eq!((code, &answer["entries"], &answer["max"]), (200, &json!(2), &json!(3)), "{answer}");
    let before = published(&host);
    host.restart();
    assert_eq!(published(&host), before);
    let entries = |host: &Host| {
        let core = host.daemon.as_ref().unwrap().core();
        core.reading().unwrap().policy.sets[0].entries
    };
    assert_eq!(entries(&host), 2);
    host.reboot();
    assert_eq!(entries(&host), 2);
    host.write_policy(&format!("{DYNAMIC}# other\n"));
    host.post("/v1/reload");
    assert_eq!(entries(&host), 2);
    let (code, answer) = send(
        &host,
        "POST",
        "/v1/sets/suspects/members",
        &json!({"members": ["192.0.2.1", "192.0.2.2"], "for_s": 60}),
    );
    assert_eq!(code, 409);
    assert_eq!(answer["error"], "set `suspects` would have 4 members, and its `max` is 3");
    let removed =
        send(&host, "POST", "/v1/sets/suspects/remove", &json!({"members": ["2001:db8::1", "192.0.2.9"]}));
    assert_eq!((&removed.1["changed"], &removed.1["entries"]), (&json!(1), &json!(1)));
    send(&host, "POST", "/v1/sets/suspects/members", &json!({"members": ["192.0.2.1"], "for_s": 1}));
    assert_eq!(entries(&host), 2);
    host::eventually("the member's end", || {
        host.daemon.as_ref().unwrap().tick();
        entries(&host) == 1
    });
    for (set, members, error) in [
        ("office", "192.0.2.1", "set `office` is not dynamic: its members are those of the policy"),
        ("none", "192.0.2.1", "no set is named `none`"),
        ("suspects", "192.0.2.1/24", "`192.0.2.1/24` has bits set behind its length"),
        ("suspects", "nobody", "`nobody` is not a prefix"),
    ] {
        let asked = json!({"members": [members], "for_s": 60});
        let (_, answer) = send(&host, "POST", &format!("/v1/sets/{set}/members"), &asked);
        assert_eq!(answer["error"], error);
    }
}

#[test]
fn members_that_come_together_are_published_together() {
    let host = Host::started(&["eth0"], &DYNAMIC.replace("max = 3", "max = 1000"));
    let before = published(&host);
    let callers = 16;
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let daemon = host.daemon.as_ref().unwrap();
            scope.spawn(move || {
                for member in 0..8 {
                    let members = vec![format!("198.51.{caller}.{member}")];
                    let asked = AddRequest { members, for_s: 3600, sessions: vec![], force: false };
                    daemon.add_to("suspects", &asked, "a test").unwrap();
                }
            });
        }
    });
    let core = host.daemon.as_ref().unwrap().core();
    assert_eq!(core.reading().unwrap().policy.sets[0].entries, 128);
    drop(core);
    assert!(published(&host) - before < 128, "{} publishes", published(&host) - before);
}

#[test]
fn a_rule_is_skipped_from_the_moment_it_expires() {
    let soon = std::time::SystemTime::now() + Duration::from_secs(2);
    let text =
        policy(50).replace("to = ", &format!("expires = {}\nto = ", humantime::format_rfc3339_seconds(soon)));
    let mut host = Host::started(&["eth0"], &text);
    assert!(rule(&host, "web").is_some());
    host::eventually("the rule's end", || {
        host.daemon.as_ref().unwrap().tick();
        rule(&host, "web").is_none()
    });
    let warnings = strings(&host.status()["warnings"]).join("\n");
    assert!(warnings.contains("rule `web` expired at "), "{warnings}");
    let before = published(&host);
    host.restart();
    assert_eq!(published(&host), before);
    assert!(rule(&host, "web").is_none());
}

#[test]
fn what_falls_back_keeps_what_was_changed_by_hand_meanwhile() {
    let host = Host::started(&["eth0"], DYNAMIC);
    host.put_policy("?confirm=60s", &format!("{DYNAMIC}# other\n"));
    let asked = json!({"members": ["198.51.100.0/24"], "for_s": 3600});
    assert_eq!(send(&host, "POST", "/v1/sets/suspects/members", &asked).0, 200);
    assert_eq!(host.status()["pending_confirm"]["generation"], 2);
    pass(&host, 61);
    assert_eq!(host.status()["policy"]["generation"], 1);
    let core = host.daemon.as_ref().unwrap().core();
    assert_eq!(core.reading().unwrap().policy.sets[0].entries, 1);
}

/// `limiterctl` in an ssh session from a client: its exit code, and what it says.
fn ctl_from(host: &Host, arguments: &[&str], client: &str) -> (i32, String) {
    let mut command = host.ctl_command();
    command.env("SSH_CONNECTION", format!("{client} 50022 192.0.2.1 22"));
    // The environment it is started with is its own, not that of an ancestor: so one is put above it.
    let program = command.get_program().to_owned();
    let mut shell = std::process::Command::new("/bin/sh");
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
        .current_dir(host.directory.path())
        .args(["-c", "\"$0\" \"$@\"; exit $?"])
        .arg(program)
        .args(arguments);
    let output = shell.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn nobody_cuts_off_his_own_ssh_session_without_saying_so() {
    let host = Host::started(&["eth0"], DYNAMIC);
    host.write_policy(
        &DYNAMIC
            .replace("tcp/443", "tcp/22")
            .replace("limit = [ { per = \"source\", rate = \"100/s\", burst = 200 } ]", "verdict = \"drop\""),
    );
    let ctl = |arguments: &[&str], client: &str| ctl_from(&host, arguments, client);
    let (code, said) = ctl(&["set-policy", "policy.toml"], "198.51.100.7");
    assert_eq!(code, 1);
    assert_eq!(
        said,
        "error: rule `web` would drop your ssh session from 198.51.100.7:50022 to port 22\n\nhint: `--confirm 60s` goes back by itself if you are cut off; `--force` does it all the same\n"
    );
    assert_eq!(published(&host), 1);
    // The office passes by an earlier rule; whoever is careful may; who forces it may.
    assert_eq!(ctl(&["set-policy", "policy.toml", "--confirm", "60s"], "198.51.100.7").0, 0);
    host.post("/v1/policy/rollback");
    assert_eq!(ctl(&["set-policy", "policy.toml"], "203.0.113.9").0, 0);
    let off = ["override", "office", "--mode", "off", "--for", "1h"];
    let (code, said) = ctl(&off, "203.0.113.9");
    assert_eq!(code, 1, "{said}");
    assert!(
        said.starts_with("error: rule `web` would drop your ssh session from 203.0.113.9:50022"),
        "{said}"
    );
    assert!(rule(&host, "office").is_some());
    assert_eq!(ctl(&[&off[..], &["--force"]].concat(), "203.0.113.9").0, 0);
    assert!(rule(&host, "office").is_none());
}

/// A policy in which who is in the set `staff` gets in by ssh, who is in `suspects` gets nothing, and `web` is closed.
const STAFF: &str = "version = 1
[sets]
staff = { dynamic = true, max = 10 }
suspects = { dynamic = true, max = 100 }
[[rule]]
name = \"suspects\"
from = \"suspects\"
verdict = \"drop\"
[[rule]]
name = \"staff\"
from = \"staff\"
to = [\"tcp/22\"]
verdict = \"pass\"
[[rule]]
name = \"closed\"
to = [\"tcp/22\"]
verdict = \"drop\"
";

/// What, what is done before, the verb: refused where it would cut off the session it is done from, done where it is
/// forced.
#[test]
fn no_verb_cuts_off_the_session_it_is_done_from() {
    const CLIENT: &str = "198.51.100.7";
    let members = |set: &'static str| {
        ("POST", format!("/v1/sets/{set}/members"), json!({"members": [CLIENT], "for_s": 60}))
    };
    let observed =
        ("POST", "/v1/overrides".to_owned(), json!({"rule": "closed", "mode": "observe", "for_s": 60}));
    let open = (
        "PUT",
        "/v1/policy".to_owned(),
        json!({"policy": "open.toml", "files": {"open.toml": "version = 1\n"}}),
    );
    let table: [(&str, _, &[&str]); 5] = [
        (
            "into a set that is dropped",
            members("staff"),
            &["add-to", "suspects", "198.51.100.0/24", "--for", "1h"],
        ),
        ("out of a set that gets in", members("staff"), &["remove-from", "staff", CLIENT]),
        ("the end of an override", observed, &["clear-override", "closed"]),
        ("back to the policy before", open.clone(), &["rollback-policy"]),
        ("back to the file", open, &["reload"]),
    ];
    for (what, (method, path, body), verb) in table {
        let host = Host::started(&["eth0"], STAFF);
        assert_eq!(send(&host, method, &path, &body).0, 200, "{what}");
        let before = published(&host);
        let (code, said) = ctl_from(&host, verb, CLIENT);
        let error =
            format!("would drop your ssh session from {CLIENT}:50022 to port 22\n\nhint: `--force` does it");
        assert!(code == 1 && said.contains(&error), "{what}: {said}");
        assert_eq!(published(&host), before, "{what}");
        let (code, said) = ctl_from(&host, &[verb, &["--force"]].concat(), CLIENT);
        assert_eq!(code, 0, "{what}: {said}");
        assert_eq!(published(&host), before + 1, "{what}");
    }
}

/// One operator's change that is refused is not the refusal of those that came with it.
#[test]
fn changes_that_come_together_do_not_answer_for_each_other() {
    let host = Host::started(&["eth0"], STAFF);
    let daemon = host.daemon.clone().unwrap();
    assert_eq!(ctl_from(&host, &["add-to", "staff", "198.51.100.7", "--for", "1h"], "198.51.100.7").0, 0);
    std::thread::scope(|scope| {
        // While a change has its turn the others gather, to be published together.
        for number in 0..32 {
            let daemon = &daemon;
            scope.spawn(move || {
                let client = if number % 2 == 0 { "198.51.100.7" } else { "198.51.100.8" };
                let session = Session {
                    client: client.parse().unwrap(),
                    client_port: 50_022,
                    server: "192.0.2.1".parse().unwrap(),
                    server_port: 22,
                };
                let members = vec![if number % 2 == 0 {
                    "198.51.100.7/32".to_owned()
                } else {
                    format!("203.0.113.{number}")
                }];
                let sessions = if number % 2 == 0 { vec![session] } else { Vec::new() };
                let max_free = AddRequest { members, for_s: 60, sessions, force: false };
                let result = daemon.add_to("suspects", &max_free, "a test");
                assert_eq!(result.is_ok(), number % 2 == 1, "{number}: {result:?}");
            });
        }
    });
}

#[test]
fn a_dry_run_says_what_becomes_of_the_sources_of_this_moment() {
    let host = Host::started(&["eth0"], &policy(50));
    let (meter, tolerance) = {
        let core = host.daemon.as_ref().unwrap().core();
        let (id, (_, meter)) = core.reading().unwrap().meters.iter().next().unwrap();
        (*id, meter.rates[0].tolerance)
    };
    let now = 1 << 40;
    // Spent of a burst of 50 packets, which is a second: all, two fifths, two fifths by IPv6, a fiftieth.
    let spent =
        [("192.0.2.1", 32, 50), ("192.0.2.2", 32, 20), ("2001:db8:0:1::", 64, 20), ("192.0.2.3", 32, 1)];
    let buckets = spent.map(|(network, width, packets)| limiter_user::datapath::Bucket {
        network: network.parse().unwrap(),
        width,
        meter,
        passed: packets,
        dropped: 0,
        words: [(now + tolerance / 50 * packets) << 1, 0],
    });
    host.twin.state().now = now;
    host.twin.state().buckets = buckets.to_vec();
    let live = |text: &str| host.put_policy("?dry-run", text).1["live"].clone();
    // A burst of 10 at 50/s is a fifth of a second, and two fifths are spent.
    let smaller = policy(50).replace("rate = \"50/s\"", "rate = \"50/s\", burst = 10");
    let examples = json!(["192.0.2.2", "2001:db8:0:1::/64"]);
    assert_eq!(live(&smaller), json!({"sources": 4, "limited": 3, "newly": 2, "examples": examples}));
    assert_eq!(live(&policy(50)), json!({"sources": 4, "limited": 1, "newly": 0, "examples": []}));
    let closed =
        format!("{}[[rule]]\nname = \"closed\"\nfrom = \"192.0.2.3\"\nverdict = \"drop\"\n", "version = 1\n");
    assert_eq!(live(&closed), json!({"sources": 4, "limited": 1, "newly": 1, "examples": ["192.0.2.3"]}));
    assert_eq!(published(&host), 1);
}

#[test]
fn the_self_audit_finds_a_bucket_that_admitted_too_much() {
    let host = Host::started(&["eth0"], &policy(50));
    let meter = {
        let core = host.daemon.as_ref().unwrap().core();
        *core.reading().unwrap().meters.keys().next().unwrap()
    };
    let bucket = |last: u8, passed: u64| limiter_user::datapath::Bucket {
        network: std::net::Ipv4Addr::new(192, 0, 2, last).into(),
        width: 32,
        meter,
        passed,
        dropped: 0,
        words: [u64::MAX, 0],
    };
    let look = || {
        let mut core = host.daemon.as_ref().unwrap().core();
        core.audit_buckets();
        (core.audit.checked, core.audit.violations)
    };
    // Each of the four turns sees a part of the sources.
    let all = |passed: u64| (1..=200).map(|last| bucket(last, passed)).collect::<Vec<_>>();
    host.twin.state().buckets = all(1000);
    assert_eq!(look(), (0, 0));
    // Ten seconds at 50/s and a burst of 50: 550, and slacks that are less than 50.
    host.twin.state().now += 10 * 64_000_000_000;
    host.twin.state().buckets = all(1550);
    let (checked, violations) = look();
    assert!(checked > 20, "{checked}");
    assert_eq!(violations, 0);
    assert_eq!(host.status()["degraded"], false);
    // Buckets that changed their owner begin anew, and are passed over.
    host.twin.state().now += 10 * 64_000_000_000;
    host.twin.state().buckets = all(3);
    assert_eq!(look(), (checked, 0));
    // Forged.
    host.twin.state().now += 10 * 64_000_000_000;
    host.twin.state().buckets = all(603);
    let (more, violations) = look();
    assert_eq!(violations, more - checked);
    assert!(violations > 20, "{violations}");
    let status = host.status();
    assert_eq!(status["degraded"], true);
    let problem = &strings(&status["problems"])[0];
    assert!(
        problem.starts_with(&format!("self-audit, {violations} violations, the last: 192.0.2.")),
        "{problem}"
    );
    assert!(problem.contains("was admitted 600 packets by rule `web` where 5"), "{problem}");
}
