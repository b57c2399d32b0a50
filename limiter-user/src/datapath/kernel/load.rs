//! From the object file to a loaded program on pinned maps.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use aya::maps::{Array, MapData};
use aya::programs::ProgramError;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use limiter_common::abi::{ABI_VERSION, Geometry, POLICY_SLOTS, Row, WAYS};
use nix::time::ClockId;

use super::btf;
use super::clock::{Clock, Moment};
use super::sys::{self, Plain};
use crate::datapath::{Error, Options};

/// The kernel's half, built with this crate.
pub static OBJECT: &[u8] = include_bytes_aligned!(env!("LIMITER_OBJECT_LIMITER"));

/// What tests and benches load beside it, on the same maps: see `limiter-ebpf/src/bin/probe.rs`.
pub static PROBE: &[u8] = include_bytes_aligned!(env!("LIMITER_OBJECT_PROBE"));

/// What guards while somebody traces, on the same maps: see `limiter-ebpf/src/bin/trace.rs`.
pub static TRACE: &[u8] = include_bytes_aligned!(env!("LIMITER_OBJECT_TRACE"));

/// What guards while another policy is judged beside: see `limiter-ebpf/src/bin/observe.rs`.
pub static OBSERVE: &[u8] = include_bytes_aligned!(env!("LIMITER_OBJECT_OBSERVE"));

/// Marks who is proven: see `limiter-ebpf/src/bin/proof.rs`.
pub static PROOF: &[u8] = include_bytes_aligned!(env!("LIMITER_OBJECT_PROOF"));

/// Maps of the object, which are pinned under their names in lower case.
const MAPS: [&str; 18] = [
    "POLICIES",
    "PREFIXES",
    "CONTROL",
    "BUCKETS",
    "FILTER",
    "STRIKES",
    "SAFE",
    "CROWD",
    "BUDGETS",
    "BANS",
    "BAN_PREFIXES",
    "PROVEN",
    "COUNTERS",
    "PRESSURE",
    "EVENTS",
    "EVENT_SHARES",
    "EVENTS_LOST",
    DECIDED,
];

/// What two programs share that one packet goes through.
pub const DECIDED: &str = "DECIDED";

const GEOMETRY: &str = "geometry";

/// Oldest kernel with everything the program uses (compare-and-swap in the JIT, links for XDP).
pub const FLOOR: (u32, u32) = (5, 15);
/// Kernels from here on hand over frames of several buffers.
const MULTI_BUFFER: (u32, u32) = (5, 18);

/// Where a map of the object is pinned.
pub fn map_path(pin: &Path, map: &str) -> PathBuf {
    pin.join(map.to_lowercase())
}

/// Where the prefix image of a policy slot is pinned: a map inside a map is found again only by its own pin.
pub fn image_path(pin: &Path, slot: u32) -> PathBuf {
    pin.join(format!("image-{slot}"))
}

/// Makes the pin directory, finds or makes the geometry, and loads the maps of `object`: pinned ones are
/// adopted, others made and pinned. Programs are not loaded yet.
pub fn load(object: &[u8], options: &Options) -> Result<(Ebpf, Geometry), Error> {
    require_kernel()?;
    let pin = &options.pin;
    require_bpffs(pin)?;
    // Kernels before 5.11 charge maps to RLIMIT_MEMLOCK; raising it may fail and does not matter after.
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a plain system call on our own limits.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) };

    make_directory(pin)?;
    let geometry = geometry(options)?;
    make_prefixes(pin)?;
    let tcp_fields = btf::tcp_fields();
    let mut loader = EbpfLoader::new();
    loader
        .override_global("SEED", &geometry.seed, true)
        .override_global("SETS", &geometry.sets, true)
        .override_global("EPOCH", &geometry.epoch, true)
        .override_global("JIFFIES", &geometry.jiffies, true)
        .override_global("JIFFY", &geometry.jiffy, true)
        .override_global("TCP_FIELDS", &tcp_fields, false)
        .map_max_entries("BUCKETS", geometry.sets)
        .map_max_entries("STRIKES", geometry.sets)
        .map_max_entries("FILTER", limiter_common::filter::lines(geometry.sets))
        .map_max_entries("BANS", options.bans)
        .map_max_entries("BAN_PREFIXES", options.bans);
    for map in MAPS {
        loader.map_pin_path(map, map_path(pin, map));
    }
    Ok((loader.load(object).map_err(refused)?, geometry))
}

