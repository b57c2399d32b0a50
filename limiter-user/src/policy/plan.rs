//! What follows from a policy alone: classes, cells and meters, the same on every host.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use limiter_common::{
    abi::{Cell, MAX_CLASSES, MAX_RULES},
    packet::Kind,
};

use super::{
    classes::{Bits, SetClasses, set_classes},
    diagnostic::{Place, Report},
    meters::{self, Meters},
    model::{Action, Defaults, Prefixes, Rule, Set},
    penalties::{self, PlannedPenalty},
    places::{PlacedServices, Places, placed, places},
    prefixes::collect,
    term::Term,
    traffic::{ServiceClasses, service_classes},
};

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub sets: SetClasses,
    pub services: ServiceClasses,
    /// `None` when no rule names an interface or a destination.
    pub places: Option<(Places, PlacedServices)>,
    /// `[set class][service class]`, as in the tables.
    pub cells: Box<[[Cell; MAX_CLASSES]; MAX_CLASSES]>,
    /// `[place class][set class][spared kind]`, as in the tables.
    pub spared: Vec<Vec<[u16; 3]>>,
    pub meters: Meters,
    pub penalties: Vec<PlannedPenalty>,
    /// Set classes of sources that are never penalised.
    pub safe_classes: Vec<u8>,
    /// Whether any rule asks for a set.
    pub has_sets: bool,
}

/// Distinct items, and which of them each rule has.
fn groups<'p, T: PartialEq>(items: impl Iterator<Item = Option<&'p T>>) -> (Vec<&'p T>, Vec<Option<usize>>) {
    let mut distinct: Vec<&T> = Vec::new();
    let of_rules = items.map(|item| {
        let item = item?;
        let known = distinct.iter().position(|other| *other == item);
        Some(known.unwrap_or_else(|| {
            distinct.push(item);
            distinct.len() - 1
        }))
    });
    let of_rules = of_rules.collect();
    (distinct, of_rules)
}

/// Every list of prefixes some rule asks for, with the rules that do.
fn lists<'p>(sets: &'p [Set], rules: &'p [Rule]) -> Vec<(&'p Prefixes, Bits)> {
    let mut users: Vec<Bits> = vec![Bits::default(); sets.len()];
    let mut lists: Vec<(&Prefixes, Bits)> = Vec::new();
    for (number, from) in
        rules.iter().enumerate().filter_map(|(number, rule)| Some((number, rule.from.as_ref()?)))
    {
        from.sets.iter().for_each(|set| users[*set].insert(number));
        if !from.prefixes.is_empty() {
            let mut only = Bits::default();
            only.insert(number);
            lists.push((&from.prefixes, only));
        }
    }
    lists.extend(sets.iter().map(|set| &set.prefixes).zip(users).filter(|(_, users)| !users.is_empty()));
    lists
}

/// Stands for the safelist among the rules that ask for a set. There is one place more than rules.
const SAFE: usize = MAX_RULES - 1;

/// Every source with an address that is under `never-ban`.
fn safe(default: &Defaults, sets: &[Set]) -> Prefixes {
    let never = &default.never_ban;
    let lists = never.sets.iter().map(|set| &sets[*set].prefixes).chain([&never.prefixes]);
    let nets = lists.flat_map(|list| {
        let v4 = list.v4.iter().map(|net| IpNet::V4(wider(*net, net.prefix_len().min(default.source.ipv4))));
        v4.chain(list.v6.iter().map(|net| IpNet::V6(wider6(*net, net.prefix_len().min(default.source.ipv6)))))
    });
    collect(nets, &[]).prefixes
}

fn wider(net: Ipv4Net, length: u8) -> Ipv4Net {
    Ipv4Net::new(net.network(), length).unwrap_or(net).trunc()
}

fn wider6(net: Ipv6Net, length: u8) -> Ipv6Net {
    Ipv6Net::new(net.network(), length).unwrap_or(net).trunc()
}

