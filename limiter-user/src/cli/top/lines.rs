//! The worst sources as lines.

use std::process::ExitCode;

use super::super::Format;
use super::super::output::{Problem, Table, print_as};
use super::view::order;
use super::{Sort, TopArguments, path};
use crate::control::api::{Source, Sources};
use crate::control::client::Client;
use crate::daemon::MOST;

pub async fn run(client: &Client, arguments: &TopArguments, format: Format) -> Result<ExitCode, Problem> {
    let TopArguments { rule, by, sort, number } = arguments;
    // What the daemon does not sort by is sorted here, among all it may send.
    let here = matches!(sort, Sort::Fill | Sort::Source);
    let asked = if here { MOST } else { *number };
    let mut sources: Sources = client.get(&path(rule.as_deref(), *by, *sort, asked)).await?;
    if here {
        sources.sources.sort_by(|a, b| order(*sort, a, b));
        sources.sources.truncate(*number);
    }
    Ok(print_as(format, &sources, show))
}

fn show(sources: &Sources) -> String {
    let mut table = Table::new(&["SOURCE", "RULE", ">PASSED", ">DROPPED", ">FILL"]);
    for source in &sources.sources {
        table.row(vec![
            source.source.clone(),
            show_rule(source),
            source.passed.to_string(),
            format!("≈{}", source.dropped),
            format!("{:.2}", source.fill),
        ]);
    }
    table.show()
}

/// The rule, and the named limit of it.
pub fn show_rule(source: &Source) -> String {
    let rule = if source.rule.is_empty() { "-" } else { &source.rule };
    match &source.limit {
        Some(limit) => format!("{rule} ({limit})"),
        None => rule.to_owned(),
    }
}
