//! Judgement's machine in memory: the same code as in the kernel, with a clock in the caller's hand.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use limiter_common::{
    abi::{
        BANS_OF_PREFIXES, BANS_OF_SOURCES, Ban, CROWD_CELLS, Description, Geometry, MAX_METERS, PolicyTables,
        Row, WAYS, lone,
    },
    ban, bucket, filter,
    hash::{self, Keys},
    judge::{self, Engine, Ruling},
    packet::Packet,
    parse, penalty, place,
    table::{Set, Word},
};

use super::Bucket;

/// A table, crowd cells, budgets, and the time. Everything starts full.
pub struct Host {
    geometry: Geometry,
    sets: Vec<SetCells>,
    crowd: Vec<[Cell<u64>; 2]>,
    lone: Vec<[Cell<u64>; 8]>,
    filter: Vec<[Cell<u64>; 8]>,
    rows: Vec<Row>,
    proven: BTreeSet<[u64; 2]>,
    ban_sources: BTreeMap<[u64; 2], Ban>,
    /// By length and address of the prefix.
    ban_prefixes: BTreeMap<(u32, u128), Ban>,
    /// Interface class of every packet.
    interface: Cell<usize>,
    now: Cell<u64>,
    evicted: Cell<u64>,
    strikes: Vec<[Cell<u64>; WAYS]>,
    safe: BTreeSet<[u64; 2]>,
}

#[derive(Clone, Default)]
struct SetCells {
    tags: [Cell<u64>; WAYS],
    words: [[Cell<u64>; WAYS]; 2],
    descriptions: [Cell<Description>; WAYS],
}

impl Host {
    /// With the prefix rows of the policy that will be judged by.
    pub fn new(geometry: Geometry, rows: &[Row]) -> Self {
        Self {
            geometry,
            sets: vec![SetCells::default(); geometry.sets as usize],
            crowd: vec![<[Cell<u64>; 2]>::default(); MAX_METERS * CROWD_CELLS],
            lone: vec![<[Cell<u64>; 8]>::default(); lone::COUNT],
            filter: vec![<[Cell<u64>; 8]>::default(); filter::lines(geometry.sets) as usize],
            rows: rows.to_vec(),
            proven: BTreeSet::new(),
            ban_sources: BTreeMap::new(),
            ban_prefixes: BTreeMap::new(),
            interface: Cell::new(0),
            now: Cell::new(0),
            evicted: Cell::new(0),
            strikes: vec![<[Cell<u64>; WAYS]>::default(); geometry.sets as usize],
            safe: BTreeSet::new(),
        }
    }

    /// The rows of another policy, by which will be judged from now on. `retired` are the meter slots that
    /// change hands with it.
    pub fn publish(&mut self, rows: &[Row], retired: &[u32]) {
        self.rows = rows.to_vec();
        for &meter in retired {
            let meter = meter as usize;
            self.lone[meter].iter().for_each(|word| word.set(0));
            for cell in &self.crowd[meter * CROWD_CELLS..(meter + 1) * CROWD_CELLS] {
                cell.iter().for_each(|word| word.set(0));
            }
        }
    }

    /// Bans a prefix.
    pub fn ban(&mut self, prefix: IpNet, ban: Ban) {
        let (address, length) = match prefix.trunc() {
            IpNet::V4(net) => (net.network().to_ipv6_mapped(), net.prefix_len() + 96),
            IpNet::V6(net) => (net.network(), net.prefix_len()),
        };
        let bits = u128::from(address);
        if length == if matches!(prefix, IpNet::V4(_)) { 128 } else { 64 } {
            self.ban_sources.insert(ban::source_key((bits >> 64) as u64, bits as u64), ban);
        } else {
            self.ban_prefixes.insert((u32::from(length), bits), ban);
        }
    }

    /// A source has completed a TCP handshake.
    pub fn prove(&mut self, source: IpAddr) {
        self.proven.insert(source_key(source));
    }

    /// Lifts all bans.
    pub fn lift_bans(&mut self) {
        self.ban_sources.clear();
        self.ban_prefixes.clear();
    }

