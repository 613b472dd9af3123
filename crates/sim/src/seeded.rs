//! One run in virtual time, drawn from a seed.
//!
//! Sites and their clients are driven by a heap of events. Each client thinks, claims, holds,
//! releases, again; each link delays its messages and keeps their order. Everything random comes
//! from one seed, so a run is a function of its [`Setup`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use kofm_core::{
    Clock, Cluster, Demand, Effect, Effects, EffectsOf, Input, InputOf, PoolId, Protocol, SiteId,
    Stamp, Units, step,
};

use crate::faults::{Fault, Weather};
use crate::oracle::Oracle;
use crate::report::Report;
use crate::rng::Rng;
use crate::span::{Span, Time};
use crate::trace::Step;

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Sites, pools, topology.
    pub cluster: Cluster,
    /// Units per claim, from and to; cut to the pool's size.
    pub k: (u32, u32),
    /// Claims over all sites.
    pub requests: u64,
    /// Clients per site, each with one claim at a time.
    pub clients: u32,
    /// Time between a release and the next claim.
    pub think: Span,
    /// Time between a grant and its release.
    pub hold: Span,
    /// Time that a message travels.
    pub delay: Span,
    /// How long a client waits before it gives up; for ever where there is none.
    pub patience: Option<Span>,
    /// Whether holders give back their units in two parts.
    pub partial: bool,
    /// Sites that ask this many times as often.
    pub hot: Vec<(SiteId, f64)>,
    /// Whether clients have no home: each claim is made at a site drawn by how often it asks.
    pub wander: bool,
    /// Sites that hold this many times as long.
    pub long: Vec<(SiteId, f64)>,
    /// What goes wrong while claims are being made.
    pub faults: Vec<Fault>,
    /// Decides everything else.
    pub seed: u64,
}

impl Setup {
    /// The defaults: 10,000 claims for one unit, think ~10, hold ~1, delay 0.5..1.5, seed 1.
    pub fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            k: (1, 1),
            requests: 10_000,
            clients: 1,
            think: Span::Exponential(10.0),
            hold: Span::Exponential(1.0),
            delay: Span::Uniform(0.5, 1.5),
            patience: None,
            partial: false,
            hot: Vec::new(),
            wander: false,
            long: Vec::new(),
            faults: Vec::new(),
            seed: 1,
        }
    }
}

/// Watches a run: the trace, the progress bar.
pub trait Observer<P: Protocol> {
    /// Whether steps are wanted at all; without it none is put together.
    const STEPS: bool;
    /// A step was taken.
    fn step(&mut self, step: Step<P::Message, P::Timer>);
    /// From time to time: how many claims were granted.
    fn progress(&mut self, grants: u64);
}

/// Watches nothing.
#[derive(Clone, Copy, Debug)]
pub struct Blind;

impl<P: Protocol> Observer<P> for Blind {
    const STEPS: bool = false;
    fn step(&mut self, _step: Step<P::Message, P::Timer>) {}
    fn progress(&mut self, _grants: u64) {}
}

/// Runs to the end: all claims made, granted and released, all messages delivered.
pub fn run<P: Protocol, O: Observer<P>>(setup: &Setup, observer: &mut O) -> Report {
    let mut sim = Sim::<P>::new(setup);
    sim.start();
    let budget = sim.event_budget();
    while let Some(due) = sim.events.pop() {
        sim.handle(due.0, observer);
        if sim.report.events > budget {
            sim.oracle.violate("progress", format!("no end after {budget} events"));
            break;
        }
    }
    sim.finish()
}

/// An event's time, its number, which orders events of the same time, and where it is kept.
type Due = (Time, u64, u32);

enum Event<M, T> {
    Deliver {
        from: SiteId,
        to: SiteId,
        clock: Clock,
        message: M,
    },
    /// A client has thought enough.
    Claim {
        client: u32,
    },
    /// A client has held its claim long enough; the part that it gives back, or all.
    Release {
        client: u32,
        claim: Stamp,
        part: bool,
    },
    /// A client is tired of waiting.
    GiveUp {
        client: u32,
        claim: Stamp,
    },
    Fire {
        site: SiteId,
        timer: T,
        armed: u64,
    },
    Strike {
        fault: Fault,
    },
}

/// A client's claim and its number, where it has one.
#[derive(Clone, Copy)]
struct Live {
    claim: Stamp,
    number: u32,
    issued: Time,
    held: bool,
}

