//! Which plan an API key has: the policy's keys file, and what `set-plan` and `revoke-key` wrote to the store.
//!
//! A record in the store goes before the file. What is read is kept for 30 s, that there is no record for
//! 5 s, and a change is heard of within two seconds, so a revoked key is refused everywhere within five.
//!
//! A flood of keys nobody knows costs next to nothing: while the store has no records at all it is not
//! asked, and otherwise only so often for keys that were never seen to have one. A key the file names is
//! always looked up. Bounded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::key::{KeyHash, Part, Secret};
use super::policy::{DENY, Plans};
use super::reject_cache::{Fingerprint, Fingerprints};
use super::store::{PlanChanges, PlanRecord, PlanStore, StoreError};

/// How long a record is believed.
const KEPT: Duration = Duration::from_secs(30);
/// How long it is believed that there is none.
const MISS_KEPT: Duration = Duration::from_secs(5);
/// Keys remembered at most.
const MOST: usize = 1 << 16;
/// Look-ups a second for keys that are in no file and were never seen to have a record.
const STRANGERS_PER_SECOND: u32 = 100;

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyStanding {
    /// No key was sent, or the policy names no key header.
    Absent,
    Unknown,
    Known {
        plan: Option<Arc<str>>,
    },
    Revoked,
}

impl KeyStanding {
    pub fn text(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Unknown => "unknown",
            Self::Known { .. } => "known",
            Self::Revoked => "revoked",
        }
    }
}

/// A look-up's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub standing: KeyStanding,
    /// The store was asked and gave no answer: `standing` is what the file says.
    pub store_failed: bool,
}

impl Known {
    pub const ABSENT: Self = Self { standing: KeyStanding::Absent, store_failed: false };
}

struct Kept {
    hash: KeyHash,
    record: Option<PlanRecord>,
    until: Instant,
}

struct State {
    kept: HashMap<Fingerprint, Kept>,
    /// Of this second's look-ups for strangers.
    second: Instant,
    asked: u32,
}

/// See the module.
pub struct PlanCache {
    store: Option<Arc<dyn PlanStore>>,
    secret: Secret,
    prints: Fingerprints,
    state: Mutex<State>,
    /// The store's version of its records; 0 while there never was one.
    version: AtomicU64,
    heard: std::sync::atomic::AtomicBool,
}

