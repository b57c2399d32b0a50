//! What an operator changes beside the policy for a time: overrides of rules, members of dynamic sets.
//!
//! Changes that come together are published together: whoever gets its turn takes all that wait.

use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;

use super::core::Core;
use super::prepare::{self, InForce, Reading};
use super::refusal::{Kind, Refusal};
use super::sealed::{Sealed, format_time};
use super::{Daemon, lockout};
use crate::cli::session::Session;
use crate::control::api;
use crate::policy::{Adjustments, Compiled, Override, OverrideMode, parse_prefix};

/// Longest time anything may be adjusted for: what lasts longer belongs into the policy.
const LONGEST_SECONDS: u64 = 366 * 86_400;

/// After a failure the end of something is tried again this much later.
const RETRY: Duration = Duration::from_secs(10);

type Change = Box<dyn Fn(&mut Adjustments, &Reading) -> Result<(), Refusal> + Send>;

/// A change that waits for its turn, and what became of it.
pub(super) struct Waiting {
    change: Change,
    /// Sessions that must not be cut off by it.
    sessions: Vec<Session>,
    result: Arc<OnceLock<Result<(), Refusal>>>,
}

impl Daemon {
    pub fn overrides(&self) -> api::Overrides {
        api::Overrides { overrides: self.core().overrides() }
    }

    /// Changes how a rule judges for a time; takes the place of an override there is.
    pub fn set_override(&self, asked: api::OverrideRequest, by: &str) -> Result<api::Overridden, Refusal> {
        let until = end(asked.for_s)?;
        if asked.scale.is_none() && asked.mode.is_none() {
            let hint = "`--scale 25%` changes its numbers, `--mode observe|enforce|off` what it does";
            return Err(Refusal::new(Kind::Conflict, "an override says what changes", hint));
        }
        if asked.scale.is_some_and(|scale| !(1..=10_000).contains(&scale)) {
            let hint = "`--scale 25%` is a quarter, `--scale 200%` twice as much";
            return Err(Refusal::new(Kind::Conflict, "a scale is from 1% to 10000%", hint));
        }
        let change = Override { scale: asked.scale, mode: asked.mode, until, by: by.to_owned() };
        let rule = asked.rule.clone();
        let sessions = careful(&asked.sessions, asked.force);
        self.adjust(
            Box::new(move |adjustments, reading| {
                match reading.declared.get(&rule) {
                    None => return Err(no_such_rule(&rule)),
                    Some(false) if change.scale.is_some() => {
                        let error = format!("rule `{rule}` has no limits to scale");
                        return Err(Refusal::new(Kind::Conflict, error, "`--mode off` takes it out"));
                    }
                    Some(_) => {}
                }
                adjustments.overrides.insert(rule.clone(), change.clone());
                Ok(())
            }),
            sessions,
        )?;
        tracing::warn!(
            rule = asked.rule,
            scale = asked.scale,
            mode = asked.mode.map(OverrideMode::name),
            until = format_time(until),
            by,
            "rule overridden"
        );
        let core = self.core();
        let mut warnings = Vec::new();
        core.warn_of_state(&mut warnings);
        let overridden = core.overrides().into_iter().find(|found| found.rule == asked.rule);
        Ok(api::Overridden { rule: asked.rule, overridden, was_overridden: false, warnings })
    }

    /// The rule judges as it says again.
    pub fn clear_override(
        &self,
        rule: &str,
        sessions: Vec<Session>,
        by: &str,
    ) -> Result<api::Overridden, Refusal> {
        let was_overridden = self.core().state.adjustments().overrides.contains_key(rule);
        let name = rule.to_owned();
        self.adjust(
            Box::new(move |adjustments, reading| {
                if adjustments.overrides.remove(&name).is_none() && !reading.declared.contains_key(&name) {
                    return Err(no_such_rule(&name));
                }
                Ok(())
            }),
            sessions,
        )?;
        if was_overridden {
            tracing::info!(rule, by, "override cleared");
        }
        let mut warnings = Vec::new();
        self.core().warn_of_state(&mut warnings);
        Ok(api::Overridden { rule: rule.to_owned(), overridden: None, was_overridden, warnings })
    }

