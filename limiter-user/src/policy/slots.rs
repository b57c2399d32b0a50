//! Persistent places for rules' counters and meters' budgets.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hash,
};

/// What a round of giving out places did.
#[derive(Debug)]
pub(super) struct Given<K> {
    /// Places of all names, those of retired ones included.
    pub all: BTreeMap<K, u32>,
    /// Places taken from a retired name.
    pub reused: Vec<u32>,
}

/// Gives each name a place below `count`: the one it had, else a free one, else that of a name no longer in use.
/// `None` when there are more names than places.
pub(super) fn give<K: Ord + Clone + Hash>(
    before: &BTreeMap<K, u32>,
    names: &[K],
    count: u32,
) -> Option<Given<K>> {
    let wanted: BTreeSet<&K> = names.iter().collect();
    if wanted.len() > count as usize {
        return None;
    }
    // A place two names claim, or one there is not, is nobody's.
    let mut taken: BTreeSet<u32> = BTreeSet::new();
    let mut all: BTreeMap<K, u32> = BTreeMap::new();
    let (kept, retired): (Vec<_>, Vec<_>) = before.iter().partition(|(name, _)| wanted.contains(name));
    for (name, place) in kept.into_iter().chain(retired) {
        if *place < count && taken.insert(*place) {
            all.insert(name.clone(), *place);
        }
    }
    let mut free = (0..count).filter(|place| !taken.contains(place)).collect::<Vec<_>>().into_iter();
    let mut retired: Vec<K> = all.keys().filter(|name| !wanted.contains(name)).cloned().collect();
    let mut reused = Vec::new();
    for name in names {
        if all.contains_key(name) {
            continue;
        }
        let place = match free.next() {
            Some(place) => place,
            None => {
                let place = all.remove(&retired.pop()?)?;
                reused.push(place);
                place
            }
        };
        all.insert(name.clone(), place);
    }
    Some(Given { all, reused })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(pairs: &[(&str, u32)]) -> BTreeMap<String, u32> {
        pairs.iter().map(|(name, place)| ((*name).to_owned(), *place)).collect()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_name_keeps_its_place() {
        let given = give(&places(&[("", 0), ("b", 5)]), &names(&["", "a", "b"]), 8).unwrap();
        assert_eq!(given.all, places(&[("", 0), ("a", 1), ("b", 5)]));
        assert!(given.reused.is_empty());
    }

    #[test]
    fn a_retired_place_is_reused_only_when_none_is_free() {
        let given = give(&places(&[("", 0), ("old", 1)]), &names(&["", "a"]), 3).unwrap();
        assert_eq!(given.all, places(&[("", 0), ("old", 1), ("a", 2)]));
        let given = give(&given.all, &names(&["", "a", "b"]), 3).unwrap();
        assert_eq!((given.all, given.reused), (places(&[("", 0), ("a", 2), ("b", 1)]), vec![1]));
    }

    #[test]
    fn what_cannot_be_is_nobodys() {
        let given = give(&places(&[("a", 9), ("b", 1), ("c", 1)]), &names(&["a", "b", "c"]), 3).unwrap();
        assert_eq!(given.all, places(&[("a", 0), ("b", 1), ("c", 2)]));
        assert!(give(&places(&[]), &names(&["a", "b"]), 1).is_none());
    }
}
