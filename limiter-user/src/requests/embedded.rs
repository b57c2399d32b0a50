//! The embedded store: buckets in this process's memory, on the monotonic clock.
//!
//! Limits hold per host: N hosts admit N times. Buckets are spread over shards, each behind its own lock; a
//! decision locks the shards of all its limits, in order, so it is one atomic step. The number of buckets is
//! bounded. When a shard is full, the bucket that says nothing soonest leaves: first those that already say
//! nothing, then the nearest to full. A flood of new keys so pushes out its own buckets, which are almost full,
//! before that of a caller deep in its limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use smallvec::SmallVec;

use super::algorithm::{self, Judgement, Question, State};
use super::key::KeyHash;
use super::limit::Algorithm;
use super::store::{Answer, Charge, Decision, Mode, Store, StoreError};

const SHARDS: usize = 64;

/// Endpoints rarely have more than four limits.
type PerLimit<T> = SmallVec<[T; 4]>;

/// A clock in microseconds that never goes back.
pub trait Clock: Send + Sync {
    fn micros(&self) -> u64;
}

/// The system's monotonic clock, from the start of the process.
#[derive(Debug)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn micros(&self) -> u64 {
        // 2^64 µs are 584 000 years.
        self.0.elapsed().as_micros() as u64
    }
}

/// Whose bucket for which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BucketKey {
    limit: u64,
    subject: KeyHash,
}

impl BucketKey {
    fn of(charge: &Charge) -> Self {
        Self { limit: charge.limit.token(), subject: charge.subject }
    }

    /// Subjects are keyed hashes: their bytes are as good as any hash of them.
    fn number(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.subject.0[..8]);
        u64::from_le_bytes(bytes) ^ self.limit
    }

    fn shard(&self) -> usize {
        // The top bits; the map takes its own from the others.
        (self.number() >> 56) as usize % SHARDS
    }
}

impl std::hash::Hash for BucketKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.number());
    }
}

#[derive(Default)]
struct TakeNumber(u64);

impl Hasher for TakeNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The map takes the control byte from the top bits, the place from the low ones: mix both.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

struct Bucket {
    /// `None` only while a decision holds it.
    state: Option<State>,
    /// The time from which the state says nothing.
    expires: u64,
}

#[derive(Default)]
struct Shard {
    buckets: HashMap<BucketKey, Bucket, BuildHasherDefault<TakeNumber>>,
    /// At least one item per bucket, with an expiry that may be too early; it is brought up to date when it
    /// comes to the top, so that an ordinary decision never touches the heap.
    queue: BinaryHeap<Reverse<(u64, BucketKey)>>,
}

enum Evicted {
    Expired,
    Live,
}

impl Shard {
    fn take(&mut self, key: &BucketKey) -> Option<State> {
        self.buckets.get_mut(key).and_then(|bucket| bucket.state.take())
    }

    fn put_back(&mut self, key: &BucketKey, state: Option<State>) {
        if let Some(bucket) = self.buckets.get_mut(key) {
            bucket.state = state;
        }
    }

    /// Keeps what a charge left. `make_room` is called before a bucket is added.
    fn put(&mut self, key: BucketKey, state: Option<State>, expires: u64, make_room: impl FnOnce(&mut Self)) {
        if state.is_none() {
            self.buckets.remove(&key);
            return;
        }
        let earlier = match self.buckets.get_mut(&key) {
            Some(bucket) => {
                let earlier = expires < bucket.expires;
                *bucket = Bucket { state, expires };
                earlier
            }
            None => {
                make_room(self);
                self.buckets.insert(key, Bucket { state, expires });
                true
            }
        };
        if earlier {
            self.queue.push(Reverse((expires, key)));
            self.drop_stale_items();
        }
    }

    /// Removes the bucket that expires first; with `only_expired`, only if that is in the past.
    fn evict(&mut self, now: u64, only_expired: bool) -> Option<Evicted> {
        while let Some(&Reverse((noted, key))) = self.queue.peek() {
            if only_expired && noted > now {
                return None;
            }
            self.queue.pop();
            let Some(bucket) = self.buckets.get(&key) else { continue };
            if bucket.expires > noted {
                self.queue.push(Reverse((bucket.expires, key)));
                continue;
            }
            let live = bucket.expires > now;
            self.buckets.remove(&key);
            return Some(if live { Evicted::Live } else { Evicted::Expired });
        }
        None
    }

    /// Refunds and resets leave items without a bucket. Rebuilding at twice the size costs a constant per item.
    fn drop_stale_items(&mut self) {
        if self.queue.len() > 2 * self.buckets.len() + 16 {
            self.queue = self.buckets.iter().map(|(key, bucket)| Reverse((bucket.expires, *key))).collect();
        }
    }
}

/// See the module.
pub struct EmbeddedStore<C = Monotonic> {
    clock: C,
    shards: Box<[Mutex<Shard>]>,
    per_shard: usize,
    evicted_live: AtomicU64,
}

