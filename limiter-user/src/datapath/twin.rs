//! A datapath in memory: the same promises as the kernel's, for tests of the daemon and its API.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::{Ban, Geometry, Header, PolicyTables, Row};
use limiter_common::event::Event;
use limiter_common::packet::Packet;

use super::{
    Bucket, Comparison, Datapath, Error, Explanation, Facts, Host, Image, Interface, Mode, Refill,
    RuleTotals, TableUse, Way, interface_names,
};

/// Clones share one state, so a test keeps a hand on what the daemon holds, and a second daemon finds what
/// the first left, as it would find pins.
#[derive(Clone, Default)]
pub struct Twin {
    state: Arc<Mutex<State>>,
    /// [`State::shadow`], for who borrows it.
    shadow: Option<Box<Self>>,
}

/// Everything a test may set or look at.
pub struct State {
    pub facts: Facts,
    pub now: u64,
    pub sealed: Option<Vec<u8>>,
    /// Header of the policy in force.
    pub header: Option<Header>,
    /// The policy last published, to be judged by.
    pub tables: Option<(Box<PolicyTables>, Vec<Row>)>,
    /// Times a policy was published.
    pub published: u64,
    /// Until when the policy in force waits to be confirmed, and what is in force after that.
    pub waiting: Option<(u64, Option<Header>, Option<Vec<u8>>)>,
    /// Until when nothing is dropped.
    pub paused_until: u64,
    /// Until when events are wanted.
    pub watched_until: u64,
    /// Events that nobody has taken.
    pub events: Vec<Event>,
    pub events_lost: u64,
    /// The trace that runs: of whom, decisions nobody has taken, and how many there were.
    pub trace: Option<(IpNet, Vec<Event>, u64)>,
    /// What is judged beside, and what was found there.
    pub shadow: Option<Twin>,
    pub compared: BTreeMap<u16, Comparison>,
    /// Interfaces the host has, by name, with their index.
    pub present: BTreeMap<String, u32>,
    /// Interfaces that the policy in force names.
    pub named: Vec<String>,
    /// Interfaces with somebody else's program: its id.
    pub foreign: BTreeMap<String, u32>,
    /// Interfaces with an MTU their driver does not take in native mode, and the largest it takes.
    pub large_mtu: BTreeMap<String, (u32, u32)>,
    /// Interfaces whose driver has no native mode.
    pub generic_only: Vec<String>,
    pub attached: Vec<Interface>,
    pub counters: BTreeMap<u16, Box<RuleTotals>>,
    pub table: TableUse,
    pub buckets: Vec<Bucket>,
    /// Words of the one bucket of a meter, by its slot; 0 = full.
    pub lone_words: BTreeMap<u32, [u64; 2]>,
    pub ban_capacity: u32,
    pub bans: BTreeMap<IpNet, Ban>,
    /// Sources no penalty hits.
    pub safe: Vec<IpNet>,
    /// The next publish fails with this reason.
    pub refuse_publish: Option<String>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            facts: Facts { tick_ns: 4_000_000, buckets: 1 << 20 },
            now: 0,
            sealed: None,
            header: None,
            tables: None,
            published: 0,
            waiting: None,
            paused_until: 0,
            watched_until: 0,
            events: Vec::new(),
            events_lost: 0,
            trace: None,
            shadow: None,
            compared: BTreeMap::new(),
            present: BTreeMap::new(),
            named: Vec::new(),
            foreign: BTreeMap::new(),
            large_mtu: BTreeMap::new(),
            generic_only: Vec::new(),
            attached: Vec::new(),
            counters: BTreeMap::new(),
            table: TableUse { entries: 1 << 20, used: 0, pressure: 0 },
            buckets: Vec::new(),
            lone_words: BTreeMap::new(),
            ban_capacity: 1 << 18,
            bans: BTreeMap::new(),
            safe: Vec::new(),
            refuse_publish: None,
        }
    }
}

impl Twin {
    /// A host with these interfaces.
    pub fn with_interfaces(names: &[&str]) -> Self {
        let twin = Self::default();
        for (index, name) in (2..).zip(names) {
            twin.state().present.insert((*name).to_owned(), index);
        }
        twin
    }

    /// The shared state. Do not hold it across a call into the daemon.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn settle(&mut self) {
        if self.waiting.as_ref().is_some_and(|(until, ..)| *until <= self.now) {
            self.fall_back();
        }
    }

    fn fall_back(&mut self) {
        if let Some((_, header, sealed)) = self.waiting.take() {
            self.header = header;
            self.sealed = sealed;
        }
    }
}

