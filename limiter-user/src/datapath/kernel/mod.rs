//! The kernel's datapath: maps, program and links, all pinned, so that nothing ends with this process.
//!
//! A daemon that starts adopts what it finds: the maps as they are, and each link, behind which it puts its
//! own program in one step. Between two daemons the old program goes on.

mod bans;
mod btf;
mod clock;
mod control;
mod dry;
mod events;
mod filter;
mod interfaces;
mod links;
mod load;
mod mapped;
mod netlink;
mod observe;
mod penalties;
mod proof;
mod refill;
mod relax;
mod sys;
mod trace;

use std::cell::OnceCell;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{ArrayOfMaps, MapData, PerCpuArray, PerCpuValues, RingBuf};
use aya::programs::Xdp;
use ipnet::IpNet;
use limiter_common::abi::{
    BYTES, Ban, BucketSet, CROWD_CELLS, Counter, CrowdCell, FAMILIES, FilterLine, Geometry, HAS_NEWCOMERS,
    Header, LoneWord, MAX_RULES, Meter, PACKETS, POLICY_SLOTS, PolicyTables, ROW_BYTES, Row, RuleCounters,
    WAYS, lone,
};
use limiter_common::event::Event;
use limiter_common::filter::lines as filter_lines;
use limiter_common::packet::Packet;
use limiter_common::verdict::OUTCOMES;
use limiter_common::{bucket, hash};

use self::clock::Clock;
use self::control::Selector;
use self::links::Guard;
pub use self::load::FLOOR;
use self::load::{refused, refused_program};
use self::mapped::Mapped;
use self::proof::Proof;
use self::sys::Plain;
use super::{
    Bucket, Comparison, Datapath, Error, Explanation, Facts, Image, Interface, Mode, Options, Refill,
    RuleTotals, TableUse, Way,
};

/// See the module.
pub struct Kernel {
    options: Options,
    geometry: Geometry,
    ebpf: Ebpf,
    program: &'static str,
    guards: Vec<Guard>,
    policies: Mapped<PolicyTables>,
    selector: Selector,
    buckets: Mapped<BucketSet>,
    filter: Mapped<FilterLine>,
    /// Live buckets when the filter was last refilled.
    live_in_filter: usize,
    crowd: Mapped<CrowdCell>,
    budgets: Mapped<LoneWord>,
    /// While a policy has newcomers; else, or without, why there is none.
    proof: Result<Option<Proof>, Error>,
    /// The prefix images by slot, held so that they can be pinned again.
    images: [Option<MapData>; POLICY_SLOTS],
    ring: RingBuf<MapData>,
    /// Loaded when it is first asked.
    clock: OnceCell<Clock>,
    /// The trace that runs.
    trace: Option<trace::Trace>,
    /// What judges beside, while it does.
    observation: Option<Box<observe::Observation>>,
}

impl Kernel {
    /// Adopts the maps and links under `options.pin`, or makes the maps.
    pub fn open(options: &Options) -> Result<Self, Error> {
        observe::forget(&options.pin);
        let mut kernel = Self::load(load::OBJECT, ["limiter", "limiter_frags"], options)?;
        kernel.keep_proof();
        // Only a published policy is judged by; a guard without one cannot have been left behind.
        kernel.renew_guards()?;
        Ok(kernel)
    }

