//! Decisions of the whole engine over the embedded store, on a clock that tests turn.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::embedded::{Clock, EmbeddedStore};
use super::engine::{Engine, Parts};
use super::failure::Instances;
use super::headers::jittered_wait;
use super::key::Secret;
use super::metrics::RequestMetrics;
use super::outage::Outage;
use super::outcome::{Outcome, Reason, Via};
use super::policy_tests::{EXAMPLE, policy};
use super::question::{Report, Request};
use super::store::{Answer, Decision, Store, StoreError};

#[derive(Clone, Default)]
struct Turned(Arc<AtomicU64>);

impl Clock for Turned {
    fn micros(&self) -> u64 {
        1_000_000_000 + self.0.load(Ordering::Relaxed)
    }
}

/// A store that counts what it is asked and is away when told.
pub(super) struct Watched {
    inner: EmbeddedStore<Turned>,
    pub(super) asked: AtomicU64,
    away: Mutex<Option<StoreError>>,
}

#[async_trait]
impl Store for Watched {
    fn kind(&self) -> &'static str {
        "embedded"
    }

    async fn decide(&self, decision: &Decision) -> Result<Answer, StoreError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(error) = self.away.lock().unwrap().clone() {
            return Err(error);
        }
        self.inner.decide(decision).await
    }

    async fn reset(&self, decision: &Decision) -> Result<(), StoreError> {
        self.inner.reset(decision).await
    }
}

pub(super) struct Bench {
    pub(super) engine: Engine,
    pub(super) store: Arc<Watched>,
    clock: Turned,
    pub(super) instances: Arc<Instances>,
}

pub(super) fn bench(text: &str) -> Bench {
    let clock = Turned::default();
    let inner = EmbeddedStore::with_clock(100_000, clock.clone());
    let store = Arc::new(Watched { inner, asked: AtomicU64::new(0), away: Mutex::default() });
    let instances = Arc::new(Instances::new(None));
    let engine = Engine::new(Parts {
        store: Arc::<Watched>::clone(&store),
        plans: None,
        local: Arc::new(EmbeddedStore::with_clock(1000, clock.clone())),
        outage: Outage::with_clock(Box::new(clock.clone())),
        secret: Secret::new(b"0123456789abcdef").unwrap(),
        instances: Arc::clone(&instances),
        metrics: Arc::new(RequestMetrics::default()),
    });
    engine.apply(policy(text), "hash");
    Bench { engine, store, clock, instances }
}

impl Bench {
    pub(super) fn asked(&self) -> u64 {
        self.store.asked.load(Ordering::Relaxed)
    }

    pub(super) fn leave(&self, error: StoreError) {
        *self.store.away.lock().unwrap() = Some(error);
    }

    pub(super) fn come_back(&self) {
        *self.store.away.lock().unwrap() = None;
    }

    /// What is left to a caller of `search` without a key.
    pub(super) async fn left(&self) -> u32 {
        let explanation = self.engine.explain(search(address(1))).await.unwrap();
        explanation.outcome.limits[0].answer.unwrap().remaining
    }

    pub(super) fn pass(&self, time: Duration) {
        self.clock.0.fetch_add(u64::try_from(time.as_micros()).unwrap(), Ordering::Relaxed);
    }
}

pub(super) fn address(number: u32) -> IpAddr {
    IpAddr::V4((0xcb00_0000 + number).into()) // 203.0.0.0 and on
}

pub(super) fn login(client: IpAddr, account: &str) -> Request<'_> {
    Request {
        method: Some("POST"),
        target: Some("/v1/login"),
        account: Some(account),
        ..Request::from(client)
    }
}

pub(super) fn search(client: IpAddr) -> Request<'static> {
    Request { method: Some("GET"), target: Some("/v1/search/x?q=1"), ..Request::from(client) }
}

fn refusing(outcome: &Outcome) -> Vec<&str> {
    outcome.limits.iter().filter(|limit| limit.refuses()).map(|limit| limit.limit.name()).collect()
}

#[tokio::test]
async fn brute_force_on_one_account_from_many_addresses_is_caught() {
    let bench = bench(EXAMPLE);
    let mut admitted = 0;
    for attempt in 0..200 {
        let outcome = bench.engine.decide(login(address(attempt), "ada")).await;
        admitted += u32::from(outcome.allowed);
        if !outcome.allowed {
            assert_eq!(refusing(&outcome), ["account"]);
        }
    }
    assert_eq!(admitted, 5);
    // Another account is not locked by it.
    assert!(bench.engine.decide(login(address(1000), "bob")).await.allowed);
}

