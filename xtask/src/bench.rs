//! `cargo xtask bench [NAME [SECTION…]]`: runs the benches and writes what they print into `docs/benchmarks.md`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::plot;

const REPORT: &str = "docs/benchmarks.md";
/// Where the report finds its plots.
const PLOTS: &str = "docs/plots";

#[derive(clap::Args)]
pub struct Arguments {
    /// One bench: the name of a folder or file in tests/benches [default: all]
    name: Option<String>,
    /// Sections of it; the report is then printed, not written
    #[arg(requires = "name")]
    sections: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let known = benches()?;
    let names = match &arguments.name {
        None => known,
        Some(name) if known.contains(name) => vec![name.clone()],
        Some(name) => bail!("no bench is called `{name}`: there are {}", known.join(", ")),
    };
    for name in names {
        let text = measure(&name, &arguments.sections)?;
        if arguments.sections.is_empty() {
            write(&name, &text)?;
            println!("{REPORT} has the new figures of `{name}`");
        } else {
            print!("{text}");
        }
    }
    Ok(())
}

fn benches() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir("tests/benches").context("cannot list tests/benches")? {
        if let Some(name) = entry?.path().file_stem() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn measure(name: &str, sections: &[String]) -> Result<String> {
    let output = Command::new("cargo")
        .args(["bench", "--quiet", "--package", "limiter-tests", "--bench", name, "--"])
        .args(sections)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the bench `{name}` failed");
    }
    String::from_utf8(output.stdout).context("the bench printed no text")
}

/// Puts the text of one bench in the place of its last one; the others stay.
fn write(name: &str, text: &str) -> Result<()> {
    let heading = format!("## {name}");
    let old = fs::read_to_string(REPORT).unwrap_or_default();
    let mut parts: Vec<(String, String)> = Vec::new();
    for part in old.split("\n## ").skip(1) {
        if let Some((title, body)) = part.split_once('\n') {
            parts.push((format!("## {title}"), body.trim().to_owned()));
        }
    }
    let (text, plots) = plot::illustrate(name, text);
    fs::create_dir_all(PLOTS).with_context(|| format!("cannot make {PLOTS}"))?;
    for (file, plot) in plots {
        let path = Path::new(PLOTS).join(file);
        fs::write(&path, plot).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let body = format!("{}\n\n{}", machine(), text.trim());
    match parts.iter_mut().find(|(title, _)| *title == heading) {
        Some((_, old)) => *old = body,
        None => parts.push((heading, body)),
    }
    parts.sort();
    let mut report = INTRODUCTION.to_owned();
    for (title, body) in parts {
        report.push_str(&format!("\n{title}\n\n{body}\n"));
    }
    fs::write(REPORT, report).with_context(|| format!("cannot write {REPORT}"))
}

const INTRODUCTION: &str = "# Benchmarks

Written by `cargo xtask bench`. A figure counts as a ratio or a difference inside one run, with minimum, **median** and
maximum of rounds taken in turns (nine, or as many as the section says); an absolute time belongs to its machine. What
is asked for stands beside. In plots a bar is the median and the line over it goes from the minimum to the maximum.
";

/// One line: processor, CPUs, kernel, date, commit.
fn machine() -> String {
    let processor = fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = fs::read_to_string(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let kernel = kernel.trim().split('-').next().unwrap_or_default().to_owned();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    format!(
        "{processor}, {cpus} CPUs, Linux {kernel}, {}, commit {}, load average {load} at the end.",
        said("date", &["--utc", "+%Y-%m-%d"]),
        said("git", &["rev-parse", "--short", "HEAD"]),
    )
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