    /// Loads the program of the object, the second where frames come in several buffers, on the maps under
    /// `options.pin`.
    fn load(object: &[u8], programs: [&'static str; 2], options: &Options) -> Result<Self, Error> {
        let (mut ebpf, geometry) = load::load(object, options)?;
        let program = programs[usize::from(load::has_multi_buffer())];
        xdp(&mut ebpf, program)?.load().map_err(refused_program)?;
        Ok(Self {
            options: options.clone(),
            trace: None,
            observation: None,
            geometry,
            program,
            guards: Guard::adopt(&options.pin)?,
            policies: mapped(&ebpf, "POLICIES", POLICY_SLOTS as u32)?,
            selector: Selector(mapped(&ebpf, "CONTROL", 1)?),
            buckets: mapped(&ebpf, "BUCKETS", geometry.sets)?,
            filter: mapped(&ebpf, "FILTER", filter_lines(geometry.sets))?,
            live_in_filter: 0,
            crowd: mapped(&ebpf, "CROWD", (limiter_common::abi::MAX_METERS * CROWD_CELLS) as u32)?,
            budgets: mapped(&ebpf, "BUDGETS", lone::COUNT as u32)?,
            proof: Ok(None),
            images: adopt_images(&options.pin)?,
            ring: events::ring(&options.pin)?,
            clock: OnceCell::new(),
            ebpf,
        })
    }

    /// Loads the probe on the maps under `options.pin`, for tests and benches. Its programs are not loaded yet.
    pub fn open_probe(options: &Options) -> Result<Ebpf, Error> {
        load::load(load::PROBE, options).map(|(ebpf, _)| ebpf)
    }

    /// Ends guards without a daemon: that of `interface`, or all of them. With the last one goes everything
    /// pinned. Returns the number of guards ended.
    pub fn detach_direct(pin: &Path, interface: Option<&str>) -> Result<Vec<String>, Error> {
        load::require_bpffs(pin)?;
        if !pin.exists() {
            return match interface {
                Some(interface) => Err(Error::NotAttached { interface: interface.to_owned() }),
                None => Ok(Vec::new()),
            };
        }
        let (ended, kept): (Vec<_>, Vec<_>) = match interface {
            None => (Guard::adopt(pin)?, Vec::new()),
            Some(interface) => {
                let index = links::index_of(interface)?;
                Guard::adopt(pin)?.into_iter().partition(|guard| guard.index() == index)
            }
        };
        if let Some(interface) = interface
            && ended.is_empty()
        {
            return Err(Error::NotAttached { interface: interface.to_owned() });
        }
        let mut names = Vec::new();
        for guard in ended {
            let gone = || format!("index {}", guard.index());
            names.push(guard.interface().map_or_else(gone, |interface| interface.name));
            guard.detach(pin)?;
        }
        if kept.is_empty() {
            remove_pins(pin)?;
        }
        Ok(names)
    }

    /// Keys and size of the table.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The guard's program, for `BPF_PROG_TEST_RUN`.
    pub fn program(&mut self) -> Result<&mut Xdp, Error> {
        xdp(&mut self.ebpf, self.program)
    }

    /// What is to be behind every link now.
    fn guarding(&mut self) -> Result<OwnedFd, Error> {
        let program = match (&mut self.trace, &mut self.observation) {
            (Some(trace), _) => trace.program()?,
            (None, Some(observation)) => observation.program()?,
            (None, None) => xdp(&mut self.ebpf, self.program)?.fd().map_err(refused)?,
        };
        program.as_fd().try_clone_to_owned().map_err(|error| Error::io("hold a program", error))
    }

    /// Puts it there. One whose interface went away is no reason to leave the others.
    fn renew_guards(&mut self) -> Result<(), Error> {
        let program = self.guarding()?;
        let renewed: Vec<_> = self.guards.iter().map(|guard| guard.update(program.as_fd())).collect();
        renewed.into_iter().collect()
    }

    fn slot(&self) -> u32 {
        self.selector.slot(self.now())
    }

    /// The header of the policy in force.
    fn header(&self) -> Header {
        let tables = self.policies.get(self.slot() as usize);
        // SAFETY: a live value; the slot in force is never written.
        unsafe { (*tables).header }
    }

    /// Who is proven is asked by the policy in force, by one that waits to be in force again, or not at all.
    fn keep_proof(&mut self) {
        let slots = [self.selector.candidate(), self.slot()];
        let waiting = self.selector.pending(self.now()).map(|_| self.selector.waiting());
        let is_asked = slots.into_iter().chain(waiting).any(|slot| {
            // SAFETY: a live value, and only this process writes it, at another time.
            unsafe { (*self.policies.get(slot as usize)).header }.flags & HAS_NEWCOMERS != 0
        });
        match (is_asked, std::mem::replace(&mut self.proof, Ok(None))) {
            (true, Ok(Some(proof))) => self.proof = Ok(Some(proof)),
            (true, _) => self.proof = Proof::keep(&self.options).map(Some),
            (false, Ok(Some(proof))) => proof.end(&self.options.pin),
            // What an earlier daemon left.
            (false, _) => Proof::forget(&self.options.pin),
        }
    }

    /// After the last guard ended all pins went too; before anything is guarded again they must be back.
    fn ensure_pinned(&self) -> Result<(), Error> {
        if load::is_pinned(&self.options.pin) {
            return Ok(());
        }
        load::pin_again(&self.options.pin, &self.ebpf, &self.geometry)?;
        for (slot, image) in (0..).zip(&self.images) {
            if let Some(image) = image {
                image.pin(load::image_path(&self.options.pin, slot)).map_err(refused)?;
            }
        }
        Ok(())
    }

    fn map(&self, name: &str) -> Result<&aya::maps::Map, Error> {
        self.ebpf
            .map(name)
            .ok_or_else(|| Error::Refused { reason: format!("the object has no map `{name}`") })
    }

    /// Fills the slot's prefix image, sealed text behind the prefixes, and puts it into the slot. The kernel
    /// waits in there until no packet can still be reading what the slot held before.
    fn publish_image(&mut self, slot: u32, rows: &[Row], sealed: &[u8]) -> Result<(), Error> {
        let total = rows.len() + sealed.len().div_ceil(ROW_BYTES);
        let too_large = || Error::PolicyTooLarge { what: format!("{total} rows of prefixes and text") };
        let entries = u32::try_from(total.max(1)).map_err(|_| too_large())?;
        let image = make_image(&self.options.pin, slot, entries)?;
        let mapped = Mapped::<Row>::new(image.fd(), entries)
            .map_err(|error| Error::io("map a prefix image", error))?;
        for (index, row) in rows.iter().enumerate() {
            // SAFETY: inside the mapping; nobody reads an image that is in no slot.
            unsafe { mapped.get(index).write(*row) };
        }
        for (index, part) in sealed.chunks(ROW_BYTES).enumerate() {
            // SAFETY: as above; a part is at most one row.
            unsafe { mapped.get(rows.len() + index).cast::<u8>().copy_from(part.as_ptr(), part.len()) };
        }
        let prefixes = self
            .ebpf
            .map_mut("PREFIXES")
            .ok_or_else(|| Error::Refused { reason: "the object has no map `PREFIXES`".to_owned() })?;
        let mut prefixes = ArrayOfMaps::<_, MapData>::try_from(prefixes).map_err(refused)?;
        prefixes.set(slot, &image, 0).map_err(refused)?;
        self.images[slot as usize % POLICY_SLOTS] = Some(image);
        Ok(())
    }

    /// Zeroes what a retired rule or meter left in a slot that is used anew.
    fn zero_reused(&mut self, image: &Image<'_>) -> Result<(), Error> {
        let cpus = nr_cpus()?;
        let counters = self
            .ebpf
            .map_mut("COUNTERS")
            .ok_or_else(|| Error::Refused { reason: "the object has no map `COUNTERS`".to_owned() })?;
        let mut counters = PerCpuArray::<_, Plain<RuleCounters>>::try_from(counters).map_err(refused)?;
        for &rule in image.reused_rules {
            let zero = Plain(RuleCounters([[Counter::default(); FAMILIES]; OUTCOMES]));
            let zeroes = PerCpuValues::try_from(vec![zero; cpus])
                .map_err(|error| Error::io("zero a rule's counters", error))?;
            counters.set(u32::from(rule), zeroes, 0).map_err(refused)?;
        }
        for &meter in image.reused_meters {
            let meter = meter as usize % limiter_common::abi::MAX_METERS;
            for word in 0..size_of::<LoneWord>() / 8 {
                self.budgets.word(meter, word).store(0, Ordering::SeqCst);
            }
            for cell in 0..CROWD_CELLS {
                for unit in [PACKETS, BYTES] {
                    self.crowd.word(meter * CROWD_CELLS + cell, unit).store(0, Ordering::SeqCst);
                }
            }
        }
        Ok(())
    }

    /// Guards whose interface went away are forgotten, with their pins.
    fn drop_defunct(&mut self) {
        let (kept, gone): (Vec<_>, Vec<_>) =
            self.guards.drain(..).partition(|guard| guard.interface().is_some());
        self.guards = kept;
        for guard in gone {
            guard.forget(&self.options.pin);
        }
    }
}

impl Datapath for Kernel {
    fn sealed(&self) -> Option<Vec<u8>> {
        let header = self.header();
        if header.abi == 0 {
            return None;
        }
        let image = self.images[self.slot() as usize].as_ref()?;
        let bytes = usize::try_from(header.sealed_bytes).ok()?;
        let first = header.sealed_row;
        let last = first + u32::try_from(bytes.div_ceil(ROW_BYTES)).ok()?;
        let mapped = Mapped::<Row>::new(image.fd(), last).ok()?;
        let mut text = Vec::with_capacity((last - first) as usize * ROW_BYTES);
        for row in first..last {
            // SAFETY: inside the mapping; an image in force is never written.
            text.extend_from_slice(unsafe { &(*mapped.get(row as usize)).0 });
        }
        text.truncate(bytes);
        Some(text)
    }

