//! What is in the tables of policies whose numbers can be worked out by hand.

use limiter_common::abi::{self, BYTES, Embedded, MALFORMED_PASSES, PACKETS, RULE_COARSE, action};

use super::*;

const EXAMPLE: &str = r#"version = 1

[default]
verdict = "pass"
malformed = "drop"
source = { ipv4 = 32, ipv6 = 64 }
limit = []
ipv4-in-ipv6 = ["64:ff9b::/96"]
never-ban = ["office", "192.0.2.1"]

[sets]
office = ["203.0.113.0/24", "2001:db8:5::/48"]
scanners = { file = "scanners.txt" }

[services]
dns = ["udp/53", "tcp/53"]
web = ["tcp/80", "tcp/443", "udp/443"]
web-syn = ["tcp-syn/80", "tcp-syn/443"]
high = ["udp/1024-65535"]
ping = ["icmp/echo-request", "icmpv6/echo-request"]
odd = ["fragment", "other", "sctp"]
reflection = ["udp-from/53", "udp-from/123", "udp-from/389", "udp-from/1900", "udp-from/11211"]

[limits]
total = { per = "source", rate = "2k/s", burst = 4000 }

[[rule]]
name = "management"
from = "office"
to = ["tcp/22"]
verdict = "pass"
before = "bans"

[[rule]]
name = "scanners"
from = "scanners"
verdict = "drop"

[[rule]]
name = "handshakes"
to = "web-syn"
limit = [{ per = "source", rate = "50/s", burst = 100 }, "total"]

[[rule]]
name = "trial"
to = "dns"
mode = "observe"
limit = [{ per = "source", rate = "100/s" }, "total"]

[[rule]]
name = "everything"
limit = ["total", { per = "source", rate = "50 Mbit/s", burst = "1 MB" }, { per = "source", rate = "1M/s", burst = 10 }]
"#;

fn example() -> Checked {
    let bundle = bundle(EXAMPLE).with_file("scanners.txt", "198.51.100.0/24\n::ffff:203.0.113.9\n");
    check(&bundle).unwrap_or_else(|errors| panic!("{}", shown(&errors)))
}

#[test]
fn the_example_compiles_without_a_warning() {
    let checked = example();
    assert_eq!(shown(&checked.warnings), "");
    let compiled = compiled(&checked.policy, &Slots::default());
    let names: Vec<&str> = compiled.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["", "management", "scanners", "handshakes", "trial", "everything"]);
    let actions: Vec<u8> = compiled.tables.rules[..6].iter().map(|rule| rule.action).collect();
    let expected = [action::PASS, action::PASS, action::DROP, action::LIMIT, action::LIMIT, action::LIMIT];
    assert_eq!(actions, expected);
    assert!(compiled.rules[1].before_bans && compiled.rules[4].observing);
    let header = &compiled.tables.header;
    assert_eq!((header.abi, header.generation, header.embedded_count), (abi::ABI_VERSION, 7, 2));
    assert_eq!(header.embedded[0], Embedded { high: 0, middle: 0xffff, reserved: 0 });
    assert_eq!(header.embedded[1], Embedded { high: 0x0064_ff9b_0000_0000, middle: 0, reserved: 0 });
    assert_eq!(header.flags & MALFORMED_PASSES, 0);
}

