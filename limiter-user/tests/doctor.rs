//! `limiterctl doctor` on a veth pair of its own: what it sees must be what is there.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod site;

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use aya::programs::{Xdp, XdpMode};
use limiter_tests::kernel::PinDirectory;
use limiter_tests::namespace::{GUARDED, Pair};
use limiter_user::datapath::{Kernel, Options};
use serde_json::Value;
use site::Site;

fn doctor(site: &Site, pair: &Pair, arguments: &[&str]) -> Output {
    let mut command = pair.guarded.command(env!("CARGO_BIN_EXE_limiterctl"));
    command.env_clear().env("LIMITER_SOCKET", site.path("limiterd.sock")).env("LIMITER_PIN", &site.pin);
    command.arg("doctor").args(arguments).output().unwrap()
}

fn findings(site: &Site, pair: &Pair) -> (Vec<Value>, i32) {
    let output = doctor(site, pair, &[GUARDED, "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    (report["findings"].as_array().unwrap().clone(), output.status.code().unwrap())
}

/// Status and message of a check.
fn finding<'a>(findings: &'a [Value], check: &str) -> (&'a str, &'a str) {
    let found =
        findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("no {check}"));
    (found["status"].as_str().unwrap(), found["message"].as_str().unwrap())
}

#[test]
fn a_veth_pair_is_fit_without_a_daemon() {
    let pair = Pair::silent();
    let site = Site::new("doctor-fit");
    let (findings, code) = findings(&site, &pair);
    assert_eq!(code, 0, "{findings:#?}");
    for check in ["kernel", "bpffs", "capabilities", "memlock", "link", "mtu", "membership", "program"] {
        assert_eq!(finding(&findings, check).0, "ok", "{check}: {findings:#?}");
    }
    assert!(finding(&findings, "driver").1.contains("`veth`"));
    assert!(finding(&findings, "mtu").1.starts_with("1500"));
    assert_eq!(finding(&findings, "socket").0, "warning");
    assert!(findings.iter().all(|finding| finding["status"] == "ok"
        || finding["status"] == "unknown"
        || finding["fix"].is_string()));
}

#[test]
fn a_guarded_interface_is_recognised() {
    let pair = Pair::silent();
    let mut site = Site::new("doctor-guarded");
    site.start(&pair, GUARDED);
    let (findings, code) = findings(&site, &pair);
    assert_eq!(code, 0, "{findings:#?}");
    assert!(finding(&findings, "program").1.starts_with("limiter's own"));
    assert!(finding(&findings, "driver").1.ends_with("guarded in native mode"));
    assert_eq!(finding(&findings, "daemon").0, "ok");
    assert!(finding(&findings, "capabilities").1.starts_with("limiterd has"));
    // Without a name it looks at what is guarded.
    let all = doctor(&site, &pair, &[]);
    assert!(String::from_utf8_lossy(&all.stdout).contains(&format!("{GUARDED} program")));
    // The daemon is gone and its guard is not.
    site.end("-KILL");
    let (findings, code) = self::findings(&site, &pair);
    assert_eq!((code, finding(&findings, "program").0), (1, "warning"), "{findings:#?}");
    assert!(finding(&findings, "socket").1.ends_with("nobody answers"));
}

#[test]
fn a_foreign_program_is_named() {
    let pair = Pair::silent();
    let site = Site::new("doctor-foreign");
    let pin = PinDirectory::new();
    let mut probe =
        Kernel::open_probe(&Options { pin: pin.path().to_owned(), buckets: 16_384, bans: 64 }).unwrap();
    let program: &mut Xdp = probe.program_mut("explain").unwrap().try_into().unwrap();
    program.load().unwrap();
    let id = program.info().unwrap().id();
    pair.guarded.run(|| program.attach(GUARDED, XdpMode::Skb).map(drop)).unwrap();
    let (findings, code) = findings(&site, &pair);
    assert_eq!(code, 1);
    let expected = format!("another XDP program is there (id {id}, `explain`, generic mode)");
    assert_eq!(finding(&findings, "program"), ("error", expected.as_str()));
}

#[test]
fn a_large_mtu_is_held_against_the_driver() {
    let pair = Pair::silent();
    let site = Site::new("doctor-mtu");
    pair.guarded.ip(&["link", "set", GUARDED, "mtu", "9000"]);
    let (findings, _) = findings(&site, &pair);
    // Since Linux 6.3 veth says that it hands over frames of several buffers.
    assert_eq!(finding(&findings, "mtu"), ("ok", "9000: the driver hands over frames of several buffers"));
}

#[test]
fn members_of_a_bridge_are_told_so() {
    let pair = Pair::silent();
    let site = Site::new("doctor-bridge");
    pair.guarded.ip(&["link", "add", "br0", "type", "bridge"]);
    pair.guarded.ip(&["link", "set", GUARDED, "master", "br0"]);
    let (findings, _) = findings(&site, &pair);
    let (status, message) = finding(&findings, "membership");
    assert_eq!(status, "warning");
    assert!(message.contains("port of the bridge `br0`"), "{message}");
}

#[test]
fn without_a_bpf_file_system_it_fails_and_says_how_to_mount_one() {
    let pair = Pair::silent();
    let mut site = Site::new("doctor-bpffs");
    site.pin = site.path("pin");
    let output = doctor(&site, &pair, &[GUARDED]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("is not in a bpf file system") && text.contains("mount -t bpf bpf /sys/fs/bpf"),
        "{text}"
    );
}

#[test]
fn an_interface_that_is_none_is_a_failure() {
    let pair = Pair::silent();
    let output = doctor(&Site::new("doctor-none"), &pair, &["eth9"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: there is no interface `eth9`"));
}

#[test]
fn without_root_it_says_what_it_cannot_see() {
    let pair = Pair::silent();
    let site = Site::new("doctor-nobody");
    // Nobody cannot look into the directories tests are built in.
    std::fs::copy(env!("CARGO_BIN_EXE_limiterctl"), site.path("limiterctl")).unwrap();
    let output = pair.guarded.run(|| {
        let mut command = Command::new(site.path("limiterctl"));
        command.env_clear().env("LIMITER_SOCKET", site.path("limiterd.sock")).uid(65_534).gid(65_534);
        command.args(["doctor", GUARDED, "-o", "json"]).output().unwrap()
    });
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(finding(findings, "capabilities").0, "unknown");
    assert_eq!(finding(findings, "driver").0, "ok");
}
