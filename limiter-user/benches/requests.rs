//! The request tier's speed, beside controls of the same stack: `cargo xtask bench requests`.
//!
//! In process: one decision, by way. Over HTTP, with `wrk` as the load: a server that answers 204 to everything
//! from the same hyper loop, nginx' `return 204`, and `/v1/check` with the embedded store and with Redis, admitted and
//! refused, one hot key and many. This process and its servers run on CPU 0, load and Redis on CPU 1, alike for
//! control and contender. Prints medians of several rounds, interleaved.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement stops where its set-up fails"
)]

use std::convert::Infallible;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use limiter_user::policy::{self, Bundle};
use limiter_user::requests::config::{RedisLayer, RequestsLayer, StoreKind, resolve};
use limiter_user::requests::engine::{Engine, Request};
use limiter_user::requests::outcome::Via;
use limiter_user::requests::publish::Occasion;
use limiter_user::requests::tier::Tier;

const POLICY: &str = r#"version = 1
[[endpoint]]
name = "open"
match = { path = "/open" }
limit = [ { per = "source", rate = "1G/s" } ]
on-store-failure = "deny"
[[endpoint]]
name = "closed"
match = { path = "/closed" }
limit = [ { per = "source", algorithm = "token-bucket", rate = "1/h", burst = 1 } ]
on-store-failure = "deny"
"#;

const ROUNDS: usize = 3;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    // `cargo test` runs benches too, to see that they work.
    let brief = !std::env::args().any(|argument| argument == "--bench");
    pin(0);
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let embedded = runtime.block_on(tier(directory.path(), None));
    in_process(&runtime, embedded.engine(), brief);
    if brief {
        return;
    }
    let redis = start_redis(directory.path());
    let shared = runtime.block_on(tier(directory.path(), Some(&redis.1)));
    wait_for(|| shared.status().healthy);
    let constant = runtime.block_on(constant_server());
    let nginx = start_nginx(directory.path());
    let script = directory.path().join("check.lua");
    fs::write(&script, WRK_SCRIPT).unwrap();

    let (embedded, shared) = (embedded.address().unwrap(), shared.address().unwrap());
    let cases: [(&str, SocketAddr, &str); 9] = [
        ("nginx return 204", nginx.1, "open hot"),
        ("constant answer, same stack", constant, "open hot"),
        ("embedded, admitted, hot key", embedded, "open hot"),
        ("embedded, admitted, many keys", embedded, "open many"),
        ("embedded, refused, hot key", embedded, "closed hot"),
        ("Redis, admitted, hot key", shared, "open hot"),
        ("Redis, admitted, many keys", shared, "open many"),
        ("Redis, refused, hot key", shared, "closed hot"),
        ("Redis, refused, many keys", shared, "closed many"),
    ];
    let mut rows: Vec<Vec<Load>> = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for (row, (_, address, what)) in rows.iter_mut().zip(&cases) {
            row.push(load(*address, &script, what));
        }
    }
    println!("\n{:<32} {:>10} {:>9} {:>9}", "over HTTP", "requests/s", "p50", "p99");
    for ((name, ..), row) in cases.iter().zip(&mut rows) {
        row.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        let median = &row[row.len() / 2];
        println!("{name:<32} {:>10.0} {:>9} {:>9}", median.rate, median.p50, median.p99);
    }
    println!("\nraw decision script, redis-benchmark: {:.0} requests/s", raw_script(&redis.1));
}

/// Times of one decision inside this process.
fn in_process(runtime: &tokio::runtime::Runtime, engine: &Arc<Engine>, brief: bool) {
    let rounds = if brief { 100 } else { 200_000_u32 };
    let client = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));
    let request =
        |path: &'static str| Request { method: Some("GET"), target: Some(path), ..Request::from(client) };
    println!("{:<32} {:>10}", "in process", "ns");
    for (name, path, via) in
        [("admitted, embedded store", "/open", Via::Store), ("refused, remembered", "/closed", Via::Cache)]
    {
        let mut times = Vec::new();
        runtime.block_on(async {
            engine.decide(request(path)).await;
            for _ in 0..5 {
                engine.decide(request(path)).await;
                let start = Instant::now();
                for _ in 0..rounds {
                    let outcome = engine.decide(request(path)).await;
                    assert!(outcome.via == via || path == "/closed");
                }
                times.push(start.elapsed() / rounds);
            }
        });
        times.sort();
        println!("{name:<32} {:>10}", times[times.len() / 2].as_nanos());
    }
}

