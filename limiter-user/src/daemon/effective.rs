//! The policy in force, spelled out.

use super::core::Core;
use super::sealed::format_time;
use crate::control::api::{DefaultRule, Limit, Penalty, Rule, Rules, SourceWidths};
use crate::control::request_api::endpoint_rules;
use crate::policy;

impl Core {
    /// `None` when this version cannot read the policy in force.
    pub fn rules(&self) -> Option<Rules> {
        self.reading().map(|reading| rules(&reading.policy))
    }
}

fn rules(policy: &policy::Policy) -> Rules {
    Rules {
        default: DefaultRule {
            verdict: policy.default.verdict.to_string(),
            malformed: policy.default.malformed.to_string(),
            source: SourceWidths { ipv4: policy.default.source.ipv4, ipv6: policy.default.source.ipv6 },
            limits: limits(&policy.default.limit),
        },
        rules: policy.rules.iter().map(rule).collect(),
        endpoints: endpoint_rules(&policy.requests),
    }
}

fn rule(rule: &policy::Rule) -> Rule {
    let (action, limits) = match &rule.action {
        policy::Action::Verdict(verdict) => (verdict.to_string(), Vec::new()),
        policy::Action::Limit(list) => ("limit".to_owned(), limits(list)),
    };
    Rule {
        name: rule.name.clone(),
        mode: if rule.observe { "observe" } else { "enforce" }.to_owned(),
        from: rule.from.as_ref().map(|from| from.written.clone()),
        to: rule.to.as_ref().map(|to| to.written.clone()),
        action,
        limits,
        newcomers: rule.newcomers.as_ref().map(|rate| rate.text.clone()),
        interface: rule.interfaces.clone(),
        dest: rule.dest.as_ref().map(|dest| dest.written.clone()),
        penalty: rule.penalty.as_ref().map(|penalty| Penalty {
            after: penalty.after,
            within_s: penalty.within,
            for_s: penalty.seconds,
            proof: penalty.proof,
        }),
        expires: rule.expires.map(format_time),
        before_bans: rule.before_bans,
    }
}

fn limits(limits: &[policy::Limit]) -> Vec<Limit> {
    let show = |limit: &policy::Limit| Limit {
        name: limit.name.clone(),
        per: limit.scope.to_string(),
        rate: limit.rate.text.clone(),
        burst: limit.rate.burst,
        unit: limit.rate.unit.name().to_owned(),
    };
    limits.iter().map(show).collect()
}
