//! The token bucket in one word: GCRA.
//!
//! A bucket of rate r and burst b is kept as its theoretical arrival time (tat). For a packet of cost c at
//! `now`, with T = 1/r:
//!
//! ```text
//! base = max(tat, now);  next = base + c·T;  admit iff next − now ≤ b·T;  then tat := next
//! ```
//!
//! That is a token bucket (tokens = b − max(0, tat − now)/T) without a refill, a remainder or an overflow:
//! see ITU-T I.371, "generic cell rate algorithm", virtual scheduling.
//!
//! Word: bits 63…1 are the tat in ticks of 1/64 ns since the table's epoch (4.5 years), bit 0 marks a
//! penalty. 0 is a full bucket.

use crate::abi::Rate;

/// Why a bucket refused.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Over,
    Oversize,
    Penalty,
    /// Not the bucket's: the rule takes no more sources without one.
    Newcomer,
}

/// Ticks of 1/64 ns since `epoch`. A clock that lags behind the epoch reads 0: clocks are never subtracted
/// into an unsigned without this.
#[inline(always)]
pub fn ticks(now_ns: u64, epoch_ns: u64) -> u64 {
    let now_ns = if now_ns > epoch_ns { now_ns } else { epoch_ns };
    (now_ns - epoch_ns) << 6
}

/// The same by the kernel's tick counter, which stood at `start` at the epoch and advances once a `period` of 1/64 ns.
#[inline(always)]
pub fn coarse_ticks(jiffies: u64, start: u64, period: u64) -> u64 {
    let jiffies = if jiffies > start { jiffies } else { start };
    (jiffies - start).wrapping_mul(period)
}

impl Rate {
    /// Ticks that `units` cost, rounded up; `None` when they are more than the whole burst.
    ///
    /// `units ≤ burst` bounds the product below 2^63: the compiler chooses `shift` so.
    #[inline(always)]
    pub fn cost(&self, units: u64) -> Option<u64> {
        if units > self.burst {
            return None;
        }
        let product = units.wrapping_mul(self.multiplier);
        let shift = self.shift & 63;
        Some(product.wrapping_add((1 << shift) - 1) >> shift)
    }

    /// The same rate times eight, for a crowd cell: its burst is eight times as large too, so the tolerance
    /// stays.
    #[inline(always)]
    pub fn crowd(&self) -> Self {
        Self { shift: self.shift + 3, burst: self.burst << 3, ..*self }
    }
}

/// The tat a word stands for at `now`, never less than `now`.
///
/// Without the mark, a tat beyond `now + tolerance` can only come from an older policy with larger numbers:
/// it reads as a bucket that is just empty.
#[inline(always)]
fn arrival(word: u64, now: u64, tolerance: u64) -> u64 {
    let tat = word >> 1;
    if tat <= now {
        now
    } else if tat > now + tolerance {
        now + tolerance
    } else {
        tat
    }
}

/// The word after a packet of `cost` at `now`, or why there is no room.
#[inline(always)]
pub fn admit(word: u64, now: u64, cost: u64, tolerance: u64) -> Result<u64, Refusal> {
    if word & 1 == 1 && word >> 1 > now {
        return Err(Refusal::Penalty);
    }
    let next = arrival(word, now, tolerance) + cost;
    if next - now <= tolerance { Ok(next << 1) } else { Err(Refusal::Over) }
}

/// Whether forgetting the word loses nothing.
#[inline(always)]
pub fn is_full(word: u64, now: u64) -> bool {
    word >> 1 <= now
}

/// The word from which the new owner of an evicted way starts: room for this one packet, no burst, and no
/// debt of the old owner beyond that.
#[inline(always)]
pub fn inherit(word: u64, now: u64, cost: u64, tolerance: u64) -> u64 {
    let room_for_one = now + tolerance.saturating_sub(cost);
    let tat = word >> 1;
    let tat = if tat < room_for_one { tat } else { room_for_one };
    (if tat > now { tat } else { now }) << 1
}

/// The word after `cost` was given back.
#[inline(always)]
pub fn refund(word: u64, cost: u64) -> u64 {
    word.saturating_sub(cost << 1)
}

/// Ticks until a bucket is full again, for eviction and for showing levels.
#[inline(always)]
pub fn debt(word: u64, now: u64) -> u64 {
    (word >> 1).saturating_sub(now)
}
