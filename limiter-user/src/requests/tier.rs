//! The request tier of a daemon: the engine, its store, what runs beside it, and the socket it is asked on.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::config::{BadSetting, StoreSettings, TierSettings};
use super::embedded::EmbeddedStore;
use super::engine::{Engine, Parts};
use super::failure::{HEARTBEAT, Instances};
use super::heartbeat::Heartbeat;
use super::local_plans::LocalPlans;
use super::metrics::RequestMetrics;
use super::outage::Outage;
use super::policy::RequestPolicy;
use super::publish::{Occasion, Publication, Publisher, Standing};
use super::redis::{LinkState, RedisStore};
use super::serve::{Bound, ServeError};
use super::store::{PlanStore, Store, StoreError};

/// Buckets for this host's share while Redis is away.
const LOCAL_BUCKETS: usize = 1 << 18;

/// Why the tier does not start.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    #[error(transparent)]
    Setting(#[from] BadSetting),
    #[error("the settings of `[redis]` cannot be used: {0}")]
    Redis(#[from] super::redis::ConfigError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("the plans of this host cannot be read: {0}")]
    Plans(#[from] StoreError),
}

/// What `status` says of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// `embedded` or `redis`.
    pub kind: String,
    pub healthy: bool,
    /// Where it is; absent for the embedded one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Why it gives no answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How the limits published in the store stand to this host's: `in-step`, `conflict`, `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<String>,
    /// Instances that share it, as last heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<u32>,
    /// Endpoints of the policy in force.
    pub endpoints: usize,
}

struct Shared {
    store: Arc<RedisStore>,
    publisher: Arc<Publisher>,
    host: String,
    heartbeat: Mutex<Option<Heartbeat>>,
}

/// See the module. Ends what it started when dropped.
pub struct Tier {
    engine: Arc<Engine>,
    instances: Arc<Instances>,
    metrics: Arc<RequestMetrics>,
    redis: Option<Shared>,
    /// Where `/v1/check` is answered, when it is a TCP address.
    address: Option<SocketAddr>,
    runtime: Handle,
    tasks: Vec<JoinHandle<()>>,
}

impl Tier {
    /// Starts the store and binds the socket. `state` is the daemon's directory.
    pub async fn start(settings: TierSettings, state: &Path) -> Result<Self, TierError> {
        let metrics = Arc::new(RequestMetrics::default());
        let instances = Arc::new(Instances::new(Some(state.join("instances"))));
        let (store, plans, redis): (Arc<dyn Store>, Arc<dyn PlanStore>, _) = match settings.store {
            StoreSettings::Embedded { buckets } => {
                metrics.set_store_up(true);
                // Under another secret the hashes of a file would name nobody.
                let file = settings.secret_is_kept.then(|| state.join("plans.json"));
                let plans = LocalPlans::open(file)?;
                (Arc::new(EmbeddedStore::new(buckets)), Arc::new(plans), None)
            }
            StoreSettings::Redis(config) => {
                let store = RedisStore::start(&config)?;
                let host = nix::unistd::gethostname()
                    .map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned());
                let shared = Shared {
                    heartbeat: Mutex::new(Some(Heartbeat::start(
                        Arc::clone(&store),
                        &host,
                        Arc::clone(&instances),
                    ))),
                    publisher: Arc::new(Publisher::start(Arc::clone(&store))),
                    store: Arc::clone(&store),
                    host,
                };
                (Arc::<RedisStore>::clone(&store), store, Some(shared))
            }
        };
        let engine = Arc::new(Engine::new(Parts {
            store,
            plans: Some(plans),
            local: Arc::new(EmbeddedStore::new(LOCAL_BUCKETS)),
            outage: Outage::default(),
            secret: settings.secret,
            instances: Arc::clone(&instances),
            metrics: Arc::clone(&metrics),
        }));
        let mut tasks = Vec::new();
        let mut address = None;
        if let Some(listen) = &settings.http {
            let bound = Bound::bind(listen).await?;
            tracing::info!(store = engine.store_kind(), at = ?listen.at, "requests are answered");
            address = bound.address();
            tasks.push(tokio::spawn(bound.serve(Arc::clone(&engine))));
        }
        tasks.push(tokio::spawn(look_at_plans(Arc::clone(&engine))));
        if let Some(shared) = &redis {
            let look = look_at_store(
                Arc::clone(&shared.store),
                Arc::clone(&shared.publisher),
                Arc::clone(&instances),
                Arc::clone(&metrics),
            );
            tasks.push(tokio::spawn(look));
            tasks.push(tokio::spawn(pay_back(Arc::clone(&engine), shared.store.watch())));
        }
        Ok(Self { engine, instances, metrics, redis, address, runtime: Handle::current(), tasks })
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub fn metrics(&self) -> &Arc<RequestMetrics> {
        &self.metrics
    }

    /// Where `/v1/check` is answered, when it is a TCP address.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Puts the request part of a policy in force and publishes it in the background. May be called from any
    /// thread.
    pub fn apply(&self, policy: &RequestPolicy, hash: &str, occasion: Occasion) {
        if let Some(shared) = &self.redis {
            let namespace = shared.store.namespace();
            let publication = Publication::new(namespace, policy, hash, policy.serial, &shared.host);
            let publisher = Arc::clone(&shared.publisher);
            self.runtime.spawn(async move {
                if let Err(error) = publisher.publish(publication, occasion).await {
                    tracing::warn!(%error, "the limits are not published to the store yet");
                }
            });
        }
        self.engine.apply(policy.clone(), hash);
    }

    pub fn status(&self) -> StoreStatus {
        let endpoints = self.engine.endpoints();
        let Some(shared) = &self.redis else {
            return StoreStatus {
                kind: "embedded".to_owned(),
                healthy: true,
                address: None,
                error: None,
                published: None,
                instances: None,
                endpoints,
            };
        };
        let error = match &*shared.store.watch().borrow() {
            LinkState::Up => None,
            LinkState::Down(error) => Some(error.to_string()),
        };
        let published = match shared.publisher.standing() {
            Standing::Unknown(_) => "unknown",
            Standing::InStep { .. } => "in-step",
            Standing::Conflict { .. } => "conflict",
        };
        StoreStatus {
            kind: "redis".to_owned(),
            healthy: error.is_none(),
            address: Some(shared.store.address().to_string()),
            error,
            published: Some(published.to_owned()),
            instances: self.instances.known().map(|known| known.get()),
            endpoints,
        }
    }

    /// What `status` warns of.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        match &self.redis {
            None => warnings
                .push("request limits are per host: the store is embedded, N hosts admit N times".to_owned()),
            Some(shared) => {
                if let Standing::Conflict { hash, host, .. } = shared.publisher.standing() {
                    warnings.push(format!(
                        "the store carries the limits of another policy ({}, published by `{host}`): apply one of them everywhere",
                        hash.get(..12).unwrap_or(&hash)
                    ));
                }
            }
        }
        warnings
    }

    /// Takes this host off the list of instances, for an orderly end.
    pub async fn stop(&self) {
        for task in &self.tasks {
            task.abort();
        }
        let Some(shared) = &self.redis else { return };
        let heartbeat = shared.heartbeat.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(heartbeat) = heartbeat {
            // A store that is away forgets this instance by itself.
            let _ = tokio::time::timeout(HEARTBEAT, heartbeat.leave()).await;
        }
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn every_heartbeat() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(HEARTBEAT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

/// Which plans changed.
async fn look_at_plans(engine: Arc<Engine>) {
    let mut ticks = every_heartbeat();
    loop {
        ticks.tick().await;
        match engine.refresh_plans().await {
            Ok(true) => tracing::info!("plans changed in the store"),
            Ok(false) => {}
            Err(reason) => tracing::debug!(%reason, "plan changes not read"),
        }
    }
}

/// Charges the store with what was admitted while it was away, soon after it is back.
async fn pay_back(engine: Arc<Engine>, mut link: watch::Receiver<LinkState>) {
    let mut ticks = every_heartbeat();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = link.changed() => if changed.is_err() { return },
        }
        if *link.borrow_and_update() != LinkState::Up {
            continue;
        }
        match engine.pay_back().await {
            Ok(0) => {}
            Ok(buckets) => {
                tracing::info!(buckets, "the store was charged with what was admitted while it was away");
            }
            Err(reason) => tracing::debug!(%reason, "what was admitted in an outage is still owed"),
        }
    }
}

/// How the store is.
async fn look_at_store(
    store: Arc<RedisStore>,
    publisher: Arc<Publisher>,
    instances: Arc<Instances>,
    metrics: Arc<RequestMetrics>,
) {
    let mut ticks = every_heartbeat();
    loop {
        ticks.tick().await;
        metrics.set_store_up(matches!(&*store.watch().borrow(), LinkState::Up));
        metrics.set_conflict(matches!(publisher.standing(), Standing::Conflict { .. }));
        metrics.set_instances(instances.known().map_or(0, |known| known.get()));
    }
}
