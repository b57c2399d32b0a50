//! Service classes: which combination of rules' traffic a packet is.
//!
//! Every distinct `to` of the rules is a *group*. Ports fall into stretches within which no term begins or ends;
//! one port of each is asked for all groups. When source ports matter, destination and source ports have classes
//! of their own, and a table of pairs leads to the service class.

use limiter_common::{
    abi::{MAX_CLASSES, PORT_TABLES},
    packet::Kind,
};

use super::{
    classes::{Bits, Combinations, TooMany},
    term::{Range, Term},
};

/// Kinds with ports, in the order of the port tables.
const PORT_KINDS: [Kind; PORT_TABLES] = [Kind::Tcp, Kind::TcpSyn, Kind::Udp, Kind::Sctp];

pub(super) type PortTables = [Vec<u8>; PORT_TABLES];

/// Service classes of all traffic, in the shape of [`limiter_common::abi::PolicyTables`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceClasses {
    pub kinds: [u8; 8],
    pub types: [[u8; 256]; 2],
    /// Service classes, or destination classes when `source` is there.
    pub destination: PortTables,
    pub source: Option<BySource>,
    /// Groups of each class.
    pub combinations: Vec<Bits>,
    /// Classes some packet has.
    pub occurring: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BySource {
    pub classes: PortTables,
    /// `[destination class][source class]` → service class.
    pub pairs: Box<[[u8; MAX_CLASSES]; MAX_CLASSES]>,
}

/// Stretches of numbers within which no term of this kind begins or ends: each with what a number in it has.
fn stretches(groups: &[&[Term]], kind: Kind, by_source: bool, most: u16) -> Vec<(Range, Bits)> {
    let terms = || groups.iter().copied().flatten().filter(|term| term.is_by_source() == by_source);
    let mut starts: Vec<u16> = vec![0];
    for range in terms().filter_map(|term| term.range_of(kind)) {
        starts.push(range.first);
        starts.extend(range.last.checked_add(1).filter(|after| *after <= most));
    }
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([most]);
    let ranges = starts.iter().zip(ends).map(|(first, last)| Range { first: *first, last });
    let with_bits = ranges.map(|range| {
        let mut bits = Bits::default();
        for (number, group) in groups.iter().enumerate() {
            let asked = group.iter().filter(|term| term.is_by_source() == by_source);
            if asked.clone().any(|term| term.matches(kind, range.first, range.first)) {
                bits.insert(number);
            }
        }
        (range, bits)
    });
    with_bits.collect()
}

/// Fills a port table by stretches, numbering their combinations.
fn ports(
    groups: &[&[Term]],
    kind: Kind,
    by_source: bool,
    combinations: &mut Combinations,
) -> Result<Vec<u8>, TooMany> {
    let mut table = vec![0; 65536];
    for (range, bits) in stretches(groups, kind, by_source, u16::MAX) {
        let class = combinations.number(bits)?;
        table[usize::from(range.first)..=usize::from(range.last)].fill(class);
    }
    Ok(table)
}

fn port_tables(
    groups: &[&[Term]],
    by_source: bool,
    combinations: &mut Combinations,
) -> Result<PortTables, TooMany> {
    let [tcp, syn, udp, sctp] = PORT_KINDS.map(|kind| ports(groups, kind, by_source, combinations));
    Ok([tcp?, syn?, udp?, sctp?])
}

/// Classes for these groups of terms.
pub(super) fn service_classes(groups: &[&[Term]]) -> Result<ServiceClasses, TooMany> {
    let mut combinations = Combinations::new();
    let mut kinds = [0; 8];
    for (kind, term) in [(Kind::Fragment, Term::Fragment), (Kind::Other, Term::Other)] {
        let mut bits = Bits::default();
        groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.contains(&term))
            .for_each(|(i, _)| bits.insert(i));
        kinds[kind as usize] = combinations.number(bits)?;
    }
    let mut types = [[0; 256]; 2];
    for (table, kind) in types.iter_mut().zip([Kind::Icmp, Kind::Icmpv6]) {
        for (range, bits) in stretches(groups, kind, false, 255) {
            let class = combinations.number(bits)?;
            table[usize::from(range.first)..=usize::from(range.last)].fill(class);
        }
    }
    let by_source = groups.iter().copied().flatten().any(|term| term.is_by_source());
    if !by_source {
        let destination = port_tables(groups, false, &mut combinations)?;
        let occurring = combinations.occurring();
        return Ok(ServiceClasses {
            kinds,
            types,
            destination,
            source: None,
            combinations: combinations.list,
            occurring,
        });
    }
    let (mut destinations, mut sources) = (Combinations::new(), Combinations::new());
    let destination = port_tables(groups, false, &mut destinations)?;
    let classes = port_tables(groups, true, &mut sources)?;
    let mut pairs = Box::new([[0; MAX_CLASSES]; MAX_CLASSES]);
    // Only what one packet can be at once: the classes of one table.
    for (by_destination, by_source) in destination.iter().zip(&classes) {
        let sources_here = distinct(by_source);
        for first in distinct(by_destination) {
            for second in &sources_here {
                let (one, other) =
                    (destinations.list[usize::from(first)], sources.list[usize::from(*second)]);
                let class = combinations.number(one.union(&other))?;
                pairs[usize::from(first)][usize::from(*second)] = class;
            }
        }
    }
    let occurring = combinations.occurring();
    let source = Some(BySource { classes, pairs });
    Ok(ServiceClasses { kinds, types, destination, source, combinations: combinations.list, occurring })
}

