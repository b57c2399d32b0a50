//! `interface` and `dest` of rules.

use limiter_common::abi::INTERFACE_NAME;

use super::sets::in_place;
use crate::policy::{
    diagnostic::Report,
    document::Value,
    model::Destinations,
    prefixes::{Collected, collect},
};

/// A name, or a list of them. Sorted, each once.
pub(super) fn interfaces(value: &Value<'_>, report: &mut Report) -> Option<Vec<String>> {
    const HELP: &str = "write `interface = \"eth0\"` or `interface = [\"eth0\", \"eth1\"]`";
    let items = one_or_more(value, "`interface` is a name or a list of names", HELP, report);
    if value.as_array().is_some_and(|items| items.is_empty()) {
        let message = "`interface` is empty, so the rule matches nowhere";
        report.error(&value.place(), message, "leave it out for every interface");
    }
    let mut names = Vec::new();
    for item in items {
        let Some(name) = item.string("each of `interface` is a string", HELP, report) else { continue };
        if is_name(name) {
            names.push(name.to_owned());
        } else {
            let help = "names are as `ip link` shows them: at most 15 characters, no `/`, `:` or space";
            report.error(&item.place(), format!("no interface can be named `{name}`"), help);
        }
    }
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then_some(names)
}

/// `dev_valid_name` of the kernel.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() < INTERFACE_NAME
        && name != "."
        && name != ".."
        && !name.bytes().any(|byte| byte == b'/' || byte == b':' || byte == 0 || byte.is_ascii_whitespace())
}

/// A prefix, or a list of them.
pub(super) fn destinations(value: &Value<'_>, report: &mut Report) -> Destinations {
    const HELP: &str = "write `dest = [\"192.0.2.1\", \"2001:db8::/64\"]`";
    let items = one_or_more(value, "`dest` is a prefix or a list of prefixes", HELP, report);
    if value.as_array().is_some_and(|items| items.is_empty()) {
        let message = "`dest` is empty, so the rule matches nothing";
        report.error(&value.place(), message, "leave it out for every destination");
    }
    let nets: Vec<_> = items.iter().filter_map(|item| in_place(item, report)).collect();
    let written = nets.iter().map(ToString::to_string).collect();
    // Only `::ffff:0:0/96` stands for IPv4 here: what goes to another carrier is IPv6 to this host.
    let Collected { prefixes, covers_ipv4 } = collect(nets, &[]);
    if let Some(net) = covers_ipv4 {
        report.warning(
            &value.place(),
            format!("`{net}` covers `::ffff:0:0/96`, so every IPv4 address is in it"),
            "write `2000::/3` for the IPv6 internet alone",
        );
    }
    Destinations { written, prefixes }
}

fn one_or_more<'d>(value: &Value<'d>, what: &str, help: &str, report: &mut Report) -> Vec<Value<'d>> {
    match value.as_string() {
        Some(_) => vec![value.clone()],
        None => value.array(what, help, report).unwrap_or_default(),
    }
}
