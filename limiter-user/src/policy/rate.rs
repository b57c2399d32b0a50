//! Rates, bursts and durations: text to exact fractions to what the kernel computes with.
//!
//! Nothing is a float here. A rate is kept as the exact fraction of ticks (1/64 ns) one unit is worth; what the
//! kernel's integers make of it differs by at most 0.1 %, else the number is refused.

use limiter_common::abi;

use super::exact::Fraction;

/// Ticks of one second.
pub const TICKS_PER_SECOND: u128 = 64_000_000_000;

/// Longest time an empty bucket may take to fill.
pub const LONGEST_FILL_SECONDS: u128 = 30 * 86_400;

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    Packets,
    Bytes,
}

impl Unit {
    /// Its place in [`abi::Meter::rates`].
    pub fn index(self) -> usize {
        match self {
            Self::Packets => abi::PACKETS,
            Self::Bytes => abi::BYTES,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
        }
    }
}

/// A rate with its burst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// As written, `50 Mbit/s`.
    pub text: String,
    pub unit: Unit,
    /// Ticks one unit is worth, exactly.
    pub ticks_per_unit: Fraction,
    /// In units.
    pub burst: u64,
}
