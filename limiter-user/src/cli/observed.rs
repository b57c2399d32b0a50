//! `observed`: what a policy that is judged beside the one in force would have done.

use std::process::ExitCode;

use super::Format;
use super::output::{Problem, Table, print_as, short_hash, show_duration};
use crate::control::api::{Compared, Observation};
use crate::control::client::Client;

pub async fn run(client: &Client, stop: bool, format: Format) -> Result<ExitCode, Problem> {
    let answer: Observation =
        if stop { client.delete("/v1/observation").await? } else { client.get("/v1/observation").await? };
    Ok(print_as(format, &answer, show))
}

fn show(answer: &Observation) -> String {
    let (hash, time) = (short_hash(&answer.hash), show_duration(answer.seconds));
    let mut text = match &answer.ended {
        None => format!("{hash}, set by {}, observed for {time}, until {}\n", answer.by, answer.until),
        Some(why) => {
            format!("{hash}, set by {}, was observed for {time}: {why}, at {}\n", answer.by, answer.until)
        }
    };
    let Compared { still_passed, newly_dropped, newly_passed, still_dropped } = answer.all;
    let seen = still_passed.packets + newly_dropped.packets + newly_passed.packets + still_dropped.packets;
    text += &format!(
        "of {seen} packets it would drop {} that passed, and pass {} that were dropped\n",
        newly_dropped.packets, newly_passed.packets
    );
    if !answer.rules.is_empty() {
        let mut table =
            Table::new(&["RULE", ">STILL PASSED", ">NEWLY DROPPED", ">NEWLY PASSED", ">STILL DROPPED"]);
        for found in &answer.rules {
            let rule = if found.rule.is_empty() { "-" } else { &found.rule };
            let compared = &found.compared;
            let amounts = [
                compared.still_passed,
                compared.newly_dropped,
                compared.newly_passed,
                compared.still_dropped,
            ];
            let mut row = vec![rule.to_owned()];
            row.extend(amounts.map(|amount| amount.packets.to_string()));
            table.row(row);
        }
        text.push('\n');
        text += &table.show();
    }
    if !answer.sources.is_empty() {
        let mut table = Table::new(&["WOULD BE REFUSED", "RULE", ">PASSED", ">DROPPED"]);
        for source in &answer.sources {
            table.row(vec![
                source.source.clone(),
                source.rule.clone(),
                source.passed.to_string(),
                source.dropped.to_string(),
            ]);
        }
        text.push('\n');
        text += &table.show();
    }
    text
}
