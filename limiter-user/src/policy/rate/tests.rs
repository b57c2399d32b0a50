use proptest::prelude::*;

use super::*;

fn rate(text: &str, burst: Option<u64>) -> Rate {
    let (unit, ticks_per_unit) = parse_rate(text).unwrap();
    let burst = burst.unwrap_or_else(|| default_burst(unit, ticks_per_unit));
    Rate { text: text.to_owned(), unit, ticks_per_unit, burst, encoded: abi::Rate::default() }
}

/// Ticks the kernel takes for a packet of so many units.
fn cost(encoded: &abi::Rate, units: u128) -> u128 {
    (units * u128::from(encoded.multiplier)).div_ceil(1 << encoded.shift)
}

#[test]
fn rates_as_people_write_them() {
    // Ticks per unit by hand: 64e9 × seconds / units.
    for (text, unit, numerator, denominator, burst) in [
        ("50/s", Unit::Packets, 1_280_000_000, 1, 50),
        ("2k/s", Unit::Packets, 32_000_000, 1, 2000),
        ("2 k/s", Unit::Packets, 32_000_000, 1, 2000),
        ("1.5k/s", Unit::Packets, 128_000_000, 3, 1500),
        ("1M/s", Unit::Packets, 64_000, 1, 1_000_000),
        ("3/s", Unit::Packets, 64_000_000_000, 3, 3),
        ("1/m", Unit::Packets, 3_840_000_000_000, 1, 1),
        ("90/m", Unit::Packets, 128_000_000_000, 3, 1),
        ("5/15m", Unit::Packets, 11_520_000_000_000, 1, 1),
        ("1/h", Unit::Packets, 230_400_000_000_000, 1, 1),
        ("0.5/s", Unit::Packets, 128_000_000_000, 1, 1),
        ("10 Gbit/s", Unit::Bytes, 256, 5, 1_250_000_000),
        ("50 Mbit/s", Unit::Bytes, 10_240, 1, 6_250_000),
        ("50Mbit/s", Unit::Bytes, 10_240, 1, 6_250_000),
        ("1 kB/s", Unit::Bytes, 64_000_000, 1, 16_384),
        ("1 GB/d", Unit::Bytes, 5_529_600, 1, 16_384),
        ("8 bit/s", Unit::Bytes, 64_000_000_000, 1, 16_384),
        ("1 bit/s", Unit::Bytes, 512_000_000_000, 1, 16_384),
    ] {
        let parsed = rate(text, None);
        assert_eq!(parsed.unit, unit, "{text}");
        assert_eq!(parsed.ticks_per_unit, Fraction::new(numerator, denominator).unwrap(), "{text}");
        assert_eq!(parsed.burst, burst, "{text}");
    }
}

#[test]
fn numbers_that_are_none() {
    for (text, message) in [
        ("50", "`50` is not a rate: it has no `/`"),
        ("50/", "`50/` is not a rate: `` is not a time"),
        ("/s", "`/s` is not a rate: `` does not begin with a number"),
        ("50/y", "`50/y` is not a rate: `y` is not a time"),
        ("50K/s", "`50K/s` is not a rate: unknown unit `K`, did you mean `k`?"),
        ("50 mbit/s", "`50 mbit/s` is not a rate: unknown unit `mbit`, did you mean `Mbit`?"),
        ("50 KiB/s", "`50 KiB/s` is not a rate: unknown unit `KiB`"),
        ("-5/s", "`-5/s` is not a rate: `-5` does not begin with a number"),
        ("1./s", "`1./s` is not a rate: `1.` does not begin with a number"),
        ("0/s", "`0/s` lets nothing through"),
        ("1/0s", "`1/0s` is not a rate: `0s` is not a time"),
    ] {
        assert_eq!(parse_rate(text).unwrap_err().message, message);
    }
    assert_eq!(parse_burst("1 MB", Unit::Bytes), Ok(1_000_000));
    assert_eq!(parse_burst("1500", Unit::Bytes), Ok(1500));
    assert_eq!(parse_burst("4k", Unit::Packets), Ok(4000));
    let message = |text, unit| parse_burst(text, unit).unwrap_err().message;
    assert_eq!(message("1 MB", Unit::Packets), "the rate counts packets and the burst `1 MB` bytes");
    assert_eq!(message("4k", Unit::Bytes), "the rate counts bytes and the burst `4k` packets");
    assert_eq!(message("0", Unit::Packets), "a burst of 0 lets nothing through");
    assert_eq!(message("1.5", Unit::Packets), "`1.5` is not a whole number of packets");
}

