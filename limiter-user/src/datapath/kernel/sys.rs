//! The few `bpf(2)` commands that are called by hand: most are on links.
//!
//! aya's own attach falls back to netlink where the kernel refuses a link, which hides the reason and leaves
//! a guard that dies with the process. A link that is pinned lives on.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya::Pod;
use limiter_common::abi::{
    Ban, BucketSet, Compared, Control, CrowdCell, FilterLine, Geometry, LoneWord, Row, RuleCounters,
};
use limiter_common::event::TraceTarget;

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;
const BPF_LINK_GET_NEXT_ID: libc::c_long = 31;
const BPF_LINK_DETACH: libc::c_long = 34;
const BPF_CGROUP_SOCK_OPS: u32 = 3;
const BPF_XDP: u32 = 37;

/// User space may map the values of an array.
pub const MMAPABLE: u32 = 1 << 10;
/// Inside a map of maps, an array need not be as long as another in its place.
pub const INNER_MAP: u32 = 1 << 12;

/// `union bpf_attr` of one command; every command is given the same zeroed space.
#[repr(C, align(8))]
struct Attributes([u32; 32]);

fn bpf(command: libc::c_long, fields: &[(usize, u32)]) -> io::Result<libc::c_long> {
    let mut attributes = Attributes([0; 32]);
    for &(position, value) in fields {
        attributes.0[position] = value;
    }
    call(command, &mut attributes)
}

fn call(command: libc::c_long, attributes: &mut Attributes) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads and writes at most the size given; pointers inside are set by the callers
    // below to memory that outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<Attributes>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(descriptor: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just handed out this descriptor to us alone.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

fn pointer(attributes: &mut Attributes, position: usize, address: u64) {
    attributes.0[position] = address as u32;
    attributes.0[position + 1] = (address >> 32) as u32;
}

/// An array of plain values, which no types (BTF) describe. `flags` are [`MMAPABLE`] and [`INNER_MAP`].
pub fn array(name: &[u8; 16], value_bytes: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    const ARRAY: u32 = 2;
    create_map(name, [ARRAY, 4, value_bytes, entries, flags, 0])
}

/// An array with so many places for maps that are like `inner`.
pub fn array_of_maps(name: &[u8; 16], inner: BorrowedFd<'_>, places: u32) -> io::Result<OwnedFd> {
    const ARRAY_OF_MAPS: u32 = 12;
    create_map(name, [ARRAY_OF_MAPS, 4, 4, places, 0, inner.as_raw_fd() as u32])
}

/// Type, bytes of a key and of a value, entries, flags, inner map; behind a NUMA node stands the name.
fn create_map(name: &[u8; 16], fields: [u32; 6]) -> io::Result<OwnedFd> {
    let mut attributes = Attributes([0; 32]);
    attributes.0[..6].copy_from_slice(&fields);
    for (word, part) in attributes.0[7..11].iter_mut().zip(name.as_chunks().0) {
        *word = u32::from_ne_bytes(*part);
    }
    call(BPF_MAP_CREATE, &mut attributes).map(owned)
}

/// Attaches an XDP program by a link. `flags` are `XDP_FLAGS_*`.
pub fn link_create(program: BorrowedFd<'_>, index: u32, flags: u32) -> io::Result<OwnedFd> {
    bpf(BPF_LINK_CREATE, &[(0, program.as_raw_fd() as u32), (1, index), (2, BPF_XDP), (3, flags)]).map(owned)
}

/// Attaches a `sock_ops` program to a cgroup, by a link, beside others that are there.
pub fn cgroup_link_create(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let cgroup = cgroup.as_raw_fd() as u32;
    bpf(BPF_LINK_CREATE, &[(0, program.as_raw_fd() as u32), (1, cgroup), (2, BPF_CGROUP_SOCK_OPS)]).map(owned)
}

/// Puts another program in the place of a link's, atomically.
pub fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    bpf(BPF_LINK_UPDATE, &[(0, link.as_raw_fd() as u32), (1, program.as_raw_fd() as u32)]).map(drop)
}

pub fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(BPF_LINK_DETACH, &[(0, link.as_raw_fd() as u32)]).map(drop)
}

pub fn object_pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attributes = Attributes([0; 32]);
    pointer(&mut attributes, 0, path.as_ptr() as u64);
    attributes.0[2] = object.as_raw_fd() as u32;
    call(BPF_OBJ_PIN, &mut attributes).map(drop)
}

pub fn object_get(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attributes = Attributes([0; 32]);
    pointer(&mut attributes, 0, path.as_ptr() as u64);
    call(BPF_OBJ_GET, &mut attributes).map(owned)
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// What the kernel says of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkInfo {
    /// 0 when the interface is gone.
    pub interface: u32,
    pub is_xdp: bool,
}

pub fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    const XDP: u32 = 6;
    // `struct bpf_link_info`: type, id, prog_id, a hole, then the union, whose XDP member is the ifindex.
    let info = object_info(link)?;
    Ok(LinkInfo { interface: info[4], is_xdp: info[0] == XDP })
}

fn object_info(object: BorrowedFd<'_>) -> io::Result<[u32; 64]> {
    let mut info = [0u32; 64];
    let mut attributes = Attributes([0; 32]);
    attributes.0[0] = object.as_raw_fd() as u32;
    attributes.0[1] = size_of_val(&info) as u32;
    pointer(&mut attributes, 2, info.as_mut_ptr() as u64);
    call(BPF_OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(info)
}

/// The program of that id, where the kernel permits to ask (CAP_SYS_ADMIN).
pub fn program(id: u32) -> io::Result<OwnedFd> {
    bpf(BPF_PROG_GET_FD_BY_ID, &[(0, id)]).map(owned)
}

/// Its name, likewise.
pub fn program_name(id: u32) -> Option<String> {
    let program = program(id).ok()?;
    // `struct bpf_prog_info`: the 16-byte name begins at byte 64.
    let info = object_info(program.as_fd()).ok()?;
    let bytes: Vec<u8> = info[16..20].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name = bytes.split(|byte| *byte == 0).next()?;
    String::from_utf8(name.to_vec()).ok().filter(|name| !name.is_empty())
}

/// Every XDP link of the host with its descriptor (CAP_SYS_ADMIN).
pub fn xdp_links() -> io::Result<Vec<(OwnedFd, LinkInfo)>> {
    let mut links = Vec::new();
    let mut id = 0;
    loop {
        let mut attributes = Attributes([0; 32]);
        attributes.0[0] = id;
        match call(BPF_LINK_GET_NEXT_ID, &mut attributes) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(links),
            Err(error) => return Err(error),
            Ok(_) => id = attributes.0[1],
        }
        // A link may end between the two calls.
        let Ok(link) = bpf(BPF_LINK_GET_FD_BY_ID, &[(0, id)]).map(owned) else { continue };
        let info = link_info(link.as_fd())?;
        if info.is_xdp {
            links.push((link, info));
        }
    }
}

/// A map value that is plain bytes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Plain<T>(pub T);

macro_rules! plain {
    ($($kind:ty),*) => {
        $(
            // SAFETY: `repr(C)` integers without padding that matters, valid for any bytes.
            unsafe impl Pod for Plain<$kind> {}
        )*
    };
}

plain!(
    Ban,
    BucketSet,
    Compared,
    Control,
    CrowdCell,
    FilterLine,
    Geometry,
    LoneWord,
    Row,
    RuleCounters,
    TraceTarget
);
