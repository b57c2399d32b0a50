//! Promise 1: over any interval t a limit admits at most `burst + rate × t`, and at least 98 % of it when enough
//! is offered.
//!
//! In the kernel the interval is read outside of the first and last packet for the upper bound, and between the
//! end of the first and the start of the last batch for the lower one. The only slacks are the stated ones: on
//! the coarse clock `rate × spread`, where the spread is what its lag was seen to differ by in the run, and one
//! packet for each CPU at the claim of the way. Slower rates run on the host, with the same code and a clock in
//! the test's hand.
// suite: budget=150
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{net::Ipv4Addr, sync::Barrier, thread, time::Duration};

use limiter_common::{
    abi::{Geometry, RULE_COARSE},
    bucket, hash,
    verdict::{Outcome, Verdict},
};
use limiter_tests::{
    clock::{self, Moment},
    frame::{IPV4, UDP, V4, ethernet, udp},
    host::Host,
    kernel::{self, Guard, Runner},
};
use limiter_user::{datapath::Facts, policy::Slots};

/// A limit and the packets that are offered to it.
#[derive(Clone, Copy)]
struct Limit {
    rate: &'static str,
    /// Units per second.
    per_second: f64,
    /// In units; empty for the default, one second's worth.
    burst: &'static str,
    burst_units: f64,
    /// Bytes of a packet from its IPv4 header on, when the unit is bytes.
    bytes: Option<usize>,
}

const fn packets(rate: &'static str, per_second: f64, burst: &'static str, burst_units: f64) -> Limit {
    Limit { rate, per_second, burst, burst_units, bytes: None }
}

const fn bytes(
    rate: &'static str,
    per_second: f64,
    burst: &'static str,
    burst_units: f64,
    size: usize,
) -> Limit {
    Limit { rate, per_second, burst, burst_units, bytes: Some(size) }
}

/// Bursts of a second, longer where that is few packets, shorter where it is many; then two that need the precise
/// clock.
const LIMITS: [Limit; 9] = [
    packets("10/s", 10.0, "100", 100.0),
    packets("1k/s", 1e3, "1000", 1e3),
    packets("1M/s", 1e6, "250000", 2.5e5),
    bytes("1 kB/s", 1e3, "\"20 kB\"", 2e4, 100),
    bytes("1 MB/s", 1e6, "\"1 MB\"", 1e6, 500),
    bytes("1 Gbit/s", 1.25e8, "\"125 MB\"", 1.25e8, 1500),
    bytes("10 Gbit/s", 1.25e9, "\"1250 MB\"", 1.25e9, 9000),
    packets("1k/s", 1e3, "20", 20.0),
    bytes("1 Gbit/s", 1.25e8, "\"1 MB\"", 1e6, 1500),
];

impl Limit {
    /// Two rules alike, for UDP to ports 1 and 2. What they are called makes their buckets new.
    fn policy(&self, run: u32) -> String {
        let limit =
            format!("limit = [{{ per = \"source\", rate = \"{}\", burst = {} }}]", self.rate, self.burst);
        let [first, second] = names(run);
        format!(
            "version = 1\n\
             [[rule]]\nname = \"{first}\"\nto = [\"udp/1\"]\n{limit}\n\
             [[rule]]\nname = \"{second}\"\nto = [\"udp/2\"]\n{limit}\n"
        )
    }

    /// Whether the burst is below what the lower promise asks for at a tick of 4 ms.
    fn is_small(&self) -> bool {
        self.burst_units < 8.0 * self.per_second * 0.004
    }

    /// Whether a machine that is busy with other things may be unable to offer it on two CPUs at once. The upper
    /// bound is asked all the same.
    fn is_fast(&self) -> bool {
        self.per_second / self.unit() >= 1e6
    }

    fn name(&self) -> String {
        format!("{} with a burst of {}", self.rate, self.burst)
    }

    fn frame(&self, source: &str, port: u16) -> Vec<u8> {
        let payload = vec![0; self.bytes.unwrap_or(64) - 28];
        ethernet(&[], IPV4, &V4::from(source).packet(UDP, &udp(9, port, &payload)))
    }

    /// Units of one packet.
    fn unit(&self) -> f64 {
        self.bytes.map_or(1.0, |bytes| bytes as f64)
    }

