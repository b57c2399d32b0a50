//! Rules that name an interface or a destination: which packets they are about, in the kernel.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use limiter_common::abi::{BAN_LIFELINE, Ban, FOREVER};
use limiter_common::verdict::Outcome::{
    self, DropBan, DropMalformed, DropOver, DropRule, PassDefault, PassLinkSpared, PassRule, PassWithin,
};
use limiter_tests::{
    frame::{
        Extension, HOP_BY_HOP, IGMP, IPV4, IPV6, SERVICE_TAG, TAG, UDP, V4, V6, ethernet, igmp_report, udp,
    },
    kernel::Guard,
    namespace::{GUARDED, Pair},
    wire::Wire,
};
use limiter_user::datapath::Datapath as _;

fn v4(destination: &str, port: u16) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from("192.0.2.9").to(destination).packet(UDP, &udp(4000, port, b"")))
}

fn v6(destination: &str, port: u16) -> Vec<u8> {
    ethernet(&[], IPV6, &V6::from("2001:db8::9").to(destination).packet(UDP, &udp(4000, port, b"")))
}

/// What, frame, and the rule and outcome that must come of it.
type Row = (&'static str, Vec<u8>, &'static str, Outcome);

/// Frames of a test run come in by the loopback interface.
fn check(guard: &Guard, rows: &[Row]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(what, frame, rule, expected)| {
            let judged = guard.judge(frame);
            ((judged.rule.as_str(), judged.outcome) != (*rule, *expected)).then(|| {
                format!("{what}: expected `{rule}` {expected:?}, got `{}` {:?}", judged.rule, judged.outcome)
            })
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

#[test]
fn a_destination_is_an_address_or_a_prefix() {
    let guard = Guard::with(
        r#"version = 1
[[rule]]
name = "one"
dest = ["198.51.100.7", "2001:db8:7::1"]
verdict = "drop"
[[rule]]
name = "queries"
to = "udp/53"
dest = ["198.51.100.0/24", "2001:db8:7::/48"]
limit = [{ per = "source", rate = "1/15m", burst = 1 }]
[[rule]]
name = "multicast"
dest = ["224.0.0.0/4", "ff02::/16"]
verdict = "pass"
[[rule]]
name = "highest"
dest = ["255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]
verdict = "pass"
"#,
    );
    let tagged = |tags: &[u16]| {
        ethernet(tags, IPV4, &V4::from("192.0.2.9").to("198.51.100.7").packet(UDP, &udp(1, 2, b"")))
    };
    let options = V4::from("192.0.2.9").option_words(10).to("198.51.100.7").packet(UDP, &udp(1, 2, b""));
    let fragment = V4::from("192.0.2.9").fragment(64, false).to("198.51.100.7").packet(UDP, &[0; 8]);
    let chain = V6::from("2001:db8::9").to("2001:db8:7::1").with(Extension::Common(HOP_BY_HOP, 1));
    let cut = V4::from("192.0.2.9").to("198.51.100.7").packet(UDP, b"")[..19].to_vec();
    check(
        &guard,
        &[
            ("the address", v4("198.51.100.7", 53), "one", DropRule),
            ("any port", v4("198.51.100.7", 9), "one", DropRule),
            ("the address of IPv6", v6("2001:db8:7::1", 53), "one", DropRule),
            ("its neighbour, the first time", v4("198.51.100.6", 53), "queries", PassWithin),
            ("its other neighbour, the second time", v4("198.51.100.8", 53), "queries", DropOver),
            ("its neighbour at another port", v4("198.51.100.6", 54), "", PassDefault),
            ("first of the prefix", v4("198.51.100.0", 53), "queries", DropOver),
            ("last of the prefix", v4("198.51.100.255", 53), "queries", DropOver),
            ("before the prefix", v4("198.51.99.255", 53), "", PassDefault),
            ("behind the prefix", v4("198.51.101.0", 53), "", PassDefault),
            ("first of the /48, the first time", v6("2001:db8:7::", 53), "queries", PassWithin),
            ("last of the /48", v6("2001:db8:7:ffff:ffff:ffff:ffff:ffff", 53), "queries", DropOver),
            ("before the /48", v6("2001:db8:6:ffff:ffff:ffff:ffff:ffff", 53), "", PassDefault),
            ("behind the /48", v6("2001:db8:8::", 53), "", PassDefault),
            ("multicast", v4("224.0.0.251", 5353), "multicast", PassRule),
            ("multicast of IPv6", v6("ff02::fb", 5353), "multicast", PassRule),
            ("before multicast", v4("223.255.255.255", 53), "", PassDefault),
            ("broadcast", v4("255.255.255.255", 67), "highest", PassRule),
            ("before broadcast", v4("255.255.255.254", 67), "", PassDefault),
            ("the highest of IPv6", v6("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 9), "highest", PassRule),
            ("the lowest of IPv6", v6("::", 9), "", PassDefault),
            ("the lowest of IPv4", v4("0.0.0.0", 9), "", PassDefault),
            ("behind a tag", tagged(&[TAG]), "one", DropRule),
            ("behind two", tagged(&[SERVICE_TAG, TAG]), "one", DropRule),
            ("behind three", tagged(&[TAG; 3]), "", DropMalformed),
            ("with options", ethernet(&[], IPV4, &options), "one", DropRule),
            ("a later fragment", ethernet(&[], IPV4, &fragment), "one", DropRule),
            (
                "with an extension header",
                ethernet(&[], IPV6, &chain.packet(UDP, &udp(1, 2, b""))),
                "one",
                DropRule,
            ),
            ("cut before its destination", ethernet(&[], IPV4, &cut), "", DropMalformed),
        ],
    );
}

#[test]
fn an_interface_is_the_one_of_that_name() {
    let guard = Guard::with(
        r#"version = 1
[[rule]]
name = "elsewhere"
interface = "absent0"
verdict = "drop"
[[rule]]
name = "here"
interface = ["absent1", "lo"]
to = "udp/53"
verdict = "drop"
[[rule]]
name = "both"
interface = "lo"
dest = "198.51.100.0/24"
verdict = "pass"
"#,
    );
    check(
        &guard,
        &[
            ("by this interface", v4("192.0.2.1", 53), "here", DropRule),
            ("something else", v4("192.0.2.1", 54), "", PassDefault),
            ("to the destination", v4("198.51.100.9", 54), "both", PassRule),
            ("of IPv6", v6("2001:db8::1", 53), "here", DropRule),
        ],
    );
}

#[test]
fn spared_traffic_and_bans_know_the_place() {
    let mut guard = Guard::with(
        r#"version = 1
[[rule]]
name = "groups"
from = "192.0.2.0/24"
dest = "224.0.0.0/4"
verdict = "drop"
[[rule]]
name = "elsewhere"
from = "192.0.2.0/24"
interface = "absent0"
verdict = "drop"
[[rule]]
name = "way in"
from = "203.0.113.9"
to = "udp/22"
dest = "198.51.100.1"
verdict = "pass"
before = "bans"
"#
        .replace("way in", "way-in")
        .as_str(),
    );
    guard.ban(&[("203.0.113.9/32", Ban { until: FOREVER, own_until: FOREVER, flags: BAN_LIFELINE, by: 0 })]);
    let report = |destination: &str| {
        ethernet(
            &[],
            IPV4,
            &V4::from("192.0.2.9").ttl(1).to(destination).packet(IGMP, &igmp_report([224, 0, 0, 251])),
        )
    };
    let banned = |destination: &str| {
        ethernet(&[], IPV4, &V4::from("203.0.113.9").to(destination).packet(UDP, &udp(4000, 22, b"")))
    };
    check(
        &guard,
        &[
            ("a report to a group", report("224.0.0.22"), "groups", DropRule),
            ("a report to the host", report("198.51.100.1"), "", PassLinkSpared),
            ("a banned source's way in", banned("198.51.100.1"), "way-in", PassRule),
            ("a banned source to another address", banned("198.51.100.2"), "", DropBan),
        ],
    );
}

/// A rule follows the name: to another interface, and back.
#[test]
fn on_a_link_a_rule_follows_the_name_of_an_interface() {
    let pair = Pair::silent();
    let mut guard = Guard::with(
        r#"version = 1
[[rule]]
name = "named"
interface = "guard0"
to = "udp/1"
verdict = "drop"
[[rule]]
name = "renamed"
interface = "wan0"
to = "udp/2"
verdict = "drop"
[[rule]]
name = "dest"
dest = "198.51.100.9"
verdict = "drop"
"#,
    );
    // The policy was published outside, where there is neither.
    let absent = pair.guarded.run(|| guard.datapath().follow_interfaces());
    assert_eq!(absent, ["wan0"]);
    guard.attach(&pair);
    let mut wire = Wire::open(&pair);
    let frames = [v4("198.51.100.1", 1), v4("198.51.100.1", 2), v4("198.51.100.9", 3), v4("198.51.100.8", 3)];
    assert_eq!(wire.pass(&frames), [frames[1].clone(), frames[3].clone()]);

    pair.guarded.ip(&["link", "set", GUARDED, "down"]);
    pair.guarded.ip(&["link", "set", GUARDED, "name", "wan0"]);
    pair.guarded.ip(&["link", "set", "wan0", "up"]);
    // A socket that saw its interface go down says so once.
    let mut wire = Wire::open_on(&pair, "wan0");
    assert_eq!(wire.pass(&frames), [frames[1].clone(), frames[3].clone()], "until somebody looks");
    let absent = pair.guarded.run(|| guard.datapath().follow_interfaces());
    assert_eq!(absent, [GUARDED]);
    assert_eq!(wire.pass(&frames), [frames[0].clone(), frames[3].clone()]);
    assert_eq!(guard.counted("named", DropRule).packets, 2);
    assert_eq!(guard.counted("renamed", DropRule).packets, 1);
    assert_eq!(guard.counted("dest", DropRule).packets, 3);
}
