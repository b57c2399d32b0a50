//! Bans: sources refused until a time, whatever they send.
//!
//! A ban of one source, an IPv4 address or an IPv6 /64, is found by one exact look-up; other prefixes by a search for
//! the longest one, made only when there are any. A packet from an IPv4 source carried in IPv6 is asked for under both
//! of its addresses: neither the carrier nor the carried one is a way round.
//!
//! Only rules of the lifeline judge before a ban. Which bans they may be about is marked in the ban, so a packet is
//! classified for them only then.

use crate::abi::{
    BAN_LIFELINE, BANS_OF_PREFIXES, BANS_OF_SOURCES, Ban, FOREVER, PolicyTables, RULE_BEFORE_BANS,
};
use crate::judge::{self, Engine};
use crate::packet::{Family, Packet, V4_PREFIX_LOW};

/// A ban was found, and it is in force.
const BANNED: u32 = 1 << 31;

/// The key of a source's own ban: of an IPv4 address all its bits, as `::ffff:a.b.c.d`, of an IPv6 address the
/// upper 64.
#[inline(always)]
pub fn source_key(high: u64, low: u64) -> [u64; 2] {
    if high == 0 && low >> 32 == V4_PREFIX_LOW >> 32 { [high, low] } else { [high, 0] }
}

impl Ban {
    /// Whether it refuses anything at `now`.
    #[inline(always)]
    pub fn is_in_force(&self, now: u64) -> bool {
        self.until == FOREVER || now < self.until
    }
}

/// Whether a ban refuses the packet, whose source is still as it was on the wire.
#[inline(always)]
pub fn refuses<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet) -> bool {
    let now = engine.now(true);
    let mut found = find(engine, packet.source_high, packet.source_low, now);
    let mut uncovered = *packet;
    if packet.family == Family::V6 {
        judge::uncover_source(tables, &mut uncovered);
        if uncovered.source_low != packet.source_low || uncovered.source_high != packet.source_high {
            found |= find(engine, uncovered.source_high, uncovered.source_low, now);
        }
    }
    found != 0 && (found & BAN_LIFELINE == 0 || !is_of_the_lifeline(engine, tables, &uncovered))
}

/// [`BANNED`] and the flags of the bans in force at an address; 0 when there is none.
#[inline(always)]
fn find<E: Engine>(engine: E, high: u64, low: u64, now: u64) -> u32 {
    let mut found = 0;
    if engine.bans() & BANS_OF_SOURCES != 0
        && let Some(ban) = engine.ban_of_source(source_key(high, low))
        && ban.is_in_force(now)
    {
        found |= BANNED | ban.flags;
    }
    if engine.bans() & BANS_OF_PREFIXES != 0
        && let Some(ban) = engine.ban_of_prefix(high, low)
        && ban.is_in_force(now)
    {
        found |= BANNED | ban.flags;
    }
    found
}

/// Whether the rule that decides on the packet judges before bans. `packet` has its source uncovered.
#[inline(always)]
fn is_of_the_lifeline<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet) -> bool {
    let class = judge::class_of(engine, tables, packet);
    let service = judge::service(engine, tables, packet);
    let rule = tables.cells[usize::from(class)][usize::from(service)].enforcing;
    rule != 0 && judge::rule_at(tables, rule).flags & RULE_BEFORE_BANS != 0
}
