//! `limiterctl trace` against a real limiterd that guards a veth pair: each decision about one source and none about
//! another, the end of a trace, and what is left of one whose daemon was killed.
// suite: budget=120
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests

mod site;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use limiter_tests::clock::wait_for;
use limiter_tests::frame::{ACK, IPV4, IPV6, TCP, UDP, V4, V6, ethernet, tcp, udp};
use limiter_tests::namespace::{GUARDED, PEER, Pair};
use limiter_tests::stop::{KillOnDrop, SetOnDrop};
use limiter_tests::wire::{RawSocket, Wire};
use serde_json::{Value, json};
use site::{Site, another_program, program};

const PATIENCE: Duration = Duration::from_secs(60);

const POLICY: &str = r#"version = 1
[[rule]]
name = "trial"
to = "udp/7000"
mode = "observe"
verdict = "drop"
[[rule]]
name = "closed"
to = "tcp/23"
verdict = "drop"
[[rule]]
name = "dns"
to = "udp/53"
limit = [{ per = "source", rate = "1/m", burst = 2 }]
"#;

fn started(name: &str) -> (Pair, Site) {
    let pair = Pair::silent();
    let mut site = Site::new(name);
    fs::write(site.path("policy.toml"), POLICY).unwrap();
    site.start(&pair, GUARDED);
    (pair, site)
}

fn trace(site: &Site, arguments: &[&str]) -> KillOnDrop {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiterctl"));
    command.env_clear().env("LIMITER_SOCKET", site.path("limiterd.sock"));
    command.args(["-o", "json", "trace"]).args(arguments);
    KillOnDrop(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

fn v4(source: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from(source).packet(protocol, payload))
}

#[test]
fn each_decision_about_a_source_is_told_and_none_about_another() {
    let (pair, mut site) = started("trace-decisions");
    let own = program(&pair);
    let mut trace = trace(&site, &["203.0.113.9", "--for", "10m"]);
    another_program(&pair, &own);
    let dns = v4("203.0.113.9", UDP, &udp(4321, 53, b"query"));
    let carried = ethernet(&[], IPV6, &V6::from("::ffff:203.0.113.9").packet(TCP, &tcp(5, 23, ACK)));
    let frames = [
        dns.clone(),
        dns.clone(),
        dns,
        v4("203.0.113.8", UDP, &udp(4321, 53, b"query")),
        v4("203.0.113.9", TCP, &tcp(1000, 23, ACK)),
        carried,
        v4("203.0.113.9", UDP, &udp(1, 7000, b"")),
        v4("203.0.113.9", TCP, &tcp(1000, 80, ACK)),
    ];
    // The program decides as ever: what passes is what the other one would let pass.
    let mut wire = Wire::open(&pair);
    let passed = wire.pass(&frames);
    let places: Vec<_> = passed.iter().map(|frame| frames.iter().position(|sent| sent == frame)).collect();
    assert_eq!(places, [0, 0, 3, 6, 7].map(Some));

    let mut lines = BufReader::new(trace.0.stdout.take().unwrap()).lines();
    let mut next = || {
        let said: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((&said["source"], &said["interface"]), (&json!("203.0.113.9"), &json!(GUARDED)), "{said}");
        let observed = said["observed"]["rule"].clone();
        json!([
            said["verdict"],
            said["reason"],
            said["rule"],
            said["destination_port"],
            said["length"],
            observed
        ])
    };
    let seen: Vec<Value> = (0..7).map(|_| next()).collect();
    // 20 bytes of IPv4, 40 of IPv6, 8 of UDP, 20 of TCP, 5 of a query.
    assert_eq!(
        seen,
        [
            json!(["pass", "within", "dns", 53, 33, null]),
            json!(["pass", "within", "dns", 53, 33, null]),
            json!(["drop", "over", "dns", 53, 33, null]),
            json!(["drop", "rule-drop", "closed", 23, 40, null]),
            json!(["drop", "rule-drop", "closed", 23, 60, null]),
            json!(["pass", "default", "", 7000, 28, "trial"]),
            json!(["pass", "default", "", 80, 40, null]),
        ]
    );
    // Nothing came in between.
    wire.pass(&[v4("203.0.113.8", TCP, &tcp(1, 81, ACK)), v4("203.0.113.9", TCP, &tcp(1, 82, ACK))]);
    assert_eq!(next()[3], 82);
    // A daemon that is told to end puts the program back that guards without a trace.
    site.end("-TERM");
    assert_eq!(program(&pair), own);
}

#[test]
fn a_trace_ends_with_who_asked_and_there_is_one_at_a_time() {
    let (pair, site) = started("trace-one");
    let own = program(&pair);
    let mut first = trace(&site, &["2001:db8::/32", "--for", "10m"]);
    another_program(&pair, &own);
    let refused = site.ctl(&["trace", "203.0.113.9"]);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.starts_with("error: another trace runs\n"), "{error}");
    first.kill();
    wait_for("the program to be put back", PATIENCE, || (program(&pair) == own).then_some(()));
    for (arguments, code) in
        [(["trace", "office", "--for", "1s"], 1), (["trace", "203.0.113.9", "--for", "2h"], 1)]
    {
        assert_eq!(site.ctl(&arguments).status.code(), Some(code), "{arguments:?}");
    }
    let status = site.ctl(&["trace", "203.0.113.9", "--for", "1s"]);
    assert!(status.status.success(), "and again: {}", String::from_utf8_lossy(&status.stderr));
    wait_for("the program to be put back", PATIENCE, || (program(&pair) == own).then_some(()));
}

