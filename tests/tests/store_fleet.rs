//! What the hosts of a fleet share beside buckets: the published limits, who is there, the plans of keys.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use limiter_tests::stores::policies::every_kind;
use limiter_tests::stores::redis_server::{NAMESPACE, RedisServer};
use limiter_tests::stores::{fresh, redis_server};
use limiter_user::requests::failure::Instances;
use limiter_user::requests::heartbeat::Heartbeat;
use limiter_user::requests::key::Secret;
use limiter_user::requests::publish::{Occasion, Publication, Publisher, Standing};
use limiter_user::requests::redis::{LinkState, Password, RedisStore, acl_rules};
use limiter_user::requests::store::{PlanRecord, PlanStore};

const PATIENCE: Duration = Duration::from_secs(60);

async fn host(server: &RedisServer) -> Arc<RedisStore> {
    let mut config = server.config();
    config.deadline = PATIENCE;
    let store = RedisStore::start(&config).unwrap();
    store.watch().wait_for(|state| *state == LinkState::Up).await.unwrap();
    store
}

fn publication(hash: &str, serial: u64, host: &str) -> Publication {
    Publication::new(NAMESPACE, &every_kind(), hash, serial, host)
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < give_up, "it never happened");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_start_publishes_where_nothing_newer_is_and_an_apply_always() {
    let server = RedisServer::start(&[]);
    let (a, b) = (host(&server).await, host(&server).await);
    let in_step = Standing::InStep { functions: true };
    assert_eq!(a.publish(&publication("one", 5, "a"), Occasion::Started).await.unwrap(), in_step);
    // The same file on another host.
    assert_eq!(b.publish(&publication("one", 5, "b"), Occasion::Started).await.unwrap(), in_step);
    assert_eq!(b.published().await.unwrap().unwrap().host, "a");
    // Another of the same age: a conflict, and nothing is written.
    let other = publication("two", 5, "b");
    let conflict = b.publish(&other, Occasion::Started).await.unwrap();
    assert!(matches!(&conflict, Standing::Conflict { hash, host, .. } if hash == "one" && host == "a"));
    assert_eq!(server.run::<String>(&["FCALL", "test_policy", "0"]), "one");
    // A higher serial, then an explicit apply of the lower.
    assert_eq!(b.publish(&publication("three", 6, "b"), Occasion::Started).await.unwrap(), in_step);
    assert_eq!(a.publish(&publication("one", 5, "a"), Occasion::Applied).await.unwrap(), in_step);
    assert_eq!(server.run::<String>(&["FCALL", "test_policy", "0"]), "one");
    assert_eq!(a.published().await.unwrap().unwrap().hash, "one");
    assert_eq!(server.keys_without_end(), [""; 0]);
}

#[tokio::test]
async fn two_daemons_of_different_mind_do_not_flap() {
    let server = RedisServer::start(&[]);
    let (a, b) = (host(&server).await, host(&server).await);
    let (pa, pb) = (Publisher::start(a), Publisher::start(b.clone()));
    pa.publish(publication("one", 5, "a"), Occasion::Applied).await.unwrap();
    pb.publish(publication("two", 5, "b"), Occasion::Started).await.unwrap();
    let at = b.published().await.unwrap().unwrap();
    // A watcher on the key counts every write of it.
    server.run::<()>(&["CONFIG", "SET", "notify-keyspace-events", "K$g"]);
    let mut connection = server.connection();
    connection.set_read_timeout(Some(Duration::from_secs(12))).unwrap();
    let seen = std::thread::spawn(move || {
        let mut watcher = connection.as_pubsub();
        watcher.subscribe(format!("__keyspace@0__:{NAMESPACE}:policy")).unwrap();
        watcher.get_message().is_ok()
    });
    // Longer than both take to look again.
    while !seen.is_finished() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!seen.join().unwrap(), "someone wrote the policy without being asked to");
    assert_eq!(b.published().await.unwrap().unwrap(), at);
    assert!(matches!(pb.standing(), Standing::Conflict { .. }), "{:?}", pb.standing());
    assert_eq!(pa.standing(), Standing::InStep { functions: true });
}

#[tokio::test]
async fn a_flushed_library_and_an_emptied_store_are_filled_again() {
    let server = RedisServer::start(&[]);
    let a = host(&server).await;
    let one = publication("one", 5, "a");
    a.publish(&one, Occasion::Applied).await.unwrap();
    server.run::<()>(&["FUNCTION", "FLUSH"]);
    assert_eq!(a.standing(&one, true).await.unwrap(), Standing::InStep { functions: true });
    assert_eq!(server.run::<String>(&["FCALL", "test_policy", "0"]), "one");
    // And by itself, everything.
    let publisher = Publisher::start(a);
    publisher.publish(one, Occasion::Started).await.unwrap();
    server.run::<()>(&["FUNCTION", "FLUSH"]);
    server.run::<()>(&["FLUSHALL"]);
    until(async || server.run::<bool>(&["EXISTS", "test:policy"])).await;
    until(async || publisher.standing() == Standing::InStep { functions: true }).await;
    assert_eq!(server.run::<String>(&["FCALL", "test_policy", "0"]), "one");
}

#[tokio::test]
async fn someone_elses_library_of_our_name_is_reported_and_left() {
    let server = RedisServer::start(&[]);
    let a = host(&server).await;
    let one = publication("one", 5, "a");
    a.publish(&one, Occasion::Applied).await.unwrap();
    let foreign = "#!lua name=test\nredis.register_function('foreign', function() return 1 end)";
    server.run::<String>(&["FUNCTION", "LOAD", "REPLACE", foreign]);
    assert!(matches!(a.standing(&one, true).await.unwrap(), Standing::Conflict { .. }));
    assert_eq!(server.run::<i64>(&["FCALL", "foreign", "0"]), 1);
}

