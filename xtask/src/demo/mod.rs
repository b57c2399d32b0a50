//! `cargo xtask demo`: limiter at work on real packets, from nothing to a plain sentence in half a minute.
//!
//! Two network namespaces are joined by a veth pair. One is guarded by `limiterd`; in the other one abusive and
//! two polite sources send UDP from their own IPv4 and IPv6 addresses. What the senders sent and what sockets
//! behind limiter received is counted here; what limiter says of it is read through `limiterctl`.

mod traffic;
mod view;
mod world;

use std::io::IsTerminal;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::{setup, steps};
use traffic::{Flow, Traffic};
use view::View;
use world::World;

const LENGTH: Duration = Duration::from_secs(10);
/// Packets still under way when the senders have stopped.
const SETTLE: Duration = Duration::from_millis(500);

const RULES: [&str; 2] = ["dns", "web"];

const POLICY: &str = r#"version = 1

[[rule]]
name  = "dns"
to    = ["udp/53"]
limit = [ { per = "source", rate = "100/s", burst = 100 } ]

[[rule]]
name  = "web"
to    = ["udp/443"]
limit = [ { per = "source", rate = "400 kbit/s", burst = "50 kB" } ]
"#;

pub fn run() -> Result<()> {
    println!("set-up");
    setup::run()?;
    println!("build: limiterd and limiterctl, optimised, with their kernel programs");
    crate::build()?;

    let outcome = show();
    // Everything made is gone by here, in success, failure and interruption alike.
    if steps::interrupted() {
        bail!("interrupted; what the demo had made is removed");
    }
    outcome
}

fn show() -> Result<()> {
    println!("two network namespaces, `{}` and `{}`, and a veth pair", world::GUARDED, world::OUTSIDE);
    let world = World::make()?;
    println!("limiterd guards `{}` in `{}` with this policy:\n", world::INTERFACE, world::GUARDED);
    for line in POLICY.lines() {
        println!("    {line}");
    }
    println!();
    let daemon = world.guard(POLICY)?;
    world.reach()?;

    println!("{} s of traffic: one source floods both services, two send politely\n", LENGTH.as_secs());
    let traffic = Traffic::start(flows())?;
    let terminal = std::io::stdout().is_terminal();
    let mut view = View::new(terminal);
    let refresh = if terminal { Duration::from_millis(500) } else { Duration::from_secs(2) };
    let begun = Instant::now();
    let mut next = refresh;
    while begun.elapsed() < LENGTH && !steps::interrupted() {
        thread::sleep(Duration::from_millis(20));
        if begun.elapsed() >= next && next < LENGTH {
            next += refresh;
            view.show(begun.elapsed(), &traffic, &daemon.sources(&RULES)?, &daemon.rules()?);
        }
    }
    let took = traffic.quiet();
    thread::sleep(SETTLE);
    view.show(took, &traffic, &daemon.sources(&RULES)?, &daemon.rules()?);
    let traffic = traffic.finish()?;
    if steps::interrupted() {
        return Ok(());
    }
    view::verdict(took, &traffic)
}

fn flows() -> Vec<Flow> {
    let mut flows = Vec::new();
    for family in traffic::FAMILIES {
        // Packets a second and bytes of payload. DNS: 200 times the limit. Web: 600 bytes make 5 kbit.
        flows.push(Flow::new("flood", family, 66, "dns", 53, 20_000, 40));
        flows.push(Flow::new("flood", family, 66, "web", 443, 2_000, 600));
        flows.push(Flow::new("polite", family, 11, "dns", 53, 40, 40));
        flows.push(Flow::new("polite", family, 12, "web", 443, 25, 600));
    }
    flows
}