#[tokio::test]
async fn credential_stuffing_from_many_addresses_at_many_accounts_is_caught() {
    let bench = bench(EXAMPLE);
    let mut admitted = 0;
    // 500 addresses, four attempts each at accounts never seen before: within 20/m and 5/15m, all of them.
    for attempt in 0..2000 {
        let account = format!("account-{attempt}");
        let outcome = bench.engine.decide(login(address(attempt % 500), &account)).await;
        admitted += u32::from(outcome.allowed);
        if !outcome.allowed {
            assert_eq!(refusing(&outcome), ["endpoint"]);
        }
    }
    assert_eq!(admitted, 600);
}

#[tokio::test]
async fn a_refusal_by_one_limit_leaves_the_others_uncharged() {
    let bench = bench(EXAMPLE);
    let client = address(1);
    for _ in 0..5 {
        assert!(bench.engine.decide(login(client, "ada")).await.allowed);
    }
    for _ in 0..50 {
        assert!(!bench.engine.decide(login(client, "ada")).await.allowed);
    }
    // 20 a minute from one address: 5 are spent, not 55.
    let mut admitted = 0;
    for account in 0..30 {
        let account = format!("other-{account}");
        admitted += u32::from(bench.engine.decide(login(client, &account)).await.allowed);
    }
    assert_eq!(admitted, 15);
}

#[tokio::test]
async fn a_random_key_per_request_gets_no_fresh_limits() {
    let bench = bench(EXAMPLE);
    let mut admitted = 0;
    for attempt in 0..200 {
        let key = format!("random-{attempt}");
        let request = Request { api_key: Some(&key), ..search(address(1)) };
        admitted += u32::from(bench.engine.decide(request).await.allowed);
    }
    assert_eq!(admitted, 30, "the rate of a caller without a plan, by source");
}

#[tokio::test]
async fn plans_have_their_own_rates() {
    let bench = bench(EXAMPLE);
    for (key, expected) in [("key-free", 60), ("key-plain", 60), ("key-pro", 1000)] {
        // Each from a source of its own; pro meets the account's total of 1000/m first.
        let client = address(u32::try_from(key.len()).unwrap() * 1000);
        let mut admitted = 0;
        for _ in 0..1100 {
            let request = Request { api_key: Some(key), account: Some(key), ..search(client) };
            admitted += u32::from(bench.engine.decide(request).await.allowed);
        }
        assert_eq!(admitted, expected, "{key}");
    }
}

#[tokio::test]
async fn a_cost_is_charged_as_a_whole() {
    let bench = bench(EXAMPLE);
    let asked = |cost| Request { cost: Some(cost), ..search(address(1)) };
    let outcome = bench.engine.decide(asked("20")).await;
    assert_eq!(outcome.limits[0].answer.unwrap().remaining, 10);
    assert_eq!(bench.engine.decide(asked("11")).await.reason, Reason::Over);
    assert!(bench.engine.decide(asked("10")).await.allowed);
    // 50 is more than 30 a minute ever admits: nobody is asked.
    let before = bench.asked();
    let outcome = bench.engine.decide(asked("-7")).await;
    assert_eq!((outcome.reason, outcome.via), (Reason::Never, Via::Static));
    assert_eq!(jittered_wait(&outcome, &mut |_| 0), None);
    assert_eq!(bench.asked(), before);
}

#[tokio::test]
async fn a_hot_refused_key_asks_the_store_nothing() {
    let bench = bench(EXAMPLE);
    for _ in 0..5 {
        assert!(bench.engine.decide(login(address(1), "ada")).await.allowed);
    }
    let refused = bench.engine.decide(login(address(1), "ada")).await;
    assert_eq!((refused.allowed, refused.via), (false, Via::Store));
    let before = bench.asked();
    for _ in 0..1000 {
        let again = bench.engine.decide(login(address(1), "ada")).await;
        assert_eq!((again.allowed, again.via, again.reason), (false, Via::Cache, Reason::Over));
        assert!(again.retry_after().unwrap() <= refused.retry_after().unwrap());
    }
    assert_eq!(bench.asked(), before);
    // The same source under another account is another matter.
    assert!(bench.engine.decide(login(address(1), "bob")).await.allowed);
    // A new policy may admit more.
    bench.engine.apply(policy(&EXAMPLE.replace("5/15m", "6/15m")), "other");
    assert!(bench.engine.decide(login(address(1), "ada")).await.allowed);
}

