//! Rates, bursts and durations: text to exact fractions to what the kernel computes with.
//!
//! Nothing is a float here. A rate is kept as the exact fraction of ticks (1/64 ns) one unit is worth; what the
//! kernel's integers make of it differs by at most 0.1 %, else the number is refused.

use limiter_common::abi;

use super::exact::Fraction;

/// Ticks of one second.
pub const TICKS_PER_SECOND: u128 = 64_000_000_000;

/// Longest time an empty bucket may take to fill.
pub const LONGEST_FILL_SECONDS: u128 = 30 * 86_400;

/// Least default burst of a limit in bytes.
pub const LEAST_BYTE_BURST: u64 = 16 * 1024;

/// Packets longer than this do not occur: a larger byte burst need not be spendable by one packet exactly.
const LONGEST_PACKET: u128 = 128 * 1024;

/// Largest burst, in units. What is slower than a tick per thousand units is refused anyway.
const LARGEST_BURST: u128 = 1_000_000_000_000_000;

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    Packets,
    Bytes,
}

impl Unit {
    /// Its place in [`abi::Meter::rates`].
    pub fn index(self) -> usize {
        match self {
            Self::Packets => abi::PACKETS,
            Self::Bytes => abi::BYTES,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
        }
    }
}

/// A rate with its burst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// As written, `50 Mbit/s`.
    pub text: String,
    pub unit: Unit,
    /// Ticks one unit is worth, exactly.
    pub ticks_per_unit: Fraction,
    /// In units.
    pub burst: u64,
    /// What the kernel computes with.
    pub encoded: abi::Rate,
}

/// A number that is not one: what is wrong, and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadNumber {
    pub message: String,
    pub help: String,
}

fn bad<T>(message: impl Into<String>, help: impl Into<String>) -> Result<T, BadNumber> {
    Err(BadNumber { message: message.into(), help: help.into() })
}

const RATE_HELP: &str =
    "write a count like `50/s`, `2k/s`, `10/m`, `5/15m`, or bytes like `50 Mbit/s`, `1 MB/s`";
const DURATION_HELP: &str = "write `10s`, `5m`, `1h` or `2d`";

/// A decimal number as (digits, power of ten they are divided by), and the rest of the text.
fn decimal(text: &str) -> Option<(u128, u128, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (number, ""),
    };
    if whole.is_empty() || whole.len() > 15 || fraction.len() > 9 {
        return None;
    }
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, 10u128.pow(fraction.len() as u32), rest))
}

/// Seconds of `10s`, `5m`, `1h`, `2d`.
pub(super) fn parse_duration(text: &str) -> Result<u64, BadNumber> {
    let refuse = || bad(format!("`{text}` is not a duration"), DURATION_HELP);
    let Some(split) = text.find(|c: char| !c.is_ascii_digit()) else { return refuse() };
    let (number, unit) = text.split_at(split);
    let Some(seconds) = unit_seconds(unit) else { return refuse() };
    let Some(total) = number.parse::<u64>().ok().and_then(|n| n.checked_mul(seconds)) else {
        return refuse();
    };
    if total == 0 {
        return bad(format!("`{text}` is no time at all"), DURATION_HELP);
    }
    Ok(total)
}

fn unit_seconds(unit: &str) -> Option<u64> {
    match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(86_400),
        _ => None,
    }
}

/// Units of a suffix, as a fraction: `k` is 1000 packets, `Mbit` 125 000 bytes, `bit` an eighth of one.
fn suffix(text: &str) -> Option<(Unit, u128, u128)> {
    let (unit, numerator, denominator) = match text {
        "" => (Unit::Packets, 1, 1),
        "k" => (Unit::Packets, 1_000, 1),
        "M" => (Unit::Packets, 1_000_000, 1),
        "G" => (Unit::Packets, 1_000_000_000, 1),
        "bit" => (Unit::Bytes, 1, 8),
        "kbit" => (Unit::Bytes, 125, 1),
        "Mbit" => (Unit::Bytes, 125_000, 1),
        "Gbit" => (Unit::Bytes, 125_000_000, 1),
        "B" => (Unit::Bytes, 1, 1),
        "kB" => (Unit::Bytes, 1_000, 1),
        "MB" => (Unit::Bytes, 1_000_000, 1),
        "GB" => (Unit::Bytes, 1_000_000_000, 1),
        _ => return None,
    };
    Some((unit, numerator, denominator))
}

/// Every suffix there is, to name the nearest to a misspelt one.
const SUFFIXES: [&str; 11] = ["k", "M", "G", "bit", "kbit", "Mbit", "Gbit", "B", "kB", "MB", "GB"];

