//! Fixed window and sliding window counter: counts of the current and the previous window.
//!
//! The sliding counter takes the previous window's requests as spread evenly: after a fraction f of the
//! current window, `previous × (1 − f) + current` requests are in the window that ends now. Multiplied by the
//! window's length that is an integer.

use std::time::Duration;

use super::{Judgement, Moment, Question, State, now_units, reported, too_far_ahead, until};
use crate::requests::limit::{Algorithm, Limit};
use crate::requests::store::{LimitAnswer, Mode};

/// The two counts at one moment: `into` units into window number `index`.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub now: u64,
    pub index: u64,
    pub into: u64,
    pub previous: u64,
    pub current: u64,
}

impl At {
    /// What counts against the limit, times the window.
    fn weight(&self, window: u64) -> u64 {
        self.previous * (window - self.into) + self.current * window
    }

    fn free(&self, limit: &Limit) -> u64 {
        let window = limit.window_units();
        (u64::from(limit.count()) * window).saturating_sub(self.weight(window)) / window
    }
}

pub(super) fn judge(limit: &Limit, state: Option<&State>, question: &Question) -> Judgement {
    let (at, moved) = bring_to_now(limit, state, question);
    let moment = Moment::Window {
        now: at.now,
        index: at.index,
        into: at.into,
        previous: at.previous,
        current: at.current,
    };
    let (count, cost) = (u64::from(limit.count()), u64::from(question.cost));
    if cost > count {
        return Judgement { allowed: false, retry_after: None, moved, at: moment };
    }
    let window = limit.window_units();
    let allowed = at.weight(window) + cost * window <= count * window;
    let wait = if allowed { 0 } else { wait_for_room(limit, &at, count - cost) };
    Judgement { allowed, retry_after: Some(until(limit, question, at.now + wait)), moved, at: moment }
}

/// Units until at most `room` requests weigh on the limit, which they exceed now.
fn wait_for_room(limit: &Limit, at: &At, room: u64) -> u64 {
    let window = limit.window_units();
    let to_end = window - at.into;
    if limit.algorithm() == Algorithm::FixedWindow {
        return to_end;
    }
    match room.checked_sub(at.current) {
        // Within this window, when enough of the previous one has slid out.
        Some(room) => to_end - room * window / at.previous,
        // Within the next one, where the current count is the previous.
        None => to_end + window - room * window / at.current,
    }
}

/// The counts at the question's time, and whether they were moved there.
fn bring_to_now(limit: &Limit, state: Option<&State>, question: &Question) -> (At, bool) {
    let window = limit.window_units();
    let now = now_units(limit, question);
    let index = (now + question.phase) / window;
    let empty = At { now, index, into: now + question.phase - index * window, previous: 0, current: 0 };
    let Some(&State::Window { index: stored, previous, current }) = state else { return (empty, false) };
    let start = (stored * window).saturating_sub(question.phase);
    if too_far_ahead(limit, now, start) {
        return (At { previous, current, ..empty }, true);
    }
    if stored > index {
        // The clock was set back over a boundary: it stands at the start of the stored window.
        return (At { now: start, index: stored, into: 0, previous, current }, false);
    }
    let slides = limit.algorithm() == Algorithm::SlidingWindow;
    let at = match index - stored {
        0 => At { previous, current, ..empty },
        1 if slides => At { previous: current, ..empty },
        _ => empty,
    };
    (at, false)
}

pub(super) fn conclude(
    limit: &Limit,
    state: &mut Option<State>,
    question: &Question,
    before: At,
    charge: bool,
) -> (LimitAnswer, u64) {
    let window = limit.window_units();
    let cost = u64::from(question.cost);
    let mut at = before;
    match question.mode {
        _ if !charge => {}
        Mode::Consume => at.current += cost,
        Mode::Settle => at.current += cost.min(at.free(limit)),
        Mode::Refund => {
            at.previous = at.previous.saturating_sub(cost.saturating_sub(at.current));
            at.current = at.current.saturating_sub(cost);
        }
        Mode::Peek => {}
    }
    if (at.previous, at.current) != (before.previous, before.current) {
        let used = at.previous + at.current > 0;
        *state =
            used.then_some(State::Window { index: at.index, previous: at.previous, current: at.current });
    }
    let end = at.now + window - at.into;
    let slides = limit.algorithm() == Algorithm::SlidingWindow && at.current > 0;
    let expires = if slides { end + window } else { end };
    let answer = LimitAnswer {
        remaining: reported(at.free(limit)),
        reset: until(limit, question, end),
        delay: Duration::ZERO,
        ..LimitAnswer::default()
    };
    (answer, expires * limit.unit().micros())
}
