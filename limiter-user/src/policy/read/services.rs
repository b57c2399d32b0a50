//! `[services]`, and lists of services and terms wherever they are written.

use super::{Named, Sections};
use crate::policy::{
    diagnostic::Report,
    document::Value,
    model::{Service, Traffic},
    term::{PROTOCOLS, Term},
};

const HELP: &str = "write `[\"tcp/80\", \"tcp/443\"]`";

pub(super) fn read(section: &Sections<'_>, report: &mut Report) -> Named<Service> {
    let mut services = Named::new();
    for entry in section.entries() {
        let place = entry.key_place();
        if !services.free("service", entry.key, &place, report) {
            continue;
        }
        if PROTOCOLS.contains(&entry.key) {
            report.error(
                &place,
                format!("a service cannot be named `{}`: that is a term already", entry.key),
                "give it another name",
            );
        }
        let what = format!("service `{}` is a list of terms", entry.key);
        let items = entry.value.array(&what, HELP, report).unwrap_or_default();
        let mut terms: Vec<Term> = items.iter().filter_map(|item| term(item, report)).collect();
        if items.is_empty() && entry.value.as_array().is_some() {
            report.error(&entry.value.place(), format!("service `{}` has no terms", entry.key), HELP);
        }
        terms.sort_unstable();
        terms.dedup();
        let service = Service { name: entry.key.to_owned(), place: place.clone(), terms };
        services.add(entry.key, &place, Some(service));
    }
    services
}

fn term(value: &Value<'_>, report: &mut Report) -> Option<Term> {
    let text = value.string("a term is a string", HELP, report)?;
    match Term::parse(text) {
        Ok(term) => Some(term),
        Err(why) => {
            report.error(&value.place(), why.message, why.help);
            None
        }
    }
}

/// A list of services and terms, or a single one.
pub(super) fn traffic(value: &Value<'_>, services: &Named<Service>, report: &mut Report) -> Traffic {
    const HELP: &str = "write `to = \"web\"` or `to = [\"web\", \"tcp/8080\"]`";
    let items = match value.as_string() {
        Some(_) => vec![value.clone()],
        None => value.array("`to` is a service or a list", HELP, report).unwrap_or_default(),
    };
    if items.is_empty() && value.as_array().is_some() {
        report.error(
            &value.place(),
            "`to` is empty, so the rule matches nothing",
            "leave it out for all traffic",
        );
    }
    let mut traffic = Traffic { written: Vec::new(), terms: Vec::new() };
    for item in &items {
        let Some(text) = item.string("each of `to` is a string", HELP, report) else { continue };
        traffic.written.push(text.to_owned());
        if !services.is_known(text) && (text.contains('/') || PROTOCOLS.contains(&text)) {
            traffic.terms.extend(term(item, report));
            continue;
        }
        let define = format!("define it under `[services]`: `{text} = [\"tcp/443\"]`");
        if let Some(index) = services.expect("service", text, &item.place(), &define, report) {
            traffic.terms.extend(&services.list[index].terms);
        }
    }
    traffic.terms.sort_unstable();
    traffic.terms.dedup();
    traffic
}
