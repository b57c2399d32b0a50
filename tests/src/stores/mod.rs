//! What every store is held to: an exact model, random schedules, and the promises of `docs/algorithms.md`.

pub mod clock_steps;
pub mod model;
pub mod policies;
pub mod redis_server;
pub mod suite;
pub mod worst_cases;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_user::requests::embedded::Clock;
use limiter_user::requests::key::KeyHash;
use limiter_user::requests::limit::{Algorithm, Limit, LimitSpec};
use limiter_user::requests::store::{Charge, Decision, Mode};

/// A clock that moves when it is told to.
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub fn at(micros: u64) -> Self {
        Self(Arc::new(AtomicU64::new(micros)))
    }

    pub fn set(&self, micros: u64) {
        self.0.store(micros, Ordering::SeqCst);
    }

    pub fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_micros() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn micros(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A limit named after its algorithm.
pub fn limit(algorithm: Algorithm, count: u32, window: Duration, burst: Option<u32>) -> Arc<Limit> {
    named(algorithm.name(), algorithm, count, window, burst, false)
}

pub fn named(
    name: &str,
    algorithm: Algorithm,
    count: u32,
    window: Duration,
    burst: Option<u32>,
    observe: bool,
) -> Arc<Limit> {
    let spec = LimitSpec { place: "test", name, scope: "account", algorithm, count, window, burst, observe };
    Arc::new(Limit::new(&spec).expect("the numbers of a test are valid"))
}

/// A subject nobody used before.
pub fn fresh() -> KeyHash {
    KeyHash(fastrand::u128(..).to_be_bytes())
}

/// One charge against one limit, whose subject is also the tag.
pub fn single(limit: &Arc<Limit>, subject: KeyHash, mode: Mode, cost: u32) -> Decision {
    Decision {
        mode,
        tag: subject,
        charges: vec![Charge { limit: Arc::clone(limit), subject, cost }],
        can_wait: false,
    }
}
