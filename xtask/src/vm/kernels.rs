//! The kernels, and how they come from Debian's packages: through the mirror this machine's own apt uses, with lists
//! and caches of their own, so that nothing of the machine's package management changes. Packages are unpacked,
//! never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps;

/// One line of the matrix.
pub struct Kernel {
    pub name: &'static str,
    pub about: &'static str,
    /// The suites to look in; the newest kernel of them all is taken.
    suites: &'static [&'static str],
    /// Whether limiter runs there at all; if not, it must say so.
    pub is_enough: bool,
}

pub const MATRIX: [Kernel; 4] = [
    Kernel {
        name: "bullseye",
        about: "below the floor: limiterd must say so",
        suites: &["bullseye"],
        is_enough: false,
    },
    Kernel { name: "bookworm", about: "the oldest that is run", suites: &["bookworm"], is_enough: true },
    Kernel { name: "trixie", about: "Debian 13's", suites: &["trixie"], is_enough: true },
    Kernel {
        name: "newest",
        about: "the newest that Debian has",
        suites: &["sid", "trixie-backports"],
        is_enough: true,
    },
];

/// Depends on the kernel of a suite. It is built for virtual machines: small, with virtio.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// What a kernel is made of: one package, and from 7.0 on several. What else it depends on is for installing it.
const PARTS: [&str; 4] = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];

/// An unpacked kernel.
pub struct Fetched {
    pub release: String,
    pub image: PathBuf,
    /// `lib/modules/RELEASE`.
    pub modules: PathBuf,
}

pub fn fetch(kernel: &Kernel, directory: &Path, update: bool) -> Result<Fetched> {
    let tree = directory.join("tree");
    if !update && let Ok(found) = look(&tree) {
        return Ok(found);
    }
    println!("      fetching the kernel of {}", kernel.suites.join(", "));
    let apt = Apt::new(&directory.join("apt"), kernel.suites)?;
    let version = apt.newest(PACKAGE)?;
    let parts = apt.parts(PACKAGE, &version)?;
    let downloads = directory.join("packages");
    let _ = fs::remove_dir_all(&downloads);
    fs::create_dir_all(&downloads)?;
    let mut command = apt.command("apt-get");
    command.arg("--quiet").arg("download").args(&parts).current_dir(&downloads);
    steps::quiet("downloading the kernel", command)?;
    // Beside, then in its place: a tree is whole or not there.
    let fresh = directory.join("tree.new");
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(&fresh)?;
    for entry in fs::read_dir(&downloads)? {
        let mut command = steps::program("dpkg-deb");
        command.arg("--extract").arg(entry?.path()).arg(&fresh);
        steps::quiet("unpacking the kernel", command)?;
    }
    look(&fresh)?;
    let _ = fs::remove_dir_all(&tree);
    fs::rename(&fresh, &tree)?;
    fs::remove_dir_all(&downloads)?;
    look(&tree)
}

/// Finds the kernel in an unpacked tree.
fn look(tree: &Path) -> Result<Fetched> {
    for place in ["usr/lib/modules", "lib/modules"] {
        let Ok(mut entries) = fs::read_dir(tree.join(place)) else { continue };
        let Some(modules) = entries.next() else { continue };
        let modules = modules?.path();
        let release = modules.file_name().context("a directory has a name")?.to_string_lossy().into_owned();
        for image in [modules.join("vmlinuz"), tree.join(format!("boot/vmlinuz-{release}"))] {
            if image.is_file() {
                return Ok(Fetched { release, image, modules });
            }
        }
    }
    bail!("no kernel is in the packages unpacked to `{}`", tree.display())
}

/// apt with sources, lists and caches of its own.
struct Apt {
    configuration: PathBuf,
}