pub(super) fn make(
    default: &Defaults,
    sets: &[Set],
    rules: &[Rule],
    file: &Place,
    report: &mut Report,
) -> Option<Plan> {
    let meters = meters::plan(default, rules, report);
    let penalties = penalties::plan(rules, &meters, report);
    let terms: Vec<Option<&Vec<Term>>> =
        rules.iter().map(|rule| rule.to.as_ref().map(|to| &to.terms)).collect();
    let (service_groups, to_of) = groups(terms.into_iter());

    let safe = if penalties.is_empty() { Prefixes::default() } else { safe(default, sets) };
    let mut lists = lists(sets, rules);
    if !safe.is_empty() {
        lists.push((&safe, Bits::of(SAFE)));
    }
    if lists.len() > MAX_RULES {
        let message = format!("{} sets and prefixes in place are too many", lists.len());
        report.error(file, message, format!("the rules can ask for {MAX_RULES}: join some of them"));
        return None;
    }
    let set_classes = set_classes(&lists);
    if set_classes.is_err() {
        report.error(
            file,
            "the rules' `from` overlap in more than 255 different ways",
            "use fewer sets, or sets that overlap less",
        );
    }
    let services: Vec<&[Term]> = service_groups.iter().map(|terms| terms.as_slice()).collect();
    let service_classes = service_classes(&services);
    if service_classes.is_err() {
        report.error(
            file,
            "the rules' `to` overlap in more than 255 different ways",
            "use fewer services, or services that overlap less",
        );
    }
    let places = places(rules, file, report);
    let (Ok(set_classes), Ok(service_classes)) = (set_classes, service_classes) else { return None };
    if report.has_errors() {
        return None;
    }

    let mut from_anybody = Bits::default();
    rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| rule.from.is_none())
        .for_each(|(i, _)| from_anybody.insert(i));
    let from_bits: Vec<Bits> =
        set_classes.combinations.iter().map(|held| held.union(&from_anybody)).collect();
    let to_bits: Vec<Bits> =
        service_classes.combinations.iter().map(|meant| rules_to(&to_of, meant)).collect();
    let placed = places.as_ref().map(|places| placed(places, &to_bits, &service_classes.occurring));
    let placed = match placed.transpose() {
        Ok(placed) => placed,
        Err(_) => {
            report.error(
                file,
                "the rules' `to`, `interface` and `dest` overlap in more than 255 different ways",
                "use fewer services or places, or the same ones in more rules",
            );
            return None;
        }
    };
    let (service_bits, services_occurring) = match &placed {
        Some(placed) => (&placed.rules, &placed.occurring),
        None => (&to_bits, &service_classes.occurring),
    };
    let mut observing = Bits::default();
    let mut enforcing = Bits::default();
    for (number, rule) in rules.iter().enumerate() {
        if rule.observe { observing.insert(number) } else { enforcing.insert(number) }
    }
    let mut cells = Box::new([[Cell::default(); MAX_CLASSES]; MAX_CLASSES]);
    let mut reached = Bits::default();
    for set in &set_classes.occurring {
        for service in services_occurring {
            let (set, service) = (usize::from(*set), usize::from(*service));
            let both = from_bits[set].common(&service_bits[service]);
            let first = both.common(&enforcing).lowest();
            let before = |rule: &usize| first.is_none_or(|first| *rule < first);
            let observer = both.common(&observing).lowest().filter(before);
            cells[set][service] = Cell { enforcing: index(first), observing: index(observer) };
            first.into_iter().chain(observer).for_each(|rule| reached.insert(rule));
        }
    }
    let deciding = deciding_on_spared(rules);
    let everywhere = Bits::all();
    let here = places.as_ref().map_or(std::slice::from_ref(&everywhere), |places| places.rules.as_slice());
    let spared = here
        .iter()
        .map(|here| {
            let first = |held: &Bits| deciding.map(|rules| index(rules.common(held).common(here).lowest()));
            set_classes.combinations.iter().map(first).collect()
        })
        .collect();
    warn_of_unreachable(rules, sets, &reached, report);
    if report.has_errors() {
        return None;
    }
    let is_safe = |class: &u8| set_classes.combinations[usize::from(*class)].contains(SAFE);
    let safe_classes = set_classes.occurring.iter().copied().filter(is_safe).collect();
    Some(Plan {
        sets: set_classes,
        services: service_classes,
        places: places.zip(placed),
        cells,
        spared,
        meters,
        penalties,
        safe_classes,
        has_sets: !safe.is_empty() || rules.iter().any(|rule| rule.from.is_some()),
    })
}

/// Rules whose group is among these, and those for all traffic.
fn rules_to(group_of: &[Option<usize>], groups: &Bits) -> Bits {
    let mut rules = Bits::default();
    for (rule, group) in group_of.iter().enumerate() {
        if group.is_none_or(|group| groups.contains(group)) {
            rules.insert(rule);
        }
    }
    rules
}

/// Index in the tables: behind the `[default]`; 0 = none.
fn index(rule: Option<usize>) -> u16 {
    rule.map_or(0, |rule| rule as u16 + 1)
}

/// What can decide on each kind of traffic that keeps the host on its link: rules that name who and have a verdict.
/// IGMP is `other`; DHCP replies are UDP from 67 to 68 and from 547 to 546.
fn deciding_on_spared(rules: &[Rule]) -> [Bits; 3] {
    [(Kind::Other, 0, 0), (Kind::Udp, 68, 67), (Kind::Udp, 546, 547)].map(|(kind, destination, source)| {
        let meant = |terms: &[Term]| terms.iter().any(|term| term.matches(kind, destination, source));
        let decides = |rule: &Rule| {
            rule.from.is_some()
                && !rule.observe
                && matches!(rule.action, Action::Verdict(_))
                && rule.to.as_ref().is_none_or(|to| meant(&to.terms))
        };
        let mut bits = Bits::default();
        rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| decides(rule))
            .for_each(|(number, _)| bits.insert(number));
        bits
    })
}

fn warn_of_unreachable(rules: &[Rule], sets: &[Set], reached: &Bits, report: &mut Report) {
    for (number, rule) in rules.iter().enumerate() {
        if reached.contains(number) {
            continue;
        }
        let nobody = rule.from.as_ref().is_some_and(|from| {
            from.prefixes.is_empty() && from.sets.iter().all(|set| sets[*set].prefixes.is_empty())
        });
        // An empty list is filled another day.
        if nobody {
            continue;
        }
        let help = if rule.observe {
            "put it above the rules that take its packets: of several observing rules only the first is asked"
        } else {
            "rules above it take all its packets: move it up, or remove it"
        };
        report.warning(&rule.place, format!("nothing can reach rule `{}`", rule.name), help);
    }
}
