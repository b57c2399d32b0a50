//! Judgement's machine in the kernel: maps and clocks.

use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_ns};
use limiter_common::{
    abi::{Ban, BucketSet, Description, PolicyTables, Row, WAYS},
    bucket,
    hash::Keys,
    judge::{Answer, Engine, Key, Limited},
    packet::Packet,
    prefix::{Numbers, Rows},
    table::Set,
};

use crate::{atomic::Shared, maps, maps::BanPrefix, steps, verifier};

/// Keys of the hash, size of the table and start of its time: set when the program is loaded.
#[unsafe(no_mangle)]
pub static SEED: [u64; 4] = [0; 4];
#[unsafe(no_mangle)]
pub static SETS: u32 = 1;
#[unsafe(no_mangle)]
pub static EPOCH: u64 = 0;
/// The tick counter at the epoch, and its period.
#[unsafe(no_mangle)]
pub static JIFFIES: u64 = 0;
#[unsafe(no_mangle)]
pub static JIFFY: u64 = 0;

/// Reads a constant that the loader has set; a plain read would be folded to what stands above.
#[inline(always)]
pub fn loaded<T: Copy>(constant: &'static T) -> T {
    // SAFETY: a reference is always valid to read.
    unsafe { core::ptr::read_volatile(constant) }
}

/// The coarse clock, in ticks of 1/64 ns since the epoch. A load in the compiled program, where the helper of
/// the kernel's own coarse clock is a call.
#[inline(always)]
pub fn coarse_now() -> u64 {
    // SAFETY: a helper without arguments.
    bucket::coarse_ticks(unsafe { bpf_jiffies64() }, loaded(&JIFFIES), loaded(&JIFFY))
}

/// The kernel's machine, with the policy slot of the packet under judgement.
#[derive(Clone, Copy)]
pub struct Kernel {
    pub slot: u32,
    /// Which kinds of bans there are.
    pub bans: u32,
    /// Anything the verifier knows nothing of, see [`verifier::blur`].
    pub unknown: u32,
}

impl Keys for Kernel {
    #[inline(always)]
    fn seed(self, index: usize) -> u64 {
        match index {
            0 => loaded(&SEED[0]),
            1 => loaded(&SEED[1]),
            2 => loaded(&SEED[2]),
            _ => loaded(&SEED[3]),
        }
    }

    #[inline(always)]
    fn sets(self) -> u32 {
        loaded(&SETS)
    }
}

impl Engine for Kernel {
    type Set = KernelSet;
    type Word = Shared;
    type Rows = SlotRows;

    #[inline(always)]
    fn now(self, coarse: bool) -> u64 {
        if coarse {
            coarse_now()
        } else {
            // SAFETY: a helper without arguments.
            bucket::ticks(unsafe { bpf_ktime_get_ns() }, loaded(&EPOCH))
        }
    }

    #[inline(always)]
    fn set(self, index: u32) -> Option<KernelSet> {
        maps::BUCKETS.get_ptr_mut(index).map(KernelSet)
    }

    #[inline(always)]
    fn crowd(self, cell: u32, unit: usize) -> Option<Shared> {
        let cell = maps::CROWD.get_ptr_mut(cell)?;
        // SAFETY: a live map value; `unit & 1` is inside its two words.
        Some(unsafe { Shared::new((&raw mut (*cell).words).cast::<u64>().add(unit & 1)) })
    }

    #[inline(always)]
    fn lone(self, index: u32, word: usize) -> Option<Shared> {
        let line = maps::BUDGETS.get_ptr_mut(index)?;
        // SAFETY: a live map value of eight words; the masked index is inside it.
        Some(unsafe { Shared::new(line.cast::<u64>().add(word & 7)) })
    }

    #[inline(always)]
    fn filter(self, line: u32, word: usize) -> Option<Shared> {
        let line = maps::FILTER.get_ptr_mut(line)?;
        // SAFETY: a live map value of eight words; the masked index is inside it.
        Some(unsafe { Shared::new(line.cast::<u64>().add(word & 7)) })
    }

