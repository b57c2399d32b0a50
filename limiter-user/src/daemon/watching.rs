//! Drops as they happen. While anybody watches, the program tells of some ([`limiter_common::event`]); they are
//! read here and handed to all who watch. Who is too slow misses some and is told how many: nobody waits for him.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use limiter_common::event::Event;
use limiter_common::packet::Kind;
use limiter_common::verdict::{Outcome, Verdict};
use tokio::sync::broadcast;

use super::core::Core;
use super::prepare::InForce;
use super::refusal::{Kind as RefusalKind, Refusal};
use super::view::FAMILY_NAMES;
use super::{Daemon, guards};
use crate::control::api;

/// How often the ring is looked at: it holds two seconds and a half of what the program may tell.
const PERIOD: Duration = Duration::from_millis(50);

/// How long the program goes on telling when the daemon dies.
const LEASE: Duration = Duration::from_secs(5);

/// How often that is renewed, and what was lost is said.
const RENEWAL: Duration = Duration::from_secs(1);

/// Messages one who watches may be behind.
const ROOM: usize = 4096;

/// Names of [`Kind`], by number.
const KIND_NAMES: [&str; 8] = ["tcp", "tcp-syn", "udp", "sctp", "icmp", "icmpv6", "fragment", "other"];

/// Name of a [`Kind`], by its number.
pub fn kind_name(kind: u8) -> &'static str {
    KIND_NAMES.get(usize::from(kind)).copied().unwrap_or("other")
}

/// One message to those who watch.
#[derive(Clone, Debug)]
pub enum Told {
    Drop(Arc<Drop>),
    /// So many drops were not told of.
    Lost(u64),
}

/// One packet that was dropped, or would have been; of a trace, any.
#[derive(Clone, Debug)]
pub struct Drop {
    pub event: Event,
    pub at: SystemTime,
    pub interface: String,
    /// The rule that decided; empty for none.
    pub rule: String,
    pub outcome: Outcome,
    /// The observing rule that would have dropped it, and why.
    pub observed: Option<(String, Outcome)>,
}

/// What one who watches wants to see.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub rule: Option<String>,
    pub source: Option<IpNet>,
}

impl Filter {
    pub fn matches(&self, drop: &Drop) -> bool {
        let is_of = |rule: &String| {
            (drop.rule == *rule && drop.outcome.verdict() == Verdict::Drop)
                || drop.observed.as_ref().is_some_and(|(observing, _)| observing == rule)
        };
        self.rule.as_ref().is_none_or(is_of)
            && self.source.is_none_or(|net| drop.source().is_some_and(|source| net.contains(&source)))
    }
}

impl Drop {
    /// The source as it was judged; `None` for what is not IP.
    pub fn source(&self) -> Option<IpAddr> {
        let bits = u128::from(self.event.source_high) << 64 | u128::from(self.event.source_low);
        let address = Ipv6Addr::from(bits);
        let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
        (bits != 0).then_some(address)
    }

    /// As it is sent to those who watch, with the frame's bytes only for those who may see them. Of a packet that was not
    /// dropped the verdict is that of the rule that observed it.
    pub fn describe(&self, with_frame: bool) -> api::Event {
        let frame = with_frame.then(|| {
            let bytes = self.event.frame.get(..usize::from(self.event.captured)).unwrap_or_default();
            api::Frame { length: self.event.frame_length, bytes: STANDARD.encode(bytes) }
        });
        match &self.observed {
            Some((rule, outcome)) if self.outcome.verdict() != Verdict::Drop => {
                self.describe_as(rule, *outcome, None, frame)
            }
            observed => self.describe_as(&self.rule, self.outcome, observed.as_ref(), frame),
        }
    }

    /// As it is sent to whoever traces: what became of the packet, and beside it what an observing rule says.
    pub fn describe_decision(&self) -> api::Event {
        self.describe_as(&self.rule, self.outcome, self.observed.as_ref(), None)
    }

    fn describe_as(
        &self,
        rule: &str,
        outcome: Outcome,
        observed: Option<&(String, Outcome)>,
        frame: Option<api::Frame>,
    ) -> api::Event {
        let Event { kind, destination, source_port, .. } = self.event;
        let has_ports = kind <= Kind::Sctp as u8;
        let has_type = kind == Kind::Icmp as u8 || kind == Kind::Icmpv6 as u8;
        let observed = observed.map(|(rule, outcome)| api::Observed {
            rule: rule.clone(),
            reason: outcome.reason().name().to_owned(),
        });
        api::Event {
            time: humantime::format_rfc3339_nanos(self.at).to_string(),
            interface: self.interface.clone(),
            family: FAMILY_NAMES.get(usize::from(self.event.family)).copied().unwrap_or("other").to_owned(),
            source: self.source(),
            protocol: kind_name(kind).to_owned(),
            source_port: has_ports.then_some(source_port),
            destination_port: has_ports.then_some(destination),
            icmp_type: has_type.then_some(destination),
            length: self.event.length,
            rule: rule.to_owned(),
            verdict: outcome.verdict().name().to_owned(),
            reason: outcome.reason().name().to_owned(),
            observed,
            frame,
        }
    }
}

/// Those who watch.
pub struct Watching {
    sender: broadcast::Sender<Told>,
    /// Whether somebody reads for them. Held while that changes.
    reading: Mutex<bool>,
}

impl Default for Watching {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(ROOM), reading: Mutex::new(false) }
    }
}

