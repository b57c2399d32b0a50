//! `[limits]`, and limits wherever they are written.

use std::collections::BTreeSet;

use super::{Named, Sections};
use crate::policy::{
    diagnostic::Report,
    document::{Entry, Keys, Table, Value},
    model::{Limit, Scope, Widths},
    rate::{BadNumber, Rate, Unit, checked_burst, parse_burst, parse_rate},
    suggest::nearest,
};
use crate::requests::policy_read::is_request_limit;

const KEYS: Keys = Keys { of: "a limit", known: &["per", "rate", "burst"], later: &[] };
const HELP: &str = "write `{ per = \"source\", rate = \"50/s\", burst = 100 }`";

/// Limits a rule or the floor may have.
const MOST: usize = 4;

/// Byte bursts below this drop every full-sized packet.
const COMMON_PACKET: u64 = 1500;

/// `[limits]`, read.
pub(super) struct Limits<'d> {
    pub of_packets: Named<Limit>,
    /// What endpoints use or only requests can have, as it is written.
    pub of_requests: Vec<Entry<'d>>,
    /// How wide a source is.
    source: Widths,
}

/// `of_endpoints`: names of limits that endpoints use. `source`: how wide a source is.
pub(super) fn read<'d>(
    section: &Sections<'d>,
    of_endpoints: &BTreeSet<String>,
    source: Widths,
    report: &mut Report,
) -> Limits<'d> {
    let mut limits = Limits { of_packets: Named::new(), of_requests: Vec::new(), source };
    for entry in section.entries() {
        let place = entry.key_place();
        if !limits.of_packets.free("limit", entry.key, &place, report) {
            continue;
        }
        let table = entry.value.table(&format!("limit `{}` is a table", entry.key), HELP, report);
        let limit = match table {
            Some(_) if is_request_limit(&entry, of_endpoints) => {
                limits.of_requests.push(entry.clone());
                None
            }
            Some(table) => one(&table, Some(entry.key), source, report),
            None => None,
        };
        limits.of_packets.add(entry.key, &place, limit);
    }
    limits
}

/// One limit. A mistake in it is reported and the limit left out.
fn one(table: &Table<'_>, name: Option<&str>, source: Widths, report: &mut Report) -> Option<Limit> {
    table.allow(&KEYS, report);
    let scope = match table.get("per") {
        Some(entry) => scope(&entry.value, source, report),
        None => {
            report.missing(&table.place(), "the limit has no `per`", HELP);
            None
        }
    };
    let rate = rate(table, report);
    Some(Limit { name: name.map(str::to_owned), place: table.place(), scope: scope?, rate: rate? })
}

fn scope(value: &Value<'_>, source: Widths, report: &mut Report) -> Option<Scope> {
    let help = "write `per = \"source\"`";
    let text = value.string("`per` is a string", help, report)?;
    if text == "source" {
        return Some(Scope::Source);
    }
    if let Some(lengths) = text.strip_prefix("source/") {
        return prefix(value, lengths, source, report);
    }
    if text == "rule" {
        return Some(Scope::Rule);
    }
    if ["api-key", "account", "user", "endpoint"].contains(&text) || text.contains([':', '|']) {
        report.error(&value.place(), format!("`{text}` is known of requests, not of packets"), help);
    } else {
        let help = match nearest(text, ["source", "rule"]) {
            Some("source") | None => help.to_owned(),
            Some(near) => format!("did you mean `{near}`?"),
        };
        report.error(&value.place(), format!("a limit cannot be per `{text}`"), help);
    }
    None
}

/// The scope of `source/24,48`.
fn prefix(value: &Value<'_>, lengths: &str, source: Widths, report: &mut Report) -> Option<Scope> {
    let length = |text: &str, most: u8| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|length: &u8| is_plain && (1..=most).contains(length))
    };
    let widths = lengths
        .split_once(',')
        .and_then(|(ipv4, ipv6)| Some(Widths { ipv4: length(ipv4, 32)?, ipv6: length(ipv6, 128)? }));
    let Some(widths) = widths else {
        report.error(
            &value.place(),
            format!("`source/{lengths}` does not say two prefix lengths"),
            "write that of IPv4, 1 to 32, and that of IPv6, 1 to 128: `per = \"source/24,48\"`",
        );
        return None;
    };
    if widths == source {
        return Some(Scope::Source);
    }
    if widths.ipv4 > source.ipv4 || widths.ipv6 > source.ipv6 {
        report.warning(
            &value.place(),
            format!(
                "`source/{lengths}` is narrower than a source, which is a /{} of IPv4 or a /{} of IPv6: one source \
                 has many such buckets",
                source.ipv4, source.ipv6
            ),
            "write `per = \"source/24,48\"`",
        );
    }
    Some(Scope::Prefix(widths))
}

