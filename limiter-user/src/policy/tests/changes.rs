//! What is said of the way from one policy to another.

use super::*;

const OLD: &str = r#"version = 1
[default]
limit = [{ per = "source", rate = "1k/s" }]
[sets]
office = ["203.0.113.0/24"]
scanners = { file = "scanners.txt" }
gone = ["10.0.0.0/8"]
[services]
web = ["tcp/80", "tcp/443"]
[limits]
total = { per = "source", rate = "2k/s", burst = 4000 }
[[rule]]
name = "management"
from = "office"
to = "tcp/22"
verdict = "pass"
[[rule]]
name = "web"
to = "web"
limit = [{ per = "source", rate = "50/s" }, "total"]
[[rule]]
name = "scanners"
from = "scanners"
verdict = "drop"
[[rule]]
name = "old"
to = "udp"
verdict = "drop"
"#;

const NEW: &str = r#"version = 1
[default]
verdict = "drop"
source = { ipv4 = 24 }
[sets]
office = ["203.0.113.0/25", "2001:db8::/48"]
scanners = { file = "scanners.txt" }
[services]
web = ["tcp/443", "udp/443"]
dns = ["udp/53"]
[limits]
total = { per = "source", rate = "3k/s", burst = 4000 }
[[rule]]
name = "scanners"
from = "scanners"
verdict = "drop"
[[rule]]
name = "management"
from = "office"
to = "tcp/22"
verdict = "pass"
before = "bans"
[[rule]]
name = "web"
to = "web"
mode = "observe"
limit = [{ per = "source", rate = "60/s" }, "total"]
[[rule]]
name = "dns"
to = "dns"
from = ["office", "192.0.2.1"]
limit = [{ per = "source", rate = "1 MB/s" }]
"#;

fn policy(text: &str, scanners: usize) -> Policy {
    let list: String = (0..scanners).map(|i| format!("198.51.{}.{}\n", i / 256, i % 256)).collect();
    let bundle = bundle(text).with_file("scanners.txt", &list);
    check(&bundle).unwrap_or_else(|errors| panic!("{}", shown(&errors))).policy
}

fn lines(changes: &[Change]) -> String {
    changes.iter().map(|change| format!("{change}\n")).collect()
}

#[test]
fn every_kind_of_change_is_one_line() {
    insta::assert_snapshot!(lines(&difference(&policy(OLD, 10), &policy(NEW, 15))), @r#"
    ~ `[default]`: verdict pass → drop
    ~ `[default]`: source /32 and /64 → /24 and /64
    ~ `[default]`: limit (1k/s per source, burst 1000 packets) → nothing
    - set `gone`
    ~ set `office`: 2 added (203.0.113.0/25, 2001:db8::/48), 1 removed (203.0.113.0/24)
    ~ set `scanners`: 5 added (198.51.0.10/32, 198.51.0.11/32, 198.51.0.12/32, …)
    ~ service `web`: added `udp/443`, removed `tcp/80`
    + service `dns`: udp/53
    ~ limit `total`: 2k/s per source, burst 4000 packets → 3k/s per source, burst 4000 packets
    - rule `old`
    ~ rule `management`: judged after bans → before bans
    ~ rule `web`: limit (50/s per source, burst 50 packets) and `total` → limit (60/s per source, burst 60 packets) and `total`
    ~ rule `web`: mode enforce → observe
    + rule `dns`: from `office` and `192.0.2.1` to `dns`: limit (1 MB/s per source, burst 1000000 bytes)
    ~ rule `scanners`: moved to the first place
    "#);
}

#[test]
fn nothing_changes_to_itself() {
    assert_eq!(difference(&policy(OLD, 10), &policy(OLD, 10)), []);
    // Neither places nor comments nor the order of names are changes.
    let same = OLD.replace("[sets]", "# who\n\n[sets]").replace("tcp/80\", \"tcp/443", "tcp/443\", \"tcp/80");
    assert_eq!(difference(&policy(OLD, 10), &policy(&same, 10)), []);
}

#[test]
fn a_set_file_that_shrank_by_more_than_half_is_told() {
    assert_eq!(shrunk(&policy(OLD, 10), &policy(OLD, 5)), []);
    let found = shrunk(&policy(OLD, 10), &policy(OLD, 4));
    assert_eq!(
        shown(&found),
        "policy.toml:6:1: set `scanners` shrank from 10 prefixes to 4: is `scanners.txt` cut short?\n  \
         if that is right, apply it with `--force`\n"
    );
    assert_eq!(shrunk(&policy(OLD, 4), &policy(OLD, 10)), []);
    // A list written in place is shortened on purpose.
    let longer = OLD.replace("\"10.0.0.0/8\"", "\"10.0.0.0/8\", \"11.0.0.0/8\", \"12.0.0.0/8\"");
    assert_eq!(shrunk(&policy(&longer, 10), &policy(OLD, 10)), []);
}
