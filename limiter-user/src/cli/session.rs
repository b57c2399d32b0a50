//! Your own ssh session: where an operator is logged in from, and to what, so that no verb locks him out.
//!
//! sshd tells the shell in `SSH_CONNECTION`. `sudo`, `su` and scripts clear it, so the environment every ancestor
//! was started with is asked too. An ancestor that may not be looked at is passed over. The text is whatever the
//! ancestor was given: it is believed only if it is two addresses and two ports.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Most ancestors asked; a shell is rarely deeper than ten.
const DEEPEST: usize = 64;

/// Most bytes of one environment read.
const MOST_BYTES: u64 = 4 << 20;

const NAME: &[u8] = b"SSH_CONNECTION=";

/// One ssh connection, as packets of the client reach this host. Addresses are canonical: IPv4 also where it came
/// carried in IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub client: IpAddr,
    pub client_port: u16,
    pub server: IpAddr,
    pub server_port: u16,
}

impl fmt::Display for Session {
    /// As sshd writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.client, self.client_port, self.server, self.server_port)
    }
}

/// What a request without a body says of them: the query that keeps them, or that they need not be kept.
pub fn query(force: bool) -> String {
    let mut query: Vec<String> =
        own().iter().map(|own| format!("session={}", super::attach::encode(&own.to_string()))).collect();
    query.extend(force.then(|| "force".to_owned()));
    query.join("&")
}

/// The sessions this process runs under, nearest first, each once. More than one where ssh runs inside ssh, or where
/// a terminal multiplexer was started by an earlier session.
pub fn own() -> Vec<Session> {
    above(Path::new("/proc"), std::process::id())
}

/// The same for any process, with its proc file system.
fn above(proc: &Path, process: u32) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    let mut next = Some(process);
    for _ in 0..DEEPEST {
        let Some(process) = next.filter(|process| *process != 0) else { break };
        let directory = proc.join(process.to_string());
        if let Some(session) = told(&directory)
            && !sessions.contains(&session)
        {
            sessions.push(session);
        }
        next = parent(&directory);
    }
    sessions
}

/// What the process was told when it was started.
fn told(directory: &Path) -> Option<Session> {
    let mut environment = Vec::new();
    File::open(directory.join("environ")).ok()?.take(MOST_BYTES).read_to_end(&mut environment).ok()?;
    environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| variable.strip_prefix(NAME))
        .find_map(|value| parse(std::str::from_utf8(value).ok()?))
}

/// `198.51.100.7 50022 203.0.113.1 22`
pub fn parse(text: &str) -> Option<Session> {
    let mut words = text.split(' ');
    let mut address = || {
        // A link-local address names its interface.
        let word = words.next()?;
        let address: IpAddr = word.split_once('%').map_or(word, |(address, _)| address).parse().ok()?;
        let port = words.next()?.parse().ok()?;
        Some((address.to_canonical(), port))
    };
    let (client, client_port) = address()?;
    let (server, server_port) = address()?;
    words.next().is_none().then_some(Session { client, client_port, server, server_port })
}

