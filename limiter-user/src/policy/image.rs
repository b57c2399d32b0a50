//! Writes the prefix image that [`limiter_common::prefix`] reads; see there for its structure.

use limiter_common::{
    abi::{Header, ROW_BYTES, Row},
    prefix::{V4_ENTRIES, V6_KEYS, V6_LEVELS},
};

use super::classes::SetClasses;

/// Fills the index and the header's part of the prefixes and gives the rows. `None` when there are more IPv6
/// boundaries than the tree holds.
pub(super) fn write(classes: &SetClasses, index: &mut [u64; 65536], header: &mut Header) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    let entries = v4_entries(&classes.v4, index);
    append(&mut rows, entries.iter().map(|entry| entry.to_ne_bytes()));
    write_v6(&classes.v6, header, &mut rows)?;
    Some(rows)
}

fn append<const N: usize>(rows: &mut Vec<Row>, numbers: impl Iterator<Item = [u8; N]>) {
    let mut place = ROW_BYTES;
    for number in numbers {
        if place == ROW_BYTES {
            rows.push(Row([0; ROW_BYTES]));
            place = 0;
        }
        if let Some(row) = rows.last_mut() {
            row.0[place..place + N].copy_from_slice(&number);
        }
        place += N;
    }
}

/// The entries of every /16, those of one in one row or filling whole rows; zeros between.
fn v4_entries(boundaries: &[(u32, u8)], index: &mut [u64; 65536]) -> Vec<u32> {
    let mut entries = Vec::with_capacity(boundaries.len());
    let mut left = boundaries.iter().copied().peekable();
    let mut class = 0;
    for (block, description) in index.iter_mut().enumerate() {
        let start = (block as u32) << 16;
        if let Some((_, begins)) = left.next_if(|(address, _)| *address == start) {
            class = begins;
        }
        let at_start = class;
        let mut own = Vec::new();
        while let Some((address, begins)) = left.next_if(|(address, _)| address >> 16 == block as u32) {
            own.push(address << 16 | u32::from(begins));
            class = begins;
        }
        let row = V4_ENTRIES as usize;
        if own.len() > row - entries.len() % row {
            entries.resize(entries.len().next_multiple_of(row), 0);
        }
        *description = entries.len() as u64 | (own.len() as u64) << 32 | u64::from(at_start) << 56;
        entries.append(&mut own);
    }
    entries
}

fn write_v6(boundaries: &[(u128, u8)], header: &mut Header, rows: &mut Vec<Row>) -> Option<()> {
    header.v6_depth = 0;
    header.v6_levels = [0; V6_LEVELS];
    header.v6_classes = 0;
    let Some((_, last_class)) = boundaries.last() else { return Some(()) };
    let mut boundaries = boundaries.to_vec();
    if boundaries[0].0 != 0 {
        boundaries.insert(0, (0, 0));
    }
    if boundaries[boundaries.len() - 1].0 != u128::MAX {
        boundaries.push((u128::MAX, *last_class));
    }
    let keys = V6_KEYS as usize;
    let mut levels: Vec<Vec<u128>> = vec![boundaries.iter().map(|(address, _)| *address).collect()];
    while let Some(lower) = levels.last().filter(|level| level.len() > keys) {
        levels.push(lower.iter().step_by(keys).copied().collect());
    }
    if levels.len() > V6_LEVELS {
        return None;
    }
    header.v6_depth = levels.len() as u32;
    for (level, mut addresses) in levels.into_iter().rev().enumerate() {
        header.v6_levels[level] = rows.len() as u32;
        addresses.resize(addresses.len().next_multiple_of(keys), u128::MAX);
        append(
            rows,
            addresses.iter().flat_map(|key| [(key >> 64) as u64, *key as u64]).map(u64::to_ne_bytes),
        );
    }
    header.v6_classes = rows.len() as u32;
    append(rows, boundaries.iter().map(|(_, class)| [*class]));
    Some(())
}

