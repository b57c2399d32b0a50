//! The senders outside and the receivers behind limiter, each a thread in its namespace, counting.

use std::collections::HashMap;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};

use super::world::{self, GUARDED, OUTSIDE, TARGET};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

pub const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// A generous time for a thread to open its socket.
const START: Duration = Duration::from_secs(10);

/// One source sending to one service.
#[derive(Clone)]
pub struct Flow {
    pub manner: &'static str,
    pub source: IpAddr,
    pub rule: &'static str,
    pub port: u16,
    /// Packets a second.
    rate: u32,
    /// Bytes of UDP payload.
    payload: usize,
    sent: Arc<AtomicU64>,
}

impl Flow {
    pub fn new(
        manner: &'static str,
        family: Family,
        host: u8,
        rule: &'static str,
        port: u16,
        rate: u32,
        payload: usize,
    ) -> Flow {
        Flow { manner, source: address(family, host), rule, port, rate, payload, sent: Arc::default() }
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The bucket limiter keeps for it: IPv6 by /64.
    pub fn key(&self) -> String {
        match self.source {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                format!("{}/64", std::net::Ipv6Addr::from(network))
            }
        }
    }
}

fn address(family: Family, host: u8) -> IpAddr {
    match family {
        Family::Ipv4 => world::address4(host).into(),
        Family::Ipv6 => world::address6(host).into(),
    }
}

type Arrived = Arc<Mutex<HashMap<(IpAddr, u16), u64>>>;

pub struct Traffic {
    flows: Vec<Flow>,
    arrived: Arrived,
    begun: Instant,
    senders: Vec<JoinHandle<Result<()>>>,
    receivers: Vec<JoinHandle<Result<()>>>,
    stop_sending: Arc<AtomicBool>,
    stop_receiving: Arc<AtomicBool>,
}

/// A flow and what became of it.
pub struct Sum {
    pub flow: Flow,
    pub arrived: u64,
}

impl Traffic {
    pub fn start(flows: Vec<Flow>) -> Result<Traffic> {
        let mut traffic = Traffic {
            flows,
            arrived: Arc::default(),
            begun: Instant::now(),
            senders: Vec::new(),
            receivers: Vec::new(),
            stop_sending: Arc::default(),
            stop_receiving: Arc::default(),
        };
        // A receiver reports when it listens: nothing sent may find its port closed.
        let (listening, ready) = mpsc::channel();
        for family in FAMILIES {
            for port in [53, 443] {
                let (stop, arrived) = (Arc::clone(&traffic.stop_receiving), Arc::clone(&traffic.arrived));
                let listening = listening.clone();
                let target = SocketAddr::new(address(family, TARGET), port);
                traffic.receivers.push(thread::spawn(move || receive(target, &listening, &stop, &arrived)));
            }
        }
        for _ in 0..traffic.receivers.len() {
            if ready.recv_timeout(START).is_err() {
                return Err(traffic.finish().err().unwrap_or_else(|| anyhow!("a receiver did not start")));
            }
        }
        traffic.begun = Instant::now();
        for flow in traffic.flows.clone() {
            let stop = Arc::clone(&traffic.stop_sending);
            traffic.senders.push(thread::spawn(move || send(&flow, &stop)));
        }
        Ok(traffic)
    }

    pub fn sums(&self) -> Vec<Sum> {
        let arrived = self.arrived.lock().map(|counts| counts.clone()).unwrap_or_default();
        let sums = self.flows.iter().map(|flow| Sum {
            flow: flow.clone(),
            arrived: arrived.get(&(flow.source, flow.port)).copied().unwrap_or(0),
        });
        sums.collect()
    }

    /// Stops the senders and says how long they sent.
    pub fn quiet(&self) -> Duration {
        self.stop_sending.store(true, Ordering::Relaxed);
        self.begun.elapsed()
    }

    pub fn finish(mut self) -> Result<Vec<Sum>> {
        self.stop_sending.store(true, Ordering::Relaxed);
        self.stop_receiving.store(true, Ordering::Relaxed);
        for thread in self.senders.drain(..).chain(self.receivers.drain(..)) {
            thread.join().map_err(|_| anyhow!("a traffic thread failed"))??;
        }
        Ok(self.sums())
    }
}

/// Threads in a namespace keep it alive, so they end before it is removed.
impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop_sending.store(true, Ordering::Relaxed);
        self.stop_receiving.store(true, Ordering::Relaxed);
        for thread in self.senders.drain(..).chain(self.receivers.drain(..)) {
            let _ = thread.join();
        }
    }
}

/// Moves the calling thread.
fn enter(namespace: &str) -> Result<()> {
    let file = File::open(Path::new("/run/netns").join(namespace)).context("cannot open the namespace")?;
    setns(file, CloneFlags::CLONE_NEWNET).context("cannot enter the namespace")
}

fn send(flow: &Flow, stop: &AtomicBool) -> Result<()> {
    enter(OUTSIDE)?;
    let socket = UdpSocket::bind((flow.source, 0)).context("cannot open a sender")?;
    let family = if flow.source.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    socket.connect((address(family, TARGET), flow.port))?;
    let payload = vec![0; flow.payload];
    let begun = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        // What is due by now, so that a late wake-up is made good and the rate holds.
        let due = u64::try_from(begun.elapsed().as_nanos() * u128::from(flow.rate) / 1_000_000_000)?;
        while flow.sent() < due && !stop.load(Ordering::Relaxed) {
            if socket.send(&payload).is_ok() {
                flow.sent.fetch_add(1, Ordering::Relaxed);
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn receive(
    target: SocketAddr,
    listening: &mpsc::Sender<()>,
    stop: &AtomicBool,
    arrived: &Arrived,
) -> Result<()> {
    enter(GUARDED)?;
    let socket = UdpSocket::bind(target).context("cannot open a receiver")?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    listening.send(())?;
    let mut packet = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        // A time-out is how the flag is seen.
        if let Ok((_, peer)) = socket.recv_from(&mut packet)
            && let Ok(mut counts) = arrived.lock()
        {
            *counts.entry((peer.ip(), target.port())).or_default() += 1;
        }
    }
    Ok(())
}