/// An array for one prefix image, which is mapped to fill it, and may be of any size inside the map of maps.
pub fn new_image(entries: u32) -> Result<MapData, Error> {
    let map =
        sys::array(b"PREFIX_IMAGE\0\0\0\0", size_of::<Row>() as u32, entries, sys::MMAPABLE | sys::INNER_MAP)
            .map_err(|error| Error::io("make a prefix image", error))?;
    MapData::from_fd(map).map_err(refused)
}

/// Makes the map of prefix images, unless it is pinned. aya would describe its inner map by types, and before Linux
/// 6.2 such a map takes none without types in its place: both must agree on where a value has no timer.
fn make_prefixes(pin: &Path) -> Result<(), Error> {
    let path = map_path(pin, "PREFIXES");
    if path.exists() {
        return Ok(());
    }
    let inner = new_image(1)?;
    sys::array_of_maps(b"PREFIXES\0\0\0\0\0\0\0\0", inner.fd().as_fd(), POLICY_SLOTS as u32)
        .and_then(|map| sys::object_pin(map.as_fd(), &path))
        .map_err(|error| Error::io("make the map of prefix images", error))
}

/// The last cause of an aya error says what the kernel said; the rest is where it happened.
pub fn refused(error: impl std::error::Error) -> Error {
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>()
            && io.kind() == io::ErrorKind::PermissionDenied
        {
            return Error::NotPermitted { doing: "load the packet program".to_owned() };
        }
        let text = cause.to_string();
        if !reason.contains(&text) {
            reason = format!("{reason}: {text}");
        }
        source = cause.source();
    }
    Error::Refused { reason }
}

/// The same of a program. What the verifier said last is the reason, also where the kernel's error is the one of
/// somebody without the right to load.
pub fn refused_program(error: ProgramError) -> Error {
    let log = match &error {
        ProgramError::LoadError { verifier_log, .. } => verifier_log.to_string(),
        _ => String::new(),
    };
    match verdict_of(&log) {
        Some(verdict) => Error::Refused { reason: format!("the verifier says: {verdict}") },
        None => refused(error),
    }
}

/// The last line of a verifier's log that is not its statistics.
fn verdict_of(log: &str) -> Option<&str> {
    let is_said = |line: &&str| {
        let statistics =
            ["processed ", "verification time ", "stack depth "].iter().any(|start| line.starts_with(start));
        !line.is_empty() && !statistics
    };
    log.lines().map(str::trim).rfind(is_said)
}

/// The running kernel's version.
fn kernel_version() -> (u32, u32, String) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or_default());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default(), release)
}

fn require_kernel() -> Result<(), Error> {
    let (major, minor, found) = kernel_version();
    if (major, minor) >= FLOOR { Ok(()) } else { Err(Error::KernelTooOld { found, needed: "5.15" }) }
}

/// Whether the kernel knows multi-buffer XDP.
pub fn has_multi_buffer() -> bool {
    let (major, minor, _) = kernel_version();
    (major, minor) >= MULTI_BUFFER
}

/// The nearest directory that exists must be in a bpf file system.
pub fn require_bpffs(pin: &Path) -> Result<(), Error> {
    let missing = || Error::BpffsMissing { path: pin.to_owned() };
    let mut directory = pin;
    while !directory.exists() {
        directory = directory.parent().ok_or_else(missing)?;
    }
    let status = nix::sys::statfs::statfs(directory)
        .map_err(|error| Error::io(format!("look at `{}`", directory.display()), error.into()))?;
    if status.filesystem_type() == nix::sys::statfs::BPF_FS_MAGIC { Ok(()) } else { Err(missing()) }
}