    /// What a rule has admitted so far, in units.
    fn admitted(&self, guard: &Guard, rule: &str) -> f64 {
        let counter = guard.counted(rule, Outcome::PassWithin);
        if self.bytes.is_some() { counter.bytes as f64 } else { counter.packets as f64 }
    }
}

/// The rules of a run.
fn names(run: u32) -> [String; 2] {
    [format!("first-{run}"), format!("second-{run}")]
}

/// What one run of offering packets was like.
struct Run {
    begin: Moment,
    end: Moment,
    /// Between the end of the first batch and the start of the last.
    inside: Duration,
    /// The longest time a packet may have waited for the one before it.
    spacing: Duration,
    /// What the lag of the coarse clock differed by.
    spread: Duration,
    /// In units.
    offered: f64,
}

/// Most packets of one batch: a millisecond's work.
const BATCH: f64 = 2_000.0;

/// Offers the whole burst at once and then `ratio` times the rate, for `time`. Where the machine cannot offer that
/// much it offers all it can: what counts is said by the [`Run`].
fn offer(runner: &Runner, limit: &Limit, frame: &[u8], ratio: f64, time: Duration) -> Run {
    let unit = limit.unit();
    let begin = Moment::now();
    let (mut least_lag, mut most_lag) = (begin.lag(), begin.lag());
    let mut first_end = None;
    let (mut last_start, mut last_end) = (begin.precise, begin.precise);
    let (mut spacing, mut offered) = (0, 0.0);
    loop {
        let now = Moment::now();
        (least_lag, most_lag) = (least_lag.min(now.lag()), most_lag.max(now.lag()));
        let elapsed = begin.to(now);
        if elapsed >= time {
            break;
        }
        let due = (limit.burst_units + ratio * limit.per_second * elapsed.as_secs_f64() - offered) / unit;
        if due < 1.0 {
            continue;
        }
        let batch = due.floor().min(BATCH);
        runner.repeat(frame, batch as u32);
        offered += batch * unit;
        // A pause may lie between two batches or, unseen, within one.
        let end = clock::precise();
        spacing = spacing.max(end - last_end);
        (last_start, last_end) = (now.precise, end);
        first_end.get_or_insert(end);
    }
    let end = Moment::now();
    (least_lag, most_lag) = (least_lag.min(end.lag()), most_lag.max(end.lag()));
    Run {
        begin,
        end,
        inside: Duration::from_nanos(last_start.saturating_sub(first_end.unwrap_or(last_start))),
        spacing: Duration::from_nanos(spacing),
        spread: most_lag - least_lag,
        offered,
    }
}

/// `burst + rate × t`, in units.
fn bound(limit: &Limit, time: Duration) -> f64 {
    limit.burst_units + limit.per_second * time.as_secs_f64()
}

/// The most that may be admitted: promise 1 with its slacks.
fn most(guard: &Guard, limit: &Limit, run: &Run, cpus: f64) -> f64 {
    let coarse = guard.tables().rules[1].flags & RULE_COARSE != 0;
    let spread = if coarse { limit.per_second * run.spread.as_secs_f64() } else { 0.0 };
    bound(limit, run.begin.to(run.end)) + spread + cpus * limit.unit()
}

/// Whether the promise of 98 % holds for this run: enough was offered, and the burst is large enough.
fn enough(guard: &Guard, limit: &Limit, run: &Run) -> bool {
    let tick = Duration::from_nanos(guard.facts().tick_ns);
    let needed = 8.0 * limit.per_second * (tick + run.spacing).as_secs_f64();
    run.offered >= bound(limit, run.inside) && limit.burst_units >= needed.max(2.0 * limit.unit())
}

/// Runs of one row before the machine is called too busy for what it asks.
const TRIES: usize = 12;

