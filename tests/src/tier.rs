//! A request tier in this process, on a socket of a test's own, and the plainest HTTP client.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use limiter_user::policy::{self, Bundle};
use limiter_user::requests::config::{RedisLayer, RequestsLayer, StoreKind, resolve};
use limiter_user::requests::publish::Occasion;
use limiter_user::requests::tier::Tier;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::stores::redis_server::{RedisServer, SECRET};

/// A tier with the runtime it lives on.
pub struct Served {
    pub tier: Tier,
    pub runtime: Runtime,
    directory: TempDir,
}

impl Served {
    /// With the embedded store.
    pub fn embedded(policy: &str) -> Self {
        Self::start(policy, None, RedisLayer::default())
    }

    /// With a Redis.
    pub fn redis(policy: &str, server: &RedisServer) -> Self {
        let url = Some(format!("unix:{}", server.socket().display()));
        let namespace = Some(crate::stores::redis_server::NAMESPACE.to_owned());
        // A loaded test machine may pause for longer than the 5 ms of production.
        let deadline = Some("500ms".to_owned());
        let redis = RedisLayer { url, namespace, deadline, ..RedisLayer::default() };
        let served = Self::start(policy, Some(StoreKind::Redis), redis);
        // The link comes up in the background.
        let give_up = std::time::Instant::now() + Duration::from_secs(20);
        while !served.tier.status().healthy {
            assert!(std::time::Instant::now() < give_up, "the store does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
        served
    }

    fn start(policy: &str, store: Option<StoreKind>, redis: RedisLayer) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let secret = directory.path().join("secret");
        std::fs::write(&secret, SECRET).expect("the secret's file");
        let requests = RequestsLayer {
            store: Some(store.unwrap_or(StoreKind::Embedded)),
            http: Some(format!("unix:{}", directory.path().join("http.sock").display())),
            secret_file: Some(secret),
            ..RequestsLayer::default()
        };
        let settings = resolve(&redis, &requests).expect("settings").expect("a request tier");
        let runtime = Runtime::new().expect("a runtime");
        let tier = runtime.block_on(Tier::start(settings, directory.path())).expect("a tier");
        let served = Self { tier, runtime, directory };
        served.apply(policy);
        served
    }

    /// Puts a policy in force.
    pub fn apply(&self, text: &str) {
        let bundle = Bundle::from_text("policy.toml", text).with_file("keys.csv", KEYS);
        let checked = policy::check(&bundle).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
        self.tier.apply(&checked.policy.requests, &bundle.hash(), Occasion::Applied);
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("http.sock")
    }

    /// A question to `/v1/…`.
    pub fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Reply {
        ask(&At::Unix(&self.socket()), method, target, headers)
    }

    /// `GET /v1/check` about a request.
    pub fn check(&self, client: &str, method: &str, uri: &str, more: &[(&str, &str)]) -> Reply {
        let mut headers = vec![("Limiter-Client", client), ("Limiter-Method", method), ("Limiter-Uri", uri)];
        headers.extend_from_slice(more);
        self.ask("GET", "/v1/check", &headers)
    }
}

/// The keys file of every test's policy.
pub const KEYS: &str = "key-free,free\nkey-pro,pro\n";

/// The login and search endpoints of the documentation.
pub const POLICY: &str = r#"version = 1
[identity]
trusted-proxies = ["10.0.0.0/8"]
api-key = { header = "x-api-key", unknown = "as-none" }
[plans]
default = "free"
keys = { file = "keys.csv" }
[[endpoint]]
name = "login"
match = { method = ["POST"], path = "/v1/login" }
limit = [
  { per = "source", algorithm = "token-bucket", rate = "20/m", burst = 20 },
  { per = "account | source", algorithm = "sliding-window-log", rate = "5/15m" },
  { per = "endpoint", rate = "600/m" },
]
on-store-failure = "deny"
[[endpoint]]
name = "search"
match = { path = "/v1/search/*" }
limit = [ { per = "api-key | source", rate = { free = "60/m", pro = "6000/m", default = "30/m" } } ]
cost = { header = "Limiter-Cost", default = 1, max = 50 }
on-store-failure = "local"
[[endpoint]]
name = "open"
match = { path = "/v1/open" }
limit = [ { per = "source", rate = "1000/m" } ]
on-store-failure = "allow"
"#;

/// Where to ask.
pub enum At<'a> {
    Unix(&'a Path),
    Tcp(u16),
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Reply {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.header(name).parse().unwrap_or_else(|_| panic!("`{name}` in {self:?}"))
    }
}

/// One request on a connection of its own.
pub fn ask(at: &At<'_>, method: &str, target: &str, headers: &[(&str, &str)]) -> Reply {
    let mut question = format!("{method} {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    for (name, value) in headers {
        question.push_str(&format!("{name}: {value}\r\n"));
    }
    if method == "POST" {
        question.push_str("Content-Length: 0\r\n");
    }
    question.push_str("\r\n");
    let answer = match at {
        At::Unix(path) => exchange(UnixStream::connect(path).expect("somebody listens"), &question),
        At::Tcp(port) => {
            exchange(TcpStream::connect(("127.0.0.1", *port)).expect("somebody listens"), &question)
        }
    };
    parse(&answer)
}

fn exchange(mut stream: impl Read + Write, question: &str) -> String {
    stream.write_all(question.as_bytes()).expect("the question is sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer comes");
    String::from_utf8_lossy(&answer).into_owned()
}

fn parse(answer: &str) -> Reply {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    Reply { status: status.expect("a status"), headers: headers.collect(), body: body.to_owned() }
}
