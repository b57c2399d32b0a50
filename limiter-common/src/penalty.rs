//! Penalties: a source whose own limit had to refuse it too often is refused for a time, by the bucket itself.
//!
//! Each drop by the rule's own limit per source is a **strike**, counted exactly beside the bucket in a word of its own,
//! itself a token bucket of `after` strikes that refills in `within`. The strike that finds it empty puts the bucket's
//! arrival time `now + for` ahead and marks it, so that a penalised source is refused by a plain read, which writes
//! nothing. The mark reaches no further than that bucket, hence than its rule.
//!
//! Counted is what the source did itself: never what an aggregate, a crowd cell, a budget of newcomers or an observing
//! rule refused. A safelisted source is never marked, and of the ways of a set at most half are, so that marks leave
//! room for others.
//!
//! **Strike word**: bits 63…16 are the arrival time in ticks of 1/64 ns, bits 15…0 some of the owner's tag: what another
//! owner of the way left there is no strike of this one.

use crate::abi::{BYTES, HAS_PENALTIES, MAX_PENALTIES, PACKETS, PENALTY_PROOF, Penalty, PolicyTables, WAYS};
use crate::judge::{self, Engine, Place, Ruling};
use crate::packet::Packet;
use crate::table::{Set, TRIES, Word};
use crate::verdict::Outcome;

/// Bits of a strike word that say whose it is; strikes are counted in multiples of it.
pub const OWNER: u64 = 0xffff;

/// Whether a ruling is a strike under its rule's penalty.
#[inline(always)]
pub fn is_strike(tables: &PolicyTables, ruling: &Ruling) -> bool {
    tables.header.flags & HAS_PENALTIES != 0
        && ruling.outcome == Outcome::DropOver
        && judge::rule_at(tables, ruling.rule).penalty != 0
}

/// Whether a strike of the rule must be a packet of a connection, which nobody can forge who is not on its path.
#[inline(always)]
pub fn asks_for_proof(tables: &PolicyTables, rule: u16) -> bool {
    of_rule(tables, rule).flags & PENALTY_PROOF != 0
}

/// The penalty of a rule.
#[inline(always)]
pub fn of_rule(tables: &PolicyTables, rule: u16) -> &Penalty {
    &tables.penalties[usize::from(judge::rule_at(tables, rule).penalty) & (MAX_PENALTIES - 1)]
}

/// Counts a strike of a rule's penalty, given the meter and the bucket that refused, and penalises the source when it
/// was one too many. Whether it was.
#[inline(always)]
pub fn strike<E: Engine>(
    engine: E,
    tables: &PolicyTables,
    packet: &Packet,
    rule: u16,
    refused_meter: u16,
    refused_by: Place,
) -> bool {
    let penalty = of_rule(tables, rule);
    let Some((set_index, way)) = refused_by.as_way() else { return false };
    if refused_meter != penalty.meter {
        return false;
    }
    let meter = judge::meter_at(tables, refused_meter);
    let tag = judge::tag(engine, meter, packet);
    let Some(set) = engine.set(set_index) else { return false };
    let now = engine.now(true);
    let Some(strikes) = engine.strikes(set_index, way) else { return false };
    if set.tag(way).load() != tag
        || has_room(&strikes, now, tag, penalty)
        || is_safe(engine, tables, packet, refused_meter)
    {
        return false;
    }
    // A meter with both charges bytes first.
    let unit = if meter.rates[BYTES].multiplier != 0 { BYTES } else { PACKETS };
    mark(engine, set, way, unit, tag, now, penalty.time)
}

/// Takes a strike from what is left of them. False when nothing is.
#[inline(always)]
fn has_room<W: Word>(strikes: &W, now: u64, tag: u64, penalty: &Penalty) -> bool {
    let now = now & !OWNER;
    for _ in 0..TRIES {
        let old = strikes.load();
        let tat = old & !OWNER;
        // Further ahead than a spent one can be is what an older policy counted.
        let is_own = old & OWNER == tag & OWNER && tat <= now + penalty.tolerance;
        let base = if is_own && tat > now { tat } else { now };
        let next = base + penalty.cost;
        if next - now > penalty.tolerance {
            return false;
        }
        if strikes.swap(old, next | tag & OWNER) {
            return true;
        }
    }
    // Others were quicker so many times that one strike less is counted.
    true
}

#[inline(always)]
fn is_safe<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet, meter: u16) -> bool {
    let class = usize::from(engine.set_class(tables, packet));
    let (high, low, _) = judge::network_key(judge::meter_at(tables, meter), packet);
    (tables.safe_classes[(class / 64) & 3] >> (class % 64)) & 1 != 0 || engine.is_safe([high, low])
}

/// Marks the bucket, unless its way has another owner by then or half the set is marked.
#[inline(always)]
fn mark<E: Engine>(engine: E, set: E::Set, way: usize, unit: usize, tag: u64, now: u64, time: u64) -> bool {
    if marked(engine, set, now) >= WAYS / 2 {
        return false;
    }
    let word = set.word(unit, way);
    let old = word.load();
    // The compiler sees to it that no bucket takes longer to fill, so this never gives anything back.
    let new = (now + time) << 1 | 1;
    if is_marked(old, now) || !word.swap(old, new) {
        return false;
    }
    if set.tag(way).load() == tag && marked(engine, set, now) <= WAYS / 2 {
        return true;
    }
    word.swap(new, old);
    false
}

/// Ways of a set that are marked.
#[inline(always)]
fn marked<E: Engine>(engine: E, set: E::Set, now: u64) -> usize {
    let mut marked = 0;
    for way in 0..WAYS {
        if is_marked(set.word(PACKETS, way).load(), now) || is_marked(set.word(BYTES, way).load(), now) {
            marked = engine.blur(marked + 1);
        }
    }
    marked
}

#[inline(always)]
fn is_marked(word: u64, now: u64) -> bool {
    word & 1 == 1 && word >> 1 > now
}

/// Takes a mark off a way that was just claimed: the owner before was penalised in the same moment. Whoever marks looks
/// at the tag afterwards, whoever claims at the mark, so one of them sees the other.
#[inline(always)]
pub fn forgive<S: Set>(set: S, way: usize) {
    for unit in [PACKETS, BYTES] {
        let word = set.word(unit, way);
        let old = word.load();
        if old & 1 == 1 {
            word.swap(old, 0);
        }
    }
}
