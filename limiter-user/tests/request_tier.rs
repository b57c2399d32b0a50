//! The request tier as `limiterd` runs it, without a packet tier and without any capability: two daemons, one
//! Redis, and `limiterctl`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at once where its set-up fails"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const POLICY: &str = r#"version = 1
[identity]
api-key = { header = "x-api-key" }
[plans]
default = "free"
keys = { file = "keys.csv" }
[[endpoint]]
name = "search"
match = { path = "/v1/search/*" }
limit = [ { per = "api-key | source", rate = { pro = "6000/m", default = "30/m" } } ]
on-store-failure = "allow"
"#;

struct Host {
    directory: TempDir,
    metrics: u16,
    daemon: Option<Child>,
}

impl Host {
    /// A host with the settings given; its Redis is at `redis`.
    fn start(redis: &Path, policy: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let here = directory.path().display();
        fs::write(directory.path().join("policy.toml"), policy).unwrap();
        fs::write(directory.path().join("keys.csv"), "key-plain\nkey-pro,pro\n").unwrap();
        fs::write(directory.path().join("secret"), "a secret that both hosts have\n").unwrap();
        let settings = format!(
            "interfaces = []\npolicy = \"{here}/policy.toml\"\nstate = \"{here}/state\"\nsocket = \"{here}/control.sock\"\n\
             pin = \"{here}/pin\"\nmetrics = \"127.0.0.1:{metrics}\"\n\
             [redis]\nurl = \"unix:{}\"\ndeadline = \"500ms\"\n\
             [requests]\nhttp = \"unix:{here}/http.sock\"\nsecret-file = \"{here}/secret\"\n",
            redis.display()
        );
        fs::write(directory.path().join("limiterd.toml"), settings).unwrap();
        let mut host = Self { directory, metrics, daemon: None };
        host.daemon = Some(host.launch());
        host.until("an answer to status", |host| host.ctl(&["status"]).status.code() != Some(3));
        host
    }

