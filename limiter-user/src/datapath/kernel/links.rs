//! The guards themselves: one pinned link per interface.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{netlink, sys};
use crate::datapath::{Error, Interface, Mode};
use crate::nic::features;

const SKB_MODE: u32 = 1 << 1;
const DRIVER_MODE: u32 = 1 << 2;

/// One link of ours. Dropping it leaves the pin, hence the guard.
pub struct Guard {
    link: OwnedFd,
    index: u32,
    attached_at: SystemTime,
}

fn link_path(pin: &Path, index: u32) -> PathBuf {
    pin.join(format!("link-{index}"))
}

/// The index of the interface of that name, in this network namespace.
pub fn index_of(interface: &str) -> Result<u32, Error> {
    nix::net::if_::if_nametoindex(interface)
        .map_err(|_| Error::NoSuchInterface { interface: interface.to_owned() })
}

impl Guard {
    /// Takes up the links pinned by an earlier daemon. The pin of an interface that is gone is removed.
    pub fn adopt(pin: &Path) -> Result<Vec<Self>, Error> {
        let mut guards = Vec::new();
        let listing =
            fs::read_dir(pin).map_err(|error| Error::io(format!("read `{}`", pin.display()), error))?;
        for entry in listing.flatten() {
            if !entry.file_name().to_string_lossy().starts_with("link-") {
                continue;
            }
            let path = entry.path();
            let doing = || format!("open `{}`", path.display());
            let link = sys::object_get(&path).map_err(|error| Error::io(doing(), error))?;
            let info = sys::link_info(link.as_fd()).map_err(|error| Error::io(doing(), error))?;
            if info.interface == 0 {
                let _ = fs::remove_file(&path);
                continue;
            }
            let attached_at = fs::metadata(&path)
                .and_then(|metadata| metadata.modified())
                .unwrap_or_else(|_| SystemTime::now());
            guards.push(Self { link, index: info.interface, attached_at });
        }
        Ok(guards)
    }

    /// Attaches `program` and pins the link. `Auto` tries native first. A program that was to be replaced is put back
    /// where that fails.
    pub fn attach(
        pin: &Path,
        program: BorrowedFd<'_>,
        interface: &str,
        mode: Mode,
        replace: bool,
    ) -> Result<Self, Error> {
        let index = index_of(interface)?;
        let Some((found, id)) = state(index)?.program else {
            return Self::create(pin, program, interface, index, mode);
        };
        if !replace {
            return Err(Error::ForeignProgram {
                interface: interface.to_owned(),
                id,
                name: sys::program_name(id),
            });
        }
        require_mode(interface, index, mode)?;
        let foreign = sys::program(id);
        remove_foreign(index, found)?;
        Self::create(pin, program, interface, index, mode).inspect_err(|_| {
            let back = foreign.and_then(|foreign| netlink::set_program(index, found, Some(foreign.as_fd())));
            match back {
                Ok(()) => tracing::warn!(interface, id, "the program that was to be replaced is back"),
                Err(error) => {
                    tracing::error!(interface, id, %error, "the replaced program cannot be put back");
                }
            }
        })
    }

    fn create(
        pin: &Path,
        program: BorrowedFd<'_>,
        interface: &str,
        index: u32,
        mode: Mode,
    ) -> Result<Self, Error> {
        let create = |flags| sys::link_create(program, index, flags);
        let link = match mode {
            Mode::Generic => create(SKB_MODE),
            Mode::Native => create(DRIVER_MODE),
            Mode::Auto => create(DRIVER_MODE).or_else(|native| {
                let link = create(SKB_MODE)?;
                tracing::warn!(interface, reason = %native, "no native mode, attached in generic mode, which is slower");
                Ok(link)
            }),
        }
        .map_err(|error| explain(interface, index, mode, error))?;
        let path = link_path(pin, index);
        // A pin left by an interface that had this index before.
        let _ = fs::remove_file(&path);
        sys::object_pin(link.as_fd(), &path)
            .map_err(|error| Error::io(format!("pin the link of `{interface}`"), error))?;
        Ok(Self { link, index, attached_at: SystemTime::now() })
    }

