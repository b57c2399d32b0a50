//! What a policy with larger numbers left in the buckets, brought to what the numbers of today allow.
//!
//! A word further ahead than `now + tolerance` is that of a bucket emptied under an older policy. The program
//! reads it as just empty, but a refusal writes nothing: it would be just empty at every packet, for as long as
//! the old numbers said. Here it is written down once.

use std::sync::atomic::{AtomicU64, Ordering};

use limiter_common::abi::{BYTES, CROWD_CELLS, MAX_METERS, METER_LONE, Meter, PACKETS, WAYS};
use limiter_common::hash;

use super::Kernel;
use crate::datapath::Datapath;

/// Meters of `new` of which a full bucket is worth less time than it was in one of `old`.
pub fn relaxed<'a>(old: impl IntoIterator<Item = &'a [Meter; MAX_METERS]>, new: &[Meter]) -> Vec<Meter> {
    let old: Vec<&Meter> = old.into_iter().flatten().collect();
    let is_relaxed = |new: &Meter| {
        old.iter().filter(|old| old.id == new.id).any(|old| {
            let units = [PACKETS, BYTES].into_iter();
            units
                .map(|unit| (old.rates[unit].tolerance, new.rates[unit].tolerance))
                .any(|(old, new)| new < old)
                || new.claims.tolerance < old.claims.tolerance
        })
    };
    new.iter().filter(|meter| meter.id != 0 && is_relaxed(meter)).copied().collect()
}

impl Kernel {
    /// Mends the buckets, crowd cells and budgets of these meters. Called once their policy is in force.
    pub(super) fn relax(&self, meters: &[Meter]) {
        if meters.is_empty() {
            return;
        }
        wait_for_packets_in_flight();
        for set in 0..self.buckets.len() {
            for way in 0..WAYS {
                let tag = self.tag(set, way);
                if tag == 0 {
                    continue;
                }
                // SAFETY: inside the mapping. A torn copy is caught by its tag below.
                let owner = unsafe { (*self.buckets.get(set)).descriptions[way] };
                let network = hash::network(&self.geometry, owner.network_high, owner.network_low);
                let Some(meter) = meters.iter().find(|meter| meter.id == owner.meter) else { continue };
                if hash::tag(network, meter.id) == tag {
                    for unit in [PACKETS, BYTES] {
                        let word = self.buckets.word(set, WAYS * (1 + unit) + way);
                        self.bring_near(word, meter.rates[unit].tolerance);
                    }
                }
            }
        }
        for meter in meters {
            let slot = meter.slot as usize % MAX_METERS;
            if meter.flags & METER_LONE != 0 {
                for unit in [PACKETS, BYTES] {
                    self.bring_near(self.budgets.word(slot, unit), meter.rates[unit].tolerance);
                }
                continue;
            }
            self.bring_near(self.budgets.word(slot, 0), meter.claims.tolerance);
            for cell in slot * CROWD_CELLS..(slot + 1) * CROWD_CELLS {
                for unit in [PACKETS, BYTES] {
                    self.bring_near(self.crowd.word(cell, unit), meter.rates[unit].tolerance);
                }
            }
        }
    }

    /// Brings a word back to that of an empty bucket. One that a packet of today's policy has written is never
    /// further ahead of a clock that is read after it.
    fn bring_near(&self, word: &AtomicU64, tolerance: u64) {
        let old = word.load(Ordering::SeqCst);
        let empty = self.now() + tolerance;
        let is_penalty = old & 1 == 1;
        if !is_penalty && old >> 1 > empty {
            // Who loses to a packet has lost to one that was let in, so the word was near already.
            let _ = word.compare_exchange(old, empty << 1, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// Returns when no packet can still be judged by what was in force before: packets are judged inside an RCU
/// read section, and this system call waits for all of those (Linux 4.3). `false` where the kernel refuses it: then a bucket
/// that is charged at this very moment may keep its old word until the next policy.
pub(super) fn wait_for_packets_in_flight() -> bool {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: a system call without memory operands.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use limiter_common::abi::{MAX_METERS, Meter, PACKETS};

    use super::relaxed;

    fn meter(id: u32, tolerance: u64) -> Meter {
        let mut meter = Meter { id, ..Meter::default() };
        meter.rates[PACKETS].tolerance = tolerance;
        meter
    }

    #[test]
    fn only_meters_that_fill_sooner_are_mended() {
        let policy = |meters: &[Meter]| {
            let mut policy = [Meter::default(); MAX_METERS];
            policy[..meters.len()].copy_from_slice(meters);
            policy
        };
        let old = policy(&[meter(1, 100), meter(2, 100), meter(3, 100), meter(0, 100)]);
        let fell_back = policy(&[meter(2, 200)]);
        let new = [meter(1, 99), meter(2, 100), meter(3, 101), meter(4, 1), meter(0, 0)];
        assert_eq!(relaxed([&old, &old], &new), [meter(1, 99)]);
        assert_eq!(relaxed([&fell_back, &old], &new), [meter(1, 99), meter(2, 100)]);
    }
}
