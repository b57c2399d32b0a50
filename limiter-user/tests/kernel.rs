//! limiterd and limiterctl on a real kernel: what a user meets first when something is missing, and what stays
//! when the daemon goes.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

// suite: budget=240

mod site;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use limiter_tests::clock::wait_for;
use limiter_tests::namespace::{GUARDED, Pair};
use site::{PING_POLICY, Site, ping};

/// What limiterd says when it cannot start.
fn refused(site: &Site, command: &mut Command, interfaces: &str) -> String {
    site.configure(command, interfaces);
    let output = command.stdin(Stdio::null()).output().unwrap();
    format!("{}[exit {}]\n", String::from_utf8_lossy(&output.stderr), output.status.code().unwrap())
}

fn expect(name: &str, site: &Site, text: &str) {
    let mut settings = insta::Settings::clone_current();
    let escape = |path: &Path| path.display().to_string().replace('.', "\\.");
    settings.add_filter(&escape(site.directory.path()), "DIRECTORY");
    settings.add_filter(&escape(&site.pin), "PIN");
    settings.add_filter(r"\bid \d+", "id ID");
    settings.set_omit_expression(true);
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

#[test]
fn without_root_limiterd_says_what_it_needs() {
    let site = Site::new("root");
    let pair = Pair::addressed();
    // Nobody cannot look into the directories tests are built in.
    fs::copy(env!("CARGO_BIN_EXE_limiterd"), site.path("limiterd")).unwrap();
    let mut command = Command::new(site.path("limiterd"));
    command.uid(65_534).gid(65_534);
    expect("limiterd_no_root", &site, &refused(&site, &mut command, GUARDED));
    drop(pair);
}

#[test]
fn without_a_bpf_file_system_limiterd_says_how_to_mount_one() {
    let mut site = Site::new("bpffs");
    site.pin = site.path("pin");
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiterd"));
    expect("limiterd_no_bpffs", &site, &refused(&site, &mut command, "lo"));
}

#[test]
fn a_mistake_in_the_settings_has_a_position() {
    let site = Site::new("settings");
    fs::write(site.path("limiterd.toml"), "mode = \"auto\"\nintarfaces = [\"eth0\"]\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiterd"));
    command.arg("--config").arg(site.path("limiterd.toml"));
    expect("limiterd_settings", &site, &refused(&site, &mut command, "lo"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiterd"));
    command.arg("--config").arg(site.path("none.toml"));
    expect("limiterd_no_settings", &site, &refused(&site, &mut command, "lo"));
}

#[test]
fn check_config_checks_the_policy_too() {
    let site = Site::new("check");
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_limiterd"));
        command.arg("--check-config");
        site.configure(&mut command, "lo");
        command.output().unwrap()
    };
    assert_eq!(run().status.code(), Some(0));
    fs::write(site.path("policy.toml"), "version = 1\ncolour = 1\n").unwrap();
    assert_eq!(run().status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run().stderr).contains("policy.toml:2:1: unknown key `colour`"));
}

#[test]
fn a_second_daemon_is_refused_before_it_touches_anything() {
    let mut site = Site::new("second");
    let pair = Pair::addressed();
    site.start(&pair, GUARDED);
    let mut command = pair.guarded.command(env!("CARGO_BIN_EXE_limiterd"));
    expect("limiterd_twice", &site, &refused(&site, &mut command, GUARDED));
    assert_eq!(site.json(&["status"])["degraded"], false);
}

#[test]
fn a_foreign_program_is_left_alone_unless_replaced() {
    let pair = Pair::addressed();
    let mut foreign = Site::new("foreign");
    foreign.start(&pair, GUARDED);
    let mut site = Site::new("native");
    site.start(&pair, GUARDED);
    let output = site.ctl(&["status"]);
    assert_eq!(output.status.code(), Some(1), "an interface that should be guarded is not");
    let output = site.ctl(&["attach", GUARDED]);
    assert_eq!(output.status.code(), Some(1));
    expect("kernel_foreign_program", &site, &String::from_utf8_lossy(&output.stderr));
    assert!(foreign.ctl(&["detach", GUARDED]).status.success());
    assert!(site.ctl(&["attach", GUARDED]).status.success());
    assert_eq!(site.ctl(&["status"]).status.code(), Some(0));
}

