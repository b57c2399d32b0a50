//! The control API's server: what each path answers, and who may ask for it.
//!
//! Bodies have limits of size and time, and nothing a client does is waited for while the core is held.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, OriginalUri, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::Peer;
use super::api::{AttachRequest, BanRequest, Failure, MAX_BUNDLE_BYTES};
use super::listen::{Socket, group_id, listen};
use super::{event_routes, operator_routes, request_routes};
use crate::cli::session::{self, Session};
use crate::daemon::{
    By, Daemon, Demands, FIRST_WINDOW, GroupBy, GroupQuery, Kind, LONGEST_CONFIRM, LONGEST_OBSERVATION,
    Query, Refusal, Sort, USUAL_OBSERVATION, WhyQuestion, Wish,
};
use crate::policy::{Bundle, duration_seconds};

/// A small body has to come within this, a bundle within that.
pub(super) const BODY_DEADLINE: Duration = Duration::from_secs(10);
const BUNDLE_DEADLINE: Duration = Duration::from_secs(60);

/// How often a first question for drops looks whether there is enough.
const DROPS_PERIOD: Duration = Duration::from_millis(250);

/// Bytes of a body that is no bundle.
pub(super) const SMALL_BODY: usize = 64 << 10;

#[derive(Clone)]
pub(super) struct Api {
    pub(super) daemon: Arc<Daemon>,
    admin_group: Option<u32>,
    /// One bundle at a time: one of those who may change things, one of those who may not (`dry-run`).
    uploads: Arc<[Semaphore; 2]>,
    /// One scan of the table at a time.
    scans: Arc<Semaphore>,
    pub(super) watchers: event_routes::Watchers,
}

/// Answers until `stop` resolves.
pub async fn serve(socket: Socket, daemon: Arc<Daemon>, stop: impl Future<Output = ()>) {
    let admin = daemon.settings().admin_group.clone();
    let admin_group = group_id(&admin);
    if admin_group.is_none() {
        tracing::info!(group = admin, "no such group, only root may change things");
    }
    let api = Api {
        daemon,
        admin_group,
        uploads: Arc::new([Semaphore::new(1), Semaphore::new(1)]),
        scans: Arc::new(Semaphore::new(1)),
        watchers: event_routes::Watchers::default(),
    };
    listen(socket, routes(api), stop).await;
}

fn routes(api: Api) -> Router {
    let v1 = Router::new()
        .route("/status", get(status))
        .route("/policy", get(policy).put(set_policy))
        .route("/policy/rollback", post(rollback))
        .route("/rules", get(rules))
        .route("/stats", get(stats))
        .route("/sources", get(sources))
        .route("/drops", get(drops))
        .route("/bans", get(bans).post(ban).delete(unban))
        .route("/reset", post(reset))
        .route("/why/{ip}", get(why))
        .route("/history", get(history))
        .route("/reload", post(reload))
        .route("/interfaces/{name}", put(attach).delete(detach))
        .merge(request_routes::routes())
        .merge(operator_routes::routes())
        .merge(event_routes::routes());
    Router::new()
        .nest("/v1", v1)
        .fallback(|uri: Uri| async move {
            No::new(
                StatusCode::NOT_FOUND,
                format!("there is no `{}`", uri.path()),
                "`GET /v1/status` is a start",
            )
        })
        .method_not_allowed_fallback(|uri: Uri| async move {
            No::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("`{}` does not take this method", uri.path()),
                "GET reads, PUT sets, POST does, DELETE undoes",
            )
        })
        .with_state(api)
}

/// A refusal on its way out.
pub(super) struct No {
    status: StatusCode,
    failure: Failure,
}

impl No {
    pub(super) fn new(status: StatusCode, error: impl Into<String>, hint: impl Into<String>) -> Self {
        let failure = Failure { error: error.into(), hint: Some(hint.into()), diagnostics: Vec::new() };
        Self { status, failure }
    }
}

