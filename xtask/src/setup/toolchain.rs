//! The parts of the toolchain, and the linker for the kernel programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::steps;

/// 0.10 links with the toolchain's own LLVM; later ones need an LLVM installed on the system.
const LINKER_SERIES: &str = "0.10.";
const LINKER_VERSION: &str = "0.10.4";

pub fn install() -> Result<String> {
    let channel = channel(&fs::read_to_string("rust-toolchain.toml")?)?;
    let sysroot = sysroot()?;
    for (component, proof) in [
        ("rust-src", "lib/rustlib/src/rust/library/Cargo.lock"),
        ("rustfmt", "bin/cargo-fmt"),
        ("clippy", "bin/cargo-clippy"),
    ] {
        if !sysroot.join(proof).exists() {
            let mut rustup = steps::program("rustup");
            rustup.args(["component", "add", component, "--toolchain", &channel]);
            steps::quiet(&format!("installing {component}"), rustup)?;
        }
    }
    if !linker_version().is_some_and(|version| version.starts_with(LINKER_SERIES)) {
        println!("      bpf-linker {LINKER_VERSION} is built from source now: a few minutes, once");
        let arguments = ["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--force"];
        steps::quiet("installing bpf-linker", steps::cargo(&arguments))?;
    }
    match linker_version() {
        Some(version) if version.starts_with(LINKER_SERIES) => {
            Ok(format!("Rust {channel} with rust-src; bpf-linker {version}"))
        }
        Some(version) => {
            bail!("another bpf-linker ({version}) comes first in PATH; put cargo's `bin` before it")
        }
        None => bail!("bpf-linker is installed but not in PATH; add cargo's `bin` directory to PATH"),
    }
}

fn channel(toolchain: &str) -> Result<String> {
    let line = toolchain.lines().find_map(|line| line.trim().strip_prefix("channel"));
    let value = line.and_then(|line| line.split('"').nth(1));
    Ok(value.context("rust-toolchain.toml names no channel")?.to_owned())
}

fn sysroot() -> Result<PathBuf> {
    let output =
        steps::program("rustc").args(["--print", "sysroot"]).output().context("cannot run `rustc`")?;
    Ok(Path::new(String::from_utf8(output.stdout)?.trim()).to_owned())
}

fn linker_version() -> Option<String> {
    let output = steps::program("bpf-linker").arg("--version").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().strip_prefix("bpf-linker ")?.to_owned())
}