struct Sim<'a, P: Protocol> {
    setup: &'a Setup,
    now: Time,
    sites: Vec<(P, Clock)>,
    clients: Vec<Option<Live>>,
    /// The site of each client: c mod sites, unless clients wander.
    homes: Vec<SiteId>,
    events: BinaryHeap<Reverse<Due>>,
    /// Events by the place in `Due`, and free places.
    slab: Vec<Option<Event<P::Message, P::Timer>>>,
    free: Vec<u32>,
    sequence: u64,
    /// When each link delivers its last message.
    links: Links,
    /// Until when faults hold up a link.
    held_up: BTreeMap<(SiteId, SiteId), Time>,
    /// The number under which each timer was last armed.
    timers: BTreeMap<(SiteId, P::Timer), u64>,
    remaining: u64,
    /// Faults among the events.
    strikes: usize,
    oracle: Oracle,
    weather: Weather,
    delays: Rng,
    demands: Rng,
    times: Rng,
    report: Report,
    out: EffectsOf<P>,
}

impl<'a, P: Protocol> Sim<'a, P> {
    fn new(setup: &'a Setup) -> Self {
        let cluster = &setup.cluster;
        let mut seed = Rng::new(setup.seed);
        let clients = usize::from(cluster.sites) * setup.clients as usize;
        Self {
            setup,
            now: 0,
            sites: cluster.all().map(|me| (P::new(me, cluster), Clock::default())).collect(),
            clients: vec![None; clients],
            homes: cluster.all().collect::<Vec<_>>().repeat(setup.clients as usize),
            events: BinaryHeap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            links: Links::new(cluster.sites),
            held_up: BTreeMap::new(),
            timers: BTreeMap::new(),
            remaining: setup.requests,
            strikes: 0,
            oracle: Oracle::new(cluster),
            delays: seed.fork(1),
            demands: seed.fork(2),
            times: seed.fork(3),
            weather: Weather::new(cluster.sites, seed.fork(4)),
            report: Report::new(P::NAME, setup),
            out: Effects::default(),
        }
    }

    fn start(&mut self) {
        for client in 0..u32::try_from(self.clients.len()).expect("fewer than 2^32 clients") {
            self.think(client);
        }
        for &fault in &self.setup.faults {
            self.strikes += 1;
            let at = self.weather.next(self.now);
            self.schedule(at, Event::Strike { fault });
        }
    }

    /// More events than any protocol needs: where it is exceeded, something turns in a circle.
    fn event_budget(&self) -> u64 {
        let sites = u64::from(self.setup.cluster.sites);
        10_000 + self.setup.requests.saturating_mul(100 * sites * sites.max(10))
    }

