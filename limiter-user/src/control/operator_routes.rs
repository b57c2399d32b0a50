//! The API of what an operator changes by hand, beside the policy.

use axum::Router;
use axum::extract::{Extension, OriginalUri, Path, Request, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Peer;
use super::api::{AddRequest, OverrideRequest, PauseRequest, RemoveRequest};
use super::server::{Answer, Api, BODY_DEADLINE, Care, No, SMALL_BODY, read_body};
use crate::daemon::PAUSE_SECONDS;

pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route("/pause", post(pause))
        .route("/resume", post(resume))
        .route("/policy/confirm", post(confirm))
        .route("/observation", get(observation).delete(stop_observing))
        .route("/overrides", get(overrides).post(set_override))
        .route("/overrides/{rule}", delete(clear_override))
        .route("/sets/{set}/members", post(add_to))
        .route("/sets/{set}/remove", post(remove_from))
}

async fn pause(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answer<impl Serialize> {
    api.permit(&peer, "pause")?;
    let asked: PauseRequest = body(request, "`{\"for_s\": 900}` is the shape").await?;
    api.run(move |daemon| daemon.core().pause(asked.for_s.unwrap_or(PAUSE_SECONDS), &peer.to_string())).await
}

async fn resume(State(api): State<Api>, Extension(peer): Extension<Peer>) -> Answer<impl Serialize> {
    api.permit(&peer, "resume")?;
    api.run(move |daemon| daemon.core().resume(&peer.to_string())).await
}

async fn confirm(State(api): State<Api>, Extension(peer): Extension<Peer>) -> Answer<impl Serialize> {
    api.permit(&peer, "confirm")?;
    api.run(move |daemon| daemon.confirm(&peer.to_string())).await
}

async fn observation(State(api): State<Api>) -> Answer<impl Serialize> {
    api.run(|daemon| daemon.core().observation()).await
}

async fn stop_observing(State(api): State<Api>, Extension(peer): Extension<Peer>) -> Answer<impl Serialize> {
    api.permit(&peer, "observed --stop")?;
    api.run(move |daemon| daemon.stop_observing(&peer.to_string())).await
}

async fn overrides(State(api): State<Api>) -> Answer<impl Serialize> {
    api.run(|daemon| Ok(daemon.overrides())).await
}

async fn set_override(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answer<impl Serialize> {
    api.permit(&peer, "override")?;
    let shape = "`{\"rule\": \"web\", \"scale\": 25, \"mode\": \"observe\", \"for_s\": 3600}` is the shape";
    let asked: OverrideRequest = body(request, shape).await?;
    api.run(move |daemon| daemon.set_override(asked, &peer.to_string())).await
}

async fn clear_override(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    Path(rule): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Answer<impl Serialize> {
    let care = Care::asked(&uri)?;
    api.permit(&peer, "clear-override")?;
    api.run(move |daemon| daemon.clear_override(&rule, care.sessions(), &peer.to_string())).await
}

async fn add_to(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    Path(set): Path<String>,
    request: Request,
) -> Answer<impl Serialize> {
    api.permit(&peer, "add-to")?;
    let asked: AddRequest =
        body(request, "`{\"members\": [\"203.0.113.9\"], \"for_s\": 3600}` is the shape").await?;
    api.run(move |daemon| daemon.add_to(&set, &asked, &peer.to_string())).await
}

async fn remove_from(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    Path(set): Path<String>,
    request: Request,
) -> Answer<impl Serialize> {
    api.permit(&peer, "remove-from")?;
    let asked: RemoveRequest = body(request, "`{\"members\": [\"203.0.113.9\"]}` is the shape").await?;
    api.run(move |daemon| daemon.remove_from(&set, &asked, &peer.to_string())).await
}

/// Prefixes come in lists of up to a hundred thousand.
const LARGEST_BODY: usize = 100 * SMALL_BODY;

/// A small JSON body; an empty one is `{}`.
async fn body<T: DeserializeOwned>(request: Request, shape: &str) -> Result<T, No> {
    let body = read_body(request.into_body(), LARGEST_BODY, BODY_DEADLINE).await?;
    let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
    serde_json::from_slice(text).map_err(|error| {
        No::new(StatusCode::BAD_REQUEST, format!("the body is not understood: {error}"), shape)
    })
}
