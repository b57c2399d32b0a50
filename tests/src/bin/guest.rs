//! The first process of a guest that `cargo xtask vm` boots: mounts what a host has, loads the driver modules, runs
//! the suites one after another, and tells on the second serial port how each went.
//!
//! The plan is a file of lines, words separated by tabs:
//!
//! - `module PATH` loads a kernel module;
//! - `variable NAME VALUE` is for the environment of all suites after it;
//! - `suite NAME SECONDS DIRECTORY PROGRAM ARGUMENT…` runs a program there, and ends it when its time is over.
//!
//! The report is `kernel RELEASE`, then for each suite `begin NAME` and `end NAME passed|failed|hung TESTS
//! MILLISECONDS`, and `done` at last. What suites print goes to the console, which is the first serial port.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};

const PLAN: &str = "/guest/plan";
const REPORT: &str = "/dev/ttyS1";
const GLANCE: Duration = Duration::from_millis(20);

const MOUNTS: [(&str, &str); 6] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/run"),
    ("bpf", "/sys/fs/bpf"),
    ("cgroup2", "/sys/fs/cgroup"),
];

fn main() {
    if let Err(error) = run() {
        println!("guest: {error:#}");
    }
    let _ = io::stdout().flush();
    // The serial ports are emptied at their own pace; whoever waits for this guest waits for its end.
    nix::unistd::sync();
    thread::sleep(Duration::from_millis(200));
    let _ = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_AUTOBOOT);
}

fn run() -> Result<()> {
    // In memory like all of this guest; a mount would hide a workspace that lies there.
    fs::create_dir_all("/tmp").context("make `/tmp`")?;
    for (kind, place) in MOUNTS {
        fs::create_dir_all(place).with_context(|| format!("make `{place}`"))?;
        mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("mount {kind} on `{place}`"))?;
    }
    let mut report = File::options().write(true).open(REPORT).with_context(|| format!("open `{REPORT}`"))?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    writeln!(report, "kernel {}", release.trim())?;
    let mut variables = Vec::new();
    for line in fs::read_to_string(PLAN).context("read the plan")?.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        match &words[..] {
            ["module", path] => load(path).with_context(|| format!("load `{path}`"))?,
            ["variable", name, value] => variables.push(((*name).to_owned(), (*value).to_owned())),
            ["suite", name, seconds, directory, program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).current_dir(directory).env_clear().envs(variables.iter().cloned());
                suite(&mut report, name, Duration::from_secs(seconds.parse()?), command)?;
            }
            _ => bail!("the plan says `{line}`, which is nothing"),
        }
    }
    writeln!(report, "done")?;
    Ok(())
}

fn load(path: &str) -> Result<()> {
    let image = fs::read(path)?;
    let parameters = CString::default();
    nix::kmod::init_module(&image, &parameters).map_err(Into::into)
}

fn suite(report: &mut File, name: &str, time: Duration, mut command: Command) -> Result<()> {
    writeln!(report, "begin {name}")?;
    println!("==== {name}");
    let begun = Instant::now();
    let (reader, writer) = io::pipe()?;
    // A group of its own, so that what it started ends with it.
    command.process_group(0).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("run suite `{name}`"))?;
    // The command holds the writing end, and without it the reader would wait for ever.
    drop(command);
    let reader = thread::spawn(move || relay(BufReader::new(reader)));
    let how = loop {
        if let Some(status) = child.try_wait()? {
            break if status.success() { "passed" } else { "failed" };
        }
        if begun.elapsed() > time {
            break "hung";
        }
        thread::sleep(GLANCE);
    };
    let took = begun.elapsed().as_millis();
    end(&mut child);
    let tests = reader.join().unwrap_or_default();
    writeln!(report, "end {name} {how} {tests} {took}")?;
    Ok(())
}

/// Ends what is left of a suite.
fn end(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        let _ =
            nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), nix::sys::signal::Signal::SIGKILL);
    }
    let _ = child.wait();
}

/// Passes a suite's words on to the console and counts the tests that passed.
fn relay(reader: impl BufRead) -> u64 {
    let mut passed = 0;
    for line in reader.lines().map_while(Result::ok) {
        let count = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "));
        let count = count.and_then(|(_, rest)| rest.split_once(" passed"));
        passed += count.and_then(|(count, _)| count.parse::<u64>().ok()).unwrap_or(0);
        println!("{line}");
    }
    passed
}