    fn facts(&self) -> Facts {
        Facts { tick_ns: load::tick_ns(), buckets: self.geometry.sets * WAYS as u32 }
    }

    fn now(&self) -> u64 {
        bucket::ticks(load::monotonic_ns(), self.geometry.epoch)
    }

    fn publish(
        &mut self,
        image: Image<'_>,
        sealed: &[u8],
        confirm_within: Option<Duration>,
    ) -> Result<(), Error> {
        self.ensure_pinned()?;
        // What buckets were charged by: a policy that fell back has left its mark in them too.
        let charged_by = [self.selector.candidate(), self.slot()];
        self.selector.settle(self.now());
        let slot = self.selector.free(self.now());
        self.publish_image(slot, image.rows, sealed)?;
        self.zero_reused(&image)?;
        let header = Header {
            abi: limiter_common::abi::ABI_VERSION,
            sealed_row: image.rows.len() as u32,
            sealed_bytes: sealed.len() as u64,
            ..image.tables.header
        };
        let released = penalties::released(
            // SAFETY: live values, and only this writes them.
            charged_by.map(|slot| unsafe { &*self.policies.get(slot as usize) }),
            image.tables,
        );
        let mut relaxed = relax::relaxed(
            // SAFETY: live values, and only this writes them.
            charged_by.map(|slot| unsafe { &(*self.policies.get(slot as usize)).meters }),
            &image.tables.meters,
        );
        // What was zeroed was charged until this moment by whom it belonged to.
        let takes_over = |meter: &&Meter| meter.id != 0 && image.reused_meters.contains(&meter.slot);
        relaxed.extend(image.tables.meters.iter().filter(takes_over));
        let tables = self.policies.get(slot as usize);
        // SAFETY: inside the mapping, and no packet reads this slot: it has not been in force since before
        // the wait in `publish_image`.
        unsafe {
            tables.copy_from(image.tables, 1);
            (&raw mut (*tables).header).write(header);
        }
        self.write_interfaces();
        // Never 0, which would be no deadline.
        let until = confirm_within.map_or(0, |time| self.now() + to_ticks(time).max(1));
        self.selector.put_in_force(slot, until);
        self.relax(&relaxed);
        self.release(&released);
        self.keep_proof();
        Ok(())
    }

