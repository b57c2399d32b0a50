//! One of several processes that ask for the same key as fast as they can until they are refused, or until a time
//! is over. Prints how often it was admitted, and the server's time of its first and last answer in microseconds.
//!
//! `hammer SOCKET atomic|racy ALGORITHM COUNT WINDOW_MS BURST SUBJECT MILLISECONDS`: a burst of 0 is none; with 0
//! milliseconds it ends at the first refusal.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use limiter_tests::stores::redis_server::{NAMESPACE, SECRET};
use limiter_tests::stores::{limit, single};
use limiter_user::requests::key::{KeyHash, Secret};
use limiter_user::requests::limit::{Algorithm, Limit};
use limiter_user::requests::redis::{Address, LinkState, RedisConfig, RedisStore};
use limiter_user::requests::store::Mode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, how, algorithm, count, window, burst, subject, milliseconds] = &arguments[..] else {
        bail!("eight arguments are needed");
    };
    let algorithm =
        Algorithm::ALL.into_iter().find(|a| a.name() == algorithm).context("no such algorithm")?;
    let burst = Some(burst.parse()?).filter(|burst| *burst > 0);
    let limit = limit(algorithm, count.parse()?, Duration::from_millis(window.parse()?), burst);
    let subject = KeyHash::parse(subject).context("no subject")?;
    let time = Duration::from_millis(milliseconds.parse()?);
    let (admitted, first, last) = match how.as_str() {
        "atomic" => atomic(socket.into(), limit, subject, time).await?,
        _ => (racy(socket, &limit, subject)?, 0, 0),
    };
    println!("{admitted} {first} {last}");
    Ok(())
}

async fn atomic(
    socket: PathBuf,
    limit: Arc<Limit>,
    subject: KeyHash,
    time: Duration,
) -> Result<(u64, u64, u64)> {
    let mut config = RedisConfig::new(Address::Unix(socket), NAMESPACE, Secret::new(SECRET)?);
    config.deadline = Duration::from_secs(10);
    let store = RedisStore::start(&config)?;
    store.watch().wait_for(|state| *state == LinkState::Up).await?;
    let mut decision = single(&limit, subject, Mode::Consume, 1);
    decision.can_wait = true;
    let (mut admitted, mut first, start) = (0, None, Instant::now());
    loop {
        let (answer, now) = store.decide_at(&decision).await?;
        let allowed = answer.allowed;
        admitted += u64::from(allowed);
        let first = *first.get_or_insert(now);
        if start.elapsed() >= time && (!allowed || !time.is_zero()) {
            return Ok((admitted, first, now));
        }
    }
}

/// What many have written: read the count, and count one more if it is below the limit.
fn racy(socket: &str, limit: &Limit, subject: KeyHash) -> Result<u64> {
    let mut connection = redis::Client::open(format!("unix:{socket}"))?.get_connection()?;
    let key = format!("racy:{subject}");
    let mut admitted = 0;
    loop {
        let count: Option<u32> = redis::cmd("GET").arg(&key).query(&mut connection)?;
        if count.unwrap_or(0) >= limit.count() {
            return Ok(admitted);
        }
        redis::cmd("INCR").arg(&key).query::<u32>(&mut connection)?;
        admitted += 1;
    }
}
