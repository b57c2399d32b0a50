//! `cargo xtask …`: what a checkout needs beyond plain cargo. It depends on nothing that has to be set up first.

mod bench;
mod demo;
mod plot;
mod setup;
mod steps;
mod suites;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Set-up, build, demo, tests and benches of limiter"
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what is missing on this machine: toolchain parts, bpf-linker, packages, the bpf filesystem
    Setup,
    /// Build limiterd and limiterctl with their kernel programs, optimised
    Build,
    /// Show limiter at work: ten seconds of real packets between two network namespaces
    Demo,
    /// Set up, then run every check and test, each timed
    Test(suites::Arguments),
    /// Run limiter on other kernels, each in an emulated guest
    Vm(vm::Arguments),
    /// Measure, and write docs/benchmarks.md
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    let workspace = workspace()?;
    std::env::set_current_dir(&workspace).context("cannot enter the checkout")?;
    steps::catch_interrupts()?;
    match arguments.task {
        Task::Setup => setup::run(),
        Task::Build => build(),
        Task::Demo => demo::run(),
        Task::Test(arguments) => suites::run(&arguments),
        Task::Vm(arguments) => vm::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
    }
}

fn workspace() -> Result<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(package.parent().context("xtask has no workspace around it")?.to_owned())
}

fn build() -> Result<()> {
    steps::spoken("build", steps::cargo(&["build", "--release", "--package", "limiter-user", "--bins"]))?;
    println!("built target/release/limiterd and target/release/limiterctl");
    Ok(())
}
