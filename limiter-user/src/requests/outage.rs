//! What this host admitted while the store was away: an account per bucket.
//!
//! Two things are kept of such a charge. What the store is *owed*, counted by the limit itself: it fades as the limit
//! forgets it, so that after a long outage nobody pays for requests that no limit would remember. And, where an
//! endpoint charges failures only, what was admitted and *never charged*: a success reported later has nothing to
//! give back for it.
//!
//! A question whose answer did not come may have been charged: nothing is owed for it, because charging twice is
//! worse, and nothing is given back for it, because that may be another's charge.
//!
//! Bounded. What finds no room is not owed, as with `on-store-failure = "allow"`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::algorithm::{self, Question, State};
use super::embedded::{Clock, Monotonic};
use super::key::KeyHash;
use super::limit::{Algorithm, Limit};
use super::store::{Answer, Charge, Decision, LimitAnswer, Mode};

/// Accounts at most, at about 200 bytes each.
const MOST: usize = 1 << 16;
/// Looking for accounts that have run out walks through all of them: not more often than this, in microseconds.
const SWEEP_EVERY: u64 = 1_000_000;

/// How a request was admitted without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The store surely did not charge it, and is to do so when it is back.
    pub owed: bool,
    /// A reported success gives the charge back.
    pub refundable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    tag: KeyHash,
    limit: u64,
    subject: KeyHash,
}

struct Account {
    limit: Arc<Limit>,
    owed: Option<State>,
    refundable: bool,
    never_charged: u32,
    /// From this time on it says nothing.
    expires: u64,
}

#[derive(Default)]
struct Book {
    accounts: HashMap<Name, Account>,
    swept: u64,
}

/// See the module.
pub struct Outage {
    clock: Box<dyn Clock>,
    book: Mutex<Book>,
    /// Read without the lock: in ordinary times there is nothing to look up.
    count: AtomicUsize,
}

impl Default for Outage {
    fn default() -> Self {
        Self::with_clock(Box::new(Monotonic::default()))
    }
}

