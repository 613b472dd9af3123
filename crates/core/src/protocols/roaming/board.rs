//! The switchboard of a pool: where its units will be, as far as one site can tell.
//!
//! Every pool has one, at a site that its number decides. Who needs units and does not know where
//! they are asks there; the board passes the ask on and expects that unit at the asker from then
//! on. So nobody has to tell it where units go, and it is nearly always right. It decides nothing:
//! where it is wrong, the ask follows the trail that the unit left.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::types::{SiteId, Stamp};

/// What a board knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Board {
    /// One per unit, the one that was asked for longest ago first.
    slots: VecDeque<Slot>,
    /// Idle units of each site, as far as it has said.
    spare: BTreeMap<SiteId, u32>,
    /// Asks that wait here, because older ones are still on their way to every unit.
    held: BTreeMap<Stamp, u32>,
    /// Whether sites tell when units arrive, so that asks may wait here.
    notes: bool,
}

/// One unit. Which one is of no matter: sites may serve an ask with another one that they have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slot {
    unit: u32,
    /// The claim that it last served.
    user: Option<Stamp>,
    /// Claims that it was asked for since, in the order of the asks.
    asked: Vec<Stamp>,
}

/// A unit as a claim sees it.
struct View {
    slot: usize,
    /// Where it ends up.
    site: SiteId,
    idle: bool,
    /// The claim that has it last.
    last: Option<Stamp>,
    pending: usize,
}

/// An ask to pass on.
pub(super) struct Placed {
    pub(super) claim: Stamp,
    pub(super) unit: u32,
    pub(super) site: SiteId,
    pub(super) note: bool,
}

impl Board {
    pub(super) fn new(units: u32, notes: bool) -> Self {
        let slot = |unit| Slot { unit, user: None, asked: Vec::new() };
        Self {
            slots: (0..units).map(slot).collect(),
            spare: BTreeMap::new(),
            held: BTreeMap::new(),
            notes,
        }
    }

    /// Takes in what a site tells of itself.
    pub(super) fn note(&mut self, site: SiteId, spare: u32) {
        self.spare.insert(site, spare);
    }

    /// Units are there, and these claims are served.
    pub(super) fn arrived(&mut self, units: &[(u32, u64)], served: &[(Stamp, u32)]) {
        let is_one = |slot: &Slot| units.iter().any(|&(unit, _)| unit == slot.unit);
        for &(claim, count) in served {
            let mut left = count;
            for exact in [true, false] {
                for slot in self.slots.iter_mut().filter(|slot| !exact || is_one(slot)) {
                    if left > 0
                        && let Some(i) = slot.asked.iter().position(|&asked| asked == claim)
                    {
                        slot.asked.remove(i);
                        left -= 1;
                    }
                }
            }
        }
        if units.is_empty() {
            return;
        }
        let mut users = served.iter().flat_map(|&(claim, n)| (0..n).map(move |_| claim));
        for slot in self.slots.iter_mut().filter(|slot| is_one(slot)) {
            slot.user = users.next();
        }
        // They are in use for a while: the others come first.
        let (there, rest) = self.slots.drain(..).partition::<Vec<Slot>, _>(is_one);
        self.slots = rest.into_iter().chain(there).collect();
    }

    /// Whether no ask waits here.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes in an ask.
    pub(super) fn hold(&mut self, claim: Stamp, count: u32) {
        let held = self.held.entry(claim).or_default();
        *held = held.saturating_add(count);
    }

    /// Chooses units for the asks whose turn has nearly come, and for each the site to ask.
    /// `place` says where a unit was last heard of.
    pub(super) fn place(&mut self, place: impl Fn(u32) -> SiteId) -> Vec<Placed> {
        let mut list = Vec::new();
        let mut reserved = 0;
        let held: Vec<(Stamp, u32)> = self.held.iter().map(|(&c, &n)| (c, n)).collect();
        for (claim, count) in held {
            let mut chosen = self.choose(claim, count as usize, &mut reserved, &place);
            if chosen.is_empty() {
                continue;
            }
            chosen.sort_unstable();
            self.held.remove(&claim);
            let take = |i: (usize, bool)| {
                (self.slots.remove(i.0).expect("chosen from those that are there"), i.1)
            };
            let slots: Vec<(Slot, bool)> = chosen.into_iter().rev().map(take).collect();
            for (slot, idle) in slots.into_iter().rev() {
                list.push(self.expect(slot, idle, claim, &place));
            }
        }
        list
    }