impl EmbeddedStore<Monotonic> {
    /// Room for about `buckets` buckets.
    pub fn new(buckets: usize) -> Self {
        Self::with_clock(buckets, Monotonic::default())
    }
}

impl<C: Clock> EmbeddedStore<C> {
    pub fn with_clock(buckets: usize, clock: C) -> Self {
        Self {
            clock,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            per_shard: buckets.div_ceil(SHARDS).max(1),
            evicted_live: AtomicU64::new(0),
        }
    }

    /// Buckets now held.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).buckets.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Buckets that left for want of room while they still said something.
    pub fn evicted_live(&self) -> u64 {
        self.evicted_live.load(Ordering::Relaxed)
    }

    /// Makes one decision; never waits but for another decision on the same shards.
    pub fn decide_now(&self, decision: &Decision) -> Result<Answer, StoreError> {
        let keys: PerLimit<BucketKey> = decision.charges.iter().map(BucketKey::of).collect();
        refuse_duplicates(&keys)?;
        let mut shards = self.lock_all(&keys);
        let micros = self.clock.micros();
        let mut judged: PerLimit<(Question, Judgement)> = PerLimit::new();
        let mut allowed = true;
        for (key, charge) in keys.iter().zip(&decision.charges) {
            let question = question(decision, charge, micros);
            let state = shards.of(key).buckets.get(key).and_then(|bucket| bucket.state.as_ref());
            let judgement = algorithm::judge(&charge.limit, state, &question);
            allowed &= judgement.allowed || charge.limit.observe();
            judged.push((question, judgement));
        }

        let charging = allowed && decision.mode != Mode::Peek;
        let mut limits = Vec::with_capacity(keys.len());
        // Moved out and back, so that a log is never copied. All before the first is kept: making room for one may
        // remove the bucket of another, and what was judged is what is charged.
        let states: PerLimit<Option<State>> = keys.iter().map(|key| shards.of(key).take(key)).collect();
        let charges = keys.iter().zip(&decision.charges).zip(states);
        for (((key, charge), mut state), (question, judgement)) in charges.zip(&judged) {
            let shard = shards.of(key);
            let (answer, expires) =
                algorithm::conclude(&charge.limit, &mut state, question, judgement, charging);
            if charging && judgement.allowed || judgement.moved {
                shard.put(*key, state, expires, |shard| self.make_room(shard, micros));
            } else {
                shard.put_back(key, state);
            }
            limits.push(answer);
        }
        Ok(Answer { allowed, limits })
    }

    fn make_room(&self, shard: &mut Shard, now: u64) {
        // Two a time: expired buckets leave faster than new ones come.
        let freed = (0..2).filter(|_| shard.evict(now, true).is_some()).count();
        let full = freed == 0 && shard.buckets.len() >= self.per_shard;
        if full && matches!(shard.evict(now, false), Some(Evicted::Live)) {
            self.evicted_live.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lock_all(&self, keys: &[BucketKey]) -> Locked<'_> {
        let mut indexes: PerLimit<usize> = keys.iter().map(BucketKey::shard).collect();
        indexes.sort_unstable();
        indexes.dedup();
        // Always in rising order: two decisions cannot wait for each other.
        Locked(indexes.into_iter().map(|index| (index, lock(&self.shards[index]))).collect())
    }
}

struct Locked<'a>(PerLimit<(usize, MutexGuard<'a, Shard>)>);

impl Locked<'_> {
    fn of(&mut self, key: &BucketKey) -> &mut Shard {
        let index = key.shard();
        let position = self.0.iter().position(|(locked, _)| *locked == index).unwrap_or(0);
        &mut self.0[position].1
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // A panic elsewhere leaves at most one bucket half-reported, never the shard unusable.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn question(decision: &Decision, charge: &Charge, micros: u64) -> Question {
    let phase = match charge.limit.algorithm() {
        Algorithm::FixedWindow => charge.subject.phase(charge.limit.window_units()),
        _ => 0,
    };
    Question { mode: decision.mode, cost: charge.cost, can_wait: decision.can_wait, micros, phase }
}

fn refuse_duplicates(keys: &[BucketKey]) -> Result<(), StoreError> {
    for (i, key) in keys.iter().enumerate() {
        if keys[..i].contains(key) {
            return Err(StoreError::Invalid("two limits of one decision share a bucket".into()));
        }
    }
    Ok(())
}

#[async_trait]
impl<C: Clock> Store for EmbeddedStore<C> {
    fn kind(&self) -> &'static str {
        "embedded"
    }

    fn decide_at_once(&self, decision: &Decision) -> Option<Result<Answer, StoreError>> {
        Some(self.decide_now(decision))
    }

    async fn decide(&self, decision: &Decision) -> Result<Answer, StoreError> {
        self.decide_now(decision)
    }

    async fn reset(&self, decision: &Decision) -> Result<(), StoreError> {
        for charge in &decision.charges {
            let key = BucketKey::of(charge);
            lock(&self.shards[key.shard()]).buckets.remove(&key);
        }
        Ok(())
    }
}