impl Outage {
    pub fn with_clock(clock: Box<dyn Clock>) -> Self {
        Self { clock, book: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// Whether no account is open.
    pub fn is_empty(&self) -> bool {
        self.open_accounts() == 0
    }

    /// Accounts now open.
    pub fn open_accounts(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// A request was admitted that would have been charged by `decision`.
    pub fn admitted(&self, decision: &Decision, admission: Admission) {
        let now = self.clock.micros();
        let mut book = self.open();
        for charge in decision.charges.iter().filter(|charge| charge.cost > 0 && charge.limit.count() > 0) {
            let Some(account) = book.account(Name::of(decision.tag, charge), &charge.limit, now) else {
                continue;
            };
            account.refundable |= admission.refundable;
            if admission.owed {
                account.owe(charge.cost, now);
            } else if admission.refundable {
                account.never(charge.cost, now);
            }
        }
        self.note(&book);
    }

    /// Takes from the accounts what a success gives back. Returns what was covered by them, and what remains to be given
    /// back by the store.
    pub fn give_back(&self, refund: &Decision) -> (Decision, Decision) {
        let now = self.clock.micros();
        let mut book = self.open();
        let with = |charges| Decision { charges, ..refund.clone() };
        let (mut covered, mut remaining) = (Vec::new(), Vec::new());
        for charge in &refund.charges {
            let taken = book
                .accounts
                .get_mut(&Name::of(refund.tag, charge))
                .map_or(0, |account| account.give_back(charge.cost, now));
            for (cost, charges) in [(taken, &mut covered), (charge.cost - taken, &mut remaining)] {
                if cost > 0 {
                    charges.push(Charge { cost, ..charge.clone() });
                }
            }
        }
        (with(covered), with(remaining))
    }

    /// Up to `most` settlements the store is owed, taken off the book, one bucket each.
    pub fn due(&self, most: usize) -> Vec<Decision> {
        let now = self.clock.micros();
        let mut book = self.open();
        book.sweep(now);
        let owing = book.accounts.iter_mut().filter(|(_, account)| account.owed.is_some()).take(most);
        let due = owing
            .filter_map(|(name, account)| {
                let cost = account.used(now);
                account.owed = None;
                let charge = Charge { limit: Arc::clone(&account.limit), subject: name.subject, cost };
                let charges = vec![charge];
                (cost > 0).then_some(Decision { mode: Mode::Settle, tag: name.tag, charges, can_wait: true })
            })
            .collect();
        book.accounts
            .retain(|_, account| account.owed.is_some() || account.never_charged > 0 || account.refundable);
        self.note(&book);
        due
    }

    /// The store gave no answer to a settlement, and surely did not make it.
    pub fn still_owed(&self, settlement: &Decision) {
        self.admitted(settlement, Admission { owed: true, refundable: false });
    }

    /// The store made a settlement, or may have. One that it had no room for was not charged as a whole.
    pub fn settled(&self, settlement: &Decision, answer: Option<&Answer>) {
        let now = self.clock.micros();
        let mut book = self.open();
        for (i, charge) in settlement.charges.iter().enumerate() {
            let name = Name::of(settlement.tag, charge);
            let had_room =
                answer.and_then(|answer| answer.limits.get(i)).is_some_and(|limit| limit.remaining > 0);
            let Some(account) = book.accounts.get_mut(&name).filter(|account| account.refundable) else {
                continue;
            };
            if !had_room {
                account.never(charge.cost, now);
            } else if account.owed.is_none() && account.never_charged == 0 {
                book.accounts.remove(&name);
            }
        }
        self.note(&book);
    }

    fn open(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, book: &Book) {
        self.count.store(book.accounts.len(), Ordering::Release);
    }
}

impl Name {
    fn of(tag: KeyHash, charge: &Charge) -> Self {
        Self { tag, limit: charge.limit.token(), subject: charge.subject }
    }
}

impl Book {
    fn account(&mut self, name: Name, limit: &Arc<Limit>, now: u64) -> Option<&mut Account> {
        if self.accounts.len() >= MOST && !self.accounts.contains_key(&name) {
            if now < self.swept.saturating_add(SWEEP_EVERY) {
                return None;
            }
            self.sweep(now);
            if self.accounts.len() >= MOST {
                return None;
            }
        }
        let fresh = || Account {
            limit: Arc::clone(limit),
            owed: None,
            refundable: false,
            never_charged: 0,
            expires: now,
        };
        Some(self.accounts.entry(name).or_insert_with(fresh))
    }

    fn sweep(&mut self, now: u64) {
        self.accounts.retain(|_, account| now < account.expires);
        self.swept = now;
    }
}

impl Account {
    fn owe(&mut self, cost: u32, now: u64) {
        let (_, expires) = self.change(Mode::Settle, cost, now);
        self.expires = self.expires.max(expires);
    }

    fn never(&mut self, cost: u32, now: u64) {
        self.never_charged = self.never_charged.saturating_add(cost);
        self.expires = self.expires.max(now.saturating_add(memory(&self.limit)));
    }

    /// What the limit still remembers of what is owed, in whole units.
    fn used(&mut self, now: u64) -> u32 {
        let (answer, _) = self.change(Mode::Peek, 0, now);
        self.limit.capacity().saturating_sub(answer.remaining)
    }

    fn give_back(&mut self, cost: u32, now: u64) -> u32 {
        let never = cost.min(self.never_charged);
        self.never_charged -= never;
        let owed = (cost - never).min(self.used(now));
        self.change(Mode::Refund, owed, now);
        never + owed
    }

    fn change(&mut self, mode: Mode, cost: u32, now: u64) -> (LimitAnswer, u64) {
        let question = Question { mode, cost, can_wait: true, micros: now, phase: 0 };
        let judgement = algorithm::judge(&self.limit, self.owed.as_ref(), &question);
        algorithm::conclude(&self.limit, &mut self.owed, &question, &judgement, mode != Mode::Peek)
    }
}

/// Microseconds after which nothing of a charge is left.
fn memory(limit: &Limit) -> u64 {
    let window = u64::try_from(limit.window().as_micros()).unwrap_or(u64::MAX);
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let drain = u128::from(window) * u128::from(limit.burst()) / u128::from(limit.count().max(1));
            u64::try_from(drain).unwrap_or(u64::MAX)
        }
        Algorithm::SlidingWindow => window.saturating_mul(2),
        Algorithm::FixedWindow | Algorithm::SlidingWindowLog => window,
    }
}
