//! Builds the kernel's half of limiter, so that no step can be forgotten: every binary of `limiter-ebpf` becomes
//! an object file whose path the code finds in `env!("LIMITER_OBJECT_<NAME>")`.
//!
//! The compiler is the stable one of the workspace. `-Z build-std` is allowed to it by `RUSTC_BOOTSTRAP`, because
//! the standard library is not shipped for the bpf target. What is missing is told by the command that mends it.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const TARGET: &str = "bpfel-unknown-none";

/// bpf-linker 0.10 links with the toolchain's own LLVM; later ones need an LLVM installed on the system.
const LINKER_SERIES: &str = "0.10.";
const LINKER_INSTALL: &str = "cargo install bpf-linker --version 0.10.4 --locked --force";

fn main() {
    // Cargo fails the build for the error; a failing exit code would bury the sentence under this script's output.
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let user = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let workspace = user.parent().ok_or("the package has no workspace around it")?;
    let source = workspace.join("limiter-ebpf");
    for input in [
        "limiter-ebpf/src",
        "limiter-ebpf/Cargo.toml",
        "limiter-common/src",
        "limiter-common/Cargo.toml",
        "limiter-user/build.rs",
        "Cargo.toml",
        "Cargo.lock",
        "rust-toolchain.toml",
    ] {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }

    let binaries = binaries(&source.join("src/bin"))?;
    if binaries.is_empty() {
        return Ok(());
    }
    require_rust_src()?;
    require_linker()?;
    let target_dir = PathBuf::from(env::var("OUT_DIR")?).join("ebpf");
    compile(workspace, &target_dir, &binaries)?;
    for binary in binaries {
        let object = target_dir.join(TARGET).join("release").join(&binary);
        if !object.is_file() {
            return Err(format!("the eBPF build left no `{}`", object.display()).into());
        }
        let name = binary.to_uppercase().replace('-', "_");
        println!("cargo::rustc-env=LIMITER_OBJECT_{name}={}", object.display());
    }
    Ok(())
}

/// The names cargo gives the binaries it finds by itself: `bin/NAME.rs` and `bin/NAME/main.rs`.
fn binaries(directory: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names = Vec::new();
    if !directory.is_dir() {
        return Ok(names);
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_binary =
            path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file();
        if is_binary && let Some(stem) = path.file_stem() {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn require_rust_src() -> Result<(), Box<dyn Error>> {
    let rustc = env::var_os("RUSTC").ok_or("cargo named no compiler")?;
    let output = Command::new(&rustc).args(["--print", "sysroot"]).output()?;
    let sysroot = String::from_utf8(output.stdout)?;
    if Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").is_file() {
        return Ok(());
    }
    Err("the sources of the standard library are missing, and the kernel programs are built from them; \
         run `rustup component add rust-src --toolchain 1.95.0`"
        .into())
}

fn require_linker() -> Result<(), Box<dyn Error>> {
    let Ok(output) = Command::new("bpf-linker").arg("--version").output() else {
        return Err(format!(
            "`bpf-linker`, which links the kernel programs, is missing; run `{LINKER_INSTALL}`"
        )
        .into());
    };
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let version = text.strip_prefix("bpf-linker ").unwrap_or(&text);
    if version.starts_with(LINKER_SERIES) {
        return Ok(());
    }
    Err(format!(
        "bpf-linker {LINKER_SERIES}x is needed, and `{version}` is installed; run `{LINKER_INSTALL}`"
    )
    .into())
}

fn compile(workspace: &Path, target_dir: &Path, binaries: &[String]) -> Result<(), Box<dyn Error>> {
    let cargo = env::var_os("CARGO").ok_or("cargo did not name itself")?;
    // debuginfo and --btf: maps and functions are described by BTF. v3: compare-and-swap, 32-bit ALU and jumps.
    let rustflags = ["-Ctarget-cpu=v3", "-Cdebuginfo=2", "-Clink-arg=--btf"].join("\x1f");
    let output = Command::new(cargo)
        .current_dir(workspace)
        .args(["build", "--quiet", "--release", "--package", "limiter-ebpf"])
        .args(binaries.iter().flat_map(|binary| ["--bin", binary.as_str()]))
        .args(["--target", TARGET, "-Z", "build-std=core", "--target-dir"])
        .arg(target_dir)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags)
        .env("AYA_BPF_TARGET_ARCH", env::var("CARGO_CFG_TARGET_ARCH")?)
        // One unit, so that the linker sees whole functions; the host's choice of LTO does not reach the kernel's half.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        // Set by `cargo clippy`: the objects are to be built, not checked.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        println!("cargo::error=the kernel programs do not build; the compiler's words stand below");
        eprintln!("{talk}");
        exit(1);
    }
    for line in talk.lines() {
        println!("cargo::warning={line}");
    }
    Ok(())
}
