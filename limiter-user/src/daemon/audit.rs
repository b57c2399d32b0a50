//! The limiter checks its own promise: what a bucket admitted between two looks is at most
//! `burst + rate × time`, with the slacks that are stated for it.
//!
//! A look reads the clock before the table, the next one after it, so the time between is never taken for shorter
//! than it was. Passed over is what cannot be judged: a bucket that changed its owner, one that is in the table
//! twice, one whose numbers changed meanwhile (a policy, an override, a fall back), and limits in bytes alone, since
//! buckets count packets.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use limiter_common::abi::{Meter, PACKETS};

use super::core::Core;
use super::prepare::InForce;
use super::sources::show_network;
use crate::datapath::Bucket;

/// Time between two looks.
pub const PERIOD: Duration = Duration::from_secs(10);

/// Buckets watched at one time.
const MOST: usize = 1000;

type Key = (IpAddr, u8, u32);

/// What was seen, and what came of it since this daemon started.
#[derive(Default)]
pub struct Audit {
    seen: HashMap<Key, u64>,
    /// Time before the last look.
    at: u64,
    /// What was in force at the last look.
    policy: Option<Arc<InForce>>,
    /// The next look begins at another place of the table.
    turn: u64,
    pub checked: u64,
    pub violations: u64,
    /// The last violation, in words.
    pub last: Option<String>,
}

impl Core {
    /// One look at up to 1000 buckets.
    pub fn audit_buckets(&mut self) {
        let (Some(datapath), Some(in_force)) = (&self.datapath, &self.in_force) else { return };
        let Some(reading) = &in_force.reading else { return };
        let audit = &mut self.audit;
        let before = datapath.now();
        let is_same = audit.policy.as_ref().is_some_and(|policy| Arc::ptr_eq(policy, in_force));
        let watched = if is_same { std::mem::take(&mut audit.seen) } else { HashMap::new() };
        let mut found: HashMap<Key, u64> = HashMap::with_capacity(MOST);
        let mut twice: HashSet<Key> = HashSet::new();
        audit.turn = audit.turn.wrapping_add(1);
        let turn = audit.turn;
        let read = datapath.buckets(&mut |bucket| {
            let key = (bucket.network, bucket.width, bucket.meter);
            if !watched.contains_key(&key) && (found.len() >= MOST || !is_its_turn(&bucket, turn)) {
                return;
            }
            if found.insert(key, bucket.passed).is_some() {
                twice.insert(key);
            }
        });
        if read.is_err() {
            return;
        }
        let after = datapath.now();
        found.retain(|key, _| !twice.contains(key));
        let slack = slack_packets();
        for (key, passed) in &found {
            let Some(passed_before) = watched.get(key) else { continue };
            let Some((info, meter)) = reading.meters.get(&key.2) else { continue };
            let (Some(admitted), Some(bound)) = (
                passed.checked_sub(*passed_before),
                bound(meter, after.saturating_sub(audit.at), datapath.facts().tick_ns, slack),
            ) else {
                continue;
            };
            audit.checked += 1;
            if u128::from(admitted) > bound {
                audit.violations += 1;
                let text = format!(
                    "{} was admitted {admitted} packets by rule `{}` where {bound} are the most",
                    show_network(key.0, key.1),
                    info.rules.first().map_or("", String::as_str),
                );
                tracing::error!(violation = text, "self-audit");
                audit.last = Some(text);
            }
        }
        // Watched ones make room for others after a second look.
        found.retain(|key, _| !watched.contains_key(key));
        audit.seen = found;
        audit.at = before;
        audit.policy = Some(Arc::clone(in_force));
    }
}

/// Large tables are looked at in parts, another at each turn.
fn is_its_turn(bucket: &Bucket, turn: u64) -> bool {
    let low = match bucket.network {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    };
    // Any mixing will do: a quarter of all sources at each turn.
    (low.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62) == turn % 4
}

/// Packets a bucket may admit in so many ticks of 1/64 ns; `None` for a limit in bytes alone.
fn bound(meter: &Meter, elapsed: u64, tick_ns: u64, slack: u64) -> Option<u128> {
    let rate = &meter.rates[PACKETS];
    if rate.multiplier == 0 {
        return None;
    }
    // The coarse clock stands still for up to a tick.
    let time = u128::from(rate.tolerance) + u128::from(elapsed) + u128::from(tick_ns) * 64;
    Some((time << rate.shift) / u128::from(rate.multiplier) + u128::from(slack))
}

/// One unit a CPU for a change of a way's owner, and one a CPU for a packet that was charged and not yet counted.
fn slack_packets() -> u64 {
    2 * std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

#[cfg(test)]
mod tests {
    use limiter_common::abi::Rate;

    use super::*;

    #[test]
    fn the_bound_is_burst_and_rate_and_the_stated_slacks() {
        let mut meter = Meter::default();
        assert_eq!(bound(&meter, 1, 4_000_000, 0), None);
        // 50/s, burst 100: 20 ms or 1 280 000 000 ticks a packet.
        let multiplier = 1_280_000_000;
        meter.rates[PACKETS] =
            Rate { multiplier, tolerance: 100 * multiplier, burst: 100, ..Rate::default() };
        let second = 64_000_000_000;
        assert_eq!(bound(&meter, 10 * second, 0, 0), Some(600));
        assert_eq!(bound(&meter, 10 * second, 20_000_000, 3), Some(604));
    }
}
