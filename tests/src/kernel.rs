//! The real program in the kernel, with a policy, in a place of its own.
//!
//! [`Guard`] publishes policies through the daemon's own datapath. Beside the guard it loads the probe, the same
//! judgement on the same maps, whose return value says what was decided and why.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{Array, HashMap, Map, MapData},
    programs::{TestRun as _, TestRunOptions, Xdp, XdpMode},
};
use limiter_common::{
    abi::{Ban, Counter, Geometry, PolicyTables, Row},
    verdict::Outcome,
};
use limiter_user::{
    datapath::{Bucket, Datapath as _, Facts, Image, Kernel, Mode, Options, TableUse, source_key},
    policy::{self, Bundle, Compiled, HostFacts, Slots},
};

use crate::{
    clock::Moment,
    namespace::{GUARDED, Namespace, Pair},
};

/// Ways of the table when a test does not say: room for limits that take a quarter of an hour to fill.
const BUCKETS: u32 = 1 << 18;

/// Bans there is room for when a test does not say.
pub const BANS: u32 = 1 << 10;

/// A directory in the bpf file system, with everything in it gone when it is dropped.
#[derive(Debug)]
pub struct PinDirectory(PathBuf);

impl PinDirectory {
    const PARENT: &str = "/sys/fs/bpf";
    const PREFIX: &str = "limiter-test-";

