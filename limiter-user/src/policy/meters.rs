//! Meters: the keys of the bucket table, from the limits of rules.
//!
//! Limits of one name and one scope share a meter, packets and bytes together. Its id is a hash of the names
//! and never of the numbers, so a changed number keeps every bucket; enforcing and observing never share.

use std::fmt;

use limiter_common::abi::{MAX_METERS, MAX_METERS_PER_RULE};
use sha2::{Digest, Sha256};

use super::{
    diagnostic::{Place, Report},
    model::{Action, Defaults, Limit, Rule, Scope, Verdict, Widths},
    rate::Rate,
};

/// What a meter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Limit(Scope),
    /// A rule's budget for sources without a bucket.
    Newcomers,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(scope) => scope.fmt(f),
            Self::Newcomers => f.write_str("newcomers"),
        }
    }
}

/// A meter before it has a place on a host.
#[derive(Clone, Debug)]
pub(super) struct PlannedMeter {
    pub id: u32,
    pub limit: Option<String>,
    /// Rules that charge it; `""` is the `[default]`.
    pub rules: Vec<String>,
    pub kind: Kind,
    /// Prefix lengths of its keys; zeros where there is but one bucket.
    pub widths: Widths,
    pub observing: bool,
    /// By [`super::Unit::index`].
    pub rates: [Option<Rate>; 2],
    place: Place,
    parts: [String; 4],
}

/// All meters of a policy, and those of each rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Meters {
    pub list: Vec<PlannedMeter>,
    /// By rule of the tables: the `[default]` first, then the rules in file order.
    pub of_rules: Vec<Vec<u16>>,
    /// The budget for newcomers of each, likewise.
    pub newcomers: Vec<Option<u16>>,
}

/// Networks that share a budget for newcomers evenly.
const NETWORKS: Widths = Widths { ipv4: 16, ipv6: 32 };

impl PlannedMeter {
    /// Whether all its packets share one bucket, which is not in the table.
    pub fn is_lone(&self) -> bool {
        matches!(self.kind, Kind::Limit(Scope::Rule) | Kind::Newcomers)
    }

    /// Whether this is the meter per source of a rule's limits written in place.
    pub fn is_own_of(&self, rule: &str) -> bool {
        self.kind == Kind::Limit(Scope::Source) && self.parts[0] == "rule" && self.parts[1] == rule
    }

    /// Ticks an empty bucket takes to fill, at most.
    pub fn longest_fill(&self) -> u64 {
        self.rates.iter().flatten().map(|rate| rate.encoded.tolerance).max().unwrap_or(0)
    }
}

impl Meters {
    /// The place of a meter like this one, which is added if there is none. `None` when its identity is another's by
    /// chance, which is reported.
    fn place(&mut self, what: PlannedMeter, rule: &str, report: &mut Report) -> Option<u16> {
        let id = identity(&what.parts);
        let known = self.list.iter().position(|meter| meter.id == id);
        if id == 0 || known.is_some_and(|index| self.list[index].parts != what.parts) {
            refuse_clash(&what.place, rule, report);
            return None;
        }
        let index = known.unwrap_or_else(|| {
            self.list.push(PlannedMeter { id, ..what });
            self.list.len() - 1
        });
        Some(index as u16)
    }

    /// A packet that one source may not send is not charged to what it shares with others.
    fn narrowest_first(&self, of_rule: &mut [u16]) {
        of_rule.sort_by_key(|meter| {
            let Widths { ipv4, ipv6 } = self.list[usize::from(*meter)].widths;
            std::cmp::Reverse(u16::from(ipv4) + u16::from(ipv6))
        });
    }
}

