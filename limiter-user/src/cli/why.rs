//! `why`: what the next packet of a source would get, and what changes it.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;

use super::Format;
use super::attach::encode;
use super::output::{Problem, Style, Table, print_as};
use crate::control::api::{BanEntry, Why, WhyLimit};
use crate::control::client::Client;

#[derive(Debug, Args)]
pub struct WhyArguments {
    /// An address
    ip: String,

    /// Traffic, like `tcp/443` or `icmp/echo-request`, or a service of the policy [default: what is treated worst]
    #[arg(long, value_name = "TERM")]
    to: Option<String>,

    /// The interface it comes in by [default: the one that is guarded, if it is only one]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,

    /// The address it is for, which rules with `dest` ask
    #[arg(long, value_name = "ADDRESS")]
    dest: Option<std::net::IpAddr>,

    /// Size of the packet from its IP header on [default: 100]
    #[arg(long, value_name = "BYTES")]
    bytes: Option<u32>,
}

pub async fn run(client: &Client, arguments: &WhyArguments, format: Format) -> Result<ExitCode, Problem> {
    let mut parameters = Vec::new();
    parameters.extend(arguments.to.as_ref().map(|to| format!("to={}", encode(to))));
    parameters.extend(arguments.interface.as_ref().map(|name| format!("interface={}", encode(name))));
    parameters.extend(arguments.dest.map(|address| format!("dest={}", encode(&address.to_string()))));
    parameters.extend(arguments.bytes.map(|bytes| format!("bytes={bytes}")));
    let path = format!("/v1/why/{}?{}", encode(&arguments.ip), parameters.join("&"));
    let answer: Why = client.get(path.trim_end_matches('?')).await?;
    Ok(print_as(format, &answer, show))
}

fn show(why: &Why) -> String {
    let style = Style::of(&std::io::stdout());
    let source = if why.source == why.written {
        why.source.clone()
    } else {
        format!("{} → {}", why.written, why.source)
    };
    let colour = if why.verdict == "drop" { "31;1" } else { "32;1" };
    let verdict = style.paint(colour, &why.verdict);
    let mut text = format!("{source} to {}: {verdict}, {}{}\n", why.service, why.reason, by(&why.rule));
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<9} {value}");
    };
    if let Some(until) = &why.paused_until {
        line("paused", &format!("until {until}: nothing is dropped"));
    }
    if let Some(ban) = &why.ban {
        line("ban", &show_ban(ban));
    }
    line("sets", &listed(&why.sets));
    line("services", &listed(&why.services));
    for limit in &why.limits {
        line("limit", &show_limit(limit));
    }
    if let Some(observed) = &why.observed_by {
        line("observed", &format!("rule `{}` would drop it, {}", observed.rule, observed.reason));
    }
    if !why.traffic.is_empty() {
        let mut table = Table::new(&["OTHER TRAFFIC", "VERDICT", "REASON", "RULE"]);
        for other in &why.traffic {
            table.row(vec![
                other.service.clone(),
                other.verdict.clone(),
                other.reason.clone(),
                other.rule.clone(),
            ]);
        }
        text += "\n";
        text += &table.show();
    }
    text += "\nto change it:\n";
    for command in &why.commands {
        let _ = writeln!(text, "  {command}");
    }
    text
}

fn by(rule: &str) -> String {
    if rule.is_empty() { String::new() } else { format!(", by rule `{rule}`") }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn show_ban(ban: &BanEntry) -> String {
    let until =
        ban.expires_at.as_ref().map_or_else(|| "forever".to_owned(), |until| format!("until {until}"));
    let reason = if ban.reason.is_empty() { String::new() } else { format!(": {}", ban.reason) };
    format!("{} {until}, by {}{reason}", ban.source, ban.made_by)
}

fn show_limit(limit: &WhyLimit) -> String {
    let name = limit.name.as_ref().map_or_else(String::new, |name| format!("`{name}` "));
    let mut text = format!(
        "{name}{} per {}: {} of {} {} left",
        limit.rate, limit.per, limit.tokens, limit.burst, limit.unit
    );
    if let Some(until) = &limit.penalised_until {
        let _ = write!(text, ", penalised until {until}");
    } else if limit.full_in_s > 0.0 {
        let _ = write!(text, ", full again in {} s", limit.full_in_s);
    }
    if limit.dropped > 0 {
        let _ = write!(text, "; {} passed, ≈{} dropped", limit.passed, limit.dropped);
    }
    if limit.refuses {
        text += "  ← refuses";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_like_an_answer() {
        let why = Why {
            source: "2001:db8::/64".to_owned(),
            written: "2001:db8::1".to_owned(),
            sets: vec!["office".to_owned()],
            service: "tcp/443".to_owned(),
            services: vec![],
            rule: "web".to_owned(),
            verdict: "drop".to_owned(),
            reason: "over".to_owned(),
            observed_by: None,
            limits: vec![WhyLimit {
                name: None,
                per: "source".to_owned(),
                rate: "10/s".to_owned(),
                unit: "packets".to_owned(),
                burst: 20,
                fill: 1.0,
                tokens: 0,
                full_in_s: 2.0,
                refuses: true,
                penalised_until: None,
                passed: 20,
                dropped: 64,
            }],
            ban: None,
            paused_until: None,
            traffic: vec![],
            commands: vec!["limiterctl reset 2001:db8::/64".to_owned()],
        };
        assert_eq!(
            show(&why),
            "2001:db8::1 → 2001:db8::/64 to tcp/443: drop, over, by rule `web`\n\
             \x20 sets      office\n\
             \x20 services  none\n\
             \x20 limit     10/s per source: 0 of 20 packets left, full again in 2 s; 20 passed, ≈64 dropped  ← refuses\n\
             \nto change it:\n\
             \x20 limiterctl reset 2001:db8::/64\n"
        );
    }
}