    /// Puts another program behind this guard, atomically.
    pub fn update(&self, program: BorrowedFd<'_>) -> Result<(), Error> {
        sys::link_update(self.link.as_fd(), program)
            .map_err(|error| Error::io(format!("renew the program on interface {}", self.index), error))
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// The interface, or `None` when it went away.
    pub fn interface(&self) -> Option<Interface> {
        let info = sys::link_info(self.link.as_fd()).ok()?;
        if info.interface == 0 {
            return None;
        }
        let state = netlink::state(info.interface).ok()?;
        let mode = state.program.map_or(Mode::Generic, |(mode, _)| mode);
        Some(Interface { name: state.name, index: self.index, mode, attached_at: self.attached_at })
    }

    /// Ends the guard.
    pub fn detach(&self, pin: &Path) -> Result<(), Error> {
        let doing = || format!("detach from interface {}", self.index);
        match sys::link_detach(self.link.as_fd()) {
            // Gone already, with its interface.
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
            other => other.map_err(|error| Error::io(doing(), error))?,
        }
        forget_pin(&link_path(pin, self.index))
    }

    /// Removes the pin of a guard whose interface is gone.
    pub fn forget(self, pin: &Path) {
        let _ = forget_pin(&link_path(pin, self.index));
    }
}

/// Removes a pin, which may be gone already.
pub fn forget_pin(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove `{}`", path.display()), error))
        }
        _ => Ok(()),
    }
}

fn state(index: u32) -> Result<netlink::State, Error> {
    netlink::state(index).map_err(|error| Error::io(format!("look at interface {index}"), error))
}

/// Takes away somebody else's program, whether a link holds it or netlink put it there.
fn remove_foreign(index: u32, mode: Mode) -> Result<(), Error> {
    let doing = || format!("remove the XDP program of interface {index}");
    let links = sys::xdp_links().map_err(|error| Error::io(doing(), error))?;
    let mut by_link = false;
    for (link, info) in links {
        if info.interface == index {
            sys::link_detach(link.as_fd()).map_err(|error| Error::io(doing(), error))?;
            by_link = true;
        }
    }
    if by_link {
        Ok(())
    } else {
        netlink::set_program(index, mode, None).map_err(|error| Error::io(doing(), error))
    }
}

/// Refuses a mode that the driver has not, before anything makes room for it. Kernels before 6.3 cannot be asked: there
/// it has to be tried.
pub fn require_mode(interface: &str, index: u32, mode: Mode) -> Result<(), Error> {
    let has_native = || features(index).map_or(true, |features| features.native);
    if mode == Mode::Native && !has_native() {
        return Err(Error::NativeUnsupported { interface: interface.to_owned() });
    }
    Ok(())
}

/// What the kernel's number means here.
fn explain(interface: &str, index: u32, mode: Mode, error: io::Error) -> Error {
    let interface_name = interface.to_owned();
    let state = netlink::state(index).ok();
    match (error.raw_os_error(), mode) {
        (Some(libc::EBUSY | libc::EEXIST), _) => {
            let id = state.and_then(|state| state.program).map_or(0, |(_, id)| id);
            Error::ForeignProgram { interface: interface_name, id, name: sys::program_name(id) }
        }
        (Some(libc::ENODEV), _) => Error::NoSuchInterface { interface: interface_name },
        (Some(libc::ERANGE | libc::E2BIG), Mode::Native) => Error::MtuTooLarge {
            interface: interface_name,
            mtu: state.map_or(0, |state| state.mtu),
            largest: None,
        },
        // Drivers say EINVAL of a large MTU too; below the Ethernet default it cannot be that.
        (Some(libc::EINVAL), Mode::Native) if state.as_ref().is_some_and(|state| state.mtu > 1500) => {
            Error::MtuTooLarge {
                interface: interface_name,
                mtu: state.map_or(0, |state| state.mtu),
                largest: None,
            }
        }
        (Some(libc::EOPNOTSUPP | libc::EINVAL), Mode::Native) => {
            Error::NativeUnsupported { interface: interface_name }
        }
        _ => Error::io(format!("attach to `{interface}`"), error),
    }
}
