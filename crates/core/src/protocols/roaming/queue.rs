//! Who waits for the units of one pool that lie idle here, and how far these reach.
//!
//! The picture is that of [`Line`](crate::parts::Line): counted from the oldest, everybody before
//! the front fits. Here the door is as wide as there are idle units, so it moves too; and what does
//! not fit entirely may still take a part, because a unit given to another site is on its way.

use alloc::collections::BTreeMap;
use core::ops::Bound;

use crate::types::Stamp;

/// Claims and wants on the idle units of one pool, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    entries: BTreeMap<Stamp, u32>,
    /// Idle units.
    idle: u64,
    /// The first entry that does not fit; none where all do.
    front: Option<Stamp>,
    /// The units of the entries before the front. Invariant: no more than `idle`.
    sum: u64,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { entries: BTreeMap::new(), idle: 0, front: None, sum: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) const fn idle(&self) -> u64 {
        self.idle
    }

    /// Idle units that nobody before the front needs.
    pub(super) const fn spare(&self) -> u64 {
        self.idle - self.sum
    }

    /// The first entry that does not fit, with its units.
    pub(super) fn front(&self) -> Option<(Stamp, u32)> {
        self.front.map(|front| (front, self.entries[&front]))
    }

    /// Whether `stamp`, and everybody older, fits.
    pub(super) fn fits(&self, stamp: Stamp) -> bool {
        self.front.is_none_or(|front| stamp < front)
    }

    pub(super) fn units(&self, stamp: Stamp) -> u32 {
        self.entries.get(&stamp).copied().unwrap_or_default()
    }

    /// The entries older than `stamp`.
    pub(super) fn older(&self, stamp: Stamp) -> impl Iterator<Item = (Stamp, u32)> + '_ {
        self.entries.range(..stamp).map(|(&stamp, &units)| (stamp, units))
    }

    /// The entries from the front on.
    pub(super) fn behind(&self) -> impl Iterator<Item = (Stamp, u32)> + '_ {
        let range = self.front.map(|front| self.entries.range(front..));
        range.into_iter().flatten().map(|(&stamp, &units)| (stamp, units))
    }

    /// The entries from `from` to the front: those that fit since the front was at `from`.
    pub(super) fn passed(&self, from: Option<Stamp>) -> impl Iterator<Item = Stamp> + '_ {
        let end = self.front.map_or(Bound::Unbounded, Bound::Excluded);
        let from = from.filter(|&from| self.fits(from));
        let range = from.map(|from| self.entries.range((Bound::Included(from), end)));
        range.into_iter().flatten().map(|(&stamp, _)| stamp)
    }

    /// Adds units to an entry, which is made if it is not there.
    pub(super) fn add(&mut self, stamp: Stamp, units: u32) {
        *self.entries.entry(stamp).or_default() += units;
        if self.fits(stamp) {
            self.sum += u64::from(units);
        }
        self.settle();
    }

    /// Takes units of an entry away, or the whole entry.
    pub(super) fn take(&mut self, stamp: Stamp, units: Option<u32>) {
        let Some(have) = self.entries.get_mut(&stamp) else { return };
        let taken = units.map_or(*have, |units| units.min(*have));
        *have -= taken;
        let over = *have == 0;
        if self.fits(stamp) {
            self.sum -= u64::from(taken);
        }
        if over {
            self.entries.remove(&stamp);
            if self.front == Some(stamp) {
                self.front = self.after(stamp);
            }
        }
        self.settle();
    }

    /// Takes units of an entry away together with as many idle ones: they were given to it.
    pub(super) fn serve(&mut self, stamp: Stamp, units: u32) {
        let have = self.entries.get_mut(&stamp).expect("only entries are served");
        *have -= units;
        let over = *have == 0;
        self.idle -= u64::from(units);
        if self.fits(stamp) {
            self.sum -= u64::from(units);
        }
        if over {
            self.entries.remove(&stamp);
            if self.front == Some(stamp) {
                self.front = self.after(stamp);
            }
        }
        self.settle();
    }

    /// More idle units.
    pub(super) fn grow(&mut self, units: u64) {
        self.idle += units;
        self.settle();
    }

    /// An idle unit less, that nobody needed.
    pub(super) fn shrink(&mut self) {
        self.idle -= 1;
        self.settle();
    }

    /// Moves the front back while too much is before it, then forward while more fits.
    fn settle(&mut self) {
        while self.sum > self.idle {
            let end = self.front.map_or(Bound::Unbounded, Bound::Excluded);
            let before = self.entries.range((Bound::Unbounded, end)).next_back();
            let (&last, &units) = before.expect("what is counted is before the front");
            self.front = Some(last);
            self.sum -= u64::from(units);
        }
        while let Some(front) = self.front {
            let units = u64::from(self.entries[&front]);
            if self.sum + units > self.idle {
                break;
            }
            self.sum += units;
            self.front = self.after(front);
        }
    }

    fn after(&self, stamp: Stamp) -> Option<Stamp> {
        let behind = (Bound::Excluded(stamp), Bound::Unbounded);
        self.entries.range(behind).next().map(|(&next, _)| next)
    }
}
