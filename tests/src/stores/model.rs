//! The five algorithms by their definitions, in exact fractions: slow, obvious, and sharing no formula with the
//! stores. Waits, remainders and resets are searched for, not computed.

use std::collections::BTreeMap;

use limiter_user::requests::limit::{Algorithm, Limit};
use limiter_user::requests::store::Mode;
use num_rational::Ratio;

type Exact = Ratio<i128>;

/// What the definitions say; times in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    pub allowed: bool,
    pub remaining: u32,
    pub retry_after: Option<u64>,
    pub reset: u64,
    pub delay: u64,
}

/// One limit for one subject.
#[derive(Debug, Clone)]
pub struct Model {
    algorithm: Algorithm,
    count: i128,
    burst: i128,
    /// In units.
    window: i128,
    /// In microseconds.
    unit: i128,
    phase: i128,
    observe: bool,
    /// Token bucket: the tokens at a time.
    tokens: Exact,
    tokens_at: i128,
    /// Leaky bucket: when the last one queued has gone out.
    busy_until: Exact,
    /// Windows: cost per window number.
    windows: BTreeMap<i128, i128>,
    /// Log: the time of each cost unit.
    times: Vec<i128>,
}

impl Model {
    /// `phase`: units by which a fixed window's boundaries are moved.
    pub fn new(limit: &Limit, phase: u64) -> Self {
        Self {
            algorithm: limit.algorithm(),
            count: limit.count().into(),
            burst: limit.burst().into(),
            window: limit.window_units().into(),
            unit: limit.unit().micros().into(),
            phase: if limit.algorithm() == Algorithm::FixedWindow { phase.into() } else { 0 },
            observe: limit.observe(),
            tokens: Exact::from(i128::from(limit.burst())),
            tokens_at: 0,
            busy_until: Exact::from(0),
            windows: BTreeMap::new(),
            times: Vec::new(),
        }
    }

    pub fn observe(&self) -> bool {
        self.observe
    }

    /// Whether a request at `micros` has room.
    pub fn has_room(&self, micros: u64, cost: u32, can_wait: bool) -> bool {
        let (now, cost) = (self.units(micros), i128::from(cost));
        match self.algorithm {
            _ if self.count == 0 => false,
            Algorithm::TokenBucket => Exact::from(cost) <= self.tokens_now(now),
            Algorithm::LeakyBucket if can_wait => self.queue(now) + cost <= Exact::from(self.burst),
            Algorithm::LeakyBucket => self.queue(now) == Exact::from(0) && cost <= self.burst,
            Algorithm::FixedWindow => self.in_window(self.index(now)) + cost <= self.count,
            Algorithm::SlidingWindow => self.slid(now) + cost <= Exact::from(self.count),
            Algorithm::SlidingWindowLog => self.live(now) + cost <= self.count,
        }
    }

    /// What a request is answered, before it is charged.
    pub fn expect(&self, micros: u64, cost: u32, can_wait: bool) -> Expected {
        let allowed = self.has_room(micros, cost, can_wait);
        let room_after = |wait: u64| self.has_room(micros + wait, cost, can_wait);
        let queue = if can_wait { self.queue(self.units(micros)) } else { Exact::from(0) };
        Expected {
            allowed,
            remaining: self.remaining(micros, can_wait),
            retry_after: first(room_after),
            reset: self.reset(micros),
            // The time at which everything before it has gone out, on the clock's next tick.
            delay: if allowed && queue > Exact::from(0) {
                self.wait_until((self.busy_until).ceil().to_integer(), micros)
            } else {
                0
            },
        }
    }

    /// The largest cost with room.
    pub fn remaining(&self, micros: u64, can_wait: bool) -> u32 {
        let (mut low, mut high) = (0u32, u32::MAX);
        if !self.has_room(micros, 1, can_wait) {
            return 0;
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if self.has_room(micros, middle, can_wait) { low = middle } else { high = middle }
        }
        low
    }

