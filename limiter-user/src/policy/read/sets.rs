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

const KEYS: Keys = Keys { of: "a set", known: &["file"], later: &["dynamic", "max"] };
const SET_HELP: &str = "write `[\"203.0.113.0/24\"]` or `{ file = \"list.txt\" }`";
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
        let (nets, file) = if let Some(table) = entry.value.as_table() {
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
        let set = Set { name: entry.key.to_owned(), place: place.clone(), prefixes, entries, file };
        sets.add(entry.key, &place, (report.errors() == errors).then_some(set));
    }
    sets
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
        if !KEYS.later.iter().any(|key| table.get(key).is_some()) {
            report.missing(&table.place(), format!("set `{set}` has neither prefixes nor a file"), SET_HELP);
        }
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
fn in_place(value: &Value<'_>, report: &mut Report) -> Option<IpNet> {
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
