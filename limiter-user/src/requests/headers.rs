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

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::outcome::{Outcome, Reason};

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

/// Adds the headers of one answer, over what another layer may have said.
pub fn put(outcome: &Outcome, draw: Draw<'_>, fields: &mut HeaderMap) {
    let wait = jittered_wait(outcome, draw);
    put_rate_limits(outcome, wait, fields);
    // An endpoint's name is of letters, digits, `-`, `_` and `.`.
    if let Some(name) = outcome.endpoint.as_ref().and_then(|name| HeaderValue::from_str(name).ok()) {
        fields.insert(ENDPOINT, name);
    }
    fields.insert(REASON, HeaderValue::from_static(outcome.reason.text()));
    if !outcome.allowed {
        fields.insert(LIMITED, HeaderValue::from_static("1"));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = wait {
            fields.insert(RETRY_AFTER, wait.into());
        }
    }
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const TIGHTEST: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const ENDPOINT: HeaderName = HeaderName::from_static("limiter-endpoint");
const REASON: HeaderName = HeaderName::from_static("limiter-reason");
const LIMITED: HeaderName = HeaderName::from_static("limiter-limited");

fn put_rate_limits(outcome: &Outcome, wait: Option<u64>, fields: &mut HeaderMap) {
    let mut items =
        outcome.limits.iter().filter(|limit| !limit.observing).map(|limit| limit.limit.policy_item());
    let Some(first) = items.next() else { return };
    let mut policy = first.clone();
    if let Some(second) = items.next() {
        let items = [first, second].into_iter().chain(items);
        let joined: Vec<&[u8]> = items.map(HeaderValue::as_bytes).collect();
        // Joined header values are one.
        policy = HeaderValue::try_from(joined.join(&b", "[..])).unwrap_or(policy);
    }
    fields.insert(POLICY, policy);
    let Some((limit, answer)) = outcome.tightest() else { return };
    let reset = wait.unwrap_or_else(|| whole_seconds(answer.reset));
    fields.insert(LIMIT, limit.capacity_text().clone());
    // Both numbers stand in the one text already.
    let mut text = String::with_capacity(limit.name().len() + 40);
    let _ = write!(text, "\"{}\";r={}", limit.name(), answer.remaining);
    let remaining = limit.name().len() + 5..text.len();
    let _ = write!(text, ";t={reset}");
    let reset = remaining.end + 3..text.len();
    let text = Bytes::from(text);
    for (name, part) in [(REMAINING, remaining), (RESET, reset), (TIGHTEST, 0..text.len())] {
        if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(part)) {
            fields.insert(name, value);
        }
    }
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
    // Nothing in it needs to be escaped: limits have names like endpoints.
    let mut body = String::with_capacity(320);
    let head = format_args!(r#"{{"type":"{kind}","title":"{title}","status":{status},"detail":"{detail}""#);
    // Writing to a string cannot fail.
    let _ = body.write_fmt(head);
    if !over.is_empty() {
        let _ = write!(body, r#","violated-policies":["{}"]"#, over.join(r#"",""#));
    }
    body.push('}');
    body
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::super::limit::{Algorithm, Limit, LimitSpec};
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
        let mut fields = HeaderMap::new();
        put(outcome, &mut |_| drawn, &mut fields);
        fields.iter().map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap())).collect()
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
            "ratelimit-policy: \"source\";q=20;w=60, \"account\";q=5;w=900\n\
             ratelimit-limit: 5\nratelimit-remaining: 4\nratelimit-reset: 900\nratelimit: \"account\";r=4;t=900\n\
             limiter-endpoint: login\nlimiter-reason: within\n"
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
            "ratelimit-policy: \"source\";q=20;w=60, \"account\";q=5;w=900\n\
             ratelimit-limit: 5\nratelimit-remaining: 0\nratelimit-reset: 75\nratelimit: \"account\";r=0;t=75\n\
             limiter-endpoint: login\nlimiter-reason: over\nlimiter-limited: 1\n\
             cache-control: no-store\nretry-after: 75\n"
        );
        let mut asked = Vec::new();
        let mut draw = |most| {
            asked.push(most);
            0
        };
        put(&refused, &mut draw, &mut HeaderMap::new());
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
        assert!(shown(&refused, 0).contains("retry-after: 400\n"));
        // One that never has room leaves no time to name.
        let limits = vec![
            (source, false, answer(false, 20, None, 60_000)),
            (account, false, answer(false, 0, Some(400_000), 900_000)),
        ];
        let refused = outcome(false, Reason::Never, limits);
        let text = shown(&refused, 0);
        assert!(!text.contains("retry-after"), "{text}");
        assert!(text.contains("ratelimit: \"source\";r=20;t=60\n"), "{text}");
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
            text.starts_with("ratelimit-policy: \"source\";q=20;w=60\n")
                && text.contains("ratelimit: \"source\";r=3;t=3\n"),
            "{text}"
        );
        assert!(!text.contains("limiter-limited"));
    }

    #[test]
    fn a_store_that_is_away_asks_for_one_to_five_seconds() {
        let (source, _) = login();
        let refused = outcome(false, Reason::Store, vec![(source, false, None)]);
        let waits: BTreeSet<_> = (0..500).map(|_| jittered_wait(&refused, &mut draw)).collect();
        assert_eq!(waits, (1..=5).map(Some).collect());
        assert_eq!(
            shown(&refused, 2),
            "ratelimit-policy: \"source\";q=20;w=60\nlimiter-endpoint: login\nlimiter-reason: store\n\
             limiter-limited: 1\ncache-control: no-store\nretry-after: 3\n"
        );
    }

    #[test]
    fn a_bucket_names_the_time_its_burst_takes_to_refill() {
        // 100 at 10/s refill in 10 s; 7 at 20 a minute in 21 s.
        assert_eq!(limit("a", Algorithm::TokenBucket, 10, 1, Some(100)).quota_seconds(), 10);
        assert_eq!(limit("a", Algorithm::TokenBucket, 20, 60, Some(7)).quota_seconds(), 21);
        assert_eq!(limit("a", Algorithm::SlidingWindow, 20, 60, None).quota_seconds(), 60);
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
        assert_eq!(shown(&Outcome::unmatched(), 0), "limiter-reason: unmatched\n");
    }
}
