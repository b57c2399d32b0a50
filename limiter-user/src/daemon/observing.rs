//! A policy judged beside the one in force, for a time: what it would do to real traffic, before it does it.
//!
//! Members of dynamic sets and overrides change for it too, as they would were it in force. Whatever is put in force meanwhile
//! ends it, because what it was compared with is gone. What it found is kept until the next one, or the daemon, ends.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use limiter_common::abi::Counter;

use super::core::{Core, keep_safe_as_wide};
use super::prepare::{self, Prepared, Reading};
use super::refusal::{Kind, Refusal};
use super::sealed::format_time;
use super::sources::{self, Query};
use super::{By, Daemon, Sort, Wish, guards};
use crate::control::api::{Amount, Compared, Observation, RuleCompared, SetPolicy, Sources};
use crate::datapath::Comparison;
use crate::policy::{Bundle, Slots};

/// Longest time a policy is judged beside.
pub const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// The same when nobody says.
pub const USUAL: Duration = Duration::from_secs(3600);

/// Sources named in a report.
const SOURCES: usize = 10;

/// What is judged beside.
pub struct Observed {
    bundle: Bundle,
    hash: String,
    slots: Slots,
    reading: Reading,
    began: SystemTime,
    until: SystemTime,
    by: String,
}

impl Daemon {
    /// Judges a policy beside the one in force. What would refuse it in force refuses it here.
    pub fn observe(
        &self,
        bundle: Bundle,
        wish: &Wish,
        time: Duration,
        by: String,
    ) -> Result<SetPolicy, Refusal> {
        let _one_at_a_time = self.one_change();
        let basis = self.core().basis();
        basis.require(wish.if_match.as_deref())?;
        let prepared = prepare::prepare(bundle, &basis, wish.demands)?;
        self.core().observe(prepared, basis.generation, time, by)
    }

    /// Ends that, and says what was found.
    pub fn stop_observing(&self, by: &str) -> Result<Observation, Refusal> {
        let _one_at_a_time = self.one_change();
        let mut core = self.core();
        if core.observed.is_none() {
            return Err(nothing_observed());
        }
        core.end_observation(&format!("ended by {by}"));
        core.observation()
    }
}

impl Core {
    fn observe(
        &mut self,
        prepared: Prepared,
        generation: u64,
        time: Duration,
        by: String,
    ) -> Result<SetPolicy, Refusal> {
        if self.datapath.is_none() {
            return Err(guards::no_packet_tier());
        }
        if self.guarded().is_empty() {
            let hint = "`limiterctl attach INTERFACE` guards one";
            return Err(Refusal::new(Kind::Conflict, "no interface is guarded: nothing is judged", hint));
        }
        self.end_observation("another policy is observed");
        self.mark_all_bans()?;
        let Prepared { bundle, hash, reading, compiled, changes } = prepared;
        let Some(datapath) = &mut self.datapath else { return Err(guards::no_packet_tier()) };
        if let Err(error) = datapath.observe(prepare::image(&compiled)) {
            self.mend_bans();
            return Err(error.into());
        }
        let began = SystemTime::now();
        let until = began + time;
        let answer = SetPolicy {
            applied: false,
            unchanged: false,
            generation,
            hash: hash.clone(),
            rules: reading.policy.rules.len(),
            warnings: reading.warnings.clone(),
            changes,
            confirm_until: None,
            observed_until: Some(format_time(until)),
            live: None,
        };
        tracing::info!(hash, by, seconds = time.as_secs(), "a policy is judged beside the one in force");
        self.observed = Some(Observed { bundle, hash, slots: compiled.slots, reading, began, until, by });
        self.last_observation = None;
        self.mend_bans();
        self.keep_shadow_safe();
        Ok(answer)
    }

    /// Ends what is judged beside, if anything is.
    pub(super) fn end_observation(&mut self, why: &str) {
        if self.observed.is_none() {
            return;
        }
        self.last_observation = self.observation().ok().map(|found| Observation {
            ended: Some(why.to_owned()),
            until: format_time(SystemTime::now()),
            ..found
        });
        if let Some(datapath) = &mut self.datapath {
            datapath.stop_observing();
        }
        self.observed = None;
        if let Some(found) = &self.last_observation {
            let (dropped, passed) = (found.all.newly_dropped.packets, found.all.newly_passed.packets);
            tracing::info!(
                hash = found.hash,
                newly_dropped = dropped,
                newly_passed = passed,
                why,
                "observation ends"
            );
        }
        self.mend_bans();
    }

