//! The Redis store against the exact model, on a real server whose clock the test moves, and each fault a
//! decision script can have.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use limiter_tests::stores::redis_server::{NAMESPACE, RedisServer};
use limiter_tests::stores::suite::{Schedule, TimedStore, awkward_limits, random_limits, run};
use limiter_tests::stores::{clock_steps, worst_cases};
use limiter_tests::stores::{fresh, limit, named, single};
use limiter_user::requests::key::{KeyHash, full_key};
use limiter_user::requests::limit::{Algorithm, Limit};
use limiter_user::requests::redis::{LinkState, RedisStore};
use limiter_user::requests::store::{Answer, Charge, Decision, Mode, Store, StoreError};

struct Timed {
    server: RedisServer,
    store: Arc<RedisStore>,
    shift: AtomicI64,
}

impl Timed {
    async fn start() -> Self {
        let server = RedisServer::start(&[]);
        let mut config = server.config();
        // These tests are about answers, on a machine that may be busy.
        config.deadline = Duration::from_secs(5);
        let store = RedisStore::start(&config).unwrap();
        store.watch().wait_for(|state| *state == LinkState::Up).await.unwrap();
        Self { server, store, shift: AtomicI64::new(0) }
    }

    /// Doubles hold microseconds exactly until the year 2255; long pauses must not add up to that.
    fn set_clock(&self, micros: i64) {
        self.shift.store(micros, Ordering::SeqCst);
        self.server.shift_clock(micros);
    }

    fn key(&self, limit: &Limit, subject: &KeyHash) -> String {
        full_key(NAMESPACE, subject, limit.id(), subject)
    }

    async fn consume(&self, limit: &Arc<Limit>, subject: KeyHash, cost: u32) -> Answer {
        self.ask(&single(limit, subject, Mode::Consume, cost)).await.unwrap().0
    }
}

#[async_trait]
impl TimedStore for Timed {
    async fn ask(&self, decision: &Decision) -> Result<(Answer, u64), StoreError> {
        self.store.decide_at(decision).await
    }

    async fn step(&self, micros: i64) {
        let shift = self.shift.fetch_add(micros, Ordering::SeqCst) + micros;
        self.server.shift_clock(shift);
    }
}

/// A server whose clock stands still between steps.
struct Still {
    server: RedisServer,
    store: Arc<RedisStore>,
    now: AtomicI64,
}

#[async_trait]
impl TimedStore for Still {
    async fn ask(&self, decision: &Decision) -> Result<(Answer, u64), StoreError> {
        self.store.decide_at(decision).await
    }

    async fn step(&self, micros: i64) {
        let now = self.now.fetch_add(micros, Ordering::SeqCst) + micros;
        self.server.stop_clock(now);
    }
}

