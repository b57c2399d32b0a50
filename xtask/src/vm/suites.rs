//! What runs in the guests: test binaries of this workspace, built as `cargo xtask test` builds them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::kernels::Kernel;
use crate::steps;

/// A test binary and what a guest may take for it.
pub struct Suite {
    pub name: &'static str,
    pub program: PathBuf,
    /// The package's directory, in which cargo runs its tests.
    pub directory: PathBuf,
    pub seconds: u64,
}

struct Choice {
    name: &'static str,
    seconds: u64,
}

const fn choice(name: &'static str, seconds: u64) -> Choice {
    Choice { name, seconds }
}

/// On kernels that limiter runs on. The times are for an emulated processor on a busy machine.
const ENOUGH: [Choice; 17] = [
    choice("virtio", 300),
    choice("kernel_table", 300),
    choice("kernel_datapath", 300),
    choice("kernel_bans", 300),
    choice("kernel_events", 300),
    choice("kernel_limits", 300),
    choice("penalties", 300),
    choice("places", 300),
    choice("differential", 600),
    choice("counters", 600),
    choice("swap", 600),
    choice("sources", 600),
    choice("race", 300),
    choice("kernel", 900),
    choice("lifecycle", 900),
    choice("trace", 900),
    choice("observe", 900),
];
/// On those below the floor.
const TOO_OLD: [Choice; 1] = [choice("floor", 120)];

/// The programs cargo made.
pub struct Built {
    tests: BTreeMap<String, Test>,
    /// limiterd, limiterctl and the guest's first process.
    pub programs: BTreeMap<String, PathBuf>,
}

struct Test {
    program: PathBuf,
    directory: PathBuf,
}

impl Built {
    pub fn program(&self, name: &str) -> Result<&Path> {
        let program = self.programs.get(name).with_context(|| format!("cargo built no `{name}`"))?;
        Ok(program)
    }
}

pub fn build() -> Result<Built> {
    let mut command = steps::cargo(&["test", "--workspace", "--no-run", "--message-format=json"]);
    for choice in ENOUGH.iter().chain(&TOO_OLD) {
        command.args(["--test", choice.name]);
    }
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the tests cannot be built");
    }
    let mut built = Built { tests: BTreeMap::new(), programs: BTreeMap::new() };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let Some(program) = message["executable"].as_str().map(PathBuf::from) else { continue };
        let name = message["target"]["name"].as_str().unwrap_or_default().to_owned();
        if message["profile"]["test"] == false {
            built.programs.insert(name, program);
        } else if message["target"]["kind"][0] == "test" {
            let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
            let directory = manifest.parent().unwrap_or(Path::new("/")).to_owned();
            built.tests.insert(name, Test { program, directory });
        }
    }
    Ok(built)
}

/// The suites for a kernel, or those of them that are `wanted`: there may be none.
pub fn of(kernel: &Kernel, built: &Built, wanted: &[String]) -> Result<Vec<Suite>> {
    let choices: &[Choice] = if kernel.is_enough { &ENOUGH } else { &TOO_OLD };
    let mut suites = Vec::new();
    for choice in choices {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == choice.name) {
            continue;
        }
        let test = built.tests.get(choice.name);
        let test = test.with_context(|| format!("there is no test binary `{}`", choice.name))?;
        suites.push(Suite {
            name: choice.name,
            program: test.program.clone(),
            directory: test.directory.clone(),
            seconds: choice.seconds,
        });
    }
    Ok(suites)
}
