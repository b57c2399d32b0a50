//! `completions SHELL`, `man DIR`.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;

use super::Arguments;
use super::output::{Problem, print, say};

pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "limiterctl", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// One page for limiterctl and one for each verb.
pub fn man(directory: &Path) -> Result<ExitCode, Problem> {
    let fail = |error: std::io::Error| {
        Problem::failed(format!("cannot write manual pages into `{}`: {error}", directory.display()), None)
    };
    std::fs::create_dir_all(directory).map_err(fail)?;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(fail)?;
    say(&format!("manual pages are in {}\n", directory.display()));
    Ok(ExitCode::SUCCESS)
}
