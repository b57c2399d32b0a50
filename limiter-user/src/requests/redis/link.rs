//! The connection: made, watched, broken off and made again, in the background.
//!
//! A decision never waits for a connection. Either one is up, or the reason it is not is the answer. The link is
//! broken off when the connection breaks, when the server became a replica, and after a few timeouts in a row
//! (the breaker). Then new connections are tried with backoff and jitter, at least once a second; a new one is
//! used when the server has run a script on it that reads its clock, and has the fleet's secret.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::failure::{store_error, wants_new_connection};
use crate::requests::store::StoreError;

/// Timeouts in a row that open the breaker.
const TIMEOUTS_TO_OPEN: u32 = 4;
/// With the longest pause below this makes at least one probe a second.
const ATTEMPT_DEADLINE: Duration = Duration::from_millis(450);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that lived this long was a good one: the next backoff starts anew.
const GOOD_LIFE: Duration = Duration::from_secs(5);
/// Decisions on their way at once, and their memory, are bounded.
const MOST_IN_FLIGHT: usize = 4096;

/// What the link reports of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    Up,
    Down(StoreError),
}

/// A connection, and which one it is.
#[derive(Clone)]
pub(super) struct Up {
    pub connection: MultiplexedConnection,
    generation: u64,
}

pub(super) struct Link {
    current: Arc<Shared>,
    keeper: JoinHandle<()>,
}

struct Shared {
    client: Client,
    checks: Checks,
    state: RwLock<Result<Up, StoreError>>,
    watch: watch::Sender<LinkState>,
    broken_off: Notify,
    timeouts_in_a_row: AtomicU32,
    connects: AtomicU64,
}

/// What a new connection is asked before it is used.
#[derive(Debug, Clone)]
pub(super) struct Checks {
    pub secret_key: String,
    pub fingerprint: String,
}

impl Link {
    /// Starts connecting; needs a tokio runtime.
    pub fn start(client: Client, checks: Checks) -> Self {
        let connecting = StoreError::Unreachable("not connected yet".into());
        let current = Arc::new(Shared {
            client,
            checks,
            state: RwLock::new(Err(connecting.clone())),
            watch: watch::channel(LinkState::Down(connecting)).0,
            broken_off: Notify::new(),
            timeouts_in_a_row: AtomicU32::new(0),
            connects: AtomicU64::new(0),
        });
        let keeper = tokio::spawn(keep(Arc::clone(&current)));
        Self { current, keeper }
    }

