//! `why` over the control socket, on a datapath in memory.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use host::Host;
use limiter_user::datapath::Bucket;
use serde_json::json;

const SECOND: u64 = 64_000_000_000;

const POLICY: &str = r#"
version = 1
[sets]
office = ["203.0.113.0/24"]
scanners = ["198.51.100.66"]
suspects = { dynamic = true, max = 10 }
[services]
web = ["tcp/443"]
[limits]
total = { per = "source", rate = "10/s", burst = 20 }
[[rule]]
name = "office"
from = "office"
to = "tcp/22"
verdict = "pass"
[[rule]]
name = "scanners"
from = "scanners"
verdict = "drop"
[[rule]]
name = "suspects"
from = "suspects"
verdict = "drop"
[[rule]]
name = "web"
to = "web"
limit = ["total"]
"#;

fn stdout(host: &Host, arguments: &[&str]) -> String {
    let output = host.ctl(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Puts the source's bucket of the only limit so many seconds ahead.
fn spend(host: &Host, source: [u8; 4], seconds: u64) {
    let mut state = host.twin.state();
    let (tables, _) = state.tables.as_ref().unwrap();
    let meter = tables.meters[0].id;
    let words = [(state.now + seconds * SECOND) << 1, 0];
    let bucket = Bucket { network: source.into(), width: 32, meter, passed: 20, dropped: 32, words };
    state.buckets.push(bucket);
}

#[test]
fn it_names_what_decides_and_what_changes_it() {
    let host = Host::started(&["eth0"], POLICY);
    let why = host.get("/v1/why/203.0.113.9?to=tcp/22");
    assert_eq!(
        (&why["verdict"], &why["reason"], &why["rule"], &why["sets"], &why["service"]),
        (&json!("pass"), &json!("rule-pass"), &json!("office"), &json!(["office"]), &json!("tcp/22"))
    );
    let why = host.get("/v1/why/198.51.100.66");
    assert_eq!(
        (&why["verdict"], &why["reason"], &why["rule"]),
        (&json!("drop"), &json!("rule-drop"), &json!("scanners"))
    );
    assert_eq!(why["commands"], json!(["limiterctl override scanners --mode observe --for 1h"]));

    // A member of a dynamic set is taken out as it was put in.
    stdout(&host, &["add-to", "suspects", "198.18.7.0/24", "--for", "1h"]);
    let why = host.get("/v1/why/198.18.7.9");
    assert_eq!(
        why["commands"],
        json!([
            "limiterctl remove-from suspects 198.18.7.0/24",
            "limiterctl override suspects --mode observe --for 1h"
        ])
    );

    // Half of the burst is spent: 1 of 2 s.
    spend(&host, [192, 0, 2, 1], 1);
    let why = host.get("/v1/why/192.0.2.1?to=web");
    assert_eq!((&why["verdict"], &why["services"]), (&json!("pass"), &json!(["web"])));
    let limit = &why["limits"][0];
    assert_eq!(
        (&limit["name"], &limit["tokens"], &limit["fill"]),
        (&json!("total"), &json!(10), &json!(0.5))
    );

    // Nothing is left.
    spend(&host, [192, 0, 2, 2], 2);
    let why = host.get("/v1/why/192.0.2.2");
    assert_eq!(
        (
            &why["verdict"],
            &why["reason"],
            &why["service"],
            &why["limits"][0]["tokens"],
            &why["limits"][0]["refuses"]
        ),
        (&json!("drop"), &json!("over"), &json!("tcp/443"), &json!(0), &json!(true))
    );
    assert_eq!(
        why["commands"],
        json!(["limiterctl reset 192.0.2.2", "limiterctl override web --scale 200% --for 1h"])
    );
    // The other kinds of traffic are said too.
    let others: Vec<_> =
        why["traffic"].as_array().unwrap().iter().map(|other| other["service"].clone()).collect();
    assert_eq!(others, [json!("tcp/22"), json!("udp/0")]);
}

#[test]
fn a_ban_comes_first_also_a_wider_one() {
    let host = Host::started(&["eth0"], POLICY);
    stdout(&host, &["ban", "198.18.0.0/24", "--for", "1h", "--reason", "flood"]);
    let why = host.get("/v1/why/198.18.0.7?to=tcp/443");
    assert_eq!((&why["reason"], &why["ban"]["source"]), (&json!("ban"), &json!("198.18.0.0/24")));
    let text = stdout(&host, &["why", "198.18.0.7", "--to", "tcp/443"]);
    assert!(text.starts_with("198.18.0.7 to tcp/443: drop, ban\n"), "{text}");
    assert!(text.ends_with("to change it:\n  limiterctl unban 198.18.0.0/24\n"), "{text}");
    // Carried in IPv6 it is the same source.
    let why = host.get("/v1/why/::ffff:198.18.0.7?to=tcp/443");
    assert_eq!((&why["reason"], &why["source"]), (&json!("ban"), &json!("198.18.0.7")));
}

/// What is asked, what is said.
#[test]
fn what_cannot_be_answered_says_what_can() {
    let host = Host::started(&["eth0"], POLICY);
    for (arguments, error) in [
        (
            vec!["why", "office"],
            "error: `office` is not an address\n\nhint: write one source, like `203.0.113.9` or `2001:db8::1`\n",
        ),
        (
            vec!["why", "192.0.2.1", "--to", "tpc/80"],
            "error: `tpc/80` is not a term\n\nhint: did you mean `tcp`?; a service of the policy will do too\n",
        ),
        (
            vec!["why", "192.0.2.1", "--bytes", "1"],
            "error: `bytes` is `1`\n\nhint: write a number from 20 to 65535\n",
        ),
    ] {
        let output = host.ctl(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), error, "{arguments:?}");
    }
}
