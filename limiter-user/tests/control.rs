//! The control socket against clients of every kind.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use host::{Host, answer, policy};
use serde_json::json;

#[test]
fn the_socket_is_for_root_and_the_group() {
    let host = Host::started(&["eth0"], &policy(50));
    let mode = std::fs::metadata(&host.settings.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[test]
fn a_body_beyond_64_mib_is_refused() {
    let host = Host::started(&["eth0"], &policy(50));
    let body = vec![b' '; (64 << 20) + 1];
    let (code, answer) = host.request("PUT", "/v1/policy", "", &body);
    assert_eq!(code, 413, "{answer}");
    assert_eq!(host.in_force(), policy(50));
}

#[test]
fn a_bundle_of_many_megabytes_is_taken() {
    let host = Host::started(&["eth0"], &policy(50));
    let comment = format!("# {}\n", "x".repeat(20 << 20));
    let (code, answer) = host.put_policy("", &(comment + &policy(60)));
    assert_eq!(code, 200, "{answer}");
    assert_eq!(host.status()["policy"]["generation"], 2);
}

#[test]
fn a_client_that_never_finishes_its_head_keeps_nobody_out() {
    let host = Host::started(&["eth0"], &policy(50));
    let mut slow: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(&host.settings.socket).unwrap()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /v1/status HTTP/1.1\r\nhost: ").unwrap();
    }
    assert_eq!(host.status()["degraded"], false);
    assert_eq!(host.put_policy("", &policy(60)).0, 200);
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut rest = Vec::new();
        // Closed by the daemon, with or without a word.
        let _ = stream.read_to_end(&mut rest);
    }
}

#[test]
fn a_client_that_never_finishes_its_bundle_holds_nothing_but_its_place() {
    let host = Host::started(&["eth0"], &policy(50));
    let begin = || {
        let mut slow = UnixStream::connect(&host.settings.socket).unwrap();
        slow.write_all(b"PUT /v1/policy HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{").unwrap();
        slow
    };
    let mut slow = begin();
    host::eventually("the slow one is being read", || {
        let is_read = host.put_policy("", &policy(50)).0 == 409;
        if !is_read {
            // It may have come while the other was being read, and been sent away.
            slow = begin();
        }
        is_read
    });
    assert_eq!(host.status()["policy"]["generation"], 1);
    drop(slow);
    host::eventually("its place is free again", || host.put_policy("", &policy(60)).0 == 200);
}

#[test]
fn nonsense_is_answered_and_harms_nobody() {
    let host = Host::started(&["eth0"], &policy(50));
    let ask = |text: &[u8]| {
        let mut stream = UnixStream::connect(&host.settings.socket).unwrap();
        stream.write_all(text).unwrap();
        answer(&mut stream).0
    };
    assert_eq!(ask(b"\0\0\0\0\r\n\r\n"), 400);
    assert_eq!(ask(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"), 404);
    assert_eq!(ask(b"DELETE /v1/status HTTP/1.1\r\nhost: x\r\n\r\n"), 405);
    let head = format!("GET /v1/status HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let mut stream = UnixStream::connect(&host.settings.socket).unwrap();
    let _ = stream.write_all(head.as_bytes());
    drop(stream);
    assert_eq!(host.request("PUT", "/v1/policy", "", b"not json").0, 422);
    assert_eq!(host.request("PUT", "/v1/policy", "", br#"{"policy": "a.toml", "files": {}}"#).0, 422);
    assert_eq!(host.request("PUT", "/v1/interfaces/eth0", "", br#"{"mood": "native"}"#).0, 400);
    assert_eq!(host.request("PUT", "/v1/interfaces/..%2f..%2fx", "", b"").0, 404);
    assert_eq!(host.status()["degraded"], false);
}

#[test]
fn a_mistyped_parameter_is_refused() {
    let host = Host::started(&["eth0"], &policy(50));
    let (code, answer) = host.put_policy("?dryrun", &policy(60));
    assert_eq!((code, &answer["error"]), (400, &json!("`/v1/policy` takes no `dryrun`")));
    assert_eq!(host.in_force(), policy(50), "it would have been applied");
    assert_eq!(host.request("GET", "/v1/sources?top=many", "", b"").0, 400);
}

#[test]
fn errors_have_a_hint() {
    let host = Host::started(&["eth0"], &policy(50));
    for (method, path, body) in [
        ("GET", "/v1/nothing", ""),
        ("POST", "/v1/status", ""),
        ("GET", "/v1/sources?rule=none", ""),
        ("PUT", "/v1/interfaces/eth9", ""),
        ("PUT", "/v1/policy", "{}"),
    ] {
        let (code, answer) = host.request(method, path, "", body.as_bytes());
        assert!(code >= 400, "{path}");
        assert!(!answer["error"].as_str().unwrap().is_empty(), "{path}: {answer}");
        assert!(!answer["hint"].as_str().unwrap().is_empty(), "{path}: {answer}");
    }
}
