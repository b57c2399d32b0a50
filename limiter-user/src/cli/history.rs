//! `history`: the last policies of this host, newest first.

use std::process::ExitCode;

use super::Format;
use super::output::{Problem, Table, print_as, short_hash};
use crate::control::api::History;
use crate::control::client::Client;

pub async fn run(client: &Client, format: Format) -> Result<ExitCode, Problem> {
    let history: History = client.get("/v1/history").await?;
    Ok(print_as(format, &history, show))
}

fn show(history: &History) -> String {
    let mut table = Table::new(&[">GENERATION", "HASH", "APPLIED", ">RULES", "BY", "NOTE"]);
    for entry in &history.history {
        let mut notes = Vec::new();
        notes.extend(entry.in_force.then(|| "in force".to_owned()));
        notes.extend(entry.unconfirmed.then(|| "not confirmed".to_owned()));
        notes.extend(entry.restores.map(|generation| format!("restores {generation}")));
        table.row(vec![
            entry.generation.to_string(),
            short_hash(&entry.hash).to_owned(),
            entry.loaded_at.clone(),
            entry.rules.to_string(),
            entry.applied_by.clone(),
            notes.join(", "),
        ]);
    }
    table.show()
}
