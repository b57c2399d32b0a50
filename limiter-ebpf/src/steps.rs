//! The larger steps of judgement as global functions: the verifier walks each once, by its signature, however
//! often it is called. Inlined, eight meters with their races are more paths than it is willing to follow.
//!
//! Each takes the policy slot and finds the tables again: a look-up the kernel inlines to a few instructions.

use limiter_common::{
    abi::{POLICY_SLOTS, PolicyTables},
    ban,
    judge::{self, Key, Place},
    packet::Packet,
    penalty,
};

use crate::{engine::Kernel, maps};

/// The engine, the tables and the packet of a step; `None` never happens, but the verifier cannot know.
#[inline(always)]
fn open<'a>(slot: u32, packet: *const Packet) -> Option<(Kernel, &'a PolicyTables, &'a Packet)> {
    let slot = slot & (POLICY_SLOTS as u32 - 1);
    let tables = maps::POLICIES.get(slot)?;
    // SAFETY: every caller passes a reference.
    let packet = unsafe { packet.as_ref() }?;
    // Steps that look for bans are told of them.
    Some((Kernel { slot, bans: 0, unknown: packet.source_low as u32 }, tables, packet))
}

#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn limiter_set_class(slot: u32, packet: *const Packet) -> u64 {
    let Some((engine, tables, packet)) = open(slot, packet) else { return 0 };
    u64::from(judge::set_class(engine, tables, packet))
}

#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn limiter_ban_refuses(slot: u32, packet: *const Packet, bans: u32) -> u64 {
    let Some((engine, tables, packet)) = open(slot, packet) else { return 0 };
    u64::from(ban::refuses(Kernel { bans, ..engine }, tables, packet))
}

#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn limiter_limit(slot: u32, packet: *const Packet, rule: u32) -> u64 {
    let Some((engine, tables, packet)) = open(slot, packet) else { return 0 };
    judge::limit(engine, tables, packet, rule as u16).0
}

#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn limiter_look(slot: u32, packet: *const Packet, now: u64, meter: u32) -> u64 {
    let Some((engine, tables, packet)) = open(slot, packet) else { return 0 };
    judge::look(engine, tables, packet, now, meter as u16).0
}

/// Meter and unit of a key in one argument; the tag is another.
#[inline(always)]
pub fn pack(key: Key) -> u32 {
    u32::from(key.meter) | (key.unit as u32) << 16
}

#[inline(always)]
fn unpack(packed: u32, tag: u64) -> Key {
    Key { meter: packed as u16, unit: (packed >> 16 & 1) as usize, tag }
}

#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn limiter_charge_unit(slot: u32, packet: *const Packet, now: u64, key: u32, tag: u64) -> u64 {
    let Some((engine, tables, packet)) = open(slot, packet) else { return 0 };
    judge::charge_unit(engine, tables, packet, now, unpack(key, tag)).0
}

#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn limiter_claim(slot: u32, packet: *const Packet, now: u64, key: u32, tag: u64) -> u64 {
    let Some((engine, tables, packet)) = open(slot, packet) else { return 0 };
    judge::claim(engine, tables, packet, now, unpack(key, tag)).0
}

#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn limiter_refuses_newcomer(slot: u32, packet: *const Packet, now: u64, meter: u32) -> u64 {
    let Some((engine, tables, packet)) = open(slot, packet) else { return 0 };
    u64::from(judge::refuses_newcomer(engine, tables, packet, now, meter as u16))
}

#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn limiter_give_back(slot: u32, packet: *const Packet, meter: u32, crowd: u32) -> u64 {
    let Some((engine, tables, packet)) = open(slot, packet) else { return 0 };
    judge::give_back(engine, tables, packet, meter as u16, crowd);
    0
}

/// `ruled`: the rule, and in the upper half the meter that refused.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn limiter_strike(slot: u32, packet: *const Packet, ruled: u32, place: u32) -> u64 {
    let Some((engine, tables, packet)) = open(slot, packet) else { return 0 };
    let (rule, meter) = (ruled as u16, (ruled >> 16) as u16);
    u64::from(penalty::strike(engine, tables, packet, rule, meter, Place::from_bits(place)))
}
