//! `override`, `overrides`, `clear-override`: the change at night without editing the fleet's file.

use std::process::ExitCode;

use clap::Args;

use super::attach::encode;
use super::output::{Problem, Table, print_as, show_duration, warn};
use super::{Format, session};
use crate::control::api::{Overridden, Override, OverrideRequest, Overrides};
use crate::control::client::Client;
use crate::policy::OverrideMode;

#[derive(Debug, Args)]
pub struct OverrideArguments {
    rule: String,

    /// Its rates and bursts, in per cent of what the policy says
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    scale: Option<u32>,

    /// What it does: count only, decide, or as if it were not there
    #[arg(long)]
    mode: Option<OverrideMode>,

    /// How long, like 30m or 1h
    #[arg(long = "for", value_name = "DURATION", value_parser = super::duration)]
    time: u64,

    /// Though your own ssh session would be cut off
    #[arg(long)]
    force: bool,
}

fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    number.parse().map_err(|_| format!("`{text}` is not a percentage: write `25%`"))
}

pub async fn set(client: &Client, arguments: OverrideArguments, format: Format) -> Result<ExitCode, Problem> {
    let OverrideArguments { rule, scale, mode, time, force } = arguments;
    let asked = OverrideRequest { rule, scale, mode, for_s: time, sessions: session::own(), force };
    let answer: Overridden = client.post_body("/v1/overrides", &asked).await?;
    Ok(show(&answer, format))
}

pub async fn clear(client: &Client, rule: &str, force: bool, format: Format) -> Result<ExitCode, Problem> {
    let answer: Overridden =
        client.delete(&format!("/v1/overrides/{}?{}", encode(rule), session::query(force))).await?;
    Ok(show(&answer, format))
}

pub async fn list(client: &Client, format: Format) -> Result<ExitCode, Problem> {
    let answer: Overrides = client.get("/v1/overrides").await?;
    Ok(print_as(format, &answer, |answer| {
        let mut table = Table::new(&["RULE", "CHANGE", "UNTIL", ">LEFT", "BY"]);
        for found in &answer.overrides {
            table.row(vec![
                found.rule.clone(),
                describe(found),
                found.until.clone(),
                show_duration(found.left_s),
                found.by.clone(),
            ]);
        }
        table.show()
    }))
}

fn show(answer: &Overridden, format: Format) -> ExitCode {
    warn(&answer.warnings);
    print_as(format, answer, |answer| match (&answer.overridden, answer.was_overridden) {
        (Some(found), _) => format!("rule `{}`: {} until {}\n", answer.rule, describe(found), found.until),
        (None, true) => format!("rule `{}` judges as the policy says again\n", answer.rule),
        (None, false) => format!("rule `{}` was not overridden\n", answer.rule),
    })
}

/// `25 % of its numbers, observes`
pub fn describe(found: &Override) -> String {
    let scale = found.scale.map(|scale| format!("{scale} % of its numbers"));
    let mode = found.mode.map(|mode| {
        match mode {
            OverrideMode::Observe => "observes",
            OverrideMode::Enforce => "enforces",
            OverrideMode::Off => "off",
        }
        .to_owned()
    });
    scale.into_iter().chain(mode).collect::<Vec<_>>().join(", ")
}
