//! How many hosts share the store: each says every two seconds that it is there.
//!
//! The number divides the limits while the store is away, so it must not shrink because of an outage. It rises at
//! once. It falls only to what was heard without a break for longer than a host takes to be missed: the heartbeats
//! are gone after an outage, and after a flush, a restart or a step of the clock that no host noticed as one, and the
//! first to beat then must not think it is alone.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::failure::{GONE_AFTER, HEARTBEAT, Instances};
use super::redis::{RedisStore, Script};
use super::store::StoreError;

static BEAT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("redis/lua/heartbeat.lua").into()));

/// A host that is missed in every answer for so long is really gone.
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
    /// Since when every answer was lower, and the highest of them.
    lower: Option<(Instant, u32)>,
}

impl Count {
    /// `known`: the number from before, 0 for none.
    fn new(known: u32) -> Self {
        Self { counts: known, lower: None }
    }

    /// The number to use from now on, if it is another. `heard`: the store's, or `None` without an answer.
    fn heard(&mut self, heard: Option<u32>, now: Instant) -> Option<u32> {
        let Some(heard) = heard.filter(|heard| *heard < self.counts) else {
            self.lower = None;
            let higher = heard.filter(|heard| *heard > self.counts)?;
            self.counts = higher;
            return Some(higher);
        };
        let (since, highest) = self.lower.unwrap_or((now, heard));
        let highest = highest.max(heard);
        if now.duration_since(since) < UNBROKEN {
            self.lower = Some((since, highest));
            return None;
        }
        self.counts = highest;
        self.lower = (heard < highest).then_some((now, heard));
        Some(highest)
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
        assert_eq!(count.heard(Some(2), at(18)), None);
        assert_eq!(count.heard(Some(2), at(19)), Some(2));
    }

    #[test]
    fn an_emptied_store_never_leaves_a_host_alone() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut count = Count::new(0);
        for seconds in (0..=60).step_by(2) {
            count.heard(Some(3), at(seconds));
        }
        // The store never failed to answer: emptied between two heartbeats, it knows only who beat since.
        assert_eq!(count.heard(Some(1), at(62)), None);
        assert_eq!(count.heard(Some(2), at(64)), None);
        assert_eq!(count.heard(Some(3), at(66)), None);
        // One is gone, and just when that is sure the store is emptied again.
        for seconds in (68..=82).step_by(2) {
            assert_eq!(count.heard(Some(2), at(seconds)), None);
        }
        assert_eq!(count.heard(Some(1), at(84)), Some(2));
        assert_eq!(count.heard(Some(2), at(86)), None);
        assert_eq!(count.counts, 2);
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