/// The pinned geometry, or a new one. It is pinned before any map is: a daemon that dies in between leaves
/// nothing that does not fit together.
fn geometry(options: &Options) -> Result<Geometry, Error> {
    let path = options.pin.join(GEOMETRY);
    if path.exists() {
        let map = MapData::from_pin(&path).map_err(refused)?;
        let map = Array::<_, Plain<Geometry>>::try_from(aya::maps::Map::Array(map)).map_err(refused)?;
        let Plain(found) = map.get(&0, 0).map_err(refused)?;
        if found.abi != ABI_VERSION {
            return Err(Error::AbiMismatch {
                path: options.pin.clone(),
                found: found.abi,
                expected: ABI_VERSION,
            });
        }
        return Ok(found);
    }
    let ways = options.buckets.max(64).next_power_of_two();
    let Moment { coarse_ns, jiffies } = Clock::load()?.read()?;
    let geometry = Geometry {
        abi: ABI_VERSION,
        sets: ways / WAYS as u32,
        seed: random()?,
        epoch: coarse_ns,
        jiffies,
        jiffy: tick_ns() << 6,
    };
    pin_geometry(&options.pin, &geometry)?;
    Ok(geometry)
}

fn random() -> Result<[u64; 4], Error> {
    let mut seed = [0u64; 4];
    // SAFETY: the kernel writes at most the bytes of `seed`.
    let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), size_of_val(&seed), 0) };
    if got == size_of_val(&seed) as isize {
        Ok(seed)
    } else {
        Err(Error::io("draw a random seed", io::Error::last_os_error()))
    }
}

/// The kernel program's precise clock.
pub fn monotonic_ns() -> u64 {
    let time = nix::time::clock_gettime(ClockId::CLOCK_MONOTONIC).ok();
    time.map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Spread of the coarse clock: one tick.
pub fn tick_ns() -> u64 {
    let tick = nix::time::clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).ok();
    // 10 ms is the longest tick Linux is built with.
    tick.map_or(10_000_000, |time| time.tv_nsec() as u64)
}

pub fn is_pinned(pin: &Path) -> bool {
    pin.join(GEOMETRY).exists()
}

/// Pins everything that is loaded once more.
pub fn pin_again(pin: &Path, ebpf: &Ebpf, geometry: &Geometry) -> Result<(), Error> {
    make_directory(pin)?;
    pin_geometry(pin, geometry)?;
    for (name, map) in ebpf.maps() {
        if MAPS.contains(&name) {
            map.pin(map_path(pin, name)).map_err(refused)?;
        }
    }
    Ok(())
}

pub fn make_directory(pin: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(pin)
        .map_err(|error| Error::io(format!("create `{}`", pin.display()), error))
}

fn pin_geometry(pin: &Path, geometry: &Geometry) -> Result<(), Error> {
    let mut map = Array::<MapData, Plain<Geometry>>::create(1, 0).map_err(refused)?;
    map.set(0, Plain(*geometry), 0).map_err(refused)?;
    map.pin(pin.join(GEOMETRY)).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::verdict_of;

    #[test]
    fn what_the_verifier_said_last_is_the_reason() {
        let log = "func#0 @0\n0: R1=ctx()\ncombined stack size of 4 calls is 528. Too large\n\
                   verification time 31337 usec\nstack depth 160+96\nprocessed 68049 insns (limit 1000000)\n\n";
        assert_eq!(verdict_of(log), Some("combined stack size of 4 calls is 528. Too large"));
        assert_eq!(verdict_of("processed 1 insns\n"), None);
        assert_eq!(verdict_of(""), None);
    }
}
