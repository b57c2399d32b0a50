//! Tables against rules read one by one.

use ipnet::{IpNet, Ipv6Net};
use limiter_common::{
    abi::{Cell, HAS_PLACES, HAS_SETS, HAS_SOURCE_PORTS, HAS_V6_PREFIXES, action},
    packet::Kind,
    place,
    prefix::{v4_class, v6_class},
};
use proptest::prelude::*;

use super::*;
use crate::policy::traffic::tests::{any_shape, any_term};

/// A source as the parser gives it: IPv4 is `::ffff:a.b.c.d`.
type Source = u128;

const MAPPED: u128 = 0xffff_0000_0000;

fn set_class(compiled: &Compiled, source: Source) -> u8 {
    let rows = compiled.rows.as_slice();
    if compiled.tables.header.flags & HAS_SETS == 0 {
        0
    } else if source >> 32 == MAPPED >> 32 {
        v4_class(&compiled.tables.v4_index, &rows, source as u32)
    } else if compiled.tables.header.flags & HAS_V6_PREFIXES == 0 {
        0
    } else {
        v6_class(&compiled.tables.header, &rows, (source >> 64) as u64, source as u64)
    }
}

fn service_class(compiled: &Compiled, kind: Kind, destination: u16, source: u16) -> u8 {
    let tables = &compiled.tables;
    let table = match kind {
        Kind::Tcp | Kind::TcpSyn | Kind::Udp | Kind::Sctp => kind as usize,
        Kind::Icmp => return tables.type_services[0][usize::from(destination)],
        Kind::Icmpv6 => return tables.type_services[1][usize::from(destination)],
        Kind::Fragment | Kind::Other => return tables.kind_services[kind as usize],
    };
    let class = tables.services[table][usize::from(destination)];
    if tables.header.flags & HAS_SOURCE_PORTS == 0 {
        return class;
    }
    tables.service_pairs[usize::from(class)][usize::from(tables.source_services[table][usize::from(source)])]
}

/// Interfaces that rules name.
const INTERFACES: [&str; 2] = ["eth0", "wan1"];

/// Where a packet is: the interface, if it is one of those, and the address it goes to.
type Where = (Option<usize>, Source);

fn place_class(compiled: &Compiled, (interface, destination): Where) -> u8 {
    let tables = &compiled.tables;
    let named = crate::datapath::interface_names(&tables.places.interface_names);
    let position =
        interface.and_then(|interface| named.iter().position(|name| name == INTERFACES[interface]));
    place::class(
        &tables.header,
        &tables.places,
        || position.map_or(0, |position| position + 1),
        || [(destination >> 64) as u64, destination as u64],
        |number| number,
    )
}

/// A rule of a random policy: its prefixes, its terms, its places, whether it observes, its verdict.
#[derive(Clone, Debug)]
struct Written {
    from: Option<Vec<IpNet>>,
    to: Option<Vec<Term>>,
    interfaces: Option<Vec<usize>>,
    dest: Option<Vec<IpNet>>,
    observe: bool,
    limited: bool,
}

fn any_net() -> impl Strategy<Value = IpNet> {
    let v4 = (
        prop_oneof![Just(0u32), Just(u32::MAX), 0x0a00_0000..0x0a00_0010u32],
        prop_oneof![0u8..=32, Just(32)],
    )
        .prop_map(|(address, length)| {
            IpNet::new(std::net::Ipv4Addr::from(address).into(), length).unwrap().trunc()
        });
    let near = prop_oneof![
        Just(0u128),
        Just(u128::MAX),
        0x2001_0db8_u128 << 96..(0x2001_0db8_u128 << 96) + 16,
        Just(MAPPED | 0x0a00_0001),
        Just((0x0064_ff9b_u128 << 96) | 0x0a00_0002),
    ];
    let v6 = (near, prop_oneof![0u8..=128, Just(128), 90u8..128]).prop_map(|(address, length)| {
        IpNet::new(std::net::Ipv6Addr::from(address).into(), length).unwrap().trunc()
    });
    prop_oneof![v4, v6]
}

fn any_rule() -> impl Strategy<Value = Written> {
    (
        prop::option::of(prop::collection::vec(any_net(), 1..4)),
        prop::option::of(prop::collection::vec(any_term(), 1..4)),
        prop::option::weighted(0.2, prop::collection::vec(0..INTERFACES.len(), 1..3)),
        prop::option::weighted(0.2, prop::collection::vec(any_net(), 1..3)),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(from, to, interfaces, dest, observe, limited)| Written {
            from,
            to,
            interfaces,
            dest,
            observe,
            limited,
        })
}

fn any_place() -> impl Strategy<Value = Where> {
    (prop::option::of(0..INTERFACES.len()), any_source())
}

fn any_source() -> impl Strategy<Value = Source> {
    prop_oneof![
        (0x0a00_0000..0x0a00_0012u32).prop_map(|address| MAPPED | u128::from(address)),
        any::<u32>().prop_map(|address| MAPPED | u128::from(address)),
        Just(MAPPED),
        Just(MAPPED | 0xffff_ffff),
        Just(0u128),
        Just(u128::MAX),
        (0u128..18).prop_map(|low| (0x2001_0db8_u128 << 96) + low),
        any::<u128>(),
    ]
}

