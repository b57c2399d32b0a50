//! `stats`: packets and bytes by rule, verdict, reason and family.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::Format;
use super::output::{Problem, Table, json_line, print_as, write_out};
use crate::control::api::{Stat, Stats};
use crate::control::client::Client;

const PERIOD: Duration = Duration::from_secs(1);

pub async fn run(
    client: &Client,
    rule: Option<&str>,
    watch: bool,
    format: Format,
) -> Result<ExitCode, Problem> {
    let stats = fetch(client, rule).await?;
    if !watch {
        return Ok(print_as(format, &stats, |stats| show(stats, None)));
    }
    let mut before = (Instant::now(), stats);
    loop {
        tokio::time::sleep(PERIOD).await;
        let now = (Instant::now(), fetch(client, rule).await?);
        let text = match format {
            Format::Json => json_line(&now.1),
            Format::Text => {
                let seconds = now.0.duration_since(before.0).as_secs_f64();
                let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
                format!("{clear}{}\n", show(&now.1, Some((&before.1, seconds))))
            }
        };
        if write_out(&text).is_err() {
            // Whoever read has seen enough.
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
    }
}

async fn fetch(client: &Client, rule: Option<&str>) -> Result<Stats, Problem> {
    let mut stats: Stats = client.get("/v1/stats").await?;
    stats.stats.retain(|stat| rule.is_none_or(|rule| stat.rule == rule));
    Ok(stats)
}

/// `before`: an earlier look and its age in seconds, for rates.
fn show(stats: &Stats, before: Option<(&Stats, f64)>) -> String {
    fn key(stat: &Stat) -> (&str, &str, &str, &str) {
        (&stat.rule, &stat.reason, &stat.verdict, &stat.family)
    }
    let earlier: BTreeMap<_, u64> =
        before.iter().flat_map(|(stats, _)| &stats.stats).map(|stat| (key(stat), stat.packets)).collect();
    let mut columns = vec!["RULE", "VERDICT", "REASON", "FAMILY", ">PACKETS", ">BYTES"];
    columns.extend(before.map(|_| ">PACKETS/S"));
    let mut table = Table::new(&columns);
    for stat in &stats.stats {
        let rule = if stat.rule.is_empty() { "-" } else { &stat.rule };
        let mut cells: Vec<String> =
            [rule, &stat.verdict, &stat.reason, &stat.family].iter().map(|cell| (*cell).to_owned()).collect();
        cells.push(stat.packets.to_string());
        cells.push(stat.bytes.to_string());
        if let Some((_, seconds)) = before {
            let grown = stat.packets.saturating_sub(earlier.get(&key(stat)).copied().unwrap_or(0));
            cells.push(format!("{:.0}", grown as f64 / seconds.max(0.001)));
        }
        table.row(cells);
    }
    table.show()
}
