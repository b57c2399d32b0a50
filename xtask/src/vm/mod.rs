//! `cargo xtask vm`: limiter on the kernels of other Debian releases, each in a guest of its own.
//!
//! The guests are emulated (TCG), so this needs no virtualisation and runs wherever the tests do. Each boots a
//! kernel from Debian's own packages with an initramfs that holds the test binaries, the libraries they need and the
//! drivers, and two virtio-net interfaces joined by a hub: a real driver, whose own XDP path judges real packets.

mod guest;
mod image;
mod kernels;
mod modules;
mod suites;

use std::collections::VecDeque;
use std::num::NonZero;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::{setup, steps};
use guest::Guest;
use kernels::{Kernel, MATRIX};

/// Kernels and images are kept here.
const CACHE: &str = "target/vm";

#[derive(clap::Args)]
pub struct Arguments {
    /// Kernels to run on, by name [default: all]
    #[arg(value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Show the kernels, and run none
    #[arg(long)]
    list: bool,
    /// Look for newer packages of the kernels that were fetched before
    #[arg(long)]
    update: bool,
    /// Run only these suites in the guests
    #[arg(long = "suite", value_name = "SUITE")]
    suites: Vec<String>,
    /// Leave out setting up this machine
    #[arg(long)]
    no_setup: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let names: Vec<&str> = MATRIX.iter().map(|kernel| kernel.name).collect();
    if let Some(unknown) = arguments.kernels.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("no kernel is called `{unknown}`\n\nhint: the kernels are {}", names.join(", "));
    }
    let wanted: Vec<&'static Kernel> = MATRIX
        .iter()
        .filter(|kernel| {
            arguments.kernels.is_empty() || arguments.kernels.iter().any(|name| name == kernel.name)
        })
        .collect();
    if arguments.list {
        for kernel in wanted {
            println!("{:<10} {}", kernel.name, kernel.about);
        }
        return Ok(());
    }
    if cfg!(not(target_arch = "x86_64")) {
        bail!(
            "`cargo xtask vm` is for x86-64 machines: its guests run the test binaries of the machine itself"
        );
    }
    if !arguments.no_setup {
        setup::run()?;
    }
    let built = suites::build()?;
    let mut guests = VecDeque::new();
    for kernel in wanted {
        let directory = Path::new(CACHE).join(kernel.name);
        let suites = suites::of(kernel, &built, &arguments.suites)?;
        if suites.is_empty() {
            continue;
        }
        let fetched = kernels::fetch(kernel, &directory, arguments.update)?;
        let image = image::make(&directory, &fetched, &built, &suites)?;
        guests.push_back(Guest { kernel, fetched, suites, image });
    }
    if guests.is_empty() {
        bail!("no such suite: {}", arguments.suites.join(", "));
    }
    let outcomes = run_side_by_side(guests);
    if steps::interrupted() {
        bail!("interrupted");
    }
    summarise(&outcomes)
}

/// As many guests at a time as there are processors: most tests use one.
fn run_side_by_side(guests: VecDeque<Guest>) -> Vec<Outcome> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(guests.len());
    let guests = Mutex::new(guests);
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(guest) = next(&guests) {
                    let begun = Instant::now();
                    let ran = guest.run();
                    let (name, release) = (guest.kernel.name, guest.fetched.release);
                    let outcome = Outcome { name, release, took: begun.elapsed(), ran };
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn next(guests: &Mutex<VecDeque<Guest>>) -> Option<Guest> {
    guests.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

struct Outcome {
    name: &'static str,
    release: String,
    took: Duration,
    /// How many tests passed.
    ran: Result<u64>,
}

fn summarise(outcomes: &[Outcome]) -> Result<()> {
    println!("\n{:<10} {:<32} {:>6} {:>8}", "kernel", "release", "tests", "seconds");
    let mut failed = Vec::new();
    for Outcome { name, release, took, ran } in outcomes {
        let tests = ran.as_ref().map_or_else(|_| "-".to_owned(), u64::to_string);
        let note = if ran.is_ok() { "" } else { "  FAILED" };
        println!("{name:<10} {release:<32} {tests:>6} {:>8.1}{note}", took.as_secs_f64());
        if let Err(error) = ran {
            failed.push(format!("{name}: {error:#}"));
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} kernels did not pass\n  {}", failed.len(), outcomes.len(), failed.join("\n  "));
    }
    let tests: u64 = outcomes.iter().filter_map(|outcome| outcome.ran.as_ref().ok()).sum();
    // As a test binary ends, so that whoever counts tests counts these.
    println!("\ntest result: ok. {tests} passed; 0 failed; on {} kernels", outcomes.len());
    Ok(())
}