    fn unconfirmed(&self) -> Option<Duration> {
        self.selector.pending(self.now()).map(to_duration)
    }

    fn confirm(&mut self) -> bool {
        self.selector.confirm(self.now())
    }

    fn fall_back(&mut self) {
        let candidate = self.selector.candidate();
        self.selector.fall_back();
        // SAFETY: live values, and only this writes them.
        let tables = [candidate, self.slot()].map(|slot| unsafe { &*self.policies.get(slot as usize) });
        self.release(&penalties::released([tables[0]], tables[1]));
    }

    fn pause(&mut self, time: Duration) {
        let until = if time.is_zero() { 0 } else { self.now().saturating_add(to_ticks(time)) };
        self.selector.pause(until);
    }

    fn paused(&self) -> Option<Duration> {
        self.selector.paused(self.now()).map(to_duration)
    }

    fn watch(&mut self, time: Duration) {
        let until = if time.is_zero() { 0 } else { self.now().saturating_add(to_ticks(time)) };
        self.selector.watch(until);
    }

    fn events(&mut self, visit: &mut dyn FnMut(&Event)) {
        events::take(&mut self.ring, visit);
    }

    fn events_lost(&self) -> Result<u64, Error> {
        self.sum("EVENTS_LOST")
    }

    fn start_trace(&mut self, prefix: IpNet, time: Duration) -> Result<(), Error> {
        self.begin_trace(prefix, time)
    }

    fn traced(&mut self, visit: &mut dyn FnMut(&Event)) -> u64 {
        self.trace.as_mut().map_or(0, |trace| trace.take(visit))
    }

    fn stop_trace(&mut self) {
        self.end_trace();
    }

    fn observe(&mut self, image: Image<'_>) -> Result<(), Error> {
        self.begin_observation(image)
    }

    fn stop_observing(&mut self) {
        self.end_observation();
    }

    fn shadow(&mut self) -> Option<&mut dyn Datapath> {
        self.observation.as_mut().map(|observation| observation.shadow() as &mut dyn Datapath)
    }

    fn compared(&self) -> Result<Vec<(u16, Comparison)>, Error> {
        self.observation.as_ref().map_or(Ok(Vec::new()), |observation| observation.compared())
    }

