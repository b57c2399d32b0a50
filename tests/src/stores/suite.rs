//! Random schedules against the exact model, and promises by example. Runs against every store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use limiter_user::requests::key::KeyHash;
use limiter_user::requests::limit::{Algorithm, Limit};
use limiter_user::requests::store::{Answer, Charge, Decision, LimitAnswer, Mode, StoreError};

use super::model::{Expected, Model};
use super::{fresh, named};

/// A store whose clock a test can read, and let pass.
#[async_trait]
pub trait TimedStore: Send + Sync {
    /// The answer, and the store's clock in microseconds when it was made.
    async fn ask(&self, decision: &Decision) -> Result<(Answer, u64), StoreError>;

    /// Moves the clock by so many microseconds, without any time passing.
    async fn step(&self, micros: i64);

    /// Lets `time` pass for the store.
    async fn pass(&self, time: Duration) {
        self.step(time.as_micros() as i64).await;
    }
}

/// A random schedule for one decision shape: `limits` charged together, by one subject each.
pub struct Schedule {
    pub limits: Vec<Arc<Limit>>,
    pub steps: usize,
    /// The longest pause drawn; pauses are also drawn around the moments at which answers should change.
    pub longest_pause: Duration,
}

/// Runs a schedule and returns a description of every answer that differs from the model's.
pub async fn run(store: &dyn TimedStore, schedule: &Schedule, rng: &mut Rng) -> Vec<String> {
    let tag = fresh();
    let subjects: Vec<KeyHash> = schedule.limits.iter().map(|_| fresh()).collect();
    let mut models: Vec<Model> = schedule
        .limits
        .iter()
        .zip(&subjects)
        .map(|(limit, subject)| Model::new(limit, subject.phase(limit.window_units())))
        .collect();
    let mut mismatches = Vec::new();
    let mut last: Option<Answer> = None;
    for step in 0..schedule.steps {
        store.pass(pause(schedule, last.as_ref(), rng)).await;
        let charges = schedule.limits.iter().zip(&subjects).map(|(limit, subject)| Charge {
            limit: Arc::clone(limit),
            subject: *subject,
            cost: cost(limit, rng),
        });
        let charges = charges.collect();
        let decision = Decision { mode: mode(rng), tag, charges, can_wait: rng.bool() };
        let (answer, micros) = match store.ask(&decision).await {
            Ok(answer) => answer,
            Err(error) => {
                mismatches.push(format!("step {step}: {error}"));
                return mismatches;
            }
        };
        let expected = expect(&mut models, &decision, micros);
        let found = observed(&answer);
        if expected != found {
            mismatches.push(format!(
                "step {step} at {micros} µs: {decision:?}\n expected {expected:?}\n found    {found:?}"
            ));
        }
        last = Some(answer);
    }
    mismatches
}

/// What the definitions answer; charges the models accordingly.
fn expect(models: &mut [Model], decision: &Decision, micros: u64) -> (bool, Vec<Expected>) {
    let settles = matches!(decision.mode, Mode::Refund | Mode::Settle);
    let mut answers: Vec<Expected> = models
        .iter()
        .zip(&decision.charges)
        .map(|(model, charge)| model.expect(micros, charge.cost, decision.can_wait))
        .collect();
    for answer in &mut answers {
        if settles {
            (answer.allowed, answer.retry_after) = (true, Some(0));
        }
    }
    let allowed = answers.iter().zip(models.iter()).all(|(answer, model)| answer.allowed || model.observe());
    for ((model, answer), charge) in models.iter_mut().zip(&mut answers).zip(&decision.charges) {
        if allowed && answer.allowed {
            model.charge(micros, decision.mode, charge.cost);
        }
        answer.remaining = model.remaining(micros, decision.can_wait);
        answer.reset = model.reset(micros);
        if !(allowed && decision.mode == Mode::Consume && charge.cost > 0) {
            answer.delay = 0;
        }
    }
    (allowed, answers)
}

