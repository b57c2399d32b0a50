//! From a valid policy and a host to the kernel's tables.

use limiter_common::abi::{
    self, ABI_VERSION, BYTES, Embedded, HAS_BYTES, HAS_DESTINATIONS, HAS_INTERFACES, HAS_NEWCOMERS,
    HAS_PENALTIES, HAS_SETS, HAS_SOURCE_PORTS, HAS_V6_PREFIXES, MALFORMED_PASSES, MAX_DESTINATIONS,
    MAX_METERS, MAX_RULES, METER_LONE, METER_NEWCOMERS, Meter, PolicyTables, RULE_BEFORE_BANS, RULE_COARSE,
    RULE_NEWCOMERS, action,
};

use super::{
    claims::{TooSmall, budgets},
    compiled::{Compiled, HostFacts, MeterInfo, RateInfo, RuleInfo, Slots},
    diagnostic::{Diagnostic, Report},
    image,
    meters::{Kind, PlannedMeter},
    model::{Action, Policy, Scope, Verdict},
    prefixes::MAPPED,
    rate::{Rate, TICKS_PER_SECOND, Unit},
    slots,
};

/// Makes of a policy what the kernel reads. Fails only when the host is too small for it.
pub fn compile(policy: &Policy, host: &HostFacts<'_>) -> Result<Compiled, Vec<Diagnostic>> {
    let mut report = Report::default();
    let compiled = build(policy, host, &mut report);
    let found = report.into_sorted();
    match compiled {
        Some(compiled) if !found.iter().any(Diagnostic::is_error) => {
            Ok(Compiled { warnings: found, ..compiled })
        }
        _ => Err(found),
    }
}

fn build(policy: &Policy, host: &HostFacts<'_>, report: &mut Report) -> Option<Compiled> {
    let plan = &*policy.plan;
    let mut tables = zeroed_tables();
    fill_header(&mut tables, policy, host);
    let rows = image::write(&plan.sets, &mut tables.v4_index, &mut tables.header);
    if rows.is_none() {
        report.error(&policy.place, "the sets hold too many IPv6 prefixes", "there can be about 8 million");
    }
    fill_services(&mut tables, policy);
    tables.cells = *plan.cells;
    fill_places(&mut tables, policy);
    for (rows, by_set) in tables.spared.iter_mut().zip(&plan.spared) {
        rows[..by_set.len()].copy_from_slice(by_set);
    }

    let names: Vec<String> =
        [String::new()].into_iter().chain(policy.rules.iter().map(|r| r.name.clone())).collect();
    let mut counters = host
        .slots
        .rules
        .iter()
        .map(|(name, slot)| (name.clone(), u32::from(*slot)))
        .collect::<std::collections::BTreeMap<_, _>>();
    counters.insert(String::new(), 0);
    let counters = slots::give(&counters, &names, MAX_RULES as u32);
    let ids: Vec<u32> = plan.meters.list.iter().map(|meter| meter.id).collect();
    let meter_slots = slots::give(&host.slots.meters, &ids, MAX_METERS as u32);
    // The policy has no more of either than there are places.
    let (Some(counters), Some(meter_slots)) = (counters, meter_slots) else {
        report.error(&policy.place, "the policy has more rules or limits than this host has places", "");
        return None;
    };

    let claiming = plan.meters.list.iter().filter(|meter| !meter.is_lone());
    let fills: Vec<u64> = claiming.map(PlannedMeter::longest_fill).collect();
    let has_newcomers = plan.meters.newcomers.iter().any(Option::is_some);
    let mut budgets = match budgets(&fills, host.buckets, has_newcomers) {
        Ok(budgets) => budgets.into_iter(),
        Err(TooSmall { needed }) => {
            report.error(
                &policy.place,
                format!(
                    "the table is too small: set buckets = {needed} in limiterd.toml (now {})",
                    host.buckets
                ),
                "or write limits that fill sooner: smaller bursts, faster rates",
            );
            return None;
        }
    };
    let mut meters = Vec::new();
    for (planned, meter) in plan.meters.list.iter().zip(&mut tables.meters) {
        let claims = if planned.is_lone() { None } else { budgets.next() };
        let slot = meter_slots.all.get(&planned.id).copied().unwrap_or(0);
        *meter = encode(planned, claims.unwrap_or_default(), slot);
        meters.push(describe(planned, meter));
        if meter.rates[BYTES].multiplier != 0 {
            tables.header.flags |= HAS_BYTES;
        }
    }
    let rules = fill_rules(&mut tables, policy, host, &names, |name| {
        counters.all.get(name).map_or(0, |slot| *slot as u16)
    });
    fill_penalties(&mut tables, policy);
    Some(Compiled {
        tables,
        rows: rows?,
        slots: Slots {
            rules: counters.all.iter().map(|(name, slot)| (name.clone(), *slot as u16)).collect(),
            meters: meter_slots.all,
        },
        rules,
        meters,
        warnings: Vec::new(),
        reused_rules: counters.reused.iter().map(|slot| *slot as u16).collect(),
        reused_meters: meter_slots.reused,
    })
}

