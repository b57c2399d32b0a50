//! `[identity]`, `[plans]`, request `[limits]` and `[[endpoint]]`: from the policy's files to a
//! [`RequestPolicy`], every mistake with its place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;

use super::grouping::{Member, tags};
use super::identity::SourceRules;
use super::matching::{Match, PathPattern};
use super::plans::read_keys;
use super::policy::{
    Cost, Endpoint, EndpointLimit, IdentityRules, KeyRule, OnStoreFailure, Plans, RequestPolicy, Tag,
    UnknownKey,
};
use super::policy_limits::{self, Written};
use super::policy_warnings;
use crate::policy::bundle::{Bundle, resolve};
use crate::policy::diagnostic::{Place, Report};
use crate::policy::document::{Entry, Keys, Table, Value};

const ENDPOINT: Keys = Keys {
    of: "an endpoint",
    known: &["name", "match", "limit", "cost", "charge", "mode", "on-store-failure"],
    later: &[],
};
const MATCH: Keys = Keys { of: "`match`", known: &["method", "path", "domain", "descriptor"], later: &[] };
const IDENTITY: Keys = Keys {
    of: "`[identity]`",
    known: &["trusted-proxies", "api-key", "account", "user", "plan"],
    later: &[],
};
const PLANS: Keys = Keys { of: "`[plans]`", known: &["default", "keys"], later: &[] };

/// Words for `mode`.
pub(super) const MODES: [(&str, bool); 2] = [("enforce", false), ("observe", true)];

/// What a policy's files say of requests, in the order they say it.
pub(crate) struct Sections<'d> {
    pub serial: Vec<Entry<'d>>,
    pub identity: Vec<Table<'d>>,
    pub plans: Vec<Table<'d>>,
    /// Entries of `[limits]` that are request limits, each name once.
    pub limits: Vec<Entry<'d>>,
    pub endpoints: Vec<Table<'d>>,
}

