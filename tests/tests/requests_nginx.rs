//! A real nginx asks by `auth_request`, as the recipes in `deploy/nginx` set it up.

use limiter_tests::nginx::{Nginx, Setup};
use limiter_tests::tier::{At, POLICY, Reply, Served, ask};

fn get(nginx: &Nginx, path: &str, headers: &[(&str, &str)]) -> Reply {
    ask(&At::Tcp(nginx.port), "GET", path, headers)
}

#[test]
fn a_refused_client_gets_429_with_its_headers() {
    let served = Served::embedded(POLICY);
    let nginx = Nginx::start(&served.socket(), Setup::default());
    for left in (0..30).rev() {
        let reply = get(&nginx, "/v1/search/x?q=1", &[]);
        assert_eq!((reply.status, reply.body.as_str()), (200, "through"), "{}", nginx.log());
        assert_eq!(reply.number("ratelimit-remaining"), left);
        assert_eq!(reply.header("ratelimit-policy"), "\"api-key\";q=30;w=60");
    }
    let reply = get(&nginx, "/v1/search/x", &[]);
    assert_eq!(reply.status, 429);
    // The window's rest, at most 60 s, 2 s until one of 30 has slid out of it, and a fifth of that as jitter.
    assert!((1..=75).contains(&reply.number("retry-after")), "{reply:?}");
    assert_eq!(reply.header("ratelimit-reset"), reply.header("retry-after"));
    assert_eq!(reply.header("ratelimit-remaining"), "0");
    assert_eq!(reply.header("limiter-reason"), "over");
    assert_eq!(reply.header("cache-control"), "no-store");
    assert_eq!(reply.header("content-type"), "application/problem+json");
    let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(body["status"], 429);
    // What is limited elsewhere still goes through, and another 403 stays one.
    assert_eq!(get(&nginx, "/elsewhere", &[]).status, 200);
    assert_eq!(get(&nginx, "/forbidden", &[]).status, 403);
}

#[test]
fn forged_headers_gain_nothing() {
    let served = Served::embedded(POLICY);
    let nginx = Nginx::start(&served.socket(), Setup::default());
    let mut admitted = 0;
    for attempt in 0..60 {
        let address = format!("198.51.100.{attempt}");
        let key = format!("key-{attempt}");
        let forged = [
            ("X-Forwarded-For", address.as_str()),
            ("X-Real-IP", &address),
            ("Forwarded", "for=198.51.100.7"),
            ("Limiter-Client", &address),
            ("Limiter-Peer", &address),
            ("Limiter-Method", "OPTIONS"),
            ("Limiter-Uri", "/elsewhere"),
            ("Limiter-Cost", "0"),
            ("Limiter-Account", &key),
            ("Limiter-User", &key),
            ("Limiter-Plan", "pro"),
            ("X-Plan", "pro"),
            ("X-Account", &key),
            ("X-Api-Key", &key),
            ("X-Original-Uri", "/elsewhere"),
        ];
        admitted += u32::from(get(&nginx, "/v1/search/x", &forged).status == 200);
    }
    assert_eq!(admitted, 30, "as many as without");
    // Nor does another spelling of the path.
    for path in
        ["//v1/search/x", "/v1/./search/x", "/v1/%73earch/x", "/a/../v1/search/x", "/v1/search/../search/x"]
    {
        assert_eq!(get(&nginx, path, &[]).status, 429, "{path}");
    }
    // A known key is what it was given for.
    let reply = get(&nginx, "/v1/search/x", &[("X-Api-Key", "key-pro")]);
    assert_eq!((reply.status, reply.number("ratelimit-limit")), (200, 6000));
}

