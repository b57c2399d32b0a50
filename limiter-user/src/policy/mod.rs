//! The policy: file → validated → compiled → difference.
//!
//! [`Bundle`] is text, [`check`] makes a [`Policy`] of it or reports every mistake at once, [`compile`] makes of
//! that what the kernel reads. The same bundle gives the same policy on every host; only [`HostFacts`] differ.

mod adjust;
pub(crate) mod bundle;
mod claims;
mod classes;
mod compile;
mod compiled;
pub(crate) mod diagnostic;
mod difference;
pub(crate) mod document;
mod exact;
mod image;
mod meters;
mod model;
mod penalties;
mod places;
mod plan;
mod prefixes;
mod rate;
mod read;
mod slots;
pub(crate) mod suggest;
mod term;
mod traffic;
mod when;

use serde::Serialize;

pub use adjust::{Adjusted, Adjustments, Members, Override, OverrideMode, adjust};
pub use bundle::Bundle;
pub use compile::compile;
pub use compiled::{Compiled, HostFacts, MeterInfo, RateInfo, RuleInfo, Slots};
pub use diagnostic::{Diagnostic, Place, Severity};
pub use difference::{Change, ChangeKind, difference, shrunk};
pub use exact::Fraction;
pub use model::{
    Action, Defaults, Destinations, Limit, Penalty, Policy, Prefixes, Rule, Scope, Service, Set, Sources,
    Traffic, Verdict, Widths,
};
pub use rate::{Rate, Unit};
pub use term::{Range, Term};

/// A policy without mistakes.
#[derive(Clone, Debug)]
pub struct Checked {
    pub policy: Policy,
    pub warnings: Vec<Diagnostic>,
}

impl Checked {
    /// Warnings refuse too.
    pub fn strict(self) -> Result<Self, Vec<Diagnostic>> {
        if self.warnings.is_empty() { Ok(self) } else { Err(self.warnings) }
    }
}

/// What a rule's penalty lets a forger do, see `docs/policy.md`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leverage {
    pub rule: String,
    /// What a penalty takes from a source, over what it costs to bring about in its name.
    pub leverage: f64,
    /// What counts cannot be forged.
    pub proof: bool,
    /// More than 1 was accepted.
    pub accepted: bool,
}

/// The leverage of every penalty of a policy.
pub fn leverages(policy: &Policy) -> Vec<Leverage> {
    let of = |rule: &Rule| {
        let penalty = rule.penalty.as_ref()?;
        let leverage = penalties::leverage(penalty, rule.own_source_limits());
        Some(Leverage {
            rule: rule.name.clone(),
            leverage,
            proof: penalty.proof,
            accepted: penalty.spoofable,
        })
    };
    policy.rules.iter().filter_map(of).collect()
}

/// Validates a policy. All mistakes are reported together, in order of file and place.
pub fn check(bundle: &Bundle) -> Result<Checked, Vec<Diagnostic>> {
    let mut report = diagnostic::Report::default();
    let policy = read::read(bundle, &mut report);
    let found = report.into_sorted();
    match policy {
        Some(policy) if !found.iter().any(Diagnostic::is_error) => Ok(Checked { policy, warnings: found }),
        _ => Err(found),
    }
}

/// A prefix or an address; else what is wrong and what to write.
pub fn parse_prefix(text: &str) -> Result<ipnet::IpNet, (String, String)> {
    prefixes::parse(text).map_err(|bad| match bad {
        prefixes::NotAPrefix::HostBits(masked) => {
            (format!("`{text}` has bits set behind its length"), format!("write `{masked}`"))
        }
        prefixes::NotAPrefix::Text => (
            format!("`{text}` is not a prefix"),
            "write `203.0.113.0/24`, `2001:db8::/32` or a single address".to_owned(),
        ),
    })
}

/// A term of services, like `tcp/443`; else what is wrong and what to write.
pub fn parse_term(text: &str) -> Result<Term, (String, String)> {
    Term::parse(text).map_err(|bad| (bad.message, bad.help))
}

/// Seconds of a duration as policies write it: `10s`, `5m`, `1h`, `2d`; else what is wrong and what to write.
pub fn duration_seconds(text: &str) -> Result<u64, String> {
    rate::parse_duration(text).map_err(|bad| format!("{}: {}", bad.message, bad.help))
}

#[cfg(test)]
mod tests;