#[test]
fn limits_of_one_name_and_scope_share_a_meter() {
    let compiled = compiled(&example().policy, &Slots::default());
    let meters: Vec<_> = compiled
        .meters
        .iter()
        .map(|m| (m.limit.as_deref(), m.observing, m.rules.join("+"), m.packets.is_some(), m.bytes.is_some()))
        .collect();
    assert_eq!(
        meters,
        [
            (None, false, "handshakes".to_owned(), true, false),
            (Some("total"), false, "handshakes+everything".to_owned(), true, false),
            (None, true, "trial".to_owned(), true, false),
            (Some("total"), true, "trial".to_owned(), true, false),
            (None, false, "everything".to_owned(), true, true),
        ]
    );
    assert_eq!(compiled.rules[5].meters, [1, 4]);
    let rule = &compiled.tables.rules[5];
    assert_eq!((rule.meter_count, &rule.meters[..2]), (2, [1, 4].as_slice()));
    let meter = &compiled.tables.meters[4];
    // 50 Mbit/s are 10 240 ticks a byte; a megabyte of them is 1.024e10 ticks; 2^33 is the power below.
    assert_eq!(meter.rates[BYTES].tolerance, 10_240_000_000);
    assert_eq!(meter.rates[PACKETS].multiplier, 64_000);
    assert_eq!((meter.width_v4, meter.width_v6, meter.scale), (32, 64, 33));
    // Ten packets at a million a second are 10 µs, less than eight ticks of 4 ms; the other rules are patient.
    let coarse: Vec<u8> = compiled.tables.rules[..6].iter().map(|rule| rule.flags & RULE_COARSE).collect();
    assert_eq!(coarse, [0, 0, 0, RULE_COARSE, RULE_COARSE, 0]);
    assert!(compiled.meters.iter().all(|meter| meter.claims_per_second >= 10.0));
}

#[test]
fn numbers_are_no_part_of_a_meters_identity() {
    let before = compiled(&example().policy, &Slots::default());
    let changed = bundle(&EXAMPLE.replace("50/s", "60/s").replace("2k/s", "3k/s"))
        .with_file("scanners.txt", "198.51.100.0/24\n");
    let after = compiled(&check(&changed).unwrap().policy, &before.slots);
    let ids = |compiled: &Compiled| compiled.meters.iter().map(|m| (m.id, m.slot)).collect::<Vec<_>>();
    assert_eq!(ids(&before), ids(&after));
    assert_eq!(before.slots, after.slots);
    assert!(after.reused_rules.is_empty() && after.reused_meters.is_empty());
    // SHA-256 over length-prefixed "limit", "total", "source/32,64", "enforce", by another tool.
    assert_eq!(before.meters[1].id, 850_253_329);
}

#[test]
fn the_floor_is_charged_by_what_limits_and_the_default_admit() {
    let text = r#"version = 1
[default]
limit = [{ per = "source", rate = "1k/s" }, "total"]
[limits]
total = { per = "source", rate = "10 MB/s" }
[[rule]]
name = "own"
to = "tcp/80"
limit = ["total", { per = "source", rate = "10/s" }]
[[rule]]
name = "trial"
to = "udp"
mode = "observe"
limit = [{ per = "source", rate = "10/s" }]
[[rule]]
name = "free"
to = "tcp/22"
verdict = "pass"
"#;
    let with_pass = compiled(&valid(text).policy, &Slots::default());
    let meters =
        |compiled: &Compiled| compiled.rules.iter().map(|rule| rule.meters.clone()).collect::<Vec<_>>();
    // 0 and 1 are the floor, 2 is the rule's own; `total` counts once, and the floor comes last.
    assert_eq!(meters(&with_pass), [vec![0, 1], vec![1, 2, 0], vec![3], vec![]]);
    assert_eq!(with_pass.tables.rules[0].action, action::LIMIT);
    let with_drop = compiled(
        &valid(&text.replace("[default]", "[default]\nverdict = \"drop\"")).policy,
        &Slots::default(),
    );
    assert_eq!(meters(&with_drop), [vec![], vec![1, 2, 0], vec![3], vec![]]);
    assert_eq!(with_drop.tables.rules[0].action, action::DROP);
}

