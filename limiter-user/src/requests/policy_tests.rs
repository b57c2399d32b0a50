//! What the request part of a policy file may say, and what is said of its mistakes.

use super::limit::Algorithm;
use super::policy::{Cost, OnStoreFailure, RequestPolicy, Tag, UnknownKey};
use crate::policy::{self, Bundle};

/// The example of the documentation.
pub const EXAMPLE: &str = r#"version = 1
serial = 3

[identity]
trusted-proxies = ["10.0.0.0/8"]
api-key = { header = "X-Api-Key", unknown = "as-none" }
account = { header = "x-account" }
plan = { header = "x-plan" }

[plans]
default = "free"
keys = { file = "keys.csv" }

[limits]
account-total = { per = "account | source", rate = "1000/m" }

[[endpoint]]
name = "login"
match = { method = ["POST"], path = "/v1/login" }
limit = [
  { per = "source", algorithm = "token-bucket", rate = "20/m", burst = 20 },
  { per = "account | source", algorithm = "sliding-window-log", rate = "5/15m" },
  { per = "endpoint", rate = "600/m" },
]
on-store-failure = "deny"

[[endpoint]]
name = "search"
match = { path = "/v1/search/*" }
limit = [
  { per = "api-key | source", rate = { free = "60/m", pro = "6000/m", default = "30/m" } },
  "account-total",
]
cost = { header = "Limiter-Cost", default = 1, max = 50 }
on-store-failure = "local"
"#;

pub const KEYS: &str = "# key,plan\nkey-free,free\nkey-pro,pro\nkey-plain\n";

/// The request policy of a text, which must be valid.
pub fn policy(text: &str) -> RequestPolicy {
    let bundle = Bundle::from_text("policy.toml", text).with_file("keys.csv", KEYS);
    match policy::check(&bundle) {
        Ok(checked) => checked.policy.requests,
        Err(mistakes) => {
            panic!("{}", mistakes.iter().map(|m| format!("{m}\n")).collect::<String>())
        }
    }
}

/// All that is said of a text, one line each: warnings too.
fn said(text: &str) -> Vec<String> {
    let bundle = Bundle::from_text("policy.toml", text).with_file("keys.csv", KEYS);
    let found = match policy::check(&bundle) {
        Ok(checked) => checked.warnings,
        Err(found) => found,
    };
    found.iter().map(|diagnostic| diagnostic.to_string()).collect()
}

fn endpoint(rest: &str) -> String {
    format!("version = 1\n[[endpoint]]\nname = \"a\"\nmatch = {{}}\non-store-failure = \"deny\"\n{rest}\n")
}

#[test]
fn the_example_reads_as_documented() {
    let policy = policy(EXAMPLE);
    assert_eq!(policy.serial, 3);
    let key = policy.identity.api_key.unwrap();
    assert_eq!((key.header.as_str(), key.unknown), ("x-api-key", UnknownKey::AsNone));
    assert_eq!(policy.plans.default.as_deref(), Some("free"));
    assert_eq!(policy.plans.keys["key-pro"].as_deref(), Some("pro"));
    assert_eq!(policy.plans.keys["key-plain"], None);

    let [login, search] = &policy.endpoints[..] else { panic!("two endpoints") };
    let names: Vec<_> = login.limits.iter().map(|limit| limit.default.name()).collect();
    assert_eq!(names, ["source", "account", "endpoint"]);
    let algorithms: Vec<_> = login.limits.iter().map(|limit| limit.default.algorithm()).collect();
    assert_eq!(algorithms, [Algorithm::TokenBucket, Algorithm::SlidingWindowLog, Algorithm::SlidingWindow]);
    assert_eq!(login.on_store_failure, Some(OnStoreFailure::Deny));
    assert_eq!(login.tag, Tag::Group("login".into()));

    let counts: Vec<_> = [None, Some("free"), Some("pro"), Some("gold")]
        .map(|plan| search.limits[0].for_plan(plan).count())
        .into();
    assert_eq!(counts, [30, 60, 6000, 30]);
    assert_eq!(search.cost, Cost::Header { name: "limiter-cost".into(), default: 1, max: 50 });
    assert_eq!(search.limits[1].default.name(), "account-total");
}