    fn attach(&mut self, interface: &str, mode: Mode, replace: bool) -> Result<Interface, Error> {
        let index = links::index_of(interface)?;
        self.drop_defunct();
        let held = self.guards.iter().position(|guard| guard.index() == index);
        let before = held.and_then(|position| self.guards[position].interface());
        if let Some(found) = &before
            && (mode == Mode::Auto || mode == found.mode)
        {
            return Ok(found.clone());
        }
        self.ensure_pinned()?;
        self.keep_proof();
        let program = self.guarding()?;
        if let Some(position) = held {
            links::require_mode(interface, index, mode)?;
            tracing::warn!(interface, %mode, "changing the mode: packets pass unjudged until it is done");
            self.guards[position].detach(&self.options.pin)?;
            self.guards.remove(position);
        }
        let attach =
            |mode, replace| Guard::attach(&self.options.pin, program.as_fd(), interface, mode, replace);
        let guard = match (attach(mode, replace), before) {
            (Ok(guard), _) => guard,
            (Err(error), None) => return Err(error),
            // The kernel takes none beside one in another mode, so that had to go first.
            (Err(error), Some(before)) => {
                self.guards.push(attach(before.mode, false)?);
                tracing::warn!(interface, mode = %before.mode, "mode not changed: the guard there was is back");
                return Err(error);
            }
        };
        let attached = guard.interface();
        self.guards.push(guard);
        attached.ok_or_else(|| Error::NoSuchInterface { interface: interface.to_owned() })
    }

    fn detach(&mut self, interface: &str) -> Result<(), Error> {
        let index = links::index_of(interface)?;
        let position = self
            .guards
            .iter()
            .position(|guard| guard.index() == index)
            .ok_or_else(|| Error::NotAttached { interface: interface.to_owned() })?;
        self.guards[position].detach(&self.options.pin)?;
        self.guards.remove(position);
        if self.guards.is_empty() {
            // Its pin goes too, and without one it would end with this process.
            self.proof = Ok(None);
            remove_pins(&self.options.pin)?;
        }
        Ok(())
    }

    fn interfaces(&self) -> Vec<Interface> {
        self.guards.iter().filter_map(Guard::interface).collect()
    }

    fn keep_safe(&mut self, sources: &[IpNet]) -> Result<(), Error> {
        self.set_safe(sources)
    }

    fn follow_interfaces(&mut self) -> Vec<String> {
        self.write_interfaces();
        if let Some(observation) = &mut self.observation {
            observation.shadow().write_interfaces();
        }
        self.absent()
    }

    fn counters(&self) -> Result<Vec<(u16, Box<RuleTotals>)>, Error> {
        let counters =
            PerCpuArray::<_, Plain<RuleCounters>>::try_from(self.map("COUNTERS")?).map_err(refused)?;
        let mut totals = Vec::new();
        for slot in 0..MAX_RULES as u16 {
            let mut sum: Box<RuleTotals> = Box::new([[Counter::default(); FAMILIES]; OUTCOMES]);
            for Plain(RuleCounters(part)) in counters.get(&u32::from(slot), 0).map_err(refused)?.iter() {
                for (sum, part) in sum.iter_mut().flatten().zip(part.iter().flatten()) {
                    sum.packets += part.packets;
                    sum.bytes += part.bytes;
                }
            }
            if sum.iter().flatten().any(|counter| counter.packets != 0) {
                totals.push((slot, sum));
            }
        }
        Ok(totals)
    }

    fn explain(&self, packet: &Packet, way: &Way) -> Result<Option<Explanation>, Error> {
        self.judge_dry(packet, way)
    }

    fn tidy(&mut self) -> bool {
        let shadow = self.observation.as_mut().is_some_and(|observation| observation.shadow().thin_filter());
        self.thin_filter() | shadow
    }

    fn table(&self) -> Result<TableUse, Error> {
        let pressure = self.sum("PRESSURE")?;
        let mut used = 0;
        self.each_live(|_, _, _| used += 1);
        Ok(TableUse { entries: (self.buckets.len() * WAYS) as u64, used, pressure })
    }

    fn buckets(&self, visit: &mut dyn FnMut(Bucket)) -> Result<(), Error> {
        self.each_live(|set, way, words| {
            // SAFETY: inside the mapping. A torn copy is caught by its tag below.
            let description = unsafe { (*self.buckets.get(set)).descriptions[way] };
            let network = hash::network(&self.geometry, description.network_high, description.network_low);
            if hash::tag(network, description.meter) == self.tag(set, way) {
                visit(Bucket::new(&description, words));
            }
        });
        Ok(())
    }

