//! Judges a run by what clients could see: claims, grants and releases. Never by what a protocol
//! thinks of itself.

use kofm_core::{
    Cluster, Demand, Fence, Grouping, Head, PoolId, Service, SiteId, Stamp, Unit, Units,
};

use crate::gangs::Gangs;
use crate::groups;
use crate::world::Violation;

/// Everything that clients have seen so far.
#[derive(Clone, Debug)]
pub struct Oracle {
    pools: Vec<PoolView>,
    /// Whether pools are semaphores: units are what there ever was, held what was ever taken.
    semaphores: bool,
    claims: Vec<Seen>,
    /// Numbers of the claims of each site, in the order of their stamps.
    by_site: Vec<Vec<(u64, u32)>>,
    /// Numbers of the claims that wait, oldest first.
    waiting: Vec<u32>,
    max_in_use: u64,
    violations: Vec<Violation>,
    violation_count: u64,
    forgiven: u64,
    /// What is seen of groups, where there are any.
    groups: Option<groups::Seen>,
    /// How many pools are not the seats of a group.
    real: usize,
}

#[derive(Clone, Debug)]
struct PoolView {
    units: u64,
    held: u64,
    /// What was added to a semaphore.
    added: u64,
    /// For each amount, the largest fence that a grant of that amount or more had. Beyond
    /// `FENCED_AMOUNTS` only the amounts that conflict with everything are told apart.
    fence_of: Vec<u64>,
    /// Who has each named unit, and the largest fence it was granted under.
    named: Vec<(Option<Stamp>, u64)>,
}

/// One claim as its client sees it.
#[derive(Clone, Debug)]
struct Seen {
    claim: Stamp,
    demand: Demand,
    held: bool,
    over: bool,
    overtaken: u32,
    units: Vec<Unit>,
}

/// Pools with more units than this have their fences checked by named units only.
const FENCED_AMOUNTS: u64 = 4_096;

/// Violations kept in full; all are counted.
const KEPT: usize = 20;

impl Oracle {
    /// Nothing seen yet.
    pub fn new(cluster: &Cluster, serves: Service) -> Self {
        let view = |&units: &Units| {
            let units = u64::from(units.0);
            let fenced = serves == Service::Pool && units <= FENCED_AMOUNTS;
            let amounts = if fenced { index(units) + 1 } else { 0 };
            PoolView { units, held: 0, added: 0, fence_of: vec![0; amounts], named: Vec::new() }
        };
        Self {
            pools: cluster.pools.iter().map(view).collect(),
            semaphores: serves == Service::Semaphore,
            claims: Vec::new(),
            by_site: vec![Vec::new(); usize::from(cluster.sites)],
            waiting: Vec::new(),
            max_in_use: 0,
            violations: Vec::new(),
            violation_count: 0,
            forgiven: 0,
            groups: None,
            real: cluster.pools.len(),
        }
    }

    /// The same, for a protocol that serves groups; see [`Watch`](groups::Watch).
    pub fn of_groups(cluster: &Cluster, grouping: &Grouping) -> Self {
        let units = |group| Units(u32::try_from(grouping.members(group).len()).unwrap_or(u32::MAX));
        let seats = grouping.all().map(units);
        let pools = cluster.pools.iter().copied().chain(seats).collect();
        let seated = Cluster { pools, ..cluster.clone() };
        let groups = Some(groups::Seen::new(grouping));
        Self { groups, real: cluster.pools.len(), ..Self::new(&seated, Service::Group) }
    }

    /// The same, for a protocol that serves gangs: with the seats of all sites.
    pub(crate) fn of_gangs(cluster: &Cluster, gangs: &Gangs) -> Self {
        Self { real: cluster.pools.len(), ..Self::new(&gangs.seated(cluster), Service::Gang) }
    }

    /// A claim was made; says its number.
    pub fn claimed(&mut self, claim: Stamp, demand: &Demand) -> u32 {
        let number = u32::try_from(self.claims.len()).expect("fewer than 2^32 claims");
        self.claims.push(Seen {
            claim,
            demand: demand.clone(),
            held: false,
            over: false,
            overtaken: 0,
            units: Vec::new(),
        });
        self.by_site[claim.site.index()].push((claim.time, number));
        if let Some(groups) = &mut self.groups {
            groups.claimed(claim, Grouping::named(demand));
        }
        self.waiting.push(number);
        number
    }

