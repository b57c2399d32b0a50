//! `set-policy`, `diff-policy`, `reload`, `rollback-policy`: what changes the policy in force.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::attach::encode;
use super::output::{Problem, count, print_as, say, short_hash, show_diagnostics};
use super::{Format, session};
use crate::control::api::SetPolicy;
use crate::control::client::Client;
use crate::policy::Bundle;

#[derive(Debug, Args)]
pub struct SetPolicyArguments {
    file: PathBuf,

    /// Only say what would change
    #[arg(long)]
    dry_run: bool,

    /// Apply although a set file lost more than half of its entries, or your own ssh session would be cut off
    #[arg(long)]
    force: bool,

    /// Refuse warnings too
    #[arg(long)]
    strict: bool,

    /// The policy before comes back after this time, unless `limiterctl confirm` keeps the new one
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    confirm: Option<u64>,

    /// Judge it beside the policy in force, which goes on deciding: `limiterctl observed` compares
    #[arg(long, conflicts_with_all = ["dry_run", "confirm"])]
    observe: bool,

    /// How long to observe, like 10m or 12h [default: 1h]
    #[arg(long = "for", value_name = "DURATION", value_parser = super::duration, requires = "observe")]
    time: Option<u64>,
}

pub async fn run(
    client: &Client,
    arguments: SetPolicyArguments,
    format: Format,
) -> Result<ExitCode, Problem> {
    let bundle = read(&arguments.file)?;
    let asked = [("dry-run", arguments.dry_run), ("force", arguments.force), ("strict", arguments.strict)];
    let mut query: Vec<String> =
        asked.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned()).collect();
    query.extend(arguments.confirm.map(|seconds| format!("confirm={seconds}s")));
    if arguments.observe {
        query.push(arguments.time.map_or("observe".to_owned(), |seconds| format!("observe={seconds}s")));
    }
    query.extend(session::own().into_iter().map(|own| format!("session={}", encode(&own.to_string()))));
    let answer: SetPolicy = client.put(&format!("/v1/policy?{}", query.join("&")), &bundle).await?;
    Ok(show(&answer, format))
}

pub async fn difference(client: &Client, file: &Path, format: Format) -> Result<ExitCode, Problem> {
    let bundle = read(file)?;
    // What would need `--force` is a difference to be shown like any other.
    let answer: SetPolicy = client.put("/v1/policy?dry-run&force", &bundle).await?;
    Ok(show(&answer, format))
}

pub async fn reload(client: &Client, force: bool, format: Format) -> Result<ExitCode, Problem> {
    let answer: SetPolicy = client.post(&format!("/v1/reload?{}", session::query(force))).await?;
    Ok(show(&answer, format))
}

pub async fn rollback(client: &Client, force: bool, format: Format) -> Result<ExitCode, Problem> {
    let answer: SetPolicy = client.post(&format!("/v1/policy/rollback?{}", session::query(force))).await?;
    Ok(show(&answer, format))
}

fn read(file: &Path) -> Result<Bundle, Problem> {
    Bundle::read(file).map_err(|diagnostics| Problem::unreadable(&diagnostics))
}

fn show(answer: &SetPolicy, format: Format) -> ExitCode {
    say(&show_diagnostics(&answer.warnings));
    print_as(format, answer, |answer| {
        let mut text: String = answer.changes.iter().map(|change| format!("{change}\n")).collect();
        let rules = count(answer.rules, "rule");
        let hash = short_hash(&answer.hash);
        if let Some(until) = &answer.observed_until {
            return text
                + &format!(
                    "observed until {until}: {hash}, {rules}; the policy in force goes on deciding, `limiterctl observed` compares\n"
                );
        }
        text += &match (answer.applied, answer.unchanged) {
            (true, _) => format!("applied: {hash}, generation {}, {rules}\n", answer.generation),
            (false, true) => format!("unchanged: {hash} is in force already, {rules}\n"),
            (false, false) => {
                format!("not applied: {hash} would make {}, {rules}\n", count(answer.changes.len(), "change"))
            }
        };
        if let Some(live) = answer.live.as_ref().filter(|live| live.sources > 0) {
            text += &format!(
                "of {} with something spent {} would be limited, {} newly",
                count(live.sources, "source"),
                live.limited,
                live.newly
            );
            text += &match live.examples.as_slice() {
                [] => "\n".to_owned(),
                examples if examples.len() < live.newly => format!(": {}, …\n", examples.join(", ")),
                examples => format!(": {}\n", examples.join(", ")),
            };
        }
        if let Some(until) = &answer.confirm_until {
            text +=
                &format!("the policy before comes back at {until}: `limiterctl confirm` keeps this one\n");
        }
        text
    })
}
