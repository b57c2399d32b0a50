//! `top`: the worst sources, as lines.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::Format;
use super::attach::encode;
use super::output::{Problem, Table, print_as};
use crate::control::api::Sources;
use crate::control::client::Client;

#[derive(Debug, Args)]
pub struct TopArguments {
    /// Only sources this rule has a bucket for
    #[arg(long)]
    rule: Option<String>,

    /// A line for each source, or for each IPv4 /24 and IPv6 /48
    #[arg(long, value_enum, default_value_t = By::Source)]
    by: By,

    /// What makes a source bad
    #[arg(long, value_enum, default_value_t = Sort::Dropped)]
    sort: Sort,

    /// How many
    #[arg(short, default_value_t = 20, value_name = "N")]
    number: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    Source,
    Prefix,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sort {
    Dropped,
    Passed,
}

pub async fn run(client: &Client, arguments: TopArguments, format: Format) -> Result<ExitCode, Problem> {
    let by = match arguments.by {
        By::Source => "source",
        By::Prefix => "prefix",
    };
    let sort = match arguments.sort {
        Sort::Dropped => "dropped",
        Sort::Passed => "passed",
    };
    let mut path = format!("/v1/sources?top={}&sort={sort}&by={by}", arguments.number);
    if let Some(rule) = &arguments.rule {
        path += &format!("&rule={}", encode(rule));
    }
    let sources: Sources = client.get(&path).await?;
    Ok(print_as(format, &sources, show))
}

fn show(sources: &Sources) -> String {
    let mut table = Table::new(&["SOURCE", "RULE", ">PASSED", ">DROPPED", ">FILL"]);
    for source in &sources.sources {
        let rule = if source.rule.is_empty() { "-" } else { &source.rule };
        let rule = match &source.limit {
            Some(limit) => format!("{rule} ({limit})"),
            None => rule.to_owned(),
        };
        table.row(vec![
            source.source.clone(),
            rule,
            source.passed.to_string(),
            format!("≈{}", source.dropped),
            format!("{:.2}", source.fill),
        ]);
    }
    table.show()
}
