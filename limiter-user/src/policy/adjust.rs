//! What is changed of a valid policy before it is compiled: rules that expired, what an operator overrides for a
//! time, members of dynamic sets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::diagnostic::{Diagnostic, Report};
use super::model::{Action, Limit, Policy, Rule};
use super::prefixes::collect;
use super::{Checked, plan};

/// How a rule is to judge instead of as it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OverrideMode {
    Observe,
    Enforce,
    /// As if it were not there.
    Off,
}

impl OverrideMode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Enforce => "enforce",
            Self::Off => "off",
        }
    }
}

/// What an operator changes of one rule for a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// Per cent of the rates and bursts of its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<OverrideMode>,
    pub until: SystemTime,
    pub by: String,
}

/// Members of a dynamic set, each until its time.
pub type Members = BTreeMap<IpNet, SystemTime>;

/// All of it. What is over at the time asked for has no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjustments {
    /// By name of the rule.
    #[serde(default)]
    pub overrides: BTreeMap<String, Override>,
    /// By name of the set.
    #[serde(default)]
    pub members: BTreeMap<String, Members>,
}

impl Adjustments {
    /// Forgets what is over; the rules whose override is.
    pub fn forget_over(&mut self, now: SystemTime) -> Vec<String> {
        let over = |change: &Override| change.until <= now;
        let ended = self.overrides.iter().filter(|(_, change)| over(change)).map(|(rule, _)| rule.clone());
        let ended = ended.collect();
        self.overrides.retain(|_, change| !over(change));
        self.members.values_mut().for_each(|members| members.retain(|_, until| *until > now));
        self.members.retain(|_, members| !members.is_empty());
        ended
    }
}

/// A policy with its adjustments.
pub struct Adjusted {
    pub policy: Policy,
    pub warnings: Vec<Diagnostic>,
    /// Rules that are skipped, because they expired.
    pub expired: Vec<String>,
    /// Tells the same policy with other adjustments apart; empty without any.
    pub fingerprint: String,
    /// When the next of them is over.
    pub next: Option<SystemTime>,
}

/// Adjusts a policy as of `now`. Fails where the numbers of an override cannot be computed with.
pub fn adjust(
    checked: Checked,
    adjustments: &Adjustments,
    now: SystemTime,
) -> Result<Adjusted, Vec<Diagnostic>> {
    let Checked { mut policy, mut warnings } = checked;
    let mut report = Report::default();
    let mut ends: Vec<SystemTime> = Vec::new();
    let mut seen: Vec<String> = Vec::new();

    let expired = expire(&mut policy, now, &mut ends, &mut report);
    seen.extend(expired.iter().map(|rule| format!("expired {rule}")));
    for (name, change) in adjustments.overrides.iter().filter(|(_, change)| change.until > now) {
        if let Some(index) = policy.rules.iter().position(|rule| rule.name == *name) {
            ends.push(change.until);
            seen.push(format!("override {name} {:?} {:?}", change.scale, change.mode));
            apply(&mut policy, index, change, &mut report);
        }
    }
    let embedded = policy.default.embedded.clone();
    for set in policy.sets.iter_mut().filter(|set| set.dynamic.is_some()) {
        let members = adjustments.members.get(&set.name).into_iter().flatten();
        let live: Vec<(IpNet, SystemTime)> =
            members.filter(|(_, until)| **until > now).map(|(net, until)| (*net, *until)).collect();
        ends.extend(live.iter().map(|(_, until)| *until));
        seen.extend(live.iter().map(|(net, _)| format!("member {} {net}", set.name)));
        set.entries = live.len();
        set.prefixes = collect(live.into_iter().map(|(net, _)| net), &embedded).prefixes;
    }
    if !seen.is_empty() && !report.has_errors() {
        match plan::make(&policy.default, &policy.sets, &policy.rules, &policy.place, &mut report) {
            Some(plan) => policy.plan = Arc::new(plan),
            None => return Err(report.into_sorted()),
        }
    }
    if report.has_errors() {
        return Err(report.into_sorted());
    }
    // The plan was made twice, and warned twice.
    let known: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    let new = report.into_sorted().into_iter();
    warnings.extend(new.filter(|warning| !known.contains(&warning.to_string())));
    Ok(Adjusted { policy, warnings, expired, fingerprint: fingerprint(&seen), next: ends.into_iter().min() })
}