/// A copy that is never on a stack: it is more than a megabyte.
fn boxed(tables: &PolicyTables) -> Box<PolicyTables> {
    let mut copy = Box::<PolicyTables>::new_uninit();
    // SAFETY: plain data, copied whole into a place of its size.
    unsafe {
        copy.as_mut_ptr().copy_from(tables, 1);
        copy.assume_init()
    }
}

/// Ticks of 1/64 ns.
fn ticks(time: Duration) -> u64 {
    time.as_nanos() as u64 * 64
}

impl Datapath for Twin {
    fn sealed(&self) -> Option<Vec<u8>> {
        let mut state = self.state();
        state.settle();
        state.sealed.clone()
    }

    fn facts(&self) -> Facts {
        self.state().facts
    }

    fn now(&self) -> u64 {
        self.state().now
    }

    fn publish(
        &mut self,
        image: Image<'_>,
        sealed: &[u8],
        confirm_within: Option<Duration>,
    ) -> Result<(), Error> {
        let mut state = self.state();
        state.settle();
        if let Some(reason) = state.refuse_publish.take() {
            return Err(Error::Refused { reason });
        }
        if let Some(time) = confirm_within {
            state.waiting = Some((state.now + ticks(time), state.header, state.sealed.clone()));
        }
        state.header = Some(image.tables.header);
        state.named = interface_names(&image.tables.places.interface_names);
        state.sealed = Some(sealed.to_vec());
        state.tables = Some((boxed(image.tables), image.rows.to_vec()));
        state.published += 1;
        Ok(())
    }

    fn unconfirmed(&self) -> Option<Duration> {
        let mut state = self.state();
        state.settle();
        state.waiting.as_ref().map(|(until, ..)| Duration::from_nanos((until - state.now) / 64))
    }

    fn confirm(&mut self) -> bool {
        let mut state = self.state();
        state.settle();
        state.waiting.take().is_some()
    }

    fn fall_back(&mut self) {
        self.state().fall_back();
    }

    fn pause(&mut self, time: Duration) {
        let mut state = self.state();
        state.paused_until = state.now + ticks(time);
    }

    fn paused(&self) -> Option<Duration> {
        let state = self.state();
        let left = state.paused_until.saturating_sub(state.now);
        (left > 0).then(|| Duration::from_nanos(left / 64))
    }

    fn watch(&mut self, time: Duration) {
        let mut state = self.state();
        state.watched_until = if time.is_zero() { 0 } else { state.now + ticks(time) };
    }

    fn events(&mut self, visit: &mut dyn FnMut(&Event)) {
        let events = std::mem::take(&mut self.state().events);
        events.iter().for_each(visit);
    }

    fn events_lost(&self) -> Result<u64, Error> {
        Ok(self.state().events_lost)
    }

    fn start_trace(&mut self, prefix: IpNet, _: Duration) -> Result<(), Error> {
        self.state().trace = Some((prefix, Vec::new(), 0));
        Ok(())
    }

    fn traced(&mut self, visit: &mut dyn FnMut(&Event)) -> u64 {
        let mut state = self.state();
        let Some((_, decisions, seen)) = &mut state.trace else { return 0 };
        std::mem::take(decisions).iter().for_each(visit);
        *seen
    }

    fn stop_trace(&mut self) {
        self.state().trace = None;
    }

    fn observe(&mut self, image: Image<'_>) -> Result<(), Error> {
        let mut shadow = Self::default();
        shadow.publish(image, &[], None)?;
        self.state().shadow = Some(shadow.clone());
        self.shadow = Some(Box::new(shadow));
        Ok(())
    }

    fn stop_observing(&mut self) {
        self.shadow = None;
        let mut state = self.state();
        state.shadow = None;
        state.compared.clear();
    }

    fn shadow(&mut self) -> Option<&mut dyn Datapath> {
        self.shadow.as_deref_mut().map(|shadow| shadow as &mut dyn Datapath)
    }

    fn compared(&self) -> Result<Vec<(u16, Comparison)>, Error> {
        Ok(self.state().compared.iter().map(|(slot, comparison)| (*slot, *comparison)).collect())
    }

