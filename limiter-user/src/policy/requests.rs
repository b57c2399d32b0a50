//! The request tier's part of a policy: `[identity]`, `[plans]`, `[[endpoint]]` and its `[limits]`.

use super::{
    diagnostic::Report,
    document::{Entry, LATER, Table},
};

/// What the files say of requests, in the order they say it.
pub(super) struct Parts<'d> {
    pub identity: Vec<Table<'d>>,
    pub plans: Vec<Table<'d>>,
    /// Entries of `[limits]` that only requests can have.
    pub limits: Vec<Entry<'d>>,
    pub endpoints: Vec<Table<'d>>,
}

/// Whether an entry of `[limits]` is for requests: its scope or a key is known only to them.
pub(super) fn is_request_limit(table: &Table<'_>) -> bool {
    let scopes = ["api-key", "account", "user", "endpoint", "header:", "descriptor:"];
    let by_scope = table.get("per").is_some_and(|entry| match entry.value.as_string() {
        Some(text) => scopes.iter().any(|scope| text.starts_with(scope)) || text.contains('|'),
        None => entry.value.as_array().is_some(),
    });
    by_scope || table.get("algorithm").is_some()
}

/// Reads the request tier's part.
pub(super) fn read(parts: &Parts<'_>, report: &mut Report) {
    let tables = [("identity", &parts.identity), ("plans", &parts.plans), ("endpoint", &parts.endpoints)];
    for (name, tables) in tables {
        for table in tables {
            report.error(&table.place(), format!("`{name}` is {LATER}"), "remove it");
        }
    }
    for entry in &parts.limits {
        report.error(&entry.key_place(), format!("limits of requests are {LATER}"), "remove it");
    }
}
