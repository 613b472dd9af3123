//! Numbers with three decimals, without floating point.

use core::fmt;

/// A number in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thousandths(pub u64);

impl Thousandths {
    /// `sum` over `count`, rounded.
    pub const fn mean(sum: u64, count: u64) -> Self {
        Self((sum * 1000 + count / 2) / count)
    }

    /// `sites` to the power of M/(M+1), rounded: the bound on request sets for M `units`.
    ///
    /// Choose M + 1 sets one after the other, each so that it keeps as few as it can of what the
    /// others have in common. If no arbiter is in more than L of the N sets, the first has at most
    /// L members, and each keeps at most L/N. One must be left, so L is at least the bound. Where
    /// all arbiters are in as many sets, L is the size of a set too.
    pub fn bound(sites: u16, units: u32) -> Self {
        let sites = u64::from(sites);
        let root = root(sites, u64::from(units) + 1);
        let scaled = u128::from(sites * 1000) << FRACTION;
        let rounded = (scaled + u128::from(root) / 2) / u128::from(root);
        Self(u64::try_from(rounded).expect("the bound is no more than the sites"))
    }
}

impl fmt::Display for Thousandths {
    /// As few decimals as there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 1000, self.0 % 1000);
        match (part % 10, part % 100) {
            _ if part == 0 => write!(f, "{whole}"),
            (_, 0) => write!(f, "{whole}.{}", part / 100),
            (0, _) => write!(f, "{whole}.{:02}", part / 10),
            _ => write!(f, "{whole}.{part:03}"),
        }
    }
}

/// Binary digits after the point. Sixteen before it hold every number of sites.
const FRACTION: u32 = 47;

/// The largest number whose power is no more than `value`, as a fixed-point number.
fn root(value: u64, degree: u64) -> u64 {
    let (mut low, mut high) = (1 << FRACTION, (value + 1) << FRACTION);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if power_exceeds(middle, degree, value) {
            high = middle;
        } else {
            low = middle;
        }
    }
    low
}

/// Whether `base`, at least one, to the power of `exponent` is more than `limit`.
fn power_exceeds(base: u64, exponent: u64, limit: u64) -> bool {
    let limit = u128::from(limit) << FRACTION;
    let mut power = 1u128 << FRACTION;
    for bit in (0..u64::BITS - exponent.leading_zeros()).rev() {
        power = (power * power) >> FRACTION;
        // Checked before the next product, which would not fit otherwise.
        if power > limit {
            return true;
        }
        if exponent >> bit & 1 == 1 {
            power = (power * u128::from(base)) >> FRACTION;
        }
        if power > limit {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn the_bound_agrees_with_the_report() {
        let bound = |sites, units| Thousandths::bound(sites, units).to_string();
        assert_eq!(bound(10_000, 1), "100");
        assert_eq!(bound(10_000, 2), "464.159");
        assert_eq!(bound(10_000, 3), "1000");
        assert_eq!(bound(1000, 3), "177.828");
        assert_eq!(bound(100, 16), "76.27");
        assert_eq!(bound(1, 5), "1");
        assert_eq!(bound(u16::MAX, 1), "255.998");
        assert_eq!(bound(u16::MAX, u32::MAX), "65535");
    }

    #[test]
    fn decimals_are_as_few_as_there_are() {
        let text = |number| Thousandths(number).to_string();
        assert_eq!([1, 20, 300, 4000, 4010].map(text), ["0.001", "0.02", "0.3", "4", "4.01"]);
        assert_eq!(Thousandths::mean(5, 3), Thousandths(1667));
    }
}
