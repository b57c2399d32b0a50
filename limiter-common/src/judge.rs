//! The order of judgement: from a described packet to a verdict.
//!
//! ```text
//! not IP ─► pass      malformed ─► [default] malformed      link survival ─► pass, within its budget
//! banned ─► drop, unless the lifeline judges
//! set class × service class, this by place where rules ask ─► cell: the first enforcing rule, and the first observing rule before it
//! pass | drop | limits: all must have room, or none is charged; who has no bucket yet may need room as a newcomer
//! ```
//!
//! An observing rule has buckets of its own and changes nothing for the rules after it.

use crate::abi::{
    BYTES, Ban, CROWD_CELLS, Description, EIGHTH, HAS_BYTES, HAS_NEWCOMERS, HAS_PENALTIES, HAS_PLACES,
    HAS_SETS, HAS_SOURCE_PORTS, MALFORMED_PASSES, MAX_METERS, MAX_METERS_PER_RULE, MAX_PLACES, MAX_RULES,
    METER_LONE, Meter, PACKETS, PolicyTables, RESERVE, RULE_COARSE, RULE_NEWCOMERS, Rate, Rule, action, lone,
};
use crate::ban;
use crate::bucket::{self, Refusal};
use crate::filter;
use crate::hash::{self, Keys};
use crate::packet::{Family, Kind, Packet, Shape, Spared};
use crate::penalty;
use crate::prefix::{self, Rows};
use crate::table::{self, Charge, Claim, Set, Word};
use crate::verdict::Outcome;

/// What judgement needs from the machine: memory shared between CPUs, and a clock.
pub trait Engine: Keys {
    type Set: Set;
    type Word: Word;
    type Rows: Rows;

    /// Ticks of 1/64 ns since the epoch, by the coarse clock or the precise one.
    fn now(self, coarse: bool) -> u64;
    /// A set of the bucket table.
    fn set(self, index: u32) -> Option<Self::Set>;
    /// A word of a crowd cell: `cell` counts through all meters' cells.
    fn crowd(self, cell: u32, unit: usize) -> Option<Self::Word>;
    /// A word, below 8, of one of [`lone`].
    fn lone(self, index: u32, word: usize) -> Option<Self::Word>;
    /// A word of a line of the filter, see [`filter`].
    fn filter(self, line: u32, word: usize) -> Option<Self::Word>;
    /// The prefix rows of the policy in force.
    fn rows(self) -> Self::Rows;
    /// Which kinds of bans there are, see [`crate::abi::Control::bans`].
    fn bans(self) -> u32;
    /// The ban of one source, see [`ban::source_key`].
    fn ban_of_source(self, key: [u64; 2]) -> Option<Ban>;
    /// The ban of the longest prefix that holds an address, given from its first bit to its last.
    fn ban_of_prefix(self, high: u64, low: u64) -> Option<Ban>;
    /// Whether a source, see [`ban::source_key`], has completed a TCP handshake with this host.
    fn is_proven(self, key: [u64; 2]) -> bool;
    /// A live bucket was evicted.
    fn evicted(self);
    /// Strikes against the owner of a way of a set, see [`crate::penalty`].
    fn strikes(self, set: u32, way: usize) -> Option<Self::Word>;
    /// Whether a masked source is on the safelist.
    fn is_safe(self, network: [u64; 2]) -> bool;

    /// Hides from a static analysis what a number may be. The kernel's verifier would otherwise follow each
    /// way of a set as a case of its own.
    #[inline(always)]
    fn blur(self, number: usize) -> usize {
        number
    }

    /// Hides from the compiler what a number may be, so that it keeps a mask the verifier needs.
    #[inline(always)]
    fn opaque(self, number: usize) -> usize {
        number
    }

    // The larger steps, which the kernel program makes functions of their own.

    /// See [`set_class`].
    #[inline(always)]
    fn set_class(self, tables: &PolicyTables, packet: &Packet) -> u8 {
        set_class(self, tables, packet)
    }

    /// See [`ban::refuses`].
    #[inline(always)]
    fn ban_refuses(self, tables: &PolicyTables, packet: &Packet) -> bool {
        ban::refuses(self, tables, packet)
    }

    /// See [`limit`].
    #[inline(always)]
    fn limit(self, tables: &PolicyTables, packet: &Packet, rule: u16) -> Limited {
        limit(self, tables, packet, rule)
    }

    /// See [`look`].
    #[inline(always)]
    fn look(self, tables: &PolicyTables, packet: &Packet, now: u64, meter: u16) -> Answer {
        look(self, tables, packet, now, meter)
    }

    /// See [`charge_unit`].
    #[inline(always)]
    fn charge_unit(self, tables: &PolicyTables, packet: &Packet, now: u64, key: Key) -> Answer {
        charge_unit(self, tables, packet, now, key)
    }

    /// See [`claim`].
    #[inline(always)]
    fn claim(self, tables: &PolicyTables, packet: &Packet, now: u64, key: Key) -> Answer {
        claim(self, tables, packet, now, key)
    }

