//! Interfaces that come late, go away, come back, are renamed, attached and detached by hand.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod host;

use host::{Host, policy, strings};
use limiter_user::datapath::{Datapath, Mode};
use serde_json::{Value, json};

fn names(status: &Value, list: &str) -> Vec<String> {
    let interfaces = status[list].as_array().unwrap();
    interfaces.iter().map(|interface| interface["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_interface_is_guarded_when_it_appears_and_when_it_comes_back() {
    let mut host = Host::new(&["eth0", "eth1"], &policy(50));
    host.twin.state().present.remove("eth1");
    host.start();
    let status = host.status();
    assert_eq!(
        (names(&status, "interfaces"), names(&status, "unguarded")),
        (vec!["eth0".into()], vec!["eth1".into()])
    );
    assert_eq!(status["degraded"], false, "an absent interface is a warning");
    assert!(
        strings(&status["warnings"]).contains(&"`eth1` is absent: it is attached when it appears".to_owned())
    );
    let daemon = host.daemon.clone().unwrap();
    for index in [7, 8] {
        host.twin.state().present.insert("eth1".to_owned(), index);
        daemon.core().reconcile(false);
        assert_eq!(host.status()["interfaces"][1]["index"], index);
        host.twin.state().present.remove("eth1");
        daemon.core().reconcile(false);
        assert_eq!(names(&host.status(), "unguarded"), ["eth1"]);
    }
}

#[test]
fn a_renamed_interface_stays_guarded() {
    let host = Host::started(&["eth0"], &policy(50));
    {
        let mut state = host.twin.state();
        let index = state.present.remove("eth0").unwrap();
        state.present.insert("wan0".to_owned(), index);
    }
    host.daemon.as_ref().unwrap().core().reconcile(false);
    let status = host.status();
    assert_eq!(
        (names(&status, "interfaces"), names(&status, "unguarded")),
        (vec!["wan0".into()], vec!["eth0".into()])
    );
    assert!(
        strings(&status["warnings"]).contains(
            &"`wan0` is guarded though nothing asks for it: `limiterctl detach wan0` ends that".to_owned()
        ),
        "{status}"
    );
}

#[test]
fn a_detach_holds_over_restarts_until_attach() {
    let mut host = Host::started(&["eth0", "eth1"], &policy(50));
    let (code, answer) = host.request("DELETE", "/v1/interfaces/eth0", "", b"");
    assert_eq!((code, answer), (200, json!({"name": "eth0", "was_attached": true, "warnings": []})));
    for again in [false, true] {
        if again {
            host.reboot();
        } else {
            host.restart();
        }
        let status = host.status();
        assert_eq!(names(&status, "interfaces"), ["eth1"]);
        assert_eq!(
            status["unguarded"][0],
            json!({"name": "eth0", "detached": true, "reason": "detached by hand"})
        );
        assert_eq!(status["degraded"], false);
    }
    assert_eq!(host.request("PUT", "/v1/interfaces/eth0", "", b"").0, 200);
    host.restart();
    assert_eq!(names(&host.status(), "interfaces"), ["eth0", "eth1"]);
}

#[test]
fn an_interface_attached_by_hand_is_guarded_after_a_reboot() {
    let mut host = Host::new(&["eth0"], &policy(50));
    host.settings.interfaces = None;
    host.start();
    assert_eq!(names(&host.status(), "interfaces"), Vec::<String>::new());
    let (code, answer) = host.request("PUT", "/v1/interfaces/eth0", "", br#"{"mode": "generic"}"#);
    assert_eq!((code, &answer["mode"]), (200, &json!("generic")));
    host.reboot();
    assert_eq!(host.status()["interfaces"][0]["mode"], "generic");
    host.request("DELETE", "/v1/interfaces/eth0", "", b"");
    host.reboot();
    assert_eq!(names(&host.status(), "interfaces"), Vec::<String>::new());
}

#[test]
fn a_foreign_program_is_named_and_left_alone_unless_replaced() {
    let mut host = Host::new(&["eth0"], &policy(50));
    host.twin.state().foreign.insert("eth0".to_owned(), 42);
    host.start();
    let status = host.status();
    assert_eq!(status["degraded"], true);
    assert_eq!(strings(&status["problems"]), ["`eth0` is not guarded: another XDP program is there (id 42)"]);
    let (code, answer) = host.request("PUT", "/v1/interfaces/eth0", "", b"{}");
    assert_eq!(code, 409);
    assert!(answer["hint"].as_str().unwrap().contains("--replace"), "{answer}");
    assert_eq!(host.request("PUT", "/v1/interfaces/eth0", "", br#"{"replace": true}"#).0, 200);
    assert_eq!(host.status()["degraded"], false);
}

#[test]
fn auto_falls_back_to_generic_and_says_so() {
    let mut host = Host::new(&["eth0"], &policy(50));
    host.twin.state().generic_only.push("eth0".to_owned());
    host.start();
    let status = host.status();
    assert_eq!(status["interfaces"][0]["mode"], "generic");
    assert!(
        strings(&status["warnings"])
            .contains(&"`eth0` is guarded in generic mode, which is slower".to_owned())
    );
    let (code, answer) = host.request("PUT", "/v1/interfaces/eth0", "", br#"{"mode": "native"}"#);
    assert_eq!(code, 409, "{answer}");
}

#[test]
fn a_change_of_mode_says_that_it_has_a_gap() {
    let host = Host::started(&["eth0"], &policy(50));
    let (_, answer) = host.request("PUT", "/v1/interfaces/eth0", "", br#"{"mode": "generic"}"#);
    assert_eq!(
        strings(&answer["warnings"]),
        ["the mode changed from native to generic: packets in between were not judged"]
    );
}

#[test]
fn what_does_not_exist_cannot_be_attached_or_detached() {
    let host = Host::started(&["eth0"], &policy(50));
    let (code, answer) = host.request("PUT", "/v1/interfaces/eth9", "", b"");
    assert_eq!((code, &answer["error"]), (404, &json!("cannot attach to `eth9`: no such interface")));
    let (code, answer) = host.request("DELETE", "/v1/interfaces/eth9", "", b"");
    assert_eq!((code, &answer["error"]), (404, &json!("cannot detach `eth9`: it is not attached")));
}

#[test]
fn a_guard_left_by_an_older_configuration_is_kept_and_told() {
    let mut host = Host::started(&["eth0", "eth1"], &policy(50));
    host.settings.interfaces = Some(vec!["eth0".to_owned()]);
    host.restart();
    let status = host.status();
    assert_eq!(names(&status, "interfaces"), ["eth0", "eth1"]);
    assert!(strings(&status["warnings"])[0].starts_with("`eth1` is guarded though nothing asks for it"));
}

#[test]
fn nothing_stays_guarded_where_the_settings_say_so() {
    let mut host = Host::started(&["eth0", "eth1"], &policy(50));
    host.daemon.as_ref().unwrap().detach_all();
    assert!(host.twin.interfaces().is_empty());
    host.restart();
    assert_eq!(host.twin.interfaces()[0].mode, Mode::Native, "the next start guards again");
}

#[test]
fn rules_that_name_an_absent_interface_are_warned_of_until_it_appears() {
    let text =
        "version = 1\n[[rule]]\nname = \"way in\"\ninterface = [\"eth0\", \"eth7\"]\nverdict = \"pass\"\n";
    let host = Host::started(&["eth0"], &text.replace("way in", "way-in"));
    let warning =
        "there is no interface `eth7`: rules that name it match nothing until it appears".to_owned();
    assert!(strings(&host.status()["warnings"]).contains(&warning), "{}", host.status());
    let (_, answer) = host.put_policy("", &text.replace("way in", "door"));
    assert_eq!(
        answer["warnings"][0]["message"], "rule `door` names `eth7`, and there is no such interface now",
        "{answer}"
    );
    assert_eq!(answer["applied"], true);
    host.twin.state().present.insert("eth7".to_owned(), 9);
    host.daemon.as_ref().unwrap().core().reconcile(false);
    assert!(!strings(&host.status()["warnings"]).contains(&warning));
}

#[test]
fn the_safelist_of_penalties_is_kept_true() {
    let penalty = "version = 1\n[default]\nsource = { ipv4 = 24, ipv6 = 64 }\n[[rule]]\nname = \"web\"\n\
                   limit = [{ per = \"source\", rate = \"50/s\" }]\n\
                   penalty = { after = 1000, within = \"10s\", for = \"20s\" }\n";
    let host = Host::started(&["eth0"], penalty);
    // As wide as a source is here.
    let safe = || host.twin.state().safe.clone();
    assert!(safe().contains(&"127.0.0.0/24".parse().unwrap()), "{:?}", safe());
    host.daemon.as_ref().unwrap().core().peers.learn(["198.51.100.7".parse().unwrap()]);
    host.daemon.as_ref().unwrap().core().reconcile(false);
    assert!(safe().contains(&"198.51.100.0/24".parse().unwrap()), "{:?}", safe());
}
