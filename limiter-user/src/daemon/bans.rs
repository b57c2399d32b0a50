//! Bans as the daemon knows them: who, until when, by whom and why.
//!
//! The datapath judges and ends them by itself. Here they are counted, explained, and kept in the state directory with
//! the time of the clock on the wall, so that they outlive a reboot. [`Ledger`] decides what the datapath is to hold; it
//! touches nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::{BAN_LIFELINE, Ban, FOREVER};
use serde::{Deserialize, Serialize};

use super::lifeline::Lifeline;
use super::safelist::Safelist;

/// Ticks of the datapath's clock in a nanosecond.
const TICKS_PER_NS: u128 = 64;

/// What kind of hand made a ban.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// An operator, or a program in his name.
    #[default]
    Hand,
    /// A penalty that was not enough.
    Penalty,
    /// The request tier.
    Requests,
}

impl By {
    pub const ALL: [Self; 3] = [Self::Hand, Self::Penalty, Self::Requests];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hand => "hand",
            Self::Penalty => "penalty",
            Self::Requests => "requests",
        }
    }

    fn of_code(code: u32) -> Self {
        Self::ALL.into_iter().find(|by| *by as u32 == code).unwrap_or_default()
    }
}

/// One ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Ticks of the datapath, or [`FOREVER`].
    pub until: u64,
    /// The same by the clock on the wall; `None` is forever.
    pub expires_at: Option<SystemTime>,
    pub by: By,
    /// Who it was, like `uid 0`.
    pub made_by: String,
    pub reason: String,
    /// What the datapath holds of it.
    held: Option<Ban>,
}

/// One ban in the state directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub source: IpNet,
    /// Milliseconds since 1970; `None` is forever.
    pub expires_ms: Option<u64>,
    pub by: By,
    #[serde(default)]
    pub made_by: String,
    #[serde(default)]
    pub reason: String,
}

/// The file they are kept in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptBans {
    #[serde(default)]
    pub bans: Vec<Kept>,
}

/// All bans, by their prefix.
#[derive(Debug, Default)]
pub struct Ledger {
    records: BTreeMap<IpNet, Record>,
    pub capacity: usize,
}

impl Record {
    /// `lasts`: from now; `None` is forever. `now` is the datapath's.
    pub fn new(lasts: Option<Duration>, now: u64, by: By, made_by: &str, reason: &str) -> Self {
        Self {
            until: lasts.map_or(FOREVER, |lasts| tick_after(now, lasts)),
            expires_at: lasts.and_then(|lasts| SystemTime::now().checked_add(lasts)),
            by,
            made_by: made_by.to_owned(),
            reason: reason.to_owned(),
            held: None,
        }
    }

    pub fn has_ended(&self, now: u64) -> bool {
        self.until != FOREVER && self.until <= now
    }
}

fn tick_after(now: u64, lasts: Duration) -> u64 {
    let ticks = u64::try_from(lasts.as_nanos() * TICKS_PER_NS).unwrap_or(FOREVER);
    now.saturating_add(ticks)
}