#[test]
fn a_shared_limit_has_one_state_and_a_local_one_its_own() {
    let text = |name: &str| {
        format!(
            "[[endpoint]]\nname = \"{name}\"\nmatch = {{ path = \"/{name}\" }}\nlimit = [ \"both\", {{ per = \"source\", rate = \"5/m\" }} ]\n"
        )
    };
    let policy = policy(&format!(
        "version = 1\n[limits]\nboth = {{ per = \"source\", rate = \"9/m\" }}\n{}{}",
        text("x"),
        text("y")
    ));
    let [x, y] = &policy.endpoints[..] else { panic!("two endpoints") };
    assert_eq!(x.limits[0].default.id(), y.limits[0].default.id());
    assert_ne!(x.limits[1].default.id(), y.limits[1].default.id());
    assert_eq!(x.tag, y.tag);
}

#[test]
fn limits_of_one_endpoint_are_told_apart() {
    let text = endpoint(
        "limit = [ { per = \"source\", rate = \"5/m\" }, { per = \"source\", rate = \"100/h\" }, \
         { per = \"source\", algorithm = \"fixed-window\", rate = \"100/h\" } ]",
    );
    let policy = policy(&text);
    let names: Vec<_> = policy.endpoints[0].limits.iter().map(|limit| limit.default.name()).collect();
    assert_eq!(names, ["source-m", "source-h-sliding-window", "source-h-fixed-window"]);
    let ids: std::collections::BTreeSet<_> =
        policy.endpoints[0].limits.iter().map(|limit| limit.default.id()).collect();
    assert_eq!(ids.len(), 3);
}

#[test]
fn defaults_follow_the_burst() {
    let text = endpoint(
        "limit = [ { per = \"source\", rate = \"10/s\", burst = 5 }, { name = \"b\", per = \"source\", rate = \"10/s\" } ]",
    );
    let policy = policy(&text);
    let limits = &policy.endpoints[0].limits;
    assert_eq!((limits[0].default.algorithm(), limits[0].default.burst()), (Algorithm::TokenBucket, 5));
    assert_eq!(limits[1].default.algorithm(), Algorithm::SlidingWindow);
}

#[test]
fn observing_is_for_an_endpoint_or_one_limit() {
    let limits = "limit = [ { per = \"source\", rate = \"5/m\", mode = \"observe\" }, { per = \"endpoint\", rate = \"5/m\" } ]";
    let observing = |text: &str| -> Vec<bool> {
        policy(text).endpoints[0]
            .limits
            .iter()
            .map(|limit| limit.observe && limit.default.observe())
            .collect()
    };
    assert_eq!(observing(&endpoint(limits)), [true, false]);
    assert_eq!(observing(&endpoint(&format!("mode = \"observe\"\n{limits}"))), [true, true]);
}

