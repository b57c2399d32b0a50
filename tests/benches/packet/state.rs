//! Reading the table through its mapping, and swapping policies.

use std::time::Instant;

use limiter_tests::bench::{Bench, ROUNDS, Section, Spread};
use limiter_user::datapath::Datapath as _;

use crate::{frames, policies};

/// Every live bucket of a table of 4 M ways, read while nothing else runs.
pub fn read_table() {
    let mut section = Section::new(
        "Reading the table",
        "Milliseconds to visit every live bucket of a table of 4 194 304 ways through the mapping.",
        &["live buckets", "ms", "goal"],
    );
    let mut bench = Bench::open(1 << 22);
    // A source is forgotten after an hour; its claims are as many as the table has shares.
    bench.publish(&policies::limited("1/h", 1));
    bench.randomize(0x000f_ffff);
    let frame = frames::udp();
    for _ in 0..20 {
        bench.run("random_guard", &frame, 1_000_000);
    }
    let mut live = 0u64;
    let times = (0..ROUNDS)
        .map(|_| {
            live = 0;
            let start = Instant::now();
            bench.kernel.buckets(&mut |_| live += 1).unwrap();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    section.row(&[live.to_string(), Spread::of(times).to_string(), "≤ 50".to_owned()]);
    section.print();
}

/// From a bundle to the policy in force.
pub fn swap_policy() {
    let mut section = Section::new(
        "Swapping a policy",
        "Milliseconds to check and compile a policy, and to put it in force, by the number of prefixes in its set.",
        &["prefixes", "check and compile", "put in force"],
    );
    let mut bench = Bench::open(1 << 20);
    for count in [1, 1_000, 100_000, 1_000_000] {
        let bundle = policies::prefixes(count);
        let mut compile = Vec::new();
        let mut publish = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let compiled = bench.compile(&bundle);
            compile.push(start.elapsed().as_secs_f64() * 1e3);
            let start = Instant::now();
            bench.publish_compiled(&compiled);
            publish.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let cells = [Spread::of(compile), Spread::of(publish)].map(|spread| spread.to_string());
        section.row(&[count.to_string(), cells[0].clone(), cells[1].clone()]);
    }
    section.print();
}
