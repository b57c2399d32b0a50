//! A real limiterd with a directory, pins and a socket of its own, in a network namespace of its own. Everything
//! is removed when it is dropped.
#![allow(dead_code)] // each test file uses its part
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::Duration;

use limiter_tests::clock::wait_for;
use limiter_tests::namespace::{GUARDED, GUARDED_V4, Pair};
use serde_json::Value;

/// Five pings, then one a minute.
pub const PING_POLICY: &str = r#"version = 1

[[rule]]
name = "ping"
to = ["icmp/echo-request", "icmpv6/echo-request"]
limit = [ { per = "source", rate = "1/m", burst = 5 } ]
"#;

/// Sends that many pings, and counts the answers.
pub fn ping(pair: &Pair, count: u32) -> u64 {
    ping_of(pair, count, 56)
}

/// The same with so many bytes in each.
pub fn ping_of(pair: &Pair, count: u32, bytes: u32) -> u64 {
    let mut command = pair.peer.command("ping");
    command.args([
        "-c",
        &count.to_string(),
        "-s",
        &bytes.to_string(),
        "-i",
        "0.002",
        "-W",
        "1",
        "-q",
        GUARDED_V4,
    ]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answers =
        text.lines().find(|line| line.contains("received")).and_then(|line| line.split(", ").nth(1));
    answers.and_then(|answers| answers.split(' ').next()?.parse().ok()).unwrap_or_else(|| {
        panic!("ping says: {text}{}", String::from_utf8_lossy(&output.stderr));
    })
}

/// Id of the program on the guarded interface.
pub fn program(pair: &Pair) -> String {
    let output = pair.guarded.command("ip").args(["-details", "link", "show", GUARDED]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, rest) = text.split_once("prog/xdp id ").unwrap_or_else(|| panic!("no program: {text}"));
    rest.split(' ').next().unwrap().to_owned()
}

/// Waits until another program than that is there.
pub fn another_program(pair: &Pair, than: &str) -> String {
    wait_for("another program", Duration::from_secs(60), || Some(program(pair)).filter(|id| id != than))
}

pub struct Site {
    pub directory: tempfile::TempDir,
    pub pin: PathBuf,
    pub daemon: Option<Child>,
    /// Variables the daemon gets besides.
    pub environment: Vec<(String, String)>,
}

impl Site {
    pub fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(directory.path().join("policy.toml"), PING_POLICY).unwrap();
        let pin = PathBuf::from(format!("/sys/fs/bpf/limiter-test-{}-{name}", std::process::id()));
        Self { directory, pin, daemon: None, environment: Vec::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `command` runs limiterd, in some namespace, as some user.
    pub fn configure(&self, command: &mut Command, interfaces: &str) {
        command
            .env_clear()
            .env("LIMITER_INTERFACES", interfaces)
            .env("LIMITER_POLICY", self.path("policy.toml"))
            .env("LIMITER_PIN", &self.pin)
            .env("LIMITER_STATE", self.path("state"))
            .env("LIMITER_SOCKET", self.path("limiterd.sock"))
            .env("LIMITER_METRICS", "")
            .env("LIMITER_BUCKETS", "16384")
            .envs(self.environment.iter().cloned());
    }

    /// Starts the daemon and does not wait.
    pub fn spawn(&mut self, pair: &Pair, interfaces: &str) {
        let mut command = pair.guarded.command(env!("CARGO_BIN_EXE_limiterd"));
        self.configure(&mut command, interfaces);
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        self.daemon = Some(command.stderr(log).spawn().unwrap());
    }

    /// Starts the daemon and waits until it answers: then everything is guarded.
    pub fn start(&mut self, pair: &Pair, interfaces: &str) {
        self.spawn(pair, interfaces);
        wait_for("limiterd to answer", Duration::from_secs(60), || {
            if let Some(status) = self.daemon.as_mut().unwrap().try_wait().unwrap() {
                panic!("limiterd ended ({status}): {}", fs::read_to_string(self.path("log")).unwrap());
            }
            self.ctl(&["history"]).status.success().then_some(())
        });
    }

    pub fn signal(&self, signal: &str) {
        let id = self.daemon.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Signals the daemon and waits for its end.
    pub fn end(&mut self, signal: &str) {
        self.signal(signal);
        self.daemon.take().unwrap().wait().unwrap();
    }

    pub fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_limiterctl"));
        command.env_clear().env("LIMITER_SOCKET", self.path("limiterd.sock")).env("LIMITER_PIN", &self.pin);
        command.args(arguments).output().unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&[&["-o", "json"], arguments].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Packets of a rule: passed, dropped.
    pub fn counts(&self, rule: &str) -> (u64, u64) {
        let stats = self.json(&["stats", "--rule", rule]);
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
