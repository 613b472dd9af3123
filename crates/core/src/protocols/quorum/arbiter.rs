//! What one site has granted of one pool, and who waits for it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;

use super::rules::{Rules, Slip};
use crate::types::{Stamp, Units};

/// The books of an arbiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Arbiter {
    capacity: Units,
    /// Units of claims that were held when the epoch began, where those are more.
    carried: Units,
    /// Units of `granted`. Invariant: no more than the capacity, or than were carried over.
    used: Units,
    granted: BTreeMap<Stamp, Granted>,
    /// Invariant: between two events the oldest does not fit, and is as good as being made room
    /// for: enough younger grants, or all of them, are recalled.
    waiting: BTreeMap<Stamp, Waiting>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Granted {
    units: Units,
    attempt: u32,
    /// Whether the claimant was asked for it back.
    recalled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    units: Units,
    /// Grants that it was given and gave back.
    attempts: u32,
}

/// What an arbiter has to say to a claimant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ruling {
    pub(super) claim: Stamp,
    pub(super) attempt: u32,
    /// A recall names the older claim that waits; a grant does not.
    pub(super) recall_for: Option<Stamp>,
}

impl Arbiter {
    pub(super) const fn new(capacity: Units) -> Self {
        Self {
            capacity,
            carried: Units::ZERO,
            used: Units::ZERO,
            granted: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// The books as an epoch begins: what is held is granted, the rest waits.
    pub(super) fn resume(
        capacity: Units,
        claims: impl Iterator<Item = (Stamp, Units, bool)>,
    ) -> Self {
        let mut books = Self::new(capacity);
        for (claim, units, held) in claims {
            if held {
                books.granted.insert(claim, Granted { units, attempt: 1, recalled: false });
                books.used += units;
            } else {
                books.waiting.insert(claim, Waiting { units, attempts: 0 });
            }
        }
        if books.used > capacity {
            books.carried = books.used;
        }
        books
    }

    /// The epoch has begun.
    pub(super) fn resumed<R: Rules>(&mut self) -> Vec<Ruling> {
        self.settle::<R>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting.is_empty()
    }

    /// What it has down for a claim.
    pub(super) fn units(&self, claim: Stamp) -> Option<Units> {
        let granted = self.granted.get(&claim).map(|granted| granted.units);
        granted.or_else(|| self.waiting.get(&claim).map(|waiting| waiting.units))
    }

    /// Whether this grant was recalled and not given back yet.
    pub(super) fn is_recalled(&self, claim: Stamp, attempt: u32) -> bool {
        self.granted.get(&claim).is_some_and(|g| g.recalled && g.attempt == attempt)
    }

    /// Whom it has granted, oldest first; nobody where `claim` does not wait.
    pub(super) fn instead_of(&self, claim: Stamp) -> impl Iterator<Item = (Stamp, Units)> + '_ {
        let waits = self.waiting.contains_key(&claim);
        let granted = self.granted.iter().map(|(&claim, granted)| (claim, granted.units));
        granted.filter(move |_| waits)
    }

    /// A claim arrives.
    pub(super) fn asked<R: Rules>(&mut self, claim: Stamp, units: Units) -> Vec<Ruling> {
        self.waiting.insert(claim, Waiting { units, attempts: 0 });
        let mut rulings = self.grant_what_fits::<R>();
        self.recall::<R>(&mut rulings);
        rulings
    }

    /// A grant comes back; the claim waits again.
    pub(super) fn yielded<R: Rules>(&mut self, claim: Stamp) -> Vec<Ruling> {
        if let Some(Granted { units, attempt, .. }) = self.granted.remove(&claim) {
            self.used -= units;
            self.waiting.insert(claim, Waiting { units, attempts: attempt });
        }
        self.settle::<R>()
    }

    /// A claim keeps only so much.
    pub(super) fn reduced<R: Rules>(&mut self, claim: Stamp, units: Units) -> Vec<Ruling> {
        let units = if R::SLIP == Some(Slip::ReducesToNothing) { Units::ZERO } else { units };
        if let Some(granted) = self.granted.get_mut(&claim) {
            self.used -= granted.units - units;
            granted.units = units;
        } else if let Some(waiting) = self.waiting.get_mut(&claim) {
            // Held with the grants of others.
            waiting.units = units;
        }
        self.settle::<R>()
    }

    /// A claim has ended.
    pub(super) fn released<R: Rules>(&mut self, claim: Stamp) -> Vec<Ruling> {
        if let Some(granted) = self.granted.remove(&claim) {
            self.used -= granted.units;
        }
        self.waiting.remove(&claim);
        let mut unchecked = Vec::new();
        if R::SLIP == Some(Slip::GrantsUnchecked) {
            unchecked.extend(self.waiting.keys().next().copied().map(|head| self.grant::<R>(head)));
        }
        unchecked.extend(self.settle::<R>());
        unchecked
    }

    fn settle<R: Rules>(&mut self) -> Vec<Ruling> {
        let mut rulings = self.grant_what_fits::<R>();
        if R::SLIP != Some(Slip::RecallsOnArrival) {
            self.recall::<R>(&mut rulings);
        }
        rulings
    }

    /// Strictly in order: nobody passes the oldest, or it might wait for ever.
    fn grant_what_fits<R: Rules>(&mut self) -> Vec<Ruling> {
        let mut rulings = Vec::new();
        while let Some(next) = self.next::<R>() {
            rulings.push(self.grant::<R>(next));
        }
        rulings
    }

    fn next<R: Rules>(&self) -> Option<Stamp> {
        let fits = |waiting: &Waiting| self.used + waiting.units <= self.capacity;
        if R::SLIP == Some(Slip::Overtakes) {
            return self.waiting.iter().find(|(_, waiting)| fits(waiting)).map(|(&claim, _)| claim);
        }
        let (&claim, waiting) = self.waiting.first_key_value()?;
        fits(waiting).then_some(claim)
    }

    fn grant<R: Rules>(&mut self, claim: Stamp) -> Ruling {
        let Waiting { units, attempts } = self.waiting.remove(&claim).expect("it waits");
        let attempt = attempts + 1;
        let passed = self.waiting.first_key_value().is_some_and(|(&first, _)| first < claim);
        let recalled = match R::SLIP {
            Some(Slip::RemembersRecall) => attempts > 0,
            Some(Slip::Overtakes) => passed,
            _ => false,
        };
        self.used += units;
        self.granted.insert(claim, Granted { units, attempt, recalled });
        Ruling { claim, attempt, recall_for: None }
    }

    /// Makes room for the oldest that waits: asks for the youngest grants back, and for no more
    /// than it takes.
    fn recall<R: Rules>(&mut self, rulings: &mut Vec<Ruling>) {
        let Some((&head, waiting)) = self.waiting.first_key_value() else { return };
        if R::SLIP == Some(Slip::NeverRecalls) {
            return;
        }
        let lacking = self.used + waiting.units - self.capacity;
        let younger = (Bound::Excluded(head), Bound::Unbounded);
        let under_way = self.granted.range(younger).filter(|(_, granted)| granted.recalled);
        let mut coming: Units = under_way.map(|(_, granted)| granted.units).sum();
        for (&claim, granted) in self.granted.range_mut(younger).rev() {
            if coming >= lacking {
                break;
            }
            if !granted.recalled {
                granted.recalled = true;
                coming += granted.units;
                let Granted { attempt, .. } = *granted;
                rulings.push(Ruling { claim, attempt, recall_for: Some(head) });
            }
        }
    }

    /// Asserts its invariants.
    pub(super) fn audit(&self) {
        let units: Units = self.granted.values().map(|granted| granted.units).sum();
        assert_eq!(units, self.used, "the sum is kept");
        assert!(self.used <= self.capacity.max(self.carried), "no more is granted than there is");
        let Some((&head, waiting)) = self.waiting.first_key_value() else { return };
        assert!(self.used + waiting.units > self.capacity, "the oldest waits for room only");
        let younger = || self.granted.range((Bound::Excluded(head), Bound::Unbounded));
        let recalled = younger().filter(|(_, granted)| granted.recalled);
        let coming: Units = recalled.map(|(_, granted)| granted.units).sum();
        let enough = coming >= self.used + waiting.units - self.capacity;
        assert!(enough || younger().all(|(_, g)| g.recalled), "room is made for the oldest");
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::Sound;
    use super::*;
    use crate::types::SiteId;

    fn stamp(time: u64) -> Stamp {
        Stamp { time, site: SiteId(0) }
    }

    fn granted(time: u64, attempt: u32) -> Ruling {
        Ruling { claim: stamp(time), attempt, recall_for: None }
    }

    #[test]
    fn just_enough_is_recalled_youngest_first() {
        let mut arbiter = Arbiter::new(Units(4));
        for time in [5, 6, 7, 8] {
            assert_eq!(arbiter.asked::<Sound>(stamp(time), Units(1)), [granted(time, 1)]);
        }
        let recall = |time| Ruling { recall_for: Some(stamp(3)), ..granted(time, 1) };
        assert_eq!(arbiter.asked::<Sound>(stamp(3), Units(2)), [recall(8), recall(7)]);
        assert_eq!(arbiter.yielded::<Sound>(stamp(8)), []);
        assert_eq!(arbiter.released::<Sound>(stamp(5)), [granted(3, 1)]);
        // The other recall is still under way, and its claim is the next that fits.
        assert_eq!(arbiter.yielded::<Sound>(stamp(7)), [granted(7, 2)]);
        arbiter.audit();
    }

    #[test]
    fn older_grants_are_left_alone() {
        let mut arbiter = Arbiter::new(Units(2));
        arbiter.asked::<Sound>(stamp(1), Units(2));
        assert_eq!(arbiter.asked::<Sound>(stamp(2), Units(1)), []);
        assert_eq!(arbiter.instead_of(stamp(2)).collect::<Vec<_>>(), [(stamp(1), Units(2))]);
        assert_eq!(arbiter.reduced::<Sound>(stamp(1), Units(1)), [granted(2, 1)]);
        arbiter.audit();
    }
}