#[test]
fn a_prefix_is_another_key_and_the_narrowest_comes_first() {
    let text = r#"version = 1
[default]
limit = [{ per = "source/8,24", rate = "1k/s" }, { per = "source", rate = "1k/s" }]
[limits]
net = { per = "source/16,32", rate = "100/s" }
[[rule]]
name = "a"
limit = ["net", { per = "source/24,48", rate = "50/s" }, { per = "source", rate = "10/s" }, { per = "source/24,48", rate = "1 MB/s" }]
"#;
    let compiled = compiled(&valid(text).policy, &Slots::default());
    let keys = |rule: usize| {
        let meters = compiled.rules[rule].meters.iter().map(|meter| usize::from(*meter));
        meters
            .map(|index| (&compiled.tables.meters[index], compiled.meters[index].scope.as_str()))
            .map(|(meter, scope)| (meter.width_v4, meter.width_v6, scope))
            .collect::<Vec<_>>()
    };
    let floor = [(32, 64, "source"), (8, 24, "source/8,24")];
    let own = [(32, 64, "source"), (24, 48, "source/24,48"), (16, 32, "source/16,32")];
    assert_eq!(keys(0), floor);
    assert_eq!(keys(1), [&own[..], &floor].concat());
    let both = &compiled.tables.meters[usize::from(compiled.rules[1].meters[1])];
    assert!(both.rates.iter().all(|rate| rate.multiplier > 0), "packets and bytes of one prefix are one key");
    let ids: std::collections::BTreeSet<u32> = compiled.meters.iter().map(|meter| meter.id).collect();
    assert_eq!(ids.len(), 5);
}

#[test]
fn a_rules_own_bucket_is_charged_last_and_claims_nothing() {
    let text = r#"version = 1
[default]
limit = [{ per = "source", rate = "1k/s" }]
[limits]
all = { per = "rule", rate = "10k/s" }
[[rule]]
name = "a"
to = "udp"
limit = ["all", { per = "rule", rate = "10 MB/s" }, { per = "source/24,48", rate = "50/s" }, { per = "source", rate = "10/s" }]
[[rule]]
name = "b"
limit = ["all", { per = "rule", rate = "1/10d" }]
"#;
    let with_lone = compiled(&valid(text).policy, &Slots::default());
    let scopes = |rule: usize| {
        let meters = with_lone.rules[rule].meters.iter().map(|meter| &with_lone.meters[usize::from(*meter)]);
        meters.map(|info| format!("{} {:?}", info.scope, info.limit)).collect::<Vec<_>>()
    };
    assert_eq!(
        scopes(1),
        ["source None", "source/24,48 None", "rule Some(\"all\")", "rule None", "source None"]
    );
    assert_eq!(scopes(2), ["rule Some(\"all\")", "rule None", "source None"]);
    let shared = with_lone.rules[1].meters[2];
    assert_eq!(with_lone.rules[2].meters[0], shared, "a named limit is one bucket for all rules that use it");
    for (meter, info) in with_lone.tables.meters.iter().zip(&with_lone.meters) {
        let is_lone = info.scope == "rule";
        assert_eq!(meter.flags, if is_lone { abi::METER_LONE } else { 0 }, "{info:?}");
        // However slow it is, it needs no room in the table.
        assert_eq!(meter.claims == abi::Rate::default(), is_lone, "{info:?}");
        assert_eq!(info.claims_per_second == 0.0, is_lone, "{info:?}");
    }
}

#[test]
fn newcomers_have_a_budget_of_their_own() {
    let text = r#"version = 1
[[rule]]
name = "a"
to = "udp"
limit = [{ per = "source/24,48", rate = "50/s" }, { per = "source", rate = "10/s" }]
newcomers = "50k/s"
[[rule]]
name = "b"
mode = "observe"
limit = [{ per = "source", rate = "10/s" }]
newcomers = "1/m"
"#;
    let with = compiled(&valid(text).policy, &Slots::default());
    assert_ne!(with.tables.header.flags & abi::HAS_NEWCOMERS, 0);
    let budget = |rule: usize| {
        let rule = &with.tables.rules[rule];
        assert_ne!(rule.flags & abi::RULE_NEWCOMERS, 0);
        let index = usize::from(rule.newcomers);
        (with.meters[index].scope.clone(), with.meters[index].rules.join("+"), with.tables.meters[index])
    };
    let (scope, rules, meter) = budget(1);
    assert_eq!((scope.as_str(), rules.as_str()), ("newcomers", "a"));
    assert_eq!((meter.width_v4, meter.width_v6), (16, 32));
    assert_eq!(meter.flags, abi::METER_LONE | abi::METER_NEWCOMERS);
    // A second's worth at once; 64 ticks a nanosecond.
    assert_eq!((meter.rates[PACKETS].multiplier, meter.rates[PACKETS].burst), (1_280_000, 50_000));
    assert_eq!(meter.rates[BYTES], abi::Rate::default());
    // At least eight, so that an eighth is one.
    assert_eq!(budget(2).2.rates[PACKETS].burst, 8);
    assert_eq!(with.rules[1].meters.len(), 2, "it is none of the limits");
    // An eighth more is kept for proven sources, and comes out of the same part of the table.
    let without = text.replace("newcomers", "# newcomers");
    let without = compiled(&valid(&without).policy, &Slots::default());
    assert_eq!(without.tables.header.flags & abi::HAS_NEWCOMERS, 0);
    let claims =
        |compiled: &Compiled| compiled.meters.iter().map(|meter| meter.claims_per_second).sum::<f64>();
    let ratio = claims(&without) / claims(&with);
    assert!((1.124..1.126).contains(&ratio), "{ratio}");
}

