//! The packet tier as the daemon sees it: publish a policy, guard interfaces, read counters and buckets.
//!
//! [`Datapath`] is the whole border. `Kernel` drives the real program; [`Twin`] keeps the same promises in
//! memory, so that the daemon and its API are tested without a kernel.

mod error;
mod host;
pub mod kernel;
mod twin;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::{
    BYTES, Ban, Counter, Description, FAMILIES, INTERFACE_NAME, Meter, PACKETS, PolicyTables, Row, action,
};
use limiter_common::event::Event;
use limiter_common::judge::{self, Engine, Ruling};
use limiter_common::packet::Packet;
use limiter_common::place;
use limiter_common::verdict::{OUTCOMES, Outcome, Verdict};
use serde::{Deserialize, Serialize};

pub use error::Error;
pub use host::{Host, source_key};
pub use kernel::Kernel;
pub use twin::Twin;

/// How a program is attached. The effective mode of an interface is never `Auto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In the driver, before a socket buffer exists.
    Native,
    /// In the stack, after a socket buffer exists: works everywhere, slower.
    Generic,
    /// Native where the driver can, else generic, and says so.
    #[default]
    Auto,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "native" => Ok(Self::Native),
            "generic" => Ok(Self::Generic),
            "auto" => Ok(Self::Auto),
            other => Err(format!("unknown mode `{other}`: write native, generic or auto")),
        }
    }
}

/// Where a datapath lives and how large its table is made when it is made anew.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory in a bpf file system that holds maps and links.
    pub pin: PathBuf,
    /// Ways of the bucket table, rounded up to a power of two. Adopted pins keep the size they have.
    pub buckets: u32,
    /// Bans there is room for when the maps are made anew.
    pub bans: u32,
}

/// One guarded interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its present name: a renamed interface keeps its guard.
    pub name: String,
    pub index: u32,
    /// `Native` or `Generic`.
    pub mode: Mode,
    pub attached_at: SystemTime,
}

/// What the compiler needs to know of the host's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Spread of the coarse clock in ns.
    pub tick_ns: u64,
    /// Ways of the bucket table in use.
    pub buckets: u32,
}

/// One policy, as the kernel reads it. The sealed text is given beside it.
#[derive(Clone, Copy)]
pub struct Image<'a> {
    pub tables: &'a PolicyTables,
    pub rows: &'a [Row],
    /// Counter slots that belonged to a rule that is gone: zeroed before the policy counts.
    pub reused_rules: &'a [u16],
    /// Meter slots that belonged to a meter that is gone: budgets, lone buckets and crowd cells are zeroed.
    pub reused_meters: &'a [u32],
}

/// Which buckets are to be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    All,
    /// Those that are empty because of a penalty.
    Penalties,
}

/// Load of the bucket table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUse {
    /// Ways there are.
    pub entries: u64,
    /// Ways whose bucket is not full.
    pub used: u64,
    /// Live buckets evicted since the table was made: never goes back.
    pub pressure: u64,
}

/// One bucket of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The masked source: IPv4 also when it came carried in IPv6.
    pub network: IpAddr,
    /// Prefix length in the address's own family: a lone IPv4 source is 32.
    pub width: u8,
    /// [`Meter::id`].
    pub meter: u32,
    /// Packets admitted since the bucket was claimed.
    pub passed: u64,
    /// Packets dropped, sampled: every 32nd drop of a CPU counts 32.
    pub dropped: u64,
    /// Bucket words by unit: time in 1/64 ns since the table's epoch, shifted left by one, and the penalty mark.
    pub words: [u64; 2],
}

impl Bucket {
    /// From what the table holds of a way.
    pub fn new(description: &Description, words: [u64; 2]) -> Self {
        let bits = (u128::from(description.network_high) << 64) | u128::from(description.network_low);
        let address = Ipv6Addr::from(bits);
        let (network, width) = match address.to_ipv4_mapped() {
            Some(v4) if description.width >= 96 => (IpAddr::V4(v4), description.width - 96),
            _ => (IpAddr::V6(address), description.width),
        };
        Self {
            network,
            width,
            meter: description.meter,
            passed: description.passed,
            dropped: description.dropped,
            words,
        }
    }

    /// How empty the bucket is, 0 full … 1 nothing left: the larger of its units. `now` is [`Datapath::now`].
    pub fn fill(&self, meter: &Meter, now: u64) -> f64 {
        [PACKETS, BYTES].into_iter().map(|unit| self.fill_of(unit, meter, now)).fold(0.0, f64::max)
    }

    fn fill_of(&self, unit: usize, meter: &Meter, now: u64) -> f64 {
        let tolerance = meter.rates[unit].tolerance;
        if meter.rates[unit].multiplier == 0 || tolerance == 0 {
            return 0.0;
        }
        let ahead = (self.words[unit] >> 1).saturating_sub(now).min(tolerance);
        ahead as f64 / tolerance as f64
    }

