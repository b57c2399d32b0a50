//! What the program reads before anything else: which policy judges, until when it waits to be confirmed, and
//! until when nothing is dropped. Deadlines are on the kernel's clock and judged by the program, so none of them
//! needs a daemon to pass.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use limiter_common::abi::{Control, POLICY_SLOTS};

use super::mapped::Mapped;

/// The map's one value. `now` is [`crate::datapath::Datapath::now`] everywhere.
pub struct Selector(pub Mapped<Control>);

impl Selector {
    fn active(&self) -> &AtomicU32 {
        // SAFETY: a field of the map's one value, aligned, and alive as long as the mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.0.get(0)).active) }
    }

    fn fallback(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.0.get(0)).fallback) }
    }

    fn confirm_until(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.0.get(0)).confirm_until) }
    }

    fn paused_until(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.0.get(0)).paused_until) }
    }

    /// Tells which kinds of bans there are.
    pub fn set_bans(&self, kinds: u32) {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.0.get(0)).bans) }.store(kinds, Ordering::SeqCst);
    }

    /// Which kinds of bans there are.
    pub fn bans(&self) -> u32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.0.get(0)).bans) }.load(Ordering::SeqCst)
    }

    /// The slot packets are judged by.
    pub fn slot(&self, now: u64) -> u32 {
        let until = self.confirm_until().load(Ordering::SeqCst);
        let has_fallen_back = until != 0 && now >= until;
        let slot = if has_fallen_back { self.fallback() } else { self.active() };
        slot.load(Ordering::SeqCst) % POLICY_SLOTS as u32
    }

    /// The slot in force unless it fell back.
    pub fn candidate(&self) -> u32 {
        self.active().load(Ordering::SeqCst) % POLICY_SLOTS as u32
    }

    /// The slot that comes back, if any does.
    pub fn waiting(&self) -> u32 {
        self.fallback().load(Ordering::SeqCst) % POLICY_SLOTS as u32
    }

    /// A slot no packet can come to read: neither in force nor waiting to be again.
    pub fn free(&self, now: u64) -> u32 {
        let waiting = self.pending(now).map(|_| self.fallback().load(Ordering::SeqCst));
        let slots = POLICY_SLOTS as u32;
        let after = |slot: u32| (slot + 1) % slots;
        let next = after(self.slot(now));
        if Some(next) == waiting { after(next) } else { next }
    }

    /// Ticks left to confirm the policy in force.
    pub fn pending(&self, now: u64) -> Option<u64> {
        let until = self.confirm_until().load(Ordering::SeqCst);
        (until > now).then(|| until - now)
    }

    /// Puts a slot in force; it falls back to the one before at `until`, if that is not 0.
    pub fn put_in_force(&self, slot: u32, until: u64) {
        if until != 0 {
            self.fallback().store(self.candidate(), Ordering::SeqCst);
            self.confirm_until().store(until, Ordering::SeqCst);
        }
        self.active().store(slot, Ordering::SeqCst);
    }

    /// Keeps the policy in force. False when that comes too late, or nothing waits.
    pub fn confirm(&self, now: u64) -> bool {
        let in_time = self.pending(now).is_some();
        if in_time {
            self.confirm_until().store(0, Ordering::SeqCst);
        }
        in_time
    }

    /// Writes down a fall back that time has decided. Changes nothing for packets.
    pub fn settle(&self, now: u64) {
        let until = self.confirm_until().load(Ordering::SeqCst);
        if until != 0 && now >= until {
            self.fall_back();
        }
    }

    /// Falls back at once, if anything waits. The program reads the deadline first: who sees it gone sees the
    /// slot moved.
    pub fn fall_back(&self) {
        if self.confirm_until().load(Ordering::SeqCst) != 0 {
            self.active().store(self.fallback().load(Ordering::SeqCst), Ordering::SeqCst);
            self.confirm_until().store(0, Ordering::SeqCst);
        }
    }

    /// Drops are told of until then; 0 = no longer.
    pub fn watch(&self, until: u64) {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.0.get(0)).watched_until) }
            .store(until, Ordering::SeqCst);
    }

    /// Drops nothing until then; 0 = drops again.
    pub fn pause(&self, until: u64) {
        self.paused_until().store(until, Ordering::SeqCst);
    }

    /// Ticks left of a pause.
    pub fn paused(&self, now: u64) -> Option<u64> {
        let until = self.paused_until().load(Ordering::SeqCst);
        (until > now).then(|| until - now)
    }
}
