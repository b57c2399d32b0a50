//! Measuring: a contender and its floor take turns inside one run, and only their difference counts, with
//! minimum, median and maximum over the rounds. Machines are shared and noisy; absolute times are footnotes.

use std::fmt::Write as _;
use std::path::PathBuf;

use aya::Ebpf;
use aya::maps::Array;
use aya::programs::{TestRun, TestRunOptions, Xdp};
use limiter_user::datapath::{Datapath, Image, Kernel, Options};
use limiter_user::policy::{self, Bundle, Compiled, HostFacts, Slots};

/// Rounds of every measurement.
pub const ROUNDS: usize = 9;

/// The datapath and the probe on the same maps, in a pin directory of their own that goes with them.
pub struct Bench {
    pub kernel: Kernel,
    pub probe: Ebpf,
    slots: Slots,
    pin: PathBuf,
}

impl Bench {
    pub fn open(buckets: u32) -> Self {
        let pin = PathBuf::from(format!("/sys/fs/bpf/limiter-bench-{}-{buckets}", std::process::id()));
        let options = Options { pin: pin.clone(), buckets };
        let kernel = Kernel::open(&options).unwrap();
        let mut probe = Kernel::open_probe(&options).unwrap();
        for (_, program) in probe.programs_mut() {
            let program: &mut Xdp = program.try_into().unwrap();
            program.load().unwrap();
        }
        Self { kernel, probe, slots: Slots::default(), pin }
    }

    /// Puts a policy in force.
    pub fn publish(&mut self, text: &str, files: &[(&str, &str)]) -> Compiled {
        let mut bundle = Bundle::from_text("policy.toml", text);
        for (name, content) in files {
            bundle = bundle.with_file(name, content);
        }
        let checked = policy::check(&bundle).unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
        let facts = self.kernel.facts();
        let host =
            HostFacts { tick_ns: facts.tick_ns, buckets: facts.buckets, slots: &self.slots, generation: 1 };
        let compiled =
            policy::compile(&checked.policy, &host).unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
        let image = Image {
            tables: &compiled.tables,
            rows: &compiled.rows,
            reused_rules: &compiled.reused_rules,
            reused_meters: &compiled.reused_meters,
        };
        self.kernel.publish(image, b"bench").unwrap();
        self.slots = compiled.slots.clone();
        compiled
    }

    /// Bits of the source that the probe's `random…` programs draw anew.
    pub fn randomize(&mut self, mask: u32) {
        let mut map = Array::<_, u32>::try_from(self.probe.map_mut("PROBE").unwrap()).unwrap();
        map.set(0, mask, 0).unwrap();
    }

    /// Nanoseconds per run of a program of the probe, and what it last returned.
    pub fn run(&mut self, program: &str, frame: &[u8], repeat: u32) -> (f64, u32) {
        let program: &mut Xdp = self.probe.program_mut(program).unwrap().try_into().unwrap();
        let mut options = TestRunOptions::default();
        options.data_in = Some(frame);
        options.repeat = repeat;
        let result = program.test_run(options).unwrap();
        (result.duration.as_nanos() as f64, result.return_value)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = Kernel::detach_direct(&self.pin, None);
    }
}

/// Minimum, median and maximum of some rounds.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { least: values[0], median: values[values.len() / 2], most: values[values.len() - 1] }
    }
}

/// Takes turns: floor, contender, floor, contender… and gives the floor and the difference.
pub fn beside(mut floor: impl FnMut() -> f64, mut contender: impl FnMut() -> f64) -> (Spread, Spread) {
    let mut floors = Vec::new();
    let mut differences = Vec::new();
    for _ in 0..ROUNDS {
        let ground = floor();
        differences.push(contender() - ground);
        floors.push(ground);
    }
    (Spread::of(floors), Spread::of(differences))
}

/// A table in Markdown.
pub struct Table {
    text: String,
}

impl Table {
    pub fn new(columns: &[&str]) -> Self {
        let mut text = format!("| {} |\n|", columns.join(" | "));
        for _ in columns {
            text.push_str("---|");
        }
        text.push('\n');
        Self { text }
    }

    /// Adds a row and shows it at once: benches are long.
    pub fn row(&mut self, cells: &[String]) {
        let line = format!("| {} |", cells.join(" | "));
        eprintln!("{line}");
        let _ = writeln!(self.text, "{line}");
    }

    pub fn into_text(self) -> String {
        self.text
    }
}