#[tokio::test]
async fn the_worst_minutes_of_the_documentation() {
    let Timed { server, store, .. } = Timed::start().await;
    let still = Still { server, store, now: AtomicI64::new(1_800_000_000_000_000) };
    still.step(0).await;
    worst_cases::check(&still).await;
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn every_algorithm_answers_as_the_exact_model() {
    let timed = Timed::start().await;
    let mut rng = fastrand::Rng::with_seed(3);
    for algorithm in Algorithm::ALL {
        for limit in awkward_limits(algorithm) {
            for _ in 0..6 {
                let longest_pause = limit.window() * rng.u32(1..=2);
                let schedule = Schedule { limits: vec![limit.clone()], steps: 50, longest_pause };
                timed.set_clock(0);
                let mismatches = run(&timed, &schedule, &mut rng).await;
                assert!(mismatches.is_empty(), "{limit:?}\n{}", mismatches[0]);
            }
        }
        assert_eq!(timed.server.keys_without_end(), [""; 0]);
    }
}

#[tokio::test]
async fn several_limits_are_charged_all_or_none() {
    let timed = Timed::start().await;
    let mut rng = fastrand::Rng::with_seed(4);
    for _ in 0..150 {
        let limits = random_limits(&mut rng, Duration::from_secs(10));
        let schedule = Schedule { limits, steps: 50, longest_pause: Duration::from_secs(8) };
        let mismatches = run(&timed, &schedule, &mut rng).await;
        assert!(mismatches.is_empty(), "{}", mismatches[0]);
    }
    assert_eq!(timed.server.keys_without_end(), [""; 0]);
}

#[tokio::test]
async fn a_lowered_limit_reports_no_negative_remainder() {
    let timed = Timed::start().await;
    for algorithm in Algorithm::ALL {
        let (high, low) = (limit(algorithm, 100, MINUTE, None), limit(algorithm, 5, MINUTE, None));
        let subject = fresh();
        timed.consume(&high, subject, high.burst()).await;
        let answer = timed.consume(&low, subject, 1).await;
        assert_eq!((answer.allowed, answer.limits[0].remaining), (false, 0), "{algorithm:?}");
        assert!(answer.limits[0].retry_after.unwrap() <= MINUTE * 2, "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_refusal_and_a_peek_write_nothing() {
    let timed = Timed::start().await;
    for algorithm in Algorithm::ALL {
        let (limit, subject) = (limit(algorithm, 3, MINUTE, None), fresh());
        let key = timed.key(&limit, &subject);
        let (peek, _) = timed.ask(&single(&limit, subject, Mode::Peek, 1)).await.unwrap();
        assert!(!timed.server.run::<bool>(&["EXISTS", &key]), "{algorithm:?}: a peek made a key");
        // Every key's windows start at times of its own: none may end in the middle.
        timed.pass(peek.limits[0].reset).await;
        timed.consume(&limit, subject, limit.burst()).await;
        timed.pass(Duration::from_secs(1)).await;
        let before: (Vec<u8>, i64) =
            (timed.server.run(&["GET", &key]), timed.server.run(&["PEXPIRETIME", &key]));
        assert!(!timed.consume(&limit, subject, limit.burst()).await.allowed);
        timed.ask(&single(&limit, subject, Mode::Peek, 1)).await.unwrap();
        let after: (Vec<u8>, i64) =
            (timed.server.run(&["GET", &key]), timed.server.run(&["PEXPIRETIME", &key]));
        assert_eq!(before, after, "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_log_is_trimmed_only_by_a_write() {
    let timed = Timed::start().await;
    let (log, subject) = (limit(Algorithm::SlidingWindowLog, 3, MINUTE, None), fresh());
    let length = |timed: &Timed| timed.server.run::<usize>(&["STRLEN", &timed.key(&log, &subject)]);
    timed.consume(&log, subject, 1).await;
    timed.pass(MINUTE / 2).await;
    timed.consume(&log, subject, 2).await;
    timed.pass(MINUTE / 2).await;
    // The first of three times has left the window. A refusal and a peek leave it where it is.
    assert!(!timed.consume(&log, subject, 2).await.allowed);
    timed.ask(&single(&log, subject, Mode::Peek, 1)).await.unwrap();
    assert_eq!(length(&timed), 3 * 8);
    assert!(timed.consume(&log, subject, 1).await.allowed);
    assert_eq!(length(&timed), 3 * 8);
}

#[tokio::test]
async fn a_wrong_type_or_foreign_text_counts_as_empty_and_is_counted() {
    let timed = Timed::start().await;
    let foreign: [&[&str]; 8] = [
        &["LPUSH", "KEY", "a"],
        &["SADD", "KEY", "a"],
        &["ZADD", "KEY", "1", "a"],
        &["SET", "KEY", "hello"],
        &["SET", "KEY", ""],
        &["SET", "KEY", "12345678"],
        &["SET", "KEY", "-5 nan 7"],
        &["SET", "KEY", "99999999999999999999999 1 1"],
    ];
    for algorithm in Algorithm::ALL {
        for write in foreign {
            let (limit, subject) = (limit(algorithm, 3, MINUTE, None), fresh());
            let key = timed.key(&limit, &subject);
            let command: Vec<&str> =
                write.iter().map(|word| if *word == "KEY" { &key } else { *word }).collect();
            timed.server.run::<redis::Value>(&command);
            let before = timed.store.counts().unreadable;
            let answer = timed.consume(&limit, subject, 1).await;
            assert!(answer.allowed, "{algorithm:?} {write:?}");
            assert_eq!(timed.store.counts().unreadable, before + 1, "{algorithm:?} {write:?}");
            // And the next one finds a state of ours.
            timed.ask(&single(&limit, subject, Mode::Peek, 1)).await.unwrap();
            assert_eq!(timed.store.counts().unreadable, before + 1, "{algorithm:?} {write:?}");
        }
    }
    assert_eq!(timed.server.keys_without_end(), [""; 0]);
}

#[tokio::test]
async fn two_limits_on_one_key_are_refused() {
    let timed = Timed::start().await;
    let (limit, subject) = (limit(Algorithm::TokenBucket, 5, MINUTE, None), fresh());
    let mut decision = single(&limit, subject, Mode::Consume, 1);
    decision.charges.push(decision.charges[0].clone());
    assert_eq!(timed.ask(&decision).await.unwrap_err().kind(), "invalid");
    let key = timed.key(&limit, &subject);
    assert!(!timed.server.run::<bool>(&["EXISTS", &key]));
}

#[tokio::test]
async fn a_limit_of_nothing_refuses_for_ever_and_divides_by_nothing() {
    let timed = Timed::start().await;
    for algorithm in Algorithm::ALL {
        let (closed, subject) = (limit(algorithm, 0, MINUTE, None), fresh());
        let answer = timed.consume(&closed, subject, 1).await;
        assert_eq!((answer.allowed, answer.limits[0].retry_after), (false, None), "{algorithm:?}");
        let open = named("open", Algorithm::TokenBucket, 5, MINUTE, None, false);
        let mut decision = single(&open, subject, Mode::Consume, 1);
        decision.charges.push(Charge { limit: closed, subject, cost: 1 });
        let (answer, _) = timed.ask(&decision).await.unwrap();
        assert_eq!((answer.allowed, answer.limits[0].remaining), (false, 5), "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_refund_gives_back_in_every_algorithm_and_never_more_than_all() {
    let timed = Timed::start().await;
    for algorithm in Algorithm::ALL {
        let burst = algorithm.is_bucket().then_some(10);
        let (limit, subject) = (limit(algorithm, 10, MINUTE * 60, burst), fresh());
        let mut decision = single(&limit, subject, Mode::Consume, 6);
        decision.can_wait = true;
        timed.ask(&decision).await.unwrap();
        decision.mode = Mode::Refund;
        decision.charges[0].cost = 2;
        let (answer, _) = timed.ask(&decision).await.unwrap();
        assert_eq!(answer.limits[0].remaining, 6, "{algorithm:?}");
        decision.charges[0].cost = 100;
        let (answer, _) = timed.ask(&decision).await.unwrap();
        assert_eq!(answer.limits[0].remaining, 10, "{algorithm:?}");
        let key = timed.key(&limit, &subject);
        assert!(!timed.server.run::<bool>(&["EXISTS", &key]), "{algorithm:?}: an unused state is no key");
    }
}

#[tokio::test]
async fn a_settlement_takes_what_is_there_and_leaves_no_debt() {
    let timed = Timed::start().await;
    for algorithm in Algorithm::ALL {
        let burst = algorithm.is_bucket().then_some(10);
        let (limit, subject) = (limit(algorithm, 10, MINUTE, burst), fresh());
        for _ in 0..3 {
            let (answer, _) = timed.ask(&single(&limit, subject, Mode::Settle, 1_000_000)).await.unwrap();
            assert_eq!((answer.allowed, answer.limits[0].remaining), (true, 0), "{algorithm:?}");
        }
        timed.pass(MINUTE * 2).await;
        assert!(timed.consume(&limit, subject, 1).await.allowed, "{algorithm:?}");
    }
}

#[tokio::test]
async fn steps_of_the_servers_clock() {
    let timed = Timed::start().await;
    clock_steps::check(&timed).await;
    assert_eq!(timed.server.keys_without_end(), [""; 0]);
}

#[tokio::test]
async fn the_callers_clock_changes_nothing() {
    // A decision carries no time: two hosts with other clocks send the same bytes. What a server is sent is seen
    // in its monitor.
    let timed = Timed::start().await;
    let (limit, subject) = (limit(Algorithm::TokenBucket, 5, MINUTE, None), fresh());
    timed.consume(&limit, subject, 1).await;
    let commands = |timed: &Timed| -> Vec<String> {
        timed
            .server
            .run::<Vec<Vec<redis::Value>>>(&["SLOWLOG", "GET", "10"])
            .iter()
            .map(|entry| format!("{:?}", entry[3]))
            .collect()
    };
    timed.server.run::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    timed.consume(&limit, subject, 1).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    timed.consume(&limit, subject, 1).await;
    let sent: Vec<String> = commands(&timed).into_iter().filter(|c| c.contains("EVALSHA")).collect();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0], sent[1]);
}

#[tokio::test]
async fn a_reset_forgets() {
    let timed = Timed::start().await;
    let (limit, subject) = (limit(Algorithm::SlidingWindowLog, 5, MINUTE, None), fresh());
    timed.consume(&limit, subject, 5).await;
    timed.store.reset(&single(&limit, subject, Mode::Consume, 1)).await.unwrap();
    assert!(timed.consume(&limit, subject, 5).await.allowed);
}