impl Daemon {
    /// From now on every message, until the receiver is dropped. Blocks; called inside a runtime.
    pub fn watch(self: &Arc<Self>, filter: &Filter) -> Result<broadcast::Receiver<Told>, Refusal> {
        let mut reading = self.watching.reading.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut core = self.core();
            if let Some(rule) = &filter.rule {
                core.require_rule(rule)?;
            }
            let Some(datapath) = &mut core.datapath else { return Err(guards::no_packet_tier()) };
            if !*reading {
                // What was told to somebody who is gone.
                datapath.events(&mut |_| ());
                datapath.watch(LEASE);
            }
        }
        let receiver = self.watching.sender.subscribe();
        if !*reading {
            *reading = true;
            tokio::spawn(read(Arc::clone(self), Reader::new(&self.core())));
        }
        Ok(receiver)
    }

    /// Whether somebody watches still; else the program is told that nobody does.
    fn is_watched(&self) -> bool {
        let mut reading = self.watching.reading.lock().unwrap_or_else(PoisonError::into_inner);
        *reading = self.watching.sender.receiver_count() > 0;
        if !*reading && let Some(datapath) = &mut self.core().datapath {
            datapath.watch(Duration::ZERO);
        }
        *reading
    }
}

async fn read(daemon: Arc<Daemon>, mut reader: Reader) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let daemon = Arc::clone(&daemon);
        let step = move || {
            reader.step(&daemon);
            daemon.is_watched().then_some(reader)
        };
        match tokio::task::spawn_blocking(step).await {
            Ok(Some(next)) => reader = next,
            _ => return,
        }
    }
}

/// Reads for all who watch.
struct Reader {
    renewed: Instant,
    lost: u64,
    namer: Namer,
}

impl Reader {
    fn new(core: &Core) -> Self {
        let lost = core.datapath.as_ref().and_then(|datapath| datapath.events_lost().ok()).unwrap_or(0);
        Self { renewed: Instant::now(), lost, namer: Namer::new(core) }
    }

    fn step(&mut self, daemon: &Daemon) {
        let mut events: Vec<Event> = Vec::new();
        let mut lost = None;
        let in_force = {
            let mut core = daemon.core();
            if self.renewed.elapsed() >= RENEWAL {
                self.renewed = Instant::now();
                self.namer = Namer::new(&core);
                if let Some(datapath) = &mut core.datapath {
                    datapath.watch(LEASE);
                    lost = datapath.events_lost().ok();
                }
            }
            let Some(datapath) = &mut core.datapath else { return };
            datapath.events(&mut |event| events.push(*event));
            core.in_force.clone()
        };
        for drop in self.namer.name(in_force.as_deref(), events) {
            // Nobody is there any more: the next look ends this.
            let _ = daemon.watching.sender.send(Told::Drop(Arc::new(drop)));
        }
        if let Some(lost) = lost {
            let more = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
            if more > 0 {
                let _ = daemon.watching.sender.send(Told::Lost(more));
            }
        }
    }
}

/// Gives the numbers of events their names.
pub struct Namer(BTreeMap<u32, String>);

impl Namer {
    /// With the interfaces that are guarded now.
    pub fn new(core: &Core) -> Self {
        Self(core.guarded().into_iter().map(|guard| (guard.index, guard.name)).collect())
    }

    /// `in_force`: the policy whose rules have the counter slots.
    pub fn name(&self, in_force: Option<&InForce>, events: Vec<Event>) -> Vec<Drop> {
        let slots = in_force.map(|in_force| &in_force.sealed.slots.rules);
        let names: BTreeMap<u16, &str> =
            slots.into_iter().flatten().map(|(name, slot)| (*slot, name.as_str())).collect();
        let name = |slot: u16| match (names.get(&slot), slot) {
            (Some(name), _) => (*name).to_owned(),
            (None, 0) => String::new(),
            (None, slot) => format!("#{slot}"),
        };
        let clocks = Clocks::now();
        let named = events.into_iter().filter_map(|event| {
            Some(Drop {
                at: clocks.wall(event.time),
                interface: self.0.get(&event.interface).cloned().unwrap_or_default(),
                rule: name(event.rule),
                outcome: Outcome::of(event.outcome)?,
                observed: Outcome::of(event.observed).map(|observed| (name(event.observing), observed)),
                event,
            })
        });
        named.collect()
    }
}

/// One moment by two clocks.
struct Clocks {
    wall: SystemTime,
    monotonic: Duration,
}

impl Clocks {
    fn now() -> Self {
        let monotonic = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).ok();
        let monotonic = monotonic.map_or(Duration::ZERO, Duration::from);
        Self { wall: SystemTime::now(), monotonic }
    }

    fn wall(&self, monotonic_ns: u64) -> SystemTime {
        let ago = self.monotonic.saturating_sub(Duration::from_nanos(monotonic_ns));
        self.wall.checked_sub(ago).unwrap_or(self.wall)
    }
}

impl Core {
    /// Refuses a rule the policy in force does not have.
    pub(super) fn require_rule(&self, rule: &str) -> Result<(), Refusal> {
        let is_known =
            self.reading().is_none_or(|reading| reading.policy.rules.iter().any(|known| known.name == rule));
        if is_known {
            return Ok(());
        }
        let hint = "`limiterctl get-policy --effective` lists the rules";
        Err(Refusal::new(RefusalKind::NotFound, format!("no rule is named `{rule}`"), hint))
    }
}
