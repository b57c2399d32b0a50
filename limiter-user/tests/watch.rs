//! `limiterctl watch` against a real limiterd that guards a veth pair: drops as lines, as JSON, as a capture that
//! tcpdump reads, under a flood, and when limiterd is killed.
// suite: budget=120
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests

mod site;

use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use aya::maps::{Map, MapData, PerCpuArray, RingBuf};
use limiter_tests::clock::wait_for;
use limiter_tests::frame::{ICMP, IPV4, V4, ethernet, icmp};
use limiter_tests::namespace::{GUARDED, GUARDED_V4, PEER, PEER_V4, Pair};
use limiter_tests::stop::{KillOnDrop, SetOnDrop};
use limiter_tests::wire::RawSocket;
use serde_json::Value;
use site::{PING_POLICY, Site, ping};

const PATIENCE: Duration = Duration::from_secs(60);

fn watch(site: &Site, arguments: &[&str]) -> KillOnDrop {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiterctl"));
    command.env_clear().env("LIMITER_SOCKET", site.path("limiterd.sock"));
    command.arg("watch").args(arguments);
    KillOnDrop(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Pings until whoever watches has seen enough; what he wrote.
fn pinged_until_it_ends(pair: &Pair, watch: &mut KillOnDrop) -> String {
    wait_for("the watch to end", PATIENCE, || {
        ping(pair, 10);
        watch.0.try_wait().unwrap()
    });
    output(&mut watch.0)
}

fn output(child: &mut Child) -> String {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let mut talk = String::new();
    child.stderr.take().unwrap().read_to_string(&mut talk).unwrap();
    assert!(child.wait().unwrap().success(), "{text}{talk}");
    text
}

#[test]
fn a_drop_is_shown_with_rule_and_reason() {
    let pair = Pair::addressed();
    let mut site = Site::new("watch-lines");
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 6), 5, "the burst");

    let text = pinged_until_it_ends(&pair, &mut watch(&site, &["-o", "json", "-n", "3"]));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    for event in lines {
        for (key, value) in [
            ("interface", GUARDED),
            ("family", "ipv4"),
            ("source", PEER_V4),
            ("protocol", "icmp"),
            ("rule", "ping"),
            ("verdict", "drop"),
            ("reason", "over"),
        ] {
            assert_eq!(event[key], value, "{event}");
        }
        // 20 bytes of IP, 8 of ICMP, 56 of data.
        assert_eq!((&event["icmp_type"], &event["length"]), (&Value::from(8), &Value::from(84)), "{event}");
        assert_eq!((&event["source_port"], &event["frame"]), (&Value::Null, &Value::Null), "{event}");
    }

    let text = pinged_until_it_ends(
        &pair,
        &mut watch(&site, &["--rule", "ping", "--source", "192.0.2.0/24", "-n", "2"]),
    );
    let expected = format!(" {GUARDED} drop over ping {PEER_V4} > icmp/8 84 B");
    assert!(text.lines().count() == 2 && text.lines().all(|line| line.ends_with(&expected)), "{text}");

    // Of somebody else nothing is seen, and nobody is not a rule.
    let mut other = watch(&site, &["--source", "203.0.113.0/24"]);
    ping(&pair, 50);
    let refused = site.ctl(&["watch", "--rule", "pong"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no rule is named `pong`"));
    other.0.kill().unwrap();
    let mut seen = String::new();
    other.0.stdout.take().unwrap().read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "");
}

#[test]
fn tcpdump_reads_the_capture() {
    let pair = Pair::addressed();
    let mut site = Site::new("watch-pcap");
    site.start(&pair, GUARDED);
    ping(&pair, 6);
    let file = site.path("drops.pcapng").display().to_string();
    let text = pinged_until_it_ends(&pair, &mut watch(&site, &["--pcap", &file, "-n", "3"]));
    assert_eq!(text, "");
    // 56 bytes of data; 98 of the frame are all below 128, so nothing is cut.
    let dump = tcpdump(&["-e", "-r", &file]);
    assert_eq!(dump.lines().count(), 3, "{dump}");
    let packet = format!("length 98: {PEER_V4} > {GUARDED_V4}: ICMP echo request");
    assert!(dump.lines().all(|line| line.contains(&packet)), "{dump}");
    let bytes = fs::read(&file).unwrap();
    let comment = b"drop over ping";
    assert_eq!(bytes.windows(comment.len()).filter(|part| part == comment).count(), 3);
    assert!(bytes.windows(6).any(|part| part == GUARDED.as_bytes()), "the interface has its name");

    let mut piped = watch(&site, &["--pcap", "-", "-n", "2"]);
    let reader = Command::new("tcpdump")
        .args(["-nn", "-r", "-"])
        .stdin(piped.0.stdout.take().unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the watch to end", PATIENCE, || {
        ping(&pair, 10);
        piped.0.try_wait().unwrap()
    });
    let seen = String::from_utf8(reader.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(seen.matches("ICMP echo request").count(), 2, "{seen}");
}

fn tcpdump(arguments: &[&str]) -> String {
    let output = Command::new("tcpdump").arg("-nn").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_flood_is_sampled_and_the_rest_counted() {
    let pair = Pair::addressed();
    let mut site = Site::new("watch-flood");
    fs::write(site.path("policy.toml"), PING_POLICY.replace("burst = 5", "burst = 1")).unwrap();
    site.start(&pair, GUARDED);
    let mut watch = watch(&site, &["-o", "json"]);
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let (mut drops, mut lost) = (0, 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| pair.peer.run(|| flood(&done)));
        let _end = SetOnDrop(&done);
        while lost < 20_000 || drops < 500 {
            let message: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            match message["lost"].as_u64() {
                Some(more) => lost += more,
                None => drops += 1,
            }
        }
    });
    // The daemon answers meanwhile, and its counters are exact.
    assert!(site.counts("ping").1 >= lost);
}