    /// Sets where packets come in from now on: the position among the interfaces that the policy names, if it does.
    pub fn set_interface(&self, position: Option<usize>) {
        self.interface.set(position.map_or(0, |position| position + 1));
    }

    /// Sets the words of the one bucket of a meter, by its slot.
    pub fn set_lone(&self, slot: u32, words: [u64; 2]) {
        if let Some(line) = self.lone.get(slot as usize) {
            line.iter().zip(words).for_each(|(place, word)| place.set(word));
        }
    }

    /// Sets the time, in ticks of 1/64 ns since the epoch.
    pub fn set_now(&self, ticks: u64) {
        self.now.set(ticks);
    }

    /// Live buckets evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted.get()
    }

    /// Empties one copy of the filter, as the daemon does first when it thins it.
    pub fn clear_filter(&self, copy: usize) {
        let other = filter::copy_mask(1 - copy);
        self.filter.iter().flatten().for_each(|word| word.set(word.get() & other));
    }

    /// Puts the tags of all live buckets into one copy, as it does next.
    pub fn fill_filter(&self, copy: usize) {
        for tag in self.live_tags() {
            let place = filter::place(self, tag);
            HostWord(&self.filter[place.line as usize][place.word])
                .insert(place.bits & filter::copy_mask(copy));
        }
    }

    /// Live buckets of which the filter does not know.
    pub fn missing_from_filter(&self) -> usize {
        let is_missing = |tag: &u64| {
            let place = filter::place(self, *tag);
            self.filter(place.line, place.word).is_none_or(|word| !filter::contains(&word, place.bits))
        };
        self.live_tags().filter(is_missing).count()
    }

    fn live_tags(&self) -> impl Iterator<Item = u64> {
        self.sets.iter().flat_map(|set| (0..WAYS).map(move |way| (set, way))).filter_map(|(set, way)| {
            let is_live = set.words.iter().any(|words| !bucket::is_full(words[way].get(), self.now.get()));
            is_live.then(|| set.tags[way].get())
        })
    }

    /// Puts a bucket into the table, as it is; false when its set is full.
    pub fn put(&self, bucket: &Bucket) -> bool {
        let bits = bits_of(bucket.network);
        let tag = hash::tag(hash::network(self, (bits >> 64) as u64, bits as u64), bucket.meter);
        let Some(set) = self.sets.get(hash::set_index(self, tag) as usize) else { return false };
        let Some(way) = set.tags.iter().position(|found| found.get() == 0) else { return false };
        set.tags[way].set(tag);
        for (words, word) in set.words.iter().zip(bucket.words) {
            words[way].set(word);
        }
        let place = filter::place(self, tag);
        if let Some(word) = self.filter(place.line, place.word) {
            word.insert(place.bits);
        }
        true
    }

    pub fn judge_packet(&self, tables: &PolicyTables, packet: &mut Packet) -> Ruling {
        judge::judge(self, tables, packet)
    }

    pub fn judge(&self, tables: &PolicyTables, frame: &[u8]) -> Ruling {
        let mut packet = parse::parse(frame);
        packet.place = self.place(tables, parse::destination(frame));
        let ruling = judge::judge(self, tables, &mut packet);
        // There are no connections here.
        if penalty::is_strike(tables, &ruling) && !penalty::asks_for_proof(tables, ruling.rule) {
            penalty::strike(self, tables, &packet, ruling.rule, ruling.refused_meter, ruling.refused_by);
        }
        ruling
    }

    /// The masked sources nothing penalises.
    pub fn set_safe(&mut self, networks: impl IntoIterator<Item = [u64; 2]>) {
        self.safe = networks.into_iter().collect();
    }

    /// Place class of a packet to an address, see [`limiter_common::place`].
    pub fn place(&self, tables: &PolicyTables, destination: [u64; 2]) -> u8 {
        place::class(&tables.header, &tables.places, || self.interface.get(), || destination, |number| number)
    }
}

