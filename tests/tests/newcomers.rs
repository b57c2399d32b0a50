//! Sources without a bucket: what a rule takes of them, who is let in over it, and what a flood of them costs others.
// suite: budget=60
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::{
    collections::HashSet,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use limiter_common::{
    abi::{CROWD_CELLS, Geometry, METER_NEWCOMERS, Meter, PACKETS},
    hash,
    packet::V4_PREFIX_LOW,
    verdict::{
        Outcome::{self, DropNewcomer, DropOver, PassCrowd, PassDefault, PassWithin, WouldDropNewcomer},
        Verdict,
    },
};
use limiter_tests::{
    clock,
    frame::{IPV4, IPV6, SYN, TCP, UDP, V4, V6, ethernet, tcp, udp},
    host::Host,
    kernel::{self, Guard, map_memory},
    namespace::{GUARDED_V4, GUARDED_V6, PEER, PEER_V4, PEER_V6, Pair},
    random::Random,
    stop::SetOnDrop,
    wire::{RawSocket, Wire},
};
use limiter_user::{datapath::Facts, policy::Slots};
use socket2::{Domain, Socket, Type};

/// Eight newcomers, one of a network, and nothing refills.
const EIGHT: &str = "version = 1\n[[rule]]\nname = \"new\"\nto = \"udp/1\"\nnewcomers = \"8/15m\"\n\
                     limit = [{ per = \"source\", rate = \"2/15m\", burst = 2 }]\n";

fn packet(source: &str, port: u16) -> Vec<u8> {
    let payload = udp(4000, port, b"query");
    if source.contains(':') {
        ethernet(&[], IPV6, &V6::from(source).packet(UDP, &payload))
    } else {
        ethernet(&[], IPV4, &V4::from(source).packet(UDP, &payload))
    }
}

/// The budget for newcomers of the first rule that has one.
fn budget(guard: &Guard) -> &Meter {
    let mut budgets = guard.tables().meters.iter().filter(|meter| meter.flags & METER_NEWCOMERS != 0);
    budgets.next().expect("the policy has newcomers")
}

/// So many IPv4 /16 that share no cell of the budget, by their first two bytes.
fn networks(geometry: &Geometry, budget: &Meter, count: usize) -> Vec<String> {
    let mut cells = HashSet::new();
    let all = (0u64..256).filter(|second| {
        let network = V4_PREFIX_LOW | (10 << 24 | second << 16);
        let cell = (hash::tag(hash::network(geometry, 0, network), budget.id) >> 32) as usize % CROWD_CELLS;
        cells.insert(cell)
    });
    let networks: Vec<String> = all.take(count).map(|second| format!("10.{second}")).collect();
    assert_eq!(networks.len(), count);
    networks
}

const IN: Outcome = PassWithin;
const NEW: Outcome = DropNewcomer;

/// What becomes of packets that a source sends to a port.
fn check(guard: &Guard, what: &str, source: &str, port: u16, expected: &[Outcome]) {
    let frame = packet(source, port);
    let found: Vec<Outcome> = expected.iter().map(|_| guard.judge(&frame).outcome).collect();
    assert_eq!(found, expected, "{what}, {source}");
}

#[test]
fn a_rule_takes_so_many_newcomers_and_of_each_network_its_share() {
    let guard = Guard::with(EIGHT);
    let networks = networks(&guard.geometry(), budget(&guard), 10);
    let of = |network: usize, rest: &str| format!("{}.{rest}", networks[network]);
    check(&guard, "the first of a network", &of(0, "0.1"), 1, &[IN]);
    check(&guard, "another of it", &of(0, "0.2"), 1, &[NEW, NEW]);
    check(&guard, "the last of it, carried", &format!("64:ff9b::{}", of(0, "255.255")), 1, &[NEW]);
    check(&guard, "who has a bucket is none", &of(0, "0.1"), 1, &[IN, DropOver, DropOver]);
    check(&guard, "another rule", &of(0, "0.2"), 2, &[PassDefault]);
    for network in 1..8 {
        check(&guard, "the next networks", &of(network, "9.9"), 1, &[IN]);
    }
    check(&guard, "the ninth", &of(8, "9.9"), 1, &[NEW, NEW]);
    check(&guard, "the ninth over IPv6", "2001:db8::1", 1, &[NEW]);
    check(&guard, "who has a bucket still", &of(7, "9.9"), 1, &[IN, DropOver]);
    assert_eq!(guard.buckets().len(), 8, "the others got none");
    assert_eq!(guard.counted("new", NEW).packets, 6);

    guard.prove(&of(0, "0.2"));
    guard.prove("2001:db8::5");
    check(&guard, "a proven one", &of(0, "0.2"), 1, &[IN, IN, DropOver]);
    check(&guard, "all of a proven /64", "2001:db8::1", 1, &[IN, IN, DropOver]);
    check(&guard, "nobody else", &of(0, "0.3"), 1, &[NEW]);
    check(&guard, "nobody else", "2001:db8:0:1::1", 1, &[NEW]);
}

#[test]
fn newcomers_of_several_limits_spend_once() {
    // The narrowest limit counts bytes too, and a wider one and the rule's own come behind it.
    let policy = "version = 1\n[[rule]]\nname = \"new\"\nnewcomers = \"8/15m\"\nlimit = [\
                  { per = \"rule\", rate = \"20/15m\", burst = 20 }, { per = \"source/16,32\", rate = \"3/15m\", burst = 3 }, \
                  { per = \"source\", rate = \"1 kB/15m\", burst = \"1 kB\" }, { per = \"source\", rate = \"2/15m\", burst = 2 }]\n";
    let guard = Guard::with(policy);
    let networks = networks(&guard.geometry(), budget(&guard), 9);
    for network in &networks[..7] {
        check(&guard, "one of each", &format!("{network}.0.1"), 1, &[IN, IN, DropOver]);
    }
    check(&guard, "refused by a wider limit it is no newcomer", &format!("{}.0.2", networks[0]), 1, &[NEW]);
    check(&guard, "the eighth", &format!("{}.0.1", networks[7]), 1, &[IN]);
    check(&guard, "the ninth", &format!("{}.0.1", networks[8]), 1, &[NEW]);
    // What was refused as a newcomer took nothing from the other limits: 15 of 20 are gone.
    for network in &networks[..9] {
        guard.prove(&format!("{network}.0.3"));
    }
    let proven =
        networks[..9].iter().map(|network| guard.judge(&packet(&format!("{network}.0.3"), 1)).outcome);
    assert_eq!(proven.filter(|outcome| *outcome == IN).count(), 5);
}

#[test]
fn what_observes_counts_newcomers_and_drops_none() {
    let policy = EIGHT.replace("newcomers", "mode = \"observe\"\nnewcomers");
    let guard = Guard::with(&policy);
    for _ in 0..2 {
        for host in 1..=3 {
            check(&guard, "observed", &format!("10.0.0.{host}"), 1, &[PassDefault]);
        }
    }
    // The first is the one newcomer of its network; the second time it has a bucket.
    assert_eq!(guard.counted("new", WouldDropNewcomer).packets, 4);
}

/// Proven sources claim buckets from a reserve that nobody else can spend.
#[test]
fn room_for_proven_sources_is_kept() {
    // About 3 000 claims at once.
    let policy = "version = 1\n[[rule]]\nname = \"new\"\nnewcomers = \"100k/s\"\n\
                  limit = [{ per = \"source\", rate = \"1/15m\", burst = 1 }]\n";
    let guard = Guard::with_table(policy, 1 << 15);
    for host in 0..6_000u32 {
        guard.judge(&packet(&Ipv4Addr::from(0x0a00_0000 + host * 0x1_0001).to_string(), 1));
    }
    assert!(guard.counted("new", PassCrowd).packets > 1_000, "the budget of new buckets is spent");
    let before = guard.buckets().len();
    for host in 0..100 {
        let source = format!("192.0.2.{host}");
        guard.prove(&source);
        check(&guard, "a proven one gets a bucket", &source, 1, &[IN, DropOver]);
    }
    assert!(guard.buckets().len() >= before + 100);
    let table = guard.table();
    assert!(table.used <= table.entries / 2, "{} of {} ways are in use", table.used, table.entries);
}

/// By the clock in the test's hand: one network that floods has an eighth, and takes nothing from the others.
#[test]
fn a_network_that_floods_leaves_the_rest_to_the_others() {
    let policy = "version = 1\n[[rule]]\nname = \"new\"\nnewcomers = \"800/s\"\n\
                  limit = [{ per = \"source\", rate = \"10/s\", burst = 10 }]\n";
    let facts = Facts { tick_ns: 4_000_000, buckets: 1 << 20 };
    let compiled = kernel::compile(policy, facts, &Slots::default(), 1);
    let geometry = Geometry { sets: 1 << 17, seed: [1, 2, 3, 4], ..Geometry::default() };
    let host = Host::new(geometry, &compiled.rows);
    let budget = compiled.tables.meters.iter().find(|meter| meter.flags & METER_NEWCOMERS != 0).unwrap();
    assert_eq!(budget.rates[PACKETS].burst, 800);
    let networks = networks(&geometry, budget, 11);
    let source = |network: usize, number: u64| {
        packet(&format!("{}.{}.{}", networks[network], number >> 8 & 255, number & 255), 1)
    };
    // 6 s in steps of 0.1 ms: ten thousand a second from one network, fifty from each of ten, none of them twice.
    let (mut flood, mut others, mut offered) = (0u64, 0u64, 0u64);
    for step in 0..60_000u64 {
        host.set_now((1 << 40) + step * 6_400_000);
        let ruling = host.judge(&compiled.tables, &source(0, step));
        flood += u64::from(ruling.outcome.verdict() == Verdict::Pass);
        if step % 20 == 7 {
            let turn = step / 20;
            offered += 1;
            let ruling = host.judge(&compiled.tables, &source(1 + (turn % 10) as usize, turn / 10));
            others += u64::from(ruling.outcome.verdict() == Verdict::Pass);
        }
    }
    // 100 at once and 100 a second.
    assert!((690..=700).contains(&flood), "{flood} of the flood");
    assert_eq!((offered, others), (3_000, 3_000));
}

/// A connection from the peer that is used.
fn shake_hands(pair: &Pair, listener: &TcpListener, to: &str, from: &str) {
    let address = |text: &str, port: u16| SocketAddr::new(text.parse::<IpAddr>().unwrap(), port);
    let to = address(to, listener.local_addr().unwrap().port());
    let mut stream = pair.peer.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        socket.bind(&address(from, 0).into()).expect("the peer has the address");
        socket.connect_timeout(&to.into(), Duration::from_secs(20)).expect("the connection is made");
        TcpStream::from(socket)
    });
    let (mut accepted, _) = listener.accept().expect("a connection");
    accepted.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
}

