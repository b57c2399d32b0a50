//! The answer's headers and body: what a caller needs to know to come back at the right time.
//!
//! Every answer whose limits are known carries `RateLimit-Limit`, `RateLimit-Remaining`,
//! `RateLimit-Reset` of the tightest limit, and the fields `RateLimit-Policy` and `RateLimit` of
//! draft-ietf-httpapi-ratelimit-headers-10. Times are whole seconds from now.
//!
//! A refusal's wait is the true one rounded up plus a random whole number of seconds from 0 to
//! ceil(clamp(20 % of the wait, 1 s, 30 s)), both ends possible, drawn anew for every answer. All times
//! of one refusal carry the same jittered value: callers who were refused together must not return
//! together, whichever header they read.

use std::fmt::Write;
use std::time::Duration;

use super::limit::Limit;
use super::outcome::{Outcome, Reason};

/// Name and value.
pub type Header = (&'static str, String);

/// Media type of a refusal's body (RFC 9457).
pub const PROBLEM_JSON: &str = "application/problem+json";

/// A refusal without a known wait, because the store is away, asks for 1 to 5 seconds.
const STORE_WAIT: (u64, u64) = (1, 5);

/// Draws a whole number from 0 to its argument, both possible.
pub type Draw<'a> = &'a mut dyn FnMut(u64) -> u64;

/// Draws from the thread's generator.
pub fn draw(most: u64) -> u64 {
    fastrand::u64(0..=most)
}

/// The largest jitter of a wait of so many seconds.
pub fn most_jitter(wait: u64) -> u64 {
    wait.div_ceil(5).clamp(1, 30)
}

/// The seconds a refused caller is told to wait; `None` when waiting does not help.
pub fn jittered_wait(outcome: &Outcome, draw: Draw<'_>) -> Option<u64> {
    if outcome.allowed {
        return None;
    }
    if outcome.reason == Reason::Store {
        return Some(STORE_WAIT.0 + draw(STORE_WAIT.1 - STORE_WAIT.0));
    }
    let wait = whole_seconds(outcome.retry_after()?).max(1);
    Some(wait + draw(most_jitter(wait)))
}

/// The headers of one answer.
pub fn headers(outcome: &Outcome, draw: Draw<'_>) -> Vec<Header> {
    let mut headers = Vec::with_capacity(10);
    let wait = jittered_wait(outcome, draw);
    rate_limit_headers(outcome, wait, &mut headers);
    if let Some(endpoint) = &outcome.endpoint {
        headers.push(("Limiter-Endpoint", endpoint.to_string()));
    }
    headers.push(("Limiter-Reason", outcome.reason.text().to_owned()));
    if !outcome.allowed {
        headers.push(("Limiter-Limited", "1".to_owned()));
        headers.push(("Cache-Control", "no-store".to_owned()));
        if let Some(wait) = wait {
            headers.push(("Retry-After", wait.to_string()));
        }
    }
    headers
}

fn rate_limit_headers(outcome: &Outcome, wait: Option<u64>, headers: &mut Vec<Header>) {
    let mut policy = String::new();
    for limit in outcome.limits.iter().filter(|limit| !limit.observing) {
        if !policy.is_empty() {
            policy.push_str(", ");
        }
        let limit = &limit.limit;
        // Writing to a string cannot fail.
        let _ = write!(policy, "\"{}\";q={};w={}", limit.name(), limit.capacity(), window_seconds(limit));
    }
    if policy.is_empty() {
        return;
    }
    headers.push(("RateLimit-Policy", policy));
    let Some((limit, answer)) = outcome.tightest() else { return };
    let reset = wait.unwrap_or_else(|| whole_seconds(answer.reset));
    headers.push(("RateLimit", format!("\"{}\";r={};t={reset}", limit.name(), answer.remaining)));
    headers.push(("RateLimit-Limit", limit.capacity().to_string()));
    headers.push(("RateLimit-Remaining", answer.remaining.to_string()));
    headers.push(("RateLimit-Reset", reset.to_string()));
}

/// The body of a refusal.
pub fn problem(outcome: &Outcome, status: u16) -> String {
    let over: Vec<&str> =
        outcome.limits.iter().filter(|limit| limit.refuses()).map(|limit| limit.limit.name()).collect();
    let (kind, title, detail) = match outcome.reason {
        Reason::Denied => ("about:blank", "Access denied", "this caller's plan admits no requests"),
        Reason::Store => (
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Request cannot be judged now",
            "the limits of this endpoint cannot be read; try again shortly",
        ),
        Reason::Never => (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
            "this request costs more than its limit ever admits",
        ),
        _ => (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
            "too many requests; `Retry-After` says when there is room",
        ),
    };
    let mut body = serde_json::json!({ "type": kind, "title": title, "status": status, "detail": detail });
    if !over.is_empty() {
        body["violated-policies"] = over.into();
    }
    body.to_string()
}

/// The window that goes with the capacity: what a bucket's burst takes to refill, or the window itself.
fn window_seconds(limit: &Limit) -> u64 {
    let micros = limit.window().as_micros();
    let micros = if limit.algorithm().is_bucket() && limit.count() > 0 {
        (micros * u128::from(limit.burst())).div_ceil(u128::from(limit.count()))
    } else {
        micros
    };
    u64::try_from(micros.div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::super::limit::{Algorithm, LimitSpec};
    use super::super::outcome::{LimitOutcome, Via};
    use super::super::store::LimitAnswer;
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn limit(name: &str, algorithm: Algorithm, count: u32, window_s: u64, burst: Option<u32>) -> Arc<Limit> {
        let window = Duration::from_secs(window_s);
        let spec = LimitSpec {
            place: "login",
            name,
            scope: "source",
            algorithm,
            count,
            window,
            burst,
            observe: false,
        };
        Arc::new(Limit::new(&spec).unwrap())
    }

    fn answer(allowed: bool, remaining: u32, retry_ms: Option<u64>, reset_ms: u64) -> Option<LimitAnswer> {
        Some(LimitAnswer {
            allowed,
            remaining,
            retry_after: retry_ms.map(Duration::from_millis),
            reset: Duration::from_millis(reset_ms),
            delay: Duration::ZERO,
        })
    }

    fn outcome(
        allowed: bool,
        reason: Reason,
        limits: Vec<(Arc<Limit>, bool, Option<LimitAnswer>)>,
    ) -> Outcome {
        let limits = limits
            .into_iter()
            .map(|(limit, observing, answer)| LimitOutcome { limit, observing, answer })
            .collect();
        let endpoint = Some("login".into());
        Outcome {
            allowed,
            reason,
            via: Via::Store,
            endpoint,
            limits,
            delay: Duration::ZERO,
            refundable: false,
        }
    }

    fn shown(outcome: &Outcome, drawn: u64) -> String {
        let headers = headers(outcome, &mut |_| drawn);
        headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
    }

    fn login() -> (Arc<Limit>, Arc<Limit>) {
        let source = limit("source", Algorithm::TokenBucket, 20, 60, Some(20));
        (source, limit("account", Algorithm::SlidingWindowLog, 5, 900, None))
    }

    #[test]
    fn an_admitted_request_sees_its_tightest_limit() {
        // 19 of 20 left is looser than 4 of 5: 19 × 5 > 4 × 20.
        let (source, account) = login();
        let limits = vec![
            (source, false, answer(true, 19, Some(0), 3000)),
            (account, false, answer(true, 4, Some(0), 900_000)),
        ];
        assert_eq!(
            shown(&outcome(true, Reason::Within, limits), 7),
            "RateLimit-Policy: \"source\";q=20;w=60, \"account\";q=5;w=900\n\
             RateLimit: \"account\";r=4;t=900\n\
             RateLimit-Limit: 5\nRateLimit-Remaining: 4\nRateLimit-Reset: 900\n\
             Limiter-Endpoint: login\nLimiter-Reason: within\n"
        );
    }

    #[test]
    fn a_refusal_carries_one_jittered_time_everywhere() {
        // The true wait is 61.001 s, so 62 s; at most ceil(12.4) = 13 s are added.
        let (source, account) = login();
        let limits = vec![
            (source, false, answer(true, 19, Some(0), 3000)),
            (account, false, answer(false, 0, Some(61_001), 900_000)),
        ];
        let refused = outcome(false, Reason::Over, limits);
        assert_eq!(
            shown(&refused, 13),
            "RateLimit-Policy: \"source\";q=20;w=60, \"account\";q=5;w=900\n\
             RateLimit: \"account\";r=0;t=75\n\
             RateLimit-Limit: 5\nRateLimit-Remaining: 0\nRateLimit-Reset: 75\n\
             Limiter-Endpoint: login\nLimiter-Reason: over\nLimiter-Limited: 1\n\
             Cache-Control: no-store\nRetry-After: 75\n"
        );
        let mut asked = Vec::new();
        headers(&refused, &mut |most| {
            asked.push(most);
            0
        });
        assert_eq!(asked, [13]);
    }

    #[test]
    fn the_jitter_has_both_ends_and_is_drawn_anew() {
        let limits = vec![(
            limit("a", Algorithm::FixedWindow, 5, 60, None),
            false,
            answer(false, 0, Some(2500), 2500),
        )];
        let refused = outcome(false, Reason::Over, limits);
        // 3 s and up to ceil(clamp(0.6, 1, 30)) = 1 s.
        let waits: BTreeSet<_> = (0..200).map(|_| jittered_wait(&refused, &mut draw)).collect();
        assert_eq!(waits, BTreeSet::from([Some(3), Some(4)]));
    }

    #[test]
    fn jitter_is_a_fifth_between_one_and_thirty_seconds() {
        for (wait, most) in [(1, 1), (5, 1), (6, 2), (62, 13), (149, 30), (150, 30), (86_400, 30)] {
            assert_eq!(most_jitter(wait), most, "{wait}");
        }
    }

    #[test]
    fn of_two_refusals_the_longer_one_counts() {
        let (source, account) = login();
        let limits = vec![
            (source.clone(), false, answer(false, 0, Some(2000), 60_000)),
            (account.clone(), false, answer(false, 0, Some(400_000), 900_000)),
        ];
        let refused = outcome(false, Reason::Over, limits);
        assert!(shown(&refused, 0).contains("Retry-After: 400\n"));
        // One that never has room leaves no time to name.
        let limits = vec![
            (source, false, answer(false, 20, None, 60_000)),
            (account, false, answer(false, 0, Some(400_000), 900_000)),
        ];
        let refused = outcome(false, Reason::Never, limits);
        let text = shown(&refused, 0);
        assert!(!text.contains("Retry-After"), "{text}");
        assert!(text.contains("RateLimit: \"source\";r=20;t=60\n"), "{text}");
    }

    #[test]
    fn an_observing_limit_shows_nothing() {
        let (source, account) = login();
        let limits = vec![
            (source, false, answer(true, 3, Some(0), 3000)),
            (account, true, answer(false, 0, Some(400_000), 900_000)),
        ];
        let text = shown(&outcome(true, Reason::Within, limits), 0);
        assert!(
            text.starts_with("RateLimit-Policy: \"source\";q=20;w=60\nRateLimit: \"source\";r=3;t=3\n"),
            "{text}"
        );
        assert!(!text.contains("Limiter-Limited"));
    }

    #[test]
    fn a_store_that_is_away_asks_for_one_to_five_seconds() {
        let (source, _) = login();
        let refused = outcome(false, Reason::Store, vec![(source, false, None)]);
        let waits: BTreeSet<_> = (0..500).map(|_| jittered_wait(&refused, &mut draw)).collect();
        assert_eq!(waits, (1..=5).map(Some).collect());
        assert_eq!(
            shown(&refused, 2),
            "RateLimit-Policy: \"source\";q=20;w=60\nLimiter-Endpoint: login\nLimiter-Reason: store\n\
             Limiter-Limited: 1\nCache-Control: no-store\nRetry-After: 3\n"
        );
    }

    #[test]
    fn a_bucket_names_the_time_its_burst_takes_to_refill() {
        // 100 at 10/s refill in 10 s; 7 at 20 a minute in 21 s.
        assert_eq!(window_seconds(&limit("a", Algorithm::TokenBucket, 10, 1, Some(100))), 10);
        assert_eq!(window_seconds(&limit("a", Algorithm::TokenBucket, 20, 60, Some(7))), 21);
        assert_eq!(window_seconds(&limit("a", Algorithm::SlidingWindow, 20, 60, None)), 60);
    }

    #[test]
    fn the_body_names_the_limits_that_refuse() {
        let (source, account) = login();
        let limits = vec![
            (source, false, answer(true, 3, Some(0), 0)),
            (account, false, answer(false, 0, Some(1), 1)),
        ];
        let body: serde_json::Value =
            serde_json::from_str(&problem(&outcome(false, Reason::Over, limits), 429)).unwrap();
        assert_eq!(body["status"], 429);
        assert_eq!(body["violated-policies"], serde_json::json!(["account"]));
        assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    }

    #[test]
    fn nothing_is_said_of_requests_no_endpoint_covers() {
        assert_eq!(headers(&Outcome::unmatched(), &mut |_| 0), [("Limiter-Reason", "unmatched".to_owned())]);
    }
}
