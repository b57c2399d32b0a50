//! Refusals that still hold, so that a hot refused key costs the store nothing.
//!
//! A bucket without room for a cost has none for that cost or a larger one until the store's exact
//! retry-after has passed: others can only take more. So an entry (bucket, smallest refused cost, not
//! before) answers exactly as the store would. It is not believed for longer than five seconds, nor
//! across a change of policy, plan or bucket made by hand, which a new epoch stands for.
//!
//! The time counts from before the store was asked, so no entry outlives the truth.
//!
//! Bounded: sets of eight entries, chosen by a keyed hash nobody outside can aim at. A full set forgets
//! what frees soonest. Forgetting costs a question to the store, never a wrong answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::{BuildHasher, Hasher, RandomState};

/// No entry is believed for longer: a bucket that another host reset or refunded is seen within this time.
pub const LONGEST: Duration = Duration::from_secs(5);
const WAYS: usize = 8;

/// A bucket's identity in this process: 128 bits of a keyed hash.
pub type Fingerprint = u128;

/// Hashes bucket identities with a key drawn at start.
pub struct Fingerprints(SipHasher13);

impl Default for Fingerprints {
    fn default() -> Self {
        // The standard library's source of keys is the system's; its hash of nothing is as secret as they are.
        let draw = || RandomState::new().build_hasher().finish();
        Self(SipHasher13::new_with_keys(draw(), draw()))
    }
}

/// A fingerprint under way.
pub struct Fingerprinting(SipHasher13);

impl Fingerprints {
    pub fn start(&self) -> Fingerprinting {
        Fingerprinting(self.0)
    }
}

impl Fingerprinting {
    /// Adds one part with its length, so that no two lists of parts are alike.
    #[must_use]
    pub fn part(mut self, part: &[u8]) -> Self {
        self.0.write_usize(part.len());
        self.0.write(part);
        self
    }

    pub fn finish(self) -> Fingerprint {
        self.0.finish128().as_u128()
    }
}

/// A remembered refusal, as of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was left when the store refused.
    pub remaining: u32,
    /// `None`: never.
    pub retry_after: Option<Duration>,
    pub reset: Duration,
}

#[derive(Clone, Copy)]
struct Entry {
    bucket: Fingerprint,
    epoch: u64,
    smallest_cost: u32,
    remaining: u32,
    /// No request of that cost has room before; `None`: ever.
    not_before: Option<Instant>,
    believed_until: Instant,
    reset_at: Instant,
}

impl Entry {
    fn lives(&self, epoch: u64, now: Instant) -> bool {
        self.epoch == epoch && now < self.believed_until && self.not_before.is_none_or(|time| now < time)
    }
}

/// Eight entries, and a byte of each one's fingerprint, 0 for none. Most questions are about buckets that were not
/// refused, and end at the bytes: without the lock, and without touching the entries.
#[derive(Default)]
struct Set {
    tags: AtomicU64,
    entries: Mutex<[Option<Entry>; WAYS]>,
}

impl Set {
    fn may_hold(&self, bucket: Fingerprint) -> bool {
        self.tags.load(Ordering::Acquire).to_le_bytes().contains(&tag(bucket))
    }

    fn open(&self) -> MutexGuard<'_, [Option<Entry>; WAYS]> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called with the lock held, after each change.
    fn note(&self, entries: &[Option<Entry>; WAYS]) {
        let tags = entries.map(|entry| entry.map_or(0, |entry| tag(entry.bucket)));
        self.tags.store(u64::from_le_bytes(tags), Ordering::Release);
    }
}

/// Never 0; of other bits than those that choose the set.
fn tag(bucket: Fingerprint) -> u8 {
    (bucket >> 64) as u8 | 1
}

/// See the module.
pub struct RejectCache {
    sets: Box<[Set]>,
    epoch: AtomicU64,
}

