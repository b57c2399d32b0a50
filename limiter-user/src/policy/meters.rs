//! Meters: the keys of the bucket table, from the limits of rules.
//!
//! Limits of one name and one scope share a meter, packets and bytes together. Its id is a hash of the names
//! and never of the numbers, so a changed number keeps every bucket; enforcing and observing never share.

use limiter_common::abi::{MAX_METERS, MAX_METERS_PER_RULE};
use sha2::{Digest, Sha256};

use super::{
    diagnostic::{Place, Report},
    model::{Action, Defaults, Limit, Rule, Scope, Verdict, Widths},
    rate::Rate,
};

/// A meter before it has a place on a host.
#[derive(Clone, Debug)]
pub(super) struct PlannedMeter {
    pub id: u32,
    pub limit: Option<String>,
    /// Rules that charge it; `""` is the `[default]`.
    pub rules: Vec<String>,
    pub scope: Scope,
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
}

impl PlannedMeter {
    /// Whether all its packets share one bucket, which is not in the table.
    pub fn is_lone(&self) -> bool {
        self.scope == Scope::Rule
    }

    /// Whether this is the meter per source of a rule's limits written in place.
    pub fn is_own_of(&self, rule: &str) -> bool {
        self.scope == Scope::Source && self.parts[0] == "rule" && self.parts[1] == rule
    }

    /// Ticks an empty bucket takes to fill, at most.
    pub fn longest_fill(&self) -> u64 {
        self.rates.iter().flatten().map(|rate| rate.encoded.tolerance).max().unwrap_or(0)
    }
}

impl Meters {
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
    let mode = if observing { "observe" } else { "enforce" };
    let parts = [owner.to_owned(), name.to_owned(), scope, mode.to_owned()];
    let id = identity(&parts);
    let unit = limit.rate.unit.index();
    let index = match meters.list.iter().position(|meter| meter.id == id) {
        Some(index) if meters.list[index].parts == parts => index,
        Some(_) => {
            refuse_clash(limit, rule, report);
            return;
        }
        None if id == 0 => {
            refuse_clash(limit, rule, report);
            return;
        }
        None => {
            meters.list.push(PlannedMeter {
                id,
                limit: limit.name.clone(),
                rules: Vec::new(),
                scope: limit.scope,
                widths,
                observing,
                rates: [None, None],
                place: limit.place.clone(),
                parts,
            });
            meters.list.len() - 1
        }
    };
    let meter = &mut meters.list[index];
    meter.rates[unit] = Some(limit.rate.clone());
    note_user(meter, rule);
    let index = index as u16;
    if !of_rule.contains(&index) {
        of_rule.push(index);
    }
}

fn refuse_clash(limit: &Limit, rule: &str, report: &mut Report) {
    let of = if rule.is_empty() { "`[default]`".to_owned() } else { format!("rule `{rule}`") };
    report.error(
        &limit.place,
        format!("a limit of {of} and another one would share their buckets by chance"),
        "name one of them anew: put it under `[limits]`, or rename it there",
    );
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
