//! The five algorithms, in integers.
//!
//! A decision has two steps, so that several limits can be charged all or none: [`judge`] says whether a limit
//! has room and changes nothing; [`conclude`] charges it (or not) and reports. The Lua of the Redis store does
//! the same arithmetic step by step; one test suite holds both to an exact model.
//!
//! Time is counted in the limit's unit: `now = floor(µs / unit)`. A clock that was set back by at most
//! [`MAX_AHEAD_MICROS`] stands still for the state until it has caught up. State from further ahead is *moved*: it
//! stays as full as it was, and goes on from the clock's new time. That is kept even by a refusal, which writes
//! nothing otherwise: else every question would move it again and it would never drain.

mod bucket;
mod log;
mod window;

use std::collections::VecDeque;
use std::time::Duration;

use super::limit::{Algorithm, Limit};
use super::store::{LimitAnswer, Mode};

/// How far ahead of the clock a state may be before it is moved to it.
pub const MAX_AHEAD_MICROS: u64 = 60_000_000;

/// What a store keeps for one limit and subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Token and leaky bucket: `level` (cost × window, drained by `count` per unit) as it was at `last`.
    Bucket { last: u64, level: u64 },
    /// Both windows: the counts of window number `index` and of the one before.
    Window { index: u64, previous: u64, current: u64 },
    /// One time per admitted cost unit, oldest first.
    Log(VecDeque<u64>),
}

/// What is asked of one limit.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    pub mode: Mode,
    pub cost: u32,
    pub can_wait: bool,
    /// The clock in microseconds.
    pub micros: u64,
    /// Moves a fixed window's boundaries, so that not all callers' windows end together; in units, less than
    /// the window.
    pub phase: u64,
}

/// A limit's verdict, and its state brought to the moment of the question.
#[derive(Debug, Clone, Copy)]
pub struct Judgement {
    pub allowed: bool,
    /// Zero if allowed, `None` for never.
    pub retry_after: Option<Duration>,
    /// The state was too far ahead of the clock, and is to be kept as it was moved.
    pub moved: bool,
    at: Moment,
}

#[derive(Debug, Clone, Copy)]
enum Moment {
    Bucket {
        now: u64,
        level: u64,
    },
    Window {
        now: u64,
        index: u64,
        into: u64,
        previous: u64,
        current: u64,
    },
    Log {
        now: u64,
        expired: usize,
        /// How far all times are moved back.
        back: u64,
    },
    /// A limit of 0 has no state.
    Closed,
}

/// Whether `limit` has room. Changes nothing.
pub fn judge(limit: &Limit, state: Option<&State>, question: &Question) -> Judgement {
    if limit.count() == 0 {
        let allowed = matches!(question.mode, Mode::Refund | Mode::Settle);
        let retry_after = allowed.then_some(Duration::ZERO);
        return Judgement { allowed, retry_after, moved: false, at: Moment::Closed };
    }
    let mut judgement = match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => bucket::judge(limit, state, question),
        Algorithm::FixedWindow | Algorithm::SlidingWindow => window::judge(limit, state, question),
        Algorithm::SlidingWindowLog => log::judge(limit, state, question),
    };
    if matches!(question.mode, Mode::Refund | Mode::Settle) {
        judgement.allowed = true;
    }
    if judgement.allowed {
        judgement.retry_after = Some(Duration::ZERO);
    }
    judgement.moved &= question.mode != Mode::Peek;
    judgement
}

/// Charges the limit if `charge` (never for [`Mode::Peek`]), and reports. A state that was moved is kept so in any
/// case. `state` becomes `None` when it is as if never used. Also returns the time in microseconds from which the state says nothing.
pub fn conclude(
    limit: &Limit,
    state: &mut Option<State>,
    question: &Question,
    judgement: &Judgement,
    charge: bool,
) -> (LimitAnswer, u64) {
    let charge = charge && judgement.allowed && question.cost > 0 && question.mode != Mode::Peek;
    let (mut answer, expires) = match judgement.at {
        Moment::Bucket { now, level } => {
            keep_moved(state, judgement, || State::Bucket { last: now, level });
            bucket::conclude(limit, state, question, (now, level), charge)
        }
        Moment::Window { now, index, into, previous, current } => {
            keep_moved(state, judgement, || State::Window { index, previous, current });
            let at = window::At { now, index, into, previous, current };
            window::conclude(limit, state, question, at, charge)
        }
        Moment::Log { now, expired, back } => {
            if let (true, Some(State::Log(times))) = (judgement.moved, state.as_mut()) {
                times.iter_mut().for_each(|time| *time = time.saturating_sub(back));
            }
            log::conclude(limit, state, question, (now, expired), charge)
        }
        Moment::Closed => (LimitAnswer::default(), question.micros),
    };
    answer.allowed = judgement.allowed;
    answer.retry_after = judgement.retry_after;
    (answer, expires)
}

fn keep_moved(state: &mut Option<State>, judgement: &Judgement, moved: impl FnOnce() -> State) {
    if judgement.moved {
        *state = Some(moved());
    }
}

/// The duration from the question to the start of time unit `units`.
fn until(limit: &Limit, question: &Question, units: u64) -> Duration {
    Duration::from_micros((units * limit.unit().micros()).saturating_sub(question.micros))
}

fn now_units(limit: &Limit, question: &Question) -> u64 {
    question.micros / limit.unit().micros()
}

/// Whether a state at `units` is so far ahead of `now` that it is moved.
fn too_far_ahead(limit: &Limit, now: u64, units: u64) -> bool {
    units.saturating_sub(now).saturating_mul(limit.unit().micros()) > MAX_AHEAD_MICROS
}

/// A count as it is reported; capacities are at most `MAX_COUNT`.
fn reported(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