impl From<Refusal> for No {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.kind {
            Kind::BadRequest => StatusCode::BAD_REQUEST,
            Kind::BadPolicy => StatusCode::UNPROCESSABLE_ENTITY,
            Kind::Stale => StatusCode::PRECONDITION_FAILED,
            Kind::NeedsForce | Kind::Conflict => StatusCode::CONFLICT,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, failure: refusal.failure }
    }
}

impl IntoResponse for No {
    fn into_response(self) -> Response {
        (self.status, Json(self.failure)).into_response()
    }
}

pub(super) type Answer<T> = Result<Json<T>, No>;

impl Api {
    /// Runs what blocks where it may.
    pub(super) async fn run<T: Serialize + Send + 'static>(
        &self,
        work: impl FnOnce(&Daemon) -> Result<T, Refusal> + Send + 'static,
    ) -> Answer<T> {
        let daemon = Arc::clone(&self.daemon);
        match tokio::task::spawn_blocking(move || work(&daemon)).await {
            Ok(result) => Ok(Json(result?)),
            Err(error) => Err(No::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("limiterd failed: {error}"),
                "this is a defect of limiterd; its log says more",
            )),
        }
    }

    pub(super) fn may_change(&self, peer: &Peer) -> bool {
        peer.may_change(self.admin_group)
    }

    /// Refuses whoever may not change things, and logs whoever may.
    pub(super) fn permit(&self, peer: &Peer, what: &str) -> Result<(), No> {
        if !peer.may_change(self.admin_group) {
            tracing::warn!(uid = peer.uid, pid = peer.pid, what, "change refused: not permitted");
            return Err(No::new(
                StatusCode::FORBIDDEN,
                format!("uid {} may look but not change anything", peer.uid),
                format!(
                    "run it as root, or as a member of the group `{}`",
                    self.daemon.settings().admin_group
                ),
            ));
        }
        tracing::info!(uid = peer.uid, pid = peer.pid, what, "change asked for");
        Ok(())
    }
}

async fn status(State(api): State<Api>) -> Answer<impl Serialize> {
    api.run(Daemon::status).await
}

async fn policy(State(api): State<Api>) -> Result<Response, No> {
    let Json(policy) = api.run(|daemon| Ok(daemon.core().policy_in_force())).await?;
    match policy {
        Some(policy) => Ok(([(header::ETAG, format!("\"{}\"", policy.hash))], Json(policy)).into_response()),
        None => {
            Err(No::new(StatusCode::NOT_FOUND, "no policy is known", "`limiterctl set-policy FILE` sets one"))
        }
    }
}

async fn rules(State(api): State<Api>) -> Answer<impl Serialize> {
    api.run(|daemon| {
        daemon.core().rules().ok_or_else(|| {
            let hint = "`limiterctl get-policy` shows its text";
            Refusal::new(Kind::NotFound, "this version cannot read the policy in force", hint)
        })
    })
    .await
}

async fn stats(State(api): State<Api>) -> Answer<impl Serialize> {
    api.run(|daemon| daemon.core().stats()).await
}

async fn history(State(api): State<Api>) -> Answer<impl Serialize> {
    api.run(|daemon| Ok(daemon.core().history())).await
}

async fn sources(State(api): State<Api>, OriginalUri(uri): OriginalUri) -> Answer<impl Serialize> {
    let mut query = Query { top: 20, sort: Sort::Dropped, by: By::Source, rule: None };
    for (key, value) in parameters(&uri, &["top", "sort", "by", "rule"])? {
        match (key.as_str(), value.as_str()) {
            ("top", number) => {
                query.top = number.parse().map_err(|_| bad_value("top", number, "a number"))?;
            }
            ("sort", "dropped") => query.sort = Sort::Dropped,
            ("sort", "passed") => query.sort = Sort::Passed,
            ("sort", other) => return Err(bad_value("sort", other, "`dropped` or `passed`")),
            ("by", "source") => query.by = By::Source,
            ("by", "prefix") => query.by = By::Prefix,
            ("by", other) => return Err(bad_value("by", other, "`source` or `prefix`")),
            (_, rule) => query.rule = Some(rule.to_owned()),
        }
    }
    let Ok(_one_at_a_time) = api.scans.acquire().await else { return Err(busy()) };
    api.run(move |daemon| daemon.core().sources(&query)).await
}