#[test]
fn mistakes_have_a_place_and_come_together() {
    let text = r#"version = 1
[identity]
trusted-proxies = ["10.0.0.0/8", "proxy"]
api-key = { header = "x api key", unknown = "maybe" }
[plans]
default = "no way"
[[endpoint]]
name = "a"
match = { path = "/v1//a", verb = "GET" }
limit = [ { per = "ip", rate = "20" }, "total", { per = "source", rate = "5/m", burst = 2, algorithm = "fixed-window" } ]
cost = { header = "Limiter-Cost" }
on-store-failure = "perhaps"
[[endpoint]]
name = "a"
match = {}
limit = []
"#;
    let lines = said(text);
    let expected = [
        "policy.toml:3:34: `proxy` is neither a prefix nor an address",
        "policy.toml:4:22: `x api key` is no header name",
        "policy.toml:4:45: `unknown` cannot be `maybe`",
        "policy.toml:6:11: `no way` cannot name a plan",
        "policy.toml:9:18: `/v1//a` is no path to match",
        "policy.toml:9:28: unknown key `verb`",
        "policy.toml:10:19: unknown scope `ip`; write source, source/P4,P6, api-key, account, user, endpoint, header:NAME or descriptor:KEY",
        "policy.toml:10:32: `20` is no rate; write a count per window, as in `20/m`, `5/15m` or `2k/s`",
        "policy.toml:10:40: unknown limit `total`",
        "policy.toml:10:81: `burst` has no meaning for `fixed-window`",
        "policy.toml:11:8: a cost from a header lacks its `max`",
        "policy.toml:12:20: `on-store-failure` cannot be `perhaps`",
        "policy.toml:14:8: endpoint `a` stands here twice",
    ];
    for line in expected {
        assert!(lines.iter().any(|said| said == line), "{line}\n\n{}", lines.join("\n"));
    }
}

#[test]
fn each_mistake_alone() {
    // the endpoint's keys, what is said
    let table: &[(&str, &str)] = &[
        ("limit = []", "has no limit"),
        ("", "lacks its `limit`"),
        ("limit = [ { rate = \"5/m\" } ]", "lacks its `per`"),
        ("limit = [ { per = \"source\" } ]", "lacks its `rate`"),
        ("limit = [ { per = [], rate = \"5/m\" } ]", "`per` is empty"),
        ("limit = [ { per = [\"source\", \"source\"], rate = \"5/m\" } ]", "stands here twice"),
        ("limit = [ { per = \"source\", rate = { pro = \"5/m\" } } ]", "`rate` lacks its `default`"),
        ("limit = [ { per = \"source\", rate = { deny = \"5/m\", default = \"1/m\" } } ]", "the plan `deny`"),
        ("limit = [ { per = \"source\", rate = \"5/m\", burst = 0 } ]", "burst or depth of 0"),
        ("limit = [ { per = \"source\", rate = \"5/m\", burst = -1 } ]", "`burst` is out of range"),
        (
            "limit = [ { per = \"source\", rate = \"5/m\", depth = 3 } ]",
            "`depth` has no meaning for `sliding-window`",
        ),
        (
            "limit = [ { per = \"source\", rate = \"2k/m\", algorithm = \"sliding-window-log\" } ]",
            "at most 1000",
        ),
        ("limit = [ { per = \"source\", rate = \"1G/366d\" } ]", "too large to be counted exactly"),
        (
            "limit = [ { per = \"source\", rate = \"5/m\" }, { per = \"source\", rate = \"6/m\" } ]",
            "would share a key",
        ),
        (
            "limit = [ { name = \"x\", per = \"source\", rate = \"5/m\" }, { name = \"x\", per = \"user\", rate = \"6/m\" } ]",
            "would share a key",
        ),
        ("limit = [ { per = \"source\", rate = \"5/m\" } ]\ncost = -1", "`cost` is out of range"),
        (
            "limit = [ { per = \"source\", rate = \"5/m\" } ]\ncost = { header = \"a\", default = 3, max = 2 }",
            "more than `max`",
        ),
    ];
    for (keys, expected) in table {
        let lines = said(&endpoint(keys));
        assert!(lines.iter().any(|line| line.contains(expected)), "{keys}\n{expected}\n{}", lines.join("\n"));
    }
}