#[test]
fn kernel_admits_what_the_limit_says() {
    clock::pin_to(0);
    let mut guard = Guard::with("version = 1");
    let mut run_number = 0;
    for limit in LIMITS {
        for ratio in [1.01, 2.0, 20.0] {
            let mut judged = false;
            for _ in 0..TRIES {
                run_number += 1;
                guard.publish(&limit.policy(run_number));
                let frame = limit.frame("192.0.2.1", 1);
                let run = offer(&guard.runner(), &limit, &frame, ratio, Duration::from_millis(600));
                let admitted = limit.admitted(&guard, &names(run_number)[0]);
                let most = most(&guard, &limit, &run, 1.0);
                let name = limit.name();
                assert!(admitted <= most, "{name}, offered {ratio} ×: {admitted} admitted of at most {most}");
                if limit.is_small() {
                    // Too small a burst for the lower promise; the upper one is what this row is for.
                    judged = true;
                    break;
                }
                if enough(&guard, &limit, &run) {
                    let least = 0.98 * bound(&limit, run.inside);
                    assert!(
                        admitted >= least,
                        "{name}, offered {ratio} ×: {admitted} admitted of at least {least}"
                    );
                    judged = true;
                    break;
                }
            }
            assert!(judged, "{}, {ratio} ×: no run in {TRIES} offered enough, evenly enough", limit.name());
        }
    }
}

/// Offers 20 times the rate on two CPUs at once, a frame on each.
fn hammer(runner: &Runner, limit: &Limit, frames: [&[u8]; 2]) -> [Run; 2] {
    let start = Barrier::new(2);
    let offer_on = |cpu: usize| {
        clock::pin_to(cpu);
        start.wait();
        offer(runner, limit, frames[cpu], 20.0, Duration::from_millis(500))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| offer_on(1));
        let own = scope.spawn(|| offer_on(0));
        [own.join().expect("a hammering thread"), other.join().expect("a hammering thread")]
    })
}

#[test]
fn two_cpus_share_one_bucket() {
    let mut guard = Guard::with("version = 1");
    for (run_number, limit) in (0..).zip(LIMITS) {
        guard.publish(&limit.policy(run_number));
        let frame = limit.frame("192.0.2.1", 1);
        let [one, two] = hammer(&guard.runner(), &limit, [&frame, &frame]);
        let admitted = limit.admitted(&guard, &names(run_number)[0]);
        let begin = if one.begin.precise < two.begin.precise { one.begin } else { two.begin };
        let end = if one.end.precise > two.end.precise { one.end } else { two.end };
        let whole = Run { begin, end, spread: one.spread.max(two.spread), ..one };
        let most = most(&guard, &limit, &whole, 2.0);
        assert!(admitted <= most, "{}: {admitted} admitted of at most {most}", limit.name());
        let least = limit.burst_units - limit.unit();
        assert!(admitted >= least, "{}: {admitted} admitted, less than the burst", limit.name());
    }
}

#[test]
fn two_keys_in_one_set_do_not_disturb_each_other() {
    let mut guard = Guard::with("version = 1");
    let mut run_number = 0;
    for limit in LIMITS {
        let mut judged = false;
        for _ in 0..TRIES {
            run_number += 1;
            guard.publish(&limit.policy(run_number));
            let [first, second] = neighbours(&guard);
            let frames = [limit.frame(&first, 1), limit.frame(&second, 2)];
            let runs = hammer(&guard.runner(), &limit, [&frames[0], &frames[1]]);
            judged = true;
            for (rule, run) in names(run_number).iter().zip(&runs) {
                let admitted = limit.admitted(&guard, rule);
                let most = most(&guard, &limit, run, 1.0);
                let name = limit.name();
                assert!(admitted <= most, "{name}, `{rule}`: {admitted} admitted of at most {most}");
                if enough(&guard, &limit, run) {
                    let least = 0.98 * bound(&limit, run.inside);
                    assert!(admitted >= least, "{name}, `{rule}`: {admitted} admitted of at least {least}");
                } else if !limit.is_small() && !limit.is_fast() {
                    judged = false;
                }
            }
            if judged {
                break;
            }
        }
        assert!(judged, "{}: no run in {TRIES} offered enough, evenly enough", limit.name());
    }
}

/// Two sources whose buckets, one under each rule, are in the same set of the table.
fn neighbours(guard: &Guard) -> [String; 2] {
    let geometry = guard.geometry();
    let set_of = |address: Ipv4Addr, rule: usize| {
        let meter = &guard.tables().meters[usize::from(guard.tables().rules[rule].meters[0])];
        let low = 0xffff_0000_0000 | u64::from(u32::from(address));
        hash::set_index(&geometry, hash::tag(hash::network(&geometry, 0, low), meter.id))
    };
    let first = Ipv4Addr::new(192, 0, 2, 1);
    let second = (0..1 << 24)
        .map(|host| Ipv4Addr::from(0x0a00_0000 | host))
        .find(|&second| set_of(second, 2) == set_of(first, 1))
        .expect("one of 16 million sources falls into the set");
    [first.to_string(), second.to_string()]
}

