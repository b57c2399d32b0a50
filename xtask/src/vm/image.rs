//! The guest's file system: an initramfs in which every file lies where it lies on this machine, so that programs
//! find their libraries, tests their snapshots, and nothing has to be told where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::kernels::Fetched;
use super::modules::Modules;
use super::suites::{Built, Suite};
use crate::steps;

/// Programs the tests run.
const PROGRAMS: [&str; 7] = ["ethtool", "ip", "kill", "mount", "nsenter", "ping", "umount"];
/// Drivers: of the interfaces, of veth pairs.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_net", "veth"];
/// The guest's first process (`tests/src/bin/guest.rs`).
const FIRST: &str = "guest";
const PLAN: &str = "/guest/plan";
const SNAPSHOTS: &str = "limiter-user/tests/snapshots";

pub fn make(directory: &Path, kernel: &Fetched, built: &Built, suites: &[Suite]) -> Result<PathBuf> {
    let mut tree = Tree::default();
    let mut plan = String::new();
    for (number, module) in Modules::of(&kernel.modules)?.with_dependencies(&MODULES)?.into_iter().enumerate()
    {
        let path = format!("/guest/modules/{number:02}-{}.ko", module.name);
        plan.push_str(&format!("module\t{path}\n"));
        tree.add(Path::new(&path), module.content, false);
    }
    let workspace = std::env::current_dir()?;
    for (name, value) in [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/tmp"),
        ("INSTA_UPDATE", "no"),
        ("INSTA_WORKSPACE_ROOT", &workspace.to_string_lossy()),
        ("RUST_BACKTRACE", "1"),
        // Each takes seconds here (`limiter-user/tests/lifecycle.rs`).
        ("LIMITER_TEST_KILLS", "6"),
    ] {
        plan.push_str(&format!("variable\t{name}\t{value}\n"));
    }
    let scratch = directory.join("stripped");
    fs::create_dir_all(&scratch)?;
    for suite in suites {
        tree.add_stripped(&suite.program, &scratch)?;
        let Suite { name, seconds, .. } = suite;
        let (program, place) = (suite.program.display(), suite.directory.display());
        plan.push_str(&format!("suite\t{name}\t{seconds}\t{place}\t{program}\t--test-threads=1\n"));
        tree.directories(&suite.directory);
    }
    for program in ["limiterd", "limiterctl"] {
        tree.add_stripped(built.program(program)?, &scratch)?;
    }
    for program in PROGRAMS {
        let path = steps::find_program(program).with_context(|| format!("`{program}` is missing"))?;
        tree.add_program(&path, fs::read(&path)?)?;
    }
    for entry in fs::read_dir(SNAPSHOTS).with_context(|| format!("cannot list `{SNAPSHOTS}`"))? {
        let path = entry?.path();
        tree.add(&workspace.join(&path), fs::read(&path)?, false);
    }
    let first = built.program(FIRST)?;
    tree.add_stripped(first, &scratch)?;
    let first = tree.files.remove(first).context("the first process was just put there")?;
    tree.files.insert(PathBuf::from("/init"), first);
    tree.add(Path::new(PLAN), plan.into_bytes(), false);
    fs::remove_dir_all(&scratch)?;

    let path = directory.join("initramfs");
    let file = File::create(&path).with_context(|| format!("cannot write `{}`", path.display()))?;
    let mut writer = BufWriter::new(file);
    tree.write(&mut writer)?;
    writer.flush()?;
    Ok(path)
}

#[derive(Default)]
struct Tree {
    /// What is in a file, and whether it is a program.
    files: BTreeMap<PathBuf, (Vec<u8>, bool)>,
    directories: BTreeSet<PathBuf>,
}

impl Tree {
    fn add(&mut self, path: &Path, content: Vec<u8>, is_program: bool) {
        if let Some(parent) = path.parent() {
            self.directories(parent);
        }
        self.files.insert(path.to_owned(), (content, is_program));
    }

    /// A directory and those above it.
    fn directories(&mut self, path: &Path) {
        let all = path.ancestors().filter(|directory| directory.parent().is_some());
        self.directories.extend(all.map(Path::to_owned));
    }

