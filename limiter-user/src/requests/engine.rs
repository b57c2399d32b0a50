//! One decision: endpoint, identity, plan, remembered refusals, the store, and what holds when it is away.
//!
//! The order is by cost. What the policy alone refuses (a denied plan, a rate of 0) asks nobody; a refusal
//! that still holds asks nobody; then the store decides all limits of the endpoint in one atomic step. When
//! it gives no answer within its deadline, the endpoint's `on-store-failure` does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use super::case::{
    Bucket, Case, cost_of, decided, denied, from_answer, hash_of, observe, shown, without_room,
};
use super::failure::Instances;
use super::identity::{Identity, Resolved, present};
use super::key::{KeyHash, Part, Secret};
use super::matching::Target;
use super::metrics::{Decided, RequestMetrics};
use super::normalise::normalise;
use super::outage::Outage;
use super::outcome::{Outcome, Reason, Via};
use super::plans::{KeyStanding, Known, PlanCache};
use super::policy::{DENY, Endpoint, IdentityRules, RequestPolicy, Tag, UnknownKey};
pub use super::question::{Explanation, Report, Request};
use super::reject_cache::{Fingerprints, Refusal, RejectCache};
use super::store::{Charge, Decision, LimitAnswer, Mode, PlanRecord, PlanStore, Store, StoreError};

/// Refusals remembered at most, at about 100 bytes each.
const REMEMBERED_REFUSALS: usize = 1 << 16;

/// A policy with what the engine keeps beside it.
pub(super) struct InForce {
    pub(super) policy: RequestPolicy,
    hash: String,
    /// In the order of the endpoints.
    counters: Vec<Arc<Decided>>,
}

/// What an engine is made of.
pub struct Parts {
    pub store: Arc<dyn Store>,
    pub plans: Option<Arc<dyn PlanStore>>,
    /// Decides this host's share while the store is away.
    pub local: Arc<dyn Store>,
    /// What this host admitted meanwhile.
    pub outage: Outage,
    pub secret: Secret,
    pub instances: Arc<Instances>,
    pub metrics: Arc<RequestMetrics>,
}

/// See the module. Shared by every interface.
pub struct Engine {
    in_force: ArcSwap<InForce>,
    pub(super) store: Arc<dyn Store>,
    pub(super) local: Arc<dyn Store>,
    pub(super) outage: Outage,
    secret: Secret,
    pub(super) instances: Arc<Instances>,
    pub(super) rejects: RejectCache,
    prints: Fingerprints,
    plans: PlanCache,
    metrics: Arc<RequestMetrics>,
}

impl Engine {
    pub fn new(parts: Parts) -> Self {
        let Parts { store, plans, local, outage, secret, instances, metrics } = parts;
        let in_force =
            InForce { policy: RequestPolicy::default(), hash: String::new(), counters: Vec::new() };
        Self {
            in_force: ArcSwap::from_pointee(in_force),
            store,
            local,
            outage,
            plans: PlanCache::new(plans, secret.clone()),
            secret,
            instances,
            rejects: RejectCache::new(REMEMBERED_REFUSALS),
            prints: Fingerprints::default(),
            metrics,
        }
    }

    /// Puts a policy in force: requests under way finish under the one they began with.
    pub fn apply(&self, policy: RequestPolicy, hash: &str) {
        let counters = policy
            .endpoints
            .iter()
            .map(|endpoint| {
                let names = endpoint.limits.iter().map(|limit| limit.default.name());
                self.metrics.endpoint(&endpoint.name, names)
            })
            .collect();
        self.in_force.store(Arc::new(InForce { policy, hash: hash.to_owned(), counters }));
        self.rejects.forget_all();
    }

    pub(super) fn in_force(&self) -> Arc<InForce> {
        self.in_force.load_full()
    }

    /// The hash of the policy in force; empty before the first.
    pub fn policy_hash(&self) -> String {
        self.in_force.load().hash.clone()
    }