#[tokio::test]
async fn hosts_count_each_other_and_an_outage_changes_nothing() {
    let mut server = RedisServer::start(&[]);
    let mut fleet = Vec::new();
    for name in ["a", "b", "c"] {
        let instances = Arc::new(Instances::new(None));
        let heartbeat = Heartbeat::start(host(&server).await, name, Arc::clone(&instances));
        fleet.push((instances, heartbeat));
    }
    let known = |fleet: &[(Arc<Instances>, Heartbeat)]| -> Vec<u32> {
        fleet.iter().map(|(instances, _)| instances.known().map_or(0, |known| known.get())).collect()
    };
    until(async || known(&fleet) == [3, 3, 3]).await;
    // Emptied between two heartbeats, long after the first answer: whoever beats first finds nobody else.
    tokio::time::sleep(Duration::from_secs(16)).await;
    for _ in 0..3 {
        server.run::<()>(&["FLUSHALL"]);
        until(async || {
            assert_eq!(known(&fleet), [3, 3, 3]);
            server.run::<u32>(&["ZCARD", "test:meta:{fleet}:instances"]) == 3
        })
        .await;
    }
    server.kill();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(known(&fleet), [3, 3, 3]);
    // Empty after its restart: whoever comes first finds nobody else.
    server.restart();
    until(async || server.run::<u32>(&["ZCARD", "test:meta:{fleet}:instances"]) == 3).await;
    assert_eq!(known(&fleet), [3, 3, 3]);
    // One leaves in order, and is missed when the others are sure.
    let (_, leaver) = fleet.pop().unwrap();
    leaver.leave().await.unwrap();
    until(async || known(&fleet) == [2, 2]).await;
}

#[tokio::test]
async fn a_plan_is_seen_by_every_host_through_its_changes() {
    let server = RedisServer::start(&[]);
    let (a, b) = (host(&server).await, host(&server).await);
    let key = fresh();
    assert_eq!(b.plan(&key).await.unwrap(), None);
    let start = b.plan_changes(0).await.unwrap();
    let pro = PlanRecord::Plan("pro".into());
    a.set_plan(&key, Some(&pro)).await.unwrap();
    let changes = b.plan_changes(start.version).await.unwrap();
    assert_eq!(changes.keys, Some(vec![key]));
    assert_eq!(b.plan(&key).await.unwrap(), Some(pro));
    // Seen once.
    assert_eq!(b.plan_changes(changes.version).await.unwrap().keys, Some(vec![]));
    a.set_plan(&key, Some(&PlanRecord::Revoked)).await.unwrap();
    assert_eq!(b.plan(&key).await.unwrap(), Some(PlanRecord::Revoked));
    a.set_plan(&key, None).await.unwrap();
    assert_eq!(b.plan(&key).await.unwrap(), None);
    // A plan may be called anything.
    let odd = PlanRecord::Plan("revoked".into());
    a.set_plan(&key, Some(&odd)).await.unwrap();
    assert_eq!(b.plan(&key).await.unwrap(), Some(odd.clone()));
    // Who slept through more changes than are kept drops everything.
    let asleep = b.plan_changes(0).await.unwrap().version;
    for _ in 0..1100 {
        a.set_plan(&fresh(), Some(&odd)).await.unwrap();
    }
    assert_eq!(b.plan_changes(asleep).await.unwrap().keys, None);
    let awake = b.plan_changes(asleep).await.unwrap().version;
    server.run::<()>(&["FLUSHALL"]);
    assert_eq!(b.plan_changes(awake).await.unwrap().keys, None);
}

#[tokio::test]
async fn the_acl_user_can_publish_beat_and_keep_plans() {
    let server = RedisServer::start(&[]);
    let rules = acl_rules(NAMESPACE);
    let mut command = vec!["ACL", "SETUSER", "limiter", "on", "nopass"];
    command.extend(rules.split(' '));
    server.run::<()>(&command);
    let mut config = server.config();
    (config.user, config.password) = (Some("limiter".into()), Some(Password("any".into())));
    config.deadline = PATIENCE;
    let store = RedisStore::start(&config).unwrap();
    store.watch().wait_for(|state| *state == LinkState::Up).await.unwrap();
    let one = publication("one", 5, "a");
    let in_step = Standing::InStep { functions: true };
    assert_eq!(store.publish(&one, Occasion::Applied).await.unwrap(), in_step);
    assert_eq!(store.standing(&one, true).await.unwrap(), in_step);
    store.set_plan(&fresh(), Some(&PlanRecord::Revoked)).await.unwrap();
    store.plan_changes(0).await.unwrap();
    let instances = Arc::new(Instances::new(None));
    let heartbeat = Heartbeat::start(store, "a", Arc::clone(&instances));
    until(async || instances.known().is_some()).await;
    heartbeat.leave().await.unwrap();
}

#[tokio::test]
async fn a_stranger_after_a_flush_is_noticed_by_the_heartbeat() {
    let server = RedisServer::start(&[]);
    let fleet = host(&server).await;
    let _beats = Heartbeat::start(Arc::clone(&fleet), "a", Arc::new(Instances::new(None)));
    let mut config = server.config();
    config.secret = Secret::new(b"not the fleet's secret").unwrap();
    assert_ne!(redis_server::SECRET, b"not the fleet's secret");
    server.run::<String>(&["SET", "test:meta:{fleet}:secret", &config.secret.fingerprint()]);
    let mut watch = fleet.watch();
    let refused = watch.wait_for(|state| matches!(state, LinkState::Down(_)));
    tokio::time::timeout(PATIENCE, refused).await.expect("the heartbeat sees it").unwrap();
}
