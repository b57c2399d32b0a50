//! The request tier's part of `/metrics`.
//!
//! Counted once per request: admitted under `limit=""`, refused under the limit that refused (the one that
//! takes longest to have room), so the sum of `allow` and `refuse` is the requests decided. An observing
//! limit without room adds a `would-refuse` row. Counters live as long as the daemon and never go back,
//! whatever becomes of their endpoint. No label holds an address, a key or an account.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::outcome::{Outcome, Via};

/// Interfaces whose answering time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    Http = 0,
    Library = 1,
}

const INTERFACES: [&str; 2] = ["http", "library"];
const DECISIONS: [&str; 3] = ["allow", "refuse", "would-refuse"];

/// One counter per decision and way.
#[derive(Debug, Default)]
struct Row([[AtomicU64; Via::ALL.len()]; DECISIONS.len()]);

impl Row {
    fn add(&self, decision: usize, via: Via) {
        self.0[decision][via as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The counters of one endpoint, found once per policy.
#[derive(Debug)]
pub struct Decided {
    all: Arc<Row>,
    by_limit: Vec<Arc<Row>>,
}

impl Decided {
    pub fn count(&self, outcome: &Outcome) {
        for (limit, row) in outcome.limits.iter().zip(&self.by_limit) {
            if limit.would_refuse() && (limit.observing || outcome.allowed) {
                row.add(2, outcome.via);
            }
        }
        if outcome.allowed {
            self.all.add(0, outcome.via);
            return;
        }
        let wait = |i: &usize| outcome.limits[*i].answer.and_then(|answer| answer.retry_after);
        let refusing =
            (0..outcome.limits.len().min(self.by_limit.len())).filter(|i| outcome.limits[*i].refuses());
        let longest = refusing.max_by_key(|i| wait(i).unwrap_or(Duration::MAX));
        longest.map_or(&self.all, |i| &self.by_limit[i]).add(1, outcome.via);
    }
}

/// Upper bounds of the time histograms, in seconds; the last bucket is open.
const BOUNDS: [f64; 12] = [5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2];

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn encode(&self, metric: &mut MetricEncoder<'_>) -> fmt::Result {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        metric.encode_histogram::<[(&str, &str); 0]>(sum, count, &buckets, None)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    requests: Mutex<BTreeMap<(String, String), Arc<Row>>>,
    durations: [Histogram; INTERFACES.len()],
    store_latency: Histogram,
    store_errors: Mutex<BTreeMap<&'static str, u64>>,
    absent: Mutex<BTreeMap<String, u64>>,
    unmatched: Mutex<BTreeMap<String, u64>>,
    store_up: AtomicBool,
    conflict: AtomicBool,
    instances: AtomicU32,
}

impl RequestMetrics {
    /// The counters of an endpoint and its limits, the same ones whenever it is asked for.
    pub fn endpoint<'a>(&self, endpoint: &str, limits: impl Iterator<Item = &'a str>) -> Arc<Decided> {
        let mut rows = lock(&self.requests);
        let mut row =
            |limit: &str| Arc::clone(rows.entry((endpoint.to_owned(), limit.to_owned())).or_default());
        Arc::new(Decided { all: row(""), by_limit: limits.map(&mut row).collect() })
    }

    /// How long one answer took.
    pub fn answered(&self, interface: Interface, time: Duration) {
        self.durations[interface as usize].observe(time);
    }

    pub fn store_answered(&self, time: Duration) {
        self.store_latency.observe(time);
        self.store_up.store(true, Ordering::Relaxed);
    }

    /// `kind`: one of [`super::store::StoreError::kind`].
    pub fn store_failed(&self, kind: &'static str) {
        *lock(&self.store_errors).entry(kind).or_default() += 1;
        self.store_up.store(false, Ordering::Relaxed);
    }

    /// What the last question to the store or the last heartbeat met.
    pub fn set_store_up(&self, up: bool) {
        self.store_up.store(up, Ordering::Relaxed);
    }

    pub fn store_is_up(&self) -> bool {
        self.store_up.load(Ordering::Relaxed)
    }

    /// Another policy than ours is published in the store.
    pub fn set_conflict(&self, conflict: bool) {
        self.conflict.store(conflict, Ordering::Relaxed);
    }

    pub fn has_conflict(&self) -> bool {
        self.conflict.load(Ordering::Relaxed)
    }

    pub fn set_instances(&self, instances: u32) {
        self.instances.store(instances, Ordering::Relaxed);
    }

    pub fn identity_absent(&self, scope: &str) {
        add(&self.absent, scope);
    }

    pub fn unmatched(&self, domain: Option<&str>) {
        // A domain is the proxy's configuration; a bound keeps a wild one from filling the page.
        let mut known = lock(&self.unmatched);
        let domain = domain.unwrap_or("");
        let domain = if known.len() < 64 || known.contains_key(domain) { domain } else { "other" };
        match known.get_mut(domain) {
            Some(count) => *count += 1,
            None => {
                known.insert(domain.to_owned(), 1);
            }
        }
    }
}

fn add(counters: &Mutex<BTreeMap<String, u64>>, name: &str) {
    let mut counters = lock(counters);
    match counters.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            counters.insert(name.to_owned(), 1);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector for RequestMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.encode_requests(&mut encoder)?;
        let mut metric = encoder.encode_descriptor(
            "limiter_request_duration_seconds",
            "Time from a request's arrival to its answer",
            None,
            MetricType::Histogram,
        )?;
        for (name, histogram) in INTERFACES.iter().zip(&self.durations) {
            histogram.encode(&mut metric.encode_family(&[("interface", *name)])?)?;
        }
        let mut metric = encoder.encode_descriptor(
            "limiter_store_latency_seconds",
            "Time a decision took in the store",
            None,
            MetricType::Histogram,
        )?;
        self.store_latency.encode(&mut metric)?;
        let gauges = [
            ("limiter_store_up", "Whether the store answers", u64::from(self.store_is_up())),
            (
                "limiter_store_policy_conflict",
                "Whether the store holds another policy than this host",
                u64::from(self.has_conflict()),
            ),
            (
                "limiter_instances",
                "Instances that share the store",
                u64::from(self.instances.load(Ordering::Relaxed)),
            ),
        ];
        for (name, help, value) in gauges {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        let errors = lock(&self.store_errors);
        let rows = errors.iter().map(|(kind, count)| (*kind, *count));
        encode_family(
            &mut encoder,
            "limiter_store_errors",
            "Questions the store gave no answer to",
            "kind",
            rows,
        )?;
        let absent = lock(&self.absent);
        let rows = absent.iter().map(|(scope, count)| (scope.as_str(), *count));
        encode_family(
            &mut encoder,
            "limiter_identity_absent",
            "Requests that lacked a scope a limit is counted by",
            "scope",
            rows,
        )?;
        let unmatched = lock(&self.unmatched);
        let rows = unmatched.iter().map(|(domain, count)| (domain.as_str(), *count));
        encode_family(
            &mut encoder,
            "limiter_unmatched_requests",
            "Requests no endpoint matches: let through",
            "domain",
            rows,
        )
    }
}

impl RequestMetrics {
    fn encode_requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(
            "limiter_requests",
            "Requests decided; would-refuse rows count requests a second time",
            None,
            MetricType::Counter,
        )?;
        for ((endpoint, limit), row) in &*lock(&self.requests) {
            for (decision, ways) in DECISIONS.iter().zip(&row.0) {
                for (via, count) in Via::ALL.iter().zip(ways) {
                    let count = count.load(Ordering::Relaxed);
                    // Admissions and refusals by the store are there from the start, so that a rate over the
                    // first one has a value before it.
                    let expected = *via == Via::Store && (*decision == "allow") == limit.is_empty();
                    if count == 0 && !(expected && *decision != "would-refuse") {
                        continue;
                    }
                    let labels = [
                        ("endpoint", endpoint.as_str()),
                        ("limit", limit.as_str()),
                        ("decision", *decision),
                        ("via", via.text()),
                    ];
                    ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_family<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    rows: impl Iterator<Item = (&'a str, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (value, count) in rows {
        ConstCounter::new(count).encode(metric.encode_family(&[(label, value)])?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::limit::{Algorithm, Limit, LimitSpec};
    use crate::requests::outcome::{LimitOutcome, Reason};
    use crate::requests::store::LimitAnswer;

    fn limit(name: &str, observing: bool, allowed: bool, retry_s: u64) -> LimitOutcome {
        let limit = Limit::new(&LimitSpec {
            place: "login",
            name,
            scope: "source",
            algorithm: Algorithm::SlidingWindow,
            count: 5,
            window: Duration::from_secs(60),
            burst: None,
            observe: observing,
        });
        let answer = LimitAnswer {
            allowed,
            remaining: 0,
            retry_after: Some(Duration::from_secs(retry_s)),
            reset: Duration::ZERO,
            delay: Duration::ZERO,
        };
        LimitOutcome { limit: Arc::new(limit.unwrap()), observing, answer: Some(answer) }
    }

    #[test]
    fn a_request_is_counted_once_under_the_limit_that_refused_it() {
        let metrics = Arc::new(RequestMetrics::default());
        let decided = metrics.endpoint("login", ["source", "account"].into_iter());
        let mut outcome = Outcome {
            allowed: false,
            reason: Reason::Over,
            via: Via::Store,
            endpoint: Some("login".into()),
            limits: vec![limit("source", false, false, 3), limit("account", false, false, 9)],
            delay: Duration::ZERO,
            refundable: false,
        };
        decided.count(&outcome);
        outcome.limits = vec![limit("source", true, false, 3), limit("account", false, true, 0)];
        (outcome.allowed, outcome.reason) = (true, Reason::Within);
        decided.count(&outcome);
        // Another policy asks for the same endpoint and goes on counting.
        metrics.endpoint("login", ["source"].into_iter()).count(&outcome);
        metrics.store_answered(Duration::from_micros(40));
        metrics.unmatched(None);
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(metrics));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        let expected = [
            r#"limiter_requests_total{endpoint="login",limit="",decision="allow",via="store"} 2"#,
            r#"limiter_requests_total{endpoint="login",limit="account",decision="refuse",via="store"} 1"#,
            r#"limiter_requests_total{endpoint="login",limit="source",decision="refuse",via="store"} 0"#,
            r#"limiter_requests_total{endpoint="login",limit="source",decision="would-refuse",via="store"} 2"#,
            r#"limiter_store_latency_seconds_bucket{le="0.00005"} 1"#,
            r#"limiter_store_latency_seconds_bucket{le="+Inf"} 1"#,
            r#"limiter_unmatched_requests_total{domain=""} 1"#,
            "limiter_store_up 1",
        ];
        for line in expected {
            assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        }
    }
}
