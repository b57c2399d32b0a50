//! Sliding window log: one time per admitted cost unit.
//!
//! A time counts until a full window has passed. Refused requests leave nothing, so hammering does not
//! prolong a refusal.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Judgement, Moment, Question, State, now_units, reported, too_far_ahead, until};
use crate::requests::limit::Limit;
use crate::requests::store::{LimitAnswer, Mode};

fn times(state: Option<&State>) -> Option<&VecDeque<u64>> {
    match state {
        Some(State::Log(times)) => Some(times),
        _ => None,
    }
}

pub(super) fn judge(limit: &Limit, state: Option<&State>, question: &Question) -> Judgement {
    let none = VecDeque::new();
    let times = times(state).unwrap_or(&none);
    let clock = now_units(limit, question);
    let newest = times.back().copied().unwrap_or(clock);
    let moved = too_far_ahead(limit, clock, newest);
    let back = if moved { newest - clock } else { 0 };
    let now = clock.max(newest - back);
    let leaves = |time: u64| time.saturating_sub(back) + limit.window_units();
    let expired = times.partition_point(|time| leaves(*time) <= now);
    let at = Moment::Log { now, expired, back };
    let (count, cost) = (limit.count() as usize, question.cost as usize);
    if cost > count {
        return Judgement { allowed: false, retry_after: None, moved, at };
    }
    let too_many = (times.len() - expired + cost).saturating_sub(count);
    // Room comes when the last of the surplus leaves.
    let last = too_many.checked_sub(1).and_then(|surplus| times.get(expired + surplus));
    let wait = last.map_or(Duration::ZERO, |time| until(limit, question, leaves(*time)));
    Judgement { allowed: too_many == 0, retry_after: Some(wait), moved, at }
}

pub(super) fn conclude(
    limit: &Limit,
    state: &mut Option<State>,
    question: &Question,
    (now, expired): (u64, usize),
    charge: bool,
) -> (LimitAnswer, u64) {
    let (count, cost) = (limit.count() as usize, question.cost as usize);
    let live = times(state.as_ref()).map_or(0, VecDeque::len) - expired;
    let free = count.saturating_sub(live);
    // A refund does not know which time was its own. It takes the oldest: what stays then leaves no sooner
    // than it should, and every window keeps its promise.
    let (drop, add) = match question.mode {
        _ if !charge => (0, 0),
        Mode::Consume => (0, cost),
        Mode::Settle => (0, cost.min(free)),
        Mode::Refund => (cost.min(live), 0),
        Mode::Peek => (0, 0),
    };
    if drop + add > 0 {
        if !matches!(state, Some(State::Log(_))) {
            *state = Some(State::Log(VecDeque::new()));
        }
        if let Some(State::Log(times)) = state {
            times.drain(..expired + drop);
            times.extend(std::iter::repeat_n(now, add));
            if times.is_empty() {
                *state = None;
            }
        }
    }
    let live = live - drop + add;
    let newest = times(state.as_ref()).and_then(VecDeque::back).filter(|_| live > 0);
    let empty_at = newest.map(|time| time + limit.window_units());
    let answer = LimitAnswer {
        remaining: reported(count.saturating_sub(live) as u64),
        reset: empty_at.map_or(Duration::ZERO, |units| until(limit, question, units)),
        delay: Duration::ZERO,
        ..LimitAnswer::default()
    };
    (answer, empty_at.unwrap_or(now) * limit.unit().micros())
}
