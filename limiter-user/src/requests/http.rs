//! The HTTP interface: `GET|POST /v1/check` and `POST /v1/report`, for proxies and applications.
//!
//! A proxy copies its client's headers into the question, so nothing a client could have written is read:
//! what counts comes from `Limiter-*` headers, which the recipes set all of, and from the key header, whose
//! value is checked against known keys. Without `Limiter-Client` the question is refused with 400, and so is
//! one that carries such a header twice. `?from=caddy` and `?from=traefik` read `X-Forwarded-*` instead,
//! which those proxies set, and no `Limiter-*` header.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request as HttpRequest, Response, StatusCode};
use http_body_util::Full;

use super::engine::Engine;
use super::headers::{self, PROBLEM_JSON};
use super::identity::{client_of, present};
use super::metrics::Interface;
use super::outcome::Outcome;
use super::question::{Report, Request};

type Answer = Response<Full<Bytes>>;

/// How a question is put, from its query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Style {
    /// The status of a refusal.
    refused: StatusCode,
    /// Names of another proxy's headers are read.
    forwarded: bool,
    /// The caller waits in a leaky bucket's queue.
    wait: bool,
}

impl Style {
    fn parse(query: Option<&str>) -> Result<Self, &'static str> {
        let mut style = Self { refused: StatusCode::TOO_MANY_REQUESTS, forwarded: false, wait: false };
        for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            match pair {
                "deny=403" => style.refused = StatusCode::FORBIDDEN,
                "deny=429" => style.refused = StatusCode::TOO_MANY_REQUESTS,
                "from=caddy" | "from=traefik" => style.forwarded = true,
                "wait=1" => style.wait = true,
                "wait=0" => style.wait = false,
                _ => return Err("the query may hold `deny=403`, `from=caddy`, `from=traefik` and `wait=1`"),
            }
        }
        Ok(style)
    }
}

/// A question that cannot be judged.
#[derive(Debug, PartialEq, Eq)]
struct Mistake(&'static str);

/// What a question says of the request it is about.
struct Question<'a> {
    client: IpAddr,
    api_key: Option<Cow<'a, str>>,
    fields: Fields<'a>,
}

/// The headers a question is made of, found in one pass. Empty ones are absent.
#[derive(Default)]
struct Fields<'a> {
    client: Option<Cow<'a, str>>,
    method: Option<&'a str>,
    uri: Option<Cow<'a, str>>,
    account: Option<&'a str>,
    user: Option<&'a str>,
    plan: Option<&'a str>,
    cost: Option<&'a str>,
    actual_cost: Option<&'a str>,
    result: Option<&'a str>,
    /// All others that begin with `limiter-`, for `header:limiter-…` scopes.
    own: Vec<(String, String)>,
}

impl<'a> Fields<'a> {
    /// The `Limiter-` headers. Each stands at most once.
    fn ours(headers: &'a HeaderMap) -> Result<Self, Mistake> {
        let mut fields = Self::default();
        // A bit for each of the fixed ones that was seen.
        let mut seen = 0_u32;
        for (name, value) in headers {
            let Some(rest) = name.as_str().strip_prefix("limiter-") else { continue };
            let (bit, place) = match rest {
                "client" => {
                    once(&mut seen, 0)?;
                    fields.client = plain(value)?.map(Cow::Borrowed);
                    continue;
                }
                "uri" => {
                    once(&mut seen, 1)?;
                    fields.uri = escaped(value);
                    continue;
                }
                "method" => (2, &mut fields.method),
                "account" => (3, &mut fields.account),
                "user" => (4, &mut fields.user),
                "plan" => (5, &mut fields.plan),
                "cost" => (6, &mut fields.cost),
                "actual-cost" => (7, &mut fields.actual_cost),
                "result" => (8, &mut fields.result),
                "peer" | "token" => continue,
                _ => {
                    if fields.own.iter().any(|(known, _)| known == name.as_str()) {
                        return Err(TWICE);
                    }
                    if let Some(value) = value.to_str().ok().and_then(present) {
                        fields.own.push((name.as_str().to_owned(), value.to_owned()));
                    }
                    continue;
                }
            };
            once(&mut seen, bit)?;
            *place = plain(value)?;
        }
        Ok(fields)
    }

