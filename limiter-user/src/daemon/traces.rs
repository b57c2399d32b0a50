//! Traces: every decision about one source, from the program, for a time. One at a time.
//!
//! A task of its own reads for the one who asked, and takes the tracing program away when the time is over, whatever
//! became of him. He who reads too slowly misses decisions and is told how many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use limiter_common::event::Event;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::refusal::{Kind, Refusal};
use super::watching::{Drop, Namer};
use super::{Daemon, guards};

/// Longest trace.
const LONGEST: Duration = Duration::from_secs(3600);

/// How often the program's log is read: it holds a quarter of a second of what it may tell.
const PERIOD: Duration = Duration::from_millis(50);

/// How often it is said how many decisions were not told of.
const LOST_PERIOD: Duration = Duration::from_secs(1);

/// Messages the one who asked may be behind.
const ROOM: usize = 2048;

#[derive(Clone, Debug)]
pub enum Traced {
    Decision(Box<Drop>),
    /// So many decisions were not told of.
    Lost(u64),
}

/// Whether a trace runs.
#[derive(Clone)]
pub struct Traces(Arc<Semaphore>);

impl Default for Traces {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Daemon {
    /// Begins a trace; the receiver gets its decisions until its time is over. Blocks; called inside a runtime.
    pub fn trace(
        self: &Arc<Self>,
        source: IpNet,
        time: Duration,
        by: &str,
    ) -> Result<Receiver<Traced>, Refusal> {
        if time.is_zero() || time > LONGEST {
            return Err(Refusal::new(
                Kind::BadRequest,
                format!("a trace lasts from one second to {} minutes", LONGEST.as_secs() / 60),
                "`limiterctl watch --source` shows drops for as long as one likes",
            ));
        }
        let place = Arc::clone(&self.traces.0).try_acquire_owned().map_err(|_| {
            Refusal::new(Kind::Conflict, "another trace runs", "one at a time; it ends by itself")
        })?;
        let namer = {
            let mut core = self.core();
            if core.datapath.is_none() {
                return Err(guards::no_packet_tier());
            }
            if core.guarded().is_empty() {
                let hint = "`limiterctl attach INTERFACE` guards one";
                return Err(Refusal::new(
                    Kind::Conflict,
                    "no interface is guarded: nothing is decided",
                    hint,
                ));
            }
            let namer = Namer::new(&core);
            let Some(datapath) = &mut core.datapath else { return Err(guards::no_packet_tier()) };
            datapath.start_trace(source, time)?;
            namer
        };
        tracing::info!(by, %source, seconds = time.as_secs(), "trace begins");
        let (sender, receiver) = mpsc::channel(ROOM);
        let until = Instant::now() + time;
        let teller = Teller { sender, namer, told: 0, said_lost: 0, looked: Instant::now() };
        tokio::spawn(run(Arc::clone(self), teller, until, place));
        Ok(receiver)
    }
}

async fn run(daemon: Arc<Daemon>, mut teller: Teller, until: Instant, place: OwnedSemaphorePermit) {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        tokio::time::sleep(PERIOD.min(left)).await;
        let is_over = left.is_zero() || teller.sender.is_closed();
        let daemon = Arc::clone(&daemon);
        let step = move || {
            teller.step(&daemon, is_over);
            teller
        };
        match tokio::task::spawn_blocking(step).await {
            Ok(next) if !is_over => teller = next,
            _ => break,
        }
    }
    tracing::info!("trace ends");
    drop(place);
}

struct Teller {
    sender: Sender<Traced>,
    namer: Namer,
    /// Decisions sent, and said to be lost.
    told: u64,
    said_lost: u64,
    looked: Instant,
}

impl Teller {
    fn step(&mut self, daemon: &Daemon, is_over: bool) {
        let mut events: Vec<Event> = Vec::new();
        let mut seen = 0;
        let in_force = {
            let mut core = daemon.core();
            if let Some(datapath) = &mut core.datapath {
                seen = datapath.traced(&mut |event| events.push(*event));
                if is_over {
                    datapath.stop_trace();
                }
            }
            core.in_force.clone()
        };
        for decision in self.namer.name(in_force.as_deref(), events) {
            if self.sender.try_send(Traced::Decision(Box::new(decision))).is_ok() {
                self.told += 1;
            }
        }
        if is_over || self.looked.elapsed() >= LOST_PERIOD {
            self.looked = Instant::now();
            let lost = seen.saturating_sub(self.told + self.said_lost);
            if lost > 0 && self.sender.try_send(Traced::Lost(lost)).is_ok() {
                self.said_lost += lost;
            }
        }
    }
}
