//! The most each algorithm admits within one minute, as `docs/algorithms.md` says, for every store whose clock stands
//! still between steps.
#![allow(clippy::unwrap_used, reason = "a helper of tests stops where its set-up fails")]

use std::sync::Arc;
use std::time::Duration;

use limiter_user::requests::key::KeyHash;
use limiter_user::requests::limit::{Algorithm, Limit};
use limiter_user::requests::store::Mode;

use super::suite::TimedStore;
use super::{fresh, limit, single};

const MINUTE: Duration = Duration::from_secs(60);

/// Asks for one as soon as there is room, until the clock reaches `end`; returns how often it was admitted.
async fn greedy(store: &dyn TimedStore, limit: &Arc<Limit>, subject: KeyHash, end: u64) -> u32 {
    let mut admitted = 0;
    loop {
        let (answer, now) = store.ask(&single(limit, subject, Mode::Consume, 1)).await.unwrap();
        if now >= end {
            return admitted;
        }
        if answer.allowed {
            admitted += 1;
        } else {
            store.pass(answer.limits[0].retry_after.unwrap().min(Duration::from_micros(end - now))).await;
        }
    }
}

/// For a caller who knows the boundaries: 100 in the last microsecond of a window, then as much as it gets.
async fn worst_minute(store: &dyn TimedStore, algorithm: Algorithm) -> u32 {
    let (limit, subject) = (limit(algorithm, 100, MINUTE, None), fresh());
    let (peek, _) = store.ask(&single(&limit, subject, Mode::Peek, 1)).await.unwrap();
    store.pass(peek.limits[0].reset).await;
    store.pass(MINUTE - Duration::from_micros(1)).await;
    let (_, start) = store.ask(&single(&limit, subject, Mode::Peek, 1)).await.unwrap();
    greedy(store, &limit, subject, start + MINUTE.as_micros() as u64).await
}

pub async fn check(store: &dyn TimedStore) {
    assert_eq!(worst_minute(store, Algorithm::FixedWindow).await, 200);
    assert_eq!(worst_minute(store, Algorithm::SlidingWindow).await, 199);
    assert_eq!(worst_minute(store, Algorithm::SlidingWindowLog).await, 100);
    // The burst of 20, then one a second; the one due at the 60th second is outside.
    let (bucket, subject) = (limit(Algorithm::TokenBucket, 60, MINUTE, Some(20)), fresh());
    let (_, start) = store.ask(&single(&bucket, subject, Mode::Peek, 1)).await.unwrap();
    assert_eq!(greedy(store, &bucket, subject, start + 60_000_000).await, 20 + 59);
    // One a second, the first at once.
    let (leaky, subject) = (limit(Algorithm::LeakyBucket, 60, MINUTE, Some(1)), fresh());
    let (_, start) = store.ask(&single(&leaky, subject, Mode::Peek, 1)).await.unwrap();
    assert_eq!(greedy(store, &leaky, subject, start + 60_000_001).await, 60 + 1);
}
