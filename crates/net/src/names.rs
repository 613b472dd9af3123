//! Which units: numbers for the grants of protocols that only count.
//!
//! # Idea
//!
//! A counting protocol says "2 of 8 are yours", not which. So each number of a pool lies at one
//! site, free or used by a lease there. A grant takes free numbers of its own site; what is
//! missing, it asks of all others, who give what they have free and pass on later what becomes
//! free. A number is in one place only, so no two holders are ever shown the same.
//!
//! # Why it ends
//!
//! The protocol lets at most M units be granted, so there are always at least as many numbers free
//! or on their way as grants that wait for one. Nobody keeps a number that it does not need from
//! somebody who asked.
//!
//! # Cost
//!
//! Nothing where the numbers are already here: they stay where they were last used. Otherwise
//! n−1 questions and at least one answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kofm_core::epoch::Survey;
use kofm_core::{PoolId, SiteId, Stamp, Unit, Units};
use serde::{Deserialize, Serialize};

/// The numbers of all pools of one engine, at one site.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    me: SiteId,
    /// Everybody who has numbers, in order.
    sites: Vec<SiteId>,
    units: Vec<Units>,
    /// Made when first touched: a pool that nobody uses costs nothing.
    pools: BTreeMap<PoolId, Pool>,
}

#[derive(Clone, Debug, Default)]
struct Pool {
    free: BTreeSet<u32>,
    /// Grants that wait for numbers, in order.
    needs: VecDeque<(Stamp, u32)>,
    /// What others lack.
    owed: BTreeMap<SiteId, u32>,
    /// What each other site was asked for and has not given.
    asked: BTreeMap<SiteId, u32>,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The sender lacks so many; this replaces what it said before.
    Want { pool: PoolId, count: u32 },
    /// These are the receiver's from now on.
    Give { pool: PoolId, numbers: Vec<u32> },
}

/// What comes of it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Send { to: SiteId, message: Message },
    Named { claim: Stamp, pool: PoolId, numbers: Vec<u32> },
}

impl Names {
    pub(crate) fn new(me: SiteId, sites: u16, units: Vec<Units>) -> Self {
        let sites = (0..sites).map(SiteId).collect();
        Self { me, sites, units, pools: BTreeMap::new() }
    }

    /// The numbers as an epoch begins: those that leases have stay theirs, idle ones where they
    /// lie, what departed sites may have belongs to nobody, and the rest is dealt out.
    pub(crate) fn resume(
        me: SiteId,
        sites: Vec<SiteId>,
        units: Vec<Units>,
        survey: &Survey,
    ) -> Self {
        let mut taken: BTreeMap<PoolId, BTreeSet<u32>> = BTreeMap::new();
        let held = survey.claims.values().flat_map(|standing| standing.held.iter().flatten());
        for unit in held.chain(&survey.withheld_units).chain(survey.idle.keys()) {
            taken.entry(unit.pool).or_default().insert(unit.number);
        }
        let mut pools: BTreeMap<PoolId, Pool> = BTreeMap::new();
        for (id, units) in (0..).map(PoolId).zip(&units) {
            let taken = taken.remove(&id).unwrap_or_default();
            let dealt = |number: &u32| {
                let place = usize::try_from(*number).unwrap_or(0) % sites.len().max(1);
                !taken.contains(number) && sites.get(place) == Some(&me)
            };
            let free = (0..units.0).filter(dealt).collect();
            pools.insert(id, Pool { free, ..Pool::default() });
        }
        for (unit, _) in survey.idle.iter().filter(|entry| *entry.1 == me) {
            if let Some(pool) = pools.get_mut(&unit.pool) {
                pool.free.insert(unit.number);
            }
        }
        Self { me, sites, units, pools }
    }

    /// All numbers that lie here unused.
    pub(crate) fn idle(&self) -> Vec<Unit> {
        let mut list = Vec::new();
        for pool in (0..self.units.len()).filter_map(|id| u16::try_from(id).ok()).map(PoolId) {
            let free = self.pools.get(&pool).map_or_else(|| self.first(pool), |it| it.free.clone());
            list.extend(free.into_iter().map(|number| Unit { pool, number }));
        }
        list
    }

    /// The numbers that lie here at first.
    fn first(&self, id: PoolId) -> BTreeSet<u32> {
        let units = self.units.get(id.index()).map_or(0, |units| units.0);
        let me = self.sites.iter().position(|&site| site == self.me);
        let me = me.and_then(|place| u32::try_from(place).ok()).unwrap_or(units);
        (me..units).step_by(self.sites.len().max(1)).collect()
    }

