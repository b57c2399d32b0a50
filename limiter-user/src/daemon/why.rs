//! What the next packet of a source would get, and why: the kernel's own judgement, with names.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::{BYTES, Meter, PACKETS};
use limiter_common::packet::Packet;
use limiter_common::verdict::{Outcome, Verdict};

use super::banning::{entry, key_of, show};
use super::core::Core;
use super::live::{USUAL_LENGTH, packet};
use super::prepare::Reading;
use super::refusal::{Kind, Refusal};
use super::sealed::format_time;
use crate::control::api::{BanEntry, Why, WhyLimit, WhyObserved, WhyTraffic};
use crate::datapath::{Bucket, Explanation, Way};
use crate::policy::{MeterInfo, Policy, Set, Term, parse_term};

/// Ticks of a bucket's word in a second.
const TICKS: f64 = 64e9;

/// What is asked of a source.
#[derive(Clone, Debug)]
pub struct Question {
    /// An address.
    pub source: String,
    /// A term or the name of a service; `None`: whichever traffic of the policy is treated worst.
    pub to: Option<String>,
    /// Bytes of the packet, from its L3 header on.
    pub length: Option<u32>,
    /// The interface it comes in by; `None`: the one that is guarded, if it is only one.
    pub interface: Option<String>,
    /// The address it is for, which only rules with `dest` ask.
    pub destination: Option<IpAddr>,
}

/// One kind of traffic, judged.
struct Case {
    service: String,
    packet: Packet,
    explained: Explanation,
}

impl Core {
    pub fn why(&self, question: &Question) -> Result<Why, Refusal> {
        let Some(reading) = self.reading() else {
            return Err(Refusal::new(
                Kind::Conflict,
                "the policy in force is not known to this version",
                "`limiterctl status` says more",
            ));
        };
        let policy = &reading.policy;
        let source: IpAddr = question.source.parse().map_err(|_| {
            let error = format!("`{}` is not an address", question.source);
            Refusal::new(Kind::BadRequest, error, "write one source, like `203.0.113.9` or `2001:db8::1`")
        })?;
        let key = key_of(&question.source, Some(policy))?;
        let length = question.length.unwrap_or(USUAL_LENGTH);
        let way = self.way(question);
        let cases = match &question.to {
            Some(text) => vec![self.case(source, Some(term(policy, text)?), length, &way)?],
            None => {
                let mut cases = Vec::new();
                for term in kinds(policy, source) {
                    cases.push(self.case(source, term, length, &way)?);
                }
                cases
            }
        };
        // Of equals the first.
        let worst = (0..cases.len()).rev().max_by(|a, b| badness(&cases[*a]).total_cmp(&badness(&cases[*b])));
        let Some(worst) = worst else { return Err(super::guards::no_packet_tier()) };
        let case = &cases[worst];
        let ruling = &case.explained.ruling;
        let ban = self.ban_of(&key, source);
        let others = (0..).zip(&cases).filter(|(number, _)| *number != worst);
        let mut why = Why {
            source: show(&key),
            written: question.source.clone(),
            sets: sets(policy, &key),
            service: case.service.clone(),
            services: services(policy, &case.packet),
            rule: rule_name(reading, ruling.rule),
            verdict: ruling.outcome.verdict().name().to_owned(),
            reason: ruling.outcome.reason().name().to_owned(),
            observed_by: (ruling.observing != 0).then(|| WhyObserved {
                rule: rule_name(reading, ruling.observing),
                reason: ruling.observed.reason().name().to_owned(),
            }),
            limits: limits(reading, &case.explained),
            ban,
            paused_until: self.paused().map(|pause| pause.until),
            traffic: others.map(|(_, case)| traffic(reading, case)).collect(),
            commands: Vec::new(),
        };
        why.commands = commands(&why, policy, &key, ruling.outcome);
        Ok(why)
    }

