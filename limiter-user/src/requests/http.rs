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
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
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

/// The header names a question is read from.
struct Names {
    client: &'static str,
    method: &'static str,
    uri: &'static str,
    /// Account, user, plan, cost: no proxy sets these by itself.
    ours: bool,
}

const LIMITER: Names =
    Names { client: "limiter-client", method: "limiter-method", uri: "limiter-uri", ours: true };
const FORWARDED: Names =
    Names { client: "x-forwarded-for", method: "x-forwarded-method", uri: "x-forwarded-uri", ours: false };

/// A question that cannot be judged.
#[derive(Debug, PartialEq, Eq)]
struct Mistake(&'static str);

/// What a question says of the request it is about.
struct Question<'a> {
    client: IpAddr,
    method: Option<&'a str>,
    uri: Option<Cow<'a, str>>,
    api_key: Option<Cow<'a, str>>,
    account: Option<&'a str>,
    user: Option<&'a str>,
    plan: Option<&'a str>,
    cost: Option<&'a str>,
    headers: Vec<(String, String)>,
}

impl<'a> Question<'a> {
    fn read(engine: &Engine, headers: &'a HeaderMap, style: Style) -> Result<Self, Mistake> {
        let names = if style.forwarded { &FORWARDED } else { &LIMITER };
        let list = if style.forwarded {
            joined(headers, names.client)
        } else {
            single(headers, names.client)?.map(Cow::Borrowed)
        };
        let list = list.ok_or(Mistake("`Limiter-Client` is missing: the proxy names its client in it"))?;
        let ours = |name| if names.ours { single(headers, name) } else { Ok(None) };
        let (client, api_key) = engine.with_identity_rules(|rules| {
            let client = client_of(&list, &rules.trusted_proxies, &rules.source);
            let key = rules.api_key.as_ref().and_then(|rule| joined(headers, &rule.header));
            (client, key)
        });
        Ok(Self {
            client: client.ok_or(Mistake("`Limiter-Client` holds no address"))?,
            method: single(headers, names.method)?,
            uri: text(headers, names.uri)?,
            api_key,
            account: ours("limiter-account")?,
            user: ours("limiter-user")?,
            plan: ours("limiter-plan")?,
            cost: ours("limiter-cost")?,
            headers: if names.ours { own_headers(headers) } else { Vec::new() },
        })
    }

    fn request(&self, style: Style) -> Request<'_> {
        Request {
            method: self.method,
            target: self.uri.as_deref(),
            api_key: self.api_key.as_deref(),
            account: self.account,
            user: self.user,
            plan: self.plan,
            headers: self.headers.clone(),
            cost: self.cost,
            can_wait: style.wait,
            ..Request::from(self.client)
        }
    }
}

/// Answers one question.
pub async fn answer<B>(engine: &Engine, question: &HttpRequest<B>) -> Answer {
    let arrived = Instant::now();
    let answer = match (question.uri().path(), question.method()) {
        ("/v1/check", &Method::GET | &Method::POST | &Method::HEAD) => check(engine, question).await,
        ("/v1/report", &Method::POST) => report(engine, question).await,
        ("/v1/check" | "/v1/report", _) => {
            problem(StatusCode::METHOD_NOT_ALLOWED, "this method is not for this path")
        }
        _ => problem(StatusCode::NOT_FOUND, "there are `/v1/check` and `/v1/report`"),
    };
    engine.metrics().answered(Interface::Http, arrived.elapsed());
    answer
}

async fn check<B>(engine: &Engine, question: &HttpRequest<B>) -> Answer {
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
    rendered(&outcome, style.refused)
}

/// The answer of a check: headers, and a body when refused.
fn rendered(outcome: &Outcome, refused: StatusCode) -> Answer {
    let (status, body) = if outcome.allowed {
        (StatusCode::NO_CONTENT, String::new())
    } else {
        (refused, headers::problem(outcome, refused.as_u16()))
    };
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let fields = answer.headers_mut();
    put_headers(outcome, fields);
    if !outcome.allowed {
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    }
    answer
}

/// Adds the headers of an outcome, over what another layer may have said.
pub fn put_headers(outcome: &Outcome, fields: &mut HeaderMap) {
    for (name, value) in headers::headers(outcome, &mut headers::draw) {
        // Names are ours; values are numbers and names the policy's check allows in headers.
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::try_from(value))
        {
            fields.insert(name, value);
        }
    }
}

async fn report<B>(engine: &Engine, question: &HttpRequest<B>) -> Answer {
    let style = match Style::parse(question.uri().query()) {
        Ok(style) if !style.forwarded => style,
        Ok(_) => return problem(StatusCode::BAD_REQUEST, "a report comes from the application: no `from`"),
        Err(why) => return problem(StatusCode::BAD_REQUEST, why),
    };
    let fields = question.headers();
    let read = Question::read(engine, fields, style).and_then(|read| Ok((read, said(fields)?)));
    let (read, said) = match read {
        Ok(read) => read,
        Err(Mistake(why)) => return problem(StatusCode::BAD_REQUEST, why),
    };
    match engine.report(read.request(style), said).await {
        Ok(_) => {
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
fn said(fields: &HeaderMap) -> Result<Report, Mistake> {
    match (single(fields, "limiter-actual-cost")?, single(fields, "limiter-result")?) {
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

/// A header that stands at most once; empty is absent.
fn single<'a>(fields: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Mistake> {
    let mut values = fields.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Mistake("a `Limiter-` header stands twice: the proxy must replace it, not add to it"));
    }
    value.to_str().map(present).map_err(|_| Mistake("a `Limiter-` header holds bytes outside ASCII"))
}

/// Like [`single`], but bytes outside ASCII are kept escaped: a target may be sent with them.
fn text<'a>(fields: &'a HeaderMap, name: &str) -> Result<Option<Cow<'a, str>>, Mistake> {
    let Some(value) = fields.get(name).filter(|value| value.to_str().is_err()) else {
        return Ok(single(fields, name)?.map(Cow::Borrowed));
    };
    let mut escaped = String::with_capacity(value.len() + 16);
    for &byte in value.as_bytes() {
        match byte {
            0..0x80 => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(Some(Cow::Owned(escaped)))
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

/// `Limiter-*` headers beyond the fixed ones, for `header:limiter-…` scopes.
fn own_headers(fields: &HeaderMap) -> Vec<(String, String)> {
    const FIXED: [&str; 9] = [
        "limiter-client",
        "limiter-peer",
        "limiter-method",
        "limiter-uri",
        "limiter-cost",
        "limiter-account",
        "limiter-user",
        "limiter-plan",
        "limiter-token",
    ];
    let own = fields
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("limiter-") && !FIXED.contains(&name.as_str()));
    own.filter_map(|(name, value)| {
        let value = present(value.to_str().ok()?)?;
        Some((name.as_str().to_owned(), value.to_owned()))
    })
    .collect()
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
