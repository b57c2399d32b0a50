//! The Redis store: one script per decision, on the server's clock.
//!
//! A decision is sent once. Only a server that says it does not know the script (`NOSCRIPT`) is asked again,
//! with the script's text: every other failure may have charged, and charging twice is worse than not knowing.
//! Every decision has an answer within the deadline.

mod acl;
mod config;
mod failure;
mod link;
mod plans;
mod reply;
mod script;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

pub use acl::acl_rules;
pub use config::{Address, ConfigError, DEFAULT_DEADLINE, Password, RedisConfig, Tls};
pub(in crate::requests) use failure::store_error;
pub use link::LinkState;
pub(in crate::requests) use script::{Script, library, lua_string};

use super::key::full_key;
use super::store::{Answer, Decision, Mode, Store, StoreError};
use failure::is_no_script;
use link::{Checks, Link, Up};
use script::Scripts;

/// For what is not a decision: publishing, heartbeats, plans.
const BACKGROUND_DEADLINE: Duration = Duration::from_secs(1);

/// Counted since the start.
#[derive(Debug, Default)]
struct Counts {
    decisions: AtomicU64,
    timeouts: AtomicU64,
    failures: AtomicU64,
    unreadable: AtomicU64,
    scripts_sent: AtomicU64,
}

/// A reading of the store's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RedisCounts {
    pub decisions: u64,
    /// Decisions without an answer in time.
    pub timeouts: u64,
    /// Decisions that failed otherwise, also because no connection was up.
    pub failures: u64,
    /// States of a wrong type or form, taken as empty.
    pub unreadable: u64,
    /// Scripts sent in full, because the server did not know them.
    pub scripts_sent: u64,
    pub connects: u64,
}

/// See the module.
pub struct RedisStore {
    namespace: String,
    deadline: Duration,
    address: Address,
    checks: Checks,
    link: Link,
    scripts: Scripts,
    counts: Counts,
}

impl RedisStore {
    /// Starts connecting in the background; decisions fail until that has succeeded. Needs a tokio runtime.
    pub fn start(config: &RedisConfig) -> Result<Arc<Self>, ConfigError> {
        let client = config.client()?;
        let checks = Checks {
            secret_key: format!("{}:meta:{{fleet}}:secret", config.namespace),
            fingerprint: config.secret.fingerprint(),
        };
        Ok(Arc::new(Self {
            namespace: config.namespace.clone(),
            deadline: config.deadline,
            address: config.address.clone(),
            link: Link::start(client, checks.clone()),
            checks,
            scripts: Scripts::default(),
            counts: Counts::default(),
        }))
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether decisions are made, and if not, why.
    pub fn watch(&self) -> watch::Receiver<LinkState> {
        self.link.watch()
    }

    pub fn counts(&self) -> RedisCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RedisCounts {
            decisions: read(&self.counts.decisions),
            timeouts: read(&self.counts.timeouts),
            failures: read(&self.counts.failures),
            unreadable: read(&self.counts.unreadable),
            scripts_sent: read(&self.counts.scripts_sent),
            connects: self.link.connects(),
        }
    }

    pub(in crate::requests) fn secret_key(&self) -> &str {
        &self.checks.secret_key
    }

    pub(in crate::requests) fn fingerprint(&self) -> &str {
        &self.checks.fingerprint
    }

    /// Another host has put another secret in the store's place: no more decisions here until that is mended.
    pub(in crate::requests) fn refuse_other_secret(&self) -> StoreError {
        let reason = link::other_secret(&self.checks.secret_key);
        if let Ok(up) = self.link.get() {
            self.link.break_off(&up, reason.clone());
        }
        reason
    }

    /// A connection of its own, for what a shared one cannot do.
    pub(in crate::requests) async fn own_connection(&self) -> Result<MultiplexedConnection, StoreError> {
        self.link.own_connection().await
    }

    /// `decide`, and the server's clock in microseconds at the decision.
    pub async fn decide_at(&self, decision: &Decision) -> Result<(Answer, u64), StoreError> {
        if decision.charges.is_empty() {
            return Err(StoreError::Invalid("a decision without limits".into()));
        }
        let answer = self.ask(decision).await;
        let count = match &answer {
            Ok(_) => &self.counts.decisions,
            Err(StoreError::Timeout(_)) => &self.counts.timeouts,
            Err(_) => &self.counts.failures,
        };
        count.fetch_add(1, Ordering::Relaxed);
        answer
    }

