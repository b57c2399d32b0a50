//! What the control API says of requests: endpoints in `GET /v1/rules`, `POST /v1/check-request` and `PUT|DELETE /v1/plans/{hash}`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::requests::limit::Limit;
use crate::requests::policy::{Cost, Endpoint, EndpointLimit, RequestPolicy};
use crate::requests::question::{Explanation, Request};

/// One endpoint of the policy in force, in `GET /v1/rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRules {
    pub name: String,
    /// Which requests, for people.
    pub matches: String,
    /// `enforce` or `observe`.
    pub mode: String,
    /// A number, or `header NAME, at most N`.
    pub cost: String,
    /// `always` or `on-failure`.
    pub charge: String,
    /// `null`: the file does not say.
    pub on_store_failure: Option<String>,
    pub limits: Vec<EndpointLimitRules>,
}

/// One limit of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointLimitRules {
    pub name: String,
    pub per: Vec<String>,
    pub algorithm: String,
    pub mode: String,
    /// For callers without a plan, and plans that are not named.
    pub default: Quota,
    /// By plan.
    pub plans: BTreeMap<String, Quota>,
}

/// A limit's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    pub count: u32,
    pub window_ms: u64,
    /// The most at once.
    pub capacity: u32,
}

impl Quota {
    fn of(limit: &Limit) -> Self {
        let window_ms = u64::try_from(limit.window().as_millis()).unwrap_or(u64::MAX);
        Self { count: limit.count(), window_ms, capacity: limit.capacity() }
    }
}

/// The endpoints of a policy, spelled out.
pub fn endpoint_rules(policy: &RequestPolicy) -> Vec<EndpointRules> {
    let mode = |observe| if observe { "observe" } else { "enforce" }.to_owned();
    let limit = |limit: &EndpointLimit| EndpointLimitRules {
        name: limit.default.name().to_owned(),
        per: limit.scope.0.iter().map(ToString::to_string).collect(),
        algorithm: limit.default.algorithm().name().to_owned(),
        mode: mode(limit.observe),
        default: Quota::of(&limit.default),
        plans: limit.by_plan.iter().map(|(plan, limit)| (plan.to_string(), Quota::of(limit))).collect(),
    };
    let endpoint = |endpoint: &Endpoint| EndpointRules {
        name: endpoint.name.to_string(),
        matches: endpoint.matches.to_string(),
        mode: mode(endpoint.observe),
        cost: match &endpoint.cost {
            Cost::Fixed(cost) => cost.to_string(),
            Cost::Header { name, max, .. } => format!("header {name}, at most {max}"),
        },
        charge: if endpoint.charge_failures_only { "on-failure" } else { "always" }.to_owned(),
        on_store_failure: endpoint.on_store_failure.map(|failure| failure.text().to_owned()),
        limits: endpoint.limits.iter().map(limit).collect(),
    };
    policy.endpoints.iter().map(endpoint).collect()
}

/// Body of `POST /v1/check-request`: the request to explain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    pub client: IpAddr,
    #[serde(default)]
    pub method: Option<String>,
    /// Path and query.
    #[serde(default)]
    pub uri: Option<String>,
    #[serde(default)]
    pub domain: Option<String>,
    #[serde(default)]
    pub api_key: Option<String>,
    #[serde(default)]
    pub account: Option<String>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub plan: Option<String>,
    #[serde(default)]
    pub cost: Option<String>,
    /// For `header:NAME` scopes.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// For `descriptor:KEY` scopes and matches.
    #[serde(default)]
    pub descriptor: BTreeMap<String, String>,
}

impl CheckRequest {
    /// The descriptor's entries as the engine takes them.
    pub fn entries(&self) -> Vec<Vec<(String, String)>> {
        if self.descriptor.is_empty() { Vec::new() } else { vec![pairs(&self.descriptor)] }
    }

    pub fn request<'a>(&'a self, entries: &'a [Vec<(String, String)>]) -> Request<'a> {
        let headers = self.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        Request {
            method: self.method.as_deref(),
            target: self.uri.as_deref(),
            domain: self.domain.as_deref(),
            descriptors: entries,
            api_key: self.api_key.as_deref(),
            account: self.account.as_deref(),
            user: self.user.as_deref(),
            plan: self.plan.as_deref(),
            headers: headers.collect(),
            cost: self.cost.as_deref(),
            ..Request::from(self.client)
        }
    }
}

fn pairs(map: &BTreeMap<String, String>) -> Vec<(String, String)> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Answer to `POST /v1/check-request`. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedRequest {
    pub allowed: bool,
    /// As in the header `Limiter-Reason`.
    pub reason: String,
    /// `null` when no endpoint matches.
    pub endpoint: Option<String>,
    /// The path in normal form; `null` when it cannot be normalised.
    pub path: Option<String>,
    /// `absent`, `unknown`, `known` or `revoked`.
    pub api_key: String,
    /// What `set-plan` and `revoke-key` take.
    pub api_key_hash: Option<String>,
    pub plan: Option<String>,
    pub cost: u32,
    pub retry_after_s: Option<u64>,
    /// What stands in the braces of the store's keys.
    pub tag: Option<String>,
    pub limits: Vec<CheckedLimit>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedLimit {
    pub name: String,
    pub algorithm: String,
    pub count: u32,
    pub window_s: u64,
    /// Of a bucket; the count otherwise.
    pub capacity: u32,
    /// What it is counted by in this request.
    pub per: String,
    /// Third part of the store's key.
    pub id: String,
    /// Last part of the store's key.
    pub subject: String,
    pub observing: bool,
    /// Whether there is room; `null` when the store was not asked.
    pub allowed: Option<bool>,
    pub remaining: Option<u32>,
    pub reset_s: Option<u64>,
}

impl From<Explanation> for CheckedRequest {
    fn from(explanation: Explanation) -> Self {
        let outcome = &explanation.outcome;
        let seconds = |time: std::time::Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
        let limits = outcome.limits.iter().zip(&explanation.subjects);
        let limits = limits.map(|(limit, (per, subject))| CheckedLimit {
            name: limit.limit.name().to_owned(),
            algorithm: limit.limit.algorithm().name().to_owned(),
            count: limit.limit.count(),
            window_s: limit.limit.window().as_secs(),
            capacity: limit.limit.capacity(),
            per: per.clone(),
            id: limit.limit.id().to_owned(),
            subject: subject.text(),
            observing: limit.observing,
            allowed: limit.answer.map(|answer| answer.allowed),
            remaining: limit.answer.map(|answer| answer.remaining),
            reset_s: limit.answer.map(|answer| seconds(answer.reset)),
        });
        Self {
            allowed: outcome.allowed,
            reason: outcome.reason.text().to_owned(),
            endpoint: outcome.endpoint.as_deref().map(str::to_owned),
            path: explanation.path,
            api_key: explanation.key.to_owned(),
            api_key_hash: explanation.api_key_hash.map(|hash| hash.text()),
            plan: explanation.plan,
            cost: explanation.cost,
            retry_after_s: outcome.retry_after().map(seconds),
            tag: explanation.tag.map(|tag| tag.text()),
            limits: limits.collect(),
        }
    }
}

/// Body of `PUT /v1/plans/{hash}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPlan {
    /// A plan's name; `deny` revokes the key.
    pub plan: String,
}

/// Answer to `PUT|DELETE /v1/plans/{hash}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSet {
    pub key: String,
    /// `null`: what the keys file says holds again.
    pub plan: Option<String>,
}
