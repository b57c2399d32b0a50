//! Random policies, as text.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::{DESTINATION_PREFIXES, INTERFACES, PORTS, TYPES_V4, TYPES_V6, V4_SOURCES, V6_SOURCES};
use crate::random::Random;

/// A policy without mistakes (though perhaps with rules that nothing reaches). Policies of one `family` name their
/// rules and limits alike, so their buckets go over from one to the other.
///
/// Limits refill one packet in five minutes and one byte in several seconds, so a test that takes less does not
/// depend on the clock.
pub fn policy(random: &mut Random, family: u64) -> String {
    let mut text = "version = 1\n\n[default]\n".to_owned();
    write_default(random, &mut text);
    let sets = random.index(6);
    let services = random.index(6);
    if sets > 0 {
        text.push_str("\n[sets]\n");
        for set in 0..sets {
            let members: Vec<String> =
                (0..=random.index(6)).map(|_| format!("\"{}\"", prefix(random))).collect();
            writeln!(text, "set{set} = [{}]", members.join(", ")).expect("a string takes text");
        }
    }
    if services > 0 {
        text.push_str("\n[services]\n");
        for service in 0..services {
            writeln!(text, "service{service} = [{}]", terms(random)).expect("a string takes text");
        }
    }
    let family = Family { number: family, sets, services, has_limit: random.one_in(2) };
    if family.has_limit {
        let name = family.limit();
        let (per, packets) = *random.pick(&[("source", 4), ("source", 4), ("source/16,40", 9), ("rule", 60)]);
        writeln!(
            text,
            "\n[limits]\n{name} = {{ per = \"{per}\", rate = \"{packets}/15m\", burst = {packets} }}"
        )
        .expect("a string takes text");
    }
    for rule in 0..random.index(10) {
        write_rule(random, &mut text, rule, &family);
    }
    text
}

fn write_default(random: &mut Random, text: &mut String) {
    let verdict = *random.pick(&["pass", "drop"]);
    let malformed = *random.pick(&["pass", "drop"]);
    write!(text, "verdict = \"{verdict}\"\nmalformed = \"{malformed}\"\n").expect("a string takes text");
    if random.one_in(3) {
        let (v4, v6) = *random.pick(&[(32, 128), (24, 64), (16, 48), (32, 56), (8, 32)]);
        writeln!(text, "source = {{ ipv4 = {v4}, ipv6 = {v6} }}").expect("a string takes text");
    }
    if random.one_in(4) {
        text.push_str("limit = [{ per = \"source\", rate = \"5/15m\", burst = 5 }]\n");
    }
    if random.one_in(4) {
        text.push_str("ipv4-in-ipv6 = []\n");
    }
    if random.one_in(4) {
        writeln!(text, "never-ban = [\"{}\", \"{}\"]", prefix(random), prefix(random))
            .expect("a string takes text");
    }
}

/// A prefix of one of the sources, host bits clear.
fn prefix(random: &mut Random) -> String {
    if random.one_in(2) {
        let address: Ipv4Addr = random.pick(&V4_SOURCES).parse().expect("an IPv4 address");
        let width = *random.pick(&[0, 1, 8, 9, 15, 16, 17, 24, 25, 31, 32_u32]);
        let mask = u32::MAX.checked_shl(32 - width).unwrap_or(0);
        format!("{}/{width}", Ipv4Addr::from(u32::from(address) & mask))
    } else {
        // The carried ones are left out: a set says them as IPv4.
        let address: Ipv6Addr = random.pick(&V6_SOURCES[..14]).parse().expect("an IPv6 address");
        let width = *random.pick(&[8, 16, 29, 32, 33, 48, 56, 63, 64, 65, 96, 127, 128_u32]);
        let mask = u128::MAX.checked_shl(128 - width).unwrap_or(0);
        format!("{}/{width}", Ipv6Addr::from(u128::from(address) & mask))
    }
}

/// Between one and five terms.
fn terms(random: &mut Random) -> String {
    let terms: Vec<String> = (0..=random.index(5)).map(|_| format!("\"{}\"", term(random))).collect();
    terms.join(", ")
}