    /// The time until when a penalty refuses its source.
    pub fn penalised_until(&self, now: u64) -> Option<u64> {
        let marked = self.words.iter().filter(|word| **word & 1 == 1).map(|word| word >> 1);
        marked.max().filter(|until| *until > now)
    }

    /// Whether the bucket is full at `now`, hence no different from one that does not exist.
    pub fn is_full(&self, now: u64) -> bool {
        self.words.iter().all(|word| word >> 1 <= now)
    }
}

/// Names of interfaces as a policy's tables hold them.
pub fn interface_names(names: &[[u8; INTERFACE_NAME]]) -> Vec<String> {
    let texts = names.iter().map(|name| name.split(|byte| *byte == 0).next().unwrap_or_default());
    texts.take_while(|name| !name.is_empty()).map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// Where a packet comes in and where it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Name of the interface.
    pub interface: Option<String>,
    pub destination: Option<IpAddr>,
}

impl Way {
    /// Its place class, see [`limiter_common::place`].
    fn class(&self, tables: &PolicyTables) -> u8 {
        let names = interface_names(&tables.places.interface_names);
        let interface = names.iter().position(|name| Some(name) == self.interface.as_ref());
        let destination = match self.destination {
            Some(IpAddr::V4(address)) => u128::from(address.to_ipv6_mapped()),
            Some(IpAddr::V6(address)) => u128::from(address),
            None => 0,
        };
        place::class(
            &tables.header,
            &tables.places,
            || interface.map_or(0, |position| position + 1),
            || [(destination >> 64) as u64, destination as u64],
            |number| number,
        )
    }
}

/// What would become of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub ruling: Ruling,
    /// By [`Meter::id`], the limits of the rule that decides in its order, each with the source's bucket before the
    /// packet; `None` where it has no bucket, which is a full one.
    pub limits: Vec<(u32, Option<Bucket>)>,
    /// Which of them refuses.
    pub refused_by: Option<u32>,
    /// The time of the bucket words.
    pub now: u64,
}

impl Explanation {
    /// `engine` keeps to itself what is written there; `before` is not written to.
    fn of<E: Engine>(engine: E, before: E, tables: &PolicyTables, packet: &Packet, way: &Way) -> Self {
        let mut judged = Packet { place: way.class(tables), ..*packet };
        let ruling = judge::judge(engine, tables, &mut judged);
        let rule = &tables.rules[usize::from(ruling.rule)];
        let id_of = |meter: u16| tables.meters[usize::from(meter)].id;
        let is_limited = rule.action == action::LIMIT && ruling.outcome.is_of_limits();
        let count = if is_limited { usize::from(rule.meter_count) } else { 0 };
        let limits = rule.meters[..count].iter().map(|&meter| {
            let found = judge::bucket_of(before, tables, &judged, meter);
            (id_of(meter), found.map(|(words, description)| Bucket::new(&description, words)))
        });
        // A newcomer is refused before any of them.
        let refuses = is_limited
            && ruling.outcome.verdict() == Verdict::Drop
            && ruling.outcome != Outcome::DropNewcomer;
        Self {
            ruling,
            limits: limits.collect(),
            refused_by: refuses.then(|| id_of(ruling.refused_meter)),
            now: before.now(false),
        }
    }
}

/// Counters of one rule, summed over CPUs: `[outcome][family]`.
pub type RuleTotals = [[Counter; FAMILIES]; OUTCOMES];

/// Packets of one rule of a policy judged beside: `[dropped by the one in force][it would drop them]`.
pub type Comparison = [[Counter; 2]; 2];

/// What guards packets. Every method may be slow (system calls); none waits for the network.
pub trait Datapath: Send {
    /// The text kept beside the policy in force; `None` when no policy was ever published here.
    fn sealed(&self) -> Option<Vec<u8>>;

    fn facts(&self) -> Facts;

    /// The time of bucket words: 1/64 ns since the table's epoch.
    fn now(&self) -> u64;

    /// Puts a policy in force, whole or not at all: no packet is judged by a mixture.
    ///
    /// With `confirm_within` the policy before is in force again, by itself, once that time has passed without
    /// [`Datapath::confirm`]. A policy published meanwhile without it takes the place of the one that waits,
    /// and waits on.
    fn publish(
        &mut self,
        image: Image<'_>,
        sealed: &[u8],
        confirm_within: Option<Duration>,
    ) -> Result<(), Error>;

    /// The time left to confirm the policy in force; `None` when nothing waits, or no longer.
    fn unconfirmed(&self) -> Option<Duration>;

