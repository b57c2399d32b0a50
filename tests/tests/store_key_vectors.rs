//! The vectors in `docs/redis-protocol.md`, from Rust and from Python.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::process::Command;

use limiter_user::requests::key::{Part, Secret};

const PAGE: &str = include_str!("../../docs/redis-protocol.md");
const SECRET: &str = "limiter test vectors";

/// The parts as JSON, and the hash.
fn vectors() -> Vec<(String, String)> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `[")?.strip_suffix("` |"));
    rows.map(|row| {
        let (parts, hash) = row.split_once("` | `").unwrap();
        (format!("[{parts}"), hash.to_owned())
    })
    .collect()
}

#[test]
fn the_vectors_hold_in_rust() {
    let secret = Secret::new(SECRET.as_bytes()).unwrap();
    assert_eq!(vectors().len(), 10);
    for (parts, hash) in vectors() {
        let pairs: Vec<(String, String)> = serde_json::from_str(&parts).unwrap();
        let pairs: Vec<Part<'_>> =
            pairs.iter().map(|(scope, value)| Part::new(scope, value.as_bytes())).collect();
        assert_eq!(secret.hash(&pairs).text(), hash, "{parts}");
    }
    assert_eq!(secret.fingerprint(), vectors().last().unwrap().1);
}

#[test]
fn the_vectors_hold_in_python_with_the_pages_own_code() {
    let code = PAGE.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let program = format!(
        "import base64, hashlib, hmac, json, sys\n{code}\n\
         for line in sys.argv[2:]: print(key_hash(sys.argv[1].encode(), json.loads(line)))"
    );
    let parts: Vec<String> = vectors().into_iter().map(|(parts, _)| parts).collect();
    let output =
        Command::new("/usr/bin/python3").args(["-c", &program, SECRET]).args(&parts).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let hashes: Vec<String> = vectors().into_iter().map(|(_, hash)| hash).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().collect::<Vec<_>>(), hashes);
}