#[tokio::test]
async fn spellings_of_a_path_are_one_endpoint() {
    let bench = bench(EXAMPLE);
    for target in ["//v1/login", "/v1/./login", "/v1/%6Cogin", "/x/../v1/login", "/v1/login?a=b"] {
        let request = Request { target: Some(target), ..login(address(1), "ada") };
        assert_eq!(bench.engine.decide(request).await.endpoint.as_deref(), Some("login"), "{target}");
    }
    for target in ["/v1/login%", "/V1/login", "/v1%2Flogin"] {
        let request = Request { target: Some(target), ..login(address(1), "ada") };
        assert_eq!(bench.engine.decide(request).await.reason, Reason::Unmatched, "{target}");
    }
}

#[tokio::test]
async fn a_denied_plan_is_refused_without_asking() {
    let bench = bench(EXAMPLE);
    let request = Request { plan: Some("deny"), ..search(address(1)) };
    let outcome = bench.engine.decide(request).await;
    assert_eq!((outcome.allowed, outcome.reason, outcome.via), (false, Reason::Denied, Via::Static));
    let strict = bench_with_unknown("deny");
    let outcome = strict.engine.decide(Request { api_key: Some("who"), ..search(address(1)) }).await;
    assert_eq!(outcome.reason, Reason::Denied);
    assert_eq!(strict.asked() + bench.asked(), 0);
    // At the default plan's rate, but by source.
    let lenient = bench_with_unknown("default-plan");
    let mut admitted = 0;
    for attempt in 0..100 {
        let key = format!("random-{attempt}");
        let request = Request { api_key: Some(&key), ..search(address(1)) };
        admitted += u32::from(lenient.engine.decide(request).await.allowed);
    }
    assert_eq!(admitted, 60);
}

fn bench_with_unknown(unknown: &str) -> Bench {
    bench(&EXAMPLE.replace("as-none", unknown))
}

#[tokio::test]
async fn a_rate_of_zero_refuses_without_asking() {
    let bench = bench(&EXAMPLE.replace("default = \"30/m\"", "default = \"0/m\""));
    let outcome = bench.engine.decide(search(address(1))).await;
    assert_eq!((outcome.allowed, outcome.reason, bench.asked()), (false, Reason::Never, 0));
    let keyed = bench.engine.decide(Request { api_key: Some("key-free"), ..search(address(1)) }).await;
    assert!(keyed.allowed);
}

#[tokio::test]
async fn what_is_observed_refuses_nobody() {
    let observed = "{ per = \"account | source\", algorithm = \"sliding-window-log\", rate = \"5/15m\", mode = \"observe\" }";
    let written = "{ per = \"account | source\", algorithm = \"sliding-window-log\", rate = \"5/15m\" }";
    let bench = bench(&EXAMPLE.replace(written, observed));
    for attempt in 0..20 {
        let outcome = bench.engine.decide(login(address(1), "ada")).await;
        assert!(outcome.allowed);
        assert_eq!(outcome.limits[1].would_refuse(), attempt >= 5, "{attempt}");
    }
    assert!(!bench.engine.decide(login(address(1), "ada")).await.allowed, "the source's limit still holds");
}

#[tokio::test]
async fn the_store_away_leaves_it_to_the_endpoint() {
    let allow = EXAMPLE.replace("on-store-failure = \"deny\"", "on-store-failure = \"allow\"");
    let (deny, allow) = (bench(EXAMPLE), bench(&allow));
    for bench in [&deny, &allow] {
        bench.leave(StoreError::Timeout(Duration::from_millis(5)));
        bench.instances.heard(3);
    }
    let outcome = deny.engine.decide(login(address(1), "ada")).await;
    assert_eq!((outcome.allowed, outcome.reason, outcome.via), (false, Reason::Store, Via::Failure));
    assert!((1..=5).contains(&jittered_wait(&outcome, &mut super::headers::draw).unwrap()));
    let outcome = allow.engine.decide(login(address(1), "ada")).await;
    assert_eq!((outcome.allowed, outcome.reason, outcome.via), (true, Reason::Store, Via::Failure));
    // `local`: a third of 30 a minute.
    let mut admitted = 0;
    for _ in 0..40 {
        let outcome = deny.engine.decide(search(address(1))).await;
        assert_eq!(outcome.via, Via::Local);
        admitted += u32::from(outcome.allowed);
    }
    assert_eq!(admitted, 10);
    // Back again, at once.
    deny.come_back();
    assert_eq!(deny.engine.decide(search(address(1))).await.via, Via::Store);
}

#[tokio::test]
async fn a_share_of_an_unknown_number_is_none() {
    let bench = bench(EXAMPLE);
    bench.leave(StoreError::Open);
    let outcome = bench.engine.decide(search(address(1))).await;
    assert_eq!((outcome.allowed, outcome.reason), (false, Reason::Store));
}

