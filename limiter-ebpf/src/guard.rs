//! One packet from its frame to its counted verdict.

use aya_ebpf::bindings::xdp_md;
use limiter_common::{
    abi::{FAMILIES, HAS_PLACES, MAX_RULES, POLICY_SLOTS, PolicyTables},
    event,
    judge::{self, Place, Ruling},
    packet::Packet,
    parse, penalty,
    verdict::{OUTCOMES, Outcome},
};

use crate::{
    context::XdpFrame,
    engine::{Kernel, coarse_now},
    events, maps, proof, steps,
    verifier::{blur, opaque},
};

/// One drop in so many is added to the bucket that refused: an exact counter there would make every drop a
/// write to memory the CPUs share.
const SAMPLE: u64 = 32;

/// Judges and counts one packet.
///
/// `None` only when the maps hold no policy, which a loaded program never sees: the loader publishes one
/// before it attaches.
#[inline(always)]
pub fn guard<const MULTI_BUFFER: bool>(context: *mut xdp_md) -> Option<Ruling> {
    guard_then::<MULTI_BUFFER>(context, |_, _, _| ())
}

/// The same, and then something else about the packet.
#[inline(always)]
pub fn guard_then<const MULTI_BUFFER: bool>(
    context: *mut xdp_md,
    then: impl FnOnce(&PolicyTables, &Packet, &Ruling),
) -> Option<Ruling> {
    let mut packet = Packet::UNKNOWN;
    let frame = XdpFrame::<MULTI_BUFFER>(context);
    parse::parse_into(&frame, &mut packet);
    let (slot, bans) = selected()?;
    let tables = maps::POLICIES.get(slot)?;
    if tables.header.flags & HAS_PLACES != 0 {
        packet.place = frame.place(slot);
    }
    let engine = Kernel { slot, bans, unknown: packet.length };
    let ruling = judge::judge(engine, tables, &mut packet);
    // Else each of the ways through judgement would be walked to the end by itself.
    let ruling = Ruling {
        outcome: hide(ruling.outcome, packet.length),
        observed: hide(ruling.observed, packet.length),
        ..ruling
    };
    if ruling.observing != 0 {
        count(tables, &packet, ruling.observing, ruling.observed);
    }
    let counted = count(tables, &packet, ruling.rule, ruling.outcome);
    if ruling.refused_by != Place::NONE && counted.is_multiple_of(SAMPLE) {
        judge::sample_drop(engine, tables, &packet, &ruling, SAMPLE);
    }
    if event::is_told(&ruling) && is_watched() {
        events::tell::<MULTI_BUFFER>(context, tables, &packet, &ruling);
    }
    if penalty::is_strike(tables, &ruling)
        && (!penalty::asks_for_proof(tables, ruling.rule) || proof::proves::<MULTI_BUFFER>(context))
    {
        let ruled = u32::from(ruling.rule) | u32::from(ruling.refused_meter) << 16;
        steps::limiter_strike(slot, &packet, ruled, ruling.refused_by.bits());
    }
    then(tables, &packet, &ruling);
    Some(ruling)
}

/// The policy slot in force, and which kinds of bans there are. The slot is read once: whatever changes meanwhile,
/// one whole policy judges this packet.
#[inline(always)]
fn selected() -> Option<(u32, u32)> {
    let control = maps::CONTROL.get_ptr(0)?;
    // SAFETY: a live map value. Volatile, so that each is read once, the deadline first: whoever ends the wait
    // moves the selector before it takes the deadline away.
    let slot = unsafe {
        let until = core::ptr::read_volatile(&raw const (*control).confirm_until);
        let active = core::ptr::read_volatile(&raw const (*control).active);
        if until != 0 && coarse_now() >= until {
            core::ptr::read_volatile(&raw const (*control).fallback)
        } else {
            active
        }
    };
    // SAFETY: as above.
    let bans = unsafe { core::ptr::read_volatile(&raw const (*control).bans) };
    Some((slot & (POLICY_SLOTS as u32 - 1), bans))
}

/// Whether what is to be dropped passes now. The clock is the kernel's, so a pause ends without the daemon.
#[inline(always)]
pub fn is_paused() -> bool {
    let Some(control) = maps::CONTROL.get_ptr(0) else { return false };
    // SAFETY: a live map value.
    let until = unsafe { core::ptr::read_volatile(&raw const (*control).paused_until) };
    until != 0 && coarse_now() < until
}

/// Whether somebody watches what is dropped. Ends by itself when the daemon does not say so again.
#[inline(always)]
fn is_watched() -> bool {
    let Some(control) = maps::CONTROL.get_ptr(0) else { return false };
    // SAFETY: a live map value.
    let until = unsafe { core::ptr::read_volatile(&raw const (*control).watched_until) };
    until != 0 && coarse_now() < until
}

/// Hides from the verifier which outcome it is.
#[inline(always)]
fn hide(outcome: Outcome, unknown: u32) -> Outcome {
    let number = blur(outcome as usize, unknown) as u8;
    // SAFETY: the number is what it was.
    unsafe { core::mem::transmute::<u8, Outcome>(number) }
}

/// Adds to this CPU's counters; packets counted there so far.
#[inline(always)]
fn count(tables: &PolicyTables, packet: &Packet, rule: u16, outcome: Outcome) -> u64 {
    let rule = &tables.rules[usize::from(rule) & (MAX_RULES - 1)];
    let Some(counters) = maps::COUNTERS.get_ptr_mut(u32::from(rule.counter)) else { return 1 };
    let index = opaque((outcome as usize * FAMILIES + packet.family as usize) as u64) as usize;
    if index >= OUTCOMES * FAMILIES {
        return 1;
    }
    // SAFETY: a live per-CPU map value, the index is inside it, and nothing else runs on this CPU meanwhile.
    unsafe {
        let counter = counters.cast::<limiter_common::abi::Counter>().add(index);
        (*counter).packets += 1;
        (*counter).bytes += u64::from(packet.length);
        (*counter).packets
    }
}