    /// The number of a claim.
    pub fn number(&self, claim: Stamp) -> Option<u32> {
        // Nearly always one of the last.
        let claims = self.by_site.get(claim.site.index())?;
        claims
            .iter()
            .rev()
            .find(|entry| entry.0 <= claim.time)
            .filter(|e| e.0 == claim.time)
            .map(|e| e.1)
    }

    /// A claim was granted; says its number where the grant was due.
    pub fn granted(&mut self, claim: Stamp, fence: Fence, units: &[Unit]) -> Option<u32> {
        let number = self.number(claim);
        let due =
            number.filter(|&n| !self.claims[n as usize].held && !self.claims[n as usize].over);
        let Some(number) = due else {
            self.violate("one grant", format!("{claim} was granted, not waiting"));
            return None;
        };
        self.waiting.retain(|&waiting| waiting != number);
        self.count_overtaken(number);
        self.take_seat(claim, number, units);
        let demand = self.claims[number as usize].demand.clone();
        for (pool, k) in demand.parts() {
            let view = &mut self.pools[pool.index()];
            view.held += u64::from(k.0);
            let (held, capacity) = (view.held, view.units + view.added);
            if pool.index() < self.real {
                self.max_in_use = self.max_in_use.max(held.saturating_sub(view.added));
            }
            if self.semaphores && held > capacity {
                self.violate("value", format!("{held} units of {pool} taken, {capacity} given"));
            } else if held > capacity {
                self.violate("capacity", format!("{held} units of {pool} held, it has {capacity}"));
            }
            self.check_fence(claim, fence, pool.index(), k.0);
        }
        if !units.is_empty() {
            self.check_names(claim, fence, &demand, units);
        }
        let seen = &mut self.claims[number as usize];
        // What is taken from a semaphore is taken, and the claim is over.
        seen.held = !self.semaphores;
        seen.over = self.semaphores;
        seen.units = units.to_vec();
        Some(number)
    }

    /// A process of a group has taken a step; `has` says whether the first process has what both
    /// need.
    pub fn stepped(&mut self, site: SiteId, has: &impl Fn(SiteId, SiteId) -> bool) {
        let Some(groups) = &self.groups else { return };
        if let Err(violation) = groups.stepped(site, has) {
            self.violate(violation.property, violation.detail);
        }
    }

    /// Somebody added to a semaphore.
    pub fn added(&mut self, demand: &Demand) {
        for (pool, units) in demand.parts() {
            self.pools[pool.index()].added += u64::from(units.0);
        }
    }

    /// A claim has its turn at a semaphore, and its site says what it counts.
    pub fn turn(&mut self, pool: PoolId, head: &Head) {
        let taken = self.pools[pool.index()].held;
        if let Some(count) = head.taken
            && u64::try_from(count) != Ok(taken)
        {
            let claim = head.claim;
            let detail =
                format!("{taken} units of {pool} taken, {claim} has its turn with {count}");
            self.violate("count", detail);
        }
    }

    /// A grant in a group says which: from then on its seat is held with the rest.
    fn take_seat(&mut self, claim: Stamp, number: u32, units: &[Unit]) {
        let Some(groups) = &mut self.groups else { return };
        let Some(group) = Grouping::group_of(units) else {
            return self.violate("names", format!("{claim} was granted for no group"));
        };
        let seen = &mut self.claims[number as usize];
        if seen.demand.units(group.seats()).is_zero() {
            seen.demand = seen.demand.parts().chain([(group.seats(), Units(1))]).collect();
        }
        if let Err(violation) = groups.began(claim, group) {
            self.violate(violation.property, violation.detail);
        }
    }

    /// A holder gave back a part, or with `None` all.
    pub fn released(&mut self, number: u32, part: Option<&Demand>) {
        let seen = &mut self.claims[number as usize];
        let part = part.unwrap_or(&seen.demand).clone();
        if let (Some(groups), Some(group)) = (&mut self.groups, Grouping::named(&part)) {
            groups.finished(seen.claim.site, group);
        }
        seen.demand = seen.demand.minus(&part).expect("clients give back what they hold");
        let over = seen.demand.is_empty();
        seen.over = over;
        seen.held = !over;
        for (pool, k) in part.parts() {
            let view = &mut self.pools[pool.index()];
            view.held -= u64::from(k.0);
            // A part is the units that the grant listed last.
            for _ in 0..k.0 {
                let Some(last) = seen.units.iter().rposition(|unit| unit.pool == pool) else {
                    break;
                };
                view.named[seen.units.remove(last).number as usize].0 = None;
            }
        }
    }

