//! What can go wrong between the daemon and the kernel: one clear sentence each, and what to do.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not permitted to {doing}")]
    NotPermitted { doing: String },

    #[error("cannot attach to `{interface}`: no such interface")]
    NoSuchInterface { interface: String },

    #[error("cannot detach `{interface}`: it is not attached")]
    NotAttached { interface: String },

    #[error("`{}` is not in a bpf file system", path.display())]
    BpffsMissing { path: PathBuf },

    #[error(
        "cannot attach to `{interface}`: another XDP program is there (id {id}{})",
        name.as_ref().map(|name| format!(", `{name}`")).unwrap_or_default()
    )]
    ForeignProgram { interface: String, id: u32, name: Option<String> },

    #[error(
        "cannot attach to `{interface}` in native mode: its driver does not take an MTU of {mtu}{}",
        largest.map(|largest| format!(" (at most {largest})")).unwrap_or_default()
    )]
    MtuTooLarge { interface: String, mtu: u32, largest: Option<u32> },

    #[error("cannot attach to `{interface}` in native mode: its driver does not support it")]
    NativeUnsupported { interface: String },

    #[error("the maps in `{}` are of version {found}, this program needs version {expected}", path.display())]
    AbiMismatch { path: PathBuf, found: u32, expected: u32 },

    #[error("this kernel is {found}: limiter needs {needed} or newer")]
    KernelTooOld { found: String, needed: &'static str },

    #[error("the policy does not fit the kernel's tables: {what}")]
    PolicyTooLarge { what: String },

    /// The verifier or the loader refused the program.
    #[error("the kernel refused the packet program: {reason}")]
    Refused { reason: String },

    #[error("cannot {doing}: {source}")]
    Io { doing: String, source: io::Error },
}

impl Error {
    /// An I/O error, or `NotPermitted` when that is what the kernel said. `doing` completes "cannot …".
    pub fn io(doing: impl Into<String>, source: io::Error) -> Self {
        let doing = doing.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NotPermitted { doing },
            _ => Self::Io { doing, source },
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotPermitted { .. } => {
                "run as root, or give the process CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON".to_owned()
            }
            Self::NoSuchInterface { .. } => "`ip -br link` lists the interfaces there are".to_owned(),
            Self::NotAttached { .. } => {
                "`limiterctl status` lists the interfaces that are guarded".to_owned()
            }
            Self::BpffsMissing { .. } => {
                "`mount -t bpf bpf /sys/fs/bpf` mounts one; `pin` in limiterd.toml says where limiter looks"
                    .to_owned()
            }
            Self::ForeignProgram { interface, id, .. } => format!(
                "`bpftool prog show id {id}` says what it is; `limiterctl attach {interface} --replace` takes its place"
            ),
            Self::MtuTooLarge { interface, largest, .. } => format!(
                "lower it with `ip link set {interface} mtu {}`, or attach with `--mode generic`, which is slower",
                largest.unwrap_or(1500)
            ),
            Self::NativeUnsupported { interface } => {
                format!("`limiterctl attach {interface} --mode generic` works everywhere, but is slower")
            }
            Self::AbiMismatch { .. } => {
                "`limiterctl detach --direct --all` removes them; buckets then start full, and nothing is guarded until limiterd runs again"
                    .to_owned()
            }
            Self::PolicyTooLarge { .. } => {
                "fewer rules, limits or prefixes; `limiterctl check-policy` counts them".to_owned()
            }
            Self::KernelTooOld { .. } | Self::Refused { .. } | Self::Io { .. } => return None,
        })
    }
}
