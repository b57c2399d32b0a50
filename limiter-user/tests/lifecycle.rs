//! `kill -9` of limiterd, fifty times, under traffic: dropping goes on, buckets are kept, the next start adopts,
//! no packet passes unjudged, and the counters are what was counted outside.
// suite: budget=240
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use aya::programs::links::{FdLink, PinnedLink};
use limiter_tests::{
    clock::wait_for,
    frame::{ACK, IPV4, IPV6, TCP, UDP, V4, V6, ethernet, tcp, udp},
    kernel::PinDirectory,
    namespace::{GUARDED, Pair},
    random::Random,
    stop::{KillOnDrop, SetOnDrop},
    wire::Wire,
};
use serde_json::Value;

/// How often limiterd is killed: fifty times, or what the environment says, as an emulated machine is slow.
fn kills() -> u64 {
    std::env::var("LIMITER_TEST_KILLS").map_or(50, |count| count.parse().unwrap())
}

/// A packet comes back to the bucket in three minutes.
const POLICY: &str = r#"version = 1

[sets]
bad = ["198.51.100.0/24", "2001:db8:bad::/48"]

[[rule]]
name = "bad"
from = "bad"
verdict = "drop"

[[rule]]
name = "ssh"
to = ["tcp/22"]
verdict = "pass"

[[rule]]
name = "queries"
to = ["udp/53"]
limit = [{ per = "source", rate = "5/15m", burst = 5 }]
"#;

/// Dropped twice, passed twice, limited twice.
fn frames() -> Vec<Vec<u8>> {
    vec![
        ethernet(&[], IPV4, &V4::from("198.51.100.9").packet(UDP, &udp(1, 53, b"four"))),
        ethernet(&[], IPV6, &V6::from("2001:db8:bad::9").packet(UDP, &udp(1, 53, b""))),
        ethernet(&[], IPV4, &V4::from("192.0.2.9").packet(TCP, &tcp(1, 22, ACK))),
        ethernet(&[], IPV6, &V6::from("2001:db8::9").packet(TCP, &tcp(1, 23, ACK))),
        ethernet(&[], IPV4, &V4::from("192.0.2.9").packet(UDP, &udp(1, 53, b""))),
        ethernet(&[], IPV6, &V6::from("2001:db8::9").packet(UDP, &udp(1, 53, b""))),
    ]
}

