//! From a bundle to a policy ready to be published: everything that can be refused is refused here, without a
//! lock and without touching the policy in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use limiter_common::abi::Meter;

use super::refusal::{Kind, Refusal};
use super::sealed::Sealed;
use crate::datapath::{Facts, Image};
use crate::policy::{
    self, Adjustments, Bundle, Change, Compiled, Diagnostic, HostFacts, MeterInfo, Policy, RuleInfo, Slots,
};

/// A policy in force, with what reports need to know of it.
pub struct InForce {
    pub sealed: Arc<Sealed>,
    /// `None` when this version cannot read the policy the kernel enforces.
    pub reading: Option<Reading>,
}

/// A policy, understood.
pub struct Reading {
    pub policy: Policy,
    pub rules: Vec<RuleInfo>,
    /// By [`Meter::id`].
    pub meters: BTreeMap<u32, (MeterInfo, Meter)>,
    pub warnings: Vec<Diagnostic>,
    /// Every rule of the text, also those that expired or are off: whether it has limits.
    pub declared: BTreeMap<String, bool>,
    /// Rules that are skipped, because they expired.
    pub expired: Vec<String>,
    /// See [`policy::Adjusted::fingerprint`].
    pub fingerprint: String,
    /// As of when: members of dynamic sets are those of this moment.
    pub at: SystemTime,
    /// When this is no longer what is to be in force.
    pub next: Option<SystemTime>,
}

impl InForce {
    pub fn has_expired(&self, rule: &str) -> bool {
        self.reading.as_ref().is_some_and(|reading| reading.expired.iter().any(|found| found == rule))
    }
}

/// What a policy is prepared against.
#[derive(Clone)]
pub struct Basis {
    pub facts: Facts,
    pub generation: u64,
    pub in_force: Option<Arc<InForce>>,
    /// What is changed beside the policy.
    pub adjustments: Arc<Adjustments>,
    /// Request buckets live in a store that can be away.
    pub shares_store: bool,
}

impl Basis {
    /// Refuses a change that was made for another policy than the one in force. `if_match` is the hash of that.
    pub fn require(&self, if_match: Option<&str>) -> Result<(), Refusal> {
        let current = self.in_force.as_ref().map(|in_force| in_force.sealed.hash.as_str());
        match if_match {
            Some(expected) if current != Some(expected) => Err(Refusal::new(
                Kind::Stale,
                format!(
                    "the policy in force is not the one this change was made for: its hash is {}",
                    current.unwrap_or("none")
                ),
                "look at it with `limiterctl get-policy`, then decide again",
            )),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Demands {
    /// Accept a set file that lost more than half of its entries.
    pub force: bool,
    /// Refuse warnings.
    pub strict: bool,
}

pub struct Prepared {
    pub bundle: Bundle,
    pub hash: String,
    pub reading: Reading,
    pub compiled: Compiled,
    pub changes: Vec<Change>,
}

/// Checks and compiles.
pub fn prepare(bundle: Bundle, basis: &Basis, demands: Demands) -> Result<Prepared, Refusal> {
    let bad = |diagnostics| Refusal::bad_policy(&bundle.policy, diagnostics);
    let slots = basis.in_force.as_ref().map(|in_force| in_force.sealed.slots.clone()).unwrap_or_default();
    let (compiled, reading) =
        read(&bundle, &slots, basis.facts, basis.generation, &basis.adjustments).map_err(bad)?;
    if basis.shares_store {
        let undecided = reading.policy.requests.undecided();
        if !undecided.is_empty() {
            return Err(bad(undecided));
        }
    }
    if demands.strict && !reading.warnings.is_empty() {
        return Err(bad(reading.warnings));
    }
    let old = basis.in_force.as_ref().and_then(|in_force| in_force.reading.as_ref());
    let changes = match old {
        Some(old) => {
            if !demands.force {
                refuse_shrunk(policy::shrunk(&old.policy, &reading.policy))?;
            }
            policy::difference(&old.policy, &reading.policy)
        }
        None => Vec::new(),
    };
    Ok(Prepared { hash: bundle.hash(), bundle, reading, compiled, changes })
}

/// Checks and compiles, and says everything that is wrong.
pub fn read(
    bundle: &Bundle,
    slots: &Slots,
    facts: Facts,
    generation: u64,
    adjustments: &Adjustments,
) -> Result<(Compiled, Reading), Vec<Diagnostic>> {
    let at = SystemTime::now();
    let checked = policy::check(bundle)?;
    let has_limits = |rule: &policy::Rule| matches!(rule.action, policy::Action::Limit(_));
    let declared = checked.policy.rules.iter().map(|rule| (rule.name.clone(), has_limits(rule))).collect();
    let adjusted = policy::adjust(checked, adjustments, at)?;
    let host = HostFacts { tick_ns: facts.tick_ns, buckets: facts.buckets, slots, generation };
    let mut compiled = policy::compile(&adjusted.policy, &host)?;
    let mut warnings = adjusted.warnings;
    warnings.append(&mut compiled.warnings);
    let numbers: BTreeMap<u32, Meter> =
        compiled.tables.meters.iter().map(|meter| (meter.id, *meter)).collect();
    let meters = compiled
        .meters
        .iter()
        .filter_map(|info| Some((info.id, (info.clone(), *numbers.get(&info.id)?))))
        .collect();
    let reading = Reading {
        policy: adjusted.policy,
        rules: compiled.rules.clone(),
        meters,
        warnings,
        declared,
        expired: adjusted.expired,
        fingerprint: adjusted.fingerprint,
        at,
        next: adjusted.next,
    };
    Ok((compiled, reading))
}

/// A list that lost more than half of its entries is more often a broken download than a wish.
fn refuse_shrunk(shrunk: Vec<Diagnostic>) -> Result<(), Refusal> {
    let Some(first) = shrunk.first() else { return Ok(()) };
    let hint = "if that is meant, `limiterctl set-policy FILE --force` applies it";
    let mut refusal = Refusal::new(Kind::NeedsForce, first.message.clone(), hint);
    refusal.failure.diagnostics = shrunk;
    Err(refusal)
}

/// A compiled policy as the datapath takes it.
pub fn image(compiled: &Compiled) -> Image<'_> {
    Image {
        tables: &compiled.tables,
        rows: &compiled.rows,
        reused_rules: &compiled.reused_rules,
        reused_meters: &compiled.reused_meters,
    }
}
