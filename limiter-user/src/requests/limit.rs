//! A limit with validated numbers: what every store can compute exactly in integers.

use std::num::NonZeroU32;
use std::time::Duration;

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::key::{feed_part, id_text};

/// The largest count, burst, depth or cost. Nothing an API grants comes near it.
pub const MAX_COUNT: u32 = 1_000_000_000;
/// A log keeps one time per request, so its limit is small.
pub const MAX_LOG_COUNT: u32 = 1000;
/// The longest window: 366 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);
/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_millis(1);
/// Products of counts and times stay below this, so that Lua's doubles hold them exactly with room to add.
const MAX_PRODUCT: u128 = 1 << 52;

/// How a limit counts. `docs/algorithms.md` says what each promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    FixedWindow,
    SlidingWindowLog,
    SlidingWindow,
    TokenBucket,
    LeakyBucket,
}

impl Algorithm {
    pub const ALL: [Self; 5] = [
        Self::FixedWindow,
        Self::SlidingWindowLog,
        Self::SlidingWindow,
        Self::TokenBucket,
        Self::LeakyBucket,
    ];

    /// The name in the policy file.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindowLog => "sliding-window-log",
            Self::SlidingWindow => "sliding-window",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
        }
    }

    /// The letter of the algorithm in the protocol with the store.
    pub fn letter(self) -> char {
        match self {
            Self::FixedWindow => 'F',
            Self::SlidingWindowLog => 'L',
            Self::SlidingWindow => 'S',
            Self::TokenBucket => 'T',
            Self::LeakyBucket => 'Q',
        }
    }

    /// Whether the state is a level that drains, so that a burst (or a depth) means something.
    pub fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }
}

/// The time unit in which a limit's state is kept: the finest in which its products stay exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    Microsecond,
    Millisecond,
    Second,
}

impl Unit {
    /// The unit in microseconds.
    pub fn micros(self) -> u64 {
        match self {
            Self::Microsecond => 1,
            Self::Millisecond => 1000,
            Self::Second => 1_000_000,
        }
    }
}

/// What a limit is made from.
#[derive(Debug, Clone)]
pub struct LimitSpec<'a> {
    /// Where the limit stands: the endpoint's name, or empty for a named limit that endpoints share.
    pub place: &'a str,
    /// Shown to people and callers; unique within its place.
    pub name: &'a str,
    /// The scopes as the policy file writes them, for example `account` or `api-key | source`.
    pub scope: &'a str,
    pub algorithm: Algorithm,
    /// Requests (cost units) per window; 0 refuses everything.
    pub count: u32,
    pub window: Duration,
    /// Token bucket: its burst. Leaky bucket: the depth of its queue, 1 for a meter. Absent: the count for a
    /// token bucket, 1 for a leaky bucket. An error elsewhere.
    pub burst: Option<u32>,
    /// Counts and reports, refuses nothing.
    pub observe: bool,
}

/// A limit ready to be decided. Cheap to share behind an `Arc`; one for every plan with its own numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    name: String,
    id: String,
    token: u64,
    algorithm: Algorithm,
    count: u32,
    burst: u32,
    unit: Unit,
    window_units: u64,
    observe: bool,
    policy_item: HeaderValue,
    capacity_text: HeaderValue,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error("`{0}` is more than {MAX_COUNT}")]
    Count(u32),
    #[error("a burst or depth of 0 admits nothing; to refuse everything write a rate of 0")]
    ZeroBurst,
    #[error("`burst` has no meaning for `{0}`; it belongs to `token-bucket`, and `depth` to `leaky-bucket`")]
    BurstOnWindow(&'static str),
    #[error("`sliding-window-log` keeps one time per request: its limit is at most {MAX_LOG_COUNT}, not {0}")]
    LogCount(u32),
    #[error("a window is from 1 ms to 366 days, in whole milliseconds; {0:?} is not")]
    Window(Duration),
    #[error("a bucket of {burst} at {count} per {window:?} takes more than 366 days to drain")]
    TooSlow { burst: u32, count: u32, window: Duration },
    #[error(
        "{count} per {window:?} is too large to be counted exactly; take a smaller count or a shorter window"
    )]
    TooLarge { count: u32, window: Duration },
}