    pub fn metrics(&self) -> &RequestMetrics {
        &self.metrics
    }

    pub fn store_kind(&self) -> &'static str {
        self.store.kind()
    }

    /// What interfaces must know to find identity.
    pub fn with_identity_rules<T>(&self, read: impl FnOnce(&IdentityRules) -> T) -> T {
        read(&self.in_force.load().policy.identity)
    }

    /// Decides about one request and charges it.
    pub async fn decide(&self, request: Request<'_>) -> Outcome {
        // Before the policy: what is refused under numbers replaced meanwhile is not remembered.
        let epoch = self.rejects.epoch();
        let in_force = self.in_force.load_full();
        let Some(index) = in_force.find(&request) else {
            self.metrics.unmatched(request.domain);
            return Outcome::unmatched();
        };
        let (endpoint, counters) = (&in_force.policy.endpoints[index], &in_force.counters[index]);
        let (identity, known) = self.identify(&in_force.policy, &request).await;
        let outcome = if denied(&identity, &known.standing) {
            decided(endpoint, false, Reason::Denied, Via::Static, Vec::new())
        } else {
            let case = self.case(&in_force, index, &identity, &request);
            let now = Instant::now();
            match self.without_store(&case, now) {
                Some(outcome) => outcome,
                // One deadline was spent on the key's plan; a second would make the answer late.
                None if known.store_failed => self.fail(&case, false).await,
                None => self.with_store(&case, epoch, now).await,
            }
        };
        let outcome = observe(endpoint, outcome);
        counters.count(&outcome);
        outcome
    }

    /// What would be decided, and why. Charges nothing.
    pub async fn explain(&self, request: Request<'_>) -> Result<Explanation, StoreError> {
        let in_force = self.in_force.load_full();
        let path = request.target.and_then(|target| normalise(target.as_bytes()));
        let (identity, known) = self.identify(&in_force.policy, &request).await;
        let mut explanation = Explanation {
            outcome: Outcome::unmatched(),
            path: path.as_deref().map(str::to_owned),
            plan: identity.plan.clone(),
            api_key_hash: request.api_key.and_then(present).map(|key| self.plans.hash(key)),
            key: known.standing.text(),
            cost: 0,
            subjects: Vec::new(),
            tag: None,
        };
        let Some(index) = in_force.find_at(&request, path.as_deref()) else { return Ok(explanation) };
        let case = self.case(&in_force, index, &identity, &request);
        explanation.cost = case.cost;
        explanation.tag = Some(self.tag(&case, &[]));
        explanation.subjects =
            case.buckets.iter().map(|bucket| (shown(bucket), self.subject(bucket))).collect();
        let outcome = if denied(&identity, &known.standing) {
            decided(case.endpoint, false, Reason::Denied, Via::Static, Vec::new())
        } else if let Some(outcome) = without_room(&case) {
            outcome
        } else {
            let decision = self.decision(&case, Mode::Peek);
            let answer = self.store.decide(&decision).await?;
            from_answer(&case, &answer, Via::Store)
        };
        explanation.outcome = observe(case.endpoint, outcome);
        Ok(explanation)
    }

    /// Asks the store which plans changed, and forgets what was known of them and every refusal. `true` when
    /// something changed.
    pub async fn refresh_plans(&self) -> Result<bool, StoreError> {
        let changed = self.plans.refresh().await?;
        if changed {
            self.rejects.forget_all();
        }
        Ok(changed)
    }

    /// Writes the plan of a key for every host that shares the store; `None` removes it.
    pub async fn set_plan(&self, key: &KeyHash, record: Option<&PlanRecord>) -> Result<(), StoreError> {
        self.plans.set(key, record).await?;
        self.plans.forget(Some(&[*key]));
        self.rejects.forget_all();
        Ok(())
    }

    /// Endpoints of the policy in force.
    pub fn endpoints(&self) -> usize {
        self.in_force.load().policy.endpoints.len()
    }

    pub(super) async fn identify(&self, policy: &RequestPolicy, request: &Request<'_>) -> (Identity, Known) {
        let owned = |text: Option<&str>| text.and_then(present).map(str::to_owned);
        let mut identity = Identity::of(policy.identity.source.canonical(request.client));
        identity.account = owned(request.account);
        identity.user = owned(request.user);
        identity.plan = owned(request.plan);
        identity.headers.clone_from(&request.headers);
        identity.descriptors = request.descriptors.iter().flatten().cloned().collect();
        let Some((sent, rule)) = request.api_key.and_then(present).zip(policy.identity.api_key.as_ref())
        else {
            return (identity, Known::ABSENT);
        };
        let known = self.plans.look_up(sent, &policy.plans).await;
        let default = policy.plans.default.as_deref();
        match &known.standing {
            KeyStanding::Known { plan } => {
                identity.api_key = Some(sent.to_owned());
                let plan = plan.as_deref().or(default).map(str::to_owned);
                // What the proxy says of the caller goes before what the key's plan is.
                identity.plan = identity.plan.take().or(plan);
            }
            KeyStanding::Unknown if rule.unknown == UnknownKey::Deny => identity.plan = Some(DENY.to_owned()),
            KeyStanding::Unknown if rule.unknown == UnknownKey::DefaultPlan => {
                identity.plan = identity.plan.take().or(default.map(str::to_owned));
            }
            KeyStanding::Absent | KeyStanding::Unknown | KeyStanding::Revoked => {}
        }
        (identity, known)
    }

    pub(super) fn case<'a>(
        &self,
        in_force: &'a InForce,
        index: usize,
        identity: &'a Identity,
        request: &Request<'_>,
    ) -> Case<'a> {
        let endpoint = &in_force.policy.endpoints[index];
        let source = &in_force.policy.identity.source;
        let mut buckets = SmallVec::new();
        for limit in &endpoint.limits {
            let numbers = limit.for_plan(identity.plan.as_deref());
            // Plans share a bucket, and what one has no room for another may have.
            let [a, b, c, d] = numbers.count().to_le_bytes();
            let [e, f, g, h] = numbers.burst().to_le_bytes();
            let rest = [u8::from(request.can_wait), a, b, c, d, e, f, g, h];
            let mut print = self.prints.start().part(numbers.id().as_bytes()).part(&rest);
            let mut elements = SmallVec::new();
            for element in &limit.scope.0 {
                let absent = |scope| self.metrics.identity_absent(scope);
                let resolved = element.resolve(identity, &endpoint.name, source, absent);
                print = resolved.add_to(print);
                elements.push(resolved);
            }
            buckets.push(Bucket {
                limit: numbers,
                observing: limit.observe,
                elements,
                print: print.finish(),
            });
        }
        Case {
            endpoint,
            buckets,
            identity,
            source,
            cost: cost_of(endpoint, request),
            can_wait: request.can_wait,
        }
    }

    /// What needs no store: a limit that never has room for this, or a refusal that still holds.
    fn without_store(&self, case: &Case<'_>, now: Instant) -> Option<Outcome> {
        if let Some(outcome) = without_room(case) {
            return Some(outcome);
        }
        if case.cost == 0 {
            return None;
        }
        let enforcing = case.buckets.iter().enumerate().filter(|(_, bucket)| !bucket.observing);
        let (refusing, refusal) = enforcing
            .filter_map(|(i, bucket)| Some((i, self.rejects.get(bucket.print, case.cost, now)?)))
            .max_by_key(|(_, refusal)| refusal.retry_after.unwrap_or(Duration::MAX))?;
        let answer = LimitAnswer {
            allowed: false,
            remaining: refusal.remaining,
            retry_after: refusal.retry_after,
            reset: refusal.reset,
            delay: Duration::ZERO,
        };
        let limits = case.outcomes(|i| (i == refusing).then_some(answer));
        Some(decided(case.endpoint, false, Reason::Over, Via::Cache, limits))
    }

    async fn with_store(&self, case: &Case<'_>, epoch: u64, asked: Instant) -> Outcome {
        let decision = self.decision(case, Mode::Consume);
        if decision.charges.is_empty() {
            return decided(case.endpoint, true, Reason::Within, Via::Static, case.outcomes(|_| None));
        }
        let answer = match self.store.decide_at_once(&decision) {
            Some(answer) => answer,
            None => self.store.decide(&decision).await,
        };
        match answer {
            Ok(answer) => {
                self.metrics.store_answered(asked.elapsed());
                let outcome = from_answer(case, &answer, Via::Store);
                if case.cost > 0 && !answer.allowed {
                    self.remember(case, &outcome, epoch, asked);
                }
                outcome
            }
            Err(error) => {
                self.metrics.store_failed(error.kind());
                self.fail(case, error.may_have_charged()).await
            }
        }
    }

    fn remember(&self, case: &Case<'_>, outcome: &Outcome, epoch: u64, asked: Instant) {
        for (bucket, limit) in case.buckets.iter().zip(&outcome.limits) {
            let Some(answer) = limit.answer.filter(|answer| !answer.allowed && !bucket.observing) else {
                continue;
            };
            let refusal =
                Refusal { remaining: answer.remaining, retry_after: answer.retry_after, reset: answer.reset };
            self.rejects.insert(bucket.print, case.cost, refusal, epoch, asked);
        }
    }

    /// The question to a store. Limits with a rate of 0 are answered before it and are no part of it.
    pub(super) fn decision(&self, case: &Case<'_>, mode: Mode) -> Decision {
        let asked = case.buckets.iter().filter(|bucket| bucket.limit.capacity() > 0);
        let charges: Vec<Charge> = asked
            .map(|bucket| Charge {
                limit: Arc::clone(bucket.limit),
                subject: self.subject(bucket),
                cost: case.cost,
            })
            .collect();
        let tag = if self.store.is_sharded() { self.tag(case, &charges) } else { KeyHash([0; 16]) };
        Decision { mode, tag, charges, can_wait: case.can_wait }
    }

    fn subject(&self, bucket: &Bucket<'_>) -> KeyHash {
        hash_of(&self.secret, &bucket.elements)
    }

    /// `charges`: of the same case, if they are known.
    fn tag(&self, case: &Case<'_>, charges: &[Charge]) -> KeyHash {
        let elements = match &case.endpoint.tag {
            Tag::Group(name) => return self.secret.hash(&[Part::new("group", name.as_bytes())]),
            Tag::Common(elements) => elements,
        };
        let resolve = elements
            .iter()
            .map(|element| element.resolve(case.identity, &case.endpoint.name, case.source, |_| {}));
        let resolved: SmallVec<[Resolved<'_>; 2]> = resolve.collect();
        // A limit that is counted by the tag's own elements has its hash already.
        let asked = case.buckets.iter().filter(|bucket| bucket.limit.capacity() > 0);
        let same = asked.zip(charges).find(|(bucket, _)| bucket.elements == resolved);
        same.map_or_else(|| hash_of(&self.secret, &resolved), |(_, charge)| charge.subject)
    }
}

impl InForce {
    /// The endpoint of a request.
    pub(super) fn find(&self, request: &Request<'_>) -> Option<usize> {
        let path = request.target.and_then(|target| normalise(target.as_bytes()));
        self.find_at(request, path.as_deref())
    }

    fn find_at(&self, request: &Request<'_>, path: Option<&str>) -> Option<usize> {
        let covers = |endpoint: &Endpoint, descriptor: &[(String, String)]| {
            let Request { method, domain, .. } = *request;
            endpoint.matches.covers(&Target { method, path, domain, descriptor })
        };
        self.policy.endpoints.iter().position(|endpoint| {
            covers(endpoint, &[]) || request.descriptors.iter().any(|descriptor| covers(endpoint, descriptor))
        })
    }
}