    /// A grant needs `count` numbers.
    pub(crate) fn need(&mut self, pool: PoolId, claim: Stamp, count: u32, out: &mut Vec<Effect>) {
        self.pool(pool).needs.push_back((claim, count));
        self.settle(pool, out);
    }

    /// A grant ends before it got its numbers.
    pub(crate) fn cancel(&mut self, pool: PoolId, claim: Stamp, out: &mut Vec<Effect>) {
        self.pool(pool).needs.retain(|need| need.0 != claim);
        self.settle(pool, out);
    }

    /// A lease gives its numbers back.
    pub(crate) fn free(&mut self, pool: PoolId, numbers: &[u32], out: &mut Vec<Effect>) {
        // A pool that was made smaller has seen the last of some.
        let units = self.units.get(pool.index()).map_or(0, |units| units.0);
        self.pool(pool).free.extend(numbers.iter().filter(|number| **number < units));
        self.settle(pool, out);
    }

    /// A message arrives. `None` where no correct site sends it; nothing has changed then.
    #[must_use]
    pub(crate) fn receive(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut Vec<Effect>,
    ) -> Option<()> {
        let (Message::Want { pool: id, .. } | Message::Give { pool: id, .. }) = message;
        let units = self.units.get(id.index())?.0;
        let pool = self.pool(id);
        match message {
            Message::Want { count, .. } if count <= units => {
                if count == 0 {
                    pool.owed.remove(&from);
                } else {
                    pool.owed.insert(from, count);
                }
            }
            Message::Give { numbers, .. }
                if numbers.iter().all(|number| *number < units && !pool.free.contains(number)) =>
            {
                let asked = pool.asked.entry(from).or_default();
                *asked = asked.saturating_sub(u32::try_from(numbers.len()).ok()?);
                pool.free.extend(numbers);
            }
            Message::Want { .. } | Message::Give { .. } => return None,
        }
        self.settle(id, out);
        Some(())
    }

    fn pool(&mut self, id: PoolId) -> &mut Pool {
        if !self.pools.contains_key(&id) {
            let free = self.first(id);
            self.pools.insert(id, Pool { free, ..Pool::default() });
        }
        self.pools.entry(id).or_default()
    }

    /// Gives numbers to own grants, then to others, then asks for what is missing.
    fn settle(&mut self, id: PoolId, out: &mut Vec<Effect>) {
        let others: Vec<SiteId> =
            self.sites.iter().copied().filter(|&site| site != self.me).collect();
        let pool = self.pool(id);
        while let Some(&(claim, count)) = pool.needs.front() {
            let Some(numbers) = pool.take(count) else { break };
            pool.needs.pop_front();
            out.push(Effect::Named { claim, pool: id, numbers });
        }
        // Whoever lacks something here needs every free number itself.
        if pool.needs.is_empty() {
            for (to, numbers) in pool.pay() {
                out.push(Effect::Send { to, message: Message::Give { pool: id, numbers } });
            }
        }
        let lack = pool.lack();
        for to in others {
            let asked = pool.asked.get(&to).copied().unwrap_or(0);
            if lack > asked || (lack == 0 && asked > 0) {
                pool.asked.insert(to, lack);
                out.push(Effect::Send { to, message: Message::Want { pool: id, count: lack } });
            }
        }
    }
}

impl Pool {
    fn take(&mut self, count: u32) -> Option<Vec<u32>> {
        if self.free.len() < count as usize {
            return None;
        }
        Some((0..count).filter_map(|_| self.free.pop_first()).collect())
    }

    fn pay(&mut self) -> Vec<(SiteId, Vec<u32>)> {
        let mut list = Vec::new();
        while !self.free.is_empty()
            && let Some((site, owed)) = self.owed.pop_first()
        {
            let count = owed.min(u32::try_from(self.free.len()).unwrap_or(u32::MAX));
            list.push((site, self.take(count).unwrap_or_default()));
            if owed > count {
                self.owed.insert(site, owed - count);
            }
        }
        list
    }

