//! One request at its endpoint: the buckets it would pay from, and what follows from an answer about them.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::identity::{Identity, Resolved, SourceRules};
use super::key::{Hashing, KeyHash, Part, Secret};
use super::limit::Limit;
use super::outcome::{LimitOutcome, Outcome, Reason, Via};
use super::plans::KeyStanding;
use super::policy::{Cost, DENY, Endpoint};
use super::question::Request;
use super::reject_cache::Fingerprint;
use super::store::{Answer, LimitAnswer};

/// One limit of the request at hand.
pub(super) struct Bucket<'a> {
    pub(super) limit: &'a Arc<Limit>,
    pub(super) observing: bool,
    pub(super) elements: SmallVec<[Resolved<'a>; 2]>,
    pub(super) print: Fingerprint,
}

/// A request whose endpoint is found and whose caller is known.
pub(super) struct Case<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) buckets: SmallVec<[Bucket<'a>; 4]>,
    pub(super) identity: &'a Identity,
    pub(super) source: &'a SourceRules,
    pub(super) cost: u32,
    pub(super) can_wait: bool,
}

impl Case<'_> {
    /// The limits with what is known of each.
    pub(super) fn outcomes(&self, mut answer: impl FnMut(usize) -> Option<LimitAnswer>) -> Vec<LimitOutcome> {
        let limits = self.buckets.iter().enumerate();
        limits
            .map(|(i, bucket)| LimitOutcome {
                limit: Arc::clone(bucket.limit),
                observing: bucket.observing,
                answer: answer(i),
            })
            .collect()
    }
}

pub(super) fn cost_of(endpoint: &Endpoint, request: &Request<'_>) -> u32 {
    let Cost::Header { name, .. } = &endpoint.cost else { return endpoint.cost.of(None) };
    let sent = request.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str());
    endpoint.cost.of(request.cost.or(sent))
}

pub(super) fn denied(identity: &Identity, standing: &KeyStanding) -> bool {
    matches!(standing, KeyStanding::Revoked) || identity.plan.as_deref() == Some(DENY)
}

pub(super) fn decided(
    endpoint: &Endpoint,
    allowed: bool,
    reason: Reason,
    via: Via,
    limits: Vec<LimitOutcome>,
) -> Outcome {
    let endpoint = Some(Arc::clone(&endpoint.name));
    Outcome { allowed, reason, via, endpoint, limits, delay: Duration::ZERO, refundable: false }
}

/// Refused by the numbers alone: the cost is larger than the limit ever admits.
pub(super) fn without_room(case: &Case<'_>) -> Option<Outcome> {
    let never = |bucket: &Bucket<'_>| {
        bucket.limit.capacity() < case.cost || (bucket.limit.capacity() == 0 && case.cost == 0)
    };
    if !case.buckets.iter().any(|bucket| !bucket.observing && never(bucket)) {
        return None;
    }
    let limits = case.outcomes(|i| {
        let bucket = &case.buckets[i];
        never(bucket).then(|| never_admits(bucket.limit))
    });
    Some(decided(case.endpoint, false, Reason::Never, Via::Static, limits))
}

pub(super) fn never_admits(limit: &Limit) -> LimitAnswer {
    LimitAnswer {
        allowed: false,
        remaining: limit.capacity(),
        retry_after: None,
        reset: Duration::ZERO,
        delay: Duration::ZERO,
    }
}

pub(super) fn from_answer(case: &Case<'_>, answer: &Answer, via: Via) -> Outcome {
    let mut answers = answer.limits.iter().copied();
    let limits = case.outcomes(|i| {
        let bucket = &case.buckets[i];
        if bucket.limit.capacity() == 0 { Some(never_admits(bucket.limit)) } else { answers.next() }
    });
    let mut outcome = decided(case.endpoint, answer.allowed, Reason::Within, via, limits);
    if answer.allowed {
        outcome.delay = answer.delay();
        outcome.refundable = case.endpoint.charge_failures_only && matches!(via, Via::Store | Via::Local);
    } else {
        outcome.reason = if outcome.retry_after().is_some() { Reason::Over } else { Reason::Never };
    }
    outcome
}

/// An observing endpoint refuses nobody; what it would have done stays visible in its limits.
pub(super) fn observe(endpoint: &Endpoint, outcome: Outcome) -> Outcome {
    if endpoint.observe && !outcome.allowed { Outcome { allowed: true, ..outcome } } else { outcome }
}

pub(super) fn shown(bucket: &Bucket<'_>) -> String {
    let words = bucket.elements.iter().map(|element| match element.kind {
        // A key is a secret; its hash is shown elsewhere.
        "api-key" => "api-key …".to_owned(),
        kind => format!("{kind} {}", element.value.text()),
    });
    words.collect::<Vec<_>>().join(" + ")
}

pub(super) fn hash_of(secret: &Secret, elements: &[Resolved<'_>]) -> KeyHash {
    let add = |hash: Hashing, element: &Resolved<'_>| {
        hash.part(&Part::new(element.kind, element.value.text().as_bytes()))
    };
    elements.iter().fold(secret.start(), add).finish()
}