fn observed(answer: &Answer) -> (bool, Vec<Expected>) {
    let micros = |time: Duration| time.as_micros() as u64;
    let one = |answer: &LimitAnswer| Expected {
        allowed: answer.allowed,
        remaining: answer.remaining,
        retry_after: answer.retry_after.map(micros),
        reset: micros(answer.reset),
        delay: micros(answer.delay),
    };
    (answer.allowed, answer.limits.iter().map(one).collect())
}

fn pause(schedule: &Schedule, last: Option<&Answer>, rng: &mut Rng) -> Duration {
    let longest = schedule.longest_pause;
    let tick = Duration::from_micros(1);
    let of_last = |pick: fn(&LimitAnswer) -> Duration, rng: &mut Rng| {
        let limits = last.map_or(&[][..], |answer| &answer.limits[..]);
        rng.choice(limits).map_or(Duration::ZERO, pick)
    };
    let retry: fn(&LimitAnswer) -> Duration = |limit| limit.retry_after.unwrap_or_default();
    let reset: fn(&LimitAnswer) -> Duration = |limit| limit.reset;
    let pause = match rng.u8(..10) {
        0..=2 => Duration::ZERO,
        3 => tick * rng.u32(..50),
        4 => of_last(retry, rng),
        5 => of_last(retry, rng).saturating_sub(tick),
        6 => of_last(reset, rng),
        7 => of_last(reset, rng).saturating_sub(tick),
        _ => Duration::from_micros(rng.u64(..=longest.as_micros() as u64)),
    };
    pause.min(longest)
}

fn cost(limit: &Limit, rng: &mut Rng) -> u32 {
    match rng.u8(..10) {
        0..=5 => 1,
        6 => 0,
        7 => rng.u32(..=limit.burst()),
        8 => limit.burst() + rng.u32(..2),
        _ => rng.u32(..=limit.burst().min(5)),
    }
}

fn mode(rng: &mut Rng) -> Mode {
    match rng.u8(..20) {
        0 => Mode::Refund,
        1 => Mode::Settle,
        2 | 3 => Mode::Peek,
        _ => Mode::Consume,
    }
}

/// Numbers that are awkward in their own ways: primes, a rate below one per unit, a rate above, large windows
/// in every time unit.
pub fn awkward_limits(algorithm: Algorithm) -> Vec<Arc<Limit>> {
    let seconds = Duration::from_secs;
    let mut numbers = vec![
        (1, seconds(1), 1),
        (3, Duration::from_millis(1), 5),
        (7, seconds(60), 20),
        (97, seconds(3600), 11),
        (5, seconds(900), 5),
        (999, Duration::from_millis(777), 1),
        (10, seconds(366 * 86_400), 10),
        (0, seconds(1), 3),
    ];
    if algorithm != Algorithm::SlidingWindowLog {
        numbers.extend([
            (12_345, seconds(60), 50_000),
            (1_000_000_000, seconds(1), 1_000_000),
            (30_000, seconds(86_400), 60_000),
            (1_000_000_000, seconds(86_400), 1_000_000_000),
        ]);
    }
    let name = algorithm.name();
    let burst = |burst| algorithm.is_bucket().then_some(burst);
    numbers
        .into_iter()
        .map(|(count, window, b)| named(name, algorithm, count, window, burst(b), false))
        .collect()
}

/// One to four limits of random algorithms, some only observed, with windows of about `window`.
pub fn random_limits(rng: &mut Rng, window: Duration) -> Vec<Arc<Limit>> {
    (0..rng.usize(1..=4))
        .map(|i| {
            let algorithm = Algorithm::ALL[rng.usize(..5)];
            let window = Duration::from_millis(rng.u64(1..=window.as_millis() as u64));
            let burst = algorithm.is_bucket().then(|| rng.u32(1..12));
            named(&format!("limit-{i}"), algorithm, rng.u32(..12), window, burst, rng.u8(..5) == 0)
        })
        .collect()
}
