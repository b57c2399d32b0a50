//! Publishing the policy's limits to the store, for clients that ask it themselves.
//!
//! `<ns>:policy` says which limits the fleet has; the function library `<ns>` answers `FCALL <ns>_check` as this
//! daemon would. Daemons do not read their limits from there: each decides by the policy it shows, so a rolling
//! deploy has no moment in which they disagree with themselves. Publishing happens when someone applies a policy,
//! at start only where nothing newer is there. Whoever finds another policy than its own reports it and leaves
//! it: two daemons of different mind do not overwrite each other for ever.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

pub use super::publication::{Publication, Published};
use super::redis::{RedisStore, store_error};
use super::store::StoreError;

/// How often the store is looked at.
const LOOK: Duration = Duration::from_secs(10);
const PUBLISH_DEADLINE: Duration = Duration::from_secs(5);

/// Why a policy is published now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// Someone applied it: it replaces what is there.
    Applied,
    /// This daemon started: it replaces nothing but an older serial.
    Started,
}

/// How the store stands to this daemon's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Not looked yet, or the store did not answer.
    Unknown(String),
    /// The store carries this daemon's limits; `functions` says whether clients can ask it.
    InStep { functions: bool },
    /// It carries another policy's. Someone has to apply one or the other.
    Conflict { hash: String, host: String, at: u64 },
}

impl RedisStore {
    fn policy_key(&self) -> String {
        format!("{}:policy", self.namespace())
    }