    /// Microseconds until a bucket is as if never used, or a window ends.
    pub fn reset(&self, micros: u64) -> u64 {
        let now = self.units(micros);
        let unused = |wait: u64| {
            let then = self.units(micros + wait);
            match self.algorithm {
                _ if self.count == 0 => true,
                Algorithm::TokenBucket => self.tokens_now(then) == Exact::from(self.burst),
                Algorithm::LeakyBucket => self.queue(then) == Exact::from(0),
                Algorithm::SlidingWindowLog => self.live(then) == 0,
                Algorithm::FixedWindow | Algorithm::SlidingWindow => self.index(then) > self.index(now),
            }
        };
        first(unused).unwrap_or(u64::MAX)
    }

    /// Does what `mode` does, for a request that is admitted.
    pub fn charge(&mut self, micros: u64, mode: Mode, cost: u32) {
        let cost = match mode {
            Mode::Peek => return,
            // Nobody waits for a settlement: it takes whatever the queue has room for.
            Mode::Settle => cost.min(self.remaining(micros, true)),
            Mode::Consume | Mode::Refund => cost,
        };
        if self.count == 0 {
            return;
        }
        let (now, signed) =
            (self.units(micros), if mode == Mode::Refund { -i128::from(cost) } else { i128::from(cost) });
        match self.algorithm {
            Algorithm::TokenBucket => {
                self.tokens = (self.tokens_now(now) - signed).min(Exact::from(self.burst));
                self.tokens_at = now;
            }
            Algorithm::LeakyBucket => {
                let busy =
                    self.busy_until.max(Exact::from(now)) + Exact::new(signed * self.window, self.count);
                self.busy_until = busy.max(Exact::from(now));
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                let index = self.index(now);
                let current = self.windows.entry(index).or_default();
                *current += signed;
                let overdrawn = (*current).min(0);
                *current -= overdrawn;
                if let Some(previous) = self.windows.get_mut(&(index - 1)) {
                    *previous = (*previous + overdrawn).max(0);
                }
            }
            Algorithm::SlidingWindowLog if mode == Mode::Refund => {
                self.times.retain(|time| *time > now - self.window);
                self.times.drain(..(cost as usize).min(self.times.len()));
            }
            Algorithm::SlidingWindowLog => self.times.extend((0..cost).map(|_| now)),
        }
    }

    fn units(&self, micros: u64) -> i128 {
        i128::from(micros) / self.unit
    }

    fn wait_until(&self, units: i128, micros: u64) -> u64 {
        u64::try_from(units * self.unit - i128::from(micros)).unwrap_or(0)
    }

    fn tokens_now(&self, now: i128) -> Exact {
        let refill = Exact::new((now - self.tokens_at) * self.count, self.window);
        (self.tokens + refill).min(Exact::from(self.burst))
    }

    /// Cost units still to go out.
    fn queue(&self, now: i128) -> Exact {
        let busy = (self.busy_until - now).max(Exact::from(0));
        busy * self.count / self.window
    }

    fn index(&self, now: i128) -> i128 {
        (now + self.phase) / self.window
    }

    fn in_window(&self, index: i128) -> i128 {
        self.windows.get(&index).copied().unwrap_or(0)
    }

    fn slid(&self, now: i128) -> Exact {
        let index = self.index(now);
        let left = Exact::new((index + 1) * self.window - now, self.window);
        left * self.in_window(index - 1) + self.in_window(index)
    }

    fn live(&self, now: i128) -> i128 {
        self.times.iter().filter(|time| **time > now - self.window).count() as i128
    }
}

/// The smallest wait for which `holds`, which stays true once it is; `None` if not within 800 days.
fn first(holds: impl Fn(u64) -> bool) -> Option<u64> {
    const LONGEST: u64 = 800 * 86_400 * 1_000_000;
    if holds(0) {
        return Some(0);
    }
    let (mut low, mut high) = (0, LONGEST);
    if !holds(high) {
        return None;
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle }
    }
    Some(high)
}
