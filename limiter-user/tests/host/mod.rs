//! A host in a directory: a datapath in memory, a policy file, a state directory, and a daemon that answers a
//! real socket. Dropping the daemon and starting it again is a restart; a new twin in between is a reboot.
#![allow(dead_code)] // each test file uses its part
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use limiter_user::control::Socket;
use limiter_user::control::server::serve;
use limiter_user::daemon::{Daemon, Settings};
use limiter_user::datapath::{Datapath, Twin};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A policy that differs by its rate.
pub fn policy(rate: u32) -> String {
    format!(
        "version = 1\n\n[[rule]]\nname = \"web\"\nto = [\"tcp/443\"]\nlimit = [ {{ per = \"source\", rate = \"{rate}/s\" }} ]\n"
    )
}

/// No sound policy.
pub const BAD: &str = "version = 1\n[[rule]]\nname = \"web\"\nlimitt = []\n";

/// The body of `PUT /v1/policy`.
pub fn bundle(text: &str) -> Value {
    json!({"policy": "policy.toml", "files": {"policy.toml": text}})
}

pub struct Host {
    pub directory: tempfile::TempDir,
    pub twin: Twin,
    pub settings: Settings,
    pub daemon: Option<Arc<Daemon>>,
    runtime: Runtime,
    server: Option<(JoinHandle<()>, watch::Sender<()>)>,
}

impl Host {
    /// Not started yet. `interfaces` exist and are to be guarded.
    pub fn new(interfaces: &[&str], policy: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings {
            interfaces: Some(interfaces.iter().map(|name| (*name).to_owned()).collect()),
            policy: directory.path().join("policy.toml"),
            state: directory.path().join("state"),
            socket: directory.path().join("limiterd.sock"),
            metrics: String::new(),
            ..Settings::default()
        };
        let host = Self {
            directory,
            twin: Twin::with_interfaces(interfaces),
            settings,
            daemon: None,
            runtime: Runtime::new().unwrap(),
            server: None,
        };
        host.write_policy(policy);
        host
    }

    pub fn started(interfaces: &[&str], policy: &str) -> Self {
        let mut host = Self::new(interfaces, policy);
        host.start();
        host
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write_policy(&self, text: &str) {
        fs::write(&self.settings.policy, text).unwrap();
    }

    pub fn start(&mut self) {
        let datapath: Option<Box<dyn Datapath>> =
            self.settings.guards_packets().then(|| Box::new(self.twin.clone()) as Box<dyn Datapath>);
        let daemon = Daemon::start(self.settings.clone(), datapath).unwrap_or_else(|refusal| {
            panic!("{refusal:?}");
        });
        let (stop, mut stopped) = watch::channel(());
        let socket = {
            let _inside = self.runtime.enter();
            Socket::bind(&self.settings.socket).unwrap()
        };
        let serving = serve(socket, Arc::clone(&daemon), async move {
            let _ = stopped.changed().await;
        });
        self.server = Some((self.runtime.spawn(serving), stop));
        self.daemon = Some(daemon);
    }

    pub fn stop(&mut self) {
        if let Some((server, stop)) = self.server.take() {
            drop(stop);
            self.runtime.block_on(server).unwrap();
        }
        self.daemon = None;
    }

    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// A restart on a host whose kernel has forgotten everything.
    pub fn reboot(&mut self) {
        self.stop();
        let names: Vec<String> = self.twin.state().present.keys().cloned().collect();
        self.twin = Twin::with_interfaces(&names.iter().map(String::as_str).collect::<Vec<_>>());
        self.start();
    }

    /// One request: status and body.
    pub fn request(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, Value) {
        let mut stream = UnixStream::connect(&self.settings.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: limiterd\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The answer may come before all of a large body is taken.
        let _ = stream.write_all(body);
        answer(&mut stream)
    }

    pub fn get(&self, path: &str) -> Value {
        let (status, body) = self.request("GET", path, "", b"");
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    pub fn put_policy(&self, query: &str, text: &str) -> (u16, Value) {
        self.request("PUT", &format!("/v1/policy{query}"), "", bundle(text).to_string().as_bytes())
    }

    pub fn post(&self, path: &str) -> (u16, Value) {
        self.request("POST", path, "", b"")
    }

    pub fn status(&self) -> Value {
        self.get("/v1/status")
    }

    /// Text of the policy in force.
    pub fn in_force(&self) -> String {
        self.get("/v1/policy")["files"]["policy.toml"].as_str().unwrap().to_owned()
    }

    /// The real limiterctl, on this host's socket.
    pub fn ctl(&self, arguments: &[&str]) -> Output {
        self.ctl_command().args(arguments).output().unwrap()
    }

    pub fn ctl_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_limiterctl"));
        command.env_clear().env("LIMITER_SOCKET", &self.settings.socket).current_dir(self.directory.path());
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads an answer to its end: status and body.
pub fn answer(stream: &mut UnixStream) -> (u16, Value) {
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8(text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come true");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}
