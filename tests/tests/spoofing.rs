//! A spoofed flood cannot buy memory, reset a bucket or keep others from being served.
//!
//! The flood comes over a veth pair at the sender's full speed, on one CPU; meanwhile a drained source and polite
//! newcomers are judged by the same program on the same maps, on the other.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use limiter_common::verdict::Outcome::{DropCrowd, DropOver, PassCrowd, PassWithin};
use limiter_tests::{
    clock,
    frame::{IPV4, IPV6, UDP, V4, V6, ethernet, udp},
    kernel::{Guard, map_memory},
    namespace::{PEER, Pair},
    random::Random,
    stop::SetOnDrop,
    wire::RawSocket,
};

const POLICY: &str = r#"
version = 1

[[rule]]
name = "slow"
to = ["udp/1"]
limit = [{ per = "source", rate = "1/m", burst = 5 }]

[[rule]]
name = "quick"
to = ["udp/2"]
limit = [{ per = "source", rate = "50/s", burst = 50 }]
"#;

const FLOOD: Duration = Duration::from_secs(4);

/// Frames of one system call.
const BATCH: usize = 64;

/// What is asked while the flood runs.
struct Flood {
    /// A frame to the slow rule, and where its source is written anew for each packet.
    template: Vec<u8>,
    /// Writes a random source into a frame.
    randomise: fn(&mut Random, &mut [u8]),
    /// Crowd cells that its sources share: networks of /16 or /32.
    cells: u64,
    /// A polite newcomer by number, to the quick rule.
    newcomer: fn(u32) -> Vec<u8>,
}

#[test]
fn flood_from_2_24_ipv4_sources() {
    endure(&Flood {
        template: ethernet(&[], IPV4, &V4::from("10.0.0.0").packet(UDP, &udp(9, 1, &[0; 18]))),
        randomise: |random, frame| {
            let host = random.below(1 << 24) as u32;
            frame[14 + 12..14 + 16].copy_from_slice(&(0x0a00_0000 | host).to_be_bytes());
        },
        cells: 256,
        newcomer: |number| {
            let source = Ipv4Addr::from(0xac10_0000 + number).to_string();
            ethernet(&[], IPV4, &V4::from(&source).packet(UDP, &udp(9, 2, b"")))
        },
    });
}

#[test]
fn flood_from_one_ipv6_32() {
    endure(&Flood {
        template: ethernet(&[], IPV6, &V6::from("2001:db8::").packet(UDP, &udp(9, 1, &[0; 18]))),
        randomise: |random, frame| {
            // Bits 32…64 choose the /64, which is the source; the rest is noise.
            frame[14 + 8 + 4..14 + 8 + 16].fill(0);
            let network = random.word() as u32;
            frame[14 + 8 + 4..14 + 8 + 8].copy_from_slice(&network.to_be_bytes());
            random.fill(&mut frame[14 + 8 + 8..14 + 8 + 16]);
        },
        cells: 1,
        // A newcomer of the same /32 that the flood claims to come from.
        newcomer: |number| {
            let source = Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(number) << 64 | 1).to_string();
            ethernet(&[], IPV6, &V6::from(&source).packet(UDP, &udp(9, 2, b"")))
        },
    });
}

fn endure(flood: &Flood) {
    let pair = Pair::silent();
    let mut guard = Guard::with(POLICY);
    guard.attach(&pair);
    let table_before = guard.table();
    let memory_before = map_memory();

    // A source spends all it has, before.
    let drained = ethernet(&[], IPV4, &V4::from("192.0.2.1").packet(UDP, &udp(9, 1, b"")));
    let begin = clock::precise();
    for _ in 0..5 {
        assert_eq!(guard.judge(&drained).outcome, PassWithin);
    }
    assert_eq!(guard.judge(&drained).outcome, DropOver);

    let done = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    let runner = guard.runner();
    let (mut again, mut served, mut newcomers) = (0_u64, 0_u64, 0_u32);
    thread::scope(|scope| {
        scope.spawn(|| {
            clock::pin_to(1);
            pair.peer.enter();
            let socket = RawSocket::open(PEER).expect("a raw socket on the peer's end");
            let mut random = Random::new(24);
            let mut frames = vec![flood.template.clone(); BATCH];
            while !done.load(Ordering::Relaxed) {
                for frame in &mut frames {
                    (flood.randomise)(&mut random, frame);
                }
                // A full ring refuses a part: the flood does not wait for it.
                sent.fetch_add(socket.send_batch(&frames).unwrap_or(0) as u64, Ordering::Relaxed);
            }
        });
        let stop = SetOnDrop(&done);
        clock::pin_to(0);
        let end = begin + FLOOD.as_nanos() as u64;
        while clock::precise() < end {
            again += u64::from(runner.judge(&drained) == PassWithin);
            // Newcomers come at 2 000 a second, far below what the quick rule may claim for.
            if clock::precise() - begin > u64::from(newcomers) * 500_000 {
                served += u64::from(runner.judge(&(flood.newcomer)(newcomers)) == PassWithin);
                newcomers += 1;
            }
        }
        drop(stop);
    });
    let seconds = (clock::precise() - begin) as f64 / 1e9;

    let judged = |outcome| guard.counted("slow", outcome).packets;
    let seen: u64 = [PassWithin, PassCrowd, DropOver, DropCrowd].into_iter().map(judged).sum();
    assert!(sent.load(Ordering::Relaxed) > 100_000 && seen > 100_000, "{seen} seen is no flood");
    assert!(judged(DropCrowd) > 0, "the claim budget was spent");

    // Promise 1 for the drained source: 5 + t ÷ 60, of which 5 are gone.
    assert!(again as f64 <= seconds / 60.0, "{again} more in {seconds} s");
    assert!(served as f64 >= 0.99 * f64::from(newcomers), "{served} of {newcomers} newcomers were served");

    // Claims stay within the budget, and live ways below half of the table.
    let meter = guard.tables().meters[usize::from(guard.tables().rules[1].meters[0])];
    let per_second = 64e9 * (1_u64 << meter.claims.shift) as f64 / meter.claims.multiplier as f64;
    let spread = guard.facts().tick_ns as f64 / 1e9;
    let budget = meter.claims.burst as f64 + per_second * (seconds + spread);
    let claimed = guard.buckets().iter().filter(|bucket| bucket.meter == meter.id).count();
    assert!(claimed as f64 <= budget, "{claimed} buckets claimed of at most {budget}");
    let table = guard.table();
    assert!(table.used <= table.entries / 2, "{} of {} ways are in use", table.used, table.entries);
    assert_eq!(table.entries, table_before.entries);
    // At half load a claim meets a set of eight live ways with the probability that a Poisson variable of mean 4
    // exceeds 7: 5.1 %. The load here is far less; a few are chance, many would be a fault.
    let evicted = table.pressure - table_before.pressure;
    assert!(
        evicted as f64 <= 0.051 * claimed as f64,
        "{evicted} live buckets were evicted of {claimed} claimed"
    );
    assert_eq!(map_memory(), memory_before, "the maps of this process grew");

    // Together the crowd is bounded too: eight times the rate and burst for each cell.
    let crowd = judged(PassCrowd) as f64;
    let most = flood.cells as f64 * 8.0 * (5.0 + (seconds + spread) / 60.0);
    assert!(crowd <= most, "{crowd} passed by crowd cells of at most {most}");
}