    /// Puts prefixes into a dynamic set for a time; those that are in it get the new time.
    pub fn add_to(&self, set: &str, asked: &api::AddRequest, by: &str) -> Result<api::SetMembers, Refusal> {
        let until = end(asked.for_s)?;
        let nets = prefixes(&asked.members)?;
        let (name, count) = (set.to_owned(), nets.len());
        self.adjust(
            Box::new(move |adjustments, reading| {
                let max = dynamic(reading, &name)?;
                let members = adjustments.members.get(&name);
                let is_new = |net: &&IpNet| members.is_none_or(|members| !members.contains_key(*net));
                let after = members.map_or(0, |members| members.len()) + nets.iter().filter(is_new).count();
                if after > max {
                    return Err(Refusal::new(
                        Kind::Conflict,
                        format!("set `{name}` would have {after} members, and its `max` is {max}"),
                        "`limiterctl remove-from` makes room, or raise `max` in the policy",
                    ));
                }
                let members = adjustments.members.entry(name.clone()).or_default();
                members.extend(nets.iter().map(|net| (*net, until)));
                Ok(())
            }),
            careful(&asked.sessions, asked.force),
        )?;
        tracing::info!(set, count, until = format_time(until), by, "members added");
        self.describe_members(set, count)
    }

    /// Takes prefixes out of a dynamic set.
    pub fn remove_from(
        &self,
        set: &str,
        asked: &api::RemoveRequest,
        by: &str,
    ) -> Result<api::SetMembers, Refusal> {
        let nets = prefixes(&asked.members)?;
        let before = self.core().state.adjustments().members.get(set).cloned().unwrap_or_default();
        let count = nets.iter().filter(|net| before.contains_key(*net)).count();
        let name = set.to_owned();
        self.adjust(
            Box::new(move |adjustments, reading| {
                dynamic(reading, &name)?;
                if let Some(members) = adjustments.members.get_mut(&name) {
                    members.retain(|net, _| !nets.contains(net));
                }
                Ok(())
            }),
            careful(&asked.sessions, asked.force),
        )?;
        tracing::info!(set, count, by, "members removed");
        self.describe_members(set, count)
    }

    fn describe_members(&self, set: &str, changed: usize) -> Result<api::SetMembers, Refusal> {
        let core = self.core();
        let mut warnings = Vec::new();
        core.warn_of_state(&mut warnings);
        let entries = core.state.adjustments().members.get(set).map_or(0, |members| members.len());
        let max = core.reading().map_or(Ok(0), |reading| dynamic(reading, set))?;
        Ok(api::SetMembers { set: set.to_owned(), entries, max, changed, warnings })
    }

    /// Queues a change, and waits until it is published.
    fn adjust(&self, change: Change, sessions: Vec<Session>) -> Result<(), Refusal> {
        let result = Arc::new(OnceLock::new());
        let waiting = Waiting { change, sessions, result: Arc::clone(&result) };
        self.adjusting.lock().unwrap_or_else(PoisonError::into_inner).push(waiting);
        let _one_at_a_time = self.one_change();
        if result.get().is_none() {
            self.adjust_all();
        }
        let lost = || Err(Refusal::new(Kind::Failed, "the change was lost", "this is a defect of limiterd"));
        result.get().cloned().unwrap_or_else(lost)
    }

