//! End to end over veth, generator included, beside a per-source limit of nftables at the netdev hook.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use limiter_tests::bench::{Bench, Section, Spread, generate, in_turns};
use limiter_tests::clock::pin_to;
use limiter_tests::namespace::{GUARDED, PEER, Pair};
use limiter_user::datapath::{Datapath as _, Mode};

use crate::{frames, policies};

/// Packets of one round.
const PACKETS: u32 = 2_000_000;

/// A source within its rate passes. What the set has no room for matches no rule, hence is not limited.
const NFTABLES: &str = r#"
table netdev bench {
    set sources { type ipv4_addr; size SIZE; flags dynamic,timeout; timeout 60s; }
    counter over {}
    counter within {}
    chain ingress {
        type filter hook ingress device "guard0" priority 0; policy accept;
        update @sources { ip saddr limit rate over 1/second burst 5 packets } counter name over drop
        counter name within drop
    }
}
"#;

/// What both do with a packet within the limit.
const LAST_RULE: &str = r#"
table netdev bench {
    chain ingress {
        type filter hook ingress device "guard0" priority 0; policy drop;
    }
}
"#;

/// Millions of packets per second through each, and their ratio.
pub fn beside_nftables() {
    let mut section = Section::new(
        "End to end over veth",
        "Millions of packets per second that one core generates (live frames), carries over a veth pair and \
         drops: limiter in native mode with `1/s` per source, and nftables at the netdev ingress hook with a \
         dynamic set and `limit rate over 1/second` per source. What is within the limit is dropped by a last rule \
         of nftables at that hook in both. A set that is full limits no source it does not hold, so a set with room for \
         all 2^24 stands beside the one of 2^20, which is what limiter's table has. These are veth numbers, not NIC numbers.",
        &["sources", "room of the set", "limiter Mpps", "nftables Mpps", "ratio (asked: ≥ 3)"],
    );
    pin_to(0);
    let limiter = Guarded::by_limiter();
    let mut nftables = Guarded::by_nftables(1 << 20);
    for (name, random, room) in [
        ("one", 0, 20),
        ("2^16, 1/s each", 0xffff, 20),
        ("2^24, spoofed", 0x00ff_ffff, 20),
        ("2^24, spoofed", 0x00ff_ffff, 24),
    ] {
        if room == 24 {
            nftables = Guarded::by_nftables(1 << room);
        }
        let mut limiter_bench = limiter.bench.borrow_mut();
        let mut nftables_bench = nftables.bench.borrow_mut();
        limiter_bench.randomize(random);
        nftables_bench.randomize(random);
        limiter.mpps(&limiter_bench);
        nftables.mpps(&nftables_bench);
        let rounds = in_turns(|| nftables.mpps(&nftables_bench), || limiter.mpps(&limiter_bench));
        section.row(&[
            name.to_owned(),
            format!("2^{room}"),
            Spread::of(rounds.iter().map(|(_, limiter)| *limiter).collect()).to_string(),
            Spread::of(rounds.iter().map(|(nftables, _)| *nftables).collect()).to_string(),
            Spread::of(rounds.iter().map(|(nftables, limiter)| limiter / nftables).collect()).to_string(),
        ]);
    }
    section.print();
}

/// A veth pair with something at its end.
struct Guarded {
    bench: std::cell::RefCell<Bench>,
    pair: Pair,
}

impl Guarded {
    fn by_limiter() -> Self {
        let this = Self::new();
        let mut bench = this.bench.borrow_mut();
        bench.publish(&policies::limited("1/s", 5));
        let kernel = &mut bench.kernel;
        let interface = this.pair.guarded.run(|| kernel.attach(GUARDED, Mode::Native, false));
        assert_eq!(interface.unwrap().mode, Mode::Native);
        drop(bench);
        this.nft(LAST_RULE);
        this
    }

    fn by_nftables(room: u32) -> Self {
        let this = Self::new();
        // Frames sent by XDP are taken by a veth end that polls: with a program, or with GRO.
        let status =
            this.pair.guarded.command("ethtool").args(["-K", GUARDED, "gro", "on"]).status().unwrap();
        assert!(status.success(), "ethtool turns GRO on");
        this.nft(&NFTABLES.replace("SIZE", &room.to_string()));
        this
    }

    fn nft(&self, rules: &str) {
        let mut nft: Command = self.pair.guarded.command("nft");
        let mut child =
            nft.args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("`nft` runs (package nftables)");
        child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "nftables takes the rules");
    }

    fn new() -> Self {
        let pair = Pair::silent();
        let mut bench = Bench::open(1 << 20);
        bench.publish(&policies::default_pass());
        let index = pair.peer.run(|| {
            let name = std::ffi::CString::new(PEER).unwrap();
            // SAFETY: a C string.
            unsafe { libc::if_nametoindex(name.as_ptr()) }
        });
        assert_ne!(index, 0);
        bench.send_from(index);
        Self { bench: std::cell::RefCell::new(bench), pair }
    }

    /// Sends a round, and divides what came to the other end by the time it took: what is judged is dropped before
    /// the next batch is sent.
    fn mpps(&self, bench: &Bench) -> f64 {
        let before = self.arrived();
        let probe = &bench.probe;
        let start = Instant::now();
        self.pair.peer.run(|| {
            pin_to(0);
            generate(probe, &frames::udp(), PACKETS);
        });
        let elapsed = start.elapsed().as_secs_f64();
        (self.arrived() - before) as f64 / elapsed / 1e6
    }

    /// Packets that arrived at the guarded end so far. (Not by nftables' counters: every listing reads its whole
    /// cache, which takes minutes beside a set of a million sources.)
    fn arrived(&self) -> u64 {
        let table = self.pair.guarded.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        let line =
            table.lines().find_map(|line| line.trim().strip_prefix(GUARDED)?.strip_prefix(':')).unwrap();
        // Received: bytes, then packets.
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}