fn distinct(classes: &[u8]) -> Vec<u8> {
    let mut seen = [false; MAX_CLASSES];
    classes.iter().for_each(|class| seen[usize::from(*class)] = true);
    (0..=u8::MAX).filter(|class| seen[usize::from(*class)]).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn any_range(most: u16) -> impl Strategy<Value = Range> {
        let number = prop_oneof![Just(0u16), Just(most), 0..=most, 50u16..60];
        (number.clone(), number).prop_map(|(a, b)| Range { first: a.min(b), last: a.max(b) })
    }

    pub fn any_term() -> impl Strategy<Value = Term> {
        let ports = || any_range(u16::MAX);
        prop_oneof![
            ports().prop_map(Term::Tcp),
            ports().prop_map(Term::TcpSyn),
            ports().prop_map(Term::TcpFrom),
            ports().prop_map(Term::Udp),
            ports().prop_map(Term::UdpFrom),
            ports().prop_map(Term::Sctp),
            any_range(255).prop_map(Term::Icmp),
            any_range(255).prop_map(Term::Icmpv6),
            Just(Term::Fragment),
            Just(Term::Other),
        ]
    }

    pub fn any_kind() -> impl Strategy<Value = Kind> {
        use Kind::{Fragment, Icmp, Icmpv6, Other, Sctp, Tcp, TcpSyn, Udp};
        prop_oneof![
            Just(Tcp),
            Just(TcpSyn),
            Just(Udp),
            Just(Sctp),
            Just(Icmp),
            Just(Icmpv6),
            Just(Fragment),
            Just(Other)
        ]
    }

    /// Ports near where terms begin and end are the ones that matter.
    fn any_port() -> impl Strategy<Value = u16> {
        prop_oneof![any::<u16>(), 48u16..62, Just(0), Just(u16::MAX), 253u16..258]
    }

    /// A packet's kind with its destination port or type and source port, none of them where it has none.
    pub fn any_shape() -> impl Strategy<Value = (Kind, u16, u16)> {
        (any_kind(), any_port(), any_port()).prop_map(|(kind, destination, source)| match kind {
            Kind::Icmp | Kind::Icmpv6 => (kind, destination % 256, 0),
            Kind::Fragment | Kind::Other => (kind, 0, 0),
            _ => (kind, destination, source),
        })
    }

    fn class(classes: &ServiceClasses, kind: Kind, destination: u16, source: u16) -> u8 {
        let Some(table) = PORT_KINDS.iter().position(|other| *other == kind) else {
            return match kind {
                Kind::Icmp => classes.types[0][usize::from(destination)],
                Kind::Icmpv6 => classes.types[1][usize::from(destination)],
                _ => classes.kinds[kind as usize],
            };
        };
        let first = classes.destination[table][usize::from(destination)];
        let Some(by_source) = &classes.source else { return first };
        by_source.pairs[usize::from(first)][usize::from(by_source.classes[table][usize::from(source)])]
    }

    proptest! {
        #[test]
        fn a_class_is_what_every_term_says(
            groups in prop::collection::vec(prop::collection::vec(any_term(), 1..5), 0..5),
            shapes in prop::collection::vec(any_shape(), 60),
        ) {
            let borrowed: Vec<&[Term]> = groups.iter().map(Vec::as_slice).collect();
            let classes = service_classes(&borrowed).unwrap();
            for (kind, destination, source) in shapes {
                let class = class(&classes, kind, destination, source);
                prop_assert!(classes.occurring.contains(&class));
                let bits = classes.combinations[usize::from(class)];
                for (number, group) in groups.iter().enumerate() {
                    let expected = group.iter().any(|term| term.matches(kind, destination, source));
                    prop_assert_eq!(bits.contains(number), expected, "{:?} {} {} {}", kind, destination, source, number);
                }
            }
        }
    }

    #[test]
    fn a_byte_names_256_classes_and_no_more() {
        let one_port = |port: u16| vec![Term::Udp(Range { first: port, last: port })];
        let groups: Vec<Vec<Term>> = (0..255).map(one_port).collect();
        let borrowed: Vec<&[Term]> = groups.iter().map(Vec::as_slice).collect();
        assert_eq!(service_classes(&borrowed).unwrap().combinations.len(), 256);
        let groups: Vec<Vec<Term>> = (0..256).map(one_port).collect();
        let borrowed: Vec<&[Term]> = groups.iter().map(Vec::as_slice).collect();
        assert_eq!(service_classes(&borrowed), Err(TooMany));
    }
}
