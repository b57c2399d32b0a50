//! limiterd and limiterctl on a real kernel: what a user meets first when something is missing, and what stays
//! when the daemon goes.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use limiter_tests::clock::wait_for;
use limiter_tests::namespace::{GUARDED, GUARDED_V4, Pair};
use serde_json::Value;

const POLICY: &str = r#"version = 1

[[rule]]
name = "ping"
to = ["icmp/echo-request", "icmpv6/echo-request"]
limit = [ { per = "source", rate = "1/m", burst = 5 } ]
"#;

/// A daemon of its own: directory, pins, socket. Everything is removed when dropped.
struct Site {
    directory: tempfile::TempDir,
    pin: PathBuf,
    daemon: Option<Child>,
}

impl Site {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(directory.path().join("policy.toml"), POLICY).unwrap();
        let pin = PathBuf::from(format!("/sys/fs/bpf/limiter-test-{}-{name}", std::process::id()));
        Self { directory, pin, daemon: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `command` runs limiterd, in some namespace, as some user.
    fn configure(&self, command: &mut Command, interfaces: &str) {
        command
            .env_clear()
            .env("LIMITER_INTERFACES", interfaces)
            .env("LIMITER_POLICY", self.path("policy.toml"))
            .env("LIMITER_PIN", &self.pin)
            .env("LIMITER_STATE", self.path("state"))
            .env("LIMITER_SOCKET", self.path("limiterd.sock"))
            .env("LIMITER_METRICS", "")
            .env("LIMITER_BUCKETS", "16384");
    }

    fn start(&mut self, pair: &Pair, interfaces: &str) {
        let mut command = pair.guarded.command(env!("CARGO_BIN_EXE_limiterd"));
        self.configure(&mut command, interfaces);
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut child = command.stderr(log).spawn().unwrap();
        wait_for("limiterd to answer", Duration::from_secs(60), || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("limiterd ended ({status}): {}", fs::read_to_string(self.path("log")).unwrap());
            }
            self.ctl(&["history"]).status.success().then_some(())
        });
        self.daemon = Some(child);
    }

    fn end(&mut self, signal: &str) {
        let mut daemon = self.daemon.take().unwrap();
        let killed = Command::new("kill").args([signal, &daemon.id().to_string()]).status().unwrap();
        assert!(killed.success());
        daemon.wait().unwrap();
    }

    fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_limiterctl"));
        command.env_clear().env("LIMITER_SOCKET", self.path("limiterd.sock")).env("LIMITER_PIN", &self.pin);
        command.args(arguments).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&[&["-o", "json"], arguments].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Packets of the rule `ping`: passed, dropped.
    fn pings(&self) -> (u64, u64) {
        let stats = self.json(&["stats", "--rule", "ping"]);
        let sum = |verdict: &str| {
            let rows = stats["stats"].as_array().unwrap().iter();
            rows.filter(|row| row["verdict"] == verdict).map(|row| row["packets"].as_u64().unwrap()).sum()
        };
        (sum("pass"), sum("drop"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        self.ctl(&["detach", "--direct", "--all"]);
        let _ = fs::remove_dir(&self.pin);
    }
}

/// Sends that many pings, and counts the answers.
fn ping(pair: &Pair, count: u32) -> u64 {
    let mut command = pair.peer.command("ping");
    let output = command
        .args(["-c", &count.to_string(), "-i", "0.002", "-W", "1", "-q", GUARDED_V4])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answers =
        text.lines().find(|line| line.contains("received")).and_then(|line| line.split(", ").nth(1));
    answers.and_then(|answers| answers.split(' ').next()?.parse().ok()).unwrap_or_else(|| {
        panic!("ping says: {text}{}", String::from_utf8_lossy(&output.stderr));
    })
}

/// What limiterd says when it cannot start.
fn refused(site: &Site, command: &mut Command, interfaces: &str) -> String {
    site.configure(command, interfaces);
    let output = command.stdin(Stdio::null()).output().unwrap();
    format!("{}[exit {}]\n", String::from_utf8_lossy(&output.stderr), output.status.code().unwrap())
}

fn expect(name: &str, site: &Site, text: &str) {
    let mut settings = insta::Settings::clone_current();
    let escape = |path: &Path| path.display().to_string().replace('.', "\\.");
    settings.add_filter(&escape(site.directory.path()), "DIRECTORY");
    settings.add_filter(&escape(&site.pin), "PIN");
    settings.add_filter(r"\bid \d+", "id ID");
    settings.set_omit_expression(true);
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

#[test]
fn without_root_limiterd_says_what_it_needs() {
    let site = Site::new("root");
    let pair = Pair::addressed();
    // Nobody cannot look into the directories tests are built in.
    fs::copy(env!("CARGO_BIN_EXE_limiterd"), site.path("limiterd")).unwrap();
    let mut command = Command::new(site.path("limiterd"));
    command.uid(65_534).gid(65_534);
    expect("limiterd_no_root", &site, &refused(&site, &mut command, GUARDED));
    drop(pair);
}

#[test]
fn without_a_bpf_file_system_limiterd_says_how_to_mount_one() {
    let mut site = Site::new("bpffs");
    site.pin = site.path("pin");
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiterd"));
    expect("limiterd_no_bpffs", &site, &refused(&site, &mut command, "lo"));
}

#[test]
fn a_mistake_in_the_settings_has_a_position() {
    let site = Site::new("settings");
    fs::write(site.path("limiterd.toml"), "mode = \"auto\"\nintarfaces = [\"eth0\"]\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiterd"));
    command.arg("--config").arg(site.path("limiterd.toml"));
    expect("limiterd_settings", &site, &refused(&site, &mut command, "lo"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiterd"));
    command.arg("--config").arg(site.path("none.toml"));
    expect("limiterd_no_settings", &site, &refused(&site, &mut command, "lo"));
}

#[test]
fn check_config_checks_the_policy_too() {
    let site = Site::new("check");
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_limiterd"));
        command.arg("--check-config");
        site.configure(&mut command, "lo");
        command.output().unwrap()
    };
    assert_eq!(run().status.code(), Some(0));
    fs::write(site.path("policy.toml"), "version = 1\ncolour = 1\n").unwrap();
    assert_eq!(run().status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run().stderr).contains("policy.toml:2:1: unknown key `colour`"));
}

#[test]
fn a_second_daemon_is_refused_before_it_touches_anything() {
    let mut site = Site::new("second");
    let pair = Pair::addressed();
    site.start(&pair, GUARDED);
    let mut command = pair.guarded.command(env!("CARGO_BIN_EXE_limiterd"));
    expect("limiterd_twice", &site, &refused(&site, &mut command, GUARDED));
    assert_eq!(site.json(&["status"])["degraded"], false);
}

#[test]
fn a_foreign_program_is_left_alone_unless_replaced() {
    let pair = Pair::addressed();
    let mut foreign = Site::new("foreign");
    foreign.start(&pair, GUARDED);
    let mut site = Site::new("native");
    site.start(&pair, GUARDED);
    let output = site.ctl(&["status"]);
    assert_eq!(output.status.code(), Some(1), "an interface that should be guarded is not");
    let output = site.ctl(&["attach", GUARDED]);
    assert_eq!(output.status.code(), Some(1));
    expect("kernel_foreign_program", &site, &String::from_utf8_lossy(&output.stderr));
    assert!(foreign.ctl(&["detach", GUARDED]).status.success());
    assert!(site.ctl(&["attach", GUARDED]).status.success());
    assert_eq!(site.ctl(&["status"]).status.code(), Some(0));
}

#[test]
fn what_does_not_exist_is_said_not_to() {
    let pair = Pair::addressed();
    let mut site = Site::new("absent");
    site.start(&pair, GUARDED);
    let output = site.ctl(&["attach", "eth9"]);
    expect("kernel_no_such_interface", &site, &String::from_utf8_lossy(&output.stderr));
    let output = site.ctl(&["detach", "eth9"]);
    expect("kernel_not_attached", &site, &String::from_utf8_lossy(&output.stderr));
    let output = site.ctl(&["detach", "--direct", "eth9"]);
    expect("kernel_direct_absent", &site, &String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_daemon_that_dies_leaves_its_guard_and_the_next_adopts_it() {
    let pair = Pair::addressed();
    let mut site = Site::new("adopt");
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 20), 5);
    assert_eq!(site.pings(), (5, 15));
    assert_eq!(
        site.json(&["set-policy", &site.path("policy.toml").display().to_string()])["unchanged"],
        true
    );
    let mut expected = 15;
    for signal in ["-KILL", "-TERM", "-KILL"] {
        site.end(signal);
        assert_eq!(ping(&pair, 20), 0, "nobody fills a bucket anew");
        expected += 20;
        site.start(&pair, GUARDED);
        assert_eq!(site.pings(), (5, expected), "counters go on");
    }
    let status = site.json(&["status"]);
    assert_eq!(status["policy"]["generation"], 1);
    assert_eq!(status["interfaces"][0]["name"], GUARDED);
    let top = site.json(&["top"]);
    assert_eq!(top["sources"][0]["source"], "192.0.2.2", "{top}");
    assert_eq!(top["sources"][0]["passed"], 5);
}

#[test]
fn a_changed_number_keeps_the_bucket() {
    let pair = Pair::addressed();
    let mut site = Site::new("number");
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 20), 5);
    fs::write(site.path("policy.toml"), POLICY.replace("burst = 5", "burst = 8")).unwrap();
    assert_eq!(site.json(&["reload"])["generation"], 2);
    assert_eq!(ping(&pair, 20), 3, "five of eight are spent");
}

