//! From text to a valid policy, reporting every mistake on the way.

mod default;
mod limits;
mod penalties;
mod places;
mod rules;
mod services;
mod sets;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    bundle::{Bundle, is_pattern, resolve},
    diagnostic::{Place, Report},
    document::{Document, Entry, Keys, Table},
    model::{Policy, Widths},
    plan,
    suggest::nearest,
};
use crate::requests::{identity::SourceRules, policy_read};

/// Top-level keys of a policy file.
const TOP: Keys = Keys {
    of: "a policy",
    known: &[
        "version", "include", "default", "sets", "services", "limits", "rule", "identity", "plans",
        "endpoint", "serial",
    ],
    later: &[],
};

/// Names with what they name, in the order written.
struct Named<T> {
    list: Vec<T>,
    /// The index is absent when the item has a mistake of its own: using it is no further mistake.
    places: BTreeMap<String, (Option<usize>, Place)>,
}

impl<T> Named<T> {
    fn new() -> Self {
        Self { list: Vec::new(), places: BTreeMap::new() }
    }

    /// Reports a name that is taken or none at all. True when it is free.
    fn free(&self, what: &str, name: &str, place: &Place, report: &mut Report) -> bool {
        if let Err(why) = valid_name(name) {
            report.error(place, format!("a {what} cannot be named `{name}`: {why}"), NAME_HELP);
            return false;
        }
        let Some((_, first)) = self.places.get(name) else { return true };
        report.error(
            place,
            format!("there is a {what} `{name}` already"),
            format!("the first is at {first}"),
        );
        false
    }

    /// `None` = the item has a mistake.
    fn add(&mut self, name: &str, place: &Place, item: Option<T>) {
        let index = item.is_some().then_some(self.list.len());
        self.places.insert(name.to_owned(), (index, place.clone()));
        self.list.extend(item);
    }

    fn is_known(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The item of that name, or a report that there is none.
    fn expect(
        &self,
        what: &str,
        name: &str,
        place: &Place,
        define: &str,
        report: &mut Report,
    ) -> Option<usize> {
        if let Some((index, _)) = self.places.get(name) {
            return *index;
        }
        let help = match nearest(name, self.places.keys().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => define.to_owned(),
        };
        report.missing(place, format!("unknown {what} `{name}`"), help);
        None
    }
}

const NAME_HELP: &str = "names are letters, digits, `-`, `_` and `.`, at most 64 of them";

fn valid_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("a name is not empty");
    }
    if name.len() > 64 {
        return Err("it is too long");
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err("it has other characters");
    }
    Ok(())
}

/// Entries of one section, from all files.
struct Sections<'d> {
    tables: Vec<Table<'d>>,
}

impl<'d> Sections<'d> {
    fn entries(&self) -> impl Iterator<Item = Entry<'d>> + '_ {
        self.tables.iter().flat_map(Table::entries)
    }
}

/// Reads a policy; `None` when something wrong was reported.
pub(super) fn read(bundle: &Bundle, report: &mut Report) -> Option<Policy> {
    let documents = documents(bundle, report);
    let roots: Vec<Table<'_>> = documents.iter().map(Document::root).collect();
    for (index, root) in roots.iter().enumerate() {
        root.allow(&TOP, report);
        version(root, index == 0, report);
    }
    let section = |name: &str, report: &mut Report| {
        let entries = roots.iter().filter_map(|root| root.get(name));
        let help = format!("write `[{name}]` on a line of its own, and its keys below");
        let tables =
            entries.filter_map(|entry| entry.value.table(&format!("`{name}` is a table"), &help, report));
        Sections { tables: tables.collect() }
    };
    let list = |name: &str, report: &mut Report| -> Vec<Table<'_>> {
        let help = format!("begin each with `[[{name}]]`");
        let mut tables = Vec::new();
        for entry in roots.iter().filter_map(|root| root.get(name)) {
            let items = entry.value.array(&format!("`{name}` is a list of tables"), &help, report);
            for item in items.unwrap_or_default() {
                tables.extend(item.table(&format!("each `{name}` is a table"), &help, report));
            }
        }
        tables
    };

    let default_tables = section("default", report);
    let base = default::widths_and_embedded(&default_tables, report);
    let sets = sets::read(&section("sets", report), bundle, &base.embedded, report);
    let services = services::read(&section("services", report), report);
    let limit_section = section("limits", report);
    let endpoints = list("endpoint", report);
    let limits =
        limits::read(&limit_section, &policy_read::limits_of_endpoints(&endpoints), base.widths, report);
    let default = default::read(&default_tables, base, &sets, &limits, report);
    let rules = rules::read(&list("rule", report), &sets, &services, &limits, &default, report);
    let of_requests = policy_read::Sections {
        serial: roots.iter().filter_map(|root| root.get("serial")).collect(),
        identity: section("identity", report).tables,
        plans: section("plans", report).tables,
        limits: limits.of_requests,
        endpoints,
    };
    let Widths { ipv4, ipv6 } = default.source;
    let source = SourceRules { ipv4, ipv6, ipv4_in_ipv6: default.embedded.clone() };
    let requests = policy_read::read(&of_requests, bundle, source, report);
    if report.has_errors() {
        return None;
    }
    let file = Place::whole(&bundle.policy);
    let plan = Arc::new(plan::make(&default, &sets.list, &rules, &file, report)?);
    Some(Policy {
        place: file,
        default,
        sets: sets.list,
        services: services.list,
        limits: limits.of_packets.list,
        rules,
        requests,
        plan,
    })
}

