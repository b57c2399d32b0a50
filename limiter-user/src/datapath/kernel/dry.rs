//! What the next packet would get: the program's own judgement on the program's own memory, where every write stays in
//! a copy.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapData;
use limiter_common::abi::{Ban, BucketSet, Description, Geometry, POLICY_SLOTS, Row, WAYS};
use limiter_common::bucket;
use limiter_common::hash::Keys;
use limiter_common::judge::Engine;
use limiter_common::packet::Packet;
use limiter_common::table::{Set, Word};

use super::Kernel;
use super::bans::BanMaps;
use super::clock::Clock;
use super::load::{self, refused};
use super::mapped::Mapped;
use crate::datapath::{Error, Explanation, Way};

impl Kernel {
    /// What the program's coarse clock says at this moment. The kernel's own is no stand-in: it may be a tick behind.
    fn coarse_now(&self) -> Result<u64, Error> {
        let clock = match self.clock.get() {
            Some(clock) => clock,
            None => {
                let clock = Clock::load()?;
                self.clock.get_or_init(|| clock)
            }
        };
        let Geometry { jiffies, jiffy, .. } = self.geometry;
        Ok(bucket::coarse_ticks(clock.read()?.jiffies, jiffies, jiffy))
    }

    /// See [`crate::datapath::Datapath::explain`].
    pub(super) fn judge_dry(&self, packet: &Packet, way: &Way) -> Result<Option<Explanation>, Error> {
        let header = self.header();
        let slot = self.slot() as usize % POLICY_SLOTS;
        let (true, Some(image)) = (header.abi != 0, self.images[slot].as_ref()) else { return Ok(None) };
        let image = match header.sealed_row {
            0 => None,
            rows => {
                let mapped = Mapped::<Row>::new(image.fd(), rows);
                Some(mapped.map_err(|error| Error::io("map a prefix image", error))?)
            }
        };
        // SAFETY: rows and tables of a policy in force are never written, and this one stays in its slot until
        // another is published, for which `self` would have to be borrowed again.
        let (rows, tables) = unsafe {
            let rows: &[Row] = image
                .as_ref()
                .map_or(&[], |image| std::slice::from_raw_parts(image.get(0), header.sealed_row as usize));
            (rows, &*self.policies.get(slot))
        };
        let precise = bucket::ticks(load::monotonic_ns(), self.geometry.epoch);
        let now = [self.coarse_now()?, precise];
        let bans = self.ban_maps()?;
        let proven = Proven::try_from(self.map("PROVEN")?).map_err(refused)?;
        let copy =
            || Copy { kernel: self, rows, bans: &bans, proven: &proven, now, written: RefCell::default() };
        Ok(Some(Explanation::of(&copy(), &copy(), tables, packet, way)))
    }
}

/// Sources that have completed a TCP handshake.
type Proven<'a> = aya::maps::HashMap<&'a MapData, [u64; 2], u32>;

/// The kernel's memory, and by address the words that were written since.
struct Copy<'a> {
    kernel: &'a Kernel,
    rows: &'a [Row],
    bans: &'a BanMaps<'a>,
    proven: &'a Proven<'a>,
    /// By the coarse clock and the precise one.
    now: [u64; 2],
    written: RefCell<HashMap<usize, u64>>,
}

impl Keys for &Copy<'_> {
    fn seed(self, index: usize) -> u64 {
        self.kernel.geometry.seed[index]
    }

    fn sets(self) -> u32 {
        self.kernel.geometry.sets
    }
}

impl<'a> Engine for &'a Copy<'a> {
    type Set = SetCopy<'a>;
    type Word = WordCopy<'a>;
    type Rows = &'a [Row];

    fn now(self, coarse: bool) -> u64 {
        self.now[usize::from(!coarse)]
    }

    fn set(self, index: u32) -> Option<SetCopy<'a>> {
        let index = index as usize;
        (index < self.kernel.buckets.len()).then_some(SetCopy { copy: self, index })
    }

    fn crowd(self, cell: u32, unit: usize) -> Option<WordCopy<'a>> {
        self.word(&self.kernel.crowd, cell, unit)
    }

    fn lone(self, index: u32, word: usize) -> Option<WordCopy<'a>> {
        self.word(&self.kernel.budgets, index, word)
    }

    fn filter(self, line: u32, word: usize) -> Option<WordCopy<'a>> {
        self.word(&self.kernel.filter, line, word)
    }

    fn rows(self) -> &'a [Row] {
        self.rows
    }

    fn bans(self) -> u32 {
        self.kernel.selector.bans()
    }

    fn ban_of_source(self, key: [u64; 2]) -> Option<Ban> {
        self.bans.of_source(key)
    }

    fn ban_of_prefix(self, high: u64, low: u64) -> Option<Ban> {
        self.bans.of_prefix(high, low)
    }

    fn is_proven(self, key: [u64; 2]) -> bool {
        self.proven.get(&key, 0).is_ok()
    }

    fn evicted(self) {}

    // Strikes are counted behind the judgement, so of one packet they decide nothing.

    fn strikes(self, _: u32, _: usize) -> Option<WordCopy<'a>> {
        None
    }

    fn is_safe(self, _: [u64; 2]) -> bool {
        false
    }
}

impl<'a> Copy<'a> {
    fn word<T>(&'a self, map: &'a Mapped<T>, index: u32, word: usize) -> Option<WordCopy<'a>> {
        let index = index as usize;
        (index < map.len()).then(|| WordCopy { copy: self, word: map.word(index, word) })
    }
}

struct WordCopy<'a> {
    copy: &'a Copy<'a>,
    word: &'a AtomicU64,
}

impl WordCopy<'_> {
    fn store(&self, value: u64) {
        self.copy.written.borrow_mut().insert(self.word.as_ptr() as usize, value);
    }
}

impl Word for WordCopy<'_> {
    fn load(&self) -> u64 {
        let written = self.copy.written.borrow().get(&(self.word.as_ptr() as usize)).copied();
        written.unwrap_or_else(|| self.word.load(Ordering::Relaxed))
    }

    fn swap(&self, old: u64, new: u64) -> bool {
        let same = self.load() == old;
        if same {
            self.store(new);
        }
        same
    }

    fn insert(&self, bits: u64) {
        self.store(self.load() | bits);
    }
}

#[derive(Clone, Copy)]
struct SetCopy<'a> {
    copy: &'a Copy<'a>,
    index: usize,
}

impl<'a> SetCopy<'a> {
    fn buckets(&self) -> &'a Mapped<BucketSet> {
        &self.copy.kernel.buckets
    }

    fn at(&self, word: usize) -> WordCopy<'a> {
        WordCopy { copy: self.copy, word: self.buckets().word(self.index, word) }
    }
}

impl<'a> Set for SetCopy<'a> {
    type Word = WordCopy<'a>;

    fn tag(&self, way: usize) -> WordCopy<'a> {
        self.at(way % WAYS)
    }

    fn word(&self, unit: usize, way: usize) -> WordCopy<'a> {
        self.at(WAYS * (1 + unit % 2) + way % WAYS)
    }

    fn description(&self, way: usize) -> Description {
        // SAFETY: inside the mapping. It may be torn; who shows one says what the table said.
        unsafe { (*self.buckets().get(self.index)).descriptions[way % WAYS] }
    }

    fn fill(&self, unit: usize, way: usize) {
        self.word(unit, way).store(0);
    }

    // Descriptions decide nothing that one packet could notice.

    fn describe(&self, _: usize, _: &Description) {}

    fn add_passed(&self, _: usize, _: u64) {}

    fn add_dropped(&self, _: usize, _: u64) {}
}
