//! Over HTTP, asked by `wrk`.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use limiter_tests::stores::redis_server::{RedisServer, SECRET};
use limiter_user::policy::{self, Bundle};
use limiter_user::requests::config::{RedisLayer, RequestsLayer, StoreKind, resolve};
use limiter_user::requests::publish::Occasion;
use limiter_user::requests::tier::Tier;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use super::raw::{self, RawScript};
use super::table::{Figures, Table};
use super::{AT_ONCE, Cores, POLICY, ROUNDS, pin};

/// Asks about one caller, or about another of a million each time.
const HOT: &str = "wrk.headers['Limiter-Client'] = '198.51.100.7'\n";
const MANY: &str = "request = function()\n\
    wrk.headers['Limiter-Client'] = '10.' .. math.random(0, 15) .. '.' .. math.random(0, 255) .. '.' .. math.random(0, 255)\n\
    return wrk.format()\nend\n";

const MANY_KEYS: &str = "a million keys";

const BARE: &str = "constant answer, same libraries";

/// Whoever answers, on one thread.
struct Contender {
    name: &'static str,
    port: u16,
    /// Where the system says how long that thread ran.
    ran: PathBuf,
}

pub fn measure(cores: Cores, table: &mut Table) -> Result<()> {
    pin(cores.asking)?;
    let redis = RedisServer::start(&[]);
    pin(cores.deciding)?;
    let raw = RawScript::start(cores, &redis)?;
    let bare = Constant::start(false)?;
    let full = Constant::start(true)?;
    let nginx = Nginx::start()?;
    let embedded = Limiter::start(None)?;
    let in_redis = Limiter::start(Some(&redis))?;
    let contenders = [
        bare.served.contender(BARE)?,
        full.served.contender("constant answer with limiter's headers")?,
        Contender {
            name: "nginx `return 204`",
            port: nginx.port,
            ran: format!("/proc/{}/schedstat", nginx.worker()?).into(),
        },
        embedded.served.contender("limiter, embedded")?,
        in_redis.served.contender("limiter, Redis")?,
    ];
    let scripts = tempfile::tempdir()?;
    for round in 0..ROUNDS {
        for (keys, lua) in [("one hot key", HOT), (MANY_KEYS, MANY)] {
            let script = scripts.path().join(keys);
            fs::write(&script, lua)?;
            for (what, uri) in [("admitted", "/open"), ("refused", "/spent")] {
                let group = format!("HTTP, {keys}, {what}");
                table.control(&group, BARE);
                let mut last = None;
                for contender in &contenders {
                    let figures = ask(cores, contender, uri, &script)?;
                    table.add(&group, contender.name, figures);
                    last = Some(figures);
                }
                if let (Some(in_redis), "admitted") = (last, what) {
                    let group = format!("HTTP over Redis, {keys}, {what}");
                    table.control(&group, raw::CONTROL);
                    table.add(&group, raw::CONTROL, raw.figures(keys == MANY_KEYS)?);
                    table.add(&group, "limiter, Redis", in_redis);
                }
            }
        }
        eprintln!("HTTP: round {} of {ROUNDS}", round + 1);
    }
    Ok(())
}

/// Nanoseconds a thread ran.
fn ran(path: &Path) -> Result<f64> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

/// One second of `wrk`.
fn ask(cores: Cores, contender: &Contender, uri: &str, script: &Path) -> Result<Figures> {
    let before = ran(&contender.ran)?;
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
        .arg(format!("http://127.0.0.1:{}/v1/check", contender.port))
        .output()
        .context("`wrk` and `taskset` are needed")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "wrk failed: {text}");
    let after = |label: &str| {
        let line = text.lines().map(str::trim).find(|line| line.starts_with(label));
        line.and_then(|line| line.split_whitespace().last()).map(str::to_owned).with_context(|| text.clone())
    };
    // "41234 requests in 1.10s, 3.21MB read"
    let line = text.lines().find(|line| line.contains(" requests in ")).with_context(|| text.clone())?;
    let answers: f64 = line.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(Figures {
        per_second: after("Requests/sec:")?.parse()?,
        times: Some((micros(&after("50%")?)?, micros(&after("99%")?)?)),
        work: Some((ran(&contender.ran)? - before) / answers / 1e3),
    })
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

