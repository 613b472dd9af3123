//! Questions about what happened, and what comes back from each site.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Place;

/// Which events are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    pub since_ms: u64,
    pub until_ms: Option<u64>,
    pub pool: Option<String>,
    pub owner: Option<String>,
    pub event: Option<String>,
}

/// A question to the ledger of one site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LedgerAsk {
    /// The latest events, or the latest before a place in the history.
    History {
        selection: Selection,
        limit: usize,
        before: Option<Place>,
    },
    Usage(Scope),
}

/// What a report has a row for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Who asked, as the request says.
    #[default]
    Owner,
    /// The pool.
    Pool,
    /// One unit of a pool.
    Unit,
}

/// What is counted: a time, and only these pools if some are named.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scope {
    pub by: By,
    pub since_ms: u64,
    pub until_ms: u64,
    pub pools: Option<BTreeSet<String>>,
}

/// Counts of values, by their logarithms: a value is known to one part in sixteen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets(BTreeMap<u16, u64>);

impl Buckets {
    pub fn add(&mut self, value: u64) {
        *self.0.entry(bucket(value)).or_default() += 1;
    }

    pub fn merge(&mut self, other: Self) {
        for (place, count) in other.0 {
            *self.0.entry(place).or_default() += count;
        }
    }

    /// The value below which this part of all values is, in percent; none if there are none.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let total: u64 = self.0.values().sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        self.0.iter().find_map(|(&place, count)| {
            seen += count;
            (seen >= rank).then(|| middle(place))
        })
    }
}

/// The place of a value: below 16 its own, then 8 for each power of two.
fn bucket(value: u64) -> u16 {
    let Some(power) = value.checked_ilog2().filter(|&it| it >= 4) else {
        return u16::try_from(value).unwrap_or(0);
    };
    let eighth = (value >> (power - 3)) & 7;
    u16::try_from(16 + u64::from(power - 4) * 8 + eighth).unwrap_or(u16::MAX)
}

/// The middle of the values that have this place.
fn middle(place: u16) -> u64 {
    let Some(above) = place.checked_sub(16) else { return u64::from(place) };
    let (power, eighth) = (4 + u32::from(above / 8), u64::from(above % 8));
    let width = 1_u64 << (power - 3).min(60);
    (8 + eighth).saturating_mul(width).saturating_add(width / 2)
}

/// What one owner, pool or unit used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Leases that were granted.
    pub leases: u64,
    /// Units times the time for which they were held, in milliseconds.
    pub unit_ms: u64,
    pub expired: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub refused: u64,
    pub waits: Buckets,
    pub holds: Buckets,
}

impl Group {
    /// Counts one event.
    pub fn note(&mut self, event: &str, waited: Option<u64>, held: Option<u64>) {
        match event {
            "granted" => {
                self.leases += 1;
                self.waits.add(waited.unwrap_or(0));
            }
            "expired" | "held" | "quarantined" => self.expired += 1,
            "failed" => self.failed += 1,
            "cancelled" => self.cancelled += 1,
            "refused" => self.refused += 1,
            _ => {}
        }
        if let Some(held) = held {
            self.holds.add(held);
        }
    }
}

/// What one site, or all of them, granted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Since when the ledger has everything; none if it has nothing.
    pub from_ms: Option<u64>,
    /// By owner, by pool, or by pool and unit; the unit is empty otherwise.
    pub groups: Vec<((String, String), Group)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_off_by_a_sixteenth_at_most() {
        for value in [0, 1, 15, 16, 17, 31, 32, 1000, 59_999, 86_400_000, 1 << 40] {
            let mut buckets = Buckets::default();
            buckets.add(value);
            let shown = buckets.percentile(50).unwrap();
            assert!(shown.abs_diff(value) <= value / 16 + 1, "{value}: {shown}");
        }
        let mut buckets = Buckets::default();
        assert_eq!(buckets.percentile(50), None);
        (1..=100).for_each(|_| buckets.add(3));
        (1..=5).for_each(|_| buckets.add(5000));
        assert_eq!(buckets.percentile(50), Some(3));
        assert!(buckets.percentile(99).unwrap() > 4500);
        buckets.add(u64::MAX);
        assert!(buckets.percentile(100).unwrap() > u64::MAX / 16 * 15);
    }
}
