//! What changes from one policy to another.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

use super::{
    diagnostic::{Diagnostic, Severity},
    model::{Action, Defaults, Limit, Penalty, Policy, Rule, Set, Traffic},
    suggest::listed,
};
use crate::requests::policy_difference;

/// What happened to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    Added,
    Removed,
    Changed,
}

/// One change. Its `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub kind: ChangeKind,
    /// ``rule `dns` ``.
    pub subject: String,
    /// What about it: `rate 50/s → 100/s`. May be empty when it is wholly new or gone.
    pub text: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.kind {
            ChangeKind::Added => '+',
            ChangeKind::Removed => '-',
            ChangeKind::Changed => '~',
        };
        write!(f, "{sign} {}", self.subject)?;
        if !self.text.is_empty() {
            write!(f, ": {}", self.text)?;
        }
        Ok(())
    }
}

/// What changes from `old` to `new`: the default, sets, services, limits, then rules, by name, then what is said of requests.
pub fn difference(old: &Policy, new: &Policy) -> Vec<Change> {
    let mut changes = Changes(Vec::new());
    changes.of_default(&old.default, &new.default);
    let size = |set: &Set| format!("{} prefixes", set.prefixes.v4.len() + set.prefixes.v6.len());
    changes.by_name(
        "set",
        &old.sets,
        &new.sets,
        |set| &set.name,
        size,
        |set, other| vec![set_changes(set, other)],
    );
    let terms = |terms: &[super::Term]| terms.iter().map(ToString::to_string).collect::<Vec<_>>();
    changes.by_name(
        "service",
        &old.services,
        &new.services,
        |service| &service.name,
        |service| terms(&service.terms).join(", "),
        |service, other| vec![gained_and_lost(&service.terms, &other.terms)],
    );
    changes.by_name(
        "limit",
        &old.limits,
        &new.limits,
        |limit| limit.name.as_deref().unwrap_or(""),
        numbers,
        |limit, other| vec![changed("", &numbers(limit), &numbers(other))],
    );
    changes.by_name("rule", &old.rules, &new.rules, |rule| &rule.name, summary, rule_changes);
    changes.of_order(&old.rules, &new.rules);
    changes.0.extend(policy_difference::difference(&old.requests, &new.requests));
    changes.0
}

/// Sets from files that shrank by more than half: a list cut short is refused unless that is asked for.
pub fn shrunk(old: &Policy, new: &Policy) -> Vec<Diagnostic> {
    let shrunk = new.sets.iter().filter_map(|set| {
        let file = set.file.as_ref()?;
        let before = old.sets.iter().find(|before| before.name == set.name && before.file.is_some())?;
        (set.entries * 2 < before.entries).then(|| Diagnostic {
            severity: Severity::Error,
            file: set.place.file.to_string(),
            line: set.place.line,
            column: set.place.column,
            message: format!(
                "set `{}` shrank from {} prefixes to {}: is `{file}` cut short?",
                set.name, before.entries, set.entries
            ),
            help: Some("if that is right, apply it with `--force`".to_owned()),
        })
    });
    shrunk.collect()
}

struct Changes(Vec<Change>);

impl Changes {
    fn add(&mut self, kind: ChangeKind, subject: impl Into<String>, text: impl Into<String>) {
        self.0.push(Change { kind, subject: subject.into(), text: text.into() });
    }

    /// `compare` gives what changed, empty texts for what did not.
    fn by_name<'p, T>(
        &mut self,
        what: &str,
        old: &'p [T],
        new: &'p [T],
        name: impl Fn(&'p T) -> &'p str,
        describe: impl Fn(&T) -> String,
        compare: impl Fn(&T, &T) -> Vec<String>,
    ) {
        let find = |list: &'p [T], wanted: &str| list.iter().find(|item| name(item) == wanted);
        for item in old.iter().filter(|item| find(new, name(item)).is_none()) {
            self.add(ChangeKind::Removed, format!("{what} `{}`", name(item)), "");
        }
        for item in new {
            let subject = format!("{what} `{}`", name(item));
            match find(old, name(item)) {
                None => self.add(ChangeKind::Added, subject, describe(item)),
                Some(before) => {
                    for text in compare(before, item).into_iter().filter(|text| !text.is_empty()) {
                        self.add(ChangeKind::Changed, subject.clone(), text);
                    }
                }
            }
        }
    }

