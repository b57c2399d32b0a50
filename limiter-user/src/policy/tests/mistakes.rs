//! What is said of a policy that is wrong.

use super::*;

fn refused(bundle: &Bundle) -> String {
    shown(&check(bundle).map(|checked| checked.warnings).expect_err("the policy is wrong"))
}

fn warned(text: &str) -> String {
    shown(&valid(text).warnings)
}

#[test]
fn ten_mistakes_are_reported_together() {
    let text = r#"version = 1

[default]
verdct = "pass"

[sets]
office = ["203.0.113.5/24"]
scanners = { file = "scanners.txt" }

[services]
web = ["tcp/80", "tcp/70000"]

[limits]
total = { per = "source", rate = "2K/s" }

[[rule]]
name = "management"
from = "ofice"
verdict = "pass"

[[rule]]
name = "web"
to = "web"
limit = [{ per = "source", rate = "90M/s" }, "total"]

[[rule]]
name = "web"
verdict = "reject"

[[rule]]
name = "nothing"
to = "dns"
"#;
    insta::assert_snapshot!(refused(&bundle(text)), @r#"
    policy.toml:4:1: unknown key `verdct`
      did you mean `verdict`?
    policy.toml:7:11: `203.0.113.5/24` has bits set behind its length
      write `203.0.113.0/24`, or `203.0.113.5` for the one address
    policy.toml:8:21: cannot read set file `scanners.txt`: it is not in the bundle
      paths are relative to the file that names them
    policy.toml:11:18: `70000` is neither a port nor a range of ports
      ports are 0 to 65535: write `tcp/443` or `udp/1024-65535`
    policy.toml:14:34: `2K/s` is not a rate: unknown unit `K`, did you mean `k`?
      write a count like `50/s`, `2k/s`, `10/m`, `5/15m`, or bytes like `50 Mbit/s`, `1 MB/s`
    policy.toml:18:8: unknown set `ofice`
      did you mean `office`?
    policy.toml:24:35: `90M/s` cannot be represented within 0.1 %
      write `89887640/s` or `90014064/s`
    policy.toml:27:8: there is a rule `web` already
      the first is at policy.toml:21:1
    policy.toml:28:11: `verdict` cannot be `reject`
      write `"pass"` or `"drop"`
    policy.toml:30:1: rule `nothing` says nothing of what happens
      write `verdict = "pass"`, `verdict = "drop"` or `limit = [{ per = "source", rate = "50/s" }]`
    policy.toml:32:6: unknown service `dns`
      define it under `[services]`: `dns = ["tcp/443"]`
    "#);
}

#[test]
fn bad_toml_is_a_mistake_like_any_other() {
    insta::assert_snapshot!(refused(&bundle("version = 1\n[default\nverdict = \"pass\"\n[sets]\na = [\"10.0.0.0/33\"]\n")), @r#"
    policy.toml:2:9: not TOML: unclosed table, expected `]`
    policy.toml:5:6: `10.0.0.0/33` is not a prefix
      write `203.0.113.0/24`, `2001:db8::/32` or a single address
    "#);
    insta::assert_snapshot!(refused(&bundle("version = 1\nversion = 1\n")), @"policy.toml:2:1: not TOML: duplicate key");
    insta::assert_snapshot!(refused(&bundle("")), @r#"
    policy.toml: the policy has no `version`
      write `version = 1` on its first line
    "#);
    insta::assert_snapshot!(refused(&bundle("version = 2")), @r#"
    policy.toml:1:11: version 2 of the policy is not known here
      this limiter reads `version = 1`
    "#);
    let deep = format!("version = 1\ninclude = {}{}", "[".repeat(5000), "]".repeat(5000));
    assert!(refused(&bundle(&deep)).contains("policy.toml:2:"));
}

#[test]
fn dynamic_sets_and_expiry_say_what_to_write() {
    let text = r#"version = 1
[sets]
a = { dynamic = true }
b = { dynamic = 1, max = 0 }
c = { dynamic = true, max = 10, file = "c.txt" }
[[rule]]
name = "a"
from = "a"
expires = "2026-12-24T06:00:00Z"
verdict = "drop"
[[rule]]
name = "b"
expires = 2026-12-24T06:00:00
verdict = "drop"
"#;
    let found = refused(&bundle(text));
    for line in [
        "policy.toml:3:5: a dynamic set says how many members it may have",
        "policy.toml:4:17: `dynamic` is `true`, not an integer",
        "policy.toml:4:26: `max` is from 1 to 100000",
        "policy.toml:5:33: a set is either dynamic or read from a file",
        "policy.toml:9:11: `expires` is a date with time and zone, not a string",
        "policy.toml:13:11: `2026-12-24T06:00:00` is no moment: it lacks a date, a time or a zone",
    ] {
        assert!(found.contains(line), "{line} is missing in\n{found}");
    }
}

#[test]
fn places_say_what_to_write() {
    let text = r#"version = 1
[[rule]]
name = "a"
interface = []
dest = []
verdict = "drop"
[[rule]]
name = "b"
interface = ["eth 0", "a-name-of-16-chr", 3]
dest = ["192.0.2.1/24", "office", 7]
verdict = "drop"
[[rule]]
name = "c"
interface = true
dest = { v4 = "192.0.2.1" }
verdict = "drop"
"#;
    insta::assert_snapshot!(refused(&bundle(text)), @r#"
    policy.toml:4:13: `interface` is empty, so the rule matches nowhere
      leave it out for every interface
    policy.toml:5:8: `dest` is empty, so the rule matches nothing
      leave it out for every destination
    policy.toml:9:14: no interface can be named `eth 0`
      names are as `ip link` shows them: at most 15 characters, no `/`, `:` or space
    policy.toml:9:23: no interface can be named `a-name-of-16-chr`
      names are as `ip link` shows them: at most 15 characters, no `/`, `:` or space
    policy.toml:9:43: each of `interface` is a string, not an integer
      write `interface = "eth0"` or `interface = ["eth0", "eth1"]`
    policy.toml:10:9: `192.0.2.1/24` has bits set behind its length
      write `192.0.2.0/24`, or `192.0.2.1` for the one address
    policy.toml:10:25: `office` is not a prefix
      write `203.0.113.0/24`, `2001:db8::/32` or a single address
    policy.toml:10:35: a prefix is a string, not an integer
      write `203.0.113.0/24`, `2001:db8::/32` or a single address
    policy.toml:14:13: `interface` is a name or a list of names, not a boolean
      write `interface = "eth0"` or `interface = ["eth0", "eth1"]`
    policy.toml:15:8: `dest` is a prefix or a list of prefixes, not a table
      write `dest = ["192.0.2.1", "2001:db8::/64"]`
    "#);
}

#[test]
fn places_are_bounded() {
    let rule =
        |number: usize, place: String| format!("[[rule]]\nname = \"r{number}\"\n{place}verdict = \"drop\"\n");
    let with = |count: usize, place: &dyn Fn(usize) -> String| {
        let rules: String = (0..count).map(|number| rule(number, place(number))).collect();
        format!("version = 1\n{rules}")
    };
    let interfaces = |number| format!("interface = \"eth{number}\"\n");
    valid(&with(8, &interfaces));
    insta::assert_snapshot!(refused(&bundle(&with(9, &interfaces))), @r"
    policy.toml: the rules name 9 interfaces
      there can be 8 in all
    ");
    let spread = |number| format!("dest = \"10.{number}.0.1\"\n");
    valid(&with(127, &spread));
    insta::assert_snapshot!(refused(&bundle(&with(128, &spread))), @r"
    policy.toml: the rules' `dest` name 128 prefixes
      there can be 127 in all: use wider ones
    ");
    // Three answers of interfaces times 43 of destinations.
    let both = |number: usize| match number {
        0 | 1 => interfaces(number),
        _ => spread(number),
    };
    insta::assert_snapshot!(refused(&bundle(&with(44, &both))), @r"
    policy.toml: the rules' `interface` and `dest` overlap in more than 127 different ways
      name fewer interfaces or destinations, or the same ones in more rules
    ");
    // 26 answers of places times 12 of services.
    let services = |number: usize| match number {
        0..25 => spread(number),
        _ => format!("to = \"udp/{number}\"\n"),
    };
    insta::assert_snapshot!(refused(&bundle(&with(36, &services))), @r"
    policy.toml: the rules' `to`, `interface` and `dest` overlap in more than 255 different ways
      use fewer services or places, or the same ones in more rules
    ");
}

#[test]
fn penalties_say_what_to_write() {
    let text = r#"version = 1
[limits]
total = { per = "source", rate = "2k/s", burst = 4000 }
[[rule]]
name = "a"
penalty = { after = 0, within = 10, for = "40d", spoofable = "yes", afer = 3 }
limit = [{ per = "source", rate = "50/s" }]
[[rule]]
name = "b"
penalty = {}
limit = [{ per = "source", rate = "50/s" }]
[[rule]]
name = "c"
penalty = { after = 1000, within = "10s", for = "20s" }
verdict = "drop"
[[rule]]
name = "d"
penalty = { after = 1000, within = "10s", for = "20s" }
limit = ["total"]
[[rule]]
name = "e"
penalty = { after = 10_001, within = "10s", for = "20s" }
limit = [{ per = "source", rate = "50/s" }]
[[rule]]
name = "f"
penalty = true
verdict = "pass"
"#;
    insta::assert_snapshot!(refused(&bundle(text)), @r#"
    policy.toml:6:21: `after` is from 1 to 1000000
      write `penalty = { after = 1000, within = "10s", for = "20s" }`
    policy.toml:6:33: `within` is a string, not an integer
      write `penalty = { after = 1000, within = "10s", for = "20s" }`
    policy.toml:6:43: `for` is at most `30d`, and `40d` is more
      write `penalty = { after = 1000, within = "10s", for = "20s" }`
    policy.toml:6:62: `spoofable` cannot be `yes`
      write `"accepted"`
    policy.toml:6:69: unknown key `afer`
      did you mean `after`?
    policy.toml:10:11: the penalty has no `after`: how many drops bring it about
      write `penalty = { after = 1000, within = "10s", for = "20s" }`
    policy.toml:10:11: the penalty has no `within`
      write `penalty = { after = 1000, within = "10s", for = "20s" }`
    policy.toml:10:11: the penalty has no `for`
      write `penalty = { after = 1000, within = "10s", for = "20s" }`
    policy.toml:14:11: rule `c` has a penalty and no limit whose drops it could count
      give it a `limit`, or remove `penalty`
    policy.toml:18:11: the penalty of rule `d` would reach every rule that uses `total`
      write a limit of its own in place: `{ per = "source", rate = "2k/s", burst = 4000 }`
    policy.toml:22:11: `after` is at most a thousand for each second of `within`, and 10001 in 10 s are more
      write `penalty = { after = 1000, within = "10s", for = "20s" }`
    policy.toml:26:11: `penalty` is a table, not a boolean
      write `penalty = { after = 1000, within = "10s", for = "20s" }`
    "#);
}

#[test]
fn only_connections_prove_a_handshake() {
    let rule = |to: &str, more: &str| {
        format!(
            "version = 1\n[[rule]]\nname = \"web\"\n{to}limit = [{{ per = \"source\", rate = \"50/s\" }}]\npenalty = {{ after = 10, within = \"10s\", for = \"1h\", proof = \"handshake\"{more} }}\n"
        )
    };
    assert_eq!(warned(&rule("to = [\"tcp/443\", \"tcp-from/443\"]\n", "")), "");
    for to in ["", "to = [\"tcp/443\", \"udp/443\"]\n", "to = \"tcp-syn/443\"\n"] {
        let found = refused(&bundle(&rule(to, "")));
        let expected =
            "rule `web` is about other traffic than TCP connections, which alone can prove a handshake";
        assert!(found.contains(expected), "{to}: {found}");
    }
    insta::assert_snapshot!(refused(&bundle(&rule("to = \"tcp/443\"\n", ", spoofable = \"accepted\""))), @r#"
    policy.toml:6:74: what is proved by a handshake cannot be forged, so there is nothing to accept
      remove `proof` or `spoofable`
    "#);
}

/// 50 × 600 ÷ (100 + 1000) is 27.3; forged packets would cost a source that many times what they cost.
#[test]
fn leverage_over_one_is_refused_unless_it_is_accepted() {
    let policy = |penalty: &str| {
        format!(
            "version = 1\n[[rule]]\nname = \"web\"\nto = \"tcp/443\"\nlimit = [{{ per = \"source\", rate = \"50/s\", burst = 100 }}]\npenalty = {{ after = 1000, within = \"10s\", {penalty} }}\n"
        )
    };
    insta::assert_snapshot!(refused(&bundle(&policy("for = \"10m\""))), @r#"
    policy.toml:6:11: the penalty of rule `web` has a leverage of 27.27: whoever forges packets in a source's name takes that many times more from it than he spends
      write `for = "22s"`, or `proof = "handshake"`, or `spoofable = "accepted"` if nobody can forge packets to this host
    "#);
    for accepted in ["for = \"22s\"", "for = \"10m\", spoofable = \"accepted\""] {
        assert_eq!(warned(&policy(accepted)), "", "{accepted}");
    }
    insta::assert_snapshot!(refused(&bundle(&policy("for = \"23s\""))), @r#"
    policy.toml:6:11: the penalty of rule `web` has a leverage of 1.05: whoever forges packets in a source's name takes that many times more from it than he spends
      write `for = "22s"`, or `proof = "handshake"`, or `spoofable = "accepted"` if nobody can forge packets to this host
    "#);
    insta::assert_snapshot!(refused(&bundle(&policy("for = \"1s\""))), @r#"
    policy.toml:6:11: the penalty of rule `web` is over before its bucket would be full again
      write `for = "2s"` or more
    "#);
}

#[test]
fn prefixes_that_share_a_bucket_have_two_lengths() {
    let limit = |per: &str| {
        format!(
            "version = 1\n[default]\nsource = {{ ipv6 = 56 }}\n[[rule]]\nname = \"a\"\n\
             limit = [{{ per = \"{per}\", rate = \"5/s\" }}, {{ per = \"source\", rate = \"5/s\" }}]\n"
        )
    };
    for wrong in [
        "source/",
        "source/24",
        "source/24,",
        "source/33,48",
        "source/0,48",
        "source/24,129",
        "source/24,48,56",
        "source/+4,48",
        "source/24, 48",
    ] {
        let expected = format!(
            "policy.toml:6:18: `{wrong}` does not say two prefix lengths\n  \
             write that of IPv4, 1 to 32, and that of IPv6, 1 to 128: `per = \"source/24,48\"`"
        );
        assert_eq!(refused(&bundle(&limit(wrong))).trim_end(), expected);
    }
    assert_eq!(warned(&limit("source/24,48")), "");
    let narrow = "is narrower than a source, which is a /32 of IPv4 or a /56 of IPv6: one source has many such buckets";
    let found = warned(&limit("source/24,64"));
    assert!(found.contains(&format!("warning: policy.toml:6:18: `source/24,64` {narrow}")), "{found}");
    // As wide as a source is a source.
    let found = refused(&bundle(&limit("source/32,56")));
    assert!(found.contains("two limits per source in packets cannot be told apart"), "{found}");
    let twice = limit("source/24,48").replace("per = \"source\"", "per = \"source/24,48\"");
    let found = refused(&bundle(&twice));
    assert!(found.contains("two limits per source/24,48 in packets cannot be told apart"), "{found}");
}

#[test]
fn a_floor_is_not_one_bucket_for_everybody() {
    let text = "version = 1\n[limits]\nall = { per = \"rule\", rate = \"1k/s\" }\n[default]\nlimit = [\"all\"]\n\
                [[rule]]\nname = \"a\"\nlimit = [\"all\", { per = \"rule\", rate = \"5/s\" }, { per = \"rule\", rate = \"6/s\" }]\n";
    insta::assert_snapshot!(refused(&bundle(text)), @r#"
    policy.toml:5:10: `limit` of `[default]` is a floor under each source, and this is one bucket for all of them
      put a limit `per = "rule"` into a rule, the last one for whatever is left
    policy.toml:8:49: two limits per rule in packets cannot be told apart
      name one of them: put it under `[limits]` and write its name here (the first is at policy.toml:8:17)
    "#);
}

#[test]
fn newcomers_are_of_a_limit_and_counted_in_packets() {
    let text = r#"version = 1
[limits]
all = { per = "rule", rate = "1k/s" }
[[rule]]
name = "a"
to = "udp/1"
verdict = "drop"
newcomers = "50k/s"
[[rule]]
name = "b"
to = "udp/2"
limit = ["all"]
newcomers = "50k/s"
[[rule]]
name = "c"
to = "udp/3"
limit = ["all", { per = "source/24,48", rate = "50/s" }]
newcomers = 50
[[rule]]
name = "d"
to = "udp/4"
limit = [{ per = "source", rate = "50/s" }]
newcomers = "50 Mbit/s"
[[rule]]
name = "e"
newcomers = "50"
"#;
    insta::assert_snapshot!(refused(&bundle(text)), @r#"
    policy.toml:8:1: rule `a` has `newcomers`, but no limit of which each source has a bucket
      newcomers are sources without one: write `limit = [{ per = "source", rate = "50/s" }]` too
    policy.toml:13:1: rule `b` has `newcomers`, but no limit of which each source has a bucket
      newcomers are sources without one: write `limit = [{ per = "source", rate = "50/s" }]` too
    policy.toml:18:13: `newcomers` is a rate, a string, not an integer
      write `newcomers = "50k/s"`
    policy.toml:23:13: `50 Mbit/s` counts bytes, and newcomers are packets
      write `newcomers = "50k/s"`
    policy.toml:24:1: rule `e` says nothing of what happens
      write `verdict = "pass"`, `verdict = "drop"` or `limit = [{ per = "source", rate = "50/s" }]`
    policy.toml:26:13: `50` is not a rate: it has no `/`
      write a count like `50/s`, `2k/s`, `10/m`, `5/15m`, or bytes like `50 Mbit/s`, `1 MB/s`
    "#);
}

#[test]
fn every_number_is_checked() {
    let text = r#"version = 1
[default]
source = { ipv4 = 33, ipv6 = "64" }
ipv4-in-ipv6 = ["64:ff9b::/32"]
[[rule]]
name = "a"
limit = [
  { per = "source", rate = 50 },
  { per = "source", rate = "50/s", burst = 0 },
  { per = "source", rate = "50/s", burst = "1 MB" },
  { per = "source", rate = "1/h", burst = 1000 },
  { per = "sources", rate = "fast" },
]
[[rule]]
name = "b"
limit = [{ per = "source", rate = "1/s" }, { per = "source", rate = "10/m" }]
"#;
    insta::assert_snapshot!(refused(&bundle(text)), @r#"
    policy.toml:3:19: `ipv4` is a prefix length, 1 to 32
      write `source = { ipv4 = 32, ipv6 = 64 }`
    policy.toml:3:30: `ipv6` is a prefix length, 1 to 128, not a string
      write `source = { ipv4 = 32, ipv6 = 64 }`
    policy.toml:4:17: `64:ff9b::/32` is not an IPv6 prefix of 96 bits
      the last 32 bits are the IPv4 address, so write `64:ff9b::/96`
    policy.toml:7:9: 5 limits are too many
      at most 4 can be judged together
    policy.toml:8:28: `rate` is a string, not an integer
      write `rate = "50/s"`
    policy.toml:9:44: a burst of 0 lets nothing through
      write a number like `100`, or text like `"4k"` or `"1 MB"`
    policy.toml:10:44: the rate counts packets and the burst `1 MB` bytes
      write a number of packets like `100` or `"4k"`
    policy.toml:11:28: a burst of 1000 at `1/h` takes 41.67 days to fill, more than 30
      write a smaller burst or a faster rate
    policy.toml:12:11: a limit cannot be per `sources`
      write `per = "source"`
    policy.toml:12:29: `fast` is not a rate: it has no `/`
      write a count like `50/s`, `2k/s`, `10/m`, `5/15m`, or bytes like `50 Mbit/s`, `1 MB/s`
    policy.toml:16:44: two limits per source in packets cannot be told apart
      name one of them: put it under `[limits]` and write its name here (the first is at policy.toml:16:10)
    "#);
}

#[test]
fn files_have_places_too() {
    let text = "version = 1\ninclude = [\"policy.d/*.toml\", \"gone.toml\"]\n[sets]\noffice = { file = \"office.txt\" }\nempty = { file = \"empty.txt\" }\n[[rule]]\nname = \"a\"\nfrom = [\"empty\", \"office\"]\nverdict = \"pass\"\n";
    let bundle = bundle(text)
        .with_file("office.txt", "# ours\r\n192.0.2.0/24\r\n  not-one # eh\r\n192.0.2.7/24\r\n")
        .with_file("empty.txt", "# nothing yet\n")
        .with_file("policy.d/b.toml", "[[rule]]\nname = \"a\"\nverdict = \"drop\"\nfrom = \"here\"\n[sets]\nhere = { file = \"../nope.txt\" }\noffice = []\n");
    insta::assert_snapshot!(refused(&bundle), @r#"
    office.txt:3:3: `not-one` is not a prefix
      write `203.0.113.0/24`, `2001:db8::/32` or a single address
    warning: office.txt:4:1: `192.0.2.7/24` has bits set behind its length and is read as `192.0.2.0/24`
      write `192.0.2.0/24`
    policy.d/b.toml:2:8: there is a rule `a` already
      the first is at policy.toml:6:1
    policy.d/b.toml:6:17: cannot read set file `../nope.txt`: it is not in the bundle
      paths are relative to the file that names them
    policy.d/b.toml:7:1: there is a set `office` already
      the first is at policy.toml:4:1
    policy.toml:2:31: cannot read `gone.toml`: it is not in the bundle
    policy.toml:8:8: rule `a` passes from `empty`, which is empty
      fill the set, or remove it from the rule
    "#);
}

#[test]
fn warnings_do_not_refuse() {
    let text = r#"version = 1
[default]
source = { ipv6 = 128 }
[sets]
all = ["::/0"]
nobody = []
[[rule]]
name = "watch"
mode = "observe"
verdict = "pass"
[[rule]]
name = "every-source"
from = "all"
limit = [{ per = "source", rate = "1 kB/s", burst = 1000 }]
[[rule]]
name = "rest"
verdict = "drop"
[[rule]]
name = "too-late"
to = "tcp/80"
verdict = "pass"
[[rule]]
name = "for-another-day"
from = "nobody"
verdict = "drop"
"#;
    insta::assert_snapshot!(warned(text), @r#"
    warning: policy.toml:3:19: IPv6 sources of /128 are narrower than the /64 one caller has: it can use many buckets
      write `ipv6 = 64`
    warning: policy.toml:5:1: `::/0` covers IPv4 carried in IPv6, so every IPv4 source is in it
      write `2000::/3` for the IPv6 internet alone
    warning: policy.toml:7:1: rule `watch` observes but would drop nothing, so it does nothing
      give it a limit or `verdict = "drop"`, or remove it
    warning: policy.toml:14:53: packets of more than 1000 bytes are always dropped (`oversize`)
      a burst of at least `"16 kB"` lets every packet through
    warning: policy.toml:15:1: nothing can reach rule `rest`
      rules above it take all its packets: move it up, or remove it
    warning: policy.toml:18:1: nothing can reach rule `too-late`
      rules above it take all its packets: move it up, or remove it
    "#);
    assert!(valid(text).strict().is_err());
    assert!(valid("version = 1").strict().is_ok());
}

#[test]
fn many_mistakes_in_one_file_are_counted() {
    let list: String = (0..200).map(|i| format!("bad-{i}\n")).collect();
    let bundle = bundle("version = 1\n[sets]\na = { file = \"a.txt\" }\n").with_file("a.txt", &list);
    let errors = check(&bundle).unwrap_err();
    assert_eq!(errors.len(), 51);
    assert_eq!(errors[50].to_string(), "a.txt: and 150 more like these");
}

#[test]
fn a_table_too_small_says_which_size_would_do() {
    let checked =
        valid("version = 1\n[[rule]]\nname = \"a\"\nlimit = [{ per = \"source\", rate = \"1/d\" }]\n");
    let slots = Slots::default();
    let host = HostFacts { tick_ns: 4_000_000, buckets: 1 << 20, slots: &slots, generation: 1 };
    let errors = compile(&checked.policy, &host).err().unwrap();
    assert_eq!(
        errors[0].to_string(),
        "policy.toml: the table is too small: set buckets = 4194304 in limiterd.toml (now 1048576)"
    );
    assert!(compile(&checked.policy, &HostFacts { buckets: 1 << 22, ..host }).is_ok());
}

#[test]
fn more_combinations_than_a_byte_names() {
    // Three hundred prefixes side by side, each asked for by a rule of its own.
    let mut text = "version = 1\n".to_owned();
    for i in 0..300 {
        text += &format!(
            "[[rule]]\nname = \"r{i}\"\nfrom = \"10.{}.{}.0/24\"\nverdict = \"drop\"\n",
            i / 256,
            i % 256
        );
    }
    assert!(refused(&bundle(&text)).contains("overlap in more than 255 different ways"));
    // Three hundred sets of one rule are one class.
    let list: Vec<String> = (0..300).map(|i| format!("\"10.{}.{}.0/24\"", i / 256, i % 256)).collect();
    valid(&format!(
        "version = 1\n[[rule]]\nname = \"a\"\nfrom = [{}]\nverdict = \"drop\"\n",
        list.join(", ")
    ));
}
