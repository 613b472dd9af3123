//! Going on in a new epoch.
//!
//! Messages of the old epoch are dropped, and with them what was agreed and units that were on
//! their
//! way. Every member knows from the survey where each unit is now: with the claim that holds it, or
//! idle at a site. Units that are nowhere, because they are new or were on their way, are dealt out
//! anew. Units that a departed site may use are out of use: asks for them wait at the switchboard,
//! as for a unit that is on its way there, until an epoch begins in which they are free.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::board::Board;
use super::pool::{Pool, Trail, first_owner, switchboard};
use super::{Own, Roaming, Rules, Turn};
use crate::epoch::Survey;
use crate::protocol::EffectsOf;
use crate::types::{Cluster, PoolId, SiteId, Unit};

impl<R: Rules> Roaming<R> {
    /// The state at the start of an epoch.
    pub(super) fn begin(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        let mut fresh = Self::empty(me, cluster);
        let members: Vec<SiteId> = cluster.all().collect();
        let mut holders: BTreeMap<Unit, SiteId> = BTreeMap::new();
        for (claim, standing) in &survey.claims {
            let units = standing.held.iter().flatten();
            holders.extend(units.map(|&unit| (unit, claim.site)));
        }
        for pool in &mut fresh.pools {
            let first = switchboard(pool.id, cluster.sites);
            let desk = members.iter().copied().find(|&site| site >= first);
            pool.desk = desk.or_else(|| members.first().copied()).unwrap_or(first);
            for number in 0..pool.capacity {
                let unit = Unit { pool: pool.id, number };
                if let Some(&site) = holders.get(&unit) {
                    pool.place(number, site, me, false);
                } else if survey.withheld_units.contains(&unit) {
                    pool.trails.insert(number, Trail { hops: 0, site: pool.desk });
                } else {
                    let site = survey.idle.get(&unit).copied();
                    let site = site.unwrap_or_else(|| deal(pool.id, number, &members));
                    pool.place(number, site, me, true);
                }
            }
            pool.open_desk(me, cluster.sites);
        }
        for (claim, standing) in survey.of(me) {
            let own = if let Some(units) = &standing.held {
                Own::Held(units.clone())
            } else {
                for (id, units) in standing.demand.parts() {
                    fresh.pools[id.index()].enter(claim, units.0);
                }
                Own::Waiting(standing.demand.clone())
            };
            fresh.claims.insert(claim, own);
        }
        fresh
    }

    /// Grants what can be, and asks for what lacks.
    pub(super) fn go_on(&mut self, out: &mut EffectsOf<Self>) {
        let mut turn = Turn::default();
        for pool in 0..self.pools.len() {
            let id = self.pools[pool].id;
            self.touch(id, &mut turn);
            turn.short.push(id);
        }
        for (&claim, own) in &self.claims {
            if let Own::Waiting(demand) = own {
                turn.fresh.extend(demand.pools().map(|id| (id, claim)));
            }
        }
        self.finish(turn, out);
    }

    /// The units that lie here unused.
    pub(super) fn idle(&self) -> Vec<Unit> {
        let idle = self
            .pools
            .iter()
            .flat_map(|pool| pool.idle.iter().map(|&number| Unit { pool: pool.id, number }));
        let mut list: Vec<Unit> = idle.collect();
        list.sort_unstable();
        list
    }
}

impl Pool {
    fn place(&mut self, number: u32, site: SiteId, me: SiteId, idle: bool) {
        if site != me {
            self.trails.insert(number, Trail { hops: 0, site });
        } else if idle {
            self.own(number, 0);
        } else {
            self.owned.insert(number, 0);
        }
    }

    fn open_desk(&mut self, me: SiteId, sites: u16) {
        if self.desk == me {
            let owner = |unit| {
                if self.owned.contains_key(&unit) { me } else { self.trail(unit, sites).site }
            };
            let board = Board::new((0..self.capacity).map(owner), sites, self.notes);
            self.board = Some(board);
        }
    }
}

/// The member that gets a unit which is nowhere.
fn deal(pool: PoolId, number: u32, members: &[SiteId]) -> SiteId {
    let count = u16::try_from(members.len()).expect("no more than there are sites");
    members[first_owner(pool, number, count).index()]
}
