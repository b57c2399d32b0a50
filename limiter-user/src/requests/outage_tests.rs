//! What becomes of charges that were made without the store, over the whole engine.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::engine_tests::{Bench, address, bench, login, search};
use super::outcome::Via;
use super::policy_tests::EXAMPLE;
use super::question::{Report, Request};
use super::store::StoreError;

const MINUTE: Duration = Duration::from_secs(60);

/// The example, whose login charges failures only and is decided by `on_store_failure` in an outage.
fn logins(on_store_failure: &str) -> Bench {
    let text = EXAMPLE
        .replace("name = \"login\"", "name = \"login\"\ncharge = \"on-failure\"")
        .replace("on-store-failure = \"deny\"", &format!("on-store-failure = \"{on_store_failure}\""));
    let bench = bench(&text);
    bench.instances.heard(1);
    bench
}

async fn log_in(bench: &Bench) -> bool {
    bench.engine.decide(login(address(1), "ada")).await.allowed
}

async fn succeed(bench: &Bench) {
    bench.engine.report(login(address(1), "ada"), Report::Success).await.unwrap();
}

/// Attempts at one account are 5 in 15 minutes: how many more there are.
async fn attempts_left(bench: &Bench) -> u32 {
    let explanation = bench.engine.explain(login(address(1), "ada")).await.unwrap();
    explanation.outcome.limits[1].answer.unwrap().remaining
}

#[tokio::test]
async fn what_was_admitted_in_an_outage_is_charged_when_the_store_is_back() {
    let bench = bench(EXAMPLE);
    bench.instances.heard(2);
    bench.leave(StoreError::Open);
    for expected in [true; 15].into_iter().chain([false; 5]) {
        // Half of 30 a minute.
        let outcome = bench.engine.decide(search(address(1))).await;
        assert_eq!((outcome.allowed, outcome.via), (expected, Via::Local));
    }
    bench.engine.pay_back().await.unwrap_err();
    bench.come_back();
    assert_eq!(bench.left().await, 30);
    // The source's own limit, and the total of all endpoints.
    assert_eq!(bench.engine.pay_back().await, Ok(2));
    assert_eq!(bench.left().await, 15);
    let before = bench.asked();
    assert_eq!(bench.engine.pay_back().await, Ok(0));
    assert_eq!((bench.asked(), bench.left().await), (before, 15), "paid once");
}

#[tokio::test]
async fn nothing_is_charged_that_the_limit_would_have_forgotten() {
    let bench = bench(EXAMPLE);
    bench.instances.heard(1);
    bench.leave(StoreError::Unreachable(String::new()));
    for _ in 0..30 {
        assert!(bench.engine.decide(search(address(1))).await.allowed);
    }
    bench.pass(MINUTE * 2);
    for _ in 0..10 {
        assert!(bench.engine.decide(search(address(1))).await.allowed);
    }
    bench.come_back();
    bench.engine.pay_back().await.unwrap();
    assert_eq!(bench.left().await, 20);
}

#[tokio::test]
async fn a_question_without_an_answer_is_not_charged_twice() {
    let bench = bench(EXAMPLE);
    bench.instances.heard(1);
    for error in [StoreError::Timeout(Duration::from_millis(5)), StoreError::Broken(String::new())] {
        bench.leave(error);
        for _ in 0..5 {
            assert!(bench.engine.decide(search(address(1))).await.allowed);
        }
        bench.come_back();
        assert_eq!(bench.engine.pay_back().await, Ok(0));
    }
    assert_eq!(bench.left().await, 30);
}

#[tokio::test]
async fn a_success_gives_back_no_charge_that_was_never_made() {
    for error in [StoreError::Open, StoreError::Timeout(Duration::from_millis(5))] {
        let bench = logins("allow");
        // Three failures were charged.
        for _ in 0..3 {
            assert!(log_in(&bench).await);
        }
        assert_eq!(attempts_left(&bench).await, 2);
        bench.leave(error);
        for _ in 0..4 {
            assert!(log_in(&bench).await);
        }
        succeed(&bench).await; // known already while the store is away
        bench.come_back();
        for _ in 0..3 {
            succeed(&bench).await;
        }
        assert_eq!(attempts_left(&bench).await, 2);
        // From here on charges are made again, and given back.
        assert!(log_in(&bench).await);
        assert_eq!(attempts_left(&bench).await, 1);
        succeed(&bench).await;
        assert_eq!(attempts_left(&bench).await, 2);
    }
}

#[tokio::test]
async fn a_success_in_an_outage_frees_the_local_share_and_what_is_owed() {
    let bench = logins("local");
    bench.leave(StoreError::Open);
    for _ in 0..20 {
        assert!(log_in(&bench).await, "each success gives its charge back");
        succeed(&bench).await;
    }
    assert!(log_in(&bench).await);
    assert!(log_in(&bench).await);
    bench.come_back();
    bench.engine.pay_back().await.unwrap();
    assert_eq!(attempts_left(&bench).await, 3, "two are not known to have succeeded");
    // They did after all, and the charge was made meanwhile.
    succeed(&bench).await;
    succeed(&bench).await;
    assert_eq!(attempts_left(&bench).await, 5);
}

#[tokio::test]
async fn a_settlement_without_room_is_not_given_back() {
    let bench = logins("local");
    for _ in 0..4 {
        assert!(log_in(&bench).await); // four failures
    }
    bench.leave(StoreError::Open);
    for _ in 0..3 {
        assert!(log_in(&bench).await);
    }
    bench.come_back();
    bench.engine.pay_back().await.unwrap();
    assert_eq!(attempts_left(&bench).await, 0, "one of the three fitted");
    for _ in 0..3 {
        succeed(&bench).await;
    }
    assert_eq!(attempts_left(&bench).await, 0, "four failures are never forgiven by these successes");
}

#[tokio::test]
async fn memory_is_bounded_and_what_ran_out_makes_room() {
    let bench = logins("allow");
    bench.leave(StoreError::Open);
    for number in 0..40_000 {
        let account = format!("account-{number}");
        let request = Request { account: Some(&account), ..login(address(number), "") };
        assert!(bench.engine.decide(request).await.allowed);
    }
    assert_eq!(bench.engine.open_accounts(), 1 << 16);
    bench.pass(MINUTE * 16);
    assert!(log_in(&bench).await);
    assert_eq!(bench.engine.open_accounts(), 3);
    assert!(bench.store.asked.load(Ordering::Relaxed) >= 40_000);
}
