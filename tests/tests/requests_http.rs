//! The HTTP interface over a real socket, with a real Redis.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use limiter_tests::stores::redis_server::RedisServer;
use limiter_tests::tier::{POLICY, Served};

#[test]
fn a_refusal_names_the_limit_and_the_time() {
    let served = Served::embedded(POLICY);
    for left in (0..5).rev() {
        let reply = served.check("203.0.113.9", "POST", "/v1/login", &[("Limiter-Account", "ada")]);
        assert_eq!((reply.status, reply.body.as_str()), (204, ""));
        assert_eq!(reply.header("limiter-endpoint"), "login");
        assert_eq!(reply.header("ratelimit-limit"), "5");
        assert_eq!(reply.number("ratelimit-remaining"), left);
        assert_eq!(
            reply.header("ratelimit-policy"),
            "\"source\";q=20;w=60, \"account\";q=5;w=900, \"endpoint\";q=600;w=60"
        );
    }
    let mut waits = BTreeSet::new();
    for _ in 0..40 {
        let reply = served.check("203.0.113.9", "POST", "/v1/login", &[("Limiter-Account", "ada")]);
        assert_eq!(reply.status, 429);
        assert_eq!(reply.header("limiter-limited"), "1");
        assert_eq!(reply.header("limiter-reason"), "over");
        assert_eq!(reply.header("content-type"), "application/problem+json");
        assert_eq!(reply.header("cache-control"), "no-store");
        let wait = reply.number("retry-after");
        // At most 900 s and 30 s more; the log is a few seconds old at most.
        assert!((860..=930).contains(&wait), "{wait}");
        assert_eq!(reply.number("ratelimit-reset"), wait);
        assert_eq!(reply.header("ratelimit"), format!("\"account\";r=0;t={wait}"));
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["violated-policies"], serde_json::json!(["account"]));
        waits.insert(wait);
    }
    assert!(waits.len() > 5, "drawn anew for every answer: {waits:?}");
    let reply = served.ask(
        "GET",
        "/v1/check?deny=403",
        &[
            ("Limiter-Client", "203.0.113.9"),
            ("Limiter-Method", "POST"),
            ("Limiter-Uri", "/v1/login"),
            ("Limiter-Account", "ada"),
        ],
    );
    assert_eq!((reply.status, reply.header("limiter-limited")), (403, "1"));
}

#[test]
fn questions_that_cannot_be_judged_are_refused() {
    let served = Served::embedded(POLICY);
    let client = ("Limiter-Client", "203.0.113.9");
    for (method, target, headers, status) in [
        ("GET", "/v1/check", vec![], 400),
        ("GET", "/v1/check", vec![("Limiter-Client", "")], 400),
        ("GET", "/v1/check", vec![("Limiter-Client", "unix:")], 400),
        ("GET", "/v1/check", vec![client, client], 400),
        ("GET", "/v1/check", vec![client, ("Limiter-Account", "a"), ("Limiter-Account", "b")], 400),
        ("GET", "/v1/check?deny=500", vec![client], 400),
        ("GET", "/v1/check", vec![("X-Forwarded-For", "203.0.113.9")], 400),
        ("GET", "/v1/check?from=caddy", vec![client], 400),
        ("GET", "/v1/check?from=caddy", vec![("X-Forwarded-For", "203.0.113.9")], 204),
        ("GET", "/v1/check", vec![client], 204),
        ("PUT", "/v1/check", vec![client], 405),
        ("GET", "/v1/report", vec![client], 405),
        ("POST", "/v1/report", vec![client], 400),
        ("POST", "/v1/report", vec![client, ("Limiter-Actual-Cost", "-1")], 400),
        ("GET", "/elsewhere", vec![client], 404),
    ] {
        let reply = served.ask(method, target, &headers);
        assert_eq!(reply.status, status, "{method} {target} {headers:?} {reply:?}");
    }
}

