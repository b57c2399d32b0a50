//! The whole datapath once: open, publish, test-run, read back, adopt.

use aya::programs::{TestRun, TestRunOptions, Xdp};
use limiter_common::abi::{Meter, PACKETS, PolicyTables, Rate, Rule, action};
use limiter_common::verdict::Outcome;
use limiter_tests::kernel::PinDirectory;
use limiter_user::datapath::{Datapath, Image, Kernel, Options};

fn zeroed_tables() -> Box<PolicyTables> {
    // SAFETY: plain integers, valid when zero.
    unsafe { Box::<PolicyTables>::new_zeroed().assume_init() }
}

#[test]
fn a_limit_of_three_passes_three() {
    let pin = PinDirectory::new();
    let options = Options { pin: pin.path().to_owned(), buckets: 1024, bans: 64 };
    let mut kernel = Kernel::open(&options).unwrap();
    assert_eq!(kernel.sealed(), None);

    // 3 packets, 1 more an hour, by hand: T = 3600 s = 230 400 000 000 000 ticks of 1/64 ns.
    let ticks = 3600 * 64_000_000_000u64;
    let rate = Rate { multiplier: ticks, tolerance: 3 * ticks, burst: 3, shift: 0, reserved: 0 };
    let claims =
        Rate { multiplier: 64_000_000, tolerance: 64_000_000_000, burst: 1000, shift: 0, reserved: 0 };
    let mut tables = zeroed_tables();
    let mut meter = Meter { id: 7, slot: 0, width_v4: 32, width_v6: 64, claims, ..Meter::default() };
    meter.rates[PACKETS] = rate;
    tables.meters[0] = meter;
    tables.rules[1] = Rule { counter: 1, meter_count: 1, action: action::LIMIT, ..Rule::default() };
    tables.cells[0][0].enforcing = 1;
    let image = Image { tables: &tables, rows: &[], reused_rules: &[], reused_meters: &[] };
    kernel.publish(image, b"sealed text", None).unwrap();
    assert_eq!(kernel.sealed().as_deref(), Some(&b"sealed text"[..]));

    let mut frame = vec![0u8; 64];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&50u16.to_be_bytes());
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[192, 0, 2, 1]);
    frame[38..40].copy_from_slice(&30u16.to_be_bytes());

    let mut probe = Kernel::open_probe(&options).unwrap();
    let explain: &mut Xdp = probe.program_mut("explain").unwrap().try_into().unwrap();
    explain.load().unwrap();
    let mut outcomes = Vec::new();
    for _ in 0..5 {
        let options = TestRunOptions { data_in: Some(&frame), ..TestRunOptions::default() };
        outcomes.push(explain.test_run(options).unwrap().return_value);
    }
    let within = 1 << 16 | Outcome::PassWithin as u32;
    let over = 1 << 16 | Outcome::DropOver as u32;
    assert_eq!(outcomes, [within, within, within, over, over]);

    let mut buckets = Vec::new();
    kernel.buckets(&mut |bucket| buckets.push(bucket)).unwrap();
    assert_eq!(buckets.len(), 1);
    assert_eq!(buckets[0].network.to_string(), "192.0.2.1");
    assert_eq!((buckets[0].width, buckets[0].passed), (32, 3));
    for program in ["check_then_act", "empty", "random_empty", "random_guard", "generate"] {
        let program: &mut Xdp = probe.program_mut(program).unwrap().try_into().unwrap();
        program.load().unwrap();
    }
    // Older kernels' verifiers are slower and less clever: what they must walk stays far below their million.
    for program in ["explain", "random_guard"] {
        let program: &mut Xdp = probe.program_mut(program).unwrap().try_into().unwrap();
        let verified = program.info().unwrap().verified_instruction_count().unwrap();
        assert!(verified < 100_000, "{verified} verified instructions");
    }
    drop(kernel);

    let kernel = Kernel::open(&options).unwrap();
    assert_eq!(kernel.sealed().as_deref(), Some(&b"sealed text"[..]));
    let counters = kernel.counters().unwrap();
    let (slot, totals) = &counters[0];
    assert_eq!(*slot, 1);
    assert_eq!(totals[Outcome::PassWithin as usize][0].packets, 3);
    assert_eq!(totals[Outcome::DropOver as usize][0].packets, 2);
    drop(kernel);
    Kernel::detach_direct(pin.path(), None).unwrap();
    assert!(!pin.path().exists());
}
