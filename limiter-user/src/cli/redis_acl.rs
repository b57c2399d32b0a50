//! `redis-acl`: the ACL user limiterd needs at Redis. Needs no daemon.

use std::process::ExitCode;

use serde::Serialize;

use super::Format;
use super::output::print_as;
use crate::requests::redis::acl_rules;

#[derive(Serialize)]
struct Acl<'a> {
    user: &'a str,
    rules: String,
}

/// Prints one command for `redis-cli`; the password's place is left open.
pub fn run(namespace: &str, user: &str, format: Format) -> ExitCode {
    let acl = Acl { user, rules: acl_rules(namespace) };
    print_as(format, &acl, |acl| format!("ACL SETUSER {} reset on '>PASSWORD' {}\n", acl.user, acl.rules))
}
