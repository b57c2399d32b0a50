//! `status`: one look at everything; exits 1 when degraded.

use std::fmt::{self, Write};
use std::io;
use std::process::ExitCode;

use super::Format;
use super::output::{Problem, Style, Table, count, print_as, short_hash, show_duration};
use crate::control::api::Status;
use crate::control::client::Client;

pub async fn run(client: &Client, format: Format) -> Result<ExitCode, Problem> {
    let status: Status = client.get("/v1/status").await?;
    let code = print_as(format, &status, |status| {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = show(&mut text, status, Style::of(&io::stdout()));
        text
    });
    Ok(if status.degraded { ExitCode::from(1) } else { code })
}

fn show(text: &mut String, status: &Status, style: Style) -> fmt::Result {
    let state = if status.degraded { style.paint("31;1", "degraded") } else { style.paint("32;1", "well") };
    writeln!(text, "limiterd {} is {state}, up {}", status.version, show_duration(status.uptime_s))?;
    if let Some(policy) = &status.policy {
        writeln!(
            text,
            "policy {}, generation {}, {}, applied {} ago by {}",
            short_hash(&policy.hash),
            policy.generation,
            count(policy.rules, "rule"),
            show_duration(policy.age_s),
            policy.applied_by
        )?;
        if let Some(drift) = &policy.drift {
            writeln!(text, "drift: {drift}; `limiterctl reload` goes back to {}", policy.file)?;
        }
    }
    if let Some(table) = &status.table {
        let share = table.used as f64 * 100.0 / table.entries.max(1) as f64;
        writeln!(
            text,
            "table: {} of {} buckets in use ({share:.1} %), {} evicted early",
            table.used, table.entries, table.pressure
        )?;
        if status.bans > 0 {
            writeln!(text, "bans: {} in force, `limiterctl bans` lists them", status.bans)?;
        }
    }
    if let Some(store) = &status.store {
        let at = store.address.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
        let state = if store.healthy { "answers" } else { "is away" };
        write!(text, "requests: {}, store {}{at} {state}", count(store.endpoints, "endpoint"), store.kind)?;
        if let Some(instances) = store.instances {
            write!(text, ", shared by {}", count(instances as usize, "instance"))?;
        }
        if let Some(published) = &store.published {
            write!(text, ", published limits: {published}")?;
        }
        writeln!(text)?;
    }
    show_interfaces(text, status)?;
    if !(status.problems.is_empty() && status.warnings.is_empty()) {
        writeln!(text)?;
    }
    for problem in &status.problems {
        writeln!(text, "{}: {problem}", style.paint("31;1", "problem"))?;
    }
    for warning in &status.warnings {
        writeln!(text, "{}: {warning}", style.paint("33;1", "warning"))?;
    }
    Ok(())
}

fn show_interfaces(text: &mut String, status: &Status) -> fmt::Result {
    if status.interfaces.is_empty() && status.unguarded.is_empty() {
        return match status.table {
            Some(_) => writeln!(text, "no interface is guarded: `limiterctl attach IFACE` guards one"),
            None => writeln!(text, "no packet tier: `interfaces` is empty"),
        };
    }
    let mut table = Table::new(&["INTERFACE", ">INDEX", "MODE", "GUARDED"]);
    for interface in &status.interfaces {
        table.row(vec![
            interface.name.clone(),
            interface.index.to_string(),
            interface.mode.to_string(),
            format!("for {}", show_duration(interface.attached_s)),
        ]);
    }
    for interface in &status.unguarded {
        let reason = format!("no: {}", interface.reason);
        table.row(vec![interface.name.clone(), "-".to_owned(), "-".to_owned(), reason]);
    }
    write!(text, "\n{}", table.show())
}