    fn schedule(&mut self, at: Time, event: Event<P::Message, P::Timer>) {
        self.sequence += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            u32::try_from(self.slab.len() - 1).expect("fewer than 2^32 events at once")
        });
        self.slab[place as usize] = Some(event);
        self.events.push(Reverse((at, self.sequence, place)));
    }

    fn handle<O: Observer<P>>(&mut self, (at, number, place): Due, observer: &mut O) {
        self.now = at;
        let event = self.slab[place as usize].as_ref().expect("a scheduled event is kept");
        if !self.setup.faults.is_empty() {
            let link = match event {
                Event::Deliver { from, to, .. } => Some((*from, *to)),
                Event::Claim { .. }
                | Event::Release { .. }
                | Event::GiveUp { .. }
                | Event::Fire { .. }
                | Event::Strike { .. } => None,
            };
            // Weather changes, but what follows a message on its link must not pass it.
            let held = link.and_then(|link| self.held_up.get(&link)).copied().unwrap_or(0);
            let clear = self.clear_at(event).max(held);
            if clear > at {
                if let Some(link) = link {
                    self.held_up.insert(link, clear);
                }
                // The number stays: what waits together goes on in its old order.
                self.events.push(Reverse((clear, number, place)));
                return;
            }
        }
        let event = self.slab[place as usize].take().expect("a scheduled event is kept");
        self.free.push(place);
        match event {
            Event::Deliver { from, to, clock, message } => {
                self.step(to, Input::Deliver { from, clock, message }, observer);
            }
            Event::Claim { client } => self.claim(client, observer),
            Event::Release { client, claim, part } => self.release(client, claim, part, observer),
            Event::GiveUp { client, claim } => self.give_up(client, claim, observer),
            Event::Fire { site, timer, armed } => {
                if self.timers.get(&(site, timer)) == Some(&armed) {
                    self.timers.remove(&(site, timer));
                    self.step(site, Input::Fire { timer }, observer);
                }
            }
            Event::Strike { fault } => self.strike(fault),
        }
    }

    fn clear_at(&self, event: &Event<P::Message, P::Timer>) -> Time {
        let (site, from) = match event {
            Event::Deliver { from, to, .. } => (*to, Some(*from)),
            Event::Claim { client }
            | Event::Release { client, .. }
            | Event::GiveUp { client, .. } => (self.home(*client), None),
            Event::Fire { site, .. } => (*site, None),
            Event::Strike { .. } => return self.now,
        };
        self.weather.clear_at(site, from, self.now)
    }

    /// Faults strike while claims are being made; after that, or once nothing else is left to
    /// happen, the run must heal.
    fn strike(&mut self, fault: Fault) {
        self.strikes -= 1;
        if self.remaining > 0 && self.events.len() > self.strikes {
            self.strikes += 1;
            self.weather.strike(fault, self.now);
            let at = self.weather.next(self.now);
            self.schedule(at, Event::Strike { fault });
        }
    }

    fn home(&self, client: u32) -> SiteId {
        self.homes[client as usize]
    }

    fn think(&mut self, client: u32) {
        let mut factor = factor(&self.setup.hot, self.home(client));
        if self.setup.wander {
            self.homes[client as usize] = draw_site(self.setup, &mut self.times);
            factor = 1.0;
        }
        let think = self.setup.think.scaled(1.0 / factor).draw(&mut self.times);
        self.schedule(self.now + think, Event::Claim { client });
    }

    fn claim<O: Observer<P>>(&mut self, client: u32, observer: &mut O) {
        if self.remaining == 0 {
            return;
        }
        self.remaining -= 1;
        self.report.requests += 1;
        let site = self.home(client);
        let demand = draw_demand(self.setup, &mut self.demands);
        let (protocol, clock) = &self.sites[site.index()];
        let claim = protocol.next_stamp(*clock);
        let number = self.oracle.claimed(claim, &demand);
        self.report.charges.push(0);
        let live = Live { claim, number, issued: self.now, held: false };
        self.clients[client as usize] = Some(live);
        if let Some(patience) = self.setup.patience {
            let patience = patience.draw(&mut self.times);
            self.schedule(self.now + patience, Event::GiveUp { client, claim });
        }
        self.step(site, Input::Claim { claim, demand }, observer);
    }

    fn release<O: Observer<P>>(&mut self, client: u32, claim: Stamp, part: bool, observer: &mut O) {
        let live = self.clients[client as usize].expect("a holder releases");
        let part = part.then(|| Demand::one(self.oracle.first_pool(live.number), 1));
        self.oracle.released(live.number, part.as_ref());
        let site = self.home(client);
        if part.is_none() {
            self.clients[client as usize] = None;
            self.think(client);
        }
        self.step(site, Input::Release { claim, part }, observer);
    }

    fn give_up<O: Observer<P>>(&mut self, client: u32, claim: Stamp, observer: &mut O) {
        let waits = |live: &Live| live.claim == claim && !live.held;
        let Some(live) = self.clients[client as usize].filter(waits) else { return };
        self.oracle.ended(live.number);
        self.report.withdrawn += 1;
        self.clients[client as usize] = None;
        self.think(client);
        self.step(self.home(client), Input::Withdraw { claim }, observer);
    }

    fn step<O: Observer<P>>(&mut self, site: SiteId, input: InputOf<P>, observer: &mut O) {
        self.report.events += 1;
        let recorded = O::STEPS.then(|| input.clone());
        let mut out = std::mem::take(&mut self.out);
        let (protocol, clock) = &mut self.sites[site.index()];
        if let Err(fault) = step(protocol, clock, input, &mut out) {
            let detail = format!("{site} refused a correct site's message: {fault}");
            self.oracle.violate("understanding", detail);
        }
        if let Some(input) = recorded {
            let effects = out.as_slice().to_vec();
            observer.step(Step::new(self.report.events, Some(self.now), site, input, effects));
        }
        for effect in out.drain() {
            self.carry_out(site, effect);
        }
        self.out = out;
        if self.report.events.is_multiple_of(0x10_0000) {
            observer.progress(self.report.waits.len() as u64);
        }
    }

    fn carry_out(&mut self, site: SiteId, effect: Effect<P::Message, P::Timer>) {
        match effect {
            Effect::Send { to, clock, message, serves } => {
                self.report.messages += 1;
                if let Some(number) = serves.and_then(|claim| self.oracle.number(claim)) {
                    self.report.charges[number as usize] += 1;
                }
                let delay = self.setup.delay.draw(&mut self.delays);
                let at = self.links.deliver_at(site, to, self.now + delay);
                self.schedule(at, Event::Deliver { from: site, to, clock, message });
            }
            Effect::Grant { claim, fence, units } => {
                if let Some(number) = self.oracle.granted(claim, fence, &units) {
                    self.granted(site, claim, number);
                }
            }
            Effect::Reject { claim, .. } => {
                if let Some(number) = self.oracle.number(claim) {
                    self.oracle.ended(number);
                    self.report.rejected += 1;
                    if let Some(client) = self.client_of(site, claim) {
                        self.clients[client as usize] = None;
                        self.think(client);
                    }
                }
            }
            Effect::Arm { timer, min, max } => {
                // One millisecond stands for one link delay.
                let nanos =
                    |d: core::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(1 << 60);
                let after = self.times.between(nanos(min), nanos(max));
                let armed = self.sequence + 1;
                self.timers.insert((site, timer), armed);
                self.schedule(self.now + after, Event::Fire { site, timer, armed });
            }
            Effect::Disarm { timer } => {
                self.timers.remove(&(site, timer));
            }
        }
    }

    fn granted(&mut self, site: SiteId, claim: Stamp, number: u32) {
        let Some(client) = self.client_of(site, claim) else { return };
        let live = self.clients[client as usize].as_mut().expect("it was found by its claim");
        live.held = true;
        self.report.waits.push(self.now - live.issued);
        self.report.granted.push(number);
        let factor = factor(&self.setup.long, site);
        let hold = self.setup.hold.scaled(factor).draw(&mut self.times);
        if self.setup.partial && self.oracle.units(number) > 1 {
            let half = self.now + hold / 2;
            self.schedule(half, Event::Release { client, claim, part: true });
        }
        self.schedule(self.now + hold, Event::Release { client, claim, part: false });
    }

    fn client_of(&self, site: SiteId, claim: Stamp) -> Option<u32> {
        let all = u32::try_from(self.clients.len()).expect("fewer than 2^32 clients");
        let has = |live: &Live| live.claim == claim;
        let is = |client: &u32| self.clients[*client as usize].as_ref().is_some_and(has);
        if self.setup.wander {
            return (0..all).find(is);
        }
        (u32::from(site.0)..all).step_by(usize::from(self.setup.cluster.sites)).find(is)
    }

    fn finish(mut self) -> Report {
        let unserved = self.oracle.unserved();
        let restless = self.sites.iter().filter(|(protocol, _)| !protocol.is_at_rest()).count();
        if unserved == 0 && restless > 0 && self.events.is_empty() {
            let detail = format!("{restless} sites are not idle after the last release");
            self.oracle.violate("rest", detail);
        }
        self.report.close(&self.oracle);
        self.report
    }
}