    fn attach(&mut self, interface: &str, mode: Mode, replace: bool) -> Result<Interface, Error> {
        let mut state = self.state();
        let Some(&index) = state.present.get(interface) else {
            return Err(Error::NoSuchInterface { interface: interface.to_owned() });
        };
        if mode == Mode::Native
            && let Some(&(mtu, largest)) = state.large_mtu.get(interface)
        {
            let interface = interface.to_owned();
            return Err(Error::MtuTooLarge { interface, mtu, largest: Some(largest) });
        }
        let generic_only = state.large_mtu.contains_key(interface)
            || state.generic_only.iter().any(|name| name == interface);
        let effective = match mode {
            Mode::Native if generic_only => {
                return Err(Error::NativeUnsupported { interface: interface.to_owned() });
            }
            Mode::Auto if generic_only => Mode::Generic,
            Mode::Auto => Mode::Native,
            given => given,
        };
        if let Some(position) = state.attached.iter().position(|guard| guard.index == index) {
            if mode == Mode::Auto || state.attached[position].mode == effective {
                return Ok(state.attached[position].clone());
            }
            state.attached.remove(position);
        }
        if let Some(&id) = state.foreign.get(interface) {
            if !replace {
                return Err(Error::ForeignProgram { interface: interface.to_owned(), id, name: None });
            }
            state.foreign.remove(interface);
        }
        let guard =
            Interface { name: interface.to_owned(), index, mode: effective, attached_at: SystemTime::now() };
        state.attached.push(guard.clone());
        Ok(guard)
    }

    fn detach(&mut self, interface: &str) -> Result<(), Error> {
        let mut state = self.state();
        let before = state.attached.len();
        state.attached.retain(|guard| guard.name != interface);
        if state.attached.len() == before {
            return Err(Error::NotAttached { interface: interface.to_owned() });
        }
        Ok(())
    }

    fn interfaces(&self) -> Vec<Interface> {
        let state = self.state();
        let name_of = |index| state.present.iter().find(|(_, i)| **i == index).map(|(name, _)| name);
        state
            .attached
            .iter()
            .filter_map(|guard| Some(Interface { name: name_of(guard.index)?.clone(), ..guard.clone() }))
            .collect()
    }

    fn keep_safe(&mut self, sources: &[IpNet]) -> Result<(), Error> {
        self.state().safe = sources.to_vec();
        Ok(())
    }

    fn follow_interfaces(&mut self) -> Vec<String> {
        let state = self.state();
        state.named.iter().filter(|name| !state.present.contains_key(*name)).cloned().collect()
    }

    fn counters(&self) -> Result<Vec<(u16, Box<RuleTotals>)>, Error> {
        Ok(self.state().counters.iter().map(|(slot, totals)| (*slot, totals.clone())).collect())
    }

    fn explain(&self, packet: &Packet, way: &Way) -> Result<Option<Explanation>, Error> {
        let state = self.state();
        let Some((tables, rows)) = &state.tables else { return Ok(None) };
        let host = || {
            let geometry = Geometry { sets: 64, seed: [1, 2, 3, 4], ..Geometry::default() };
            let mut host = Host::new(geometry, rows);
            host.set_now(state.now);
            state.buckets.iter().for_each(|bucket| {
                host.put(bucket);
            });
            state.bans.iter().for_each(|(prefix, ban)| host.ban(*prefix, *ban));
            host
        };
        Ok(Some(Explanation::of(&host(), &host(), tables, packet, way)))
    }

    fn tidy(&mut self) -> bool {
        false
    }

    fn table(&self) -> Result<TableUse, Error> {
        Ok(self.state().table)
    }

    fn buckets(&self, visit: &mut dyn FnMut(Bucket)) -> Result<(), Error> {
        let state = self.state();
        state.buckets.iter().filter(|bucket| !bucket.is_full(state.now)).for_each(|bucket| visit(*bucket));
        Ok(())
    }

    fn lone_words(&self, slot: u32) -> [u64; 2] {
        self.state().lone_words.get(&slot).copied().unwrap_or_default()
    }

    fn refill(&mut self, prefix: &IpNet, what: Refill) -> Result<u64, Error> {
        let mut filled = 0;
        for bucket in &mut self.state().buckets {
            let is_inside = IpNet::new(bucket.network, bucket.width).is_ok_and(|net| prefix.contains(&net));
            let is_meant = |word: &u64| *word != 0 && (what == Refill::All || word & 1 == 1);
            if is_inside && bucket.words.iter().any(is_meant) {
                bucket.words.iter_mut().filter(|word| is_meant(word)).for_each(|word| *word = 0);
                filled += 1;
            }
        }
        Ok(filled)
    }

    fn ban_capacity(&self) -> Result<u32, Error> {
        Ok(self.state().ban_capacity)
    }

    fn bans(&self) -> Result<Vec<(IpNet, Ban)>, Error> {
        Ok(self.state().bans.iter().map(|(prefix, ban)| (*prefix, *ban)).collect())
    }

    fn put_bans(&mut self, bans: &[(IpNet, Ban)]) -> Result<(), Error> {
        self.state().bans.extend(bans.iter().copied());
        Ok(())
    }

    fn lift_bans(&mut self, prefixes: &[IpNet]) -> Result<(), Error> {
        let mut state = self.state();
        state.bans.retain(|prefix, _| !prefixes.contains(prefix));
        Ok(())
    }
}