fn rate(table: &Table<'_>, report: &mut Report) -> Option<Rate> {
    let Some(entry) = table.get("rate") else {
        report.missing(&table.place(), "the limit has no `rate`", HELP);
        return None;
    };
    let help = match entry.value.as_integer() {
        Some(Ok(number)) => format!("write `rate = \"{number}/s\"`"),
        _ => "write `rate = \"50/s\"`".to_owned(),
    };
    let text = entry.value.string("`rate` is a string", &help, report);
    let parsed = text.and_then(|text| match parse_rate(text) {
        Ok((unit, _)) => Some((text, unit)),
        Err(BadNumber { message, help }) => {
            report.error(&entry.value.place(), message, help);
            None
        }
    });
    let unit = parsed.map_or(Unit::Packets, |(_, unit)| unit);
    let burst = match table.get("burst") {
        Some(entry) => Some(burst(&entry.value, unit, report)?),
        None => None,
    };
    let (text, unit) = parsed?;
    let rate = match Rate::new(text, burst) {
        Ok(rate) => rate,
        Err(BadNumber { message, help }) => {
            report.error(&entry.value.place(), message, help);
            return None;
        }
    };
    if let Some(entry) = table.get("burst").filter(|_| unit == Unit::Bytes && rate.burst < COMMON_PACKET) {
        report.warning(
            &entry.value.place(),
            format!("packets of more than {} bytes are always dropped (`oversize`)", rate.burst),
            "a burst of at least `\"16 kB\"` lets every packet through",
        );
    }
    Some(rate)
}

fn burst(value: &Value<'_>, unit: Unit, report: &mut Report) -> Option<u64> {
    const HELP: &str = "write a number like `100`, or text like `\"4k\"` or `\"1 MB\"`";
    let parsed = match (value.as_integer(), value.as_string()) {
        (Some(Ok(number)), _) => match u128::try_from(number) {
            Ok(units) => checked_burst(units, &number.to_string(), HELP),
            Err(_) => {
                Err(BadNumber { message: format!("a burst cannot be {number}"), help: HELP.to_owned() })
            }
        },
        (Some(Err(text)), _) => {
            Err(BadNumber { message: format!("burst `{text}` is too large"), help: HELP.to_owned() })
        }
        (None, Some(text)) => parse_burst(text, unit),
        (None, None) => {
            value.wrong("`burst` is a number or a string", HELP, report);
            return None;
        }
    };
    parsed.map_err(|BadNumber { message, help }| report.error(&value.place(), message, help)).ok()
}

/// The `limit` of a rule or of `[default]`: names of limits, and limits in place.
pub(super) fn list(value: &Value<'_>, limits: &Limits<'_>, report: &mut Report) -> Vec<Limit> {
    const LIST: &str = "write `limit = [{ per = \"source\", rate = \"50/s\" }, \"total\"]`";
    let items = value.array("`limit` is a list", LIST, report).unwrap_or_default();
    if items.len() > MOST {
        report.error(
            &value.place(),
            format!("{} limits are too many", items.len()),
            "at most 4 can be judged together",
        );
    }
    let mut found: Vec<Limit> = Vec::new();
    for item in &items {
        let limit = if let Some(name) = item.as_string() {
            let define =
                format!("define it under `[limits]`: `{name} = {{ per = \"source\", rate = \"50/s\" }}`");
            if limits.of_requests.iter().any(|entry| entry.key == name) {
                let message = format!("limit `{name}` is for requests, and a rule is about packets");
                report.error(&item.place(), message, "write a limit `per = \"source\"`");
            }
            let named = &limits.of_packets;
            let index = named.expect("limit", name, &item.place(), &define, report);
            index.map(|index| Limit { place: item.place(), ..named.list[index].clone() })
        } else {
            let table = item.table("a limit is a name or a table", LIST, report);
            table.and_then(|table| one(&table, None, limits.source, report))
        };
        let Some(limit) = limit else { continue };
        let unnamed_twin = |other: &&Limit| {
            limit.name.is_none()
                && other.name.is_none()
                && other.scope == limit.scope
                && other.rate.unit == limit.rate.unit
        };
        if let Some(first) = found.iter().find(unnamed_twin) {
            report.error(
                &limit.place,
                format!("two limits per {} in {} cannot be told apart", limit.scope, limit.rate.unit.name()),
                format!(
                    "name one of them: put it under `[limits]` and write its name here (the first is at {})",
                    first.place
                ),
            );
        }
        found.push(limit);
    }
    found
}
