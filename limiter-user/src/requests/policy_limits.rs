//! Limits as endpoints write them: in place, or by their name under `[limits]`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::identity::{Element, Part, Scope};
use super::limit::{Algorithm, Limit, LimitSpec, MAX_COUNT};
use super::plans::is_plan_name;
use super::policy::{DENY, EndpointLimit};
use super::policy_read::MODES;
use super::rate::{parse_count, parse_rate, window_text};
use crate::policy::diagnostic::{Place, Report};
use crate::policy::document::{Entry, Keys, Table, Value};
use crate::policy::suggest::nearest;

const LIMIT: Keys = Keys {
    of: "a limit",
    known: &["name", "per", "algorithm", "rate", "burst", "depth", "mode"],
    later: &[],
};
const NAMED: Keys =
    Keys { of: "a limit", known: &["per", "algorithm", "rate", "burst", "depth", "mode"], later: &[] };
const RATE_HELP: &str =
    "write `rate = \"20/m\"`, or one for each plan: `{ pro = \"600/m\", default = \"30/m\" }`";
const SHAPE: &str = "write `{ per = \"source\", rate = \"20/m\" }`";

/// A limit as written, before it belongs to an endpoint.
#[derive(Clone, Debug)]
pub(super) struct Written {
    /// `None`: named by what it is counted by.
    name: Option<String>,
    /// Written under `[limits]`: its state is shared by the endpoints that use it.
    shared: bool,
    scope: Scope,
    algorithm: Algorithm,
    rates: PerPlan<(u32, Duration)>,
    /// Burst or depth.
    burst: Option<PerPlan<u32>>,
    observe: bool,
}

/// One value, and others for plans that are named.
#[derive(Clone, Debug)]
struct PerPlan<T> {
    default: T,
    plans: BTreeMap<String, T>,
}

impl<T: Copy> PerPlan<T> {
    fn get(&self, plan: Option<&str>) -> T {
        plan.and_then(|plan| self.plans.get(plan)).copied().unwrap_or(self.default)
    }
}

/// Whether only request limits are counted by this.
pub(super) fn is_request_scope(text: &str) -> bool {
    Element::parse(text)
        .is_ok_and(|element| !matches!(element.parts(), [Part::Source | Part::SourceAt { .. }]))
}

/// A name for endpoints and limits: it stands in keys, headers and metrics.
pub(super) fn check_name(name: &str, place: &Place, report: &mut Report) -> bool {
    let good = !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if !good {
        report.error(
            place,
            format!("`{name}` cannot be a name"),
            "a name is of letters, digits, `-`, `_` and `.`, at most 64 of them",
        );
    }
    good
}

/// A plan's name.
pub(super) fn plan_name(text: &str, place: &Place, report: &mut Report) -> Option<Arc<str>> {
    if is_plan_name(text) {
        return Some(Arc::from(text));
    }
    report.error(
        place,
        format!("`{text}` cannot name a plan"),
        "a plan's name is of letters, digits, `-`, `_` and `.`",
    );
    None
}

pub(super) fn help_for_unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "name one from `[limits]`, or write it in place".to_owned(),
    }
}

/// An entry of `[limits]`.
pub(super) fn read_named(entry: &Entry<'_>, report: &mut Report) -> Option<Written> {
    let table = entry.value.table("a limit is a table", SHAPE, report)?;
    table.allow(&NAMED, report);
    if !check_name(entry.key, &entry.key_place(), report) {
        return None;
    }
    Some(Written { name: Some(entry.key.to_owned()), shared: true, ..read_limit(&table, report)? })
}

/// A limit written at its endpoint.
pub(super) fn read_inline(value: &Value<'_>, report: &mut Report) -> Option<Written> {
    let table = value.table("a limit is a table or a name from `[limits]`", SHAPE, report)?;
    table.allow(&LIMIT, report);
    let name = match table.get("name") {
        Some(entry) => {
            let name = entry.value.string("`name` is a string", SHAPE, report)?;
            check_name(name, &entry.value.place(), report).then(|| name.to_owned())
        }
        None => None,
    };
    Some(Written { name, ..read_limit(&table, report)? })
}