    /// Applies every change that waits, in one publish. The caller holds the turn.
    fn adjust_all(&self) {
        let waiting = std::mem::take(&mut *self.adjusting.lock().unwrap_or_else(PoisonError::into_inner));
        let (in_force, mut adjustments) = {
            let core = self.core();
            (core.in_force.clone(), Adjustments::clone(core.state.adjustments()))
        };
        adjustments.forget_over(SystemTime::now());
        let reading = in_force.as_ref().and_then(|in_force| in_force.reading.as_ref());
        let mut accepted = Vec::new();
        for one in waiting {
            let decided = match reading {
                Some(reading) => (one.change)(&mut adjustments, reading),
                None => Err(Refusal::new(
                    Kind::Conflict,
                    "this version cannot read the policy in force",
                    "`limiterctl set-policy FILE` sets one it can",
                )),
            };
            match decided {
                Ok(()) => accepted.push(one),
                Err(refusal) => drop(one.result.set(Err(refusal))),
            }
        }
        let sessions: Vec<Session> = accepted.iter().flat_map(|one| one.sessions.clone()).collect();
        let published = match accepted.as_slice() {
            [] => return,
            _ => self.readjust(adjustments, &sessions),
        };
        if published.is_err() && accepted.len() > 1 {
            // One of them is at fault, and the others must not answer for it.
            accepted.into_iter().for_each(|one| self.adjust_one(one));
            return;
        }
        for one in accepted {
            let _ = one.result.set(published.clone());
        }
    }

    /// Applies one change in a publish of its own. The caller holds the turn.
    fn adjust_one(&self, one: Waiting) {
        let (in_force, mut adjustments) = {
            let core = self.core();
            (core.in_force.clone(), Adjustments::clone(core.state.adjustments()))
        };
        adjustments.forget_over(SystemTime::now());
        let Some(reading) = in_force.as_ref().and_then(|in_force| in_force.reading.as_ref()) else { return };
        let decided = (one.change)(&mut adjustments, reading);
        let _ = one.result.set(decided.and_then(|()| self.readjust(adjustments, &one.sessions)));
    }

    /// Puts the policy in force again with these adjustments, and keeps them. The caller holds the turn.
    fn readjust(&self, adjustments: Adjustments, sessions: &[Session]) -> Result<(), Refusal> {
        let basis = self.core().basis();
        let Some(in_force) = &basis.in_force else { return Ok(()) };
        let sealed = &in_force.sealed;
        let read = prepare::read(&sealed.bundle, &sealed.slots, basis.facts, sealed.generation, &adjustments);
        let (compiled, reading) = read.map_err(|diagnostics| {
            let mut refusal = Refusal::bad_policy(&sealed.bundle.policy, diagnostics);
            refusal.kind = Kind::Conflict;
            refusal
        })?;
        lockout::check(&compiled, sessions, lockout::FORCE)?;
        let mut core = self.core();
        // On disk first: after a crash in between, the next start publishes it.
        let before = Arc::clone(core.state.adjustments());
        core.state.set_adjustments(Arc::new(adjustments));
        let result = core.commit_adjusted(&compiled, reading);
        if result.is_err() {
            core.state.set_adjustments(before);
        }
        result
    }

    /// Ends what has come to its end: overrides, members of sets, rules that expire.
    pub(super) fn end_adjustments(&self) {
        let now = SystemTime::now();
        if !self.core().adjustments_end(now) {
            return;
        }
        let mut retry = self.retry.lock().unwrap_or_else(PoisonError::into_inner);
        if retry.is_some_and(|at| at > Instant::now()) {
            return;
        }
        let _one_at_a_time = self.one_change();
        let mut adjustments = Adjustments::clone(self.core().state.adjustments());
        for rule in adjustments.forget_over(now) {
            tracing::info!(rule, "the override is over");
        }
        *retry = match self.readjust(adjustments, &[]) {
            Ok(()) => None,
            Err(refusal) => {
                tracing::error!(reason = refusal.line(), "what has ended is still in force");
                Some(Instant::now() + RETRY)
            }
        };
    }
}

impl Core {
    /// Overrides of rules that exist, by rule.
    pub fn overrides(&self) -> Vec<api::Override> {
        let now = SystemTime::now();
        let known = |rule: &str| self.reading().is_none_or(|reading| reading.declared.contains_key(rule));
        let all = self.state.adjustments().overrides.iter();
        all.filter(|(rule, change)| change.until > now && known(rule))
            .map(|(rule, change)| api::Override {
                rule: rule.clone(),
                scale: change.scale,
                mode: change.mode,
                until: format_time(change.until),
                left_s: change.until.duration_since(now).unwrap_or_default().as_secs(),
                by: change.by.clone(),
            })
            .collect()
    }