/// An amount such as `2k` or `50 Mbit`: its unit and the exact number of units.
fn amount(text: &str) -> Result<(Unit, Fraction), String> {
    let Some((digits, divisor, rest)) = decimal(text) else {
        return Err(format!("`{text}` does not begin with a number"));
    };
    let rest = rest.strip_prefix(' ').unwrap_or(rest);
    let Some((unit, numerator, denominator)) = suffix(rest) else {
        let near = SUFFIXES.iter().find(|known| known.eq_ignore_ascii_case(rest));
        let near = near.map(|known| format!(", did you mean `{known}`?")).unwrap_or_default();
        return Err(format!("unknown unit `{rest}`{near}"));
    };
    match Fraction::new(digits * numerator, divisor * denominator) {
        Some(units) => Ok((unit, units)),
        None => Err(format!("`{text}` is not a number")),
    }
}

/// A rate without its burst: the unit, and the exact ticks one unit is worth.
pub(super) fn parse_rate(text: &str) -> Result<(Unit, Fraction), BadNumber> {
    let Some((count, period)) = text.rsplit_once('/') else {
        return bad(format!("`{text}` is not a rate: it has no `/`"), RATE_HELP);
    };
    let seconds = match unit_seconds(period) {
        Some(seconds) => seconds,
        None => match parse_duration(period) {
            Ok(seconds) => seconds,
            Err(_) => return bad(format!("`{text}` is not a rate: `{period}` is not a time"), RATE_HELP),
        },
    };
    let (unit, units) = match amount(count.strip_suffix(' ').unwrap_or(count)) {
        Ok(amount) => amount,
        Err(why) => return bad(format!("`{text}` is not a rate: {why}"), RATE_HELP),
    };
    if units.is_zero() {
        return bad(
            format!("`{text}` lets nothing through"),
            "write `verdict = \"drop\"` instead of the limit",
        );
    }
    let ticks = (u128::from(seconds))
        .checked_mul(TICKS_PER_SECOND)
        .and_then(|ticks| ticks.checked_mul(units.denominator()))
        .and_then(|ticks| Fraction::new(ticks, units.numerator()));
    let Some(ticks) = ticks else {
        return bad(
            format!("`{text}` is too slow to be counted"),
            "an empty bucket must fill within 30 days",
        );
    };
    Ok((unit, ticks))
}

/// A burst written as text, in units: `4k` packets, `1 MB`.
pub(super) fn parse_burst(text: &str, unit: Unit) -> Result<u64, BadNumber> {
    let help = match unit {
        Unit::Packets => "write a number of packets like `100` or `\"4k\"`",
        Unit::Bytes => "write an amount like `\"16 kB\"` or `\"1 MB\"`, or a number of bytes",
    };
    let (written, units) = match amount(text) {
        Ok(amount) => amount,
        Err(why) => return bad(format!("`{text}` is not a burst: {why}"), help),
    };
    if written != unit && !text.bytes().all(|byte| byte.is_ascii_digit()) {
        let message = format!("the rate counts {} and the burst `{text}` {}", unit.name(), written.name());
        return bad(message, help);
    }
    if units.denominator() != 1 {
        return bad(format!("`{text}` is not a whole number of {}", unit.name()), help);
    }
    checked_burst(units.numerator(), text, help)
}

/// A burst as a number of units.
pub(super) fn checked_burst(units: u128, text: &str, help: &str) -> Result<u64, BadNumber> {
    if units == 0 {
        return bad("a burst of 0 lets nothing through", help);
    }
    if units > LARGEST_BURST {
        return bad(format!("burst `{text}` is too large"), help);
    }
    Ok(units as u64)
}

/// One second's worth, at least one packet or 16 KiB.
pub(super) fn default_burst(unit: Unit, ticks_per_unit: Fraction) -> u64 {
    let per_second = Fraction::new(TICKS_PER_SECOND, 1)
        .and_then(|second| second.times(ticks_per_unit.denominator()))
        .map_or(LARGEST_BURST, |units| units.floor() / ticks_per_unit.numerator().max(1));
    let least = match unit {
        Unit::Packets => 1,
        Unit::Bytes => LEAST_BYTE_BURST,
    };
    per_second.clamp(u128::from(least), LARGEST_BURST) as u64
}

impl Rate {
    /// Units per second. For display only.
    pub fn per_second(&self) -> f64 {
        TICKS_PER_SECOND as f64 / self.ticks_per_unit.approximate()
    }

    /// From a rate and its burst in units; [`default_burst`] when none is given.
    pub(super) fn new(text: &str, burst: Option<u64>) -> Result<Self, BadNumber> {
        let (unit, ticks_per_unit) = parse_rate(text)?;
        let burst = burst.unwrap_or_else(|| default_burst(unit, ticks_per_unit));
        let mut rate =
            Self { text: text.to_owned(), unit, ticks_per_unit, burst, encoded: abi::Rate::default() };
        rate.encoded = rate.encode()?;
        Ok(rate)
    }

    /// A budget for newcomers: a second's worth at once, and eight at least, of which a network's share is one.
    pub(super) fn of_newcomers(text: &str) -> Result<Self, BadNumber> {
        let (unit, ticks_per_unit) = parse_rate(text)?;
        if unit == Unit::Bytes {
            return bad(
                format!("`{text}` counts bytes, and newcomers are packets"),
                "write `newcomers = \"50k/s\"`",
            );
        }
        Self::new(text, Some(default_burst(unit, ticks_per_unit).max(8)))
    }