async fn tier(directory: &Path, redis: Option<&Path>) -> Tier {
    let secret = directory.join("secret");
    fs::write(&secret, "a secret for measuring\n").unwrap();
    let layer = RedisLayer {
        url: redis.map(|socket| format!("unix:{}", socket.display())),
        deadline: redis.map(|_| "100ms".to_owned()),
        ..RedisLayer::default()
    };
    let requests = RequestsLayer {
        store: Some(if redis.is_some() { StoreKind::Redis } else { StoreKind::Embedded }),
        http: Some("127.0.0.1:0".to_owned()),
        secret_file: Some(secret),
        ..RequestsLayer::default()
    };
    let settings = resolve(&layer, &requests).unwrap().unwrap();
    let tier = Tier::start(settings, directory).await.unwrap();
    let bundle = Bundle::from_text("policy.toml", POLICY);
    let checked = policy::check(&bundle).unwrap();
    tier.apply(&checked.policy.requests, &bundle.hash(), Occasion::Applied);
    tier
}

/// What the HTTP interface costs without a decision.
async fn constant_server() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = stream.set_nodelay(true);
            let service = service_fn(|_: hyper::Request<hyper::body::Incoming>| async {
                let mut answer = hyper::Response::new(Full::<bytes::Bytes>::default());
                *answer.status_mut() = hyper::StatusCode::NO_CONTENT;
                Ok::<_, Infallible>(answer)
            });
            tokio::spawn(async move {
                let connection = hyper::server::conn::http1::Builder::new()
                    .header_read_timeout(None)
                    .serve_connection(TokioIo::new(stream), service);
                let _ = connection.await;
            });
        }
    });
    address
}

const WRK_SCRIPT: &str = r#"
local path, keys, n = "/open", "hot", 0
function init(args)
  path, keys = "/" .. args[1], args[2]
end
function request()
  local client = "203.0.113.9"
  if keys == "many" then
    n = n + 1
    client = string.format("10.%d.%d.%d", math.floor(n / 65536) % 256, math.floor(n / 256) % 256, n % 256)
  end
  return wrk.format("GET", "/v1/check", {
    ["Limiter-Client"] = client, ["Limiter-Method"] = "GET", ["Limiter-Uri"] = path,
  })
end
"#;

#[derive(Clone)]
struct Load {
    rate: f64,
    p50: String,
    p99: String,
}

fn load(address: SocketAddr, script: &Path, what: &str) -> Load {
    let mut command = Command::new("taskset");
    command.args(["-c", "1", "wrk", "-t1", "-c16", "-d3s", "--latency", "-s"]).arg(script);
    command.arg(format!("http://{address}/v1/check")).arg("--").args(what.split(' '));
    let output = command.output().expect("taskset and wrk are installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let after = |label: &str| -> String {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(label));
        line.unwrap_or_else(|| panic!("no {label} in {text}")).trim().to_owned()
    };
    Load { rate: after("Requests/sec:").parse().unwrap(), p50: after("50%"), p99: after("99%") }
}

fn start_redis(directory: &Path) -> (Killed, std::path::PathBuf) {
    let socket = directory.join("redis.sock");
    let mut command = Command::new("taskset");
    command.args(["-c", "1", "redis-server", "--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
    let child =
        command.arg("--dir").arg(directory).stdout(Stdio::null()).spawn().expect("redis-server is installed");
    wait_for(|| std::os::unix::net::UnixStream::connect(&socket).is_ok());
    (Killed(child), socket)
}

/// The same work for Redis without anything before it: one `EVALSHA`-sized script under its own load generator.
fn raw_script(socket: &Path) -> f64 {
    let script = "local s = redis.call('GET', KEYS[1]) local t = redis.call('TIME') \
                  redis.call('SET', KEYS[1], string.format('%.0f 0 1', t[1]), 'PX', 60000) return {1, 1, 0, 0}";
    let mut command = Command::new("taskset");
    command.args(["-c", "0", "redis-benchmark", "-s"]).arg(socket);
    command.args(["-n", "200000", "-c", "16", "-q", "--csv", "EVAL", script, "1", "raw:{x}"]);
    let output = command.output().expect("redis-benchmark is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let fields: Vec<_> = last.rsplit("\",\"").collect();
    // "test","rps","avg",…: the second field, counted from the front.
    fields.iter().rev().nth(1).and_then(|field| field.trim_matches('"').parse().ok()).unwrap_or(0.0)
}

fn start_nginx(directory: &Path) -> (Killed, SocketAddr) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let here = directory.display();
    let config = format!(
        "daemon off; master_process off; pid {here}/nginx.pid; error_log {here}/nginx.log;
         events {{ worker_connections 256; }}
         http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {here}/b;
           proxy_temp_path {here}/p; fastcgi_temp_path {here}/f; uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
           server {{ listen {address}; return 204; }} }}"
    );
    let file = directory.join("nginx.conf");
    fs::write(&file, config).unwrap();
    let mut command = Command::new("taskset");
    command.args(["-c", "0", "nginx", "-e"]).arg(directory.join("nginx.log")).arg("-c").arg(&file);
    let child = command.spawn().expect("nginx is installed");
    wait_for(|| TcpStream::connect(address).is_ok());
    (Killed(child), address)
}

fn wait_for(mut done: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < give_up, "what is measured does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// This process runs on one CPU from now on.
fn pin(cpu: usize) {
    // SAFETY: a cpu_set_t of zeros is an empty set, and both calls only read or write it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
