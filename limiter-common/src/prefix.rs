//! From a source address to its set class: the read side of the prefix image.
//!
//! The policy compiler turns all sets into one sorted list of *boundaries* per family: addresses at which the
//! class changes, each with the class from there on. A look-up is a search for the last boundary that is not
//! above the address. How many sets hold the address, how deep prefixes nest, does not matter.
//!
//! Boundaries live in *rows* of [`crate::abi::ROW_BYTES`], numbers in native byte order.
//!
//! **IPv4.** `index[address >> 16]` describes one /16:
//!
//! | bits | meaning |
//! |---|---|
//! | 0…31 | number of the first entry of this /16, counted over all rows from row 0 |
//! | 32…55 | how many entries it has; 0 = the whole /16 is of one class |
//! | 56…63 | class at the start of the /16 |
//!
//! An entry is a `u32`, 256 to a row: bits 16…31 are the lower half of the address at which a class begins
//! (never 0), bits 0…7 that class. Most addresses are decided by the index alone; the others by a binary
//! search of at most 16 probes, two or three on real lists.
//!
//! **IPv6.** A static B+ tree whose nodes are rows of 64 keys, each two `u64` (high, low). Level 0 is the root,
//! one row; `header.v6_levels` names the first row of each level. Position `p` in row `r` of a level leads to
//! row `64 × r + p` of the next (rows counted from the level's first), and on the last level it is the number
//! of the boundary, whose class is a byte in the rows from `header.v6_classes` on, 1024 to a row. The first
//! boundary is `::`, the last is the highest address, and unused keys have that same value: the search looks
//! for the address before it and takes one step more, so padding is never taken for a boundary.

use crate::abi::{Header, Row};

/// Keys of one node of the IPv6 tree.
pub const V6_KEYS: u32 = 64;
/// Entries of one row of IPv4 boundaries.
pub const V4_ENTRIES: u32 = 256;
/// Levels of the IPv6 tree: 64⁴ boundaries are more than enough.
pub const V6_LEVELS: usize = 4;

/// The rows of a prefix image.
pub trait Rows {
    type Row: Numbers;

    /// A row, or `None` where there is none. In the kernel this is a call, so a search asks once for each row it reads.
    fn row(&self, row: u32) -> Option<Self::Row>;

    /// Hides from a static analysis what a number may be. The kernel's verifier would otherwise follow every
    /// way through the tree as a case of its own.
    #[inline(always)]
    fn blur(&self, number: u32) -> u32 {
        number
    }
}

/// The numbers in a row.
pub trait Numbers: Copy {
    /// `index` in `0..256`.
    fn u32_at(self, index: u32) -> u32;
    /// `index` in `0..128`.
    fn u64_at(self, index: u32) -> u64;
    /// `index` in `0..1024`.
    fn u8_at(self, index: u32) -> u8;
}

impl Numbers for &Row {
    fn u32_at(self, index: u32) -> u32 {
        let (numbers, _) = self.0.as_chunks();
        numbers.get(index as usize).copied().map_or(0, u32::from_ne_bytes)
    }

    fn u64_at(self, index: u32) -> u64 {
        let (numbers, _) = self.0.as_chunks();
        numbers.get(index as usize).copied().map_or(0, u64::from_ne_bytes)
    }

    fn u8_at(self, index: u32) -> u8 {
        self.0.get(index as usize).copied().unwrap_or(0)
    }
}

/// A whole image in memory, as the compiler makes it.
impl<'a> Rows for &'a [Row] {
    type Row = &'a Row;

    fn row(&self, row: u32) -> Option<&'a Row> {
        self.get(row as usize)
    }
}

/// Set class of an IPv4 source whose whole /16 is of one class, `address` in host order.
#[inline(always)]
pub fn v4_uniform(index: &[u64; 65536], address: u32) -> Option<u8> {
    let block = index[(address >> 16) as usize];
    if block << 8 >> 40 == 0 { Some((block >> 56) as u8) } else { None }
}

/// Set class of an IPv4 source, `address` in host order.
#[inline(always)]
pub fn v4_class(index: &[u64; 65536], rows: &impl Rows, address: u32) -> u8 {
    let block = index[(address >> 16) as usize];
    let class = (block >> 56) as u8;
    let count = (block >> 32) as u32 & 0x00ff_ffff;
    if count == 0 {
        return class;
    }
    let target = address & 0xffff;
    let start = block as u32;
    let mut row = start / V4_ENTRIES;
    let mut high = start % V4_ENTRIES + count;
    let mut low = start % V4_ENTRIES;
    if count > V4_ENTRIES {
        // Whole rows: the last one that begins at or below the address, or the first. 8 halvings exhaust 256 rows.
        let mut first = 0;
        let mut last = (count - 1) / V4_ENTRIES;
        for _ in 0..8 {
            if first >= last {
                break;
            }
            let middle = (first + last).wrapping_add(1) / 2;
            let begins = rows.row(row.wrapping_add(middle)).map_or(0, |entries| entries.u32_at(0));
            if begins >> 16 <= target {
                first = rows.blur(middle);
            } else {
                last = rows.blur(middle.wrapping_sub(1));
            }
        }
        row = row.wrapping_add(first);
        let left = count.wrapping_sub(first.wrapping_mul(V4_ENTRIES));
        high = if left < V4_ENTRIES { left } else { V4_ENTRIES };
        low = 0;
    }
    let Some(entries) = rows.row(row) else { return class };
    // The entries before `low` begin at or below the address, those from `high` on above it.
    let mut found = u32::from(class);
    // 9 halvings exhaust a row.
    for _ in 0..9 {
        if low >= high {
            break;
        }
        let middle = low.wrapping_add(high) / 2;
        let entry = entries.u32_at(middle & (V4_ENTRIES - 1));
        if entry >> 16 <= target {
            found = entry;
            low = rows.blur(middle.wrapping_add(1));
        } else {
            high = rows.blur(middle);
        }
    }
    found as u8
}

/// Set class of an IPv6 source, given as its upper and lower 64 bits in host order.
///
/// IPv4 sources carried in IPv6 are looked up with [`v4_class`].
#[inline(always)]
pub fn v6_class(header: &Header, rows: &impl Rows, high: u64, low: u64) -> u8 {
    if header.v6_depth == 0 {
        return 0;
    }
    let highest = high == u64::MAX && low == u64::MAX;
    let low = if highest { low.wrapping_sub(1) } else { low };
    let mut position = 0u32;
    for level in 0..V6_LEVELS {
        if level as u32 >= header.v6_depth {
            break;
        }
        let Some(row) = rows.row(header.v6_levels[level].wrapping_add(position)) else { return 0 };
        // The first key of a node on the way is never above the address, so six halvings find the last such.
        let mut slot = 0u32;
        let mut step = V6_KEYS / 2;
        for _ in 0..6 {
            let probe = slot + step;
            let key_high = row.u64_at(probe * 2);
            if key_high < high || (key_high == high && row.u64_at(probe * 2 + 1) <= low) {
                slot = rows.blur(probe);
            }
            step /= 2;
        }
        position = position.wrapping_mul(V6_KEYS).wrapping_add(slot);
    }
    let boundary = position.wrapping_add(u32::from(highest));
    let classes = rows.row(header.v6_classes.wrapping_add(boundary / 1024));
    classes.map_or(0, |classes| classes.u8_at(boundary % 1024))
}