    fn of_default(&mut self, old: &Defaults, new: &Defaults) {
        let width = |default: &Defaults| format!("/{} and /{}", default.source.ipv4, default.source.ipv6);
        let texts = [
            changed("verdict", &old.verdict, &new.verdict),
            changed("malformed", &old.malformed, &new.malformed),
            changed("source", &width(old), &width(new)),
            changed("limit", &limits(&old.limit), &limits(&new.limit)),
            changed("ipv4-in-ipv6", &joined(&old.embedded), &joined(&new.embedded)),
            changed("never-ban", &joined(&old.never_ban.written), &joined(&new.never_ban.written)),
        ];
        for text in texts.into_iter().filter(|text| !text.is_empty()) {
            self.add(ChangeKind::Changed, "`[default]`", text);
        }
    }

    /// Rules of both policies that changed their place among each other.
    fn of_order(&mut self, old: &[Rule], new: &[Rule]) {
        let place = |rule: &Rule| old.iter().position(|other| other.name == rule.name);
        let common: Vec<(&Rule, usize)> = new.iter().filter_map(|rule| Some((rule, place(rule)?))).collect();
        let stayed = longest_rising(&common.iter().map(|(_, place)| *place).collect::<Vec<_>>());
        for (index, (rule, _)) in common.iter().enumerate().filter(|(index, _)| !stayed.contains(index)) {
            let text = match index.checked_sub(1) {
                Some(before) => format!("moved behind `{}`", common[before].0.name),
                None => "moved to the first place".to_owned(),
            };
            self.add(ChangeKind::Changed, format!("rule `{}`", rule.name), text);
        }
    }
}

/// Positions of a longest rising subsequence.
fn longest_rising(numbers: &[usize]) -> Vec<usize> {
    // For each position: length of the longest that ends there, and the position before it.
    let mut ends: Vec<(usize, Option<usize>)> = Vec::with_capacity(numbers.len());
    for (index, number) in numbers.iter().enumerate() {
        let before =
            (0..index).filter(|before| numbers[*before] < *number).max_by_key(|before| ends[*before].0);
        ends.push((before.map_or(1, |before| ends[before].0 + 1), before));
    }
    let mut rising = Vec::new();
    let mut next = (0..ends.len()).max_by_key(|index| ends[*index].0);
    while let Some(index) = next {
        rising.push(index);
        next = ends[index].1;
    }
    rising
}

fn changed(what: &str, old: &(impl Display + PartialEq), new: &(impl Display + PartialEq)) -> String {
    let (old, new) = (old.to_string(), new.to_string());
    if old == new {
        return String::new();
    }
    let shown = |text: String| if text.is_empty() { "nothing".to_owned() } else { text };
    format!("{what} {} → {}", shown(old), shown(new)).trim_start().to_owned()
}

fn joined<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn numbers(limit: &Limit) -> String {
    format!("{} per {}, burst {} {}", limit.rate.text, limit.scope, limit.rate.burst, limit.rate.unit.name())
}

fn limits(limits: &[Limit]) -> String {
    let texts = limits.iter().map(|limit| match &limit.name {
        Some(name) => format!("`{name}`"),
        None => format!("({})", numbers(limit)),
    });
    texts.collect::<Vec<_>>().join(" and ")
}

fn action(rule: &Rule) -> String {
    match &rule.action {
        Action::Verdict(verdict) => verdict.to_string(),
        Action::Limit(list) => format!("limit {}", limits(list)),
    }
}

fn from(rule: &Rule) -> String {
    rule.from.as_ref().map_or_else(|| "everyone".to_owned(), |from| listed(&from.written))
}

fn to(rule: &Rule) -> String {
    rule.to.as_ref().map_or_else(|| "everything".to_owned(), |to: &Traffic| listed(&to.written))
}

fn interfaces(rule: &Rule) -> String {
    rule.interfaces.as_ref().map_or_else(|| "any".to_owned(), |names| listed(names))
}

fn dest(rule: &Rule) -> String {
    rule.dest.as_ref().map_or_else(|| "any".to_owned(), |dest| listed(&dest.written))
}