impl Limit {
    pub fn new(spec: &LimitSpec<'_>) -> Result<Self, LimitError> {
        let window_micros = spec.window.as_micros();
        if spec.window < MIN_WINDOW || spec.window > MAX_WINDOW || !window_micros.is_multiple_of(1000) {
            return Err(LimitError::Window(spec.window));
        }
        if spec.burst.is_some() && !spec.algorithm.is_bucket() {
            return Err(LimitError::BurstOnWindow(spec.algorithm.name()));
        }
        let burst = match spec.algorithm {
            Algorithm::LeakyBucket => spec.burst.unwrap_or(1),
            _ => spec.burst.unwrap_or(spec.count),
        };
        if spec.count > MAX_COUNT || burst > MAX_COUNT {
            return Err(LimitError::Count(spec.count.max(burst)));
        }
        if spec.burst == Some(0) {
            return Err(LimitError::ZeroBurst);
        }
        if spec.algorithm == Algorithm::SlidingWindowLog && spec.count > MAX_LOG_COUNT {
            return Err(LimitError::LogCount(spec.count));
        }
        let drain = u128::from(burst) * window_micros / u128::from(spec.count.max(1));
        if spec.count > 0 && drain > MAX_WINDOW.as_micros() {
            return Err(LimitError::TooSlow { burst, count: spec.count, window: spec.window });
        }
        let (unit, window_units) = unit_for(spec.count.max(burst), window_micros)
            .ok_or(LimitError::TooLarge { count: spec.count.max(burst), window: spec.window })?;
        let id = limit_id(spec, unit, window_units);
        let limit = Self {
            name: spec.name.to_owned(),
            token: id_token(&id),
            id,
            algorithm: spec.algorithm,
            count: spec.count,
            burst,
            unit,
            window_units,
            observe: spec.observe,
            policy_item: HeaderValue::from_static(""),
            capacity_text: HeaderValue::from_static(""),
        };
        Ok(limit.shown())
    }

    /// With the text for the numbers it has.
    fn shown(mut self) -> Self {
        let item = format!("\"{}\";q={};w={}", self.name, self.capacity(), self.quota_seconds());
        // A policy's names are letters, digits, `-`, `_` and `.`; another name is not shown.
        self.policy_item = HeaderValue::try_from(item).unwrap_or(HeaderValue::from_static(""));
        self.capacity_text = self.capacity().into();
        self
    }