/// When each link last delivers: a message never overtakes another of its link.
struct Links {
    sites: usize,
    last: Vec<Time>,
    sparse: BTreeMap<(SiteId, SiteId), Time>,
}

impl Links {
    /// Above this many sites most links stay unused, and a table of all would be too large.
    const DENSE: u16 = 2_048;

    fn new(sites: u16) -> Self {
        let n = usize::from(sites);
        let last = if sites <= Self::DENSE { vec![0; n * n] } else { Vec::new() };
        Self { sites: n, last, sparse: BTreeMap::new() }
    }

    fn deliver_at(&mut self, from: SiteId, to: SiteId, at: Time) -> Time {
        let last = if self.last.is_empty() {
            self.sparse.entry((from, to)).or_default()
        } else {
            &mut self.last[from.index() * self.sites + to.index()]
        };
        *last = at.max(*last);
        *last
    }
}

fn factor(list: &[(SiteId, f64)], site: SiteId) -> f64 {
    list.iter().find(|entry| entry.0 == site).map_or(1.0, |entry| entry.1)
}

/// A site, by how often each asks.
fn draw_site(setup: &Setup, rng: &mut Rng) -> SiteId {
    let weight = |site: SiteId| factor(&setup.hot, site);
    let mut at = rng.unit() * setup.cluster.all().map(weight).sum::<f64>();
    let last = SiteId(setup.cluster.sites - 1);
    let mut drawn = |&site: &SiteId| {
        at -= weight(site);
        at < 0.0
    };
    setup.cluster.all().find(|site| drawn(site)).unwrap_or(last)
}

/// One pool: k of it. Several: a part of them that is not empty, each with its own k.
fn draw_demand(setup: &Setup, rng: &mut Rng) -> Demand {
    let pools = &setup.cluster.pools;
    let amount = |units: Units, rng: &mut Rng| {
        let (low, high) = (setup.k.0.min(units.0), setup.k.1.min(units.0));
        Units(u32::try_from(rng.between(low.into(), high.into())).expect("within 32 bits"))
    };
    if let [units] = pools[..] {
        return Demand::one(PoolId(0), amount(units, rng).0);
    }
    loop {
        let mut parts = Vec::new();
        for (pool, &units) in (0..).map(PoolId).zip(pools) {
            if rng.below(2) == 0 {
                parts.push((pool, amount(units, rng)));
            }
        }
        if !parts.is_empty() {
            return parts.into_iter().collect();
        }
    }
}