    fn adjustments_end(&self, now: SystemTime) -> bool {
        self.reading().and_then(|reading| reading.next).is_some_and(|next| next <= now)
    }

    /// The policy in force, compiled anew: the same generation, another image.
    fn commit_adjusted(&mut self, compiled: &Compiled, reading: Reading) -> Result<(), Refusal> {
        let Some(in_force) = self.in_force.clone() else { return Ok(()) };
        let mut sealed = Arc::clone(&in_force.sealed);
        if sealed.adjusted != reading.fingerprint {
            sealed = Arc::new(Sealed {
                adjusted: reading.fingerprint.clone(),
                slots: compiled.slots.clone(),
                ..Sealed::clone(&sealed)
            });
            self.publish(prepare::image(compiled), &sealed, None)?;
            if sealed.slots != in_force.sealed.slots {
                self.state.keep(&sealed);
            }
        }
        for rule in reading.expired.iter().filter(|rule| !in_force.has_expired(rule)) {
            tracing::warn!(rule, "the rule expired and is skipped");
        }
        self.in_force = Some(Arc::new(InForce { sealed, reading: Some(reading) }));
        self.readjust_observed();
        self.mend_bans();
        Ok(())
    }

    /// At a start: brings the kernel to what the state directory says.
    pub(super) fn take_up_adjustments(&mut self) {
        let Some(in_force) = self.in_force.clone() else { return };
        let sealed = &in_force.sealed;
        let differs = in_force.reading.as_ref().is_some_and(|read| read.fingerprint != sealed.adjusted);
        if !differs {
            return;
        }
        let adjustments = Arc::clone(self.state.adjustments());
        let facts = self.facts();
        let read = prepare::read(&sealed.bundle, &sealed.slots, facts, sealed.generation, &adjustments);
        if let Ok((compiled, reading)) = read
            && let Err(refusal) = self.commit_adjusted(&compiled, reading)
        {
            tracing::error!(reason = refusal.line(), "what was changed by hand is not in force");
        }
    }
}

/// The sessions that must go on.
fn careful(sessions: &[Session], force: bool) -> Vec<Session> {
    if force { Vec::new() } else { sessions.to_vec() }
}

fn end(seconds: u64) -> Result<SystemTime, Refusal> {
    if seconds == 0 || seconds > LONGEST_SECONDS {
        let hint = "`--for 1h` is an hour; what lasts longer belongs into the policy";
        return Err(Refusal::new(Kind::Conflict, "a time is from one second to a year", hint));
    }
    // Whole seconds, so that what ends together is published together.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs() + seconds))
}

fn prefixes(texts: &[String]) -> Result<Vec<IpNet>, Refusal> {
    let parsed = texts.iter().map(|text| parse_prefix(text));
    parsed.collect::<Result<_, _>>().map_err(|(error, hint)| Refusal::new(Kind::Conflict, error, hint))
}

/// The most members a dynamic set may have.
fn dynamic(reading: &Reading, name: &str) -> Result<usize, Refusal> {
    let Some(set) = reading.policy.sets.iter().find(|set| set.name == *name) else {
        let hint = "`limiterctl get-policy` shows `[sets]`";
        return Err(Refusal::new(Kind::NotFound, format!("no set is named `{name}`"), hint));
    };
    set.dynamic.ok_or_else(|| {
        Refusal::new(
            Kind::Conflict,
            format!("set `{name}` is not dynamic: its members are those of the policy"),
            format!("write `{name} = {{ dynamic = true, max = 10_000 }}` under `[sets]`"),
        )
    })
}

fn no_such_rule(rule: &str) -> Refusal {
    let hint = "`limiterctl get-policy --effective` lists the rules";
    Refusal::new(Kind::NotFound, format!("no rule is named `{rule}`"), hint)
}