/// The loopback interface has no native mode, which kernels from 6.3 say beforehand: its guard is not touched at all.
#[test]
fn a_mode_that_cannot_be_had_leaves_the_guard_there_is() {
    const LOCALHOST: &str = "127.0.0.1";
    let answers = |pair: &Pair| {
        let mut command = pair.guarded.command("ping");
        command.args(["-c", "1", "-W", "1", "-q", LOCALHOST]).output().unwrap().status.success()
    };
    let refuse = |site: &Site, arguments: &[&str]| {
        let output = site.ctl(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("native"), "{error}");
    };
    let pair = Pair::addressed();
    pair.guarded.ip(&["link", "set", "lo", "up"]);
    assert!(answers(&pair));
    let mut site = Site::new("mode");
    let policy = "version = 1\n[[rule]]\nname = \"ping\"\nto = [\"icmp/echo-request\"]\nverdict = \"drop\"\n";
    fs::write(site.path("policy.toml"), policy).unwrap();
    site.start(&pair, "lo");
    let mode = |site: &Site| site.json(&["status"])["interfaces"][0]["mode"].clone();
    assert_eq!((mode(&site), answers(&pair)), ("generic".into(), false));
    let guard = |site: &Site| fs::metadata(site.pin.join("link-1")).unwrap().ino();
    let before = guard(&site);

    refuse(&site, &["attach", "lo", "--mode", "native"]);
    assert_eq!((mode(&site), answers(&pair)), ("generic".into(), false));
    if limiter_user::nic::features(1).is_ok() {
        assert_eq!(guard(&site), before, "the same guard");
    }

    // A daemon that is to guard in native mode keeps what it finds, too.
    site.end("-KILL");
    site.environment.push(("LIMITER_MODE".to_owned(), "native".to_owned()));
    site.start(&pair, "lo");
    assert_eq!((mode(&site), answers(&pair)), ("generic".into(), false));

    // Somebody else's program is back, or was not touched, where it cannot be replaced.
    let mut other = Site::new("mode-other");
    other.start(&pair, GUARDED);
    refuse(&other, &["attach", "lo", "--mode", "native", "--replace"]);
    assert!(!answers(&pair), "the program there was drops");
}

#[test]
fn what_does_not_exist_is_said_not_to() {
    let pair = Pair::addressed();
    let mut site = Site::new("absent");
    site.start(&pair, GUARDED);
    let output = site.ctl(&["attach", "eth9"]);
    expect("kernel_no_such_interface", &site, &String::from_utf8_lossy(&output.stderr));
    let output = site.ctl(&["detach", "eth9"]);
    expect("kernel_not_attached", &site, &String::from_utf8_lossy(&output.stderr));
    let output = site.ctl(&["detach", "--direct", "eth9"]);
    expect("kernel_direct_absent", &site, &String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_daemon_that_dies_leaves_its_guard_and_the_next_adopts_it() {
    let pair = Pair::addressed();
    let mut site = Site::new("adopt");
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 20), 5);
    assert_eq!(site.counts("ping"), (5, 15));
    assert_eq!(
        site.json(&["set-policy", &site.path("policy.toml").display().to_string()])["unchanged"],
        true
    );
    let mut expected = 15;
    for signal in ["-KILL", "-TERM", "-KILL"] {
        site.end(signal);
        assert_eq!(ping(&pair, 20), 0, "nobody fills a bucket anew");
        expected += 20;
        site.start(&pair, GUARDED);
        assert_eq!(site.counts("ping"), (5, expected), "counters go on");
    }
    let status = site.json(&["status"]);
    assert_eq!(status["policy"]["generation"], 1);
    assert_eq!(status["interfaces"][0]["name"], GUARDED);
    let top = site.json(&["top"]);
    assert_eq!(top["sources"][0]["source"], "192.0.2.2", "{top}");
    assert_eq!(top["sources"][0]["passed"], 5);
}

