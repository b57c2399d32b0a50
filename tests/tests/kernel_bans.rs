//! Bans in the program: what they refuse, what no trick gets past them, how they end, and what the lifeline keeps.
//!
//! Bans are put here by the datapath alone, with nobody at work behind it, as a daemon leaves them that dies.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::time::{Duration, Instant};

use limiter_common::{
    abi::{BAN_LIFELINE, Ban, FOREVER},
    verdict::Outcome::{
        self, DropBan, DropLinkOver, DropOver, DropRule, PassDefault, PassLink, PassRule, PassWithin,
    },
};
use limiter_tests::{
    frame::{
        ACK, ARP, DESTINATION, ESP, Extension, GRE, HOP_BY_HOP, ICMP, ICMPV6, IGMP, IPIP, IPV4, IPV6,
        ROUTING, SCTP, SERVICE_TAG, SYN, TAG, TCP, UDP, V4, V6, arp_request, ethernet, icmp, igmp_report,
        neighbour_solicitation, sctp, tcp, udp,
    },
    kernel::Guard,
};
use limiter_user::datapath::{Datapath as _, Refill};

/// Everything passes but what is banned.
const OPEN: &str = "version = 1";

/// Until lifted; no rule of the lifeline is about it.
const BAN: Ban = Ban { until: FOREVER, own_until: FOREVER, flags: 0, by: 0 };
/// The same, and there may be a rule.
const MARKED: Ban = Ban { flags: BAN_LIFELINE, ..BAN };

fn v4(source: &str) -> Vec<u8> {
    ethernet(&[], IPV4, &V4::from(source).packet(UDP, &udp(4000, 53, b"query")))
}

fn v6(source: &str) -> Vec<u8> {
    ethernet(&[], IPV6, &V6::from(source).packet(UDP, &udp(4000, 53, b"query")))
}