impl RejectCache {
    /// Room for about `entries` refusals, at about 100 bytes each.
    pub fn new(entries: usize) -> Self {
        let sets = entries.div_ceil(WAYS).next_power_of_two();
        let sets = (0..sets).map(|_| Set::default()).collect();
        Self { sets, epoch: AtomicU64::new(0) }
    }

    /// Everything remembered so far is void: policy, plans or buckets changed.
    pub fn forget_all(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// The epoch to read before the store is asked, and to pass with its refusal.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The refusal of `cost` for this bucket, if one is known to hold at `now`.
    pub fn get(&self, bucket: Fingerprint, cost: u32, now: Instant) -> Option<Refusal> {
        let set = self.set(bucket);
        if !set.may_hold(bucket) {
            return None;
        }
        let (epoch, set) = (self.epoch(), set.open());
        let entry = set.iter().flatten().find(|entry| entry.bucket == bucket)?;
        if cost < entry.smallest_cost || !entry.lives(epoch, now) {
            return None;
        }
        Some(Refusal {
            remaining: entry.remaining,
            retry_after: entry.not_before.map(|time| time.saturating_duration_since(now)),
            reset: entry.reset_at.saturating_duration_since(now),
        })
    }

    /// Remembers that the store, asked at `asked` in `epoch`, had no room for `cost`.
    pub fn insert(&self, bucket: Fingerprint, cost: u32, refusal: Refusal, epoch: u64, asked: Instant) {
        let mut entry = Entry {
            bucket,
            epoch,
            smallest_cost: cost,
            remaining: refusal.remaining,
            // A wait beyond what a clock can tell is never.
            not_before: refusal.retry_after.and_then(|wait| asked.checked_add(wait)),
            believed_until: asked + LONGEST,
            reset_at: asked.checked_add(refusal.reset).unwrap_or(asked),
        };
        let place = self.set(bucket);
        let mut set = place.open();
        if let Some(known) = set.iter_mut().flatten().find(|known| known.bucket == bucket) {
            // A larger cost frees later: the smaller one stays the better witness while it lives.
            if known.lives(epoch, asked) && known.smallest_cost < cost {
                entry = *known;
            }
            *known = entry;
            return;
        }
        let free = set.iter_mut().find(|slot| slot.is_none_or(|known| !known.lives(epoch, asked)));
        let soonest =
            |entry: &Entry| entry.not_before.map_or(entry.believed_until, |t| t.min(entry.believed_until));
        match free {
            Some(slot) => *slot = Some(entry),
            None => {
                if let Some(slot) = set.iter_mut().min_by_key(|slot| slot.as_ref().map(soonest)) {
                    *slot = Some(entry);
                }
            }
        }
        place.note(&set);
    }

    /// Forgets one bucket: something was given back to it.
    pub fn forget(&self, bucket: Fingerprint) {
        let place = self.set(bucket);
        if !place.may_hold(bucket) {
            return;
        }
        let mut set = place.open();
        for slot in set.iter_mut() {
            if slot.is_some_and(|entry| entry.bucket == bucket) {
                *slot = None;
            }
        }
        place.note(&set);
    }

    fn set(&self, bucket: Fingerprint) -> &Set {
        // The number of sets is a power of two; any bits of the hash choose alike.
        &self.sets[bucket as usize & (self.sets.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn refusal(retry: Option<Duration>) -> Refusal {
        Refusal { remaining: 0, retry_after: retry, reset: SECOND * 60 }
    }

    #[test]
    fn a_refusal_holds_until_its_retry_and_for_larger_costs() {
        let cache = RejectCache::new(64);
        let start = Instant::now();
        cache.insert(7, 3, refusal(Some(SECOND * 2)), cache.epoch(), start);
        let known = cache.get(7, 3, start + SECOND).unwrap();
        assert_eq!((known.retry_after, known.reset), (Some(SECOND), SECOND * 59));
        assert!(cache.get(7, 4, start + SECOND).is_some());
        assert!(cache.get(7, 2, start + SECOND).is_none(), "a smaller cost may have room");
        assert!(cache.get(8, 3, start + SECOND).is_none(), "another bucket");
        assert!(cache.get(7, 3, start + SECOND * 2).is_none(), "there is room again");
    }

    #[test]
    fn nothing_is_believed_for_more_than_five_seconds() {
        let cache = RejectCache::new(64);
        let start = Instant::now();
        for (bucket, retry) in [(1, Some(SECOND * 3600)), (2, None), (3, Some(Duration::MAX))] {
            cache.insert(bucket, 1, refusal(retry), cache.epoch(), start);
            assert!(cache.get(bucket, 1, start + Duration::from_millis(4999)).is_some(), "{bucket}");
            assert!(cache.get(bucket, 1, start + SECOND * 5).is_none(), "{bucket}");
        }
    }

    #[test]
    fn a_change_voids_what_was_known_and_what_is_still_under_way() {
        let cache = RejectCache::new(64);
        let start = Instant::now();
        let before = cache.epoch();
        cache.insert(1, 1, refusal(None), before, start);
        cache.forget_all();
        cache.insert(2, 1, refusal(None), before, start); // the store was asked under the old policy
        assert!(cache.get(1, 1, start).is_none());
        assert!(cache.get(2, 1, start).is_none());
        cache.insert(1, 1, refusal(None), cache.epoch(), start);
        assert!(cache.get(1, 1, start).is_some());
        cache.forget(1);
        assert!(cache.get(1, 1, start).is_none());
    }

    #[test]
    fn a_full_set_forgets_what_frees_soonest() {
        let cache = RejectCache::new(WAYS); // one set
        let start = Instant::now();
        for bucket in 0..8_u32 {
            let wait = SECOND * (bucket + 1) / 2;
            cache.insert(u128::from(bucket), 1, refusal(Some(wait)), cache.epoch(), start);
        }
        cache.insert(100, 1, refusal(Some(SECOND * 4)), cache.epoch(), start);
        assert!(cache.get(0, 1, start).is_none());
        assert!((1..8).chain([100]).all(|bucket| cache.get(bucket, 1, start).is_some()));
        // An entry that has run out goes before one that lives.
        cache.insert(101, 1, refusal(Some(SECOND * 4)), cache.epoch(), start + Duration::from_millis(1100));
        assert!(cache.get(1, 1, start).is_none());
        assert!(cache.get(7, 1, start).is_some());
    }

    proptest! {
        /// Against a list of all refusals ever seen: the cache never refuses what none of them covers.
        #[test]
        fn it_never_refuses_what_no_refusal_covers(
            steps in proptest::collection::vec((0..6_u128, 1..5_u32, 0..8000_u64, 0..600_u64, any::<bool>()), 1..80)
        ) {
            let cache = RejectCache::new(WAYS);
            let mut now = Instant::now();
            let mut seen: Vec<(u128, u32, Instant)> = Vec::new();
            for (bucket, cost, retry_ms, pass_ms, insert) in steps {
                now += Duration::from_millis(pass_ms);
                if insert {
                    let retry = Duration::from_millis(retry_ms);
                    cache.insert(bucket, cost, refusal(Some(retry)), cache.epoch(), now);
                    seen.push((bucket, cost, now + retry.min(LONGEST)));
                } else if cache.get(bucket, cost, now).is_some() {
                    let covered = seen.iter().any(|&(b, c, until)| b == bucket && c <= cost && now < until);
                    prop_assert!(covered);
                }
            }
        }
    }

    #[test]
    fn fingerprints_keep_lists_apart() {
        let prints = Fingerprints::default();
        let of = |parts: &[&[u8]]| parts.iter().fold(prints.start(), |print, part| print.part(part)).finish();
        assert_eq!(of(&[b"a", b"b"]), of(&[b"a", b"b"]));
        assert_ne!(of(&[b"ab"]), of(&[b"a", b"b"]));
        assert_ne!(of(&[b"a", b"bc"]), of(&[b"ab", b"c"]));
    }
}
