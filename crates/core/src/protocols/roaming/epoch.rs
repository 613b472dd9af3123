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
//!
//! # Who waited keeps its place
//!
//! Each member reports in which order it would have served the claims that wait for its units, and
//! how many units it was to give to each. From these lines [`queue`] makes one order, the same at
//! every member, and the epoch begins with a short run of the protocol itself, in memory: the
//! claims come in that order, one after the other, and every message arrives before the next
//! claim comes. Each member keeps its own part of the run. So the state in which an epoch begins
//! is one that the protocol reaches by itself, with nothing on its way, and no message is sent for
//! it. The switchboard decides as it did, where a giver had heard of it: it takes units from the
//! same sites again, as far as they still have them.
//!
//! Two claims that no surviving line has both of go by their stamps. That is so where the sites of
//! their lines are gone, where nobody had heard of a decision, and where another protocol shared
//! the pool before. The switchboard itself reports nothing that others do not know, so the order
//! outlives it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::marker::PhantomData;

use super::board::Board;
use super::pool::Pool;
use super::turn::count as count_of;
use super::{Message, Own, Roaming, Rules, Turn};
use crate::epoch::{Survey, queue};
use crate::protocol::{Effect, Effects, EffectsOf, Protocol as _};
use crate::types::{Cluster, PoolId, SiteId, Stamp, Unit, Units};

impl<R: Rules> Roaming<R> {
    /// The state as an epoch begins.
    pub(super) fn begin(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        let queue = if R::KEEPS_THE_QUEUE {
            queue(survey, |site| cluster.absent.contains(site))
        } else {
            Vec::new()
        };
        let run = Self::rehearse(me, cluster, survey, &queue);
        run.unwrap_or_else(|| Self::at_places(me, cluster, survey))
    }

    /// The state after a run in which these claims come one after the other. Nothing where nobody
    /// comes, or where a site refuses a message, which is so only if a rule is broken.
    fn rehearse(me: SiteId, cluster: &Cluster, survey: &Survey, queue: &[Stamp]) -> Option<Self> {
        if queue.is_empty() {
            return None;
        }
        let sites = cluster.all().map(|site| (site, Self::at_places(site, cluster, survey)));
        let mut sites: BTreeMap<SiteId, Self> = sites.collect();
        for (id, lines) in &survey.lines {
            let boards = sites.values_mut().filter_map(|site| site.pools.get_mut(id.index()));
            for board in boards.filter_map(|pool| pool.board.as_mut()) {
                // A site that has left gives nothing any more.
                for (&site, line) in lines.iter().filter(|it| !cluster.absent.contains(*it.0)) {
                    let others = line.iter().filter(|(claim, _)| claim.site != site);
                    others.for_each(|&(claim, units)| board.promise(claim, site, units.0));
                }
            }
        }
        for pool in sites.values_mut().flat_map(|site| &mut site.pools) {
            pool.starting = true;
        }
        let mut starts = Vec::new();
        for claim in queue {
            let Some(standing) = survey.claims.get(claim) else { continue };
            let mut mail: VecDeque<(SiteId, SiteId, Message)> = VecDeque::new();
            let mut effects = Effects::at(survey.clock);
            if let Some(site) = sites.get_mut(&claim.site) {
                site.on_claim(*claim, standing.demand.clone(), &mut effects);
            }
            let mut from = claim.site;
            loop {
                for effect in effects.drain() {
                    match effect {
                        Effect::Send { to, message, .. } => mail.push_back((from, to, message)),
                        Effect::Grant { claim, units, .. } => starts.push((claim, units)),
                        // Timers are armed when the epoch has begun, and nobody is refused.
                        Effect::Arm { .. }
                        | Effect::Disarm { .. }
                        | Effect::Reject { .. }
                        | Effect::Revoke { .. } => {}
                    }
                }
                let Some((sender, to, message)) = mail.pop_front() else { break };
                let Some(site) = sites.get_mut(&to) else { continue };
                site.on_message(sender, message, &mut effects).ok()?;
                from = to;
            }
        }
        let mut mine = sites.remove(&me)?;
        for pool in &mut mine.pools {
            pool.starting = false;
            pool.board.iter_mut().for_each(Board::is_restored);
        }
        starts.retain(|(claim, _)| claim.site == me);
        mine.starts = starts;
        Some(mine)
    }

