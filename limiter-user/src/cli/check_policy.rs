//! `check-policy FILE`: needs neither daemon nor root.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::Format;
use super::output::{Problem, count, json_line, print, say, show_diagnostics};
use crate::daemon::{self, Settings};
use crate::datapath::Facts;
use crate::policy::{Adjustments, Bundle, Diagnostic, Leverage, Slots, leverages};

/// What `-o json` prints.
#[derive(Serialize)]
struct Verdict {
    valid: bool,
    /// `null` when the file cannot be read.
    hash: Option<String>,
    rules: usize,
    endpoints: usize,
    request_limits: usize,
    plans: usize,
    penalties: Vec<Leverage>,
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
}

/// Checks for a host with the default table.
pub fn run(file: &Path, strict: bool, format: Format) -> ExitCode {
    // The longest tick there is (HZ = 100), so that what passes here passes on every host.
    let facts = Facts { tick_ns: 10_000_000, buckets: Settings::default().buckets };
    let name = file.display();
    let (hash, result) = match Bundle::read(file) {
        Ok(bundle) => {
            (Some(bundle.hash()), daemon::read(&bundle, &Slots::default(), facts, 1, &Adjustments::default()))
        }
        Err(diagnostics) => (None, Err(diagnostics)),
    };
    let (policy, mut diagnostics) = match result {
        Ok((_, reading)) => (Some(reading.policy), reading.warnings),
        Err(diagnostics) => (None, diagnostics),
    };
    let rules = policy.as_ref().map_or(0, |policy| policy.rules.len());
    let requests = policy.as_ref().map(|policy| &policy.requests);
    let endpoints = requests.map_or(0, |requests| requests.endpoints.len());
    let request_limits = requests.map_or(0, |requests| requests.limit_count());
    let plans = requests.map_or(0, |requests| requests.plan_names().len());
    let penalties = policy.as_ref().map_or_else(Vec::new, leverages);
    let valid = policy.is_some() && (!strict || diagnostics.is_empty());
    if format == Format::Json {
        let (errors, warnings) = diagnostics.iter().cloned().partition(Diagnostic::is_error);
        let code = print(&json_line(&Verdict {
            valid,
            hash: hash.clone(),
            rules,
            endpoints,
            request_limits,
            plans,
            penalties: penalties.clone(),
            errors,
            warnings,
        }));
        if valid {
            return code;
        }
    }
    let (Some(policy), true) = (policy, valid) else {
        if hash.is_none() {
            return Problem::unreadable(&diagnostics).report();
        }
        let mistakes = diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
        let error = match mistakes {
            0 => format!("`{name}` has {}", count(diagnostics.len(), "warning")),
            _ => format!("`{name}` has {}", count(mistakes, "mistake")),
        };
        diagnostics.sort_by_key(|diagnostic| !diagnostic.is_error());
        return Problem::bad_policy(error, diagnostics).report();
    };
    say(&show_diagnostics(&diagnostics));
    let mut counts = vec![
        count(rules, "rule"),
        count(policy.sets.len(), "set"),
        count(policy.limits.len(), "named limit"),
    ];
    if endpoints > 0 {
        counts.push(count(endpoints, "endpoint"));
        counts.push(count(request_limits, "request limit"));
        counts.push(count(plans, "plan"));
    }
    let of_penalties: String = penalties.iter().map(show_leverage).collect();
    print(&format!("`{name}` is sound: {}\n{of_penalties}", counts.join(", ")))
}

fn show_leverage(found: &Leverage) -> String {
    let Leverage { rule, leverage, proof, .. } = found;
    let of = format!("penalty of rule `{rule}`: leverage {leverage:.2}");
    if *proof {
        format!("{of}, with proof: forged packets do not count\n")
    } else if *leverage <= 1.0 {
        format!("{of}, forged packets gain nothing by it\n")
    } else {
        format!("{of}, accepted: forged packets take {leverage:.2} times from a source what they cost\n")
    }
}