fn term(random: &mut Random) -> String {
    let first = *random.pick(&PORTS);
    let second = *random.pick(&PORTS);
    let ports = if random.one_in(2) {
        first.to_string()
    } else {
        format!("{}-{}", first.min(second), first.max(second))
    };
    match random.below(12) {
        0 | 1 => format!("tcp/{ports}"),
        2 => format!("tcp-syn/{ports}"),
        3 | 4 => format!("udp/{ports}"),
        5 => format!("udp-from/{ports}"),
        6 => format!("tcp-from/{ports}"),
        7 => format!("icmp/{}", random.pick(&TYPES_V4)),
        8 => format!("icmpv6/{}", random.pick(&TYPES_V6)),
        9 => "fragment".to_owned(),
        10 => "other".to_owned(),
        _ => "sctp".to_owned(),
    }
}

/// What the rules of a policy may name.
struct Family {
    number: u64,
    sets: usize,
    services: usize,
    has_limit: bool,
}

impl Family {
    fn limit(&self) -> String {
        format!("shared{}", self.number)
    }
}

fn write_rule(random: &mut Random, text: &mut String, rule: usize, family: &Family) {
    write!(text, "\n[[rule]]\nname = \"rule{}-{rule}\"\n", family.number).expect("a string takes text");
    if family.sets > 0 && random.one_in(2) {
        writeln!(text, "from = \"set{}\"", random.index(family.sets)).expect("a string takes text");
    }
    match random.below(4) {
        0 | 1 if family.services > 0 => {
            writeln!(text, "to = \"service{}\"", random.index(family.services)).expect("a string takes text");
        }
        2 => writeln!(text, "to = [{}]", terms(random)).expect("a string takes text"),
        _ => {}
    }
    if random.one_in(5) {
        writeln!(text, "interface = {}", random.pick(&INTERFACES)).expect("a string takes text");
    }
    if random.one_in(5) {
        let nets = [random.pick(&DESTINATION_PREFIXES), random.pick(&DESTINATION_PREFIXES)];
        writeln!(text, "dest = [\"{}\", \"{}\"]", nets[0], nets[1]).expect("a string takes text");
    }
    match random.below(6) {
        0 => text.push_str("verdict = \"pass\"\n"),
        1 => text.push_str("verdict = \"drop\"\n"),
        _ => {
            let limits = limits(random, family);
            writeln!(text, "limit = [{limits}]").expect("a string takes text");
            if limits.contains("per = \"source\",") && random.one_in(3) {
                text.push_str("penalty = { after = 2, within = \"15m\", for = \"15m\" }\n");
            }
            if limits.contains("per = \"source") && random.one_in(4) {
                text.push_str("newcomers = \"9/15m\"\n");
            }
        }
    }
    if random.one_in(4) {
        text.push_str("mode = \"observe\"\n");
    } else if random.one_in(4) {
        text.push_str("before = \"bans\"\n");
    }
}

fn limits(random: &mut Random, family: &Family) -> String {
    let mut limits = Vec::new();
    if random.one_in(2) {
        limits.push("{ per = \"source\", rate = \"3/15m\", burst = 3 }".to_owned());
    }
    if family.has_limit && random.one_in(3) {
        limits.push(format!("\"{}\"", family.limit()));
    }
    if limits.is_empty() || random.one_in(3) {
        // Some packets are dearer than the whole of it.
        limits.push("{ per = \"source\", rate = \"200 B/15m\", burst = \"200 B\" }".to_owned());
    }
    if random.one_in(4) {
        let (v4, v6) = *random.pick(&[(24, 48), (16, 32), (8, 24), (20, 44)]);
        limits.push(format!("{{ per = \"source/{v4},{v6}\", rate = \"6/15m\", burst = 6 }}"));
    }
    if limits.len() < 4 && random.one_in(4) {
        let (amount, burst) = *random.pick(&[("30/15m", "30"), ("9/15m", "9"), ("2 kB/15m", "\"2 kB\"")]);
        limits.push(format!("{{ per = \"rule\", rate = \"{amount}\", burst = {burst} }}"));
    }
    limits.join(", ")
}
