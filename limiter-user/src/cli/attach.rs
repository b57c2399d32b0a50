//! `attach IFACE`: guards an interface, and holds over restarts.

use std::process::ExitCode;

use super::Format;
use super::output::{Problem, print_as, warn};
use crate::control::api::{AttachRequest, Attached};
use crate::control::client::Client;
use crate::datapath::Mode;

pub async fn run(
    client: &Client,
    interface: &str,
    mode: Option<Mode>,
    replace: bool,
    format: Format,
) -> Result<ExitCode, Problem> {
    let asked = AttachRequest { mode, replace };
    let answer: Attached = client.put(&format!("/v1/interfaces/{}", encode(interface)), &asked).await?;
    warn(&answer.warnings);
    Ok(print_as(format, &answer, |answer| {
        format!("`{}` (index {}) is guarded in {} mode\n", answer.name, answer.index, answer.mode)
    }))
}

/// A name as part of a path or a query.
pub fn encode(name: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(one).collect()
}