    /// Keeps the policy in force. False when it has fallen back, or nothing waits.
    fn confirm(&mut self) -> bool;

    /// Ends the wait: the policy before is in force. Nothing waits: nothing happens.
    fn fall_back(&mut self);

    /// For so long packets are judged and counted and none is dropped; zero = they are dropped again.
    fn pause(&mut self, time: Duration);

    /// The time left of a pause.
    fn paused(&self) -> Option<Duration>;

    /// For so long the program tells of what it drops, as far as its budget goes; zero = no longer.
    fn watch(&mut self, time: Duration);

    /// Takes what was told of since the last call, oldest first.
    fn events(&mut self, visit: &mut dyn FnMut(&Event));

    /// Packets that should have been told of and were not, because the budget or the ring was full. Never goes back.
    fn events_lost(&self) -> Result<u64, Error>;

    /// For so long the program tells of every decision about packets from a prefix, as far as the budget of traces goes.
    /// A trace that runs already ends.
    fn start_trace(&mut self, prefix: IpNet, time: Duration) -> Result<(), Error>;

    /// Takes what was told of since the last call, as events without frames; decisions made since the trace began.
    fn traced(&mut self, visit: &mut dyn FnMut(&Event)) -> u64;

    /// Ends a trace: the program is the one before.
    fn stop_trace(&mut self);

    /// Judges every packet by another policy too, which decides nothing: with buckets and counters of its own, and the
    /// same bans. Takes the place of one that is judged beside already. Ends with this process.
    fn observe(&mut self, image: Image<'_>) -> Result<(), Error>;

    /// Ends that.
    fn stop_observing(&mut self);

    /// The datapath of the policy judged beside, while there is one: it guards nothing.
    fn shadow(&mut self) -> Option<&mut dyn Datapath>;

    /// How its verdicts differ, by the counter slots of its rules; slots without a packet left out.
    fn compared(&self) -> Result<Vec<(u16, Comparison)>, Error>;

    /// Guards an interface. One that is guarded already in that mode (or any, for `Auto`) is left as it is.
    /// `replace` takes the place of a foreign program.
    fn attach(&mut self, interface: &str, mode: Mode, replace: bool) -> Result<Interface, Error>;

    /// Ends the guard of an interface and removes its pins.
    fn detach(&mut self, interface: &str) -> Result<(), Error>;

    /// The interfaces guarded now. One whose NIC went away is not among them.
    fn interfaces(&self) -> Vec<Interface>;

    /// Makes rules with `interface` mean the interfaces that have their names now. Those named by the policy in force
    /// that are absent. To be called when an interface came, went or was renamed; publishing does it too.
    fn follow_interfaces(&mut self) -> Vec<String>;

    /// No penalty hits these sources, each as wide as the policy says. Those that were not among them are freed of
    /// theirs.
    fn keep_safe(&mut self, sources: &[IpNet]) -> Result<(), Error>;

    /// Totals by counter slot, slots without a packet left out.
    fn counters(&self) -> Result<Vec<(u16, Box<RuleTotals>)>, Error>;

    fn table(&self) -> Result<TableUse, Error>;

    /// What the next such packet would get, by the policy and the buckets of this moment. Charges and counts nothing.
    /// `None` without a policy.
    fn explain(&self, packet: &Packet, way: &Way) -> Result<Option<Explanation>, Error>;

    /// Work that keeps the datapath fast but that nothing depends on, to be called every few seconds: thins the filter
    /// in front of the bucket table. Whether there was anything to do.
    fn tidy(&mut self) -> bool;

    /// Every described bucket that is not full, read live through the mapping.
    fn buckets(&self, visit: &mut dyn FnMut(Bucket)) -> Result<(), Error>;

    /// What does not work as it should, in sentences for `status`.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// The words, by unit, of the one bucket of the meter in that slot.
    fn lone_words(&self, slot: u32) -> [u64; 2];

    /// Fills buckets of every source in a prefix; how many were not full.
    fn refill(&mut self, prefix: &IpNet, what: Refill) -> Result<u64, Error>;

    /// Bans there is room for.
    fn ban_capacity(&self) -> Result<u32, Error>;

    /// The bans held, those that have ended and were not lifted included.
    fn bans(&self) -> Result<Vec<(IpNet, Ban)>, Error>;

    /// Adds bans, or puts them in the place of those of the same prefix. On an error some may have been put.
    ///
    /// An IPv4 prefix also means the same addresses carried in IPv6. No IPv6 prefix may hold `::ffff:0:0/96`.
    fn put_bans(&mut self, bans: &[(IpNet, Ban)]) -> Result<(), Error>;

    /// Lifts the bans of these prefixes; there need not be any.
    fn lift_bans(&mut self, prefixes: &[IpNet]) -> Result<(), Error>;
}
