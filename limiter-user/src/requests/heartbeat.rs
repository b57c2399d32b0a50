//! How many hosts share the store: each says every two seconds that it is there.
//!
//! The number divides the limits while the store is away, so it must not shrink because of an outage. It rises at
//! once. It falls only after the store has answered without a break for longer than a host takes to be missed:
//! the first host to come back after an outage finds the others' heartbeats gone, and must not think it is alone.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::failure::{GONE_AFTER, HEARTBEAT, Instances};
use super::redis::{RedisStore, Script};
use super::store::StoreError;

static BEAT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("redis/lua/heartbeat.lua").into()));

/// A host that is missed this long after the store's answers began is really gone.
const UNBROKEN: Duration = Duration::from_secs(GONE_AFTER.as_secs() + 2 * HEARTBEAT.as_secs() + 1);

/// Says that this host is there until it is dropped.
pub struct Heartbeat {
    store: Arc<RedisStore>,
    name: String,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// `host` names this host to people; several processes of one host are several instances.
    pub fn start(store: Arc<RedisStore>, host: &str, instances: Arc<Instances>) -> Self {
        let name = format!("{host}/{:016x}", fastrand::u64(..));
        let task = tokio::spawn(beat(Arc::clone(&store), name.clone(), instances));
        Self { store, name, task }
    }

    /// Takes this instance off the list at once, for an orderly end.
    pub async fn leave(self) -> Result<(), StoreError> {
        self.task.abort();
        self.store.forget_instance(&self.name).await
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn beat(store: Arc<RedisStore>, name: String, instances: Arc<Instances>) {
    let mut count = Count::new(instances.known().map_or(0, |known| known.get()));
    let mut ticks = interval(HEARTBEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let heard = store.beat(&name).await;
        if let Err(reason) = &heard {
            tracing::debug!(%reason, "no heartbeat");
        }
        if let Some(number) = count.heard(heard.ok(), Instant::now()) {
            instances.heard(number);
        }
    }
}

impl RedisStore {
    fn instances_key(&self) -> String {
        format!("{}:meta:{{fleet}}:instances", self.namespace())
    }

    /// Notes that `name` is there and returns how many are. Also sees whether the fleet still has one secret.
    async fn beat(&self, name: &str) -> Result<u32, StoreError> {
        let instances = self.instances_key();
        let gone_after = GONE_AFTER.as_millis().to_string();
        let arguments = [name, &gone_after, self.fingerprint()];
        let (count, same_secret): (u32, i64) =
            self.background_script(&BEAT, &[&instances, self.secret_key()], &arguments).await?;
        if same_secret != 1 {
            return Err(self.refuse_other_secret());
        }
        Ok(count)
    }

    async fn forget_instance(&self, name: &str) -> Result<(), StoreError> {
        self.background::<i64>(redis::cmd("ZREM").arg(self.instances_key()).arg(name)).await.map(drop)
    }
}

/// The number that counts, from the numbers heard.
#[derive(Debug)]
struct Count {
    counts: u32,
    answers_since: Option<Instant>,
}

impl Count {
    /// `known`: the number from before, 0 for none.
    fn new(known: u32) -> Self {
        Self { counts: known, answers_since: None }
    }

    /// The number to use from now on, if it is another. `heard`: the store's, or `None` without an answer.
    fn heard(&mut self, heard: Option<u32>, now: Instant) -> Option<u32> {
        let Some(heard) = heard else {
            self.answers_since = None;
            return None;
        };
        let since = *self.answers_since.get_or_insert(now);
        let may_fall = now.duration_since(since) >= UNBROKEN;
        if heard > self.counts || (heard < self.counts && may_fall) {
            self.counts = heard;
            return Some(heard);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_rises_at_once_and_falls_when_a_host_is_really_gone() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut count = Count::new(0);
        assert_eq!(count.heard(Some(1), at(0)), Some(1));
        assert_eq!(count.heard(Some(3), at(2)), Some(3));
        assert_eq!(count.heard(Some(2), at(4)), None);
        assert_eq!(count.heard(Some(2), at(15)), Some(2));
    }

    #[test]
    fn an_outage_never_leaves_a_host_alone() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut count = Count::new(3);
        assert_eq!(count.heard(None, at(0)), None);
        // The first to be back sees only itself; then the others are there again, or the store is away again.
        assert_eq!(count.heard(Some(1), at(60)), None);
        assert_eq!(count.heard(Some(1), at(62)), None);
        assert_eq!(count.heard(None, at(64)), None);
        assert_eq!(count.heard(Some(1), at(80)), None);
        assert_eq!(count.heard(Some(3), at(82)), None);
        assert_eq!(count.counts, 3);
    }
}
