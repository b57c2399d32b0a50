//! Drops by what is in the packets, for `top`: buckets know their source alone.
//!
//! From the first question on a collector watches, and keeps what it saw in the last seconds, until nobody has asked
//! for a while. How many packets a sample stands for is told by the exact counters of its row, a rule and a reason:
//! rare rows are sampled more densely than floods.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use limiter_common::packet::Kind;
use limiter_common::verdict::{Outcome, Verdict};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::refusal::Refusal;
use super::watching::{Drop, Filter, Told, kind_name};
use super::{Daemon, sources};
use crate::control::api::{DropGroup, Drops};

/// How far back an answer looks at most.
const WINDOW: Duration = Duration::from_secs(10);

/// What the first question waits for.
pub const FIRST_WINDOW: Duration = Duration::from_secs(2);

/// How often the counters are read.
const PERIOD: Duration = Duration::from_secs(1);

/// How long the collector goes on when nobody asks.
const PATIENCE: Duration = Duration::from_secs(15);

/// Most samples kept: the budget of events over the window, and the shares of many rows.
const MOST_SAMPLES: usize = 40_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// Protocol and destination port, or ICMP type.
    Port,
    SourcePort,
    /// Bytes from the L3 header, in classes.
    Size,
}

impl GroupBy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::SourcePort => "source-port",
            Self::Size => "size",
        }
    }
}

#[derive(Clone, Debug)]
pub struct GroupQuery {
    pub by: GroupBy,
    pub top: usize,
    pub rule: Option<String>,
}

/// A row of the counters: a rule and an outcome.
type Row = (String, u8);

struct Sample {
    at: Instant,
    row: Row,
    kind: u8,
    source_port: u16,
    destination: u16,
    length: u32,
}

/// Packets of every row at a time.
struct Look {
    at: Instant,
    packets: BTreeMap<Row, u64>,
}

#[derive(Default)]
struct Collected {
    /// When somebody last asked; `None` while nobody collects.
    asked: Option<Instant>,
    looks: VecDeque<Look>,
    samples: VecDeque<Sample>,
}

#[derive(Clone, Default)]
pub struct Samples(Arc<Mutex<Collected>>);

impl Samples {
    fn collected(&self) -> MutexGuard<'_, Collected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Daemon {
    /// Sees to it that drops are collected; whether an answer has enough to look at. Blocks; called inside a runtime.
    pub fn collect(self: &Arc<Self>, rule: Option<&String>) -> Result<bool, Refusal> {
        if let Some(rule) = rule {
            self.core().require_rule(rule)?;
        }
        let mut collected = self.samples.collected();
        let collects = collected.asked.replace(Instant::now()).is_some();
        if collects {
            return Ok(collected.span() >= FIRST_WINDOW);
        }
        let begin = || -> Result<_, Refusal> {
            let receiver = self.watch(&Filter::default())?;
            Ok((receiver, look(self)?))
        };
        match begin() {
            Ok((receiver, first)) => {
                collected.looks = VecDeque::from([first]);
                collected.samples.clear();
                tokio::spawn(collect(Arc::clone(self), receiver));
                Ok(false)
            }
            Err(refusal) => {
                collected.asked = None;
                Err(refusal)
            }
        }
    }

    /// What was collected, by what is asked for, the most first.
    pub fn drops(&self, query: &GroupQuery) -> Drops {
        self.samples.collected().answer(query)
    }
}

fn look(daemon: &Daemon) -> Result<Look, Refusal> {
    let mut packets = BTreeMap::new();
    for named in daemon.core().counters()? {
        if named.outcome.verdict() != Verdict::Pass {
            *packets.entry((named.rule, named.outcome as u8)).or_default() += named.counter.packets;
        }
    }
    Ok(Look { at: Instant::now(), packets })
}

async fn collect(daemon: Arc<Daemon>, mut receiver: Receiver<Told>) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.tick().await;
    loop {
        tokio::select! {
            told = receiver.recv() => match told {
                Ok(Told::Drop(drop)) => daemon.samples.collected().add(&drop),
                Ok(Told::Lost(_)) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            _ = ticks.tick() => {
                let asking = Arc::clone(&daemon);
                let look = tokio::task::spawn_blocking(move || look(&asking)).await;
                let mut collected = daemon.samples.collected();
                if let Ok(Ok(look)) = look {
                    collected.advance(look);
                }
                if collected.asked.is_none_or(|asked| asked.elapsed() > PATIENCE) {
                    *collected = Collected::default();
                    return;
                }
            }
        }
    }
}

