//! The program's clocks, read by a program: user space sees the kernel's tick counter nowhere.

use aya::programs::{TestRun as _, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};

use super::load::refused;
use super::xdp;
use crate::datapath::Error;

/// See `limiter-ebpf/src/bin/clock.rs`.
static OBJECT: &[u8] = include_bytes_aligned!(env!("LIMITER_OBJECT_CLOCK"));

const PROGRAM: &str = "clock";

pub struct Clock(Ebpf);

/// One moment. The kernel moves both by whole ticks, so they stay together but for one: it moves one after the other.
pub struct Moment {
    /// Of the coarse monotonic clock.
    pub coarse_ns: u64,
    /// Of the tick counter, which is the coarse clock of the program that guards.
    pub jiffies: u64,
}

impl Clock {
    pub fn load() -> Result<Self, Error> {
        let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(refused)?;
        xdp(&mut ebpf, PROGRAM)?.load().map_err(refused)?;
        Ok(Self(ebpf))
    }

    pub fn read(&self) -> Result<Moment, Error> {
        let missing = || Error::Refused { reason: format!("the object has no program `{PROGRAM}`") };
        let program: &Xdp = self.0.program(PROGRAM).ok_or_else(missing)?.try_into().map_err(refused)?;
        let mut read = [0; 64];
        let options = TestRunOptions {
            data_in: Some(&[0; 64]),
            data_out: Some(&mut read),
            repeat: 1,
            ..TestRunOptions::default()
        };
        program.test_run(options).map_err(refused)?;
        let (numbers, _) = read.as_chunks::<8>();
        Ok(Moment { jiffies: u64::from_ne_bytes(numbers[0]), coarse_ns: u64::from_ne_bytes(numbers[1]) })
    }
}
