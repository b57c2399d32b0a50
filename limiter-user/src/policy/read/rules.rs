//! `[[rule]]`.

use std::time::SystemTime;

use limiter_common::abi::MAX_RULES;

use super::{
    Named,
    limits::{self, Limits},
    penalties, places, services, sets,
};
use crate::policy::{
    diagnostic::Report,
    document::{Entry, Keys, Table, Value},
    model::{Action, Defaults, Limit, Rule, Scope, Service, Set, Sources, Verdict},
    rate::{BadNumber, Rate},
    when::moment,
};

const KEYS: Keys = Keys {
    of: "a rule",
    known: &[
        "name",
        "from",
        "to",
        "interface",
        "dest",
        "verdict",
        "limit",
        "penalty",
        "newcomers",
        "mode",
        "before",
        "expires",
    ],
    later: &[],
};

pub(super) fn read(
    tables: &[Table<'_>],
    named_sets: &Named<Set>,
    named_services: &Named<Service>,
    named_limits: &Limits<'_>,
    default: &Defaults,
    report: &mut Report,
) -> Vec<Rule> {
    let mut rules = Named::new();
    for table in tables {
        table.allow(&KEYS, report);
        let name = name(table, &rules, report);
        let called = name.map_or_else(|| "the rule".to_owned(), |name| format!("rule `{name}`"));
        let from = table.get("from").map(|entry| {
            let sources = sets::sources(&entry.value, "from", named_sets, &default.embedded, report);
            if entry.value.as_array().is_some_and(|items| items.is_empty()) {
                report.error(
                    &entry.value.place(),
                    "`from` is empty, so the rule matches nobody",
                    "leave it out for every source",
                );
            }
            sources
        });
        let to = table.get("to").map(|entry| services::traffic(&entry.value, named_services, report));
        let interfaces = table.get("interface").and_then(|entry| places::interfaces(&entry.value, report));
        let dest = table.get("dest").map(|entry| places::destinations(&entry.value, report));
        let observe = match table.get("mode") {
            Some(entry) => entry.value.word("mode", &[("enforce", false), ("observe", true)], report),
            None => Some(false),
        };
        let before_bans = match table.get("before") {
            Some(entry) => entry.value.word("before", &[("bans", true)], report),
            None => Some(false),
        };
        let expires = table.get("expires").and_then(|entry| expires(&entry.value, report));
        let penalty = table.get("penalty").and_then(|entry| penalties::read(&entry.value, report));
        let action = action(table, &called, named_limits, report);
        let newcomers =
            table.get("newcomers").and_then(|entry| newcomers(&entry, &called, action.as_ref(), report));
        let Some(name) = name else { continue };
        let Some(action) = action else {
            rules.add(name, &table.place(), None);
            continue;
        };
        if let Some(penalty) = &penalty {
            penalties::check_traffic(penalty, &called, to.as_ref(), report);
            penalties::check_action(penalty, &called, &action, report);
        }
        if action == Action::Verdict(Verdict::Pass) {
            refuse_empty(table, &called, from.as_ref(), named_sets, report);
            if observe == Some(true) {
                let message = format!("{called} observes but would drop nothing, so it does nothing");
                report.warning(
                    &table.place(),
                    message,
                    "give it a limit or `verdict = \"drop\"`, or remove it",
                );
            }
        }
        if table.get("before").is_some() && observe == Some(true) {
            let message = format!("{called} observes, so it cannot be judged before bans");
            report.error(&table.place(), message, "remove `before` or `mode`");
        }
        let rule = Rule {
            name: name.to_owned(),
            place: table.place(),
            from,
            to,
            interfaces,
            dest,
            action,
            penalty,
            newcomers,
            observe: observe.unwrap_or(false),
            before_bans: before_bans.unwrap_or(false),
            expires,
        };
        rules.add(name, &table.place(), Some(rule));
    }
    if let Some(table) = tables.get(MAX_RULES - 1) {
        report.error(
            &table.place(),
            format!("{} rules are too many", tables.len()),
            format!("there can be {}", MAX_RULES - 1),
        );
    }
    rules.list
}

fn name<'d>(table: &Table<'d>, rules: &Named<Rule>, report: &mut Report) -> Option<&'d str> {
    const HELP: &str = "write `name = \"web\"`: counters and messages speak of the rule by it";
    let Some(entry) = table.get("name") else {
        report.missing(&table.place(), "the rule has no `name`", HELP);
        return None;
    };
    let name = entry.value.string("`name` is a string", HELP, report)?;
    rules.free("rule", name, &entry.value.place(), report).then_some(name)
}