/// Removes rules whose time is over.
fn expire(
    policy: &mut Policy,
    now: SystemTime,
    ends: &mut Vec<SystemTime>,
    report: &mut Report,
) -> Vec<String> {
    let is_over = |rule: &Rule| rule.expires.is_some_and(|expires| expires <= now);
    let mut expired = Vec::new();
    for rule in &policy.rules {
        match rule.expires {
            Some(expires) if expires <= now => {
                let when = humantime::format_rfc3339_seconds(expires);
                let message = format!("rule `{}` expired at {when} and is skipped", rule.name);
                report.warning(&rule.place, message, "remove it, or give it more time");
                expired.push(rule.name.clone());
            }
            Some(expires) => ends.push(expires),
            None => {}
        }
    }
    policy.rules.retain(|rule| !is_over(rule));
    expired
}

/// A named limit is one bucket for all the rules that use it, so its numbers change for all of them.
fn apply(policy: &mut Policy, index: usize, change: &Override, report: &mut Report) {
    if let Some(scale) = change.scale {
        let own = match &policy.rules[index].action {
            Action::Limit(limits) => limits.clone(),
            Action::Verdict(_) => Vec::new(),
        };
        let mut names: Vec<&str> = own.iter().filter_map(|limit| limit.name.as_deref()).collect();
        names.dedup();
        let floor = policy.default.limit.iter_mut().filter(|limit| limit.name.is_some());
        let limits = floor.chain(policy.rules.iter_mut().enumerate().flat_map(|(rule, found)| {
            let limits: &mut [Limit] = match &mut found.action {
                Action::Limit(limits) => limits,
                Action::Verdict(_) => &mut [],
            };
            limits.iter_mut().filter(move |limit| rule == index || limit.name.is_some())
        }));
        for limit in limits {
            if limit.name.as_deref().is_none_or(|name| names.contains(&name)) {
                match limit.rate.scaled(scale) {
                    Ok(rate) => limit.rate = rate,
                    Err(bad) => report.error(
                        &limit.place,
                        format!("{scale} % of `{}`: {}", limit.rate.text, bad.message),
                        "take another scale",
                    ),
                }
            }
        }
    }
    match change.mode {
        None => {}
        Some(OverrideMode::Off) => drop(policy.rules.remove(index)),
        Some(mode) => {
            let rule = &mut policy.rules[index];
            rule.observe = mode == OverrideMode::Observe;
            // What only observes cannot save anybody from a ban.
            rule.before_bans &= !rule.observe;
        }
    }
}

