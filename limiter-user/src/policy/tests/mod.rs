//! Policies as people write them, from text to tables.

mod changes;
mod decisions;
mod large;
mod mistakes;
mod reference;
mod tables;

use super::*;

fn bundle(text: &str) -> Bundle {
    Bundle::from_text("policy.toml", text)
}

fn valid(text: &str) -> Checked {
    check(&bundle(text)).unwrap_or_else(|errors| panic!("{text}\n{}", shown(&errors)))
}

/// Diagnostics as the command line shows them, help below.
fn shown(diagnostics: &[Diagnostic]) -> String {
    let lines = diagnostics.iter().map(|diagnostic| {
        let warning = if diagnostic.is_error() { "" } else { "warning: " };
        let help = diagnostic.help.as_ref().map(|help| format!("\n  {help}")).unwrap_or_default();
        format!("{warning}{diagnostic}{help}\n")
    });
    lines.collect()
}

fn compiled(policy: &Policy, slots: &Slots) -> Compiled {
    let host = HostFacts { tick_ns: 4_000_000, buckets: 1 << 20, slots, generation: 7 };
    compile(policy, &host).unwrap_or_else(|errors| panic!("{}", shown(&errors)))
}
