//! `limiterctl top` on a real pseudo-terminal, against a real limiterd that guards a veth pair.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod site;

use std::io::{Read, Write};
use std::num::NonZero;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use limiter_tests::clock::wait_for;
use limiter_tests::namespace::{GUARDED, GUARDED_V4, PEER_V4, Pair};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use site::Site;

const PATIENCE: Duration = Duration::from_secs(30);

fn size(rows: u16, cols: u16) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}

fn lines(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

/// A terminal with limiterctl on it.
struct Session {
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    screen: Arc<Mutex<vt100::Parser>>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Session {
    fn start(site: &Site, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let pair = native_pty_system().openpty(size(24, 110)).unwrap();
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_limiterctl"));
        command.env_clear();
        command.env("TERM", "xterm-256color");
        command.env("LIMITER_SOCKET", site.path("limiterd.sock"));
        environment.iter().for_each(|(name, value)| command.env(name, value));
        command.args(arguments);
        let child = pair.slave.spawn_command(command).unwrap();
        let mut reader = pair.master.try_clone_reader().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(lines(24), lines(110), 0)));
        let written = Arc::new(Mutex::new(Vec::new()));
        let (to_screen, to_written) = (Arc::clone(&screen), Arc::clone(&written));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                to_screen.lock().unwrap().process(&buffer[..count]);
                to_written.lock().unwrap().extend(&buffer[..count]);
            }
        });
        Self { keys: pair.master.take_writer().unwrap(), master: pair.master, child, screen, written }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn shows(&self, what: &str) {
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(what, PATIENCE, || self.text().contains(what).then_some(()));
        }));
        assert!(shown.is_ok(), "the screen does not show {what:?}:\n{}", self.text());
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits for the end; the terminal must be as it was.
    fn ends(&mut self) -> u32 {
        let status = wait_for("limiterctl to end", PATIENCE, || self.child.try_wait().unwrap());
        wait_for("the terminal to be given back", PATIENCE, || {
            let screen = self.screen.lock().unwrap();
            (!screen.screen().alternate_screen() && !screen.screen().hide_cursor()).then_some(())
        });
        let modes = self.master.get_termios().unwrap().local_flags.bits();
        let wanted = libc::ICANON | libc::ECHO | libc::ISIG;
        assert_eq!(modes & wanted, wanted, "the terminal is still raw");
        status.exit_code()
    }

    fn signal(&self, signal: &str) {
        let id = self.child.process_id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

/// A limiterd whose one source is over its limit of five pings.
fn busy(name: &str) -> (Pair, Site) {
    let pair = Pair::addressed();
    let mut site = Site::new(name);
    site.start(&pair, GUARDED);
    let mut ping = pair.peer.command("ping");
    ping.args(["-q", "-c", "40", "-i", "0.01", "-W", "1", GUARDED_V4]).output().unwrap();
    (pair, site)
}

#[test]
fn the_screen_is_used_and_given_back() {
    let (_pair, site) = busy("top-screen");
    let mut session = Session::start(&site, &["top"], &[]);
    session.shows(PEER_V4);
    session.shows("ping");
    session.press("/nothing");
    session.shows("filter: nothing");
    session.shows("0 of 1");
    session.press("\x1b");
    session.shows("1 of 1");
    session.press("f");
    session.shows("▾FILL");
    session.press("?");
    session.shows("hold the list still");
    session.press("x");
    session.press("\t\t");
    session.shows("drops in the last");
    session.press("b");
    session.shows("sources are banned");
    session.press("\x1b[Z\x1b[Z");
    session.shows(PEER_V4);
    session.master.resize(size(40, 60)).unwrap();
    session.screen.lock().unwrap().screen_mut().set_size(lines(40), lines(60));
    session.press(" ");
    session.shows("held still");
    session.press(" b");
    session.shows(&format!("Ban {PEER_V4} for 10 minutes?"));
    session.press("n");
    session.shows("not banned");
    session.press("q");
    assert_eq!(session.ends(), 0);
}

#[test]
fn signals_give_the_terminal_back() {
    let (_pair, site) = busy("top-signal");
    for (signal, code) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130)] {
        let mut session = Session::start(&site, &["top"], &[]);
        session.shows(PEER_V4);
        session.signal(signal);
        assert_eq!(session.ends(), code, "{signal}");
    }
}

#[test]
fn a_daemon_that_goes_away_is_said_and_waited_for() {
    let (pair, mut site) = busy("top-away");
    let mut session = Session::start(&site, &["top"], &[]);
    session.shows(PEER_V4);
    site.end("-KILL");
    session.shows("nobody answers; these numbers are old");
    site.start(&pair, GUARDED);
    session.shows("? help");
    session.press("\x03");
    assert_eq!(session.ends(), 0);
}

#[test]
fn terminals_that_cannot_and_people_who_do_not_want_to_get_text() {
    let (_pair, site) = busy("top-dumb");
    let mut session = Session::start(&site, &["top"], &[("TERM", "dumb")]);
    assert_eq!(session.ends(), 0);
    session.shows(PEER_V4);
    assert!(!session.written.lock().unwrap().contains(&0x1b));
    // Without colours there is no colour, also full-screen.
    let mut session = Session::start(&site, &["top"], &[("NO_COLOR", "1")]);
    session.shows(PEER_V4);
    session.press("q");
    assert_eq!(session.ends(), 0);
    let written = String::from_utf8_lossy(&session.written.lock().unwrap()).into_owned();
    assert!(!written.contains("\x1b[31m") && !written.contains("38;5;"), "{written:?}");
}