    /// See [`refuses_newcomer`].
    #[inline(always)]
    fn refuses_newcomer(self, tables: &PolicyTables, packet: &Packet, now: u64, meter: u16) -> bool {
        refuses_newcomer(self, tables, packet, now, meter)
    }

    /// See [`give_back`].
    #[inline(always)]
    fn give_back(self, tables: &PolicyTables, packet: &Packet, meter: u16, crowd: u32) {
        give_back(self, tables, packet, meter, crowd);
    }
}

/// One unit of one meter's bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Index into [`PolicyTables::meters`].
    pub meter: u16,
    pub unit: usize,
    pub tag: u64,
}

/// What a meter said, in one register: bit 63 set = refused, with the refusal in bits 32…39 and the place
/// in bits 0…31; else the units charged to a crowd cell, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(pub u64);

impl Answer {
    const REFUSED: u64 = 1 << 63;
    const ROOM: Self = Self(0);
    /// Beside the crowd bits: nothing was charged in packets.
    const ONLY_BYTES: u32 = 4;
    /// There is no bucket to charge.
    const ABSENT: Self = Self(1 << 62);
    const NEWCOMER: Self = Self(Self::REFUSED | (Refusal::Newcomer as u64) << 32);

    #[inline(always)]
    fn charged(crowd: u32) -> Self {
        Self(u64::from(crowd))
    }

    #[inline(always)]
    fn crowd(self) -> u32 {
        self.0 as u32 & 3
    }

    #[inline(always)]
    fn refused(refusal: Refusal, place: Place) -> Self {
        Self(Self::REFUSED | (refusal as u64) << 32 | u64::from(place.0))
    }

    #[inline(always)]
    pub fn is_refused(self) -> bool {
        self.0 & Self::REFUSED != 0
    }

    #[inline(always)]
    fn refusal(self) -> Refusal {
        match (self.0 >> 32) as u8 {
            0 => Refusal::Over,
            1 => Refusal::Oversize,
            2 => Refusal::Penalty,
            _ => Refusal::Newcomer,
        }
    }

    #[inline(always)]
    fn place(self) -> Place {
        Place(self.0 as u32)
    }
}

/// A verdict, with what it takes to count and explain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling {
    pub outcome: Outcome,
    /// Index of the rule that decided, 0 for none.
    pub rule: u16,
    /// Index of the observing rule that would have dropped the packet, 0 for none.
    pub observing: u16,
    /// Why it would have.
    pub observed: Outcome,
    /// The bucket that refused.
    pub refused_by: Place,
    /// The meter of that bucket, an index into [`PolicyTables::meters`].
    pub refused_meter: u16,
}

/// Where a charge went: a way of a set, or a crowd cell. Zero is nowhere, so that an array of them starts as
/// zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    pub const NONE: Self = Self(0);
    const CROWD: u32 = 1 << 31;

    /// For passing it on as a number.
    #[inline(always)]
    pub fn bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline(always)]
    fn way(set: u32, way: usize) -> Self {
        Self(((set << 3) | (way as u32 & 7)) + 1)
    }

    #[inline(always)]
    fn crowd(cell: u32) -> Self {
        Self(Self::CROWD | cell)
    }

    /// The set and way, unless this is a crowd cell or nowhere.
    #[inline(always)]
    pub fn as_way(self) -> Option<(u32, usize)> {
        if self.0 == 0 || self.0 & Self::CROWD != 0 {
            return None;
        }
        let index = self.0 - 1;
        Some((index >> 3, (index & 7) as usize))
    }

    #[inline(always)]
    fn as_crowd(self) -> Option<u32> {
        if self.0 & Self::CROWD != 0 { Some(self.0 & !Self::CROWD) } else { None }
    }
}

/// Networks whose sources share a crowd cell.
const CROWD_WIDTH_V4: u8 = 16;
const CROWD_WIDTH_V6: u8 = 32;

/// Charges of 10 000 per second for link survival and 1 000 per second for spared traffic, each with a burst
/// of a second.
const LINK_BUDGET: Rate =
    Rate { multiplier: 6_400_000, tolerance: 64_000_000_000, burst: 10_000, shift: 0, reserved: 0 };
const SPARED_BUDGET: Rate =
    Rate { multiplier: 64_000_000, tolerance: 64_000_000_000, burst: 1_000, shift: 0, reserved: 0 };

impl Ruling {
    #[inline(always)]
    fn by(rule: u16, outcome: Outcome) -> Self {
        Self {
            outcome,
            rule,
            observing: 0,
            observed: Outcome::WouldDropRule,
            refused_by: Place::NONE,
            refused_meter: 0,
        }
    }
}

