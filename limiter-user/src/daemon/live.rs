//! What a policy would do to the sources of this moment.
//!
//! Every source with a bucket that is not full sends one packet more, of each kind its buckets are charged for: by the
//! traffic of the rules that charge them, where they are about it. The compiled policy judges it with the code the
//! kernel runs, on the buckets as they are. Newly limited is who has room under the numbers in force. A prefix that
//! shares a bucket is no source, but where nothing else is limited.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use limiter_common::abi::{Description, Geometry, METER_LONE, METER_NEWCOMERS, Meter, PACKETS, WAYS};
use limiter_common::judge::network_key;
use limiter_common::packet::{Family, Kind, Packet, Shape, Spared};
use limiter_common::verdict::Verdict;

use super::prepare::Reading;
use super::sources::show_network;
use crate::control::api::Live;
use crate::datapath::{Bucket, Host, interface_names};
use crate::policy::{Compiled, MeterInfo, Rule, Scope, Term};

/// Buckets looked at; of a table with more, these are a part.
pub const MOST: usize = 65_536;

/// Sources named.
const EXAMPLES: usize = 10;

/// `now` is the datapath's. `reading` is of the policy in force, `compiled` the candidate.
/// `lone_words` are the words of the one bucket of the meter in a slot.
pub fn judge(
    buckets: &[Bucket],
    now: u64,
    lone_words: impl Fn(u32) -> [u64; 2],
    reading: &Reading,
    compiled: &Compiled,
) -> Live {
    // Half full at most, so that every bucket finds a place.
    let sets = (buckets.len() * 2 / WAYS).next_power_of_two().max(64) as u32;
    let geometry = Geometry { sets, seed: [1, 2, 3, 4], ..Geometry::default() };
    let host = Host::new(geometry, &compiled.rows);
    host.set_now(now);
    for bucket in buckets {
        host.put(bucket);
    }
    let is_lone = |meter: &&Meter| meter.flags & METER_LONE != 0;
    let lone_now: BTreeMap<u32, [u64; 2]> = reading
        .meters
        .values()
        .map(|(_, meter)| meter)
        // Who has a bucket is no newcomer.
        .filter(|meter| is_lone(meter) && meter.flags & METER_NEWCOMERS == 0)
        .map(|meter| (meter.id, lone_words(meter.slot)))
        .collect();
    // Of these each packet finds what is there now, not what the packets before it left.
    let lone: Vec<(u32, [u64; 2])> = compiled
        .tables
        .meters
        .iter()
        .filter(is_lone)
        .map(|meter| (meter.slot, lone_now.get(&meter.id).copied().unwrap_or_default()))
        .collect();
    let mut seen: BTreeSet<(IpAddr, u8)> = BTreeSet::new();
    let mut limited = BTreeSet::new();
    let mut before = BTreeSet::new();
    let is_empty = |bucket: &&Bucket| {
        reading.meters.get(&bucket.meter).is_some_and(|(_, meter)| is_empty(bucket, meter, now))
    };
    let is_empty_lone = |meter: &Meter| {
        let words = lone_now.get(&meter.id);
        words.is_some_and(|words| self::is_empty(&Bucket::new(&Description::default(), *words), meter, now))
    };
    let empty: BTreeSet<(u32, IpAddr, u8)> =
        buckets.iter().filter(is_empty).map(|bucket| (bucket.meter, bucket.network, bucket.width)).collect();
    let enforcing: Vec<&(MeterInfo, Meter)> =
        reading.meters.values().filter(|(info, _)| !info.observing).collect();
    for bucket in buckets {
        let source = (bucket.network, bucket.width);
        let Some((info, _)) = reading.meters.get(&bucket.meter) else { continue };
        let mut beside =
            enforcing.iter().filter(|(other, _)| other.rules.iter().any(|rule| info.rules.contains(rule)));
        let is_of_source = |info: &MeterInfo| info.scope == Scope::Source.to_string();
        if info.observing || !is_of_source(info) && beside.clone().any(|(other, _)| is_of_source(other)) {
            continue;
        }
        seen.insert(source);
        if beside.any(|(other, meter)| {
            let (network, width) = key(meter, bucket.network);
            is_empty_lone(meter) || empty.contains(&(other.id, network, width))
        }) {
            before.insert(source);
        }
        let rules = reading.policy.rules.iter().filter(|rule| info.rules.contains(&rule.name));
        let first = |rule: &Rule| {
            (rule.to.as_ref().and_then(|to| to.terms.first().copied()), place(&host, compiled, rule))
        };
        let kinds: BTreeSet<(Option<Term>, u8)> = rules.map(first).collect();
        for (kind, place) in kinds {
            lone.iter().for_each(|(slot, words)| host.set_lone(*slot, *words));
            let mut packet = Packet { place, ..packet(bucket.network, kind) };
            let ruling = host.judge_packet(&compiled.tables, &mut packet);
            if ruling.outcome.verdict() == Verdict::Drop {
                limited.insert(source);
            }
        }
    }
    let newly: Vec<&(IpAddr, u8)> = limited.difference(&before).collect();
    Live {
        sources: seen.len(),
        limited: limited.len(),
        newly: newly.len(),
        examples: newly
            .iter()
            .take(EXAMPLES)
            .map(|(network, width)| show_network(*network, *width))
            .collect(),
    }
}

