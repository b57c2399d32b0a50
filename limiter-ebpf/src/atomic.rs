//! Words shared between CPUs.
//!
//! The bpf target declares no atomics, so the compare-and-swap comes from an intrinsic (kernel ≥ 5.12, with
//! `-Ctarget-cpu=v3`). An atomic load fails in instruction selection, a volatile one is the same machine
//! instruction. The result of a relaxed `fetch_*` is miscompiled: none is used here.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_or, atomic_xadd};

use limiter_common::table::Word;

/// A word in a map value.
#[derive(Clone, Copy)]
pub struct Shared(*mut u64);

impl Shared {
    /// # Safety
    /// `word` points into a map value and is aligned.
    #[inline(always)]
    pub unsafe fn new(word: *mut u64) -> Self {
        Self(word)
    }

    /// Stores, whatever is there now.
    #[inline(always)]
    pub fn store(self, new: u64) {
        // SAFETY: `new` was promised a live, aligned word.
        unsafe { core::ptr::write_volatile(self.0, new) };
    }

    /// Adds without telling what was there.
    #[inline(always)]
    pub fn add(self, amount: u64) {
        // SAFETY: `new` was promised a live, aligned word.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(self.0, amount) };
    }
}

impl Word for Shared {
    #[inline(always)]
    fn load(&self) -> u64 {
        // SAFETY: `new` was promised a live, aligned word.
        unsafe { core::ptr::read_volatile(self.0) }
    }

    #[inline(always)]
    fn swap(&self, old: u64, new: u64) -> bool {
        // SAFETY: `new` was promised a live, aligned word.
        let (_, swapped) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(self.0, old, new)
        };
        swapped
    }

    #[inline(always)]
    fn insert(&self, bits: u64) {
        // SAFETY: `new` was promised a live, aligned word.
        unsafe { atomic_or::<u64, u64, { AtomicOrdering::SeqCst }>(self.0, bits) };
    }
}
