//! `GET /v1/events` against clients of every kind, on a datapath in memory.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use host::{Host, eventually, policy};
use limiter_common::event::{Event, NOT_OBSERVED};
use limiter_common::verdict::Outcome;
use serde_json::{Value, json};

const SECOND: u64 = 64_000_000_000;

/// A UDP packet to port 443 that the rule `web` drops.
fn event(host: &Host, source: [u8; 4]) -> Event {
    let slot = host.daemon.as_ref().unwrap().core().in_force.as_ref().unwrap().sealed.slots.rules["web"];
    let mut frame = [0; 128];
    frame[..3].copy_from_slice(b"abc");
    Event {
        time: 0,
        source_high: 0,
        source_low: 0x0000_ffff_0000_0000 | u64::from(u32::from_be_bytes(source)),
        interface: 2,
        length: 60,
        frame_length: 74,
        destination: 443,
        source_port: 4321,
        rule: slot,
        observing: 0,
        outcome: Outcome::DropOver as u8,
        observed: NOT_OBSERVED,
        family: 0,
        kind: 0,
        captured: 3,
        reserved: [0; 7],
        frame,
    }
}

/// Connects and asks; the head is read, and must be a success.
fn open(host: &Host, query: &str) -> BufReader<UnixStream> {
    open_at(host, &format!("/v1/events{query}"))
}