pub(super) fn plan(default: &Defaults, rules: &[Rule], report: &mut Report) -> Meters {
    let mut meters = Meters::default();
    let mut floor = Vec::new();
    for limit in &default.limit {
        add(&mut meters, &mut floor, limit, "", false, default.source, report);
    }
    meters.narrowest_first(&mut floor);
    let of_default = match default.verdict {
        Verdict::Pass => floor.clone(),
        Verdict::Drop => Vec::new(),
    };
    let mut of_rules = vec![of_default];
    for rule in rules {
        let mut own = Vec::new();
        if let Action::Limit(limits) = &rule.action {
            for limit in limits {
                add(&mut meters, &mut own, limit, &rule.name, rule.observe, default.source, report);
            }
            meters.narrowest_first(&mut own);
            // Whoever this rule admits also spends from the floor; an observing rule admits nobody.
            if !rule.observe {
                for meter in &floor {
                    if !own.contains(meter) {
                        own.push(*meter);
                        note_user(&mut meters.list[usize::from(*meter)], &rule.name);
                    }
                }
            }
        }
        debug_assert!(own.len() <= MAX_METERS_PER_RULE, "four of its own and four of the floor");
        of_rules.push(own);
    }
    meters.of_rules = of_rules;
    meters.newcomers = vec![None];
    for rule in rules {
        let budget = rule.newcomers.as_ref().and_then(|rate| {
            let identity = Identity {
                owner: "newcomers",
                name: &rule.name,
                scope: "newcomers",
                observing: rule.observe,
            };
            let what = PlannedMeter {
                id: 0,
                limit: None,
                rules: vec![rule.name.clone()],
                kind: Kind::Newcomers,
                widths: NETWORKS,
                observing: rule.observe,
                rates: [Some(rate.clone()), None],
                place: rule.place.clone(),
                parts: identity.parts(),
            };
            meters.place(what, &rule.name, report)
        });
        meters.newcomers.push(budget);
    }
    if meters.list.len() > MAX_METERS {
        let place = &meters.list[MAX_METERS].place;
        report.error(
            place,
            format!("{} different limits are too many", meters.list.len()),
            format!("there can be {MAX_METERS}: let rules share limits by naming them under `[limits]`"),
        );
    }
    meters
}

fn note_user(meter: &mut PlannedMeter, rule: &str) {
    if !meter.rules.iter().any(|name| name == rule) {
        meter.rules.push(rule.to_owned());
    }
}

/// Adds a limit to those of a rule, `""` being the `[default]`.
fn add(
    meters: &mut Meters,
    of_rule: &mut Vec<u16>,
    limit: &Limit,
    rule: &str,
    observing: bool,
    source: Widths,
    report: &mut Report,
) {
    let (owner, name) = match &limit.name {
        Some(name) => ("limit", name.as_str()),
        None if rule.is_empty() => ("default", ""),
        None => ("rule", rule),
    };
    let widths = match limit.scope {
        Scope::Source => source,
        Scope::Prefix(widths) => widths,
        Scope::Rule => Widths { ipv4: 0, ipv6: 0 },
    };
    let scope = match limit.scope {
        Scope::Source | Scope::Prefix(_) => format!("source/{},{}", widths.ipv4, widths.ipv6),
        Scope::Rule => limit.scope.to_string(),
    };
    let parts = Identity { owner, name, scope: &scope, observing }.parts();
    let what = PlannedMeter {
        id: 0,
        limit: limit.name.clone(),
        rules: Vec::new(),
        kind: Kind::Limit(limit.scope),
        widths,
        observing,
        rates: [None, None],
        place: limit.place.clone(),
        parts,
    };
    let Some(index) = meters.place(what, rule, report) else { return };
    let meter = &mut meters.list[usize::from(index)];
    meter.rates[limit.rate.unit.index()] = Some(limit.rate.clone());
    note_user(meter, rule);
    if !of_rule.contains(&index) {
        of_rule.push(index);
    }
}

fn refuse_clash(place: &Place, rule: &str, report: &mut Report) {
    let of = if rule.is_empty() { "`[default]`".to_owned() } else { format!("rule `{rule}`") };
    report.error(
        place,
        format!("a limit of {of} and another one would share their buckets by chance"),
        "name one of them anew: put it under `[limits]`, or rename it there",
    );
}

/// What makes a meter the one it is.
struct Identity<'a> {
    /// What it belongs to: a kind, and its name.
    owner: &'a str,
    name: &'a str,
    scope: &'a str,
    observing: bool,
}

impl Identity<'_> {
    fn parts(&self) -> [String; 4] {
        let mode = if self.observing { "observe" } else { "enforce" };
        [self.owner, self.name, self.scope, mode].map(str::to_owned)
    }
}

/// First four bytes of SHA-256 over length-prefixed parts.
fn identity(parts: &[String; 4]) -> u32 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}
