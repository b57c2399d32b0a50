//! What concerns the host: kernel, file systems, privileges, and the daemon.

use std::fs;
use std::io;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::unistd::Group;

use super::{Finding, Level, Surroundings};
use crate::control::client::ClientError;
use crate::datapath::kernel::FLOOR;

/// Who may read through the socket.
const GROUP: &str = "limiter";

/// `CAP_NET_ADMIN`, `CAP_PERFMON` and `CAP_BPF` by their bits.
const CAPABILITIES: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];

pub fn check(surroundings: &Surroundings, pin: &Path) -> Vec<Finding> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    vec![
        kernel(release.trim()),
        jit(fs::read_to_string("/proc/sys/net/core/bpf_jit_enable")),
        btf(Path::new("/sys/kernel/btf/vmlinux")),
        bpffs(pin),
        capabilities(surroundings.daemon_process),
        memlock(),
        group(),
        socket(surroundings),
    ]
    .into_iter()
    .chain(daemon(surroundings))
    .collect()
}

fn kernel(release: &str) -> Finding {
    const CHECK: &str = "kernel";
    // 64-bit compare-and-swap in the JIT came to arm64 later.
    let floor = if cfg!(target_arch = "aarch64") { (5, 18) } else { FLOOR };
    let needed = format!("limiter needs {}.{}", floor.0, floor.1);
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Finding::unknown(CHECK, format!("cannot tell the version of `{release}`; {needed}"), "");
    };
    if (major, minor) < floor {
        return Finding::error(CHECK, format!("Linux {release}: {needed} or newer"), "boot a newer kernel");
    }
    Finding::ok(CHECK, format!("Linux {release}; {needed} or newer"))
}

fn jit(enabled: io::Result<String>) -> Finding {
    const CHECK: &str = "jit";
    match enabled.as_ref().map(|text| text.trim()) {
        Ok("0") => Finding::error(
            CHECK,
            "the kernel would interpret the program: slow, and compare-and-swap is refused",
            "`sysctl -w net.core.bpf_jit_enable=1`",
        ),
        Ok(_) => Finding::ok(CHECK, "the kernel compiles BPF programs"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Finding::unknown(
            CHECK,
            "whether BPF programs are compiled is shown in the first network namespace alone",
            "`sysctl net.core.bpf_jit_enable` there",
        ),
        Err(_) => {
            Finding::unknown(CHECK, "whether BPF programs are compiled is for root to read", "run as root")
        }
    }
}

fn btf(vmlinux: &Path) -> Finding {
    const CHECK: &str = "btf";
    if vmlinux.exists() {
        Finding::ok(CHECK, "the kernel describes its types")
    } else {
        let message = "the kernel does not describe its types; limiter works without, `bpftool` shows less";
        Finding::new(CHECK, Level::Ok, message)
    }
}

fn bpffs(pin: &Path) -> Finding {
    const CHECK: &str = "bpffs";
    let existing = pin.ancestors().find(|directory| directory.exists());
    // What is left of a relative path is the directory we are in.
    let directory = existing.unwrap_or(Path::new("."));
    match statfs(directory) {
        Ok(status) if status.filesystem_type() == BPF_FS_MAGIC => {
            Finding::ok(CHECK, format!("`{}` is in a bpf file system", pin.display()))
        }
        Ok(_) => Finding::error(
            CHECK,
            format!("`{}` is not in a bpf file system", pin.display()),
            "`mount -t bpf bpf /sys/fs/bpf`; for good: `bpf /sys/fs/bpf bpf mode=0700 0 0` in /etc/fstab",
        ),
        Err(error) => Finding::unknown(
            CHECK,
            format!("cannot look at `{}`: {error}", directory.display()),
            "run as root",
        ),
    }
}

/// What matters is what limiterd may do; without one, what a limiterd started from here could do.
fn capabilities(daemon: Option<u32>) -> Finding {
    const CHECK: &str = "capabilities";
    let (who, status) = match daemon {
        Some(process) => ("limiterd", format!("/proc/{process}/status")),
        None => ("a process started from here", "/proc/self/status".to_owned()),
    };
    let status = fs::read_to_string(status).unwrap_or_default();
    let (Some(effective), Some(bounding)) = (mask(&status, "CapEff:"), mask(&status, "CapBnd:")) else {
        return Finding::unknown(CHECK, format!("cannot see what {who} may do"), "");
    };
    let lacking = |mask: u64| {
        let names = CAPABILITIES.iter().filter(|(bit, _)| mask >> bit & 1 == 0).map(|(_, name)| *name);
        names.collect::<Vec<_>>().join(", ")
    };
    let unreachable = lacking(bounding);
    let missing = lacking(effective);
    if !unreachable.is_empty() {
        let message =
            format!("{who} can never have {unreachable}: the container or unit it runs in takes it away");
        return Finding::error(
            CHECK,
            message,
            "give them to it: `--cap-add` of the container, `CapabilityBoundingSet=` of the unit",
        );
    }
    match (missing.is_empty(), daemon) {
        (true, _) => Finding::ok(CHECK, format!("{who} has CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")),
        (false, Some(_)) => Finding::error(
            CHECK,
            format!("limiterd lacks {missing}"),
            "start it by its systemd unit or as root; `interfaces = []` needs none of them",
        ),
        (false, None) => Finding::unknown(
            CHECK,
            format!("{who} lacks {missing}, and no limiterd is there to ask"),
            "start limiterd by its systemd unit or as root",
        ),
    }
}

/// A line of `/proc/PID/status` in hexadecimal.
fn mask(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(value.trim(), 16).ok()
}

fn memlock() -> Finding {
    const CHECK: &str = "memlock";
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft == nix::libc::RLIM_INFINITY => {
            Finding::ok(CHECK, "locked memory is not limited")
        }
        // Maps are charged to the memory cgroup since Linux 5.11, which is below the floor.
        Ok((soft, _)) => Finding::ok(
            CHECK,
            format!(
                "locked memory is limited to {} KiB, which does not concern BPF maps since Linux 5.11",
                soft >> 10
            ),
        ),
        Err(error) => Finding::unknown(CHECK, format!("cannot read the limit: {error}"), ""),
    }
}

