//! Lists as large as they come.

use limiter_common::prefix::v4_class;

use super::*;

/// `count` different prefixes of both families, from a fixed sequence.
fn list(count: usize) -> String {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut text = String::with_capacity(count * 20);
    for number in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (high, low) = ((state >> 32) as u32, state as u32);
        if number % 4 == 3 {
            text += &format!("2001:{:x}:{:x}::/48\n", high >> 16, low >> 16);
        } else {
            let length = 16 + high % 17;
            let address = high & (u32::MAX << (32 - length));
            text += &format!("{}/{length}\n", std::net::Ipv4Addr::from(address));
        }
    }
    text
}

fn large(count: usize) -> Bundle {
    let text = r#"version = 1
[sets]
scanners = { file = "scanners.txt" }
office = ["203.0.113.0/24", "2001:db8::/32"]
[[rule]]
name = "office"
from = "office"
verdict = "pass"
[[rule]]
name = "scanners"
from = "scanners"
verdict = "drop"
"#;
    bundle(text).with_file("scanners.txt", &list(count))
}

#[test]
fn a_hundred_thousand_prefixes() {
    let bundle = large(100_000);
    let checked = check(&bundle).unwrap_or_else(|errors| panic!("{}", shown(&errors)));
    assert_eq!(checked.policy.sets[0].entries, 100_000);
    let compiled = compiled(&checked.policy, &Slots::default());
    for line in bundle.files["scanners.txt"].lines().step_by(1000).filter(|line| !line.contains(':')) {
        let net: ipnet::Ipv4Net = line.parse().unwrap();
        let class = v4_class(&compiled.tables.v4_index, &compiled.rows.as_slice(), net.broadcast().into());
        let cell = compiled.tables.cells[usize::from(class)][0];
        assert_eq!(compiled.rules[usize::from(cell.enforcing)].name, "scanners", "{line}");
    }
    assert!(compiled.rows.len() < 8000, "{} rows of 1 KiB", compiled.rows.len());
}

/// Beside any deadline: a list in one line of the policy itself must not take quadratic time either.
#[test]
fn a_long_list_in_place() {
    let nets: Vec<String> = list(20_000).lines().map(|net| format!("\"{net}\"")).collect();
    let text = format!(
        "version = 1\n[sets]\na = [{}]\n[[rule]]\nname = \"a\"\nfrom = \"a\"\nverdict = \"drop\"\n",
        nets.join(", ")
    );
    assert_eq!(valid(&text).policy.sets[0].entries, 20_000);
}
