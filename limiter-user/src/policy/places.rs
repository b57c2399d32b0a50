//! Place classes: which rules' `interface` and `dest` a packet meets.
//!
//! Interfaces are a class each. Destinations fall into stretches like sources do. Each different answer of an interface
//! class and a destination class is a place class, and each different answer of that and a service class, under which
//! packets have a row of cells.

use std::collections::BTreeSet;

use ipnet::IpNet;
use limiter_common::abi::{MAX_CLASSES, MAX_DESTINATIONS, MAX_INTERFACES, MAX_PLACES};

use super::{
    classes::{Bits, Combinations, TooMany, set_classes},
    diagnostic::{Place, Report},
    model::{Prefixes, Rule},
};

/// Prefixes the `dest` of all rules may name together: each is at most two stretches, and one is before the first.
pub(super) const MOST_DESTINATIONS: usize = (MAX_DESTINATIONS - 1) / 2;

/// `::ffff:0:0`, from where on IPv4 addresses are.
const MAPPED: u128 = 0xffff_0000_0000;

/// Where packets can be, in the shape of [`limiter_common::abi::Places`].
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Names of interfaces; the class of each is one more than its position.
    pub interfaces: Vec<String>,
    /// Addresses at which the destination class changes, the first `::`, each with the class from there on.
    pub stretches: Vec<(u128, u8)>,
    /// `[interface class][destination class]` → place class.
    pub classes: [[u8; MAX_CLASSES]; 2 * MAX_INTERFACES],
    /// Rules of each place class.
    pub rules: Vec<Bits>,
    pub by_interface: bool,
    pub by_destination: bool,
}

/// `None` also when something wrong was reported.
pub(super) fn places(rules: &[Rule], file: &Place, report: &mut Report) -> Option<Places> {
    let by_interface = rules.iter().any(|rule| rule.interfaces.is_some());
    let by_destination = rules.iter().any(|rule| rule.dest.is_some());
    if !by_interface && !by_destination {
        return None;
    }
    let interfaces: Vec<String> = names(rules).into_iter().map(str::to_owned).collect();
    if interfaces.len() > MAX_INTERFACES {
        let message = format!("the rules name {} interfaces", interfaces.len());
        report.error(file, message, format!("there can be {MAX_INTERFACES} in all"));
    }
    let prefixes = count_prefixes(rules);
    if prefixes > MOST_DESTINATIONS {
        let message = format!("the rules' `dest` name {prefixes} prefixes");
        report.error(file, message, format!("there can be {MOST_DESTINATIONS} in all: use wider ones"));
    }
    if report.has_errors() {
        return None;
    }
    let found = divide(rules, interfaces, by_interface, by_destination);
    if found.is_err() {
        report.error(
            file,
            format!(
                "the rules' `interface` and `dest` overlap in more than {} different ways",
                MAX_PLACES - 1
            ),
            "name fewer interfaces or destinations, or the same ones in more rules",
        );
    }
    found.ok()
}

/// Interfaces that rules name, in order of their names.
pub(super) fn names(rules: &[Rule]) -> BTreeSet<&str> {
    rules.iter().flat_map(|rule| rule.interfaces.iter().flatten()).map(String::as_str).collect()
}

fn count_prefixes(rules: &[Rule]) -> usize {
    let lists = rules.iter().filter_map(|rule| Some(&rule.dest.as_ref()?.prefixes));
    let all: BTreeSet<IpNet> = lists
        .flat_map(|list| {
            list.v4.iter().map(|net| IpNet::V4(*net)).chain(list.v6.iter().map(|net| IpNet::V6(*net)))
        })
        .collect();
    all.len()
}