/// The tables are 1.4 MiB of numbers: made in place, never on a stack.
fn zeroed_tables() -> Box<PolicyTables> {
    // SAFETY: `PolicyTables` consists of integers and arrays of them, for which all zeroes is a value.
    unsafe { Box::<PolicyTables>::new_zeroed().assume_init() }
}

fn fill_header(tables: &mut PolicyTables, policy: &Policy, host: &HostFacts<'_>) {
    let plan = &policy.plan;
    let header = &mut tables.header;
    header.abi = ABI_VERSION;
    header.generation = host.generation;
    for (flag, is_set) in [
        (HAS_SETS, plan.has_sets),
        (HAS_SOURCE_PORTS, plan.services.source.is_some()),
        (MALFORMED_PASSES, policy.default.malformed == Verdict::Pass),
        (HAS_V6_PREFIXES, !plan.sets.v6.is_empty()),
        (HAS_PENALTIES, !plan.penalties.is_empty()),
        (HAS_INTERFACES, plan.places.as_ref().is_some_and(|(places, _)| places.by_interface)),
        (HAS_DESTINATIONS, plan.places.as_ref().is_some_and(|(places, _)| places.by_destination)),
    ] {
        if is_set {
            header.flags |= flag;
        }
    }
    for (embedded, prefix) in
        header.embedded.iter_mut().zip([&MAPPED].into_iter().chain(&policy.default.embedded))
    {
        let bits = u128::from(prefix.network());
        *embedded = Embedded { high: (bits >> 64) as u64, middle: (bits >> 32) as u32, reserved: 0 };
        header.embedded_count += 1;
    }
}

fn fill_services(tables: &mut PolicyTables, policy: &Policy) {
    let services = &policy.plan.services;
    tables.kind_services = services.kinds;
    tables.type_services = services.types;
    for (table, classes) in tables.services.iter_mut().zip(&services.destination) {
        table.copy_from_slice(classes);
    }
    if let Some(source) = &services.source {
        for (table, classes) in tables.source_services.iter_mut().zip(&source.classes) {
            table.copy_from_slice(classes);
        }
        tables.service_pairs = *source.pairs;
    }
}

fn fill_penalties(tables: &mut PolicyTables, policy: &Policy) {
    let plan = &policy.plan;
    for (index, planned) in (1..).zip(&plan.penalties) {
        tables.penalties[usize::from(index)] = planned.encoded;
        tables.rules[planned.rule + 1].penalty = index;
    }
    for class in &plan.safe_classes {
        tables.safe_classes[usize::from(*class) / 64] |= 1 << (class % 64);
    }
}

/// The indexes of interfaces are the datapath's to fill in: they differ from host to host.
fn fill_places(tables: &mut PolicyTables, policy: &Policy) {
    let Some((places, placed)) = &policy.plan.places else { return };
    let into = &mut tables.places;
    for (name, text) in into.interface_names.iter_mut().zip(&places.interfaces) {
        name[..text.len()].copy_from_slice(text.as_bytes());
    }
    let last_class = places.stretches.last().map_or(0, |(_, class)| *class);
    into.destinations = [[u64::MAX; 2]; MAX_DESTINATIONS];
    into.destination_classes = [last_class; MAX_DESTINATIONS];
    for (index, (first, class)) in places.stretches.iter().enumerate() {
        into.destinations[index] = [(*first >> 64) as u64, *first as u64];
        into.destination_classes[index] = *class;
    }
    into.classes = places.classes;
    into.services[..placed.table.len()].copy_from_slice(&placed.table);
}

