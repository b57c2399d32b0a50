//! `[sets]`, and lists of sets and prefixes wherever they are written.

use ipnet::{IpNet, Ipv6Net};

use super::{Named, Sections, why_unreadable};
use crate::policy::{
    bundle::{Bundle, resolve},
    diagnostic::{Place, Report},
    document::{Keys, Positions, Table, Value},
    model::{Set, Sources},
    prefixes::{Collected, NotAPrefix, collect, looks_like_a_prefix, parse, read_set_file},
};

const KEYS: Keys = Keys { of: "a set", known: &["file", "dynamic", "max"], later: &[] };
const SET_HELP: &str =
    "write `[\"203.0.113.0/24\"]`, `{ file = \"list.txt\" }` or `{ dynamic = true, max = 10_000 }`";
const MAX_HELP: &str = "write `max = 10_000`: how many members it may have";

/// Most members of a dynamic set: each is kept with its time, and the set is compiled anew when one comes or goes.
const MOST_MEMBERS: i64 = 100_000;
const PREFIX_HELP: &str = "write `203.0.113.0/24`, `2001:db8::/32` or a single address";

pub(super) fn read(
    section: &Sections<'_>,
    bundle: &Bundle,
    embedded: &[Ipv6Net],
    report: &mut Report,
) -> Named<Set> {
    let mut sets = Named::new();
    for entry in section.entries() {
        let place = entry.key_place();
        if !sets.free("set", entry.key, &place, report) {
            continue;
        }
        let errors = report.errors();
        let mut dynamic = None;
        let (nets, file) = if let Some(table) = entry.value.as_table().filter(is_dynamic) {
            table.allow(&KEYS, report);
            dynamic = most_members(&table, report);
            Default::default()
        } else if let Some(table) = entry.value.as_table() {
            from_file(&table, entry.key, bundle, report)
        } else {
            let items =
                entry.value.array(&format!("set `{}` is a list of prefixes", entry.key), SET_HELP, report);
            let items = items.unwrap_or_default();
            (items.iter().filter_map(|item| in_place(item, report)).collect(), None)
        };
        let entries = nets.len();
        let Collected { prefixes, covers_ipv4 } = collect(nets, embedded);
        warn_of_cover(covers_ipv4, &place, report);
        let set = Set { name: entry.key.to_owned(), place: place.clone(), prefixes, entries, file, dynamic };
        sets.add(entry.key, &place, (report.errors() == errors).then_some(set));
    }
    sets
}

fn is_dynamic(table: &Table<'_>) -> bool {
    table.get("dynamic").is_some()
}

/// Of a set whose members come by hand.
fn most_members(table: &Table<'_>, report: &mut Report) -> Option<usize> {
    if let Some(entry) = table.get("dynamic")
        && entry.value.as_bool() != Some(true)
    {
        entry.value.wrong("`dynamic` is `true`", "write `dynamic = true`, or leave it out", report);
    }
    if let Some(entry) = table.get("file") {
        let message = "a set is either dynamic or read from a file";
        report.error(&entry.key_place(), message, "remove one of them");
    }
    let Some(entry) = table.get("max") else {
        report.missing(&table.place(), "a dynamic set says how many members it may have", MAX_HELP);
        return None;
    };
    match entry.value.as_integer() {
        Some(Ok(max @ 1..=MOST_MEMBERS)) => Some(max as usize),
        Some(_) => {
            report.error(&entry.value.place(), "`max` is from 1 to 100000", MAX_HELP);
            None
        }
        None => {
            entry.value.wrong("`max` is a number", MAX_HELP, report);
            None
        }
    }
}

fn warn_of_cover(covers_ipv4: Option<Ipv6Net>, place: &Place, report: &mut Report) {
    if let Some(net) = covers_ipv4 {
        report.warning(
            place,
            format!("`{net}` covers IPv4 carried in IPv6, so every IPv4 source is in it"),
            "write `2000::/3` for the IPv6 internet alone",
        );
    }
}

fn from_file(
    table: &Table<'_>,
    set: &str,
    bundle: &Bundle,
    report: &mut Report,
) -> (Vec<IpNet>, Option<String>) {
    table.allow(&KEYS, report);
    let Some(entry) = table.get("file") else {
        report.missing(&table.place(), format!("set `{set}` has neither prefixes nor a file"), SET_HELP);
        return Default::default();
    };
    let Some(written) = entry.value.string("`file` is a string", SET_HELP, report) else {
        return Default::default();
    };
    let name = resolve(table.file(), written);
    let Some(text) = bundle.files.get(&name) else {
        let why = why_unreadable(bundle, &name);
        report.error(
            &entry.value.place(),
            format!("cannot read set file `{written}`: {why}"),
            "paths are relative to the file that names them",
        );
        return Default::default();
    };
    let file = read_set_file(text);
    if !file.bad.is_empty() || file.host_bits.is_some() {
        let positions = Positions::new(&name, text);
        for bad in &file.bad {
            report.error(&positions.at(bad.offset), format!("`{}` is not a prefix", bad.text), PREFIX_HELP);
        }
        if let Some((offset, text, masked, count)) = &file.host_bits {
            let more = if *count > 1 { format!(", and {} more like it", count - 1) } else { String::new() };
            report.warning(
                &positions.at(*offset),
                format!("`{text}` has bits set behind its length and is read as `{masked}`{more}"),
                format!("write `{masked}`"),
            );
        }
    }
    (file.nets, Some(name))
}

/// A prefix written as a string of the policy.
pub(super) fn in_place(value: &Value<'_>, report: &mut Report) -> Option<IpNet> {
    let text = value.string("a prefix is a string", PREFIX_HELP, report)?;
    match parse(text) {
        Ok(net) => Some(net),
        Err(NotAPrefix::HostBits(masked)) => {
            let address = text.split('/').next().unwrap_or(text);
            report.error(
                &value.place(),
                format!("`{text}` has bits set behind its length"),
                format!("write `{masked}`, or `{address}` for the one address"),
            );
            None
        }
        Err(NotAPrefix::Text) => {
            report.error(&value.place(), format!("`{text}` is not a prefix"), PREFIX_HELP);
            None
        }
    }
}

/// A list of sets and prefixes, or a single one.
pub(super) fn sources(
    value: &Value<'_>,
    key: &str,
    sets: &Named<Set>,
    embedded: &[Ipv6Net],
    report: &mut Report,
) -> Sources {
    let help = format!("write `{key} = \"office\"` or `{key} = [\"office\", \"203.0.113.0/24\"]`");
    let items = match value.as_string() {
        Some(_) => vec![value.clone()],
        None => value.array(&format!("`{key}` is a set or a list"), &help, report).unwrap_or_default(),
    };
    let mut sources = Sources::default();
    let mut nets = Vec::new();
    for item in items {
        let Some(text) = item.string(&format!("each of `{key}` is a string"), &help, report) else {
            continue;
        };
        sources.written.push(text.to_owned());
        if !sets.is_known(text) && looks_like_a_prefix(text) {
            nets.extend(in_place(&item, report));
        } else {
            let define = format!("define it under `[sets]`: `{text} = [\"203.0.113.0/24\"]`");
            sources.sets.extend(sets.expect("set", text, &item.place(), &define, report));
        }
    }
    sources.sets.sort_unstable();
    sources.sets.dedup();
    let Collected { prefixes, covers_ipv4 } = collect(nets, embedded);
    warn_of_cover(covers_ipv4, &value.place(), report);
    sources.prefixes = prefixes;
    sources
}
