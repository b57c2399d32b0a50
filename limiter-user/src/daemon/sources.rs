//! The worst sources: a source's buckets, merged over the limits it is charged to.
//!
//! Drops add up, because one bucket refuses each packet. Admitted packets are charged to every bucket of their
//! rule, so buckets that share a rule tell the largest of their counts, and those that share none add up.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::Meter;

use super::core::Core;
use super::prepare::Reading;
use super::refusal::Refusal;
use super::sealed::format_time;
use crate::control::api::{Source, Sources};
use crate::datapath::{Bucket, Datapath};
use crate::policy::MeterInfo;

/// Most sources one answer may hold.
pub const MOST: usize = 10_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Dropped,
    Passed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    #[default]
    Source,
    /// IPv4 /24, IPv6 /48.
    Prefix,
}

#[derive(Clone, Debug)]
pub struct Query {
    pub top: usize,
    pub sort: Sort,
    pub by: By,
    /// Only buckets this rule charges.
    pub rule: Option<String>,
}

/// What is known of one bucket while merging.
#[derive(Clone, Copy)]
struct Row {
    network: IpAddr,
    width: u8,
    /// Place of its meter in [`Meters`].
    meter: u16,
    fill: f32,
    passed: u64,
    dropped: u64,
    /// Ticks that a penalty lasts on, 0 for none.
    penalised: u64,
}

struct Meters<'a> {
    meters: Vec<&'a (MeterInfo, Meter)>,
    places: BTreeMap<u32, u16>,
    /// Meters of one group share a rule, by themselves or through others.
    groups: Vec<usize>,
}

impl Core {
    pub fn sources(&self, query: &Query) -> Result<Sources, Refusal> {
        let (Some(datapath), Some(reading)) = (&self.datapath, self.reading()) else {
            return Ok(Sources { sources: Vec::new() });
        };
        if let Some(rule) = &query.rule {
            self.require_rule(rule)?;
        }
        worst(datapath.as_ref(), reading, query)
    }
}

/// Of the buckets of a datapath that judges by this policy.
pub fn worst(datapath: &dyn Datapath, reading: &Reading, query: &Query) -> Result<Sources, Refusal> {
    let meters = Meters::new(reading.meters.values().filter(|(info, _)| match &query.rule {
        Some(rule) => info.rules.contains(rule),
        None => true,
    }));
    let now = datapath.now();
    let mut rows = Vec::new();
    datapath.buckets(&mut |bucket| rows.extend(meters.row(&bucket, now, query.by)))?;
    rows.sort_unstable_by_key(|row: &Row| (row.network, row.width));
    let merged = rows.chunk_by(|a, b| (a.network, a.width) == (b.network, b.width));
    let mut sources: Vec<Source> = merged.map(|buckets| meters.merge(buckets)).collect();
    let order = |a: &Source, b: &Source| {
        let key = |source: &Source| match query.sort {
            Sort::Dropped => (source.dropped, source.passed),
            Sort::Passed => (source.passed, source.dropped),
        };
        key(b).cmp(&key(a)).then(b.fill.total_cmp(&a.fill)).then_with(|| a.source.cmp(&b.source))
    };
    let top = query.top.min(MOST);
    if top > 0 && top < sources.len() {
        sources.select_nth_unstable_by(top - 1, order);
    }
    sources.truncate(top);
    sources.sort_by(order);
    Ok(Sources { sources })
}

impl<'a> Meters<'a> {
    fn new(meters: impl Iterator<Item = &'a (MeterInfo, Meter)>) -> Self {
        let meters: Vec<_> = meters.collect();
        let places = (0..).zip(&meters).map(|(place, (info, _))| (info.id, place)).collect();
        let mut groups: Vec<usize> = (0..meters.len()).collect();
        for one in 0..meters.len() {
            for other in 0..one {
                let shared = meters[one].0.rules.iter().any(|rule| meters[other].0.rules.contains(rule));
                if shared && groups[one] != groups[other] {
                    let (from, to) = (groups[one], groups[other]);
                    groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
                }
            }
        }
        Self { meters, places, groups }
    }

    /// `None` for a bucket of another rule, or of a policy that is gone.
    fn row(&self, bucket: &Bucket, now: u64, by: By) -> Option<Row> {
        let meter = *self.places.get(&bucket.meter)?;
        let fill = bucket.fill(&self.meters[usize::from(meter)].1, now) as f32;
        let (network, width) = match by {
            By::Source => (bucket.network, bucket.width),
            By::Prefix => aggregate(bucket.network, bucket.width),
        };
        let penalised = bucket.penalised_until(now).map_or(0, |until| until - now);
        Some(Row { network, width, meter, fill, passed: bucket.passed, dropped: bucket.dropped, penalised })
    }

    /// `buckets`: one or more, of one source.
    fn merge(&self, buckets: &[Row]) -> Source {
        let worst = buckets
            .iter()
            .copied()
            .reduce(|a, b| if (b.dropped, b.fill) > (a.dropped, a.fill) { b } else { a })
            .unwrap_or(buckets[0]);
        // By group, the largest count of a meter; a prefix has many buckets of one meter, which add up.
        let mut by_meter: BTreeMap<u16, u64> = BTreeMap::new();
        for row in buckets {
            *by_meter.entry(row.meter).or_default() += row.passed;
        }
        let mut by_group: BTreeMap<usize, u64> = BTreeMap::new();
        for (meter, passed) in by_meter {
            let largest = by_group.entry(self.groups[usize::from(meter)]).or_default();
            *largest = passed.max(*largest);
        }
        let info = &self.meters[usize::from(worst.meter)].0;
        let fill = buckets.iter().fold(0.0f32, |fill, row| fill.max(row.fill));
        Source {
            source: show_network(worst.network, worst.width),
            rule: info.rules.first().cloned().unwrap_or_default(),
            limit: info.limit.clone(),
            passed: by_group.values().sum(),
            dropped: buckets.iter().map(|row| row.dropped).sum(),
            fill: (f64::from(fill) * 1000.0).round() / 1000.0,
            penalised_until: buckets
                .iter()
                .map(|row| row.penalised)
                .max()
                .filter(|ahead| *ahead > 0)
                .map(show_end),
            buckets: buckets.len(),
        }
    }
}

/// When so many ticks will have passed.
fn show_end(ticks: u64) -> String {
    format_time(SystemTime::now() + Duration::from_nanos(ticks / 64))
}

/// The /24 or /48 a network is in; a wider network stays what it is.
fn aggregate(network: IpAddr, width: u8) -> (IpAddr, u8) {
    match network {
        IpAddr::V4(address) if width > 24 => {
            (Ipv4Addr::from_bits(address.to_bits() & 0xffff_ff00).into(), 24)
        }
        IpAddr::V6(address) if width > 48 => {
            (Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 80)).into(), 48)
        }
        _ => (network, width),
    }
}

/// A network as people write it: a whole address without its length.
pub fn show_network(network: IpAddr, width: u8) -> String {
    let whole = if network.is_ipv4() { 32 } else { 128 };
    match IpNet::new(network, width) {
        Ok(network) if width < whole => network.to_string(),
        _ => network.to_string(),
    }
}