fn text(rules: &[Written]) -> String {
    let mut text = "version = 1\n".to_owned();
    for (number, rule) in rules.iter().enumerate() {
        text += &format!("[[rule]]\nname = \"r{number}\"\n");
        let quoted = |items: Vec<String>| {
            items.iter().map(|item| format!("\"{item}\"")).collect::<Vec<_>>().join(", ")
        };
        if let Some(from) = &rule.from {
            text += &format!("from = [{}]\n", quoted(from.iter().map(ToString::to_string).collect()));
        }
        if let Some(to) = &rule.to {
            text += &format!("to = [{}]\n", quoted(to.iter().map(ToString::to_string).collect()));
        }
        if let Some(interfaces) = &rule.interfaces {
            let names = interfaces.iter().map(|interface| INTERFACES[*interface].to_owned());
            text += &format!("interface = [{}]\n", quoted(names.collect()));
        }
        if let Some(dest) = &rule.dest {
            text += &format!("dest = [{}]\n", quoted(dest.iter().map(ToString::to_string).collect()));
        }
        if rule.observe {
            text += "mode = \"observe\"\n";
        }
        text += if rule.limited {
            "limit = [{ per = \"source\", rate = \"50/s\" }]\n"
        } else {
            "verdict = \"drop\"\n"
        };
    }
    text
}

/// Whether a prefix of a policy holds a source. An IPv4 address, bare or carried in IPv6, is that IPv4 source.
fn holds(net: &IpNet, source: Source) -> bool {
    let is_v4 = source >> 32 == MAPPED >> 32;
    match net {
        IpNet::V4(net) => is_v4 && net.contains(&std::net::Ipv4Addr::from(source as u32)),
        IpNet::V6(net) => {
            let nat64 = 0x0064_ff9b_u128 << 96;
            let inside = |address: u128| net.contains(&std::net::Ipv6Addr::from(address));
            if is_v4 {
                // The prefix is about this source if it holds any of its IPv6 forms.
                inside(source) || inside(nat64 | u128::from(source as u32))
            } else {
                // The parser never gives a carried source as IPv6.
                source >> 32 != nat64 >> 32 && inside(source)
            }
        }
    }
}

/// Whether a rule is about where a packet is. IPv4 is in the prefixes of IPv6 that hold `::ffff:a.b.c.d`.
fn is_at(rule: &Written, (interface, destination): Where) -> bool {
    let address = std::net::Ipv6Addr::from(destination);
    let holds = |net: &IpNet| match (net, address.to_ipv4_mapped()) {
        (IpNet::V4(net), Some(address)) => net.contains(&address),
        (IpNet::V4(_), None) => false,
        (IpNet::V6(net), _) => net.contains(&address),
    };
    let through = |named: &Vec<usize>| interface.is_some_and(|interface| named.contains(&interface));
    rule.interfaces.as_ref().is_none_or(through)
        && rule.dest.as_ref().is_none_or(|nets| nets.iter().any(holds))
}

fn matches(rule: &Written, source: Source, shape: (Kind, u16, u16)) -> bool {
    rule.from.as_ref().is_none_or(|nets| nets.iter().any(|net| holds(net, source)))
        && rule
            .to
            .as_ref()
            .is_none_or(|terms| terms.iter().any(|term| term.matches(shape.0, shape.1, shape.2)))
}

fn index(rule: Option<usize>) -> u16 {
    rule.map_or(0, |rule| rule as u16 + 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_cell_is_what_the_rules_say_in_file_order(
        rules in prop::collection::vec(any_rule(), 0..8),
        packets in prop::collection::vec((any_source(), any_shape(), any_place()), 80),
    ) {
        let checked = valid(&text(&rules));
        let compiled = compiled(&checked.policy, &Slots::default());
        let has_places = rules.iter().any(|rule| rule.interfaces.is_some() || rule.dest.is_some());
        prop_assert_eq!(compiled.tables.header.flags & HAS_PLACES != 0, has_places);
        for (source, shape, place) in packets {
            let matches = |rule: &Written, shape| is_at(rule, place) && matches(rule, source, shape);
            let first = rules.iter().position(|rule| !rule.observe && matches(rule, shape));
            let observing = rules.iter().position(|rule| rule.observe && matches(rule, shape));
            let observing = observing.filter(|rule| first.is_none_or(|first| *rule < first));
            let expected = Cell { enforcing: index(first), observing: index(observing) };
            let set = usize::from(set_class(&compiled, source));
            let here = usize::from(place_class(&compiled, place));
            let service = service_class(&compiled, shape.0, shape.1, shape.2);
            let service = match has_places {
                true => compiled.tables.places.services[here][usize::from(service)],
                false => service,
            };
            let service = usize::from(service);
            let cell = compiled.tables.cells[set][service];
            prop_assert_eq!(cell, expected, "{} {:?}", Ipv6Net::from(std::net::Ipv6Addr::from(source)), shape);

            // Spared traffic is asked by set class alone.
            for (kind, shape) in [(Kind::Other, 0, 0), (Kind::Udp, 68, 67), (Kind::Udp, 546, 547)].into_iter().enumerate() {
                let decides = |rule: &Written| {
                    rule.from.is_some() && !rule.observe && !rule.limited && matches(rule, shape)
                };
                prop_assert_eq!(compiled.tables.spared[here][set][kind], index(rules.iter().position(decides)));
            }
        }
        for (number, rule) in rules.iter().enumerate() {
            let expected = if rule.limited { action::LIMIT } else { action::DROP };
            prop_assert_eq!(compiled.tables.rules[number + 1].action, expected);
        }
    }
}