    /// What Caddy and Traefik set: no account, user, plan or cost, which no proxy sets by itself.
    fn forwarded(headers: &'a HeaderMap) -> Result<Self, Mistake> {
        let single = |name| {
            let mut values = headers.get_all(name).iter();
            let first = values.next();
            if values.next().is_some() { Err(TWICE) } else { Ok(first) }
        };
        Ok(Self {
            client: joined(headers, "x-forwarded-for"),
            method: single("x-forwarded-method")?.map(plain).transpose()?.flatten(),
            uri: single("x-forwarded-uri")?.and_then(escaped),
            ..Self::default()
        })
    }
}

const TWICE: Mistake =
    Mistake("a header of the question stands twice: the proxy must replace it, not add to it");

fn once(seen: &mut u32, bit: u32) -> Result<(), Mistake> {
    let before = *seen;
    *seen |= 1 << bit;
    if before == *seen { Err(TWICE) } else { Ok(()) }
}

fn plain(value: &HeaderValue) -> Result<Option<&str>, Mistake> {
    value.to_str().map(present).map_err(|_| Mistake("a header of the question holds bytes outside ASCII"))
}

/// Bytes outside ASCII are kept escaped: a target may be sent with them.
fn escaped(value: &HeaderValue) -> Option<Cow<'_, str>> {
    if let Ok(text) = value.to_str() {
        return present(text).map(Cow::Borrowed);
    }
    let mut escaped = String::with_capacity(value.len() + 16);
    for &byte in value.as_bytes() {
        match byte {
            0..0x80 => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    Some(Cow::Owned(escaped))
}

impl<'a> Question<'a> {
    fn read(engine: &Engine, headers: &'a HeaderMap, style: Style) -> Result<Self, Mistake> {
        let fields = if style.forwarded { Fields::forwarded(headers)? } else { Fields::ours(headers)? };
        let list = fields.client.as_ref();
        let list = list.ok_or(Mistake("`Limiter-Client` is missing: the proxy names its client in it"))?;
        let (client, api_key) = engine.with_identity_rules(|rules| {
            let client = client_of(list, &rules.trusted_proxies, &rules.source);
            let key = rules.api_key.as_ref().and_then(|rule| joined(headers, &rule.header));
            (client, key)
        });
        let client = client.ok_or(Mistake("`Limiter-Client` holds no address"))?;
        Ok(Self { client, api_key, fields })
    }

    fn request(&self, style: Style) -> Request<'_> {
        let fields = &self.fields;
        Request {
            method: fields.method,
            target: fields.uri.as_deref(),
            api_key: self.api_key.as_deref(),
            account: fields.account,
            user: fields.user,
            plan: fields.plan,
            headers: fields.own.clone(),
            cost: fields.cost,
            can_wait: style.wait,
            ..Request::from(self.client)
        }
    }
}

/// Answers one question.
pub async fn answer<B>(engine: &Engine, mut question: HttpRequest<B>) -> Answer {
    let arrived = Instant::now();
    let answer = match (question.uri().path(), question.method()) {
        ("/v1/check", &Method::GET | &Method::POST | &Method::HEAD) => check(engine, &mut question).await,
        ("/v1/report", &Method::POST) => report(engine, &question).await,
        ("/v1/check" | "/v1/report", _) => {
            problem(StatusCode::METHOD_NOT_ALLOWED, "this method is not for this path")
        }
        _ => problem(StatusCode::NOT_FOUND, "there are `/v1/check` and `/v1/report`"),
    };
    engine.metrics().answered(Interface::Http, arrived.elapsed());
    answer
}

