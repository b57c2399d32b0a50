//! Over HTTP, asked by `wrk`.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use limiter_tests::stores::redis_server::{RedisServer, SECRET};
use limiter_user::policy::{self, Bundle};
use limiter_user::requests::config::{RedisLayer, RequestsLayer, StoreKind, resolve};
use limiter_user::requests::publish::Occasion;
use limiter_user::requests::tier::Tier;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use super::table::Table;
use super::{AT_ONCE, Cores, POLICY, ROUNDS, pin};

/// Asks about one caller, or about another of a million each time.
const HOT: &str = "wrk.headers['Limiter-Client'] = '198.51.100.7'\n";
const MANY: &str = "request = function()\n\
    wrk.headers['Limiter-Client'] = '10.' .. math.random(0, 15) .. '.' .. math.random(0, 255) .. '.' .. math.random(0, 255)\n\
    return wrk.format()\nend\n";

pub fn measure(cores: Cores, table: &mut Table) -> Result<()> {
    pin(cores.asking)?;
    let redis = RedisServer::start(&[]);
    pin(cores.deciding)?;
    let constant = Constant::start()?;
    let nginx = Nginx::start()?;
    let embedded = Limiter::start(None)?;
    let in_redis = Limiter::start(Some(&redis))?;
    let scripts = tempfile::tempdir()?;
    let control = "constant answer, same libraries";
    for round in 0..ROUNDS {
        for (keys, lua) in [("one hot key", HOT), ("a million keys", MANY)] {
            let script = scripts.path().join(keys);
            fs::write(&script, lua)?;
            for (what, uri) in [("admitted", "/open"), ("refused", "/spent")] {
                let group = format!("HTTP, {keys}, {what}");
                table.control(&group, control);
                let contenders = [
                    (control, constant.port),
                    ("nginx `return 204`", nginx.port),
                    ("limiter, embedded", embedded.port),
                    ("limiter, Redis", in_redis.port),
                ];
                for (name, port) in contenders {
                    let (rate, p50, p99) = ask(cores, port, uri, &script)?;
                    table.add(&group, name, rate, Some((p50, p99)));
                }
            }
        }
        eprintln!("HTTP: round {} of {ROUNDS}", round + 1);
    }
    Ok(())
}

/// One second of `wrk`: answers per second, and the median and 99th percentile in microseconds.
fn ask(cores: Cores, port: u16, uri: &str, script: &Path) -> Result<(f64, f64, f64)> {
    let output = Command::new("taskset")
        .args(["-c", &cores.asking.to_string(), "wrk", "-t1", "-d1s", "--latency"])
        .args([
            &format!("-c{AT_ONCE}"),
            "-H",
            "Limiter-Method: GET",
            "-H",
            &format!("Limiter-Uri: {uri}"),
            "-s",
        ])
        .arg(script)
        .arg(format!("http://127.0.0.1:{port}/v1/check"))
        .output()
        .context("`wrk` and `taskset` are needed")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "wrk failed: {text}");
    let after = |label: &str| {
        let line = text.lines().map(str::trim).find(|line| line.starts_with(label));
        line.and_then(|line| line.split_whitespace().last()).map(str::to_owned).with_context(|| text.clone())
    };
    let rate = after("Requests/sec:")?.parse()?;
    Ok((rate, micros(&after("50%")?)?, micros(&after("99%")?)?))
}

fn micros(text: &str) -> Result<f64> {
    let (number, factor) = if let Some(number) = text.strip_suffix("us") {
        (number, 1.0)
    } else if let Some(number) = text.strip_suffix("ms") {
        (number, 1e3)
    } else {
        (text.trim_end_matches('s'), 1e6)
    };
    Ok(number.parse::<f64>()? * factor)
}

/// What the libraries under limiter's HTTP interface do when there is nothing to decide.
struct Constant {
    port: u16,
    _runtime: Runtime,
}

impl Constant {
    fn start() -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let port = listener.local_addr()?.port();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    let answer = service_fn(|_| async {
                        let mut response = Response::new(Empty::<Bytes>::new());
                        *response.status_mut() = StatusCode::NO_CONTENT;
                        Ok::<_, Infallible>(response)
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer)
                        .await;
                });
            }
        });
        Ok(Self { port, _runtime: runtime })
    }
}

/// The request tier as a daemon runs it, on one worker.
struct Limiter {
    port: u16,
    _tier: Tier,
    _runtime: Runtime,
    _directory: tempfile::TempDir,
}

impl Limiter {
    fn start(redis: Option<&RedisServer>) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let directory = tempfile::tempdir()?;
        let secret = directory.path().join("secret");
        fs::write(&secret, SECRET)?;
        let redis_layer = RedisLayer {
            url: redis.map(|server| format!("unix:{}", server.socket().display())),
            deadline: redis.map(|_| "1s".to_owned()),
            ..RedisLayer::default()
        };
        let requests = RequestsLayer {
            store: Some(if redis.is_some() { StoreKind::Redis } else { StoreKind::Embedded }),
            http: Some("127.0.0.1:0".to_owned()),
            secret_file: Some(secret),
            ..RequestsLayer::default()
        };
        let settings = resolve(&redis_layer, &requests)?.context("no request tier")?;
        let tier = runtime.block_on(Tier::start(settings, directory.path()))?;
        let bundle = Bundle::from_text("policy.toml", POLICY);
        let checked = policy::check(&bundle).map_err(|mistakes| anyhow!("{mistakes:?}"))?;
        tier.apply(&checked.policy.requests, &bundle.hash(), Occasion::Applied);
        let port = tier.address().context("no TCP port")?.port();
        for _ in 0..1000 {
            if tier.status().healthy {
                return Ok(Self { port, _tier: tier, _runtime: runtime, _directory: directory });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the store does not come up")
    }
}

/// One worker, pinned as its parent is.
struct Nginx {
    port: u16,
    process: Child,
    _directory: tempfile::TempDir,
}

impl Nginx {
    fn start() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let here = directory.path().display();
        let config = directory.path().join("nginx.conf");
        fs::write(
            &config,
            format!(
                "daemon off; user root; worker_processes 1; pid {here}/pid; error_log {here}/error.log;\n\
                 events {{ worker_connections 256; }}\n\
                 http {{ access_log off; keepalive_requests 100000000; server {{ listen 127.0.0.1:{port}; return 204; }} }}\n"
            ),
        )?;
        let process = Command::new("nginx")
            .arg("-c")
            .arg(config)
            .args(["-p", &here.to_string()])
            .stderr(Stdio::null())
            .spawn()
            .context("`nginx` is needed")?;
        let nginx = Self { port, process, _directory: directory };
        for _ in 0..500 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(nginx);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("nginx does not start")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SAFETY: the process is a child not yet waited for, so its number is still its own.
        unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGTERM) };
        let _ = self.process.wait();
    }
}
