//! Cost per packet over an empty program, case by case: `cargo xtask bench packet`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench stops where its set-up fails"
)]

use limiter_tests::bench::{Bench, Table, beside};

const REPEAT: u32 = 1_000_000;

/// Two sets and three rules, the last of which limits one source to next to nothing.
const HOT: &str = r#"
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

/// One case: a policy, the program that runs, the bits of the source drawn anew.
struct Case {
    name: &'static str,
    policy: String,
    files: Vec<(&'static str, String)>,
    random: u32,
    goal: &'static str,
}

fn main() {
    let mut table =
        Table::new(&["case", "floor ns", "over the floor ns (min, median, max)", "goal", "last verdict"]);
    let mut bench = Bench::open(1 << 20);
    let frame = udp_frame();
    for case in cases() {
        let files: Vec<(&str, &str)> = case.files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        bench.publish(&case.policy, &files);
        bench.randomize(case.random);
        let verdict = std::cell::Cell::new(0);
        let bench = std::cell::RefCell::new(&mut bench);
        bench.borrow_mut().run("random_guard", &frame, REPEAT);
        let (floor, over) = beside(
            || bench.borrow_mut().run("random_empty", &frame, REPEAT).0,
            || {
                let (ns, returned) = bench.borrow_mut().run("random_guard", &frame, REPEAT);
                verdict.set(returned);
                ns
            },
        );
        let verdict = if verdict.get() == 1 { "drop" } else { "pass" };
        table.row(&[
            case.name.to_owned(),
            format!("{:.0}", floor.median),
            format!("{:.0}, **{:.0}**, {:.0}", over.least, over.median, over.most),
            case.goal.to_owned(),
            verdict.to_owned(),
        ]);
    }
    println!("{}", table.into_text());
}

fn hot(rate: &str, burst: &str) -> String {
    HOT.replace("RATE", rate).replace("BURST", burst)
}

fn cases() -> Vec<Case> {
    let case = |name, policy: String, random, goal| Case { name, policy, files: Vec::new(), random, goal };
    let mut cases = vec![
        case("default pass", "version = 1\n".to_owned(), 0, ""),
        case("drop by a rule", "version = 1\n[[rule]]\nname = \"d\"\nverdict = \"drop\"\n".to_owned(), 0, ""),
        case("hot source dropped, 2 sets, 3 rules, coarse clock", hot("50/s", "100"), 0, "≤ 45"),
        case("hot source dropped, precise clock", hot("1000/s", "2"), 0, ""),
        case("hot source passed, coarse clock", hot("100M/s", "100_000_000"), 0, ""),
        case("2^16 random sources, each may claim", hot("1000/s", "1"), 0xffff, ""),
        case("2^24 random sources, each may claim", hot("1000/s", "1"), 0x00ff_ffff, "≤ 280"),
        case("2^24 random sources, claim budget spent", hot("1/m", "1"), 0x00ff_ffff, "≤ 200"),
        case(
            "one random-source drop rule",
            "version = 1\n[[rule]]\nname = \"d\"\nverdict = \"drop\"\n".to_owned(),
            0x00ff_ffff,
            "",
        ),
    ];
    let prefixes = random_prefixes(100_000);
    for (name, random) in
        [("100 000 prefixes, hot source", 0), ("100 000 prefixes, random sources", u32::MAX)]
    {
        let mut case =
            case(name, SETS.to_owned(), random, if random == 0 { "" } else { "≤ 40 over the drop rule" });
        case.files.push(("prefixes.txt", prefixes.clone()));
        cases.push(case);
    }
    cases
}

const SETS: &str = r#"
version = 1
[sets]
bad = { file = "prefixes.txt" }
[[rule]]
name = "bad"
from = "bad"
verdict = "drop"
"#;

/// Prefixes of /16 … /32 over the whole of IPv4, by a fixed generator.
fn random_prefixes(count: usize) -> String {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count)
        .map(|_| {
            let width = 17 + (next() % 16) as u32;
            let address = (next() >> 32) as u32 & (u32::MAX << (32 - width));
            format!("{}/{width}\n", std::net::Ipv4Addr::from(address))
        })
        .collect()
}

/// 64 bytes: IPv4, UDP to port 53, from 10.1.2.3.
fn udp_frame() -> Vec<u8> {
    let mut frame = vec![0u8; 64];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&50u16.to_be_bytes());
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[10, 1, 2, 3]);
    frame[30..34].copy_from_slice(&[192, 0, 2, 1]);
    frame[34..36].copy_from_slice(&40_000u16.to_be_bytes());
    frame[36..38].copy_from_slice(&53u16.to_be_bytes());
    frame[38..40].copy_from_slice(&30u16.to_be_bytes());
    frame
}
