//! What a store does: one decision in one atomic step.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::key::KeyHash;
use super::limit::Limit;

/// What a decision does to the buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Charge every limit if all have room, else none.
    Consume,
    /// Answer as `Consume` would, write nothing.
    Peek,
    /// Give `cost` back to every limit, each down to empty. Never refuses.
    Refund,
    /// Charge each limit what it still has room for, up to `cost`. Never refuses and leaves no debt: settles a
    /// cost that became known after the request was let through.
    Settle,
}

/// One limit of a decision: whose bucket pays how much.
#[derive(Debug, Clone)]
pub struct Charge {
    pub limit: Arc<Limit>,
    pub subject: KeyHash,
    /// Cost units. 0 asks without charging.
    pub cost: u32,
}

/// A question to the store.
#[derive(Debug, Clone)]
pub struct Decision {
    pub mode: Mode,
    /// What all keys of the decision share: puts them on one shard.
    pub tag: KeyHash,
    /// No two charges may name the same (limit id, subject).
    pub charges: Vec<Charge>,
    /// The caller can hold the request back for `LimitAnswer::delay`. A leaky bucket queues only such callers;
    /// others are admitted when their turn is now.
    pub can_wait: bool,
}

/// What one limit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitAnswer {
    /// Whether this limit has (had) room; an observed limit may say no without refusing the request.
    pub allowed: bool,
    /// The largest cost that would be admitted now, after this decision.
    pub remaining: u32,
    /// Zero if allowed; the shortest time after which the same request has room if nobody else is charged;
    /// `None`: never, the cost is larger than the limit.
    pub retry_after: Option<Duration>,
    /// Time until the bucket is as if never used (a bucket, a log) or the window ends (a window).
    pub reset: Duration,
    /// How long an admitted caller that can wait holds the request back; zero but for a leaky bucket.
    pub delay: Duration,
}

/// The answer to a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Every limit that is not only observed has room.
    pub allowed: bool,
    /// In the order of the charges.
    pub limits: Vec<LimitAnswer>,
}

impl Answer {
    /// The wait until all refusing limits have room; `None` if one never has. Zero when allowed.
    pub fn retry_after(&self, decision: &Decision) -> Option<Duration> {
        let refusing = self.limits.iter().zip(&decision.charges);
        refusing
            .filter(|(answer, charge)| !answer.allowed && !charge.limit.observe())
            .try_fold(Duration::ZERO, |wait, (answer, _)| answer.retry_after.map(|retry| wait.max(retry)))
    }

    /// The longest delay of an admitted request's queues.
    pub fn delay(&self) -> Duration {
        self.limits.iter().map(|answer| answer.delay).max().unwrap_or_default()
    }
}

/// Why the store gave no answer. Every kind but `Invalid` is a store failure in the sense of the endpoint's
/// `on-store-failure`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nobody is connected: connecting failed or is still going on.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// No answer within the deadline. The charge may have happened; it is not tried again.
    #[error("the store did not answer within {0:?}")]
    Timeout(Duration),
    /// The connection broke with the question on its way. The charge may have happened.
    #[error("the connection to the store broke: {0}")]
    Broken(String),
    /// The breaker is open: the store failed repeatedly and is probed in the background.
    #[error("the store failed repeatedly and is not asked until a probe succeeds")]
    Open,
    /// The store answers, but not this: loading its data, read-only, out of memory.
    #[error("the store is not ready: {0}")]
    NotReady(String),
    /// The store answers, and will keep refusing until someone changes its or our configuration.
    #[error("the store refuses: {0}")]
    Refused(String),
    /// The answer was not in the form of the protocol.
    #[error("the store's answer is malformed: {0}")]
    Malformed(String),
    /// The question is wrong in itself.
    #[error("the question to the store is wrong: {0}")]
    Invalid(String),
}

impl StoreError {
    /// Whether the store may have made the decision all the same.
    pub fn may_have_charged(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Broken(_) | Self::Malformed(_) => true,
            Self::Unreachable(_) | Self::Open | Self::NotReady(_) | Self::Refused(_) | Self::Invalid(_) => {
                false
            }
        }
    }

    /// A short name for metrics and headers.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Timeout(_) => "timeout",
            Self::Broken(_) => "broken",
            Self::Open => "breaker-open",
            Self::NotReady(_) => "not-ready",
            Self::Refused(_) => "refused",
            Self::Malformed(_) => "malformed",
            Self::Invalid(_) => "invalid",
        }
    }
}

/// Where buckets live. Shared behind an `Arc<dyn Store>`.
#[async_trait]
pub trait Store: Send + Sync {
    /// `embedded` or `redis`.
    fn kind(&self) -> &'static str;

    /// Whether decisions need [`Decision::tag`].
    fn is_sharded(&self) -> bool {
        false
    }

    /// [`Store::decide`] where that takes no waiting: a store in memory spares each question a future of its own.
    fn decide_at_once(&self, _decision: &Decision) -> Option<Result<Answer, StoreError>> {
        None
    }

    /// Makes one decision atomically.
    async fn decide(&self, decision: &Decision) -> Result<Answer, StoreError>;

    /// Forgets the buckets of these (limit, subject) pairs: the next request finds them unused.
    async fn reset(&self, decision: &Decision) -> Result<(), StoreError>;
}

/// What the fleet knows of an API key beside the policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanRecord {
    /// Set by `set-plan`.
    Plan(String),
    /// Set by `revoke-key`.
    Revoked,
}

/// Which plan records changed since a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanChanges {
    /// Pass it to the next call.
    pub version: u64,
    /// `None`: more changed than is remembered, drop everything cached.
    pub keys: Option<Vec<KeyHash>>,
}

/// Plan records: written by `set-plan` and `revoke-key`, seen by every host that shares the store. A key is
/// the hash of the one part (`api-key`, value). A host caches what it reads and asks `plan_changes` every two
/// seconds, so a change is seen everywhere within five.
#[async_trait]
pub trait PlanStore: Send + Sync {
    async fn plan(&self, key: &KeyHash) -> Result<Option<PlanRecord>, StoreError>;

    /// `None` removes the record.
    async fn set_plan(&self, key: &KeyHash, record: Option<&PlanRecord>) -> Result<(), StoreError>;

    async fn plan_changes(&self, since: u64) -> Result<PlanChanges, StoreError>;
}
