//! A Redis that is frozen, killed, emptied, full, read-only, busy or strict: definite answers, nothing stuck, and
//! recovery without a restart.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use limiter_tests::stores::policies::every_kind;
use limiter_tests::stores::redis_server::{NAMESPACE, RedisServer};
use limiter_tests::stores::{fresh, limit, named, single};
use limiter_user::requests::key::Secret;
use limiter_user::requests::limit::{Algorithm, Limit};
use limiter_user::requests::publish::{Occasion, Publication};
use limiter_user::requests::redis::{Address, LinkState, Password, RedisConfig, RedisStore, Tls, acl_rules};
use limiter_user::requests::store::{Charge, Mode, PlanRecord, PlanStore, Store, StoreError};
use tokio::time::timeout;

/// Far more than anything here takes; only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);

async fn wait_for(store: &RedisStore, wanted: impl FnMut(&LinkState) -> bool) -> LinkState {
    let mut watch = store.watch();
    timeout(PATIENCE, watch.wait_for(wanted)).await.expect("the link changes its state").unwrap().clone()
}

async fn up(store: &RedisStore) {
    wait_for(store, |state| *state == LinkState::Up).await;
}

async fn started(server: &RedisServer) -> Arc<RedisStore> {
    let store = RedisStore::start(&server.config()).unwrap();
    up(&store).await;
    store
}

fn bucket() -> Arc<Limit> {
    // Nothing refills while a test runs.
    limit(Algorithm::TokenBucket, 100, Duration::from_secs(86_400 * 300), Some(100))
}