#[cfg(test)]
mod tests {
    use ipnet::{Ipv4Net, Ipv6Net};
    use limiter_common::prefix::{v4_class, v6_class};
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{
        classes::{Bits, set_classes},
        model::Prefixes,
    };

    struct Built {
        classes: SetClasses,
        index: Box<[u64; 65536]>,
        header: Header,
        rows: Vec<Row>,
    }

    fn build(groups: &[Prefixes]) -> Built {
        let only = |number| {
            let mut bits = Bits::default();
            bits.insert(number);
            bits
        };
        let lists: Vec<(&Prefixes, Bits)> =
            groups.iter().enumerate().map(|(i, list)| (list, only(i))).collect();
        let classes = set_classes(&lists).unwrap();
        let mut index: Box<[u64; 65536]> = vec![0u64; 65536].try_into().unwrap();
        let mut header = Header::default();
        let rows = write(&classes, &mut index, &mut header).unwrap();
        Built { classes, index, header, rows }
    }

    impl Built {
        fn v4(&self, address: u32) -> Bits {
            let class = v4_class(&self.index, &self.rows.as_slice(), address);
            self.classes.combinations[usize::from(class)]
        }

        fn v6(&self, address: u128) -> Bits {
            let class = v6_class(&self.header, &self.rows.as_slice(), (address >> 64) as u64, address as u64);
            self.classes.combinations[usize::from(class)]
        }
    }

    /// The groups that hold an address, by asking every prefix.
    fn holders<N>(lists: &[Vec<N>], holds: impl Fn(&N) -> bool) -> Bits {
        let mut bits = Bits::default();
        lists
            .iter()
            .enumerate()
            .filter(|(_, list)| list.iter().any(&holds))
            .for_each(|(i, _)| bits.insert(i));
        bits
    }

    fn check_v4(lists: &[Vec<Ipv4Net>], extra: &[u32]) {
        let groups: Vec<Prefixes> = lists.iter().map(|v4| Prefixes { v4: v4.clone(), v6: vec![] }).collect();
        let built = build(&groups);
        let mut probes: Vec<u32> = vec![0, 1, 0xffff, 0x1_0000, u32::MAX - 1, u32::MAX];
        probes.extend(extra);
        for net in lists.iter().flatten() {
            let (first, last) = (u32::from(net.network()), u32::from(net.broadcast()));
            probes.extend([
                first.wrapping_sub(1),
                first,
                first + (last - first) / 2,
                last,
                last.wrapping_add(1),
            ]);
        }
        for address in probes {
            let expected = holders(lists, |net| net.contains(&std::net::Ipv4Addr::from(address)));
            assert_eq!(built.v4(address), expected, "{}", std::net::Ipv4Addr::from(address));
        }
    }

    fn check_v6(lists: &[Vec<Ipv6Net>], extra: &[u128]) {
        let groups: Vec<Prefixes> = lists.iter().map(|v6| Prefixes { v4: vec![], v6: v6.clone() }).collect();
        let built = build(&groups);
        let mut probes: Vec<u128> = vec![0, 1, 1 << 64, u128::MAX - 1, u128::MAX];
        probes.extend(extra);
        for net in lists.iter().flatten() {
            let (first, last) = (u128::from(net.network()), u128::from(net.broadcast()));
            probes.extend([
                first.wrapping_sub(1),
                first,
                first + (last - first) / 2,
                last,
                last.wrapping_add(1),
            ]);
        }
        for address in probes {
            let expected = holders(lists, |net| net.contains(&std::net::Ipv6Addr::from(address)));
            assert_eq!(built.v6(address), expected, "{}", std::net::Ipv6Addr::from(address));
        }
    }