/// What must become of frames under a policy and bans.
fn check(policy: &str, bans: &[(&str, Ban)], rows: &[(&str, Vec<u8>, Outcome)]) {
    let mut guard = Guard::with(policy);
    guard.ban(bans);
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(what, frame, expected)| {
            let outcome = guard.judge(frame).outcome;
            (outcome != *expected).then(|| format!("{what}: expected {expected:?}, got {outcome:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_ban_is_of_an_address_or_a_prefix() {
    let bans = [
        ("203.0.113.9/32", BAN),
        ("198.51.100.0/24", BAN),
        ("2001:db8:0:1::/64", BAN),
        ("2001:db8:0:2::5/128", BAN),
        ("2001:db8:8000::/33", BAN),
    ];
    let rows = [
        ("the address", v4("203.0.113.9"), DropBan),
        ("its neighbours", v4("203.0.113.8"), PassDefault),
        ("its neighbours", v4("203.0.113.10"), PassDefault),
        ("first of the prefix", v4("198.51.100.0"), DropBan),
        ("last of the prefix", v4("198.51.100.255"), DropBan),
        ("before the prefix", v4("198.51.99.255"), PassDefault),
        ("behind the prefix", v4("198.51.101.0"), PassDefault),
        ("first of the /64", v6("2001:db8:0:1::"), DropBan),
        ("last of the /64", v6("2001:db8:0:1:ffff:ffff:ffff:ffff"), DropBan),
        ("before the /64", v6("2001:db8:0:0:ffff:ffff:ffff:ffff"), PassDefault),
        ("behind the /64", v6("2001:db8:0:2::"), PassDefault),
        ("the /128", v6("2001:db8:0:2::5"), DropBan),
        ("its neighbour", v6("2001:db8:0:2::4"), PassDefault),
        ("first of the /33", v6("2001:db8:8000::"), DropBan),
        ("last of the /33", v6("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"), DropBan),
        ("before the /33", v6("2001:db8:7fff::"), PassDefault),
        ("behind the /33", v6("2001:db9::"), PassDefault),
    ];
    check(OPEN, &bans, &rows);
}

#[test]
fn no_trick_of_a_protocol_passes_a_ban() {
    let policy = "version = 1\n[default]\nipv4-in-ipv6 = [\"64:ff9b::/96\"]\n";
    let source = || V4::from("203.0.113.9");
    let source6 = || V6::from("2001:db8::1");
    let udp = || udp(4000, 53, b"query");
    let of_ip4 = |packet: Vec<u8>| ethernet(&[], IPV4, &packet);
    let of_ip6 = |packet: Vec<u8>| ethernet(&[], IPV6, &packet);
    let mut chain = source6();
    for header in
        [HOP_BY_HOP, ROUTING, DESTINATION, DESTINATION, DESTINATION, DESTINATION, DESTINATION, DESTINATION]
    {
        chain = chain.with(Extension::Common(header, 1));
    }
    let longer = chain.clone().with(Extension::Common(DESTINATION, 1));
    let drop = |what: &'static str, frame: Vec<u8>| (what, frame, DropBan);
    let mut rows = vec![
        drop("a fresh SYN", of_ip4(source().packet(TCP, &tcp(4000, 443, SYN)))),
        drop("an ACK", of_ip4(source().packet(TCP, &tcp(4000, 443, ACK)))),
        drop("SCTP", of_ip4(source().packet(SCTP, &sctp(4000, 443)))),
        drop("ICMP", of_ip4(source().packet(ICMP, &icmp(8, 0)))),
        drop("a cut TCP header", of_ip4(source().packet(TCP, &[0, 1]))),
        drop("a tunnel", of_ip4(source().packet(IPIP, &V4::from("192.0.2.1").packet(UDP, &udp())))),
        drop("GRE", of_ip4(source().packet(GRE, &[0; 8]))),
        drop("ESP", of_ip4(source().packet(ESP, &[0; 16]))),
        drop("an unknown protocol", of_ip4(source().packet(253, b"?"))),
        drop("options", of_ip4(source().option_words(10).packet(UDP, &udp()))),
        drop("a first fragment", of_ip4(source().fragment(0, true).packet(UDP, &udp()))),
        drop("a later fragment", of_ip4(source().fragment(64, false).packet(UDP, &[0; 8]))),
        drop("offset 1", of_ip4(source().fragment(1, false).packet(TCP, &[0; 16]))),
        drop("a tag", ethernet(&[TAG], IPV4, &source().packet(UDP, &udp()))),
        drop("two tags", ethernet(&[SERVICE_TAG, TAG], IPV4, &source().packet(UDP, &udp()))),
        drop("IGMP", of_ip4(source().ttl(1).packet(IGMP, &igmp_report([224, 0, 0, 251])))),
        drop("a DHCP reply", of_ip4(source().packet(UDP, &limiter_tests::frame::udp(67, 68, b"offer")))),
        drop("a DHCPv6 reply", of_ip6(source6().packet(UDP, &limiter_tests::frame::udp(547, 546, b"reply")))),
        drop("IPv6", of_ip6(source6().packet(UDP, &udp()))),
        drop("eight extension headers", of_ip6(chain.packet(UDP, &udp()))),
        drop("nine extension headers", of_ip6(longer.packet(UDP, &udp()))),
        drop("a fragment of IPv6", of_ip6(source6().with(Extension::Fragment(0, true)).packet(UDP, &udp()))),
        drop("a later one", of_ip6(source6().with(Extension::Fragment(8, false)).packet(UDP, &udp()))),
        drop("an atomic one", of_ip6(source6().with(Extension::Fragment(0, false)).packet(UDP, &udp()))),
        drop("an echo request", of_ip6(source6().packet(ICMPV6, &icmp(128, 0)))),
        drop("carried, mapped", v6("::ffff:203.0.113.9")),
        drop("carried, NAT64", v6("64:ff9b::203.0.113.9")),
        drop("carried, of the prefix", v6("64:ff9b::198.51.100.7")),
        drop("a carrier that is banned as it is on the wire", v6("2001:db8::203.0.113.8")),
    ];
    rows.push(("another source, carried", v6("64:ff9b::203.0.113.8"), PassDefault));
    // What keeps the host on its link is no traffic of a source.
    rows.push(("ARP", ethernet(&[], ARP, &arp_request("203.0.113.9", "192.0.2.1")), PassLink));
    let solicitation = of_ip6(source6().hop_limit(255).icmpv6(&neighbour_solicitation("2001:db8::2")));
    rows.push(("neighbour discovery", solicitation, PassLink));
    let bans = [("203.0.113.9/32", BAN), ("198.51.100.0/24", BAN), ("2001:db8::/64", BAN)];
    check(policy, &bans, &rows);
}

#[test]
fn a_carrier_can_be_banned_without_the_sources_it_carries() {
    let policy = "version = 1\n[default]\nipv4-in-ipv6 = [\"64:ff9b::/96\"]\n";
    let rows = [
        ("carried", v6("64:ff9b::203.0.113.9"), DropBan),
        ("carried otherwise", v6("::ffff:203.0.113.9"), PassDefault),
        ("itself", v4("203.0.113.9"), PassDefault),
    ];
    check(policy, &[("64:ff9b::/32", BAN)], &rows);
}

#[test]
fn the_lifeline_judges_before_a_ban_and_nothing_else_does() {
    let policy = r#"
        version = 1
        [[rule]]
        name = "scanners"
        from = "203.0.113.66"
        verdict = "drop"
        [[rule]]
        name = "management"
        from = "203.0.113.0/24"
        to = "tcp/22"
        verdict = "pass"
        before = "bans"
        [[rule]]
        name = "names"
        from = "203.0.113.0/24"
        to = "udp/53"
        limit = [{ per = "source", rate = "1/h", burst = 1 }]
        before = "bans"
        [[rule]]
        name = "web"
        to = "tcp/443"
        verdict = "pass"
    "#;
    let of = |source: &str, port| ethernet(&[], IPV4, &V4::from(source).packet(TCP, &tcp(4000, port, SYN)));
    let rows = [
        ("the lifeline", of("203.0.113.9", 22), PassRule),
        ("another rule", of("203.0.113.9", 443), DropBan),
        ("no rule", of("203.0.113.9", 80), DropBan),
        ("a limit of the lifeline", v4("203.0.113.9"), PassWithin),
        ("beyond it", v4("203.0.113.9"), DropOver),
        ("an earlier rule decides", of("203.0.113.66", 22), DropBan),
        ("not of the lifeline's sources", of("198.51.100.1", 22), DropBan),
        (
            "spared traffic",
            ethernet(&[], IPV4, &V4::from("203.0.113.9").ttl(1).packet(IGMP, &[0; 8])),
            DropBan,
        ),
        (
            "carried",
            ethernet(&[], IPV6, &V6::from("::ffff:203.0.113.9").packet(TCP, &tcp(4000, 22, SYN))),
            PassRule,
        ),
        ("not banned, not of the lifeline", of("192.0.2.1", 22), PassDefault),
        ("not banned, dropped", v4("203.0.113.66"), DropRule),
    ];
    let rows = &rows[..];
    let (banned, free) = rows.split_at(9);
    check(policy, &[("203.0.113.0/24", MARKED), ("198.51.100.1/32", BAN)], banned);
    check(policy, &[("198.51.100.1/32", BAN)], free);
    // Without the mark there is nothing to classify for: the ban holds.
    check(policy, &[("203.0.113.9/32", BAN)], &[("unmarked", of("203.0.113.9", 22), DropBan)]);
}

#[test]
fn a_ban_ends_in_the_kernel_with_nobody_at_work() {
    let mut guard = Guard::with(OPEN);
    let second = 64_000_000_000;
    let soon = guard.kernel().now() + second;
    let until = |until| Ban { until, own_until: until, ..BAN };
    guard.ban(&[
        ("203.0.113.9/32", until(soon)),
        ("198.51.100.0/24", until(soon)),
        ("192.0.2.1/32", until(0)),
        ("192.0.2.2/32", until(soon + 3600 * second)),
        // Covered by a ban that ends later, for which it answers.
        ("10.0.0.0/8", until(soon + 3600 * second)),
        ("10.1.0.0/16", Ban { until: soon + 3600 * second, own_until: soon, ..BAN }),
    ]);
    let judged = |source: &str| guard.judge(&v4(source)).outcome;
    assert_eq!(judged("203.0.113.9"), DropBan);
    assert_eq!(judged("198.51.100.7"), DropBan);
    assert_eq!(judged("192.0.2.1"), PassDefault, "ended before it was put");
    let patience = Instant::now() + Duration::from_secs(20);
    while judged("203.0.113.9") == DropBan || judged("198.51.100.7") == DropBan {
        assert!(Instant::now() < patience, "the bans do not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(guard.kernel().now() >= soon, "a ban ended early");
    assert_eq!(judged("192.0.2.2"), DropBan);
    assert_eq!(judged("10.1.2.3"), DropBan);
}

#[test]
fn lifted_bans_are_gone_and_the_rest_stays() {
    let mut guard = Guard::with(OPEN);
    guard.ban(&[("203.0.113.9/32", BAN), ("203.0.113.0/24", BAN), ("198.51.100.1/32", BAN)]);
    guard.lift(&["203.0.113.9/32", "192.0.2.1/32"]);
    assert_eq!(guard.judge(&v4("203.0.113.9")).outcome, DropBan, "the wider ban still covers it");
    guard.lift(&["203.0.113.0/24"]);
    assert_eq!(guard.judge(&v4("203.0.113.9")).outcome, PassDefault);
    assert_eq!(guard.judge(&v4("198.51.100.1")).outcome, DropBan);
    guard.lift(&["198.51.100.1/32"]);
    assert_eq!(guard.judge(&v4("198.51.100.1")).outcome, PassDefault);
    assert_eq!(guard.kernel().bans().unwrap(), []);
    assert_eq!(guard.counted("", DropBan).packets, 2);
}

#[test]
fn link_survival_has_its_budget_beside_bans() {
    let mut guard = Guard::with(OPEN);
    guard.ban(&[("0.0.0.0/0", BAN), ("2000::/3", BAN)]);
    let arp = ethernet(&[], ARP, &arp_request("203.0.113.9", "192.0.2.1"));
    let outcome = guard.judge(&arp).outcome;
    assert!(matches!(outcome, PassLink | DropLinkOver), "{outcome:?}");
    assert_eq!(guard.judge(&v4("1.2.3.4")).outcome, DropBan);
    assert_eq!(guard.judge(&v6("3fff::1")).outcome, DropBan);
    assert_eq!(guard.judge(&v6("fe80::1")).outcome, PassDefault);
}

#[test]
fn a_reset_fills_the_buckets_of_a_source_and_no_others() {
    let policy =
        "version = 1\n[[rule]]\nname = \"all\"\nlimit = [{ per = \"source\", rate = \"1/h\", burst = 1 }]\n";
    let mut guard = Guard::with(policy);
    for source in ["203.0.113.9", "203.0.113.8"] {
        assert_eq!(guard.judge(&v4(source)).outcome, PassWithin);
        assert_eq!(guard.judge(&v4(source)).outcome, DropOver);
    }
    let prefix = "203.0.113.9/32".parse().unwrap();
    assert_eq!(guard.datapath().refill(&prefix, Refill::Penalties).unwrap(), 0, "there is no penalty");
    assert_eq!(guard.judge(&v4("203.0.113.9")).outcome, DropOver);
    assert_eq!(guard.datapath().refill(&prefix, Refill::All).unwrap(), 1);
    assert_eq!(guard.judge(&v4("203.0.113.9")).outcome, PassWithin);
    assert_eq!(guard.judge(&v4("203.0.113.9")).outcome, DropOver);
    assert_eq!(guard.judge(&v4("203.0.113.8")).outcome, DropOver);
}
