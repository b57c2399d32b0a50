//! What the kernel and the process must offer.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::steps;

const BPFFS: &str = "/sys/fs/bpf";

/// Bits of the capability mask (`linux/capability.h`) and what each is for here.
const CAPABILITIES: [(u32, &str, &str); 4] = [
    (12, "CAP_NET_ADMIN", "attaching to interfaces"),
    (21, "CAP_SYS_ADMIN", "making network namespaces and mounting the bpf filesystem"),
    (38, "CAP_PERFMON", "loading programs that compare pointers"),
    (39, "CAP_BPF", "making maps and loading programs"),
];

pub fn check() -> Result<String> {
    let release =
        fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's version")?;
    let release = release.trim();
    let version =
        version(release).with_context(|| format!("cannot make sense of kernel version `{release}`"))?;
    // Compare-and-swap in the JIT: from 5.12 on x86-64 and 5.18 on arm64; links to XDP and the helpers used: 5.15.
    let floor = if cfg!(target_arch = "aarch64") { (5, 18) } else { (5, 15) };
    if version < floor {
        bail!("this kernel is {release}, and limiter needs {}.{} or later", floor.0, floor.1);
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        bail!(
            "this kernel has no BTF (`/sys/kernel/btf/vmlinux`); limiter needs one built with CONFIG_DEBUG_INFO_BTF"
        );
    }
    let mask = effective_capabilities()?;
    for (bit, name, purpose) in CAPABILITIES {
        if mask >> bit & 1 == 0 {
            bail!(
                "`{name}` is missing; {purpose} needs it\n\nhint: in a container, run it with `--privileged`"
            );
        }
    }
    Ok(format!("kernel {release} with BTF; capabilities"))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn effective_capabilities() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read this process's status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(mask.context("the kernel shows no capabilities")?.trim(), 16)
        .context("capability mask")
}

pub fn mount_bpffs() -> Result<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the mount table")?;
    let mounted = mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some(BPFFS) && fields.next() == Some("bpf")
    });
    if mounted {
        return Ok(format!("bpf filesystem on {BPFFS}"));
    }
    let mut mount = steps::program("mount");
    mount.args(["-t", "bpf", "bpf", BPFFS]);
    steps::quiet("mounting the bpf filesystem", mount)?;
    Ok(format!("bpf filesystem: now mounted on {BPFFS}"))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn kernel_versions_as_distributions_write_them() {
        let cases = [
            ("6.18.44-fc-v857", Some((6, 18))),
            ("5.15.0-1051-aws", Some((5, 15))),
            ("6.1-rc3", Some((6, 1))),
            ("next", None),
        ];
        for (release, expected) in cases {
            assert_eq!(version(release), expected, "{release}");
        }
    }
}