/// Judges one packet. A source carried in IPv6 is made the IPv4 source it is.
#[inline(always)]
pub fn judge<E: Engine>(engine: E, tables: &PolicyTables, packet: &mut Packet) -> Ruling {
    match packet.shape {
        Shape::NonIp => Ruling::by(0, Outcome::PassNonIp),
        Shape::Malformed if tables.header.flags & MALFORMED_PASSES != 0 => {
            Ruling::by(0, Outcome::PassMalformed)
        }
        Shape::Malformed => Ruling::by(0, Outcome::DropMalformed),
        Shape::Link if spend(engine, lone::LINK, 0, &LINK_BUDGET, 0) => Ruling::by(0, Outcome::PassLink),
        Shape::Link => Ruling::by(0, Outcome::DropLinkOver),
        Shape::Ip => judge_ip(engine, tables, packet),
    }
}

/// Takes one from a budget of the host or of a meter, at `2^part` times the price.
#[inline(always)]
fn spend<E: Engine>(engine: E, place: usize, word: usize, rate: &Rate, part: u32) -> bool {
    let Some(word) = engine.lone(place as u32, word) else { return false };
    let Some(cost) = rate.cost(1) else { return false };
    table::charge(word, engine.now(true), cost << part, rate, || (), || true) == Charge::Done
}

#[inline(always)]
fn judge_ip<E: Engine>(engine: E, tables: &PolicyTables, packet: &mut Packet) -> Ruling {
    if engine.bans() != 0 && engine.ban_refuses(tables, packet) {
        return Ruling::by(0, Outcome::DropBan);
    }
    if packet.family == Family::V6 {
        uncover_source(tables, packet);
    }
    let class = class_of(engine, tables, packet);
    if packet.spared != Spared::No {
        let spared = &tables.spared[usize::from(packet.place) & (MAX_PLACES - 1)][usize::from(class)];
        let rule = spared.get(packet.spared as usize).copied().unwrap_or(0);
        if rule != 0 {
            return verdict(tables, rule);
        }
        if spend(engine, lone::SPARED, 0, &SPARED_BUDGET, 0) {
            return Ruling::by(0, Outcome::PassLinkSpared);
        }
    }
    let cell = &tables.cells[usize::from(class)][usize::from(service(engine, tables, packet))];
    let mut ruling = decide_in_place(engine, tables, packet, cell.enforcing);
    if cell.observing != 0
        && let Some(observed) = would_drop(decide(engine, tables, packet, cell.observing).outcome)
    {
        ruling.observing = cell.observing;
        ruling.observed = observed;
    }
    ruling
}

/// The set class. Most IPv4 sources are decided by one look into the index; the search is a step of its own.
#[inline(always)]
pub(crate) fn class_of<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet) -> u8 {
    if tables.header.flags & HAS_SETS == 0 {
        return 0;
    }
    if packet.source_is_v4()
        && let Some(class) = prefix::v4_uniform(&tables.v4_index, packet.source_low as u32)
    {
        return class;
    }
    engine.set_class(tables, packet)
}

/// Which combination of sets holds the source.
#[inline(always)]
pub fn set_class<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet) -> u8 {
    if packet.source_is_v4() {
        prefix::v4_class(&tables.v4_index, &engine.rows(), packet.source_low as u32)
    } else {
        prefix::v6_class(&tables.header, &engine.rows(), packet.source_high, packet.source_low)
    }
}

/// An IPv4 address carried in IPv6 is that IPv4 source, for sets and buckets alike.
#[inline(always)]
pub fn uncover_source(tables: &PolicyTables, packet: &mut Packet) {
    let count = tables.header.embedded_count as usize;
    for (index, prefix) in tables.header.embedded.iter().enumerate() {
        if index < count
            && packet.source_high == prefix.high
            && (packet.source_low >> 32) as u32 == prefix.middle
        {
            packet.source_high = 0;
            packet.source_low = crate::packet::V4_PREFIX_LOW | (packet.source_low & 0xffff_ffff);
            break;
        }
    }
}

/// The service class, by which and the set class the cell is chosen.
#[inline(always)]
pub(crate) fn service<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet) -> u8 {
    let class = traffic(engine, tables, packet);
    if tables.header.flags & HAS_PLACES == 0 {
        return class;
    }
    tables.places.services[usize::from(packet.place) & (MAX_PLACES - 1)][usize::from(class)]
}

/// The service class by what the packet is, wherever it is.
#[inline(always)]
fn traffic<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet) -> u8 {
    let kind = engine.opaque(packet.kind as usize) & 7;
    let port = usize::from(packet.destination);
    match packet.kind {
        Kind::Tcp | Kind::TcpSyn | Kind::Udp | Kind::Sctp => {
            let class = tables.services[kind & 3][port];
            if tables.header.flags & HAS_SOURCE_PORTS == 0 {
                return class;
            }
            let source = tables.source_services[kind & 3][usize::from(packet.source_port)];
            tables.service_pairs[usize::from(class)][usize::from(source)]
        }
        Kind::Icmp | Kind::Icmpv6 => tables.type_services[kind & 1][port & 255],
        Kind::Fragment | Kind::Other => tables.kind_services[kind],
    }
}

