//! A valid policy: every name resolved, every number exact.

use std::{fmt, sync::Arc, time::SystemTime};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::requests::policy::RequestPolicy;

use super::{diagnostic::Place, plan::Plan, rate::Rate, term::Term};

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Drop,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
        })
    }
}

/// Prefix lengths that make a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Widths {
    pub ipv4: u8,
    pub ipv6: u8,
}

/// The `[default]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// For what no rule matches.
    pub verdict: Verdict,
    pub malformed: Verdict,
    pub source: Widths,
    /// The per-source floor, at most four.
    pub limit: Vec<Limit>,
    /// /96 prefixes besides `::ffff:0:0/96`.
    pub embedded: Vec<Ipv6Net>,
    /// Sources nothing automatic may punish.
    pub never_ban: Sources,
}

/// Prefixes, each family sorted and without overlap. An IPv4 source carried in IPv6 is an IPv4 prefix here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefixes {
    pub v4: Vec<Ipv4Net>,
    pub v6: Vec<Ipv6Net>,
}

impl Prefixes {
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

/// A named list of prefixes.
#[derive(Clone, Debug)]
pub struct Set {
    pub name: String,
    pub place: Place,
    pub prefixes: Prefixes,
    /// Prefixes as written, before duplicates and overlaps merged.
    pub entries: usize,
    /// The file they come from, by its name in the bundle.
    pub file: Option<String>,
    /// Members come by hand, each for a time, and are at most so many: see [`super::adjust`].
    pub dynamic: Option<usize>,
}

/// A named list of terms.
#[derive(Clone, Debug)]
pub struct Service {
    pub name: String,
    pub place: Place,
    pub terms: Vec<Term>,
}

/// What a limit has one bucket for each of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The source, as wide as `[default] source` says.
    Source,
    /// All sources of one prefix together; never exactly as wide as a source.
    Prefix(Widths),
    /// All packets together.
    Rule,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source => f.write_str("source"),
            Self::Prefix(Widths { ipv4, ipv6 }) => write!(f, "source/{ipv4},{ipv6}"),
            Self::Rule => f.write_str("rule"),
        }
    }
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name under `[limits]`; `None` for one written in place.
    pub name: Option<String>,
    pub place: Place,
    pub scope: Scope,
    pub rate: Rate,
}

/// Who a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// As written: names of sets and prefixes.
    pub written: Vec<String>,
    /// Indices into [`Policy::sets`].
    pub sets: Vec<usize>,
    /// Those written in place.
    pub prefixes: Prefixes,
}

/// What traffic a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// As written: names of services and terms.
    pub written: Vec<String>,
    /// All of them, sorted, each once.
    pub terms: Vec<Term>,
}

/// Where packets go that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destinations {
    /// As written.
    pub written: Vec<String>,
    pub prefixes: Prefixes,
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Verdict(Verdict),
    /// All must have room. One to four.
    Limit(Vec<Limit>),
}

/// When a source is refused for a time. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalty {
    pub place: Place,
    /// So many drops by the rule's own limit per source…
    pub after: u64,
    /// …within this time…
    pub within: u64,
    /// …and the source is refused for this long.
    pub seconds: u64,
    /// Only packets of a TCP connection count.
    pub proof: bool,
    /// That forged packets may bring it about is accepted.
    pub spoofable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: String,
    pub place: Place,
    /// `None` = every source.
    pub from: Option<Sources>,
    /// `None` = all traffic.
    pub to: Option<Traffic>,
    /// Names of interfaces, sorted; `None` = whatever it came in by.
    pub interfaces: Option<Vec<String>>,
    /// `None` = to whatever address.
    pub dest: Option<Destinations>,
    pub action: Action,
    /// Only with limits, one of which is per source and the rule's own.
    pub penalty: Option<Penalty>,
    /// Beside limits: how many packets of sources without a bucket it takes.
    pub newcomers: Option<Rate>,
    /// Counts what it would drop; judgement goes on below.
    pub observe: bool,
    /// Part of the lifeline: judged before bans.
    pub before_bans: bool,
    /// From when on it is skipped: see [`super::adjust`].
    pub expires: Option<SystemTime>,
}

impl Rule {
    /// Limits per source that no other rule shares.
    pub fn own_source_limits(&self) -> impl Iterator<Item = &Limit> {
        let limits = match &self.action {
            Action::Limit(limits) => limits.as_slice(),
            Action::Verdict(_) => &[],
        };
        limits.iter().filter(|limit| limit.name.is_none() && limit.scope == Scope::Source)
    }
}

/// A valid policy. Lists are in file order, included files after the file that includes them.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The main file.
    pub place: Place,
    pub default: Defaults,
    pub sets: Vec<Set>,
    pub services: Vec<Service>,
    pub limits: Vec<Limit>,
    pub rules: Vec<Rule>,
    /// What is limited by identity, for a host with a request tier.
    pub requests: RequestPolicy,
    /// What follows from the rest, on every host.
    pub(super) plan: Arc<Plan>,
}