async fn drops(State(api): State<Api>, OriginalUri(uri): OriginalUri) -> Answer<impl Serialize> {
    let mut query = GroupQuery { by: GroupBy::Port, top: 20, rule: None };
    for (key, value) in parameters(&uri, &["top", "by", "rule"])? {
        match (key.as_str(), value.as_str()) {
            ("top", number) => {
                query.top = number.parse().map_err(|_| bad_value("top", number, "a number"))?;
            }
            ("by", "port") => query.by = GroupBy::Port,
            ("by", "source-port") => query.by = GroupBy::SourcePort,
            ("by", "size") => query.by = GroupBy::Size,
            ("by", other) => return Err(bad_value("by", other, "`port`, `source-port` or `size`")),
            (_, rule) => query.rule = Some(rule.to_owned()),
        }
    }
    // Who asks first waits until there is something to look at.
    for _ in 0..FIRST_WINDOW.as_millis() / DROPS_PERIOD.as_millis() * 2 {
        let (daemon, rule) = (Arc::clone(&api.daemon), query.rule.clone());
        let Json(is_enough) = api.run(move |_| daemon.collect(rule.as_ref())).await?;
        if is_enough {
            break;
        }
        tokio::time::sleep(DROPS_PERIOD).await;
    }
    api.run(move |daemon| Ok(daemon.drops(&query))).await
}

