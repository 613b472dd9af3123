//! The order in which claims of `roaming` wait goes on over changes of epoch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kofm_core::epoch::{Book, Record, Report, Standing};
use kofm_core::protocols::roaming::{Message, Restless as Timer, Roaming, Rules, Sound};
use kofm_core::{
    Clock, Cluster, Demand, Effect, Effects, Input, PoolId, Protocol, SiteId, Stamp, step,
};

/// Sites that share one pool, and links between them.
struct World<R: Rules> {
    record: Record<Cluster>,
    pool: PoolId,
    sites: Vec<Roaming<R>>,
    clocks: Vec<Clock>,
    claims: BTreeMap<Stamp, Standing>,
    links: VecDeque<(SiteId, SiteId, Clock, Message)>,
    granted: Vec<Stamp>,
}

impl<R: Rules> World<R> {
    fn new(sites: u16, pool: u16, units: u32) -> Self {
        let mut cluster = Cluster::new(sites, units);
        let first = cluster.pools[0];
        cluster.pools = (0..=pool).map(|_| first).collect();
        let members = (0..sites).map(|site| (SiteId(site), 1)).collect();
        let record = Record::first(members, cluster.clone());
        Self {
            sites: (0..sites).map(|site| Roaming::new(SiteId(site), &cluster)).collect(),
            clocks: vec![Clock::default(); usize::from(sites)],
            record,
            pool: PoolId(pool),
            claims: BTreeMap::new(),
            links: VecDeque::new(),
            granted: Vec::new(),
        }
    }

    fn take(&mut self, site: SiteId, mut effects: Effects<Message, Timer>) {
        for effect in effects.drain() {
            match effect {
                Effect::Send { to, clock, message, .. } => {
                    self.links.push_back((site, to, clock, message));
                }
                Effect::Grant { claim, units, .. } => {
                    self.granted.push(claim);
                    self.claims.get_mut(&claim).expect("a live claim").held = Some(units);
                }
                Effect::Reject { .. }
                | Effect::Revoke { .. }
                | Effect::Arm { .. }
                | Effect::Disarm { .. } => {}
            }
        }
    }

    fn step(&mut self, site: SiteId, input: Input<Message, Timer>) {
        let mut effects = Effects::default();
        let index = site.index();
        step(&mut self.sites[index], &mut self.clocks[index], input, &mut effects)
            .expect("a correct peer");
        self.sites[index].audit();
        self.take(site, effects);
    }

    /// The oldest message of this link arrives, if there is one.
    fn deliver(&mut self, link: (SiteId, SiteId)) {
        let place = self.links.iter().position(|it| (it.0, it.1) == link);
        if let Some((from, to, clock, message)) = place.and_then(|place| self.links.remove(place)) {
            self.step(to, Input::Deliver { from, clock, message });
        }
    }

    fn settle(&mut self) {
        while let Some(first) = self.links.front() {
            self.deliver((first.0, first.1));
        }
    }

    fn ask(&mut self, site: u16, units: u32) -> Stamp {
        let demand = Demand::one(self.pool, units);
        let site = SiteId(site);
        let claim = self.sites[site.index()].next_stamp(self.clocks[site.index()]);
        self.claims.insert(claim, Standing::waiting(demand.clone()));
        self.step(site, Input::Claim { claim, demand });
        claim
    }

    fn release(&mut self, claim: Stamp) {
        self.claims.remove(&claim);
        self.step(claim.site, Input::Release { claim, part: None });
    }

    /// An epoch ends with whatever is on its way, and the next begins. Sites speak in any order.
    fn change(&mut self, first: usize) {
        self.links.clear();
        let mut reports = BTreeMap::new();
        for (index, site) in self.sites.iter().enumerate() {
            let me = site.me();
            let claims = self.claims.iter().filter(|(claim, _)| claim.site == me);
            let claims = claims.map(|(&claim, told)| (claim, told.clone())).collect();
            let (idle, lines) = (site.idle_units(), site.lines());
            let book = Book { claims, idle, lines, ..Book::default() };
            let clock = self.clocks[index];
            reports.insert(me, Report { clock, books: vec![book], ..Report::empty(1) });
        }
        self.record = self.record.revived(&reports);
        let cluster = self.record.clusters().remove(0);
        let survey = self.record.surveys[0].clone();
        for index in 0..self.sites.len() {
            let me = self.sites[index].me();
            self.clocks[index].merge(survey.clock);
            self.sites[index] = Roaming::resume(me, &cluster, &survey);
        }
        let count = self.sites.len();
        for index in (0..count).map(|index| (index + first) % count) {
            let mut effects = Effects::at(self.clocks[index]);
            self.sites[index].on_resume(&survey, &mut effects);
            self.clocks[index].merge(effects.clock());
            self.take(self.sites[index].me(), effects);
            self.sites[index].audit();
        }
        self.settle();
    }

