//! `ban`, `unban`, `bans`, `reset`: sources refused by hand, and given their room back.

use std::io::Read as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::Format;
use super::attach::encode;
use super::output::{Problem, Table, count, print_as};
use super::session;
use crate::control::api::{BanEntry, BanRequest, BanWish, Banned, Bans, Reset, Unbanned};
use crate::control::client::Client;
use crate::daemon::BannedBy;

#[derive(Debug, Args)]
pub struct BanArguments {
    /// An address or a prefix; `-` reads a list from stdin, one a line, `#` begins a comment
    source: String,

    /// How long: `10m`, `1h`, `7d`, or `forever`
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = lasting)]
    lasting: Lasting,

    /// Why, for those who read `bans`
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Ban also what this host lives by, `never-ban`, and your own ssh session
    #[arg(long)]
    force: bool,
}

/// `None` is forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lasting(Option<Duration>);

fn lasting(text: &str) -> Result<Lasting, String> {
    if text == "forever" {
        return Ok(Lasting(None));
    }
    match humantime::parse_duration(text) {
        Ok(duration) if duration >= Duration::from_secs(1) => Ok(Lasting(Some(duration))),
        Ok(_) => Err("a ban lasts a second at least".to_owned()),
        Err(_) => Err("write `10m`, `1h`, `7d`, or `forever`".to_owned()),
    }
}

pub async fn run(client: &Client, arguments: BanArguments, format: Format) -> Result<ExitCode, Problem> {
    let sources = if arguments.source == "-" { from_stdin()? } else { vec![arguments.source] };
    let Lasting(lasting) = arguments.lasting;
    let wish = |source: String| BanWish {
        source,
        for_s: lasting.map(|lasting| lasting.as_secs()),
        forever: lasting.is_none(),
        reason: arguments.reason.clone(),
    };
    let bans = sources.into_iter().map(wish).collect();
    let request = BanRequest { bans, force: arguments.force, by: BannedBy::Hand, sessions: session::own() };
    let answer: Banned = client.post_body("/v1/bans", &request).await?;
    Ok(print_as(format, &answer, show_banned))
}

fn from_stdin() -> Result<Vec<String>, Problem> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Problem::failed(format!("cannot read the list: {error}"), None))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

fn show_banned(answer: &Banned) -> String {
    match answer.bans.as_slice() {
        [only] if answer.banned == 1 => {
            let again = if answer.replaced > 0 { ", in place of an earlier ban" } else { "" };
            let undo = format!("`limiterctl unban {}` lifts it", only.source);
            format!("banned {} {}{again}; {undo}\n", key(only), until(only))
        }
        bans => {
            let until = bans.first().map(until).unwrap_or_default();
            let replaced = match answer.replaced {
                0 => String::new(),
                number => format!(", {number} of them in place of an earlier ban"),
            };
            format!("banned {} {until}{replaced}\n", count(answer.banned, "source"))
        }
    }
}

/// An address with the key it acts on, where the two differ.
fn key(ban: &BanEntry) -> String {
    match &ban.written {
        Some(written) if *written != ban.source => format!("{written} → {}", ban.source),
        _ => ban.source.clone(),
    }
}

fn until(ban: &BanEntry) -> String {
    match &ban.expires_at {
        Some(time) => format!("until {time}"),
        None => "forever".to_owned(),
    }
}

pub async fn unban(client: &Client, source: &str, format: Format) -> Result<ExitCode, Problem> {
    let answer: Unbanned = client.delete(&format!("/v1/bans?source={}", encode(source))).await?;
    Ok(print_as(format, &answer, |answer| {
        let mut text = if answer.written == answer.source {
            format!("unbanned {}\n", answer.source)
        } else {
            format!("unbanned {} → {}\n", answer.written, answer.source)
        };
        if answer.penalties > 0 {
            text += &format!("freed of a penalty: {}\n", count(answer.penalties as usize, "bucket"));
        }
        if let Some(wider) = &answer.covered_by {
            text += &format!("still banned by {wider}: `limiterctl unban {wider}` lifts that too\n");
        }
        text
    }))
}

pub async fn reset(client: &Client, source: &str, format: Format) -> Result<ExitCode, Problem> {
    let answer: Reset = client.post(&format!("/v1/reset?source={}", encode(source))).await?;
    Ok(print_as(format, &answer, |answer| {
        let name = match answer.written == answer.source {
            true => answer.source.clone(),
            false => format!("{} → {}", answer.written, answer.source),
        };
        format!("{name}: {} full again\n", count(answer.buckets as usize, "bucket"))
    }))
}

pub async fn list(client: &Client, format: Format) -> Result<ExitCode, Problem> {
    let bans: Bans = client.get("/v1/bans").await?;
    Ok(print_as(format, &bans, |bans| {
        let mut table = Table::new(&["SOURCE", "EXPIRES", "BY", "MADE BY", "REASON"]);
        for ban in &bans.bans {
            table.row(vec![
                ban.source.clone(),
                ban.expires_at.clone().unwrap_or_else(|| "never".to_owned()),
                ban.by.name().to_owned(),
                ban.made_by.clone(),
                ban.reason.clone(),
            ]);
        }
        table.show()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forever_has_to_be_written() {
        assert_eq!(lasting("forever"), Ok(Lasting(None)));
        assert_eq!(lasting("10m"), Ok(Lasting(Some(Duration::from_secs(600)))));
        assert_eq!(lasting("1h 30m"), Ok(Lasting(Some(Duration::from_secs(5400)))));
        for wrong in ["", "0s", "10", "ever", "-1h"] {
            assert!(lasting(wrong).is_err(), "{wrong}");
        }
    }
}