fn read_limit(table: &Table<'_>, report: &mut Report) -> Option<Written> {
    let scope = read_scope(table, report);
    let rates = match table.get("rate") {
        Some(entry) => per_plan(&entry.value, "`rate`", report, &mut |value, report| {
            let text = value.string("`rate` is a string", RATE_HELP, report)?;
            parse_rate(text).map_err(|why| report.error(&value.place(), why, "")).ok()
        }),
        None => {
            report.error(&table.place(), "a limit lacks its `rate`", RATE_HELP);
            None
        }
    };
    let words = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
    let written = table.get("algorithm").map(|entry| entry.value.word("algorithm", &words, report));
    let burst = table.get("burst");
    let algorithm = match written {
        Some(algorithm) => algorithm?,
        None if burst.is_some() => Algorithm::TokenBucket,
        None => Algorithm::SlidingWindow,
    };
    let depth = table.get("depth");
    let misplaced = match algorithm {
        Algorithm::TokenBucket => {
            depth.as_ref().map(|depth| (depth, "`depth` belongs to `leaky-bucket`; write `burst`"))
        }
        Algorithm::LeakyBucket => {
            burst.as_ref().map(|burst| (burst, "`burst` belongs to `token-bucket`; write `depth`"))
        }
        _ => burst.as_ref().or(depth.as_ref()).map(|entry| {
            (entry, "a window has no burst: take `token-bucket` or `leaky-bucket`, or leave it away")
        }),
    };
    if let Some((entry, help)) = misplaced {
        report.error(
            &entry.key_place(),
            format!("`{}` has no meaning for `{}`", entry.key, algorithm.name()),
            help,
        );
        return None;
    }
    let burst = match burst.or(depth) {
        Some(entry) => {
            let what = format!("`{}`", entry.key);
            Some(per_plan(&entry.value, &what, report, &mut |value, report| count(value, &what, report))?)
        }
        None => None,
    };
    let observe =
        table.get("mode").and_then(|entry| entry.value.word("mode", &MODES, report)).unwrap_or(false);
    Some(Written { name: None, shared: false, scope: scope?, algorithm, rates: rates?, burst, observe })
}

fn read_scope(table: &Table<'_>, report: &mut Report) -> Option<Scope> {
    let help = "write `per = \"source\"`, `per = \"api-key | source\"` or `per = [\"account\", \"source\"]`";
    let Some(entry) = table.get("per") else {
        report.error(&table.place(), "a limit lacks its `per`", help);
        return None;
    };
    let values = match entry.value.as_array() {
        Some(values) if values.is_empty() => {
            report.error(&entry.value.place(), "`per` is empty", help);
            return None;
        }
        Some(values) => values,
        None => vec![entry.value.clone()],
    };
    let mut elements = Vec::new();
    let mut good = true;
    for value in values {
        let read = value.string("`per` is a string or a list of strings", help, report).map(Element::parse);
        match read {
            Some(Ok(element)) if elements.contains(&element) => {
                report.error(&value.place(), format!("`{element}` stands here twice"), "leave one away");
                good = false;
            }
            Some(Ok(element)) => elements.push(element),
            Some(Err(why)) => {
                report.error(&value.place(), why, help);
                good = false;
            }
            None => good = false,
        }
    }
    good.then_some(Scope(elements))
}

