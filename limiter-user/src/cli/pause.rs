//! `pause` and `resume`: the panic switch.

use std::process::ExitCode;

use super::Format;
use super::output::{Problem, print_as, show_duration, warn};
use crate::control::api::{PauseRequest, Paused};
use crate::control::client::Client;

/// `time`: how long, in seconds.
pub async fn pause(client: &Client, time: Option<u64>, format: Format) -> Result<ExitCode, Problem> {
    let answer: Paused = client.post_body("/v1/pause", &PauseRequest { for_s: time }).await?;
    Ok(show(&answer, format))
}

pub async fn resume(client: &Client, format: Format) -> Result<ExitCode, Problem> {
    let answer: Paused = client.post("/v1/resume").await?;
    Ok(show(&answer, format))
}

fn show(answer: &Paused, format: Format) -> ExitCode {
    warn(&answer.warnings);
    print_as(format, answer, |answer| match (&answer.paused, answer.was_paused) {
        (Some(pause), _) => format!(
            "paused until {} ({}): packets are judged and counted, none is dropped; `limiterctl resume` ends it\n",
            pause.until,
            show_duration(pause.left_s)
        ),
        (None, true) => "resumed: what is to be dropped is dropped\n".to_owned(),
        (None, false) => "was not paused\n".to_owned(),
    })
}
