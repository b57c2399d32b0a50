//! The hand-written table of frames through the parser, on the host.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use limiter_common::parse::parse;
use limiter_tests::corpus;

#[test]
fn parser_says_what_the_table_says() {
    let mut wrong = Vec::new();
    for case in corpus::frames() {
        let differences = case.expected.differences(&parse(case.frame.as_slice()));
        if !differences.is_empty() {
            wrong.push(format!("{}: {}", case.what, differences.join("; ")));
        }
    }
    assert!(wrong.is_empty(), "{} frames:\n{}", wrong.len(), wrong.join("\n"));
}