#[test]
fn a_changed_number_keeps_the_bucket() {
    let pair = Pair::addressed();
    let mut site = Site::new("number");
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 20), 5);
    fs::write(site.path("policy.toml"), PING_POLICY.replace("burst = 5", "burst = 8")).unwrap();
    assert_eq!(site.json(&["reload"])["generation"], 2);
    assert_eq!(ping(&pair, 20), 3, "five of eight are spent");
}

#[test]
fn a_detach_removes_what_was_made_and_holds_over_a_restart() {
    let pair = Pair::addressed();
    let mut site = Site::new("detach");
    site.start(&pair, GUARDED);
    assert!(site.ctl(&["detach", GUARDED]).status.success());
    assert!(!site.pin.exists(), "the last detach removes every pin");
    assert_eq!(ping(&pair, 10), 10);
    site.end("-KILL");
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 10), 10);
    assert_eq!(site.json(&["status"])["unguarded"][0]["detached"], true);
    assert!(site.ctl(&["attach", GUARDED]).status.success());
    assert_eq!(ping(&pair, 10), 5);
    site.end("-TERM");
    let mut direct = pair.guarded.command(env!("CARGO_BIN_EXE_limiterctl"));
    direct.env_clear().env("LIMITER_PIN", &site.pin).args(["detach", "--direct", GUARDED]);
    assert!(direct.status().unwrap().success());
    assert!(!site.pin.exists());
    assert_eq!(ping(&pair, 10), 10);
}

#[test]
fn an_interface_is_guarded_when_it_appears_comes_back_and_is_renamed() {
    let pair = Pair::addressed();
    let mut site = Site::new("links");
    site.start(&pair, "guard0,late0");
    let guarded = |site: &Site| -> Vec<String> {
        let status = site.json(&["status"]);
        let interfaces = status["interfaces"].as_array().unwrap().iter();
        interfaces.map(|interface| interface["name"].as_str().unwrap().to_owned()).collect()
    };
    let becomes = |site: &Site, names: &[&str]| {
        wait_for("the list of guarded interfaces", Duration::from_secs(30), || {
            (guarded(site) == names).then_some(())
        });
    };
    becomes(&site, &["guard0"]);
    for _ in 0..2 {
        pair.guarded.ip(&["link", "add", "late0", "type", "veth", "peer", "name", "late1"]);
        becomes(&site, &["guard0", "late0"]);
        pair.guarded.ip(&["link", "del", "late0"]);
        becomes(&site, &["guard0"]);
    }
    pair.guarded.ip(&["link", "set", GUARDED, "down"]);
    pair.guarded.ip(&["link", "set", GUARDED, "name", "wan0"]);
    pair.guarded.ip(&["link", "set", "wan0", "up"]);
    becomes(&site, &["wan0"]);
    // The new name is read as it is; that the old one is away is noticed with the link's next event.
    wait_for("the old name to be missed", Duration::from_secs(30), || {
        let unguarded = &site.json(&["status"])["unguarded"];
        unguarded.as_array().unwrap().iter().any(|interface| interface["name"] == "guard0").then_some(())
    });
    pair.guarded.ip(&["link", "set", "wan0", "down"]);
    pair.guarded.ip(&["link", "set", "wan0", "name", GUARDED]);
    becomes(&site, &["guard0"]);
}

#[test]
fn sighup_goes_back_to_the_file() {
    let pair = Pair::addressed();
    let mut site = Site::new("hangup");
    site.start(&pair, GUARDED);
    fs::write(site.path("policy.toml"), PING_POLICY.replace("burst = 5", "burst = 8")).unwrap();
    site.signal("-HUP");
    let generation = |wanted: u64| {
        wait_for("the policy", Duration::from_secs(30), || {
            (site.json(&["status"])["policy"]["generation"] == wanted).then_some(())
        });
    };
    generation(2);
    fs::write(site.path("policy.toml"), "version = 1\ncolour = 1\n").unwrap();
    site.signal("-HUP");
    wait_for("the refusal", Duration::from_secs(30), || {
        (site.json(&["status"])["degraded"] == true).then_some(())
    });
    generation(2);
    let log = fs::read_to_string(site.path("log")).unwrap();
    assert!(log.contains("policy.toml:2:1: unknown key `colour`"), "{log}");
}