    async fn ask(&self, decision: &Decision) -> Result<(Answer, u64), StoreError> {
        let algorithms = decision.charges.iter().map(|charge| charge.limit.algorithm());
        let closed = decision.charges.iter().any(|charge| charge.limit.count() == 0);
        let script = self.scripts.get(algorithms, closed);
        let up = self.link.get()?;
        let deadline = Deadline::after(self.deadline);
        let by_name = self.command("EVALSHA", &script.sha, decision);
        let mut result = self.send(&up, &by_name, deadline).await?;
        if result.as_ref().is_err_and(is_no_script) {
            self.counts.scripts_sent.fetch_add(1, Ordering::Relaxed);
            result = self.send(&up, &self.command("EVAL", &script.text, decision), deadline).await?;
        }
        let numbers: Vec<i64> = result.map_err(|error| self.link.failed(&up, &error))?;
        let reply = reply::parse(&numbers, decision.charges.len())?;
        if reply.unreadable > 0 {
            self.counts.unreadable.fetch_add(reply.unreadable, Ordering::Relaxed);
        }
        Ok((reply.answer, reply.micros))
    }

    /// Sends one command. The outer error is a timeout.
    async fn send<T: FromRedisValue>(
        &self,
        up: &Up,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<Result<T, RedisError>, StoreError> {
        let mut connection: MultiplexedConnection = up.connection.clone();
        match timeout_at(deadline.at, command.query_async(&mut connection)).await {
            Ok(result) => {
                if result.is_ok() {
                    self.link.succeeded();
                }
                Ok(result)
            }
            Err(_) => {
                self.link.timed_out(up);
                Err(StoreError::Timeout(deadline.whole))
            }
        }
    }

    fn command(&self, verb: &str, script: &str, decision: &Decision) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(decision.charges.len());
        for charge in &decision.charges {
            command.arg(full_key(&self.namespace, &decision.tag, charge.limit.id(), &charge.subject));
        }
        command.arg(mode_letter(decision.mode)).arg(u8::from(decision.can_wait));
        for charge in &decision.charges {
            let limit = &charge.limit;
            let mut letter = [0; 4];
            command.arg(&*limit.algorithm().letter().encode_utf8(&mut letter));
            command.arg(u8::from(!limit.observe())).arg(charge.cost).arg(limit.count());
            command.arg(limit.window_units()).arg(limit.burst()).arg(limit.unit().micros());
        }
        command
    }

    /// Runs a command that is not a decision, on the shared connection.
    pub(in crate::requests) async fn background<T: FromRedisValue>(
        &self,
        command: &Cmd,
    ) -> Result<T, StoreError> {
        self.command_within(command, BACKGROUND_DEADLINE).await
    }

    async fn command_within<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: Duration,
    ) -> Result<T, StoreError> {
        let up = self.link.get()?;
        let result = self.send(&up, command, Deadline::after(deadline)).await?;
        result.map_err(|error| self.link.failed(&up, &error))
    }

    /// Runs a script that is not a decision.
    pub(in crate::requests) async fn background_script<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[&str],
    ) -> Result<T, StoreError> {
        let up = self.link.get()?;
        let deadline = Deadline::after(BACKGROUND_DEADLINE);
        let command = |verb: &str, name: &str| {
            let mut command = redis::cmd(verb);
            command.arg(name).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        let mut result = self.send(&up, &command("EVALSHA", &script.sha), deadline).await?;
        if result.as_ref().is_err_and(is_no_script) {
            result = self.send(&up, &command("EVAL", &script.text), deadline).await?;
        }
        result.map_err(|error| self.link.failed(&up, &error))
    }
}

/// When an answer must be there, and how long that was from the start.
#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    whole: Duration,
}

impl Deadline {
    fn after(whole: Duration) -> Self {
        Self { at: Instant::now() + whole, whole }
    }
}

fn mode_letter(mode: Mode) -> &'static str {
    match mode {
        Mode::Consume => "C",
        Mode::Peek => "P",
        Mode::Refund => "R",
        Mode::Settle => "S",
    }
}

#[async_trait]
impl Store for RedisStore {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn is_sharded(&self) -> bool {
        true
    }

    async fn decide(&self, decision: &Decision) -> Result<Answer, StoreError> {
        self.decide_at(decision).await.map(|(answer, _)| answer)
    }

    async fn reset(&self, decision: &Decision) -> Result<(), StoreError> {
        let mut command = redis::cmd("DEL");
        for charge in &decision.charges {
            command.arg(full_key(&self.namespace, &decision.tag, charge.limit.id(), &charge.subject));
        }
        self.background::<redis::Value>(&command).await.map(drop)
    }
}
