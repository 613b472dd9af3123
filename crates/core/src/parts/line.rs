//! The claims on one pool in stamp order, and how far they fit.
//!
//! Picture a queue at a door that lets in so many units: counted from the oldest claim, everybody
//! up to the *front* fits, the claim at the front and everybody behind it do not, however small
//! they are. That is strict order, and it is why big claims do not starve. The front is kept as
//! claims come and go, so a change costs the logarithm of the queue and a step for each claim that
//! the front passes.

use alloc::collections::BTreeMap;
use core::ops::Bound;

use crate::types::{Stamp, Units};

/// A queue of claims on one pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    capacity: Units,
    entries: BTreeMap<Stamp, Units>,
    /// Counted before everybody in the queue, in no order.
    reserved: BTreeMap<Stamp, Units>,
    /// The units of `reserved`.
    reserved_sum: u64,
    /// The first entry that does not fit; none where all do.
    front: Option<Stamp>,
    /// The units of the entries before the front. Invariant: with `reserved_sum` no more than
    /// `capacity`, or no entry fits.
    sum: u64,
}

impl Line {
    /// An empty queue for a pool of `capacity` units.
    pub const fn new(capacity: Units) -> Self {
        Self {
            capacity,
            entries: BTreeMap::new(),
            reserved: BTreeMap::new(),
            reserved_sum: 0,
            front: None,
            sum: 0,
        }
    }

    /// The size of the pool.
    pub const fn capacity(&self) -> Units {
        self.capacity
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.reserved.is_empty()
    }

    /// Whether all claims older than `claim`, and `claim` itself if it is here, fit.
    pub fn fits(&self, claim: Stamp) -> bool {
        self.front.is_none_or(|front| claim < front)
            && self.sum + self.reserved_sum <= u64::from(self.capacity.0)
    }

    /// The first claim that does not fit.
    pub const fn front(&self) -> Option<Stamp> {
        self.front
    }

    /// The claims older than `claim`, oldest first.
    pub fn older(&self, claim: Stamp) -> impl Iterator<Item = (Stamp, Units)> + '_ {
        self.entries.range(..claim).map(|(&stamp, &units)| (stamp, units))
    }

    /// The claims that count before everybody.
    pub fn reserved(&self) -> impl Iterator<Item = (Stamp, Units)> + '_ {
        self.reserved.iter().map(|(&stamp, &units)| (stamp, units))
    }

    /// All claims, those that count before everybody first.
    pub fn iter(&self) -> impl Iterator<Item = (Stamp, Units)> + '_ {
        self.reserved().chain(self.entries.iter().map(|(&stamp, &units)| (stamp, units)))
    }

    /// The units that a claim has here.
    pub fn units(&self, claim: Stamp) -> Units {
        let queued = self.entries.get(&claim).copied().unwrap_or_default();
        queued + self.reserved.get(&claim).copied().unwrap_or_default()
    }

    /// Puts a claim in its place, or corrects its units.
    pub fn set(&mut self, claim: Stamp, units: Units) {
        let before = self.entries.insert(claim, units).unwrap_or_default();
        if self.front.is_none_or(|front| claim < front) {
            self.sum = self.sum + u64::from(units.0) - u64::from(before.0);
        }
        self.settle();
    }

    /// Counts a claim before everybody, or corrects its units.
    pub fn reserve(&mut self, claim: Stamp, units: Units) {
        let before = self.reserved.insert(claim, units).unwrap_or_default();
        self.reserved_sum = self.reserved_sum + u64::from(units.0) - u64::from(before.0);
        self.settle();
    }

    /// Takes `units` of a claim away, or the whole claim; says how many went.
    pub fn take(&mut self, claim: Stamp, units: Option<Units>) -> Units {
        let reserved = lower(&mut self.reserved, claim, units);
        self.reserved_sum -= u64::from(reserved.0);
        let queued = lower(&mut self.entries, claim, units);
        if self.front.is_none_or(|front| claim < front) {
            self.sum -= u64::from(queued.0);
        } else if self.front == Some(claim) && !self.entries.contains_key(&claim) {
            self.front = self.after(claim);
        }
        self.settle();
        reserved + queued
    }

    /// Moves the front back while too much is before it, then forward while more fits.
    fn settle(&mut self) {
        let room = u64::from(self.capacity.0).saturating_sub(self.reserved_sum);
        while self.sum > room {
            let end = self.front.map_or(Bound::Unbounded, Bound::Excluded);
            let Some((&last, &units)) = self.entries.range((Bound::Unbounded, end)).next_back()
            else {
                break;
            };
            self.front = Some(last);
            self.sum -= u64::from(units.0);
        }
        while let Some(front) = self.front {
            let units = u64::from(self.entries[&front].0);
            if self.sum + units > room {
                break;
            }
            self.sum += units;
            self.front = self.after(front);
        }
    }

    fn after(&self, claim: Stamp) -> Option<Stamp> {
        let behind = (Bound::Excluded(claim), Bound::Unbounded);
        self.entries.range(behind).next().map(|(&next, _)| next)
    }
}

fn lower(map: &mut BTreeMap<Stamp, Units>, claim: Stamp, units: Option<Units>) -> Units {
    let Some(have) = map.get_mut(&claim) else { return Units::ZERO };
    let taken = units.map_or(*have, |units| units.min(*have));
    *have -= taken;
    if have.is_zero() {
        map.remove(&claim);
    }
    taken
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::types::SiteId;

    fn stamp(time: u64) -> Stamp {
        Stamp { time, site: SiteId(0) }
    }

    /// The dumb way: add up from the oldest.
    fn model_fits(line: &Line, claim: Stamp) -> bool {
        let before: Units = line.older(claim).map(|entry| entry.1).sum();
        let own = line.entries.get(&claim).copied().unwrap_or_default();
        let reserved: Units = line.reserved().map(|entry| entry.1).sum();
        before + own + reserved <= line.capacity
    }

    #[test]
    fn the_front_agrees_with_adding_up() {
        let mut random = 7u64;
        let mut next = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % n
        };
        for capacity in 0..6 {
            let mut line = Line::new(Units(capacity));
            for _ in 0..4_000 {
                let claim = stamp(next(12));
                let units = Units(u32::try_from(next(4)).expect("small") + 1);
                match next(5) {
                    0 | 1 => line.set(claim, units),
                    2 => line.reserve(claim, units),
                    3 => drop(line.take(claim, Some(units))),
                    _ => drop(line.take(claim, None)),
                }
                for probe in (0..13).map(stamp) {
                    let fits = model_fits(&line, probe);
                    assert_eq!(line.fits(probe), fits, "{line:?} at {probe}");
                }
            }
        }
    }

    #[test]
    fn nobody_passes_a_claim_that_does_not_fit() {
        let mut line = Line::new(Units(4));
        line.set(stamp(1), Units(3));
        line.set(stamp(2), Units(4));
        line.set(stamp(3), Units(1));
        assert!(line.fits(stamp(1)) && !line.fits(stamp(2)) && !line.fits(stamp(3)));
        line.take(stamp(1), None);
        let fitting: Vec<bool> = [2, 3].map(|t| line.fits(stamp(t))).to_vec();
        assert_eq!(fitting, [true, false]);
    }
}
