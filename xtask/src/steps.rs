//! Running other programs: with progress where they are long, with their words where they fail, and never beyond
//! an interrupt.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How often a long step says that it is still at work.
const PROGRESS: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(50);
/// What a program that was asked to end may take to clean up.
const GRACE: Duration = Duration::from_secs(5);
/// A failing quiet program shows this many of its last lines.
const LAST_LINES: usize = 40;

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Turns Ctrl-C, a hang-up and a termination into a flag, so that everything made is also taken away.
pub fn catch_interrupts() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Default::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot watch for Ctrl-C")?;
    }
    Ok(())
}

pub fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// The cargo that runs this program, with arguments.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// A program that is looked for, and itself looks, in [`places`].
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    if let Ok(path) = std::env::join_paths(places()) {
        command.env("PATH", path);
    }
    command
}

/// Where `program` is.
pub fn find_program(program: &str) -> Option<PathBuf> {
    places().into_iter().map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}

/// PATH, and where administration programs live: a PATH that `su` or a plain shell gives does not have those.
fn places() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from)).collect()
}

/// Runs a program whose words matter only when it fails.
pub fn quiet(what: &str, mut command: Command) -> Result<()> {
    let (mut log, words) = scratch()?;
    command.stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words);
    let status = watch(what, &mut command, None)?;
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    log.seek(SeekFrom::Start(0))?;
    log.read_to_end(&mut said)?;
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
        eprintln!("  {line}");
    }
    bail!("{what}: `{}` failed ({status})", shown(&command))
}

/// Runs a program that speaks for itself.
pub fn spoken(what: &str, mut command: Command) -> Result<()> {
    let status = watch(what, &mut command, None)?;
    if !status.success() {
        bail!("{what}: `{}` failed ({status})", shown(&command));
    }
    Ok(())
}

/// Waits for a program in a process group of its own, so that its children end with it when it is interrupted or
/// passes its deadline.
pub fn watch(what: &str, command: &mut Command, deadline: Option<Duration>) -> Result<ExitStatus> {
    let child = command.process_group(0).spawn();
    let mut child = child.with_context(|| format!("cannot run `{}`", shown(command)))?;
    let begun = Instant::now();
    let mut told = begun;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupted() {
            end(&mut child);
            bail!("interrupted while at {what}");
        }
        if deadline.is_some_and(|deadline| begun.elapsed() > deadline) {
            end(&mut child);
            bail!("{what} was ended: it hung for {} s", begun.elapsed().as_secs());
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            eprintln!("      … {what}: {} s", begun.elapsed().as_secs());
        }
        thread::sleep(GLANCE);
    }
}

/// Asks a program to end, then makes it. It must lead a process group of its own: that is what ends.
pub fn end(child: &mut Child) {
    let Ok(group) = i32::try_from(child.id()).map(Pid::from_raw) else { return };
    let _ = killpg(group, Signal::SIGTERM);
    let asked = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && asked.elapsed() < GRACE {
        thread::sleep(GLANCE);
    }
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A file without a name, and a second handle to it for the program that fills it.
fn scratch() -> Result<(File, File)> {
    let file = tempfile::tempfile().context("cannot make a temporary file")?;
    let second = file.try_clone()?;
    Ok((file, second))
}