/// A slow rate, as text and as units per so many seconds.
struct Slow {
    rate: &'static str,
    units: u128,
    seconds: u128,
    burst: u128,
    /// Bytes of a packet, for a limit in bytes.
    size: Option<usize>,
}

const SLOW: [Slow; 8] = [
    Slow { rate: "1/h", units: 1, seconds: 3600, burst: 2, size: None },
    Slow { rate: "7/h", units: 7, seconds: 3600, burst: 10, size: None },
    Slow { rate: "100/h", units: 100, seconds: 3600, burst: 100, size: None },
    Slow { rate: "1/m", units: 1, seconds: 60, burst: 5, size: None },
    Slow { rate: "7/m", units: 7, seconds: 60, burst: 7, size: None },
    Slow { rate: "3/s", units: 3, seconds: 1, burst: 9, size: None },
    Slow { rate: "999/s", units: 999, seconds: 1, burst: 999, size: None },
    Slow { rate: "100 B/m", units: 100, seconds: 60, burst: 1000, size: Some(40) },
];

/// Offered evenly, with a clock that is exact: at most the bound to the unit, at least 98 % of it.
#[test]
fn slow_rates_on_the_host() {
    const SECOND: u128 = 1_000_000_000;
    for slow in &SLOW {
        let burst =
            if slow.size.is_some() { format!("\"{} B\"", slow.burst) } else { slow.burst.to_string() };
        let text = format!(
            "version = 1\n[[rule]]\nname = \"slow\"\nlimit = [{{ per = \"source\", rate = \"{}\", burst = {burst} }}]\n",
            slow.rate
        );
        let compiled =
            kernel::compile(&text, Facts { tick_ns: 4_000_000, buckets: 1 << 20 }, &Slots::default(), 1);
        let geometry = Geometry { sets: 1 << 10, seed: [1, 2, 3, 4], ..Geometry::default() };
        let unit = slow.size.unwrap_or(1) as u128;
        let payload = vec![0; slow.size.unwrap_or(28) - 28];
        let frame = ethernet(&[], IPV4, &V4::from("192.0.2.1").packet(UDP, &udp(1, 2, &payload)));
        for (ratio_up, ratio_down) in [(101, 100), (2, 1), (20, 1)] {
            let host = Host::new(geometry, &compiled.rows);
            // The time in which 500 bursts' worth comes in, and 20 000 packets at most are offered.
            let spacing = unit * slow.seconds * SECOND * ratio_down / (slow.units * ratio_up);
            let count = (slow.burst / unit + 500 * slow.burst * ratio_up / (unit * ratio_down)).min(20_000);
            // A table does not begin empty of time: its epoch lies a while back.
            let start = 1000 * SECOND;
            let mut admitted = 0;
            for packet in 0..count {
                // The burst comes at once, the rest evenly.
                let late = packet.saturating_sub(slow.burst / unit);
                let now = start + late * spacing;
                host.set_now(bucket::ticks(now as u64, 0));
                let ruling = host.judge(&compiled.tables, &frame);
                if ruling.outcome.verdict() == Verdict::Pass {
                    admitted += unit;
                }
                // admitted ≤ burst + units × t ÷ seconds, without a division.
                let passed = late * spacing;
                assert!(
                    admitted * slow.seconds * SECOND
                        <= slow.burst * slow.seconds * SECOND + slow.units * passed,
                    "{} at packet {packet} of {ratio_up}:{ratio_down}: {admitted} admitted",
                    slow.rate
                );
            }
            let passed = (count - slow.burst / unit - 1) * spacing;
            let bound = slow.burst * slow.seconds * SECOND + slow.units * passed;
            assert!(
                admitted * slow.seconds * SECOND * 100 >= bound * 98,
                "{} of {ratio_up}:{ratio_down}: {admitted} admitted is less than 98 %",
                slow.rate
            );
        }
    }
}
