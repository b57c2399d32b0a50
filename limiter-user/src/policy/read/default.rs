//! `[default]`: one section, though its keys may be spread over files.

use std::collections::BTreeMap;

use ipnet::Ipv6Net;
use limiter_common::abi::MAX_EMBEDDED;

use super::{
    Named, Sections,
    limits::{self, Limits},
    sets,
};
use crate::policy::{
    diagnostic::Report,
    document::{Entry, Keys, Value},
    model::{Defaults, Scope, Set, Sources, Verdict, Widths},
    prefixes::MAPPED,
};

const KEYS: Keys = Keys {
    of: "`[default]`",
    known: &["verdict", "malformed", "source", "limit", "ipv4-in-ipv6", "never-ban"],
    later: &[],
};
const WIDTH_KEYS: Keys = Keys { of: "`source`", known: &["ipv4", "ipv6"], later: &[] };
const SOURCE_HELP: &str = "write `source = { ipv4 = 32, ipv6 = 64 }`";
const VERDICTS: [(&str, Verdict); 2] = [("pass", Verdict::Pass), ("drop", Verdict::Drop)];

/// What sets must know before they can be read.
pub(super) struct Base {
    pub widths: Widths,
    pub embedded: Vec<Ipv6Net>,
}

/// Each key of the section, the first time it is written.
fn keys<'d>(section: &Sections<'d>) -> BTreeMap<&'d str, Entry<'d>> {
    let mut keys = BTreeMap::new();
    for entry in section.entries() {
        keys.entry(entry.key).or_insert(entry);
    }
    keys
}

pub(super) fn widths_and_embedded(section: &Sections<'_>, report: &mut Report) -> Base {
    for table in &section.tables {
        table.allow(&KEYS, report);
    }
    let keys = keys(section);
    for entry in section.entries() {
        let first = keys[entry.key].key_place();
        if first != entry.key_place() && KEYS.known.contains(&entry.key) {
            let message = format!("`{}` of `[default]` is written twice", entry.key);
            report.error(&entry.key_place(), message, format!("the first is at {first}"));
        }
    }
    let nat64 = Ipv6Net::new_assert(std::net::Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
    Base {
        widths: keys
            .get("source")
            .map_or(Widths { ipv4: 32, ipv6: 64 }, |entry| widths(&entry.value, report)),
        embedded: keys.get("ipv4-in-ipv6").map_or(vec![nat64], |entry| embedded(&entry.value, report)),
    }
}

fn widths(value: &Value<'_>, report: &mut Report) -> Widths {
    let mut widths = Widths { ipv4: 32, ipv6: 64 };
    let Some(table) = value.table("`source` is a table", SOURCE_HELP, report) else { return widths };
    table.allow(&WIDTH_KEYS, report);
    for (key, most, width) in [("ipv4", 32, &mut widths.ipv4), ("ipv6", 128, &mut widths.ipv6)] {
        let Some(entry) = table.get(key) else { continue };
        match entry.value.as_integer() {
            Some(Ok(number)) if (1..=most).contains(&number) => *width = number as u8,
            Some(_) => report.error(
                &entry.value.place(),
                format!("`{key}` is a prefix length, 1 to {most}"),
                SOURCE_HELP,
            ),
            None => {
                entry.value.wrong(&format!("`{key}` is a prefix length, 1 to {most}"), SOURCE_HELP, report);
            }
        }
        if key == "ipv6" && *width > 64 {
            report.warning(
                &entry.value.place(),
                format!("IPv6 sources of /{width} are narrower than the /64 one caller has: it can use many buckets"),
                "write `ipv6 = 64`",
            );
        }
    }
    widths
}

fn embedded(value: &Value<'_>, report: &mut Report) -> Vec<Ipv6Net> {
    const HELP: &str = "write `ipv4-in-ipv6 = [\"64:ff9b::/96\"]`";
    let mut prefixes = Vec::new();
    for item in value.array("`ipv4-in-ipv6` is a list of prefixes", HELP, report).unwrap_or_default() {
        let Some(text) = item.string("each of `ipv4-in-ipv6` is a string", HELP, report) else { continue };
        match text.parse::<Ipv6Net>() {
            Ok(net) if net.prefix_len() == 96 && net.trunc() == net => prefixes.push(net),
            _ => report.error(
                &item.place(),
                format!("`{text}` is not an IPv6 prefix of 96 bits"),
                "the last 32 bits are the IPv4 address, so write `64:ff9b::/96`",
            ),
        }
    }
    prefixes.retain(|prefix| *prefix != MAPPED);
    prefixes.sort_unstable();
    prefixes.dedup();
    if prefixes.len() >= MAX_EMBEDDED {
        report.error(
            &value.place(),
            format!("{} prefixes are too many", prefixes.len()),
            format!("there can be {} besides `::ffff:0:0/96`", MAX_EMBEDDED - 1),
        );
    }
    prefixes
}

pub(super) fn read(
    section: &Sections<'_>,
    base: Base,
    named_sets: &Named<Set>,
    named_limits: &Limits<'_>,
    report: &mut Report,
) -> Defaults {
    let floor = |entry: &Entry<'_>, report: &mut Report| {
        let limits = limits::list(&entry.value, named_limits, report);
        for limit in limits.iter().filter(|limit| limit.scope == Scope::Rule) {
            report.error(
                &limit.place,
                "`limit` of `[default]` is a floor under each source, and this is one bucket for all of them",
                "put a limit `per = \"rule\"` into a rule, the last one for whatever is left",
            );
        }
        limits
    };
    let keys = keys(section);
    let verdict = |key: &str, usual: Verdict, report: &mut Report| {
        keys.get(key).and_then(|entry| entry.value.word(key, &VERDICTS, report)).unwrap_or(usual)
    };
    Defaults {
        verdict: verdict("verdict", Verdict::Pass, report),
        malformed: verdict("malformed", Verdict::Drop, report),
        source: base.widths,
        limit: keys.get("limit").map_or_else(Vec::new, |entry| floor(entry, report)),
        never_ban: keys.get("never-ban").map_or_else(Sources::default, |entry| {
            sets::sources(&entry.value, "never-ban", named_sets, &base.embedded, report)
        }),
        embedded: base.embedded,
    }
}
