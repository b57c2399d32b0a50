//! Claim budgets: how many new buckets per second each meter may take from the table.
//!
//! A bucket is in use for at most the time it takes to fill, so a meter that claims `share ÷ fill time` buckets
//! per second holds at most `share` of them, and a quarter more with its burst. All shares together are four
//! tenths of the table: half of it, bursts included, is never claimed, whatever is spoofed. In a policy with newcomers
//! each meter also has a reserve of an eighth of that for proven sources, which comes out of the same four tenths.

use limiter_common::abi;

use super::rate::TICKS_PER_SECOND;

/// Claims per second every meter gets at least.
const LEAST_PER_SECOND: u128 = 10;

/// Least share: its quarter, the burst, is one second of the least budget.
const LEAST_SHARE: u128 = 4 * LEAST_PER_SECOND;

/// The table is too small; with this many buckets it would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooSmall {
    pub needed: u128,
}

/// Budgets of meters, given the ticks a bucket of each takes to fill, for a table of so many buckets.
///
/// What is left when each has its least is given half in equal parts and half in proportion to the fill times:
/// fast limits need few ways, slow ones many.
pub(super) fn budgets(
    fill_ticks: &[u64],
    buckets: u32,
    with_reserve: bool,
) -> Result<Vec<abi::Rate>, TooSmall> {
    let least: Vec<u128> = fill_ticks.iter().map(|ticks| least_share(u128::from(*ticks))).collect();
    let least_sum: u128 = least.iter().sum();
    // Two fifths, or eight ninths of that where an eighth comes on top.
    let (part, whole) = if with_reserve { (16, 45) } else { (2, 5) };
    let usable = u128::from(buckets) * part / whole;
    let Some(rest) = usable.checked_sub(least_sum) else {
        return Err(TooSmall { needed: (least_sum * whole).div_ceil(part).next_power_of_two() });
    };
    let count = fill_ticks.len() as u128;
    let fill_sum: u128 = fill_ticks.iter().map(|ticks| u128::from(*ticks)).sum();
    let budgets = fill_ticks.iter().zip(least).map(|(ticks, least)| {
        let ticks = u128::from(*ticks).max(1);
        let share = least + rest / 2 / count + rest / 2 * ticks / fill_sum.max(1);
        let multiplier = ticks.div_ceil(share);
        let burst = share / 4;
        abi::Rate {
            multiplier: multiplier as u64,
            tolerance: (burst * multiplier) as u64,
            burst: burst as u64,
            shift: 0,
            reserved: 0,
        }
    });
    Ok(budgets.collect())
}

fn least_share(ticks: u128) -> u128 {
    (ticks * LEAST_PER_SECOND).div_ceil(TICKS_PER_SECOND).max(LEAST_SHARE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 64_000_000_000;

    fn per_second(budget: &abi::Rate) -> f64 {
        SECOND as f64 / budget.multiplier as f64
    }

    #[test]
    fn one_fast_limit_has_nearly_all_of_it() {
        // A second to fill, a million buckets: 419 430 ways, so as many claims a second.
        let budgets = budgets(&[SECOND], 1 << 20, false).unwrap();
        assert!((419_000.0..=419_431.0).contains(&per_second(&budgets[0])), "{budgets:?}");
        assert_eq!(budgets[0].burst, 104_857);
    }

    #[test]
    fn slow_limits_get_their_ways() {
        // 1/m and 50/s with a burst of 100: 60 s and 2 s.
        let budgets = budgets(&[60 * SECOND, 2 * SECOND], 1 << 20, false).unwrap();
        assert!(per_second(&budgets[0]) > 5000.0 && per_second(&budgets[1]) > 50_000.0, "{budgets:?}");
    }

    #[test]
    fn a_small_table_is_refused_with_the_size_it_needs() {
        // A day to fill at ten a second: 864 000 ways, 2 160 000 buckets, rounded up to a power of two.
        assert_eq!(budgets(&[86_400 * SECOND], 1 << 20, false), Err(TooSmall { needed: 1 << 22 }));
        assert!(budgets(&[86_400 * SECOND], 1 << 22, false).is_ok());
        assert_eq!(budgets(&[], 16, false), Ok(vec![]));
    }

    proptest! {
        /// Ways in use by all meters together, each claiming all it may, are at most half the table.
        #[test]
        fn never_more_than_half(
            fills in prop::collection::vec(1u64..30 * 86_400 * SECOND, 1..200),
            scale in 0u32..40,
            size in 10u32..31,
            with_reserve: bool,
        ) {
            let fills: Vec<u64> = fills.iter().map(|ticks| (ticks >> scale).max(1)).collect();
            let buckets = 1u32 << size;
            let budgets = match budgets(&fills, buckets, with_reserve) {
                Ok(budgets) => budgets,
                Err(TooSmall { needed }) => {
                    prop_assert!(needed > u128::from(buckets));
                    prop_assert!(u32::try_from(needed).map_or(true, |needed| budgets(&fills, needed, with_reserve).is_ok()));
                    return Ok(());
                }
            };
            let held: u128 = fills.iter().zip(&budgets).map(|(fill, budget)| {
                let own = u128::from(*fill) / u128::from(budget.multiplier) + u128::from(budget.burst);
                let reserve = u128::from(*fill) / u128::from(budget.multiplier << 3) + u128::from(budget.burst >> 3);
                own + if with_reserve { reserve } else { 0 }
            }).sum();
            prop_assert!(held <= u128::from(buckets / 2), "{held} of {buckets}");
            for budget in &budgets {
                prop_assert!(per_second(budget) >= 10.0 - 1e-6);
                prop_assert!(budget.burst >= 10);
                prop_assert_eq!(budget.tolerance, budget.burst * budget.multiplier);
            }
        }
    }
}
