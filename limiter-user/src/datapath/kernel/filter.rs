//! Keeping the filter thin: see [`limiter_common::filter`].

use std::sync::atomic::{AtomicU64, Ordering};

use limiter_common::abi::FILTER_BITS;
use limiter_common::filter;

use super::Kernel;
use super::relax::wait_for_packets_in_flight;

/// Bits of a copy before a refill is worth the walk through the table: one in so many.
const DENSE: usize = 8;

impl Kernel {
    /// Clears and refills the filter when it holds many tags of buckets that are full again; whether it did.
    pub(super) fn thin_filter(&mut self) -> bool {
        let capacity = self.filter.len() * FILTER_BITS as usize;
        let present: u32 =
            self.words().map(|word| word.load(Ordering::Relaxed) as u32).map(u32::count_ones).sum();
        if present as usize <= 2 * self.live_in_filter + capacity / DENSE {
            return false;
        }
        for copy in [0, 1] {
            let other = filter::copy_mask(1 - copy);
            for word in self.words() {
                word.fetch_and(other, Ordering::SeqCst);
            }
            // A packet that inserted its tag just before may not have charged its bucket yet.
            if !wait_for_packets_in_flight() {
                tracing::debug!("the kernel does not wait for packets: the filter stays as dense as it is");
                // The other copy is whole, and this one has to be before that one may ever be cleared.
                for word in self.words() {
                    word.fetch_or(word.load(Ordering::SeqCst).rotate_left(32), Ordering::SeqCst);
                }
                return false;
            }
            let mut live = 0;
            self.each_live(|set, way, _| {
                live += 1;
                let place = filter::place(&self.geometry, self.tag(set, way));
                let word = self.filter.word(place.line as usize, place.word);
                word.fetch_or(place.bits & !other, Ordering::SeqCst);
            });
            self.live_in_filter = live;
        }
        true
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        (0..self.filter.len()).flat_map(move |line| (0..8).map(move |word| self.filter.word(line, word)))
    }
}
