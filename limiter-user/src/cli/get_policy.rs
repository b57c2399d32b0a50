//! `get-policy`: the text in force, or its meaning.

use std::process::ExitCode;

use super::Format;
use super::output::{Problem, Table, print_as};
use crate::control::api::{InForce, Limit, Rules};
use crate::control::client::Client;

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
    format!(
        "{}\na source is an IPv4 /{} or an IPv6 /{}; malformed packets: {}\n",
        table.show(),
        default.source.ipv4,
        default.source.ipv6,
        default.malformed
    )
}

fn show_limits(limits: &[Limit]) -> String {
    let show = |limit: &Limit| {
        let name = limit.name.as_ref().map(|name| format!("{name} = ")).unwrap_or_default();
        format!("{name}{} per {}, burst {} {}", limit.rate, limit.per, limit.burst, limit.unit)
    };
    limits.iter().map(show).collect::<Vec<_>>().join("; ")
}
