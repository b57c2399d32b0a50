//! limiterctl as a person meets it: the real program against a daemon on a datapath in memory, word for word.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use host::{BAD, Host, policy};
use limiter_common::abi::{Counter, FAMILIES};
use limiter_common::verdict::{OUTCOMES, Outcome};
use limiter_user::datapath::Bucket;
use serde_json::{Value, json};

/// Nobody's uid on every distribution.
const NOBODY: u32 = 65_534;

/// What a person sees, made the same on every run.
fn seen(arguments: &[&str], output: &Output) -> String {
    format!(
        "$ limiterctl {}\n{}[stderr]\n{}[exit {}]\n",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status.code().unwrap()
    )
}

/// Compares with the file of that name in `snapshots`.
fn expect(name: &str, host: &Host, text: &str) {
    let mut settings = insta::Settings::clone_current();
    let directory = regex_escape(&host.directory.path().display().to_string());
    settings.add_filter(&directory, "DIRECTORY");
    settings.add_filter(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME");
    settings.add_filter(r"\b(up|applied|for) \d+s( \d+ms)?", "$1 AGE");
    settings.add_filter(r"\b(14m 5\ds|15m|59m 5\ds|1h)\b( |\))", "LEFT$2");
    settings.add_filter(r#""(uptime_s|age_s|attached_s)":\d+"#, "\"$1\":AGE");
    settings.set_omit_expression(true);
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

fn regex_escape(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_alphanumeric() || c == '/' { c.to_string() } else { format!("\\{c}") })
        .collect()
}

fn check(name: &str, host: &Host, arguments: &[&str]) -> Output {
    let output = host.ctl(arguments);
    expect(name, host, &seen(arguments, &output));
    output
}

/// A host on which one source is over its limit.
fn busy_host() -> Host {
    let host = Host::started(
        &["eth0"],
        r#"version = 1

[limits]
total = { per = "source", rate = "2k/s", burst = 4000 }

[[rule]]
name = "web"
to = ["tcp/443"]
limit = [ "total", { per = "source", rate = "50/s", burst = 100 } ]

[[rule]]
name = "dns"
to = ["udp/53"]
limit = [ { per = "source", rate = "100/s" } ]
"#,
    );
    let (web, meters) = {
        let daemon = host.daemon.as_ref().unwrap().core();
        let in_force = daemon.in_force.as_ref().unwrap();
        let reading = in_force.reading.as_ref().unwrap();
        let id_of = |limit: Option<&str>, rule: &str| {
            let mut meters = reading.meters.values();
            let meter = meters.find(|(info, _)| info.limit.as_deref() == limit && info.rules[0] == rule);
            *meter.map(|(info, meter)| (info.id, meter.rates[0].tolerance)).as_ref().unwrap()
        };
        let meters = [id_of(Some("total"), "web"), id_of(None, "web"), id_of(None, "dns")];
        (in_force.sealed.slots.rules["web"], meters)
    };
    let mut state = host.twin.state();
    let mut totals = Box::new([[Counter::default(); FAMILIES]; OUTCOMES]);
    totals[Outcome::PassWithin as usize][0] = Counter { packets: 400, bytes: 24_000 };
    totals[Outcome::DropOver as usize][0] = Counter { packets: 9_600, bytes: 576_000 };
    state.counters.insert(web, totals);
    let mut default = Box::new([[Counter::default(); FAMILIES]; OUTCOMES]);
    default[Outcome::PassLink as usize][2] = Counter { packets: 3, bytes: 84 };
    state.counters.insert(0, default);
    state.now = 1_000_000;
    let now = state.now;
    let bucket = |network: &str, width, (meter, tolerance): (u32, u64), level: f64, passed, dropped| Bucket {
        network: network.parse::<IpAddr>().unwrap(),
        width,
        meter,
        passed,
        dropped,
        words: [(now + (tolerance as f64 * level) as u64) << 1, 0],
    };
    let [total, own, dns] = meters;
    state.buckets = vec![
        bucket("203.0.113.9", 32, own, 1.0, 300, 9_600),
        bucket("203.0.113.9", 32, total, 0.25, 300, 0),
        bucket("203.0.113.9", 32, dns, 0.5, 20, 32),
        bucket("203.0.113.77", 32, own, 0.5, 40, 64),
        bucket("2001:db8:1:2::", 64, own, 0.125, 60, 0),
        // Full: no different from one that does not exist.
        bucket("198.51.100.1", 32, own, 0.0, 999, 999),
    ];
    state.table.used = 5;
    drop(state);
    host
}

#[test]
fn nobody_answers() {
    let host = Host::new(&["eth0"], "");
    check("absent_socket", &host, &["status"]);
    drop(std::os::unix::net::UnixListener::bind(&host.settings.socket).unwrap());
    check("dead_socket", &host, &["status"]);
}

/// Runs as nobody, who cannot look into the directories tests are built in.
fn as_nobody(host: &Host, arguments: &[&str]) -> Output {
    fs::set_permissions(host.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = host.path("limiterctl");
    fs::copy(env!("CARGO_BIN_EXE_limiterctl"), &program).unwrap();
    let mut command = Command::new(program);
    command.env_clear().env("LIMITER_SOCKET", &host.settings.socket).args(arguments);
    command.uid(NOBODY).gid(NOBODY).output().unwrap()
}

#[test]
fn who_is_not_in_the_group_is_told_so() {
    let host = Host::started(&["eth0"], &policy(50));
    let output = as_nobody(&host, &["status"]);
    expect("not_in_the_group", &host, &seen(&["status"], &output));
}

#[test]
fn who_may_only_look_is_told_so() {
    let host = Host::started(&["eth0"], &policy(50));
    // As if nobody were in the group.
    fs::set_permissions(&host.settings.socket, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(as_nobody(&host, &["stats"]).status.success());
    let output = as_nobody(&host, &["reload"]);
    expect("may_only_look", &host, &seen(&["reload"], &output));
    fs::write(host.path("new.toml"), policy(60)).unwrap();
    let new = host.path("new.toml").display().to_string();
    assert_eq!(as_nobody(&host, &["set-policy", &new]).status.code(), Some(1));
    assert!(as_nobody(&host, &["set-policy", &new, "--dry-run"]).status.success());
    assert_eq!(host.in_force(), policy(50));
}

#[test]
fn interfaces_that_cannot_be_attached() {
    let host = Host::started(&["eth0", "eth1"], &policy(50));
    check("no_such_interface", &host, &["attach", "eth9"]);
    check("not_attached", &host, &["detach", "eth9"]);
    host.ctl(&["detach", "eth1"]);
    host.twin.state().foreign.insert("eth1".to_owned(), 42);
    check("foreign_program", &host, &["attach", "eth1"]);
    host.twin.state().generic_only.push("eth1".to_owned());
    check("no_native_mode", &host, &["attach", "eth1", "--mode", "native"]);
    host.twin.state().large_mtu.insert("eth1".to_owned(), (9000, 3498));
    check("mtu_too_large", &host, &["attach", "eth1", "--mode", "native"]);
    check("replaced", &host, &["attach", "eth1", "--replace"]);
    check("detached", &host, &["detach", "eth1"]);
    check("detached_json", &host, &["detach", "eth1", "-o", "json"]);
    check("detached_all", &host, &["detach", "--all"]);
}

#[test]
fn a_policy_is_set_and_undone() {
    let host = Host::started(&["eth0"], &policy(50));
    fs::write(host.path("new.toml"), policy(60)).unwrap();
    check("diff_policy", &host, &["diff-policy", "new.toml"]);
    check("dry_run", &host, &["set-policy", "new.toml", "--dry-run", "-o", "json"]);
    check("set_policy", &host, &["set-policy", "new.toml"]);
    check("set_policy_again", &host, &["set-policy", "new.toml"]);
    let output = check("set_policy_again_json", &host, &["-o", "json", "set-policy", "new.toml"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["applied"], &answer["unchanged"]), (&json!(false), &json!(true)));
    check("drift", &host, &["status"]);
    check("get_policy", &host, &["get-policy"]);
    check("rollback_policy", &host, &["rollback-policy"]);
    check("history", &host, &["history"]);
    host.write_policy(&policy(70));
    check("reload", &host, &["reload"]);
    host.write_policy(BAD);
    check("reload_of_a_bad_file", &host, &["reload"]);
    check("degraded", &host, &["status"]);
}

/// What is done by hand at night, and what `status` says of it.
#[test]
fn what_an_operator_does_is_said_back_to_him() {
    let host = Host::started(
        &["eth0"],
        r#"version = 1

[sets]
suspects = { dynamic = true, max = 3 }

[[rule]]
name = "suspects"
from = "suspects"
verdict = "drop"

[[rule]]
name = "web"
to = ["tcp/443"]
limit = [ { per = "source", rate = "50/s", burst = 100 } ]
"#,
    );
    check("pause", &host, &["pause", "--for", "15m"]);
    check("override", &host, &["override", "web", "--scale", "25%", "--mode", "observe", "--for", "1h"]);
    check("override_no_rule", &host, &["override", "wab", "--scale", "25%", "--for", "1h"]);
    check("override_no_limits", &host, &["override", "suspects", "--scale", "25%", "--for", "1h"]);
    check("override_nothing", &host, &["override", "web", "--for", "1h"]);
    check("override_no_percentage", &host, &["override", "web", "--scale", "half", "--for", "1h"]);
    check("overrides", &host, &["overrides"]);
    check("add_to", &host, &["add-to", "suspects", "203.0.113.9", "2001:db8::/32", "--for", "1h"]);
    check("add_to_full", &host, &["add-to", "suspects", "192.0.2.1", "192.0.2.2", "--for", "1h"]);
    check("add_to_no_prefix", &host, &["add-to", "suspects", "192.0.2.1/24", "--for", "1h"]);
    check("remove_from", &host, &["remove-from", "suspects", "203.0.113.9"]);
    fs::write(host.path("next.toml"), policy(60)).unwrap();
    check("set_policy_confirm", &host, &["set-policy", "next.toml", "--confirm", "10m"]);
    check("set_policy_pending", &host, &["set-policy", "next.toml"]);
    check("status_by_hand", &host, &["status"]);
    check("confirm", &host, &["confirm"]);
    check("confirm_nothing", &host, &["confirm"]);
    check("clear_override", &host, &["clear-override", "web"]);
    check("resume", &host, &["resume"]);
    check("resume_again", &host, &["resume"]);
}

#[test]
fn ten_mistakes_are_reported_together() {
    let host = Host::started(&["eth0"], &policy(50));
    fs::write(
        host.path("ten.toml"),
        r#"version = 2
servces = {}

[default]
verdict = "maybe"

[sets]
office = ["203.0.113.0/33"]

[services]
web = ["tcp/70000"]

[[rule]]
name = "one"
from = "nowhere"
to = "nothing"
verdict = "drop"

[[rule]]
name = "one"
limit = [ { per = "source", rate = "fast" }, "unnamed" ]

[[rule]]
name = "two"
mode = "observe"
"#,
    )
    .unwrap();
    let output = check("ten_mistakes", &host, &["check-policy", "ten.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let by_daemon = host.ctl(&["set-policy", "ten.toml"]);
    assert_eq!(by_daemon.status.code(), Some(2));
    let output = host.ctl(&["check-policy", "ten.toml", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["errors"].as_array().unwrap().len() >= 10, "{answer}");
    assert_eq!((output.status.code(), &answer["valid"]), (Some(2), &json!(false)));
}

#[test]
fn files_that_are_sound_or_not_there() {
    let host = Host::new(&[], &policy(50));
    check("check_policy", &host, &["check-policy", "policy.toml"]);
    check("check_policy_absent", &host, &["check-policy", "none.toml"]);
    fs::write(host.path("narrow.toml"), "version = 1\n[default]\nsource = { ipv4 = 32, ipv6 = 128 }\n")
        .unwrap();
    check("check_policy_warning", &host, &["check-policy", "narrow.toml"]);
    check("check_policy_strict", &host, &["check-policy", "narrow.toml", "--strict"]);
}

#[test]
fn who_is_hurting_us() {
    let host = busy_host();
    check("status", &host, &["status"]);
    check("stats", &host, &["stats"]);
    check("stats_of_a_rule", &host, &["stats", "--rule", "web", "-o", "json"]);
    check("top", &host, &["top"]);
    check("top_one", &host, &["top", "-n", "1", "-o", "json"]);
    check("top_by_prefix", &host, &["top", "--by", "prefix"]);
    check("top_of_a_rule", &host, &["top", "--rule", "dns"]);
    check("top_by_passed", &host, &["top", "--sort", "passed"]);
    check("top_of_no_rule", &host, &["top", "--rule", "none"]);
    check("effective", &host, &["get-policy", "--effective"]);
}

#[test]
fn json_has_the_documented_fields() {
    let host = busy_host();
    let keys = |arguments: &[&str], pointer: &str| -> Vec<String> {
        let output = host.ctl(arguments);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        value.pointer(pointer).unwrap().as_object().unwrap().keys().cloned().collect()
    };
    let has = |there: Vec<String>, wanted: &[&str]| {
        for key in wanted {
            assert!(there.iter().any(|there| there == key), "{key} is missing in {there:?}");
        }
    };
    let json = |verb: &'static str| vec!["-o", "json", verb];
    has(keys(&json("status"), ""), &["version", "uptime_s", "interfaces", "policy", "table", "warnings"]);
    has(keys(&json("status"), "/interfaces/0"), &["name", "index", "mode", "attached_s"]);
    has(keys(&json("status"), "/policy"), &["hash", "generation", "rules", "loaded_at"]);
    has(keys(&json("status"), "/table"), &["entries", "used", "pressure"]);
    has(keys(&json("stats"), "/stats/0"), &["rule", "reason", "verdict", "family", "packets", "bytes"]);
    has(
        keys(&json("top"), "/sources/0"),
        &["source", "rule", "passed", "dropped", "fill", "penalised_until"],
    );
    has(keys(&json("reload"), ""), &["applied", "generation", "hash", "rules", "warnings", "changes"]);
}

#[test]
fn flags_may_stand_before_or_after_the_verb() {
    let host = busy_host();
    let socket = host.settings.socket.display().to_string();
    let before = host.ctl(&["-o", "json", "--socket", &socket, "stats"]);
    let after = host.ctl(&["stats", "--socket", &socket, "-o", "json"]);
    assert!(before.status.success());
    assert_eq!(before.stdout, after.stdout);
}

#[test]
fn errors_go_to_stderr_also_with_json() {
    let host = Host::new(&[], "");
    let output = host.ctl(&["-o", "json", "status"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: cannot reach limiterd"));
}

#[test]
fn usage_mistakes_exit_2() {
    let host = Host::new(&[], "");
    for arguments in
        [&["frobnicate"][..], &[], &["attach"], &["top", "-n", "few"], &["detach", "eth0", "--all"]]
    {
        assert_eq!(host.ctl(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let host = busy_host();
    for arguments in [&["completions", "bash"][..], &["stats"], &["stats", "--watch"]] {
        let mut child = host.ctl_command().args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn watching_shows_rates() {
    let host = busy_host();
    let mut child = host.ctl_command().args(["stats", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while text.matches('\n').count() < 5 {
        let count = stdout.read(&mut buffer).unwrap();
        text += &String::from_utf8_lossy(&buffer[..count]);
    }
    drop(stdout);
    child.wait().unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("TIME ") && lines[0].ends_with("BYTES/S  PACKETS/S"), "{text}");
    // The heading comes once; every other line begins with its time.
    assert!(
        lines[1..4].iter().all(|line| line.starts_with("20") && line.ends_with(" 0          0")),
        "{text}"
    );
}

#[test]
fn nothing_is_coloured_where_nobody_looks() {
    let host = busy_host();
    for arguments in [&["status"][..], &["top"], &["attach", "eth9"]] {
        let output = host.ctl(arguments);
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{arguments:?}");
    }
}

#[test]
fn shells_and_manuals_are_served() {
    let host = Host::new(&[], "");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = host.ctl(&["completions", shell]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("rollback-policy"), "{shell}");
    }
    assert!(host.ctl(&["man", "pages"]).status.success());
    assert!(fs::read_to_string(host.path("pages/limiterctl.1")).unwrap().contains(r"set\-policy"));
    assert!(host.path("pages/limiterctl-top.1").exists());
}
