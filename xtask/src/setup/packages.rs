//! The distribution's packages that the demo and the tests use. Only what is missing is installed, and nothing
//! that comes with a service gets it started or enabled.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps;

struct Tool {
    program: &'static str,
    /// Package names, the first that the distribution knows counts.
    packages: &'static [&'static str],
    /// The service that comes with it.
    service: Option<&'static str>,
    /// What is looked for instead of the program: a module it can import.
    python_module: Option<&'static str>,
}

impl Tool {
    fn is_there(&self) -> bool {
        let Some(module) = self.python_module else { return steps::find_program(self.program).is_some() };
        let import = format!("import {module}");
        steps::program(self.program)
            .args(["-c", &import])
            .output()
            .is_ok_and(|output| output.status.success())
    }
}

const fn tool(program: &'static str, packages: &'static [&'static str]) -> Tool {
    Tool { program, packages, service: None, python_module: None }
}

const TOOLS: [Tool; 17] = [
    tool("ip", &["iproute2"]),
    tool("ping", &["iputils-ping"]),
    tool("kill", &["procps"]),
    tool("ethtool", &["ethtool"]),
    tool("nft", &["nftables"]),
    tool("tcpdump", &["tcpdump"]),
    tool("curl", &["curl"]),
    // Ubuntu before 25.04 keeps it with the kernel's tools.
    tool("bpftool", &["bpftool", "linux-tools-generic"]),
    tool("redis-cli", &["redis-tools"]),
    Tool {
        program: "redis-server",
        packages: &["redis-server"],
        service: Some("redis-server"),
        ..tool("", &[])
    },
    tool("openssl", &["openssl"]),
    tool("wrk", &["wrk"]),
    // For guests with other kernels, whose modules are packed.
    tool("qemu-system-x86_64", &["qemu-system-x86"]),
    tool("xz", &["xz-utils"]),
    tool("zstd", &["zstd"]),
    // The distribution's own Python: its packages are not for another one that may come first in PATH.
    Tool { python_module: Some("redis"), ..tool("/usr/bin/python3", &["python3-redis"]) },
    Tool { program: "nginx", packages: &["nginx"], service: Some("nginx"), ..tool("", &[]) },
];

pub fn install() -> Result<String> {
    let missing: Vec<&Tool> = TOOLS.iter().filter(|tool| !tool.is_there()).collect();
    if missing.is_empty() {
        return Ok(format!("{} programs of the distribution", TOOLS.len()));
    }
    if steps::find_program("apt-get").is_none() {
        let programs: Vec<&str> = missing.iter().map(|tool| tool.program).collect();
        bail!(
            "these programs are missing, and there is no apt-get to install them with: {}",
            programs.join(", ")
        );
    }
    steps::quiet("updating the package lists", apt(&["update"]))?;
    let mut packages = Vec::new();
    for tool in &missing {
        let known = tool.packages.iter().find(|package| is_known(package));
        packages.push(*known.with_context(|| format!("no package has `{}`", tool.program))?);
    }
    let named = packages.join(" ");
    println!("      installing {named}");
    let idle = IdleServices::begin()?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&packages);
    let installed = steps::quiet("installing packages", apt(&arguments));
    drop(idle);
    installed?;
    for tool in &missing {
        if let Some(service) = tool.service {
            disable(service)?;
        }
        if !tool.is_there() {
            bail!("`{}` is still missing after its package was installed", tool.program);
        }
    }
    Ok(format!("{} programs of the distribution; new: {named}", TOOLS.len()))
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = steps::program("apt-get");
    command.args(["--quiet", "-o", "DPkg::Lock::Timeout=300"]).args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("NEEDRESTART_MODE", "l");
    command
}

fn is_known(package: &str) -> bool {
    let policy = steps::program("apt-cache").args(["policy", package]).env("LC_ALL", "C").output();
    policy.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().any(|line| line.trim().starts_with("Candidate:") && !line.contains("(none)"))
    })
}

/// Packages enable their service when they are installed; only those installed here are put back. Where there is
/// no systemctl there is no systemd to start them at the next boot either.
fn disable(service: &str) -> Result<()> {
    if steps::find_program("systemctl").is_none() {
        return Ok(());
    }
    let mut command = steps::program("systemctl");
    command.args(["--quiet", "disable", service]);
    steps::quiet("leaving the service disabled", command)
}

const POLICY: &str = "/usr/sbin/policy-rc.d";
const KEPT: &str = "/usr/sbin/policy-rc.d.before-limiter";
const MARK: &str = "limiter's set-up";

/// While it lives, package scripts start no service. Debian asks this file; 101 means "not allowed".
struct IdleServices;

impl IdleServices {
    fn begin() -> Result<IdleServices> {
        let policy = Path::new(POLICY);
        // One that carries the mark is left from a run that was killed; the real one is already kept.
        let is_ours = fs::read_to_string(policy).is_ok_and(|text| text.contains(MARK));
        if policy.exists() && !is_ours {
            fs::rename(policy, KEPT).context("cannot put the machine's policy-rc.d aside")?;
        }
        fs::write(policy, format!("#!/bin/sh\n# {MARK}: for the length of one installation\nexit 101\n"))?;
        fs::set_permissions(policy, fs::Permissions::from_mode(0o755))?;
        Ok(IdleServices)
    }
}

impl Drop for IdleServices {
    fn drop(&mut self) {
        let kept = PathBuf::from(KEPT);
        let restored = if kept.exists() { fs::rename(kept, POLICY) } else { fs::remove_file(POLICY) };
        if let Err(error) = restored {
            eprintln!("warning: `{POLICY}` could not be put back: {error}");
        }
    }
}
