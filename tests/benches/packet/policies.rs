//! The policies of the benches.

use limiter_user::policy::Bundle;

pub fn default_pass() -> Bundle {
    Bundle::from_text("policy.toml", "version = 1\n")
}

pub fn drop_all() -> Bundle {
    Bundle::from_text("policy.toml", "version = 1\n[[rule]]\nname = \"all\"\nverdict = \"drop\"\n")
}

/// Two sets and three rules, the last of which limits every source.
pub fn limited(rate: &str, burst: u64) -> Bundle {
    let text = r#"
version = 1
[sets]
office = ["203.0.113.0/24"]
scanners = ["198.51.100.0/24", "2001:db8:666::/48"]
[[rule]]
name = "management"
from = "office"
to = ["tcp/22"]
verdict = "pass"
[[rule]]
name = "scanners"
from = "scanners"
verdict = "drop"
[[rule]]
name = "everything"
limit = [{ per = "source", rate = "RATE", burst = BURST }]
"#;
    Bundle::from_text("policy.toml", &text.replace("RATE", rate).replace("BURST", &burst.to_string()))
}

/// The same with another rule in front.
pub fn limited_behind(rule: &str) -> Bundle {
    let mut bundle = limited("50/s", 100);
    let text = bundle.files.get_mut("policy.toml").unwrap();
    *text = text.replacen("[[rule]]", &format!("[[rule]]\nname = \"first\"\n{rule}\n[[rule]]"), 1);
    bundle
}

/// The same with a penalty.
pub fn penalised() -> Bundle {
    let mut bundle = limited("50/s", 100);
    let text = bundle.files.get_mut("policy.toml").unwrap();
    *text += "penalty = { after = 1000, within = \"10s\", for = \"22s\" }\n";
    bundle
}

/// The same with other limits, and what the last rule says besides.
fn limited_by(limits: &str, more: &str) -> Bundle {
    let mut bundle = limited("50/s", 100);
    let text = bundle.files.get_mut("policy.toml").unwrap();
    let end = text.find("limit = [").unwrap();
    *text = format!("{}limit = [{limits}]\n{more}\n", &text[..end]);
    bundle
}

/// With a limit in bytes beside it, in the same bucket.
pub fn limited_twice() -> Bundle {
    limited_by(
        "{ per = \"source\", rate = \"50/s\", burst = 100 }, { per = \"source\", rate = \"1 MB/s\" }",
        "",
    )
}

/// With a limit of its prefix beside it.
pub fn limited_with_prefix(rate: &str) -> Bundle {
    limited_by(
        &format!(
            "{{ per = \"source\", rate = \"{rate}\" }}, {{ per = \"source/24,48\", rate = \"{rate}\" }}"
        ),
        "",
    )
}

/// One bucket for everybody.
pub fn limited_by_rule(rate: &str) -> Bundle {
    limited_by(&format!("{{ per = \"rule\", rate = \"{rate}\" }}"), "")
}

/// Slow, with a budget for newcomers.
pub fn with_newcomers(rate: &str) -> Bundle {
    limited_by("{ per = \"source\", rate = \"1/m\", burst = 1 }", &format!("newcomers = \"{rate}\""))
}

/// One set of so many prefixes of /17 … /32 all over IPv4, dropped.
pub fn prefixes(count: usize) -> Bundle {
    let text = r#"
version = 1
[sets]
bad = { file = "prefixes.txt" }
[[rule]]
name = "bad"
from = "bad"
verdict = "drop"
"#;
    let mut random = fastrand::Rng::with_seed(7);
    let list: String = (0..count)
        .map(|_| {
            let width = random.u32(17..=32);
            let address = random.u32(..) & (u32::MAX << (32 - width));
            format!("{}/{width}\n", std::net::Ipv4Addr::from(address))
        })
        .collect();
    Bundle::from_text("policy.toml", text).with_file("prefixes.txt", &list)
}
