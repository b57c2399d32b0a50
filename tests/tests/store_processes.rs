//! Eight processes, one key, one Redis.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use limiter_tests::stores::redis_server::RedisServer;
use limiter_tests::stores::{fresh, limit, single};
use limiter_user::requests::limit::Algorithm;
use limiter_user::requests::redis::{LinkState, RedisStore};
use limiter_user::requests::store::{Mode, Store};
use tokio::task::JoinSet;

const PROCESSES: usize = 8;

/// Lets eight processes loose on one fresh key; returns how often they were admitted in all, and how many microseconds
/// of the server's clock lay between the first answer and the last.
fn hammer(server: &RedisServer, how: &str, limit: [&str; 4], milliseconds: u64) -> (u64, u64) {
    let subject = fresh().text();
    let spawn = || {
        Command::new(env!("CARGO_BIN_EXE_hammer"))
            .arg(server.socket())
            .arg(how)
            .args(limit)
            .args([&subject, &milliseconds.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = (0..PROCESSES).map(|_| spawn()).collect();
    let (mut admitted, mut first, mut last) = (0, u64::MAX, 0);
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
        admitted += numbers[0];
        (first, last) = (first.min(numbers[1]), last.max(numbers[2]));
    }
    (admitted, last - first)
}

#[test]
fn eight_processes_share_one_limit_and_reading_before_writing_does_not() {
    let server = RedisServer::start(&[]);
    let day = "86400000";
    for (algorithm, burst) in [
        ("fixed-window", "0"),
        ("sliding-window-log", "0"),
        ("sliding-window", "0"),
        ("token-bucket", "1000"),
        ("leaky-bucket", "1000"),
    ] {
        let (admitted, micros) = hammer(&server, "atomic", [algorithm, "1000", day, burst], 0);
        // A thousand a day is one in 86.4 s, which a bucket gives back while this runs.
        let most = if burst == "0" { 1000 } else { 1000 + micros / 86_400_000 };
        assert!((1000..=most).contains(&admitted), "{algorithm}: {admitted} of 1000");
    }
    let racy: u64 = (0..5).map(|_| hammer(&server, "racy", ["fixed-window", "1000", day, "0"], 0).0).sum();
    assert!(racy > 5000, "get-then-incr admitted {racy} of 5000: this test could not fail");
}

/// The numbers of `docs/algorithms.md`.
#[tokio::test]
async fn twenty_requests_at_once_against_a_limit_of_five() {
    let server = RedisServer::start(&[]);
    let mut clients: Vec<_> = (0..20).map(|_| server.connection()).collect();
    // All read before the first writes: an order a burst of requests may take through any number of hosts.
    let read =
        |client: &mut redis::Connection| redis::cmd("GET").arg("racy").query::<Option<u32>>(client).unwrap();
    let counts: Vec<u32> = clients.iter_mut().map(|client| read(client).unwrap_or(0)).collect();
    let mut admitted = 0;
    for (client, count) in clients.iter_mut().zip(counts) {
        if count < 5 {
            redis::cmd("INCR").arg("racy").query::<u32>(client).unwrap();
            admitted += 1;
        }
    }
    assert_eq!(admitted, 20);

    let mut config = server.config();
    config.deadline = Duration::from_secs(30);
    let store = RedisStore::start(&config).unwrap();
    store.watch().wait_for(|state| *state == LinkState::Up).await.unwrap();
    let five = limit(Algorithm::SlidingWindowLog, 5, Duration::from_secs(900), None);
    let decision = single(&five, fresh(), Mode::Consume, 1);
    let mut burst = JoinSet::new();
    for _ in 0..20 {
        let (store, decision) = (Arc::clone(&store), decision.clone());
        burst.spawn(async move { store.decide(&decision).await.unwrap().allowed });
    }
    assert_eq!(burst.join_all().await.into_iter().filter(|allowed| *allowed).count(), 5);
}

#[test]
fn a_refilling_bucket_under_load_keeps_its_bound_and_every_key_ends() {
    let server = RedisServer::start(&[]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let scan = scope.spawn(|| {
            let mut scans = 0;
            while !done.load(Ordering::SeqCst) {
                assert_eq!(server.keys_without_end(), [""; 0]);
                scans += 1;
            }
            scans
        });
        for algorithm in
            ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-window-log"]
        {
            let burst = if algorithm.ends_with("bucket") { "5" } else { "0" };
            let (admitted, micros) = hammer(&server, "atomic", [algorithm, "30", "100", burst], 700);
            let windows = micros / 100_000;
            // 300 a second, and beyond: the burst; for windows, one more than those that are whole, and where they
            // begin by the clock, another.
            let most = match algorithm {
                "token-bucket" | "leaky-bucket" => 5 + micros * 3 / 10_000,
                "sliding-window-log" => 30 * (windows + 1),
                _ => 30 * (windows + 2),
            };
            assert!(admitted <= most, "{algorithm}: {admitted} of {most}");
            assert!(admitted >= 30 * 5, "{algorithm}: only {admitted}");
        }
        done.store(true, Ordering::SeqCst);
        assert!(scan.join().unwrap() > 10);
    });
}