#[test]
fn doubtful_things_are_warned_of() {
    let limit = "limit = [ { per = \"source\", rate = \"5/m\" } ]";
    let table: &[(String, &str)] = &[
        (
            endpoint("limit = [ { per = \"source\", algorithm = \"fixed-window\", rate = \"5/m\" } ]"),
            "up to twice its count",
        ),
        (
            endpoint("limit = [ { per = \"account\", rate = \"5/m\" } ]"),
            "without `account` is counted by its source",
        ),
        (endpoint("limit = [ { per = \"source/32,128\", rate = \"5/m\" } ]"), "one caller has 2^64 of them"),
        (
            endpoint("limit = [ { per = \"api-key | source\", rate = \"5/m\" } ]"),
            "`[identity]` names no `api-key`",
        ),
        (
            endpoint(
                "limit = [ { per = \"source\", algorithm = \"leaky-bucket\", rate = \"5/m\", depth = 4 } ]",
            ),
            "only callers that can wait",
        ),
        (
            endpoint(
                "limit = [ { per = \"source\", algorithm = \"sliding-window-log\", rate = \"1000/d\" } ]",
            ),
            "about 100 kB each",
        ),
        (
            endpoint(
                "limit = [ { per = \"source\", rate = \"5/m\" }, { per = \"endpoint\", rate = \"5/m\" } ]",
            ),
            "one shard of a cluster",
        ),
        (endpoint(&format!("{limit}\ncost = 6")), "no more than 5 is ever admitted"),
        (endpoint(limit).replace("\"a\"", "\"login\""), "limited by address alone"),
        (
            endpoint(limit).replace("on-store-failure = \"deny\"", ""),
            "does not say what holds when the store is away",
        ),
        (
            format!(
                "{}[[endpoint]]\nname = \"b\"\nmatch = {{ path = \"/b\" }}\non-store-failure = \"deny\"\n{limit}",
                endpoint(limit)
            ),
            "endpoint `b` is never reached",
        ),
        (
            endpoint("limit = [ { per = \"header:limiter-tenant | source\", rate = \"5/m\" } ]"),
            "counts on `limiter-tenant`",
        ),
        (
            endpoint(&format!("{limit}\ncost = {{ header = \"Limiter-Weight\", max = 5 }}")),
            "counts on `limiter-weight`",
        ),
        (format!("{}[identity]\ntrusted-proxies = [\"0.0.0.0/0\"]", endpoint(limit)), "trusts everyone"),
    ];
    for (text, expected) in table {
        let lines = said(text);
        assert!(lines.iter().any(|line| line.contains(expected)), "{expected}\n{}", lines.join("\n"));
    }
    assert_eq!(said(&endpoint(limit)), Vec::<String>::new());
}

#[test]
fn a_rule_cannot_use_a_request_limit_nor_the_other_way_round() {
    let text = "version = 1\n[limits]\nx = { per = \"account\", rate = \"5/m\" }\n[[rule]]\nname = \"r\"\nlimit = [\"x\"]\n";
    assert!(said(text).iter().any(|line| line.contains("limit `x` is for requests")), "{:?}", said(text));
    let text = "version = 1\n[limits]\nx = { per = \"source\", rate = \"5/m\" }\n[[rule]]\nname = \"r\"\nlimit = [\"x\"]\n[[endpoint]]\nname = \"e\"\nmatch = {}\nlimit = [\"x\"]\n";
    assert!(said(text).iter().any(|line| line.contains("limit `x` is for requests")), "{:?}", said(text));
}

#[test]
fn a_keys_file_is_checked_line_by_line() {
    let text = "version = 1\n[plans]\nkeys = { file = \"bad.csv\" }\n";
    let bundle = Bundle::from_text("policy.toml", text).with_file("bad.csv", "a,free\nb,no way\n");
    let mistakes = policy::check(&bundle).unwrap_err();
    assert_eq!(mistakes[0].to_string(), "bad.csv:2:1: a plan's name is of letters, digits, `-`, `_` and `.`");
}

#[test]
fn the_policy_of_the_documentation_is_valid() {
    let page = include_str!("../../../docs/requests.md");
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let policies: Vec<_> = blocks.filter(|block| block.starts_with("version = 1")).collect();
    assert_eq!(policies.len(), 1);
    let warnings = said(policies[0]);
    // The login example shares nothing between its limits, which the page explains.
    assert!(warnings.iter().all(|line| line.contains("one shard of a cluster")), "{warnings:#?}");
    assert_eq!(policy(policies[0]).endpoints.len(), 2);
}