    fn troubles(&self) -> Vec<String> {
        let unproven = self.proof.as_ref().err();
        let say = |error| format!("no source is proven, so newcomers are all alike: {error}");
        unproven.map(say).into_iter().collect()
    }

    fn lone_words(&self, slot: u32) -> [u64; 2] {
        let slot = slot as usize % limiter_common::abi::MAX_METERS;
        [PACKETS, BYTES].map(|unit| self.budgets.word(slot, unit).load(Ordering::Relaxed))
    }

    fn refill(&mut self, prefix: &IpNet, what: Refill) -> Result<u64, Error> {
        Ok(self.refill_buckets(&[*prefix], what))
    }

    fn ban_capacity(&self) -> Result<u32, Error> {
        self.count_of_bans()
    }

    fn bans(&self) -> Result<Vec<(IpNet, Ban)>, Error> {
        self.held_bans()
    }

    fn put_bans(&mut self, bans: &[(IpNet, Ban)]) -> Result<(), Error> {
        let result = self.insert_bans(bans);
        self.tell_of_bans().and(result)
    }

    fn lift_bans(&mut self, prefixes: &[IpNet]) -> Result<(), Error> {
        let result = self.remove_bans(prefixes);
        self.tell_of_bans().and(result)
    }
}

impl Kernel {
    /// The one counter of a map, over all CPUs.
    fn sum(&self, map: &str) -> Result<u64, Error> {
        let counter = PerCpuArray::<_, u64>::try_from(self.map(map)?).map_err(refused)?;
        Ok(counter.get(&0, 0).map_err(refused)?.iter().sum())
    }

    fn tag(&self, set: usize, way: usize) -> u64 {
        self.buckets.word(set, way).load(Ordering::Relaxed)
    }

    /// Every way whose bucket is not full.
    fn each_live(&self, mut visit: impl FnMut(usize, usize, [u64; 2])) {
        let now = self.now();
        for set in 0..self.buckets.len() {
            for way in 0..WAYS {
                if self.tag(set, way) == 0 {
                    continue;
                }
                let word =
                    |unit: usize| self.buckets.word(set, WAYS * (1 + unit) + way).load(Ordering::Relaxed);
                let words = [word(PACKETS), word(BYTES)];
                if words.iter().any(|word| !bucket::is_full(*word, now)) {
                    visit(set, way, words);
                }
            }
        }
    }
}

/// Ticks of 1/64 ns.
fn to_ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(64)).unwrap_or(u64::MAX)
}

fn to_duration(ticks: u64) -> Duration {
    Duration::from_nanos(ticks / 64)
}

fn xdp<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, Error> {
    ebpf.program_mut(name)
        .ok_or_else(|| Error::Refused { reason: format!("the object has no program `{name}`") })?
        .try_into()
        .map_err(refused)
}

fn mapped<T>(ebpf: &Ebpf, name: &str, entries: u32) -> Result<Mapped<T>, Error> {
    match ebpf.map(name) {
        Some(aya::maps::Map::Array(map)) => {
            Mapped::new(map.fd(), entries).map_err(|error| Error::io(format!("map `{name}`"), error))
        }
        _ => Err(Error::Refused { reason: format!("the object has no array `{name}`") }),
    }
}

fn adopt_images(pin: &Path) -> Result<[Option<MapData>; POLICY_SLOTS], Error> {
    let mut images = [const { None }; POLICY_SLOTS];
    for (slot, image) in (0..).zip(&mut images) {
        let path = load::image_path(pin, slot);
        if path.exists() {
            *image = Some(MapData::from_pin(&path).map_err(refused)?);
        }
    }
    Ok(images)
}

/// A new image, pinned in the place of the slot's one before.
fn make_image(pin: &Path, slot: u32, entries: u32) -> Result<MapData, Error> {
    let path = load::image_path(pin, slot);
    let _ = fs::remove_file(&path);
    let image = load::new_image(entries)?;
    image.pin(&path).map_err(refused)?;
    Ok(image)
}

fn remove_pins(pin: &Path) -> Result<(), Error> {
    fs::remove_dir_all(pin).map_err(|error| Error::io(format!("remove `{}`", pin.display()), error))
}

fn nr_cpus() -> Result<usize, Error> {
    aya::util::nr_cpus().map_err(|(file, error)| Error::io(format!("read `{file}`"), error))
}
