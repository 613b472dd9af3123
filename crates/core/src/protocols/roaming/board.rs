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
    /// Asks that wait here, because older ones are still on their way to every unit.
    held: BTreeMap<Stamp, u32>,
    /// Whether sites tell when units arrive, so that asks may wait here.
    notes: bool,
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
    pub(super) fn new(owners: impl Iterator<Item = SiteId>, sites: u16, notes: bool) -> Self {
        let slot = |(unit, site)| Slot { unit, base: Some(site), asked: Vec::new() };
        Self {
            slots: (0..).zip(owners).map(slot).collect(),
            spare: BTreeMap::new(),
            held: BTreeMap::new(),
            notes,
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
        if self.notes {
            return;
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

    /// Units have arrived and served these claims.
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
    pub(super) fn place(&mut self, place: impl Fn(u32) -> SiteId) -> Vec<(Stamp, u32, SiteId)> {
        let mut list = Vec::new();
        let held: Vec<(Stamp, u32)> = self.held.iter().map(|(&c, &n)| (c, n)).collect();
        for (claim, count) in held {
            let chosen = self.choose(claim, count as usize, &place);
            let left = count as usize - chosen.len();
            if left == 0 {
                self.held.remove(&claim);
            } else {
                self.held.insert(claim, u32::try_from(left).expect("no more than before"));
            }
            let take = |i: usize| self.slots.remove(i).expect("chosen from those that are there");
            let slots: Vec<Slot> = chosen.into_iter().rev().map(take).collect();
            for slot in slots.into_iter().rev() {
                let (unit, site) = self.expect(slot, claim, &place);
                list.push((claim, unit, site));
            }
        }
        list
    }

    /// The slots to ask for a claim, in order; as many as may be asked now.
    ///
    /// Units that end up at the same site are released together, and arrive together. A claim for
    /// two that takes them from two sites leaves the first idle until the second comes; so pairs
    /// are kept together where that does not make them busier than the rest.
    fn choose(&self, claim: Stamp, count: usize, place: &impl Fn(u32) -> SiteId) -> Vec<usize> {
        let elsewhere = |&i: &usize| {
            let slot = &self.slots[i];
            self.end(slot, place) != claim.site && self.before(slot, claim, place) != claim.site
        };
        let all = 0..self.slots.len();
        let away: Vec<usize> = all.clone().filter(elsewhere).collect();
        let open: Vec<usize> = away.iter().copied().filter(|&i| self.is_open(i, claim)).collect();
        let mut chosen = self.together(&open, count, place);
        for i in open {
            if chosen.len() < count && !chosen.contains(&i) {
                chosen.push(i);
            }
        }
        if chosen.len() < count && away.len() < count {
            // More is asked than seems to be elsewhere: the site will find out where it is.
            chosen.extend(all.filter(|i| !away.contains(i)).take(count - away.len()));
        }
        chosen.sort_unstable();
        chosen
    }

    /// Whether a claim may be asked for at this unit now. It is never kept back by a younger one:
    /// that could wait for a unit that this claim has.
    fn is_open(&self, slot: usize, claim: Stamp) -> bool {
        !self.notes || self.slots[slot].asked.iter().all(|&asked| asked > claim)
    }

    /// So many of these slots at one site, where they are idle or not busier than most.
    fn together(&self, open: &[usize], count: usize, place: &impl Fn(u32) -> SiteId) -> Vec<usize> {
        let mut groups: BTreeMap<SiteId, Vec<usize>> = BTreeMap::new();
        for &i in open {
            groups.entry(self.end(&self.slots[i], place)).or_default().push(i);
        }
        let spare = |site: SiteId| self.spare.get(&site).copied().unwrap_or_default() as usize;
        let half = open.get(open.len() / 2).copied().unwrap_or_default();
        let usable = groups.iter().filter(|(_, list)| list.len() >= count);
        let best = usable.min_by_key(|&(&site, list)| {
            // Idle first; then of the right size; then what was asked for longest ago.
            let busy = spare(site) < count;
            let recent = !self.notes && busy && list[count - 1] > half;
            (recent, busy, list.len() != count, list[count - 1])
        });
        let Some((&site, list)) = best else { return Vec::new() };
        if !self.notes && spare(site) < count && list[count - 1] > half {
            return Vec::new();
        }
        list[..count].to_vec()
    }

    /// The site that has a unit just before a claim does.
    fn before(&self, slot: &Slot, claim: Stamp, place: &impl Fn(u32) -> SiteId) -> SiteId {
        // Without notes the board does not know who was served, and goes by what it hears of the
        // crowd.
        let waiting = if self.notes { usize::MAX } else { self.crowd.saturating_mul(2) + 1 };
        let served = slot.asked.len().saturating_sub(waiting);
        let (served, waiting) = slot.asked.split_at(served);
        if !self.notes && waiting.len() <= 1 {
            return self.end(slot, place);
        }
        let older = waiting.iter().filter(|&&asked| asked < claim).max();
        older.or_else(|| served.last()).map_or_else(|| self.base(slot, place), |older| older.site)
    }

    /// The site where a unit ends up when everybody has had it.
    fn end(&self, slot: &Slot, place: &impl Fn(u32) -> SiteId) -> SiteId {
        slot.asked.last().map_or_else(|| self.base(slot, place), |claim| claim.site)
    }

    /// The site that has it now, as far as is known.
    fn base(&self, slot: &Slot, place: &impl Fn(u32) -> SiteId) -> SiteId {
        slot.base.filter(|_| !self.notes).unwrap_or_else(|| place(slot.unit))
    }

    fn expect(
        &mut self,
        mut slot: Slot,
        claim: Stamp,
        place: &impl Fn(u32) -> SiteId,
    ) -> (u32, SiteId) {
        if let Some(units) = self.spare.get_mut(&self.end(&slot, place)) {
            *units = units.saturating_sub(1);
        }
        let way = self.before(&slot, claim, place);
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

    /// All claims of `site` that are older than `oldest` have been served, and so have those that
    /// came before them.
    fn served(&mut self, site: SiteId, oldest: Option<Stamp>) {
        let done =
            |claim: &Stamp| claim.site == site && oldest.is_none_or(|oldest| *claim < oldest);
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
