//! What a hostile caller sends over HTTP: each gets an answer or is cut off, and the next one is served.
#![allow(clippy::unwrap_used, reason = "a helper of tests stops where its set-up fails")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use limiter_tests::stores::redis_server::{NAMESPACE, RedisServer};
use limiter_tests::tier::{POLICY, Served};

/// The status of the first answer to these bytes; `None` when the connection ends without one.
fn send(served: &Served, bytes: &[u8]) -> Option<u16> {
    let mut stream = UnixStream::connect(served.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The other side may hang up before it has read all of it.
    let _ = stream.write_all(bytes);
    if !bytes.ends_with(b"\r\n\r\n") {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
}

#[test]
fn malformed_questions_are_refused_and_the_next_one_is_served() {
    let served = Served::embedded(POLICY);
    let head = "GET /v1/check HTTP/1.1\r\nHost: x\r\nConnection: close\r\nLimiter-Client: 203.0.113.9\r\n";
    let many: String = (0..150).map(|number| format!("X-{number}: y\r\n")).collect();
    let huge = "a".repeat(500_000);
    // What is sent, and what may come of it.
    type Row = (&'static str, Vec<u8>, &'static [Option<u16>]);
    let table: [Row; 11] = [
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00".to_vec(), &[Some(400), None]),
        ("nothing", Vec::new(), &[None]),
        ("half a head", head.as_bytes().to_vec(), &[None, Some(400)]),
        ("150 headers", format!("{head}{many}\r\n").into(), &[Some(431)]),
        ("500 kB in a header", format!("{head}Limiter-Account: {huge}\r\n\r\n").into(), &[Some(431), None]),
        (
            "500 kB of target",
            format!("GET /v1/check?{huge} HTTP/1.1\r\n\r\n").into(),
            &[Some(414), Some(431), None],
        ),
        ("a header without a colon", format!("{head}nonsense\r\n\r\n").into(), &[Some(400)]),
        ("a line break in a value", format!("{head}Limiter-Account: a\rb\r\n\r\n").into(), &[Some(400)]),
        ("a zero in a value", format!("{head}Limiter-Account: a\0b\r\n\r\n").into(), &[Some(400)]),
        ("bytes outside ASCII", [head.as_bytes(), b"Limiter-Account: \xff\r\n\r\n"].concat(), &[Some(400)]),
        (
            "one scope's header twice",
            format!("{head}Limiter-X: a\r\nLimiter-X: b\r\n\r\n").into(),
            &[Some(400)],
        ),
    ];
    for (what, bytes, expected) in table {
        let got = send(&served, &bytes);
        assert!(expected.contains(&got), "{what}: {got:?}");
        assert_eq!(served.check("203.0.113.10", "GET", "/v1/open", &[]).status, 204, "after {what}");
    }
    assert_eq!(send(&served, format!("{head}\r\n").as_bytes()), Some(204));
}

#[test]
fn what_a_caller_calls_itself_reaches_neither_keys_nor_headers() {
    let server = RedisServer::start(&[]);
    let served = Served::redis(POLICY, &server);
    let long = "x".repeat(30_000);
    for account in ["{tag}", "a:b", "*", "\"; q=1", "'); redis.call('FLUSHALL') --", "%0d%0aX: y", &long] {
        let reply = served.check("203.0.113.9", "POST", "/v1/login", &[("Limiter-Account", account)]);
        assert_eq!(reply.status, 204, "{account:.40} {reply:?}");
        let shown = format!("{:?}", reply.headers);
        assert!(!shown.contains(account) && !reply.headers.contains_key("x"), "{shown}");
    }
    for key in server.run::<Vec<String>>(&["KEYS", "*"]) {
        let plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_:.{}+".contains(&byte));
        assert!(plain && key.len() < 200 && key.starts_with(NAMESPACE), "{key}");
        assert_eq!(
            key.matches('{').count() + key.matches('}').count(),
            if key.ends_with(":policy") { 0 } else { 2 }
        );
    }
}

#[test]
fn what_a_restarted_redis_lost_track_of_is_charged_to_it() {
    let mut server = RedisServer::start(&[]);
    let served = Served::redis(POLICY, &server);
    let give_up = Instant::now() + Duration::from_secs(30);
    let until = |what: &str, mut holds: Box<dyn FnMut() -> bool + '_>| {
        while !holds() {
            assert!(Instant::now() < give_up, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("instances", Box::new(|| served.tier.status().instances == Some(1)));
    server.kill();
    until("no answer", Box::new(|| !served.tier.status().healthy));
    for _ in 0..20 {
        assert_eq!(served.check("203.0.113.9", "GET", "/v1/search/x", &[]).status, 204);
    }
    assert_eq!(served.tier.engine().open_accounts(), 1);
    server.restart();
    until("paid", Box::new(|| served.tier.engine().open_accounts() == 0));
    // 30 a minute: of the ten that are left this is one.
    let left = served.check("203.0.113.9", "GET", "/v1/search/x", &[]);
    assert_eq!((left.status, left.number("ratelimit-remaining")), (204, 9));
}
