//! Going on after sites have left.
//!
//! Messages of the old epoch are refused from then on, so what was in flight is lost, with the
//! units in it. Every survivor tells what it owns and where it sent what it no longer has; that is
//! enough, because the giver of a unit remembers its last move. From the same surveys everybody
//! draws the same conclusion. A unit that a survivor owns stays. One that was on its way to a
//! survivor is given to it. What went to a site that left stays out of use until its leases are
//! over: asks for it wait at the switchboard, where it is made anew.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::board::Board;
use super::pool::Trail;
use super::{Roaming, Rules, Turn};
use crate::parts::SiteSet;
use crate::protocol::{EffectsOf, Protocol};
use crate::types::{PoolId, SiteId, Unit};

/// What a survivor tells of the units.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Survey {
    /// The units it owns, with the moves that each has made.
    pub owned: Vec<(Unit, u64)>,
    /// Where it last heard of others.
    pub trails: Vec<(Unit, Trail)>,
}

impl<R: Rules> Roaming<R> {
    /// What this site knows of the units.
    pub fn survey(&self) -> Survey {
        let mut survey = Survey { owned: Vec::new(), trails: Vec::new() };
        for pool in &self.pools {
            let unit = |&number: &u32| Unit { pool: pool.id, number };
            survey.owned.extend(pool.owned.iter().map(|(number, &hops)| (unit(number), hops)));
            survey.trails.extend(pool.trails.iter().map(|(number, &trail)| (unit(number), trail)));
        }
        survey
    }

    /// Goes on with the sites that are left, from the surveys of all of them. Says which units are
    /// out of use until [`recreate`](Self::recreate); everybody comes to the same.
    pub fn resume(
        &mut self,
        surveys: &BTreeMap<SiteId, Survey>,
        out: &mut EffectsOf<Self>,
    ) -> Vec<Unit> {
        let members: SiteSet = surveys.keys().copied().collect();
        let mut turn = Turn::default();
        let mut lost = Vec::new();
        for pool in 0..self.pools.len() {
            let id = self.pools[pool].id;
            let desk = self.desk_among(id, &members);
            self.forget_others(id, &mut turn);
            for number in 0..self.pools[pool].capacity {
                let unit = Unit { pool: id, number };
                let (trail, gone) = self.locate(unit, surveys, desk);
                if gone {
                    lost.push(unit);
                }
                let pool = &mut self.pools[pool];
                if pool.owned.contains_key(&number) {
                    continue;
                }
                if trail.site == self.me && !gone {
                    pool.own(number, trail.hops);
                } else {
                    pool.trails.insert(number, trail);
                }
            }
            self.open_desk(id, desk, &lost);
        }
        self.finish(turn, out);
        lost
    }

    /// Makes a unit anew that was lost with a site, once nobody can use it any more. For the
    /// switchboard of its pool; elsewhere nothing happens.
    pub fn recreate(&mut self, unit: Unit, out: &mut EffectsOf<Self>) {
        let me = self.me();
        let Some(pool) = self.pools.get(unit.pool.index()) else { return };
        let Some(&trail) = pool.trails.get(&unit.number) else { return };
        if pool.desk != me || trail.site != me {
            return;
        }
        let mut turn = Turn::default();
        let pool = self.touch(unit.pool, &mut turn);
        pool.own(unit.number, trail.hops + 1);
        let owned = pool.count();
        if let Some(board) = &mut pool.board {
            board.made(me, owned);
        }
        turn.short.push(unit.pool);
        turn.noted.push(unit.pool);
        self.finish(turn, out);
    }

    /// Where a unit is from now on, and whether it is out of use.
    fn locate(
        &self,
        unit: Unit,
        surveys: &BTreeMap<SiteId, Survey>,
        desk: SiteId,
    ) -> (Trail, bool) {
        for (&site, survey) in surveys {
            if let Ok(i) = survey.owned.binary_search_by_key(&unit, |owned| owned.0) {
                return (Trail { hops: survey.owned[i].1, site }, false);
            }
        }
        let known = surveys.values().filter_map(|survey| {
            let i = survey.trails.binary_search_by_key(&unit, |trail| trail.0).ok()?;
            Some(survey.trails[i].1)
        });
        let first =
            Trail { hops: 0, site: super::pool::first_owner(unit.pool, unit.number, self.sites) };
        let last = known.fold(first, Trail::max);
        let gone = !surveys.contains_key(&last.site);
        let site = if gone { desk } else { last.site };
        (Trail { hops: last.hops + 1, site }, gone)
    }

    /// Drops everything that was agreed with others in a pool.
    fn forget_others(&mut self, id: PoolId, turn: &mut Turn) {
        let pool = self.touch(id, turn);
        for claim in core::mem::take(&mut pool.wants).into_keys() {
            pool.queue.take(claim, None);
        }
        pool.wanted = 0;
        pool.due.clear();
        pool.news.clear();
        pool.homing.clear();
        turn.short.push(id);
    }

    fn desk_among(&self, id: PoolId, members: &SiteSet) -> SiteId {
        let first = super::pool::switchboard(id, self.sites);
        let after = members.iter().find(|&site| site >= first);
        after.or_else(|| members.iter().next()).unwrap_or(first)
    }

    fn open_desk(&mut self, id: PoolId, desk: SiteId, lost: &[Unit]) {
        let (me, sites) = (self.me, self.sites);
        let pool = &mut self.pools[id.index()];
        pool.desk = desk;
        let place = |unit| {
            let here = pool.owned.contains_key(&unit);
            if here { me } else { pool.trail(unit, sites).site }
        };
        let there = (0..pool.capacity).map(|unit| Unit { pool: id, number: unit });
        let there = there.filter(|unit| lost.binary_search(unit).is_err());
        let board = Board::new(there.map(|unit| place(unit.number)));
        pool.board = (desk == me).then_some(board);
    }
}
