//! `cargo xtask test`: every check and every test, in an order in which nothing measures while something else
//! runs. Each suite is timed beside its budget; the budgets together keep a cold run within what CI allows.
//!
//! The test binaries are found, not listed: a new file in a package's `tests` is a new suite. A file may say how it
//! wants to be run in one line near its top, `// suite: budget=300 threads=2`; else it has one minute and one
//! thread.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{setup, steps};

#[derive(clap::Args)]
pub struct Arguments {
    /// Run only these suites
    #[arg(value_name = "SUITE")]
    suites: Vec<String>,
    /// Show the suites and their budgets, and run none
    #[arg(long)]
    list: bool,
}

struct Suite {
    name: String,
    budget: Duration,
    command: Command,
}

struct Outcome {
    name: String,
    budget: Duration,
    took: Duration,
    tests: u64,
    failure: Option<String>,
}

const DEFAULT_BUDGET: u64 = 60;
const DEFAULT_THREADS: u64 = 1;
/// A suite that takes this many times its budget, and this long, hangs.
const HANG: u32 = 5;
const HANG_FLOOR: Duration = Duration::from_secs(900);

pub fn run(arguments: &Arguments) -> Result<()> {
    let mut suites = all()?;
    if let Some(unknown) =
        arguments.suites.iter().find(|name| !suites.iter().any(|suite| suite.name == **name))
    {
        let names: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
        bail!("there is no suite `{unknown}`\n\nhint: the suites are {}", names.join(", "));
    }
    if !arguments.suites.is_empty() {
        suites.retain(|suite| arguments.suites.contains(&suite.name));
    }
    if arguments.list {
        for suite in &suites {
            println!("{:<24} {:>5} s", suite.name, suite.budget.as_secs());
        }
        let total: u64 = suites.iter().map(|suite| suite.budget.as_secs()).sum();
        println!("{:<24} {total:>5} s", "in all");
        return Ok(());
    }
    setup::run()?;
    let mut outcomes = Vec::new();
    for suite in suites {
        println!("\n== {} (budget {} s)", suite.name, suite.budget.as_secs());
        outcomes.push(execute(suite)?);
    }
    summarise(&outcomes)
}

fn all() -> Result<Vec<Suite>> {
    let mut suites = vec![
        suite("format", 30, steps::cargo(&["fmt", "--all", "--check"])),
        suite(
            "lint",
            300,
            steps::cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]),
        ),
        suite("lint-kernel", 120, kernel_lint()),
        suite("lint-guests", 60, guests_lint()),
        suite("docs", 180, docs()),
        // The tests are compiled before the first one runs, so that the budgets below are of running alone.
        suite("build", 400, steps::cargo(&["test", "--workspace", "--no-run"])),
        suite("unit", 200, steps::cargo(&["test", "--workspace", "--lib", "--bins"])),
    ];
    for package in ["limiter-common", "limiter-user", "tests"] {
        suites.extend(found(&Path::new(package).join("tests"))?);
    }
    if cfg!(target_arch = "x86_64") {
        suites.push(suite("vm", 720, vm()));
    }
    suites.push(suite("examples", 60, steps::cargo(&["test", "--workspace", "--doc"])));
    Ok(suites)
}

fn suite(name: &str, budget: u64, command: Command) -> Suite {
    Suite { name: name.to_owned(), budget: Duration::from_secs(budget), command }
}

fn docs() -> Command {
    let mut command = steps::cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "--deny warnings");
    command
}

/// The kernel programs as they are for their own target, where most of their code is.
fn kernel_lint() -> Command {
    let mut command = steps::cargo(&["clippy", "--release", "--package", "limiter-ebpf", "--bins"]);
    command.args([
        "--target",
        "bpfel-unknown-none",
        "-Z",
        "build-std=core",
        "--target-dir",
        "target/kernel-lint",
    ]);
    command.args(["--", "--deny", "warnings"]);
    command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-cpu=v3");
    command
}

/// What runs in guests alone is no target of a plain `--all-targets`.
fn guests_lint() -> Command {
    let arguments = ["clippy", "--workspace", "--test", "virtio", "--test", "floor"];
    let mut command = steps::cargo(&arguments);
    command.args(["--", "--deny", "warnings"]);
    command
}

/// The kernels that are worth their time at every change.
fn vm() -> Command {
    steps::cargo(&["xtask", "vm", "bullseye", "bookworm", "newest", "--no-setup"])
}

