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
use crate::control::client::Client;

#[derive(Debug, Args)]
pub struct TopArguments {
    /// Only sources this rule has a bucket for
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
    /// Not supported yet
    Port,
    /// Not supported yet
    SourcePort,
    /// Not supported yet
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

    /// Buckets know their source alone; the rest is in the packets that were dropped.
    fn is_supported(self) -> bool {
        matches!(self, Self::Source | Self::Prefix)
    }

    fn unsupported(self) -> String {
        format!("`--by {}` is not supported yet: it needs samples of dropped packets", self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    Dropped,
    Passed,
    /// How empty the bucket is
    Fill,
    /// By address
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
    let mut path = format!("/v1/sources?top={number}&sort={sort}&by={}", by.name());
    if let Some(rule) = rule {
        path += &format!("&rule={}", encode(rule));
    }
    path
}

pub async fn run(client: &Client, arguments: TopArguments, format: Format) -> Result<ExitCode, Problem> {
    if !arguments.by.is_supported() {
        let hint = "`--by source` and `--by prefix` are there".to_owned();
        return Err(Problem::failed(arguments.by.unsupported(), Some(hint)));
    }
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let watched = io::stdout().is_terminal() && io::stdin().is_terminal() && !dumb;
    if watched && format == Format::Text {
        screen::run(client, arguments).await
    } else {
        lines::run(client, &arguments, format).await
    }
}
