//! Plans and revocations through the request tier, on a host with the embedded store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::time::{Duration, Instant};

use limiter_tests::stores::redis_server::SECRET;
use limiter_tests::tier::{POLICY, Served};
use limiter_user::requests::key::{Part, Secret};
use limiter_user::requests::store::PlanRecord;

/// Changes are promised within five seconds; a loaded machine gets more.
const PATIENCE: Duration = Duration::from_secs(30);

fn until(served: &Served, holds: impl Fn(&limiter_tests::tier::Reply) -> bool) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let reply = served.check("198.51.100.7", "GET", "/v1/search/x", &[("x-api-key", "key-free")]);
        if holds(&reply) {
            return;
        }
        assert!(Instant::now() < give_up, "{reply:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_set_plan_and_a_revoked_key_hold_on_this_host() {
    let served = Served::embedded(POLICY);
    let engine = served.tier.engine();
    let key = Secret::new(SECRET).unwrap().hash(&[Part::new("api-key", b"key-free")]);
    until(&served, |reply| reply.header("ratelimit-limit") == "60");
    served.runtime.block_on(engine.set_plan(&key, Some(&PlanRecord::Plan("pro".into())))).unwrap();
    until(&served, |reply| reply.header("ratelimit-limit") == "6000");
    served.runtime.block_on(engine.set_plan(&key, Some(&PlanRecord::Revoked))).unwrap();
    until(&served, |reply| reply.status == 429 && reply.header("limiter-reason") == "denied");
    served.runtime.block_on(engine.set_plan(&key, None)).unwrap();
    until(&served, |reply| reply.status == 204);
}