#[test]
fn a_flood_of_the_source_is_told_of_within_the_budget() {
    let (pair, site) = started("trace-flood");
    let own = program(&pair);
    let mut trace = trace(&site, &["203.0.113.0/24", "--for", "10m"]);
    another_program(&pair, &own);
    let mut lines = BufReader::new(trace.0.stdout.take().unwrap()).lines();
    let done = AtomicBool::new(false);
    let (mut told, mut lost) = (0_u64, 0_u64);
    thread::scope(|scope| {
        scope.spawn(|| {
            pair.peer.run(|| {
                let socket = RawSocket::open(PEER).unwrap();
                let frames: Vec<Vec<u8>> =
                    (0..64).map(|last| v4(&format!("203.0.113.{last}"), UDP, &udp(1, 53, b""))).collect();
                while !done.load(Ordering::Relaxed) {
                    let _ = socket.send_batch(&frames);
                }
            });
        });
        let _end = SetOnDrop(&done);
        let mut sources = BTreeSet::new();
        while lost < 20_000 || sources.len() < 64 {
            let said: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            match said["lost"].as_u64() {
                Some(more) => lost += more,
                None => {
                    told += 1;
                    sources.insert(said["source"].to_string());
                }
            }
        }
        // The daemon answers meanwhile.
        let status = site.json(&["status"]);
        assert_eq!(status["degraded"], false, "{status}");
    });
    assert!(told < lost, "{told} {lost}");
}

#[test]
fn a_killed_daemon_leaves_a_guard_and_the_next_one_puts_its_own_back() {
    let (pair, mut site) = started("trace-killed");
    let own = program(&pair);
    let mut trace = trace(&site, &["203.0.113.9", "--for", "10m"]);
    let tracing = another_program(&pair, &own);
    site.end("-KILL");
    let status = wait_for("the trace to end", PATIENCE, || trace.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(3), "the daemon is not there any more");
    assert_eq!(program(&pair), tracing);
    let frames = [v4("203.0.113.9", TCP, &tcp(1, 23, ACK)), v4("203.0.113.9", TCP, &tcp(1, 80, ACK))];
    let mut wire = Wire::open(&pair);
    assert_eq!(wire.pass(&frames), frames[1..], "it judges on");
    site.start(&pair, GUARDED);
    let again = another_program(&pair, &tracing);
    assert_ne!(again, own, "the program of the new daemon");
    assert!(wire.pass(&frames) == frames[1..]);
    assert_eq!(site.counts("closed").1, 2);
}
