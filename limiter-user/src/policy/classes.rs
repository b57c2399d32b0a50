//! Set classes: which rules' `from` holds an address.
//!
//! One sweep over the sorted ends of all lists' ranges yields the addresses at which the combination of lists
//! changes. What matters of a combination is the rules it lets match: each different answer becomes a class.

use std::collections::HashMap;

use limiter_common::abi::{MAX_CLASSES, MAX_RULES};

use super::model::Prefixes;

const WORDS: usize = MAX_RULES / 64;

/// A set of numbers below [`MAX_RULES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Bits([u64; WORDS]);

impl Bits {
    /// One number alone.
    pub fn of(number: usize) -> Self {
        let mut bits = Self::default();
        bits.insert(number);
        bits
    }

    pub fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// Every number.
    pub fn all() -> Self {
        Self([u64::MAX; WORDS])
    }

    pub fn toggle(&mut self, number: usize) {
        self.0[number / 64] ^= 1 << (number % 64);
    }

    pub fn contains(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 == 1
    }

    pub fn union(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
        self
    }

    pub fn common(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a &= b);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    pub fn lowest(&self) -> Option<usize> {
        let word = self.0.iter().position(|word| *word != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }
}

/// There are more combinations than a byte can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// Numbers combinations in the order they are first seen. 0 is the empty one.
pub(super) struct Combinations {
    numbers: HashMap<Bits, u8>,
    pub list: Vec<Bits>,
    empty_seen: bool,
}

impl Combinations {
    pub fn new() -> Self {
        Self {
            numbers: HashMap::from([(Bits::default(), 0)]),
            list: vec![Bits::default()],
            empty_seen: false,
        }
    }

    pub fn number(&mut self, bits: Bits) -> Result<u8, TooMany> {
        if let Some(number) = self.numbers.get(&bits) {
            self.empty_seen |= *number == 0;
            return Ok(*number);
        }
        if self.list.len() >= MAX_CLASSES {
            return Err(TooMany);
        }
        let number = self.list.len() as u8;
        self.numbers.insert(bits, number);
        self.list.push(bits);
        Ok(number)
    }

    /// Every number given out.
    pub fn occurring(&self) -> Vec<u8> {
        (0..=u8::MAX).take(self.list.len()).filter(|number| *number > 0 || self.empty_seen).collect()
    }
}

/// Classes of all addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SetClasses {
    /// Addresses at which the class changes, sorted, with the class from there on. Class 0 before the first.
    pub v4: Vec<(u32, u8)>,
    pub v6: Vec<(u128, u8)>,
    /// Rules of each class, those without `from` left out.
    pub combinations: Vec<Bits>,
    /// Classes some address has: all, but for class 0 when every address is in some list.
    pub occurring: Vec<u8>,
}

/// Classes for these lists; `users` are the rules that ask for each.
pub(super) fn set_classes(lists: &[(&Prefixes, Bits)]) -> Result<SetClasses, TooMany> {
    let mut v4: Vec<(u32, u16)> = Vec::new();
    let mut v6: Vec<(u128, u16)> = Vec::new();
    for (number, (list, _)) in lists.iter().enumerate() {
        let ranges = list.v4.iter().map(|net| (net.network().into(), net.broadcast().into()));
        for (first, last) in merged(ranges.collect(), |last: u32| last.checked_add(1)) {
            v4.push((first, number as u16));
            v4.extend(last.checked_add(1).map(|after| (after, number as u16)));
        }
        let ranges = list.v6.iter().map(|net| (net.network().into(), net.broadcast().into()));
        for (first, last) in merged(ranges.collect(), |last: u128| last.checked_add(1)) {
            v6.push((first, number as u16));
            v6.extend(last.checked_add(1).map(|after| (after, number as u16)));
        }
    }
    let mut classes = ListClasses { lists, known: HashMap::new(), combinations: Combinations::new() };
    let v4 = sweep(v4, 0, &mut classes)?;
    let v6 = sweep(v6, 0, &mut classes)?;
    let combinations = classes.combinations;
    Ok(SetClasses { v4, v6, occurring: combinations.occurring(), combinations: combinations.list })
}

/// From a combination of lists to a class.
struct ListClasses<'a> {
    lists: &'a [(&'a Prefixes, Bits)],
    known: HashMap<Bits, u8>,
    combinations: Combinations,
}

impl ListClasses<'_> {
    fn class(&mut self, holding: Bits) -> Result<u8, TooMany> {
        if let Some(class) = self.known.get(&holding) {
            return Ok(*class);
        }
        let users = self.lists.iter().enumerate().filter(|(number, _)| holding.contains(*number));
        let rules = users.fold(Bits::default(), |rules, (_, (_, users))| rules.union(users));
        let class = self.combinations.number(rules)?;
        self.known.insert(holding, class);
        Ok(class)
    }
}

/// Ranges, sorted, with those that overlap or touch made one.
fn merged<A: Ord + Copy>(mut ranges: Vec<(A, A)>, next: impl Fn(A) -> Option<A>) -> Vec<(A, A)> {
    ranges.sort_unstable();
    let mut merged: Vec<(A, A)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if next(before.1).is_none_or(|after| first <= after) => {
                before.1 = before.1.max(last);
            }
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// Each event is an end of a range: from that address on, the list holds if it did not, and does not if it did.
fn sweep<A: Ord + Copy>(
    mut events: Vec<(A, u16)>,
    lowest: A,
    classes: &mut ListClasses<'_>,
) -> Result<Vec<(A, u8)>, TooMany> {
    events.sort_unstable();
    let mut boundaries: Vec<(A, u8)> = Vec::with_capacity(events.len());
    let mut current = Bits::default();
    if events.first().is_none_or(|(address, _)| *address > lowest) {
        classes.class(current)?;
    }
    for same in events.chunk_by(|a, b| a.0 == b.0) {
        for (_, list) in same {
            current.toggle(usize::from(*list));
        }
        let class = classes.class(current)?;
        if boundaries.last().map_or(0, |(_, class)| *class) != class {
            boundaries.push((same[0].0, class));
        }
    }
    Ok(boundaries)
}