impl PlanCache {
    pub fn new(store: Option<Arc<dyn PlanStore>>, secret: Secret) -> Self {
        Self {
            store,
            secret,
            prints: Fingerprints::default(),
            state: Mutex::new(State { kept: HashMap::new(), second: Instant::now(), asked: 0 }),
            version: AtomicU64::new(0),
            heard: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// How `set-plan` and `revoke-key` name a key.
    pub fn hash(&self, api_key: &str) -> KeyHash {
        self.secret.hash(&[Part::new("api-key", api_key.as_bytes())])
    }

    /// What the store and the file say of a key.
    pub async fn look_up(&self, api_key: &str, plans: &Plans) -> Known {
        let in_file = plans.keys.get(api_key);
        let (record, store_failed) = self.record(api_key, in_file.is_some(), Instant::now()).await;
        let standing = match (record, in_file) {
            (Some(PlanRecord::Revoked), _) => KeyStanding::Revoked,
            (Some(PlanRecord::Plan(plan)), _) if plan == DENY => KeyStanding::Revoked,
            (Some(PlanRecord::Plan(plan)), _) => KeyStanding::Known { plan: Some(plan.into()) },
            (None, Some(Some(plan))) if &**plan == DENY => KeyStanding::Revoked,
            (None, Some(plan)) => KeyStanding::Known { plan: plan.clone() },
            (None, None) => KeyStanding::Unknown,
        };
        Known { standing, store_failed }
    }

    async fn record(&self, api_key: &str, in_file: bool, now: Instant) -> (Option<PlanRecord>, bool) {
        let Some(store) = &self.store else { return (None, false) };
        if self.heard.load(Ordering::Acquire) && self.version.load(Ordering::Acquire) == 0 {
            return (None, false);
        }
        let print = self.prints.start().part(api_key.as_bytes()).finish();
        let stale = {
            let mut state = self.lock();
            let kept = state.kept.get(&print).map(|kept| (kept.record.clone(), now < kept.until));
            match kept {
                Some((record, true)) => return (record, false),
                Some((record @ Some(_), false)) => record,
                // Whoever had no record a while ago is a stranger again.
                _ if !in_file && !state.may_ask(now) => return (None, false),
                _ => None,
            }
        };
        let hash = self.hash(api_key);
        match store.plan(&hash).await {
            Ok(record) => {
                let until = now + if record.is_some() { KEPT } else { MISS_KEPT };
                self.lock().keep(print, Kept { hash, record: record.clone(), until }, now);
                (record, false)
            }
            // A key that was revoked stays so while nobody can say otherwise. An open breaker costs no time.
            Err(error) => (stale, error != StoreError::Open),
        }
    }

    /// Asks the store what changed since the last call and forgets it. `true` when something did.
    pub async fn refresh(&self) -> Result<bool, StoreError> {
        let Some(store) = &self.store else { return Ok(false) };
        let since = self.version.load(Ordering::Acquire);
        let first = !self.heard.load(Ordering::Acquire);
        let PlanChanges { version, keys } = store.plan_changes(since).await?;
        self.version.store(version, Ordering::Release);
        self.heard.store(true, Ordering::Release);
        let changed = version != since || first;
        if changed {
            self.forget(keys.as_deref());
        }
        Ok(changed && !first)
    }

    /// Writes a record for every host; `None` removes it.
    pub async fn set(&self, key: &KeyHash, record: Option<&PlanRecord>) -> Result<(), StoreError> {
        match &self.store {
            Some(store) => {
                store.set_plan(key, record).await?;
                // There is a record now, whatever was heard before.
                self.heard.store(false, Ordering::Release);
                Ok(())
            }
            None => Err(StoreError::Invalid("this store keeps no plans".to_owned())),
        }
    }

    /// Forgets these keys, or all of them.
    pub fn forget(&self, keys: Option<&[KeyHash]>) {
        let mut state = self.lock();
        match keys {
            Some(keys) => state.kept.retain(|_, kept| !keys.contains(&kept.hash)),
            None => state.kept.clear(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether a stranger may be looked up now.
    fn may_ask(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.second) >= Duration::from_secs(1) {
            (self.second, self.asked) = (now, 0);
        }
        self.asked += 1;
        self.asked <= STRANGERS_PER_SECOND
    }

    fn keep(&mut self, print: Fingerprint, kept: Kept, now: Instant) {
        if self.kept.len() >= MOST && !self.kept.contains_key(&print) {
            // Records are worth more than the knowledge that there is none.
            self.kept.retain(|_, kept| now < kept.until && kept.record.is_some());
            if self.kept.len() >= MOST {
                return;
            }
        }
        self.kept.insert(print, kept);
    }
}

/// One line of a keys file that is no `key,plan`.
#[derive(Debug, PartialEq, Eq)]
pub struct BadLine {
    /// From 1.
    pub line: u32,
    pub message: String,
}

/// Reads a keys file: one `key,plan` per line, no header, `#` comments, a key alone has no plan.
pub fn read_keys(text: &str) -> (HashMap<String, Option<Arc<str>>>, Vec<BadLine>) {
    let mut keys = HashMap::new();
    let mut bad = Vec::new();
    let mut names: HashMap<&str, Arc<str>> = HashMap::new();
    for (number, line) in (1_u32..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, plan) = match line.rsplit_once(',') {
            Some((key, plan)) => (key.trim(), plan.trim()),
            None => (line, ""),
        };
        let mut mistake = |message: &str| bad.push(BadLine { line: number, message: message.to_owned() });
        if key.is_empty() {
            mistake("a line without a key");
        } else if key.contains([',', '"']) || key.bytes().any(|b| b.is_ascii_control()) {
            mistake("not `key,plan`: a key holds no comma, quote or control character");
        } else if !plan.is_empty() && !is_plan_name(plan) {
            mistake("a plan's name is of letters, digits, `-`, `_` and `.`");
        } else {
            let plan =
                (!plan.is_empty()).then(|| Arc::clone(names.entry(plan).or_insert_with(|| Arc::from(plan))));
            if keys.insert(key.to_owned(), plan).is_some() {
                mistake("this key stands here twice");
            }
        }
    }
    (keys, bad)
}

/// Whether a text can name a plan.
pub fn is_plan_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;

    /// Records in memory, counting what it is asked; away when told.
    #[derive(Default)]
    struct Shelf {
        records: Mutex<HashMap<KeyHash, PlanRecord>>,
        changed: Mutex<Vec<KeyHash>>,
        asked: AtomicU64,
        away: std::sync::atomic::AtomicBool,
    }

    #[async_trait]
    impl PlanStore for Shelf {
        async fn plan(&self, key: &KeyHash) -> Result<Option<PlanRecord>, StoreError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.away.load(Ordering::Relaxed) {
                return Err(StoreError::Timeout(Duration::from_millis(5)));
            }
            Ok(self.records.lock().unwrap().get(key).cloned())
        }

        async fn set_plan(&self, key: &KeyHash, record: Option<&PlanRecord>) -> Result<(), StoreError> {
            let mut records = self.records.lock().unwrap();
            match record {
                Some(record) => records.insert(*key, record.clone()),
                None => records.remove(key),
            };
            self.changed.lock().unwrap().push(*key);
            Ok(())
        }

        async fn plan_changes(&self, since: u64) -> Result<PlanChanges, StoreError> {
            let changed = self.changed.lock().unwrap();
            let keys = changed[usize::try_from(since).unwrap()..].to_vec();
            Ok(PlanChanges { version: changed.len() as u64, keys: Some(keys) })
        }
    }

    fn cache() -> (Arc<Shelf>, PlanCache) {
        let shelf = Arc::new(Shelf::default());
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        (Arc::clone(&shelf), PlanCache::new(Some(shelf), secret))
    }

    fn known(plan: Option<&str>) -> KeyStanding {
        KeyStanding::Known { plan: plan.map(Arc::from) }
    }

    #[test]
    fn the_keys_file_is_read_line_by_line() {
        let text =
            "# keys\nalpha,free\r\n beta , pro \ngamma\ngamma2,\n\n,free\na,b,c\ndelta,no way\nalpha,pro\n";
        let (keys, bad) = read_keys(text);
        assert_eq!(keys["beta"].as_deref(), Some("pro"));
        assert_eq!(keys["gamma"], None);
        assert_eq!(keys["gamma2"], None);
        assert_eq!(bad.iter().map(|bad| bad.line).collect::<Vec<_>>(), [7, 8, 9, 10]);
    }

    #[tokio::test]
    async fn a_record_in_the_store_goes_before_the_file() {
        let (shelf, cache) = cache();
        let plans = Plans { default: None, keys: Arc::new(read_keys("k1,free\nk2,pro\nk3,deny\n").0) };
        let standing = async |key: &str| cache.look_up(key, &plans).await.standing;
        assert_eq!(standing("k1").await, known(Some("free")));
        assert_eq!(standing("k3").await, KeyStanding::Revoked);
        assert_eq!(standing("other").await, KeyStanding::Unknown);
        shelf.set_plan(&cache.hash("k1"), Some(&PlanRecord::Plan("pro".into()))).await.unwrap();
        shelf.set_plan(&cache.hash("k2"), Some(&PlanRecord::Revoked)).await.unwrap();
        shelf.set_plan(&cache.hash("other"), Some(&PlanRecord::Plan("free".into()))).await.unwrap();
        assert!(!cache.refresh().await.unwrap(), "the first call only learns where things stand");
        assert_eq!(standing("k1").await, known(Some("pro")));
        assert_eq!(standing("k2").await, KeyStanding::Revoked);
        assert_eq!(standing("other").await, known(Some("free")));
        shelf.set_plan(&cache.hash("k1"), None).await.unwrap();
        assert_eq!(standing("k1").await, known(Some("pro")), "kept until the change is heard of");
        assert!(cache.refresh().await.unwrap());
        assert_eq!(standing("k1").await, known(Some("free")));
    }

    #[tokio::test]
    async fn strangers_cost_the_store_next_to_nothing() {
        let (shelf, cache) = cache();
        cache.refresh().await.unwrap();
        let plans = Plans::default();
        for key in 0..1000 {
            cache.look_up(&format!("key-{key}"), &plans).await;
        }
        assert_eq!(shelf.asked.load(Ordering::Relaxed), 0, "a store without records is not asked");
        shelf.set_plan(&cache.hash("k1"), Some(&PlanRecord::Plan("pro".into()))).await.unwrap();
        cache.refresh().await.unwrap();
        let start = Instant::now();
        for key in 0..10_000 {
            cache.look_up(&format!("key-{key}"), &plans).await;
        }
        let seconds = start.elapsed().as_secs() + 1;
        assert!(shelf.asked.load(Ordering::Relaxed) <= seconds * u64::from(STRANGERS_PER_SECOND));
        // The same one again is known not to be known.
        let before = shelf.asked.load(Ordering::Relaxed);
        cache.look_up("key-0", &plans).await;
        assert_eq!(shelf.asked.load(Ordering::Relaxed), before);
    }

    #[tokio::test]
    async fn a_revoked_key_stays_revoked_while_the_store_is_away() {
        let (shelf, cache) = cache();
        let plans = Plans::default();
        shelf.set_plan(&cache.hash("k1"), Some(&PlanRecord::Revoked)).await.unwrap();
        let now = Instant::now();
        assert_eq!(cache.record("k1", true, now).await, (Some(PlanRecord::Revoked), false));
        shelf.away.store(true, Ordering::Relaxed);
        let later = now + KEPT;
        assert_eq!(cache.record("k1", true, later).await, (Some(PlanRecord::Revoked), true));
        let unknown = cache.look_up("k2", &plans).await;
        assert_eq!(unknown, Known { standing: KeyStanding::Unknown, store_failed: true });
    }

    #[tokio::test]
    async fn memory_is_bounded() {
        let (_, cache) = cache();
        let now = Instant::now();
        let mut state = cache.lock();
        for key in 0..(MOST as u128 + 10) {
            let kept = Kept { hash: KeyHash([0; 16]), record: None, until: now + MISS_KEPT };
            state.keep(key, kept, now);
        }
        assert!(state.kept.len() <= MOST);
    }
}