/// One value, or a table with one for each plan and a `default`.
fn per_plan<T>(
    value: &Value<'_>,
    what: &str,
    report: &mut Report,
    read: &mut dyn FnMut(&Value<'_>, &mut Report) -> Option<T>,
) -> Option<PerPlan<T>> {
    let Some(table) = value.as_table() else {
        return Some(PerPlan { default: read(value, report)?, plans: BTreeMap::new() });
    };
    let mut default = None;
    let mut plans = BTreeMap::new();
    let mut good = true;
    for entry in table.entries() {
        let number = read(&entry.value, report);
        good &= number.is_some();
        let Some(number) = number else { continue };
        if entry.key == "default" {
            default = Some(number);
        } else if entry.key == DENY {
            report.error(
                &entry.key_place(),
                "the plan `deny` admits nothing: it has no numbers",
                "remove it",
            );
            good = false;
        } else if plan_name(entry.key, &entry.key_place(), report).is_some() {
            plans.insert(entry.key.to_owned(), number);
        }
    }
    if default.is_none() && good {
        let help = "write `default = …` for callers without a plan and plans that are not named here";
        report.error(&value.place(), format!("{what} lacks its `default`"), help);
    }
    if good { default.map(|default| PerPlan { default, plans }) } else { None }
}

/// A count: a whole number, or a text like `2k`.
pub(super) fn count(value: &Value<'_>, what: &str, report: &mut Report) -> Option<u32> {
    let help = format!("write a whole number up to {MAX_COUNT}");
    let number = match (value.as_integer(), value.as_string()) {
        (Some(Ok(number)), _) => u32::try_from(number).ok().filter(|number| *number <= MAX_COUNT),
        (Some(Err(_)), _) => None,
        (None, Some(text)) => parse_count(text),
        (None, None) => {
            value.wrong(&format!("{what} is a whole number"), &help, report);
            return None;
        }
    };
    if number.is_none() {
        report.error(&value.place(), format!("{what} is out of range"), help);
    }
    number
}

/// Gives the limits of one endpoint names of their own: what they are counted by, then also their window,
/// then also their algorithm. Two that are still alike would share a key.
pub(super) fn name_apart(limits: &mut [(Written, Place)], report: &mut Report) {
    let spellings = |limit: &Written| -> [String; 3] {
        let slug = limit.scope.slug();
        let window = window_text(limit.rates.default.1);
        let longest = format!("{slug}-{window}-{}", limit.algorithm.name());
        [slug.clone(), format!("{slug}-{window}"), longest]
    };
    let all: Vec<[String; 3]> = limits.iter().map(|(limit, _)| spellings(limit)).collect();
    let unnamed: Vec<usize> = (0..limits.len()).filter(|&i| limits[i].0.name.is_none()).collect();
    for &i in &unnamed {
        let taken = |name: &str, step: usize| {
            let by_name = limits.iter().any(|(limit, _)| limit.name.as_deref() == Some(name));
            by_name || unnamed.iter().any(|&other| other != i && all[other][step] == name)
        };
        // Names given by hand stay; those made here are compared in the same spelling.
        let step = (0..3).find(|&step| !taken(&all[i][step], step)).unwrap_or(2);
        let name = all[i][step].clone();
        limits[i].0.name = Some(name);
    }
    for i in 0..limits.len() {
        let (limit, place) = &limits[i];
        if let Some((_, first)) = limits[..i].iter().find(|(other, _)| other.name == limit.name) {
            let name = limit.name.as_deref().unwrap_or_default();
            report.error(
                place,
                format!("two limits of one endpoint are called `{name}`: they would share a key"),
                format!("the first is at {first}; remove one, or give them a `name` each"),
            );
        }
    }
}

impl Written {
    /// The limit as this endpoint uses it.
    pub(super) fn make(
        &self,
        endpoint: &str,
        observing_endpoint: bool,
        place: &Place,
        report: &mut Report,
    ) -> Option<EndpointLimit> {
        let observe = observing_endpoint || self.observe;
        let scope = self.scope.to_string();
        let make = |plan: Option<&str>, report: &mut Report| {
            let (count, window) = self.rates.get(plan);
            let spec = LimitSpec {
                place: if self.shared { "" } else { endpoint },
                name: self.name.as_deref().unwrap_or_default(),
                scope: &scope,
                algorithm: self.algorithm,
                count,
                window,
                burst: self.burst.as_ref().map(|burst| burst.get(plan)),
                observe,
            };
            let for_plan = plan.map(|plan| format!(" (plan `{plan}`)")).unwrap_or_default();
            Limit::new(&spec)
                .map(Arc::new)
                .map_err(|error| report.error(place, format!("{error}{for_plan}"), ""))
                .ok()
        };
        let default = make(None, report);
        let plans = self.rates.plans.keys().chain(self.burst.iter().flat_map(|burst| burst.plans.keys()));
        let mut by_plan = BTreeMap::new();
        let mut good = true;
        for plan in plans {
            match make(Some(plan), report) {
                Some(limit) => {
                    by_plan.insert(Arc::from(plan.as_str()), limit);
                }
                None => good = false,
            }
        }
        if !good {
            return None;
        }
        Some(EndpointLimit { scope: self.scope.clone(), default: default?, by_plan, observe })
    }
}