#[test]
fn durations() {
    for (text, seconds) in [("10s", 10), ("5m", 300), ("1h", 3600), ("2d", 172_800)] {
        assert_eq!(parse_duration(text), Ok(seconds));
    }
    for text in ["", "s", "10", "0s", "1w", "1.5h", "-1s", "10 s", "99999999999999999999s"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn what_cannot_be_represented_is_refused() {
    // 70 M/s is 914.29 ticks a packet; 915 are 0.08 % more. 75 M/s: 853.33, 854 are 0.08 % more.
    assert!(rate("70M/s", None).encode().is_ok());
    // 90 M/s is 711.11; 712 are 0.125 % more.
    let refused = rate("90M/s", None).encode().unwrap_err();
    assert_eq!(refused.message, "`90M/s` cannot be represented within 0.1 %");
    assert_eq!(refused.help, "write `89887640/s` or `90014064/s`");
    assert!(rate("100G/s", Some(1)).encode().is_err());
    // 30 days are the most: 720 packets at one an hour.
    assert!(rate("1/h", Some(720)).encode().is_ok());
    let refused = rate("1/h", Some(721)).encode().unwrap_err();
    assert_eq!(refused.message, "a burst of 721 at `1/h` takes 30.04 days to fill, more than 30");
    assert!(rate("1/30d", None).encode().is_ok());
    assert!(rate("1/31d", None).encode().is_err());
    assert!(rate("1 bit/s", Some(1_000_000_000_000_000)).encode().is_err());
    assert!(rate("400 Gbit/s", None).encode().is_ok());
}

#[test]
fn known_encodings() {
    let encoded = rate("3/s", Some(1)).encode().unwrap();
    // 64e9 / 3 rounded up, and one packet must be able to pass.
    assert_eq!(
        (encoded.multiplier, encoded.shift, encoded.tolerance, encoded.burst),
        (21_333_333_334, 0, 21_333_333_334, 1)
    );
    let encoded = rate("10 Gbit/s", None).encode().unwrap();
    // 51.2 ticks a byte × 2^20, rounded up; 1.25e9 bytes are one second.
    assert_eq!((encoded.multiplier, encoded.shift), (53_687_092, 20));
    assert_eq!(encoded.tolerance, 64_000_000_953);
    let encoded = rate("1 kB/s", Some(1500)).encode().unwrap();
    assert_eq!(
        (encoded.multiplier, encoded.shift, encoded.tolerance),
        (64_000_000 << 20, 20, 96_000_000_000)
    );
}

fn any_rate() -> impl Strategy<Value = Rate> {
    let units = prop_oneof![
        Just(""),
        Just("k"),
        Just("M"),
        Just(" bit"),
        Just(" kbit"),
        Just(" Mbit"),
        Just(" Gbit"),
        Just(" B"),
        Just(" kB"),
        Just(" MB"),
        Just(" GB")
    ];
    let periods = prop_oneof![Just("s"), Just("m"), Just("h"), Just("15m"), Just("d")];
    let bursts = prop_oneof![1u64..20, 1u64..3000, 1u64..10_000_000];
    (1u32..5000, 0u32..1000, units, periods, prop::option::of(bursts)).prop_map(
        |(whole, fraction, unit, period, burst)| {
            rate(&format!("{whole}.{fraction:03}{unit}/{period}"), burst)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Against exact fractions: never faster than asked, at most 0.1 % slower, and the burst can be spent.
    #[test]
    fn what_the_kernel_computes_is_what_was_asked(rate in any_rate()) {
        let Ok(encoded) = rate.encode() else { return Ok(()) };
        let exact = rate.ticks_per_unit;
        let scaled = exact.times(1 << encoded.shift).unwrap();
        let multiplier = whole_ticks(u128::from(encoded.multiplier));
        prop_assert!(multiplier >= scaled);
        prop_assert!(multiplier.times(1000).unwrap() <= scaled.times(1001).unwrap());
        // What is admitted at once costs at least burst × multiplier, so the tolerance must not be above that.
        let burst = u128::from(rate.burst);
        let tolerance = u128::from(encoded.tolerance);
        prop_assert!(tolerance << encoded.shift <= burst * u128::from(encoded.multiplier));
        let whole = exact.times(burst).unwrap();
        prop_assert!(whole_ticks(tolerance + 1).times(1000).unwrap() >= whole.times(999).unwrap());
        prop_assert!(tolerance <= 30 * 86_400 * TICKS_PER_SECOND + burst);
        // `burst` is the dearest packet that fits a full bucket.
        let spendable = u128::from(encoded.burst);
        prop_assert!(cost(&encoded, spendable) <= tolerance);
        prop_assert!(cost(&encoded, spendable + 1) > tolerance);
        // It is the whole burst, but where that is no packet's size, or rounding it would cost 0.1 %.
        let missing = burst - spendable;
        prop_assert!(missing <= 1 || exact.times(missing).unwrap() <= whole_ticks(2));
        prop_assert!(missing == 0 || burst > 131_072 || exact < whole_ticks(1000));
        if rate.unit == Unit::Packets {
            prop_assert_eq!(encoded.shift, 0);
            prop_assert_eq!(tolerance / cost(&encoded, 1), burst);
        }
        prop_assert!(spendable.checked_mul(u128::from(encoded.multiplier)).is_some_and(|product| product < 1 << 60));
    }

    #[test]
    fn fractions_of_a_count_are_exact(digits in 1u64..10_000_000, places in 0usize..6) {
        let written = format!("{digits:07}");
        let text = format!("{}.{}", &written[..7 - places], &written[7 - places..]);
        let text = if places == 0 { digits.to_string() } else { text };
        let (_, ticks) = parse_rate(&format!("{text}/s")).unwrap();
        let expected = Fraction::new(TICKS_PER_SECOND * 10u128.pow(places as u32), u128::from(digits));
        prop_assert_eq!(Some(ticks), expected);
    }
}