#[inline(always)]
fn would_drop(outcome: Outcome) -> Option<Outcome> {
    match outcome {
        Outcome::DropRule => Some(Outcome::WouldDropRule),
        Outcome::DropOver => Some(Outcome::WouldDropOver),
        Outcome::DropOversize => Some(Outcome::WouldDropOversize),
        Outcome::DropCrowd => Some(Outcome::WouldDropCrowd),
        Outcome::DropPenalty => Some(Outcome::WouldDropPenalty),
        Outcome::DropNewcomer => Some(Outcome::WouldDropNewcomer),
        _ => None,
    }
}

/// What one rule says of a packet. Rule 0 is `[default]`.
#[inline(always)]
fn decide<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet, index: u16) -> Ruling {
    if rule_at(tables, index).action == action::LIMIT {
        return engine.limit(tables, packet, index).ruling(index);
    }
    verdict(tables, index)
}

/// The same, with the steps of the commonest rule, one limit in packets, in place: a call costs as much as a
/// hash where returns are guarded against speculation.
#[inline(always)]
fn decide_in_place<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet, index: u16) -> Ruling {
    let rule = rule_at(tables, index);
    let meter = meter_at(tables, rule.meters[0]);
    if rule.action != action::LIMIT || rule.meter_count != 1 || meter.rates[BYTES].multiplier != 0 {
        return decide(engine, tables, packet, index);
    }
    let now = engine.now(rule.flags & RULE_COARSE != 0);
    let tag = if is_lone(meter) { 0 } else { tag(engine, meter, packet) };
    let key = Key { meter: rule.meters[0], unit: PACKETS, tag };
    let mut answer = charge_unit(engine, tables, packet, now, key);
    if answer == Answer::ABSENT {
        answer = if is_refused_newcomer(engine, tables, packet, now, rule) {
            Answer::NEWCOMER
        } else {
            engine.claim(tables, packet, now, key)
        };
    }
    let limited = if answer.is_refused() { Limited::refused(answer, key.meter) } else { Limited(answer.0) };
    limited.ruling(index)
}

/// What a rule without limits says.
#[inline(always)]
fn verdict(tables: &PolicyTables, index: u16) -> Ruling {
    let outcome = match (rule_at(tables, index).action, index) {
        (action::PASS, 0) => Outcome::PassDefault,
        (action::PASS, _) => Outcome::PassRule,
        (_, 0) => Outcome::DropDefault,
        _ => Outcome::DropRule,
    };
    Ruling::by(index, outcome)
}

/// What a rule's limits said, in one register: the last answer, and in bits 40…55 the meter that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited(pub u64);

impl Limited {
    #[inline(always)]
    fn refused(answer: Answer, meter: u16) -> Self {
        Self(answer.0 | u64::from(meter) << 40)
    }

    #[inline(always)]
    fn ruling(self, rule: u16) -> Ruling {
        let answer = Answer(self.0);
        if !answer.is_refused() {
            return Ruling::by(rule, if self.0 == 0 { Outcome::PassWithin } else { Outcome::PassCrowd });
        }
        let place = answer.place();
        let outcome = match answer.refusal() {
            Refusal::Oversize => Outcome::DropOversize,
            Refusal::Penalty => Outcome::DropPenalty,
            Refusal::Newcomer => Outcome::DropNewcomer,
            Refusal::Over if place.as_crowd().is_some() => Outcome::DropCrowd,
            Refusal::Over => Outcome::DropOver,
        };
        Ruling { refused_by: place, refused_meter: (self.0 >> 40) as u16, ..Ruling::by(rule, outcome) }
    }
}

/// All the rule's limits must have room, or none is charged.
#[inline(always)]
pub fn limit<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet, index: u16) -> Limited {
    let rule = rule_at(tables, index);
    let now = engine.now(rule.flags & RULE_COARSE != 0);
    let count = usize::from(rule.meter_count);
    let has_newcomers = rule.flags & RULE_NEWCOMERS != 0;
    let mut narrowest = Answer::ROOM;
    // Several meters: first a look at each, so that a packet one of them refuses is charged nowhere.
    for position in 0..MAX_METERS_PER_RULE {
        if position >= count || (count == 1 && !has_newcomers) {
            break;
        }
        let answer = engine.look(tables, packet, now, rule.meters[position]);
        if answer.is_refused() {
            return Limited::refused(answer, rule.meters[position]);
        }
        if position == 0 {
            narrowest = answer;
        }
    }
    if narrowest == Answer::ABSENT && is_refused_newcomer(engine, tables, packet, now, rule) {
        return Limited::refused(Answer::NEWCOMER, rule.meters[0]);
    }
    // Which charges went to a crowd cell: two bits a meter, one a unit.
    let mut crowd = 0u32;
    let mut answer = Answer::ROOM;
    let mut charged = 0;
    for position in 0..MAX_METERS_PER_RULE {
        if position >= count {
            break;
        }
        answer = charge(engine, tables, packet, now, rule.meters[position]);
        if answer.is_refused() {
            break;
        }
        crowd = engine.blur((crowd | answer.crowd() << (2 * position)) as usize) as u32;
        charged = engine.blur(position + 1);
    }
    if !answer.is_refused() {
        return Limited(u64::from(crowd));
    }
    // Somebody was quicker between the look and the charge: give back what was taken.
    for earlier in 0..MAX_METERS_PER_RULE {
        if earlier >= charged {
            break;
        }
        engine.give_back(tables, packet, rule.meters[earlier], crowd >> (2 * earlier) & 3);
    }
    Limited::refused(answer, rule.meters[charged & (MAX_METERS_PER_RULE - 1)])
}

