//! The function library, asked by a client in Python: the same answers as the daemon's store, for the same
//! requests at the same time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use limiter_tests::stores::policies::every_kind;
use limiter_tests::stores::redis_server::{NAMESPACE, RedisServer, SECRET};
use limiter_user::requests::key::{KeyHash, Part, Secret};
use limiter_user::requests::policy::{Endpoint, Tag};
use limiter_user::requests::publish::{Occasion, Publication};
use limiter_user::requests::redis::{LinkState, RedisStore};
use limiter_user::requests::store::{Answer, Charge, Decision, Mode};
use serde_json::{Value, json};

async fn store(server: &RedisServer) -> Arc<RedisStore> {
    let mut config = server.config();
    config.deadline = Duration::from_secs(30);
    let store = RedisStore::start(&config).unwrap();
    store.watch().wait_for(|state| *state == LinkState::Up).await.unwrap();
    store
}

struct Python(Child);

impl Python {
    fn start(server: &RedisServer) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/ask.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).arg(server.socket()).args([NAMESPACE, str::from_utf8(SECRET).unwrap()]);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The parts of a key for a caller with an account and a source.
fn hash(endpoint: &Endpoint, scopes: &[String], account: &str, source: &str) -> KeyHash {
    let parts = scopes.iter().map(|scope| {
        let value = match scope.as_str() {
            "account" => account,
            "source" => source,
            _ => &endpoint.name,
        };
        Part::new(scope, value.as_bytes())
    });
    Secret::new(SECRET).unwrap().hash(&parts.collect::<Vec<_>>())
}

fn decision(endpoint: &Endpoint, question: &Value) -> Decision {
    let [account, source, plan] = ["/identity/account", "/identity/source", "/plan"]
        .map(|at| question.pointer(at).unwrap().as_str().unwrap());
    let texts = |elements: &[limiter_user::requests::identity::Element]| -> Vec<String> {
        elements.iter().map(ToString::to_string).collect()
    };
    let tag = match &endpoint.tag {
        Tag::Group(name) => Secret::new(SECRET).unwrap().hash(&[Part::new("group", name.as_bytes())]),
        Tag::Common(elements) => hash(endpoint, &texts(elements), account, source),
    };
    let charges = endpoint.limits.iter().map(|limit| Charge {
        limit: Arc::clone(limit.for_plan(Some(plan))),
        subject: hash(endpoint, &texts(&limit.scope.0), account, source),
        cost: u32::try_from(question["cost"].as_u64().unwrap()).unwrap(),
    });
    Decision {
        mode: if question["verb"] == "peek" { Mode::Peek } else { Mode::Consume },
        tag,
        charges: charges.collect(),
        can_wait: question["wait"] == true,
    }
}

fn as_reply(answer: &Answer, micros: u64) -> Vec<i64> {
    let whole = |duration: Duration| duration.as_micros() as i64;
    let mut reply = vec![i64::from(answer.allowed), 0, micros as i64];
    for limit in &answer.limits {
        reply.extend([i64::from(limit.allowed), i64::from(limit.remaining)]);
        reply.extend([limit.retry_after.map_or(-1, whole), whole(limit.reset), whole(limit.delay)]);
    }
    reply
}

#[tokio::test]
async fn a_python_client_gets_the_daemons_answers() {
    // Two servers whose clocks stand at the same times: one is asked by Python, one by limiter.
    let servers = [RedisServer::start(&[]), RedisServer::start(&[])];
    let [asked_by_python, asked_by_us] = [store(&servers[0]).await, store(&servers[1]).await];
    let policy = every_kind();
    let publication = Publication::new(NAMESPACE, &policy, "hash", 1, "host");
    asked_by_python.publish(&publication, Occasion::Applied).await.unwrap();
    let mut python = Python::start(&servers[0]);
    let mut to = python.0.stdin.take().unwrap();
    let mut from = BufReader::new(python.0.stdout.take().unwrap()).lines();

    let mut rng = fastrand::Rng::with_seed(5);
    let mut now = 1_800_000_000_000_000;
    let (mut allowed, mut refused) = (0, 0);
    for number in 0..1000 {
        now += if rng.bool() { 0 } else { rng.i64(0..2_000_000) };
        servers.iter().for_each(|server| server.stop_clock(now));
        let endpoint = &policy.endpoints[rng.usize(..policy.endpoints.len())];
        let question = json!({
            "endpoint": &*endpoint.name,
            "plan": rng.choice(["", "pro", "day", "closed", "unheard of"]),
            "identity": {
                "account": format!("account-{}", rng.u8(..3)),
                "source": format!("198.51.100.{}/32", rng.u8(..3)),
            },
            "cost": rng.choice([0, 1, 1, 1, 2, 5, 100]),
            "wait": rng.bool(),
            "verb": if rng.u8(..5) == 0 { "peek" } else { "check" },
        });
        writeln!(to, "{question}").unwrap();
        let python: Vec<i64> = serde_json::from_str(&from.next().unwrap().unwrap()).unwrap();
        let (ours, micros) = asked_by_us.decide_at(&decision(endpoint, &question)).await.unwrap();
        assert_eq!(python, as_reply(&ours, micros), "question {number}: {question}");
        if ours.allowed {
            allowed += 1;
        } else {
            refused += 1;
        }
        if number % 10 == 0 {
            assert_eq!(servers[0].keys_without_end(), [""; 0], "question {number}: {question}");
        }
    }
    assert!(allowed > 200 && refused > 200, "{allowed} allowed, {refused} refused");
}

