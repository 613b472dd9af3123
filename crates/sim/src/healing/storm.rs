//! Crashes, cuts and partitions, and whether more units are in use than there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use kofm_core::topology::{Graph, Topology};
use kofm_core::{
    Clock, Cluster, Demand, Effect, Effects, Input, InputOf, PoolId, Protocol, SiteId, Stamp, Unit,
    step,
};

use crate::rng::Rng;
use crate::span::{DELAY, Span, Time};

/// What happens, and is undone later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The root dies with its memory, and starts again without it.
    RootCrash,
    /// Another site does.
    Crash,
    /// A link is cut, and mended.
    Cut,
    /// A third of the sites cannot talk to the rest, and then can.
    Partition,
    /// Twenty of these, one after another, overlapping.
    Many,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Storm {
    /// Sites, units, links.
    pub cluster: Cluster,
    /// The most units that a claim asks for.
    pub most: u32,
    /// How long a claim is held.
    pub hold: Span,
    /// What happens.
    pub blow: Blow,
    /// When it happens, for how long, and how long the run goes on after that: in link delays.
    pub times: (f64, f64, f64),
    /// Decides everything else.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weathered {
    /// Grants that put more units into use than there are, or a unit into use twice.
    pub unsafe_grants: u64,
    /// Claims granted.
    pub grants: u64,
    /// Claims taken back by the protocol.
    pub revoked: u64,
    /// Whether at the end every token is there once, and somebody was served in the last quarter of
    /// the run.
    pub healed: bool,
}

enum Event<M, T> {
    Deliver { from: SiteId, to: SiteId, session: u64, clock: Clock, message: M },
    Claim { site: SiteId, life: u64 },
    Release { site: SiteId, claim: Stamp },
    Fire { site: SiteId, life: u64, timer: T },
    Strike,
    Mend(Damage),
}

/// What was struck, to be undone.
#[derive(Clone, Debug)]
enum Damage {
    Dead(SiteId),
    Cut(Vec<(SiteId, SiteId)>),
}

struct Site<P> {
    protocol: P,
    clock: Clock,
    alive: bool,
    /// Counts its lives: what was meant for an earlier one is void.
    life: u64,
    held: BTreeMap<Stamp, Vec<Unit>>,
    wants: BTreeMap<Stamp, Demand>,
}

struct World<'a, P: Protocol> {
    storm: &'a Storm,
    now: Time,
    sites: Vec<Site<P>>,
    neighbours: Vec<Vec<SiteId>>,
    /// The session of each link, from the lower to the higher site: what was sent in an earlier one
    /// is lost. And how many cuts it has.
    links: BTreeMap<(SiteId, SiteId), (u64, u32)>,
    /// When the last message of a link arrives.
    last: BTreeMap<(SiteId, SiteId), Time>,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    kept: BTreeMap<u64, Event<P::Message, P::Timer>>,
    number: u64,
    rng: Rng,
    result: Weathered,
    end: Time,
    late_grants: u64,
}

impl Storm {
    /// Twelve sites on a random connected graph, three units, claims for one or two.
    pub fn drawn(blow: Blow, seed: u64) -> Self {
        const SITES: u16 = 12;
        let mut rng = Rng::new(seed ^ 0x5707);
        let mut edges = Vec::new();
        for site in 1..SITES {
            let above = rng.below(site.into());
            edges.push((SiteId(u16::try_from(above).expect("a site")), SiteId(site)));
        }
        for _ in 0..SITES {
            let mut some = || SiteId(u16::try_from(rng.below(SITES.into())).expect("a site"));
            let (a, b) = (some(), some());
            if a != b {
                edges.push((a, b));
            }
        }
        let graph = Graph::new(SITES, edges).expect("every site hangs on one before it");
        let cluster = Cluster { topology: Topology::Graph(graph), ..Cluster::new(SITES, 3) };
        // Short and long holds: long ones outlive what happens.
        let hold = [Span::Exponential(3.0), Span::Exponential(60.0)][(seed % 2) as usize];
        Self { cluster, most: 2, hold, blow, times: (200.0, 1_200.0, 1_600.0), seed }
    }

    /// Lets it happen.
    pub fn run<P: Protocol>(&self) -> Weathered {
        World::<P>::new(self).run()
    }
}

fn pair(a: SiteId, b: SiteId) -> (SiteId, SiteId) {
    (a.min(b), a.max(b))
}

