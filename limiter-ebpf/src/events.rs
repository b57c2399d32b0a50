//! Tells user space of a packet, through the ring.
//!
//! A global function, so that judgement's own frame on the stack does not grow and the verifier walks it once. Nobody
//! is woken: who watches looks by himself, and a flood pays for no interrupt.

use aya_ebpf::{
    bindings::{BPF_RB_NO_WAKEUP, xdp_md},
    helpers::generated::bpf_ktime_get_ns,
};
use limiter_common::{
    abi::{MAX_RULES, PolicyTables},
    event::{self, Event, NOT_OBSERVED},
    judge::Ruling,
    packet::Packet,
    parse::Frame as _,
};

use crate::{atomic::Shared, context::XdpFrame, engine::Kernel, maps};

/// Tells of a ruling, within the budget of events.
#[inline(always)]
pub fn tell<const MULTI_BUFFER: bool>(
    context: *mut xdp_md,
    tables: &PolicyTables,
    packet: &Packet,
    ruling: &Ruling,
) {
    let packed = pack(tables, ruling);
    if MULTI_BUFFER {
        limiter_tell_frags(context, packet, packed);
    } else {
        limiter_tell(context, packet, packed);
    }
}

/// Counter slots and outcomes of a ruling in one argument.
#[inline(always)]
pub fn pack(tables: &PolicyTables, ruling: &Ruling) -> u64 {
    let observed = if ruling.observing == 0 { NOT_OBSERVED } else { ruling.observed as u8 };
    let counter = |rule: u16| u64::from(tables.rules[usize::from(rule) & (MAX_RULES - 1)].counter);
    counter(ruling.rule)
        | counter(ruling.observing) << 16
        | u64::from(ruling.outcome as u8) << 32
        | u64::from(observed) << 40
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_tell(context: *mut xdp_md, packet: *const Packet, ruling: u64) -> u64 {
    record(XdpFrame::<false>(context), packet, ruling).map_or(1, |()| 0)
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_tell_frags(context: *mut xdp_md, packet: *const Packet, ruling: u64) -> u64 {
    record(XdpFrame::<true>(context), packet, ruling).map_or(1, |()| 0)
}

#[inline(always)]
fn record<const MULTI_BUFFER: bool>(
    frame: XdpFrame<MULTI_BUFFER>,
    packet: *const Packet,
    ruling: u64,
) -> Option<()> {
    // SAFETY: every caller passes a reference.
    let packet = unsafe { packet.as_ref() }?;
    let (rule, observing) = (ruling as u16, (ruling >> 16) as u16);
    let (outcome, observed) = ((ruling >> 32) as u8, (ruling >> 40) as u8);
    let share = event::share_of((rule, outcome), (observing, observed));
    // It only looks at a budget and a clock.
    let engine = Kernel { slot: 0, bans: 0, unknown: packet.length };
    // SAFETY: a live map value.
    let share = maps::EVENT_SHARES.get_ptr_mut(share).map(|word| unsafe { Shared::new(word) });
    if !event::is_affordable(engine, share) {
        return lost();
    }
    let Some(mut event) = maps::EVENTS.reserve_untyped::<Event>(0) else { return lost() };
    let place = event.as_mut_ptr();
    // SAFETY: the kernel has just handed out memory for one event. Field by field: the stack is short.
    unsafe {
        (*place).time = bpf_ktime_get_ns();
        (*place).source_high = packet.source_high;
        (*place).source_low = packet.source_low;
        (*place).interface = frame.interface();
        (*place).length = packet.length;
        (*place).frame_length = frame.length();
        (*place).destination = packet.destination;
        (*place).source_port = packet.source_port;
        (*place).rule = rule;
        (*place).observing = observing;
        (*place).outcome = outcome;
        (*place).observed = observed;
        (*place).family = packet.family as u8;
        (*place).kind = packet.kind as u8;
        (*place).captured = frame.copy_start((&raw mut (*place).frame).cast());
    }
    event.submit(u64::from(BPF_RB_NO_WAKEUP));
    Some(())
}

#[inline(always)]
fn lost() -> Option<()> {
    let lost = maps::EVENTS_LOST.get_ptr_mut(0)?;
    // SAFETY: a live per-CPU map value; nothing else runs on this CPU meanwhile.
    unsafe { *lost += 1 };
    None
}
