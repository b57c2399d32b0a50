//! What changes from one policy to another in its request part.

use std::collections::BTreeSet;

use super::limit::{Algorithm, Limit};
use super::matching::{Match, PathPattern};
use super::policy::{Cost, Endpoint, EndpointLimit, RequestPolicy};
use super::rate::window_text;
use crate::policy::{Change, ChangeKind};

/// Identity and plans, then endpoints by name. Keys are only counted: they are secrets.
pub(crate) fn difference(old: &RequestPolicy, new: &RequestPolicy) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut add = |kind, subject: String, text: String| changes.push(Change { kind, subject, text });
    let identity = |policy: &RequestPolicy| {
        let rules = &policy.identity;
        let key = rules.api_key.as_ref().map(|key| (key.header.clone(), key.unknown));
        let headers = [&rules.account, &rules.user, &rules.plan].map(Clone::clone);
        (rules.trusted_proxies.clone(), key, headers)
    };
    if identity(old) != identity(new) {
        add(ChangeKind::Changed, "identity".to_owned(), "how callers are told apart".to_owned());
    }
    if let Some(text) = plans(old, new) {
        add(ChangeKind::Changed, "plans".to_owned(), text);
    }
    let find = |list: &'_ [Endpoint], name: &str| list.iter().position(|endpoint| *endpoint.name == *name);
    for gone in old.endpoints.iter().filter(|endpoint| find(&new.endpoints, &endpoint.name).is_none()) {
        add(ChangeKind::Removed, format!("endpoint `{}`", gone.name), String::new());
    }
    for endpoint in &new.endpoints {
        let subject = format!("endpoint `{}`", endpoint.name);
        match find(&old.endpoints, &endpoint.name) {
            None => {
                let [(_, matches), (_, limits), ..] = described(endpoint);
                add(ChangeKind::Added, subject, format!("{matches}, {limits}"));
            }
            Some(before) => {
                let before = described(&old.endpoints[before]);
                for ((what, now), (_, then)) in described(endpoint).into_iter().zip(before) {
                    if now != then {
                        add(ChangeKind::Changed, subject.clone(), format!("{what} {then} → {now}"));
                    }
                }
            }
        }
    }
    let order = |policy: &RequestPolicy, other: &RequestPolicy| -> Vec<String> {
        let names = policy.endpoints.iter().map(|endpoint| endpoint.name.to_string());
        names.filter(|name| find(&other.endpoints, name).is_some()).collect()
    };
    if order(old, new) != order(new, old) {
        add(ChangeKind::Changed, "order of endpoints".to_owned(), order(new, old).join(", "));
    }
    changes
}

