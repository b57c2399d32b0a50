//! The request part of a policy, validated: every name resolved, every number exact.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ipnet::IpNet;

use super::identity::{Element, Scope, SourceRules};
use super::limit::Limit;
use super::matching::Match;
use crate::policy::{Diagnostic, Place, Severity};

/// The plan that admits nothing.
pub const DENY: &str = "deny";

/// See the module. The default has no endpoints: every request is let through.
#[derive(Clone, Debug, Default)]
pub struct RequestPolicy {
    /// A starting host publishes its limits where an older serial is published; 0 when the file has none.
    pub serial: u64,
    pub identity: IdentityRules,
    pub plans: Plans,
    /// In the order of the file: the first that matches counts.
    pub endpoints: Vec<Endpoint>,
}

impl RequestPolicy {
    /// Every plan the policy knows: of keys, of rates, and the default.
    pub fn plan_names(&self) -> BTreeSet<Arc<str>> {
        let of_keys = self.plans.keys.values().flatten().chain(&self.plans.default);
        let limits = self.endpoints.iter().flat_map(|endpoint| &endpoint.limits);
        of_keys.chain(limits.flat_map(|limit| limit.by_plan.keys())).cloned().collect()
    }

    /// Limits, each counted once however many endpoints share it.
    pub fn limit_count(&self) -> usize {
        let limits = self.endpoints.iter().flat_map(|endpoint| &endpoint.limits);
        limits.map(|limit| limit.default.id()).collect::<BTreeSet<_>>().len()
    }

    /// Mistakes on a host whose store can be away: endpoints that do not say what holds then.
    pub fn undecided(&self) -> Vec<Diagnostic> {
        let silent = self.endpoints.iter().filter(|endpoint| endpoint.on_store_failure.is_none());
        silent
            .map(|Endpoint { name, place, .. }| Diagnostic {
                severity: Severity::Error,
                file: place.file.to_string(),
                line: place.line,
                column: place.column,
                message: format!("endpoint `{name}` does not say what holds when Redis is away"),
                help: Some(
                    "write `on-store-failure = \"allow\"`, `\"deny\"` or `\"local\"`: it is decided before the outage"
                        .to_owned(),
                ),
            })
            .collect()
    }
}

/// Where identity comes from. Header names are in lower case.
#[derive(Clone, Debug, Default)]
pub struct IdentityRules {
    pub trusted_proxies: Vec<IpNet>,
    pub source: SourceRules,
    pub api_key: Option<KeyRule>,
    pub account: Option<String>,
    pub user: Option<String>,
    pub plan: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    pub header: String,
    pub unknown: UnknownKey,
}

/// What an API key that nobody knows is. It never is an identity: else a new one per request would bring
/// fresh limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKey {
    /// As if there were no key.
    #[default]
    AsNone,
    /// The request is refused.
    Deny,
    /// As if there were no key, but at the default plan's rates.
    DefaultPlan,
}

/// Which plan a key has.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    /// For known keys without a plan.
    pub default: Option<Arc<str>>,
    /// By API key; `None` is a key without a plan.
    pub keys: Arc<HashMap<String, Option<Arc<str>>>>,
}

/// A class of requests and its limits.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub name: Arc<str>,
    pub place: Place,
    pub matches: Match,
    /// All must have room, or none is charged.
    pub limits: Vec<EndpointLimit>,
    pub cost: Cost,
    /// A reported success gives the charge back: in the end only failures have paid.
    pub charge_failures_only: bool,
    pub observe: bool,
    /// `None`: the file does not say, which a host with Redis refuses.
    pub on_store_failure: Option<OnStoreFailure>,
    pub tag: Tag,
}

/// One limit as an endpoint uses it.
#[derive(Clone, Debug)]
pub struct EndpointLimit {
    pub scope: Scope,
    /// For callers without a plan, and plans that are not named.
    pub default: Arc<Limit>,
    pub by_plan: BTreeMap<Arc<str>, Arc<Limit>>,
    /// Counted and reported, but it refuses nothing.
    pub observe: bool,
}

impl EndpointLimit {
    pub fn for_plan(&self, plan: Option<&str>) -> &Arc<Limit> {
        plan.and_then(|plan| self.by_plan.get(plan)).unwrap_or(&self.default)
    }

    /// Its numbers under every plan, the default first.
    pub fn variants(&self) -> impl Iterator<Item = &Arc<Limit>> {
        std::iter::once(&self.default).chain(self.by_plan.values())
    }
}

/// What keeps all keys of a decision on one shard of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    /// The elements that all limits of the group are counted by.
    Common(Vec<Element>),
    /// They share none: one shard carries the group of this name.
    Group(String),
}

/// What one request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    Fixed(u32),
    /// From a header, at most `max`. What is no number costs `max`.
    Header {
        name: String,
        default: u32,
        max: u32,
    },
}

impl Default for Cost {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

impl Cost {
    /// `sent`: the header's value.
    pub fn of(&self, sent: Option<&str>) -> u32 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::Header { default, max, .. } => match sent.map(str::trim).filter(|sent| !sent.is_empty()) {
                None => *default,
                Some(sent) if sent.bytes().all(|b| b.is_ascii_digit()) => {
                    sent.parse::<u32>().unwrap_or(u32::MAX).min(*max)
                }
                Some(_) => *max,
            },
        }
    }

    /// The largest cost a request can have.
    pub fn most(&self) -> u32 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::Header { max, .. } => *max,
        }
    }
}

/// What decides when the store does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    Allow,
    Deny,
    /// This host's share of the limits: limit / instances.
    Local,
}

impl OnStoreFailure {
    pub fn text(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_whole_number_up_to_its_maximum() {
        let cost = Cost::Header { name: "limiter-cost".into(), default: 2, max: 50 };
        let table: &[(Option<&str>, u32)] = &[
            (None, 2),
            (Some(""), 2),
            (Some(" 7 "), 7),
            (Some("0"), 0),
            (Some("50"), 50),
            (Some("51"), 50),
            (Some("99999999999999999999"), 50),
            (Some("-3"), 50), // never cheaper for being wrong
            (Some("+3"), 50),
            (Some("1.5"), 50),
            (Some("NaN"), 50),
            (Some("1e0"), 50),
        ];
        for (sent, costs) in table {
            assert_eq!(cost.of(*sent), *costs, "{sent:?}");
        }
        assert_eq!(Cost::Fixed(3).of(Some("9")), 3);
    }
}