/// Names of limits that endpoints use: their entries in `[limits]` are request limits.
pub(crate) fn limits_of_endpoints(endpoints: &[Table<'_>]) -> BTreeSet<String> {
    let limits = endpoints.iter().filter_map(|endpoint| endpoint.get("limit")?.value.as_array());
    limits.flatten().filter_map(|limit| limit.as_string().map(str::to_owned)).collect()
}

/// Whether an entry of `[limits]` is a request limit: an endpoint uses it, or it says what only those say.
pub(crate) fn is_request_limit(entry: &Entry<'_>, of_endpoints: &BTreeSet<String>) -> bool {
    if of_endpoints.contains(entry.key) {
        return true;
    }
    let Some(table) = entry.value.as_table() else { return false };
    let says = |key| table.get(key).is_some();
    let per = table.get("per").is_some_and(|per| match per.value.as_string() {
        Some(text) => policy_limits::is_request_scope(text),
        None => per.value.as_array().is_some(),
    });
    let by_plan = table.get("rate").is_some_and(|rate| rate.value.as_table().is_some());
    per || by_plan || says("algorithm") || says("depth") || says("mode")
}

/// Reads the request part of a policy. What is wrong is reported; the result is of use only without errors.
pub(crate) fn read(
    sections: &Sections<'_>,
    bundle: &Bundle,
    source: SourceRules,
    report: &mut Report,
) -> RequestPolicy {
    let mut identity = IdentityRules { source, ..IdentityRules::default() };
    let mut plans = Plans::default();
    for (name, tables) in [("identity", &sections.identity), ("plans", &sections.plans)] {
        for again in tables.iter().skip(1) {
            let first = format!("the first is at {}", tables[0].place());
            report.error(&again.place(), format!("`[{name}]` stands here twice"), first);
        }
    }
    if let Some(table) = sections.identity.first() {
        read_identity(table, &mut identity, report);
    }
    if let Some(table) = sections.plans.first() {
        read_plans(table, bundle, &mut plans, report);
    }
    let endpoints = read_endpoints(sections, report);
    let serial = read_serial(&sections.serial, report);
    let policy = RequestPolicy { serial, identity, plans, endpoints };
    if !report.has_errors() {
        policy_warnings::warn(&policy, report);
    }
    policy
}

fn read_serial(entries: &[Entry<'_>], report: &mut Report) -> u64 {
    let help = "write a whole number that grows with every change, as in `serial = 7`";
    for again in entries.iter().skip(1) {
        report.error(&again.key_place(), "`serial` stands here twice", help);
    }
    let Some(entry) = entries.first() else { return 0 };
    let number = entry.value.as_integer().and_then(Result::ok).and_then(|number| u64::try_from(number).ok());
    if number.is_none() {
        report.error(&entry.value.place(), "`serial` is a whole number", help);
    }
    number.unwrap_or(0)
}

fn read_identity(table: &Table<'_>, identity: &mut IdentityRules, report: &mut Report) {
    table.allow(&IDENTITY, report);
    if let Some(entry) = table.get("trusted-proxies") {
        let help = "write `trusted-proxies = [\"10.0.0.0/8\"]`";
        for value in entry.value.array("`trusted-proxies` is a list", help, report).unwrap_or_default() {
            if let Some(text) = value.string("a trusted proxy is a string", help, report) {
                identity.trusted_proxies.extend(read_network(text, &value.place(), report));
            }
        }
    }
    identity.api_key = table.get("api-key").and_then(|entry| {
        let help = "write `api-key = { header = \"x-api-key\", unknown = \"as-none\" }`";
        let inner = entry.value.table("`api-key` is a table", help, report)?;
        inner.allow(&Keys { of: "`api-key`", known: &["header", "unknown"], later: &[] }, report);
        let words = [
            ("as-none", UnknownKey::AsNone),
            ("deny", UnknownKey::Deny),
            ("default-plan", UnknownKey::DefaultPlan),
        ];
        let unknown = inner.get("unknown").and_then(|entry| entry.value.word("unknown", &words, report));
        let header = read_header(&inner, "api-key", report)?;
        Some(KeyRule { header, unknown: unknown.unwrap_or_default() })
    });
    let mut header = |key: &str| {
        let entry = table.get(key)?;
        let help = format!("write `{key} = {{ header = \"x-{key}\" }}`");
        let inner = entry.value.table(&format!("`{key}` is a table"), &help, report)?;
        inner.allow(&Keys { of: "a header", known: &["header"], later: &[] }, report);
        read_header(&inner, key, report)
    };
    identity.account = header("account");
    identity.user = header("user");
    identity.plan = header("plan");
}

fn read_header(table: &Table<'_>, key: &str, report: &mut Report) -> Option<String> {
    let Some(entry) = table.get("header") else {
        report.error(
            &table.place(),
            format!("`{key}` lacks its `header`"),
            format!("write `header = \"x-{key}\"`"),
        );
        return None;
    };
    let text = entry.value.string("`header` is a string", "write the header's name", report)?;
    match http::HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) => Some(name.as_str().to_owned()),
        Err(_) => {
            report.error(
                &entry.value.place(),
                format!("`{text}` is no header name"),
                "write it like `x-api-key`",
            );
            None
        }
    }
}

fn read_network(text: &str, place: &Place, report: &mut Report) -> Option<IpNet> {
    let network =
        text.parse::<IpNet>().or_else(|_| text.parse().map(|address: std::net::IpAddr| address.into()));
    let Ok(network) = network else {
        report.error(
            place,
            format!("`{text}` is neither a prefix nor an address"),
            "write it like `10.0.0.0/8`",
        );
        return None;
    };
    if network.trunc() != network {
        let help = format!("write `{}`", network.trunc());
        report.warning(place, format!("`{text}` has bits set behind its prefix"), help);
    }
    if network.prefix_len() == 0 {
        report.warning(
            place,
            format!("`{text}` trusts everyone: any caller can name any address as its own"),
            "name the prefixes your proxies have",
        );
    }
    Some(network.trunc())
}

