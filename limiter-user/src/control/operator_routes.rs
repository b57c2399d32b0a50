//! The API of what an operator changes by hand, beside the policy.

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Peer;
use super::api::PauseRequest;
use super::server::{Answer, Api, BODY_DEADLINE, No, SMALL_BODY, read_body};
use crate::daemon::PAUSE_SECONDS;

pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route("/pause", post(pause))
        .route("/resume", post(resume))
        .route("/policy/confirm", post(confirm))
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

/// A small JSON body; an empty one is `{}`.
async fn body<T: DeserializeOwned>(request: Request, shape: &str) -> Result<T, No> {
    let body = read_body(request.into_body(), SMALL_BODY, BODY_DEADLINE).await?;
    let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
    serde_json::from_slice(text).map_err(|error| {
        No::new(StatusCode::BAD_REQUEST, format!("the body is not understood: {error}"), shape)
    })
}
