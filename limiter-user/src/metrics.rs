//! `/metrics` in the OpenMetrics text format.
//!
//! Packet counters are read from the pinned maps, so they never go back, whatever becomes of the daemon. No
//! label ever holds an address. Every name here is described in `docs/metrics.md`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use limiter_common::verdict::{Outcome, Reason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::daemon::{BannedBy, Core, Daemon, FAMILY_NAMES, NamedCounter, Refusal};
use crate::datapath::{Mode, TableUse};
use crate::policy::{Action, Set};

/// The type of what [`render`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The whole page.
pub fn render(daemon: &Daemon) -> Result<String, Refusal> {
    let snapshot = Snapshot::take(&daemon.core())?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let requests = daemon.core().requests.clone();
    if let Some(tier) = requests {
        registry.register_collector(Box::new(Arc::clone(tier.metrics())));
    }
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut page, &registry);
    Ok(page)
}

/// A counter by rule, outcome and family: packets, bytes.
type Counters = BTreeMap<(String, u8, &'static str), (u64, u64)>;

/// Everything on the page, taken at one time.
#[derive(Debug)]
struct Snapshot {
    counters: Counters,
    /// Whether it is guarded, and how, by name.
    interfaces: BTreeMap<String, Option<Mode>>,
    table: Option<TableUse>,
    events_lost: Option<u64>,
    paused: bool,
    overrides: u64,
    /// Buckets checked, and found to have admitted too much.
    audit: (u64, u64),
    expired: u64,
    pending: bool,
    /// Bans by who made them, and how many there may be.
    bans: Option<(Vec<(&'static str, u64)>, u64)>,
    policy: Option<Policy>,
    reload_success: bool,
    reload_at: Option<SystemTime>,
    process: Option<Process>,
}

#[derive(Debug)]
struct Policy {
    hash: String,
    generation: u64,
    /// Entries of a set, and when they were loaded, by its name.
    sets: Vec<(String, usize, SystemTime)>,
}

impl Snapshot {
    fn take(core: &Core) -> Result<Self, Refusal> {
        let mut interfaces: BTreeMap<String, Option<Mode>> = BTreeMap::new();
        interfaces.extend(core.wanted().into_keys().map(|name| (name, None)));
        interfaces.extend(core.state.by_hand().detached.iter().map(|name| (name.clone(), None)));
        interfaces.extend(core.guarded().into_iter().map(|guard| (guard.name, Some(guard.mode))));
        let policy = core.in_force.as_ref().map(|in_force| Policy {
            hash: in_force.sealed.hash.clone(),
            generation: in_force.sealed.generation,
            sets: in_force.reading.as_ref().map_or_else(Vec::new, |reading| {
                let loaded_at = |set: &Set| {
                    if set.dynamic.is_some() { reading.at } else { in_force.sealed.loaded_at }
                };
                let sets = reading.policy.sets.iter();
                sets.map(|set| (set.name.clone(), set.entries, loaded_at(set))).collect()
            }),
        });
        Ok(Self {
            counters: counters(core)?,
            interfaces,
            table: core.datapath.as_ref().map(|datapath| datapath.table()).transpose()?,
            events_lost: core.datapath.as_ref().map(|datapath| datapath.events_lost()).transpose()?,
            pending: core.pending().is_some(),
            paused: core.paused().is_some(),
            bans: core.datapath.is_some().then(|| {
                let count = |by: BannedBy| (by.name(), core.bans.count(by) as u64);
                (BannedBy::ALL.map(count).to_vec(), core.bans.capacity as u64)
            }),
            audit: (core.audit.checked, core.audit.violations),
            overrides: core.overrides().len() as u64,
            expired: core.reading().map_or(0, |reading| reading.expired.len() as u64),
            policy,
            reload_success: core.file_refused.is_none(),
            reload_at: core.last_reload,
            process: Process::read(),
        })
    }
}

/// What was counted, and a zero for what the rules in force may yet count: a rate over the first drop of a quiet
/// rule needs a value before it.
fn counters(core: &Core) -> Result<Counters, Refusal> {
    let mut counters = Counters::new();
    for rule in core.reading().iter().flat_map(|reading| &reading.policy.rules) {
        let outcomes: &[Outcome] = match (&rule.action, rule.observe) {
            (Action::Limit(_), false) => &[Outcome::PassWithin, Outcome::DropOver],
            (Action::Limit(_), true) => &[Outcome::WouldDropOver],
            (Action::Verdict(crate::policy::Verdict::Pass), false) => &[Outcome::PassRule],
            (Action::Verdict(crate::policy::Verdict::Drop), false) => &[Outcome::DropRule],
            (Action::Verdict(_), true) => &[Outcome::WouldDropRule],
        };
        let newcomer = if rule.observe { Outcome::WouldDropNewcomer } else { Outcome::DropNewcomer };
        let newcomer = rule.newcomers.as_ref().map(|_| newcomer);
        for outcome in outcomes.iter().chain(&newcomer) {
            for family in &FAMILY_NAMES[..2] {
                counters.insert((rule.name.clone(), *outcome as u8, family), (0, 0));
            }
        }
    }
    for NamedCounter { rule, outcome, family, counter } in core.counters()? {
        counters.insert((rule, outcome as u8, family), (counter.packets, counter.bytes));
    }
    Ok(counters)
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut page = Page(encoder);
        self.encode_packets(&mut page)?;
        self.encode_interfaces(&mut page)?;
        self.encode_bans(&mut page)?;
        self.encode_policy(&mut page)?;
        self.encode_by_hand(&mut page)?;
        page.info("limiter_build", "Version of limiterd", &[("version", env!("CARGO_PKG_VERSION"))])?;
        self.process.as_ref().map_or(Ok(()), |process| process.encode(&mut page))
    }
}

impl Snapshot {
    fn encode_packets(&self, page: &mut Page<'_>) -> fmt::Result {
        let by_code = |code: u8| Outcome::ALL.into_iter().find(|outcome| *outcome as u8 == code);
        let rows: Vec<_> = self
            .counters
            .iter()
            .filter_map(|((rule, code, family), counts)| Some((rule, by_code(*code)?, *family, *counts)))
            .collect();
        for (name, help, bytes) in [
            ("limiter_packets", "Packets judged; would-drop rows count packets judged a second time", false),
            ("limiter_bytes", "Bytes of those packets, from the L3 header to the end of the frame", true),
        ] {
            let rows = rows.iter().map(|(rule, outcome, family, counts)| {
                let labels = vec![
                    ("rule", rule.as_str()),
                    ("reason", outcome.reason().name()),
                    ("verdict", outcome.verdict().name()),
                    ("family", *family),
                ];
                (labels, if bytes { counts.1 } else { counts.0 })
            });
            page.counters(name, help, rows)?;
        }
        let mut refused: BTreeMap<&str, u64> = BTreeMap::new();
        for (rule, outcome, _, counts) in &rows {
            let crowd = outcome.reason() == Reason::Crowd;
            *refused.entry(rule).or_default() += if crowd { counts.0 } else { 0 };
        }
        page.counters(
            "limiter_claims_refused",
            "Packets judged by a crowd cell, because the limit's budget of new buckets was spent",
            refused.into_iter().map(|(rule, packets)| (vec![("rule", rule)], packets)),
        )?;
        let mut newcomers: BTreeMap<&str, u64> = BTreeMap::new();
        for (rule, outcome, _, counts) in &rows {
            if outcome.reason() == Reason::Newcomer {
                *newcomers.entry(rule).or_default() += counts.0;
            }
        }
        page.counters(
            "limiter_newcomers_refused",
            "Packets of sources without a bucket beyond the rule's budget for them",
            newcomers.into_iter().map(|(rule, packets)| (vec![("rule", rule)], packets)),
        )?;
        let Some(table) = &self.table else { return Ok(()) };
        page.gauge("limiter_table_entries", "Buckets the table has room for", table.entries)?;
        page.gauge("limiter_table_used", "Buckets that are not full", table.used)?;
        page.counters(
            "limiter_table_pressure",
            "Buckets evicted while they were not full",
            [(vec![], table.pressure)].into_iter(),
        )?;
        page.counters(
            "limiter_events_lost",
            "Watched packets that were not told of, because the budget or the ring was full",
            self.events_lost.map(|lost| (vec![], lost)).into_iter(),
        )
    }

    fn encode_interfaces(&self, page: &mut Page<'_>) -> fmt::Result {
        page.gauges(
            "limiter_interface_up",
            "Whether an interface that should be guarded is",
            self.interfaces
                .iter()
                .map(|(name, mode)| (vec![("interface", name.as_str())], mode.is_some().into())),
        )?;
        let modes = self.interfaces.iter().filter_map(|(name, mode)| Some((name, (*mode)?.to_string())));
        let modes: Vec<_> = modes.collect();
        page.gauges(
            "limiter_interface_mode",
            "How an interface is guarded: native or generic",
            modes.iter().map(|(name, mode)| (vec![("interface", name.as_str()), ("mode", mode)], 1)),
        )
    }

    fn encode_bans(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some((bans, capacity)) = &self.bans else { return Ok(()) };
        page.gauges(
            "limiter_bans",
            "Bans in force, by what made them",
            bans.iter().map(|(by, count)| (vec![("by", *by)], *count)),
        )?;
        page.gauge("limiter_bans_capacity", "Bans there is room for", *capacity)
    }

    fn encode_policy(&self, page: &mut Page<'_>) -> fmt::Result {
        page.gauge(
            "limiter_policy_last_reload_success",
            "Whether the policy file was applied when it last should have been",
            self.reload_success.into(),
        )?;
        if let Some(at) = self.reload_at {
            page.gauge(
                "limiter_policy_last_reload_timestamp_seconds",
                "When the policy file last should have been applied",
                unix(at),
            )?;
        }
        let Some(policy) = &self.policy else { return Ok(()) };
        page.info("limiter_policy", "The policy in force", &[("hash", &policy.hash)])?;
        page.gauge("limiter_policy_generation", "Policies applied on this host", policy.generation)?;
        let sets = || policy.sets.iter().map(|(name, ..)| vec![("set", name.as_str())]).zip(&policy.sets);
        page.gauges(
            "limiter_set_entries",
            "Prefixes of a set as they were written",
            sets().map(|(labels, (_, entries, _))| (labels, *entries as u64)),
        )?;
        page.gauges(
            "limiter_set_loaded_timestamp_seconds",
            "When a set was loaded",
            sets().map(|(labels, (_, _, at))| (labels, unix(*at))),
        )
    }
}

impl Snapshot {
    /// What an operator changed by hand.
    fn encode_by_hand(&self, page: &mut Page<'_>) -> fmt::Result {
        page.gauge(
            "limiter_paused",
            "Whether nothing is dropped: rows with verdict drop count packets that passed",
            self.paused.into(),
        )?;
        for (name, help, value) in [
            ("limiter_audit_checked", "Buckets checked against burst and rate", self.audit.0),
            ("limiter_audit_violations", "Buckets that admitted more than they may", self.audit.1),
        ] {
            page.counters(name, help, [(vec![], value)].into_iter())?;
        }
        page.gauge("limiter_overrides", "Rules that judge otherwise than the policy says", self.overrides)?;
        page.gauge("limiter_rules_expired", "Rules that are skipped because they expired", self.expired)?;
        page.gauge(
            "limiter_policy_pending_confirm",
            "Whether the policy in force falls back unless it is confirmed",
            self.pending.into(),
        )
    }
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Writes metrics, one description each.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn describe<'s>(
        &'s mut self,
        name: &'s str,
        help: &'s str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    /// `name` without `_total`, which is appended.
    fn counters<'r>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl Iterator<Item = (Vec<(&'r str, &'r str)>, u64)>,
    ) -> fmt::Result {
        let mut metric = self.describe(name, help, MetricType::Counter)?;
        for (labels, value) in rows {
            let counter = prometheus_client::metrics::counter::ConstCounter::new(value);
            if labels.is_empty() {
                return counter.encode(metric);
            }
            counter.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauges<'r>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl Iterator<Item = (Vec<(&'r str, &'r str)>, u64)>,
    ) -> fmt::Result {
        let mut metric = self.describe(name, help, MetricType::Gauge)?;
        for (labels, value) in rows {
            prometheus_client::metrics::gauge::ConstGauge::new(value)
                .encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.describe(name, help, MetricType::Gauge)?;
        prometheus_client::metrics::gauge::ConstGauge::new(value).encode(metric)
    }

    /// `name` without `_info`, which is appended.
    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        self.describe(name, help, MetricType::Info)?.encode_info(&labels)
    }
}

/// The daemon's own use of the host, under the names every Prometheus client gives them.
#[derive(Debug)]
struct Process {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    start_seconds: f64,
    open_files: u64,
    most_files: u64,
}

impl Process {
    fn read() -> Option<Self> {
        use nix::unistd::{SysconfVar, sysconf};
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // Fields are counted behind the command's name, which may hold anything; the first there is field 3.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = sysconf(SysconfVar::CLK_TCK).ok()?? as f64;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok()?? as u64;
        let system = std::fs::read_to_string("/proc/stat").ok()?;
        let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        let (most_files, _) =
            nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).ok()?;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) as f64 / ticks,
            resident_bytes: field(24)? * page,
            virtual_bytes: field(23)?,
            start_seconds: boot + field(22)? as f64 / ticks,
            open_files: std::fs::read_dir("/proc/self/fd").ok()?.count() as u64,
            most_files,
        })
    }

    fn encode(&self, page: &mut Page<'_>) -> fmt::Result {
        use prometheus_client::metrics::{counter::ConstCounter, gauge::ConstGauge};
        let metric = page.describe("process_cpu_seconds", "CPU time spent", MetricType::Counter)?;
        ConstCounter::new(self.cpu_seconds).encode(metric)?;
        let metric =
            page.describe("process_start_time_seconds", "When limiterd started", MetricType::Gauge)?;
        ConstGauge::new(self.start_seconds).encode(metric)?;
        page.gauge("process_resident_memory_bytes", "Resident memory", self.resident_bytes)?;
        page.gauge("process_virtual_memory_bytes", "Virtual memory", self.virtual_bytes)?;
        page.gauge("process_open_fds", "Open file descriptors", self.open_files)?;
        page.gauge("process_max_fds", "File descriptors there may be", self.most_files)
    }
}