struct Site {
    directory: tempfile::TempDir,
    pin: PinDirectory,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("policy.toml"), POLICY).unwrap();
        Self { directory, pin: PinDirectory::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts limiterd in the guarded namespace and does not wait for it.
    fn start(&self, pair: &Pair) -> KillOnDrop {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = pair.guarded.command(env!("CARGO_BIN_EXE_limiterd"));
        command.env_clear().stderr(log);
        self.name(&mut command);
        command.env("LIMITER_INTERFACES", GUARDED).env("LIMITER_MODE", "native");
        command.env("LIMITER_POLICY", self.path("policy.toml")).env("LIMITER_STATE", self.path("state"));
        command.env("LIMITER_METRICS", "").env("LIMITER_BUCKETS", "262144");
        KillOnDrop(command.spawn().unwrap())
    }

    fn name(&self, command: &mut Command) {
        command.env("LIMITER_SOCKET", self.path("limiterd.sock")).env("LIMITER_PIN", self.pin.path());
    }

    fn ctl(&self, arguments: &[&str]) -> Option<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_limiterctl"));
        command.env_clear().args(["-o", "json"]).args(arguments);
        self.name(&mut command);
        let output = command.output().unwrap();
        if !output.status.success() {
            return None;
        }
        Some(serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Waits until limiterd answers, and says what it counts.
    fn stats(&self, KillOnDrop(daemon): &mut KillOnDrop) -> Stats {
        let answer = wait_for("limiterd to answer", Duration::from_secs(60), || {
            if let Some(status) = daemon.try_wait().unwrap() {
                panic!("limiterd ended ({status}): {}", fs::read_to_string(self.path("log")).unwrap());
            }
            self.ctl(&["stats"])
        });
        let rows = answer["stats"].as_array().unwrap().iter();
        let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
        rows.map(|row| {
            let key = (text(row, "rule"), text(row, "reason"), text(row, "family"));
            (key, (number(row, "packets"), number(row, "bytes")))
        })
        .collect()
    }
}

/// Packets and bytes by rule, reason and family.
type Stats = BTreeMap<(String, String, String), (u64, u64)>;

#[test]
fn fifty_kills_under_traffic() {
    let kills = kills();
    let pair = Pair::silent();
    let site = Site::new();
    let frames = frames();
    let mut daemon = site.start(&pair);
    let begun = Instant::now();
    let mut before = site.stats(&mut daemon);
    let guard = link(site.pin.path());

    let mut wire = Wire::open(&pair);
    let done = AtomicBool::new(false);
    let (rounds, through) = thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let (mut rounds, mut through) = (0_u64, [0_u64; 6]);
            while !done.load(Ordering::Relaxed) {
                for frame in wire.pass(&frames) {
                    let kind = frames.iter().position(|sent| *sent == frame).expect("only what was sent");
                    through[kind] += 1;
                }
                rounds += 1;
            }
            (rounds, through)
        });
        let stop = SetOnDrop(&done);
        let mut random = Random::new(50);
        for kill_number in 0..kills {
            daemon.kill();
            daemon = site.start(&pair);
            // Every second one is killed while it starts, at any moment of it.
            if kill_number % 2 == 0 {
                thread::sleep(Duration::from_millis(random.below(1000)));
                continue;
            }
            let after = site.stats(&mut daemon);
            for (key, (packets, bytes)) in &before {
                let now = after.get(key).unwrap_or_else(|| panic!("{key:?} is counted no more"));
                assert!(
                    now.0 >= *packets && now.1 >= *bytes,
                    "{key:?} went back from {packets} to {}",
                    now.0
                );
            }
            let status = site.ctl(&["status"]).expect("nothing is degraded");
            assert_eq!(status["policy"]["generation"], 1, "the next start adopts");
            before = after;
            thread::sleep(Duration::from_millis(random.below(100)));
        }
        drop(stop);
        traffic.join().unwrap()
    });

    // What came through, by hand: nothing of the bad, all of the passed, a burst and what came back to it of the limited.
    assert!(rounds > 10 * kills, "{rounds} rounds are no traffic");
    assert_eq!(through[..4], [0, 0, rounds, rounds], "dropped, dropped, passed, passed");
    let refilled = begun.elapsed().as_secs() / 180 + 1;
    for limited in &through[4..] {
        assert!((5..=5 + refilled).contains(limited), "{limited} of a burst of 5 came through");
    }

    // And what was counted, to the byte, from the IP header on.
    let after = site.stats(&mut daemon);
    let row = |rule: &str, reason: &str, family: &str, packets: u64, length: u64| {
        let key = (rule.to_owned(), reason.to_owned(), family.to_owned());
        (key, (packets, packets * length))
    };
    let fences = wire.fences();
    let expected = Stats::from([
        row("bad", "rule-drop", "ipv4", rounds, 32),
        row("bad", "rule-drop", "ipv6", rounds, 48),
        row("ssh", "rule-pass", "ipv4", rounds, 40),
        row("", "default", "ipv6", rounds, 60),
        row("queries", "within", "ipv4", through[4], 28),
        row("queries", "within", "ipv6", through[5], 48),
        row("queries", "over", "ipv4", rounds - through[4], 28),
        row("queries", "over", "ipv6", rounds - through[5], 48),
        // "fence" and its number.
        row("", "non-ip", "other", fences, 13),
    ]);
    assert_eq!(after, expected);
    assert_eq!(link(site.pin.path()), guard, "one link guarded all the time");

    // A detach removes what was made, and holds.
    assert!(site.ctl(&["detach", GUARDED]).is_some());
    assert!(!site.pin.path().exists(), "no pin is left");
    assert!(wire.pass(&frames) == frames, "nothing is judged any more");
    daemon.kill();
    daemon = site.start(&pair);
    site.stats(&mut daemon);
    assert!(wire.pass(&frames) == frames, "a restart does not attach again");
}

/// Id of the one BPF link that is pinned.
fn link(pin: &Path) -> u32 {
    let pins = fs::read_dir(pin).unwrap().map(|entry| entry.unwrap().path());
    let links: Vec<PathBuf> =
        pins.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("link-")).collect();
    assert_eq!(links.len(), 1, "one link is pinned: {links:?}");
    FdLink::from(PinnedLink::from_pin(&links[0]).unwrap()).info().unwrap().id()
}
