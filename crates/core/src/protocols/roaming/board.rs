//! The switchboard of a pool: where its units will be, as far as one site can tell.
//!
//! Every pool has one, at a site that its number decides. Who needs units and does not know where
//! they are asks there; the board passes the ask on and expects that unit at the asker from then
//! on. So nobody tells it where units go, and it is nearly always right. It decides nothing and
//! counts nothing: where it is wrong, the ask follows the trail that the unit left.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::types::{SiteId, Stamp};

/// What a board knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Board {
    /// All units, the one that was asked for longest ago first.
    order: VecDeque<u32>,
    /// For each unit, the claims that it was asked for; it goes from one to the next.
    expected: BTreeMap<u32, BTreeSet<Stamp>>,
    /// Idle units of each site, as far as it has said.
    idle: BTreeMap<SiteId, u32>,
    /// Claims remembered per unit.
    memory: usize,
}

impl Board {
    pub(super) fn new(units: u32, sites: u16) -> Self {
        Self {
            order: (0..units).collect(),
            expected: BTreeMap::new(),
            idle: BTreeMap::new(),
            memory: usize::from(sites).max(4),
        }
    }

    /// A site says how many idle units it has to spare.
    pub(super) fn note_idle(&mut self, site: SiteId, units: u32) {
        if units == 0 {
            self.idle.remove(&site);
        } else {
            self.idle.insert(site, units);
        }
    }

    /// Chooses units for a claim: for each, its number and the site to ask. `place` says where a
    /// unit was last heard of.
    pub(super) fn choose(
        &mut self,
        claim: Stamp,
        count: u32,
        place: impl Fn(u32) -> SiteId,
    ) -> Vec<(u32, SiteId)> {
        (0..count).map(|_| self.choose_one(claim, &place)).collect()
    }

    fn choose_one(&mut self, claim: Stamp, place: &impl Fn(u32) -> SiteId) -> (u32, SiteId) {
        let elsewhere = |&(_, &unit): &(usize, &u32)| {
            self.end(unit, place) != claim.site && self.way(unit, claim, place) != claim.site
        };
        let idle = |&(_, &unit): &(usize, &u32)| {
            self.idle.get(&self.end(unit, place)).is_some_and(|&units| units > 0)
        };
        let mut all = self.order.iter().enumerate().filter(elsewhere);
        let first = all.next();
        let at = first.into_iter().chain(all).find(idle).or(first).map_or(0, |(i, _)| i);
        let unit = self.order.remove(at).expect("a pool that is asked for has units");
        self.order.push_back(unit);
        let end = self.end(unit, place);
        if let Some(units) = self.idle.get_mut(&end) {
            *units = units.saturating_sub(1);
        }
        let way = self.way(unit, claim, place);
        let expected = self.expected.entry(unit).or_default();
        expected.insert(claim);
        if expected.len() > self.memory {
            expected.pop_first();
        }
        (unit, way)
    }

    /// The site where a unit ends up when everybody has had it.
    fn end(&self, unit: u32, place: &impl Fn(u32) -> SiteId) -> SiteId {
        let last = self.expected.get(&unit).and_then(BTreeSet::last);
        last.map_or_else(|| place(unit), |claim| claim.site)
    }

    /// The site that has a unit just before a claim does.
    fn way(&self, unit: u32, claim: Stamp, place: &impl Fn(u32) -> SiteId) -> SiteId {
        let older = self.expected.get(&unit).and_then(|list| list.range(..claim).next_back());
        older.map_or_else(|| place(unit), |older| older.site)
    }
}