async fn why(
    State(api): State<Api>,
    Path(source): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Answer<impl Serialize> {
    let mut question = WhyQuestion { source, to: None, length: None, interface: None, destination: None };
    for (key, value) in parameters(&uri, &["to", "bytes", "interface", "dest"])? {
        match key.as_str() {
            "to" => question.to = Some(value),
            "interface" => question.interface = Some(value),
            "dest" => {
                let address = value.parse().map_err(|_| bad_value("dest", &value, "an address"))?;
                question.destination = Some(address);
            }
            _ => {
                let length = value.parse().ok().filter(|length| (20..=65_535).contains(length));
                question.length =
                    Some(length.ok_or_else(|| bad_value("bytes", &value, "a number from 20 to 65535"))?);
            }
        }
    }
    api.run(move |daemon| daemon.core().why(&question)).await
}

async fn set_policy(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    request: Request,
) -> Answer<impl Serialize> {
    let mut wish = Wish::default();
    let mut observe = None;
    for (key, value) in parameters(&uri, &["dry-run", "force", "strict", "confirm", "observe", "session"])? {
        if key == "session" {
            wish.sessions.push(the_session(&value)?);
            continue;
        }
        if key == "confirm" {
            wish.confirm_within = Some(confirm_within(&value)?);
            continue;
        }
        if key == "observe" {
            observe = Some(observation_time(&value)?);
            continue;
        }
        let on = flag(&key, &value)?;
        match key.as_str() {
            "dry-run" => wish.dry_run = on,
            "force" => wish.demands.force = on,
            _ => wish.demands.strict = on,
        }
    }
    if wish.demands.force {
        wish.sessions.clear();
    }
    wish.if_match = if_match(&headers)?;
    if observe.is_some() && (wish.dry_run || wish.confirm_within.is_some()) {
        let hint = "a policy is observed, or tried, or put in force until it is confirmed";
        return Err(No::new(
            StatusCode::BAD_REQUEST,
            "`observe` goes with neither `dry-run` nor `confirm`",
            hint,
        ));
    }
    if !wish.dry_run {
        api.permit(&peer, if observe.is_some() { "set-policy --observe" } else { "set-policy" })?;
    }
    let lane = usize::from(!peer.may_change(api.admin_group));
    let Ok(_one_at_a_time) = api.uploads[lane].try_acquire() else { return Err(busy()) };
    let body = read_body(request.into_body(), MAX_BUNDLE_BYTES, BUNDLE_DEADLINE).await?;
    let by = peer.to_string();
    api.run(move |daemon| {
        let bundle: Bundle = serde_json::from_slice(&body).map_err(|error| {
            Refusal::new(Kind::BadPolicy, format!("the body is not a bundle: {error}"), BUNDLE_HINT)
        })?;
        drop(body);
        match observe {
            Some(time) => daemon.observe(bundle, &wish, time, by),
            None => daemon.set_policy(bundle, &wish, by),
        }
    })
    .await
}

/// An empty value is the usual time.
fn observation_time(text: &str) -> Result<Duration, No> {
    if text.is_empty() {
        return Ok(USUAL_OBSERVATION);
    }
    let time = duration_seconds(text).map(Duration::from_secs);
    match time {
        Ok(time) if !time.is_zero() && time <= LONGEST_OBSERVATION => Ok(time),
        _ => Err(bad_value("observe", text, "a time from one second to seven days, like `1h`")),
    }
}

fn confirm_within(text: &str) -> Result<Duration, No> {
    let within = duration_seconds(text).map(Duration::from_secs);
    match within {
        Ok(time) if time <= LONGEST_CONFIRM => Ok(time),
        _ => Err(bad_value("confirm", text, "a duration of at most a day, like `60s`")),
    }
}

const BUNDLE_HINT: &str =
    "`{\"policy\": \"policy.toml\", \"files\": {\"policy.toml\": \"version = 1\\n…\"}}` is the shape";

/// Which ssh sessions a change must let go on, as the query of its request says.
#[derive(Default)]
pub(super) struct Care {
    sessions: Vec<Session>,
    force: bool,
}

impl Care {
    /// Of a request that may say nothing else.
    pub(super) fn asked(uri: &Uri) -> Result<Self, No> {
        let mut care = Self::default();
        for (key, value) in parameters(uri, &["force", "session"])? {
            match key.as_str() {
                "session" => care.sessions.push(the_session(&value)?),
                _ => care.force = flag(&key, &value)?,
            }
        }
        Ok(care)
    }

    /// None where it is forced.
    pub(super) fn sessions(self) -> Vec<Session> {
        if self.force { Vec::new() } else { self.sessions }
    }
}

fn the_session(text: &str) -> Result<Session, No> {
    let shape = "`CLIENT PORT SERVER PORT`, as `SSH_CONNECTION` has it";
    session::parse(text).ok_or_else(|| bad_value("session", text, shape))
}

fn flag(key: &str, value: &str) -> Result<bool, No> {
    match value {
        "" | "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(bad_value(key, other, "`true` or `false`")),
    }
}

async fn rollback(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    OriginalUri(uri): OriginalUri,
) -> Answer<impl Serialize> {
    let care = Care::asked(&uri)?;
    api.permit(&peer, "rollback-policy")?;
    api.run(move |daemon| daemon.rollback(care.sessions(), peer.to_string())).await
}

async fn reload(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    OriginalUri(uri): OriginalUri,
) -> Answer<impl Serialize> {
    let care = Care::asked(&uri)?;
    api.permit(&peer, "reload")?;
    api.run(move |daemon| {
        let demands = Demands { force: care.force, strict: false };
        daemon.reload(&Wish { demands, sessions: care.sessions(), ..Wish::default() }, peer.to_string())
    })
    .await
}

async fn attach(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    request: Request,
) -> Answer<impl Serialize> {
    api.permit(&peer, "attach")?;
    let body = read_body(request.into_body(), SMALL_BODY, BODY_DEADLINE).await?;
    let asked: AttachRequest = if body.is_empty() {
        AttachRequest::default()
    } else {
        serde_json::from_slice(&body).map_err(|error| {
            let hint = "`{\"mode\": \"auto\", \"replace\": false}` is the shape";
            No::new(StatusCode::BAD_REQUEST, format!("the body is not understood: {error}"), hint)
        })?
    };
    api.run(move |daemon| daemon.attach(&name, asked.mode, asked.replace)).await
}

async fn detach(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
) -> Answer<impl Serialize> {
    api.permit(&peer, "detach")?;
    api.run(move |daemon| daemon.detach(&name)).await
}

async fn bans(State(api): State<Api>) -> Answer<impl Serialize> {
    api.run(|daemon| Ok(daemon.core().list_bans())).await
}

async fn ban(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answer<impl Serialize> {
    api.permit(&peer, "ban")?;
    let Ok(_one_at_a_time) = api.uploads[0].try_acquire() else { return Err(busy()) };
    let body = read_body(request.into_body(), MAX_BUNDLE_BYTES, BUNDLE_DEADLINE).await?;
    api.run(move |daemon| {
        let asked: BanRequest = serde_json::from_slice(&body).map_err(|error| {
            let hint = "`{\"bans\": [{\"source\": \"203.0.113.9\", \"for_s\": 600}]}` is the shape";
            Refusal::new(Kind::BadRequest, format!("the body is not understood: {error}"), hint)
        })?;
        daemon.core().ban(&asked, &peer.to_string())
    })
    .await
}

async fn unban(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    OriginalUri(uri): OriginalUri,
) -> Answer<impl Serialize> {
    api.permit(&peer, "unban")?;
    let source = the_source(&uri)?;
    api.run(move |daemon| daemon.core().unban(&source, &peer.to_string())).await
}

async fn reset(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    OriginalUri(uri): OriginalUri,
) -> Answer<impl Serialize> {
    api.permit(&peer, "reset")?;
    let source = the_source(&uri)?;
    api.run(move |daemon| daemon.core().reset(&source, &peer.to_string())).await
}

/// The one parameter `source`.
fn the_source(uri: &Uri) -> Result<String, No> {
    let source = parameters(uri, &["source"])?.into_iter().next().map(|(_, source)| source);
    source.ok_or_else(|| {
        let hint = format!("write `{}?source=203.0.113.9`", uri.path());
        No::new(StatusCode::BAD_REQUEST, "whose is not said", hint)
    })
}

/// The whole body, within a size and a time.
pub(super) async fn read_body(body: Body, limit: usize, deadline: Duration) -> Result<Bytes, No> {
    match tokio::time::timeout(deadline, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            let too_large = std::error::Error::source(&error)
                .is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
            if too_large {
                return Err(No::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format!("the body is larger than {limit} bytes"),
                    "a policy with its set files may take 64 MiB",
                ));
            }
            Err(No::new(StatusCode::BAD_REQUEST, "the body was cut short", "send it whole"))
        }
        Err(_) => Err(No::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not come within {} s", deadline.as_secs()),
            "send it faster",
        )),
    }
}

