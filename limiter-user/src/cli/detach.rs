//! `detach IFACE`: through the daemon, where it holds over restarts; or straight at the kernel, without one.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::Format;
use super::attach::encode;
use super::output::{Problem, print_as, say, warn};
use crate::control::api::{Detached, Status};
use crate::control::client::Client;
use crate::daemon::settings::DEFAULT_PIN;
use crate::datapath::{Error, Kernel};

#[derive(Debug, Args)]
pub struct DetachArguments {
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    interface: Option<String>,

    /// Every interface
    #[arg(long)]
    all: bool,

    /// Without the daemon: remove links and pins. A daemon attaches again when it starts
    #[arg(long)]
    direct: bool,

    /// Where maps and links are pinned, for `--direct`
    #[arg(long, env = "LIMITER_PIN", default_value = DEFAULT_PIN, value_name = "DIRECTORY")]
    pin: PathBuf,
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Answer {
    detached: Vec<Detached>,
}

pub async fn run(client: &Client, arguments: DetachArguments, format: Format) -> Result<ExitCode, Problem> {
    let detached = if arguments.direct {
        direct(&arguments)?
    } else {
        through_daemon(client, arguments.interface).await?
    };
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

fn direct(arguments: &DetachArguments) -> Result<Vec<Detached>, Problem> {
    let names = Kernel::detach_direct(&arguments.pin, arguments.interface.as_deref())
        .map_err(|error| match error {
            Error::NoSuchInterface { interface } => Error::NotAttached { interface },
            other => other,
        })
        .map_err(|error| Problem::failed(error.to_string(), error.hint()))?;
    let gone = |name| Detached { name, was_attached: true, warnings: Vec::new() };
    Ok(names.into_iter().map(gone).collect())
}

fn show(answer: &Detached) -> String {
    if answer.was_attached {
        format!("`{}` is no longer guarded\n", answer.name)
    } else {
        format!("`{}` was not guarded, and stays so\n", answer.name)
    }
}