    #[inline(always)]
    fn rows(self) -> SlotRows {
        SlotRows(self)
    }

    #[inline(always)]
    fn bans(self) -> u32 {
        self.bans
    }

    #[inline(always)]
    fn ban_of_source(self, key: [u64; 2]) -> Option<Ban> {
        // SAFETY: a live map value. It may change while it is read: each of its fields is of some ban of late.
        unsafe { maps::BANS.get(key) }.copied()
    }

    #[inline(always)]
    fn ban_of_prefix(self, high: u64, low: u64) -> Option<Ban> {
        let address = [high.to_be(), low.to_be()];
        maps::BAN_PREFIXES.get(&BanPrefix::new(128, address)).copied()
    }

    #[inline(always)]
    fn is_proven(self, key: [u64; 2]) -> bool {
        maps::PROVEN.get_ptr(key).is_some()
    }

    #[inline(always)]
    fn evicted(self) {
        if let Some(pressure) = maps::PRESSURE.get_ptr_mut(0) {
            // SAFETY: a live per-CPU map value; nothing else runs on this CPU meanwhile.
            unsafe { *pressure += 1 };
        }
    }

    #[inline(always)]
    fn strikes(self, set: u32, way: usize) -> Option<Shared> {
        let line = maps::STRIKES.get_ptr_mut(set)?;
        // SAFETY: a live map value of eight words; the masked index is inside it.
        Some(unsafe { Shared::new(line.cast::<u64>().add(way & (WAYS - 1))) })
    }

    #[inline(always)]
    fn is_safe(self, network: [u64; 2]) -> bool {
        // SAFETY: nothing is read of the value.
        unsafe { maps::SAFE.get(network) }.is_some()
    }

    #[inline(always)]
    fn blur(self, number: usize) -> usize {
        verifier::blur(number, self.unknown)
    }

    #[inline(always)]
    fn opaque(self, number: usize) -> usize {
        verifier::opaque(number as u64) as usize
    }

    #[inline(always)]
    fn set_class(self, _: &PolicyTables, packet: &Packet) -> u8 {
        verifier::opaque(steps::limiter_set_class(self.slot, packet)) as u8
    }

    #[inline(always)]
    fn ban_refuses(self, _: &PolicyTables, packet: &Packet) -> bool {
        verifier::opaque(steps::limiter_ban_refuses(self.slot, packet, self.bans)) != 0
    }

    #[inline(always)]
    fn limit(self, _: &PolicyTables, packet: &Packet, rule: u16) -> Limited {
        Limited(verifier::opaque(steps::limiter_limit(self.slot, packet, u32::from(rule))))
    }

    #[inline(always)]
    fn look(self, _: &PolicyTables, packet: &Packet, now: u64, meter: u16) -> Answer {
        Answer(verifier::opaque(steps::limiter_look(self.slot, packet, now, u32::from(meter))))
    }

    #[inline(always)]
    fn charge_unit(self, _: &PolicyTables, packet: &Packet, now: u64, key: Key) -> Answer {
        Answer(verifier::opaque(steps::limiter_charge_unit(
            self.slot,
            packet,
            now,
            steps::pack(key),
            key.tag,
        )))
    }

    #[inline(always)]
    fn claim(self, _: &PolicyTables, packet: &Packet, now: u64, key: Key) -> Answer {
        Answer(verifier::opaque(steps::limiter_claim(self.slot, packet, now, steps::pack(key), key.tag)))
    }

    #[inline(always)]
    fn refuses_newcomer(self, _: &PolicyTables, packet: &Packet, now: u64, meter: u16) -> bool {
        verifier::opaque(steps::limiter_refuses_newcomer(self.slot, packet, now, u32::from(meter))) != 0
    }

    #[inline(always)]
    fn give_back(self, _: &PolicyTables, packet: &Packet, meter: u16, crowd: u32) {
        steps::limiter_give_back(self.slot, packet, u32::from(meter), crowd);
    }
}

/// A set of the bucket table. Every access derives from one base and a masked index, which is the shape the
/// verifier follows without losing the bound.
#[derive(Clone, Copy)]
pub struct KernelSet(*mut BucketSet);

