//! Traces: for their time the program that guards is another one, which tells of every decision about one prefix.
//!
//! It is the same judgement on the same pinned maps, put behind the links in one step, and taken away in the same way.
//! Should the daemon die meanwhile, its deadline ends it in the kernel, and the next daemon puts its own program behind
//! every link anyway.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, PerCpuArray};
use aya::programs::ProgramFd;
use aya_log::EbpfLogger;
use ipnet::IpNet;
use limiter_common::event::{Event, FRAME_BYTES, TraceTarget};
use log::{Log, Metadata, Record};

use super::load::{self, refused};
use super::sys::Plain;
use super::{Kernel, to_ticks, xdp};
use crate::datapath::{Datapath as _, Error};

/// A trace that runs.
pub struct Trace {
    ebpf: Ebpf,
    name: &'static str,
    logger: EbpfLogger<Decisions>,
    decisions: Decisions,
}

/// What the program logs, as events without their frames.
#[derive(Clone, Default)]
struct Decisions(Arc<Mutex<Vec<Event>>>);

impl Decisions {
    fn list(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Decisions {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.list().extend(parse(&record.args().to_string()));
    }

    fn flush(&self) {}
}

impl Trace {
    pub(super) fn program(&mut self) -> Result<&ProgramFd, Error> {
        xdp(&mut self.ebpf, self.name)?.fd().map_err(refused)
    }

    /// See [`crate::datapath::Datapath::traced`].
    pub fn take(&mut self, visit: &mut dyn FnMut(&Event)) -> u64 {
        // Before the log is read: what is decided meanwhile is for the next time.
        let seen = self.seen().unwrap_or(0);
        self.logger.flush();
        std::mem::take(&mut *self.decisions.list()).iter().for_each(visit);
        seen
    }

    fn seen(&self) -> Option<u64> {
        let seen = PerCpuArray::<_, u64>::try_from(self.ebpf.map("TRACE_SEEN")?).ok()?;
        Some(seen.get(&0, 0).ok()?.iter().sum())
    }
}

/// Six numbers in hexadecimal, as `limiter-ebpf/src/bin/trace.rs` logs them: time, source, rules and outcomes, ports and
/// length, interface and kind.
fn parse(line: &str) -> Option<Event> {
    let mut numbers = line.split(' ').map(|word| u64::from_str_radix(word, 16).ok());
    let mut next = || numbers.next()?;
    let (time, source_high, source_low) = (next()?, next()?, next()?);
    let (ruling, ports, place) = (next()?, next()?, next()?);
    Some(Event {
        time,
        source_high,
        source_low,
        interface: place as u32,
        length: (ports >> 32) as u32,
        frame_length: 0,
        destination: ports as u16,
        source_port: (ports >> 16) as u16,
        rule: ruling as u16,
        observing: (ruling >> 16) as u16,
        outcome: (ruling >> 32) as u8,
        observed: (ruling >> 40) as u8,
        family: (place >> 32) as u8,
        kind: (place >> 40) as u8,
        captured: 0,
        reserved: [0; 7],
        frame: [0; FRAME_BYTES],
    })
}

/// The bits of a prefix, and which of an address must be those.
fn target(prefix: IpNet, until: u64) -> TraceTarget {
    let (address, width) = match prefix.trunc() {
        IpNet::V4(net) => (net.network().to_ipv6_mapped(), net.prefix_len() + 96),
        IpNet::V6(net) => (net.network(), net.prefix_len()),
    };
    let bits = u128::from(address);
    let mask = u128::MAX.checked_shl(128 - u32::from(width)).unwrap_or(0);
    TraceTarget {
        high: (bits >> 64) as u64,
        low: bits as u64,
        mask_high: (mask >> 64) as u64,
        mask_low: mask as u64,
        until,
    }
}

impl Kernel {
    pub(super) fn begin_trace(&mut self, prefix: IpNet, time: Duration) -> Result<(), Error> {
        self.end_trace();
        self.ensure_pinned()?;
        let (mut ebpf, _) = load::load(load::TRACE, &self.options)?;
        let name = if load::has_multi_buffer() { "trace_frags" } else { "trace" };
        xdp(&mut ebpf, name)?.load().map_err(refused)?;
        let until = self.now().saturating_add(to_ticks(time));
        let missing = || Error::Refused { reason: "the object has no map `TRACE`".to_owned() };
        let map = ebpf.map_mut("TRACE").ok_or_else(missing)?;
        let mut map = Array::<_, Plain<TraceTarget>>::try_from(map).map_err(refused)?;
        map.set(0, Plain(target(prefix, until)), 0).map_err(refused)?;
        let decisions = Decisions::default();
        let logger = EbpfLogger::init_with_logger(&mut ebpf, decisions.clone()).map_err(refused)?;
        self.trace = Some(Trace { ebpf, name, logger, decisions });
        let renewed = self.renew_guards();
        if renewed.is_err() {
            self.end_trace();
        }
        renewed
    }

    /// Puts the program behind the links that was there before.
    pub(super) fn end_trace(&mut self) {
        if self.trace.take().is_some()
            && let Err(error) = self.renew_guards()
        {
            tracing::warn!(%error, "after a trace");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_the_bits_that_must_be_its_own() {
        let target = |text: &str| target(text.parse().unwrap(), 9);
        let of = |high, low, mask_high, mask_low| TraceTarget { high, low, mask_high, mask_low, until: 9 };
        let carrier = 0x0000_ffff_0000_0000;
        assert_eq!(target("203.0.113.9/32"), of(0, carrier | 0xcb00_7109, u64::MAX, u64::MAX));
        assert_eq!(target("203.0.113.9/24"), of(0, carrier | 0xcb00_7100, u64::MAX, u64::MAX << 8));
        assert_eq!(target("0.0.0.0/0"), of(0, carrier, u64::MAX, u64::MAX << 32));
        assert_eq!(target("2001:db8::7/64"), of(0x2001_0db8_0000_0000, 0, u64::MAX, 0));
        assert_eq!(target("::/0"), of(0, 0, 0, 0));
    }

    #[test]
    fn a_line_of_the_log_is_an_event() {
        let event = parse("64 20010db800000000 7 ff1800020003 3c10e101bb 20100000005").unwrap();
        assert_eq!((event.time, event.source_high, event.source_low), (100, 0x2001_0db8_0000_0000, 7));
        assert_eq!((event.rule, event.observing, event.outcome, event.observed), (3, 2, 0x18, 0xff));
        assert_eq!((event.destination, event.source_port, event.length), (443, 4321, 60));
        assert_eq!((event.interface, event.family, event.kind), (5, 1, 2));
        assert_eq!(parse("64 20010db800000000 7"), None);
        assert_eq!(parse("a word"), None);
    }
}