    fn launch(&self) -> Child {
        let log = fs::File::create(self.path("log")).unwrap();
        Command::new(env!("CARGO_BIN_EXE_limiterd"))
            .arg("--config")
            .arg(self.path("limiterd.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let give_up = Instant::now() + Duration::from_secs(30);
        while !done(self) {
            assert!(Instant::now() < give_up, "no {what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_limiterctl"));
        command.arg("--socket").arg(self.path("control.sock")).args(arguments).output().unwrap()
    }

    fn ctl_json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.ctl(&[&["-o", "json"], arguments].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    fn ask(&self, headers: &str) -> String {
        let stream = UnixStream::connect(self.path("http.sock")).unwrap();
        exchange(stream, &format!("GET /v1/check HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n"))
    }

    /// The capacity a search with this key is told of, or the status when it is refused.
    fn search(&self, key: &str) -> String {
        let answer = self.ask(&format!(
            "Limiter-Client: 203.0.113.9\r\nLimiter-Method: GET\r\nLimiter-Uri: /v1/search/x\r\nX-Api-Key: {key}\r\n"
        ));
        let reason = field(&answer, "limiter-reason");
        if reason == "denied" { reason } else { field(&answer, "ratelimit-limit") }
    }

    fn metrics(&self) -> String {
        let stream = TcpStream::connect(("127.0.0.1", self.metrics)).unwrap();
        exchange(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn exchange(mut stream: impl Read + Write, question: &str) -> String {
    stream.write_all(question.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn field(answer: &str, name: &str) -> String {
    let lines = answer.lines().filter_map(|line| line.split_once(':'));
    let mut value =
        lines.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim());

    value.next_back().unwrap_or("").to_owned()
}

struct Redis {
    process: Child,
    directory: TempDir,
}

impl Redis {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
        command.arg("--dir").arg(directory.path());
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let redis = Self { process, directory };
        let give_up = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(redis.socket()).is_err() {
            assert!(Instant::now() < give_up, "redis-server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        redis
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_plan_set_on_one_host_holds_on_the_other() {
    let redis = Redis::start();
    let (one, two) = (Host::start(&redis.socket(), POLICY), Host::start(&redis.socket(), POLICY));
    for host in [&one, &two] {
        host.until("store", |host| host.ctl_json(&["status"])["store"]["healthy"] == true);
        assert_eq!(host.search("key-pro"), "6000");
        assert_eq!(host.search("key-plain"), "30");
    }
    one.until("two instances", |host| host.ctl_json(&["status"])["store"]["instances"] == 2);
    let hash = |key: &str| {
        let checked = one.ctl_json(&[
            "check-request",
            "--client",
            "203.0.113.9",
            "--uri",
            "/v1/search/x",
            "--api-key",
            key,
        ]);
        assert_eq!(checked["endpoint"], "search");
        checked["api_key_hash"].as_str().unwrap().to_owned()
    };
    let (plain, pro) = (hash("key-plain"), hash("key-pro"));

    assert!(one.ctl(&["set-plan", &plain, "pro"]).status.success());
    assert!(one.ctl(&["revoke-key", &pro]).status.success());
    assert_eq!((one.search("key-plain"), one.search("key-pro")), ("6000".to_owned(), "denied".to_owned()));
    two.until("change of plans", |host| {
        host.search("key-plain") == "6000" && host.search("key-pro") == "denied"
    });
    assert!(two.ctl(&["set-plan", &pro]).status.success());
    one.until("return to the file", |host| host.search("key-pro") == "6000");
    let wrong = one.ctl(&["revoke-key", "nonsense"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("is no key's hash"), "{wrong:?}");
}

#[test]
fn what_is_in_force_is_listed_with_its_endpoints() {
    let redis = Redis::start();
    let host = Host::start(&redis.socket(), POLICY);
    let listed = String::from_utf8(host.ctl(&["get-policy", "--effective"]).stdout).unwrap();
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let pro = "search /v1/search/* api-key api-key | source sliding-window pro 6000 in 1m allow";
    let other = "other 30 in 1m";
    for row in [pro, other] {
        assert!(rows.contains(&row.split(' ').collect()), "{row}\n{listed}");
    }
    let rules = host.ctl_json(&["get-policy", "--effective"]);
    let limit = &rules["endpoints"][0]["limits"][0];
    assert_eq!(
        limit["plans"]["pro"],
        serde_json::json!({"count": 6000, "window_ms": 60_000, "capacity": 6000})
    );
    assert_eq!(limit["default"]["count"], 30);
    let file = host.path("policy.toml");
    let sound = String::from_utf8(host.ctl(&["check-policy", file.to_str().unwrap()]).stdout).unwrap();
    // The plans: `free` of keys without one, and `pro`.
    assert!(sound.ends_with("1 endpoint, 1 request limit, 2 plans\n"), "{sound}");
    let counted = host.ctl_json(&["check-policy", file.to_str().unwrap()]);
    assert_eq!((&counted["endpoints"], &counted["plans"]), (&1.into(), &2.into()));
}

#[test]
fn status_and_metrics_show_the_store_and_its_absence() {
    let mut redis = Redis::start();
    let host = Host::start(&redis.socket(), POLICY);
    host.until("store", |host| host.ctl_json(&["status"])["store"]["healthy"] == true);
    host.until("publication", |host| host.ctl_json(&["status"])["store"]["published"] == "in-step");
    for _ in 0..31 {
        host.search("unknown");
    }
    let page = host.metrics();
    for line in [
        r#"limiter_requests_total{endpoint="search",limit="",decision="allow",via="store"} 30"#,
        r#"limiter_requests_total{endpoint="search",limit="api-key",decision="refuse",via="store"} 1"#,
        r#"limiter_identity_absent_total{scope="api-key"} 31"#,
        "limiter_store_up 1",
        "limiter_store_policy_conflict 0",
    ] {
        assert!(page.lines().any(|l| l == line), "{line}\n{page}");
    }
    assert_eq!(host.ctl(&["status"]).status.code(), Some(0), "{:?}", host.ctl(&["status"]));
    redis.process.kill().unwrap();
    host.until("problem", |host| host.ctl(&["status"]).status.code() == Some(1));
    assert_eq!(host.ctl_json(&["status"])["store"]["healthy"], false);
    let answer = host.ask("Limiter-Client: 203.0.113.77\r\nLimiter-Uri: /v1/search/x\r\n");
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert_eq!(field(&answer, "limiter-reason"), "store");
    host.until("metric", |host| host.metrics().lines().any(|line| line == "limiter_store_up 0"));
}

#[test]
fn a_host_with_redis_refuses_endpoints_that_do_not_say_what_holds_without_it() {
    let redis = Redis::start();
    let host = Host::start(&redis.socket(), POLICY);
    let file = host.path("silent.toml");
    fs::write(&file, POLICY.replace("on-store-failure = \"allow\"\n", "")).unwrap();
    let output = host.ctl(&["set-policy", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("silent.toml:8:8: endpoint `search` does not say what holds when Redis is away"),
        "{said}"
    );
}

#[test]
fn the_printed_acl_user_is_enough() {
    let redis = Redis::start();
    let printed = Command::new(env!("CARGO_BIN_EXE_limiterctl")).arg("redis-acl").output().unwrap();
    let command = String::from_utf8(printed.stdout).unwrap().replace("'>PASSWORD'", ">secret");
    let answer = Command::new("redis-cli")
        .arg("-s")
        .arg(redis.socket())
        .args(command.split_whitespace())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "OK", "{command}");
    let host = Host::start(&redis.socket(), POLICY);
    // The same host as that user.
    let settings = fs::read_to_string(host.path("limiterd.toml")).unwrap();
    fs::write(host.path("password"), "secret\n").unwrap();
    let user =
        format!("[redis]\nusername = \"limiter\"\npassword-file = \"{}\"", host.path("password").display());
    fs::write(host.path("limiterd.toml"), settings.replace("[redis]", &user)).unwrap();
    let mut host = host;
    if let Some(mut daemon) = host.daemon.take() {
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }
    host.daemon = Some(host.launch());
    host.until("store", |host| {
        host.ctl(&["status"]).status.code() == Some(0)
            && host.ctl_json(&["status"])["store"]["published"] == "in-step"
    });
    assert_eq!(host.search("key-pro"), "6000");
}