#[inline(always)]
pub(crate) fn rule_at(tables: &PolicyTables, index: u16) -> &Rule {
    &tables.rules[usize::from(index) & (MAX_RULES - 1)]
}

/// A masked index, not a checked one: LLVM folds range checks in ways the verifier cannot follow.
#[inline(always)]
pub(crate) fn meter_at(tables: &PolicyTables, index: u16) -> &Meter {
    &tables.meters[usize::from(index) & (MAX_METERS - 1)]
}

/// What a packet costs a meter, in ticks by unit, 0 where it has no rate; `None` when the packet is dearer
/// than a whole burst.
#[inline(always)]
fn costs(meter: &Meter, packet: &Packet) -> Option<[u64; 2]> {
    let mut costs = [0; 2];
    for unit in [PACKETS, BYTES] {
        let rate = &meter.rates[unit];
        if rate.multiplier != 0 {
            costs[unit] = rate.cost(units(packet, unit))?;
        }
    }
    Some(costs)
}

#[inline(always)]
fn units(packet: &Packet, unit: usize) -> u64 {
    if unit == PACKETS { 1 } else { u64::from(packet.length) }
}

/// Whether all packets of a meter share one bucket.
#[inline(always)]
fn is_lone(meter: &Meter) -> bool {
    meter.flags & METER_LONE != 0
}

/// A word of that bucket.
#[inline(always)]
fn lone_word<E: Engine>(engine: E, meter: &Meter, unit: usize) -> Option<E::Word> {
    engine.lone(meter.slot & (MAX_METERS as u32 - 1), unit & 1)
}

/// The tag of a packet's bucket under a meter.
#[inline(always)]
pub(crate) fn tag<E: Engine>(engine: E, meter: &Meter, packet: &Packet) -> u64 {
    let (high, low, _) = network_key(meter, packet);
    hash::tag(hash::network(engine, high, low), meter.id)
}

/// The masked source and its width in 128 bits. Link-local sources share one /64 and are told apart whole.
#[inline(always)]
pub fn network_key(meter: &Meter, packet: &Packet) -> (u64, u64, u8) {
    let width = if packet.source_is_v4() {
        96 + (meter.width_v4 & 63)
    } else if packet.source_high >> 54 == 0xfe80 >> 6 {
        128
    } else {
        meter.width_v6
    };
    if width >= 128 {
        (packet.source_high, packet.source_low, 128)
    } else if width >= 64 {
        (packet.source_high, packet.source_low & !(u64::MAX >> (width & 63)), width)
    } else {
        (packet.source_high & !(u64::MAX >> (width & 63)), 0, width)
    }
}

/// Whether a meter has room, by plain reads. A source without a bucket has a full one, and is `Answer::ABSENT`.
#[inline(always)]
pub fn look<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet, now: u64, meter: u16) -> Answer {
    let meter = meter_at(tables, meter);
    let Some(costs) = costs(meter, packet) else { return Answer::refused(Refusal::Oversize, Place::NONE) };
    if is_lone(meter) {
        return look_lone(engine, meter, now, costs);
    }
    let tag = tag(engine, meter, packet);
    if !may_live(engine, tag) {
        return Answer::ABSENT;
    }
    let set_index = hash::set_index(engine, tag);
    let Some(set) = engine.set(set_index) else { return Answer::ROOM };
    let mut room = Answer::ROOM;
    for unit in [PACKETS, BYTES] {
        let rate = &meter.rates[unit];
        if rate.multiplier == 0 {
            continue;
        }
        let Some(way) = find(engine, set, tag, unit) else {
            room = Answer::ABSENT;
            continue;
        };
        if let Err(refusal) = bucket::admit(set.word(unit, way).load(), now, costs[unit], rate.tolerance) {
            return Answer::refused(refusal, Place::way(set_index, way));
        }
    }
    room
}

#[inline(always)]
fn look_lone<E: Engine>(engine: E, meter: &Meter, now: u64, costs: [u64; 2]) -> Answer {
    for unit in [PACKETS, BYTES] {
        let rate = &meter.rates[unit];
        if rate.multiplier != 0
            && let Some(word) = lone_word(engine, meter, unit)
            && let Err(refusal) = bucket::admit(word.load(), now, costs[unit], rate.tolerance)
        {
            return Answer::refused(refusal, Place::NONE);
        }
    }
    Answer::ROOM
}

