//! A table of frames with verdicts derived by hand, through the program in the kernel.
//!
//! Rows of one policy follow each other on the same buckets, so a row may say that a burst is spent.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use limiter_common::verdict::Outcome::{
    self, DropDefault, DropLinkOver, DropMalformed, DropOver, DropOversize, DropRule, PassDefault, PassLink,
    PassLinkSpared, PassMalformed, PassNonIp, PassRule, PassWithin, WouldDropOver, WouldDropRule,
};
use limiter_tests::{
    frame::{
        ACK, ARP, DESTINATION, ESP, EXPERIMENT, Extension, GRE, HOP_BY_HOP, ICMP, ICMPV6, IGMP, IPIP, IPV4,
        IPV6, ROUTING, SCTP, SERVICE_TAG, SYN, TAG, TCP, UDP, V4, V6, arp_request, ethernet, icmp,
        igmp_report, neighbour_solicitation, sctp, tcp, udp,
    },
    kernel::Guard,
};

/// One frame and what must become of it.
struct Row {
    what: &'static str,
    frame: Vec<u8>,
    rule: &'static str,
    outcome: Outcome,
    /// The observing rule that would have dropped it, and why.
    observed: Option<(&'static str, Outcome)>,
}

fn row(what: &'static str, frame: Vec<u8>, rule: &'static str, outcome: Outcome) -> Row {
    Row { what, frame, rule, outcome, observed: None }
}

impl Row {
    fn observed_by(mut self, rule: &'static str, outcome: Outcome) -> Self {
        self.observed = Some((rule, outcome));
        self
    }
}

fn check(policy: &str, rows: Vec<Row>) -> usize {
    let guard = Guard::with(policy);
    let mut wrong = Vec::new();
    let count = rows.len();
    for row in rows {
        let observed_before = row.observed.map(|(rule, outcome)| guard.counted(rule, outcome).packets);
        let judged = guard.judge(&row.frame);
        if (judged.rule.as_str(), judged.outcome) != (row.rule, row.outcome) {
            wrong.push(format!(
                "{}: expected `{}` {:?}, got `{}` {:?}",
                row.what, row.rule, row.outcome, judged.rule, judged.outcome
            ));
        }
        let observing = row.observed.map_or("", |(rule, _)| rule);
        if judged.observing != observing {
            wrong
                .push(format!("{}: expected `{observing}` to observe, got `{}`", row.what, judged.observing));
        }
        if let (Some((rule, outcome)), Some(before)) = (row.observed, observed_before) {
            let after = guard.counted(rule, outcome).packets;
            if after != before + 1 {
                wrong
                    .push(format!("{}: `{rule}` counted {before} and then {after} of {outcome:?}", row.what));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count} rows:\n{}", wrong.len(), wrong.join("\n"));
    count
}

fn v4(source: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from(source).packet(protocol, payload))
}

fn v6(source: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[], IPV6, &V6::from(source).packet(protocol, payload))
}

/// UDP to `port`, `bytes` long from the IPv4 header on.
fn sized(source: &str, port: u16, bytes: usize) -> Vec<u8> {
    v4(source, UDP, &udp(1000, port, &vec![0; bytes - 28]))
}

/// A chain of `count` extension headers of 8 bytes.
fn chain(source: &str, count: usize) -> V6 {
    let mut header = V6::from(source);
    header.chain = vec![Extension::Common(DESTINATION, 1); count];
    header
}

const POLICY: &str = r#"
version = 1

[default]
verdict = "pass"
malformed = "drop"

[sets]
office = ["203.0.113.0/24", "2001:db8:5::/48"]
partner = ["198.51.100.7"]
bad = ["198.51.100.0/24", "2001:db8:bad::/48"]

[services]
dns = ["udp/53", "tcp/53"]
web-syn = ["tcp-syn/80", "tcp-syn/443"]
reflection = ["udp-from/53", "udp-from/123"]
odd = ["fragment", "other", "sctp"]
ping = ["icmp/echo-request", "icmpv6/echo-request"]
high = ["udp/60000-65535"]

[[rule]]
name = "management"
from = "office"
to = ["tcp/22"]
verdict = "pass"

[[rule]]
name = "partner"
from = "partner"
to = ["tcp/443"]
verdict = "pass"

[[rule]]
name = "bad"
from = "bad"
verdict = "drop"

[[rule]]
name = "reflection"
to = "reflection"
verdict = "drop"

[[rule]]
name = "handshakes"
to = "web-syn"
limit = [{ per = "source", rate = "2/15m", burst = 2 }]

[[rule]]
name = "trial"
to = "dns"
mode = "observe"
limit = [{ per = "source", rate = "1/15m", burst = 1 }]

[[rule]]
name = "queries"
to = "dns"
limit = [{ per = "source", rate = "3/15m", burst = 3 }]

[[rule]]
name = "odd"
to = "odd"
limit = [{ per = "source", rate = "2/15m", burst = 2 }]

[[rule]]
name = "trial-high"
to = "high"
mode = "observe"
verdict = "drop"

[[rule]]
name = "ping"
to = "ping"
verdict = "drop"
"#;

#[test]
fn verdicts_before_and_by_rules() {
    let solicitation = neighbour_solicitation("2001:db8::2");
    let near = |source: &str| V6::from(source).hop_limit(255);
    let to_v6 = |header: V6| ethernet(&[], IPV6, &header.icmpv6(&solicitation));
    let report = |source: &str, hop_limit: u8| {
        let header = V6::from(source).hop_limit(hop_limit).with(Extension::Common(HOP_BY_HOP, 1));
        ethernet(&[], IPV6, &header.icmpv6(&icmp(143, 0)))
    };
    let good = "192.0.2.1";
    let query = udp(1000, 53, b"");
    let rows = vec![
        // Not IP, malformed.
        row("LLDP", ethernet(&[], 0x88cc, &[0; 46]), "", PassNonIp),
        row("LACP", ethernet(&[], 0x8809, &[0; 46]), "", PassNonIp),
        row("LLDP behind two tags", ethernet(&[SERVICE_TAG, TAG], 0x88cc, &[0; 46]), "", PassNonIp),
        row("0x9100 is no tag", ethernet(&[], 0x9100, &[0; 46]), "", PassNonIp),
        row("an EtherType alone", ethernet(&[], EXPERIMENT, b""), "", PassNonIp),
        row("three tags", ethernet(&[TAG; 3], IPV4, &V4::from(good).packet(UDP, &query)), "", DropMalformed),
        row(
            "ten tags",
            ethernet(&[TAG; 10], IPV6, &V6::from("2001:db8::1").packet(UDP, &query)),
            "",
            DropMalformed,
        ),
        row("three tags before LLDP", ethernet(&[TAG; 3], 0x88cc, &[0; 46]), "", DropMalformed),
        row("a tag and no EtherType", ethernet(&[], TAG, &[0, 1]), "", DropMalformed),
        row(
            "19 bytes of IPv4",
            ethernet(&[], IPV4, &V4::from(good).packet(UDP, b"")[..19]),
            "",
            DropMalformed,
        ),
        row(
            "39 bytes of IPv6",
            ethernet(&[], IPV6, &V6::from("::1").packet(UDP, b"")[..39]),
            "",
            DropMalformed,
        ),
        row(
            "an ihl of 4",
            ethernet(&[], IPV4, &V4::from(good).header_length(4).packet(UDP, &query)),
            "",
            DropMalformed,
        ),
        row(
            "version 6 as IPv4",
            ethernet(&[], IPV4, &V4::from(good).version(6).packet(UDP, &query)),
            "",
            DropMalformed,
        ),
        row(
            "a total length too long",
            ethernet(&[], IPV4, &V4::from(good).total_length(29).packet(UDP, &query)),
            "",
            DropMalformed,
        ),
        row(
            "a payload length too long",
            ethernet(&[], IPV6, &V6::from("::1").payload_length(9).packet(UDP, &query)),
            "",
            DropMalformed,
        ),
        row(
            "malformed, from a bad source",
            ethernet(&[], IPV4, &V4::from("198.51.100.9").total_length(19).packet(UDP, &query)),
            "",
            DropMalformed,
        ),
        // The link.
        row("ARP", ethernet(&[], ARP, &arp_request(good, "192.0.2.2")), "", PassLink),
        row("ARP behind two tags", ethernet(&[TAG, TAG], ARP, &arp_request(good, "192.0.2.2")), "", PassLink),
        row(
            "ARP of a bad source",
            ethernet(&[], ARP, &arp_request("198.51.100.9", "192.0.2.2")),
            "",
            PassLink,
        ),
        row("a solicitation", to_v6(near("2001:db8::1")), "", PassLink),
        row("a bad source's solicitation", to_v6(near("2001:db8:bad::1")), "", PassLink),
        row(
            "a bad source's solicitation, hop limit 254",
            to_v6(near("2001:db8:bad::1").hop_limit(254)),
            "bad",
            DropRule,
        ),
        row(
            "a bad source's solicitation, code 1",
            ethernet(&[], IPV6, &near("2001:db8:bad::1").packet(ICMPV6, &icmp(135, 1))),
            "bad",
            DropRule,
        ),
        row(
            "a bad source's solicitation, atomic",
            to_v6(near("2001:db8:bad::1").with(Extension::Fragment(0, false))),
            "bad",
            DropRule,
        ),
        row(
            "a bad source's solicitation, cut",
            ethernet(&[], IPV6, &near("2001:db8:bad::1").packet(ICMPV6, &icmp(135, 0)[..7])),
            "bad",
            DropRule,
        ),
        row(
            "a bad source's redirect",
            ethernet(&[], IPV6, &near("2001:db8:bad::1").packet(ICMPV6, &icmp(137, 0))),
            "",
            PassLink,
        ),
        row(
            "a bad source's ICMPv6 138",
            ethernet(&[], IPV6, &near("2001:db8:bad::1").packet(ICMPV6, &icmp(138, 0))),
            "bad",
            DropRule,
        ),
        row("MLD", report("fe80::1", 1), "", PassLink),
        row("MLD with hop limit 2", report("fe80::1", 2), "", PassDefault),
        row("a bad source's MLD", report("2001:db8:bad::1", 1), "bad", DropRule),
        // Sets and file order.
        row("office to ssh", v4("203.0.113.9", TCP, &tcp(1, 22, SYN)), "management", PassRule),
        row("office to ssh, established", v4("203.0.113.9", TCP, &tcp(1, 22, ACK)), "management", PassRule),
        row(
            "office to ssh over IPv6",
            v6("2001:db8:5:ffff::1", TCP, &tcp(1, 22, SYN)),
            "management",
            PassRule,
        ),
        row(
            "office to ssh, carried in IPv6",
            v6("::ffff:203.0.113.9", TCP, &tcp(1, 22, SYN)),
            "management",
            PassRule,
        ),
        row(
            "office to ssh behind two tags",
            ethernet(&[SERVICE_TAG, TAG], IPV4, &V4::from("203.0.113.9").packet(TCP, &tcp(1, 22, SYN))),
            "management",
            PassRule,
        ),
        row("office to UDP 22", v4("203.0.113.9", UDP, &udp(1, 22, b"")), "", PassDefault),
        row("another to ssh", v4(good, TCP, &tcp(1, 22, SYN)), "", PassDefault),
        row("partner's port", v4("198.51.100.7", TCP, &tcp(1, 443, SYN)), "partner", PassRule),
        row("partner's other port", v4("198.51.100.7", TCP, &tcp(1, 444, SYN)), "bad", DropRule),
        row(
            "partner's port, carried in IPv6",
            v6("64:ff9b::198.51.100.7", TCP, &tcp(1, 443, ACK)),
            "partner",
            PassRule,
        ),
        row("partner's neighbour", v4("198.51.100.6", TCP, &tcp(1, 443, SYN)), "bad", DropRule),
        row("the first of the bad", v4("198.51.100.0", UDP, &query), "bad", DropRule),
        row("the last of the bad", v4("198.51.100.255", UDP, &query), "bad", DropRule),
        row("one before the bad", v4("198.51.99.255", UDP, &udp(1, 9, b"")), "", PassDefault),
        row("one behind the bad", v4("198.51.101.0", UDP, &udp(1, 9, b"")), "", PassDefault),
        row("the first bad IPv6", v6("2001:db8:bad::", UDP, &query), "bad", DropRule),
        row("the last bad IPv6", v6("2001:db8:bad:ffff:ffff:ffff:ffff:ffff", UDP, &query), "bad", DropRule),
        row(
            "one before the bad IPv6",
            v6("2001:db8:bac:ffff:ffff:ffff:ffff:ffff", UDP, &udp(1, 9, b"")),
            "",
            PassDefault,
        ),
        row("one behind the bad IPv6", v6("2001:db8:bae::", UDP, &udp(1, 9, b"")), "", PassDefault),
        // A source cannot choose its way round.
        row("bad SYN", v4("198.51.100.9", TCP, &tcp(1, 443, SYN)), "bad", DropRule),
        row("bad SCTP", v4("198.51.100.9", SCTP, &sctp(1, 2)), "bad", DropRule),
        row("bad ICMP", v4("198.51.100.9", ICMP, &icmp(0, 0)), "bad", DropRule),
        row("bad ICMP in IPv6", v6("2001:db8:bad::1", ICMP, &icmp(8, 0)), "bad", DropRule),
        row("bad GRE", v4("198.51.100.9", GRE, &[0; 32]), "bad", DropRule),
        row("bad ESP", v6("2001:db8:bad::1", ESP, &[0; 32]), "bad", DropRule),
        row("bad AH in IPv4", v4("198.51.100.9", 51, &[0; 32]), "bad", DropRule),
        row(
            "bad IPIP around a good source",
            v4("198.51.100.9", IPIP, &V4::from(good).packet(UDP, &query)),
            "bad",
            DropRule,
        ),
        row(
            "bad first fragment",
            ethernet(&[], IPV4, &V4::from("198.51.100.9").fragment(0, true).packet(UDP, &query)),
            "bad",
            DropRule,
        ),
        row(
            "bad later fragment",
            ethernet(&[], IPV4, &V4::from("198.51.100.9").fragment(185, false).packet(UDP, &query)),
            "bad",
            DropRule,
        ),
        row(
            "bad fragment at 1",
            ethernet(
                &[],
                IPV6,
                &V6::from("2001:db8:bad::1").with(Extension::Fragment(1, true)).packet(UDP, &query),
            ),
            "bad",
            DropRule,
        ),
        row(
            "bad options",
            ethernet(&[], IPV4, &V4::from("198.51.100.9").option_words(10).packet(UDP, &query)),
            "bad",
            DropRule,
        ),
        row(
            "bad, 8 extension headers",
            ethernet(&[], IPV6, &chain("2001:db8:bad::1", 8).packet(UDP, &query)),
            "bad",
            DropRule,
        ),
        row(
            "bad, 9 extension headers",
            ethernet(&[], IPV6, &chain("2001:db8:bad::1", 9).packet(UDP, &query)),
            "bad",
            DropRule,
        ),
        row(
            "bad, routing header cut",
            ethernet(&[], IPV6, &V6::from("2001:db8:bad::1").packet(ROUTING, &[17, 9])),
            "bad",
            DropRule,
        ),
        row("bad, 7 bytes of UDP", v4("198.51.100.9", UDP, &query[..7]), "bad", DropRule),
        row("bad, no payload", v4("198.51.100.9", TCP, b""), "bad", DropRule),
        row(
            "bad behind a tag",
            ethernet(&[TAG], IPV4, &V4::from("198.51.100.9").packet(UDP, &query)),
            "bad",
            DropRule,
        ),
        row("bad, carried in IPv6", v6("::ffff:198.51.100.9", UDP, &query), "bad", DropRule),
        row("bad, translated to IPv6", v6("64:ff9b::198.51.100.9", GRE, &[0; 8]), "bad", DropRule),
        row(
            "bad IGMP with TTL 1",
            ethernet(
                &[],
                IPV4,
                &V4::from("198.51.100.9").ttl(1).packet(IGMP, &igmp_report([224, 0, 0, 251])),
            ),
            "bad",
            DropRule,
        ),
        row("bad DHCP reply", v4("198.51.100.9", UDP, &udp(67, 68, &[2; 4])), "bad", DropRule),
        row("bad DHCPv6 reply", v6("2001:db8:bad::1", UDP, &udp(547, 546, &[2; 4])), "bad", DropRule),
        row("bad, larger than a page", v4("198.51.100.9", UDP, &udp(1, 2, &[0; 8000])), "bad", DropRule),
        row(
            "good IGMP with TTL 1",
            ethernet(&[], IPV4, &V4::from(good).ttl(1).packet(IGMP, &igmp_report([224, 0, 0, 251]))),
            "",
            PassLinkSpared,
        ),
        row("good DHCP reply", v4(good, UDP, &udp(67, 68, &[2; 4])), "", PassLinkSpared),
        // Source ports.
        row("from UDP 53", v4(good, UDP, &udp(53, 1000, b"")), "reflection", DropRule),
        row("from UDP 53 to 53", v4(good, UDP, &udp(53, 53, b"")), "reflection", DropRule),
        row("from UDP 123 over IPv6", v6("2001:db8::1", UDP, &udp(123, 1000, b"")), "reflection", DropRule),
        row("from UDP 124", v4(good, UDP, &udp(124, 1000, b"")), "", PassDefault),
        row("from TCP 53", v4(good, TCP, &tcp(53, 1000, ACK)), "", PassDefault),
        row("from SCTP 53", v4("10.9.9.9", SCTP, &sctp(53, 1000)), "odd", PassWithin),
        // One bucket for a source, whatever shape it takes.
        row("the first SYN", v4(good, TCP, &tcp(1, 443, SYN)), "handshakes", PassWithin),
        row("an ACK is no SYN", v4(good, TCP, &tcp(1, 443, ACK)), "", PassDefault),
        row("a SYN ACK is no SYN", v4(good, TCP, &tcp(1, 443, SYN | ACK)), "", PassDefault),
        row("the second SYN, to another port", v4(good, TCP, &tcp(1, 80, SYN)), "handshakes", PassWithin),
        row("the third SYN", v4(good, TCP, &tcp(1, 443, SYN)), "handshakes", DropOver),
        row(
            "the third SYN with options",
            ethernet(&[], IPV4, &V4::from(good).option_words(3).packet(TCP, &tcp(1, 443, SYN))),
            "handshakes",
            DropOver,
        ),
        row(
            "the third SYN in a first fragment",
            ethernet(&[], IPV4, &V4::from(good).fragment(0, true).packet(TCP, &tcp(1, 443, SYN))),
            "handshakes",
            DropOver,
        ),
        row(
            "the third SYN carried in IPv6",
            v6("::ffff:192.0.2.1", TCP, &tcp(1, 443, SYN)),
            "handshakes",
            DropOver,
        ),
        row(
            "the third SYN translated to IPv6",
            v6("64:ff9b::192.0.2.1", TCP, &tcp(1, 443, SYN)),
            "handshakes",
            DropOver,
        ),
        row("a SYN of a neighbour", v4("192.0.2.2", TCP, &tcp(1, 443, SYN)), "handshakes", PassWithin),
        row("a /64's first SYN", v6("2001:db8:0:7::1", TCP, &tcp(1, 443, SYN)), "handshakes", PassWithin),
        row("a /64's second SYN", v6("2001:db8:0:7::2", TCP, &tcp(1, 443, SYN)), "handshakes", PassWithin),
        row(
            "a /64's third SYN",
            v6("2001:db8:0:7:ffff:ffff:ffff:ffff", TCP, &tcp(1, 443, SYN)),
            "handshakes",
            DropOver,
        ),
        row(
            "a /64's third SYN, atomic",
            ethernet(
                &[],
                IPV6,
                &V6::from("2001:db8:0:7::3")
                    .with(Extension::Fragment(0, false))
                    .packet(TCP, &tcp(1, 443, SYN)),
            ),
            "handshakes",
            DropOver,
        ),
        row(
            "a /64's third SYN behind 8 headers",
            ethernet(&[], IPV6, &chain("2001:db8:0:7::4", 8).packet(TCP, &tcp(1, 443, SYN))),
            "handshakes",
            DropOver,
        ),
        row("another /64's SYN", v6("2001:db8:0:8::1", TCP, &tcp(1, 443, SYN)), "handshakes", PassWithin),
        row(
            "one link-local address's first",
            v6("fe80::1", TCP, &tcp(1, 443, SYN)),
            "handshakes",
            PassWithin,
        ),
        row(
            "one link-local address's second",
            v6("fe80::1", TCP, &tcp(1, 443, SYN)),
            "handshakes",
            PassWithin,
        ),
        row("one link-local address's third", v6("fe80::1", TCP, &tcp(1, 443, SYN)), "handshakes", DropOver),
        row("another link-local address", v6("fe80::2", TCP, &tcp(1, 443, SYN)), "handshakes", PassWithin),
        // Observing disarms nothing that follows.
        row("the first query", v4(good, UDP, &query), "queries", PassWithin),
        row("the second query", v4(good, UDP, &query), "queries", PassWithin)
            .observed_by("trial", WouldDropOver),
        row("the third, over TCP", v4(good, TCP, &tcp(1, 53, ACK)), "queries", PassWithin)
            .observed_by("trial", WouldDropOver),
        row("the fourth", v4(good, UDP, &query), "queries", DropOver).observed_by("trial", WouldDropOver),
        row("an observed drop", v4(good, UDP, &udp(1, 60000, b"")), "", PassDefault)
            .observed_by("trial-high", WouldDropRule),
        row("the end of the observed range", v4(good, UDP, &udp(1, 65535, b"")), "", PassDefault)
            .observed_by("trial-high", WouldDropRule),
        row("before the observed range", v4(good, UDP, &udp(1, 59999, b"")), "", PassDefault),
        // What has no port.
        row(
            "a later fragment",
            ethernet(&[], IPV4, &V4::from(good).fragment(9, true).packet(UDP, &query)),
            "odd",
            PassWithin,
        ),
        row(
            "a first one without UDP",
            ethernet(&[], IPV4, &V4::from(good).fragment(0, true).packet(UDP, &query[..4])),
            "odd",
            PassWithin,
        ),
        row("GRE after them", v4(good, GRE, &[0; 8]), "odd", DropOver),
        row("SCTP after them", v4(good, SCTP, &sctp(1, 2)), "odd", DropOver),
        row("half of UDP after them", v4(good, UDP, &query[..7]), "odd", DropOver),
        row("ESP over IPv6", v6("2001:db8::1", ESP, &[0; 8]), "odd", PassWithin),
        row(
            "nine extension headers",
            ethernet(&[], IPV6, &chain("2001:db8::1", 9).packet(UDP, &query)),
            "odd",
            PassWithin,
        ),
        row("ICMP over IPv6", v6("2001:db8::1", ICMP, &icmp(8, 0)), "odd", DropOver),
        row("an echo request", v4(good, ICMP, &icmp(8, 0)), "ping", DropRule),
        row("an echo request over IPv6", v6("2001:db8::1", ICMPV6, &icmp(128, 0)), "ping", DropRule),
        row("an echo reply", v4(good, ICMP, &icmp(0, 0)), "", PassDefault),
        row("an echo reply over IPv6", v6("2001:db8::1", ICMPV6, &icmp(129, 0)), "", PassDefault),
    ];
    let count = check(POLICY, rows);
    assert!(count >= 80, "{count} rows");
}

#[test]
fn a_policy_that_drops_everything_keeps_the_link() {
    let near =
        |kind: u8| ethernet(&[], IPV6, &V6::from("fe80::1").hop_limit(255).packet(ICMPV6, &icmp(kind, 0)));
    let listener =
        |kind: u8| ethernet(&[], IPV6, &V6::from("fe80::1").hop_limit(1).packet(ICMPV6, &icmp(kind, 0)));
    let igmp = |ttl: u8| {
        ethernet(&[], IPV4, &V4::from("192.0.2.1").ttl(ttl).packet(IGMP, &igmp_report([224, 0, 0, 251])))
    };
    check(
        "version = 1\n[default]\nverdict = \"drop\"\nmalformed = \"pass\"\n",
        vec![
            row("UDP", v4("192.0.2.1", UDP, &udp(1, 2, b"")), "", DropDefault),
            row("an echo request", v6("fe80::1", ICMPV6, &icmp(128, 0)), "", DropDefault),
            row(
                "a later fragment",
                ethernet(&[], IPV4, &V4::from("192.0.2.1").fragment(9, true).packet(UDP, &[0; 8])),
                "",
                DropDefault,
            ),
            row("malformed", ethernet(&[TAG; 3], IPV4, b""), "", PassMalformed),
            row("not IP", ethernet(&[], 0x88cc, &[0; 46]), "", PassNonIp),
            row("ARP", ethernet(&[], ARP, &arp_request("192.0.2.1", "192.0.2.2")), "", PassLink),
            row("router solicitation", near(133), "", PassLink),
            row("router advertisement", near(134), "", PassLink),
            row("neighbour solicitation", near(135), "", PassLink),
            row("neighbour advertisement", near(136), "", PassLink),
            row("redirect", near(137), "", PassLink),
            row("listener query", listener(130), "", PassLink),
            row("listener report", listener(131), "", PassLink),
            row("listener done", listener(132), "", PassLink),
            row("listener report, version 2", listener(143), "", PassLink),
            row("IGMP with TTL 1", igmp(1), "", PassLinkSpared),
            row("IGMP with TTL 2", igmp(2), "", DropDefault),
            row("a DHCP reply", v4("192.0.2.1", UDP, &udp(67, 68, &[2; 4])), "", PassLinkSpared),
            row("a DHCP request", v4("192.0.2.1", UDP, &udp(68, 67, &[1; 4])), "", DropDefault),
            row(
                "a fragment of a DHCP reply",
                ethernet(&[], IPV4, &V4::from("192.0.2.1").fragment(0, true).packet(UDP, &udp(67, 68, b""))),
                "",
                DropDefault,
            ),
            row("a DHCPv6 reply", v6("fe80::1", UDP, &udp(547, 546, &[2; 4])), "", PassLinkSpared),
            row("a DHCPv6 request", v6("fe80::1", UDP, &udp(546, 547, &[1; 4])), "", DropDefault),
        ],
    );
}

const BYTES_POLICY: &str = r#"
version = 1

[default]
limit = [{ per = "source", rate = "5/15m", burst = 5 }]

[sets]
known = ["10.0.0.0/8"]

[[rule]]
name = "never"
from = "known"
to = ["udp/67-68"]
verdict = "drop"

[[rule]]
name = "bytes"
to = ["udp/1000"]
limit = [{ per = "source", rate = "100 B/15m", burst = "100 B" }]

[[rule]]
name = "both"
to = ["udp/2000"]
limit = [{ per = "source", rate = "3/15m", burst = 3 }, { per = "source", rate = "200 B/15m", burst = "200 B" }]

[[rule]]
name = "large"
to = ["udp/3000"]
limit = [{ per = "source", rate = "18000 B/15m", burst = "18000 B" }]

[[rule]]
name = "free"
to = ["udp/4000"]
verdict = "pass"
"#;

#[test]
fn several_limits_in_packets_and_bytes_and_the_floor() {
    let deep = {
        // Eight headers of 2040 bytes: UDP lies in a later buffer of the frame.
        let mut header = V6::from("2001:db8::1");
        header.chain = vec![Extension::Common(DESTINATION, 255); 8];
        ethernet(&[], IPV6, &header.packet(UDP, &udp(1, 4000, b"")))
    };
    let mut padded = sized("192.0.2.3", 1000, 60);
    padded.resize(14 + 101, 0);
    check(
        BYTES_POLICY,
        vec![
            row("60 of 100 bytes", sized("192.0.2.1", 1000, 60), "bytes", PassWithin),
            row("60 more", sized("192.0.2.1", 1000, 60), "bytes", DropOver),
            row("the 40 that are left", sized("192.0.2.1", 1000, 40), "bytes", PassWithin),
            row("28 more", sized("192.0.2.1", 1000, 28), "bytes", DropOver),
            row("101 bytes", sized("192.0.2.2", 1000, 101), "bytes", DropOversize),
            row("100 bytes, after the one too large", sized("192.0.2.2", 1000, 100), "bytes", PassWithin),
            row("60 bytes and 41 trailing ones", padded, "bytes", DropOversize),
            // All have room, or none is charged.
            row("100 bytes, one of three", sized("192.0.2.4", 2000, 100), "both", PassWithin),
            row("100 bytes, two of three", sized("192.0.2.4", 2000, 100), "both", PassWithin),
            row("no byte is left", sized("192.0.2.4", 2000, 28), "both", DropOver),
            row("the refused ones did not spend the floor: 3", sized("192.0.2.4", 9, 28), "", PassWithin),
            row("the refused ones did not spend the floor: 4", sized("192.0.2.4", 9, 28), "", PassWithin),
            row("the refused ones did not spend the floor: 5", sized("192.0.2.4", 9, 28), "", PassWithin),
            row("the floor is spent", sized("192.0.2.4", 9, 28), "", DropOver),
            row("a passing rule spends no floor", sized("192.0.2.4", 4000, 28), "free", PassRule),
            row("28 bytes, one of three", sized("192.0.2.5", 2000, 28), "both", PassWithin),
            row("28 bytes, two of three", sized("192.0.2.5", 2000, 28), "both", PassWithin),
            row("28 bytes, three of three", sized("192.0.2.5", 2000, 28), "both", PassWithin),
            row("28 bytes, no packet left", sized("192.0.2.5", 2000, 28), "both", DropOver),
            row("201 of 200 bytes", sized("192.0.2.6", 2000, 201), "both", DropOversize),
            row("five by default: 1", sized("192.0.2.7", 9, 28), "", PassWithin),
            row("five by default: 2", sized("192.0.2.7", 9, 28), "", PassWithin),
            row("five by default: 3", sized("192.0.2.7", 9, 28), "", PassWithin),
            row("five by default: 4", sized("192.0.2.7", 9, 28), "", PassWithin),
            row("five by default: 5", sized("192.0.2.7", 9, 28), "", PassWithin),
            row(
                "a limit rule cannot spend a floor that is gone",
                sized("192.0.2.7", 2000, 28),
                "both",
                DropOver,
            ),
            // Frames of several buffers.
            row("9000 of 18000 bytes", sized("192.0.2.8", 3000, 9000), "large", PassWithin),
            row("9001 more", sized("192.0.2.8", 3000, 9001), "large", DropOver),
            row("9000 more", sized("192.0.2.8", 3000, 9000), "large", PassWithin),
            row("18001 bytes", sized("192.0.2.9", 3000, 18001), "large", DropOversize),
            row("18000 bytes", sized("192.0.2.9", 3000, 18000), "large", PassWithin),
            row("UDP behind 16 kB of extension headers", deep, "free", PassRule),
            // Spared from limits, not from a drop rule that names sources.
            row("a DHCP reply of a known source", v4("10.0.0.1", UDP, &udp(67, 68, b"")), "never", DropRule),
            row("a DHCP reply of another", v4("192.0.2.7", UDP, &udp(67, 68, b"")), "", PassLinkSpared),
        ],
    );
}

/// 10 000/s for the link, 1 000/s for what is spared, each with a burst of a second.
#[test]
fn the_link_has_its_own_budgets() {
    let arp = ethernet(&[], ARP, &arp_request("192.0.2.1", "192.0.2.2"));
    let dhcp = v4("192.0.2.1", UDP, &udp(67, 68, &[2; 4]));
    let policy = "version = 1\n[default]\nverdict = \"drop\"\n";
    for (frame, rate, pass, over) in
        [(&arp, 10_000.0, PassLink, DropLinkOver), (&dhcp, 1_000.0, PassLinkSpared, DropDefault)]
    {
        let guard = Guard::with(policy);
        let offered = 200_000;
        let (before, after) = guard.repeat(frame, offered);
        // Both budgets are kept by the coarse clock, whose spread, a tick, is a stated slack.
        let interval = (after.coarse - before.coarse + guard.facts().tick_ns) as f64 / 1e9;
        let passed = guard.counted("", pass).packets;
        let dropped = guard.counted("", over).packets;
        assert_eq!(passed + dropped, u64::from(offered), "{pass:?}: every packet is one or the other");
        let bound = rate + rate * interval;
        assert!(passed as f64 <= bound, "{pass:?}: {passed} passed of at most {bound}");
        assert!(dropped > 0, "{pass:?}: {offered} were offered in {interval} s, and none was too many");
        assert!(passed as f64 >= rate, "{pass:?}: {passed} passed of a burst of {rate}");
        // Nothing else may take from it: another source's packet of the other kind still passes.
        let (other, outcome) = if pass == PassLink { (&dhcp, PassLinkSpared) } else { (&arp, PassLink) };
        assert_eq!(guard.judge(other).outcome, outcome);
    }
}
