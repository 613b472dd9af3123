//! The switchboard of a pool: where its units will be, as far as one site can tell.
//!
//! Every pool has one, at a site that its number decides. Who needs units and does not know where
//! they are asks there; the board passes the ask on and expects that unit at the asker from then
//! on. So nobody has to tell it where units go, and it is nearly always right. It decides nothing:
//! where it is wrong, the ask follows the trail that the unit left.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::types::{SiteId, Stamp};

/// What a board knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Board {
    /// One per unit, the one that was asked for longest ago first.
    slots: VecDeque<Slot>,
    /// Idle units of each site, as far as it has said.
    spare: BTreeMap<SiteId, u32>,
    /// Claims per unit that seem to wait.
    crowd: usize,
    /// Claims remembered per unit.
    memory: usize,
}

/// One unit. Which one is of no matter: sites may serve an ask with another one that they have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slot {
    unit: u32,
    /// The site that has it, or had it before those below; none where the board has lost it.
    base: Option<SiteId>,
    /// Claims that it was asked for since, in the order of the asks.
    asked: Vec<Stamp>,
}

/// What a site tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stock {
    /// Idle units that nobody at the site needs.
    pub spare: u32,
    /// Units that it owns or is owed, without those that others want of it.
    pub own: u32,
    /// The oldest of its claims that is owed units.
    pub oldest: Option<Stamp>,
    /// Claims per unit that waited when it last gave one away.
    pub crowd: u32,
}

impl Board {
    pub(super) fn new(owners: impl Iterator<Item = SiteId>, sites: u16) -> Self {
        let slot = |(unit, site)| Slot { unit, base: Some(site), asked: Vec::new() };
        Self {
            slots: (0..).zip(owners).map(slot).collect(),
            spare: BTreeMap::new(),
            crowd: 0,
            memory: usize::from(sites).max(4),
        }
    }

    /// Takes in what a site tells of itself.
    pub(super) fn note(&mut self, site: SiteId, stock: Stock) {
        if stock.spare == 0 {
            self.spare.remove(&site);
        } else {
            self.spare.insert(site, stock.spare);
        }
        self.crowd = stock.crowd as usize;
        for slot in &mut self.slots {
            slot.served(site, stock.oldest);
        }
        let here = self.slots.iter().filter(|slot| slot.end() == Some(site)).count();
        let own = stock.own as usize;
        for slot in self.slots.iter_mut().filter(|slot| slot.end() == Some(site)).skip(own) {
            slot.base = None;
            slot.asked.clear();
        }
        let lost = self.slots.iter_mut().filter(|slot| slot.end().is_none());
        for slot in lost.take(own.saturating_sub(here)) {
            slot.base = Some(site);
        }
    }

    /// Chooses units for a claim, and for each the site to ask. `place` says where a unit was last
    /// heard of.
    ///
    /// Units that end up at the same site are released together, and arrive together. A claim for
    /// two that takes them from two sites leaves the first idle until the second comes; so pairs
    /// are kept together where that does not make them busier than the rest.
    pub(super) fn choose(
        &mut self,
        claim: Stamp,
        count: u32,
        place: impl Fn(u32) -> SiteId,
    ) -> Vec<(u32, SiteId)> {
        let count = count as usize;
        let mut chosen = self.together(claim, count);
        let mut at = 0;
        while chosen.len() < count {
            // The pool may be smaller than what is asked beside what the site has.
            let fit = |i: usize| !chosen.contains(&i) && self.elsewhere(i, claim);
            let next = (at..self.slots.len()).find(|&i| fit(i));
            let next = next.or_else(|| (0..self.slots.len()).find(|i| !chosen.contains(i)));
            let Some(next) = next else { break };
            at = next + 1;
            chosen.push(next);
        }
        chosen.sort_unstable();
        let take = |i: usize| self.slots.remove(i).expect("chosen from those that are there");
        let slots: Vec<Slot> = chosen.into_iter().rev().map(take).collect();
        slots.into_iter().rev().map(|slot| self.expect(slot, claim, &place)).collect()
    }

    /// Slots at one site, where they are idle or not busier than most.
    fn together(&self, claim: Stamp, count: usize) -> Vec<usize> {
        let mut groups: BTreeMap<SiteId, Vec<usize>> = BTreeMap::new();
        for (i, slot) in self.slots.iter().enumerate() {
            if let Some(end) = slot.end()
                && self.elsewhere(i, claim)
            {
                groups.entry(end).or_default().push(i);
            }
        }
        let spare = |site: SiteId| self.spare.get(&site).copied().unwrap_or_default() as usize;
        let half = self.slots.len().div_ceil(2);
        let usable = groups.iter().filter(|(_, list)| list.len() >= count);
        let best = usable.min_by_key(|&(&site, list)| {
            // Idle first; then of the right size; then what was asked for longest ago.
            let busy = spare(site) < count;
            let recent = busy && list[count - 1] >= half;
            (recent, busy, list.len() != count, list[count - 1])
        });
        let Some((&site, list)) = best else { return Vec::new() };
        if spare(site) < count && list[count - 1] >= half {
            return Vec::new();
        }
        list[..count].to_vec()
    }

    fn elsewhere(&self, slot: usize, claim: Stamp) -> bool {
        let slot = &self.slots[slot];
        slot.end() != Some(claim.site) && slot.before(claim, self.crowd) != Some(claim.site)
    }

    fn expect(
        &mut self,
        mut slot: Slot,
        claim: Stamp,
        place: &impl Fn(u32) -> SiteId,
    ) -> (u32, SiteId) {
        if let Some(units) = slot.end().and_then(|end| self.spare.get_mut(&end)) {
            *units = units.saturating_sub(1);
        }
        let way = slot.before(claim, self.crowd).unwrap_or_else(|| place(slot.unit));
        let unit = slot.unit;
        slot.asked.push(claim);
        if slot.asked.len() > self.memory {
            slot.base = Some(slot.asked.remove(0).site);
        }
        self.slots.push_back(slot);
        (unit, way)
    }
}

impl Slot {
    /// The site where it ends up when everybody has had it.
    fn end(&self) -> Option<SiteId> {
        self.asked.last().map(|claim| claim.site).or(self.base)
    }

    /// The site that has it just before a claim does, if so many others still wait for it.
    fn before(&self, claim: Stamp, crowd: usize) -> Option<SiteId> {
        let served = self.asked.len().saturating_sub(2 * crowd + 1);
        let (served, waiting) = self.asked.split_at(served);
        if waiting.len() <= 1 {
            return self.end();
        }
        let older = waiting.iter().filter(|&&asked| asked < claim).max();
        older.or(served.last()).map(|older| older.site).or(self.base)
    }

    /// All claims of `site` that are older than `oldest` have been served, and so have those that
    /// came before them.
    fn served(&mut self, site: SiteId, oldest: Option<Stamp>) {
        let done = |claim: &Stamp| {
            claim.site == site && oldest.is_none_or(|oldest| *claim < oldest)
        };
        let Some(at) = self.asked.iter().rposition(done) else { return };
        let last = self.asked[at];
        let mut i = 0;
        self.asked.retain(|&claim| {
            i += 1;
            i > at + 1 || claim > last
        });
        self.base = Some(site);
    }
}
