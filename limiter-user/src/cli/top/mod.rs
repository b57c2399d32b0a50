//! `top`: the worst sources, full-screen where somebody looks, as lines where a program reads.

mod draw;
mod lines;
mod screen;
mod view;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::Format;
use super::attach::encode;
use super::output::Problem;
use crate::control::api::{Drops, Sources};
use crate::control::client::{Client, ClientError};

#[derive(Debug, Args)]
pub struct TopArguments {
    /// Only sources this rule has a bucket for, or what it drops
    #[arg(long)]
    rule: Option<String>,

    /// What a line stands for; a prefix is an IPv4 /24 or an IPv6 /48
    #[arg(long, value_enum, default_value_t = By::Source)]
    by: By,

    /// What makes a source bad
    #[arg(long, value_enum, default_value_t = Sort::Dropped)]
    sort: Sort,

    /// How many lines
    #[arg(short, default_value_t = 20, value_name = "N")]
    number: usize,
}

/// What a line stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Source,
    Prefix,
    /// Destination port of what was dropped in the last 10 s, from samples
    Port,
    /// Source port of the same
    SourcePort,
    /// Size of the same packets, in classes
    Size,
}

impl By {
    const ALL: [Self; 5] = [Self::Source, Self::Prefix, Self::Port, Self::SourcePort, Self::Size];

    fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Prefix => "prefix",
            Self::Port => "port",
            Self::SourcePort => "source-port",
            Self::Size => "size",
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Source => "SOURCE",
            Self::Prefix => "PREFIX",
            Self::Port => "PORT",
            Self::SourcePort => "SOURCE PORT",
            Self::Size => "SIZE",
        }
    }

    /// Buckets know their source alone; the rest is in the packets that were dropped.
    fn is_sampled(self) -> bool {
        !matches!(self, Self::Source | Self::Prefix)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    Dropped,
    Passed,
    /// How empty the bucket is; of samples the share
    Fill,
    /// By address, port or size
    Source,
}

impl Sort {
    fn name(self) -> &'static str {
        match self {
            Self::Dropped => "dropped",
            Self::Passed => "passed",
            Self::Fill => "fill",
            Self::Source => "source",
        }
    }
}

/// What is asked of the daemon. It sorts by two of the four keys; by the others we sort what it sent.
fn path(rule: Option<&str>, by: By, sort: Sort, number: usize) -> String {
    let sort = if sort == Sort::Passed { "passed" } else { "dropped" };
    let mut path = match by.is_sampled() {
        true => format!("/v1/drops?top={number}&by={}", by.name()),
        false => format!("/v1/sources?top={number}&sort={sort}&by={}", by.name()),
    };
    if let Some(rule) = rule {
        path += &format!("&rule={}", encode(rule));
    }
    path
}

/// What the daemon answered.
enum Looked {
    Sources(Sources),
    Drops(Drops),
}

async fn look(client: &Client, by: By, path: &str) -> Result<Looked, ClientError> {
    Ok(match by.is_sampled() {
        true => Looked::Drops(client.get(path).await?),
        false => Looked::Sources(client.get(path).await?),
    })
}

/// On how much estimates rest.
fn basis(drops: &Drops) -> String {
    let Drops { window_s, samples, dropped, .. } = drops;
    format!("≈ from {samples} samples of {dropped} drops in the last {window_s} s")
}

pub async fn run(client: &Client, arguments: TopArguments, format: Format) -> Result<ExitCode, Problem> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let watched = io::stdout().is_terminal() && io::stdin().is_terminal() && !dumb;
    if watched && format == Format::Text {
        screen::run(client, arguments).await
    } else {
        lines::run(client, &arguments, format).await
    }
}