#[test]
fn places_survive_and_retired_ones_are_told_when_taken() {
    let policy = |count: usize, prefix: &str| {
        let rules = (0..count).map(|i| {
            format!("[[rule]]\nname = \"{prefix}{i}\"\nto = \"udp/{i}\"\nlimit = [{{ per = \"source\", rate = \"1k/s\" }}]\n")
        });
        valid(&format!("version = 1\n{}", rules.collect::<String>())).policy
    };
    let first = compiled(&policy(200, "a"), &Slots::default());
    assert_eq!(first.slots.rules.len(), 201);
    assert_eq!(first.rules[0].counter, 0);
    let second = compiled(&policy(200, "b"), &first.slots);
    assert!(second.reused_rules.is_empty());
    assert_eq!(second.reused_meters.len(), 144);
    let third = compiled(&policy(200, "c"), &second.slots);
    assert_eq!(third.reused_rules.len(), 601 - 512);
    let mut used: Vec<u16> = third.rules.iter().map(|rule| rule.counter).collect();
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 201);
    assert!(third.slots.rules.values().all(|slot| usize::from(*slot) < abi::MAX_RULES));
}

#[test]
fn an_empty_policy_lets_everything_pass() {
    let compiled = compiled(&valid("version = 1\n").policy, &Slots::default());
    assert_eq!(compiled.tables.header.flags, 0);
    assert_eq!((compiled.rules.len(), compiled.meters.len(), compiled.rows.len()), (1, 0, 0));
    assert_eq!(compiled.tables.rules[0].action, action::PASS);
}

#[test]
fn numbers_as_toml_writes_them() {
    for (burst, expected) in [("10_000", 10_000), ("0x10", 16), ("+7", 7), ("\"4k\"", 4000)] {
        let text = format!(
            "version = 1\n[[rule]]\nname = \"a\"\nlimit = [{{ per = \"source\", rate = \"1k/s\", burst = {burst} }}]\n"
        );
        let compiled = compiled(&valid(&text).policy, &Slots::default());
        assert_eq!(compiled.meters[0].packets.as_ref().map(|rate| rate.burst), Some(expected), "{burst}");
    }
}

#[test]
fn rules_of_included_files_come_behind() {
    let rule = |name: &str| {
        format!("[[rule]]\nname = \"{name}\"\nto = \"udp/{}\"\nverdict = \"drop\"\n", name.len())
    };
    let main = format!("version = 1\ninclude = [\"z.toml\", \"policy.d/*.toml\"]\n{}", rule("main"));
    let nested = format!("include = [\"deep/*.toml\"]\n{}", rule("nested"));
    let bundle = bundle(&main)
        .with_file("z.toml", &rule("z"))
        .with_file("policy.d/b.toml", &rule("bbb"))
        .with_file("policy.d/a.toml", &nested)
        .with_file("policy.d/deep/c.toml", &rule("cc"))
        .with_file("policy.d/deep/.hidden.toml", "nonsense");
    let policy = check(&bundle).unwrap_or_else(|errors| panic!("{}", shown(&errors))).policy;
    let names: Vec<&str> = policy.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["main", "z", "nested", "cc", "bbb"]);
}