    fn view(&self, claim: Stamp, place: &impl Fn(u32) -> SiteId) -> Vec<View> {
        let mut spare = self.spare.clone();
        let mut list = Vec::new();
        for (slot, entry) in self.slots.iter().enumerate() {
            let site = self.end(entry, place);
            if site == claim.site || self.before(entry, claim, place) == claim.site {
                continue;
            }
            let pending = entry.asked.len();
            let idle = pending == 0
                && spare.get_mut(&site).is_some_and(|spare| {
                    let is = *spare > 0;
                    *spare = spare.saturating_sub(1);
                    is
                });
            let last = entry.asked.last().copied().or(entry.user);
            list.push(View { slot, site, idle, last, pending });
        }
        list
    }

    /// The slots to ask for a claim; all or none.
    ///
    /// Units that one claim has are released together. A claim for
    /// two that takes them from two others leaves the first idle until the second comes.
    fn choose(
        &self,
        claim: Stamp,
        count: usize,
        reserved: &mut usize,
        place: &impl Fn(u32) -> SiteId,
    ) -> Vec<(usize, bool)> {
        let mut view = self.view(claim, place);
        if view.len() < count {
            // More is asked than seems to be elsewhere: the site will find out where it is.
            let mut chosen: Vec<(usize, bool)> =
                view.iter().map(|unit| (unit.slot, unit.idle)).collect();
            let rest = (0..self.slots.len()).filter(|i| !view.iter().any(|unit| unit.slot == *i));
            chosen.extend(rest.take(count - view.len()).map(|i| (i, false)));
            return chosen;
        }
        let mut stock: BTreeMap<SiteId, usize> = BTreeMap::new();
        for unit in view.iter().filter(|unit| unit.idle) {
            *stock.entry(unit.site).or_default() += 1;
        }
        let idle: usize = stock.values().sum();
        if idle >= count + *reserved {
            // From one site, if there is one that has so many: the smallest stock.
            let enough = stock.iter().filter(|stock| *stock.1 >= count);
            let one = enough.min_by_key(|stock| *stock.1).map(|stock| *stock.0);
            view.retain(|unit| unit.idle && one.is_none_or(|site| unit.site == site));
            view.sort_by_key(|unit| core::cmp::Reverse(stock[&unit.site]));
            return view[..count].iter().map(|unit| (unit.slot, true)).collect();
        }
        let mut groups: BTreeMap<(SiteId, Option<Stamp>), Vec<&View>> = BTreeMap::new();
        for unit in view.iter().filter(|unit| !unit.idle) {
            groups.entry((unit.site, unit.last)).or_default().push(unit);
        }
        let behind = self.notes
            && self.slots.iter().any(|slot| slot.asked.iter().any(|&asked| asked < claim));
        let fit = groups.values().find(|list| {
            list.len() == count && list.iter().all(|unit| unit.pending == 0)
        });
        if let Some(list) = fit {
            return list.iter().map(|unit| (unit.slot, false)).collect();
        }
        if behind {
            *reserved = idle.min(count + *reserved);
            return Vec::new();
        }
        let fit = groups.values().filter(|list| list.len() >= count);
        let fit = fit.min_by_key(|list| (list.iter().map(|u| u.pending).max(), list.len()));
        if let Some(list) = fit
            && idle == 0
        {
            return list[..count].iter().map(|unit| (unit.slot, false)).collect();
        }
        view.sort_by_key(|unit| (!unit.idle, unit.pending, unit.slot));
        view.truncate(count);
        view.into_iter().map(|unit| (unit.slot, unit.idle)).collect()
    }

    /// The site that has a unit just before a claim does.
    fn before(&self, slot: &Slot, claim: Stamp, place: &impl Fn(u32) -> SiteId) -> SiteId {
        if !self.notes {
            return self.end(slot, place);
        }
        let older = slot.asked.iter().filter(|&&asked| asked < claim).max();
        older.copied().or(slot.user).map_or_else(|| place(slot.unit), |older| older.site)
    }

    /// The site where a unit ends up when everybody has had it.
    fn end(&self, slot: &Slot, place: &impl Fn(u32) -> SiteId) -> SiteId {
        slot.asked.last().copied().or(slot.user).map_or_else(|| place(slot.unit), |claim| claim.site)
    }

    fn expect(
        &mut self,
        mut slot: Slot,
        idle: bool,
        claim: Stamp,
        place: &impl Fn(u32) -> SiteId,
    ) -> Placed {
        if idle && let Some(units) = self.spare.get_mut(&self.end(&slot, place)) {
            *units = units.saturating_sub(1);
        }
        let site = self.before(&slot, claim, place);
        let unit = slot.unit;
        if idle || !self.notes {
            slot.asked.clear();
            slot.user = Some(claim);
        } else {
            slot.asked.push(claim);
        }
        self.slots.push_back(slot);
        Placed { claim, unit, site, note: !idle && self.notes }
    }
}