fn open_at(host: &Host, path: &str) -> BufReader<UnixStream> {
    let mut stream = UnixStream::connect(&host.settings.socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: limiterd\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/event-stream"), "{head}");
    reader
}

/// The next message: its name and its object.
fn next(reader: &mut BufReader<UnixStream>) -> (String, Value) {
    let mut kind = String::new();
    loop {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the stream ended");
        if let Some(name) = line.strip_prefix("event:") {
            kind = name.trim().to_owned();
        }
        if let Some(data) = line.strip_prefix("data:") {
            return (kind, serde_json::from_str(data).unwrap());
        }
    }
}

#[test]
fn an_event_has_names_for_everything() {
    let host = Host::started(&["eth0"], &policy(50));
    let mut reader = open(&host, "?frames");
    host.twin.state().events.push(event(&host, [203, 0, 113, 9]));
    let (kind, mut said) = next(&mut reader);
    assert_eq!(kind, "drop");
    let time = said.as_object_mut().unwrap().remove("time").unwrap();
    assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
    let expected = json!({
        "interface": "eth0", "family": "ipv4", "source": "203.0.113.9", "protocol": "tcp", "source_port": 4321,
        "destination_port": 443, "icmp_type": null, "length": 60, "rule": "web", "verdict": "drop",
        "reason": "over", "observed": null, "frame": {"length": 74, "bytes": "YWJj"},
    });
    assert_eq!(said, expected);

    // Observed by a rule: of what passed it is the verdict, of what was dropped it stands beside.
    let web = event(&host, [203, 0, 113, 9]);
    let passed = Event {
        rule: 0,
        outcome: Outcome::PassDefault as u8,
        observing: web.rule,
        observed: Outcome::WouldDropOver as u8,
        ..web
    };
    let both = Event { outcome: Outcome::DropRule as u8, ..passed };
    host.twin.state().events.extend([passed, both]);
    let (_, said) = next(&mut reader);
    assert_eq!(
        (&said["rule"], &said["verdict"], &said["observed"]),
        (&json!("web"), &json!("would-drop"), &Value::Null)
    );
    let (_, said) = next(&mut reader);
    assert_eq!(
        (&said["rule"], &said["verdict"], &said["reason"]),
        (&json!(""), &json!("drop"), &json!("rule-drop"))
    );
    assert_eq!(said["observed"], json!({"rule": "web", "reason": "over"}));
}

#[test]
fn each_client_sees_what_it_asks_for() {
    let host = Host::started(&["eth0"], &policy(50));
    let mut everything = open(&host, "");
    let mut some = open(&host, "?source=203.0.113.0/28&rule=web");
    for last in [1, 77, 9] {
        host.twin.state().events.push(event(&host, [203, 0, 113, last]));
    }
    let sources = |reader: &mut BufReader<UnixStream>, count: usize| -> Vec<String> {
        (0..count).map(|_| next(reader).1["source"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(sources(&mut everything, 3), ["203.0.113.1", "203.0.113.77", "203.0.113.9"]);
    assert_eq!(sources(&mut some, 2), ["203.0.113.1", "203.0.113.9"]);
    for (query, error) in [
        ("?rule=pong", "no rule is named `pong`"),
        ("?source=office", "`source` is `office`"),
        ("?frames=perhaps", "`frames` is `perhaps`"),
        ("?rules=web", "`/v1/events` takes no `rules`"),
    ] {
        let (status, answer) = host.request("GET", &format!("/v1/events{query}"), "", b"");
        assert!(status == 400 || status == 404, "{query}: {status}");
        assert_eq!(answer["error"], error, "{query}");
    }
}

#[test]
fn the_program_is_told_only_while_somebody_watches() {
    let host = Host::started(&["eth0"], &policy(50));
    let watched = || host.twin.state().watched_until;
    assert_eq!(watched(), 0);
    // Of an earlier watch.
    host.twin.state().events.push(event(&host, [192, 0, 2, 1]));
    let mut one = open(&host, "");
    assert_eq!(watched(), 5 * SECOND);
    host.twin.state().now = 100 * SECOND;
    eventually("the renewal", || watched() == 105 * SECOND);
    let other = open(&host, "");
    drop(other);
    host.twin.state().events_lost += 7;
    host.twin.state().events.push(event(&host, [203, 0, 113, 9]));
    let mut said = [next(&mut one), next(&mut one)];
    said.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(said[0].1["source"], "203.0.113.9", "not what came before");
    assert_eq!(said[1], ("lost".to_owned(), json!({"lost": 7})));
    drop(one);
    // A client that is gone is noticed when there is something to send.
    eventually("the end of the watch", || {
        host.twin.state().events.push(event(&host, [203, 0, 113, 9]));
        watched() == 0
    });
}

#[test]
fn a_slow_client_loses_events_and_holds_up_nobody() {
    let host = Host::started(&["eth0"], &policy(50));
    let mut slow = open(&host, "");
    let mut quick = open(&host, "");
    let batch: Vec<Event> = (0..200).map(|last| event(&host, [203, 0, 113, last])).collect();
    const SENT: usize = 20_000;
    for _ in 0..SENT / batch.len() {
        host.twin.state().events.extend(&batch);
        for _ in 0..batch.len() {
            assert_eq!(next(&mut quick).0, "drop", "nobody waits for the slow one");
        }
    }
    assert_eq!(host.status()["degraded"], false);
    // The slow one gets what the socket took before it stalled, then is told how many it missed.
    let (mut drops, mut lost) = (0, 0);
    while drops + lost < SENT {
        match next(&mut slow) {
            (kind, _) if kind == "drop" => drops += 1,
            (_, message) => lost += message["lost"].as_u64().unwrap() as usize,
        }
    }
    assert_eq!(drops + lost, SENT, "each was sent or counted");
    assert!(lost > 0 && drops > 0, "{drops} {lost}");
}

#[test]
fn there_is_room_for_so_many() {
    let host = Host::started(&["eth0"], &policy(50));
    let watching: Vec<_> = (0..16).map(|_| open(&host, "")).collect();
    let (status, answer) = host.request("GET", "/v1/events", "", b"");
    assert_eq!((status, &answer["error"]), (429, &json!("16 clients watch already")));
    drop(watching);
    eventually("room again", || {
        host.twin.state().events.push(event(&host, [203, 0, 113, 9]));
        let mut stream = UnixStream::connect(&host.settings.socket).unwrap();
        write!(stream, "GET /v1/events HTTP/1.1\r\nhost: limiterd\r\n\r\n").unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        &start == b"HTTP/1.1 200"
    });
}

#[test]
fn packets_are_for_those_who_may_change_things() {
    let host = Host::started(&["eth0"], &policy(50));
    // As if nobody were in the group.
    fs::set_permissions(&host.settings.socket, fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(host.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = host.path("limiterctl");
    fs::copy(env!("CARGO_BIN_EXE_limiterctl"), &program).unwrap();
    let mut command = Command::new(program);
    command.env_clear().env("LIMITER_SOCKET", &host.settings.socket).args(["watch", "--pcap", "-"]);
    let refused = command.uid(65534).gid(65534).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{error}");
    assert!(error.starts_with("error: uid 65534 may look, but not into packets\n"), "{error}");
    let mut command = Command::new(host.path("limiterctl"));
    command.env_clear().env("LIMITER_SOCKET", &host.settings.socket).args(["trace", "203.0.113.9"]);
    let refused = command.uid(65534).gid(65534).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.starts_with("error: uid 65534 may look but not change anything\n"), "{error}");
}

#[test]
fn a_trace_tells_until_its_time_is_over() {
    let host = Host::started(&["eth0"], &policy(50));
    let traced = || host.twin.state().trace.is_some();
    let mut reader = open_at(&host, "/v1/trace?source=203.0.113.9&for=2s");
    {
        let decision = Event { outcome: Outcome::PassWithin as u8, ..event(&host, [203, 0, 113, 9]) };
        let mut state = host.twin.state();
        let (prefix, decisions, seen) = state.trace.as_mut().unwrap();
        assert_eq!(prefix.to_string(), "203.0.113.9/32");
        decisions.push(decision);
        // Four more did not fit the budget.
        *seen = 5;
    }
    let (kind, said) = next(&mut reader);
    assert_eq!(
        (kind.as_str(), &said["verdict"], &said["reason"]),
        ("decision", &json!("pass"), &json!("within"))
    );
    let (status, answer) = host.request("GET", "/v1/trace?source=203.0.113.9", "", b"");
    assert_eq!((status, &answer["error"]), (409, &json!("another trace runs")));
    assert_eq!(next(&mut reader), ("lost".to_owned(), json!({"lost": 4})));
    assert_eq!(next(&mut reader), ("end".to_owned(), json!({})));
    assert!(!traced());
    // Who asked is gone: the trace too.
    let reader = open_at(&host, "/v1/trace?source=203.0.113.9&for=1h");
    assert!(traced());
    drop(reader);
    eventually("the end of the trace", || {
        if let Some((_, decisions, _)) = &mut host.twin.state().trace {
            decisions.push(event(&host, [203, 0, 113, 9]));
        }
        !traced()
    });
}

#[test]
fn what_cannot_be_traced_is_refused() {
    let host = Host::started(&["eth0"], &policy(50));
    for (query, status) in [
        ("", 400),
        ("?source=office", 400),
        ("?source=203.0.113.9&for=2h", 400),
        ("?source=203.0.113.9&for=0s", 400),
    ] {
        let (found, answer) = host.request("GET", &format!("/v1/trace{query}"), "", b"");
        assert_eq!(found, status, "{query}: {answer}");
    }
    host.twin.state().attached.clear();
    let (status, answer) = host.request("GET", "/v1/trace?source=203.0.113.9", "", b"");
    assert_eq!((status, &answer["error"]), (409, &json!("no interface is guarded: nothing is decided")));
}

#[test]
fn without_a_packet_tier_there_is_nothing_to_watch() {
    let host = Host::started(&[], "version = 1\n");
    let (status, answer) = host.request("GET", "/v1/events", "", b"");
    assert_eq!(status, 409, "{answer}");
}
