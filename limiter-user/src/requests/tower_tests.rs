//! The tower layer around a service of this process.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use tower::{Layer, Service};

use super::embedded::EmbeddedStore;
use super::engine::{Engine, Parts};
use super::failure::Instances;
use super::key::Secret;
use super::metrics::RequestMetrics;
use super::outage::Outage;
use super::policy_tests::{EXAMPLE, policy};
use super::tower::{Caller, LimitLayer};

#[derive(Clone)]
struct Peer(IpAddr);

/// Answers with the status its request's header `answer` names, 200 without one.
#[derive(Clone)]
struct Echo;

impl Service<Request<()>> for Echo {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let status = request.headers().get("answer").map_or("200", |status| status.to_str().unwrap());
        let mut response = Response::new("through".to_owned());
        *response.status_mut() = StatusCode::from_bytes(status.as_bytes()).unwrap();
        std::future::ready(Ok(response))
    }
}

fn engine(text: &str) -> Arc<Engine> {
    let engine = Engine::new(Parts {
        outage: Outage::default(),
        store: Arc::new(EmbeddedStore::new(1000)),
        plans: None,
        local: Arc::new(EmbeddedStore::new(1000)),
        secret: Secret::new(b"0123456789abcdef").unwrap(),
        instances: Arc::new(Instances::new(None)),
        metrics: Arc::new(RequestMetrics::default()),
    });
    engine.apply(policy(text), "hash");
    Arc::new(engine)
}

async fn send(engine: &Arc<Engine>, request: Request<()>) -> Response<String> {
    let layer = LimitLayer::new(Arc::clone(engine), |extensions| extensions.get::<Peer>().map(|peer| peer.0));
    layer.layer(Echo).call(request).await.unwrap()
}

fn from(peer: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().method(method).uri(path).extension(Peer(peer.parse().unwrap()));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

fn search(peer: &str, headers: &[(&str, &str)]) -> Request<()> {
    from(peer, "GET", "/v1/search/x?q", headers)
}

#[tokio::test]
async fn admitted_requests_go_through_with_headers_and_refused_ones_do_not() {
    let engine = engine(EXAMPLE);
    for left in (0..30).rev() {
        let response = send(&engine, search("203.0.113.9", &[])).await;
        assert_eq!(response.headers()["ratelimit-remaining"], left.to_string());
        assert_eq!(response.into_body(), "through");
    }
    let refused = send(&engine, search("203.0.113.9", &[])).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert!(refused.headers().contains_key("retry-after"));
    assert!(refused.body().contains("quota-exceeded"));
}

#[tokio::test]
async fn what_a_client_writes_itself_is_not_believed() {
    let engine = engine(EXAMPLE);
    let mut admitted = 0;
    for attempt in 0..60 {
        let value = format!("198.51.100.{attempt}");
        let forged = [
            ("x-forwarded-for", value.as_str()),
            ("x-account", &value),
            ("x-user", &value),
            ("x-plan", "pro"),
            ("limiter-cost", "0"),
        ];
        admitted += u32::from(send(&engine, search("203.0.113.9", &forged)).await.status() == 200);
    }
    assert_eq!(admitted, 30);
}

#[tokio::test]
async fn a_trusted_proxy_is_believed_and_walked_past() {
    let engine = engine(EXAMPLE);
    let mut admitted = 0;
    for attempt in 0..60 {
        let list = format!("198.51.100.{attempt}, 203.0.113.9");
        admitted +=
            u32::from(send(&engine, search("10.0.0.1", &[("x-forwarded-for", &list)])).await.status() == 200);
    }
    assert_eq!(admitted, 30);
    let headers = [("x-forwarded-for", "203.0.113.10"), ("x-plan", "pro"), ("limiter-cost", "20")];
    let response = send(&engine, search("10.0.0.1", &headers)).await;
    assert_eq!(
        response.headers()["ratelimit-policy"],
        "\"api-key\";q=6000;w=60, \"account-total\";q=1000;w=60"
    );
    assert_eq!(response.headers()["ratelimit-remaining"], "980");
}

#[tokio::test]
async fn a_service_says_who_its_caller_is_and_failures_alone_stay_charged() {
    let text = EXAMPLE.replace("name = \"login\"", "name = \"login\"\ncharge = \"on-failure\"");
    let engine = engine(&text);
    let login = |number: u8, answer: &'static str| {
        let peer = format!("203.0.113.{number}");
        let mut request = from(&peer, "POST", "/v1/login", &[("answer", answer)]);
        request.extensions_mut().insert(Caller { account: Some("ada".to_owned()), ..Caller::default() });
        request
    };
    for number in 0..20 {
        assert_eq!(send(&engine, login(number, "200")).await.status(), 200);
    }
    let mut statuses = Vec::new();
    for number in 20..27 {
        statuses.push(send(&engine, login(number, "401")).await.status().as_u16());
    }
    assert_eq!(statuses, [401, 401, 401, 401, 401, 429, 429]);
}

#[tokio::test]
async fn without_a_peer_nobody_is_let_through() {
    let request = Request::builder().uri("/v1/search/x").body(()).unwrap();
    assert_eq!(send(&engine(EXAMPLE), request).await.status(), 500);
}

#[tokio::test]
async fn a_queue_lets_callers_wait_for_their_turn() {
    let text = "version = 1\n[[endpoint]]\nname = \"q\"\nmatch = {}\non-store-failure = \"deny\"\nlimit = [ { per = \"source\", algorithm = \"leaky-bucket\", rate = \"5/s\", depth = 3 } ]\n";
    let engine = engine(text);
    let ask = || send(&engine, from("203.0.113.9", "GET", "/", &[]));
    let start = std::time::Instant::now();
    let (first, second, third) = tokio::join!(ask(), ask(), ask());
    assert_eq!([first.status(), second.status(), third.status()], [StatusCode::OK; 3]);
    // Three turns at 5/s: the last one comes two fifths of a second after the first.
    assert!(start.elapsed() >= std::time::Duration::from_millis(400), "{:?}", start.elapsed());
}