    /// The window that goes with the capacity, in seconds rounded up: what a bucket's burst takes to refill, or the
    /// window itself.
    pub fn quota_seconds(&self) -> u64 {
        let micros = self.window().as_micros();
        let micros = if self.algorithm.is_bucket() && self.count > 0 {
            (micros * u128::from(self.burst)).div_ceil(u128::from(self.count))
        } else {
            micros
        };
        u64::try_from(micros.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The capacity in `RateLimit-Limit`.
    pub fn capacity_text(&self) -> &HeaderValue {
        &self.capacity_text
    }

    /// The limit in `RateLimit-Policy`.
    pub fn policy_item(&self) -> &HeaderValue {
        &self.policy_item
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Names the limit's state in the store. Covers what changes the state's meaning, not the numbers: a
    /// limit that is raised or lowered keeps its callers' state.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The id as a number, for tables in memory.
    pub fn token(&self) -> u64 {
        self.token
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Cost units per window.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Burst of a token bucket, depth of a leaky bucket; the count for the others.
    pub fn burst(&self) -> u32 {
        self.burst
    }

    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The window in `unit()`s.
    pub fn window_units(&self) -> u64 {
        self.window_units
    }

    pub fn window(&self) -> Duration {
        Duration::from_micros(self.window_units * self.unit.micros())
    }

    pub fn observe(&self) -> bool {
        self.observe
    }

    /// The largest cost that can ever be admitted.
    pub fn capacity(&self) -> u32 {
        if self.count == 0 { 0 } else { self.burst }
    }

    /// This limit's part for one of `instances` equal instances: together they admit no more than the whole.
    /// A count smaller than the number of instances becomes one per longer window.
    pub fn share(&self, instances: NonZeroU32) -> Self {
        let parts = instances.get();
        let mut part = self.clone();
        if parts == 1 || self.count == 0 {
            return part;
        }
        if self.count >= parts {
            part.count = self.count / parts;
        } else {
            part.count = 1;
            part.window_units = (self.window_units * u64::from(parts)).div_ceil(u64::from(self.count));
        }
        part.burst = if self.algorithm.is_bucket() { (self.burst / parts).max(1) } else { part.count };
        part.shown()
    }
}

fn unit_for(count: u32, window_micros: u128) -> Option<(Unit, u64)> {
    [Unit::Microsecond, Unit::Millisecond, Unit::Second].into_iter().find_map(|unit| {
        let micros = u128::from(unit.micros());
        let units = window_micros / micros;
        let exact = window_micros.is_multiple_of(micros) && units > 0;
        let fits = (2 * u128::from(count) + 2) * units <= MAX_PRODUCT;
        if exact && fits { u64::try_from(units).ok().map(|units| (unit, units)) } else { None }
    })
}

fn limit_id(spec: &LimitSpec<'_>, unit: Unit, window_units: u64) -> String {
    let mut hash = Sha256::new();
    for part in [spec.place, spec.name, spec.scope, spec.algorithm.name()] {
        feed_part(&mut hash, part.as_bytes());
    }
    feed_part(&mut hash, &window_units.to_be_bytes());
    feed_part(&mut hash, &unit.micros().to_be_bytes());
    let readable: String = spec
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c.to_ascii_lowercase() } else { '-' })
        .take(24)
        .collect();
    format!("{readable}.{}", id_text(&hash.finalize()))
}

fn id_token(id: &str) -> u64 {
    let mut token = [0; 8];
    token.copy_from_slice(&Sha256::digest(id)[..8]);
    u64::from_be_bytes(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(algorithm: Algorithm, count: u32, window: Duration, burst: Option<u32>) -> LimitSpec<'static> {
        LimitSpec {
            place: "login",
            name: "source",
            scope: "source",
            algorithm,
            count,
            window,
            burst,
            observe: false,
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn numbers_are_checked() {
        let window = |window| Limit::new(&spec(Algorithm::SlidingWindow, 5, window, None));
        assert_eq!(
            window(Duration::from_micros(1500)).unwrap_err(),
            LimitError::Window(Duration::from_micros(1500))
        );
        assert!(window(Duration::ZERO).is_err());
        assert!(window(Duration::from_secs(400 * 86_400)).is_err());
        let log = Limit::new(&spec(Algorithm::SlidingWindowLog, 1001, MINUTE, None));
        assert_eq!(log.unwrap_err(), LimitError::LogCount(1001));
        let burst = Limit::new(&spec(Algorithm::FixedWindow, 5, MINUTE, Some(9)));
        assert_eq!(burst.unwrap_err(), LimitError::BurstOnWindow("fixed-window"));
        let zero = Limit::new(&spec(Algorithm::TokenBucket, 5, MINUTE, Some(0)));
        assert_eq!(zero.unwrap_err(), LimitError::ZeroBurst);
    }

    #[test]
    fn the_unit_is_the_finest_that_stays_exact() {
        // 2^52 = 4.5e15; a day is 8.64e10 µs, so 2 × 20 000 × 8.64e10 = 3.5e15 fits and 30 000 does not.
        let day = Duration::from_secs(86_400);
        let unit =
            |count, window| Limit::new(&spec(Algorithm::TokenBucket, count, window, None)).map(|l| l.unit());
        assert_eq!(unit(20_000, day), Ok(Unit::Microsecond));
        assert_eq!(unit(30_000, day), Ok(Unit::Millisecond));
        assert_eq!(unit(1_000_000_000, day), Ok(Unit::Second));
        assert!(matches!(unit(1_000_000_000, MAX_WINDOW), Err(LimitError::TooLarge { .. })));
    }

    #[test]
    fn the_id_covers_meaning_and_not_numbers() {
        let id = |s: LimitSpec<'_>| Limit::new(&s).unwrap().id().to_owned();
        let base = spec(Algorithm::TokenBucket, 20, MINUTE, Some(20));
        assert_eq!(
            id(base.clone()),
            id(LimitSpec { count: 40, burst: Some(7), observe: true, ..base.clone() })
        );
        for other in [
            LimitSpec { place: "search", ..base.clone() },
            LimitSpec { name: "other", ..base.clone() },
            LimitSpec { scope: "account", ..base.clone() },
            LimitSpec { algorithm: Algorithm::LeakyBucket, ..base.clone() },
            LimitSpec { window: MINUTE * 2, ..base.clone() },
            LimitSpec { count: 100_000_000, ..base.clone() }, // another time unit
        ] {
            assert_ne!(id(base.clone()), id(other));
        }
    }

    #[test]
    fn shares_never_add_up_to_more() {
        let parts = NonZeroU32::new(3).unwrap();
        let whole = Limit::new(&spec(Algorithm::SlidingWindow, 100, MINUTE, None)).unwrap();
        assert_eq!(whole.share(parts).count(), 33);
        // 2 a minute over 3 instances: each one per 90 s.
        let small = Limit::new(&spec(Algorithm::SlidingWindow, 2, MINUTE, None)).unwrap().share(parts);
        assert_eq!((small.count(), small.window()), (1, Duration::from_secs(90)));
    }
}