/// Place class under the candidate of the first place a rule is about.
fn place(host: &Host, compiled: &Compiled, rule: &Rule) -> u8 {
    let name = rule.interfaces.as_ref().and_then(|names| names.first());
    let named = interface_names(&compiled.tables.places.interface_names);
    host.set_interface(named.iter().position(|found| Some(found) == name));
    let prefixes = rule.dest.as_ref().map(|dest| &dest.prefixes);
    let v4 = prefixes.and_then(|prefixes| prefixes.v4.first()).map(|net| net.network().to_ipv6_mapped());
    let v6 = prefixes.and_then(|prefixes| prefixes.v6.first()).map(|net| net.network());
    let bits = v4.or(v6).map_or(0, u128::from);
    host.place(&compiled.tables, [(bits >> 64) as u64, bits as u64])
}

/// Network and width of the bucket a source has under a meter.
fn key(meter: &Meter, source: IpAddr) -> (IpAddr, u8) {
    let (network_high, network_low, width) = network_key(meter, &packet(source, None));
    let key = Description { network_high, network_low, width, ..Description::default() };
    let bucket = Bucket::new(&key, [0; 2]);
    (bucket.network, bucket.width)
}

/// Whether there is no room for a packet more.
fn is_empty(bucket: &Bucket, meter: &Meter, now: u64) -> bool {
    let rate = &meter.rates[PACKETS];
    let ahead = (bucket.words[PACKETS] >> 1).saturating_sub(now);
    if rate.multiplier == 0 {
        return bucket.fill(meter, now) >= 1.0;
    }
    rate.cost(1).is_none_or(|cost| ahead + cost > rate.tolerance)
}

/// Bytes of a packet when nothing is said.
pub const USUAL_LENGTH: u32 = 100;

/// One packet of [`USUAL_LENGTH`] from the source: the first of a term, or of a protocol nobody names.
pub fn packet(source: IpAddr, term: Option<Term>) -> Packet {
    let (kind, destination, source_port) = match term {
        None => (Kind::Udp, 0, 0),
        Some(Term::Tcp(ports)) => (Kind::Tcp, ports.first, 0),
        Some(Term::TcpSyn(ports)) => (Kind::TcpSyn, ports.first, 0),
        Some(Term::TcpFrom(ports)) => (Kind::Tcp, 0, ports.first),
        Some(Term::Udp(ports)) => (Kind::Udp, ports.first, 0),
        Some(Term::UdpFrom(ports)) => (Kind::Udp, 0, ports.first),
        Some(Term::Sctp(ports)) => (Kind::Sctp, ports.first, 0),
        Some(Term::Icmp(types)) => (Kind::Icmp, types.first, 0),
        Some(Term::Icmpv6(types)) => (Kind::Icmpv6, types.first, 0),
        Some(Term::Fragment) => (Kind::Fragment, 0, 0),
        Some(Term::Other) => (Kind::Other, 0, 0),
    };
    let (bits, family) = match source {
        IpAddr::V4(address) => (u128::from(address.to_ipv6_mapped()), Family::V4),
        IpAddr::V6(address) => (u128::from(address), Family::V6),
    };
    Packet {
        source_high: (bits >> 64) as u64,
        source_low: bits as u64,
        length: USUAL_LENGTH,
        destination,
        source_port,
        shape: Shape::Ip,
        family,
        kind,
        spared: Spared::No,
        place: 0,
    }
}
