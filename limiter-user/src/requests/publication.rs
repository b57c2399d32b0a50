//! A policy's limits as they stand in the store: the text of `<ns>:policy`, and the function library.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::limit::{Algorithm, Limit};
use super::policy::{DENY, Endpoint, RequestPolicy, Tag};
use super::redis::{library, lua_string};

/// What `<ns>:policy` holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Of the policy the limits come from.
    pub hash: String,
    /// The policy file's serial.
    pub serial: u64,
    /// The host that published.
    pub host: String,
    /// When, in seconds since 1970 by the store's clock.
    pub at: u64,
    /// In the order in which they match.
    pub endpoints: Vec<PublishedEndpoint>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedEndpoint {
    pub name: String,
    pub tag: PublishedTag,
    /// In the order of the keys of `FCALL`.
    pub limits: Vec<PublishedLimit>,
}

/// What the braces of a key hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublishedTag {
    /// The hash of these scopes and their values.
    Scopes(Vec<String>),
    /// The hash of the one part `group`, with this value.
    Group(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedLimit {
    pub name: String,
    /// Each a scope or alternatives `a | b`; the key's last part is the hash of them and their values.
    pub scopes: Vec<String>,
    pub default: PublishedNumbers,
    /// For plans with numbers of their own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub plans: BTreeMap<String, PublishedNumbers>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedNumbers {
    /// The third part of the key.
    pub id: String,
    pub algorithm: Algorithm,
    pub count: u32,
    pub window_ms: u64,
    /// Burst of a token bucket, depth of a leaky bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    pub observe: bool,
}

/// A policy ready to be published.
#[derive(Debug)]
pub struct Publication {
    pub(super) hash: String,
    pub(super) serial: u64,
    pub(super) host: String,
    pub(super) endpoints: Vec<PublishedEndpoint>,
    code: String,
}

impl Publication {
    pub fn new(namespace: &str, policy: &RequestPolicy, hash: &str, serial: u64, host: &str) -> Self {
        Self {
            hash: hash.to_owned(),
            serial,
            host: host.to_owned(),
            endpoints: policy.endpoints.iter().map(published).collect(),
            code: library(namespace, &tables(hash, &policy.endpoints)),
        }
    }

    /// The function library's text.
    pub fn code(&self) -> &str {
        &self.code
    }
}

fn published(endpoint: &Endpoint) -> PublishedEndpoint {
    let tag = match &endpoint.tag {
        Tag::Common(elements) => PublishedTag::Scopes(elements.iter().map(ToString::to_string).collect()),
        Tag::Group(name) => PublishedTag::Group(name.clone()),
    };
    let limits = endpoint.limits.iter().map(|limit| PublishedLimit {
        name: limit.default.name().to_owned(),
        scopes: limit.scope.0.iter().map(ToString::to_string).collect(),
        default: numbers(endpoint, limit.observe, &limit.default),
        plans: limit
            .by_plan
            .iter()
            .map(|(plan, of_plan)| (plan.to_string(), numbers(endpoint, limit.observe, of_plan)))
            .collect(),
    });
    PublishedEndpoint { name: endpoint.name.to_string(), tag, limits: limits.collect() }
}

fn numbers(endpoint: &Endpoint, observe: bool, limit: &Limit) -> PublishedNumbers {
    PublishedNumbers {
        id: limit.id().to_owned(),
        algorithm: limit.algorithm(),
        count: limit.count(),
        window_ms: limit.window().as_millis() as u64,
        burst: limit.algorithm().is_bucket().then(|| limit.burst()),
        observe: endpoint.observe || observe || limit.observe(),
    }
}

/// The Lua tables of a policy: per endpoint its limits under every plan that changes any of them.
fn tables(hash: &str, endpoints: &[Endpoint]) -> String {
    let mut text = format!("local policy = {}\nlocal endpoints = {{\n", lua_string(hash));
    for endpoint in endpoints {
        let name = lua_string(&endpoint.name);
        let _ = writeln!(text, "[{name}] = {{ default = {},", rules(endpoint, None, false));
        let _ = writeln!(text, "deny = {}, plans = {{", rules(endpoint, None, true));
        let plans: BTreeSet<&str> =
            endpoint.limits.iter().flat_map(|limit| limit.by_plan.keys().map(|plan| &**plan)).collect();
        for plan in plans.iter().filter(|plan| **plan != DENY) {
            let _ = writeln!(text, "[{}] = {},", lua_string(plan), rules(endpoint, Some(plan), false));
        }
        text.push_str("} },\n");
    }
    text.push_str("}\n");
    text
}

/// Seven items per limit, as the decision script takes them; the cost comes with the question.
fn rules(endpoint: &Endpoint, plan: Option<&str>, closed: bool) -> String {
    let (mut ids, mut rules) = (Vec::new(), Vec::new());
    for limit in &endpoint.limits {
        let of_plan = limit.for_plan(plan);
        let observed = endpoint.observe || limit.observe || of_plan.observe();
        ids.push(lua_string(&format!(":{}:", of_plan.id())));
        rules.push(format!(
            "'{}', {}, 0, {}, {}, {}, {}",
            of_plan.algorithm().letter(),
            u8::from(closed || !observed),
            if closed { 0 } else { of_plan.count() },
            of_plan.window_units(),
            of_plan.burst(),
            of_plan.unit().micros(),
        ));
    }
    format!("{{ ids = {{{}}}, rules = {{{}}} }}", ids.join(", "), rules.join(", "))
}