#[test]
fn other_proxies_names_are_read_only_when_asked_for() {
    let served = Served::embedded(POLICY);
    // Whatever a client adds under our names counts for nothing with `from`.
    for attempt in 0..60 {
        let forged = format!("198.51.100.{attempt}");
        let reply = served.ask(
            "GET",
            "/v1/check?from=traefik",
            &[
                ("X-Forwarded-For", "203.0.113.9"),
                ("X-Forwarded-Method", "GET"),
                ("X-Forwarded-Uri", "/v1/search/x"),
                ("Limiter-Client", &forged),
                ("Limiter-Plan", "pro"),
                ("Limiter-Cost", "0"),
            ],
        );
        assert_eq!(reply.status, if attempt < 30 { 204 } else { 429 }, "{attempt}");
    }
}

#[test]
fn the_login_example_catches_stuffing_and_brute_force_through_redis() {
    let server = RedisServer::start(&[]);
    let served = Served::redis(POLICY, &server);
    let mut admitted = 0;
    for attempt in 0..60 {
        let client = format!("198.51.{}.{}", attempt / 250, attempt % 250);
        let reply = served.check(&client, "POST", "/v1/login", &[("Limiter-Account", "ada")]);
        admitted += u32::from(reply.status == 204);
    }
    assert_eq!(admitted, 5, "one account, many addresses");
    // 500 addresses, each with accounts never seen before; the sliding window lets a minute's worth through.
    let start = Instant::now();
    let mut admitted = 5;
    for attempt in 0..1500 {
        let client = format!("192.0.{}.{}", attempt % 500 / 250, attempt % 250);
        let account = format!("account-{attempt}");
        let reply = served.check(&client, "POST", "/v1/login", &[("Limiter-Account", &account)]);
        admitted += u32::from(reply.status == 204);
    }
    let minutes = u32::try_from(start.elapsed().as_secs() / 60).unwrap() + 1;
    assert!((600..=600 * (minutes + 1)).contains(&admitted), "{admitted}");
}

#[test]
fn a_host_alone_says_that_its_limits_are_its_own() {
    let served = Served::embedded(POLICY);
    let warnings = served.tier.warnings();
    assert_eq!(warnings, ["request limits are per host: the store is embedded, N hosts admit N times"]);
}

#[test]
fn a_random_key_per_request_gains_nothing() {
    let served = Served::embedded(POLICY);
    let mut admitted = 0;
    for attempt in 0..100 {
        let key = format!("random-{attempt}");
        let reply = served.check("203.0.113.9", "GET", "/v1/search/x", &[("X-Api-Key", &key)]);
        admitted += u32::from(reply.status == 204);
    }
    assert_eq!(admitted, 30);
    let known = served.check("203.0.113.9", "GET", "/v1/search/x", &[("X-Api-Key", "key-pro")]);
    assert_eq!((known.status, known.number("ratelimit-limit")), (204, 6000));
}

#[test]
fn a_flood_of_unknown_keys_asks_redis_for_no_plans() {
    let server = RedisServer::start(&[]);
    let served = Served::redis(POLICY, &server);
    // The tier has heard how many records there are: none.
    std::thread::sleep(Duration::from_secs(3));
    let gets = || -> u64 {
        let text: String = server.run(&["INFO", "commandstats"]);
        let calls =
            |line: &str| -> Option<u64> { line.split("calls=").nth(1)?.split(',').next()?.parse().ok() };
        text.lines().filter(|line| line.starts_with("cmdstat_get:")).filter_map(calls).sum()
    };
    for _ in 0..31 {
        served.check("203.0.113.9", "GET", "/v1/search/x", &[]);
    }
    let (start, before) = (Instant::now(), gets());
    for attempt in 0..1000 {
        let key = format!("random-{attempt}");
        served.check("203.0.113.9", "GET", "/v1/search/x", &[("X-Api-Key", &key)]);
    }
    let background = 10 * (start.elapsed().as_secs() + 2);
    assert!(gets() - before <= background, "{} for 1000 keys", gets() - before);
}