    /// Addresses crowd around a few places, so that prefixes nest and touch.
    fn v4_net() -> impl Strategy<Value = Ipv4Net> {
        let near =
            prop_oneof![Just(0u32), Just(u32::MAX), Just(0x0a00_ffff), Just(0x0a01_0000), any::<u32>()];
        (near, any::<u16>(), 0u8..=32).prop_map(|(near, noise, length)| {
            Ipv4Net::new((near ^ u32::from(noise)).into(), length).unwrap().trunc()
        })
    }

    fn v6_net() -> impl Strategy<Value = Ipv6Net> {
        let near = prop_oneof![
            Just(0u128),
            Just(u128::MAX),
            Just(0x2001_0db8_0000_0000_0000_0000_0000_0000),
            Just(0x2001_0db8_0000_0000_ffff_ffff_ffff_ffff),
            any::<u128>()
        ];
        (near, any::<u16>(), 0u8..=128, 0u32..112).prop_map(|(near, noise, length, shift)| {
            Ipv6Net::new((near ^ u128::from(noise) << shift).into(), length).unwrap().trunc()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(80))]

        #[test]
        fn v4_is_what_every_prefix_says(
            lists in prop::collection::vec(prop::collection::vec(v4_net(), 0..40), 1..6),
            probes in prop::collection::vec(any::<u32>(), 20),
        ) {
            check_v4(&lists, &probes);
        }

        #[test]
        fn v6_is_what_every_prefix_says(
            lists in prop::collection::vec(prop::collection::vec(v6_net(), 0..60), 1..6),
            probes in prop::collection::vec(any::<u128>(), 20),
        ) {
            check_v6(&lists, &probes);
        }
    }

    #[test]
    fn the_edges_of_both_families() {
        let v4 = |text: &str| text.parse::<Ipv4Net>().unwrap();
        check_v4(&[vec![v4("0.0.0.0/32"), v4("255.255.255.255/32")], vec![v4("0.0.0.0/0")]], &[]);
        check_v4(&[vec![]], &[]);
        let v6 = |text: &str| text.parse::<Ipv6Net>().unwrap();
        check_v6(
            &[vec![v6("::/128"), v6("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")], vec![v6("::/0")]],
            &[],
        );
        check_v6(&[vec![v6("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")]], &[]);
        check_v6(&[vec![v6("ff00::/8")]], &[]);
        check_v6(&[vec![]], &[]);
    }

    /// Every other address of a /16: the largest number of boundaries one can have.
    #[test]
    fn a_full_block_of_single_addresses() {
        let hosts =
            (0..0x1_0000u32).step_by(2).map(|low| Ipv4Net::new((0x0a01_0000 | low).into(), 32).unwrap());
        let built = build(&[Prefixes { v4: hosts.collect(), v6: vec![] }]);
        for low in 0..0x1_0000u32 {
            assert_eq!(built.v4(0x0a01_0000 | low).contains(0), low % 2 == 0, "{low}");
        }
        assert!(built.v4(0x0a00_ffff).is_empty() && built.v4(0x0a02_0000).is_empty());
    }

    /// Trees of one to four levels, filled exactly and one more or less, each key probed on and beside.
    #[test]
    fn every_depth_of_the_tree() {
        for (hosts, depth) in
            [(1usize, 1), (31, 1), (32, 2), (33, 2), (2047, 2), (2048, 3), (2050, 3), (131_072, 4)]
        {
            let step = 1u128 << 100;
            let nets = (0..hosts).map(|i| Ipv6Net::new((step * (i as u128 + 1)).into(), 128).unwrap());
            let built = build(&[Prefixes { v4: vec![], v6: nets.collect() }]);
            assert_eq!(built.header.v6_depth, depth, "{hosts}");
            for i in 1..=hosts as u128 {
                let address = step * i;
                assert!(built.v6(address).contains(0), "{hosts} {i}");
                assert!(built.v6(address - 1).is_empty() && built.v6(address + 1).is_empty(), "{hosts} {i}");
            }
            assert!(built.v6(u128::MAX).is_empty());
        }
    }
}
