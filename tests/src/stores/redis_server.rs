//! A real `redis-server` of a test's own: in a directory that goes away with it, on a Unix socket, with a clock
//! the test can step.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use limiter_user::requests::key::Secret;
use limiter_user::requests::redis::{Address, RedisConfig};
use tempfile::TempDir;

/// The namespace of every test.
pub const NAMESPACE: &str = "test";
pub const SECRET: &[u8] = b"a secret for tests";

pub struct RedisServer {
    process: Option<Child>,
    directory: TempDir,
    clock: File,
    arguments: Vec<String>,
}

impl RedisServer {
    /// A server without persistence; `arguments` as on the command line of `redis-server`.
    pub fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the server");
        let clock = directory.path().join("clock");
        fs::write(&clock, [0; 16]).expect("the clock's file");
        let clock = OpenOptions::new().write(true).open(clock).expect("the clock's file");
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut server = Self { process: None, directory, clock, arguments };
        server.restart();
        server
    }

    /// Starts it again in the same directory, after `kill` too.
    pub fn restart(&mut self) {
        self.kill();
        let log = File::create(self.path("log")).expect("the server's log");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--daemonize", "no"]);
        command.arg("--dir").arg(self.directory.path()).arg("--unixsocket").arg(self.socket());
        command.args(&self.arguments);
        command.env("LD_PRELOAD", shifted_clock()).env("SHIFTED_CLOCK", self.path("clock"));
        command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("redis-server is installed"));
        let give_up = Instant::now() + Duration::from_secs(20);
        while !self.answers() {
            assert!(Instant::now() < give_up, "redis-server does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn answers(&self) -> bool {
        let client =
            redis::Client::open(format!("unix:{}", self.socket().display())).expect("a socket's path");
        // An answer, also one that asks for a password or to wait.
        match client.get_connection() {
            Ok(_) => true,
            Err(error) => !error.is_io_error(),
        }
    }

    /// Ends it at once, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// SIGSTOP: connections stay open and nobody answers.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: libc::c_int) {
        let process = self.process.as_ref().expect("the server runs");
        // SAFETY: the process is a child not yet waited for, so its number is still its own.
        let result = unsafe { libc::kill(process.id() as libc::pid_t, signal) };
        assert_eq!(result, 0);
    }

    /// Sets the server's wall clock to the real one plus `micros`.
    pub fn shift_clock(&self, micros: i64) {
        self.clock.write_all_at(&micros.to_ne_bytes(), 0).expect("the clock's file");
    }

    /// Lets the server's wall clock stand still at this time.
    pub fn stop_clock(&self, micros: i64) {
        self.clock.write_all_at(&micros.to_ne_bytes(), 8).expect("the clock's file");
    }

    pub fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn config(&self) -> RedisConfig {
        let secret = Secret::new(SECRET).expect("long enough");
        RedisConfig::new(Address::Unix(self.socket()), NAMESPACE, secret)
    }

    /// A plain connection for the test itself.
    pub fn connection(&self) -> redis::Connection {
        let client =
            redis::Client::open(format!("unix:{}", self.socket().display())).expect("a socket's path");
        client.get_connection().expect("the server answers")
    }

    /// Runs one command and returns its reply.
    pub fn run<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut words = redis::cmd(command[0]);
        words.arg(&command[1..]);
        words.query(&mut self.connection()).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Keys of the namespace that would live for ever, but for the two kinds that should.
    pub fn keys_without_end(&self) -> Vec<String> {
        let script = "local bad = {}
            for _, key in ipairs(redis.call('KEYS', '*')) do
              if redis.call('PTTL', key) == -1 then bad[#bad + 1] = key end
            end
            return bad";
        let keys: Vec<String> = self.run(&["EVAL", script, "0"]);
        let persistent = [format!("{NAMESPACE}:policy"), format!("{NAMESPACE}:meta:")];
        keys.into_iter().filter(|key| !persistent.iter().any(|p| key.starts_with(p.as_str()))).collect()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The shared object that shifts a server's clock, compiled once per test binary.
fn shifted_clock() -> &'static Path {
    static OBJECT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = OBJECT.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory for the shared object");
        let path = directory.path().join("shifted_clock.so");
        let mut compiler = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-x", "c", "-", "-o"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a C compiler is installed");
        let source = include_bytes!("../../fixtures/shifted_clock.c");
        compiler.stdin.take().expect("a pipe").write_all(source).expect("the compiler reads");
        assert!(compiler.wait().expect("the compiler ends").success());
        (directory, path)
    });
    path
}