#[tokio::test]
async fn a_clients_mistakes_are_told_and_charge_nothing() {
    let server = RedisServer::start(&[]);
    let store = store(&server).await;
    let policy = every_kind();
    store.publish(&Publication::new(NAMESPACE, &policy, "hash", 1, "host"), Occasion::Applied).await.unwrap();
    let id = policy.endpoints.iter().find(|e| &*e.name == "token-bucket").unwrap().limits[0]
        .default
        .id()
        .to_owned();
    let key = format!("test:{{tag}}:{id}:subject");
    let ask = |words: &[&str]| -> String {
        let mut command = redis::cmd("FCALL");
        command.arg("test_check").arg(words);
        match command.query::<redis::Value>(&mut server.connection()) {
            Ok(value) => format!("{value:?}"),
            Err(error) => error.to_string(),
        }
    };
    for (words, told) in [
        (&["1", &key, "nowhere", "", "1"][..], "no endpoint nowhere"),
        (&["1", &key, "token-bucket", "", "-1"], "the cost is a whole number"),
        (&["1", &key, "token-bucket", "", "1.5"], "the cost is a whole number"),
        (&["1", &key, "token-bucket", "", "nan"], "the cost is a whole number"),
        (&["1", &key, "token-bucket", "", "9999999999"], "the cost is a whole number"),
        (&["1", &key, "token-bucket", ""], "the cost is a whole number"),
        (&["0", "token-bucket", "", "1"], "1 limits, and 0 keys"),
        (&["2", &key, &key, "token-bucket", "", "1"], "1 limits, and 2 keys"),
        (&["1", "test:{tag}:other:subject", "token-bucket", "", "1"], "key 1 is not one of"),
        (&["1", &key.replace("test:", "tset:"), "token-bucket", "", "1"], "key 1 is not one of"),
    ] {
        let answer = ask(words);
        assert!(answer.contains(told), "{words:?}: {answer}");
    }
    assert!(!server.run::<bool>(&["EXISTS", &key]));
    // The plan that admits nothing is built in.
    assert!(ask(&["1", &key, "token-bucket", "deny", "1"]).starts_with("array([int(0)"));
    assert!(!server.run::<bool>(&["EXISTS", &key]));
}

#[tokio::test]
async fn a_client_needs_five_commands() {
    let server = RedisServer::start(&[]);
    let store = store(&server).await;
    let policy = every_kind();
    store.publish(&Publication::new(NAMESPACE, &policy, "hash", 1, "host"), Occasion::Applied).await.unwrap();
    let words =
        ["ACL", "SETUSER", "asker", "on", ">any", "~test:*", "+fcall", "+get", "+time", "+set", "+del"];
    server.run::<()>(&words);
    let url = format!("unix:{}?user=asker&pass=any", server.socket().display());
    let mut asker = redis::Client::open(url).unwrap().get_connection().unwrap();
    redis::cmd("GET").arg("test:policy").query::<String>(&mut asker).unwrap();
    for endpoint in policy.endpoints.iter().filter(|endpoint| endpoint.limits.len() == 1) {
        let key = format!("test:{{tag}}:{}:subject", endpoint.limits[0].default.id());
        let mut ask = redis::cmd("FCALL");
        ask.arg("test_check").arg(1).arg(key).arg(&*endpoint.name).arg("").arg(1);
        let answer: Vec<i64> = ask.query(&mut asker).unwrap();
        assert_eq!((answer[0], answer.len()), (1, 8), "{}", endpoint.name);
    }
}
