//! `add-to` and `remove-from`: members of dynamic sets.

use std::process::ExitCode;

use super::attach::encode;
use super::output::{Problem, count, print_as, warn};
use super::{Format, session};
use crate::control::api::{AddRequest, RemoveRequest, SetMembers};
use crate::control::client::Client;

/// `time`: how long they stay, in seconds.
pub async fn add(
    client: &Client,
    set: &str,
    members: Vec<String>,
    time: u64,
    force: bool,
    format: Format,
) -> Result<ExitCode, Problem> {
    let asked = AddRequest { members, for_s: time, sessions: session::own(), force };
    let answer: SetMembers = client.post_body(&format!("/v1/sets/{}/members", encode(set)), &asked).await?;
    Ok(show(&answer, "added", format))
}

pub async fn remove(
    client: &Client,
    set: &str,
    members: Vec<String>,
    force: bool,
    format: Format,
) -> Result<ExitCode, Problem> {
    let asked = RemoveRequest { members, sessions: session::own(), force };
    let path = format!("/v1/sets/{}/remove", encode(set));
    let answer: SetMembers = client.post_body(&path, &asked).await?;
    Ok(show(&answer, "removed", format))
}

fn show(answer: &SetMembers, what: &str, format: Format) -> ExitCode {
    warn(&answer.warnings);
    print_as(format, answer, |answer| {
        let changed = count(answer.changed, "member");
        format!("{changed} {what}: set `{}` has {} of {}\n", answer.set, answer.entries, answer.max)
    })
}