    /// A waiting claim was withdrawn or rejected.
    pub fn ended(&mut self, number: u32) {
        if let Some(groups) = &mut self.groups {
            groups.ended(self.claims[number as usize].claim);
        }
        self.waiting.retain(|&waiting| waiting != number);
        self.claims[number as usize].over = true;
    }

    /// What was violated so far is put down to faults that are still being healed. So is a fence
    /// that is met again later: it orders grants that were made when all was right.
    pub fn forgive(&mut self) {
        self.forgiven += self.violation_count;
        self.violation_count = 0;
        self.violations.clear();
        for view in &mut self.pools {
            view.fence_of.fill(0);
            view.named.iter_mut().for_each(|(_, fence)| *fence = 0);
        }
    }

    /// Violations that were put down to faults.
    pub const fn forgiven(&self) -> u64 {
        self.forgiven
    }

    /// Notes a violation.
    pub fn violate(&mut self, property: &'static str, detail: String) {
        self.violation_count += 1;
        if self.violations.len() < KEPT {
            self.violations.push(Violation::new(property, detail));
        }
    }

    /// The units that a claim asks for or holds, over all pools.
    pub fn units(&self, number: u32) -> u64 {
        self.claims[number as usize].demand.parts().map(|part| u64::from(part.1.0)).sum()
    }

    /// The first pool that a claim holds units of.
    pub fn first_pool(&self, number: u32) -> PoolId {
        self.claims[number as usize].demand.pools().next().expect("a holder has units")
    }

    /// What a claim asks for.
    pub(crate) fn demand(&self, number: u32) -> &Demand {
        &self.claims[number as usize].demand
    }

    /// Claims that still wait.
    pub fn unserved(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// The most units of one pool that were held at once.
    pub const fn max_in_use(&self) -> u64 {
        self.max_in_use
    }

    /// The largest number of younger grants that passed one waiting claim.
    pub fn overtaken_max(&self) -> u32 {
        self.claims.iter().map(|seen| seen.overtaken).max().unwrap_or(0)
    }

    /// The first violations, and how many there were.
    pub fn violations(&self) -> (&[Violation], u64) {
        (&self.violations, self.violation_count)
    }

    fn count_overtaken(&mut self, granted: u32) {
        let demand = self.claims[granted as usize].demand.clone();
        for &older in self.waiting.iter().take_while(|&&waiting| waiting < granted) {
            let seen = &mut self.claims[older as usize];
            if demand.pools().any(|pool| !seen.demand.units(pool).is_zero()) {
                seen.overtaken += 1;
            }
        }
    }

    /// Of two grants that could not coexist, the later has the larger fence.
    fn check_fence(&mut self, claim: Stamp, fence: Fence, pool: usize, k: u32) {
        let view = &mut self.pools[pool];
        if view.fence_of.is_empty() {
            return;
        }
        let conflicting = index(view.units) + 1 - k as usize;
        let before = view.fence_of.get(conflicting).copied().unwrap_or(0);
        for amount in &mut view.fence_of[..=k as usize] {
            *amount = fence.0.max(*amount);
        }
        if before >= fence.0 {
            let detail = format!("{claim} has fence {fence} after a conflicting one of {before}");
            self.violate("fence", detail);
        }
    }

    fn check_names(&mut self, claim: Stamp, fence: Fence, demand: &Demand, units: &[Unit]) {
        for (pool, k) in demand.parts() {
            let given = units.iter().filter(|unit| unit.pool == pool).count();
            if given != k.0 as usize {
                self.violate("names", format!("{claim} asked {k} of {pool} and got {given}"));
            }
        }
        for unit in units {
            let named = &mut self.pools[unit.pool.index()].named;
            if named.len() <= unit.number as usize {
                named.resize(unit.number as usize + 1, (None, 0));
            }
            let (holder, before) = named[unit.number as usize];
            named[unit.number as usize] = (Some(claim), fence.0);
            if let Some(holder) = holder {
                self.violate("exclusion", format!("{unit} given to {claim} while {holder} has it"));
            }
            if before >= fence.0 {
                let detail = format!("{unit} has fence {fence} after one of {before}");
                self.violate("fence", detail);
            }
        }
    }
}

fn index(units: u64) -> usize {
    usize::try_from(units).expect("a pool's units came from 32 bits")
}