#[test]
fn a_cost_is_settled_and_a_success_given_back() {
    let text = POLICY.replace("name = \"login\"", "name = \"login\"\ncharge = \"on-failure\"");
    let server = RedisServer::start(&[]);
    let served = Served::redis(&text, &server);
    let about = |uri: &'static str, method: &'static str| {
        vec![("Limiter-Client", "203.0.113.9"), ("Limiter-Method", method), ("Limiter-Uri", uri)]
    };
    let mut question = about("/v1/search/x", "GET");
    question.push(("Limiter-Cost", "20"));
    assert_eq!(served.ask("GET", "/v1/check", &question).number("ratelimit-remaining"), 10);
    question.push(("Limiter-Actual-Cost", "5"));
    assert_eq!(served.ask("POST", "/v1/report", &question).status, 204);
    assert_eq!(served.check("203.0.113.9", "GET", "/v1/search/x", &[]).number("ratelimit-remaining"), 24);

    let mut login = about("/v1/login", "POST");
    login.push(("Limiter-Account", "ada"));
    for _ in 0..15 {
        assert_eq!(served.ask("GET", "/v1/check", &login).status, 204);
        let mut success = login.clone();
        success.push(("Limiter-Result", "success"));
        assert_eq!(served.ask("POST", "/v1/report", &success).status, 204);
    }
    for attempt in 0..7 {
        let status = served.ask("GET", "/v1/check", &login).status;
        assert_eq!(status, if attempt < 5 { 204 } else { 429 }, "{attempt}");
    }
}

#[test]
fn a_queue_lets_callers_wait_for_their_turn() {
    let text = "version = 1\n[[endpoint]]\nname = \"q\"\nmatch = {}\non-store-failure = \"deny\"\nlimit = [ { per = \"source\", algorithm = \"leaky-bucket\", rate = \"5/s\", depth = 10 } ]\n";
    let served = Served::embedded(text);
    let start = Instant::now();
    let replies: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    served.ask("GET", "/v1/check?wait=1", &[("Limiter-Client", "203.0.113.9")]).status
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Six turns at 5/s: the last one comes a second after the first.
    assert_eq!(replies, [204; 6]);
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    let without = served.ask("GET", "/v1/check", &[("Limiter-Client", "203.0.113.9")]);
    let again = served.ask("GET", "/v1/check", &[("Limiter-Client", "203.0.113.9")]);
    assert!(without.status == 429 || again.status == 429, "whoever cannot wait gets no queue");
}

#[test]
fn a_frozen_redis_leaves_definite_answers_and_recovers() {
    let server = RedisServer::start(&[]);
    let served = Served::redis(POLICY, &server);
    assert_eq!(served.check("203.0.113.9", "POST", "/v1/login", &[]).status, 204);
    // The number of instances is known after a heartbeat.
    let give_up = Instant::now() + Duration::from_secs(20);
    while served.tier.status().instances != Some(1) {
        assert!(Instant::now() < give_up, "{:?}", served.tier.status());
        std::thread::sleep(Duration::from_millis(50));
    }
    server.freeze();
    for _ in 0..50 {
        let login = served.check("203.0.113.9", "POST", "/v1/login", &[]);
        assert_eq!((login.status, login.header("limiter-reason")), (429, "store"));
        assert!((1..=5).contains(&login.number("retry-after")));
        let open = served.check("203.0.113.9", "GET", "/v1/open", &[]);
        assert_eq!((open.status, open.header("limiter-reason")), (204, "store"));
    }
    // `local`: this one instance's share is all of it.
    let mut admitted = 0;
    for _ in 0..50 {
        admitted += u32::from(served.check("203.0.113.9", "GET", "/v1/search/x", &[]).status == 204);
    }
    assert_eq!(admitted, 30);
    server.thaw();
    let give_up = Instant::now() + Duration::from_secs(20);
    while served.check("203.0.113.10", "POST", "/v1/login", &[]).header("limiter-reason") != "within" {
        assert!(Instant::now() < give_up, "no recovery");
        std::thread::sleep(Duration::from_millis(50));
    }
}
