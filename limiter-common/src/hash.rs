//! The keyed hash of a source and of a source under one meter.
//!
//! Two keyed rounds, not one: with one, or with `(x ^ seed) × odd`, differences pass through whatever the
//! key is, and an attacker can collide at will. The seed is random and never leaves the host.

use crate::abi::Geometry;

/// The table's keys and size: [`Geometry`] on the host, constants of the loaded program in the kernel.
pub trait Keys: Copy {
    /// Key `index`, 0…3.
    fn seed(self, index: usize) -> u64;
    /// Sets of the table: a power of two.
    fn sets(self) -> u32;
}

impl Keys for &Geometry {
    fn seed(self, index: usize) -> u64 {
        self.seed[index]
    }

    fn sets(self) -> u32 {
        self.sets
    }
}

/// One round: an invertible mixing of 64 bits. Constant and shifts of the `rrmxmx` family of mixers.
#[inline(always)]
fn round(value: u64) -> u64 {
    let value = value ^ (value >> 32);
    let value = value.wrapping_mul(0x9fb2_1c65_1e98_df25);
    value ^ (value >> 28)
}

/// Hash of a masked source: 128 bits of network, an IPv4 one as `::ffff:a.b.c.d`.
#[inline(always)]
pub fn network<K: Keys>(keys: K, high: u64, low: u64) -> u64 {
    if high == 0 {
        // IPv4, and what little of IPv6 has 64 zero bits in front: the low half is what varies.
        return round(round(low ^ keys.seed(0)) ^ keys.seed(1));
    }
    let mut hash = round(high ^ keys.seed(2)) ^ keys.seed(3);
    if low != 0 {
        hash = round(hash ^ low) ^ keys.seed(0);
    }
    round(hash)
}

/// Tag of a network's bucket under a meter: names it in the table and chooses its set. Never 0.
#[inline(always)]
pub fn tag(network_hash: u64, meter_id: u32) -> u64 {
    let spread = u64::from(meter_id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let tag = round(network_hash ^ spread);
    if tag == 0 { 1 } else { tag }
}

/// Set of a tag.
#[inline(always)]
pub fn set_index<K: Keys>(keys: K, tag: u64) -> u32 {
    (tag >> 32) as u32 & keys.sets().wrapping_sub(1)
}
