//! The worst sources as lines.

use std::process::ExitCode;

use super::super::Format;
use super::super::output::{Problem, Table, print_as, say};
use super::view::{order, source_of};
use super::{Looked, Sort, TopArguments, basis, look, path};
use crate::control::api::{Drops, Source, Sources};
use crate::control::client::Client;
use crate::daemon::MOST;

pub async fn run(client: &Client, arguments: &TopArguments, format: Format) -> Result<ExitCode, Problem> {
    let TopArguments { rule, by, sort, number } = arguments;
    // What the daemon does not sort by is sorted here, among all it may send.
    let here = matches!(sort, Sort::Fill | Sort::Source);
    let asked = if here { MOST } else { *number };
    let mut sources = match look(client, *by, &path(rule.as_deref(), *by, *sort, asked)).await? {
        Looked::Sources(sources) => sources,
        Looked::Drops(drops) => return Ok(show_drops(drops, arguments, format)),
    };
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

fn show_drops(mut drops: Drops, arguments: &TopArguments, format: Format) -> ExitCode {
    let TopArguments { by, sort, number, .. } = arguments;
    drops.drops.sort_by(|a, b| order(*sort, &source_of(a), &source_of(b)));
    drops.drops.truncate(*number);
    if format == Format::Text {
        say(&format!("{}\n", basis(&drops)));
    }
    print_as(format, &drops, |drops| {
        let mut table = Table::new(&[by.heading(), "RULE", ">DROPPED", ">DROPPED/S", ">BYTES/S", ">SHARE"]);
        let rate = |count: u64| format!("≈{:.0}", count as f64 / drops.window_s.max(0.1));
        for group in &drops.drops {
            table.row(vec![
                group.key.clone(),
                show_rule(&source_of(group)),
                format!("≈{}", group.packets),
                rate(group.packets),
                rate(group.bytes),
                format!("{:.2}", group.share),
            ]);
        }
        table.show()
    })
}

/// The rule, and the named limit of it.
pub fn show_rule(source: &Source) -> String {
    let rule = if source.rule.is_empty() { "-" } else { &source.rule };
    match &source.limit {
        Some(limit) => format!("{rule} ({limit})"),
        None => rule.to_owned(),
    }
}