fn divide(
    rules: &[Rule],
    interfaces: Vec<String>,
    by_interface: bool,
    by_destination: bool,
) -> Result<Places, TooMany> {
    let lists: Vec<(&Prefixes, Bits)> = rules
        .iter()
        .enumerate()
        .filter_map(|(number, rule)| Some((&rule.dest.as_ref()?.prefixes, Bits::of(number))))
        .collect();
    let destinations = set_classes(&lists)?;
    let to_any = rules_where(rules, |rule| rule.dest.is_none());
    let mut classes = [[0; MAX_CLASSES]; 2 * MAX_INTERFACES];
    let mut combinations = Combinations::new();
    for (class, row) in classes.iter_mut().enumerate().take(interfaces.len() + 1) {
        let name = class.checked_sub(1).map(|position| &interfaces[position]);
        let through = rules_where(rules, |rule| match &rule.interfaces {
            None => true,
            Some(named) => name.is_some_and(|name| named.contains(name)),
        });
        for (destination, held) in destinations.combinations.iter().enumerate() {
            row[destination] = combinations.number(through.common(&held.union(&to_any)))?;
        }
    }
    if combinations.list.len() > MAX_PLACES {
        return Err(TooMany);
    }
    Ok(Places {
        interfaces,
        stretches: stretches(&destinations.v4, &destinations.v6),
        classes,
        rules: combinations.list,
        by_interface,
        by_destination,
    })
}

fn rules_where(rules: &[Rule], is_meant: impl Fn(&Rule) -> bool) -> Bits {
    let mut bits = Bits::default();
    rules.iter().enumerate().filter(|(_, rule)| is_meant(rule)).for_each(|(number, _)| bits.insert(number));
    bits
}

/// One list of both families' boundaries: IPv4 has a part of its own in IPv6.
fn stretches(v4: &[(u32, u8)], v6: &[(u128, u8)]) -> Vec<(u128, u8)> {
    let behind = MAPPED + (1 << 32);
    let class_at = |address: u128| {
        let before = v6.partition_point(|(first, _)| *first <= address);
        before.checked_sub(1).map_or(0, |last| v6[last].1)
    };
    let v4_at_first = v4.first().filter(|(first, _)| *first == 0).map_or(0, |(_, class)| *class);
    let mut all = vec![(0, class_at(0)), (MAPPED, v4_at_first), (behind, class_at(behind))];
    all.extend(v4.iter().map(|(first, class)| (MAPPED + u128::from(*first), *class)));
    all.extend(v6.iter().filter(|(first, _)| !(MAPPED..behind).contains(first)));
    all.sort_unstable();
    all.dedup_by_key(|(first, _)| *first);
    all.dedup_by_key(|(_, class)| *class);
    all
}

/// Service classes by place: which rules a packet of a service meets where it is.
#[derive(Clone, Debug)]
pub(super) struct PlacedServices {
    /// `[place class][service class]` → class of the cells.
    pub table: Vec<[u8; MAX_CLASSES]>,
    /// Rules of each.
    pub rules: Vec<Bits>,
    pub occurring: Vec<u8>,
}

/// `to_rules` are the rules of each service class.
pub(super) fn placed(
    places: &Places,
    to_rules: &[Bits],
    occurring: &[u8],
) -> Result<PlacedServices, TooMany> {
    let mut combinations = Combinations::new();
    let mut table = vec![[0; MAX_CLASSES]; places.rules.len()];
    for (row, here) in table.iter_mut().zip(&places.rules) {
        for service in occurring {
            let service = usize::from(*service);
            row[service] = combinations.number(here.common(&to_rules[service]))?;
        }
    }
    Ok(PlacedServices { table, occurring: combinations.occurring(), rules: combinations.list })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_one_list() {
        let v4 = [(0x0a00_0000, 1), (0x0b00_0000, 0)];
        let v6 = [(0x2001_0db8 << 96, 2), ((0x2001_0db8 << 96) + (1 << 96), 0)];
        let ten = MAPPED + 0x0a00_0000;
        let expected = vec![
            (0, 0),
            (ten, 1),
            (MAPPED + 0x0b00_0000, 0),
            (0x2001_0db8 << 96, 2),
            ((0x2001_0db8 << 96) + (1 << 96), 0),
        ];
        assert_eq!(stretches(&v4, &v6), expected);
        // All of IPv6 but IPv4, and the last address of each.
        assert_eq!(stretches(&[], &[(0, 1)]), [(0, 1), (MAPPED, 0), (MAPPED + (1 << 32), 1)]);
        assert_eq!(
            stretches(&[(u32::MAX, 3)], &[(u128::MAX, 1)]),
            [(0, 0), (MAPPED + 0xffff_ffff, 3), (MAPPED + (1 << 32), 0), (u128::MAX, 1)]
        );
        assert_eq!(stretches(&[(0, 3)], &[]), [(0, 0), (MAPPED, 3), (MAPPED + (1 << 32), 0)]);
    }
}