    fn case(&self, source: IpAddr, term: Option<Term>, length: u32, way: &Way) -> Result<Case, Refusal> {
        let Some(datapath) = &self.datapath else { return Err(super::guards::no_packet_tier()) };
        let packet = Packet { length, ..packet(source, term) };
        let Some(explained) = datapath.explain(&packet, way)? else {
            return Err(Refusal::new(
                Kind::Conflict,
                "no policy is in force",
                "`limiterctl set-policy FILE` sets one",
            ));
        };
        let service = match term {
            // The packet is of the first of its ports or types.
            Some(term) => one_of(term, &packet).to_string(),
            None => one_of(Term::Udp(crate::policy::Range::PORTS), &packet).to_string(),
        };
        Ok(Case { service, packet, explained })
    }

    fn way(&self, question: &Question) -> Way {
        let mut guarded = self.guarded().into_iter().map(|guard| guard.name);
        let only = guarded.next().filter(|_| guarded.next().is_none());
        Way { interface: question.interface.clone().or(only), destination: question.destination }
    }

    /// The ban of a source: its own, or the narrowest that covers it, also by the address it has on the wire.
    fn ban_of(&self, key: &IpNet, source: IpAddr) -> Option<BanEntry> {
        let now = self.datapath.as_ref().map_or(0, |datapath| datapath.now());
        [*key, IpNet::from(source)].into_iter().find_map(|key| {
            let own = self.bans.get(&key).is_some().then_some(key);
            let key = own.or_else(|| self.bans.wider(&key))?;
            let record = self.bans.get(&key).filter(|record| !record.has_ended(now))?;
            Some(entry(&key, record))
        })
    }
}

/// From what was written: a term, or the first of a service's.
fn term(policy: &Policy, text: &str) -> Result<Term, Refusal> {
    let service = policy.services.iter().find(|service| service.name == text);
    if let Some(first) = service.and_then(|service| service.terms.first()) {
        return Ok(*first);
    }
    parse_term(text).map_err(|(error, hint)| {
        Refusal::new(Kind::BadRequest, error, format!("{hint}; a service of the policy will do too"))
    })
}

/// One term of every kind of traffic the policy tells apart, and what no rule is about: `None`.
fn kinds(policy: &Policy, source: IpAddr) -> Vec<Option<Term>> {
    let other_family = |term: &Term| match term {
        Term::Icmp(_) => source.is_ipv6(),
        Term::Icmpv6(_) => source.is_ipv4(),
        _ => false,
    };
    let mut kinds = Vec::new();
    for rule in &policy.rules {
        let terms = rule.to.iter().flat_map(|to| &to.terms);
        if let Some(term) = terms.copied().find(|term| !other_family(term))
            && !kinds.contains(&Some(term))
        {
            kinds.push(Some(term));
        }
    }
    kinds.push(None);
    kinds
}

/// The term as narrow as the packet that was judged.
fn one_of(term: Term, packet: &Packet) -> Term {
    let one = |number: u16| crate::policy::Range { first: number, last: number };
    match term {
        Term::Tcp(_) => Term::Tcp(one(packet.destination)),
        Term::TcpSyn(_) => Term::TcpSyn(one(packet.destination)),
        Term::TcpFrom(_) => Term::TcpFrom(one(packet.source_port)),
        Term::Udp(_) => Term::Udp(one(packet.destination)),
        Term::UdpFrom(_) => Term::UdpFrom(one(packet.source_port)),
        Term::Sctp(_) => Term::Sctp(one(packet.destination)),
        Term::Icmp(_) => Term::Icmp(one(packet.destination)),
        Term::Icmpv6(_) => Term::Icmpv6(one(packet.destination)),
        Term::Fragment | Term::Other => term,
    }
}

