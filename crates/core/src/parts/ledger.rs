//! A site's book of claims: its own, and those of others that it was told of.
//!
//! Two queues are kept per pool. In `all` stand the site's own claims and every foreign claim that
//! it knows; a claim may be granted when it fits there. In `mine` stand its own claims only, with
//! one unit less of room; a foreign request is answered when all own claims older than it together
//! leave at least one unit, because before that the answer could not help the asker. So an answer
//! never lists more than M−1 claims, however many wait.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;

use serde::{Deserialize, Serialize};

use super::{Line, SiteSet};
use crate::epoch::Survey;
use crate::protocol::{Blocker, PeerFault};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// The book.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    me: SiteId,
    sites: u16,
    pools: Vec<Queues>,
    /// Own claims, waiting and held.
    claims: BTreeMap<Stamp, Own>,
    /// Foreign claims that were held when the epoch began. They count before everybody, and their
    /// sites say when they shrink without being asked.
    carried: BTreeSet<Stamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Queues {
    /// Units of the pool, with those that nobody may use at present.
    units: Units,
    /// The most that a claim can have: more where the pool was larger once.
    most: Units,
    mine: Line,
    all: Line,
    /// Own claims on this pool that wait.
    waiting: BTreeSet<Stamp>,
    /// Foreign requests about this pool that have no answer yet.
    asked: BTreeSet<Stamp>,
}

/// One of the site's own claims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Own {
    /// What it asks for, or what it still holds.
    pub demand: Demand,
    /// Whether it is held.
    pub held: bool,
    /// Sites that count it and must hear when it shrinks, with the claim that made them count it.
    pub tell: BTreeMap<SiteId, Stamp>,
}

/// What became of an own claim that gave something back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// What it gave.
    pub part: Demand,
    /// What it still has.
    pub left: Demand,
    /// Who counted it, with the claim that made them.
    pub tell: BTreeMap<SiteId, Stamp>,
}

/// A claim that an asker has to count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ahead {
    /// The pool.
    pub pool: PoolId,
    /// The claim.
    pub claim: Stamp,
    /// How many units it counts for.
    pub units: Units,
    /// Whether it counts although it is younger than the asker's claim.
    pub late: bool,
}