    /// So many per cent of the rate and of the burst, which stays at least one packet, or what is left of 16 KiB.
    pub(super) fn scaled(&self, percent: u32) -> Result<Self, BadNumber> {
        let text = format!("{percent} % of {}", self.text);
        let exact = self.ticks_per_unit.times(100).and_then(|ticks| {
            Fraction::new(ticks.numerator(), ticks.denominator().checked_mul(u128::from(percent))?)
        });
        let Some(ticks_per_unit) = exact else {
            return bad(format!("`{text}` cannot be computed"), "take another scale");
        };
        let least = match self.unit {
            Unit::Packets => 1,
            Unit::Bytes => LEAST_BYTE_BURST.min(self.burst),
        };
        let burst = u128::from(self.burst) * u128::from(percent) / 100;
        let burst = burst.clamp(u128::from(least), LARGEST_BURST) as u64;
        let mut rate = Self { text, ticks_per_unit, burst, ..self.clone() };
        rate.encoded = rate.encode()?;
        Ok(rate)
    }

    /// The multiplier is at least the exact value and the tolerance is what the burst costs by that multiplier, so
    /// never more than burst + rate × time is admitted. Packets cost a whole number of ticks each. Where one
    /// packet can be as large as the burst, the multiplier is rounded so that it fits exactly.
    fn encode(&self) -> Result<abi::Rate, BadNumber> {
        let burst = u128::from(self.burst);
        let Some(whole) = self.ticks_per_unit.times(burst) else { return Err(self.too_slow()) };
        if whole > whole_ticks(LONGEST_FILL_SECONDS * TICKS_PER_SECOND) {
            return Err(self.too_slow());
        }
        let mut shift = 0;
        if self.unit == Unit::Bytes {
            // A crowd cell takes packets of up to eight bursts: their product must stay below 2^63 too.
            while shift < 20 && whole.ceiling() << (shift + 1) < 1 << 59 {
                shift += 1;
            }
        }
        let Some(scaled) = self.ticks_per_unit.times(1 << shift) else { return Err(self.too_slow()) };
        let exact = scaled.ceiling();
        let step = (1u128 << shift) / common_power_of_two(burst, shift);
        let even = exact.next_multiple_of(step);
        let multiplier = if self.unit == Unit::Bytes && burst <= LONGEST_PACKET && within(even, scaled, 1000)
        {
            even
        } else {
            exact
        };
        if !within(multiplier, scaled, 1000) {
            return Err(self.too_fine());
        }
        let tolerance = (burst * multiplier) >> shift;
        // The largest packet whose cost, rounded up, is no more than the tolerance.
        let spendable = (tolerance << shift) / multiplier;
        if tolerance == 0 || spendable == 0 || tolerance << shift >= 1 << 60 {
            return Err(self.too_fine());
        }
        Ok(abi::Rate {
            multiplier: multiplier as u64,
            tolerance: tolerance as u64,
            burst: spendable as u64,
            shift,
            reserved: 0,
        })
    }

    fn too_slow(&self) -> BadNumber {
        let days =
            self.ticks_per_unit.approximate() * self.burst as f64 / (TICKS_PER_SECOND as f64 * 86_400.0);
        BadNumber {
            message: format!(
                "a burst of {} at `{}` takes {days:.2} days to fill, more than 30",
                self.burst, self.text
            ),
            help: "write a smaller burst or a faster rate".to_owned(),
        }
    }

    fn too_fine(&self) -> BadNumber {
        let help = match self.unit {
            // One packet costs a whole number of ticks: these are the rates next to the one asked for.
            Unit::Packets => {
                let slower = TICKS_PER_SECOND / self.ticks_per_unit.ceiling().max(1);
                match self.ticks_per_unit.floor() {
                    0 => format!("write at most `{slower}/s`"),
                    ticks => format!("write `{slower}/s` or `{}/s`", TICKS_PER_SECOND / ticks),
                }
            }
            Unit::Bytes => "write a lower rate or a smaller burst".to_owned(),
        };
        BadNumber { message: format!("`{}` cannot be represented within 0.1 %", self.text), help }
    }
}

fn whole_ticks(ticks: u128) -> Fraction {
    Fraction::new(ticks, 1).unwrap_or(Fraction::ZERO)
}

fn common_power_of_two(number: u128, most: u32) -> u128 {
    1 << number.trailing_zeros().min(most)
}

/// Whether `value`, which is at least `exact`, exceeds it by at most one part in `parts`.
fn within(value: u128, exact: Fraction, parts: u128) -> bool {
    exact
        .times(parts + 1)
        .zip(value.checked_mul(parts))
        .is_some_and(|(most, value)| whole_ticks(value) <= most)
}

#[cfg(test)]
mod tests;