    pub(super) fn end_observation_in_time(&mut self) {
        if self.observed.as_ref().is_some_and(|observed| observed.until <= SystemTime::now()) {
            self.end_observation("its time is over");
        }
    }

    /// What was found so far, or by the last one.
    pub fn observation(&mut self) -> Result<Observation, Refusal> {
        let (Some(observed), Some(datapath)) = (&self.observed, &mut self.datapath) else {
            return self.last_observation.clone().ok_or_else(nothing_observed);
        };
        let mut all = Compared::default();
        let mut rules = Vec::new();
        for (slot, comparison) in datapath.compared()? {
            let compared = Compared::from(&comparison);
            all.add(&compared);
            let rule = observed.reading.rules.iter().find(|rule| rule.counter == slot);
            let rule = rule.map(|rule| rule.name.clone()).unwrap_or_default();
            rules.push(RuleCompared { rule, compared });
        }
        let query = Query { top: SOURCES, sort: Sort::Dropped, by: By::Source, rule: None };
        let Sources { mut sources } = match datapath.shadow() {
            Some(shadow) => sources::worst(shadow, &observed.reading, &query)?,
            None => Sources { sources: Vec::new() },
        };
        sources.retain(|source| source.dropped > 0);
        let elapsed = observed.began.elapsed().unwrap_or_default();
        Ok(Observation {
            hash: observed.hash.clone(),
            by: observed.by.clone(),
            began: format_time(observed.began),
            seconds: elapsed.as_secs(),
            until: format_time(observed.until),
            ended: None,
            all,
            rules,
            sources,
        })
    }

    /// What was changed beside the policy in force changes for the one beside it.
    pub(super) fn readjust_observed(&mut self) {
        let Some(mut observed) = self.observed.take() else { return };
        let (facts, adjustments) = (self.facts(), Arc::clone(self.state.adjustments()));
        let read = prepare::read(&observed.bundle, &observed.slots, facts, 0, &adjustments);
        let shadow = self.datapath.as_mut().and_then(|datapath| datapath.shadow());
        let done = match (read, shadow) {
            (Ok((compiled, reading)), Some(shadow))
                if reading.fingerprint != observed.reading.fingerprint =>
            {
                let published = shadow.publish(prepare::image(&compiled), &[], None);
                observed.slots = compiled.slots;
                observed.reading = reading;
                published.map_err(Refusal::from)
            }
            (Err(diagnostics), _) => Err(Refusal::bad_policy(&observed.bundle.policy, diagnostics)),
            _ => Ok(()),
        };
        self.observed = Some(observed);
        match done {
            Ok(()) => self.keep_shadow_safe(),
            // It would be judged on members that are gone.
            Err(refusal) => self.end_observation(&refusal.line()),
        }
    }

    /// No penalty of it hits whom none may hit.
    pub(super) fn keep_shadow_safe(&mut self) {
        let Some(policy) = self.observed.as_ref().map(|observed| &observed.reading.policy) else { return };
        if policy.rules.iter().any(|rule| rule.penalty.is_some())
            && let Some(shadow) = self.datapath.as_mut().and_then(|datapath| datapath.shadow())
        {
            keep_safe_as_wide(shadow, &mut self.peers, policy.default.source);
        }
    }
}

impl From<&Comparison> for Compared {
    fn from([passed, dropped]: &Comparison) -> Self {
        let amount = |counter: Counter| Amount { packets: counter.packets, bytes: counter.bytes };
        Self {
            still_passed: amount(passed[0]),
            newly_dropped: amount(passed[1]),
            newly_passed: amount(dropped[0]),
            still_dropped: amount(dropped[1]),
        }
    }
}

fn nothing_observed() -> Refusal {
    let hint = "`limiterctl set-policy FILE --observe` judges one beside the policy in force";
    Refusal::new(Kind::NotFound, "no policy is observed", hint)
}