    /// The state with every unit at its place, before anybody waits.
    fn at_places(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
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
            // Units at each site, and how many of them are idle.
            let mut found: BTreeMap<SiteId, (u32, u32)> = BTreeMap::new();
            for number in 0..units.0 {
                let unit = Unit { pool: id, number };
                if !pool.has(number) && R::HIDES_WHAT_IS_OUT {
                    continue;
                }
                if let Some(&site) = holders.get(&unit) {
                    pool.find(number, site, me, false);
                    found.entry(site).or_default().0 += 1;
                } else if !survey.withheld_units.contains(&unit) {
                    let dealt = R::DEALS_AGAIN || is_first(survey);
                    let dealt = dealt.then(|| deal(unit, &members));
                    if let Some(site) = survey.idle.get(&unit).copied().or(dealt) {
                        pool.find(number, site, me, true);
                        let found = found.entry(site).or_default();
                        *found = (found.0 + 1, found.1 + 1);
                    }
                }
            }
            if let Some(board) = &mut pool.board {
                for (site, (units, idle)) in found {
                    board.found(site, units, idle);
                }
            }
            pool
        };
        let pools = pools.map(pool).collect();
        let claims = BTreeMap::new();
        let starts = Vec::new();
        let mut fresh =
            Self { me, sites: cluster.sites, pools, claims, starts, rules: PhantomData };
        for (claim, standing) in survey.of(me) {
            if let Some(units) = &standing.held {
                for unit in units {
                    fresh.pools[unit.pool.index()].use_by(claim, 1);
                }
                fresh.claims.insert(claim, Own::Held(units.clone()));
            }
        }
        fresh
    }

    /// Those who got their units as the epoch began are told; the others have waited since.
    pub(super) fn go_on(&mut self, survey: &Survey, out: &mut EffectsOf<Self>) {
        for (claim, units) in core::mem::take(&mut self.starts) {
            out.grant_named(claim, units);
        }
        self.pools.iter().for_each(|pool| pool.arm_again::<R>(out));
        let mut turn = Turn::default();
        for (claim, standing) in survey.of(self.me).filter(|it| it.1.held.is_none()) {
            if !self.claims.contains_key(&claim) {
                self.wait(claim, standing.demand.clone(), &mut turn);
            }
        }
        self.finish(turn, out);
    }

    /// Who waits for units of this site, by pool and in order.
    pub(super) fn all_lines(&self) -> BTreeMap<PoolId, Vec<(Stamp, Units)>> {
        let line = |pool: &Pool| {
            // Who has not been told yet that its turn has come is first.
            let starts = self.starts.iter().filter_map(|(claim, units)| {
                let count = units.iter().filter(|unit| unit.pool == pool.id).count();
                let last = units.iter().map(|unit| unit.pool).max();
                (last == Some(pool.id)).then(|| (*claim, Units(count_of(count))))
            });
            let here = pool.line.iter().map(|(place, units)| (place.claim, Units(units)));
            // Those whose turn comes where units go to from here.
            let later = pool.along.values().flatten().map(|want| (want.claim, Units(want.units)));
            (pool.id, starts.chain(here).chain(later).collect::<Vec<_>>())
        };
        self.pools.iter().map(line).filter(|(_, line)| !line.is_empty()).collect()
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
        // Nobody was told that these are held.
        list.extend(self.starts.iter().flat_map(|(_, units)| units));
        list.sort_unstable();
        list
    }
}

/// Whether it is that of the first epoch, before anything was done.
fn is_first(survey: &Survey) -> bool {
    *survey == Survey { keepers: survey.keepers.clone(), ..Survey::default() }
}

impl Pool {
    /// A unit is at a site as the epoch begins.
    fn find(&mut self, number: u32, site: SiteId, me: SiteId, idle: bool) {
        self.reach += 1;
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
