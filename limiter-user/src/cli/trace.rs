//! `trace`: every decision about one source, from the program.

use std::io;
use std::process::ExitCode;

use super::Format;
use super::attach::encode;
use super::output::{Problem, say, write_out};
use super::watch::{line, read};
use crate::control::api::Lost;
use crate::control::client::{Client, Message};

/// `time`: seconds; what the daemon takes when nobody says.
pub async fn run(
    client: &Client,
    source: &str,
    time: Option<u64>,
    format: Format,
) -> Result<ExitCode, Problem> {
    let mut path = format!("/v1/trace?source={}", encode(source));
    if let Some(seconds) = time {
        path += &format!("&for={seconds}s");
    }
    let mut messages = client.stream(&path).await?;
    loop {
        let Some(message) = messages.next().await? else {
            return Err(Problem::failed("limiterd ended the trace before its time", None));
        };
        if message.kind == "end" {
            return Ok(ExitCode::SUCCESS);
        }
        match write(&message, format) {
            Ok(()) => {}
            // Whoever read has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(Problem::failed(format!("cannot write: {error}"), None)),
        }
    }
}

fn write(message: &Message, format: Format) -> io::Result<()> {
    match (format, message.kind.as_str()) {
        (Format::Json, _) => write_out(&format!("{}\n", message.data)),
        (Format::Text, "decision") => write_out(&line(&read(message)?)),
        (Format::Text, "lost") => {
            let Lost { lost } = read(message)?;
            say(&format!("({lost} more, not shown)\n"));
            Ok(())
        }
        (Format::Text, _) => Ok(()),
    }
}