fn version(root: &Table<'_>, is_main: bool, report: &mut Report) {
    let Some(entry) = root.get("version") else {
        if is_main {
            report.missing(
                &root.place(),
                "the policy has no `version`",
                "write `version = 1` on its first line",
            );
        }
        return;
    };
    match entry.value.as_integer() {
        Some(Ok(1)) => {}
        Some(Ok(number)) => report.error(
            &entry.value.place(),
            format!("version {number} of the policy is not known here"),
            "this limiter reads `version = 1`",
        ),
        _ => entry.value.wrong("`version` is the number 1", "write `version = 1`", report),
    }
}

/// The main file and all it includes, each once; an included file comes behind the one that includes it.
fn documents<'b>(bundle: &'b Bundle, report: &mut Report) -> Vec<Document<'b>> {
    let mut documents = Vec::new();
    let mut seen = BTreeSet::from([bundle.policy.clone()]);
    // Files still to be read, the next one last.
    let mut waiting: Vec<(String, Option<Place>)> = vec![(bundle.policy.clone(), None)];
    while let Some((name, place)) = waiting.pop() {
        let Some(text) = bundle.files.get(&name) else {
            let place = place.unwrap_or_else(|| Place::whole(&name));
            report.unreadable(&place, format!("cannot read `{name}`: {}", why_unreadable(bundle, &name)), "");
            continue;
        };
        let document = Document::parse(&name, text);
        document.report_syntax(report);
        let mut included = Vec::new();
        for (place, pattern) in includes(&document, report) {
            for name in bundle.matching(&pattern) {
                if seen.insert(name.clone()) {
                    included.push((name, Some(place.clone())));
                } else if !is_pattern(&pattern) {
                    report.error(&place, format!("`{name}` is part of the policy already"), "remove it here");
                }
            }
        }
        waiting.extend(included.into_iter().rev());
        documents.push(document);
    }
    documents
}

fn includes(document: &Document<'_>, report: &mut Report) -> Vec<(Place, String)> {
    const HELP: &str = "write `include = [\"policy.d/*.toml\"]`";
    let root = document.root();
    let Some(entry) = root.get("include") else { return Vec::new() };
    let patterns = entry.value.array("`include` is a list of file names", HELP, report).unwrap_or_default();
    let mut includes = Vec::new();
    for pattern in patterns {
        let Some(text) = pattern.string("each of `include` is a string", HELP, report) else { continue };
        let name = resolve(&document.name, text);
        if text.is_empty() || (is_pattern(&name) && glob::Pattern::new(&name).is_err()) {
            report.error(&pattern.place(), format!("`{text}` is neither a file nor a pattern"), HELP);
        } else {
            includes.push((pattern.place(), name));
        }
    }
    includes
}

fn why_unreadable<'b>(bundle: &'b Bundle, name: &str) -> &'b str {
    bundle.unreadable.get(name).map_or("it is not in the bundle", String::as_str)
}