/// Charges a meter in all its units or in none, and says which units were charged to a crowd cell.
#[inline(always)]
fn charge<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet, now: u64, index: u16) -> Answer {
    let meter = meter_at(tables, index);
    let tag = if is_lone(meter) { 0 } else { tag(engine, meter, packet) };
    if meter.rates[BYTES].multiplier == 0 {
        return charge_or_claim(engine, tables, packet, now, Key { meter: index, unit: PACKETS, tag });
    }
    // Bytes first: a packet can be dearer than a burst of bytes, and then takes nothing.
    let answer = charge_or_claim(engine, tables, packet, now, Key { meter: index, unit: BYTES, tag });
    if answer.is_refused() || meter.rates[PACKETS].multiplier == 0 {
        return answer;
    }
    let mut crowd = answer.crowd();
    let answer = charge_or_claim(engine, tables, packet, now, Key { meter: index, unit: PACKETS, tag });
    if answer.is_refused() {
        engine.give_back(tables, packet, index, crowd | Answer::ONLY_BYTES);
        return answer;
    }
    crowd |= answer.crowd();
    Answer::charged(crowd)
}

/// Charges one unit of a bucket, which is claimed when there is none; where none may be claimed, a crowd cell.
///
/// Two steps one behind the other, not one inside the other: the kernel's stack would be too short for that.
#[inline(always)]
fn charge_or_claim<E: Engine>(
    engine: E,
    tables: &PolicyTables,
    packet: &Packet,
    now: u64,
    key: Key,
) -> Answer {
    let answer = engine.charge_unit(tables, packet, now, key);
    if answer == Answer::ABSENT { engine.claim(tables, packet, now, key) } else { answer }
}

/// Charges one unit of a bucket, if there is one. A pass is counted in the bucket's description, once for all its
/// units.
#[inline(always)]
pub fn charge_unit<E: Engine>(
    engine: E,
    tables: &PolicyTables,
    packet: &Packet,
    now: u64,
    key: Key,
) -> Answer {
    let Key { meter: index, unit, tag } = key;
    let meter = meter_at(tables, index);
    let Some(cost) = meter.rates[unit & 1].cost(units(packet, unit)) else {
        return Answer::refused(Refusal::Oversize, Place::NONE);
    };
    if is_lone(meter) {
        let Some(word) = lone_word(engine, meter, unit) else {
            return Answer::refused(Refusal::Over, Place::NONE);
        };
        return answer(table::charge(word, now, cost, &meter.rates[unit & 1], || (), || true), Place::NONE);
    }
    let set_index = hash::set_index(engine, tag);
    let Some(set) = engine.set(set_index) else { return Answer::refused(Refusal::Over, Place::NONE) };
    let found = if may_live(engine, tag) { find(engine, set, tag, unit) } else { None };
    let Some(way) = found else { return Answer::ABSENT };
    let charge = charge_way(engine, set, way, now, cost, meter, key);
    if charge == Charge::Done && counts(meter, unit) {
        set.add_passed(way, 1);
    }
    answer(charge, Place::way(set_index, way))
}

/// Charges the bucket in a way of the key's set.
#[inline(always)]
fn charge_way<E: Engine>(
    engine: E,
    set: E::Set,
    way: usize,
    now: u64,
    cost: u64,
    meter: &Meter,
    key: Key,
) -> Charge {
    let Key { unit, tag, .. } = key;
    let rate = &meter.rates[unit & 1];
    let still_owned = || set.tag(way).load() == tag;
    table::charge(set.word(unit, way), now, cost, rate, || enlist(engine, tag), still_owned)
}

#[inline(always)]
fn answer(charge: Charge, place: Place) -> Answer {
    match charge {
        Charge::Done => Answer::charged(0),
        Charge::Refused(refusal) => Answer::refused(refusal, place),
        Charge::Lost => Answer::refused(Refusal::Over, Place::NONE),
    }
}

/// Whether a packet of a source without a bucket is one more than its rule takes of those.
#[inline(always)]
fn is_refused_newcomer<E: Engine>(
    engine: E,
    tables: &PolicyTables,
    packet: &Packet,
    now: u64,
    rule: &Rule,
) -> bool {
    rule.flags & RULE_NEWCOMERS != 0
        && engine.refuses_newcomer(tables, packet, now, u16::from(rule.newcomers))
}

/// Spends from a budget for newcomers, of which no network takes more than an eighth. Beyond it only proven sources are
/// not refused.
#[inline(always)]
pub fn refuses_newcomer<E: Engine>(
    engine: E,
    tables: &PolicyTables,
    packet: &Packet,
    now: u64,
    meter: u16,
) -> bool {
    let meter = meter_at(tables, meter);
    let rate = &meter.rates[PACKETS];
    let Some(cost) = rate.cost(1) else { return true };
    // The share first: a network that has spent its own takes nothing from the others.
    let cell = crowd_cell(engine, meter, packet);
    if let Some(share) = engine.crowd(cell, PACKETS)
        && let Some(total) = lone_word(engine, meter, PACKETS)
        && table::charge(share, now, cost << EIGHTH, rate, || (), || true) == Charge::Done
    {
        if table::charge(total, now, cost, rate, || (), || true) == Charge::Done {
            return false;
        }
        if let Some(share) = engine.crowd(cell, PACKETS) {
            table::refund(share, cost << EIGHTH);
        }
    }
    !is_proven(engine, packet)
}

