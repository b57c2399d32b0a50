//! `cargo xtask bench requests [inside|redis|http]`: what a decision of the request tier costs, beside what the same machine does in the
//! same minute without one.
//!
//! Over HTTP by `wrk`, on a core of its own; the server on another. Controls: a server of the same libraries that
//! always answers 204, and nginx with `return 204`. For Redis: the decision script under `redis-benchmark`. Every
//! figure is the minimum, median and maximum of seven rounds in which all contenders take turns; what counts is the
//! ratio to the control of the same round.

mod http;
mod inside;
mod raw;
mod table;

use anyhow::{Context, Result};
use table::Table;

/// All contenders take turns this often.
const ROUNDS: usize = 7;

/// Connections, or questions under way at once.
const AT_ONCE: usize = 32;

/// The core that decides, and the one that asks (and runs Redis).
#[derive(Clone, Copy)]
struct Cores {
    deciding: usize,
    asking: usize,
}

/// The policy of all measurements: a limit nobody reaches, and one that is spent at once.
const POLICY: &str = r#"version = 1
[[endpoint]]
name = "open"
match = { path = "/open" }
limit = [ { per = "source", algorithm = "token-bucket", rate = "100000000/m", burst = 100000000 } ]
on-store-failure = "deny"
[[endpoint]]
name = "spent"
match = { path = "/spent" }
limit = [ { per = "source", algorithm = "token-bucket", rate = "1/d", burst = 1 } ]
on-store-failure = "deny"
"#;

fn main() -> Result<()> {
    let cores = Cores::choose()?;
    type Measure = fn(Cores, &mut Table) -> Result<()>;
    let sections: [(&str, Measure); 3] =
        [("inside", inside::measure), ("redis", raw::measure), ("http", http::measure)];
    // Cargo adds `--bench`.
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let mut table = Table::default();
    for (name, measure) in sections {
        if asked.is_empty() || asked.iter().any(|word| word == name) {
            measure(cores, &mut table)?;
        }
    }
    println!(
        "Rounds: {ROUNDS}. Asked: HTTP embedded at least 0.8 of the constant answer of the same libraries; Redis in process \
         at least 0.7 of the script under `redis-benchmark`, on the same cores; a remembered refusal in process \
         under 500 ns, which is 2 000 000 a second. `HTTP over Redis` is no such claim: there `wrk` shares the core of \
         Redis, and `redis-benchmark` does not.\n"
    );
    println!("{}", table.text()?);
    Ok(())
}

impl Cores {
    fn choose() -> Result<Self> {
        let all =
            nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).context("cannot read the cores")?;
        let usable: Vec<usize> =
            (0..nix::sched::CpuSet::count()).filter(|core| all.is_set(*core).unwrap_or(false)).collect();
        let (Some(first), Some(last)) = (usable.first(), usable.last()) else {
            anyhow::bail!("no core to run on");
        };
        Ok(Self { deciding: *first, asking: *last })
    }
}

/// Pins the calling thread, and with it what it starts.
fn pin(core: usize) -> Result<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(core)?;
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).context("cannot pin to a core")
}
