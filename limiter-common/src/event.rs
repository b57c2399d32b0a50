//! What the program tells of a packet it drops, or that an observing rule would drop, while somebody watches.
//!
//! Packets are chosen by budget, not every n-th: each row of the counters (a rule and a reason) has a small share of
//! its own, so a rare drop is told of also in a flood of others, and one budget for all gives the rest of the room to
//! whoever comes. What fits neither is counted as lost.

use crate::abi::{Rate, lone};
use crate::judge::{Engine, Ruling};
use crate::table::{self, Charge, Word};
use crate::verdict::{OUTCOMES, Outcome, Verdict};

/// Bytes of a frame, from its first, that an event carries at most.
pub const FRAME_BYTES: usize = 128;

/// [`Event::observed`] where no observing rule would have dropped the packet.
pub const NOT_OBSERVED: u8 = u8::MAX;

/// One packet. Part of the memory shared with the kernel, see [`crate::abi`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kernel monotonic time in ns.
    pub time: u64,
    /// The source as it was judged, as in [`crate::packet::Packet`].
    pub source_high: u64,
    pub source_low: u64,
    /// Index of the interface it came in by.
    pub interface: u32,
    /// Bytes from the L3 header to the end of the frame.
    pub length: u32,
    /// Bytes of the whole frame.
    pub frame_length: u32,
    /// Destination port, or ICMP type.
    pub destination: u16,
    pub source_port: u16,
    /// Counter slot of the rule that decided: it stays the rule's over policies.
    pub rule: u16,
    /// Counter slot of the observing rule that would have dropped it.
    pub observing: u16,
    /// An [`Outcome`].
    pub outcome: u8,
    /// The outcome under that rule, or [`NOT_OBSERVED`].
    pub observed: u8,
    /// A [`crate::packet::Family`].
    pub family: u8,
    /// A [`crate::packet::Kind`].
    pub kind: u8,
    /// Bytes of `frame` that are the frame's.
    pub captured: u8,
    pub reserved: [u8; 7],
    pub frame: [u8; FRAME_BYTES],
}

/// Whether a ruling is one to tell of.
#[inline(always)]
pub fn is_told(ruling: &Ruling) -> bool {
    ruling.observing != 0 || ruling.outcome.verdict() == Verdict::Drop
}

/// All rows together: 2000 a second, 500 at once.
const BUDGET: Rate =
    Rate { multiplier: 32_000_000, tolerance: 16_000_000_000, burst: 500, shift: 0, reserved: 0 };

/// Each row by itself: 5 a second, 10 at once.
const SHARE: Rate =
    Rate { multiplier: 12_800_000_000, tolerance: 128_000_000_000, burst: 10, shift: 0, reserved: 0 };

/// Shares there are: a row is a counter slot and an outcome.
pub const SHARES: usize = crate::abi::MAX_RULES * OUTCOMES;

/// Whose decisions a trace tells of: all from one prefix, until a time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceTarget {
    /// The prefix's bits 127…64 and 63…0, an IPv4 one below `::ffff:0:0/96`.
    pub high: u64,
    pub low: u64,
    /// The bits of an address that must be the prefix's.
    pub mask_high: u64,
    pub mask_low: u64,
    /// In ticks of 1/64 ns since the table's epoch.
    pub until: u64,
}

/// Decisions a trace tells of: 1000 a second, 1000 at once.
const TRACE_BUDGET: Rate =
    Rate { multiplier: 64_000_000, tolerance: 64_000_000_000, burst: 1000, shift: 0, reserved: 0 };

/// Whether a trace has room for one more decision, by its own word of a budget.
#[inline(always)]
pub fn is_traceable<W: Word>(budget: W, now: u64) -> bool {
    takes(budget, now, &TRACE_BUDGET)
}

/// Whose share an event is of, given counter slot and outcome of the rule that decided, and of the one that observed.
/// Of a packet that is not dropped the observing rule's row is the one that counts.
#[inline(always)]
pub fn share_of(decided: (u16, u8), observed: (u16, u8)) -> u32 {
    let is_drop = decided.1 >= Outcome::DropOver as u8 && decided.1 < Outcome::WouldDropOver as u8;
    let (counter, outcome) = if is_drop { decided } else { observed };
    u32::from(counter) * OUTCOMES as u32 + u32::from(outcome)
}

/// Takes an event from the row's share, or else from the budget of all.
#[inline(always)]
pub fn is_affordable<E: Engine>(engine: E, share: Option<E::Word>) -> bool {
    let now = engine.now(true);
    share.is_some_and(|share| takes(share, now, &SHARE))
        || engine.lone(lone::EVENTS as u32, 0).is_some_and(|budget| takes(budget, now, &BUDGET))
}

#[inline(always)]
fn takes<W: Word>(word: W, now: u64, rate: &Rate) -> bool {
    let Some(cost) = rate.cost(1) else { return false };
    table::charge(word, now, cost, rate, || (), || true) == Charge::Done
}

#[cfg(test)]
mod tests {
    use core::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn the_layout_is_the_one_user_space_reads() {
        assert_eq!(size_of::<Event>(), 56 + FRAME_BYTES);
        assert_eq!(offset_of!(Event, frame), 56);
        assert_eq!(offset_of!(Event, outcome), 44);
    }

    #[test]
    fn a_row_has_its_own_share() {
        let (over, would) = (Outcome::DropOver as u8, Outcome::WouldDropOver as u8);
        assert_eq!(share_of((3, over), (0, NOT_OBSERVED)), 3 * 32 + 8);
        assert_eq!(share_of((3, over), (4, would)), 3 * 32 + 8);
        assert_eq!(share_of((3, Outcome::PassWithin as u8), (4, would)), 4 * 32 + 24);
        assert!((share_of((511, 23), (0, 0)) as usize) < SHARES);
    }

    #[test]
    fn budgets_are_the_numbers_they_say() {
        const SECOND: u64 = 64_000_000_000;
        for (rate, per_second, burst) in [(BUDGET, 2000, 500), (SHARE, 5, 10), (TRACE_BUDGET, 1000, 1000)] {
            assert_eq!(rate.cost(1).unwrap() * per_second, SECOND);
            assert_eq!(rate.tolerance, rate.cost(1).unwrap() * burst);
            assert_eq!(rate.burst, burst);
        }
    }
}