    /// Which of two claims is older, and before the other in some line and behind it in none.
    fn pairs(&self) -> BTreeSet<(Stamp, Stamp)> {
        let waits = |claim: &Stamp| self.claims.get(claim).is_some_and(|it| it.held.is_none());
        let mut pairs = BTreeSet::new();
        let mut against = BTreeSet::new();
        for line in self.sites.iter().flat_map(|site| site.lines().into_values()) {
            let line: Vec<Stamp> = line.into_iter().map(|it| it.0).filter(waits).collect();
            for (place, &first) in line.iter().enumerate() {
                let behind = line[place..].iter();
                pairs.extend(behind.clone().filter(|it| **it > first).map(|&it| (first, it)));
                against.extend(behind.filter(|it| **it < first).map(|&it| (it, first)));
            }
        }
        pairs.difference(&against).copied().collect()
    }
}

/// Four units: A has two at s0, B two at s2. Bob asks for three at s1, then Carol for one at s2.
/// Who gets units when B releases, and who when A does.
fn bob_and_carol(pool: u16, change: Option<usize>) -> [Vec<&'static str>; 2] {
    let mut world: World<Sound> = World::new(3, pool, 4);
    let ask = |world: &mut World<Sound>, site, units| {
        let claim = world.ask(site, units);
        world.settle();
        claim
    };
    let (a, b) = (ask(&mut world, 0, 2), ask(&mut world, 2, 2));
    assert_eq!(world.granted, [a, b]);
    let (bob, carol) = (ask(&mut world, 1, 3), ask(&mut world, 2, 1));
    if let Some(first) = change {
        world.change(first);
    }
    [b, a].map(|claim| {
        world.granted.clear();
        world.release(claim);
        world.settle();
        let name = |claim: &Stamp| if *claim == bob { "bob" } else { "carol" };
        assert!(world.granted.iter().all(|claim| [bob, carol].contains(claim)));
        world.granted.iter().map(name).collect()
    })
}

#[test]
fn a_change_of_epoch_lets_nobody_pass() {
    // With the switchboard at s1, both units of B are promised to Bob.
    assert_eq!(bob_and_carol(1, None), [vec![], vec!["bob", "carol"]]);
    for pool in 0..3 {
        for first in 0..3 {
            assert_eq!(bob_and_carol(pool, Some(first)), bob_and_carol(pool, None), "{pool}");
        }
    }
}

/// A random run of three sites that share one pool, all of it wanted by each claim, and at some
/// moment a change. Counts the claims that passed an older one which was before them in a line.
fn passed<R: Rules>(seed: u64, changes: bool) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from((state >> 11) % below).expect("small")
    };
    let units = [1, 1, 2, 5][draw(4)];
    let pool = u16::try_from(draw(3)).expect("small");
    let mut world: World<R> = World::new(3, pool, units);
    for _ in 0..10 + draw(40) {
        let held: Vec<Stamp> =
            world.claims.iter().filter(|it| it.1.held.is_some()).map(|it| *it.0).collect();
        match draw(8) {
            0 | 1 => drop(world.ask(u16::try_from(draw(3)).expect("small"), units)),
            2 if !held.is_empty() => world.release(held[0]),
            _ if !world.links.is_empty() => {
                let link = draw(world.links.len() as u64);
                let (from, to, ..) = world.links[link];
                world.deliver((from, to));
            }
            _ => {}
        }
    }
    let pairs = world.pairs();
    world.granted.clear();
    if changes {
        world.change(draw(3));
    }
    world.settle();
    while let Some(claim) = world.claims.iter().find(|it| it.1.held.is_some()).map(|it| *it.0) {
        world.release(claim);
        world.settle();
    }
    assert!(world.claims.is_empty(), "seed {seed}: nobody waits for ever");
    let place = |claim: Stamp| world.granted.iter().position(|it| *it == claim);
    pairs.iter().filter(|(first, second)| place(*first) > place(*second)).count()
}

/// Sites ask anew as an epoch begins, each for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ForgetsTheQueue;

impl Rules for ForgetsTheQueue {
    const KEEPS_THE_QUEUE: bool = false;
}

#[test]
fn no_younger_claim_passes_an_older_one_that_was_before_it() {
    let passes = |passed: fn(u64, bool) -> usize, changes| {
        (0..3_000).filter(|&seed| passed(seed, changes) > 0).collect::<Vec<u64>>()
    };
    assert_eq!(passes(passed::<Sound>, false), [], "within an epoch");
    assert_eq!(passes(passed::<Sound>, true), [], "over a change");
    assert!(passes(passed::<ForgetsTheQueue>, true).len() > 300, "the law sees it");
}