impl Collected {
    fn span(&self) -> Duration {
        match (self.looks.front(), self.looks.back()) {
            (Some(first), Some(last)) => last.at.duration_since(first.at),
            _ => Duration::ZERO,
        }
    }

    fn add(&mut self, drop: &Drop) {
        let mut rows = Vec::new();
        if drop.outcome.verdict() == Verdict::Drop {
            rows.push((drop.rule.clone(), drop.outcome as u8));
        }
        rows.extend(drop.observed.as_ref().map(|(rule, outcome)| (rule.clone(), *outcome as u8)));
        for row in rows {
            if self.samples.len() >= MOST_SAMPLES {
                self.samples.pop_front();
            }
            let event = &drop.event;
            self.samples.push_back(Sample {
                at: Instant::now(),
                row,
                kind: event.kind,
                source_port: event.source_port,
                destination: event.destination,
                length: event.length,
            });
        }
    }

    fn advance(&mut self, look: Look) {
        self.looks.push_back(look);
        while self.looks.len() > 2 && self.span() > WINDOW {
            self.looks.pop_front();
        }
        let first = self.looks.front().map(|look| look.at);
        while self.samples.front().is_some_and(|sample| first.is_some_and(|first| sample.at < first)) {
            self.samples.pop_front();
        }
    }

    fn answer(&self, query: &GroupQuery) -> Drops {
        let is_asked = |row: &Row| match &query.rule {
            Some(rule) => row.0 == *rule,
            None => Outcome::of(row.1).is_some_and(|outcome| outcome.verdict() == Verdict::Drop),
        };
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else {
            return Drops { by: query.by.name().to_owned(), ..Drops::default() };
        };
        // What each row dropped, and how many samples tell of it.
        let mut rows: BTreeMap<&Row, (u64, u64)> = BTreeMap::new();
        for (row, packets) in last.packets.iter().filter(|(row, _)| is_asked(row)) {
            let before = first.packets.get(row).copied().unwrap_or(0);
            rows.insert(row, (packets.saturating_sub(before), 0));
        }
        let samples = || self.samples.iter().filter(|sample| is_asked(&sample.row) && sample.at <= last.at);
        for sample in samples() {
            rows.entry(&sample.row).or_default().1 += 1;
        }
        let mut groups: BTreeMap<String, Group<'_>> = BTreeMap::new();
        for sample in samples() {
            let (packets, count) = rows[&sample.row];
            // Never less than itself: it may have come before the counters were read, or after.
            let weight = packets.max(count) as f64 / count as f64;
            let group = groups.entry(sample.key(query.by)).or_default();
            group.samples += 1;
            group.packets += weight;
            group.bytes += weight * f64::from(sample.length);
            *group.rules.entry(&sample.row.0).or_default() += weight;
        }
        let dropped = rows.values().map(|(packets, count)| packets.max(count)).sum();
        let mut drops: Vec<DropGroup> =
            groups.into_iter().map(|(key, group)| group.describe(key, dropped)).collect();
        drops.sort_by(|a, b| b.packets.cmp(&a.packets).then_with(|| a.key.cmp(&b.key)));
        drops.truncate(query.top.min(sources::MOST));
        Drops {
            by: query.by.name().to_owned(),
            window_s: (self.span().as_secs_f64() * 10.0).round() / 10.0,
            samples: samples().count() as u64,
            dropped,
            drops,
        }
    }
}

#[derive(Default)]
struct Group<'a> {
    samples: u64,
    packets: f64,
    bytes: f64,
    rules: BTreeMap<&'a str, f64>,
}

impl Group<'_> {
    fn describe(self, key: String, dropped: u64) -> DropGroup {
        let most = self.rules.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let share = if dropped == 0 { 0.0 } else { self.packets / dropped as f64 };
        DropGroup {
            key,
            rule: most.map(|(rule, _)| (*rule).to_owned()).unwrap_or_default(),
            packets: self.packets.round() as u64,
            bytes: self.bytes.round() as u64,
            share: (share.min(1.0) * 1000.0).round() / 1000.0,
            samples: self.samples,
        }
    }
}

impl Sample {
    fn key(&self, by: GroupBy) -> String {
        // A handshake is TCP too.
        let kind = if self.kind == Kind::TcpSyn as u8 { Kind::Tcp as u8 } else { self.kind };
        let name = kind_name(kind);
        let has_ports = kind <= Kind::Sctp as u8;
        let has_type = kind == Kind::Icmp as u8 || kind == Kind::Icmpv6 as u8;
        match by {
            GroupBy::Port if has_ports || has_type => format!("{name}/{}", self.destination),
            GroupBy::SourcePort if has_ports => format!("{name}/{}", self.source_port),
            GroupBy::Port | GroupBy::SourcePort => name.to_owned(),
            GroupBy::Size => size_class(self.length).to_owned(),
        }
    }
}

