//! Penalties in the kernel: whom none may hit, and what becomes of them when the policy changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use aya::maps::HashMap;
use ipnet::IpNet;
use limiter_common::abi::{BYTES, HAS_PENALTIES, MAX_SAFE, PACKETS, PolicyTables, WAYS};
use limiter_common::hash;

use super::Kernel;
use super::load::refused;
use super::relax::wait_for_packets_in_flight;
use crate::datapath::{Datapath as _, Error, Refill};

const SAFE: &str = "SAFE";

/// A meter whose buckets are marked for less long than they were, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// [`limiter_common::abi::Meter::id`].
    meter: u32,
    /// Ticks a penalty lasts now, at most.
    time: u64,
}

/// What changes for the worse, for penalties, from policies that may have marked buckets to a new one.
pub fn released<'a>(old: impl IntoIterator<Item = &'a PolicyTables>, new: &PolicyTables) -> Vec<Released> {
    let now = times(new);
    let mut released: BTreeMap<u32, u64> = BTreeMap::new();
    for (meter, before) in old.into_iter().flat_map(times) {
        let time = now.get(&meter).copied().unwrap_or(0);
        if time < before {
            released.insert(meter, time);
        }
    }
    released.into_iter().map(|(meter, time)| Released { meter, time }).collect()
}

/// Ticks a penalty lasts by meter.
fn times(tables: &PolicyTables) -> BTreeMap<u32, u64> {
    if tables.header.flags & HAS_PENALTIES == 0 {
        return BTreeMap::new();
    }
    let of = |rule: &limiter_common::abi::Rule| {
        let penalty = tables.penalties.get(usize::from(rule.penalty)).filter(|_| rule.penalty != 0)?;
        Some((tables.meters.get(usize::from(penalty.meter))?.id, penalty.time))
    };
    tables.rules.iter().filter_map(of).collect()
}

impl Kernel {
    /// Takes back what is marked for longer than the policy in force says. Called once it is in force.
    pub(super) fn release(&self, released: &[Released]) {
        if released.is_empty() {
            return;
        }
        wait_for_packets_in_flight();
        self.each_live(|set, way, _| {
            // SAFETY: inside the mapping. A torn copy is caught by its tag below.
            let owner = unsafe { (*self.buckets.get(set)).descriptions[way] };
            let Some(released) = released.iter().find(|released| released.meter == owner.meter) else {
                return;
            };
            let network = hash::network(&self.geometry, owner.network_high, owner.network_low);
            if hash::tag(network, owner.meter) != self.tag(set, way) {
                return;
            }
            for unit in [PACKETS, BYTES] {
                let word = self.buckets.word(set, WAYS * (1 + unit) + way);
                let old = word.load(Ordering::SeqCst);
                let latest = self.now() + released.time;
                if old & 1 == 1 && old >> 1 > latest {
                    // Without a penalty the bucket is full; else the mark stays, for as long as it may.
                    let new = if released.time == 0 { 0 } else { latest << 1 | 1 };
                    // Whoever is quicker is a packet of a policy that knows no such mark.
                    let _ = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
                }
            }
        });
    }

    /// Makes these sources the ones that no penalty hits, and lifts the penalties of those that were none.
    pub(super) fn set_safe(&mut self, sources: &[IpNet]) -> Result<(), Error> {
        let mut wanted: BTreeMap<[u64; 2], IpNet> = BTreeMap::new();
        for source in sources {
            // The first are this host itself and its next hops.
            if wanted.len() < MAX_SAFE {
                wanted.insert(key(source), *source);
            }
        }
        let map = self
            .ebpf
            .map_mut(SAFE)
            .ok_or_else(|| Error::Refused { reason: format!("the object has no map `{SAFE}`") })?;
        let mut map = HashMap::<_, [u64; 2], u64>::try_from(map).map_err(refused)?;
        let held: BTreeSet<[u64; 2]> = map.keys().collect::<Result<_, _>>().map_err(refused)?;
        // First, to make room.
        for key in held.iter().filter(|key| !wanted.contains_key(*key)) {
            map.remove(key).map_err(refused)?;
        }
        let mut new = Vec::new();
        for (key, source) in wanted.iter().filter(|(key, _)| !held.contains(*key)) {
            map.insert(key, 0, 0).map_err(refused)?;
            new.push(*source);
        }
        if !new.is_empty() {
            self.refill_buckets(&new, Refill::Penalties);
        }
        Ok(())
    }
}

/// A masked source as the program has it: its upper and lower 64 bits, IPv4 as `::ffff:a.b.c.d`.
fn key(source: &IpNet) -> [u64; 2] {
    let bits = match source.network() {
        IpAddr::V4(address) => u128::from(address.to_ipv6_mapped()),
        IpAddr::V6(address) => u128::from(address),
    };
    [(bits >> 64) as u64, bits as u64]
}
