//! What compiling makes of a policy: the kernel's tables, and what user space must know to speak of them.

use std::collections::BTreeMap;

use limiter_common::abi::{PolicyTables, Row};
use serde::{Deserialize, Serialize};

use super::diagnostic::Diagnostic;

/// What compiling needs to know of the host.
#[derive(Clone, Copy, Debug)]
pub struct HostFacts<'a> {
    /// Spread of the coarse clock in ns.
    pub tick_ns: u64,
    /// Ways of the bucket table.
    pub buckets: u32,
    /// Places given by earlier policies.
    pub slots: &'a Slots,
    /// For the header.
    pub generation: u64,
}

/// Persistent places: what a rule counted and a meter's claim budget stay where they are over policy changes.
///
/// Names no longer in use keep their place until somebody needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    /// Counter slots by rule name; `""`, what no rule judged, is always 0.
    pub rules: BTreeMap<String, u16>,
    /// Meter slots by meter id.
    pub meters: BTreeMap<u32, u32>,
}

/// A policy, compiled for one host.
pub struct Compiled {
    pub tables: Box<PolicyTables>,
    /// The prefix image, without the sealed text behind it.
    pub rows: Vec<Row>,
    /// To be kept and given back with the next policy.
    pub slots: Slots,
    /// By index in `tables.rules`; the first is the `[default]`, named `""`.
    pub rules: Vec<RuleInfo>,
    /// By index in `tables.meters`.
    pub meters: Vec<MeterInfo>,
    pub warnings: Vec<Diagnostic>,
    /// Counter slots that belonged to a retired rule: to be zeroed before use.
    pub reused_rules: Vec<u16>,
    /// Meter slots that belonged to a retired meter: budgets, lone buckets and crowd cells are to be zeroed.
    pub reused_meters: Vec<u32>,
}

/// What a rule of the tables is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleInfo {
    /// `""` for the `[default]`.
    pub name: String,
    /// Its counter slot.
    pub counter: u16,
    pub observing: bool,
    /// Part of the lifeline: judged before bans.
    pub before_bans: bool,
    /// Indices into [`Compiled::meters`], as in the tables.
    pub meters: Vec<u16>,
}

/// One rate of a meter, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateInfo {
    /// As written.
    pub text: String,
    /// Units per second.
    pub per_second: f64,
    /// In units.
    pub burst: u64,
}

/// What a meter of the tables is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeterInfo {
    pub id: u32,
    pub slot: u32,
    /// Name under `[limits]`; `None` when written in place.
    pub limit: Option<String>,
    /// Names of the rules that charge it; `""` is the `[default]`, for the floor.
    pub rules: Vec<String>,
    pub scope: String,
    pub observing: bool,
    pub packets: Option<RateInfo>,
    pub bytes: Option<RateInfo>,
    /// New buckets per second it may claim; 0 where there is but one.
    pub claims_per_second: f64,
}
