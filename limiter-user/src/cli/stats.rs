//! `stats`: packets and bytes by rule, verdict, reason and family.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

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
    let mut headed = false;
    loop {
        tokio::time::sleep(PERIOD).await;
        let now = (Instant::now(), fetch(client, rule).await?);
        let text = match format {
            Format::Json => json_line(&now.1),
            Format::Text => {
                let seconds = now.0.duration_since(before.0).as_secs_f64();
                let table = show(&now.1, Some((&before.1, seconds)));
                if refreshes() { refreshed(&table) } else { dated(&table, &mut headed) }
            }
        };
        if write_out(&text).is_err() {
            // Whoever read has seen enough.
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
    }
}

/// Whether the screen can be written over.
fn refreshes() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !dumb
}

/// Over what stood there, without flicker; what does not fit the screen is counted.
fn refreshed(table: &str) -> String {
    let (width, height) =
        crossterm::terminal::size().map_or((80, 24), |(width, height)| (width.into(), height.into()));
    let lines: Vec<&str> = table.lines().collect();
    let room = usize::max(height, 2) - 1;
    let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
    let mut text = "\x1b[H".to_owned();
    for line in &lines[..shown] {
        // A heading has colours, which take no room; it is short.
        let cut: String =
            if line.contains('\x1b') { (*line).to_owned() } else { line.chars().take(width).collect() };
        text += &format!("{cut}\x1b[K\n");
    }
    if shown < lines.len() {
        text += &format!("… {} more\x1b[K\n", lines.len() - shown);
    }
    text + "\x1b[J"
}

/// For a reader that is a program: the heading once, then lines that begin with their time.
fn dated(table: &str, headed: &mut bool) -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let skipped = usize::from(std::mem::replace(headed, true));
    let lines = table.lines().enumerate().skip(skipped);
    lines
        .map(|(number, line)| match number {
            0 => format!("{:<width$}  {line}\n", "TIME", width = now.len()),
            _ => format!("{now}  {line}\n"),
        })
        .collect()
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
    let earlier: BTreeMap<_, (u64, u64)> = before
        .iter()
        .flat_map(|(stats, _)| &stats.stats)
        .map(|stat| (key(stat), (stat.packets, stat.bytes)))
        .collect();
    let mut columns = vec!["RULE", "VERDICT", "REASON", "FAMILY", ">PACKETS", ">BYTES"];
    if before.is_some() {
        columns.extend([">BYTES/S", ">PACKETS/S"]);
    }
    let mut table = Table::new(&columns);
    for stat in &stats.stats {
        let rule = if stat.rule.is_empty() { "-" } else { &stat.rule };
        let mut cells: Vec<String> =
            [rule, &stat.verdict, &stat.reason, &stat.family].iter().map(|cell| (*cell).to_owned()).collect();
        cells.push(stat.packets.to_string());
        cells.push(stat.bytes.to_string());
        if let Some((_, seconds)) = before {
            let (packets, bytes) = earlier.get(&key(stat)).copied().unwrap_or_default();
            let rate =
                |now: u64, past: u64| format!("{:.0}", now.saturating_sub(past) as f64 / seconds.max(0.001));
            cells.push(rate(stat.bytes, bytes));
            cells.push(rate(stat.packets, packets));
        }
        table.row(cells);
    }
    table.show()
}