fn fingerprint(seen: &[String]) -> String {
    if seen.is_empty() {
        return String::new();
    }
    let mut hash = Sha256::new();
    for part in seen {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::{Bundle, check};

    const POLICY: &str = r#"version = 1
[limits]
total = { per = "source", rate = "2k/s", burst = 4000 }
[sets]
suspects = { dynamic = true, max = 3 }
[[rule]]
name = "suspects"
from = "suspects"
verdict = "drop"
[[rule]]
name = "web"
to = ["tcp/443"]
limit = ["total", { per = "source", rate = "50/s", burst = 100 }, { per = "source", rate = "8 Mbit/s" }]
[[rule]]
name = "holidays"
expires = 2026-12-24T06:00:00+02:00
limit = ["total", { per = "source", rate = "10/s" }]
"#;

    fn at(text: &str) -> SystemTime {
        humantime::parse_rfc3339(text).unwrap()
    }

    fn adjusted(adjustments: &Adjustments, now: &str) -> Adjusted {
        adjust(check(&Bundle::from_text("policy.toml", POLICY)).unwrap(), adjustments, at(now)).unwrap()
    }

    fn overriding(rule: &str, scale: Option<u32>, mode: Option<OverrideMode>) -> Adjustments {
        let until = at("2026-12-02T00:00:00Z");
        let change = Override { scale, mode, until, by: "uid 0".to_owned() };
        Adjustments { overrides: BTreeMap::from([(rule.to_owned(), change)]), ..Adjustments::default() }
    }

    fn numbers(policy: &Policy, rule: &str) -> Vec<(String, u64, f64)> {
        let rule = policy.rules.iter().find(|found| found.name == rule).unwrap();
        let Action::Limit(limits) = &rule.action else { panic!("no limits") };
        let of = |limit: &Limit| (limit.rate.text.clone(), limit.rate.burst, limit.rate.per_second().round());
        limits.iter().map(of).collect()
    }

    const BEFORE: &str = "2026-12-01T00:00:00Z";

    #[test]
    fn without_any_the_policy_is_what_it_was() {
        let result = adjusted(&Adjustments::default(), BEFORE);
        assert_eq!(result.fingerprint, "");
        assert_eq!(result.next, Some(at("2026-12-24T04:00:00Z")), "two hours east of Greenwich");
        assert_eq!(result.policy.rules.len(), 3);
    }

    #[test]
    fn a_rule_is_skipped_from_the_moment_it_expires() {
        assert_eq!(adjusted(&Adjustments::default(), "2026-12-24T03:59:59Z").expired, [] as [&str; 0]);
        let result = adjusted(&Adjustments::default(), "2026-12-24T04:00:00Z");
        assert_eq!(result.expired, ["holidays"]);
        assert_eq!(result.policy.rules.len(), 2);
        assert_eq!(result.next, None);
        assert_ne!(result.fingerprint, "");
        let warning = result.warnings[0].to_string();
        assert!(
            warning.contains("rule `holidays` expired at 2026-12-24T04:00:00Z and is skipped"),
            "{warning}"
        );
    }

    #[test]
    fn a_scale_is_that_of_rate_and_burst_and_of_a_named_limit_everywhere() {
        let result = adjusted(&overriding("web", Some(25), None), BEFORE);
        // A quarter: 500/s of 2000, 12.5/s of 50, 2 Mbit/s or 250 000 bytes/s of 8; a byte burst of 1 MB.
        let expected = [
            ("25 % of 2k/s".to_owned(), 1000, 500.0),
            ("25 % of 50/s".to_owned(), 25, 13.0),
            ("25 % of 8 Mbit/s".to_owned(), 250_000, 250_000.0),
        ];
        assert_eq!(numbers(&result.policy, "web"), expected);
        let expected = [("25 % of 2k/s".to_owned(), 1000, 500.0), ("10/s".to_owned(), 10, 10.0)];
        assert_eq!(numbers(&result.policy, "holidays"), expected);
        let packets = |result: &Adjusted| result.policy.plan.meters.list[0].id;
        assert_eq!(
            packets(&result),
            packets(&adjusted(&Adjustments::default(), BEFORE)),
            "the bucket is kept"
        );
        assert_eq!(result.next, Some(at("2026-12-02T00:00:00Z")));
    }

    #[test]
    fn a_burst_is_at_least_one_packet_and_16_kib() {
        let result = adjusted(&overriding("web", Some(1), None), BEFORE);
        let bursts: Vec<u64> = numbers(&result.policy, "web").iter().map(|limit| limit.1).collect();
        assert_eq!(bursts, [40, 1, 16_384]);
    }

    #[test]
    fn a_mode_is_that_of_the_rule_and_off_is_gone() {
        let result = adjusted(&overriding("web", None, Some(OverrideMode::Observe)), BEFORE);
        assert!(result.policy.rules[1].observe);
        let result = adjusted(&overriding("web", None, Some(OverrideMode::Off)), BEFORE);
        assert_eq!(result.policy.rules.len(), 2);
    }

    #[test]
    fn what_is_over_or_about_no_rule_has_no_effect() {
        let plain = adjusted(&Adjustments::default(), "2026-12-02T00:00:00Z");
        let over = adjusted(&overriding("web", Some(25), None), "2026-12-02T00:00:00Z");
        assert_eq!(over.fingerprint, plain.fingerprint);
        assert_eq!(adjusted(&overriding("none", Some(25), None), BEFORE).fingerprint, "");
    }

    #[test]
    fn members_are_in_their_set_until_their_time() {
        let until = at(BEFORE) + Duration::from_secs(60);
        let members = BTreeMap::from([
            ("198.51.100.0/24".parse().unwrap(), until),
            ("2001:db8::/64".parse().unwrap(), until + Duration::from_secs(60)),
        ]);
        let adjustments =
            Adjustments { members: BTreeMap::from([("suspects".to_owned(), members)]), ..Default::default() };
        let result = adjusted(&adjustments, BEFORE);
        assert_eq!(result.policy.sets[0].entries, 2);
        assert_eq!(result.policy.sets[0].prefixes.v4.len(), 1);
        assert_eq!(result.next, Some(until));
        let later = adjusted(&adjustments, "2026-12-01T00:01:00Z");
        assert_eq!((later.policy.sets[0].entries, later.policy.sets[0].prefixes.v4.len()), (1, 0));
        assert_ne!(later.fingerprint, result.fingerprint);
    }
}