fn action(table: &Table<'_>, called: &str, named_limits: &Limits<'_>, report: &mut Report) -> Option<Action> {
    const BOTH: &str = "remove one of them: a limit passes what has room and drops the rest";
    match (table.get("verdict"), table.get("limit")) {
        (Some(verdict), None) => {
            let words = [("pass", Verdict::Pass), ("drop", Verdict::Drop)];
            verdict.value.word("verdict", &words, report).map(Action::Verdict)
        }
        (None, Some(entry)) => {
            let limits = limits::list(&entry.value, named_limits, report);
            if entry.value.as_array().is_some_and(|items| items.is_empty()) {
                report.error(
                    &entry.value.place(),
                    format!("{called} limits nothing"),
                    "write a limit, or `verdict = \"pass\"` instead",
                );
            }
            (!limits.is_empty()).then_some(Action::Limit(limits))
        }
        (Some(_), Some(entry)) => {
            report.error(&entry.key_place(), format!("{called} has both a `verdict` and a `limit`"), BOTH);
            limits::list(&entry.value, named_limits, report);
            None
        }
        (None, None) => {
            report.missing(
                &table.place(),
                format!("{called} says nothing of what happens"),
                "write `verdict = \"pass\"`, `verdict = \"drop\"` or `limit = [{ per = \"source\", rate = \"50/s\" }]`",
            );
            None
        }
    }
}

fn newcomers(entry: &Entry<'_>, called: &str, action: Option<&Action>, report: &mut Report) -> Option<Rate> {
    const HELP: &str = "write `newcomers = \"50k/s\"`";
    let has_buckets = |limits: &[Limit]| limits.iter().any(|limit| limit.scope != Scope::Rule);
    // Without an action there is a mistake of its own.
    if action.is_some_and(|action| !matches!(action, Action::Limit(limits) if has_buckets(limits))) {
        report.error(
            &entry.key_place(),
            format!("{called} has `newcomers`, but no limit of which each source has a bucket"),
            "newcomers are sources without one: write `limit = [{ per = \"source\", rate = \"50/s\" }]` too",
        );
    }
    let text = entry.value.string("`newcomers` is a rate, a string", HELP, report)?;
    let rate = Rate::of_newcomers(text);
    rate.map_err(|BadNumber { message, help }| report.error(&entry.value.place(), message, help)).ok()
}

fn expires(value: &Value<'_>, report: &mut Report) -> Option<SystemTime> {
    const HELP: &str = "write `expires = 2026-12-24T06:00:00Z`, without quotes";
    let Some(written) = value.as_datetime() else {
        value.wrong("`expires` is a date with time and zone", HELP, report);
        return None;
    };
    let moment = moment(written);
    if moment.is_none() {
        report.error(
            &value.place(),
            format!("`{written}` is no moment: it lacks a date, a time or a zone"),
            HELP,
        );
    }
    moment
}

/// A set that suddenly is empty must not turn a pass into whatever comes below.
fn refuse_empty(
    table: &Table<'_>,
    called: &str,
    from: Option<&Sources>,
    named_sets: &Named<Set>,
    report: &mut Report,
) {
    let (Some(entry), Some(from)) = (table.get("from"), from) else { return };
    let is_empty = |set: &&usize| {
        let set = &named_sets.list[**set];
        // A dynamic set is filled another time.
        set.prefixes.is_empty() && set.dynamic.is_none()
    };
    for set in from.sets.iter().filter(is_empty) {
        let set = &named_sets.list[*set].name;
        report.error(
            &entry.value.place(),
            format!("{called} passes from `{set}`, which is empty"),
            "fill the set, or remove it from the rule",
        );
    }
}
