//! The store without an interface, beside the decision script under `redis-benchmark`.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use limiter_tests::stores::redis_server::RedisServer;
use limiter_tests::stores::{fresh, limit, named, single};
use limiter_user::requests::limit::Algorithm;
use limiter_user::requests::redis::{LinkState, RedisStore};
use limiter_user::requests::store::{Charge, Decision, Mode, Store};
use tokio::task::JoinSet;

use super::table::{Figures, Table};
use super::{AT_ONCE, Cores, ROUNDS, pin};

const QUESTIONS: usize = 60_000;
pub const CONTROL: &str = "the script under `redis-benchmark`";

pub fn measure(cores: Cores, table: &mut Table) -> Result<()> {
    pin(cores.asking)?;
    let server = RedisServer::start(&[]);
    pin(cores.deciding)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut config = server.config();
        config.deadline = Duration::from_secs(10);
        let store = RedisStore::start(&config)?;
        store.watch().wait_for(|state| *state == LinkState::Up).await?;
        for _ in 0..ROUNDS {
            for (name, decision) in questions() {
                let group = format!("Redis, {name}, hot key");
                table.control(&group, CONTROL);
                let words = words_of(&server, &store, &decision).await?;
                table.add(&group, CONTROL, Figures::rate(redis_benchmark(cores, &server, &words)?));
                table.add(&group, "limiter in process", Figures::rate(in_process(&store, &decision).await?));
            }
            table.add(
                "Redis, nothing to decide",
                "`GET` under `redis-benchmark`",
                Figures::rate(redis_benchmark(cores, &server, &["GET".into(), "none".into()])?),
            );
        }
        Ok(())
    })
}

/// The script of a token bucket under `redis-benchmark`.
pub struct RawScript<'a> {
    cores: Cores,
    server: &'a RedisServer,
    words: Vec<String>,
}

impl<'a> RawScript<'a> {
    pub fn start(cores: Cores, server: &'a RedisServer) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let words = runtime.block_on(async {
            let store = RedisStore::start(&server.config())?;
            store.watch().wait_for(|state| *state == LinkState::Up).await?;
            let bucket =
                limit(Algorithm::TokenBucket, 100_000_000, Duration::from_secs(60), Some(100_000_000));
            words_of(server, &store, &single(&bucket, fresh(), Mode::Consume, 1)).await
        })?;
        Ok(Self { cores, server, words })
    }

    /// About one key, or about another of a million each time.
    pub fn figures(&self, many: bool) -> Result<Figures> {
        let mut words = self.words.clone();
        if many {
            // `redis-benchmark -r` writes twelve digits there.
            let key = words.get_mut(3).context("a decision without a key")?;
            let fixed = key.len().checked_sub(12).context("a key shorter than that")?;
            key.replace_range(fixed.., "__rand_int__");
        }
        redis_benchmark(self.cores, self.server, &words).map(Figures::rate)
    }
}

fn questions() -> Vec<(String, Decision)> {
    let window = Duration::from_secs(60);
    let of = |algorithm: Algorithm| {
        let count = if algorithm == Algorithm::SlidingWindowLog { 1000 } else { 10_000_000 };
        limit(algorithm, count, window, algorithm.is_bucket().then_some(count))
    };
    let mut questions: Vec<(String, Decision)> = Algorithm::ALL
        .into_iter()
        .map(|algorithm| {
            let mut decision = single(&of(algorithm), fresh(), Mode::Consume, 1);
            decision.can_wait = true;
            (algorithm.name().to_owned(), decision)
        })
        .collect();
    let refused = limit(Algorithm::TokenBucket, 1, Duration::from_secs(86_400), Some(1));
    questions.push(("token-bucket refused".into(), single(&refused, fresh(), Mode::Consume, 1)));
    let mut login = single(&of(Algorithm::TokenBucket), fresh(), Mode::Consume, 1);
    for (name, algorithm) in [("second", Algorithm::TokenBucket), ("third", Algorithm::SlidingWindow)] {
        let burst = algorithm.is_bucket().then_some(10_000_000);
        let limit = named(name, algorithm, 10_000_000, window, burst, false);
        login.charges.push(Charge { limit, subject: fresh(), cost: 1 });
    }
    questions.push(("three limits".into(), login));
    questions
}

/// The command as the server got it.
async fn words_of(server: &RedisServer, store: &RedisStore, decision: &Decision) -> Result<Vec<String>> {
    store.decide(decision).await?;
    server.run::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    store.decide(decision).await?;
    // What a script does is logged too, and a log's state is no text.
    type Entry = (i64, i64, i64, Vec<Vec<u8>>, Vec<u8>, Vec<u8>);
    let log: Vec<Entry> = server.run(&["SLOWLOG", "GET", "8"]);
    server.run::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
    let words = log.into_iter().map(|entry| entry.3).find(|words| words[0] == b"EVALSHA");
    words
        .context("no decision in the slow log")?
        .into_iter()
        .map(|word| String::from_utf8(word).context("a decision is text"))
        .collect()
}

fn redis_benchmark(cores: Cores, server: &RedisServer, words: &[String]) -> Result<f64> {
    let output = Command::new("taskset")
        .args(["-c", &cores.deciding.to_string(), "redis-benchmark", "--csv", "-s"])
        .arg(server.socket())
        .args(["-c", &AT_ONCE.to_string(), "-n", &QUESTIONS.to_string(), "-r", "1000000"])
        .args(words)
        .output()
        .context("`redis-benchmark` is needed")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "redis-benchmark failed: {text}");
    // The last line: "command","rps",…; the command has no quotes or commas of its own.
    let line = text.lines().last().context("no figures")?;
    let rate = line.split("\",\"").nth(1).with_context(|| line.to_owned())?;
    Ok(rate.parse()?)
}

async fn in_process(store: &Arc<RedisStore>, decision: &Decision) -> Result<f64> {
    let start = Instant::now();
    let mut askers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (store, decision) = (Arc::clone(store), decision.clone());
        askers.spawn(async move {
            for _ in 0..QUESTIONS / AT_ONCE {
                store.decide(&decision).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = askers.join_next().await {
        done??;
    }
    Ok(QUESTIONS as f64 / start.elapsed().as_secs_f64())
}
