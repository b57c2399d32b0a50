//! The namespaces, the daemon in one of them, and taking it all away again.

use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps;

pub const GUARDED: &str = "limiter-demo-guarded";
pub const OUTSIDE: &str = "limiter-demo-outside";
pub const INTERFACE: &str = "demo0";
const FAR_END: &str = "demo1";

const DIRECTORY: &str = "/run/limiter-demo";
/// An abstract socket: it is gone with the process that holds it, and leaves no file.
const LOCK: &str = "limiter-demo";
const PIN: &str = "/sys/fs/bpf/limiter-demo";

/// A generous time for a daemon to load its programs on a busy machine.
const START: Duration = Duration::from_secs(30);

/// The last octet, and the third group, tell the sources apart: each has a /64 of its own.
pub fn address4(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, host)
}

pub fn address6(host: u8) -> Ipv6Addr {
    // Written so that the digits read alike: host 66 is 2001:db8:66::66.
    let digits = u16::from(host / 10) * 16 + u16::from(host % 10);
    Ipv6Addr::new(0x2001, 0xdb8, digits, 0, 0, 0, 0, digits)
}

pub const TARGET: u8 = 1;
const HOSTS_OUTSIDE: [u8; 3] = [11, 12, 66];

/// Removes on drop what the demo made.
pub struct World {
    _lock: UnixListener,
}