fn penalty(rule: &Rule) -> String {
    let show = |penalty: &Penalty| {
        let accepted = match (penalty.proof, penalty.spoofable) {
            (true, _) => ", with proof",
            (false, true) => ", spoofable",
            (false, false) => "",
        };
        format!("{} s after {} drops in {} s{accepted}", penalty.seconds, penalty.after, penalty.within)
    };
    rule.penalty.as_ref().map_or_else(|| "none".to_owned(), show)
}

fn mode(rule: &Rule) -> &'static str {
    if rule.observe { "observe" } else { "enforce" }
}

fn newcomers(rule: &Rule) -> &str {
    rule.newcomers.as_ref().map_or("", |rate| &rate.text)
}

fn expires(rule: &Rule) -> String {
    rule.expires.map_or_else(|| "never".to_owned(), |at| humantime::format_rfc3339_seconds(at).to_string())
}

fn summary(rule: &Rule) -> String {
    let mode = if rule.observe { "observe: " } else { "" };
    let by = rule.interfaces.as_ref().map_or_else(String::new, |names| format!(" by {}", listed(names)));
    let dest = rule.dest.as_ref().map_or_else(String::new, |dest| format!(" at {}", listed(&dest.written)));
    let penalty = rule.penalty.as_ref().map_or_else(String::new, |_| format!(", penalty {}", penalty(rule)));
    let newcomers = match newcomers(rule) {
        "" => String::new(),
        rate => format!(", newcomers {rate}"),
    };
    format!("{mode}from {}{by} to {}{dest}: {}{penalty}{newcomers}", from(rule), to(rule), action(rule))
}

fn rule_changes(old: &Rule, new: &Rule) -> Vec<String> {
    let before = |rule: &Rule| if rule.before_bans { "before bans" } else { "after bans" };
    vec![
        changed("from", &from(old), &from(new)),
        changed("to", &to(old), &to(new)),
        changed("interface", &interfaces(old), &interfaces(new)),
        changed("dest", &dest(old), &dest(new)),
        changed("", &action(old), &action(new)),
        changed("penalty", &penalty(old), &penalty(new)),
        changed("newcomers", &newcomers(old), &newcomers(new)),
        changed("mode", &mode(old), &mode(new)),
        changed("judged", &before(old), &before(new)),
        changed("expires", &expires(old), &expires(new)),
    ]
}

fn set_changes(old: &Set, new: &Set) -> String {
    let v4 = changed_members(&old.prefixes.v4, &new.prefixes.v4);
    let v6 = changed_members(&old.prefixes.v6, &new.prefixes.v6);
    let texts = [("added", [v4.0, v6.0].concat()), ("removed", [v4.1, v6.1].concat())].map(|(what, nets)| {
        // A few examples tell which list it is; thousands tell nothing.
        let more = nets.len().saturating_sub(3);
        let examples = nets[..nets.len() - more].join(", ");
        match (nets.len(), more) {
            (0, _) => String::new(),
            (count, 0) => format!("{count} {what} ({examples})"),
            (count, _) => format!("{count} {what} ({examples}, …)"),
        }
    });
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
}

fn gained_and_lost(old: &[super::Term], new: &[super::Term]) -> String {
    let (gained, lost) = changed_members(old, new);
    let texts = [("added", gained), ("removed", lost)];
    let texts = texts.iter().filter(|(_, terms)| !terms.is_empty());
    texts.map(|(what, terms)| format!("{what} {}", listed(terms))).collect::<Vec<_>>().join(", ")
}

/// Of two sorted lists: what only the new one has, and what only the old one has.
fn changed_members<T: Ord + Display>(old: &[T], new: &[T]) -> (Vec<String>, Vec<String>) {
    let only = |list: &[T], other: &[T]| {
        let missing = list.iter().filter(|item| other.binary_search(item).is_err());
        missing.map(ToString::to_string).collect::<Vec<String>>()
    };
    (only(new, old), only(old, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_rules_are_said_to_have_moved() {
        let stayed = |numbers: &[usize]| {
            let mut stayed = longest_rising(numbers);
            stayed.sort_unstable();
            stayed
        };
        assert_eq!(stayed(&[0, 1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(stayed(&[3, 0, 1, 2]), [1, 2, 3]);
        assert_eq!(stayed(&[0, 2, 1, 3]).len(), 3);
        assert_eq!(stayed(&[]), Vec::<usize>::new());
    }
}
