//! Penalties of rules: what the kernel counts by, and what they let a forger do to whom he names.
//!
//! **Leverage** is what a penalty takes from a source in proportion to what it costs to bring about in its name: the
//! packets its limit would have admitted meanwhile, over those it takes to empty the bucket and be refused often enough.
//! Up to 1 a forger gains nothing by it: with as many packets he keeps the bucket empty for as long anyway.

use limiter_common::abi::{self, MAX_PENALTIES};
use limiter_common::penalty::OWNER;

use super::{
    diagnostic::Report,
    meters::Meters,
    model::{Limit, Penalty, Rule},
    rate::{TICKS_PER_SECOND, Unit},
};

/// Bytes of the smallest packet there is, an IPv4 header.
const SMALLEST: u64 = 20;

/// A penalty of a rule that enforces.
#[derive(Clone, Debug)]
pub(super) struct PlannedPenalty {
    /// Index in the policy.
    pub rule: usize,
    pub encoded: abi::Penalty,
}

pub(super) fn plan(rules: &[Rule], meters: &Meters, report: &mut Report) -> Vec<PlannedPenalty> {
    let mut planned = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        let Some(penalty) = &rule.penalty else { continue };
        let leverage = leverage(penalty, rule.own_source_limits());
        if leverage > 1.0 && !penalty.spoofable && !penalty.proof {
            refuse(rule, penalty, leverage, report);
        }
        refuse_short(rule, penalty, report);
        // An observing rule refuses nobody, so there is nobody to penalise.
        if rule.observe {
            continue;
        }
        let own = meters.of_rules.get(number + 1).into_iter().flatten();
        let own = own.copied().find(|meter| meters.list[usize::from(*meter)].is_own_of(&rule.name));
        let Some(meter) = own else { continue };
        planned.push(PlannedPenalty { rule: number, encoded: encode(penalty, meter) });
        if planned.len() == MAX_PENALTIES {
            let help = format!("there can be {}", MAX_PENALTIES - 1);
            report.error(&penalty.place, "that is one penalty too many", help);
        }
    }
    planned
}

/// Largest of the units'.
pub(super) fn leverage<'p>(penalty: &Penalty, limits: impl Iterator<Item = &'p Limit>) -> f64 {
    let of = |limit: &Limit| {
        let strikes = match limit.rate.unit {
            Unit::Packets => penalty.after,
            Unit::Bytes => penalty.after * SMALLEST,
        };
        limit.rate.per_second() * penalty.seconds as f64 / (limit.rate.burst as f64 + strikes as f64)
    };
    limits.map(of).fold(0.0, f64::max)
}

/// A penalty ends with a full bucket: one that is shorter than the time it takes to fill would be a gift.
fn refuse_short(rule: &Rule, penalty: &Penalty, report: &mut Report) {
    let fills = rule.own_source_limits().map(|limit| limit.rate.encoded.tolerance);
    let seconds = fills.max().unwrap_or(0).div_ceil(TICKS_PER_SECOND as u64);
    if penalty.seconds < seconds {
        report.error(
            &penalty.place,
            format!("the penalty of rule `{}` is over before its bucket would be full again", rule.name),
            format!("write `for = \"{seconds}s\"` or more"),
        );
    }
}

fn refuse(rule: &Rule, penalty: &Penalty, leverage: f64, report: &mut Report) {
    // Both rounded so that what is written is accepted.
    let seconds = (penalty.seconds as f64 / leverage + 1e-9).floor() as u64;
    let shorter = if seconds > 0 { format!("write `for = \"{seconds}s\"`, or ") } else { String::new() };
    let is_tcp = rule.to.as_ref().is_some_and(|to| to.terms.iter().all(|term| term.can_be_of_a_connection()));
    let proof = if is_tcp { "`proof = \"handshake\"`, or " } else { "" };
    report.error(
        &penalty.place,
        format!(
            "the penalty of rule `{}` has a leverage of {leverage:.2}: whoever forges packets in a source's name takes that many times more from it than he spends",
            rule.name
        ),
        format!("{shorter}{proof}`spoofable = \"accepted\"` if nobody can forge packets to this host"),
    );
}

fn encode(penalty: &Penalty, meter: u16) -> abi::Penalty {
    let grain = OWNER + 1;
    let ticks = |seconds: u64| seconds * TICKS_PER_SECOND as u64;
    let cost = ticks(penalty.within).div_ceil(penalty.after).next_multiple_of(grain);
    // The strike that is one too many is the last of those.
    let tolerance = cost * (penalty.after - 1);
    let flags = if penalty.proof { abi::PENALTY_PROOF } else { 0 };
    abi::Penalty { cost, tolerance, time: ticks(penalty.seconds), meter, flags, reserved: [0; 2] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Bundle, check};

    fn penalty_of(text: &str) -> (abi::Penalty, f64) {
        let bundle =
            Bundle::from_text("policy.toml", &format!("version = 1\n[[rule]]\nname = \"a\"\n{text}\n"));
        let checked = check(&bundle).unwrap_or_else(|found| panic!("{found:?}"));
        let rule = &checked.policy.rules[0];
        let leverage = leverage(rule.penalty.as_ref().unwrap(), rule.own_source_limits());
        (checked.policy.plan.penalties[0].encoded, leverage)
    }

    #[test]
    fn what_the_kernel_counts_by() {
        let (penalty, leverage) = penalty_of(
            "limit = [{ per = \"source\", rate = \"50/s\", burst = 100 }]\npenalty = { after = 1000, within = \"10s\", for = \"22s\" }",
        );
        // 10 ms are 640 000 000 ticks, 9765.625 grains of 65 536; 999 of them at once.
        assert_eq!(penalty.cost, 9766 * 65_536);
        assert_eq!(penalty.tolerance, 999 * penalty.cost);
        assert_eq!(penalty.time, 22 * 64_000_000_000);
        // 50 × 22 ÷ (100 + 1000).
        assert!((leverage - 1.0).abs() < 1e-9, "{leverage}");
    }

    #[test]
    fn bytes_have_a_leverage_too() {
        let (_, leverage) = penalty_of(
            "limit = [{ per = \"source\", rate = \"1 kB/s\", burst = \"16 kB\" }, { per = \"source\", rate = \"1/s\", burst = 1 }]\npenalty = { after = 100, within = \"10s\", for = \"18s\" }",
        );
        // 1000 × 18 ÷ (16 000 + 100 × 20) = 1, and 1 × 18 ÷ (1 + 100).
        assert!((leverage - 1.0).abs() < 1e-9, "{leverage}");
    }
}
