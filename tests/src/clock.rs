//! The two clocks a bucket may be kept by, read as the kernel program reads them.

use std::time::{Duration, Instant};

use limiter_common::abi::Geometry;

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec into a place of that size.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(result, 0, "clock {clock} is read");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// `bpf_ktime_get_ns`, in ns.
pub fn precise() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The clock as of the last tick, in ns, hence behind the precise one.
pub fn coarse() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// The coarse clock as the kernel program counts it: whole kernel ticks since the table's epoch, in 1/64 ns.
pub fn coarse_ticks(geometry: &Geometry) -> u64 {
    let since = (coarse() - geometry.epoch) << 6;
    // The clock's own steps are a few ns off the counter's.
    (since + geometry.jiffy / 2) / geometry.jiffy * geometry.jiffy
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub precise: u64,
    pub coarse: u64,
}

impl Moment {
    pub fn now() -> Self {
        Self { precise: precise(), coarse: coarse() }
    }

    /// Time to `later` by the precise clock.
    pub fn to(self, later: Self) -> Duration {
        Duration::from_nanos(later.precise - self.precise)
    }

    /// How far the coarse clock is behind. Its spread is the difference of two of these.
    pub fn lag(self) -> Duration {
        Duration::from_nanos(self.precise.saturating_sub(self.coarse))
    }
}

/// Tries `probe` until it answers, with a pause between; panics with `what` after `patience`.
pub fn wait_for<T>(what: &str, patience: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Pins the calling thread to one CPU of those it may run on, counted from 0.
pub fn pin_to(number: usize) {
    // SAFETY: a CPU set of zeros is a valid, empty one.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = std::mem::size_of::<libc::cpu_set_t>();
    // SAFETY: the kernel writes one CPU set into a place of that size.
    let got = unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) };
    assert_eq!(got, 0, "the CPUs of this thread are read");
    // SAFETY: every index is below the size of the set.
    let cpus: Vec<usize> =
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &allowed) }).collect();
    // SAFETY: as above.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index came out of a set of this size.
    unsafe { libc::CPU_SET(cpus[number % cpus.len()], &mut one) };
    // SAFETY: the kernel reads one CPU set of that size.
    let set = unsafe { libc::sched_setaffinity(0, size, &raw const one) };
    assert_eq!(set, 0, "the thread is pinned");
}
