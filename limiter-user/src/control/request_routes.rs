//! The control API's answers about requests.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Extension, Path, Request, State};
use axum::http::StatusCode;
use axum::routing::{post, put};

use super::Peer;
use super::request_api::{CheckRequest, CheckedRequest, PlanSet, SetPlan};
use super::server::{Answer, Api, BODY_DEADLINE, No, SMALL_BODY, read_body};
use crate::requests::key::KeyHash;
use crate::requests::plans::is_plan_name;
use crate::requests::policy::DENY;
use crate::requests::store::{PlanRecord, StoreError};
use crate::requests::tier::Tier;

pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route("/check-request", post(check_request))
        .route("/plans/{hash}", put(set_plan).delete(remove_plan))
}

fn tier(api: &Api) -> Result<Arc<Tier>, No> {
    api.daemon.core().requests.clone().ok_or_else(|| {
        No::new(
            StatusCode::NOT_FOUND,
            "this limiterd has no request tier",
            "write `[requests]` in limiterd.toml and start it again",
        )
    })
}

fn store_failed(error: &StoreError) -> No {
    let hint = "`limiterctl status` says how the store is";
    No::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), hint)
}

async fn body<T: serde::de::DeserializeOwned>(request: Request, shape: &str) -> Result<T, No> {
    let body = read_body(request.into_body(), SMALL_BODY, BODY_DEADLINE).await?;
    serde_json::from_slice(&body).map_err(|error| {
        No::new(StatusCode::BAD_REQUEST, format!("the body is not understood: {error}"), shape)
    })
}

async fn check_request(State(api): State<Api>, request: Request) -> Answer<CheckedRequest> {
    let tier = tier(&api)?;
    let asked: CheckRequest = body(
        request,
        "`{\"client\": \"203.0.113.9\", \"method\": \"POST\", \"uri\": \"/v1/login\"}` is the shape",
    )
    .await?;
    let entries = asked.entries();
    let explanation =
        tier.engine().explain(asked.request(&entries)).await.map_err(|error| store_failed(&error))?;
    Ok(Json(explanation.into()))
}

async fn set_plan(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    Path(hash): Path<String>,
    request: Request,
) -> Answer<PlanSet> {
    api.permit(&peer, "set-plan")?;
    let tier = tier(&api)?;
    let key = key(&hash)?;
    let SetPlan { plan } = body(request, "`{\"plan\": \"pro\"}` is the shape").await?;
    if !is_plan_name(&plan) {
        return Err(No::new(
            StatusCode::BAD_REQUEST,
            format!("`{plan}` cannot name a plan"),
            "a plan's name is of letters, digits, `-`, `_` and `.`",
        ));
    }
    let record = if plan == DENY { PlanRecord::Revoked } else { PlanRecord::Plan(plan.clone()) };
    tier.engine().set_plan(&key, Some(&record)).await.map_err(|error| store_failed(&error))?;
    Ok(Json(PlanSet { key: key.text(), plan: Some(plan) }))
}

async fn remove_plan(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    Path(hash): Path<String>,
) -> Answer<PlanSet> {
    api.permit(&peer, "set-plan")?;
    let tier = tier(&api)?;
    let key = key(&hash)?;
    tier.engine().set_plan(&key, None).await.map_err(|error| store_failed(&error))?;
    Ok(Json(PlanSet { key: key.text(), plan: None }))
}

fn key(hash: &str) -> Result<KeyHash, No> {
    KeyHash::parse(hash).ok_or_else(|| {
        No::new(
            StatusCode::BAD_REQUEST,
            format!("`{hash}` is no key's hash"),
            "`limiterctl check-request --api-key KEY` prints it",
        )
    })
}
