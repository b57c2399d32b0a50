//! Buckets filled up by hand, or freed of their penalties.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use ipnet::IpNet;
use limiter_common::abi::{BYTES, PACKETS, WAYS};
use limiter_common::hash;

use super::Kernel;
use crate::datapath::{Bucket, Refill};

/// Tries against packets that charge the same word.
const TRIES: usize = 16;

impl Kernel {
    /// Fills the buckets of every source in one of the prefixes; how many were not full. One walk through the table,
    /// however many prefixes there are.
    pub(super) fn refill_buckets(&self, prefixes: &[IpNet], what: Refill) -> u64 {
        let inside = Inside::new(prefixes);
        let mut filled = 0;
        self.each_live(|set, way, words| {
            // SAFETY: inside the mapping. A torn copy is caught by its tag below.
            let description = unsafe { (*self.buckets.get(set)).descriptions[way] };
            let bucket = Bucket::new(&description, words);
            let is_inside = IpNet::new(bucket.network, bucket.width).is_ok_and(|net| inside.holds(&net));
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

/// Prefixes that are asked by length, so that many cost little more than one.
struct Inside {
    prefixes: HashSet<IpNet>,
    lengths: BTreeSet<u8>,
}

impl Inside {
    fn new(prefixes: &[IpNet]) -> Self {
        let prefixes: HashSet<IpNet> = prefixes.iter().map(IpNet::trunc).collect();
        let lengths = prefixes.iter().map(IpNet::prefix_len).collect();
        Self { prefixes, lengths }
    }

    fn holds(&self, net: &IpNet) -> bool {
        let mut around = self
            .lengths
            .range(..=net.prefix_len())
            .filter_map(|length| IpNet::new(net.addr(), *length).ok().map(|around| around.trunc()));
        around.any(|around| self.prefixes.contains(&around))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_inside_by_any_length() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let inside = Inside::new(&["203.0.113.9/32", "198.51.100.0/24", "2001:db8:1::/48"].map(net));
        for (source, expected) in [
            ("203.0.113.9/32", true),
            ("203.0.113.8/32", false),
            ("203.0.113.0/24", false),
            ("198.51.100.7/32", true),
            ("198.51.0.0/16", false),
            ("2001:db8:1:2::/64", true),
            ("2001:db8:2::/64", false),
        ] {
            assert_eq!(inside.holds(&net(source)), expected, "{source}");
        }
        assert!(Inside::new(&[net("0.0.0.0/0")]).holds(&net("192.0.2.1/32")));
        assert!(!Inside::new(&[net("::/0")]).holds(&net("192.0.2.1/32")));
    }
}