/// Classes of packet sizes: twice as large each, and what no Ethernet frame of 1518 bytes holds.
fn size_class(bytes: u32) -> &'static str {
    match bytes {
        0..64 => "0-63",
        64..128 => "64-127",
        128..256 => "128-255",
        256..512 => "256-511",
        512..1024 => "512-1023",
        1024..=1500 => "1024-1500",
        _ => "1501-",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, rule: &str, outcome: Outcome, port: u16, length: u32) -> Sample {
        let row = (rule.to_owned(), outcome as u8);
        Sample { at, row, kind: Kind::Udp as u8, source_port: 53, destination: port, length }
    }

    /// A flood of 10 000 to ports 1 and 2, three to one, of which 4 samples tell; 2 of a rare row, both told of.
    fn collected() -> Collected {
        let start = Instant::now();
        let later = start + Duration::from_secs(4);
        let flood = ("flood".to_owned(), Outcome::DropOver as u8);
        let rare = ("rare".to_owned(), Outcome::DropRule as u8);
        let trial = ("trial".to_owned(), Outcome::WouldDropOver as u8);
        let before = BTreeMap::from([(flood.clone(), 500), (rare.clone(), 7)]);
        let after = BTreeMap::from([(flood, 10_500), (rare, 9), (trial, 100)]);
        let mut samples: VecDeque<Sample> =
            [1, 1, 1, 2].map(|port| sample(start, "flood", Outcome::DropOver, port, 60)).into();
        samples.extend([1, 9].map(|port| sample(start, "rare", Outcome::DropRule, port, 1400)));
        samples.push_back(sample(start, "trial", Outcome::WouldDropOver, 7, 60));
        let looks = VecDeque::from([Look { at: start, packets: before }, Look { at: later, packets: after }]);
        Collected { asked: Some(start), looks, samples }
    }

    fn keys(drops: &Drops) -> Vec<(&str, u64)> {
        drops.drops.iter().map(|group| (group.key.as_str(), group.packets)).collect()
    }

    #[test]
    fn samples_stand_for_what_their_row_counted() {
        let query = GroupQuery { by: GroupBy::Port, top: 10, rule: None };
        let drops = collected().answer(&query);
        assert_eq!((drops.window_s, drops.samples, drops.dropped), (4.0, 6, 10_002));
        // 10 000 / 4 × 3 and one of the rare; 10 000 / 4; the other.
        assert_eq!(keys(&drops), [("udp/1", 7501), ("udp/2", 2500), ("udp/9", 1)]);
        assert_eq!(
            (drops.drops[0].rule.as_str(), drops.drops[0].share, drops.drops[0].samples),
            ("flood", 0.75, 4)
        );
        assert_eq!(drops.drops[0].bytes, 7500 * 60 + 1400);
    }

    #[test]
    fn groups_are_by_what_is_asked() {
        let answer = |by, rule: Option<&str>, top| {
            collected().answer(&GroupQuery { by, top, rule: rule.map(str::to_owned) })
        };
        assert_eq!(keys(&answer(GroupBy::SourcePort, None, 10)), [("udp/53", 10_002)]);
        assert_eq!(keys(&answer(GroupBy::Size, None, 10)), [("0-63", 10_000), ("1024-1500", 2)]);
        assert_eq!(keys(&answer(GroupBy::Port, Some("rare"), 1)), [("udp/1", 1)]);
        // Of an observing rule what it would have dropped.
        assert_eq!(keys(&answer(GroupBy::Port, Some("trial"), 10)), [("udp/7", 100)]);
        assert!(
            Collected::default()
                .answer(&GroupQuery { by: GroupBy::Size, top: 1, rule: None })
                .drops
                .is_empty()
        );
    }

    #[test]
    fn what_is_older_than_the_window_goes() {
        let mut collected = collected();
        let start = collected.looks[0].at;
        for second in 5..=20 {
            let at = start + Duration::from_secs(second);
            collected.add_at(at);
            collected.advance(Look { at, packets: BTreeMap::new() });
        }
        assert!(collected.span() <= WINDOW);
        assert_eq!(collected.samples.len(), 11, "one a second in the last ten, and the first of them");
    }

    impl Collected {
        fn add_at(&mut self, at: Instant) {
            self.samples.push_back(sample(at, "flood", Outcome::DropOver, 1, 60));
        }
    }
}
