//! Measuring: a contender and its floor take turns inside one run, and only their difference or ratio counts,
//! with minimum, median and maximum over the rounds. Machines are shared and noisy; absolute times are
//! footnotes.

use std::fmt;

use aya::Ebpf;
use aya::maps::Array;
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp};
use limiter_user::datapath::{Datapath as _, Kernel, Options};
use limiter_user::policy::{Bundle, Compiled, Slots};

use crate::kernel::{BANS, PinDirectory, compile_bundle, image};

/// Rounds of every measurement.
pub const ROUNDS: usize = 9;

/// The datapath and the probe on the same maps.
pub struct Bench {
    pub kernel: Kernel,
    pub probe: Ebpf,
    slots: Slots,
    // Last, so that the pins go after everything that holds them.
    _pin: PinDirectory,
}

impl Bench {
    /// With a table of that many ways.
    pub fn open(buckets: u32) -> Self {
        let pin = PinDirectory::new();
        let options = Options { pin: pin.path().to_owned(), buckets, bans: BANS };
        let kernel = Kernel::open(&options).unwrap();
        let mut probe = Kernel::open_probe(&options).unwrap();
        for (_, program) in probe.programs_mut() {
            let program: &mut Xdp = program.try_into().unwrap();
            program.load().unwrap();
        }
        Self { kernel, probe, slots: Slots::default(), _pin: pin }
    }

    /// Checks, compiles and puts a policy in force.
    pub fn publish(&mut self, bundle: &Bundle) {
        let compiled = self.compile(bundle);
        self.publish_compiled(&compiled);
    }

    pub fn compile(&self, bundle: &Bundle) -> Compiled {
        compile_bundle(bundle, self.kernel.facts(), &self.slots, 1)
    }

    pub fn publish_compiled(&mut self, compiled: &Compiled) {
        self.kernel.publish(image(compiled), b"bench", None).unwrap();
        self.slots = compiled.slots.clone();
    }

    /// Bits of the source that the probe's `random…` programs and `generate` draw anew.
    pub fn randomize(&mut self, mask: u32) {
        self.set_probe(0, mask);
    }

    /// The interface `generate` sends from.
    pub fn send_from(&mut self, interface: u32) {
        self.set_probe(1, interface);
    }

    fn set_probe(&mut self, index: u32, value: u32) {
        let mut map = Array::<_, u32>::try_from(self.probe.map_mut("PROBE").unwrap()).unwrap();
        map.set(index, value, 0).unwrap();
    }

    /// See [`run`].
    pub fn run(&self, program: &str, frame: &[u8], repeat: u32) -> (f64, u32) {
        run(&self.probe, program, frame, repeat)
    }
}

/// Nanoseconds per run of a program of the probe, on the calling CPU, and what it last returned.
pub fn run(probe: &Ebpf, program: &str, frame: &[u8], repeat: u32) -> (f64, u32) {
    let options = TestRunOptions { data_in: Some(frame), repeat, ..TestRunOptions::default() };
    let result = program_of(probe, program).test_run(options).unwrap();
    (result.duration.as_nanos() as f64, result.return_value)
}

/// Sends so many copies of a frame out of the interface of [`Bench::send_from`], which belongs to the caller's
/// network namespace.
pub fn generate(probe: &Ebpf, frame: &[u8], packets: u32) {
    let options = TestRunOptions {
        data_in: Some(frame),
        repeat: packets,
        attrs: TestRunAttrs::new().xdp_live_frames(64),
        ..TestRunOptions::default()
    };
    program_of(probe, "generate").test_run(options).unwrap();
}

fn program_of<'a>(probe: &'a Ebpf, name: &str) -> &'a Xdp {
    probe.program(name).unwrap().try_into().unwrap()
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

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = usize::from(self.median < 20.0) + usize::from(self.median < 5.0);
        let Self { least, median, most } = self;
        write!(f, "{least:.digits$} · **{median:.digits$}** · {most:.digits$}")
    }
}

/// Takes turns, a round each: what the floor gave, and what the contender gave in the same round.
pub fn in_turns<T, U>(mut floor: impl FnMut() -> T, mut contender: impl FnMut() -> U) -> Vec<(T, U)> {
    (0..ROUNDS).map(|_| (floor(), contender())).collect()
}

/// A section of the report: a heading, a sentence, a table in Markdown. Rows are shown at once on standard
/// error, since benches are long.
pub struct Section(String);

impl Section {
    pub fn new(heading: &str, text: &str, columns: &[&str]) -> Self {
        eprintln!("{heading}");
        let line = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
        Self(format!("### {heading}\n\n{text}\n\n{line}"))
    }

    pub fn row(&mut self, cells: &[String]) {
        let line = format!("| {} |\n", cells.join(" | "));
        eprint!("{line}");
        self.0.push_str(&line);
    }

    /// Prints the section to standard output.
    pub fn print(self) {
        println!("{}", self.0);
    }
}