impl Ledger {
    /// An empty book.
    pub fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self::with(me, cluster, |_, units| units)
    }

    fn with(me: SiteId, cluster: &Cluster, usable: impl Fn(PoolId, Units) -> Units) -> Self {
        let queues = |(id, &units): (PoolId, &Units)| Queues {
            units,
            most: units,
            mine: Line::new(usable(id, units).saturating_sub(Units(1))),
            all: Line::new(usable(id, units)),
            waiting: BTreeSet::new(),
            asked: BTreeSet::new(),
        };
        Self {
            me,
            sites: cluster.sites,
            pools: (0..).map(PoolId).zip(&cluster.pools).map(queues).collect(),
            claims: BTreeMap::new(),
            carried: BTreeSet::new(),
        }
    }

    /// The book as an epoch begins: everybody knows all claims, and hears when they shrink.
    ///
    /// What is held counts before everybody. It may be younger than a claim that waits, and where
    /// there are fewer units than before, both together may be too many.
    pub fn resume(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        let mut book = Self::with(me, cluster, |pool, _| survey.usable(cluster, pool));
        for (&claim, standing) in &survey.claims {
            let own = claim.site == me;
            let held = standing.held.is_some();
            for (pool, units) in standing.demand.parts() {
                let queues = &mut book.pools[pool.index()];
                queues.most = queues.most.max(units);
                if own {
                    queues.mine.set(claim, units);
                }
                if held {
                    queues.all.reserve(claim, units);
                } else {
                    queues.all.set(claim, units);
                    if own {
                        queues.waiting.insert(claim);
                    }
                }
            }
            if own {
                let tell = cluster.others(me).map(|site| (site, claim)).collect();
                book.claims.insert(claim, Own { demand: standing.demand.clone(), held, tell });
            } else if held {
                book.carried.insert(claim);
            }
        }
        book
    }

    /// Whose book it is.
    pub const fn me(&self) -> SiteId {
        self.me
    }

    /// Units in `pool`.
    pub fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.pools.get(pool.index()).map(|queues| queues.units)
    }

    /// Whether there are no claims in it, own or foreign, and nobody waits for an answer.
    pub fn is_empty(&self) -> bool {
        let idle = |queues: &Queues| queues.all.is_empty() && queues.asked.is_empty();
        self.claims.is_empty() && self.pools.iter().all(idle)
    }

    /// An own claim.
    pub fn own(&self, claim: Stamp) -> Option<&Own> {
        self.claims.get(&claim)
    }

    /// All own claims, oldest first.
    pub fn claims(&self) -> impl ExactSizeIterator<Item = (Stamp, &Own)> + '_ {
        self.claims.iter().map(|(&claim, own)| (claim, own))
    }

    /// Whether an own claim waits.
    pub fn is_waiting(&self, claim: Stamp) -> bool {
        self.claims.get(&claim).is_some_and(|own| !own.held)
    }

    /// Enters an own claim, waiting.
    pub fn open(&mut self, claim: Stamp, demand: Demand) {
        for (pool, units) in demand.parts() {
            let queues = &mut self.pools[pool.index()];
            queues.mine.set(claim, units);
            queues.all.set(claim, units);
            queues.waiting.insert(claim);
        }
        self.claims.insert(claim, Own { demand, held: false, tell: BTreeMap::new() });
    }

    /// Whether a claim, counted in stamp order with everybody known, fits in all its pools.
    pub fn fits(&self, claim: Stamp) -> bool {
        let own = &self.claims[&claim];
        own.demand.pools().all(|pool| self.pools[pool.index()].all.fits(claim))
    }

    /// The waiting claims that fit in one of these pools at least, oldest first. There are never
    /// more of them in a pool than it has units.
    pub fn candidates(&self, pools: &Demand) -> Vec<Stamp> {
        let mut list = Vec::new();
        for pool in pools.pools() {
            let queues = &self.pools[pool.index()];
            list.extend(before(&queues.waiting, queues.all.front()));
        }
        if pools.parts().len() > 1 {
            list.sort_unstable();
            list.dedup();
        }
        list
    }

    /// Marks a waiting claim as held.
    pub fn hold(&mut self, claim: Stamp) {
        let own = self.claims.get_mut(&claim).expect("only own claims are granted");
        assert!(!own.held, "{claim} is granted once");
        own.held = true;
        for pool in own.demand.pools() {
            self.pools[pool.index()].waiting.remove(&claim);
        }
    }

    /// Gives back a part of an own claim, or with `None` all of it.
    ///
    /// Says what was given, what is left and who counted it; `None` where there is no such claim
    /// or it has less than that.
    pub fn shrink(&mut self, claim: Stamp, part: Option<&Demand>) -> Option<Shrunk> {
        let own = self.claims.get_mut(&claim)?;
        let part = part.unwrap_or(&own.demand).clone();
        let left = own.demand.minus(&part)?;
        for (pool, units) in part.parts() {
            let queues = &mut self.pools[pool.index()];
            queues.mine.take(claim, Some(units));
            queues.all.take(claim, Some(units));
            if left.units(pool).is_zero() {
                queues.waiting.remove(&claim);
            }
        }
        let tell = if left.is_empty() {
            self.claims.remove(&claim)?.tell
        } else {
            own.demand = left.clone();
            own.tell.clone()
        };
        Some(Shrunk { part, left, tell })
    }

    /// Remembers that `claim` of another site has no answer yet.
    pub fn note_asked(&mut self, claim: Stamp, demand: &Demand) {
        for pool in demand.pools() {
            self.pools[pool.index()].asked.insert(claim);
        }
    }

    /// The answer has been given, or nobody wants it any more.
    pub fn note_answered(&mut self, claim: Stamp, demand: &Demand) {
        for pool in demand.pools() {
            self.pools[pool.index()].asked.remove(&claim);
        }
    }

    /// The foreign requests without an answer that own claims leave room for in one of these
    /// pools at least, oldest first.
    pub fn answerable(&self, pools: &Demand) -> Vec<Stamp> {
        let mut list = Vec::new();
        for pool in pools.pools() {
            let queues = &self.pools[pool.index()];
            list.extend(before(&queues.asked, queues.mine.front()));
        }
        if pools.parts().len() > 1 {
            list.sort_unstable();
            list.dedup();
        }
        list
    }

    /// Whether the own claims older than `claim` leave a unit in each of these pools.
    pub fn leaves_room(&self, claim: Stamp, pools: &Demand) -> bool {
        pools.pools().all(|pool| self.pools[pool.index()].mine.fits(claim))
    }

    /// Units of each own claim in `pool` that is older than `claim`.
    pub fn older(&self, claim: Stamp, pool: PoolId) -> impl Iterator<Item = Units> + '_ {
        self.pools[pool.index()].mine.older(claim).map(|(_, units)| units)
    }

    /// The own claims that `claim` has to count; from now on its site hears when they shrink.
    pub fn list_older(&mut self, claim: Stamp, pools: &Demand) -> Vec<Ahead> {
        let mut list = Vec::new();
        for pool in pools.pools() {
            let older = self.pools[pool.index()].mine.older(claim);
            list.extend(older.map(|(own, units)| Ahead { pool, claim: own, units, late: false }));
        }
        for ahead in &list {
            self.tell(ahead.claim, claim);
        }
        list
    }

    /// From now on the site of `asker` hears when the own claim shrinks.
    pub fn tell(&mut self, own: Stamp, asker: Stamp) {
        let own = self.claims.get_mut(&own).expect("only own claims are listed");
        own.tell.insert(asker.site, asker);
    }

    /// Units that foreign claims of others than `asker` count for in `pool`.
    pub fn known_of_others(&self, pool: PoolId, asker: SiteId) -> Units {
        let known = self.pools[pool.index()].all.iter();
        let known = known.filter(|(claim, _)| claim.site != self.me && claim.site != asker);
        known.map(|(_, units)| units).sum()
    }

    /// Whether a claim of `site` in `pool` is known.
    pub fn knows(&self, site: SiteId, pool: PoolId) -> bool {
        self.pools[pool.index()].all.iter().any(|(claim, _)| claim.site == site)
    }

    /// Whether `site` exists.
    pub fn check_site(&self, site: SiteId) -> Result<(), PeerFault> {
        if site.0 < self.sites { Ok(()) } else { Err(PeerFault::UnknownSite(site)) }
    }

    fn most(&self, pool: PoolId) -> Result<Units, PeerFault> {
        let queues = self.pools.get(pool.index());
        queues.map(|queues| queues.most).ok_or(PeerFault::UnknownPool(pool))
    }

    /// Whether `claim` can be another site's, and ask for this or have it.
    pub fn check_demand(&self, claim: Stamp, demand: &Demand) -> Result<(), PeerFault> {
        self.check_site(claim.site)?;
        if claim.site == self.me {
            return Err(PeerFault::ForeignClaim(claim));
        }
        for (pool, units) in demand.parts() {
            if units > self.most(pool)? {
                return Err(PeerFault::TooManyUnits(claim));
            }
        }
        Ok(())
    }

    /// Whether a list of claims can be true.
    pub fn check(&self, list: &[Ahead]) -> Result<(), PeerFault> {
        for ahead in list {
            self.check_site(ahead.claim.site)?;
            if ahead.claim.site == self.me {
                return Err(PeerFault::ForeignClaim(ahead.claim));
            }
            if ahead.units.is_zero() || ahead.units > self.most(ahead.pool)? {
                return Err(PeerFault::TooManyUnits(ahead.claim));
            }
        }
        Ok(())
    }

    /// Counts foreign claims from now on.
    pub fn learn(&mut self, list: &[Ahead]) {
        for ahead in list {
            let all = &mut self.pools[ahead.pool.index()].all;
            if ahead.late {
                all.reserve(ahead.claim, ahead.units);
            } else if !self.carried.contains(&ahead.claim) {
                all.set(ahead.claim, ahead.units);
            }
        }
    }

    /// A foreign claim has given back `part` and has `left`.
    pub fn forget(&mut self, claim: Stamp, part: &Demand, left: &Demand) {
        for (pool, units) in part.parts() {
            let over = left.units(pool).is_zero();
            self.pools[pool.index()].all.take(claim, (!over).then_some(units));
        }
        if left.is_empty() {
            self.carried.remove(&claim);
        }
    }

    /// What a waiting claim waits for: claims that are known, and sites that have not answered.
    pub fn explain(&self, claim: Stamp, unanswered: &SiteSet) -> Vec<Blocker> {
        let Some(own) = self.claims.get(&claim) else { return Vec::new() };
        let mut list = Vec::new();
        for pool in own.demand.pools() {
            let all = &self.pools[pool.index()].all;
            if !all.fits(claim) {
                let ahead = all.reserved().chain(all.older(claim));
                list.extend(ahead.map(|(claim, units)| Blocker {
                    site: claim.site,
                    pool,
                    units,
                    claim: Some(claim),
                }));
            }
            // A site that has not answered may have everything.
            let units = self.pools[pool.index()].units;
            list.extend(unanswered.iter().map(|site| Blocker { site, pool, units, claim: None }));
        }
        list
    }
}

fn before(set: &BTreeSet<Stamp>, front: Option<Stamp>) -> impl Iterator<Item = Stamp> + '_ {
    let end = front.map_or(Bound::Unbounded, Bound::Excluded);
    set.range((Bound::Unbounded, end)).copied()
}