fn plans(old: &RequestPolicy, new: &RequestPolicy) -> Option<String> {
    let (old, new) = (&old.plans, &new.plans);
    let mut texts = Vec::new();
    if old.default != new.default {
        let shown = |plan: &Option<std::sync::Arc<str>>| plan.as_deref().unwrap_or("none").to_owned();
        texts.push(format!("default {} → {}", shown(&old.default), shown(&new.default)));
    }
    let gained = new.keys.keys().filter(|key| !old.keys.contains_key(*key)).count();
    let lost = old.keys.keys().filter(|key| !new.keys.contains_key(*key)).count();
    let moved =
        new.keys.iter().filter(|(key, plan)| old.keys.get(*key).is_some_and(|old| old != *plan)).count();
    for (count, what) in [(gained, "keys more"), (lost, "keys less"), (moved, "keys with another plan")] {
        if count > 0 {
            texts.push(format!("{count} {what}"));
        }
    }
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// What an endpoint says, part by part, always in this order.
fn described(endpoint: &Endpoint) -> [(&'static str, String); 6] {
    let limits: Vec<_> = endpoint.limits.iter().map(limit_text).collect();
    let cost = match &endpoint.cost {
        Cost::Fixed(cost) => cost.to_string(),
        Cost::Header { name, default, max } => format!("{name}, else {default}, at most {max}"),
    };
    [
        ("match", match_text(&endpoint.matches)),
        ("limit", limits.join(" and ")),
        ("cost", cost),
        ("charge", if endpoint.charge_failures_only { "on-failure" } else { "always" }.to_owned()),
        ("mode", if endpoint.observe { "observe" } else { "enforce" }.to_owned()),
        ("on-store-failure", endpoint.on_store_failure.map_or("unsaid", |policy| policy.text()).to_owned()),
    ]
}

fn match_text(matches: &Match) -> String {
    let mut texts = Vec::new();
    if !matches.methods.is_empty() {
        texts.push(matches.methods.join("|"));
    }
    match &matches.path {
        Some(PathPattern::Exact(path)) => texts.push(path.clone()),
        Some(PathPattern::Below(path)) => texts.push(format!("{path}/*")),
        None => {}
    }
    texts.extend(matches.domain.as_ref().map(|domain| format!("domain {domain}")));
    texts.extend(matches.descriptor.iter().map(|(key, value)| format!("{key}={value}")));
    if texts.is_empty() { "everything".to_owned() } else { texts.join(" ") }
}

fn limit_text(limit: &EndpointLimit) -> String {
    let numbers = |limit: &Limit| {
        let burst = match limit.algorithm() {
            Algorithm::TokenBucket => format!(" burst {}", limit.burst()),
            Algorithm::LeakyBucket => format!(" depth {}", limit.burst()),
            _ => String::new(),
        };
        format!("{}/{}{burst}", limit.count(), window_text(limit.window()))
    };
    let mut text =
        format!("{} per {} by {}", numbers(&limit.default), limit.scope, limit.default.algorithm().name());
    let plans: BTreeSet<_> =
        limit.by_plan.iter().map(|(plan, limit)| format!("{plan} {}", numbers(limit))).collect();
    if !plans.is_empty() {
        text.push_str(&format!(" ({})", plans.into_iter().collect::<Vec<_>>().join(", ")));
    }
    if limit.observe {
        text.push_str(", observed");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::difference;
    use crate::requests::policy_tests::{EXAMPLE, policy};

    fn lines(old: &str, new: &str) -> Vec<String> {
        difference(&policy(old), &policy(new)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_change_is_one_line() {
        assert_eq!(lines(EXAMPLE, EXAMPLE), Vec::<String>::new());
        let new = EXAMPLE
            .replace("on-store-failure = \"local\"", "on-store-failure = \"allow\"\nmode = \"observe\"")
            .replace("rate = \"600/m\"", "rate = \"900/m\"")
            .replace("default = \"free\"", "default = \"pro\"")
            .replace("10.0.0.0/8", "10.0.0.0/16")
            .replace("[\"POST\"]", "[\"POST\", \"PUT\"]");
        let limits = "20/m burst 20 per source by token-bucket and 5/15m per account | source by sliding-window-log and";
        let search = "30/m per api-key | source by sliding-window (free 60/m, pro 6000/m)";
        let total = "1000/m per account | source by sliding-window";
        assert_eq!(
            lines(EXAMPLE, &new),
            [
                "~ identity: how callers are told apart".to_owned(),
                "~ plans: default free → pro".to_owned(),
                "~ endpoint `login`: match POST /v1/login → POST|PUT /v1/login".to_owned(),
                format!(
                    "~ endpoint `login`: limit {limits} 600/m per endpoint by sliding-window → {limits} 900/m per endpoint by sliding-window"
                ),
                format!(
                    "~ endpoint `search`: limit {search} and {total} → {search}, observed and {total}, observed"
                ),
                "~ endpoint `search`: mode enforce → observe".to_owned(),
                "~ endpoint `search`: on-store-failure local → allow".to_owned(),
            ]
        );
        let none = "version = 1\n";
        assert_eq!(lines(EXAMPLE, none)[2..], ["- endpoint `login`", "- endpoint `search`"]);
        assert!(lines(none, EXAMPLE)[2].starts_with("+ endpoint `login`: POST /v1/login, 20/m burst 20"));
    }
}