fn group() -> Finding {
    const CHECK: &str = "group";
    match Group::from_name(GROUP) {
        Ok(Some(_)) => Finding::ok(CHECK, format!("the group `{GROUP}` may read through the socket")),
        Ok(None) => Finding::warning(
            CHECK,
            format!("there is no group `{GROUP}`: only root can talk to limiterd"),
            format!("`groupadd --system {GROUP}`, then restart limiterd"),
        ),
        Err(error) => Finding::unknown(CHECK, format!("cannot look up the group `{GROUP}`: {error}"), ""),
    }
}

fn socket(surroundings: &Surroundings) -> Finding {
    const CHECK: &str = "socket";
    let error = match &surroundings.daemon {
        Ok(status) => return Finding::ok(CHECK, format!("limiterd {} answers", status.version)),
        Err(error) => error,
    };
    let fix = error.hint().unwrap_or_default();
    match error {
        ClientError::Unreachable { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Finding::warning(CHECK, error.to_string(), fix)
        }
        ClientError::Unreachable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            Finding::unknown(CHECK, error.to_string(), fix)
        }
        _ => Finding::error(CHECK, error.to_string(), fix),
    }
}

/// What the daemon itself has to say.
fn daemon(surroundings: &Surroundings) -> Vec<Finding> {
    const CHECK: &str = "daemon";
    let Ok(status) = &surroundings.daemon else { return Vec::new() };
    let mut findings = Vec::new();
    if status.version != env!("CARGO_PKG_VERSION") {
        findings.push(Finding::warning(
            CHECK,
            format!("limiterd is {}, limiterctl is {}", status.version, env!("CARGO_PKG_VERSION")),
            "`systemctl restart limiterd` after an upgrade; the guard goes on meanwhile",
        ));
    }
    let more = "`limiterctl status` shows all of it";
    findings.extend(status.problems.iter().map(|problem| Finding::error(CHECK, problem, more)));
    findings.extend(status.warnings.iter().map(|warning| Finding::warning(CHECK, warning, more)));
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "limiterd has nothing to complain of"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_held_against_the_floor() {
        let status = |release| kernel(release).status;
        for (release, expected) in [
            ("6.1.0-13-amd64", Level::Ok),
            ("5.18.0", Level::Ok),
            ("5.4.0-150-generic", Level::Error),
            ("4.19.300", Level::Error),
            ("10.0", Level::Ok),
            ("", Level::Unknown),
            ("custom", Level::Unknown),
            ("6", Level::Unknown),
        ] {
            assert_eq!(status(release), expected, "{release:?}");
        }
    }

    #[test]
    fn an_interpreter_is_an_error() {
        assert_eq!(jit(Ok("0\n".to_owned())).status, Level::Error);
        assert_eq!(jit(Ok("1\n".to_owned())).status, Level::Ok);
        assert_eq!(jit(Err(io::ErrorKind::PermissionDenied.into())).status, Level::Unknown);
    }

    #[test]
    fn a_directory_elsewhere_is_no_bpf_file_system() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(bpffs(&directory.path().join("not/there")).status, Level::Error);
        assert_eq!(bpffs(Path::new("relative")).status, Level::Error);
        assert_eq!(bpffs(Path::new("/sys/fs/bpf/limiter")).status, Level::Ok);
    }

    #[test]
    fn capability_masks_are_read() {
        let status = "Name:\tx\nCapEff:\t000000c000001000\nCapBnd:\t0000000000000000\n";
        let effective = mask(status, "CapEff:").unwrap();
        assert!(CAPABILITIES.iter().all(|(bit, _)| effective >> bit & 1 == 1));
        assert_eq!(mask(status, "CapBnd:"), Some(0));
        assert_eq!(mask(status, "CapAmb:"), None);
    }
}