/// One suite for each test binary, by name. Each runs by itself: tests that measure want the machine alone.
fn found(directory: &Path) -> Result<Vec<Suite>> {
    let mut files = Vec::new();
    if directory.is_dir() {
        for entry in fs::read_dir(directory).context("cannot list the tests")? {
            let path = entry?.path();
            let main = path.join("main.rs");
            let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            if path.extension().is_some_and(|extension| extension == "rs") {
                files.push((name, path));
            } else if main.is_file() {
                files.push((name, main));
            }
        }
    }
    files.sort();
    let mut suites = Vec::new();
    for (name, path) in files {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let (budget, threads) = wishes(&text).with_context(|| format!("in `{}`", path.display()))?;
        // Of the whole workspace: one package alone has other features of its libraries and is compiled anew.
        let mut command = steps::cargo(&["test", "--workspace", "--test", &name, "--"]);
        command.arg(format!("--test-threads={threads}"));
        suites.push(suite(&name, budget, command));
    }
    Ok(suites)
}

/// Reads `// suite: budget=SECONDS threads=N`.
fn wishes(text: &str) -> Result<(u64, u64)> {
    let (mut budget, mut threads) = (DEFAULT_BUDGET, DEFAULT_THREADS);
    if let Some(line) = text.lines().take(60).find_map(|line| line.strip_prefix("// suite:")) {
        for wish in line.split_whitespace() {
            match wish.split_once('=') {
                Some(("budget", seconds)) => budget = seconds.parse()?,
                Some(("threads", count)) => threads = count.parse()?,
                _ => bail!("`// suite:` takes budget=SECONDS and threads=N, not `{wish}`"),
            }
        }
    }
    Ok((budget, threads))
}

fn execute(mut suite: Suite) -> Result<Outcome> {
    let begun = Instant::now();
    let (reader, writer) = std::io::pipe()?;
    suite.command.stdin(Stdio::null()).stdout(writer).env("RUST_BACKTRACE", "1");
    // A snapshot that differs is a failure, and no file beside the sources.
    suite.command.env("INSTA_UPDATE", "no");
    let counter = thread::spawn(move || relay(BufReader::new(reader)));
    let ended = steps::watch(&suite.name, &mut suite.command, Some(HANG_FLOOR.max(suite.budget * HANG)));
    // The command holds the writing end; without it the reader would wait for ever.
    drop(suite.command);
    let tests = counter.join().unwrap_or_default();
    if steps::interrupted() {
        bail!("interrupted");
    }
    let failure = match ended {
        Ok(status) if status.success() => None,
        Ok(_) => Some("failed".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    Ok(Outcome { name: suite.name, budget: suite.budget, took: begun.elapsed(), tests, failure })
}

/// Passes a suite's words on and counts the tests that passed.
fn relay(reader: impl BufRead) -> u64 {
    let mut passed = 0;
    for line in reader.lines().map_while(Result::ok) {
        passed += passed_in(&line).unwrap_or(0);
        println!("{line}");
    }
    passed
}

fn passed_in(line: &str) -> Option<u64> {
    let (count, _) = line.strip_prefix("test result: ")?.split_once(". ")?.1.split_once(" passed")?;
    count.parse().ok()
}

fn summarise(outcomes: &[Outcome]) -> Result<()> {
    println!("\n{:<24} {:>6} {:>8} {:>8}", "suite", "tests", "seconds", "budget");
    for outcome in outcomes {
        let tests = if outcome.tests == 0 { "-".to_owned() } else { outcome.tests.to_string() };
        let note = match &outcome.failure {
            Some(_) => "  FAILED",
            None if outcome.took > outcome.budget => "  over its budget",
            None => "",
        };
        let (took, budget) = (outcome.took.as_secs_f64(), outcome.budget.as_secs());
        println!("{:<24} {tests:>6} {took:>8.1} {budget:>8}{note}", outcome.name);
    }
    let failures: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.failure.is_some()).collect();
    let tests: u64 = outcomes.iter().map(|outcome| outcome.tests).sum();
    let took: f64 = outcomes.iter().map(|outcome| outcome.took.as_secs_f64()).sum();
    if failures.is_empty() {
        println!("\nall passed: {} suites, {tests} tests, {took:.0} s", outcomes.len());
        return Ok(());
    }
    let named: Vec<String> = failures
        .iter()
        .map(|outcome| format!("{} ({})", outcome.name, outcome.failure.as_deref().unwrap_or_default()))
        .collect();
    bail!("{} of {} suites did not pass: {}", failures.len(), outcomes.len(), named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{passed_in, wishes};

    #[test]
    fn a_file_says_how_it_is_run() {
        assert_eq!(wishes("//! A test.\n// suite: budget=300 threads=2\nfn x() {}").unwrap(), (300, 2));
        assert_eq!(wishes("//! A test.\n").unwrap(), (60, 1));
        assert!(wishes("// suite: treads=2").is_err());
    }

    #[test]
    fn the_closing_line_of_a_test_binary_is_counted() {
        let line =
            "test result: ok. 41 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s";
        assert_eq!(passed_in(line), Some(41));
        assert_eq!(passed_in("test result: FAILED. 3 passed; 1 failed; 0 ignored"), Some(3));
        assert_eq!(passed_in("running 3 tests"), None);
    }
}