#[test]
fn ready_is_told_once_everything_is_guarded_and_answers() {
    let pair = Pair::addressed();
    let mut site = Site::new("notify");
    let socket = UnixDatagram::bind(site.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    site.environment = vec![
        ("NOTIFY_SOCKET".to_owned(), site.path("notify").display().to_string()),
        ("WATCHDOG_USEC".to_owned(), "200000".to_owned()),
    ];
    site.spawn(&pair, GUARDED);
    let receive = || {
        let mut buffer = [0; 256];
        let length = loop {
            match socket.recv(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other.unwrap(),
            }
        };
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    };
    let mut told = receive();
    while told == "WATCHDOG=1" {
        told = receive();
    }
    assert_eq!(told, "READY=1");
    assert_eq!(site.json(&["status"])["interfaces"][0]["name"], GUARDED);
    assert_eq!(receive(), "WATCHDOG=1");
    assert_eq!(receive(), "WATCHDOG=1");
    site.signal("-TERM");
    while told != "STOPPING=1" {
        told = receive();
    }
}

#[test]
fn metrics_are_served_and_go_on_over_a_crash() {
    let pair = Pair::addressed();
    let mut site = Site::new("metrics");
    pair.guarded.ip(&["link", "set", "lo", "up"]);
    site.environment = vec![("LIMITER_METRICS".to_owned(), "127.0.0.1:9464".to_owned())];
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 20), 5);
    let get = |path: &str| {
        pair.guarded.run(|| {
            let mut stream = TcpStream::connect("127.0.0.1:9464").unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        })
    };
    let drops = r#"limiter_packets_total{rule="ping",reason="over",verdict="drop",family="ipv4"} 15"#;
    let page = get("/metrics");
    assert!(page.contains("application/openmetrics-text"), "{page}");
    assert!(page.lines().any(|line| line == drops), "{page}");
    assert!(get("/").starts_with("HTTP/1.1 404"));
    site.end("-KILL");
    site.start(&pair, GUARDED);
    assert!(get("/metrics").lines().any(|line| line == drops));
}

#[test]
fn a_full_disk_is_a_warning_and_never_a_gap() {
    let pair = Pair::addressed();
    let mut site = Site::new("disk");
    let state = site.path("state");
    fs::create_dir(&state).unwrap();
    let mount = |arguments: &[&str]| {
        assert!(Command::new(arguments[0]).args(&arguments[1..]).arg(&state).status().unwrap().success());
    };
    mount(&["mount", "-t", "tmpfs", "-o", "size=64k", "none"]);
    // Whatever happens below, the directory can be removed again.
    struct Mounted(std::path::PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }
    let _mounted = Mounted(state.clone());
    site.start(&pair, GUARDED);
    assert_eq!(ping(&pair, 10), 5);
    let mut filler = fs::File::create(state.join("filler")).unwrap();
    while filler.write_all(&[0; 512]).is_ok() {}
    fs::write(site.path("policy.toml"), PING_POLICY.replace("burst = 5", "burst = 8")).unwrap();
    let answer = site.json(&["set-policy", &site.path("policy.toml").display().to_string()]);
    assert_eq!(answer["applied"], true);
    let status = site.json(&["status"]);
    assert_eq!(status["degraded"], false);
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("cannot write") && warnings.contains("no space left"), "{warnings}");
    assert_eq!(ping(&pair, 10), 3, "the new burst is in force, the bucket is kept");
    site.end("-KILL");
    assert_eq!(ping(&pair, 10), 0);
    site.start(&pair, GUARDED);
    assert_eq!(site.json(&["status"])["policy"]["generation"], 2, "the kernel keeps what the disk cannot");
    assert_eq!(site.json(&["rollback-policy"])["applied"], true, "what was on disk before is still there");
}
