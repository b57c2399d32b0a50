//! The HTTP interface over a real Redis: what a refusal costs it, what each of its failures does to each policy of an
//! endpoint, and what it shares with other hosts and other clients.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use limiter_tests::stores::redis_server::{NAMESPACE, RedisServer, SECRET};
use limiter_tests::tier::{POLICY, Reply, Served};
use limiter_user::requests::key::{Part, Secret};
use limiter_user::requests::store::PlanRecord;
use serde_json::{Value, json};

/// Far more than anything here takes; only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, holds: impl Fn() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "never {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Commands the server has run, of every kind, those inside scripts too.
fn commands(server: &RedisServer) -> u64 {
    let text: String = server.run(&["INFO", "stats"]);
    let line = text.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_hot_refused_caller_sends_no_command_of_any_kind() {
    const IDLE: Duration = Duration::from_secs(12);
    let server = RedisServer::start(&[]);
    let served = Served::redis(POLICY, &server);
    // With a record in the store, known keys are looked up there.
    let engine = served.tier.engine();
    let hash = |key: &str| Secret::new(SECRET).unwrap().hash(&[Part::new("api-key", key.as_bytes())]);
    served.runtime.block_on(engine.set_plan(&hash("key-pro"), Some(&PlanRecord::Revoked))).unwrap();
    let address = || served.check("203.0.113.9", "POST", "/v1/login", &[]);
    let limited = || served.check("203.0.113.9", "GET", "/v1/search/x", &[("X-Api-Key", "key-free")]);
    let revoked = || served.check("203.0.113.9", "GET", "/v1/search/x", &[("X-Api-Key", "key-pro")]);
    // What heartbeats and looks at plans and at the published policy cost by themselves.
    let before = commands(&server);
    std::thread::sleep(IDLE);
    let idle = commands(&server) - before;
    for (what, ask) in [
        ("an address", &address as &dyn Fn() -> Reply),
        ("a key above its limit", &limited),
        ("a revoked key", &revoked),
    ] {
        until(what, || ask().status == 429);
        let (start, before) = (Instant::now(), commands(&server));
        for _ in 0..3000 {
            assert_eq!(ask().status, 429, "{what}");
        }
        let sent = commands(&server) - before;
        let seconds = start.elapsed().as_secs();
        // A refusal is believed for five seconds at most and then asked anew: a script and what it runs.
        let most = idle * (seconds / IDLE.as_secs() + 1) + 30 * (seconds / 5 + 1);
        assert!(sent <= most.min(2999), "{what}: {sent} commands for 3000 refusals, {most} at most");
    }
}

#[test]
fn limits_of_one_endpoint_are_one_step_in_redis_too() {
    let text = POLICY.replace("20/m\", burst = 20", "20/30d\", burst = 20");
    let server = RedisServer::start(&[]);
    let served = Served::redis(&text, &server);
    let ask = |account: &str| {
        served.check("203.0.113.9", "POST", "/v1/login", &[("Limiter-Account", account)]).status == 204
    };
    // 5 of 40 for one account: the address, 20 in 30 days, has 15 left.
    assert_eq!((0..40).filter(|_| ask("ada")).count(), 5);
    assert_eq!((0..40).filter(|n| ask(&format!("other-{n}"))).count(), 15);
}

#[test]
fn a_random_key_per_request_gains_nothing_in_redis() {
    let text = POLICY.replace("default = \"30/m\"", "default = \"30/30d\"");
    let server = RedisServer::start(&[]);
    let served = Served::redis(&text, &server);
    let admitted = (0..100).filter(|attempt| {
        let key = format!("random-{attempt}");
        served.check("203.0.113.9", "GET", "/v1/search/x", &[("X-Api-Key", &key)]).status == 204
    });
    assert_eq!(admitted.count(), 30);
}

/// Every way a store is lost or damaged, each with what ends it. `lost`: decisions cannot be made meanwhile.
#[test]
fn every_failure_has_definite_answers_and_ends_without_a_restart() {
    struct Failure {
        name: &'static str,
        lost: bool,
        begin: fn(&mut RedisServer),
        end: fn(&mut RedisServer),
    }
    fn nothing(_: &mut RedisServer) {}
    let failures = [
        Failure { name: "frozen", lost: true, begin: |s| s.freeze(), end: |s| s.thaw() },
        Failure { name: "killed", lost: true, begin: RedisServer::kill, end: RedisServer::restart },
        Failure { name: "restarted", lost: false, begin: RedisServer::restart, end: nothing },
        Failure {
            name: "out of memory",
            lost: true,
            begin: |s| s.run(&["CONFIG", "SET", "maxmemory", "1"]),
            end: |s| s.run(&["CONFIG", "SET", "maxmemory", "0"]),
        },
        Failure {
            name: "read-only",
            lost: true,
            begin: |s| s.run(&["REPLICAOF", "127.0.0.1", "1"]),
            end: |s| s.run(&["REPLICAOF", "NO", "ONE"]),
        },
        Failure { name: "emptied", lost: false, begin: |s| s.run(&["FLUSHALL"]), end: nothing },
        Failure { name: "scripts lost", lost: false, begin: |s| s.run(&["SCRIPT", "FLUSH"]), end: nothing },
        Failure { name: "library lost", lost: false, begin: |s| s.run(&["FUNCTION", "FLUSH"]), end: nothing },
        Failure {
            name: "wrong types",
            lost: false,
            begin: |s| {
                let script = "for _, key in ipairs(redis.call('KEYS', '*')) do
                      if not key:find(':meta:', 1, true) and not key:find(':policy', 1, true) then
                        redis.call('DEL', key)
                        redis.call('RPUSH', key, 'foreign')
                        redis.call('EXPIRE', key, 600)
                      end
                    end";
                s.run::<()>(&["EVAL", script, "0"]);
            },
            end: nothing,
        },
    ];
    let mut server = RedisServer::start(&[]);
    let served = Served::redis(POLICY, &server);
    until("counted", || served.tier.status().instances == Some(1));
    let login = |client: &str| served.check(client, "POST", "/v1/login", &[]);
    let open = || served.check("203.0.113.9", "GET", "/v1/open", &[]);
    let search = |client: &str| served.check(client, "GET", "/v1/search/x", &[]);
    let within = |reply: &Reply| reply.status == 204 && reply.header("limiter-reason") == "within";
    for (number, failure) in failures.iter().enumerate() {
        let name = failure.name;
        let caller = |n: usize| format!("198.51.{number}.{n}");
        assert!(within(&login(&caller(0))), "before {name}");
        (failure.begin)(&mut server);
        if failure.lost {
            until(name, || login(&caller(1)).header("limiter-reason") == "store");
            for n in 0..20 {
                let denied = login(&caller(100 + n));
                assert_eq!((denied.status, denied.header("limiter-reason")), (429, "store"), "{name}");
                assert!((1..=5).contains(&denied.number("retry-after")), "{name}");
                let allowed = open();
                assert_eq!((allowed.status, allowed.header("limiter-reason")), (204, "store"), "{name}");
            }
            // `local`: the share of the only instance is everything.
            let statuses: Vec<u16> = (0..40).map(|_| search(&caller(2)).status).collect();
            assert_eq!(statuses[..30], [204; 30], "{name}");
            assert_eq!(statuses[39], 429, "{name}");
        }
        (failure.end)(&mut server);
        let mut n = 3;
        let give_up = Instant::now() + PATIENCE;
        loop {
            let reply = login(&caller(n % 250));
            // Never an error of limiterd's own.
            assert!(matches!(reply.status, 204 | 429), "{name}: {reply:?}");
            if within(&reply) {
                break;
            }
            assert!(Instant::now() < give_up, "{name} never ends: {reply:?}");
            std::thread::sleep(Duration::from_millis(50));
            n += 1;
        }
        // And the library is there again for other clients.
        until(name, || redis_answers(&server, &["FCALL", "test_policy", "0"]));
        assert_eq!(server.keys_without_end(), [""; 0], "{name}");
    }
}

fn redis_answers(server: &RedisServer, words: &[&str]) -> bool {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query::<redis::Value>(&mut server.connection()).is_ok()
}

#[test]
fn two_hosts_of_different_policies_say_so_and_each_keeps_its_own() {
    let server = RedisServer::start(&[]);
    let one = Served::redis(POLICY, &server);
    let published = |host: &Served| host.tier.status().published.unwrap();
    until("published", || published(&one) == "in-step");
    let other_text = POLICY.replace("default = \"30/m\"", "default = \"7/m\"");
    let other = Served::redis(&other_text, &server);
    until("in conflict", || published(&one) == "conflict");
    until("counted", || one.tier.metrics().has_conflict());
    assert_eq!(published(&other), "in-step");
    let warnings = one.tier.warnings();
    assert!(warnings.iter().any(|line| line.contains("the limits of another policy")), "{warnings:?}");
    assert_eq!(other.tier.warnings(), [""; 0]);
    for (host, limit) in [(&one, 30), (&other, 7)] {
        let reply = host.check("203.0.113.9", "GET", "/v1/search/x", &[]);
        assert_eq!(reply.number("ratelimit-limit"), limit);
    }
    // One policy everywhere ends it.
    other.apply(POLICY);
    until("in step", || published(&one) == "in-step" && !one.tier.metrics().has_conflict());
}

/// `fixtures/ask.py`: a client of the function library that shares no code with limiter.
struct Python {
    process: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Python {
    fn start(server: &RedisServer) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/ask.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).arg(server.socket()).args([NAMESPACE, str::from_utf8(SECRET).unwrap()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, to, from: BufReader::new(from).lines() }
    }

    fn ask(&mut self, question: &Value) -> Vec<i64> {
        writeln!(self.to, "{question}").unwrap();
        serde_json::from_str(&self.from.next().unwrap().unwrap()).unwrap()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Months and years, so that nothing comes back while this runs.
const SLOW: &str = r#"version = 1
[limits]
total = { per = "account | source", rate = { pro = "24/300d", default = "12/300d" } }
[[endpoint]]
name = "log"
match = { path = "/log" }
limit = [ { per = "account | source", algorithm = "sliding-window-log", rate = "6/300d" }, "total" ]
cost = { header = "Limiter-Cost", max = 50 }
on-store-failure = "deny"
[[endpoint]]
name = "bucket"
match = { path = "/bucket" }
limit = [ { per = "source", algorithm = "token-bucket", rate = "40/300d", burst = 40 }, "total" ]
cost = { header = "Limiter-Cost", max = 50 }
on-store-failure = "deny"
[[endpoint]]
name = "alone"
match = { path = "/alone" }
limit = [ { per = ["source", "account"], algorithm = "fixed-window", rate = { pro = "9/300d", default = "4/300d" } } ]
cost = { header = "Limiter-Cost", max = 50 }
on-store-failure = "deny"
"#;

/// One server, asked in turn through `limiterd` and through the function library: each sees what the other charged,
/// and the one says what the other does.
#[test]
fn a_python_client_and_limiterd_are_one() {
    let server = RedisServer::start(&[]);
    let served = Served::redis(SLOW, &server);
    until("published", || served.tier.status().published.as_deref() == Some("in-step"));
    let mut python = Python::start(&server);
    let mut rng = fastrand::Rng::with_seed(6);
    let (mut admitted, mut refused) = (0, 0);
    for number in 0..1000 {
        let source = format!("198.51.100.{}", rng.u8(..40));
        let account = rng.bool().then(|| format!("account-{}", rng.u8(..40)));
        let endpoint = ["log", "bucket", "alone"][rng.usize(..3)];
        let plan = ["", "pro"][rng.usize(..2)];
        let cost = [1, 1, 1, 2, 5][rng.usize(..5)];
        let mut identity = json!({ "source": format!("{source}/32") });
        if let Some(account) = &account {
            identity["account"] = json!(account);
        }
        let mut question = json!({
            "endpoint": endpoint, "plan": plan, "identity": identity, "cost": cost, "wait": false, "verb": "check",
        });
        if number % 2 == 0 {
            // Charged by Python; the peek after it is what limiterd is held to in later questions.
            python.ask(&question);
            continue;
        }
        question["verb"] = json!("peek");
        let told = python.ask(&question);
        let (uri, costs) = (format!("/{endpoint}"), cost.to_string());
        let mut headers = vec![("Limiter-Cost", costs.as_str()), ("Limiter-Plan", plan)];
        if let Some(account) = &account {
            headers.push(("Limiter-Account", account));
        }
        let reply = served.check(&source, "GET", &uri, &headers);
        let allowed = told[0] == 1;
        assert_eq!(reply.status, if allowed { 204 } else { 429 }, "{number}: {question} {told:?} {reply:?}");
        if allowed {
            admitted += 1;
        } else {
            refused += 1;
        }
        // Five numbers a limit behind the first three: the second is what is left, which a peek tells before the
        // charge and limiterd after it.
        let left: Vec<i64> = told[3..].chunks(5).map(|limit| limit[1]).collect();
        let left = left.iter().map(|left| if allowed { left - cost } else { *left });
        let shown = i64::try_from(reply.number("ratelimit-remaining")).unwrap();
        // A refusal that limiterd remembers, or makes by the numbers alone, tells what was left when it was made.
        assert!(
            !allowed || left.clone().any(|left| left == shown),
            "{number}: {question} {told:?} {reply:?}"
        );
        question["cost"] = json!(0);
        let after: Vec<i64> = python.ask(&question)[3..].chunks(5).map(|limit| limit[1]).collect();
        assert_eq!(after, left.collect::<Vec<_>>(), "{number}: {question}");
    }
    assert!(admitted > 100 && refused > 100, "{admitted} admitted, {refused} refused");
    assert_eq!(server.keys_without_end(), [""; 0]);
}
