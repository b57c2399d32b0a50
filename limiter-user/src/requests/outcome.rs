//! What was decided about one request, and why.

use std::sync::Arc;
use std::time::Duration;

use super::limit::Limit;
use super::store::LimitAnswer;

/// Why a request was let through or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Every limit has room.
    Within,
    /// A limit has no room now.
    Over,
    /// A limit can never admit this cost, or its rate is 0.
    Never,
    /// The plan is `deny`: a revoked key, or an unknown one under `unknown = "deny"`.
    Denied,
    /// The store gave no answer and the endpoint's `on-store-failure` decided.
    Store,
    /// No endpoint matches.
    Unmatched,
}

impl Reason {
    /// The text of the header `Limiter-Reason`.
    pub fn text(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::Over => "over",
            Self::Never => "never",
            Self::Denied => "denied",
            Self::Store => "store",
            Self::Unmatched => "unmatched",
        }
    }
}

/// Who made the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// The policy alone: no endpoint, a denied plan, a rate of 0.
    Static,
    /// A remembered refusal that still holds.
    Cache,
    Store,
    /// This host's share, while the store is away.
    Local,
    /// `on-store-failure = "allow"` or `"deny"`.
    Failure,
}

impl Via {
    pub const ALL: [Self; 5] = [Self::Static, Self::Cache, Self::Store, Self::Local, Self::Failure];

    /// The label in the metrics.
    pub fn text(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Cache => "cache",
            Self::Store => "store",
            Self::Local => "local",
            Self::Failure => "failure",
        }
    }
}

/// One limit's part in a decision.
#[derive(Clone, Debug)]
pub struct LimitOutcome {
    pub limit: Arc<Limit>,
    /// Counted and reported, but it refuses nothing.
    pub observing: bool,
    /// `None`: nobody was asked (a refusal by another limit was remembered, or the store is away).
    pub answer: Option<LimitAnswer>,
}

impl LimitOutcome {
    /// Whether this limit refuses the request.
    pub fn refuses(&self) -> bool {
        !self.observing && self.would_refuse()
    }

    /// Whether this limit has no room, observed or not.
    pub fn would_refuse(&self) -> bool {
        self.answer.is_some_and(|answer| !answer.allowed)
    }
}

/// The decision about one request.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub allowed: bool,
    pub reason: Reason,
    pub via: Via,
    /// The endpoint's name; `None` when none matches.
    pub endpoint: Option<Arc<str>>,
    /// In the order of the policy file.
    pub limits: Vec<LimitOutcome>,
    /// How long a caller that can wait holds the admitted request back; zero but for a leaky bucket's queue.
    pub delay: Duration,
    /// The endpoint charges failures only: a reported success gives the charge back.
    pub refundable: bool,
}

impl Outcome {
    /// Nothing limits this request.
    pub fn unmatched() -> Self {
        Self {
            allowed: true,
            reason: Reason::Unmatched,
            via: Via::Static,
            endpoint: None,
            limits: Vec::new(),
            delay: Duration::ZERO,
            refundable: false,
        }
    }

    /// The time until every refusing limit has room; `None` when one never has, or none is known.
    pub fn retry_after(&self) -> Option<Duration> {
        let mut longest = None;
        for refusing in self.limits.iter().filter(|limit| limit.refuses()) {
            let wait = refusing.answer.and_then(|answer| answer.retry_after)?;
            longest = longest.max(Some(wait));
        }
        longest
    }

    /// The limit a caller meets first: of the refusing ones the one that takes longest, else the one with
    /// the smallest part of its capacity left.
    pub fn tightest(&self) -> Option<(&Limit, LimitAnswer)> {
        let known = self.limits.iter().filter(|limit| !limit.observing);
        let known = known.filter_map(|limit| limit.answer.map(|answer| (&*limit.limit, answer)));
        known.reduce(|a, b| if tighter(b, a) { b } else { a })
    }
}

fn tighter(a: (&Limit, LimitAnswer), b: (&Limit, LimitAnswer)) -> bool {
    if a.1.allowed != b.1.allowed {
        return !a.1.allowed;
    }
    if !a.1.allowed {
        // `None` is never, which is longest.
        let wait = |answer: LimitAnswer| answer.retry_after.unwrap_or(Duration::MAX);
        return wait(a.1) > wait(b.1);
    }
    // remaining / capacity, compared crosswise.
    let left_a = u64::from(a.1.remaining) * u64::from(b.0.capacity());
    let left_b = u64::from(b.1.remaining) * u64::from(a.0.capacity());
    left_a < left_b || (left_a == left_b && a.1.reset > b.1.reset)
}
