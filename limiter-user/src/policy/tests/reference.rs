//! The reference in `docs/policy.md` is true.

use super::*;

const REFERENCE: &str = include_str!("../../../../docs/policy.md");

#[test]
fn every_example_of_the_reference_is_valid() {
    let blocks: Vec<&str> =
        REFERENCE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 15);
    for block in blocks {
        let text =
            if block.contains("version = 1") { block.to_owned() } else { format!("version = 1\n{block}") };
        let checked = check(&bundle(&text).with_file("scanners.txt", "192.0.2.0/24\n"));
        let checked = checked.unwrap_or_else(|errors| panic!("{text}\n{}", shown(&errors)));
        assert_eq!(shown(&checked.warnings), "", "{text}");
        compiled(&checked.policy, &Slots::default());
    }
}

#[test]
fn the_defaults_of_the_reference_are_the_defaults() {
    let written = REFERENCE.split("these are the values then:\n\n```toml\n").nth(1).unwrap();
    let written = written.split("```").next().unwrap();
    let with_defaults = valid(&format!("version = 1\n{written}"));
    assert_eq!(with_defaults.policy.default, valid("version = 1").policy.default);
}

#[test]
fn the_reference_names_every_key_and_term() {
    for key in [
        "version",
        "include",
        "verdict",
        "malformed",
        "source",
        "limit",
        "ipv4-in-ipv6",
        "never-ban",
        "per",
        "rate",
        "burst",
        "name",
        "from",
        "to",
        "mode",
        "before",
        "interface",
        "dest",
        "penalty",
    ] {
        assert!(REFERENCE.contains(&format!("## `{key}`")), "{key}");
    }
    for term in term::PROTOCOLS {
        assert!(
            REFERENCE.contains(&format!("`{term}`")) || REFERENCE.contains(&format!("`{term}/")),
            "{term}"
        );
    }
    for name in term::type_names() {
        assert!(REFERENCE.contains(&format!("`{name}`")), "{name}");
    }
}