/// A runtime with one worker that answers at a port.
struct Served {
    port: u16,
    runtime: Runtime,
    worker: Arc<AtomicI32>,
}

impl Served {
    fn runtime() -> Result<(Runtime, Arc<AtomicI32>)> {
        let worker = Arc::new(AtomicI32::new(0));
        let started = Arc::clone(&worker);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            // The first thread is the worker; one for blocking work may follow.
            .on_thread_start(move || {
                let own = nix::unistd::gettid().as_raw();
                let _ = started.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
            })
            .build()?;
        Ok((runtime, worker))
    }

    fn contender(&self, name: &'static str) -> Result<Contender> {
        // A task that has run says that its thread has started.
        self.runtime.block_on(self.runtime.spawn(async {}))?;
        let worker = self.worker.load(Ordering::Relaxed);
        Ok(Contender { name, port: self.port, ran: format!("/proc/self/task/{worker}/schedstat").into() })
    }
}

/// What the libraries under limiter's HTTP interface do when there is nothing to decide: 204 without a header, or, if
/// `full`, an answer with the headers and the body limiter's has.
struct Constant {
    served: Served,
}

impl Constant {
    fn start(full: bool) -> Result<Self> {
        let (runtime, worker) = Served::runtime()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let port = listener.local_addr()?.port();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    let answer = service_fn(move |question: Request<Incoming>| async move {
                        let mut response = Response::new(Full::<Bytes>::default());
                        *response.status_mut() = StatusCode::NO_CONTENT;
                        if full {
                            let refused =
                                question.headers().get("limiter-uri").is_some_and(|uri| uri == "/spent");
                            fill(&mut response, refused);
                        }
                        Ok::<_, Infallible>(response)
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer)
                        .await;
                });
            }
        });
        Ok(Self { served: Served { port, runtime, worker } })
    }
}

fn fill(response: &mut Response<Full<Bytes>>, refused: bool) {
    const ADMITTED: &[(&str, &str)] = &[
        ("ratelimit-policy", "\"source\";q=100000000;w=60"),
        ("ratelimit", "\"source\";r=99999999;t=1"),
        ("ratelimit-limit", "100000000"),
        ("ratelimit-remaining", "99999999"),
        ("ratelimit-reset", "1"),
        ("limiter-endpoint", "open"),
        ("limiter-reason", "within"),
    ];
    const REFUSED: &[(&str, &str)] = &[
        ("ratelimit-policy", "\"source\";q=1;w=86400"),
        ("ratelimit", "\"source\";r=0;t=86411"),
        ("ratelimit-limit", "1"),
        ("ratelimit-remaining", "0"),
        ("ratelimit-reset", "86411"),
        ("limiter-endpoint", "spent"),
        ("limiter-reason", "over"),
        ("limiter-limited", "1"),
        ("cache-control", "no-store"),
        ("retry-after", "86411"),
        ("content-type", "application/problem+json"),
    ];
    const BODY: &str = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
        r#""title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"#,
        r#""detail":"too many requests; `Retry-After` says when there is room","violated-policies":["source"]}"#
    );
    let mut fields = HeaderMap::with_capacity(12);
    for (name, value) in if refused { REFUSED } else { ADMITTED } {
        fields.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    *response.headers_mut() = fields;
    if refused {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        *response.body_mut() = Full::from(BODY);
    }
}

/// The request tier as a daemon runs it, on one worker.
struct Limiter {
    served: Served,
    _tier: Tier,
    _directory: tempfile::TempDir,
}

impl Limiter {
    fn start(redis: Option<&RedisServer>) -> Result<Self> {
        let (runtime, worker) = Served::runtime()?;
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
                let served = Served { port, runtime, worker };
                return Ok(Self { served, _tier: tier, _directory: directory });
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

impl Nginx {
    /// The process that answers.
    fn worker(&self) -> Result<String> {
        let path = format!("/proc/{0}/task/{0}/children", self.process.id());
        let children = fs::read_to_string(&path).context(path)?;
        Ok(children.split_whitespace().next().context("nginx has no worker")?.to_owned())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SAFETY: the process is a child not yet waited for, so its number is still its own.
        unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGTERM) };
        let _ = self.process.wait();
    }
}
