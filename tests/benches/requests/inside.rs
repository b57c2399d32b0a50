//! Decisions inside the process: no socket, one thread.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::Result;
use limiter_tests::stores::{fresh, limit, single};
use limiter_tests::tier::Served;
use limiter_user::requests::embedded::EmbeddedStore;
use limiter_user::requests::engine::Request;
use limiter_user::requests::key::KeyHash;
use limiter_user::requests::limit::Algorithm;
use limiter_user::requests::reject_cache::{Fingerprints, Refusal, RejectCache};
use limiter_user::requests::store::Mode;

use super::table::{Figures, Table};
use super::{Cores, POLICY, ROUNDS, pin};

const TIMES: u32 = 200_000;
const KEYS: usize = 100_000;

pub fn measure(cores: Cores, table: &mut Table) -> Result<()> {
    pin(cores.deciding)?;
    let store = EmbeddedStore::new(1 << 20);
    let keys: Vec<KeyHash> = (0..KEYS).map(|_| fresh()).collect();
    let served = Served::embedded(POLICY);
    let engine = served.tier.engine();
    for _ in 0..ROUNDS {
        for algorithm in Algorithm::ALL {
            let count = if algorithm == Algorithm::SlidingWindowLog { 1000 } else { 1_000_000 };
            let burst = algorithm.is_bucket().then_some(count);
            let limit = limit(algorithm, count, Duration::from_secs(60), burst);
            let mut decision = single(&limit, keys[0], Mode::Consume, 1);
            let mut next = keys.iter().cycle();
            let rate = per_second(|| {
                decision.charges[0].subject = *next.next().unwrap_or(&keys[0]);
                black_box(store.decide_now(&decision)).is_ok()
            });
            table.add("embedded store, 100 000 keys, one thread", algorithm.name(), Figures::rate(rate));
        }
        let request = |path: &'static str| {
            let mut request = Request::from(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7)));
            request.target = Some(path);
            request.method = Some("GET");
            request
        };
        for (name, path) in [("engine, admitted", "/open"), ("engine, refusal remembered", "/spent")] {
            let rate = served.runtime.block_on(async {
                let mut done = 0;
                let start = Instant::now();
                while done < TIMES {
                    black_box(engine.decide(request(path)).await);
                    done += 1;
                }
                f64::from(TIMES) / start.elapsed().as_secs_f64()
            });
            table.add("whole decision in process, hot key, embedded", name, Figures::rate(rate));
        }
        let [hot, hit, miss] = remembered();
        let group = "reject cache alone, 100 000 refusals (asked of a hit: 2 000 000, which is 500 ns)";
        table.add(group, "hit, one hot key", Figures::rate(hot));
        table.add(group, "hit, another of all each time", Figures::rate(hit));
        table.add(group, "miss", Figures::rate(miss));
    }
    Ok(())
}

/// Look-ups per second of one remembered bucket, of all that are remembered, and of such that are not.
fn remembered() -> [f64; 3] {
    let (cache, prints) = (RejectCache::new(1 << 18), Fingerprints::default());
    let print = |number: u32| prints.start().part(b"source").part(&number.to_le_bytes()).finish();
    let hour = Duration::from_secs(3600);
    let refusal = Refusal { remaining: 0, retry_after: Some(hour), reset: hour };
    for number in 0..KEYS as u32 {
        cache.insert(print(number), 1, refusal, cache.epoch(), Instant::now());
    }
    let mut number = 0;
    let mut look_up = |from: u32, step: u32| {
        per_second(|| {
            number = (number + step) % KEYS as u32;
            cache.get(print(from + number), 1, Instant::now()).is_some()
        })
    };
    [look_up(0, 0), look_up(0, 7919), look_up(KEYS as u32, 7919)]
}

fn per_second(mut work: impl FnMut() -> bool) -> f64 {
    let start = Instant::now();
    for _ in 0..TIMES {
        black_box(work());
    }
    f64::from(TIMES) / start.elapsed().as_secs_f64()
}
