//! Keeping the filter thin: see [`limiter_common::filter`].

use std::sync::atomic::Ordering;

use limiter_common::abi::FILTER_BITS;
use limiter_common::filter;

use super::Kernel;
use super::relax::wait_for_packets_in_flight;

/// Bits of a copy before a refill is worth the walk through the table: one in so many.
const DENSE: usize = 8;

impl Kernel {
    /// Clears and refills the filter when it holds many tags of buckets that are full again.
    pub(super) fn thin_filter(&mut self) -> bool {
        let capacity = self.filter.len() * FILTER_BITS as usize;
        let present: u32 = (0..self.filter.len()).map(|line| self.bits(line, 0)).sum();
        if present as usize <= 2 * self.live_in_filter + capacity / DENSE {
            return false;
        }
        for copy in [0, 1] {
            for line in 0..self.filter.len() {
                for word in 0..4 {
                    self.filter.word(line, copy * 4 + word).store(0, Ordering::SeqCst);
                }
            }
            // A packet that inserted its tag just before may not have charged its bucket yet.
            if !wait_for_packets_in_flight() {
                // The other copy is whole. This one has to be, before that one may ever be cleared.
                tracing::debug!("the kernel does not wait for packets: the filter stays as dense as it is");
                self.fill_from_other(copy);
                return false;
            }
            let mut live = 0;
            self.each_live(|set, way, _| {
                live += 1;
                let place = filter::place(&self.geometry, self.tag(set, way));
                let word = self.filter.word(place.line as usize, copy * 4 + place.word);
                word.fetch_or(place.bit, Ordering::SeqCst);
            });
            self.live_in_filter = live;
        }
        true
    }

    fn bits(&self, line: usize, copy: usize) -> u32 {
        (0..4).map(|word| self.filter.word(line, copy * 4 + word).load(Ordering::Relaxed).count_ones()).sum()
    }

    fn fill_from_other(&self, copy: usize) {
        for line in 0..self.filter.len() {
            for word in 0..4 {
                let bits = self.filter.word(line, (1 - copy) * 4 + word).load(Ordering::SeqCst);
                self.filter.word(line, copy * 4 + word).fetch_or(bits, Ordering::SeqCst);
            }
        }
    }
}
