//! The policy: file → validated → compiled → difference.
//!
//! [`Bundle`] is text, [`check`] makes a [`Policy`] of it or reports every mistake at once, [`compile`] makes of
//! that what the kernel reads. The same bundle gives the same policy on every host; only [`HostFacts`] differ.

#![allow(dead_code)] // what follows uses all of it

mod bundle;
mod classes;
mod compiled;
mod diagnostic;
mod difference;
mod document;
mod exact;
mod image;
mod model;
mod prefixes;
mod rate;
mod suggest;
mod term;

pub use bundle::Bundle;
pub use compiled::{Compiled, HostFacts, MeterInfo, RateInfo, RuleInfo, Slots};
pub use diagnostic::{Diagnostic, Place, Severity};
pub use difference::{Change, ChangeKind};
pub use exact::Fraction;
pub use model::{
    Action, Defaults, Limit, Policy, Prefixes, Rule, Scope, Service, Set, Sources, Traffic, Verdict, Widths,
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

/// Validates a policy. All mistakes are reported together, in order of file and place.
pub fn check(bundle: &Bundle) -> Result<Checked, Vec<Diagnostic>> {
    let text = bundle.files.get(&bundle.policy).map_or("", String::as_str);
    let mut report = diagnostic::Report::default();
    document::Document::parse(&bundle.policy, text).report_syntax(&mut report);
    report.error(&Place::whole(&bundle.policy), "not supported by this version yet", "");
    Err(report.into_sorted())
}

/// Set files that shrank by more than half: refused unless forced.
pub fn shrunk(_old: &Policy, _new: &Policy) -> Vec<Diagnostic> {
    Vec::new()
}

/// Makes of a policy what the kernel reads.
pub fn compile(policy: &Policy, _host: &HostFacts<'_>) -> Result<Compiled, Vec<Diagnostic>> {
    let mut report = diagnostic::Report::default();
    let file = policy.rules.first().map_or("", |rule| &rule.place.file);
    report.error(&Place::whole(file), "not supported by this version yet", "");
    Err(report.into_sorted())
}

/// What changes from `old` to `new`.
pub fn difference(_old: &Policy, _new: &Policy) -> Vec<Change> {
    Vec::new()
}
