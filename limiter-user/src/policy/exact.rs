//! Exact fractions of unsigned 128-bit integers.

use std::cmp::Ordering;

/// `numerator / denominator` in lowest terms; the denominator is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fraction {
    numerator: u128,
    denominator: u128,
}

fn common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Fraction {
    /// `None` when `denominator` is 0.
    pub fn new(numerator: u128, denominator: u128) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let divisor = common_divisor(numerator, denominator);
        Some(Self { numerator: numerator / divisor, denominator: denominator / divisor })
    }

    pub fn numerator(self) -> u128 {
        self.numerator
    }

    pub fn denominator(self) -> u128 {
        self.denominator
    }

    /// `None` when the result does not fit.
    pub fn times(self, factor: u128) -> Option<Self> {
        let divisor = common_divisor(factor, self.denominator);
        Some(Self {
            numerator: self.numerator.checked_mul(factor / divisor)?,
            denominator: self.denominator / divisor,
        })
    }

    pub fn floor(self) -> u128 {
        self.numerator / self.denominator
    }

    pub fn ceiling(self) -> u128 {
        self.numerator.div_ceil(self.denominator)
    }

    pub fn is_zero(self) -> bool {
        self.numerator == 0
    }

    pub const ZERO: Self = Self { numerator: 0, denominator: 1 };

    /// For display only.
    pub fn approximate(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fraction {
    /// By the terms of the continued fractions, so that nothing can overflow.
    fn cmp(&self, other: &Self) -> Ordering {
        let (mut a, mut b) = (*self, *other);
        let mut turned = false;
        loop {
            let order = a.floor().cmp(&b.floor());
            let (a_rest, b_rest) = (a.numerator % a.denominator, b.numerator % b.denominator);
            let order = match (order, a_rest, b_rest) {
                (Ordering::Equal, 0, 0) => return Ordering::Equal,
                (Ordering::Equal, 0, _) => Ordering::Less,
                (Ordering::Equal, _, 0) => Ordering::Greater,
                (Ordering::Equal, _, _) => {
                    a = Self { numerator: a.denominator, denominator: a_rest };
                    b = Self { numerator: b.denominator, denominator: b_rest };
                    turned = !turned;
                    continue;
                }
                (decided, _, _) => decided,
            };
            return if turned { order.reverse() } else { order };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fraction(numerator: u128, denominator: u128) -> Fraction {
        Fraction::new(numerator, denominator).unwrap()
    }

    #[test]
    fn orders_like_cross_multiplication() {
        for (a, b, c, d) in
            [(1, 2, 2, 3), (2, 4, 1, 2), (7, 3, 5, 2), (0, 1, 1, 9), (22, 7, 355, 113), (3, 1, 3, 1)]
        {
            let expected = (a * d).cmp(&(c * b));
            assert_eq!(fraction(a, b).cmp(&fraction(c, d)), expected, "{a}/{b} and {c}/{d}");
            assert_eq!(fraction(c, d).cmp(&fraction(a, b)), expected.reverse());
        }
        assert!(fraction(u128::MAX, 3) > fraction(u128::MAX - 3, 3));
    }

    #[test]
    fn rounds_both_ways() {
        assert_eq!((fraction(7, 2).floor(), fraction(7, 2).ceiling()), (3, 4));
        assert_eq!((fraction(6, 2).floor(), fraction(6, 2).ceiling()), (3, 3));
        assert_eq!(fraction(1, 3).times(6), Some(fraction(2, 1)));
        assert_eq!(fraction(u128::MAX, 1).times(2), None);
        assert_eq!(Fraction::new(1, 0), None);
    }
}