impl Apt {
    fn new(directory: &Path, suites: &[&str]) -> Result<Self> {
        let _ = fs::remove_dir_all(directory);
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(directory.join(part))?;
        }
        let directory = fs::canonicalize(directory)?;
        let mirror = mirror()?;
        let lines: Vec<String> = suites
            .iter()
            .map(|suite| format!("deb [signed-by={}] {} {suite} main\n", mirror.key, mirror.address))
            .collect();
        fs::write(directory.join("sources.list"), lines.concat())?;
        fs::write(directory.join("status"), "")?;
        let configuration = directory.join("apt.conf");
        let place = directory.display();
        fs::write(
            &configuration,
            format!(
                "Dir::Etc::sourcelist \"{place}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
                 Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
                 Dir::State \"{place}\";\nDir::State::status \"{place}/status\";\nDir::Cache \"{place}/cache\";\n\
                 APT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n\
                 Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n#clear APT::Update;\n"
            ),
        )?;
        let apt = Self { configuration };
        let mut update = apt.command("apt-get");
        update.args(["--quiet", "-o", "APT::Update::Error-Mode=any", "update"]);
        steps::quiet("reading Debian's package lists", update).with_context(|| {
            format!("this machine's Debian mirror does not give the suite {}", suites.join(" or "))
        })?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = steps::program(program);
        command.arg("--config-file").arg(&self.configuration).env("LC_ALL", "C");
        command
    }

    fn said(&self, program: &str, arguments: &[&str]) -> Result<String> {
        said(self.command(program).args(arguments))
    }

    /// The highest version of a package in all suites.
    fn newest(&self, package: &str) -> Result<String> {
        let mut newest: Option<String> = None;
        for line in self.said("apt-cache", &["madison", package])?.lines() {
            let Some(version) = line.split('|').nth(1).map(str::trim) else { continue };
            let is_newer = match &newest {
                None => true,
                Some(old) => steps::program("dpkg")
                    .args(["--compare-versions", version, "gt", old])
                    .status()
                    .context("cannot run `dpkg`")?
                    .success(),
            };
            if is_newer {
                newest = Some(version.to_owned());
            }
        }
        newest.with_context(|| format!("Debian has no package `{package}` there"))
    }

    /// The packages that the kernel is made of, as `NAME=VERSION`.
    fn parts(&self, package: &str, version: &str) -> Result<Vec<String>> {
        let mut parts = Vec::new();
        let mut open = vec![format!("{package}={version}")];
        while let Some(name) = open.pop() {
            let record = self.said("apt-cache", &["show", &name])?;
            let depends = record.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
            for dependency in depends.split(", ") {
                let Some(part) = exact(dependency) else { continue };
                if PARTS.iter().any(|prefix| part.starts_with(prefix)) && !parts.contains(&part) {
                    open.push(part.clone());
                    parts.push(part);
                }
            }
        }
        if parts.is_empty() {
            bail!("`{package}` {version} depends on no kernel");
        }
        Ok(parts)
    }
}

/// From `NAME (= VERSION)` to `NAME=VERSION`: parts of one kernel name each other so.
fn exact(dependency: &str) -> Option<String> {
    let (name, version) = dependency.split_once(" (= ")?;
    Some(format!("{name}={}", version.strip_suffix(')')?))
}

struct Mirror {
    address: String,
    /// The file with Debian's keys.
    key: String,
}

const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where this machine gets Debian's main archive from.
fn mirror() -> Result<Mirror> {
    let targets = said(steps::program("apt-get").args([
        "indextargets",
        "--format",
        "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(SITE)",
        "Identifier: Packages",
    ]))?;
    let address = targets.lines().find_map(|line| line.strip_prefix("Debian|Debian|main|"));
    let address = address.context(
        "this machine's apt has no source of Debian's main archive, from which the kernels come\n\n\
         hint: run `apt-get update` first; on other distributions, run this on a Debian machine",
    )?;
    if !Path::new(KEYS).is_file() {
        bail!("`{KEYS}` is missing: install the package debian-archive-keyring");
    }
    Ok(Mirror { address: address.to_owned(), key: KEYS.to_owned() })
}

/// What a program prints, if it succeeds.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::exact;

    #[test]
    fn parts_of_a_kernel_name_each_other_exactly() {
        assert_eq!(
            exact("linux-image-6.1.0-50-cloud-amd64 (= 6.1.176-1)").as_deref(),
            Some("linux-image-6.1.0-50-cloud-amd64=6.1.176-1")
        );
        assert_eq!(exact("linux-base (>= 4.3~)"), None);
        assert_eq!(exact("kmod"), None);
    }
}
