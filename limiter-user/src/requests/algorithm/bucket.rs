//! Token bucket and leaky bucket: one level that drains.
//!
//! The level is in cost × window and drains by `count` per time unit, so rates need no fractions: 7 per minute
//! drains 7 of a cost unit's 60 000 000 every microsecond. A token bucket's tokens are what is missing to the
//! capacity `burst × window`; a leaky bucket's queue is the level itself, `level / count` units long.

use std::time::Duration;

use super::{Judgement, Moment, Question, State, now_units, reported, too_far_ahead, until};
use crate::requests::limit::{Algorithm, Limit};
use crate::requests::store::{LimitAnswer, Mode};

fn capacity(limit: &Limit) -> u64 {
    u64::from(limit.burst()) * limit.window_units()
}

/// A leaky bucket serves a caller that cannot wait only when its turn is now.
fn needs_empty(limit: &Limit, question: &Question) -> bool {
    limit.algorithm() == Algorithm::LeakyBucket && !question.can_wait
}

pub(super) fn judge(limit: &Limit, state: Option<&State>, question: &Question) -> Judgement {
    let clock = now_units(limit, question);
    let (now, level, moved) = match state {
        // Never fuller than full: the limit may have been lowered.
        Some(State::Bucket { last, level }) if too_far_ahead(limit, clock, *last) => {
            (clock, (*level).min(capacity(limit)), true)
        }
        Some(State::Bucket { last, level }) => {
            let drained = clock.saturating_sub(*last).saturating_mul(u64::from(limit.count()));
            (clock.max(*last), level.saturating_sub(drained).min(capacity(limit)), false)
        }
        _ => (clock, 0, false),
    };
    let at = Moment::Bucket { now, level };
    if question.cost > limit.burst() {
        return Judgement { allowed: false, retry_after: None, moved, at };
    }
    let need = u64::from(question.cost) * limit.window_units();
    let room = if needs_empty(limit, question) { 0 } else { capacity(limit) - need };
    let wait = level.saturating_sub(room).div_ceil(u64::from(limit.count()));
    let retry_after = Some(until(limit, question, now + wait));
    Judgement { allowed: level <= room, retry_after, moved, at }
}

pub(super) fn conclude(
    limit: &Limit,
    state: &mut Option<State>,
    question: &Question,
    (now, before): (u64, u64),
    charge: bool,
) -> (LimitAnswer, u64) {
    let window = limit.window_units();
    let cost = u64::from(question.cost);
    let free = (capacity(limit) - before) / window;
    let level = match question.mode {
        _ if !charge => before,
        Mode::Consume => before + cost * window,
        Mode::Settle => before + cost.min(free) * window,
        Mode::Refund => before.saturating_sub(cost * window),
        Mode::Peek => before,
    };
    let drained_at = |level: u64| now + level.div_ceil(u64::from(limit.count()));
    if level != before {
        *state = (level > 0).then_some(State::Bucket { last: now, level });
    }
    let remaining = match needs_empty(limit, question) {
        true if level > 0 => 0,
        _ => (capacity(limit) - level) / window,
    };
    let wait_for = |level| if level > 0 { until(limit, question, drained_at(level)) } else { Duration::ZERO };
    let queued = charge && question.mode == Mode::Consume && limit.algorithm() == Algorithm::LeakyBucket;
    let answer = LimitAnswer {
        remaining: reported(remaining),
        reset: wait_for(level),
        delay: if queued { wait_for(before) } else { Duration::ZERO },
        ..LimitAnswer::default()
    };
    (answer, drained_at(level) * limit.unit().micros())
}