#[test]
fn top_tells_ports_and_sizes_of_what_is_dropped() {
    let pair = Pair::addressed();
    let mut site = Site::new("watch-top");
    site.start(&pair, GUARDED);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| pair.peer.run(|| flood(&done)));
        let _end = SetOnDrop(&done);
        // IP and ICMP without data are 28 bytes.
        for (by, key) in [("port", "icmp/8"), ("source-port", "icmp"), ("size", "0-63")] {
            let before = site.counts("ping").1;
            let answer = site.json(&["top", "--by", by, "--rule", "ping"]);
            assert_eq!(
                (&answer["by"], answer["drops"].as_array().unwrap().len()),
                (&Value::from(by), 1),
                "{answer}"
            );
            let group = &answer["drops"][0];
            assert_eq!(
                (&group["key"], &group["rule"]),
                (&Value::from(key), &Value::from("ping")),
                "{answer}"
            );
            let packets = group["packets"].as_u64().unwrap();
            assert!(packets > 0 && packets <= site.counts("ping").1, "{answer}");
            assert_eq!(group["bytes"].as_u64().unwrap(), packets * 28, "{answer}");
            assert_eq!(group["share"], 1.0, "{answer}");
            assert!(
                group["samples"].as_u64().unwrap() < packets || before < 2000,
                "a flood is sampled: {answer}"
            );
            assert!(answer["window_s"].as_f64().unwrap() >= 1.9, "{answer}");
        }
        let lines = site.ctl(&["top", "--by", "port", "-n", "1"]);
        let (text, talk) =
            (String::from_utf8(lines.stdout).unwrap(), String::from_utf8(lines.stderr).unwrap());
        assert!(
            text.starts_with("PORT") && text.lines().nth(1).unwrap().starts_with("icmp/8  ping"),
            "{text}"
        );
        assert!(talk.starts_with("≈ from ") && talk.contains(" drops in the last "), "{talk}");
    });
    let refused = site.ctl(&["top", "--by", "port", "--rule", "pong"]);
    assert_eq!(refused.status.code(), Some(1));
}

/// Pings as fast as the link takes them: many times the budget of events.
fn flood(done: &AtomicBool) {
    let socket = RawSocket::open(PEER).unwrap();
    let frame = ethernet(&[], IPV4, &V4::from(PEER_V4).packet(ICMP, &icmp(8, 0)));
    let frames = vec![frame; 64];
    while !done.load(Ordering::Relaxed) {
        // A full ring is waited for by the next try.
        let _ = socket.send_batch(&frames);
    }
}

/// Events in the ring and the lost of a pin path.
fn told_and_lost(site: &Site) -> (usize, u64) {
    let map = |name: &str| MapData::from_pin(site.pin.join(name)).unwrap();
    let mut ring = RingBuf::try_from(Map::RingBuf(map("events"))).unwrap();
    let mut told = 0;
    while ring.next().is_some() {
        told += 1;
    }
    let lost = PerCpuArray::<_, u64>::try_from(Map::PerCpuArray(map("events_lost"))).unwrap();
    (told, lost.get(&0, 0).unwrap().iter().sum())
}

#[test]
fn a_killed_daemon_leaves_nobody_watching() {
    let pair = Pair::addressed();
    let mut site = Site::new("watch-killed");
    site.start(&pair, GUARDED);
    ping(&pair, 6);
    let mut watch = watch(&site, &[]);
    let mut pings = pair.peer.command("ping");
    let mut pings =
        KillOnDrop(pings.args(["-i", "0.05", "-q", GUARDED_V4]).stdout(Stdio::null()).spawn().unwrap());
    let mut first = String::new();
    BufReader::new(watch.0.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("drop over ping"), "{first}");
    pings.kill();
    site.end("-KILL");
    let status = wait_for("the watch to end", PATIENCE, || watch.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(3), "the daemon is not there any more");
    // The program goes on telling for the few seconds the daemon had said, and then by itself no longer.
    wait_for("the program to tell no more", PATIENCE, || {
        let (_, before) = told_and_lost(&site);
        ping(&pair, 10);
        (told_and_lost(&site) == (0, before)).then_some(())
    });
    // A new daemon watches only when somebody asks.
    site.start(&pair, GUARDED);
    ping(&pair, 10);
    assert_eq!(told_and_lost(&site).0, 0);
}