    /// The connection, or why there is none.
    pub fn get(&self) -> Result<Up, StoreError> {
        self.current.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn watch(&self) -> watch::Receiver<LinkState> {
        self.current.watch.subscribe()
    }

    /// How often a connection was made.
    pub fn connects(&self) -> u64 {
        self.current.connects.load(Ordering::Relaxed)
    }

    /// A connection of its own, for what a shared one cannot do.
    pub async fn own_connection(&self) -> Result<MultiplexedConnection, StoreError> {
        connect(&self.current.client).await
    }

    pub fn succeeded(&self) {
        if self.current.timeouts_in_a_row.load(Ordering::Relaxed) != 0 {
            self.current.timeouts_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    pub fn timed_out(&self, on: &Up) {
        if self.current.timeouts_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_TO_OPEN {
            self.break_off(on, StoreError::Open);
        }
    }

    /// An error the server or the connection gave.
    pub fn failed(&self, on: &Up, error: &RedisError) -> StoreError {
        let reason = store_error(error);
        if wants_new_connection(error) {
            self.break_off(on, reason.clone());
        } else {
            self.succeeded();
        }
        reason
    }

    /// Stops using the connection; a newer one stays.
    pub fn break_off(&self, on: &Up, reason: StoreError) {
        let mut state = self.current.state.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*state, Ok(up) if up.generation == on.generation) {
            tracing::warn!(%reason, "the connection to the store is given up");
            // It holds for questions that are never sent: none of them can have charged anything.
            let reason = match reason {
                StoreError::Broken(text) | StoreError::Malformed(text) => StoreError::Unreachable(text),
                reason => reason,
            };
            *state = Err(reason.clone());
            self.current.watch.send_replace(LinkState::Down(reason));
            self.current.broken_off.notify_one();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

async fn keep(shared: Arc<Shared>) {
    let mut pause = FIRST_PAUSE;
    let mut generation = 0;
    loop {
        let attempt = timeout(ATTEMPT_DEADLINE, connect_and_check(&shared)).await;
        match attempt.unwrap_or_else(|_| Err(StoreError::Unreachable("connecting took too long".into()))) {
            Ok(connection) => {
                generation += 1;
                let since = Instant::now();
                shared.connects.fetch_add(1, Ordering::Relaxed);
                shared.timeouts_in_a_row.store(0, Ordering::Relaxed);
                shared.set(Ok(Up { connection, generation }));
                tracing::info!("connected to the store");
                shared.broken_off.notified().await;
                if since.elapsed() >= GOOD_LIFE {
                    pause = FIRST_PAUSE;
                }
            }
            Err(reason) => shared.set(Err(reason)),
        }
        // Half of the pause is drawn: a fleet does not come back in step.
        sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl Shared {
    fn set(&self, state: Result<Up, StoreError>) {
        let report = match &state {
            Ok(_) => LinkState::Up,
            Err(reason) => LinkState::Down(reason.clone()),
        };
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        if let LinkState::Down(reason) = &report
            && *self.watch.borrow() != report
        {
            tracing::warn!(%reason, "no connection to the store");
        }
        self.watch.send_if_modified(|old| std::mem::replace(old, report.clone()) != report);
    }
}

async fn connect(client: &Client) -> Result<MultiplexedConnection, StoreError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ATTEMPT_DEADLINE))
        .set_response_timeout(None)
        .set_concurrency_limit(MOST_IN_FLIGHT);
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(|error| {
        match store_error(&error) {
            StoreError::Broken(text) => StoreError::Unreachable(text),
            other => other,
        }
    })
}

async fn connect_and_check(shared: &Shared) -> Result<MultiplexedConnection, StoreError> {
    let mut connection = connect(&shared.client).await?;
    let time: Result<Vec<u64>, RedisError> =
        redis::cmd("EVAL").arg("return redis.call('TIME')").arg(0).query_async(&mut connection).await;
    match time {
        Ok(time) if time.len() == 2 => {}
        Ok(_) => return Err(StoreError::Refused("its TIME is not a time".into())),
        Err(error) => {
            return Err(match store_error(&error) {
                StoreError::Refused(text) => StoreError::Refused(format!(
                    "limits are counted on the server's clock, and it does not let a script read TIME: {text}"
                )),
                other => other,
            });
        }
    }
    check_secret(&shared.checks, &mut connection).await?;
    Ok(connection)
}

/// The first host writes the fingerprint of its secret; another secret would give every caller a second bucket.
async fn check_secret(checks: &Checks, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
    let get = redis::cmd("GET").arg(&checks.secret_key).to_owned();
    let mut stored: Option<String> = get.query_async(connection).await.map_err(|e| store_error(&e))?;
    if stored.is_none() {
        let mut set = redis::cmd("SET");
        set.arg(&checks.secret_key).arg(&checks.fingerprint).arg("NX");
        set.query_async::<redis::Value>(connection).await.map_err(|e| store_error(&e))?;
        stored = get.query_async(connection).await.map_err(|e| store_error(&e))?;
    }
    match stored {
        Some(stored) if stored == checks.fingerprint => Ok(()),
        _ => Err(other_secret(&checks.secret_key)),
    }
}

pub(super) fn other_secret(key: &str) -> StoreError {
    StoreError::Refused(format!(
        "the hosts that use it have another secret; give this host the fleet's `secret-file`, or, to change the \
         secret of the whole fleet, delete `{key}`"
    ))
}
