//! limiterd on virtio-net, whose driver runs the program itself, with real packets from one interface to the other.
//! `cargo xtask vm` runs it in a guest, which has three such interfaces, known by their addresses.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

#[path = "../site/mod.rs"]
mod site;

use std::fs;
use std::time::Duration;

use limiter_tests::clock::wait_for;
use limiter_tests::frame::{IPV4, TCP, UDP, V4, ethernet, tcp, udp};
use limiter_tests::namespace::{GUARDED, Pair};
use limiter_tests::wire::Wire;
use site::{Site, ping, ping_of};

/// Joined by a hub.
const FIRST: &str = "02:00:00:00:00:01";
const SECOND: &str = "02:00:00:00:00:02";
/// Its device is older than VIRTIO 1.0: the driver takes no program.
const OLD: &str = "02:00:00:00:00:03";

/// Name of the interface with that link address. One whose namespace was just removed takes a moment to come back.
fn interface(address: &str) -> String {
    wait_for("the interface to be there", Duration::from_secs(60), || {
        fs::read_dir("/sys/class/net").unwrap().flatten().find_map(|entry| {
            let found = fs::read_to_string(entry.path().join("address")).ok()?;
            (found.trim() == address).then(|| entry.file_name().into_string().unwrap())
        })
    })
}

/// Two virtio-net interfaces, one in each namespace.
fn joined() -> Pair {
    Pair::of_interfaces(&interface(FIRST), &interface(SECOND))
}

fn native(name: &str) -> Site {
    let mut site = Site::new(name);
    site.environment = [("LIMITER_MODE", "native"), ("LIMITER_BUCKETS", "262144")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    site
}

/// How the first interface of a running daemon is guarded.
fn mode(site: &Site) -> String {
    site.json(&["status"])["interfaces"][0]["mode"].as_str().unwrap_or("not").to_owned()
}

/// What the driver counts on all queues: `xdp_packets` it gave to the program, or `xdp_drops` it was told to drop.
fn driver_counts(pair: &Pair, what: &str) -> u64 {
    let output = pair.guarded.command("ethtool").args(["--statistics", GUARDED]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let counts: Vec<u64> = text
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        // Newer ones also have the sum, `rx_xdp_drops`.
        .filter(|(name, _)| name.ends_with(what) && name.contains(|letter: char| letter.is_ascii_digit()))
        .map(|(_, count)| count.parse().unwrap())
        .collect();
    assert!(!counts.is_empty(), "the driver does not count {what}: {text}");
    counts.iter().sum()
}

/// The running kernel's version.
fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    let mut next = || numbers.next().unwrap().parse().unwrap();
    (next(), next())
}

#[test]
fn the_driver_drops_what_the_policy_drops() {
    const ROUNDS: u64 = 1_000;
    let pair = joined();
    let mut site = native("drops");
    fs::write(
        site.path("policy.toml"),
        "version = 1\n[sets]\nbad = [\"198.51.100.0/24\"]\n\
         [[rule]]\nname = \"bad\"\nfrom = \"bad\"\nverdict = \"drop\"\n\
         [[rule]]\nname = \"queries\"\nto = [\"udp/53\"]\n\
         limit = [{ per = \"source\", rate = \"5/15m\", burst = 5 }]\n\
         [[rule]]\nname = \"web\"\nto = [\"tcp/443\"]\nverdict = \"pass\"\n",
    )
    .unwrap();
    site.start(&pair, GUARDED);
    assert_eq!(mode(&site), "native");
    let (judged, dropped) = (driver_counts(&pair, "xdp_packets"), driver_counts(&pair, "xdp_drops"));
    let bad = ethernet(&[], IPV4, &V4::from("198.51.100.9").packet(UDP, &udp(1, 80, b"bad")));
    let query = ethernet(&[], IPV4, &V4::from("192.0.2.9").packet(UDP, &udp(1, 53, b"query")));
    let web = ethernet(&[], IPV4, &V4::from("192.0.2.9").packet(TCP, &tcp(1, 443, 0x10)));
    let sent = [bad.clone(), query.clone(), web.clone()];
    let mut wire = Wire::open(&pair);
    let (mut bad_passed, mut queries_passed, mut web_passed) = (0, 0, 0);
    for _ in 0..ROUNDS {
        // Frames shorter than Ethernet's least may be filled up on the way.
        for frame in wire.pass(&sent) {
            bad_passed += u64::from(frame.starts_with(&bad));
            queries_passed += u64::from(frame.starts_with(&query));
            web_passed += u64::from(frame.starts_with(&web));
        }
    }
    assert_eq!((bad_passed, queries_passed, web_passed), (0, 5, ROUNDS));
    assert_eq!(site.counts("bad"), (0, ROUNDS));
    assert_eq!(site.counts("queries"), (5, ROUNDS - 5));
    assert_eq!(site.counts("web"), (ROUNDS, 0));
    // The driver saw the same: no skb was ever made of what was dropped.
    assert_eq!(driver_counts(&pair, "xdp_drops") - dropped, 2 * ROUNDS - 5);
    assert!(driver_counts(&pair, "xdp_packets") - judged >= 3 * ROUNDS);
}

#[test]
fn the_guard_outlives_its_daemon_in_the_driver() {
    let pair = joined();
    let mut site = native("outlives");
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 20), 5);
    site.end("-KILL");
    let dropped = driver_counts(&pair, "xdp_drops");
    assert_eq!(ping(&pair, 20), 0, "nobody fills a bucket anew");
    assert_eq!(driver_counts(&pair, "xdp_drops") - dropped, 20);
    site.start(&pair, GUARDED);
    assert_eq!(mode(&site), "native");
    assert_eq!(site.counts("ping"), (5, 35), "counters go on");
    assert!(site.ctl(&["detach", GUARDED]).status.success());
    assert_eq!(ping(&pair, 10), 10);
    assert!(site.ctl(&["attach", GUARDED, "--mode", "native"]).status.success());
    assert_eq!(ping(&pair, 10), 0, "the daemon still had the buckets");
}

