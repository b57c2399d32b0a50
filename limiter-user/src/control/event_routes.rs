//! The API's answers without an end: what happens, as it happens, as server-sent events.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Extension, OriginalUri, State};
use axum::http::StatusCode;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use axum::routing::get;
use futures_util::stream::{self, Stream};
use ipnet::IpNet;
use serde::Serialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinError;

use super::Peer;
use super::api::Lost;
use super::listen::Endless;
use super::server::{Api, No, bad_value, parameters};
use crate::daemon::{Filter, Told, Traced};
use crate::policy::duration_seconds;

/// Those who watch at one time, of those who may change things and of those who may not, each.
const MOST: usize = 16;

pub(super) fn routes() -> Router<Api> {
    Router::new().route("/events", get(events)).route("/trace", get(trace))
}

/// Places for those who watch: nobody who may only look keeps out who may do something.
#[derive(Clone)]
pub(super) struct Watchers([Arc<Semaphore>; 2]);

impl Default for Watchers {
    fn default() -> Self {
        Self([Arc::new(Semaphore::new(MOST)), Arc::new(Semaphore::new(MOST))])
    }
}

impl Watchers {
    pub(super) fn enter(&self, may_change: bool) -> Result<OwnedSemaphorePermit, No> {
        Arc::clone(&self.0[usize::from(may_change)]).try_acquire_owned().map_err(|_| {
            No::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!("{MOST} clients watch already"),
                "one more can when one of them ends",
            )
        })
    }
}

async fn events(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    Extension(endless): Extension<Endless>,
    OriginalUri(uri): OriginalUri,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, No> {
    let mut filter = Filter::default();
    let mut frames = false;
    for (key, value) in parameters(&uri, &["rule", "source", "frames"])? {
        match (key.as_str(), value.as_str()) {
            ("rule", rule) => filter.rule = Some(rule.to_owned()),
            ("source", source) => filter.source = Some(network(source)?),
            (_, "" | "true" | "1") => frames = true,
            (_, "false" | "0") => frames = false,
            (_, other) => return Err(bad_value("frames", other, "`true` or `false`")),
        }
    }
    let may_change = api.may_change(&peer);
    if frames && !may_change {
        return Err(No::new(
            StatusCode::FORBIDDEN,
            format!("uid {} may look, but not into packets", peer.uid),
            "run it as root, or leave `frames` out",
        ));
    }
    let place = api.watchers.enter(may_change)?;
    let daemon = Arc::clone(&api.daemon);
    let wanted = filter.clone();
    let receiver = tokio::task::spawn_blocking(move || daemon.watch(&wanted)).await.map_err(failed)??;
    endless.set();
    let watcher = Watcher { receiver, filter, frames, _place: place };
    Ok(Sse::new(stream::unfold(watcher, next)).keep_alive(KeepAlive::default()))
}

/// An address or a prefix.
pub(super) fn network(text: &str) -> Result<IpNet, No> {
    let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    net.map(|net| net.trunc()).ok_or_else(|| bad_value("source", text, "an address or a prefix"))
}

struct Watcher {
    receiver: Receiver<Told>,
    filter: Filter,
    frames: bool,
    _place: OwnedSemaphorePermit,
}

/// The next message he wants to see. One who reads slowly has missed some, and is told how many.
async fn next(mut watcher: Watcher) -> Option<(Result<Event, Infallible>, Watcher)> {
    loop {
        let event = match watcher.receiver.recv().await {
            Ok(Told::Drop(drop)) if watcher.filter.matches(&drop) => {
                message("drop", &drop.describe(watcher.frames))
            }
            Ok(Told::Drop(_)) => continue,
            Ok(Told::Lost(lost)) | Err(RecvError::Lagged(lost)) => message("lost", &Lost { lost }),
            Err(RecvError::Closed) => return None,
        };
        return Some((Ok(event), watcher));
    }
}

/// How long a trace lasts when nobody says.
const TRACE_SECONDS: u64 = 30;

async fn trace(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    Extension(endless): Extension<Endless>,
    OriginalUri(uri): OriginalUri,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, No> {
    let (mut source, mut seconds) = (None, TRACE_SECONDS);
    for (key, value) in parameters(&uri, &["source", "for"])? {
        match key.as_str() {
            "source" => source = Some(network(&value)?),
            _ => {
                seconds = duration_seconds(&value)
                    .map_err(|_| bad_value("for", &value, "a duration, like `30s`"))?;
            }
        }
    }
    let Some(source) = source else {
        return Err(No::new(
            StatusCode::BAD_REQUEST,
            "whose is not said",
            "write `/v1/trace?source=203.0.113.9`",
        ));
    };
    api.permit(&peer, "trace")?;
    let daemon = Arc::clone(&api.daemon);
    let begin = move || daemon.trace(source, Duration::from_secs(seconds), &peer.to_string());
    let receiver = tokio::task::spawn_blocking(begin).await.map_err(failed)??;
    endless.set();
    Ok(Sse::new(stream::unfold(Some(receiver), decision)).keep_alive(KeepAlive::default()))
}

/// The next decision; behind the last one a word that the time is over.
async fn decision(
    receiver: Option<mpsc::Receiver<Traced>>,
) -> Option<(Result<Event, Infallible>, Option<mpsc::Receiver<Traced>>)> {
    let mut receiver = receiver?;
    Some(match receiver.recv().await {
        Some(Traced::Decision(decision)) => {
            (Ok(message("decision", &decision.describe_decision())), Some(receiver))
        }
        Some(Traced::Lost(lost)) => (Ok(message("lost", &Lost { lost })), Some(receiver)),
        None => (Ok(Event::default().event("end").data("{}")), None),
    })
}

fn failed(error: JoinError) -> No {
    let hint = "this is a defect of limiterd; its log says more";
    No::new(StatusCode::INTERNAL_SERVER_ERROR, format!("limiterd failed: {error}"), hint)
}

fn message(kind: &str, body: &impl Serialize) -> Event {
    // Our own types always have a JSON form.
    Event::default().event(kind).data(serde_json::to_string(body).unwrap_or_default())
}
