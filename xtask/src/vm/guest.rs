//! One guest: an emulated machine, its report read as it comes, and its console shown when something failed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::kernels::{Fetched, Kernel};
use super::suites::Suite;
use crate::steps;

/// The interfaces, each on a hub: two joined, and one alone, whose device is older than VIRTIO 1.0 and wants headers
/// in buffers of their own, so that its driver takes no program. The tests know them by their addresses
/// (`limiter-user/tests/vm/virtio.rs`).
const NICS: [(u32, &str); 3] =
    [(0, ""), (0, ""), (1, ",disable-modern=on,disable-legacy=off,any_layout=off")];

const MEMORY: &str = "2048";
/// Until the first process speaks. It takes 5 s where nothing else runs.
const BOOT: Duration = Duration::from_secs(180);
/// How often it is started when it ends or hangs before its first process speaks, and nothing of ours has run:
/// emulated CPUs that run at once may meet an instruction which the kernel is patching (it ends in an `int3` oops).
const STARTS: u32 = 3;
/// What a suite's own deadline, which the guest keeps, is exceeded by before the guest is taken for dead.
const SLACK: Duration = Duration::from_secs(60);
/// How much of the console is shown when a guest failed.
const LAST_LINES: usize = 400;

/// A kernel with what runs on it.
pub struct Guest {
    pub kernel: &'static Kernel,
    pub fetched: Fetched,
    pub suites: Vec<Suite>,
    /// The initramfs.
    pub image: PathBuf,
}

impl Guest {
    /// Runs it to its end; says how many tests passed.
    pub fn run(&self) -> Result<u64> {
        let mut starts = 1;
        loop {
            let mut booted = false;
            let result = self.start(&mut booted);
            if result.is_ok() || booted || starts == STARTS || steps::interrupted() {
                return result;
            }
            starts += 1;
            println!("  ..  {}: it did not boot; start {starts} of {STARTS}", self.kernel.name);
        }
    }

    /// One start of [`run`](Self::run); `booted` tells whether the guest's first process spoke.
    fn start(&self, booted: &mut bool) -> Result<u64> {
        let console = self.image.with_file_name("console");
        let _ = fs::remove_file(&console);
        println!("  ..  {} ({}), {}", self.kernel.name, self.fetched.release, self.kernel.about);
        let mut command = machine(&self.fetched.image, &self.image, &console);
        // What it says of itself, and of the hubs that lead nowhere, is wanted only when it does not start.
        let words = self.image.with_file_name("qemu");
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&words)?);
        let mut child = command.spawn().context("cannot run `qemu-system-x86_64`")?;
        let report = child.stdout.take().context("the guest's report is a pipe")?;
        let result = self.follow(report, booted);
        steps::end(&mut child);
        if let Err(error) = &result {
            let mut text =
                format!("---- `{}`: {error:#}; its console, from {}\n", self.kernel.name, console.display());
            for file in [&words, &console] {
                let said = fs::read(file).unwrap_or_default();
                let said = String::from_utf8_lossy(&said);
                let lines: Vec<&str> = said.lines().collect();
                for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
                    text.push_str(line);
                    text.push('\n');
                }
            }
            println!("{text}---- end of the console of `{}`", self.kernel.name);
        }
        result
    }

    /// Reads the report to its end; says how many tests passed.
    fn follow(&self, report: impl Read + Send + 'static, booted: &mut bool) -> Result<u64> {
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(report).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let kernel = self.kernel.name;
        let mut patience = BOOT;
        let mut told = Instant::now();
        let mut at = "its boot".to_owned();
        let mut missing: Vec<&str> = self.suites.iter().map(|suite| suite.name).collect();
        let mut failed = Vec::new();
        let mut passed = 0;
        loop {
            let line = match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => bail!("the guest ended at {at}"),
                Err(RecvTimeoutError::Timeout) if steps::interrupted() => bail!("interrupted"),
                Err(RecvTimeoutError::Timeout) if told.elapsed() > patience => {
                    bail!("the guest was ended: it hung at {at} for {} s", told.elapsed().as_secs())
                }
                Err(RecvTimeoutError::Timeout) => continue,
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            match &words[..] {
                ["kernel", _] => {
                    println!("      {kernel}: booted in {:.1} s", told.elapsed().as_secs_f64());
                    *booted = true;
                    at = "loading its drivers".to_owned();
                }
                ["begin", name] => {
                    let suite = self.suites.iter().find(|suite| suite.name == *name);
                    patience = Duration::from_secs(suite.map_or(0, |suite| suite.seconds)) + SLACK;
                    at = format!("suite `{name}`");
                }
                ["end", name, how, tests, milliseconds] => {
                    let milliseconds: u64 = milliseconds.parse().unwrap_or_default();
                    println!(
                        "      {kernel}: {name:<16} {how} {tests:>4} tests {:>7.1} s",
                        milliseconds as f64 / 1e3
                    );
                    passed += tests.parse::<u64>().unwrap_or_default();
                    missing.retain(|suite| suite != name);
                    if *how != "passed" || *tests == "0" {
                        failed.push((*name).to_owned());
                    }
                }
                ["done"] => break,
                _ => println!("      {kernel}: the guest says: {line}"),
            }
            told = Instant::now();
        }
        if !failed.is_empty() {
            bail!("did not pass: {}", failed.join(", "));
        }
        if !missing.is_empty() {
            bail!("did not run: {}", missing.join(", "));
        }
        Ok(passed)
    }
}

fn machine(kernel: &Path, image: &Path, console: &Path) -> Command {
    let mut command = steps::program("qemu-system-x86_64");
    // Emulation alone: where there is virtualisation, it is not for us to use or to wait for.
    command.args(["-accel", "tcg,thread=multi", "-machine", "pc", "-cpu", "max", "-smp", "2", "-m", MEMORY]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(image);
    command.args(["-append", "console=ttyS0 rdinit=/init panic=-1 loglevel=4 random.trust_cpu=on"]);
    command.arg("-serial").arg(format!("file:{}", console.display())).args(["-serial", "stdio"]);
    for (number, (hub, device)) in NICS.into_iter().enumerate() {
        command.args(["-netdev", &format!("hubport,id=net{number},hubid={hub}")]);
        let address = format!("mac=02:00:00:00:00:{:02x}", number + 1);
        command.args(["-device", &format!("virtio-net-pci,netdev=net{number},{address},romfile={device}")]);
    }
    command
}
