//! Cost per packet, by `BPF_PROG_TEST_RUN`.

use std::time::Duration;

use aya::Ebpf;
use limiter_tests::bench::{Bench, Section, Spread, in_turns, run};
use limiter_tests::clock::pin_to;
use limiter_user::datapath::Datapath as _;
use limiter_user::policy::Bundle;

use crate::{frames, policies};

const REPEAT: u32 = 2_000_000;

/// Low 24 bits of the source.
const SOURCES_2_24: u32 = 0x00ff_ffff;
const ALL_SOURCES: u32 = u32::MAX;

const AN_HOUR: Duration = Duration::from_secs(3600);

struct Case {
    name: &'static str,
    policy: Bundle,
    /// Bits of the source drawn anew for every packet, by the floor too.
    random: u32,
    /// Somebody watches what is dropped.
    watched: bool,
    /// Most ns over the floor that are asked for.
    asked: &'static str,
}

fn cases() -> Vec<Case> {
    let case = |name, policy, random, asked| Case { name, policy, random, watched: false, asked };
    let watched = |name, policy| Case { name, policy, random: 0, watched: true, asked: "" };
    vec![
        case("no rule", policies::default_pass(), 0, ""),
        case("dropped by a rule", policies::drop_all(), 0, ""),
        case("one source over its limit, 2 sets, 3 rules", policies::limited("50/s", 100), 0, "45"),
        watched("the same, while somebody watches", policies::limited("50/s", 100)),
        case("one source over its limit, precise clock", policies::limited("1000/s", 2), 0, ""),
        case("one source over its limit, packets and bytes", policies::limited_twice(), 0, ""),
        case(
            "the same, behind a rule with `interface`",
            policies::limited_behind("interface = \"absent0\"\nverdict = \"drop\""),
            0,
            "",
        ),
        case(
            "the same, behind a rule with `dest`",
            policies::limited_behind("dest = [\"198.51.100.0/24\", \"2001:db8::/64\"]\nverdict = \"drop\""),
            0,
            "",
        ),
        case("the same, penalised", policies::penalised(), 0, ""),
        case("one source within its limit", policies::limited("100M/s", 100_000_000), 0, ""),
        case("the same, and within its /24's", policies::limited_with_prefix("60M/s"), 0, ""),
        case("one rule's limit, over it", policies::limited_by_rule("50/s"), 0, ""),
        case("one rule's limit, within it", policies::limited_by_rule("60M/s"), 0, ""),
        case("2^16 random sources, each may claim", policies::limited("1000/s", 1), 0xffff, ""),
        case("2^24 random sources, each may claim", policies::limited("1000/s", 1), SOURCES_2_24, "280"),
        case("2^24 random sources, claims spent", policies::limited("1/m", 1), SOURCES_2_24, "200"),
        case("the same, newcomers spent", policies::with_newcomers("1k/s"), SOURCES_2_24, ""),
        case("the same, newcomers within their budget", policies::with_newcomers("50M/s"), ALL_SOURCES, ""),
        case("random sources dropped by a rule", policies::drop_all(), ALL_SOURCES, ""),
        case(
            "random sources, 100 000 prefixes",
            policies::prefixes(100_000),
            ALL_SOURCES,
            "40 over the line above",
        ),
    ]
}

/// Every case on one CPU.
pub fn one_cpu() {
    pin_to(0);
    let mut section = Section::new(
        "Cost per packet",
        "Nanoseconds by `BPF_PROG_TEST_RUN`, one CPU, 2 million runs a round, 9 rounds in turns with an empty \
         program that returns XDP_DROP (and draws the same random source, where sources are random): minimum, \
         **median**, maximum of the difference.",
        &["case", "empty program", "over it", "asked", "last packet"],
    );
    let mut bench = Bench::open(1 << 20);
    let frame = frames::udp();
    for case in cases() {
        bench.publish(&case.policy);
        // What the case before left in the filter the daemon would have thinned.
        bench.kernel.tidy();
        bench.randomize(case.random);
        bench.kernel.watch(if case.watched { AN_HOUR } else { Duration::ZERO });
        // What the first packets of a policy find is not what the next million do.
        bench.run("random_guard", &frame, REPEAT);
        let mut last = 0;
        let rounds = in_turns(
            || bench.run("random_empty", &frame, REPEAT).0,
            || {
                let (ns, returned) = bench.run("random_guard", &frame, REPEAT);
                last = returned;
                ns
            },
        );
        section.row(&[
            case.name.to_owned(),
            format!("{:.0}", Spread::of(rounds.iter().map(|(floor, _)| *floor).collect()).median),
            Spread::of(rounds.iter().map(|(floor, ns)| ns - floor).collect()).to_string(),
            if case.asked.is_empty() { String::new() } else { format!("≤ {}", case.asked) },
            if last == XDP_DROP { "drop" } else { "pass" }.to_owned(),
        ]);
    }
    section.print();
}

const XDP_DROP: u32 = 1;

/// Two CPUs on one source over its limit, beside the empty program on two CPUs.
pub fn two_cpus() {
    let mut section = Section::new(
        "Two CPUs",
        "Packets per second of two CPUs over those of one, both on one source over its limit, or over a limit of the \
         rule, whose one word all CPUs read: nothing is written that the two share. Beside the empty program in the \
         same rounds.",
        &["program", "two CPUs over one", "of what the empty program gets"],
    );
    let mut bench = Bench::open(1 << 20);
    bench.randomize(0);
    let frame = frames::udp();
    for (name, policy) in [
        ("a source over its limit (asked: ≥ 0.9)", policies::limited("50/s", 100)),
        ("a rule over its limit (asked: ≥ 0.85)", policies::limited_by_rule("50/s")),
        ("a rule over its limit, 100 000/s of them within", policies::limited_by_rule("100k/s")),
    ] {
        bench.publish(&policy);
        let probe = &bench.probe;
        let scaling = |program: &'static str| {
            let one = on_cpus(probe, program, &frame, 1);
            let two = on_cpus(probe, program, &frame, 2);
            2.0 * one / two
        };
        let rounds = in_turns(|| scaling("random_empty"), || scaling("random_guard"));
        let empty = Spread::of(rounds.iter().map(|(empty, _)| *empty).collect());
        let guard = Spread::of(rounds.iter().map(|(_, guard)| *guard).collect());
        let ratio = Spread::of(rounds.iter().map(|(empty, guard)| guard / empty).collect());
        section.row(&["the empty program".to_owned(), empty.to_string(), String::new()]);
        section.row(&[name.to_owned(), guard.to_string(), ratio.to_string()]);
    }
    section.print();
}

/// Seconds per packet and CPU, all CPUs at once.
fn on_cpus(probe: &Ebpf, program: &str, frame: &[u8], cpus: usize) -> f64 {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus)
            .map(|cpu| {
                scope.spawn(move || {
                    pin_to(cpu);
                    run(probe, program, frame, REPEAT).0
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<f64>() / cpus as f64
    })
}