    /// A program of this workspace, without what only a debugger reads: it would be most of the image.
    fn add_stripped(&mut self, path: &Path, scratch: &Path) -> Result<()> {
        let stripped = scratch.join(path.file_name().context("a program has a name")?);
        let mut command = steps::program("strip");
        command.arg("--strip-debug").arg("-o").arg(&stripped).arg(path);
        steps::quiet("making a test binary smaller", command)?;
        self.add_program(path, fs::read(&stripped)?)
    }

    /// A program and the libraries it is linked with.
    fn add_program(&mut self, path: &Path, content: Vec<u8>) -> Result<()> {
        self.add(path, content, true);
        let output = steps::program("ldd").arg(path).output().context("cannot run `ldd`")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains("not found") {
            bail!("a library of `{}` is missing: {text}", path.display());
        }
        for library in libraries(&text) {
            if !self.files.contains_key(&library) {
                let content = fs::read(&library)
                    .with_context(|| format!("cannot read the library `{}`", library.display()))?;
                self.add(&library, content, true);
            }
        }
        Ok(())
    }

    /// As the kernel unpacks it: a cpio archive in the format `newc`
    /// (Documentation/driver-api/early-userspace/buffer-format.rst).
    fn write(&self, archive: &mut impl Write) -> Result<()> {
        const DIRECTORY: u32 = 0o040_755;
        const PROGRAM: u32 = 0o100_755;
        const FILE: u32 = 0o100_644;
        const CONSOLE: u32 = 0o020_600;
        let mut number = 0;
        let mut member = |path: &Path, mode: u32, device: (u32, u32), content: &[u8]| -> Result<()> {
            number += 1;
            let name = path.to_string_lossy();
            let name = if mode == 0 { &*name } else { name.trim_start_matches('/') };
            let size = u32::try_from(content.len()).context("a file of the guest is 4 GiB or larger")?;
            // inode, mode, user, group, links, time, size, device, special device, length of the name, checksum
            let fields = [number, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name.len() as u32 + 1, 0];
            let mut header = String::from("070701");
            for field in fields {
                header.push_str(&format!("{field:08x}"));
            }
            header.push_str(name);
            header.push('\0');
            archive.write_all(header.as_bytes())?;
            archive.write_all(&[0; 3][..padding(header.len())])?;
            archive.write_all(content)?;
            archive.write_all(&[0; 3][..padding(content.len())])?;
            Ok(())
        };
        let here = ["/dev", "/proc", "/root", "/run", "/sys", "/tmp"].map(PathBuf::from);
        let directories: BTreeSet<&PathBuf> = self.directories.iter().chain(&here).collect();
        for directory in directories {
            member(directory, DIRECTORY, (0, 0), &[])?;
        }
        // The kernel opens it for the first process, before that mounts anything.
        member(Path::new("/dev/console"), CONSOLE, (5, 1), &[])?;
        for (path, (content, is_program)) in &self.files {
            member(path, if *is_program { PROGRAM } else { FILE }, (0, 0), content)?;
        }
        member(Path::new("TRAILER!!!"), 0, (0, 0), &[])
    }
}

/// What is missing to the next multiple of four.
fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// Paths in what ldd prints: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader.
fn libraries(text: &str) -> Vec<PathBuf> {
    let words = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Tree, libraries};

    #[test]
    fn libraries_are_where_the_linker_found_them() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(libraries(text), expected);
    }

    #[test]
    fn an_archive_is_read_by_cpio_rules() {
        let mut tree = Tree::default();
        tree.add(Path::new("/a/b"), b"hello".to_vec(), true);
        let mut archive = Vec::new();
        tree.write(&mut archive).unwrap();
        let text = String::from_utf8_lossy(&archive);
        // Of the file: mode 100755, size 5, name of 4 bytes with its zero, and the content 120 bytes after the start.
        let at = text.find("\0a/b\0").map_or_else(|| text.find("a/b\0").unwrap(), |at| at + 1) - 110;
        assert!(text[at..].starts_with("070701"));
        assert_eq!(&text[at + 14..at + 22], "000081ed");
        assert_eq!(&text[at + 54..at + 62], "00000005");
        assert_eq!(&text[at + 94..at + 102], "00000004");
        assert_eq!(at % 4, 0);
        assert_eq!(&text[at + 116..at + 121], "hello");
        assert!(text.contains("TRAILER!!!\0"));
    }
}