/// The policies that `check-policy` warns of, with the lines that it asks for.
#[test]
fn headers_of_the_policys_own_are_set_as_well() {
    let text = POLICY
        .replace("name = \"open\"\n", "name = \"open\"\ncost = { header = \"Limiter-Weight\", max = 50 }\n")
        .replace(
            "{ per = \"source\", rate = \"1000/m\" }",
            "{ per = \"header:limiter-tenant | source\", rate = \"30/m\" }",
        );
    let served = Served::embedded(&text);
    let forge = |setup: Setup| {
        let nginx = Nginx::start(&served.socket(), setup);
        let ask = |attempt: u32| {
            let tenant = format!("tenant-{}-{attempt}", setup.more.len());
            let forged = [("Limiter-Tenant", tenant.as_str()), ("Limiter-Weight", "0")];
            get(&nginx, "/v1/open", &forged).status == 200
        };
        (0..60).filter(|attempt| ask(*attempt)).count()
    };
    let more = "proxy_set_header limiter-tenant \"\"; proxy_set_header limiter-weight \"\";";
    assert_eq!(forge(Setup { more, ..Setup::default() }), 30);
    assert_eq!(forge(Setup::default()), 60, "this test could not fail");
}

#[test]
fn an_error_of_the_service_keeps_the_headers() {
    let served = Served::embedded(POLICY);
    let nginx = Nginx::start(&served.socket(), Setup::default());
    let reply = get(&nginx, "/v1/search/missing", &[]);
    assert_eq!((reply.status, reply.number("ratelimit-remaining")), (404, 29), "{}", nginx.log());
}

/// Connections are taken and never answered, as by a stopped process.
#[test]
fn a_stalled_limiterd_is_waited_for_in_vain() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("stalled.sock");
    let _stalled = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let closed = Nginx::start(&socket, Setup { short_timeouts: true, ..Setup::default() });
    assert_eq!(get(&closed, "/v1/search/x", &[]).status, 500);
    assert!(closed.log().contains("upstream timed out"), "{}", closed.log());
    let open = Nginx::start(&socket, Setup { short_timeouts: true, open: true, ..Setup::default() });
    let reply = get(&open, "/v1/search/x", &[]);
    assert_eq!((reply.status, reply.body.as_str()), (200, "through"), "{}", open.log());
    assert!(open.log().contains("upstream timed out"), "{}", open.log());
}

#[test]
fn behind_a_balancer_the_client_is_whom_the_balancer_saw() {
    // The balancer is this test: its address is trusted.
    let served = Served::embedded(&POLICY.replace("10.0.0.0/8", "127.0.0.0/8"));
    let nginx = Nginx::start(&served.socket(), Setup { behind_balancer: true, ..Setup::default() });
    let mut admitted = 0;
    for attempt in 0..60 {
        // What the client wrote stands to the left of what the balancer saw.
        let list = format!("198.51.100.{attempt}, 203.0.113.9");
        admitted += u32::from(get(&nginx, "/v1/search/x", &[("X-Forwarded-For", &list)]).status == 200);
    }
    assert_eq!(admitted, 30);
    assert_eq!(get(&nginx, "/v1/search/x", &[("X-Forwarded-For", "203.0.113.10")]).status, 200);
}

#[test]
fn without_limiterd_nginx_refuses_or_lets_through_as_set_up() {
    let nowhere = tempfile::tempdir().unwrap();
    let socket = nowhere.path().join("nobody.sock");
    let closed = Nginx::start(&socket, Setup::default());
    assert_eq!(get(&closed, "/v1/search/x", &[]).status, 500);
    let open = Nginx::start(&socket, Setup { open: true, ..Setup::default() });
    let reply = get(&open, "/v1/search/x", &[]);
    assert_eq!((reply.status, reply.body.as_str()), (200, "through"), "{}", open.log());
    // With limiterd there, fail-open refuses as well as fail-closed.
    let served = Served::embedded(POLICY);
    let open = Nginx::start(&served.socket(), Setup { open: true, ..Setup::default() });
    let statuses: Vec<_> = (0..32).map(|_| get(&open, "/v1/search/x", &[]).status).collect();
    assert_eq!(statuses[..30], [200; 30]);
    assert_eq!(statuses[30..], [429; 2]);
}
