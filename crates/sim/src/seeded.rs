//! One run in virtual time, drawn from a seed.
//!
//! Sites and their clients are driven by a heap of events. Each client thinks, claims, holds,
//! releases, again; each link delays its messages and keeps their order. Everything random comes
//! from one seed, so a run is a function of its [`Setup`].

mod clients;
mod setup;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use kofm_core::{
    Clock, Demand, Effect, Effects, EffectsOf, Input, InputOf, PoolId, Protocol, Service, SiteId,
    Stamp, step,
};

pub use self::setup::Setup;
pub(crate) use self::setup::{draw_demand, draw_one};
use crate::faults::{Fault, Weather};
use crate::gangs::Gangs;
use crate::groups::{Cast, names_groups};
use crate::idle::{Stock, overlooked};
use crate::oracle::Oracle;
use crate::report::Report;
use crate::rng::Rng;
use crate::span::{DELAY, Time};
use crate::trace::Step;
use crate::upkeep::Upkeep;

/// Watches a run: the trace, the progress bar.
pub trait Observer<P: Protocol> {
    /// Whether steps are wanted at all; without it none is put together.
    fn wants_steps(&self) -> bool {
        false
    }
    /// A step was taken.
    fn step(&mut self, _step: Step<P::Message, P::Timer>) {}
    /// From time to time: how many claims were granted.
    fn progress(&mut self, _grants: u64) {}
}

/// Watches nothing.
#[derive(Clone, Copy, Debug)]
pub struct Blind;

impl<P: Protocol> Observer<P> for Blind {}