/// Decides until it is admitted: on a loaded machine a single answer may miss five milliseconds.
async fn admitted(store: &RedisStore, limit: &Arc<Limit>) {
    let give_up = Instant::now() + PATIENCE;
    let subject = fresh();
    loop {
        match store.decide(&single(limit, subject, Mode::Consume, 1)).await {
            Ok(answer) if answer.allowed => return,
            other => assert!(Instant::now() < give_up, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The kinds of error until one is `wanted`.
async fn fails_as(store: &RedisStore, wanted: &str) -> StoreError {
    let give_up = Instant::now() + PATIENCE;
    let limit = bucket();
    loop {
        match store.decide(&single(&limit, fresh(), Mode::Consume, 1)).await {
            Err(error) if error.kind() == wanted => return error,
            other => assert!(Instant::now() < give_up, "never {wanted}: {other:?}"),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_frozen_server_opens_the_breaker_and_a_thawed_one_closes_it() {
    let server = RedisServer::start(&[]);
    let store = started(&server).await;
    let (limit, subject) = (bucket(), fresh());
    let decision = single(&limit, subject, Mode::Consume, 1);
    let mut charged = 0;
    while charged == 0 {
        charged += u32::from(store.decide(&decision).await.is_ok());
    }
    server.freeze();
    let mut timeouts = 0;
    loop {
        match timeout(PATIENCE, store.decide(&decision)).await.expect("a definite answer") {
            Err(StoreError::Timeout(deadline)) => {
                assert_eq!(deadline, Duration::from_millis(5));
                timeouts += 1;
            }
            Err(StoreError::Open) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(timeouts, 4, "the breaker opens after four timeouts");
    // Nobody waits for a breaker: thousands of answers, none of them late, none of them kept.
    for _ in 0..10_000 {
        assert!(store.decide(&decision).await.is_err());
    }
    server.thaw();
    up(&store).await;
    let mut peek = decision.clone();
    peek.mode = Mode::Peek;
    let remaining = loop {
        if let Ok(answer) = store.decide(&peek).await {
            break answer.limits[0].remaining;
        }
    };
    // What was on its way may have been charged, once each, and nothing was sent twice.
    assert!((100 - 1 - timeouts..=99).contains(&remaining), "{remaining}");
}

#[tokio::test]
async fn a_keys_plan_has_the_deadline_of_a_decision() {
    let server = RedisServer::start(&[]);
    let store = started(&server).await;
    let record = PlanRecord::Plan("pro".into());
    store.set_plan(&fresh(), Some(&record)).await.unwrap();
    server.freeze();
    // A request with a key nobody has asked about waits for this.
    let error = timeout(PATIENCE, store.plan(&fresh())).await.expect("an answer").unwrap_err();
    assert_eq!(error, StoreError::Timeout(Duration::from_millis(5)));
}

#[tokio::test]
async fn nothing_waits_for_ever_on_a_frozen_server() {
    let server = RedisServer::start(&[]);
    let store = started(&server).await;
    let publication = Publication::new(NAMESPACE, &every_kind(), "hash", 1, "host");
    server.freeze();
    // The link still counts as up: all of these find out by themselves.
    assert!(
        timeout(PATIENCE, store.publish(&publication, Occasion::Applied)).await.expect("an answer").is_err()
    );
    assert!(timeout(PATIENCE, store.standing(&publication, true)).await.expect("an answer").is_err());
    assert!(timeout(PATIENCE, store.plan(&fresh())).await.expect("an answer").is_err());
    assert!(timeout(PATIENCE, store.set_plan(&fresh(), None)).await.expect("an answer").is_err());
    server.thaw();
    up(&store).await;
    store.publish(&publication, Occasion::Applied).await.unwrap();
}

#[tokio::test]
async fn a_killed_server_is_found_again() {
    let mut server = RedisServer::start(&[]);
    let store = started(&server).await;
    server.kill();
    fails_as(&store, "unreachable").await;
    server.restart();
    up(&store).await;
    admitted(&store, &bucket()).await;
    assert_eq!(store.counts().connects, 2);
}

#[tokio::test]
async fn a_daemon_starts_before_its_store() {
    let mut server = RedisServer::start(&[]);
    server.kill();
    let store = RedisStore::start(&server.config()).unwrap();
    assert_eq!(
        store.decide(&single(&bucket(), fresh(), Mode::Peek, 1)).await.unwrap_err().kind(),
        "unreachable"
    );
    server.restart();
    up(&store).await;
    admitted(&store, &bucket()).await;
}

#[tokio::test]
async fn an_emptied_server_starts_anew() {
    let server = RedisServer::start(&[]);
    let mut config = server.config();
    config.deadline = PATIENCE;
    let store = RedisStore::start(&config).unwrap();
    up(&store).await;
    let (limit, subject) = (bucket(), fresh());
    let all = single(&limit, subject, Mode::Consume, 100);
    assert!(store.decide(&all).await.unwrap().allowed);
    assert!(!store.decide(&all).await.unwrap().allowed);
    server.run::<()>(&["FLUSHALL"]);
    assert!(store.decide(&all).await.unwrap().allowed);
    assert!(!store.decide(&all).await.unwrap().allowed);
}

#[tokio::test]
async fn flushed_scripts_are_sent_again_once() {
    let server = RedisServer::start(&[]);
    let mut config = server.config();
    config.deadline = PATIENCE;
    let store = RedisStore::start(&config).unwrap();
    up(&store).await;
    let (limit, subject) = (bucket(), fresh());
    let decision = single(&limit, subject, Mode::Consume, 1);
    store.decide(&decision).await.unwrap();
    assert_eq!(store.counts().scripts_sent, 1);
    store.decide(&decision).await.unwrap();
    assert_eq!(store.counts().scripts_sent, 1);
    server.run::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(store.decide(&decision).await.unwrap().limits[0].remaining, 97);
    assert_eq!(store.counts().scripts_sent, 2);
}

#[tokio::test]
async fn a_full_server_charges_nothing_and_works_again_with_room() {
    let server = RedisServer::start(&[]);
    let store = started(&server).await;
    let (first, second) = (bucket(), named("second", Algorithm::FixedWindow, 9, MINUTE * 60, None, false));
    let subject = fresh();
    let mut decision = single(&first, subject, Mode::Consume, 1);
    decision.charges.push(Charge { limit: second, subject, cost: 1 });
    admitted(&store, &first).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = fails_as(&store, "not-ready").await;
    assert!(error.to_string().contains("OOM"), "{error}");
    assert!(store.decide(&decision).await.is_err());
    assert_eq!(*store.watch().borrow(), LinkState::Up, "the server is there");
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    admitted(&store, &first).await;
    let mut peek = decision.clone();
    peek.mode = Mode::Peek;
    let answer = loop {
        if let Ok(answer) = store.decide(&peek).await {
            break answer;
        }
    };
    assert_eq!(answer.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>(), [100, 9]);
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left_and_taken_again_as_a_primary() {
    let server = RedisServer::start(&[]);
    let store = started(&server).await;
    server.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = fails_as(&store, "not-ready").await;
    assert!(error.to_string().contains("READONLY"), "{error}");
    server.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    up(&store).await;
    admitted(&store, &bucket()).await;
}

#[tokio::test]
async fn a_server_busy_with_a_script_is_waited_out() {
    let server = RedisServer::start(&["--busy-reply-threshold", "50"]);
    let store = started(&server).await;
    let mut connection = server.connection();
    let busy = std::thread::spawn(move || {
        redis::cmd("EVAL").arg("while true do end").arg(0).query::<redis::Value>(&mut connection).unwrap_err()
    });
    fails_as(&store, "breaker-open").await;
    // Its own connection is refused too while the script runs, so it is asked to stop until it has.
    while !busy.is_finished() {
        let client = redis::Client::open(format!("unix:{}", server.socket().display())).unwrap();
        if let Ok(mut connection) = client.get_connection() {
            let _ = redis::cmd("SCRIPT").arg("KILL").query::<redis::Value>(&mut connection);
        }
    }
    up(&store).await;
    admitted(&store, &bucket()).await;
}

#[tokio::test]
async fn the_acl_user_can_do_all_that_is_needed_and_no_more() {
    let server = RedisServer::start(&[]);
    let rules = acl_rules(NAMESPACE);
    let mut command = vec!["ACL", "SETUSER", "limiter", "on", ">pass word"];
    command.extend(rules.split(' '));
    server.run::<()>(&command);
    let mut config = server.config();
    (config.user, config.password) = (Some("limiter".into()), Some(Password("pass word".into())));
    let store = RedisStore::start(&config).unwrap();
    up(&store).await;
    for algorithm in Algorithm::ALL {
        admitted(&store, &limit(algorithm, 100, MINUTE, None)).await;
    }
    store.reset(&single(&bucket(), fresh(), Mode::Consume, 1)).await.unwrap();

    let url = format!("unix:{}?user=limiter&pass=pass%20word", server.socket().display());
    let mut own = redis::Client::open(url).unwrap().get_connection().unwrap();
    for forbidden in [
        &["GET", "other:key"][..],
        &["FLUSHALL"],
        &["CONFIG", "GET", "*"],
        &["KEYS", "*"],
        &["EVAL", "return redis.call('GET', 'other:key')", "0"],
        &["SUBSCRIBE", "channel"],
    ] {
        let error =
            redis::cmd(forbidden[0]).arg(&forbidden[1..]).query::<redis::Value>(&mut own).unwrap_err();
        let text = error.to_string();
        let refused = ["NOPERM", "permission", "can't access"].iter().any(|words| text.contains(words));
        assert!(refused, "{forbidden:?}: {text}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_said_and_mended_on_the_server() {
    let server = RedisServer::start(&[]);
    server.run::<()>(&["ACL", "SETUSER", "limiter", "on", ">right", "allkeys", "+@all"]);
    let mut config = server.config();
    (config.user, config.password) = (Some("limiter".into()), Some(Password("wrong".into())));
    let store = RedisStore::start(&config).unwrap();
    wait_for(&store, |state| matches!(state, LinkState::Down(StoreError::Refused(_)))).await;
    assert!(!format!("{config:?}").contains("wrong"));
    server.run::<()>(&["ACL", "SETUSER", "limiter", ">wrong"]);
    up(&store).await;
}

#[tokio::test]
async fn a_server_that_hides_its_clock_is_refused_with_a_sentence() {
    let server = RedisServer::start(&[]);
    server.run::<()>(&["ACL", "SETUSER", "limiter", "on", "nopass", "allkeys", "+@all", "-time"]);
    let mut config = server.config();
    (config.user, config.password) = (Some("limiter".into()), Some(Password("any".into())));
    let store = RedisStore::start(&config).unwrap();
    let state = wait_for(&store, |state| matches!(state, LinkState::Down(StoreError::Refused(_)))).await;
    let LinkState::Down(reason) = state else { panic!("{state:?}") };
    assert!(reason.to_string().contains("limits are counted on the server's clock"), "{reason}");
    assert_eq!(store.decide(&single(&bucket(), fresh(), Mode::Peek, 1)).await.unwrap_err(), reason);
    server.run::<()>(&["ACL", "SETUSER", "limiter", "+time"]);
    up(&store).await;
}

#[tokio::test]
async fn a_host_with_another_secret_is_refused() {
    let server = RedisServer::start(&[]);
    let _fleet = started(&server).await;
    let mut config = server.config();
    config.secret = Secret::new(b"not the fleet's secret").unwrap();
    let stranger = RedisStore::start(&config).unwrap();
    let state = wait_for(&stranger, |state| matches!(state, LinkState::Down(StoreError::Refused(_)))).await;
    let LinkState::Down(reason) = state else { panic!("{state:?}") };
    assert!(reason.to_string().contains("another secret"), "{reason}");
    server.run::<i64>(&["DEL", &format!("{NAMESPACE}:meta:{{fleet}}:secret")]);
    up(&stranger).await;
}

#[tokio::test]
async fn tls_with_an_authority_of_ones_own() {
    let keys = tempfile::tempdir().unwrap();
    let path = |name: &str| keys.path().join(name).display().to_string();
    let openssl = |words: &[&str]| {
        let output = Command::new("openssl").args(words).current_dir(keys.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    let with = |words: &[&'static str]| [&["req", "-x509"][..], &ec, words].concat();
    openssl(&with(&["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority"]));
    let leaf = [
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-keyout",
        "redis.key",
        "-out",
        "redis.pem",
        "-subj",
        "/CN=redis",
    ];
    openssl(&with(
        &[
            &leaf[..],
            &["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"],
        ]
        .concat(),
    ));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = RedisServer::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("redis.pem"),
        "--tls-key-file",
        &path("redis.key"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let tls = |authority: Option<Vec<u8>>| {
        let mut config: RedisConfig = server.config();
        config.address = Address::Tls { host: "localhost".into(), port };
        config.tls = authority.map(|authority| Tls { authority: Some(authority), client: None });
        RedisStore::start(&config).unwrap()
    };
    let trusting = tls(Some(std::fs::read(path("ca.pem")).unwrap()));
    up(&trusting).await;
    admitted(&trusting, &bucket()).await;
    // Who does not know the authority does not talk to it.
    let strict = tls(None);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_ne!(*strict.watch().borrow(), LinkState::Up);
}
