//! Which units: numbers for the grants of protocols that only count.
//!
//! # Idea
//!
//! A counting protocol says "2 of 8 are yours", not which. So each number of a pool lies at one
//! site, free or used by a lease there. A grant takes free numbers of its own site; what is
//! missing, it asks of all others, who give what they have free and pass on later what becomes
//! free. A number is in one place only, so no two holders are ever shown the same.
//!
//! A claim asks while it still waits to be granted: it *hopes*. The number that it will need is
//! then on its way together with the protocol's last message, and costs no time of its own.
//! Free numbers go to grants first, then to hopes in the order of their claims, which is about the
//! order in which they are granted.
//!
//! # Why it ends
//!
//! The protocol lets at most M units be granted, so there are always at least as many numbers free
//! or on their way as grants that wait for one. Nobody keeps a number that it does not need from a
//! grant that asked, whatever it hopes for itself. For a hope, a number only ever moves to an older
//! claim.
//!
//! # Cost
//!
//! Nothing where the numbers are already here: they stay where they were last used. Otherwise
//! n−1 questions, at least one answer, and a word to those whose number is not needed any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kofm_core::epoch::Survey;
use kofm_core::{PoolId, SiteId, Stamp, Unit, Units};
use serde::{Deserialize, Serialize};

/// The numbers of all pools of one engine, at one site.
#[derive(Clone, Debug)]
pub struct Names {
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
    /// Claims that wait to be granted.
    hopes: BTreeMap<Stamp, u32>,
    /// What others lack.
    owed: BTreeMap<SiteId, Lack>,
    /// What each other site was asked for and has not given.
    asked: BTreeMap<SiteId, Lack>,
}

/// What a site lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// For grants.
    needs: u32,
    /// For claims that wait, oldest first.
    hopes: Vec<(Stamp, u32)>,
}

/// Hopes that a site speaks of: those who wait longest. The others are far from being granted.
const MAX_HOPES: usize = 16;

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// What the sender lacks; this replaces what it said before.
    Want { pool: PoolId, lack: Lack },
    /// These are the receiver's from now on.
    Give { pool: PoolId, numbers: Vec<u32> },
}

/// What comes of it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Send { to: SiteId, message: Message },
    Named { claim: Stamp, pool: PoolId, numbers: Vec<u32> },
}

impl Names {
    #[cfg(test)]
    fn new(me: SiteId, sites: u16, units: Vec<Units>) -> Self {
        let sites = (0..sites).map(SiteId).collect();
        Self { me, sites, units, pools: BTreeMap::new() }
    }