/// A handshake that really happens marks its source, by IPv4, IPv6 and IPv4 on a socket of both.
#[test]
fn a_handshake_proves_a_source() {
    let pair = Pair::addressed();
    pair.peer.ip(&["address", "add", "192.0.2.77/24", "dev", PEER]);
    let mut guard = Guard::with(EIGHT);
    guard.attach(&pair);
    let connect = |listener: &TcpListener, to: &str, from: &str| shake_hands(&pair, listener, to, from);
    let v4 = pair.guarded.run(|| TcpListener::bind((GUARDED_V4, 0)).unwrap());
    let both = pair.guarded.run(|| TcpListener::bind("[::]:0").unwrap());
    assert!(![PEER_V4, PEER_V6, "192.0.2.77"].iter().any(|source| guard.is_proven(source)));
    connect(&v4, GUARDED_V4, PEER_V4);
    assert!(guard.is_proven(PEER_V4) && !guard.is_proven("192.0.2.77"));
    connect(&both, GUARDED_V4, "192.0.2.77");
    assert!(guard.is_proven("192.0.2.77"), "IPv4 on a socket of both");
    connect(&both, GUARDED_V6, PEER_V6);
    assert!(guard.is_proven(PEER_V6));
    assert!(guard.is_proven("2001:db8::ffff"), "its /64");
    assert!(!guard.is_proven("2001:db8:0:1::"));

    // A SYN alone, which anybody can forge, proves nothing.
    let port = v4.local_addr().unwrap().port();
    let syn = ethernet(&[], IPV4, &V4::from("192.0.2.99").packet(TCP, &tcp(4000, port, SYN)));
    let mut wire = Wire::open(&pair);
    wire.pass(&[syn]);
    assert!(!guard.is_proven("192.0.2.99"));

    // A policy without newcomers asks nobody.
    guard.publish("version = 1");
    pair.peer.ip(&["address", "add", "192.0.2.78/24", "dev", PEER]);
    connect(&v4, GUARDED_V4, "192.0.2.78");
    assert!(!guard.is_proven("192.0.2.78"));
    guard.publish(EIGHT);
    connect(&v4, GUARDED_V4, "192.0.2.78");
    assert!(guard.is_proven("192.0.2.78"));
}

