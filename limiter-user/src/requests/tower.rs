//! A `tower` layer: the same decisions inside a Rust service, without a hop.
//!
//! The layer must know the connection's peer (see [`LimitLayer::new`]). Account, user, plan, cost and
//! `header:NAME` scopes are read from the headers `[identity]` and the endpoints name, but only when the peer
//! is a trusted proxy: from anyone else they are what a client wrote. A service that knows its caller itself
//! puts a [`Caller`] into the request's extensions, which is believed.
//!
//! A queued request waits here. An endpoint that charges failures only gets its charge back when the service
//! answers below 400.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Extensions, Request as HttpRequest, Response, StatusCode};
use tower::{Layer, Service};

use super::engine::Engine;
use super::headers::{self, PROBLEM_JSON};
use super::http::joined;
use super::identity::client_of;
use super::metrics::Interface;
use super::outcome::Outcome;
use super::question::{Report, Request};

/// Who calls, as the service itself knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    pub account: Option<String>,
    pub user: Option<String>,
    pub plan: Option<String>,
}

type Peer = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;

/// See the module.
#[derive(Clone)]
pub struct LimitLayer {
    engine: Arc<Engine>,
    peer: Arc<Peer>,
}

impl LimitLayer {
    /// `peer` finds the address of the TCP peer among the request's extensions. A request without one is
    /// answered with 500: it could be anybody's.
    pub fn new(
        engine: Arc<Engine>,
        peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        Self { engine, peer: Arc::new(peer) }
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Limited { inner, layer: self.clone() }
    }
}

/// A service behind the limits.
#[derive(Clone)]
pub struct Limited<S> {
    inner: S,
    layer: LimitLayer,
}

/// What of a request the decision needs, kept while the request itself goes on.
struct Asked {
    client: IpAddr,
    method: String,
    target: String,
    api_key: Option<String>,
    caller: Caller,
    headers: Vec<(String, String)>,
}

impl Asked {
    fn read<B>(layer: &LimitLayer, request: &HttpRequest<B>) -> Option<Self> {
        let peer = (layer.peer)(request.extensions())?;
        let fields = request.headers();
        let read = |name: &str| joined(fields, name).map(|value| value.into_owned());
        let (client, trusted, api_key, mut caller) = layer.engine.with_identity_rules(|rules| {
            let peer = rules.source.canonical(peer);
            let trusted = rules.trusted_proxies.iter().any(|proxy| proxy.contains(&peer));
            let hops = match joined(fields, "x-forwarded-for").filter(|_| trusted) {
                Some(list) => format!("{list}, {peer}"),
                None => peer.to_string(),
            };
            let client = client_of(&hops, &rules.trusted_proxies, &rules.source).unwrap_or(peer);
            let named = |name: &Option<String>| name.as_ref().filter(|_| trusted).and_then(|name| read(name));
            let caller =
                Caller { account: named(&rules.account), user: named(&rules.user), plan: named(&rules.plan) };
            let api_key = rules.api_key.as_ref().and_then(|rule| read(&rule.header));
            (client, trusted, api_key, caller)
        });
        if let Some(known) = request.extensions().get::<Caller>() {
            caller = known.clone();
        }
        let target =
            request.uri().path_and_query().map_or_else(|| request.uri().to_string(), ToString::to_string);
        Some(Self {
            client,
            method: request.method().as_str().to_owned(),
            target,
            api_key,
            caller,
            headers: if trusted { all_headers(fields) } else { Vec::new() },
        })
    }

    fn request(&self) -> Request<'_> {
        Request {
            method: Some(&self.method),
            target: Some(&self.target),
            api_key: self.api_key.as_deref(),
            account: self.caller.account.as_deref(),
            user: self.caller.user.as_deref(),
            plan: self.caller.plan.as_deref(),
            headers: self.headers.clone(),
            can_wait: true,
            ..Request::from(self.client)
        }
    }
}

fn all_headers(fields: &HeaderMap) -> Vec<(String, String)> {
    let names = fields.keys().map(|name| name.as_str());
    names.filter_map(|name| Some((name.to_owned(), joined(fields, name)?.into_owned()))).collect()
}

impl<S, Sent, Got> Service<HttpRequest<Sent>> for Limited<S>
where
    S: Service<HttpRequest<Sent>, Response = Response<Got>> + Clone + Send + 'static,
    S::Future: Send,
    Sent: Send + 'static,
    Got: From<String> + Send,
{
    type Response = Response<Got>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: HttpRequest<Sent>) -> Self::Future {
        // The one that was polled ready is the one to call.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        let arrived = Instant::now();
        Box::pin(async move {
            let Some(asked) = Asked::read(&layer, &request) else {
                return Ok(without_peer());
            };
            let outcome = layer.engine.decide(asked.request()).await;
            layer.engine.metrics().answered(Interface::Library, arrived.elapsed());
            if !outcome.allowed {
                return Ok(refusal(&outcome));
            }
            if !outcome.delay.is_zero() {
                tokio::time::sleep(outcome.delay).await;
            }
            let mut response = inner.call(request).await?;
            if outcome.refundable && response.status().as_u16() < 400 {
                // Without an answer the charge stays, which errs on the side of the limit.
                let _ = layer.engine.report(asked.request(), Report::Success).await;
            }
            headers::put(&outcome, &mut headers::draw, response.headers_mut());
            Ok(response)
        })
    }
}

fn refusal<Got: From<String>>(outcome: &Outcome) -> Response<Got> {
    let status = StatusCode::TOO_MANY_REQUESTS;
    let mut response = Response::new(Got::from(headers::problem(outcome, status.as_u16())));
    *response.status_mut() = status;
    headers::put(outcome, &mut headers::draw, response.headers_mut());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    response
}

fn without_peer<Got: From<String>>() -> Response<Got> {
    let mut response = Response::new(Got::from("the limiter was not told who the peer is\n".to_owned()));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}
