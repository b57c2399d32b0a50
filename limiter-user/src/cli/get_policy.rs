//! `get-policy`: the text in force, or its meaning.

use std::process::ExitCode;

use super::Format;
use super::output::{Problem, Table, print_as, show_duration};
use crate::control::api::{InForce, Limit, Rules};
use crate::control::client::Client;
use crate::control::request_api::{EndpointRules, Quota};

pub async fn run(client: &Client, effective: bool, format: Format) -> Result<ExitCode, Problem> {
    if effective {
        let rules: Rules = client.get("/v1/rules").await?;
        return Ok(print_as(format, &rules, show_effective));
    }
    let policy: InForce = client.get("/v1/policy").await?;
    Ok(print_as(format, &policy, show_text))
}

/// The main file first; where there are more, each under its name.
fn show_text(policy: &InForce) -> String {
    let main = policy.files.get(&policy.policy).cloned().unwrap_or_default();
    if policy.files.len() < 2 {
        return main;
    }
    let mut text = format!("# file: {}\n{main}", policy.policy);
    for (name, content) in policy.files.iter().filter(|(name, _)| **name != policy.policy) {
        text += &format!("\n# file: {name}\n{content}");
    }
    text
}

fn show_effective(rules: &Rules) -> String {
    let list = |written: &Option<Vec<String>>, all: &str| match written {
        Some(written) => written.join(", "),
        None => all.to_owned(),
    };
    let mut table = Table::new(&["RULE", "FROM", "TO", "ACTION"]);
    for rule in &rules.rules {
        let mut action = match rule.action.as_str() {
            "limit" => show_limits(&rule.limits),
            verdict => verdict.to_owned(),
        };
        if rule.mode == "observe" {
            action = format!("observe: {action}");
        }
        if let Some(newcomers) = &rule.newcomers {
            action += &format!(", newcomers {newcomers}");
        }
        if let Some(penalty) = &rule.penalty {
            let proof = if penalty.proof { ", of connections alone" } else { "" };
            action += &format!(
                ", refused for {} after {} drops in {}{proof}",
                show_duration(penalty.for_s),
                penalty.after,
                show_duration(penalty.within_s)
            );
        }
        for (word, list) in [("by", &rule.interface), ("for", &rule.dest)] {
            if let Some(list) = list {
                action += &format!(", {word} {}", list.join(", "));
            }
        }
        if let Some(expires) = &rule.expires {
            action += &format!(", until {expires}");
        }
        if rule.before_bans {
            action += ", before bans";
        }
        table.row(vec![rule.name.clone(), list(&rule.from, "every source"), list(&rule.to, "all"), action]);
    }
    let default = &rules.default;
    let mut action = default.verdict.clone();
    if !default.limits.is_empty() {
        action += &format!(", floor: {}", show_limits(&default.limits));
    }
    table.row(vec!["(default)".to_owned(), "every source".to_owned(), "all".to_owned(), action]);
    let mut text = format!(
        "{}\na source is an IPv4 /{} or an IPv6 /{}; malformed packets: {}\n",
        table.show(),
        default.source.ipv4,
        default.source.ipv6,
        default.malformed
    );
    if !rules.endpoints.is_empty() {
        text += &format!("\n{}", show_endpoints(&rules.endpoints));
    }
    text
}

/// A line per limit, and a plan's rate on a line of its own.
fn show_endpoints(endpoints: &[EndpointRules]) -> String {
    let mut table =
        Table::new(&["ENDPOINT", "MATCH", "LIMIT", "PER", "ALGORITHM", "PLAN", "RATE", "STORE AWAY"]);
    for endpoint in endpoints {
        let mut name = endpoint.name.clone();
        if endpoint.mode == "observe" {
            name += " (observe)";
        }
        let away = endpoint.on_store_failure.as_deref().unwrap_or("-");
        let mut head = [name, endpoint.matches.clone(), away.to_owned()];
        for limit in &endpoint.limits {
            let mut what = limit.name.clone();
            if limit.mode == "observe" {
                what += " (observe)";
            }
            let mut of_limit = [what, limit.per.join(" + "), limit.algorithm.clone()];
            let plans = limit.plans.iter().map(|(plan, quota)| (plan.as_str(), quota));
            for (plan, quota) in
                plans.chain([(if limit.plans.is_empty() { "all" } else { "other" }, &limit.default)])
            {
                let [name, matches, away] = std::mem::take(&mut head);
                let [what, per, algorithm] = std::mem::take(&mut of_limit);
                table.row(vec![
                    name,
                    matches,
                    what,
                    per,
                    algorithm,
                    plan.to_owned(),
                    show_quota(quota),
                    away,
                ]);
            }
        }
    }
    table.show()
}

fn show_quota(quota: &Quota) -> String {
    let window = match quota.window_ms % 1000 {
        0 => show_duration(quota.window_ms / 1000),
        _ => format!("{} ms", quota.window_ms),
    };
    let burst =
        if quota.capacity == quota.count { String::new() } else { format!(", {} at once", quota.capacity) };
    format!("{} in {window}{burst}", quota.count)
}

fn show_limits(limits: &[Limit]) -> String {
    let show = |limit: &Limit| {
        let name = limit.name.as_ref().map(|name| format!("{name} = ")).unwrap_or_default();
        format!("{name}{} per {}, burst {} {}", limit.rate, limit.per, limit.burst, limit.unit)
    };
    limits.iter().map(show).collect::<Vec<_>>().join("; ")
}