const FLOODED: &str = "version = 1\n\
    [[rule]]\nname = \"quick\"\nto = \"udp/1\"\nnewcomers = \"2k/s\"\n\
    limit = [{ per = \"source\", rate = \"500/s\", burst = 1000 }]\n\
    [[rule]]\nname = \"slow\"\nto = \"udp/2\"\nnewcomers = \"2k/s\"\n\
    limit = [{ per = \"source\", rate = \"1/m\", burst = 5 }]\n";

const FLOOD: Duration = Duration::from_secs(4);

/// Frames of one system call.
const BATCH: usize = 64;

#[test]
fn a_flood_of_forged_sources_costs_known_and_proven_ones_nothing() {
    endure(false);
}

#[test]
fn a_flood_from_one_network_costs_the_others_nothing() {
    endure(true);
}

/// A flood over a veth pair at the sender's full speed, from 2^24 sources or from one /16, on one CPU; on the other,
/// those that are to be served are judged by the same program on the same maps.
fn endure(from_one: bool) {
    let pair = Pair::addressed();
    let mut guard = Guard::with(FLOODED);
    guard.attach(&pair);
    let networks = networks(&guard.geometry(), budget(&guard), 17);
    let flooding: u32 = networks[0].split_once('.').unwrap().1.parse().unwrap();
    let memory = map_memory();
    let table_before = guard.table();

    let listener = pair.guarded.run(|| TcpListener::bind((GUARDED_V4, 0)).unwrap());
    shake_hands(&pair, &listener, GUARDED_V4, PEER_V4);
    // One has a bucket with more than a second's debt, as who keeps sending at nearly his rate has.
    let known = packet("192.0.2.50", 1);
    let before = (0..600).filter(|_| guard.judge(&known).outcome == PassWithin).count();
    assert_eq!(before, 600);
    // And one has spent all he had.
    let drained = packet("192.0.2.51", 2);
    let begin = clock::precise();
    for expected in [IN, IN, IN, IN, IN, DropOver] {
        assert_eq!(guard.judge(&drained).outcome, expected);
    }

    let done = AtomicBool::new(false);
    let runner = guard.runner();
    let proven = packet(PEER_V4, 1);
    let (mut again, mut turns, mut others) = (0u64, 0u64, 0u64);
    let (mut known_passed, mut proven_passed, mut others_passed) = (0u64, 0u64, 0u64);
    thread::scope(|scope| {
        scope.spawn(|| {
            clock::pin_to(1);
            pair.peer.enter();
            let socket = RawSocket::open(PEER).expect("a raw socket on the peer's end");
            let mut random = Random::new(16);
            let mut frames = vec![packet("10.0.0.0", 1); BATCH];
            while !done.load(Ordering::Relaxed) {
                for frame in &mut frames {
                    let host = random.below(1 << 24) as u32;
                    let host = if from_one { flooding << 16 | host & 0xffff } else { host };
                    frame[14 + 12..14 + 16].copy_from_slice(&(0x0a00_0000 | host).to_be_bytes());
                    frame[14 + 20 + 3] = 1 + random.below(2) as u8;
                }
                // A full ring refuses a part: the flood does not wait for it.
                let _ = socket.send_batch(&frames);
            }
        });
        let stop = SetOnDrop(&done);
        clock::pin_to(0);
        clock::wait_for("the flood", Duration::from_secs(20), || {
            (guard.counted("quick", NEW).packets > 1_000).then_some(())
        });
        let begin = clock::precise();
        let passes = |frame: &[u8]| u64::from(runner.judge(frame).verdict() == Verdict::Pass);
        while clock::precise() < begin + FLOOD.as_nanos() as u64 {
            again += u64::from(runner.judge(&drained) == PassWithin);
            // 475 a second of either, of 500 they may.
            if clock::precise() - begin > turns * 1_000_000_000 / 475 {
                known_passed += passes(&known);
                proven_passed += passes(&proven);
                turns += 1;
            }
            // Where the flood leaves a budget: 400 a second of sixteen other networks, each from a source of its own.
            if from_one && clock::precise() - begin > others * 2_500_000 {
                let network = &networks[1 + (others % 16) as usize];
                let source = format!("{network}.{}.{}", others >> 12 & 255, others >> 4 & 255);
                others_passed += passes(&packet(&source, 1));
                others += 1;
            }
        }
        drop(stop);
    });
    let seconds = (clock::precise() - begin) as f64 / 1e9;
    let spread = guard.facts().tick_ns as f64 / 1e9;

    let refused = guard.counted("quick", NEW).packets + guard.counted("slow", NEW).packets;
    assert!(refused > 100_000, "{refused} newcomers refused are no flood");
    let most = |passed: u64, of: u64| passed as f64 >= 0.99 * of as f64;
    assert!(most(known_passed, turns), "{known_passed} of {turns} packets of the known source");
    assert!(most(proven_passed, turns), "{proven_passed} of {turns} packets of the proven newcomer");
    assert!(most(others_passed, others), "{others_passed} of {others} newcomers of other networks");
    // 5 + t ÷ 60, of which 5 are gone.
    assert!(again as f64 <= seconds / 60.0, "{again} more in {seconds} s from a bucket that was empty");

    // Every bucket of the slow limit was claimed by a newcomer.
    let slow = guard.tables().rules[2].meters[0];
    let slow = guard.tables().meters[usize::from(slow)].id;
    let claimed = guard.buckets().iter().filter(|bucket| bucket.meter == slow).count();
    let part = if from_one { 8.0 } else { 1.0 };
    let budget = 1.0 + 2_000.0 / part * (1.0 + seconds + spread);
    assert!(claimed as f64 <= budget, "{claimed} buckets claimed of at most {budget}");
    let table = guard.table();
    assert_eq!(table.entries, table_before.entries);
    assert!(table.used <= table.entries / 2, "{} of {} ways are in use", table.used, table.entries);
    assert_eq!(map_memory(), memory, "the maps of this process grew");
}
