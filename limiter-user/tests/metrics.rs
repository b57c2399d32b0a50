//! `/metrics` against its documentation, and against what was counted.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use std::collections::BTreeSet;

use host::{Host, policy};
use limiter_common::abi::{Counter, FAMILIES};
use limiter_common::verdict::{OUTCOMES, Outcome};
use limiter_user::metrics;
use limiter_user::requests::metrics::RequestMetrics;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// A host with everything a page can show.
fn host() -> Host {
    let mut host = Host::new(&["eth0", "eth1"], "");
    host.write_policy(&format!("{}[sets]\noffice = [\"203.0.113.0/24\", \"2001:db8:5::/48\"]\n", policy(50)));
    host.twin.state().present.remove("eth1");
    let mut totals = Box::new([[Counter::default(); FAMILIES]; OUTCOMES]);
    totals[Outcome::PassWithin as usize][0] = Counter { packets: 7, bytes: 700 };
    totals[Outcome::DropOver as usize][1] = Counter { packets: 3, bytes: 180 };
    totals[Outcome::DropCrowd as usize][0] = Counter { packets: 2, bytes: 120 };
    totals[Outcome::PassCrowd as usize][0] = Counter { packets: 1, bytes: 60 };
    host.start();
    let slot = host.daemon.as_ref().unwrap().core().in_force.as_ref().unwrap().sealed.slots.rules["web"];
    host.twin.state().counters.insert(slot, totals);
    host.twin.state().table.pressure = 5;
    host
}

#[test]
fn counters_are_those_of_the_kernel() {
    let host = host();
    let page = metrics::render(host.daemon.as_ref().unwrap()).unwrap();
    for line in [
        r#"limiter_packets_total{rule="web",reason="within",verdict="pass",family="ipv4"} 7"#,
        r#"limiter_bytes_total{rule="web",reason="within",verdict="pass",family="ipv4"} 700"#,
        r#"limiter_packets_total{rule="web",reason="over",verdict="drop",family="ipv6"} 3"#,
        r#"limiter_packets_total{rule="web",reason="over",verdict="drop",family="ipv4"} 0"#,
        r#"limiter_claims_refused_total{rule="web"} 3"#,
        r#"limiter_interface_up{interface="eth0"} 1"#,
        r#"limiter_interface_up{interface="eth1"} 0"#,
        r#"limiter_interface_mode{interface="eth0",mode="native"} 1"#,
        r#"limiter_set_entries{set="office"} 2"#,
        "limiter_table_entries 1048576",
        "limiter_table_pressure_total 5",
        "limiter_policy_generation 1",
        "limiter_policy_last_reload_success 1",
    ] {
        assert!(page.lines().any(|there| there == line), "{line} is missing in\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
    assert!(!page.contains("203.0.113"), "no label holds an address");
}

/// Names of samples on a page, by its descriptions: a histogram has the name it is described by.
fn described(page: &str) -> BTreeSet<String> {
    let kinds = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    kinds
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .collect()
}

/// Names in the tables of the sections whose heading is, or is not, `## Requests`.
fn documented(requests: bool) -> BTreeSet<String> {
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in include_str!("../../docs/metrics.md").lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            inside = heading == "Requests";
        }
        let name = line.strip_prefix("| `").and_then(|line| line.split_once('`')).map(|(name, _)| name);
        let known = |name: &&str| name.starts_with("limiter_") || name.starts_with("process_");
        if let Some(name) = name.filter(known).filter(|_| inside == requests) {
            names.insert(name.to_owned());
        }
    }
    names
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_exists() {
    let host = host();
    let page = metrics::render(host.daemon.as_ref().unwrap()).unwrap();
    assert_eq!(described(&page), documented(false));
}

#[test]
fn every_metric_of_requests_is_documented() {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(RequestMetrics::default()));
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    assert_eq!(described(&page), documented(true));
}

#[test]
fn every_reason_that_can_occur_is_documented() {
    let text = include_str!("../../docs/metrics.md");
    // Nothing counts these yet.
    let unused = ["penalty", "ban"];
    for outcome in Outcome::ALL {
        let reason = outcome.reason().name();
        assert!(text.contains(&format!("| `{reason}` |")) != unused.contains(&reason), "{reason}");
    }
}
