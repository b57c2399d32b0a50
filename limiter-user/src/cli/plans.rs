//! `set-plan` and `revoke-key`: the plan of an API key, on every host that shares the store, within 5 s.

use std::process::ExitCode;

use super::Format;
use super::output::{Problem, print_as};
use crate::control::client::Client;
use crate::control::request_api::{PlanSet, SetPlan};
use crate::requests::policy::DENY;

/// Sets the plan of the key with this hash; without a plan, what the keys file says holds again.
pub async fn set(
    client: &Client,
    hash: &str,
    plan: Option<String>,
    format: Format,
) -> Result<ExitCode, Problem> {
    let path = format!("/v1/plans/{hash}");
    let set: PlanSet = match plan {
        Some(plan) => client.put(&path, &SetPlan { plan }).await?,
        None => client.delete(&path).await?,
    };
    Ok(print_as(format, &set, |set| match set.plan.as_deref() {
        Some(DENY) => format!("key {} is revoked on every host within 5 s\n", set.key),
        Some(plan) => format!("key {} has plan {plan} on every host within 5 s\n", set.key),
        None => format!("key {} has what the keys file says, on every host within 5 s\n", set.key),
    }))
}

pub async fn revoke(client: &Client, hash: &str, format: Format) -> Result<ExitCode, Problem> {
    set(client, hash, Some(DENY.to_owned()), format).await
}
