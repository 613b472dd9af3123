//! Own claims of one pool, by age and by size.

use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::Range;

use crate::types::{SiteId, Stamp};

/// Claims, each with its units.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Crowd {
    by_age: BTreeMap<Stamp, u32>,
    by_size: BTreeSet<(u32, Stamp)>,
}

/// Older than all claims.
pub(super) const OLDEST: Stamp = Stamp { time: 0, site: SiteId(0) };
/// Younger than all claims.
pub(super) const YOUNGEST: Stamp = Stamp { time: u64::MAX, site: SiteId(u16::MAX) };

impl Crowd {
    pub(super) const fn new() -> Self {
        Self { by_age: BTreeMap::new(), by_size: BTreeSet::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    pub(super) fn insert(&mut self, claim: Stamp, units: u32) {
        self.by_age.insert(claim, units);
        self.by_size.insert((units, claim));
    }

    pub(super) fn remove(&mut self, claim: Stamp) -> Option<u32> {
        let units = self.by_age.remove(&claim)?;
        self.by_size.remove(&(units, claim));
        Some(units)
    }

    pub(super) fn units(&self, claim: Stamp) -> Option<u32> {
        self.by_age.get(&claim).copied()
    }

    /// All, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Stamp, u32)> + '_ {
        self.by_age.iter().map(|(&claim, &units)| (claim, units))
    }

    /// The oldest.
    pub(super) fn first(&self) -> Option<(Stamp, u32)> {
        self.by_age.first_key_value().map(|(&claim, &units)| (claim, units))
    }

    /// Whether there is one of this age.
    pub(super) fn has_any(&self, ages: Range<Stamp>) -> bool {
        ages.start < ages.end && self.by_age.range(ages).next().is_some()
    }

    /// The largest number of units that one needs.
    pub(super) fn largest(&self) -> u32 {
        self.by_size.last().map_or(0, |&(units, _)| units)
    }

    /// The oldest of this age and size. Takes as long as there are different sizes among them.
    pub(super) fn oldest(&self, ages: Range<Stamp>, sizes: Range<u32>) -> Option<(Stamp, u32)> {
        let Range { start, mut end } = ages;
        let mut oldest = None;
        let mut from = sizes.start;
        while start < end
            && let Some(&(units, _)) = self.by_size.range((from, OLDEST)..).next()
            && units < sizes.end
        {
            if let Some(&(_, claim)) = self.by_size.range((units, start)..(units, end)).next() {
                oldest = Some((claim, units));
                end = claim;
            }
            from = units + 1;
        }
        oldest
    }

    /// Asserts that both lists are of the same claims.
    pub(super) fn audit(&self) {
        let by_size = self.by_age.iter().map(|(&claim, &units)| (units, claim));
        assert_eq!(self.by_size, by_size.collect(), "the same claims by age and by size");
    }
}
