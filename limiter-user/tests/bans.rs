//! Bans over the control socket, on a datapath in memory: what is asked for, refused, kept and found again.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;

use host::{Host, eventually};
use limiter_common::abi::{BAN_LIFELINE, FOREVER};
use limiter_user::datapath::Bucket;
use serde_json::{Value, json};

const POLICY: &str =
    "version = 1\n[default]\nnever-ban = [\"partners\"]\n[sets]\npartners = [\"198.51.100.0/24\"]\n";
const SECOND: u64 = 64_000_000_000;

fn ban(host: &Host, body: &Value) -> (u16, Value) {
    host.request("POST", "/v1/bans", "", body.to_string().as_bytes())
}

fn sources(host: &Host) -> Vec<String> {
    let bans = host.get("/v1/bans");
    bans["bans"].as_array().unwrap().iter().map(|ban| ban["source"].as_str().unwrap().to_owned()).collect()
}

fn stdout(host: &Host, arguments: &[&str]) -> String {
    let output = host.ctl(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(host: &Host, arguments: &[&str]) -> String {
    let output = host.ctl(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_ban_is_made_listed_and_lifted() {
    let host = Host::started(&["eth0"], POLICY);
    let text = stdout(&host, &["ban", "2001:db8::1", "--for", "forever", "--reason", "scans"]);
    assert_eq!(
        text,
        "banned 2001:db8::1 → 2001:db8::/64 forever; `limiterctl unban 2001:db8::/64` lifts it\n"
    );
    assert!(stdout(&host, &["ban", "203.0.113.9"]).starts_with("banned 203.0.113.9 until 2"));
    assert!(
        stdout(&host, &["ban", "203.0.113.0/24", "--for", "1h"]).starts_with("banned 203.0.113.0/24 until 2")
    );
    let listed = host.get("/v1/bans");
    assert_eq!(sources(&host), ["203.0.113.0/24", "203.0.113.9", "2001:db8::/64"]);
    assert_eq!(
        listed["bans"][2],
        json!({"source": "2001:db8::/64", "expires_at": null, "by": "hand", "made_by": "uid 0", "reason": "scans"})
    );
    assert_eq!(host.status()["bans"], 3);
    // Ten minutes, but it answers for the wider ban that lasts an hour.
    let held = host.twin.state().bans[&"203.0.113.9/32".parse().unwrap()];
    assert_eq!((held.own_until / SECOND, held.until / SECOND), (600, 3600));
    assert_eq!(host.twin.state().bans[&"2001:db8::/64".parse().unwrap()].until, FOREVER);

    assert_eq!(
        stdout(&host, &["unban", "203.0.113.9"]),
        "unbanned 203.0.113.9\nstill banned by 203.0.113.0/24: `limiterctl unban 203.0.113.0/24` lifts that too\n"
    );
    assert!(
        stderr(&host, &["unban", "203.0.113.9"])
            .starts_with("error: `203.0.113.9` has no ban of its own: that of `203.0.113.0/24` covers it\n")
    );
    assert!(stderr(&host, &["unban", "198.18.0.1"]).starts_with("error: `198.18.0.1` is not banned\n"));
    assert_eq!(sources(&host), ["203.0.113.0/24", "2001:db8::/64"]);
}

#[test]
fn bans_outlive_restarts_and_reboots() {
    let mut host = Host::started(&["eth0"], POLICY);
    for arguments in [["ban", "203.0.113.9", "--for", "1h"], ["ban", "2001:db8::/32", "--for", "forever"]] {
        stdout(&host, &arguments);
    }
    let before = host.get("/v1/bans");
    host.restart();
    assert_eq!(sources(&host), ["203.0.113.9", "2001:db8::/32"]);
    assert_eq!(host.get("/v1/bans")["bans"][0]["made_by"], "uid 0");
    host.reboot();
    assert_eq!(host.get("/v1/bans"), before);
    assert_eq!(host.twin.state().bans.len(), 2, "the datapath has them again");
    // What the kernel has forgotten while the daemon was away was lifted, whatever the file says.
    host.stop();
    host.twin.state().bans.remove(&"203.0.113.9/32".parse().unwrap());
    host.start();
    assert_eq!(sources(&host), ["2001:db8::/32"]);
}

#[test]
fn bans_end_and_make_room() {
    let host = Host::started(&["eth0"], POLICY);
    stdout(&host, &["ban", "203.0.113.9", "--for", "10s"]);
    stdout(&host, &["ban", "203.0.113.0/24", "--for", "5s"]);
    host.twin.state().now = 6 * SECOND;
    assert_eq!(sources(&host), ["203.0.113.9"]);
    host.daemon.as_ref().unwrap().tick();
    eventually("the sweep", || host.twin.state().bans.len() == 1);
    host.twin.state().now = 10 * SECOND;
    host.daemon.as_ref().unwrap().tick();
    assert!(host.twin.state().bans.is_empty());
}

#[test]
fn the_safelist_is_banned_by_force_alone() {
    let host = Host::started(&["eth0"], POLICY);
    for (source, who) in [
        ("127.0.0.1", "127.0.0.1, an address of this host (`lo`)"),
        ("0.0.0.0/0", "an address of this host"),
        ("198.51.100.7", "sources of the set `partners`, which is under `never-ban`"),
        ("198.51.0.0/16", "sources of the set `partners`, which is under `never-ban`"),
    ] {
        let error = stderr(&host, &["ban", source]);
        assert!(error.contains(who), "{source}: {error}");
        assert!(error.contains("`--force`"), "{error}");
    }
    // One of a list, and nobody of it is banned.
    let list = json!({"bans": [{"source": "203.0.113.9"}, {"source": "198.51.100.9"}]});
    assert_eq!(ban(&host, &list).0, 409);
    assert_eq!(sources(&host), [""; 0]);
    stdout(&host, &["ban", "198.51.100.7", "--force"]);
    let by_itself = json!({"bans": [{"source": "198.51.100.9"}], "by": "requests", "force": true});
    assert_eq!(ban(&host, &by_itself).0, 409, "nothing automatic has force");
    assert_eq!(sources(&host), ["198.51.100.7"]);
}

#[test]
fn a_full_table_says_so_and_keeps_a_quarter_for_hands() {
    let mut host = Host::new(&["eth0"], POLICY);
    host.twin.state().ban_capacity = 16;
    host.start();
    let list = |from: u8, to: u8| -> Vec<Value> {
        (from..to).map(|last| json!({"source": format!("203.0.113.{last}")})).collect()
    };
    assert_eq!(ban(&host, &json!({"bans": list(0, 12), "by": "requests"})).0, 200);
    let (code, answer) = ban(&host, &json!({"bans": list(12, 13), "by": "requests"}));
    assert_eq!(code, 409);
    assert_eq!(
        answer["error"],
        "there is room for 12 automatic bans, the rest is kept for those made by hand, and 12 are in force: one more does not fit"
    );
    assert_eq!(ban(&host, &json!({"bans": list(100, 104)})).0, 200, "those made by hand still fit");
    assert_eq!(
        stderr(&host, &["ban", "198.18.0.1"]).lines().next().unwrap(),
        "error: there is room for 16 bans, 16 are in force: one more does not fit"
    );
    assert_eq!(sources(&host).len(), 16);
    assert_eq!(host.status()["bans"], 16);
}

#[test]
fn a_list_comes_by_stdin() {
    let host = Host::started(&["eth0"], POLICY);
    let mut command = host.ctl_command();
    command.args(["ban", "-", "--for", "1d"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut list = String::from("# from a feed\r\n203.0.113.9 # scans\n\n2001:db8:1::/48\n");
    for number in 0..1000_u32 {
        writeln!(list, "10.{}.{}.1", number >> 8, number & 255).unwrap();
    }
    child.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("banned 1002 sources until 2"), "{text}");
    assert_eq!(sources(&host).len(), 1002);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let host = Host::started(&["eth0"], POLICY);
    for (body, error) in [
        (json!({"bans": []}), "there is nobody to ban"),
        (json!({"bans": [{"source": "office"}]}), "`office` is not an address or a prefix"),
        (json!({"bans": [{"source": "10.0.0.1/8"}]}), "`10.0.0.1/8` has bits set behind its length"),
        (json!({"bans": [{"source": "::/0"}]}), "`::/0` holds all IPv4 carried in IPv6"),
        (
            json!({"bans": [{"source": "198.18.0.1", "for_s": 0}]}),
            "the ban of `198.18.0.1` would end at once",
        ),
        (
            json!({"bans": [{"source": "198.18.0.1", "for_s": 9, "forever": true}]}),
            "the ban of `198.18.0.1` cannot last forever and some time",
        ),
    ] {
        let (code, answer) = ban(&host, &body);
        assert_eq!((code, answer["error"].as_str()), (400, Some(error)), "{body}");
    }
    assert_eq!(host.request("DELETE", "/v1/bans", "", b"").0, 400);
}

#[test]
fn an_automatic_ban_of_whom_the_safelist_names_later_is_lifted() {
    let host = Host::started(&["eth0"], "version = 1\n");
    let automatic = ["203.0.113.9", "198.51.100.0/24", "198.18.0.7", "2001:db8:7::1", "198.18.0.8"];
    let list: Vec<Value> = automatic.iter().map(|source| json!({"source": source})).collect();
    assert_eq!(ban(&host, &json!({"bans": list, "by": "requests"})).0, 200);
    stdout(&host, &["ban", "203.0.113.0/24"]);
    let never = "version = 1\n[default]\nnever-ban = [\"203.0.113.9\", \"2001:db8:7::/48\"]\n";
    assert_eq!(host.put_policy("", never).0, 200);
    assert_eq!(sources(&host), ["198.18.0.7", "198.18.0.8", "198.51.100.0/24", "203.0.113.0/24"]);
    let daemon = host.daemon.clone().unwrap();
    daemon.core().peers.learn(["198.51.100.77".parse().unwrap(), "198.18.0.7".parse().unwrap()]);
    daemon.core().reconcile(false);
    assert_eq!(sources(&host), ["198.18.0.8", "203.0.113.0/24"], "what a hand made stays");
    let held: Vec<String> = host.twin.state().bans.keys().map(ToString::to_string).collect();
    assert_eq!(held, ["198.18.0.8/32", "203.0.113.0/24"]);
}

#[test]
fn bans_are_marked_for_the_lifeline_of_the_policy_in_force() {
    let host = Host::started(&["eth0"], POLICY);
    stdout(&host, &["ban", "203.0.113.0/24"]);
    stdout(&host, &["ban", "198.18.0.1"]);
    let marks = |prefix: &str| host.twin.state().bans[&prefix.parse().unwrap()].flags & BAN_LIFELINE;
    assert_eq!((marks("203.0.113.0/24"), marks("198.18.0.1/32")), (0, 0));
    let office = "version = 1\n[[rule]]\nname = \"ssh\"\nfrom = \"203.0.113.77\"\nto = \"tcp/22\"\nverdict = \"pass\"\nbefore = \"bans\"\n";
    assert_eq!(host.put_policy("", office).0, 200);
    assert_eq!((marks("203.0.113.0/24"), marks("198.18.0.1/32")), (BAN_LIFELINE, 0));
    let anybody = office.replace("from = \"203.0.113.77\"\n", "");
    assert_eq!(host.put_policy("", &anybody).0, 200);
    assert_eq!((marks("203.0.113.0/24"), marks("198.18.0.1/32")), (BAN_LIFELINE, BAN_LIFELINE));
    assert_eq!(host.put_policy("", POLICY).0, 200);
    assert_eq!((marks("203.0.113.0/24"), marks("198.18.0.1/32")), (0, 0));
}

#[test]
fn a_ban_cuts_off_nobody_who_asks_for_it() {
    let office = "version = 1\n[[rule]]\nname = \"ssh\"\nfrom = \"203.0.113.0/28\"\nto = \"tcp/22\"\nverdict = \"pass\"\nbefore = \"bans\"\n";
    let host = Host::started(&["eth0"], office);
    let asked = |source: &str, client: &str, force: bool| {
        let session =
            json!({"client": client, "client_port": 50_022, "server": "203.0.113.200", "server_port": 22});
        ban(&host, &json!({"bans": [{"source": source}], "sessions": [session], "force": force}))
    };
    let (code, answer) = asked("203.0.113.0/24", "203.0.113.77", false);
    assert_eq!(code, 409);
    assert_eq!(answer["error"], "this ban would drop your ssh session from 203.0.113.77:50022 to port 22");
    assert_eq!(sources(&host), [""; 0]);
    assert_eq!(asked("203.0.113.0/24", "203.0.113.7", false).0, 200, "the lifeline keeps the session");
    assert_eq!(asked("203.0.113.76", "203.0.113.77", false).0, 200, "somebody else");
    assert_eq!(asked("203.0.113.77", "203.0.113.77", true).0, 200, "by force");
}

#[test]
fn buckets_are_filled_and_freed_of_penalties() {
    let host = Host::started(&["eth0"], POLICY);
    let bucket = |network: &str, width, words| Bucket {
        network: network.parse().unwrap(),
        width,
        meter: 1,
        passed: 0,
        dropped: 0,
        words,
    };
    host.twin.state().buckets = vec![
        bucket("203.0.113.9", 32, [20 << 1 | 1, 0]),
        bucket("203.0.113.9", 32, [20 << 1, 30 << 1]),
        bucket("203.0.113.8", 32, [20 << 1 | 1, 0]),
        bucket("2001:db8::", 64, [20 << 1, 0]),
    ];
    let words = || -> Vec<[u64; 2]> { host.twin.state().buckets.iter().map(|bucket| bucket.words).collect() };
    assert_eq!(
        stdout(&host, &["unban", "203.0.113.9"]),
        "unbanned 203.0.113.9\nfreed of a penalty: 1 bucket\n"
    );
    assert_eq!(words(), [[0, 0], [40, 60], [41, 0], [40, 0]]);
    assert_eq!(stdout(&host, &["reset", "203.0.113.9"]), "203.0.113.9: 1 bucket full again\n");
    assert_eq!(words(), [[0, 0], [0, 0], [41, 0], [40, 0]]);
    assert_eq!(
        stdout(&host, &["reset", "2001:db8::1"]),
        "2001:db8::1 → 2001:db8::/64: 1 bucket full again\n"
    );
    assert_eq!(words(), [[0, 0], [0, 0], [41, 0], [0, 0]]);
}

#[test]
fn top_says_until_when_a_source_is_penalised() {
    let host = Host::started(&["eth0"], &host::policy(50));
    let daemon = host.daemon.clone().unwrap();
    let meter = *daemon.core().reading().unwrap().meters.keys().next().unwrap();
    let ahead = 600 * 64_000_000_000;
    let bucket = |network: &str, word| Bucket {
        network: network.parse().unwrap(),
        width: 32,
        meter,
        passed: 0,
        dropped: 64,
        words: [word, 0],
    };
    host.twin.state().buckets = vec![bucket("203.0.113.9", ahead << 1 | 1), bucket("203.0.113.8", 1 << 1)];
    let answer = host.get("/v1/sources");
    let until = |source: &str| {
        let sources = answer["sources"].as_array().unwrap();
        sources.iter().find(|found| found["source"] == source).unwrap()["penalised_until"].clone()
    };
    let time = humantime::parse_rfc3339(until("203.0.113.9").as_str().unwrap()).unwrap();
    let left = time.duration_since(std::time::SystemTime::now()).unwrap().as_secs();
    assert!((500..=600).contains(&left), "{answer}");
    assert!(until("203.0.113.8").is_null(), "{answer}");
}