/// `packet` has its source uncovered.
#[inline(always)]
fn is_proven<E: Engine>(engine: E, packet: &Packet) -> bool {
    engine.is_proven(ban::source_key(packet.source_high, packet.source_low))
}

/// Whether a meter may take one more bucket from the table. A part of its budget is for proven sources alone, in a policy
/// that asks who is proven.
#[inline(always)]
fn may_claim<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet, meter: &Meter) -> bool {
    let slot = meter.slot as usize;
    spend(engine, slot, 0, &meter.claims, 0)
        || tables.header.flags & HAS_NEWCOMERS != 0
            && is_proven(engine, packet)
            && spend(engine, slot, RESERVE, &meter.claims, EIGHTH)
}

/// Claims a bucket, within the meter's claim budget, and charges it; beyond the budget, charges the crowd cell.
#[inline(always)]
pub fn claim<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet, now: u64, key: Key) -> Answer {
    let over = Answer::refused(Refusal::Over, Place::NONE);
    let Key { meter: index, unit, tag } = key;
    let meter = meter_at(tables, index);
    if !may_claim(engine, tables, packet, meter) {
        return charge_crowd(engine, meter, packet, now, unit);
    }
    let set_index = hash::set_index(engine, tag);
    let Some(set) = engine.set(set_index) else { return over };
    enlist(engine, tag);
    // A packet dearer than a burst gets no room, whatever the bucket says.
    let cost = |unit: usize| meter.rates[unit & 1].cost(units(packet, unit)).unwrap_or(0);
    let with_bytes = tables.header.flags & HAS_BYTES != 0;
    let claim = table::claim(set, tag, now, meter, cost, with_bytes, |way| engine.blur(way));
    if let Claim::Evicted(_) = claim {
        engine.evicted();
    }
    if let Claim::Free(way) = claim
        && tables.header.flags & HAS_PENALTIES != 0
    {
        penalty::forgive(set, way);
    }
    // A fresh bucket's description counts its first packet: a write of its own would wait for that line.
    let mut counted = false;
    if let Claim::Free(way) | Claim::Evicted(way) = claim {
        counted = unit == PACKETS;
        set.describe(way, &description(meter, packet, u64::from(counted)));
    }
    // By the rule everybody looks by: of twins claimed at the same time one is charged. Claimed and lost again at
    // once: so many others are at this set that the packet is dropped.
    let Some(way) = find(engine, set, tag, unit) else { return over };
    let charge = charge_way(engine, set, way, now, cost(unit), meter, key);
    if charge == Charge::Done && !counted && counts(meter, unit) {
        set.add_passed(way, 1);
    }
    answer(charge, Place::way(set_index, way))
}

/// Whether a charge in `unit` is the one of a meter that counts a pass: once for all its units.
#[inline(always)]
fn counts(meter: &Meter, unit: usize) -> bool {
    unit == PACKETS || meter.rates[PACKETS].multiplier == 0
}

#[inline(always)]
fn description(meter: &Meter, packet: &Packet, passed: u64) -> Description {
    let (network_high, network_low, width) = network_key(meter, packet);
    Description {
        network_high,
        network_low,
        dropped: 0,
        passed,
        meter: meter.id,
        scale: meter.scale,
        width,
        reserved: [0; 2],
    }
}

/// Sources that may not claim a bucket share that of their /16 or /32, at eight times the rate; wider keys share
/// their own cell.
#[inline(always)]
fn charge_crowd<E: Engine>(engine: E, meter: &Meter, packet: &Packet, now: u64, unit: usize) -> Answer {
    let cell = crowd_cell(engine, meter, packet);
    let place = Place::crowd(cell);
    let over = Answer::refused(Refusal::Over, place);
    let rate = meter.rates[unit & 1].crowd();
    let Some(word) = engine.crowd(cell, unit) else { return over };
    let Some(cost) = rate.cost(units(packet, unit)) else { return over };
    match table::charge(word, now, cost, &rate, || (), || true) {
        Charge::Done => Answer::charged(1 << (unit & 1)),
        Charge::Refused(refusal) => Answer::refused(refusal, place),
        Charge::Lost => over,
    }
}

