//! What is allowed in a policy but rarely meant.

use std::collections::BTreeSet;

use super::identity::{Element, Part};
use super::limit::{Algorithm, Limit};
use super::matching::PathPattern;
use super::policy::{Cost, Endpoint, EndpointLimit, RequestPolicy, Tag};
use crate::policy::diagnostic::Report;

/// A log above this is worth its estimate: about this many bytes per remembered request in Redis.
const LOG_BYTES: u64 = 100;
const LARGE_LOG: u32 = 100;

/// Words in the name or path of endpoints that passwords are guessed at.
const LOGIN: [&str; 8] = ["login", "signin", "sign-in", "auth", "password", "passwd", "otp", "2fa"];

/// `Limiter-` headers with a meaning of their own.
const SET_BY_RECIPES: [&str; 9] =
    ["client", "peer", "method", "uri", "cost", "account", "user", "plan", "token"];

/// Reports them.
pub(super) fn warn(policy: &RequestPolicy, report: &mut Report) {
    for (i, endpoint) in policy.endpoints.iter().enumerate() {
        let place = &endpoint.place;
        let name = &endpoint.name;
        if let Some(earlier) = policy.endpoints[..i].iter().find(|e| endpoint.matches.shadowed_by(&e.matches))
        {
            report.warning(
                place,
                format!("endpoint `{name}` is never reached: `{}` matches all its requests", earlier.name),
                "the first match in the file counts; put the narrower one first",
            );
        }
        if endpoint.on_store_failure.is_none() {
            report.warning(
                place,
                format!("endpoint `{name}` does not say what holds when the store is away"),
                "write `on-store-failure = \"allow\"`, `\"deny\"` or `\"local\"`; a host with Redis refuses the policy without it",
            );
        }
        if guarded_by_address_alone(endpoint) {
            report.warning(
                place,
                format!("endpoint `{name}` is limited by address alone: many addresses can share one account's guesses"),
                "add a limit per `account`, and one per `endpoint` for guesses spread over many accounts",
            );
        }
        if let Tag::Group(group) = &endpoint.tag
            && endpoint.limits.len() > 1
        {
            report.warning(
                place,
                format!("the limits of endpoint `{name}` have no scope in common: one shard of a cluster carries group `{group}`"),
                "nothing to do with a single Redis",
            );
        }
        for header in own_headers(endpoint) {
            report.warning(
                place,
                format!("endpoint `{name}` counts on `{header}`, which clients of a proxy that does not set it can write"),
                format!("set it in the proxy, in nginx `proxy_set_header {header} \"\";` or a value clients cannot choose"),
            );
        }
        for limit in &endpoint.limits {
            warn_limit(policy, endpoint, limit, report);
        }
    }
}

/// Headers that the HTTP interface reads for this endpoint beside those the recipes set.
fn own_headers(endpoint: &Endpoint) -> BTreeSet<&str> {
    let elements = endpoint.limits.iter().flat_map(|limit| &limit.scope.0);
    let scopes = elements.flat_map(Element::parts).filter_map(|part| match part {
        Part::Header(name) => Some(name.as_str()),
        _ => None,
    });
    let cost = match &endpoint.cost {
        Cost::Header { name, .. } => Some(name.as_str()),
        Cost::Fixed(_) => None,
    };
    let own = |name: &&str| name.strip_prefix("limiter-").is_some_and(|rest| !SET_BY_RECIPES.contains(&rest));
    scopes.chain(cost).filter(own).collect()
}

fn warn_limit(policy: &RequestPolicy, endpoint: &Endpoint, limit: &EndpointLimit, report: &mut Report) {
    let place = &endpoint.place;
    let shown = format!("limit `{}` of endpoint `{}`", limit.default.name(), endpoint.name);
    match limit.default.algorithm() {
        Algorithm::FixedWindow => report.warning(
            place,
            format!("{shown}: a fixed window admits up to twice its count across a boundary"),
            "`sliding-window` costs the same",
        ),
        Algorithm::SlidingWindowLog => {
            let most = limit.variants().map(|limit| limit.count()).max().unwrap_or(0);
            if most >= LARGE_LOG {
                let kilobytes = (u64::from(most) * LOG_BYTES).div_ceil(1000);
                report.warning(
                    place,
                    format!("{shown}: a log remembers up to {most} times for every caller, about {kilobytes} kB each in Redis"),
                    "`sliding-window` keeps two numbers",
                );
            }
        }
        Algorithm::LeakyBucket if limit.variants().any(|limit| limit.burst() > 1) => report.warning(
            place,
            format!("{shown}: only callers that can wait (`wait=1`, the tower layer) use the queue, others are refused when their turn is not now"),
            "nothing to do if that is meant",
        ),
        Algorithm::LeakyBucket | Algorithm::SlidingWindow | Algorithm::TokenBucket => {}
    }
    for element in &limit.scope.0 {
        if element.falls_to_source() {
            report.warning(
                place,
                format!("{shown}: a request without `{element}` is counted by its source"),
                format!("write `{element} | source` if that is meant"),
            );
        }
        for part in element.parts() {
            match part {
                Part::SourceAt { ipv6, .. } if *ipv6 > 64 => report.warning(
                    place,
                    format!(
                        "{shown}: IPv6 sources narrower than /64: one caller has 2^{} of them",
                        ipv6 - 64
                    ),
                    "write 64 or less",
                ),
                Part::ApiKey if policy.identity.api_key.is_none() => report.warning(
                    place,
                    format!("{shown}: no request has an API key, because `[identity]` names no `api-key`"),
                    "write `api-key = { header = \"x-api-key\" }` under `[identity]`",
                ),
                _ => {}
            }
        }
    }
    let admits = |limit: &Limit| limit.count() == 0 || limit.capacity() >= endpoint.cost.most();
    if let Some(small) = limit.variants().find(|limit| !admits(limit)) {
        report.warning(
            place,
            format!(
                "{shown}: a request may cost {}, but no more than {} is ever admitted",
                endpoint.cost.most(),
                small.capacity()
            ),
            "raise the limit or its burst, or lower the cost's `max`",
        );
    }
}

fn guarded_by_address_alone(endpoint: &Endpoint) -> bool {
    let path = match &endpoint.matches.path {
        Some(PathPattern::Exact(path) | PathPattern::Below(path)) => path.as_str(),
        None => "",
    };
    let text = format!("{} {path}", endpoint.name).to_ascii_lowercase();
    let of_addresses = |element: &Element| {
        element.parts().iter().all(|part| matches!(part, Part::Source | Part::SourceAt { .. }))
    };
    LOGIN.iter().any(|word| text.contains(word))
        && !endpoint.limits.is_empty()
        && endpoint.limits.iter().all(|limit| limit.scope.0.iter().all(of_addresses))
}