impl Ledger {
    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&IpNet, &Record)> {
        self.records.iter()
    }

    pub fn get(&self, prefix: &IpNet) -> Option<&Record> {
        self.records.get(prefix)
    }

    pub fn count(&self, by: By) -> usize {
        self.records.values().filter(|record| record.by == by).count()
    }

    /// Those that may be made by nobody's hand: a quarter of the room is kept for hands.
    pub fn automatic_capacity(&self) -> usize {
        self.capacity - self.capacity / 4
    }

    /// Whether so many more would be too many: how many there may be, then.
    pub fn lacks_room(&self, prefixes: impl Iterator<Item = IpNet>, by: By) -> Option<usize> {
        let more = prefixes.filter(|prefix| !self.records.contains_key(prefix)).count();
        if by != By::Hand {
            let automatic = self.len() - self.count(By::Hand);
            if automatic + more > self.automatic_capacity() {
                return Some(self.automatic_capacity());
            }
        }
        (self.len() + more > self.capacity).then_some(self.capacity)
    }

    /// Puts a ban in the place of what there was, which is returned. An automatic one shortens none.
    pub fn insert(&mut self, prefix: IpNet, record: Record) -> Option<Record> {
        let before = self.records.get(&prefix);
        if record.by != By::Hand && before.is_some_and(|before| before.until >= record.until) {
            return before.cloned();
        }
        let held = before.and_then(|before| before.held);
        self.records.insert(prefix, Record { held, ..record })
    }

    pub fn remove(&mut self, prefix: &IpNet) -> Option<Record> {
        self.records.remove(prefix)
    }

    /// The widest ban that covers a prefix without being that prefix.
    pub fn wider(&self, prefix: &IpNet) -> Option<IpNet> {
        let mut wider = *prefix;
        let mut found = None;
        while let Some(next) = wider.supernet() {
            if self.records.contains_key(&next) {
                found = Some(next);
            }
            wider = next;
        }
        found
    }

    /// Those that nobody's hand made and that hit somebody on the safelist.
    pub fn automatic_against(&self, safelist: &Safelist<'_>) -> BTreeSet<IpNet> {
        let is_automatic =
            |prefix: &IpNet| self.records.get(prefix).is_some_and(|record| record.by != By::Hand);
        let around = |address: IpAddr| std::iter::successors(Some(IpNet::from(address)), IpNet::supernet);
        let by_address = safelist.addresses().flat_map(around).filter(is_automatic);
        let by_policy =
            self.records.keys().filter(|prefix| is_automatic(prefix) && safelist.is_never_banned(prefix));
        by_address.chain(by_policy.copied()).collect()
    }

    /// Forgets those that have ended: what the datapath is to lift.
    pub fn sweep(&mut self, now: u64) -> Vec<IpNet> {
        let mut ended = Vec::new();
        self.records.retain(|prefix, record| {
            let gone = record.has_ended(now);
            if gone {
                ended.push(*prefix);
            }
            !gone
        });
        ended
    }

    /// What the datapath must be told so that it holds these bans, marked for a lifeline. It counts as told.
    ///
    /// Of prefixes it finds only the longest, so each answers for the wider ones too.
    pub fn settle(&mut self, lifeline: &Lifeline<'_>) -> Vec<(IpNet, Ban)> {
        let mut put = Vec::new();
        // Those around the prefix at hand, with when the last of them ends: a prefix sorts behind what covers it.
        let mut around: Vec<(IpNet, u64, u32)> = Vec::new();
        for (prefix, record) in &mut self.records {
            while around.last().is_some_and(|(outer, ..)| !outer.contains(prefix)) {
                around.pop();
            }
            let (until, marks) = around.last().map_or((0, 0), |(_, until, marks)| (*until, *marks));
            let flags = marks | if lifeline.may_be_about(prefix) { BAN_LIFELINE } else { 0 };
            let ban =
                Ban { until: until.max(record.until), own_until: record.until, flags, by: record.by as u32 };
            around.push((*prefix, ban.until, flags));
            if record.held != Some(ban) {
                record.held = Some(ban);
                put.push((*prefix, ban));
            }
        }
        put
    }

    /// Forgets what the datapath was told: it is told all again.
    pub fn unsettle(&mut self) {
        self.records.values_mut().for_each(|record| record.held = None);
    }

    /// For the state directory.
    pub fn to_keep(&self) -> KeptBans {
        let bans = self.records.iter().map(|(prefix, record)| Kept {
            source: *prefix,
            expires_ms: record.expires_at.map(|at| {
                let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            }),
            by: record.by,
            made_by: record.made_by.clone(),
            reason: record.reason.clone(),
        });
        KeptBans { bans: bans.collect() }
    }

    /// Takes up what the datapath holds and what was kept. Where the datapath is `fresh` it has forgotten, and what was
    /// kept holds; else it knows better which bans there are, and until when. Returns what it is to lift.
    pub fn take_up(&mut self, held: Vec<(IpNet, Ban)>, kept: KeptBans, fresh: bool, now: u64) -> Vec<IpNet> {
        let wall = SystemTime::now();
        let mut kept: BTreeMap<IpNet, Kept> = kept.bans.into_iter().map(|kept| (kept.source, kept)).collect();
        for (prefix, ban) in held {
            let known = kept.remove(&prefix);
            let expires_at = (ban.own_until != FOREVER).then(|| {
                let left = ban.own_until.saturating_sub(now);
                wall + Duration::from_nanos(left / 64)
            });
            let (made_by, reason) = known.map(|known| (known.made_by, known.reason)).unwrap_or_default();
            let by = By::of_code(ban.by);
            let record = Record { until: ban.own_until, expires_at, by, made_by, reason, held: Some(ban) };
            self.records.insert(prefix, record);
        }
        if fresh {
            for (prefix, kept) in kept {
                let at = kept.expires_ms.map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
                let lasts = at.map(|at| at.duration_since(wall).unwrap_or_default());
                let mut record = Record::new(lasts, now, kept.by, &kept.made_by, &kept.reason);
                record.expires_at = at;
                if !record.has_ended(now) && self.records.len() < self.capacity {
                    self.records.insert(prefix, record);
                }
            }
        }
        self.sweep(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 64_000_000_000;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ledger(capacity: usize, bans: &[(&str, u64, By)]) -> Ledger {
        let mut ledger = Ledger { capacity, ..Ledger::default() };
        for (prefix, seconds, by) in bans {
            let lasts = (*seconds > 0).then(|| Duration::from_secs(*seconds));
            ledger.insert(net(prefix), Record::new(lasts, 0, *by, "uid 0", ""));
        }
        ledger
    }

    #[test]
    fn a_prefix_answers_for_the_wider_ones() {
        let bans = [
            ("10.0.0.0/8", 100, By::Hand),
            ("10.1.0.0/16", 10, By::Hand),
            ("10.1.1.0/24", 50, By::Hand),
            ("10.2.0.0/16", 200, By::Hand),
            ("11.0.0.0/8", 5, By::Hand),
        ];
        let mut ledger = ledger(16, &bans);
        let put: Vec<_> = ledger
            .settle(&Lifeline::default())
            .into_iter()
            .map(|(prefix, ban)| (prefix.to_string(), ban.until / SECOND, ban.own_until / SECOND))
            .collect();
        let expected = [
            ("10.0.0.0/8", 100, 100),
            ("10.1.0.0/16", 100, 10),
            ("10.1.1.0/24", 100, 50),
            ("10.2.0.0/16", 200, 200),
            ("11.0.0.0/8", 5, 5),
        ];
        assert_eq!(put, expected.map(|(prefix, until, own)| (prefix.to_owned(), until, own)));
        assert_eq!(ledger.settle(&Lifeline::default()), []);
        // The widest goes: the others answer for themselves and for each other.
        ledger.remove(&net("10.0.0.0/8"));
        let put = ledger.settle(&Lifeline::default());
        let put: Vec<_> = put.iter().map(|(prefix, ban)| (prefix.to_string(), ban.until / SECOND)).collect();
        assert_eq!(put, [("10.1.0.0/16".to_owned(), 10), ("10.1.1.0/24".to_owned(), 50)]);
    }

    #[test]
    fn a_quarter_is_kept_for_hands() {
        let bans = [("192.0.2.1/32", 9, By::Penalty), ("192.0.2.2/32", 9, By::Requests)];
        let mut ledger = ledger(4, &bans);
        let one = |last: u8| std::iter::once(net(&format!("198.51.100.{last}/32")));
        assert_eq!(ledger.lacks_room(one(1), By::Penalty), None);
        ledger.insert(net("198.51.100.1/32"), Record::new(None, 0, By::Penalty, "", ""));
        assert_eq!(ledger.lacks_room(one(2), By::Requests), Some(3));
        assert_eq!(ledger.lacks_room(one(1), By::Requests), None, "it is there already");
        assert_eq!(ledger.lacks_room(one(2), By::Hand), None);
        assert_eq!(ledger.lacks_room(one(2).chain(one(3)), By::Hand), Some(4));
    }

    #[test]
    fn an_automatic_ban_shortens_none() {
        let mut ledger = ledger(4, &[("192.0.2.1/32", 100, By::Hand)]);
        ledger.insert(net("192.0.2.1/32"), Record::new(Some(Duration::from_secs(9)), 0, By::Penalty, "", ""));
        assert_eq!(ledger.get(&net("192.0.2.1/32")).unwrap().until, 100 * SECOND);
        ledger.insert(net("192.0.2.1/32"), Record::new(Some(Duration::from_secs(9)), 0, By::Hand, "", ""));
        assert_eq!(ledger.get(&net("192.0.2.1/32")).unwrap().until, 9 * SECOND);
    }

    #[test]
    fn the_datapath_knows_better_unless_it_is_fresh() {
        let mut before = ledger(8, &[("192.0.2.1/32", 100, By::Hand), ("192.0.2.2/32", 0, By::Hand)]);
        let kept = before.to_keep();
        let mut held = before.settle(&Lifeline::default());
        // Lifted by a daemon that died before it could write so, and made by one.
        held.retain(|(prefix, _)| *prefix != net("192.0.2.2/32"));
        held.push((net("192.0.2.3/32"), Ban { until: 50 * SECOND, own_until: 50 * SECOND, flags: 0, by: 2 }));
        let mut after = ledger(8, &[]);
        assert_eq!(after.take_up(held.clone(), kept.clone(), false, 10 * SECOND), []);
        let names: Vec<_> = after.iter().map(|(prefix, record)| (prefix.to_string(), record.by)).collect();
        assert_eq!(names, [("192.0.2.1/32".to_owned(), By::Hand), ("192.0.2.3/32".to_owned(), By::Requests)]);
        assert_eq!(after.get(&net("192.0.2.1/32")).unwrap().made_by, "uid 0");

        let mut again = ledger(8, &[]);
        again.take_up(Vec::new(), kept, true, 0);
        let names: Vec<_> = again.iter().map(|(prefix, _)| prefix.to_string()).collect();
        assert_eq!(names, ["192.0.2.1/32", "192.0.2.2/32"]);
        assert_eq!(again.get(&net("192.0.2.2/32")).unwrap().until, FOREVER);
        let left = again.get(&net("192.0.2.1/32")).unwrap().until / SECOND;
        assert!((90..=100).contains(&left), "{left}");

        let mut late = ledger(8, &[]);
        assert_eq!(late.take_up(held, KeptBans::default(), false, 60 * SECOND), [net("192.0.2.3/32")]);
    }

    #[test]
    fn the_widest_cover_is_named() {
        let ledger = ledger(8, &[("10.0.0.0/8", 9, By::Hand), ("10.1.0.0/16", 9, By::Hand)]);
        assert_eq!(ledger.wider(&net("10.1.2.3/32")), Some(net("10.0.0.0/8")));
        assert_eq!(ledger.wider(&net("10.0.0.0/8")), None);
    }
}
