//! `check-request`: what would be decided about a request, and why. Charges nothing.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Args;

use super::Format;
use super::output::{Problem, Table, print_as, show_duration};
use crate::control::client::Client;
use crate::control::request_api::{CheckRequest, CheckedRequest};

#[derive(Args, Debug)]
pub struct CheckRequestArguments {
    /// The client's address
    #[arg(long, value_name = "ADDRESS")]
    client: IpAddr,
    #[arg(long, default_value = "GET")]
    method: String,
    /// Path and query
    #[arg(long, default_value = "/", value_name = "PATH")]
    uri: String,
    /// The API key; - reads it from stdin, where no list of processes shows it
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,
    /// The value of the cost header
    #[arg(long, value_name = "N")]
    cost: Option<String>,
    /// A header for `header:NAME` scopes, as NAME=VALUE
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// Envoy's domain
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// An entry of Envoy's descriptor, as KEY=VALUE
    #[arg(long = "descriptor", value_name = "KEY=VALUE", value_parser = pair)]
    descriptor: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub async fn run(
    client: &Client,
    arguments: CheckRequestArguments,
    format: Format,
) -> Result<ExitCode, Problem> {
    let api_key = match arguments.api_key.as_deref() {
        Some("-") => {
            let mut line = String::new();
            std::io::stdin()
                .read_line(&mut line)
                .map_err(|error| Problem::failed(format!("cannot read stdin: {error}"), None))?;
            Some(line.trim_end_matches(['\r', '\n']).to_owned())
        }
        _ => arguments.api_key,
    };
    let asked = CheckRequest {
        client: arguments.client,
        method: Some(arguments.method),
        uri: Some(arguments.uri),
        domain: arguments.domain,
        api_key,
        account: arguments.account,
        user: arguments.user,
        plan: arguments.plan,
        cost: arguments.cost,
        headers: arguments.headers.into_iter().collect(),
        descriptor: arguments.descriptor.into_iter().collect(),
    };
    let checked: CheckedRequest = client.post_body("/v1/check-request", &asked).await?;
    Ok(print_as(format, &checked, show))
}

fn show(checked: &CheckedRequest) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| text.push_str(&format!("{label:<9}{value}\n"));
    let wait = checked.retry_after_s.map(|wait| format!(", room in {}", show_duration(wait)));
    let decision = if checked.allowed { "admitted" } else { "refused" };
    line("decision", &format!("{decision} ({}){}", checked.reason, wait.unwrap_or_default()));
    line("endpoint", checked.endpoint.as_deref().unwrap_or("none matches"));
    line("path", checked.path.as_deref().unwrap_or("cannot be normalised"));
    let hash = checked.api_key_hash.as_ref().map(|hash| format!(", hash {hash}"));
    line("api key", &format!("{}{}", checked.api_key, hash.unwrap_or_default()));
    line("plan", checked.plan.as_deref().unwrap_or("none"));
    if checked.limits.is_empty() {
        return text;
    }
    line("cost", &checked.cost.to_string());
    let mut table = Table::new(&["LIMIT", "PER", "ALGORITHM", ">LEFT", ">OF", "ROOM"]);
    for limit in &checked.limits {
        let room = match (limit.allowed, limit.observing) {
            (Some(true), _) => "yes",
            (Some(false), false) => "no",
            (Some(false), true) => "no, only observed",
            (None, _) => "not asked",
        };
        table.row(vec![
            limit.name.clone(),
            limit.per.clone(),
            limit.algorithm.clone(),
            limit.remaining.map_or_else(|| "-".to_owned(), |left| left.to_string()),
            format!("{} in {}", limit.count, show_duration(limit.window_s)),
            room.to_owned(),
        ]);
    }
    text.push('\n');
    text.push_str(&table.show());
    text
}