/// Linux before 6.3 runs no multi-buffer programs in this driver: it takes them only where a frame fits a page.
#[test]
fn a_large_mtu_works_or_is_refused_with_a_sentence() {
    let pair = joined();
    pair.guarded.ip(&["link", "set", GUARDED, "mtu", "9000"]);
    pair.peer.ip(&["link", "set", "peer0", "mtu", "9000"]);
    let mut site = native("mtu");
    site.start(&pair, GUARDED);
    if kernel() < (6, 3) {
        let output = site.ctl(&["attach", GUARDED, "--mode", "native"]);
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "error: cannot attach to `guard0` in native mode: its driver does not take an MTU of 9000\n\n\
             hint: lower it with `ip link set guard0 mtu 1500`, or attach with `--mode generic`, which is slower\n"
        );
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(ping_of(&pair, 10, 8_000), 10, "nothing is guarded, and nothing is broken");
        // What the hint says helps.
        pair.guarded.ip(&["link", "set", GUARDED, "mtu", "1500"]);
        assert!(site.ctl(&["attach", GUARDED, "--mode", "native"]).status.success());
        assert_eq!(mode(&site), "native");
        assert_eq!(ping(&pair, 10), 5);
    } else {
        assert_eq!(mode(&site), "native");
        assert_eq!(ping_of(&pair, 10, 8_000), 5, "frames of several buffers are judged");
        assert_eq!(site.counts("ping"), (5, 5));
    }
}

#[test]
fn a_driver_without_native_mode_is_told_apart() {
    let pair = Pair::addressed();
    let old = interface(OLD);
    pair.guarded.take(&old, "old0");
    pair.guarded.ip(&["link", "set", "old0", "up"]);
    let mut site = native("old");
    site.start(&pair, GUARDED);
    let output = site.ctl(&["attach", "old0", "--mode", "native"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: cannot attach to `old0` in native mode: its driver does not support it\n\n\
         hint: `limiterctl attach old0 --mode generic` works everywhere, but is slower\n"
    );
    assert_eq!(output.status.code(), Some(1));
    // Where the mode is left to limiterd, it takes what works, and says so.
    let output = site.ctl(&["attach", "old0", "--mode", "auto"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("is guarded in generic mode"), "{said}");
    let log = fs::read_to_string(site.path("log")).unwrap();
    assert!(log.contains("no native mode, attached in generic mode, which is slower"), "{log}");
}
