//! The embedded store against the exact model, on a clock that the test moves.
#![allow(clippy::unwrap_used, reason = "a helper of tests stops where its set-up fails")]

use std::time::Duration;

use async_trait::async_trait;
use limiter_tests::stores::suite::{Schedule, TimedStore, awkward_limits, random_limits, run};
use limiter_tests::stores::{ManualClock, fresh, limit, named, single};
use limiter_tests::stores::{clock_steps, worst_cases};
use limiter_user::requests::embedded::{Clock, EmbeddedStore};
use limiter_user::requests::limit::Algorithm;
use limiter_user::requests::store::{Answer, Charge, Decision, Mode, Store, StoreError};

struct Timed {
    store: EmbeddedStore<ManualClock>,
    clock: ManualClock,
}

impl Timed {
    fn new(buckets: usize) -> Self {
        let clock = ManualClock::at(fastrand::u64(..1 << 50));
        Self { store: EmbeddedStore::with_clock(buckets, clock.clone()), clock }
    }
}

#[async_trait]
impl TimedStore for Timed {
    async fn ask(&self, decision: &Decision) -> Result<(Answer, u64), StoreError> {
        Ok((self.store.decide(decision).await?, self.clock.micros()))
    }

    async fn step(&self, micros: i64) {
        self.clock.set(self.clock.micros().checked_add_signed(micros).unwrap());
    }
}

#[tokio::test]
async fn every_algorithm_answers_as_the_exact_model() {
    let timed = Timed::new(1 << 16);
    let mut rng = fastrand::Rng::with_seed(1);
    for algorithm in Algorithm::ALL {
        for limit in awkward_limits(algorithm) {
            for _ in 0..15 {
                let longest_pause = limit.window() * rng.u32(1..=2);
                let schedule = Schedule { limits: vec![limit.clone()], steps: 60, longest_pause };
                let mismatches = run(&timed, &schedule, &mut rng).await;
                assert!(mismatches.is_empty(), "{limit:?}\n{}", mismatches[0]);
            }
        }
    }
}

#[tokio::test]
async fn several_limits_are_charged_all_or_none() {
    let timed = Timed::new(1 << 16);
    let mut rng = fastrand::Rng::with_seed(2);
    for _ in 0..300 {
        let limits = random_limits(&mut rng, Duration::from_secs(10));
        let schedule = Schedule { limits, steps: 60, longest_pause: Duration::from_secs(8) };
        let mismatches = run(&timed, &schedule, &mut rng).await;
        assert!(mismatches.is_empty(), "{}", mismatches[0]);
    }
}