fn read_plans(table: &Table<'_>, bundle: &Bundle, plans: &mut Plans, report: &mut Report) {
    table.allow(&PLANS, report);
    plans.default = table.get("default").and_then(|entry| {
        let text = entry.value.string("`default` is a string", "write a plan's name", report)?;
        policy_limits::plan_name(text, &entry.value.place(), report)
    });
    let Some(entry) = table.get("keys") else { return };
    let help = "write `keys = { file = \"keys.csv\" }`";
    let Some(inner) = entry.value.table("`keys` is a table", help, report) else { return };
    inner.allow(&Keys { of: "`keys`", known: &["file"], later: &[] }, report);
    let Some(file) = inner.get("file") else {
        report.error(&inner.place(), "`keys` lacks its `file`", help);
        return;
    };
    let Some(name) = file.value.string("`file` is a string", help, report) else { return };
    let name = resolve(table.file(), name);
    match bundle.files.get(&name) {
        Some(text) => {
            let (keys, bad) = read_keys(text);
            let file: Arc<str> = Arc::from(name.as_str());
            for line in bad {
                let place = Place { file: Arc::clone(&file), line: line.line, column: 1 };
                report.error(&place, line.message, "write `key,plan`, or a key alone");
            }
            plans.keys = Arc::new(keys);
        }
        None => {
            let why = bundle.unreadable.get(&name).map_or("not sent along", String::as_str);
            report.error(&file.value.place(), format!("cannot read `{name}`: {why}"), "");
        }
    }
}

fn read_endpoints(sections: &Sections<'_>, report: &mut Report) -> Vec<Endpoint> {
    let mut named: BTreeMap<&str, Option<Written>> = BTreeMap::new();
    for entry in &sections.limits {
        named.insert(entry.key, policy_limits::read_named(entry, report));
    }
    let mut names: BTreeMap<&str, Place> = BTreeMap::new();
    let mut read: Vec<(Endpoint, Vec<String>)> = Vec::new();
    for table in &sections.endpoints {
        table.allow(&ENDPOINT, report);
        let Some((name, place)) = read_name(table, report) else { continue };
        if let Some(first) = names.insert(name, place.clone()) {
            report.error(
                &place,
                format!("endpoint `{name}` stands here twice"),
                format!("the first is at {first}"),
            );
            continue;
        }
        let shared = table.get("limit").and_then(|entry| entry.value.as_array()).unwrap_or_default();
        let shared = shared.iter().filter_map(|limit| limit.as_string().map(str::to_owned)).collect();
        read.push((read_endpoint(table, name, place, &named, report), shared));
    }
    let members: Vec<_> = read
        .iter()
        .map(|(endpoint, shared)| Member {
            endpoint: &endpoint.name,
            scopes: endpoint.limits.iter().map(|limit| &limit.scope).collect(),
            shared: shared.iter().map(String::as_str).collect(),
        })
        .collect();
    let tags: Vec<Tag> = tags(&members);
    read.into_iter().zip(tags).map(|((endpoint, _), tag)| Endpoint { tag, ..endpoint }).collect()
}

fn read_name<'d>(table: &Table<'d>, report: &mut Report) -> Option<(&'d str, Place)> {
    let Some(entry) = table.get("name") else {
        report.error(&table.place(), "an endpoint lacks its `name`", "write `name = \"login\"`");
        return None;
    };
    let name = entry.value.string("`name` is a string", "write `name = \"login\"`", report)?;
    policy_limits::check_name(name, &entry.value.place(), report).then_some((name, entry.value.place()))
}

fn read_endpoint(
    table: &Table<'_>,
    name: &str,
    place: Place,
    named: &BTreeMap<&str, Option<Written>>,
    report: &mut Report,
) -> Endpoint {
    let mode = table.get("mode").and_then(|entry| entry.value.word("mode", &MODES, report));
    let charges = [("always", false), ("on-failure", true)];
    let charge = table.get("charge").and_then(|entry| entry.value.word("charge", &charges, report));
    let failures =
        [("allow", OnStoreFailure::Allow), ("deny", OnStoreFailure::Deny), ("local", OnStoreFailure::Local)];
    let on_store_failure = table
        .get("on-store-failure")
        .and_then(|entry| entry.value.word("on-store-failure", &failures, report));
    let observe = mode.unwrap_or(false);
    let cost = table.get("cost").and_then(|entry| read_cost(&entry.value, report)).unwrap_or_default();
    Endpoint {
        name: Arc::from(name),
        matches: read_match(table, report),
        limits: read_limits(table, name, observe, named, report),
        cost,
        charge_failures_only: charge.unwrap_or(false),
        observe,
        on_store_failure,
        tag: Tag::Group(String::new()),
        place,
    }
}