#[inline(always)]
fn crowd_cell<E: Engine>(engine: E, meter: &Meter, packet: &Packet) -> u32 {
    let (high, low) = if packet.source_is_v4() {
        let width = if meter.width_v4 < CROWD_WIDTH_V4 { meter.width_v4 } else { CROWD_WIDTH_V4 };
        (0, packet.source_low & !(0xffff_ffff >> (width & 31)))
    } else {
        let width = if meter.width_v6 < CROWD_WIDTH_V6 { meter.width_v6 } else { CROWD_WIDTH_V6 };
        (packet.source_high & !(u64::MAX >> (width & 63)), 0)
    };
    let hash = hash::tag(hash::network(engine, high, low), meter.id);
    (meter.slot & 255) * CROWD_CELLS as u32 + (hash >> 32) as u32 % CROWD_CELLS as u32
}

/// Undoes the charge of a meter, given the crowd bits it returned.
#[inline(always)]
pub fn give_back<E: Engine>(engine: E, tables: &PolicyTables, packet: &Packet, meter: u16, crowd: u32) {
    let meter = meter_at(tables, meter);
    let tag = if is_lone(meter) { 0 } else { tag(engine, meter, packet) };
    for unit in [PACKETS, BYTES] {
        let kept = unit == PACKETS && crowd & Answer::ONLY_BYTES != 0;
        if meter.rates[unit].multiplier != 0 && !kept {
            give_back_unit(engine, meter, packet, tag, unit, crowd);
        }
    }
}

/// Gives back one unit's cost where its bucket still is. The bucket charged is the one [`find`] finds: a
/// charge makes its tat the largest.
#[inline(always)]
fn give_back_unit<E: Engine>(engine: E, meter: &Meter, packet: &Packet, tag: u64, unit: usize, crowd: u32) {
    let rate = &meter.rates[unit & 1];
    if is_lone(meter) {
        if let Some(word) = lone_word(engine, meter, unit)
            && let Some(cost) = rate.cost(units(packet, unit))
        {
            table::refund(word, cost);
        }
        return;
    }
    if crowd >> unit & 1 != 0 {
        if let Some(word) = engine.crowd(crowd_cell(engine, meter, packet), unit)
            && let Some(cost) = rate.crowd().cost(units(packet, unit))
        {
            table::refund(word, cost);
        }
        return;
    }
    if let Some(set) = engine.set(hash::set_index(engine, tag))
        && let Some(way) = find(engine, set, tag, unit)
        && let Some(cost) = rate.cost(units(packet, unit))
    {
        table::refund(set.word(unit, way), cost);
        if counts(meter, unit) {
            // One pass less: the sum wraps.
            set.add_passed(way, u64::MAX);
        }
    }
}

/// Whether the tag may have a live bucket.
#[inline(always)]
fn may_live<E: Engine>(engine: E, tag: u64) -> bool {
    let place = filter::place(engine, tag);
    engine.filter(place.line, place.word).is_none_or(|word| filter::contains(&word, place.bits))
}

/// Says of a tag that it may have one.
#[inline(always)]
fn enlist<E: Engine>(engine: E, tag: u64) {
    let place = filter::place(engine, tag);
    if let Some(word) = engine.filter(place.line, place.word) {
        filter::insert(&word, place.bits);
    }
}

/// What a meter has kept of a packet's source: the words of its bucket by unit, and its description, which is empty
/// of a bucket that all share. `None` where it has no bucket, which is a full one.
pub fn bucket_of<E: Engine>(
    engine: E,
    tables: &PolicyTables,
    packet: &Packet,
    meter: u16,
) -> Option<([u64; 2], Description)> {
    let meter = meter_at(tables, meter);
    if is_lone(meter) {
        let word = |unit: usize| Some(lone_word(engine, meter, unit)?.load());
        return Some(([word(PACKETS)?, word(BYTES)?], Description::default()));
    }
    let tag = tag(engine, meter, packet);
    let set = engine.set(hash::set_index(engine, tag))?;
    let ways = [PACKETS, BYTES].map(|unit| find(engine, set, tag, unit));
    let word = |unit: usize| Some(set.word(unit, ways[unit]?).load());
    Some(([word(PACKETS)?, word(BYTES)?], set.description(ways[PACKETS]?)))
}

#[inline(always)]
fn find<E: Engine>(engine: E, set: E::Set, tag: u64, unit: usize) -> Option<usize> {
    table::find(set, tag, unit, |way| engine.blur(way))
}

/// Adds a sampled drop to the bucket that refused, and mends its description where it is wrong.
#[inline(never)]
pub fn sample_drop<E: Engine>(
    engine: E,
    tables: &PolicyTables,
    packet: &Packet,
    ruling: &Ruling,
    packets: u64,
) {
    let Some((set, way)) = ruling.refused_by.as_way() else { return };
    let Some(set) = engine.set(set) else { return };
    let meter = meter_at(tables, ruling.refused_meter);
    let expected = description(meter, packet, 0);
    let found = set.description(way);
    if (found.network_high, found.network_low, found.meter, found.width)
        != (expected.network_high, expected.network_low, expected.meter, expected.width)
    {
        set.describe(way, &expected);
    }
    set.add_dropped(way, packets);
}