#[test]
fn a_detach_removes_what_was_made_and_holds_over_a_restart() {
    let pair = Pair::addressed();
    let mut site = Site::new("detach");
    site.start(&pair, GUARDED);
    assert!(site.ctl(&["detach", GUARDED]).status.success());
    assert!(!site.pin.exists(), "the last detach removes every pin");
    assert_eq!(ping(&pair, 10), 10);
    site.end("-KILL");
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 10), 10);
    assert_eq!(site.json(&["status"])["unguarded"][0]["detached"], true);
    assert!(site.ctl(&["attach", GUARDED]).status.success());
    assert_eq!(ping(&pair, 10), 5);
    site.end("-TERM");
    let mut direct = pair.guarded.command(env!("CARGO_BIN_EXE_limiterctl"));
    direct.env_clear().env("LIMITER_PIN", &site.pin).args(["detach", "--direct", GUARDED]);
    assert!(direct.status().unwrap().success());
    assert!(!site.pin.exists());
    assert_eq!(ping(&pair, 10), 10);
}

#[test]
fn an_interface_is_guarded_when_it_appears_comes_back_and_is_renamed() {
    let pair = Pair::addressed();
    let mut site = Site::new("links");
    site.start(&pair, "guard0,late0");
    let guarded = |site: &Site| -> Vec<String> {
        let status = site.json(&["status"]);
        let interfaces = status["interfaces"].as_array().unwrap().iter();
        interfaces.map(|interface| interface["name"].as_str().unwrap().to_owned()).collect()
    };
    let becomes = |site: &Site, names: &[&str]| {
        wait_for("the list of guarded interfaces", Duration::from_secs(30), || {
            (guarded(site) == names).then_some(())
        });
    };
    becomes(&site, &["guard0"]);
    for _ in 0..2 {
        pair.guarded.ip(&["link", "add", "late0", "type", "veth", "peer", "name", "late1"]);
        becomes(&site, &["guard0", "late0"]);
        pair.guarded.ip(&["link", "del", "late0"]);
        becomes(&site, &["guard0"]);
    }
    pair.guarded.ip(&["link", "set", GUARDED, "down"]);
    pair.guarded.ip(&["link", "set", GUARDED, "name", "wan0"]);
    pair.guarded.ip(&["link", "set", "wan0", "up"]);
    becomes(&site, &["wan0"]);
    assert_eq!(site.json(&["status"])["unguarded"][0]["name"], "guard0");
    pair.guarded.ip(&["link", "set", "wan0", "down"]);
    pair.guarded.ip(&["link", "set", "wan0", "name", GUARDED]);
    becomes(&site, &["guard0"]);
}