impl<'a, P: Protocol> World<'a, P> {
    fn new(storm: &'a Storm) -> Self {
        let cluster = &storm.cluster;
        let neighbours: Vec<_> =
            cluster.all().map(|site| cluster.topology.neighbours(site, cluster.sites)).collect();
        let mut links = BTreeMap::new();
        for (site, list) in cluster.all().zip(&neighbours) {
            links.extend(list.iter().map(|&other| (pair(site, other), (0, 0))));
        }
        let site = |me| Site {
            protocol: P::new(me, cluster),
            clock: Clock::default(),
            alive: true,
            life: 0,
            held: BTreeMap::new(),
            wants: BTreeMap::new(),
        };
        Self {
            storm,
            now: 0,
            sites: cluster.all().map(site).collect(),
            neighbours,
            links,
            last: BTreeMap::new(),
            events: BinaryHeap::new(),
            kept: BTreeMap::new(),
            number: 0,
            rng: Rng::new(storm.seed),
            result: Weathered::default(),
            end: 0,
            late_grants: 0,
        }
    }

    fn at(&mut self, after: Time, event: Event<P::Message, P::Timer>) {
        self.number += 1;
        self.kept.insert(self.number, event);
        self.events.push(Reverse((self.now + after, self.number)));
    }

    fn run(mut self) -> Weathered {
        let (before, lasts, after) = self.storm.times;
        let ticks = |delays: f64| Span::Constant(delays).draw(&mut Rng::new(0));
        self.end = ticks(before + lasts + after);
        for site in self.storm.cluster.all() {
            self.wake(site);
        }
        let strikes = if self.storm.blow == Blow::Many { 20 } else { 1 };
        for i in 0..strikes {
            let spread = Span::Uniform(0.0, if i == 0 { 1.0 } else { lasts }).draw(&mut self.rng);
            self.at(ticks(before) + spread, Event::Strike);
        }
        while let Some(Reverse((at, number))) = self.events.pop() {
            self.now = at;
            if at > self.end {
                break;
            }
            if let Some(event) = self.kept.remove(&number) {
                self.happen(event);
            }
        }
        self.result.healed = self.late_grants > 0 && self.tokens_are_right();
        self.result
    }

    fn happen(&mut self, event: Event<P::Message, P::Timer>) {
        match event {
            Event::Deliver { from, to, session, clock, message } => {
                if self.links[&pair(from, to)] == (session, 0) {
                    self.step(to, Input::Deliver { from, clock, message });
                }
            }
            Event::Claim { site, life } => self.claim(site, life),
            Event::Release { site, claim } => {
                if self.sites[site.index()].held.remove(&claim).is_some() {
                    self.think(site);
                    self.step(site, Input::Release { claim, part: None });
                }
            }
            Event::Fire { site, life, timer } => {
                if self.sites[site.index()].life == life {
                    self.step(site, Input::Fire { timer });
                }
            }
            Event::Strike => self.strike(),
            Event::Mend(Damage::Dead(site)) => {
                let clock = self.sites[site.index()].clock;
                let protocol = P::reborn(site, &self.storm.cluster);
                let one = &mut self.sites[site.index()];
                // A site's own clock is durable, as its incarnation is.
                (one.protocol, one.clock, one.alive) = (protocol, clock, true);
                self.wake(site);
            }
            Event::Mend(Damage::Cut(links)) => {
                for link in links {
                    self.links.entry(link).and_modify(|state| state.1 -= 1);
                }
            }
        }
    }

    fn wake(&mut self, site: SiteId) {
        let life = self.sites[site.index()].life;
        if let Some(timer) = self.sites[site.index()].protocol.alarm() {
            let after = self.rng.below(DELAY);
            self.at(after, Event::Fire { site, life, timer });
        }
        self.think(site);
    }

    fn think(&mut self, site: SiteId) {
        let life = self.sites[site.index()].life;
        let after = Span::Exponential(20.0).draw(&mut self.rng);
        self.at(after, Event::Claim { site, life });
    }

    fn claim(&mut self, site: SiteId, life: u64) {
        let one = &mut self.sites[site.index()];
        if one.life != life || !one.alive {
            return;
        }
        let k = self.rng.between(1, self.storm.most.into());
        let demand = Demand::one(PoolId(0), u32::try_from(k).expect("a small number"));
        let claim = one.protocol.next_stamp(one.clock);
        one.wants.insert(claim, demand.clone());
        self.step(site, Input::Claim { claim, demand });
    }

