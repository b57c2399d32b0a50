//! `confirm`: keeps a policy that was set with `--confirm`.

use std::process::ExitCode;

use super::Format;
use super::output::{Problem, print_as, short_hash, warn};
use crate::control::api::Confirmed;
use crate::control::client::Client;

pub async fn run(client: &Client, format: Format) -> Result<ExitCode, Problem> {
    let answer: Confirmed = client.post("/v1/policy/confirm").await?;
    warn(&answer.warnings);
    Ok(print_as(format, &answer, |answer| {
        format!("confirmed: {}, generation {}, stays in force\n", short_hash(&answer.hash), answer.generation)
    }))
}