    /// The numbers as an epoch begins: those that leases have stay theirs, idle ones where they
    /// lie, what departed sites may have belongs to nobody, and the rest is dealt out.
    pub fn resume(me: SiteId, sites: Vec<SiteId>, units: Vec<Units>, survey: &Survey) -> Self {
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
    pub fn idle(&self) -> Vec<Unit> {
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

    /// Whether there is no other site.
    pub const fn is_alone(&self) -> bool {
        self.sites.len() <= 1
    }

    /// A claim waits, and needs `count` numbers when it is granted.
    pub fn hope(&mut self, pool: PoolId, claim: Stamp, count: u32, out: &mut Vec<Effect>) {
        self.pool(pool).hopes.insert(claim, count);
        self.settle(pool, out);
    }

    /// A grant needs `count` numbers.
    pub fn need(&mut self, pool: PoolId, claim: Stamp, count: u32, out: &mut Vec<Effect>) {
        let it = self.pool(pool);
        it.hopes.remove(&claim);
        it.needs.push_back((claim, count));
        self.settle(pool, out);
    }

    /// A claim or a grant ends before it got its numbers.
    pub fn cancel(&mut self, pool: PoolId, claim: Stamp, out: &mut Vec<Effect>) {
        let it = self.pool(pool);
        it.hopes.remove(&claim);
        it.needs.retain(|need| need.0 != claim);
        self.settle(pool, out);
    }

    /// A lease gives its numbers back.
    pub fn free(&mut self, pool: PoolId, numbers: &[u32], out: &mut Vec<Effect>) {
        // A pool that was made smaller has seen the last of some.
        let units = self.units.get(pool.index()).map_or(0, |units| units.0);
        self.pool(pool).free.extend(numbers.iter().filter(|number| **number < units));
        self.settle(pool, out);
    }

    /// A message arrives. `None` where no correct site sends it; nothing has changed then.
    #[must_use]
    pub fn receive(&mut self, from: SiteId, message: Message, out: &mut Vec<Effect>) -> Option<()> {
        let (Message::Want { pool: id, .. } | Message::Give { pool: id, .. }) = message;
        let units = self.units.get(id.index())?.0;
        let pool = self.pool(id);
        match message {
            Message::Want { lack, .. } if lack.is_possible(units) => {
                if lack == Lack::default() {
                    pool.owed.remove(&from);
                } else {
                    pool.owed.insert(from, lack);
                }
            }
            Message::Give { numbers, .. }
                if numbers.iter().all(|number| *number < units && !pool.free.contains(number)) =>
            {
                let count = u32::try_from(numbers.len()).ok()?;
                pool.asked.entry(from).or_default().less(count);
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
        self.pool(id);
        let Some(pool) = self.pools.get_mut(&id) else { return };
        while let Some(&(claim, count)) = pool.needs.front() {
            let Some(numbers) = pool.take(count) else { break };
            pool.needs.pop_front();
            out.push(Effect::Named { claim, pool: id, numbers });
        }
        // Whoever lacks something here needs every free number itself.
        if pool.needs.is_empty() {
            while let Some((to, numbers)) = pool.pay() {
                out.push(Effect::Send { to, message: Message::Give { pool: id, numbers } });
            }
        }
        let lack = pool.lack();
        for &to in self.sites.iter().filter(|&&site| site != self.me) {
            let asked = pool.asked.entry(to).or_default();
            if *asked != lack {
                asked.clone_from(&lack);
                let lack = lack.clone();
                out.push(Effect::Send { to, message: Message::Want { pool: id, lack } });
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

    /// Gives free numbers to one other site: for a grant, or for a claim that waits, if no older
    /// one here hopes for them.
    fn pay(&mut self) -> Option<(SiteId, Vec<u32>)> {
        if self.free.is_empty() {
            return None;
        }
        // Grants are before all hopes: they have no claim that is compared.
        let first = |(&site, owed): (&SiteId, &Lack)| match owed.hopes.first() {
            _ if owed.needs > 0 => Some((None, site, owed.needs)),
            Some(&(claim, count)) => Some((Some(claim), site, count)),
            None => None,
        };
        let (claim, site, count) = self.owed.iter().filter_map(first).min()?;
        let mut spare = u32::try_from(self.free.len()).unwrap_or(u32::MAX);
        let older = claim.map(|claim| self.hopes.range(..claim)).into_iter().flatten();
        for (_, kept) in older {
            spare = spare.saturating_sub(*kept);
            if spare == 0 {
                return None;
            }
        }
        let count = count.min(spare);
        let owed = self.owed.get_mut(&site)?;
        owed.less(count);
        if *owed == Lack::default() {
            self.owed.remove(&site);
        }
        Some((site, self.take(count)?))
    }

    /// What is missing here: the free numbers are for grants, then for those who wait longest.
    fn lack(&self) -> Lack {
        let needs: u32 = self.needs.iter().map(|need| need.1).sum();
        let hopes = self.hopes.iter().take(MAX_HOPES).map(|(&claim, &count)| (claim, count));
        let mut lack = Lack { needs, hopes: hopes.collect() };
        lack.less(u32::try_from(self.free.len()).unwrap_or(u32::MAX));
        lack
    }
}

impl Lack {
    /// So many numbers are there now.
    fn less(&mut self, mut count: u32) {
        let mut meet = |wanted: &mut u32| {
            let met = count.min(*wanted);
            (count, *wanted) = (count - met, *wanted - met);
        };
        meet(&mut self.needs);
        self.hopes.iter_mut().for_each(|hope| meet(&mut hope.1));
        self.hopes.retain(|hope| hope.1 > 0);
    }

    /// Whether a correct site can lack that, in a pool of so many units.
    fn is_possible(&self, units: u32) -> bool {
        let counts = self.hopes.iter().map(|hope| hope.1);
        self.needs <= units
            && self.hopes.len() <= MAX_HOPES
            && self.hopes.is_sorted_by(|a, b| a.0 < b.0)
            && counts.clone().all(|count| (1..=units).contains(&count))
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
        let mut hoping: BTreeMap<Stamp, u32> = BTreeMap::new();
        for time in 0..400_u64 {
            let site = u16::try_from(random(sites.into())).unwrap();
            let mut out = Vec::new();
            let granted = u32::try_from(held.values().map(Vec::len).sum::<usize>()).unwrap()
                + waiting.values().sum::<u32>();
            let last_rounds = time > 300;
            let names = &mut names[usize::from(site)];
            let mine = |claim: &&Stamp| claim.site.0 == site;
            match random(5) {
                0 if hoping.len() < 8 && !last_rounds => {
                    let count = u32::try_from(random(units.into())).unwrap() + 1;
                    let claim = Stamp { time, site: SiteId(site) };
                    hoping.insert(claim, count);
                    names.hope(POOL, claim, count, &mut out);
                }
                1 if !last_rounds => {
                    // Not always in order: nothing may depend on that.
                    let claim = hoping.keys().find(mine).copied();
                    let fits = |claim: &Stamp| hoping[claim] <= units - granted;
                    if let Some(claim) = claim.filter(fits) {
                        let count = hoping.remove(&claim).unwrap();
                        waiting.insert(claim, count);
                        names.need(POOL, claim, count, &mut out);
                    }
                }
                2 if !last_rounds => {
                    if let Some(claim) = held.keys().find(mine).copied() {
                        let numbers = held.remove(&claim).unwrap();
                        names.free(POOL, &numbers, &mut out);
                    } else if let Some(claim) =
                        waiting.keys().chain(hoping.keys()).find(mine).copied()
                        && random(2) == 0
                    {
                        waiting.remove(&claim);
                        hoping.remove(&claim);
                        names.cancel(POOL, claim, &mut out);
                    }
                }
                _ => {
                    let from = u16::try_from(random(sites.into())).unwrap();
                    let message = links.get_mut(&(from, site)).and_then(VecDeque::pop_front);
                    if let Some(message) = message {
                        assert_eq!(names.receive(SiteId(from), message, &mut out), Some(()));
                    }
                }
            }
            carry(site, out, &mut links, &mut held, &mut waiting);
        }
        // Deliver what is left; it comes to an end, although some still hope.
        let mut left = 0;
        while let Some((&(from, to), message)) =
            links.iter_mut().find_map(|(key, link)| Some((key, link.pop_front()?)))
        {
            left += 1;
            assert!(left < 1000, "seed {seed}: numbers are passed on for ever");
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

    fn lack(needs: u32, hopes: &[(u64, u32)]) -> Lack {
        let stamp = |time| Stamp { time, site: SiteId(1) };
        Lack { needs, hopes: hopes.iter().map(|&(time, count)| (stamp(time), count)).collect() }
    }

    /// The number is there before the grant that needs it.
    #[test]
    fn a_hope_is_met_by_the_next_release() {
        let mut names: Vec<Names> =
            (0..3).map(|i| Names::new(SiteId(i), 3, vec![Units(1)])).collect();
        let stamp = |time, site| Stamp { time, site: SiteId(site) };
        let mut out = Vec::new();
        names[0].need(POOL, stamp(1, 0), 1, &mut out);
        let named = Effect::Named { claim: stamp(1, 0), pool: POOL, numbers: vec![0] };
        assert_eq!(std::mem::take(&mut out), [named]);
        // The younger one is heard of first.
        for (time, site) in [(3, 1), (2, 2)] {
            let mut said = Vec::new();
            names[usize::from(site)].hope(POOL, stamp(time, site), 1, &mut said);
            let want = Lack { needs: 0, hopes: vec![(stamp(time, site), 1)] };
            let want = Message::Want { pool: POOL, lack: want };
            assert!(said.contains(&Effect::Send { to: SiteId(0), message: want.clone() }));
            assert_eq!(names[0].receive(SiteId(site), want, &mut out), Some(()));
        }
        assert_eq!(out, []);
        names[0].free(POOL, &[0], &mut out);
        let give = Message::Give { pool: POOL, numbers: vec![0] };
        assert_eq!(out, [Effect::Send { to: SiteId(2), message: give.clone() }]);
        out.clear();
        names[2].receive(SiteId(0), give, &mut out).unwrap();
        out.clear();
        names[2].need(POOL, stamp(2, 2), 1, &mut out);
        let named = Effect::Named { claim: stamp(2, 2), pool: POOL, numbers: vec![0] };
        assert_eq!(out, [named]);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut names = Names::new(SiteId(0), 2, vec![Units(2)]);
        let mut out = Vec::new();
        let wrong = [
            Message::Want { pool: PoolId(9), lack: lack(1, &[]) },
            Message::Want { pool: POOL, lack: lack(3, &[]) },
            Message::Want { pool: POOL, lack: lack(0, &[(1, 3)]) },
            Message::Want { pool: POOL, lack: lack(0, &[(1, 0)]) },
            Message::Want { pool: POOL, lack: lack(0, &[(2, 1), (1, 1)]) },
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
        let held = Standing::holding(Demand::one(POOL, 1), vec![unit(3)]);
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