fn read_match(table: &Table<'_>, report: &mut Report) -> Match {
    let mut matches = Match::default();
    let help =
        "write `match = { method = [\"POST\"], path = \"/v1/login\" }`, or `match = {}` for every request";
    let Some(entry) = table.get("match") else {
        report.error(&table.place(), "an endpoint lacks its `match`", help);
        return matches;
    };
    let Some(inner) = entry.value.table("`match` is a table", help, report) else { return matches };
    inner.allow(&MATCH, report);
    if let Some(entry) = inner.get("method") {
        let values = entry
            .value
            .array("`method` is a list", "write `method = [\"POST\"]`", report)
            .unwrap_or_default();
        for value in values {
            let Some(text) = value.string("a method is a string", "write `method = [\"POST\"]`", report)
            else {
                continue;
            };
            if text.is_empty() || !text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') {
                report.error(
                    &value.place(),
                    format!("`{text}` is no method"),
                    "methods are in capitals, as in `POST`",
                );
            }
            matches.methods.push(text.to_owned());
        }
    }
    if let Some(entry) = inner.get("path")
        && let Some(text) = entry.value.string("`path` is a string", "write `path = \"/v1/login\"`", report)
    {
        match PathPattern::parse(text) {
            Ok(pattern) => matches.path = Some(pattern),
            Err(why) => report.error(&entry.value.place(), format!("`{text}` is no path to match"), why),
        }
    }
    if let Some(entry) = inner.get("domain") {
        matches.domain = entry
            .value
            .string("`domain` is a string", "write `domain = \"edge\"`", report)
            .map(str::to_owned);
    }
    if let Some(entry) = inner.get("descriptor") {
        let help = "write `descriptor = { generic_key = \"login\" }`";
        for entry in
            entry.value.table("`descriptor` is a table", help, report).iter().flat_map(Table::entries)
        {
            if let Some(text) = entry.value.string("a descriptor's value is a string", help, report) {
                matches.descriptor.insert(entry.key.to_owned(), text.to_owned());
            }
        }
    }
    matches
}

fn read_cost(value: &Value<'_>, report: &mut Report) -> Option<Cost> {
    let help = "write a number, or `{ header = \"Limiter-Cost\", default = 1, max = 50 }`";
    if value.as_integer().is_some() {
        return policy_limits::count(value, "`cost`", report).map(Cost::Fixed);
    }
    let table = value.table("`cost` is a number or a table", help, report)?;
    table.allow(&Keys { of: "`cost`", known: &["header", "default", "max"], later: &[] }, report);
    let header = read_header(&table, "cost", report);
    let default = match table.get("default") {
        Some(entry) => policy_limits::count(&entry.value, "`default`", report)?,
        None => 1,
    };
    let Some(entry) = table.get("max") else {
        report.error(&table.place(), "a cost from a header lacks its `max`", help);
        return None;
    };
    let max = policy_limits::count(&entry.value, "`max`", report)?;
    if default > max {
        report.error(&table.place(), format!("the default cost {default} is more than `max`, {max}"), help);
    }
    Some(Cost::Header { name: header?, default, max })
}

fn read_limits(
    table: &Table<'_>,
    endpoint: &str,
    observe: bool,
    named: &BTreeMap<&str, Option<Written>>,
    report: &mut Report,
) -> Vec<EndpointLimit> {
    let help = "write `limit = [ { per = \"source\", rate = \"20/m\" } ]`, or names from `[limits]`";
    let Some(entry) = table.get("limit") else {
        report.error(&table.place(), format!("endpoint `{endpoint}` lacks its `limit`"), help);
        return Vec::new();
    };
    let values = entry.value.array("`limit` is a list", help, report).unwrap_or_default();
    if values.is_empty() && entry.value.as_array().is_some() {
        report.error(&entry.value.place(), format!("endpoint `{endpoint}` has no limit"), help);
    }
    let mut written: Vec<(Written, Place)> = Vec::new();
    for value in values {
        if let Some(name) = value.as_string() {
            match named.get(name) {
                // Wrong in itself, and said so where it is written.
                Some(None) => {}
                Some(Some(limit)) => written.push((limit.clone(), value.place())),
                None => report.error(
                    &value.place(),
                    format!("unknown limit `{name}`"),
                    policy_limits::help_for_unknown(name, named.keys().copied()),
                ),
            }
        } else if let Some(limit) = policy_limits::read_inline(&value, report) {
            written.push((limit, value.place()));
        }
    }
    policy_limits::name_apart(&mut written, report);
    let made = written.iter().filter_map(|(limit, place)| limit.make(endpoint, observe, place, report));
    made.collect()
}
