//! Who is proven: a program on the root cgroup marks every source that completes a TCP handshake with this host.
//!
//! It is attached while a policy asks for it, by a pinned link like the guards', so it goes on without a daemon. A host
//! without a cgroup2 file system has none: newcomers are limited there all the same, and nobody is proven.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use aya::programs::SockOps;

use super::{links, load, sys};
use crate::datapath::{Error, Options};

/// The program's link. Dropping it leaves the pin, hence the program where it is.
pub struct Proof {
    link: OwnedFd,
}

fn link_path(pin: &Path) -> PathBuf {
    pin.join("proof")
}

impl Proof {
    /// Attaches the program, or puts it behind the link that an earlier daemon left.
    pub fn keep(options: &Options) -> Result<Self, Error> {
        let (mut ebpf, _) = load::load(load::PROOF, options)?;
        let missing = || Error::Refused { reason: "the object has no program `proof`".to_owned() };
        let program: &mut SockOps =
            ebpf.program_mut("proof").ok_or_else(missing)?.try_into().map_err(load::refused)?;
        program.load().map_err(load::refused)?;
        let program = program.fd().map_err(load::refused)?.as_fd();
        let path = link_path(&options.pin);
        if let Ok(link) = sys::object_get(&path)
            && sys::link_update(link.as_fd(), program).is_ok()
        {
            return Ok(Self { link });
        }
        let _ = fs::remove_file(&path);
        let doing = |what: &str| format!("{what} the program that sees handshakes");
        let cgroup = root_cgroup().map_err(|error| Error::io(doing("attach"), error))?;
        let link = sys::cgroup_link_create(program, cgroup.as_fd())
            .map_err(|error| Error::io(doing("attach"), error))?;
        sys::object_pin(link.as_fd(), &path).map_err(|error| Error::io(doing("pin"), error))?;
        Ok(Self { link })
    }

    /// Takes away what nobody holds.
    pub fn forget(pin: &Path) {
        if let Err(error) = links::forget_pin(&link_path(pin)) {
            tracing::warn!(%error);
        }
    }

    /// Takes it away.
    pub fn end(self, pin: &Path) {
        let detached = sys::link_detach(self.link.as_fd());
        let detached = detached.map_err(|error| Error::io("detach the program that sees handshakes", error));
        if let Err(error) = detached {
            tracing::warn!(%error);
        }
        Self::forget(pin);
    }
}

/// The directory of the root of the cgroup2 hierarchy.
fn root_cgroup() -> io::Result<File> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let found = cgroup2_mount(&mounts).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "no cgroup2 file system is mounted on this host")
    })?;
    File::open(found)
}

/// `proc_pid_mountinfo(5)`: the fourth field is the root within the file system, the fifth the mount point, and behind
/// a lone hyphen stands the type.
fn cgroup2_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (root == "/" && kind.split(' ').next() == Some("cgroup2")).then(|| PathBuf::from(unescaped(point)))
    })
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescaped(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_cgroup2_is_found_wherever_it_is_mounted() {
        let v1 = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
                  32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n";
        assert_eq!(cgroup2_mount(v1), None);
        let hybrid =
            format!("{v1}41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n");
        assert_eq!(cgroup2_mount(&hybrid), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        let part = "9 1 0:38 /a/b /mnt/part rw - cgroup2 none rw\n10 1 0:38 / /mnt/the\\040whole rw - cgroup2 none rw\n";
        assert_eq!(cgroup2_mount(part), Some(PathBuf::from("/mnt/the whole")));
    }
}