impl World {
    pub fn make() -> Result<World> {
        let Ok(lock) = UnixListener::bind_addr(&SocketAddr::from_abstract_name(LOCK)?) else {
            bail!("another demo is running on this machine");
        };
        // From here on drop cleans, also a world that is only half made.
        let world = World { _lock: lock };
        clean();
        fs::create_dir_all(DIRECTORY).with_context(|| format!("cannot make `{DIRECTORY}`"))?;
        for namespace in [GUARDED, OUTSIDE] {
            ip(&["netns", "add", namespace])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        ip(&[
            "-n", OUTSIDE, "link", "add", FAR_END, "type", "veth", "peer", "name", INTERFACE, "netns",
            GUARDED,
        ])?;
        place(GUARDED, INTERFACE, &[TARGET])?;
        place(OUTSIDE, FAR_END, &HOSTS_OUTSIDE)?;
        Ok(world)
    }

    /// Starts `limiterd` on the guarded end, and returns when it answers.
    pub fn guard(&self, policy: &str) -> Result<Daemon> {
        let directory = Path::new(DIRECTORY);
        fs::write(directory.join("policy.toml"), policy)?;
        let config = format!(
            "interfaces = [\"{INTERFACE}\"]\npolicy = \"{DIRECTORY}/policy.toml\"\npin = \"{PIN}\"\n\
             state = \"{DIRECTORY}/state\"\nsocket = \"{DIRECTORY}/limiterd.sock\"\nmetrics = \"\"\n\
             buckets = 65536\non-exit = \"detach\"\n"
        );
        fs::write(directory.join("limiterd.toml"), config)?;
        let log = File::create(directory.join("limiterd.log"))?;
        // setpriv: the daemon ends with the demo even when the demo is killed. nsenter: of the namespace only the
        // network, because the bpf filesystem is to stay in sight.
        let child = steps::program("setpriv")
            .args(["--pdeathsig", "TERM", "nsenter", &format!("--net=/run/netns/{GUARDED}")])
            .arg(built("limiterd"))
            .arg("--config")
            .arg(directory.join("limiterd.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("cannot start limiterd")?;
        let mut daemon = Daemon { child };
        daemon.wait()?;
        Ok(daemon)
    }

    /// One ping for each family: both ends know each other's link address before anything is counted.
    pub fn reach(&self) -> Result<()> {
        for target in [address4(TARGET).to_string(), address6(TARGET).to_string()] {
            let mut ping = steps::program("nsenter");
            ping.arg(format!("--net=/run/netns/{OUTSIDE}"))
                .args(["ping", "-q", "-c", "1", "-w", "10", &target]);
            steps::quiet("reaching the guarded namespace", ping)?;
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        clean();
    }
}

/// Takes away what a demo makes, whether all of it, a part or nothing is there.
fn clean() {
    for namespace in [OUTSIDE, GUARDED] {
        if Path::new("/run/netns").join(namespace).exists() {
            for (holder, end) in [(OUTSIDE, FAR_END), (GUARDED, INTERFACE)] {
                if holder == namespace {
                    // A namespace goes in the background; its end of the pair is to be gone at once.
                    let link = ["-n", namespace, "link", "del", end];
                    let _ = steps::program("ip").args(link).stderr(Stdio::null()).status();
                }
            }
            if let Err(error) = ip(&["netns", "del", namespace]) {
                eprintln!("warning: {error:#}");
            }
        }
    }
    for directory in [PIN, DIRECTORY] {
        if let Err(error) = fs::remove_dir_all(directory)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("warning: `{directory}` could not be removed: {error}");
        }
    }
}

fn place(namespace: &str, interface: &str, hosts: &[u8]) -> Result<()> {
    for &host in hosts {
        let (four, six) = (format!("{}/24", address4(host)), format!("{}/32", address6(host)));
        ip(&["-n", namespace, "address", "add", &four, "dev", interface])?;
        ip(&["-n", namespace, "address", "add", &six, "dev", interface, "nodad"])?;
    }
    ip(&["-n", namespace, "link", "set", interface, "up"])
}

fn ip(arguments: &[&str]) -> Result<()> {
    let mut command = steps::program("ip");
    command.args(arguments);
    let output = command.stdin(Stdio::null()).output().context("cannot run `ip`")?;
    if !output.status.success() {
        bail!("`ip {}`: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn built(program: &str) -> PathBuf {
    Path::new("target/release").join(program)
}

/// What limiter says of one source under one rule.
pub struct SourceLine {
    pub source: String,
    pub rule: &'static str,
    pub passed: u64,
    pub dropped: u64,
}

/// What limiter counted under one rule, exactly.
#[derive(Default)]
pub struct RuleLine {
    pub passed: u64,
    pub dropped: u64,
}

/// The running `limiterd`; ends with it.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < START && !steps::interrupted() {
            if let Some(status) = self.child.try_wait()? {
                bail!("limiterd ended at once ({status}):\n{}", self.log());
            }
            if self.ask(&["status"]).is_ok() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
        bail!("limiterd does not answer:\n{}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(Path::new(DIRECTORY).join("limiterd.log")).unwrap_or_default()
    }

    /// Sources that limiter has a bucket in use for. One that is full again is as good as none, and not listed.
    pub fn sources(&self, rules: &[&'static str]) -> Result<Vec<SourceLine>> {
        let mut lines = Vec::new();
        for &rule in rules {
            let answer = self.ask(&["top", "--rule", rule, "-n", "100"])?;
            let sources = answer["sources"].as_array().context("`limiterctl top` shows no sources")?;
            lines.extend(sources.iter().map(|row| SourceLine {
                source: text(row, "source"),
                rule,
                passed: number(row, "passed"),
                dropped: number(row, "dropped"),
            }));
        }
        Ok(lines)
    }

    pub fn rules(&self) -> Result<Vec<(String, RuleLine)>> {
        let answer = self.ask(&["stats"])?;
        let mut rules: Vec<(String, RuleLine)> = Vec::new();
        for row in answer["stats"].as_array().context("`limiterctl stats` shows no counters")? {
            let name = text(row, "rule");
            if name.is_empty() {
                continue;
            }
            let at = rules.iter().position(|(rule, _)| *rule == name).unwrap_or_else(|| {
                rules.push((name, RuleLine::default()));
                rules.len() - 1
            });
            match row["verdict"].as_str() {
                Some("pass") => rules[at].1.passed += number(row, "packets"),
                Some("drop") => rules[at].1.dropped += number(row, "packets"),
                _ => {}
            }
        }
        Ok(rules)
    }

    fn ask(&self, question: &[&str]) -> Result<Value> {
        let output = steps::program(built("limiterctl"))
            .args(["-o", "json", "--socket"])
            .arg(Path::new(DIRECTORY).join("limiterd.sock"))
            .args(question)
            .stdin(Stdio::null())
            .output()
            .context("cannot run limiterctl")?;
        if !output.status.success() {
            bail!("`limiterctl {}`: {}", question.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("limiterctl's answer is not JSON")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        steps::end(&mut self.child);
    }
}

fn text(row: &Value, field: &str) -> String {
    row[field].as_str().unwrap_or_default().to_owned()
}

fn number(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or_default()
}
