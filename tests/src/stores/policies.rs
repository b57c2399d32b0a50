//! A small policy of endpoints, as `[[endpoint]]` tables would make it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use limiter_user::policy::Place;
use limiter_user::requests::identity::{Element, Scope};
use limiter_user::requests::limit::{Algorithm, Limit, LimitSpec};
use limiter_user::requests::matching::Match;
use limiter_user::requests::policy::{Cost, Endpoint, EndpointLimit, RequestPolicy, Tag};

type Numbers = (Algorithm, u32, Duration, Option<u32>);

/// One limit of an endpoint, counted by `scope`, with other numbers for some plans.
pub fn endpoint_limit(
    endpoint: &str,
    scope: &str,
    default: Numbers,
    plans: &[(&str, Numbers)],
    observe: bool,
) -> EndpointLimit {
    let make = |(algorithm, count, window, burst): Numbers| {
        let name = format!("{endpoint}-{}", algorithm.name());
        let spec =
            LimitSpec { place: endpoint, name: &name, scope, algorithm, count, window, burst, observe };
        Arc::new(Limit::new(&spec).expect("the numbers of a test are valid"))
    };
    let by_plan: BTreeMap<Arc<str>, Arc<Limit>> =
        plans.iter().map(|(plan, numbers)| (Arc::from(*plan), make(*numbers))).collect();
    let elements = scope.split('+').map(|text| Element::parse(text.trim()).expect("a scope"));
    EndpointLimit { scope: Scope(elements.collect()), default: make(default), by_plan, observe }
}

pub fn endpoint(name: &str, tag: Tag, limits: Vec<EndpointLimit>) -> Endpoint {
    Endpoint {
        name: Arc::from(name),
        place: Place::whole("test.toml"),
        matches: Match::default(),
        limits,
        cost: Cost::default(),
        charge_failures_only: false,
        observe: false,
        on_store_failure: None,
        tag,
    }
}

/// Every algorithm, alone and together, two plans, a limit that only observes.
pub fn every_kind() -> RequestPolicy {
    const SECOND: Duration = Duration::from_secs(1);
    let by = |scopes: &[&str]| {
        Tag::Common(scopes.iter().map(|scope| Element::parse(scope).expect("a scope")).collect())
    };
    let mut endpoints = vec![
        endpoint(
            "login",
            Tag::Group("login".into()),
            vec![
                endpoint_limit(
                    "login",
                    "source",
                    (Algorithm::TokenBucket, 20, SECOND * 60, Some(7)),
                    &[],
                    false,
                ),
                endpoint_limit(
                    "login",
                    "account",
                    (Algorithm::SlidingWindowLog, 5, SECOND * 900, None),
                    &[],
                    false,
                ),
                endpoint_limit(
                    "login",
                    "endpoint",
                    (Algorithm::SlidingWindow, 60, SECOND * 60, None),
                    &[],
                    true,
                ),
            ],
        ),
        endpoint(
            "search",
            by(&["account"]),
            vec![
                endpoint_limit(
                    "search",
                    "account",
                    (Algorithm::SlidingWindow, 30, SECOND * 60, None),
                    &[
                        ("pro", (Algorithm::SlidingWindow, 300, SECOND * 60, None)),
                        ("day", (Algorithm::SlidingWindow, 300, SECOND * 3600, None)),
                        ("closed", (Algorithm::SlidingWindow, 0, SECOND * 60, None)),
                    ],
                    false,
                ),
                endpoint_limit(
                    "search",
                    "account + source",
                    (Algorithm::LeakyBucket, 10, SECOND, Some(4)),
                    &[],
                    false,
                ),
            ],
        ),
    ];
    for algorithm in Algorithm::ALL {
        let burst = algorithm.is_bucket().then_some(6);
        let limit =
            endpoint_limit(algorithm.name(), "account", (algorithm, 9, SECOND * 10, burst), &[], false);
        endpoints.push(endpoint(algorithm.name(), by(&["account"]), vec![limit]));
    }
    RequestPolicy { endpoints, ..RequestPolicy::default() }
}
