//! Who may ask when the socket can be reached from elsewhere: a token, or a certificate.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

use limiter_tests::tier::{At, KEYS, POLICY, ask};
use limiter_user::policy::{self, Bundle};
use limiter_user::requests::config::{RedisLayer, RequestsLayer, StoreKind, resolve};
use limiter_user::requests::publish::Occasion;
use limiter_user::requests::tier::Tier;

fn start(runtime: &tokio::runtime::Runtime, directory: &Path, layer: RequestsLayer) -> (Tier, u16) {
    let requests =
        RequestsLayer { store: Some(StoreKind::Embedded), http: Some("0.0.0.0:0".to_owned()), ..layer };
    let settings = resolve(&RedisLayer::default(), &requests).unwrap().unwrap();
    let tier = runtime.block_on(Tier::start(settings, directory)).unwrap();
    let bundle = Bundle::from_text("policy.toml", POLICY).with_file("keys.csv", KEYS);
    tier.apply(&policy::check(&bundle).unwrap().policy.requests, "hash", Occasion::Applied);
    let port = tier.address().unwrap().port();
    (tier, port)
}

#[test]
fn without_the_token_nothing_is_answered_nor_charged() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let layer = RequestsLayer { token_file: Some(token), ..RequestsLayer::default() };
    let (_tier, port) = start(&runtime, directory.path(), layer);
    let about = [("Limiter-Client", "203.0.113.9"), ("Limiter-Uri", "/v1/search/x")];
    for wrong in [None, Some(""), Some("0123456789abcdef0123456789abcdeX"), Some("0123456789abcdef")] {
        let shown = wrong.map(|wrong| ("Limiter-Token", wrong));
        let headers: Vec<_> = about.into_iter().chain(shown).collect();
        for (method, target) in [("GET", "/v1/check"), ("POST", "/v1/report"), ("GET", "/elsewhere")] {
            assert_eq!(ask(&At::Tcp(port), method, target, &headers).status, 401, "{wrong:?}");
        }
    }
    let shown = ("Limiter-Token", "0123456789abcdef0123456789abcdef");
    let headers: Vec<_> = about.into_iter().chain([shown]).collect();
    let reply = ask(&At::Tcp(port), "GET", "/v1/check", &headers);
    assert_eq!((reply.status, reply.number("ratelimit-remaining")), (204, 29));
}

fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl").current_dir(directory).args(arguments.split(' ')).output();
    let output = output.expect("openssl is installed");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority `NAME-ca`, and a certificate `NAME` for localhost by it.
fn certificates(directory: &Path, name: &str) {
    fs::write(directory.join("extensions"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
    openssl(
        directory,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name}-ca -keyout {name}-ca.key -out {name}-ca.pem"
        ),
    );
    openssl(
        directory,
        &format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"),
    );
    openssl(
        directory,
        &format!(
            "x509 -req -days 2 -in {name}.csr -CA {name}-ca.pem -CAkey {name}-ca.key -CAcreateserial -extfile extensions -out {name}.pem"
        ),
    );
}

#[test]
fn a_certificate_of_the_right_authority_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    for name in ["server", "caller", "stranger"] {
        certificates(here, name);
    }
    let file = |name: &str| Some(here.join(name));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let layer = RequestsLayer {
        certificate_file: file("server.pem"),
        key_file: file("server.key"),
        client_ca_file: file("caller-ca.pem"),
        ..RequestsLayer::default()
    };
    let (_tier, port) = start(&runtime, here, layer);
    let status = |caller: Option<&str>| {
        let mut command = Command::new("curl");
        command.current_dir(here).args([
            "-s",
            "-o",
            "answer",
            "-w",
            "%{http_code}",
            "--cacert",
            "server-ca.pem",
        ]);
        if let Some(caller) = caller {
            command.arg("--cert").arg(format!("{caller}.pem")).arg("--key").arg(format!("{caller}.key"));
        }
        command.args(["-H", "Limiter-Client: 203.0.113.9"]).arg(format!("https://localhost:{port}/v1/check"));
        let output = command.output().expect("curl is installed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(status(Some("caller")), "204");
    assert_eq!(status(Some("stranger")), "000");
    assert_eq!(status(None), "000");
}
