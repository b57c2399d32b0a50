//! `penalty` of rules.

use crate::policy::{
    diagnostic::Report,
    document::{Keys, Table, Value},
    model::{Action, Limit, Penalty, Scope, Traffic},
    rate::parse_duration,
};

const KEYS: Keys =
    Keys { of: "a penalty", known: &["after", "within", "for", "proof", "spoofable"], later: &[] };
const HELP: &str = "write `penalty = { after = 1000, within = \"10s\", for = \"20s\" }`";

const DAY: u64 = 86_400;

/// Strikes are counted in steps of a microsecond.
const MOST_STRIKES: u64 = 1_000_000;

pub(super) fn read(value: &Value<'_>, report: &mut Report) -> Option<Penalty> {
    let table = value.table("`penalty` is a table", HELP, report)?;
    table.allow(&KEYS, report);
    let after = after(&table, report);
    let within = duration(&table, "within", DAY, report);
    let seconds = duration(&table, "for", 30 * DAY, report);
    let spoofable = match table.get("spoofable") {
        Some(entry) => entry.value.word("spoofable", &[("accepted", true)], report),
        None => Some(false),
    };
    let proof = match table.get("proof") {
        Some(entry) => entry.value.word("proof", &[("handshake", true)], report),
        None => Some(false),
    };
    if let (Some(_), Some(entry)) = (table.get("proof"), table.get("spoofable")) {
        let message = "what is proved by a handshake cannot be forged, so there is nothing to accept";
        report.error(&entry.key_place(), message, "remove `proof` or `spoofable`");
    }
    let (after, within) = (after?, within?);
    if after > within * 1000 {
        report.error(
            &table.place(),
            format!("`after` is at most a thousand for each second of `within`, and {after} in {within} s are more"),
            HELP,
        );
        return None;
    }
    Some(Penalty {
        place: value.place(),
        after,
        within,
        seconds: seconds?,
        proof: proof?,
        spoofable: spoofable?,
    })
}

fn after(table: &Table<'_>, report: &mut Report) -> Option<u64> {
    let Some(entry) = table.get("after") else {
        report.missing(&table.place(), "the penalty has no `after`: how many drops bring it about", HELP);
        return None;
    };
    match entry.value.as_integer() {
        Some(Ok(number)) if (1..=MOST_STRIKES as i64).contains(&number) => Some(number as u64),
        Some(_) => {
            report.error(&entry.value.place(), "`after` is from 1 to 1000000", HELP);
            None
        }
        None => {
            entry.value.wrong("`after` is a number", HELP, report);
            None
        }
    }
}

fn duration(table: &Table<'_>, key: &str, most: u64, report: &mut Report) -> Option<u64> {
    let Some(entry) = table.get(key) else {
        report.missing(&table.place(), format!("the penalty has no `{key}`"), HELP);
        return None;
    };
    let text = entry.value.string(&format!("`{key}` is a string"), HELP, report)?;
    match parse_duration(text) {
        Ok(seconds) if seconds <= most => Some(seconds),
        Ok(_) => {
            let message = format!("`{key}` is at most `{}d`, and `{text}` is more", most / DAY);
            report.error(&entry.value.place(), message, HELP);
            None
        }
        Err(bad) => {
            report.error(&entry.value.place(), bad.message, bad.help);
            None
        }
    }
}

/// Reports a proof that the traffic of the rule cannot give.
pub(super) fn check_traffic(penalty: &Penalty, called: &str, to: Option<&Traffic>, report: &mut Report) {
    let has_connections = |to: &Traffic| to.terms.iter().all(|term| term.can_be_of_a_connection());
    if penalty.proof && !to.is_some_and(has_connections) {
        report.error(
            &penalty.place,
            format!(
                "{called} is about other traffic than TCP connections, which alone can prove a handshake"
            ),
            "let its `to` be `tcp/PORT` alone, or remove `proof`",
        );
    }
}

/// Reports a penalty of a rule that has no limit it could be about.
pub(super) fn check_action(penalty: &Penalty, called: &str, action: &Action, report: &mut Report) {
    let Action::Limit(limits) = action else {
        let message = format!("{called} has a penalty and no limit whose drops it could count");
        report.error(&penalty.place, message, "give it a `limit`, or remove `penalty`");
        return;
    };
    let is_source = |limit: &&Limit| limit.scope == Scope::Source;
    if limits.iter().filter(is_source).any(|limit| limit.name.is_none()) {
        return;
    }
    let (message, help) = match limits.iter().find(is_source) {
        Some(named) => (
            format!(
                "the penalty of {called} would reach every rule that uses `{}`",
                named.name.as_deref().unwrap_or("")
            ),
            format!(
                "write a limit of its own in place: `{{ per = \"source\", rate = \"{}\", burst = {} }}`",
                named.rate.text, named.rate.burst
            ),
        ),
        None => (
            format!("{called} has a penalty and no limit per source whose drops it could count"),
            "add one in place: `{ per = \"source\", rate = \"50/s\" }`".to_owned(),
        ),
    };
    report.error(&penalty.place, message, help);
}
