//! `detach IFACE`: through the daemon, where it holds over restarts; or straight at the kernel, without one.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::Format;
use super::attach::encode;
use super::output::{Problem, print_as, say, warn};
use crate::control::api::{Detached, Status};
use crate::control::client::Client;

#[derive(Debug, Args)]
pub struct DetachArguments {
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    interface: Option<String>,

    /// Every interface
    #[arg(long)]
    all: bool,
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Answer {
    detached: Vec<Detached>,
}

pub async fn run(client: &Client, arguments: DetachArguments, format: Format) -> Result<ExitCode, Problem> {
    let detached = through_daemon(client, arguments.interface).await?;
    detached.iter().for_each(|answer| warn(&answer.warnings));
    if detached.is_empty() {
        say("nothing was guarded\n");
    }
    Ok(print_as(format, &Answer { detached }, |answer| answer.detached.iter().map(show).collect()))
}

async fn through_daemon(client: &Client, interface: Option<String>) -> Result<Vec<Detached>, Problem> {
    let names = match interface {
        Some(name) => vec![name],
        None => {
            let status: Status = client.get("/v1/status").await?;
            status.interfaces.into_iter().map(|interface| interface.name).collect()
        }
    };
    let mut detached = Vec::new();
    for name in names {
        detached.push(client.delete(&format!("/v1/interfaces/{}", encode(&name))).await?);
    }
    Ok(detached)
}

fn show(answer: &Detached) -> String {
    if answer.was_attached {
        format!("`{}` is no longer guarded\n", answer.name)
    } else {
        format!("`{}` was not guarded, and stays so\n", answer.name)
    }
}