    fn strike(&mut self) {
        let sites = u64::from(self.storm.cluster.sites);
        let blow = match self.storm.blow {
            Blow::Many => {
                let all = [Blow::RootCrash, Blow::Crash, Blow::Cut, Blow::Cut];
                all[usize::try_from(self.rng.below(4)).expect("a small number")]
            }
            one @ (Blow::RootCrash | Blow::Crash | Blow::Cut | Blow::Partition) => one,
        };
        let some = |n: u64| SiteId(u16::try_from(n).expect("a site"));
        let damage = match blow {
            Blow::RootCrash => Damage::Dead(SiteId(0)),
            Blow::Crash | Blow::Many => Damage::Dead(some(1 + self.rng.below(sites - 1))),
            Blow::Cut => {
                let pick = self.rng.below(self.links.len() as u64);
                let pick = usize::try_from(pick).expect("a small number");
                let link = *self.links.keys().nth(pick).expect("one of them");
                Damage::Cut(vec![link])
            }
            Blow::Partition => {
                let mut apart = BTreeSet::new();
                while (apart.len() as u64) < (sites / 3).max(1) {
                    apart.insert(some(self.rng.below(sites)));
                }
                let across =
                    |link: &&(SiteId, SiteId)| apart.contains(&link.0) != apart.contains(&link.1);
                Damage::Cut(self.links.keys().filter(across).copied().collect())
            }
        };
        match &damage {
            Damage::Dead(site) => {
                if !self.sites[site.index()].alive {
                    return;
                }
                self.die(*site);
            }
            Damage::Cut(links) => {
                for link in links {
                    self.links.entry(*link).and_modify(|(session, cuts)| {
                        *session += 1;
                        *cuts += 1;
                    });
                }
            }
        }
        let lasts = self.storm.times.1;
        let lasts = if self.storm.blow == Blow::Many { lasts / 4.0 } else { lasts };
        let after = Span::Constant(lasts).draw(&mut self.rng);
        self.at(after, Event::Mend(damage));
    }

    /// Its clients die with it, and its connections end.
    fn die(&mut self, site: SiteId) {
        let one = &mut self.sites[site.index()];
        one.alive = false;
        one.life += 1;
        one.held.clear();
        one.wants.clear();
        for other in self.neighbours[site.index()].clone() {
            self.links.entry(pair(site, other)).and_modify(|state| state.0 += 1);
        }
    }

    fn step(&mut self, site: SiteId, input: InputOf<P>) {
        let one = &mut self.sites[site.index()];
        if !one.alive {
            return;
        }
        let mut out = Effects::default();
        step(&mut one.protocol, &mut one.clock, input, &mut out)
            .unwrap_or_else(|fault| panic!("{site} refuses a correct site's message: {fault}"));
        let life = one.life;
        for effect in out.drain() {
            match effect {
                Effect::Send { to, clock, message, .. } => {
                    let (session, cuts) = self.links[&pair(site, to)];
                    if cuts > 0 || !self.sites[to.index()].alive {
                        continue;
                    }
                    let delay = Span::Uniform(0.5, 1.5).draw(&mut self.rng);
                    let last = self.last.entry((site, to)).or_default();
                    *last = (*last).max(self.now + delay);
                    let after = *last - self.now;
                    self.at(after, Event::Deliver { from: site, to, session, clock, message });
                }
                Effect::Grant { claim, units, .. } => self.granted(site, claim, units),
                Effect::Revoke { claim } => {
                    self.result.revoked += 1;
                    self.sites[site.index()].held.remove(&claim);
                    self.think(site);
                }
                Effect::Reject { .. } => self.think(site),
                Effect::Arm { timer, min, max } => {
                    let nanos = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(0);
                    let after = self.rng.between(nanos(min), nanos(max));
                    self.at(after, Event::Fire { site, life, timer });
                }
                Effect::Disarm { .. } => unreachable!("the tree lets its beat run"),
            }
        }
    }

    fn granted(&mut self, site: SiteId, claim: Stamp, units: Vec<Unit>) {
        self.result.grants += 1;
        self.late_grants += u64::from(self.now > self.end / 4 * 3);
        let in_use: Vec<Unit> =
            self.sites.iter().flat_map(|one| one.held.values().flatten().copied()).collect();
        let twice = units.iter().any(|unit| in_use.contains(unit));
        let all: u32 = self.storm.cluster.pools.iter().map(|units| units.0).sum();
        if twice || in_use.len() + units.len() > all as usize {
            self.result.unsafe_grants += 1;
        }
        let one = &mut self.sites[site.index()];
        one.wants.remove(&claim);
        one.held.insert(claim, units);
        let after = self.storm.hold.draw(&mut self.rng);
        self.at(after, Event::Release { site, claim });
    }

    fn tokens_are_right(&self) -> bool {
        let mut counts = vec![0; P::expected_tokens(&self.storm.cluster).len()];
        let here = self.sites.iter().filter(|one| one.alive);
        let here = here.flat_map(|one| one.protocol.census().tokens);
        let flying = self.kept.values().flat_map(|event| {
            if let Event::Deliver { from, to, session, message, .. } = event
                && self.links[&pair(*from, *to)] == (*session, 0)
            {
                P::tokens_in(message)
            } else {
                Vec::new()
            }
        });
        for kind in here.chain(flying) {
            counts[kind as usize] += 1;
        }
        counts == P::expected_tokens(&self.storm.cluster)
    }
}