    /// A path that nobody else uses; nothing is made there. What killed test processes left is removed.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for entry in std::fs::read_dir(Self::PARENT).expect("a bpf file system is mounted").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let maker = name.strip_prefix(Self::PREFIX).and_then(|rest| rest.split('-').next());
            if maker.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                remove(&entry.path());
            }
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(Self::PARENT).join(format!("{}{}-{number}", Self::PREFIX, std::process::id()));
        remove(&path);
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for PinDirectory {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PinDirectory {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Ends every guard pinned there and removes all pins.
fn remove(pin: &Path) {
    let _ = Kernel::detach_direct(pin, None);
    let _ = std::fs::remove_dir_all(pin);
}

/// Checks and compiles a policy without mistakes.
pub fn compile(text: &str, facts: Facts, slots: &Slots, generation: u64) -> Compiled {
    compile_bundle(&Bundle::from_text("policy.toml", text), facts, slots, generation)
}

/// The same for a policy with files of its own.
pub fn compile_bundle(bundle: &Bundle, facts: Facts, slots: &Slots, generation: u64) -> Compiled {
    let complain = |diagnostics: Vec<policy::Diagnostic>| -> ! {
        let all: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
        panic!("{}\n{}", all.join("\n"), bundle.files[&bundle.policy]);
    };
    let checked = policy::check(bundle).unwrap_or_else(|all| complain(all));
    let host = HostFacts { tick_ns: facts.tick_ns, buckets: facts.buckets, slots, generation };
    policy::compile(&checked.policy, &host).unwrap_or_else(|all| complain(all))
}

/// What was decided of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    pub outcome: Outcome,
    /// Name of the rule that decided, `""` for none.
    pub rule: String,
    /// Name of the observing rule that would have dropped the packet, `""` for none.
    pub observing: String,
}

/// Runs frames through the probe. Clones run on as many threads as one likes.
#[derive(Clone)]
pub struct Runner(Arc<Probe>);

struct Probe {
    ebpf: Ebpf,
    judgement: &'static str,
    /// See [`Runner::load`].
    _idle: Namespace,
}

impl Runner {
    /// Loads the probe's judgement on the maps of a guard, and attaches it where no packet ever comes.
    ///
    /// A test run of several repeats enters its program into the kernel's XDP dispatcher and takes it out again,
    /// and waits tens of milliseconds for each (Linux 5.6). A program that is attached is there already.
    fn load(options: &Options, judgement: &'static str) -> Self {
        let idle = Namespace::empty();
        let mut ebpf = load_probe(options, judgement);
        idle.run(|| {
            let program = ebpf.program_mut(judgement).expect("it was just loaded");
            let program: &mut Xdp = program.try_into().expect("an XDP program");
            program.attach("lo", XdpMode::Skb).expect("the loopback interface takes the probe");
        });
        Self(Arc::new(Probe { ebpf, judgement, _idle: idle }))
    }

    fn test_run(&self, frame: &[u8], repeat: u32) -> u32 {
        test_run(&self.0.ebpf, self.0.judgement, frame, repeat)
    }

    /// What was decided of the frame.
    pub fn judge(&self, frame: &[u8]) -> Outcome {
        outcome(self.test_run(frame, 1))
    }

    /// Runs the frame so many times.
    pub fn repeat(&self, frame: &[u8], times: u32) {
        self.test_run(frame, times);
    }
}

/// The probe's program that says what was decided.
const JUDGEMENT: &str = "explain";
const LINEAR_JUDGEMENT: &str = "explain_linear";

/// The probe with one of its programs loaded.
fn load_probe(options: &Options, program: &str) -> Ebpf {
    let mut probe = Kernel::open_probe(options).expect("the probe loads");
    let loaded: &mut Xdp =
        probe.program_mut(program).expect("a program of the probe").try_into().expect("an XDP program");
    loaded.load().expect("the verifier takes the probe's program");
    probe
}

/// What a program of the probe returns for the last of so many runs.
fn test_run(probe: &Ebpf, program: &str, frame: &[u8], repeat: u32) -> u32 {
    let program: &Xdp =
        probe.program(program).expect("a program of the probe").try_into().expect("an XDP program");
    let options = TestRunOptions { data_in: Some(frame), repeat, ..TestRunOptions::default() };
    let result = program.test_run(options);
    result.unwrap_or_else(|error| panic!("a test run of {} bytes: {error}", frame.len())).return_value
}

/// The judgement that checks and then acts: a bucket whose compare-and-swap is not one step, for tests that must
/// be able to fail.
pub struct RacyRunner(Ebpf);

impl RacyRunner {
    const PROGRAM: &str = "check_then_act";

    /// Whether the first limit of the policy had room for the frame.
    pub fn admits(&self, frame: &[u8]) -> bool {
        test_run(&self.0, Self::PROGRAM, frame, 1) == XDP_PASS
    }
}

/// `enum xdp_action` of `linux/bpf.h`.
const XDP_PASS: u32 = 2;

fn outcome(said: u32) -> Outcome {
    let found = Outcome::ALL.into_iter().find(|outcome| u32::from(*outcome as u8) == said & 0xff);
    found.unwrap_or_else(|| panic!("the probe says {said:#x}, which is no outcome"))
}

/// See the module.
pub struct Guard {
    kernel: Kernel,
    runner: Runner,
    compiled: Compiled,
    generation: u64,
    options: Options,
    // Last, so that it goes after everything that is pinned there was let go.
    pin: PinDirectory,
}

impl Guard {
    pub fn with(policy: &str) -> Self {
        Self::with_table(policy, BUCKETS)
    }

    /// With a table of that many ways.
    pub fn with_table(policy: &str, buckets: u32) -> Self {
        let pin = PinDirectory::new();
        let options = Options { pin: pin.path().to_owned(), buckets, bans: BANS };
        let mut kernel = Kernel::open(&options).expect("the program loads");
        let compiled = compile(policy, kernel.facts(), &Slots::default(), 1);
        kernel.publish(image(&compiled), b"", None).expect("the policy is published");
        let runner = Runner::load(&options, JUDGEMENT);
        Self { kernel, runner, compiled, generation: 1, options, pin }
    }

    /// Puts another policy in force.
    pub fn publish(&mut self, policy: &str) {
        let mut compiled = self.prepare(policy);
        self.publish_prepared(&mut compiled);
    }

    /// Compiles a policy to be put in force later, on the places of the one in force.
    pub fn prepare(&mut self, policy: &str) -> Compiled {
        self.generation += 1;
        compile(policy, self.kernel.facts(), &self.compiled.slots, self.generation)
    }

    /// Puts a prepared policy in force, and leaves the one before in its place.
    pub fn publish_prepared(&mut self, compiled: &mut Compiled) {
        self.kernel.publish(image(compiled), b"", None).expect("the policy is published");
        std::mem::swap(&mut self.compiled, compiled);
    }

    /// Puts another policy in force, which falls back after that time.
    pub fn publish_unless_confirmed(&mut self, policy: &str, within: Duration) {
        let compiled = self.prepare(policy);
        self.kernel.publish(image(&compiled), b"", Some(within)).expect("the policy is published");
    }

    /// The daemon's hand on it.
    pub fn datapath(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    /// Whether the guard's own program lets the frame pass.
    pub fn passes(&mut self, frame: &[u8]) -> bool {
        let program = self.kernel.program().expect("the program is loaded");
        let options = TestRunOptions { data_in: Some(frame), repeat: 1, ..TestRunOptions::default() };
        program.test_run(options).expect("a test run").return_value == XDP_PASS
    }

    /// Bans prefixes until some time in ticks, by the datapath alone: as a daemon leaves them that dies.
    pub fn ban(&mut self, bans: &[(&str, Ban)]) {
        let bans: Vec<_> =
            bans.iter().map(|(prefix, ban)| (prefix.parse().expect("a prefix"), *ban)).collect();
        self.kernel.put_bans(&bans).expect("the kernel takes the bans");
    }

    /// Marks a source as one that has completed a TCP handshake, as the program on the root cgroup does.
    pub fn prove(&self, source: &str) {
        let key = source_key(source.parse().expect("an address"));
        self.proven().insert(key, 1, 0).expect("the kernel takes the mark");
    }

    /// Whether a source is marked so.
    pub fn is_proven(&self, source: &str) -> bool {
        self.proven().get(&source_key(source.parse().expect("an address")), 0).is_ok()
    }

    fn proven(&self) -> HashMap<MapData, [u64; 2], u32> {
        let map = MapData::from_pin(self.pin.path().join("proven")).expect("the map is pinned");
        HashMap::try_from(Map::LruHashMap(map)).expect("a hash of numbers")
    }

    /// Lifts bans.
    pub fn lift(&mut self, prefixes: &[&str]) {
        let prefixes: Vec<_> = prefixes.iter().map(|prefix| prefix.parse().expect("a prefix")).collect();
        self.kernel.lift_bans(&prefixes).expect("the kernel lifts the bans");
    }

    /// The datapath.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Guards the guarded end of a pair, in native mode.
    pub fn attach(&mut self, pair: &Pair) {
        let kernel = &mut self.kernel;
        let interface = pair.guarded.run(|| kernel.attach(GUARDED, Mode::Native, false));
        assert_eq!(interface.expect("veth takes the program").mode, Mode::Native);
    }

    pub fn runner(&self) -> Runner {
        self.runner.clone()
    }

    /// Runs frames through the judgement of kernels without multi-buffer XDP.
    pub fn linear_runner(&self) -> Runner {
        Runner::load(&self.options, LINEAR_JUDGEMENT)
    }

    /// Loads the judgement that races.
    pub fn racy_runner(&self) -> RacyRunner {
        RacyRunner(load_probe(&self.options, RacyRunner::PROGRAM))
    }

    /// What was decided of the frame, and by whom.
    pub fn judge(&self, frame: &[u8]) -> Judged {
        let said = self.runner.test_run(frame, 1);
        Judged {
            outcome: outcome(said),
            rule: self.rule_name((said >> 16) as u16).to_owned(),
            observing: self.rule_name((said >> 8) as u16 & 0xff).to_owned(),
        }
    }

    /// Runs the frame so many times; the moments before and after.
    pub fn repeat(&self, frame: &[u8], times: u32) -> (Moment, Moment) {
        let before = Moment::now();
        self.runner.repeat(frame, times);
        (before, Moment::now())
    }

    /// Name of a rule by its index in the tables.
    pub fn rule_name(&self, index: u16) -> &str {
        &self.compiled.rules[usize::from(index)].name
    }

    /// Counter slot of a rule, `""` being none.
    pub fn counter_of(&self, rule: &str) -> u16 {
        if rule.is_empty() { 0 } else { self.compiled.slots.rules[rule] }
    }

    /// Packets and bytes of a rule with one outcome, all families and CPUs together.
    pub fn counted(&self, rule: &str, outcome: Outcome) -> Counter {
        let slot =
            self.compiled.slots.rules.get(rule).unwrap_or_else(|| panic!("no rule is called `{rule}`"));
        let counters = self.kernel.counters().expect("the counters are read");
        let of_rule = counters.iter().find(|(found, _)| found == slot);
        of_rule.map_or(Counter::default(), |(_, totals)| sum(&totals[outcome as usize]))
    }

    /// Packets and bytes by outcome, all rules together.
    pub fn totals(&self) -> Vec<(Outcome, Counter)> {
        let counters = self.kernel.counters().expect("the counters are read");
        let of = |outcome: Outcome| {
            let parts: Vec<Counter> =
                counters.iter().map(|(_, totals)| sum(&totals[outcome as usize])).collect();
            (outcome, sum(&parts))
        };
        Outcome::ALL.into_iter().map(of).collect()
    }

    pub fn facts(&self) -> Facts {
        self.kernel.facts()
    }

    pub fn tables(&self) -> &PolicyTables {
        &self.compiled.tables
    }

    pub fn rows(&self) -> &[Row] {
        &self.compiled.rows
    }

    /// Meter slots that changed hands with the policy in force.
    pub fn retired_meters(&self) -> &[u32] {
        &self.compiled.reused_meters
    }

    pub fn table(&self) -> TableUse {
        self.kernel.table().expect("the table is read")
    }

    /// Another handle on the same maps, as a daemon that has just started has it.
    pub fn reopened(&self) -> Kernel {
        let options = Options { pin: self.pin.path().to_owned(), buckets: self.facts().buckets, bans: BANS };
        Kernel::open(&options).expect("the pins are adopted")
    }

    /// Every bucket that is not full.
    pub fn buckets(&self) -> Vec<Bucket> {
        let mut all = Vec::new();
        self.kernel.buckets(&mut |bucket| all.push(bucket)).expect("the table is read");
        all
    }

    /// Keys and size of the table, as they are pinned beside it.
    pub fn geometry(&self) -> Geometry {
        let map = MapData::from_pin(self.pin.path().join("geometry")).expect("the geometry is pinned");
        let map = Array::<_, [u64; 8]>::try_from(Map::Array(map)).expect("the geometry is 64 bytes");
        let [first, seed0, seed1, seed2, seed3, epoch, jiffies, jiffy] =
            map.get(&0, 0).expect("the geometry is read");
        Geometry {
            abi: first as u32,
            sets: (first >> 32) as u32,
            seed: [seed0, seed1, seed2, seed3],
            epoch,
            jiffies,
            jiffy,
        }
    }
}

/// A compiled policy as the datapath takes it.
pub fn image(compiled: &Compiled) -> Image<'_> {
    Image {
        tables: &compiled.tables,
        rows: &compiled.rows,
        reused_rules: &compiled.reused_rules,
        reused_meters: &compiled.reused_meters,
    }
}

/// Bytes of kernel memory of the maps this process holds.
pub fn map_memory() -> u64 {
    let entries = std::fs::read_dir("/proc/self/fdinfo").expect("the descriptors are listed");
    let infos = entries.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let memlock = |info: String| {
        info.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse::<u64>().ok())
    };
    infos.filter_map(memlock).sum()
}

fn sum(counters: &[Counter]) -> Counter {
    counters.iter().fold(Counter::default(), |sum, part| Counter {
        packets: sum.packets + part.packets,
        bytes: sum.bytes + part.bytes,
    })
}
