//! What is left for a polite client while a flood runs, with and without limiter.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use limiter_tests::bench::{Bench, Section, Spread, generate, in_turns};
use limiter_tests::clock::pin_to;
use limiter_tests::namespace::{GUARDED, GUARDED_V4, PEER, Pair};
use limiter_tests::stop::SetOnDrop;
use limiter_user::datapath::{Datapath as _, Mode};
use limiter_user::policy::Bundle;

use crate::frames;

const ROUND: Duration = Duration::from_millis(1500);
/// Bytes of a request, and of its answer.
const MESSAGE: usize = 100;
/// Packets between two looks at whether the round is over.
const CHUNK: u32 = 100_000;
/// A client that gets nothing for so long tries again in the next round.
const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u16 = 8080;

const POLICY: &str = r#"
version = 1
[[rule]]
name = "datagrams"
to = "udp"
limit = [{ per = "source", rate = "50/s", burst = 100 }]
"#;

/// One client asks and waits for its answer, on a connection of its own, while somebody else floods.
pub fn polite_client() {
    let mut section = Section::new(
        "A polite client under floods",
        "One TCP client sends 100 bytes and waits for the answer of 100 bytes, again and again, over the veth pair that a \
         second core fills with UDP at full generator speed (live frames). Without limiter the frames go up the \
         host's stack; with it a rule allows every source 50 a second. Rounds of 1.5 s in turns. \
         These are veth numbers, not NIC numbers.",
        &["flood", "guard", "flood Mpps", "requests/s", "p50 µs", "p99 µs"],
    );
    let bare = Site::new(false);
    let guarded = Site::new(true);
    let floods = [
        ("none", None),
        ("one source", Some(0)),
        ("2^16 sources", Some(0xffff)),
        ("2^24 sources, spoofed", Some(0x00ff_ffff)),
    ];
    for (name, random) in floods {
        for site in [&bare, &guarded] {
            site.bench.borrow_mut().randomize(random.unwrap_or(0));
            site.round(random.is_some());
        }
        let rounds = in_turns(|| bare.round(random.is_some()), || guarded.round(random.is_some()));
        let (without, with): (Vec<Round>, Vec<Round>) = rounds.into_iter().unzip();
        for (guard, rounds) in [("none", without), ("limiter", with)] {
            let spread =
                |value: fn(&Round) -> f64| Spread::of(rounds.iter().map(value).collect()).to_string();
            section.row(&[
                name.to_owned(),
                guard.to_owned(),
                spread(|round| round.flood_mpps),
                spread(|round| round.per_second),
                spread(|round| round.half_us),
                spread(|round| round.worst_us),
            ]);
        }
    }
    section.print();
}

/// What one round gave.
struct Round {
    flood_mpps: f64,
    per_second: f64,
    half_us: f64,
    worst_us: f64,
}

/// A veth pair with a server behind one end and a client behind the other.
struct Site {
    bench: std::cell::RefCell<Bench>,
    client: std::cell::RefCell<Option<TcpStream>>,
    pair: Pair,
}

impl Site {
    fn new(is_guarded: bool) -> Self {
        let pair = Pair::addressed();
        let mut bench = Bench::open(1 << 20);
        bench.publish(&Bundle::from_text("policy.toml", POLICY));
        if is_guarded {
            let kernel = &mut bench.kernel;
            let interface = pair.guarded.run(|| kernel.attach(GUARDED, Mode::Native, false));
            assert_eq!(interface.unwrap().mode, Mode::Native);
        } else {
            // Frames sent by XDP are taken by a veth end that polls: with a program, or with GRO.
            let status = pair.guarded.command("ethtool").args(["-K", GUARDED, "gro", "on"]).status().unwrap();
            assert!(status.success(), "ethtool turns GRO on");
        }
        let index = pair.peer.run(|| {
            let name = std::ffi::CString::new(PEER).unwrap();
            // SAFETY: a C string.
            unsafe { libc::if_nametoindex(name.as_ptr()) }
        });
        assert_ne!(index, 0);
        bench.send_from(index);
        let listener = pair.guarded.run(|| TcpListener::bind((GUARDED_V4, PORT))).unwrap();
        thread::spawn(move || {
            pin_to(1);
            for connection in listener.incoming().flatten() {
                thread::spawn(move || answer(connection));
            }
        });
        Self { bench: std::cell::RefCell::new(bench), client: std::cell::RefCell::new(None), pair }
    }

    /// A client on one core; on the other a flood, if there is to be one.
    fn round(&self, floods: bool) -> Round {
        let over = AtomicBool::new(false);
        let sent = AtomicU64::new(0);
        let bench = self.bench.borrow();
        let probe = &bench.probe;
        let mut client = self.client.borrow_mut();
        let client = &mut *client;
        let peer = &self.pair.peer;
        let mut times: Vec<f64> = Vec::new();
        let start = Instant::now();
        thread::scope(|scope| {
            let _over = SetOnDrop(&over);
            if floods {
                let (over, sent) = (&over, &sent);
                // In the peer's namespace, as the interface is.
                scope.spawn(move || {
                    peer.enter();
                    pin_to(0);
                    while !over.load(Ordering::Relaxed) {
                        generate(probe, &frames::udp(), CHUNK);
                        sent.fetch_add(u64::from(CHUNK), Ordering::Relaxed);
                    }
                });
            }
            peer.run(|| {
                pin_to(1);
                while start.elapsed() < ROUND {
                    let asked = Instant::now();
                    if ask(client).is_err() {
                        *client = None;
                        continue;
                    }
                    times.push(asked.elapsed().as_secs_f64() * 1e6);
                }
            });
        });
        let elapsed = start.elapsed().as_secs_f64();
        times.sort_by(f64::total_cmp);
        // Of a client that was never answered: the whole round.
        let at =
            |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(elapsed * 1e6);
        Round {
            flood_mpps: sent.load(Ordering::Relaxed) as f64 / elapsed / 1e6,
            per_second: times.len() as f64 / elapsed,
            half_us: at(0.5),
            worst_us: at(0.99),
        }
    }
}

fn answer(mut connection: TcpStream) {
    let _ = connection.set_nodelay(true);
    let mut message = [0; MESSAGE];
    while connection.read_exact(&mut message).is_ok() {
        if connection.write_all(&message).is_err() {
            return;
        }
    }
}

/// One request, on the connection there is or on a new one.
fn ask(client: &mut Option<TcpStream>) -> std::io::Result<()> {
    let connection = match client {
        Some(connection) => connection,
        None => {
            let address = format!("{GUARDED_V4}:{PORT}").parse().map_err(|_| ErrorKind::InvalidInput)?;
            let connection = TcpStream::connect_timeout(&address, PATIENCE)?;
            connection.set_nodelay(true)?;
            connection.set_read_timeout(Some(PATIENCE))?;
            client.insert(connection)
        }
    };
    let mut message = [7; MESSAGE];
    connection.write_all(&message)?;
    connection.read_exact(&mut message)
}