/// The 128 bits of an address as a source.
fn bits_of(source: IpAddr) -> u128 {
    match source {
        IpAddr::V4(address) => u128::from(address.to_ipv6_mapped()),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// See [`ban::source_key`].
pub fn source_key(source: IpAddr) -> [u64; 2] {
    let bits = bits_of(source);
    ban::source_key((bits >> 64) as u64, bits as u64)
}

impl Keys for &Host {
    fn seed(self, index: usize) -> u64 {
        self.geometry.seed[index]
    }

    fn sets(self) -> u32 {
        self.geometry.sets
    }
}

impl<'a> Engine for &'a Host {
    type Set = HostSet<'a>;
    type Word = HostWord<'a>;
    type Rows = &'a [Row];

    fn now(self, _coarse: bool) -> u64 {
        self.now.get()
    }

    fn set(self, index: u32) -> Option<HostSet<'a>> {
        self.sets.get(index as usize).map(HostSet)
    }

    fn crowd(self, cell: u32, unit: usize) -> Option<HostWord<'a>> {
        self.crowd.get(cell as usize).map(|cell| HostWord(&cell[unit]))
    }

    fn lone(self, index: u32, word: usize) -> Option<HostWord<'a>> {
        Some(HostWord(self.lone.get(index as usize)?.get(word)?))
    }

    fn filter(self, line: u32, word: usize) -> Option<HostWord<'a>> {
        Some(HostWord(&self.filter.get(line as usize)?[word]))
    }

    fn rows(self) -> &'a [Row] {
        &self.rows
    }

    fn bans(self) -> u32 {
        let sources = if self.ban_sources.is_empty() { 0 } else { BANS_OF_SOURCES };
        sources | if self.ban_prefixes.is_empty() { 0 } else { BANS_OF_PREFIXES }
    }

    fn ban_of_source(self, key: [u64; 2]) -> Option<Ban> {
        self.ban_sources.get(&key).copied()
    }

    fn ban_of_prefix(self, high: u64, low: u64) -> Option<Ban> {
        let address = u128::from(high) << 64 | u128::from(low);
        let holds =
            |(length, prefix): &(u32, u128)| (address ^ prefix).checked_shr(128 - length).unwrap_or(0) == 0;
        self.ban_prefixes.iter().rev().find(|(prefix, _)| holds(prefix)).map(|(_, ban)| *ban)
    }

    fn is_proven(self, key: [u64; 2]) -> bool {
        self.proven.contains(&key)
    }

    fn evicted(self) {
        self.evicted.set(self.evicted.get() + 1);
    }

    fn strikes(self, set: u32, way: usize) -> Option<HostWord<'a>> {
        Some(HostWord(&self.strikes.get(set as usize)?[way]))
    }

    fn is_safe(self, network: [u64; 2]) -> bool {
        self.safe.contains(&network)
    }
}

#[derive(Clone, Copy)]
pub struct HostWord<'a>(&'a Cell<u64>);

impl Word for HostWord<'_> {
    fn load(&self) -> u64 {
        self.0.get()
    }

    fn swap(&self, old: u64, new: u64) -> bool {
        let same = self.0.get() == old;
        if same {
            self.0.set(new);
        }
        same
    }

    fn insert(&self, bits: u64) {
        self.0.set(self.0.get() | bits);
    }
}

#[derive(Clone, Copy)]
pub struct HostSet<'a>(&'a SetCells);

impl<'a> Set for HostSet<'a> {
    type Word = HostWord<'a>;

    fn tag(&self, way: usize) -> HostWord<'a> {
        HostWord(&self.0.tags[way])
    }

    fn word(&self, unit: usize, way: usize) -> HostWord<'a> {
        HostWord(&self.0.words[unit][way])
    }

    fn description(&self, way: usize) -> Description {
        self.0.descriptions[way].get()
    }

    fn fill(&self, unit: usize, way: usize) {
        self.0.words[unit][way].set(0);
    }

    fn describe(&self, way: usize, description: &Description) {
        self.0.descriptions[way].set(*description);
    }

    fn add_passed(&self, way: usize, packets: u64) {
        let cell = &self.0.descriptions[way];
        let found = cell.get();
        cell.set(Description { passed: found.passed.wrapping_add(packets), ..found });
    }

    fn add_dropped(&self, way: usize, packets: u64) {
        let cell = &self.0.descriptions[way];
        let found = cell.get();
        cell.set(Description { dropped: found.dropped.wrapping_add(packets), ..found });
    }
}
