//! Who is proven, with a real limiterd: handshakes are seen while it is dead, and without cgroup2 it says so.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

// suite: budget=60

mod site;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData};
use limiter_tests::clock::wait_for;
use limiter_tests::namespace::{GUARDED, GUARDED_V4, PEER_V4, Pair};
use limiter_user::datapath::source_key;
use site::Site;

const POLICY: &str = "version = 1\n[[rule]]\nname = \"udp\"\nto = \"udp\"\nnewcomers = \"1k/s\"\n\
                      limit = [{ per = \"source\", rate = \"50/s\" }]\n";

fn site(name: &str) -> Site {
    let site = Site::new(name);
    fs::write(site.path("policy.toml"), POLICY).unwrap();
    site
}

fn is_proven(site: &Site, source: &str) -> bool {
    let map = MapData::from_pin(site.pin.join("proven")).unwrap();
    let map = HashMap::<_, [u64; 2], u32>::try_from(Map::LruHashMap(map)).unwrap();
    map.get(&source_key(source.parse().unwrap()), 0).is_ok()
}

fn warnings(site: &Site) -> Vec<String> {
    let status = site.json(&["status"]);
    let warnings = status["warnings"].as_array().unwrap().iter();
    warnings.map(|warning| warning.as_str().unwrap().to_owned()).collect()
}

#[test]
fn handshakes_are_seen_while_the_daemon_is_dead() {
    let pair = Pair::addressed();
    let mut site = site("proof");
    site.start(&pair, GUARDED);
    assert!(warnings(&site).is_empty(), "{:?}", warnings(&site));
    let listener = pair.guarded.run(|| TcpListener::bind((GUARDED_V4, 0)).unwrap());
    let to = listener.local_addr().unwrap();
    site.end("-KILL");
    assert!(!is_proven(&site, PEER_V4));
    let _stream = pair.peer.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap());
    listener.accept().unwrap();
    assert!(is_proven(&site, PEER_V4));

    // The next daemon takes it up, and a policy that does not ask ends it.
    site.start(&pair, GUARDED);
    assert!(is_proven(&site, PEER_V4) && site.pin.join("proof").exists());
    fs::write(site.path("policy.toml"), "version = 1\n").unwrap();
    assert!(site.ctl(&["reload"]).status.success());
    assert!(!site.pin.join("proof").exists());
    fs::write(site.path("policy.toml"), POLICY).unwrap();
    assert!(site.ctl(&["reload"]).status.success());
    assert!(site.pin.join("proof").exists());
    assert!(site.ctl(&["detach", "--all"]).status.success());
    assert!(!site.pin.exists(), "nothing stays behind");
    assert!(site.ctl(&["attach", GUARDED]).status.success());
    assert!(site.pin.join("proof").exists());
}

#[test]
fn without_cgroup2_nobody_is_proven_and_status_says_so() {
    let pair = Pair::addressed();
    let mut site = site("cgroup");
    let mut command = pair.guarded.command("unshare");
    command.args(["--mount", "sh", "-c", "umount --all --types cgroup2; exec \"$0\""]);
    command.arg(env!("CARGO_BIN_EXE_limiterd"));
    site.configure(&mut command, GUARDED);
    let log = fs::File::create(site.path("log")).unwrap();
    site.daemon = Some(command.stderr(log).spawn().unwrap());
    wait_for("limiterd to answer", Duration::from_secs(60), || {
        site.ctl(&["history"]).status.success().then_some(())
    });
    let warnings = warnings(&site);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("no source is proven, so newcomers are all alike: "), "{warnings:?}");
    assert!(warnings[0].contains("no cgroup2 file system is mounted on this host"), "{warnings:?}");
    let status = site.ctl(&["status"]);
    assert_eq!(status.status.code(), Some(0), "a warning, nothing worse");
}