fn encode(planned: &PlannedMeter, claims: abi::Rate, slot: u32) -> Meter {
    let encoded = |unit: Unit| {
        planned.rates[unit.index()].as_ref().map_or_else(abi::Rate::default, |rate| rate.encoded)
    };
    let mut rates = [abi::Rate::default(); 2];
    rates[abi::PACKETS] = encoded(Unit::Packets);
    rates[abi::BYTES] = encoded(Unit::Bytes);
    Meter {
        rates,
        claims,
        id: planned.id,
        slot,
        width_v4: planned.widths.ipv4,
        width_v6: planned.widths.ipv6,
        scale: planned.longest_fill().max(1).ilog2() as u8,
        flags: match planned.kind {
            Kind::Limit(Scope::Rule) => METER_LONE,
            Kind::Newcomers => METER_LONE | METER_NEWCOMERS,
            Kind::Limit(_) => 0,
        },
        reserved: [0; 4],
    }
}

fn describe(planned: &PlannedMeter, meter: &Meter) -> MeterInfo {
    let info =
        |rate: &Rate| RateInfo { text: rate.text.clone(), per_second: rate.per_second(), burst: rate.burst };
    MeterInfo {
        id: planned.id,
        slot: meter.slot,
        limit: planned.limit.clone(),
        rules: planned.rules.clone(),
        scope: planned.kind.to_string(),
        observing: planned.observing,
        packets: planned.rates[abi::PACKETS].as_ref().map(info),
        bytes: planned.rates[abi::BYTES].as_ref().map(info),
        claims_per_second: match meter.claims.multiplier {
            0 => 0.0,
            multiplier => TICKS_PER_SECOND as f64 / multiplier as f64,
        },
    }
}

fn fill_rules(
    tables: &mut PolicyTables,
    policy: &Policy,
    host: &HostFacts<'_>,
    names: &[String],
    counter: impl Fn(&str) -> u16,
) -> Vec<RuleInfo> {
    let mut rules = Vec::with_capacity(names.len());
    for (index, (name, meters)) in names.iter().zip(&policy.plan.meters.of_rules).enumerate() {
        let rule = index.checked_sub(1).and_then(|index| policy.rules.get(index));
        let verdict = match rule.map(|rule| &rule.action) {
            None => Some(policy.default.verdict),
            Some(Action::Verdict(verdict)) => Some(*verdict),
            Some(Action::Limit(_)) => None,
        };
        let info = RuleInfo {
            name: name.clone(),
            counter: counter(name),
            observing: rule.is_some_and(|rule| rule.observe),
            before_bans: rule.is_some_and(|rule| rule.before_bans),
            meters: meters.clone(),
        };
        let is_coarse =
            meters.iter().all(|meter| tolerates_coarse_clock(&tables.meters[usize::from(*meter)], host));
        let entry = &mut tables.rules[index];
        entry.counter = info.counter;
        entry.meter_count = meters.len() as u8;
        for (place, meter) in entry.meters.iter_mut().zip(meters) {
            *place = *meter;
        }
        entry.action = match verdict {
            Some(Verdict::Drop) => action::DROP,
            Some(Verdict::Pass) if meters.is_empty() => action::PASS,
            _ => action::LIMIT,
        };
        if is_coarse && !meters.is_empty() {
            entry.flags |= RULE_COARSE;
        }
        if let Some(Some(newcomers)) = policy.plan.meters.newcomers.get(index) {
            entry.newcomers = *newcomers as u8;
            entry.flags |= RULE_NEWCOMERS;
            tables.header.flags |= HAS_NEWCOMERS;
        }
        if info.before_bans {
            entry.flags |= RULE_BEFORE_BANS;
        }
        rules.push(info);
    }
    rules
}

/// A clock that stands still for a tick costs nothing when the burst covers eight of them.
fn tolerates_coarse_clock(meter: &Meter, host: &HostFacts<'_>) -> bool {
    let eight_ticks = u128::from(host.tick_ns) * 64 * 8;
    meter
        .rates
        .iter()
        .filter(|rate| rate.multiplier > 0)
        .all(|rate| u128::from(rate.tolerance) >= eight_ticks)
}
