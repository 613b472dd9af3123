//! How an epoch begins.
//!
//! Messages of the old epoch are dropped, and with them what was agreed and units that were on
//! their way. Every member knows from the survey where each unit is now: with the claim that holds
//! it, or idle at a site. Units that are nowhere, because they are new or were on their way, are
//! dealt out. Units that a departed site may use are out of use: nobody knows of them, and who
//! needs them steps aside until an epoch begins in which they are free. The same goes for units
//! that the cluster has out of use, but nobody waits for those: who asks for more than the rest is
//! refused. Whoever holds one keeps it, and when it is released it is nowhere, until an epoch
//! begins in which it is dealt out again.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::marker::PhantomData;

use super::board::Board;
use super::pool::Pool;
use super::{Own, Roaming, Rules, Turn};
use crate::epoch::Survey;
use crate::protocol::EffectsOf;
use crate::types::{Cluster, PoolId, SiteId, Unit, Units};

impl<R: Rules> Roaming<R> {
    /// The state at the start of an epoch.
    pub(super) fn begin(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        let members: Vec<SiteId> = cluster.all().collect();
        let mut holders: BTreeMap<Unit, SiteId> = BTreeMap::new();
        for (claim, standing) in &survey.claims {
            let units = standing.held.iter().flatten();
            holders.extend(units.map(|&unit| (unit, claim.site)));
        }
        let pools = (0..).map(PoolId).zip(&cluster.pools);
        let pool = |(id, &units): (PoolId, &Units)| {
            let mut pool = Pool::new(id, units.0, me, switchboard(id, cluster.sites, &members));
            if pool.desk == me {
                pool.board = Some(Board::new());
            }
            let out = Unit { pool: id, number: 0 }..Unit { pool: id, number: units.0 };
            cluster.out.range(out).for_each(|unit| pool.take_out(unit.number));
            for number in 0..units.0 {
                let unit = Unit { pool: id, number };
                if !pool.has(number) && R::HIDES_WHAT_IS_OUT {
                    continue;
                }
                if let Some(&site) = holders.get(&unit) {
                    pool.find(number, site, me, false);
                } else if !survey.withheld_units.contains(&unit) {
                    let dealt = R::DEALS_AGAIN || *survey == Survey::default();
                    let dealt = dealt.then(|| deal(unit, &members));
                    if let Some(site) = survey.idle.get(&unit).copied().or(dealt) {
                        pool.find(number, site, me, true);
                    }
                }
            }
            pool
        };
        let pools = pools.map(pool).collect();
        let claims = BTreeMap::new();
        let mut fresh = Self { me, sites: cluster.sites, pools, claims, rules: PhantomData };
        for (claim, standing) in survey.of(me) {
            if let Some(units) = &standing.held {
                fresh.claims.insert(claim, Own::Held(units.clone()));
            }
        }
        fresh
    }

    /// Those who waited do so again, the oldest first.
    pub(super) fn go_on(&mut self, survey: &Survey, out: &mut EffectsOf<Self>) {
        let mut turn = Turn::default();
        for (claim, standing) in survey.of(self.me) {
            if standing.held.is_none() {
                self.wait(claim, standing.demand.clone(), &mut turn);
            }
        }
        self.finish(turn, out);
    }

    /// The units that lie here unused.
    pub(super) fn idle(&self) -> Vec<Unit> {
        let idle = |pool: &Pool| -> Vec<Unit> {
            pool.idle.iter().map(|&number| Unit { pool: pool.id, number }).collect()
        };
        let mut list: Vec<Unit> = self.pools.iter().flat_map(idle).collect();
        for own in self.claims.values() {
            if let Own::Waiting { taken, .. } = own {
                list.extend(taken);
            }
        }
        list.sort_unstable();
        list
    }
}

impl Pool {
    /// A unit is at a site as the epoch begins.
    fn find(&mut self, number: u32, site: SiteId, me: SiteId, idle: bool) {
        self.reach += 1;
        if let Some(board) = &mut self.board {
            board.found(site, idle);
        }
        if site != me {
            return;
        }
        self.owned.insert(number);
        if idle {
            self.idle.push_back(number);
        }
    }
}

/// The site that has the pool's switchboard: the first from one on that the pool's number decides.
fn switchboard(pool: PoolId, sites: u16, members: &[SiteId]) -> SiteId {
    let first = SiteId(pool.0 % sites);
    let from = members.iter().copied().find(|&site| site >= first);
    from.or_else(|| members.first().copied()).unwrap_or(first)
}

/// The member that gets a unit which is nowhere: they are dealt out one by one.
fn deal(unit: Unit, members: &[SiteId]) -> SiteId {
    let place = (u64::from(unit.pool.0) + u64::from(unit.number)) % members.len() as u64;
    members[usize::try_from(place).expect("below the number of members")]
}
