//! Buckets filled up by hand, or freed of their penalties.

use std::sync::atomic::{AtomicU64, Ordering};

use ipnet::IpNet;
use limiter_common::abi::{BYTES, PACKETS, WAYS};
use limiter_common::hash;

use super::Kernel;
use crate::datapath::{Bucket, Refill};

/// Tries against packets that charge the same word.
const TRIES: usize = 16;

impl Kernel {
    /// Fills the buckets of every source in a prefix; how many were not full.
    pub(super) fn refill_buckets(&self, prefix: &IpNet, what: Refill) -> u64 {
        let mut filled = 0;
        self.each_live(|set, way, words| {
            // SAFETY: inside the mapping. A torn copy is caught by its tag below.
            let description = unsafe { (*self.buckets.get(set)).descriptions[way] };
            let bucket = Bucket::new(&description, words);
            let is_inside = IpNet::new(bucket.network, bucket.width).is_ok_and(|net| prefix.contains(&net));
            if !is_inside {
                return;
            }
            let network = hash::network(&self.geometry, description.network_high, description.network_low);
            if hash::tag(network, description.meter) != self.tag(set, way) {
                return;
            }
            let units =
                [PACKETS, BYTES].map(|unit| fill(self.buckets.word(set, WAYS * (1 + unit) + way), what));
            filled += u64::from(units.contains(&true));
        });
        filled
    }
}

/// Makes a word that of a full bucket; whether it was another and is meant.
fn fill(word: &AtomicU64, what: Refill) -> bool {
    for _ in 0..TRIES {
        let old = word.load(Ordering::SeqCst);
        if old == 0 || (what == Refill::Penalties && old & 1 == 0) {
            return false;
        }
        if word.compare_exchange(old, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return true;
        }
    }
    false
}