/// Drops come first, then what is nearest to one.
fn badness(case: &Case) -> f64 {
    let dropped = case.explained.ruling.outcome.verdict() == Verdict::Drop;
    let now = case.explained.now;
    let spent = |(_, bucket): &(u32, Option<Bucket>)| {
        bucket.as_ref().map_or(0.0, |bucket| {
            let ahead = bucket.words.iter().map(|word| (word >> 1).saturating_sub(now)).max().unwrap_or(0);
            ahead as f64 / (ahead as f64 + TICKS)
        })
    };
    f64::from(u8::from(dropped)) + case.explained.limits.iter().map(spent).fold(0.0, f64::max) / 2.0
}

fn sets(policy: &Policy, key: &IpNet) -> Vec<String> {
    let holding = policy.sets.iter().filter(|set| member(set, key).is_some());
    holding.map(|set| set.name.clone()).collect()
}

/// The member of a set that holds a source.
fn member(set: &Set, key: &IpNet) -> Option<IpNet> {
    match key {
        IpNet::V4(net) => {
            set.prefixes.v4.iter().find(|prefix| prefix.contains(&net.addr())).map(|net| IpNet::V4(*net))
        }
        IpNet::V6(net) => {
            set.prefixes.v6.iter().find(|prefix| prefix.contains(&net.addr())).map(|net| IpNet::V6(*net))
        }
    }
}

fn services(policy: &Policy, packet: &Packet) -> Vec<String> {
    let is_meant = |term: &Term| term.matches(packet.kind, packet.destination, packet.source_port);
    let services = policy.services.iter().filter(|service| service.terms.iter().any(is_meant));
    services.map(|service| service.name.clone()).collect()
}

fn rule_name(reading: &Reading, rule: u16) -> String {
    reading.rules.get(usize::from(rule)).map(|rule| rule.name.clone()).unwrap_or_default()
}

fn traffic(reading: &Reading, case: &Case) -> WhyTraffic {
    let ruling = &case.explained.ruling;
    WhyTraffic {
        service: case.service.clone(),
        rule: rule_name(reading, ruling.rule),
        verdict: ruling.outcome.verdict().name().to_owned(),
        reason: ruling.outcome.reason().name().to_owned(),
    }
}

fn limits(reading: &Reading, explained: &Explanation) -> Vec<WhyLimit> {
    let known = explained.limits.iter().filter_map(|(id, bucket)| {
        let (info, meter) = reading.meters.get(id)?;
        Some((info, meter, bucket.as_ref(), explained.refused_by == Some(*id)))
    });
    known
        .flat_map(|(info, meter, bucket, refuses)| {
            [PACKETS, BYTES]
                .into_iter()
                .filter_map(move |unit| limit(info, meter, bucket, unit, refuses, explained.now))
        })
        .collect()
}

fn limit(
    info: &MeterInfo,
    meter: &Meter,
    bucket: Option<&Bucket>,
    unit: usize,
    refuses: bool,
    now: u64,
) -> Option<WhyLimit> {
    let (rate_info, name) =
        if unit == PACKETS { (info.packets.as_ref()?, "packets") } else { (info.bytes.as_ref()?, "bytes") };
    let rate = &meter.rates[unit];
    let word = bucket.map_or(0, |bucket| bucket.words[unit]);
    let ahead = (word >> 1).saturating_sub(now);
    let is_penalised = word & 1 == 1 && ahead > 0;
    // Time to units: a unit costs multiplier / 2^shift ticks.
    let room = rate.tolerance.saturating_sub(ahead);
    let tokens = (u128::from(room) << rate.shift) / u128::from(rate.multiplier.max(1));
    Some(WhyLimit {
        name: info.limit.clone(),
        per: info.scope.clone(),
        rate: rate_info.text.clone(),
        unit: name.to_owned(),
        burst: rate_info.burst,
        fill: thousandths(ahead.min(rate.tolerance) as f64 / rate.tolerance.max(1) as f64),
        tokens: u64::try_from(tokens).unwrap_or(u64::MAX).min(rate_info.burst),
        full_in_s: thousandths(ahead as f64 / TICKS),
        refuses,
        penalised_until: is_penalised
            .then(|| format_time(SystemTime::now() + Duration::from_nanos(ahead / 64))),
        passed: bucket.map_or(0, |bucket| bucket.passed),
        dropped: bucket.map_or(0, |bucket| bucket.dropped),
    })
}

fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// What an operator would type to change it.
fn commands(why: &Why, policy: &Policy, key: &IpNet, outcome: Outcome) -> Vec<String> {
    let source = &why.source;
    let mut commands = Vec::new();
    if why.paused_until.is_some() {
        commands.push("limiterctl resume".to_owned());
    }
    let override_rule = |how: &str| {
        (!why.rule.is_empty()).then(|| format!("limiterctl override {} {how} --for 1h", why.rule))
    };
    match outcome {
        Outcome::DropBan => {
            commands.extend(why.ban.as_ref().map(|ban| format!("limiterctl unban {}", ban.source)));
        }
        Outcome::DropPenalty => commands.push(format!("limiterctl unban {source}")),
        Outcome::DropOver | Outcome::DropCrowd => {
            commands.push(format!("limiterctl reset {source}"));
            commands.extend(override_rule("--scale 200%"));
        }
        Outcome::DropOversize | Outcome::DropNewcomer => commands.extend(override_rule("--scale 200%")),
        Outcome::DropRule => {
            let dynamic = policy.sets.iter().filter(|set| set.dynamic.is_some());
            commands.extend(dynamic.filter_map(|set| {
                Some(format!("limiterctl remove-from {} {}", set.name, member(set, key)?))
            }));
            commands.extend(override_rule("--mode observe"));
        }
        Outcome::DropDefault | Outcome::DropMalformed | Outcome::DropLinkOver => {
            commands.push("limiterctl set-policy FILE --confirm 60s".to_owned());
        }
        _ => commands.push(format!("limiterctl ban {source} --for 10m")),
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_counted_by_hand() {
        // 10/s with a burst of 20: a unit takes 0.1 s, 6.4e9 ticks, and a whole burst 2 s.
        let rate = limiter_common::abi::Rate {
            multiplier: 6_400_000_000,
            tolerance: 128_000_000_000,
            burst: 20,
            ..Default::default()
        };
        let meter = Meter { rates: [rate, Default::default()], ..Meter::default() };
        let packets = crate::policy::RateInfo { text: "10/s".to_owned(), per_second: 10.0, burst: 20 };
        let info = MeterInfo {
            id: 1,
            slot: 0,
            limit: None,
            rules: vec!["web".to_owned()],
            scope: "source".to_owned(),
            observing: false,
            packets: Some(packets),
            bytes: None,
            claims_per_second: 1.0,
        };
        let bucket = |ahead: u64, mark: u64| Bucket {
            network: [203, 0, 113, 9].into(),
            width: 32,
            meter: 1,
            passed: 7,
            dropped: 32,
            words: [(1000 + ahead) << 1 | mark, 0],
        };
        let shown = |bucket: Option<&Bucket>| limit(&info, &meter, bucket, PACKETS, false, 1000).unwrap();
        let full = shown(None);
        assert_eq!((full.tokens, full.fill, full.full_in_s), (20, 0.0, 0.0));
        // 0.75 s ahead: 7.5 units are spent, 12 whole ones are left.
        let half = shown(Some(&bucket(48_000_000_000, 0)));
        assert_eq!((half.tokens, half.fill, half.full_in_s), (12, 0.375, 0.75));
        assert_eq!((half.passed, half.dropped, half.penalised_until), (7, 32, None));
        let empty = shown(Some(&bucket(128_000_000_000, 0)));
        assert_eq!((empty.tokens, empty.fill, empty.full_in_s), (0, 1.0, 2.0));
        let punished = shown(Some(&bucket(640_000_000_000, 1)));
        assert_eq!((punished.tokens, punished.full_in_s), (0, 10.0));
        assert!(punished.penalised_until.is_some());
        assert!(limit(&info, &meter, None, BYTES, false, 1000).is_none());
    }
}