async fn check<B>(engine: &Engine, question: &mut HttpRequest<B>) -> Answer {
    let style = match Style::parse(question.uri().query()) {
        Ok(style) => style,
        Err(why) => return problem(StatusCode::BAD_REQUEST, why),
    };
    let outcome = match Question::read(engine, question.headers(), style) {
        Ok(read) => engine.decide(read.request(style)).await,
        Err(Mistake(why)) => return problem(StatusCode::BAD_REQUEST, why),
    };
    if style.wait && !outcome.delay.is_zero() {
        tokio::time::sleep(outcome.delay).await;
    }
    // The room of the question's headers serves the answer's.
    let mut fields = std::mem::take(question.headers_mut());
    fields.clear();
    rendered(&outcome, style.refused, fields)
}

/// The answer of a check: headers, and a body when refused. `fields` is empty.
fn rendered(outcome: &Outcome, refused: StatusCode, mut fields: HeaderMap) -> Answer {
    let (status, body) = if outcome.allowed {
        (StatusCode::NO_CONTENT, String::new())
    } else {
        (refused, headers::problem(outcome, refused.as_u16()))
    };
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    headers::put(outcome, &mut headers::draw, &mut fields);
    if !outcome.allowed {
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    }
    *answer.headers_mut() = fields;
    answer
}

async fn report<B>(engine: &Engine, question: &HttpRequest<B>) -> Answer {
    let style = match Style::parse(question.uri().query()) {
        Ok(style) if !style.forwarded => style,
        Ok(_) => return problem(StatusCode::BAD_REQUEST, "a report comes from the application: no `from`"),
        Err(why) => return problem(StatusCode::BAD_REQUEST, why),
    };
    let read = Question::read(engine, question.headers(), style);
    let read = read.and_then(|read| said(&read.fields).map(|said| (read, said)));
    let (read, said) = match read {
        Ok(read) => read,
        Err(Mistake(why)) => return problem(StatusCode::BAD_REQUEST, why),
    };
    match engine.report(read.request(style), said).await {
        Ok(()) => {
            let mut answer = Response::new(Full::default());
            *answer.status_mut() = StatusCode::NO_CONTENT;
            answer
        }
        Err(_) => {
            problem(StatusCode::SERVICE_UNAVAILABLE, "the store gave no answer: the charge stays as it was")
        }
    }
}

/// What a report says: `Limiter-Actual-Cost: N`, or `Limiter-Result: success|failure`.
fn said(fields: &Fields<'_>) -> Result<Report, Mistake> {
    match (fields.actual_cost, fields.result) {
        (Some(cost), None) => match cost.parse() {
            Ok(cost) if cost <= super::limit::MAX_COUNT => Ok(Report::Cost(cost)),
            _ => Err(Mistake("`Limiter-Actual-Cost` is a whole number")),
        },
        (None, Some("success")) => Ok(Report::Success),
        (None, Some("failure")) => Ok(Report::Failure),
        _ => Err(Mistake(
            "a report carries `Limiter-Actual-Cost: N` or `Limiter-Result: success` or `failure`",
        )),
    }
}

/// All values of a header as one list; bytes outside ASCII make it absent.
pub(super) fn joined<'a>(fields: &'a HeaderMap, name: &str) -> Option<Cow<'a, str>> {
    let mut values = fields.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    let mut all = Cow::Borrowed(first);
    for value in values {
        let all = all.to_mut();
        all.push_str(", ");
        all.push_str(value.to_str().ok()?);
    }
    present(&all).is_some().then_some(all)
}

fn problem(status: StatusCode, detail: &str) -> Answer {
    let title = status.canonical_reason().unwrap_or("");
    let body = serde_json::json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail
    });
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    answer
}

/// The answer to a caller that does not show the token.
pub fn refused_token() -> Answer {
    problem(StatusCode::UNAUTHORIZED, "`Limiter-Token` is missing or wrong")
}