impl Set for KernelSet {
    type Word = Shared;

    #[inline(always)]
    fn tag(&self, way: usize) -> Shared {
        // SAFETY: a live map value; the masked index is inside its array.
        unsafe { Shared::new((&raw mut (*self.0).tags).cast::<u64>().add(way & (WAYS - 1))) }
    }

    #[inline(always)]
    fn word(&self, unit: usize, way: usize) -> Shared {
        // SAFETY: a live map value; the masked index is inside its array.
        unsafe {
            Shared::new((&raw mut (*self.0).words).cast::<u64>().add((unit & 1) * WAYS + (way & (WAYS - 1))))
        }
    }

    #[inline(always)]
    fn description(&self, way: usize) -> Description {
        // SAFETY: a live map value, masked index. Torn reads are expected: who reads one checks it.
        unsafe { core::ptr::read_volatile(self.description_at(way)) }
    }

    #[inline(always)]
    fn fill(&self, unit: usize, way: usize) {
        self.word(unit, way).store(0);
    }

    #[inline(always)]
    fn describe(&self, way: usize, description: &Description) {
        // SAFETY: as above; readers recompute the tag and skip what does not match.
        // Field by field: a copy of the whole would be made on the stack, which is short.
        unsafe {
            let place = self.description_at(way);
            core::ptr::write_volatile(&raw mut (*place).network_high, description.network_high);
            core::ptr::write_volatile(&raw mut (*place).network_low, description.network_low);
            core::ptr::write_volatile(&raw mut (*place).dropped, description.dropped);
            core::ptr::write_volatile(&raw mut (*place).passed, description.passed);
            core::ptr::write_volatile(&raw mut (*place).meter, description.meter);
            core::ptr::write_volatile(&raw mut (*place).scale, description.scale);
            core::ptr::write_volatile(&raw mut (*place).width, description.width);
        }
    }

    #[inline(always)]
    fn add_passed(&self, way: usize, packets: u64) {
        // SAFETY: a live map value, masked index.
        unsafe { Shared::new(&raw mut (*self.description_at(way)).passed) }.add(packets);
    }

    #[inline(always)]
    fn add_dropped(&self, way: usize, packets: u64) {
        // SAFETY: a live map value, masked index.
        unsafe { Shared::new(&raw mut (*self.description_at(way)).dropped) }.add(packets);
    }
}

impl KernelSet {
    #[inline(always)]
    fn description_at(&self, way: usize) -> *mut Description {
        // SAFETY: a live map value; the masked index is inside its array.
        unsafe { (&raw mut (*self.0).descriptions).cast::<Description>().add(way & (WAYS - 1)) }
    }
}

/// The prefix rows of one policy slot.
#[derive(Clone, Copy)]
pub struct SlotRows(Kernel);

impl Rows for SlotRows {
    type Row = KernelRow;

    #[inline(always)]
    fn row(&self, row: u32) -> Option<KernelRow> {
        maps::PREFIXES.get_value(self.0.slot, &row).map(|row| KernelRow(row))
    }

    #[inline(always)]
    fn blur(&self, number: u32) -> u32 {
        self.0.blur(number as usize) as u32
    }
}

/// A row: a live map value of 1024 bytes, aligned to 8. Every index is masked to lie inside.
#[derive(Clone, Copy)]
pub struct KernelRow(*const Row);

impl Numbers for KernelRow {
    #[inline(always)]
    fn u32_at(self, index: u32) -> u32 {
        // SAFETY: see the type.
        unsafe { self.0.cast::<u32>().add(index as usize & 255).read() }
    }

    #[inline(always)]
    fn u64_at(self, index: u32) -> u64 {
        // SAFETY: see the type.
        unsafe { self.0.cast::<u64>().add(index as usize & 127).read() }
    }

    #[inline(always)]
    fn u8_at(self, index: u32) -> u8 {
        // SAFETY: see the type.
        unsafe { self.0.cast::<u8>().add(index as usize & 1023).read() }
    }
}