    fn lack(&self) -> u32 {
        let need: u32 = self.needs.iter().map(|need| need.1).sum();
        need.saturating_sub(u32::try_from(self.free.len()).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId(0);

    /// Random grants and releases that never exceed M, messages in any order between pairs: every
    /// grant gets its numbers, and no number is used twice.
    #[test]
    fn every_grant_gets_numbers_that_nobody_else_has() {
        for seed in 1..200_u64 {
            run(seed);
        }
    }

    fn run(seed: u64) {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let (sites, units) = (3_u16, 5_u32);
        let mut names: Vec<Names> =
            (0..sites).map(|i| Names::new(SiteId(i), sites, vec![Units(units)])).collect();
        let mut links: BTreeMap<(u16, u16), VecDeque<Message>> = BTreeMap::new();
        let mut held: BTreeMap<Stamp, Vec<u32>> = BTreeMap::new();
        let mut waiting: BTreeMap<Stamp, u32> = BTreeMap::new();
        for time in 0..400_u64 {
            let site = u16::try_from(random(sites.into())).unwrap();
            let mut out = Vec::new();
            let granted = u32::try_from(held.values().map(Vec::len).sum::<usize>()).unwrap()
                + waiting.values().sum::<u32>();
            let last_rounds = time > 300;
            match random(3) {
                0 if granted < units && !last_rounds => {
                    let count = u32::try_from(random((units - granted).into())).unwrap() + 1;
                    let claim = Stamp { time, site: SiteId(site) };
                    waiting.insert(claim, count);
                    names[usize::from(site)].need(POOL, claim, count, &mut out);
                }
                1 if !last_rounds => {
                    let mine = held.keys().find(|claim| claim.site.0 == site).copied();
                    if let Some(claim) = mine {
                        let numbers = held.remove(&claim).unwrap();
                        names[usize::from(site)].free(POOL, &numbers, &mut out);
                    } else if let Some(claim) =
                        waiting.keys().find(|claim| claim.site.0 == site).copied()
                        && random(2) == 0
                    {
                        waiting.remove(&claim);
                        names[usize::from(site)].cancel(POOL, claim, &mut out);
                    }
                }
                _ => {
                    let from = u16::try_from(random(sites.into())).unwrap();
                    let message = links.get_mut(&(from, site)).and_then(VecDeque::pop_front);
                    if let Some(message) = message {
                        let received =
                            names[usize::from(site)].receive(SiteId(from), message, &mut out);
                        assert_eq!(received, Some(()));
                    }
                }
            }
            carry(site, out, &mut links, &mut held, &mut waiting);
        }
        // Deliver what is left.
        while let Some((&(from, to), message)) =
            links.iter_mut().find_map(|(key, link)| Some((key, link.pop_front()?)))
        {
            let mut out = Vec::new();
            names[usize::from(to)].receive(SiteId(from), message, &mut out).unwrap();
            carry(to, out, &mut links, &mut held, &mut waiting);
        }
        assert!(waiting.is_empty(), "seed {seed}: {waiting:?} wait for ever");
        let free: usize = names.iter_mut().map(|names| names.pool(POOL).free.len()).sum::<usize>();
        let used: usize = held.values().map(Vec::len).sum();
        assert_eq!(free + used, units as usize, "seed {seed}: conservation");
    }

    fn carry(
        site: u16,
        out: Vec<Effect>,
        links: &mut BTreeMap<(u16, u16), VecDeque<Message>>,
        held: &mut BTreeMap<Stamp, Vec<u32>>,
        waiting: &mut BTreeMap<Stamp, u32>,
    ) {
        for effect in out {
            match effect {
                Effect::Send { to, message } => {
                    links.entry((site, to.0)).or_default().push_back(message);
                }
                Effect::Named { claim, numbers, .. } => {
                    assert_eq!(waiting.remove(&claim), Some(u32::try_from(numbers.len()).unwrap()));
                    for number in &numbers {
                        assert!(held.values().flatten().all(|used| used != number), "used twice");
                    }
                    held.insert(claim, numbers);
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut names = Names::new(SiteId(0), 2, vec![Units(2)]);
        let mut out = Vec::new();
        let wrong = [
            Message::Want { pool: PoolId(9), count: 1 },
            Message::Want { pool: POOL, count: 3 },
            Message::Give { pool: POOL, numbers: vec![2] },
            Message::Give { pool: POOL, numbers: vec![0] },
        ];
        for message in wrong {
            assert_eq!(names.receive(SiteId(1), message.clone(), &mut out), None, "{message:?}");
        }
        assert!(out.is_empty());
    }

    #[test]
    fn an_epoch_deals_every_number_to_one_site() {
        use kofm_core::Demand;
        use kofm_core::epoch::Standing;
        let unit = |number| Unit { pool: POOL, number };
        let mut survey = Survey::default();
        let held = Standing { demand: Demand::one(POOL, 1), held: Some(vec![unit(3)]) };
        survey.claims.insert(Stamp { time: 1, site: SiteId(2) }, held);
        survey.idle.insert(unit(0), SiteId(2));
        survey.withheld_units.insert(unit(5));
        let sites = vec![SiteId(0), SiteId(2)];
        let mut all = Vec::new();
        for &me in &sites {
            let names = Names::resume(me, sites.clone(), vec![Units(8)], &survey);
            let idle = names.idle();
            assert_eq!(idle.contains(&unit(0)), me == SiteId(2));
            all.extend(idle);
        }
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 4, 6, 7].map(unit));
    }
}