#[tokio::test]
async fn a_report_settles_what_was_charged() {
    let bench = bench(EXAMPLE);
    let asked = |cost| Request { cost: Some(cost), ..search(address(1)) };
    let left = async || {
        bench.engine.explain(search(address(1))).await.unwrap().outcome.limits[0].answer.unwrap().remaining
    };
    bench.engine.decide(asked("10")).await;
    assert_eq!(left().await, 20);
    bench.engine.report(asked("10"), Report::Cost(4)).await.unwrap();
    assert_eq!(left().await, 26);
    bench.engine.report(asked("4"), Report::Cost(9)).await.unwrap();
    assert_eq!(left().await, 21);
    // More than there is room for takes what there is and leaves no debt.
    bench.engine.report(asked("0"), Report::Cost(50)).await.unwrap();
    assert_eq!(left().await, 0);
}

#[tokio::test]
async fn only_failures_are_charged_in_the_end() {
    let text = EXAMPLE.replace("name = \"login\"", "name = \"login\"\ncharge = \"on-failure\"");
    let bench = bench(&text);
    for _ in 0..20 {
        let outcome = bench.engine.decide(login(address(1), "ada")).await;
        assert!(outcome.allowed && outcome.refundable);
        bench.engine.report(login(address(1), "ada"), Report::Success).await.unwrap();
    }
    for _ in 0..5 {
        assert!(bench.engine.decide(login(address(1), "ada")).await.allowed);
        bench.engine.report(login(address(1), "ada"), Report::Failure).await.unwrap();
    }
    assert!(!bench.engine.decide(login(address(1), "ada")).await.allowed);
    // A success that was under way gives its charge back and opens the door again at once.
    bench.engine.report(login(address(1), "ada"), Report::Success).await.unwrap();
    assert!(bench.engine.decide(login(address(1), "ada")).await.allowed);
}

#[tokio::test]
async fn an_explanation_charges_nothing_and_hides_keys() {
    let bench = bench(EXAMPLE);
    for _ in 0..50 {
        let request = Request { api_key: Some("key-pro"), ..search(address(1)) };
        let explanation = bench.engine.explain(request).await.unwrap();
        assert!(explanation.outcome.allowed);
        assert_eq!((explanation.plan.as_deref(), explanation.key), (Some("pro"), "known"));
        assert_eq!(explanation.path.as_deref(), Some("/v1/search/x"));
        assert_eq!(explanation.subjects[0].0, "api-key …");
        assert_eq!(explanation.outcome.limits[0].answer.unwrap().remaining, 6000);
    }
}

#[tokio::test]
async fn waiting_callers_queue_and_others_do_not() {
    let text = "version = 1\n[[endpoint]]\nname = \"q\"\nmatch = {}\nlimit = [ { per = \"source\", algorithm = \"leaky-bucket\", rate = \"10/s\", depth = 3 } ]\n";
    let bench = bench(text);
    let waiting = || Request { can_wait: true, ..Request::from(address(1)) };
    let mut delays = Vec::new();
    for _ in 0..3 {
        delays.push(bench.engine.decide(waiting()).await.delay);
    }
    assert_eq!(delays, [0, 100, 200].map(Duration::from_millis));
    bench.pass(Duration::from_millis(300));
    // The queue is empty: whoever cannot wait is admitted, and the next one is not.
    assert!(bench.engine.decide(Request::from(address(1))).await.allowed);
    let next = bench.engine.decide(Request::from(address(1))).await;
    assert_eq!((next.allowed, next.retry_after()), (false, Some(Duration::from_millis(100))));
    // That refusal says nothing of those who can wait: two more, then the queue is full.
    assert_eq!(bench.engine.decide(waiting()).await.delay, Duration::from_millis(100));
    assert_eq!(bench.engine.decide(waiting()).await.delay, Duration::from_millis(200));
    assert!(!bench.engine.decide(waiting()).await.allowed);
}

#[tokio::test]
async fn a_refusal_of_one_plan_is_none_of_another() {
    let bench = bench(EXAMPLE);
    let ask = |plan: Option<&'static str>| {
        let request = Request { plan, ..search(address(7)) };
        async { bench.engine.decide(request).await }
    };
    for _ in 0..30 {
        assert!(ask(None).await.allowed);
    }
    assert!(!ask(None).await.allowed);
    assert_eq!(ask(None).await.via, Via::Cache);
    // The same source, whose count is the same: 30 of 6000 are spent.
    let other = ask(Some("pro")).await;
    assert!(other.allowed);
    assert_eq!(other.limits[0].answer.unwrap().remaining, 6000 - 31);
    assert!(!ask(None).await.allowed);
}
