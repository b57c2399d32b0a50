//! What a step of a store's clock may do, for every store.
#![allow(clippy::unwrap_used, reason = "a helper of tests stops where its set-up fails")]

use std::sync::Arc;
use std::time::Duration;

use limiter_user::requests::key::KeyHash;
use limiter_user::requests::limit::{Algorithm, Limit};
use limiter_user::requests::store::{Charge, Mode};

use super::suite::TimedStore;
use super::{fresh, limit, named, single};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: i64 = 86_400_000_000;

/// Whether one more is admitted, and the wait.
async fn one_more(store: &dyn TimedStore, limit: &Arc<Limit>, subject: KeyHash) -> (bool, Duration) {
    let (answer, _) = store.ask(&single(limit, subject, Mode::Consume, 1)).await.unwrap();
    (answer.allowed, answer.limits[0].retry_after.unwrap())
}

/// When the store's clock will show that one more has room, in microseconds. Charges nothing.
async fn room_at(store: &dyn TimedStore, limit: &Arc<Limit>, subject: KeyHash) -> u64 {
    let (answer, now) = store.ask(&single(limit, subject, Mode::Peek, 1)).await.unwrap();
    now + answer.limits[0].retry_after.unwrap().as_micros() as u64
}

async fn charge(store: &dyn TimedStore, limit: &Arc<Limit>, subject: KeyHash, cost: u32) {
    assert!(store.ask(&single(limit, subject, Mode::Consume, cost)).await.unwrap().0.allowed);
}

/// Back by up to a minute: nothing refills until the clock has caught up. Back by more: nothing is free, and nothing
/// is refused for longer than the limit's own time. Ahead: as if that time had passed.
pub async fn check(store: &dyn TimedStore) {
    for algorithm in Algorithm::ALL {
        let limit = limit(algorithm, 5, HOUR, None);
        let full = limit.burst();
        let subject = fresh();
        charge(store, &limit, subject, full).await;
        let room = room_at(store, &limit, subject).await;
        store.step(-50_000_000).await;
        assert_eq!(
            room_at(store, &limit, subject).await,
            room,
            "{algorithm:?}: refilled before it caught up"
        );
        let (allowed, wait) = one_more(store, &limit, subject).await;
        assert!(!allowed, "{algorithm:?}");
        assert!(wait <= Duration::from_secs(50) + HOUR * 2, "{algorithm:?} {wait:?}");
        store.pass(wait).await;
        assert!(one_more(store, &limit, subject).await.0, "{algorithm:?}: the wait was true");

        let subject = fresh();
        charge(store, &limit, subject, full).await;
        store.step(-DAY).await;
        let (peek, _) = store.ask(&single(&limit, subject, Mode::Peek, 1)).await.unwrap();
        let (allowed, wait) = one_more(store, &limit, subject).await;
        assert!(!allowed && !peek.allowed, "{algorithm:?}: nothing is free");
        assert!(wait <= HOUR * 2, "{algorithm:?} {wait:?}");
        store.pass(wait).await;
        assert!(one_more(store, &limit, subject).await.0, "{algorithm:?}: refusals let it drain");

        // What was used of it stays used, no more and no less.
        if full > 1 {
            let subject = fresh();
            charge(store, &limit, subject, 2).await;
            store.step(-DAY).await;
            charge(store, &limit, subject, full - 2).await;
            assert!(!one_more(store, &limit, subject).await.0, "{algorithm:?}");
        }

        // A refusal by another limit does not keep it from draining.
        let (subject, other_subject) = (fresh(), fresh());
        let other = named("other", Algorithm::SlidingWindowLog, 1, HOUR * 1000, None, false);
        charge(store, &limit, subject, full).await;
        store.step(-DAY).await;
        charge(store, &other, other_subject, 1).await;
        let mut both = single(&limit, subject, Mode::Consume, 1);
        both.charges.push(Charge { limit: Arc::clone(&other), subject: other_subject, cost: 1 });
        let (answer, _) = store.ask(&both).await.unwrap();
        assert!(!answer.allowed, "{algorithm:?}");
        store.pass(answer.limits[0].retry_after.unwrap()).await;
        assert!(one_more(store, &limit, subject).await.0, "{algorithm:?}");

        let subject = fresh();
        charge(store, &limit, subject, full).await;
        store.step(366 * DAY).await;
        charge(store, &limit, subject, full).await;
        assert!(!one_more(store, &limit, subject).await.0, "{algorithm:?}");
    }
}