/// The bucket added for the first limit takes the place of the second one's, which has expired, where both live in
/// the same part of the store: one pair in 64.
#[tokio::test]
async fn room_for_one_limit_may_be_the_bucket_of_another_of_the_same_decision() {
    let bucket = limit(Algorithm::TokenBucket, 10, Duration::from_secs(10), None);
    let log = limit(Algorithm::SlidingWindowLog, 10, Duration::from_secs(1), None);
    for _ in 0..2000 {
        let timed = Timed::new(1 << 10);
        let subject = fresh();
        timed.ask(&single(&log, subject, Mode::Consume, 3)).await.unwrap();
        timed.pass(Duration::from_secs(2)).await;
        let mut both = single(&bucket, fresh(), Mode::Consume, 1);
        both.charges.extend(single(&log, subject, Mode::Consume, 1).charges);
        let (answer, _) = timed.ask(&both).await.unwrap();
        assert!(answer.allowed);
        assert_eq!(answer.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>(), [9, 9]);
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn steps_of_the_clock() {
    let clock = ManualClock::at(1 << 50);
    let store = EmbeddedStore::with_clock(1 << 10, clock.clone());
    clock_steps::check(&Timed { store, clock }).await;
}

#[tokio::test]
async fn the_worst_minutes_of_the_documentation() {
    worst_cases::check(&Timed::new(1 << 10)).await;
}

#[tokio::test]
async fn a_sliding_counter_weighs_the_window_before() {
    let timed = Timed::new(1 << 10);
    let (limit, subject) = (limit(Algorithm::SlidingWindow, 100, MINUTE, None), fresh());
    let (peek, _) = timed.ask(&single(&limit, subject, Mode::Peek, 1)).await.unwrap();
    timed.pass(peek.limits[0].reset).await;
    timed.ask(&single(&limit, subject, Mode::Consume, 80)).await.unwrap();
    timed.pass(MINUTE + Duration::from_secs(15)).await;
    // 80 × 45/60 = 60 weigh.
    let (answer, _) = timed.ask(&single(&limit, subject, Mode::Peek, 1)).await.unwrap();
    assert_eq!(answer.limits[0].remaining, 40);
}

#[tokio::test]
async fn a_queue_spaces_its_callers_and_a_meter_refuses_them() {
    let timed = Timed::new(1 << 10);
    let (queue, subject) = (limit(Algorithm::LeakyBucket, 10, Duration::from_secs(1), Some(4)), fresh());
    let mut delays = Vec::new();
    for _ in 0..5 {
        let mut decision = single(&queue, subject, Mode::Consume, 1);
        decision.can_wait = true;
        let (answer, _) = timed.ask(&decision).await.unwrap();
        delays.push(answer.allowed.then_some(answer.limits[0].delay.as_millis()));
    }
    // Ten a second go out 100 ms apart; the fifth finds a queue of four.
    assert_eq!(delays, [Some(0), Some(100), Some(200), Some(300), None]);
    // Who cannot wait is refused until the queue is empty.
    let (answer, _) = timed.ask(&single(&queue, subject, Mode::Consume, 1)).await.unwrap();
    assert_eq!(answer.limits[0].retry_after, Some(Duration::from_millis(400)));
    let subject = fresh();
    let mut meter = Vec::new();
    for _ in 0..2 {
        let (answer, _) = timed.ask(&single(&queue, subject, Mode::Consume, 1)).await.unwrap();
        meter.push((answer.allowed, answer.limits[0].retry_after.map(|wait| wait.as_millis())));
    }
    assert_eq!(meter, [(true, Some(0)), (false, Some(100))]);
}

#[tokio::test]
async fn two_limits_on_one_bucket_are_refused() {
    let timed = Timed::new(1 << 10);
    let limit = limit(Algorithm::TokenBucket, 5, MINUTE, None);
    let mut decision = single(&limit, fresh(), Mode::Consume, 1);
    decision.charges.push(decision.charges[0].clone());
    assert_eq!(timed.ask(&decision).await.unwrap_err().kind(), "invalid");
}

#[tokio::test]
async fn a_lowered_limit_reports_no_negative_remainder() {
    for algorithm in Algorithm::ALL {
        let timed = Timed::new(1 << 10);
        let (high, low) = (limit(algorithm, 100, MINUTE, None), limit(algorithm, 5, MINUTE, None));
        let subject = fresh();
        let cost = high.burst();
        timed.ask(&single(&high, subject, Mode::Consume, cost)).await.unwrap();
        let (answer, _) = timed.ask(&single(&low, subject, Mode::Consume, 1)).await.unwrap();
        assert_eq!((answer.allowed, answer.limits[0].remaining), (false, 0), "{algorithm:?}");
        // Never a wait longer than the lowered limit's own.
        assert!(answer.limits[0].retry_after.unwrap() <= MINUTE * 2, "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_flood_of_keys_pushes_out_its_own_and_not_the_deepest() {
    let timed = Timed::new(1024);
    let limit = limit(Algorithm::TokenBucket, 60, MINUTE, Some(60));
    let spent = fresh();
    timed.ask(&single(&limit, spent, Mode::Consume, 60)).await.unwrap();
    for _ in 0..20_000 {
        timed.ask(&single(&limit, fresh(), Mode::Consume, 1)).await.unwrap();
    }
    assert!(timed.store.len() <= 1024, "{}", timed.store.len());
    assert!(timed.store.evicted_live() > 18_000);
    let (answer, _) = timed.ask(&single(&limit, spent, Mode::Consume, 1)).await.unwrap();
    assert!(!answer.allowed, "the spent bucket was forgotten");
}

#[tokio::test]
async fn expired_buckets_leave_first_and_refunds_leave_nothing() {
    let timed = Timed::new(64 * 100);
    let limit = limit(Algorithm::TokenBucket, 60, MINUTE, Some(60));
    for _ in 0..3000 {
        timed.ask(&single(&limit, fresh(), Mode::Consume, 1)).await.unwrap();
    }
    timed.pass(Duration::from_secs(1)).await;
    for _ in 0..3000 {
        timed.ask(&single(&limit, fresh(), Mode::Consume, 1)).await.unwrap();
    }
    assert_eq!(timed.store.evicted_live(), 0);
    let subject = fresh();
    let before = timed.store.len();
    for _ in 0..10_000 {
        timed.ask(&single(&limit, subject, Mode::Consume, 2)).await.unwrap();
        timed.ask(&single(&limit, subject, Mode::Refund, 2)).await.unwrap();
    }
    assert!(timed.store.len() <= before);
}

#[test]
fn threads_on_one_bucket_admit_exactly_the_burst() {
    let store = EmbeddedStore::with_clock(1024, ManualClock::at(7));
    let (first, second) = (
        named("a", Algorithm::TokenBucket, 1, MINUTE, Some(1000), false),
        limit(Algorithm::SlidingWindow, 5000, MINUTE, None),
    );
    let subject = fresh();
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut decision = single(&first, subject, Mode::Consume, 1);
                    decision.charges.push(Charge { limit: second.clone(), subject, cost: 1 });
                    (0..1000).filter(|_| store.decide_now(&decision).unwrap().allowed).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 1000);
    // What one limit refused, the other was not charged.
    let peek = store.decide_now(&single(&second, subject, Mode::Peek, 1)).unwrap();
    assert_eq!(peek.limits[0].remaining, 4000);
}