/// Runs to the end: all claims made, granted and released, all messages delivered. Where sites may
/// die, they are members of epochs, and only the result is seen: see [`storm`](crate::storm).
pub fn run<P: Protocol>(setup: &Setup, observer: &mut dyn Observer<P>) -> Report {
    let epochs = setup.faults.iter().any(|fault| fault.needs_epochs());
    // Epochs are compiled for those who can resume in one, and for nobody else.
    if const { P::PROFILE.survives("crash") } {
        if epochs {
            return crate::storm::run::<P, _>(setup, kofm_core::epoch::Sound, false);
        }
    } else {
        assert!(!epochs, "{} is not asked to survive what it does not claim to", P::NAME);
    }
    let mut sim = Sim::<P>::new(setup);
    sim.start();
    let budget = sim.event_budget();
    while let Some(due) = sim.events.pop() {
        sim.handle(due.0, observer);
        if P::PERPETUAL && sim.is_over() {
            break;
        }
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
    /// Somebody adds to a semaphore what a client has done with; that one thinks again.
    Add {
        site: SiteId,
        demand: Demand,
        client: Option<u32>,
    },
    Fire {
        site: SiteId,
        timer: T,
        armed: u64,
    },
    Strike {
        fault: Fault,
    },
    /// A member of a gang has worked long enough.
    Part {
        site: SiteId,
        claim: Stamp,
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
    /// Messages on their way.
    flying: u64,
    /// The claim that waits beside free units, and since when.
    overlooked: Option<(Stamp, Time)>,
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
    /// Clients that have a claim.
    busy: usize,
    /// Faults among the events.
    strikes: usize,
    oracle: Oracle,
    weather: Weather,
    /// Follows tokens, where they can be wrong.
    upkeep: Option<Upkeep>,
    corrupts: Rng,
    delays: Rng,
    demands: Rng,
    times: Rng,
    report: Report,
    out: EffectsOf<P>,
    /// Who acts, where there are groups.
    cast: Option<Cast>,
    /// Gangs that were claimed, where there are any.
    gangs: Option<Gangs>,
}

impl<'a, P: Protocol> Sim<'a, P> {
    fn new(setup: &'a Setup) -> Self {
        let cluster = &setup.cluster;
        let mut seed = Rng::new(setup.seed);
        let mut clients = usize::from(cluster.sites) * setup.clients as usize;
        let mut oracle = Oracle::new(cluster, P::PROFILE.serves);
        let mut cast = None;
        if P::PROFILE.serves == Service::Group {
            let grouping = cluster.grouping().expect("checked by whoever made the cluster");
            oracle = Oracle::of_groups(cluster, &grouping);
            let acts = Cast::new(grouping, names_groups::<P>(cluster), setup.requests);
            clients = clients.max(acts.clients().len());
            cast = Some(acts);
        }
        let gangs = (P::PROFILE.serves == Service::Gang).then(|| Gangs::new(cluster));
        if let Some(gangs) = &gangs {
            oracle = Oracle::of_gangs(cluster, gangs);
        }
        Self {
            setup,
            now: 0,
            sites: cluster.all().map(|me| (P::new(me, cluster), Clock::default())).collect(),
            clients: vec![None; clients],
            homes: (0..cluster.sites).map(SiteId).cycle().take(clients).collect(),
            events: BinaryHeap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            links: Links::new(cluster.sites),
            held_up: BTreeMap::new(),
            timers: BTreeMap::new(),
            flying: 0,
            overlooked: None,
            remaining: setup.requests,
            busy: 0,
            strikes: 0,
            oracle,
            cast,
            gangs,
            delays: seed.fork(1),
            demands: seed.fork(2),
            times: seed.fork(3),
            weather: Weather::new(cluster.sites, seed.fork(4)),
            upkeep: None,
            corrupts: seed.fork(5),
            report: Report::new(P::NAME, setup),
            out: Effects::default(),
        }
    }

    fn start(&mut self) {
        for client in 0..u32::try_from(self.clients.len()).expect("fewer than 2^32 clients") {
            if self.troupe(client).is_none_or(|troupe| troupe.start == client) {
                self.think(client);
            }
        }
        if P::PROFILE.serves == Service::Semaphore {
            // So much that the largest claim is served in the end.
            for (pool, units) in (0..).map(PoolId).zip(&self.setup.cluster.pools) {
                let more = self.setup.k.1.saturating_sub(units.0);
                if more > 0 {
                    let (site, demand) = (self.anywhere(), Demand::one(pool, more));
                    self.schedule(self.now, Event::Add { site, demand, client: None });
                }
            }
        }
        for site in self.setup.cluster.all() {
            if let Some(timer) = self.sites[site.index()].0.alarm() {
                self.arm(site, timer, 0);
            }
        }
        if self.setup.faults.contains(&Fault::ArbitraryStart) {
            self.begin_anywhere();
        }
        if self.setup.faults.iter().any(|fault| fault.garbles()) {
            let flying = self.slab.iter().flatten().filter_map(|event| {
                if let Event::Deliver { message, .. } = event {
                    Some(P::tokens_in(message))
                } else {
                    None
                }
            });
            let flying = flying.flatten().collect();
            let sites = self.sites.iter().map(|(protocol, _)| protocol.census()).collect();
            let expected = P::expected_tokens(&self.setup.cluster);
            self.upkeep = Some(Upkeep::new(&expected, sites, flying));
        }
        for &fault in self.setup.faults.iter().filter(|fault| !fault.garbles()) {
            self.strikes += 1;
            let at = self.weather.next(self.now);
            self.schedule(at, Event::Strike { fault });
        }
    }

    /// Garbage in all variables, and on all links.
    fn begin_anywhere(&mut self) {
        const MOST: u64 = 8;
        let mut rng = self.corrupts.clone();
        let mut draw = move || rng.bits();
        for (protocol, _) in &mut self.sites {
            protocol.scramble(&mut draw);
        }
        for from in self.setup.cluster.all() {
            for to in self.setup.cluster.others(from) {
                for _ in 0..draw() % (MOST + 1) {
                    let message = self.sites[from.index()].0.garbage(to, &mut draw);
                    let Some(message) = message else { break };
                    let delay = self.setup.delay.draw(&mut self.delays);
                    let at = self.links.deliver_at(from, to, self.now + delay);
                    let clock = Clock::default();
                    self.schedule(at, Event::Deliver { from, to, clock, message });
                }
            }
        }
    }

    /// A perpetual protocol has no end of its own: it is over when all claims are, and all is well.
    fn is_over(&self) -> bool {
        let settled = self.upkeep.as_ref().is_none_or(Upkeep::is_right);
        self.remaining == 0 && settled && self.busy == 0
    }

    /// A fault may garble a site's memory after any of its steps.
    fn corrupt(&mut self, site: SiteId) {
        for fault in &self.setup.faults {
            let Fault::Corrupt(p) = *fault else { continue };
            if self.remaining > 0 && self.corrupts.unit() < p {
                let corrupts = &mut self.corrupts;
                self.sites[site.index()].0.scramble(&mut || corrupts.bits());
                if let Some(upkeep) = &mut self.upkeep {
                    upkeep.struck(self.now);
                }
            }
        }
    }

    /// After a step: how the tokens are.
    fn look_after(&mut self, site: SiteId, out: &EffectsOf<P>) {
        let Some(mut upkeep) = self.upkeep.take() else { return };
        for effect in out.as_slice() {
            if let Effect::Send { message, .. } = effect {
                upkeep.sent(&P::tokens_in(message));
            }
        }
        upkeep.stepped(site, self.sites[site.index()].0.census());
        let held = || {
            let live = self.clients.iter().flatten();
            live.filter(|live| live.held).map(|live| live.number)
        };
        if upkeep.judge(self.now, self.report.events, self.report.messages, held) {
            self.oracle.forgive();
        }
        self.upkeep = Some(upkeep);
    }

    /// More events than any protocol needs: where it is exceeded, something turns in a circle.
    fn event_budget(&self) -> u64 {
        let sites = u64::from(self.setup.cluster.sites);
        10_000 + self.setup.requests.saturating_mul(100 * sites * sites.max(10))
    }

    fn schedule(&mut self, at: Time, event: Event<P::Message, P::Timer>) {
        self.flying += u64::from(matches!(event, Event::Deliver { .. }));
        self.sequence += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            u32::try_from(self.slab.len() - 1).expect("fewer than 2^32 events at once")
        });
        self.slab[place as usize] = Some(event);
        self.events.push(Reverse((at, self.sequence, place)));
    }

    fn handle(&mut self, (at, number, place): Due, observer: &mut dyn Observer<P>) {
        self.now = at;
        let event = self.slab[place as usize].as_ref().expect("a scheduled event is kept");
        if !self.setup.faults.is_empty() {
            let link = match event {
                Event::Deliver { from, to, .. } => Some((*from, *to)),
                Event::Claim { .. }
                | Event::Release { .. }
                | Event::GiveUp { .. }
                | Event::Add { .. }
                | Event::Fire { .. }
                | Event::Part { .. }
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
                self.flying -= 1;
                self.step(to, Input::Deliver { from, clock, message }, observer);
            }
            Event::Claim { client } => self.claim(client, observer),
            Event::Release { client, claim, part } => self.release(client, claim, part, observer),
            Event::GiveUp { client, claim } => self.give_up(client, claim, observer),
            Event::Add { site, demand, client } => {
                self.oracle.added(&demand);
                self.step(site, Input::Add { demand }, observer);
                if let Some(client) = client {
                    self.think(client);
                }
            }
            Event::Fire { site, timer, armed } => {
                if self.timers.get(&(site, timer)) == Some(&armed) {
                    self.timers.remove(&(site, timer));
                    self.step(site, Input::Fire { timer }, observer);
                }
            }
            Event::Strike { fault } => self.strike(fault),
            Event::Part { site, claim } => {
                self.part_done(claim);
                self.step(site, Input::Release { claim, part: None }, observer);
            }
        }
    }

    fn clear_at(&self, event: &Event<P::Message, P::Timer>) -> Time {
        let (site, from) = match event {
            Event::Deliver { from, to, .. } => (*to, Some(*from)),
            Event::Claim { client }
            | Event::Release { client, .. }
            | Event::GiveUp { client, .. } => (self.home(*client), None),
            Event::Add { site, .. } | Event::Fire { site, .. } | Event::Part { site, .. } => {
                (*site, None)
            }
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

    fn step(&mut self, site: SiteId, input: InputOf<P>, observer: &mut dyn Observer<P>) {
        self.report.events += 1;
        let recorded = observer.wants_steps().then(|| input.clone());
        let mut out = std::mem::take(&mut self.out);
        if let (Some(upkeep), Input::Deliver { message, .. }) = (&mut self.upkeep, &input) {
            upkeep.arrived(&P::tokens_in(message));
        }
        let (protocol, clock) = &mut self.sites[site.index()];
        if let Err(fault) = step(protocol, clock, input, &mut out) {
            let detail = format!("{site} refused a correct site's message: {fault}");
            self.oracle.violate("understanding", detail);
        }
        if let Some(input) = recorded {
            let effects = out.as_slice().to_vec();
            observer.step(Step::new(self.report.events, Some(self.now), site, input, effects));
        }
        let garbled = self.upkeep.is_some();
        if garbled {
            self.corrupt(site);
            self.look_after(site, &out);
        }
        for effect in out.drain() {
            self.carry_out(site, effect);
        }
        if garbled && self.upkeep.as_ref().is_some_and(|upkeep| !upkeep.is_right()) {
            self.oracle.forgive();
        }
        self.out = out;
        if cfg!(debug_assertions) && self.flying == 0 && self.setup.faults.is_empty() {
            self.look_for_idle();
        }
        if P::PROFILE.serves == Service::Group {
            let sites = &self.sites;
            let has = |site: SiteId, rival: SiteId| {
                sites[site.index()].0.census().tokens.contains(&rival.0.into())
            };
            self.oracle.stepped(site, &has);
        }
        if P::PROFILE.serves == Service::Semaphore {
            for pool in (0..).map(PoolId).take(self.setup.cluster.pools.len()) {
                if let Some(head) = self.sites[site.index()].0.head(pool) {
                    self.oracle.turn(pool, &head);
                }
            }
        }
        if self.report.events.is_multiple_of(0x10_0000) {
            observer.progress(self.report.waits.len() as u64);
        }
    }

    /// Nobody waits for long beside free units, where the protocol says which are.
    fn look_for_idle(&mut self) {
        let waiting = || self.clients.iter().flatten().filter(|live| !live.held);
        let stock = |(protocol, _): &(P, Clock)| {
            let idle = protocol.idle_units()?;
            let mine = waiting().filter(|live| live.claim.site == protocol.me());
            let waiting = mine.map(|live| (live.claim, self.oracle.demand(live.number).clone()));
            Some(Stock { idle, waiting: waiting.collect(), armed: false })
        };
        let stocks: Vec<Stock> = self.sites.iter().map_while(stock).collect();
        let Some(claim) = overlooked(stocks.iter()) else {
            self.overlooked = None;
            return;
        };
        let (other, since) = *self.overlooked.get_or_insert((claim, self.now));
        if other != claim {
            self.overlooked = Some((claim, self.now));
        } else if self.now - since > 300 * DELAY {
            let detail = format!("{claim} waits beside free units, and nothing is in flight");
            self.oracle.violate("idleness", detail);
        }
    }

    fn carry_out(&mut self, site: SiteId, effect: Effect<P::Message, P::Timer>) {
        match effect {
            Effect::Send { to, clock, message, serves } => {
                self.report.messages += 1;
                if let Some(number) = serves.and_then(|claim| self.oracle.number(claim)) {
                    self.report.charges[number as usize] += 1;
                } else if serves.is_none() && P::PROFILE.serves == Service::Semaphore {
                    self.report.spread += 1;
                }
                let delay = self.setup.delay.draw(&mut self.delays);
                let at = self.links.deliver_at(site, to, self.now + delay);
                self.schedule(at, Event::Deliver { from: site, to, clock, message });
            }
            Effect::Grant { claim, .. } if self.gangs.is_some() && claim.site != site => {
                self.part_begun(site, claim);
            }
            Effect::Grant { claim, fence, units } => {
                // The units of a gang are its members', each with its own.
                let units = if self.gangs.is_some() { Vec::new() } else { units };
                if let Some(number) = self.oracle.granted(claim, fence, &units) {
                    self.granted(site, claim, number);
                }
            }
            Effect::Reject { claim, .. } => {
                if let Some(number) = self.oracle.number(claim) {
                    self.oracle.ended(number);
                    if let Some(gangs) = &mut self.gangs {
                        gangs.ended(claim);
                    }
                    self.report.rejected += 1;
                    if let Some(client) = self.client_of(site, claim) {
                        self.leave(client);
                    }
                }
            }
            Effect::Revoke { claim } => {
                if let Some(client) = self.client_of(site, claim)
                    && let Some(live) = self.clients[client as usize].filter(|live| live.held)
                {
                    self.report.revoked += 1;
                    self.oracle.released(live.number, None);
                    self.leave(client);
                }
            }
            Effect::Arm { timer, min, max } => {
                // One millisecond stands for one link delay.
                let nanos =
                    |d: core::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(1 << 60);
                let (min, max) = (nanos(min), nanos(max));
                // A timer that has no choice leaves the workload as it is.
                let after = if min == max { min } else { self.times.between(min, max) };
                self.arm(site, timer, after);
            }
            Effect::Disarm { timer } => {
                self.timers.remove(&(site, timer));
            }
        }
    }

    fn arm(&mut self, site: SiteId, timer: P::Timer, after: Time) {
        let armed = self.sequence + 1;
        self.timers.insert((site, timer), armed);
        self.schedule(self.now + after, Event::Fire { site, timer, armed });
    }

    fn finish(mut self) -> Report {
        let unserved = self.oracle.unserved();
        let restless = self.sites.iter().filter(|(protocol, _)| !protocol.is_at_rest()).count();
        if unserved == 0 && restless > 0 && self.events.is_empty() {
            let detail = format!("{restless} sites are not idle after the last release");
            self.oracle.violate("rest", detail);
        }
        self.report.stabilised = self.upkeep.map(Upkeep::stabilised);
        if let Some(open) = self.gangs.as_ref().map(Gangs::open).filter(|&open| open > 0) {
            self.oracle.violate("together", format!("{open} gangs did not start or end together"));
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
