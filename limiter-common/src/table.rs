//! The bucket table: set-associative and expiry-aware.
//!
//! A bucket whose tat is not after now is full: forgetting it loses nothing, so its way is free. The table
//! only needs room for the sources that spent something lately, and no bucket is ever replaced by age, which
//! would hand an attacker a fresh burst.
//!
//! Nothing here locks. A tag says who owns a way; a claim is a compare-and-swap of the tag of a full bucket;
//! a charge is a compare-and-swap of the word. When two CPUs claim twins for one source, every charge goes
//! to the twin with the largest tat, and the other one expires unused.

use crate::abi::{BYTES, Description, Meter, PACKETS, Rate, WAYS};
use crate::bucket::{self, Refusal};

/// A 64-bit word shared between CPUs.
pub trait Word {
    fn load(&self) -> u64;
    /// Stores `new` if the word is `old`; whether it did.
    fn swap(&self, old: u64, new: u64) -> bool;
    /// Sets bits, whatever else is written meanwhile.
    fn insert(&self, bits: u64);
}

/// One set of eight ways, shared between CPUs. `way` is below [`WAYS`], `unit` below 2.
pub trait Set: Copy {
    type Word: Word;
    fn tag(&self, way: usize) -> Self::Word;
    fn word(&self, unit: usize, way: usize) -> Self::Word;
    fn description(&self, way: usize) -> Description;
    /// Makes the bucket a full one in `unit`.
    fn fill(&self, unit: usize, way: usize);
    fn describe(&self, way: usize, description: &Description);
    /// Adds to the passes, wrapping: `u64::MAX` takes one back.
    fn add_passed(&self, way: usize, packets: u64);
    fn add_dropped(&self, way: usize, packets: u64);
}

/// Tries of a compare-and-swap before a packet is dropped.
pub const TRIES: usize = 4;

/// The way a tag owns: the matching one with the largest tat in `unit`. `blur` as in the engine.
#[inline(always)]
pub fn find<S: Set>(set: S, tag: u64, unit: usize, blur: impl Fn(usize) -> usize) -> Option<usize> {
    // `WAYS` stands for none: an `Option` is two registers to the verifier, and it tries their every pairing.
    let mut best = WAYS;
    let mut largest = 0;
    for way in 0..WAYS {
        if set.tag(way).load() == tag {
            let word = set.word(unit, way).load();
            // Of equals the last: every CPU must choose alike.
            if word >= largest {
                best = blur(way);
                largest = word;
            }
        }
    }
    if best == WAYS { None } else { Some(best) }
}

/// Takes `cost` from a word, or says why there is no room. `awaken` is called before a full bucket becomes a live one,
/// `still_owned` asked after a lost race.
#[inline(always)]
pub fn charge<W: Word>(
    word: W,
    now: u64,
    cost: u64,
    rate: &Rate,
    awaken: impl Fn(),
    still_owned: impl Fn() -> bool,
) -> Charge {
    for _ in 0..TRIES {
        let old = word.load();
        match bucket::admit(old, now, cost, rate.tolerance) {
            Err(refusal) => return Charge::Refused(refusal),
            Ok(new) => {
                if bucket::is_full(old, now) {
                    awaken();
                }
                if word.swap(old, new) {
                    return Charge::Done;
                }
            }
        }
        if !still_owned() {
            return Charge::Lost;
        }
    }
    // So many others were served in the meantime that this packet may as well have been.
    Charge::Refused(Refusal::Over)
}

/// What became of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    Done,
    Refused(Refusal),
    /// The way has another owner now.
    Lost,
}

/// Gives back `cost`. A lost race is tried again; after that the source is left short, never over.
#[inline(always)]
pub fn refund<W: Word>(word: W, cost: u64) {
    for _ in 0..TRIES {
        let old = word.load();
        if word.swap(old, bucket::refund(old, cost)) {
            return;
        }
    }
}

/// What a claim did to the table. `usize` is the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A full bucket changed hands.
    Free(usize),
    /// A live bucket was evicted.
    Evicted(usize),
    /// Somebody claimed for the same tag meanwhile.
    Taken,
    /// Every try lost its race.
    Lost,
}

/// Makes `tag` the owner of a way of `set`. The caller looks again, by the rule of [`find`], before it
/// charges.
///
/// The stale words of a full bucket are in the past, hence already full: nothing to initialise. Only when
/// every way is live is one evicted: the one nearest to full in proportion to what it holds. Its new owner
/// gets room for one packet of that `cost` by unit, and no more. Without `with_bytes` no
/// limit reads the words in bytes, and the line they are in is not waited for: the claimed one is made full.
#[inline(always)]
pub fn claim<S: Set>(
    set: S,
    tag: u64,
    now: u64,
    meter: &Meter,
    cost: impl Fn(usize) -> u64,
    with_bytes: bool,
    blur: impl Fn(usize) -> usize,
) -> Claim {
    for _ in 0..TRIES {
        let mut victim = 0;
        let mut least = u64::MAX;
        let mut victim_tag = 0;
        for way in 0..WAYS {
            let owner = set.tag(way).load();
            if owner == tag {
                return Claim::Taken;
            }
            let packets = set.word(PACKETS, way).load();
            let bytes = if with_bytes { set.word(BYTES, way).load() } else { 0 };
            let debt = bucket::debt(if packets > bytes { packets } else { bytes }, now);
            // Full ways come before all others; among live ones the scale is read only then.
            let weight = if debt == 0 { 0 } else { 1 + (debt >> (set.description(way).scale & 63)) };
            if weight < least {
                least = weight;
                victim = blur(way);
                victim_tag = owner;
            }
        }
        if set.tag(victim).swap(victim_tag, tag) {
            if !with_bytes {
                set.fill(BYTES, victim);
            }
            if least == 0 {
                return Claim::Free(victim);
            }
            for unit in [PACKETS, BYTES] {
                let word = set.word(unit, victim);
                let old = word.load();
                // A lost race means a charge of the old owner: one unit, the stated slack.
                word.swap(old, bucket::inherit(old, now, cost(unit), meter.rates[unit & 1].tolerance));
            }
            return Claim::Evicted(victim);
        }
    }
    Claim::Lost
}