/// The name in `stat` may hold anything, brackets and numbers too; the fields follow the last bracket.
fn parent(directory: &Path) -> Option<u32> {
    let stat = fs::read(directory.join("stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with that environment; `name` is what `stat` shows in brackets.
    fn process(proc: &Path, id: u32, parent: u32, name: &str, environment: &[u8]) {
        let directory = proc.join(id.to_string());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("environ"), environment).unwrap();
        fs::write(directory.join("stat"), format!("{id} ({name}) S {parent} 1 1 0 -1 4194560 0")).unwrap();
    }

    fn session(client: &str, client_port: u16, server: &str, server_port: u16) -> Session {
        Session { client: client.parse().unwrap(), client_port, server: server.parse().unwrap(), server_port }
    }

    #[test]
    fn the_shell_under_sudo_is_found() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        process(proc, 1, 0, "systemd", b"");
        process(proc, 700, 1, "sshd", b"LANG=C\0");
        process(proc, 710, 700, "bash", b"A=1\0SSH_CONNECTION=198.51.100.7 50022 203.0.113.1 22\0B=2\0");
        process(proc, 720, 710, "sudo", b"PATH=/bin\0");
        process(proc, 730, 720, "limiterctl", b"PATH=/bin\0");
        assert_eq!(above(proc, 730), [session("198.51.100.7", 50_022, "203.0.113.1", 22)]);
    }

    #[test]
    fn every_session_is_found_once_and_the_nearest_is_first() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        process(proc, 2, 1, "tmux", b"SSH_CONNECTION=198.51.100.7 1 203.0.113.1 22\0");
        process(proc, 3, 2, "bash", b"SSH_CONNECTION=2001:db8::7 2 2001:db8::1 2222\0");
        process(proc, 4, 3, "bash", b"SSH_CONNECTION=2001:db8::7 2 2001:db8::1 2222\0");
        let expected =
            [session("2001:db8::7", 2, "2001:db8::1", 2222), session("198.51.100.7", 1, "203.0.113.1", 22)];
        assert_eq!(above(proc, 4), expected);
    }

    #[test]
    fn a_name_cannot_pass_for_other_fields() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        process(proc, 8, 1, "bash", b"SSH_CONNECTION=198.51.100.7 1 203.0.113.1 22\0");
        process(proc, 9, 8, "x) S 1 (y", b"");
        assert_eq!(above(proc, 9).len(), 1);
    }

    #[test]
    fn ancestors_in_a_circle_or_gone_end_the_search() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        process(proc, 5, 6, "a", b"");
        process(proc, 6, 5, "b", b"");
        process(proc, 7, 4_000_000_000, "c", b"");
        assert_eq!(above(proc, 5), []);
        assert_eq!(above(proc, 7), []);
        assert_eq!(above(proc, 99), []);
    }

    #[test]
    fn an_ancestor_that_may_not_be_looked_at_is_passed_over() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        process(proc, 10, 1, "bash", b"SSH_CONNECTION=198.51.100.7 1 203.0.113.1 22\0");
        process(proc, 11, 10, "sudo", b"");
        fs::remove_file(proc.join("11/environ")).unwrap();
        assert_eq!(above(proc, 11).len(), 1);
    }

    #[test]
    fn only_two_addresses_with_ports_are_believed() {
        let mapped = session("198.51.100.7", 1, "203.0.113.1", 22);
        assert_eq!(parse("::ffff:198.51.100.7 1 ::ffff:203.0.113.1 22"), Some(mapped));
        let local = session("fe80::7", 1, "fe80::1", 22);
        assert_eq!(parse("fe80::7%eth0 1 fe80::1%eth0 22"), Some(local));
        for text in [
            "",
            "198.51.100.7",
            "198.51.100.7 1 203.0.113.1",
            "198.51.100.7 1 203.0.113.1 22 more",
            "198.51.100.7 65536 203.0.113.1 22",
            "198.51.100.7 -1 203.0.113.1 22",
            "198.51.100.7  1 203.0.113.1 22",
            "host 1 203.0.113.1 22",
            "198.51.100.7 1 203.0.113.1 22\n",
            "198.51.100.7;reboot 1 203.0.113.1 22",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_passed_over() {
        let proc = tempfile::tempdir().unwrap();
        let environment = b"SSH_CONNECTION=\xff\xfe\0SSH_CONNECTION=198.51.100.7 1 203.0.113.1 22\0";
        process(proc.path(), 12, 1, "bash", environment);
        assert_eq!(above(proc.path(), 12).len(), 1);
    }

    #[test]
    fn the_real_proc_is_read() {
        assert_eq!(parent(Path::new("/proc/self")), Some(std::os::unix::process::parent_id()));
    }
}