/// The query's parameters; a name that is not known is refused, since a mistyped `dry-run` would apply.
pub(super) fn parameters(uri: &Uri, known: &[&str]) -> Result<Vec<(String, String)>, No> {
    let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(|error| {
        No::new(StatusCode::BAD_REQUEST, format!("the query is not understood: {error}"), "")
    })?;
    for (key, _) in &query.0 {
        if !known.contains(&key.as_str()) {
            return Err(No::new(
                StatusCode::BAD_REQUEST,
                format!("`{}` takes no `{key}`", uri.path()),
                format!(
                    "it takes {}",
                    known.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
                ),
            ));
        }
    }
    Ok(query.0)
}

pub(super) fn bad_value(key: &str, value: &str, expected: &str) -> No {
    No::new(StatusCode::BAD_REQUEST, format!("`{key}` is `{value}`"), format!("write {expected}"))
}

/// `If-Match`, its quotes taken off; `*` demands nothing, since there is always a policy.
fn if_match(headers: &HeaderMap) -> Result<Option<String>, No> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let text = value.to_str().map_err(|_| bad_value("If-Match", "…", "the hash of a policy"))?;
    let hash = text.trim().trim_matches('"');
    Ok((hash != "*").then(|| hash.to_owned()))
}

fn busy() -> No {
    No::new(StatusCode::CONFLICT, "another policy is being sent", "try again in a moment")
}
