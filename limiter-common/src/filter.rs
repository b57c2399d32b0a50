//! Which tags may have a live bucket: a filter small enough for a CPU's own cache.
//!
//! A source without a bucket, which is what a forged flood is made of, would cost a look into the table, and that is
//! a miss of every cache. The filter says for most of them that there is nothing to look for.
//!
//! **No live bucket is ever missing from it**: whoever takes a bucket from full to live inserts its tag first. Nothing
//! takes tags out but the daemon, which clears and refills it when it has become dense. That is why there are two
//! copies, the halves of each word, and a tag counts as present when either has it: the daemon clears one
//! copy, waits for packets in flight, inserts the tags of all live buckets, and then does the same to the other. A
//! daemon that dies in between leaves one whole copy. Without a daemon the filter grows dense, and costs what the
//! table did without it.

use crate::abi::{FILTER_BITS, WAYS};
use crate::hash::Keys;
use crate::table::Word;

/// Lines of the filter of a table: a bit a way.
pub const fn lines(sets: u32) -> u32 {
    let lines = sets / (FILTER_BITS / WAYS as u32);
    if lines == 0 { 1 } else { lines }
}

/// Where a tag's bit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line of the filter.
    pub line: u32,
    /// Word of the line, below 8.
    pub word: usize,
    /// The tag's bit in either copy.
    pub bits: u64,
}

/// Uses the low bits of the tag; the set is chosen by the high ones.
#[inline(always)]
pub fn place<K: Keys>(keys: K, tag: u64) -> Place {
    Place {
        line: (tag >> 8) as u32 & lines(keys.sets()).wrapping_sub(1),
        word: (tag >> 5) as usize & 7,
        bits: (1 | 1 << 32) << (tag & 31),
    }
}

/// Whether either copy has the tag.
#[inline(always)]
pub fn contains<W: Word>(word: &W, bits: u64) -> bool {
    word.load() & bits != 0
}

/// Puts the tag into both copies.
#[inline(always)]
pub fn insert<W: Word>(word: &W, bits: u64) {
    // Mostly it is there, and a look does not take the line from the other CPUs.
    if word.load() & bits != bits {
        word.insert(bits);
    }
}

/// Bits of one copy, 0 or 1, in every word.
pub const fn copy_mask(copy: usize) -> u64 {
    if copy == 0 { 0xffff_ffff } else { 0xffff_ffff << 32 }
}