    /// What is published, by whomever; `None` for nothing, or nothing that can be read.
    pub async fn published(&self) -> Result<Option<Published>, StoreError> {
        let text: Option<String> = self.background(redis::cmd("GET").arg(self.policy_key())).await?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Publishes on a connection of its own: what is there now is watched, and replaced only if nobody else
    /// replaces it at the same time. Fails rather than wait for a store that does not answer.
    pub async fn publish(
        &self,
        publication: &Publication,
        occasion: Occasion,
    ) -> Result<Standing, StoreError> {
        let work = self.publish_in_time(publication, occasion);
        timeout(PUBLISH_DEADLINE, work).await.unwrap_or(Err(StoreError::Timeout(PUBLISH_DEADLINE)))
    }

    async fn publish_in_time(
        &self,
        publication: &Publication,
        occasion: Occasion,
    ) -> Result<Standing, StoreError> {
        let mut connection = self.own_connection().await?;
        let error = |error: redis::RedisError| store_error(&error);
        let key = self.policy_key();
        let functions = self.library_hash().await?;
        redis::cmd("WATCH").arg(&key).query_async::<()>(&mut connection).await.map_err(error)?;
        let there: Option<String> =
            redis::cmd("GET").arg(&key).query_async(&mut connection).await.map_err(error)?;
        let there = there.and_then(|text| serde_json::from_str::<Published>(&text).ok());
        if let Some(there) = &there
            && occasion == Occasion::Started
            && (there.hash == publication.hash || there.serial >= publication.serial)
        {
            return self.standing(publication, true).await;
        }
        let (seconds, _): (u64, u64) =
            redis::cmd("TIME").query_async(&mut connection).await.map_err(error)?;
        let record = Published {
            hash: publication.hash.clone(),
            serial: publication.serial,
            host: publication.host.clone(),
            at: seconds,
            endpoints: publication.endpoints.clone(),
        };
        let record = serde_json::to_string(&record).map_err(|e| StoreError::Invalid(e.to_string()))?;
        let has_functions = functions != Functions::Unknown;
        let done = self.exchange(&mut connection, &key, &record, publication, has_functions).await?;
        if !done {
            // Someone else published between our look and our word: theirs stands until someone applies again.
            return self.standing(publication, false).await;
        }
        tracing::info!(hash = publication.hash, "published the policy's limits to the store");
        Ok(Standing::InStep { functions: has_functions })
    }

    /// Record and library in one transaction; false if the record changed since it was watched.
    async fn exchange(
        &self,
        connection: &mut MultiplexedConnection,
        key: &str,
        record: &str,
        publication: &Publication,
        functions: bool,
    ) -> Result<bool, StoreError> {
        let mut exchange = redis::pipe();
        exchange.atomic().cmd("SET").arg(key).arg(record).ignore();
        if functions {
            exchange.cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(publication.code()).ignore();
        }
        let done: redis::Value = exchange.query_async(connection).await.map_err(|e| store_error(&e))?;
        Ok(done != redis::Value::Nil)
    }

    /// Compares what is there with `publication`. A library that is missing where the record is this policy's is
    /// loaded, if `repair`; another's is left alone.
    pub async fn standing(&self, publication: &Publication, repair: bool) -> Result<Standing, StoreError> {
        let Some(there) = self.published().await? else {
            return Ok(Standing::Unknown("nothing is published".into()));
        };
        let conflict = |hash: String| Standing::Conflict { hash, host: there.host.clone(), at: there.at };
        if there.hash != publication.hash {
            return Ok(conflict(there.hash.clone()));
        }
        match self.library_hash().await? {
            Functions::Unknown => Ok(Standing::InStep { functions: false }),
            Functions::Library(hash) if hash == publication.hash => Ok(Standing::InStep { functions: true }),
            Functions::Library(hash) => Ok(conflict(hash)),
            Functions::NoLibrary if repair => {
                let mut load = redis::cmd("FUNCTION");
                load.arg("LOAD").arg(publication.code());
                self.background::<redis::Value>(&load).await?;
                tracing::info!("loaded the function library that was missing in the store");
                Ok(Standing::InStep { functions: true })
            }
            Functions::NoLibrary => Ok(Standing::Unknown("the function library is missing".into())),
        }
    }

    async fn library_hash(&self) -> Result<Functions, StoreError> {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(self.namespace());
        let listed: Vec<redis::Value> = match self.background(&list).await {
            Ok(listed) => listed,
            Err(StoreError::Refused(text)) if text.contains("unknown command") => {
                return Ok(Functions::Unknown);
            }
            Err(error) => return Err(error),
        };
        if listed.is_empty() {
            return Ok(Functions::NoLibrary);
        }
        let mut ask = redis::cmd("FCALL");
        ask.arg(format!("{}_policy", self.namespace())).arg(0);
        match self.background(&ask).await {
            Ok(hash) => Ok(Functions::Library(hash)),
            // A library of this name that is not limiter's.
            Err(StoreError::Refused(text)) if text.contains("Function not found") => {
                Ok(Functions::Library(String::new()))
            }
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Functions {
    /// The server is older than functions.
    Unknown,
    NoLibrary,
    /// There is one, with this policy's hash.
    Library(String),
}

/// Looks every ten seconds how the store stands to this daemon's policy.
pub struct Publisher {
    store: Arc<RedisStore>,
    own: watch::Sender<Option<Arc<Publication>>>,
    standing: Arc<watch::Sender<Standing>>,
    task: JoinHandle<()>,
}

impl Publisher {
    pub fn start(store: Arc<RedisStore>) -> Self {
        let (own, own_seen) = watch::channel(None);
        let standing = Arc::new(watch::channel(Standing::Unknown("not looked yet".into())).0);
        let task = tokio::spawn(look(Arc::clone(&store), own_seen, Arc::clone(&standing)));
        Self { store, own, standing, task }
    }

    /// Publishes, and from now on compares the store with this policy. An error leaves the comparison in place:
    /// the daemon decides by its own policy either way.
    pub async fn publish(
        &self,
        publication: Publication,
        occasion: Occasion,
    ) -> Result<Standing, StoreError> {
        let publication = Arc::new(publication);
        self.own.send_replace(Some(Arc::clone(&publication)));
        let result = self.store.publish(&publication, occasion).await;
        self.standing.send_replace(match &result {
            Ok(standing) => standing.clone(),
            Err(error) => Standing::Unknown(error.to_string()),
        });
        result
    }

    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look(
    store: Arc<RedisStore>,
    own: watch::Receiver<Option<Arc<Publication>>>,
    standing: Arc<watch::Sender<Standing>>,
) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(publication) = own.borrow().clone() else { continue };
        let found = match store.standing(&publication, true).await {
            // Emptied, or never published because the store was away: the rule of a start.
            Ok(Standing::Unknown(_)) => store.publish(&publication, Occasion::Started).await,
            other => other,
        };
        let found = found.unwrap_or_else(|error| Standing::Unknown(error.to_string()));
        standing.send_if_modified(|old| {
            let changed = *old != found;
            if let (true, Standing::Conflict { hash, host, .. }) = (changed, &found) {
                tracing::warn!(hash, host, "the store carries the limits of another policy");
            }
            *old = found;
            changed
        });
    }
}
