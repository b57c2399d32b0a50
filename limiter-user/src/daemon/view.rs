//! What the daemon answers: status, counters, rules.

use std::time::{Duration, Instant, SystemTime};

use limiter_common::abi::Counter;
use limiter_common::verdict::Outcome;

use super::core::{BUILT_IN_BY, Core};
use super::refusal::Refusal;
use super::sealed::format_time;
use crate::control::api::{
    self, GuardedInterface, History, HistoryEntry, PolicyStatus, SetPolicy, Stat, Stats, Status, Table,
    UnguardedInterface,
};
use crate::datapath::{Bucket, Mode};

/// Names of families in counters, by [`limiter_common::packet::Family`].
pub const FAMILY_NAMES: [&str; 3] = ["ipv4", "ipv6", "other"];

/// One counter, named.
pub struct NamedCounter {
    /// Empty for no rule.
    pub rule: String,
    pub outcome: Outcome,
    pub family: &'static str,
    pub counter: Counter,
}

impl Core {
    /// `file_hash`: what the policy file holds now.
    pub fn status(&self, started: Instant, file_hash: &Result<String, String>) -> Result<Status, Refusal> {
        let mut problems = Vec::new();
        let mut warnings = self.notices.clone();
        let mut unguarded = Vec::new();
        for name in &self.state.by_hand().detached {
            let reason = "detached by hand".to_owned();
            unguarded.push(UnguardedInterface { name: name.clone(), detached: true, reason });
        }
        for (name, missing) in self.guards.missing() {
            let reason = missing.reason.clone();
            if missing.absent {
                warnings.push(format!("`{name}` is absent: it is attached when it appears"));
            } else {
                problems.push(format!("`{name}` is not guarded: {reason}"));
            }
            unguarded.push(UnguardedInterface { name: name.clone(), detached: false, reason });
        }
        warnings.extend(self.guards.absent().iter().map(|name| {
            format!("there is no interface `{name}`: rules that name it match nothing until it appears")
        }));
        let pending = self.pending();
        if let Some(pending) = &pending {
            warnings.push(format!(
                "generation {}, set by {}, is not confirmed: it falls back at {}; `limiterctl confirm` keeps it",
                pending.generation, pending.by, pending.until
            ));
        }
        warnings.extend(self.fell_back.clone());
        warnings.extend(self.datapath.iter().flat_map(|datapath| datapath.troubles()));
        let overrides = self.overrides();
        warnings.extend(overrides.iter().map(|found| {
            format!(
                "rule `{}` is overridden by {} until {}; `limiterctl clear-override {}` ends it",
                found.rule, found.by, found.until, found.rule
            )
        }));
        let paused = self.paused();
        if let Some(pause) = &paused {
            warnings.push(format!(
                "paused by {} until {}: nothing is dropped; `limiterctl resume` ends it",
                pause.by, pause.until
            ));
        }
        for name in self.unasked() {
            warnings.push(format!(
                "`{name}` is guarded though nothing asks for it: `limiterctl detach {name}` ends that"
            ));
        }
        if let Some(violation) = &self.audit.last {
            problems.push(format!("self-audit, {} violations, the last: {violation}", self.audit.violations));
        }
        let in_force_hash = self.in_force.as_ref().map(|in_force| in_force.sealed.hash.as_str());
        let file_is_in_force = file_hash.as_deref().ok() == in_force_hash;
        if let Some(refusal) = self.file_refused.as_ref().filter(|_| !file_is_in_force) {
            problems.push(format!("the policy file was not applied: {}", refusal.line()));
        }
        match &self.in_force {
            Some(in_force) if in_force.sealed.applied_by == BUILT_IN_BY => {
                problems.push("no policy is in force: everything passes".to_owned());
            }
            Some(in_force) if in_force.reading.is_none() => {
                problems.push("this version cannot read the policy the kernel enforces".to_owned());
            }
            Some(_) => {}
            None => problems.push("no policy is known".to_owned()),
        }
        if let Some(reading) = self.reading() {
            warnings.extend(reading.warnings.iter().map(ToString::to_string));
        }
        warnings.extend(
            self.state.trouble().map(|trouble| format!("{trouble}: changes do not outlive a reboot")),
        );
        let table = match &self.datapath {
            Some(datapath) => {
                let table = datapath.table()?;
                Some(Table { entries: table.entries, used: table.used, pressure: table.pressure })
            }
            None => None,
        };
        let interfaces: Vec<GuardedInterface> = self
            .guarded()
            .into_iter()
            .map(|guard| GuardedInterface {
                name: guard.name,
                index: guard.index,
                mode: guard.mode,
                attached_s: since(guard.attached_at).as_secs(),
            })
            .collect();
        for guard in interfaces.iter().filter(|guard| guard.mode == Mode::Generic) {
            if self.wanted().get(&guard.name) == Some(&Mode::Auto) {
                warnings.push(format!("`{}` is guarded in generic mode, which is slower", guard.name));
            }
        }
        warnings.extend(self.oversize_warnings()?);
        let store = self.requests.as_ref().map(|tier| tier.status());
        if let Some(error) = store.as_ref().and_then(|store| store.error.as_ref()) {
            problems.push(format!("the store of the request tier is away: {error}"));
        }
        warnings.extend(self.requests.iter().flat_map(|tier| tier.warnings()));
        let endpoints = self.reading().map_or(0, |reading| reading.policy.requests.endpoints.len());
        if store.is_none() && endpoints > 0 {
            warnings
                .push(format!("{endpoints} endpoints are not limited on this host: it has no `[requests]`"));
        }
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: started.elapsed().as_secs(),
            degraded: !problems.is_empty(),
            problems,
            interfaces,
            unguarded,
            policy: self.policy_status(file_hash),
            pending_confirm: pending,
            paused,
            overrides,
            table,
            bans: self.count_bans(),
            store,
            warnings,
        })
    }

    fn policy_status(&self, file_hash: &Result<String, String>) -> Option<PolicyStatus> {
        let sealed = &self.in_force.as_ref()?.sealed;
        let drift = match file_hash {
            Ok(hash) if *hash == sealed.hash => None,
            Ok(hash) if Some(hash) == sealed.file_hash.as_ref() => {
                Some(format!("set by {}, not from the file", sealed.applied_by))
            }
            Ok(_) => Some("the file changed and was not applied".to_owned()),
            Err(reason) => Some(reason.clone()),
        };
        Some(PolicyStatus {
            hash: sealed.hash.clone(),
            generation: sealed.generation,
            rules: sealed.rules,
            loaded_at: format_time(sealed.loaded_at),
            age_s: sealed.age().as_secs(),
            applied_by: sealed.applied_by.clone(),
            file: self.settings.policy.display().to_string(),
            drift,
        })
    }

    /// Rules that refused packets dearer than a whole burst: no waiting makes those pass.
    fn oversize_warnings(&self) -> Result<Vec<String>, Refusal> {
        let mut rules: Vec<String> = self
            .counters()?
            .into_iter()
            .filter(|named| matches!(named.outcome, Outcome::DropOversize | Outcome::WouldDropOversize))
            .map(|named| named.rule)
            .collect();
        rules.dedup();
        Ok(rules
            .into_iter()
            .map(|rule| match rule.as_str() {
                "" => "the default limit refused packets larger than its whole burst: raise the burst"
                    .to_owned(),
                rule => format!("rule `{rule}` refused packets larger than its whole burst: raise the burst"),
            })
            .collect())
    }

    /// Counters that are not zero, by rule name, outcome and family. A rule that is gone keeps its name.
    pub fn counters(&self) -> Result<Vec<NamedCounter>, Refusal> {
        let Some(datapath) = &self.datapath else { return Ok(Vec::new()) };
        let slots = self.in_force.as_ref().map(|in_force| &in_force.sealed.slots.rules);
        let name_of = |slot: u16| {
            let named = slots.and_then(|slots| slots.iter().find(|(_, place)| **place == slot));
            named.map_or_else(
                || if slot == 0 { String::new() } else { format!("#{slot}") },
                |(name, _)| name.clone(),
            )
        };
        let mut named = Vec::new();
        for (slot, totals) in datapath.counters()? {
            let rule = name_of(slot);
            for outcome in Outcome::ALL {
                for (family, counter) in totals[outcome as usize].iter().enumerate() {
                    if counter.packets > 0 {
                        let (rule, family) = (rule.clone(), FAMILY_NAMES[family]);
                        named.push(NamedCounter { rule, outcome, family, counter: *counter });
                    }
                }
            }
        }
        Ok(named)
    }

    pub fn stats(&self) -> Result<Stats, Refusal> {
        let stats = self.counters()?.into_iter().map(|named| Stat {
            rule: named.rule,
            reason: named.outcome.reason().name().to_owned(),
            verdict: named.outcome.verdict().name().to_owned(),
            family: named.family.to_owned(),
            packets: named.counter.packets,
            bytes: named.counter.bytes,
        });
        Ok(Stats { stats: stats.collect() })
    }

    pub fn history(&self) -> History {
        let current = self.in_force.as_ref().map(|in_force| in_force.sealed.generation);
        let history = self.state.entries().rev().map(|entry| HistoryEntry {
            generation: entry.generation,
            hash: entry.hash.clone(),
            loaded_at: format_time(entry.loaded_at),
            applied_by: entry.applied_by.clone(),
            rules: entry.rules,
            in_force: Some(entry.generation) == current,
            restores: entry.restores,
            unconfirmed: entry.unconfirmed,
        });
        History { history: history.collect() }
    }

    /// Up to so many buckets that are not full, and the time they were read at; `None` without a packet tier.
    pub(super) fn live_buckets(&self, most: usize) -> Option<(Vec<Bucket>, u64)> {
        let datapath = self.datapath.as_ref()?;
        let mut buckets = Vec::new();
        let read = datapath.buckets(&mut |bucket| {
            if buckets.len() < most {
                buckets.push(bucket);
            }
        });
        read.ok().map(|()| (buckets, datapath.now()))
    }

    /// See [`crate::datapath::Datapath::lone_words`].
    pub(super) fn lone_words(&self, slot: u32) -> [u64; 2] {
        self.datapath.as_ref().map_or([0; 2], |datapath| datapath.lone_words(slot))
    }

    /// The policy in force as the answer to what put it there.
    pub fn describe_in_force(&self) -> Option<SetPolicy> {
        let sealed = &self.in_force.as_ref()?.sealed;
        Some(SetPolicy {
            applied: true,
            unchanged: false,
            generation: sealed.generation,
            hash: sealed.hash.clone(),
            rules: sealed.rules,
            warnings: self.reading().map_or_else(Vec::new, |reading| reading.warnings.clone()),
            changes: Vec::new(),
            confirm_until: None,
            observed_until: None,
            live: None,
        })
    }

    pub fn policy_in_force(&self) -> Option<api::InForce> {
        let sealed = &self.in_force.as_ref()?.sealed;
        Some(api::InForce {
            hash: sealed.hash.clone(),
            generation: sealed.generation,
            loaded_at: format_time(sealed.loaded_at),
            applied_by: sealed.applied_by.clone(),
            policy: sealed.bundle.policy.clone(),
            files: sealed.bundle.files.clone(),
        })
    }
}

fn since(time: SystemTime) -> Duration {
    time.elapsed().unwrap_or_default()
}
