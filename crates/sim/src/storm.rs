//! One run in virtual time in which sites die, come back and are wrongly believed dead.
//!
//! The sites are [`Member`]s. Each renews its lease in a store that can be reached from a majority,
//! says that it lives, suspects whom it has not heard from, and waits for the end of the leases of
//! those who departed; all by its own clock, which may be slow or fast. Everything random comes
//! from one seed.

mod clients;
mod ops;
mod strikes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use kofm_core::epoch::{
    self, Frame, Member, MemberEffect, MemberInput, Phase, Record, Rules, Slip, Standing,
};
use kofm_core::parts::SiteSet;
use kofm_core::{Cluster, Effect, Input, InputOf, PoolId, Protocol, Service, SiteId, Stamp, Unit};

use crate::faults::Fault;
use crate::mortal::usable;
use crate::oracle::Oracle;
use crate::report::Report;
use crate::rng::Rng;
use crate::seeded::Setup;
use crate::span::{DELAY, Span, Time};

/// A site's lease, by its own clock.
const LEASE: Time = 100 * DELAY;
/// Time between two renewals.
const BEAT: Time = LEASE / 5;
/// A site that was not heard of for so long is suspected.
const SILENCE: Time = LEASE / 2;
/// How wrong clocks may be, where they are.
const RHO: f64 = 0.01;
/// Between two faults of a kind, and how long one lasts.
const EVERY: Span = Span::Exponential(300.0);
const LASTS: Span = Span::Exponential(100.0);

/// Runs to the end: all claims made, granted and released, and everything healed. With `memory`
/// a site that comes back remembers what it had granted.
pub fn run<P: Protocol, R: Rules>(setup: &Setup, rules: R, memory: bool) -> Report {
    play(Storm::<P, R>::new(setup, rules, memory))
}

/// The same, where units are taken out of use and returned all the time. Of each pool, as many are
/// left as somebody may ask for.
pub fn run_with_outages<P: Protocol, R: Rules>(setup: &Setup, rules: R, memory: bool) -> Report {
    let mut storm = Storm::<P, R>::new(setup, rules, memory);
    let first = EVERY.draw(&mut storm.outages);
    storm.schedule(first, Event::Outage);
    play(storm)
}

fn play<P: Protocol, R: Rules>(mut storm: Storm<'_, P, R>) -> Report {
    storm.start();
    while let Some(Reverse((at, _, place))) = storm.events.pop() {
        storm.now = at;
        let event = storm.slab[place].take().expect("a scheduled event is kept");
        storm.free.push(place);
        storm.report.events += 1;
        storm.handle(event);
        if storm.is_over() {
            break;
        }
    }
    storm.finish()
}

/// Clocks are as wrong as they may be, or right.
fn thirds(rng: &mut Rng) -> usize {
    usize::try_from(rng.below(3)).expect("a small number")
}

enum Event<P: Protocol> {
    /// Something arrives on this link: the oldest that is on its way.
    Arrive {
        from: SiteId,
        to: SiteId,
    },
    Claim {
        client: usize,
    },
    Release {
        client: usize,
        claim: Stamp,
        part: bool,
    },
    GiveUp {
        client: usize,
        claim: Stamp,
    },
    /// A client calls P or V, again if it was not answered.
    Call {
        client: usize,
        id: u64,
    },
    /// A client adds what it took from a semaphore.
    Return {
        client: usize,
        op: epoch::Op,
    },
    Fire {
        site: SiteId,
        life: u64,
        timer: P::Timer,
        armed: u64,
    },
    Strike {
        fault: Fault,
    },
    /// Somebody takes a unit out of use, or returns one.
    Outage,
    Restart {
        site: SiteId,
    },
    Beat {
        site: SiteId,
    },
    /// A renewal reaches the store.
    Renew {
        site: SiteId,
        life: u64,
        epoch: u64,
        sent: Time,
    },
    Renewed {
        site: SiteId,
        life: u64,
        sent: Time,
    },
    /// A proposal reaches the store.
    Propose {
        site: SiteId,
        life: u64,
        record: Arc<Record<Cluster>>,
    },
    /// What the store has reaches a site.
    Learn {
        site: SiteId,
        life: u64,
        record: Arc<Record<Cluster>>,
    },
    /// The leases of a life may have ended.
    Expire {
        site: SiteId,
        life: u64,
    },
    /// A site has waited long enough for those who departed with an epoch.
    Over {
        site: SiteId,
        life: u64,
        epoch: u64,
    },
}

enum Parcel<M> {
    /// I live.
    Ping,
    Frame(Box<Frame<M>>),
}

struct Place<P: Protocol, R: Rules> {
    member: Option<Member<P, R>>,
    life: u64,
    rate: f64,
    leased: bool,
    paused: Time,
    /// When each other site was last heard of.
    heard: Vec<Time>,
    suspects: SiteSet,
    /// What the protocol has still to be told.
    pending: Vec<InputOf<P>>,
    /// Frames that wait for the lease.
    kept: VecDeque<(SiteId, Frame<P::Message>)>,
    proposal: Option<Arc<Record<Cluster>>>,
    timers: BTreeMap<P::Timer, u64>,
    waits_for: BTreeSet<u64>,
    departed: bool,
    /// What is written down for the next life.
    journal: BTreeMap<Stamp, Standing>,
    /// What its disk says of its account with semaphores.
    disk: Option<BTreeMap<PoolId, epoch::Account>>,
}

#[derive(Clone, Copy)]
struct Live {
    claim: Stamp,
    life: u64,
    number: u32,
    issued: Time,
    held: bool,
}

struct Storm<'a, P: Protocol, R: Rules> {
    setup: &'a Setup,
    rules: R,
    memory: bool,
    now: Time,
    places: Vec<Place<P, R>>,
    links: Vec<VecDeque<Parcel<P::Message>>>,
    last: Vec<Time>,
    /// Who cannot reach whom, until when: from one half to the other, and back unless one-way.
    cuts: Vec<(SiteSet, Time, bool)>,
    store: Arc<Record<Cluster>>,
    /// When the lease of each life ends.
    leases: BTreeMap<(SiteId, u64), Time>,
    clients: Vec<Option<Live>>,
    /// Operations of clients on semaphores.
    ops: ops::Ops,
    events: BinaryHeap<Reverse<(Time, u64, usize)>>,
    slab: Vec<Option<Event<P>>>,
    free: Vec<usize>,
    sequence: u64,
    remaining: u64,
    /// Since when nobody has anything to do.
    quiet: Option<Time>,
    last_claim: Time,
    oracle: Oracle,
    delays: Rng,
    demands: Rng,
    times: Rng,
    weather: Rng,
    outages: Rng,
    report: Report,
}

impl<'a, P: Protocol, R: Rules> Storm<'a, P, R> {
    fn new(setup: &'a Setup, rules: R, memory: bool) -> Self {
        let cluster = &setup.cluster;
        let mut seed = Rng::new(setup.seed);
        let sites = usize::from(cluster.sites);
        let members = cluster.all().map(|site| (site, 1)).collect();
        let store = Arc::new(Record::first(members, cluster.clone()));
        let mut weather = seed.fork(4);
        let wrong = setup.faults.iter().any(|fault| matches!(fault, Fault::ClockRate));
        let mut place = |site: SiteId| Place {
            member: Some(Member::new(rules, site, 1, Arc::clone(&store))),
            life: 1,
            rate: if wrong { [1.0 - RHO, 1.0, 1.0 + RHO][thirds(&mut weather)] } else { 1.0 },
            leased: false,
            paused: 0,
            heard: vec![0; sites],
            suspects: SiteSet::new(),
            pending: Vec::new(),
            kept: VecDeque::new(),
            proposal: None,
            timers: BTreeMap::new(),
            waits_for: BTreeSet::new(),
            departed: false,
            journal: BTreeMap::new(),
            disk: Some(BTreeMap::new()),
        };
        Self {
            setup,
            rules,
            memory,
            now: 0,
            places: cluster.all().map(&mut place).collect(),
            links: (0..sites * sites).map(|_| VecDeque::new()).collect(),
            last: vec![0; sites * sites],
            cuts: Vec::new(),
            store,
            leases: BTreeMap::new(),
            clients: vec![None; sites * setup.clients as usize],
            ops: ops::Ops::new(sites * setup.clients as usize),
            events: BinaryHeap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            remaining: setup.requests,
            quiet: None,
            last_claim: 0,
            oracle: Oracle::new(cluster, P::PROFILE.serves),
            delays: seed.fork(1),
            demands: seed.fork(2),
            times: seed.fork(3),
            weather,
            outages: seed.fork(5),
            report: Report::new(P::NAME, setup),
        }
    }

    fn start(&mut self) {
        for site in self.setup.cluster.all() {
            self.lease(site, 1, 0);
            let first = self.times.below(BEAT);
            self.schedule(first, Event::Beat { site });
            let store = Arc::clone(&self.store);
            self.change(site, epoch::Input::Decided(store));
        }
        for client in 0..self.clients.len() {
            self.think(client);
        }
        self.fill_semaphores();
        for &fault in &self.setup.faults {
            if !matches!(fault, Fault::ClockRate) {
                let at = EVERY.draw(&mut self.weather);
                self.schedule(at, Event::Strike { fault });
            }
        }
    }

    fn schedule(&mut self, at: Time, event: Event<P>) {
        self.sequence += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            self.slab.len() - 1
        });
        self.slab[place] = Some(event);
        self.events.push(Reverse((at, self.sequence, place)));
    }

    fn sites(&self) -> impl Iterator<Item = SiteId> + use<P, R> {
        (0..self.setup.cluster.sites).map(SiteId)
    }

    fn place(&mut self, site: SiteId) -> &mut Place<P, R> {
        &mut self.places[site.index()]
    }

    fn member(&self, site: SiteId) -> Option<&Member<P, R>> {
        self.places[site.index()].member.as_ref()
    }

    /// A duration by a site's clock, in true time.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, positive")]
    fn local(&self, site: SiteId, span: Time) -> Time {
        (span as f64 / self.places[site.index()].rate) as Time
    }

    fn lease(&mut self, site: SiteId, life: u64, sent: Time) {
        let until = sent + self.local(site, LEASE);
        let known = self.leases.entry((site, life)).or_default();
        if until > *known {
            *known = until;
            self.schedule(until, Event::Expire { site, life });
        }
    }

    fn handle(&mut self, event: Event<P>) {
        // What happens at a site that stands still happens when it goes on.
        let site = match &event {
            Event::Arrive { to, .. } => Some(*to),
            Event::Claim { client }
            | Event::Release { client, .. }
            | Event::GiveUp { client, .. } => Some(self.home(*client)),
            Event::Fire { site, .. }
            | Event::Beat { site }
            | Event::Renewed { site, .. }
            | Event::Learn { site, .. }
            | Event::Over { site, .. } => Some(*site),
            Event::Strike { .. }
            | Event::Outage
            | Event::Call { .. }
            | Event::Return { .. }
            | Event::Restart { .. }
            | Event::Renew { .. }
            | Event::Propose { .. }
            | Event::Expire { .. } => None,
        };
        let mut clear = site.map_or(0, |site| self.places[site.index()].paused);
        if let Event::Arrive { from, to } = event {
            clear = clear.max(self.cut(from, to));
        }
        if clear > self.now {
            return self.schedule(clear, event);
        }
        if let Some(site) = site {
            self.check_lease(site);
        }
        self.happen(event);
        if let Some(site) = site {
            self.catch_up(site);
        }
    }

    fn happen(&mut self, event: Event<P>) {
        match event {
            Event::Arrive { from, to } => self.arrive(from, to),
            Event::Claim { client } => self.claim(client),
            Event::Release { client, claim, part } => self.release(client, claim, part),
            Event::GiveUp { client, claim } => self.give_up(client, claim),
            Event::Fire { site, life, timer, armed } => {
                let place = self.place(site);
                if place.life == life && place.timers.get(&timer) == Some(&armed) {
                    place.timers.remove(&timer);
                    self.tell(site, Input::Fire { timer });
                }
            }
            Event::Call { client, id } => self.call_again(client, id),
            Event::Return { client, op } => self.issue(client, op),
            Event::Strike { fault } => self.strike(fault),
            Event::Outage => self.outage(),
            Event::Restart { site } => self.begin_life(site),
            Event::Beat { site } => self.beat(site),
            Event::Renew { site, life, epoch, sent } => self.renew(site, life, epoch, sent),
            Event::Renewed { site, life, sent } => {
                let slips = self.rules.slips(Slip::LeasesFromTheAnswer);
                self.lease(site, life, if slips { self.now } else { sent });
                self.check_lease(site);
                if self.places[site.index()].life == life {
                    self.adopt(site);
                }
            }
            Event::Propose { site, life, record } => {
                if record.epoch == self.store.epoch + 1 {
                    self.store = record;
                    self.judge_record();
                }
                self.send_store(site, life);
            }
            Event::Learn { site, life, record } => {
                if self.places[site.index()].life == life {
                    self.change(site, epoch::Input::Decided(record));
                }
            }
            Event::Expire { site, life } => self.expire(site, life),
            Event::Over { site, life, epoch } => {
                if self.places[site.index()].life == life {
                    self.change(site, epoch::Input::Over(epoch));
                }
            }
        }
    }

    /// Until when nothing gets from one site to another.
    fn cut(&self, from: SiteId, to: SiteId) -> Time {
        let cuts = self.cuts.iter().filter(|(half, _, one_way)| {
            let there = half.contains(from) && !half.contains(to);
            there || !one_way && half.contains(to) && !half.contains(from)
        });
        cuts.map(|cut| cut.1).max().unwrap_or(0)
    }

    /// Whether a site can talk with a majority, and so with the store.
    fn reaches_store(&self, site: SiteId) -> bool {
        let there = |&other: &SiteId| {
            let place = &self.places[other.index()];
            let talks = self.cut(site, other) <= self.now && self.cut(other, site) <= self.now;
            other == site || place.member.is_some() && place.paused <= self.now && talks
        };
        2 * self.sites().filter(there).count() > self.places.len()
    }

    fn draw_delay(&mut self) -> Time {
        if self.quiet.is_some() {
            // The weather is fine at last: nobody is suspected any more.
            return DELAY;
        }
        self.setup.delay.draw(&mut self.delays)
    }

    fn send(&mut self, from: SiteId, to: SiteId, parcel: Parcel<P::Message>) {
        if self.member(to).is_none() {
            return;
        }
        let link = from.index() * self.places.len() + to.index();
        let at = (self.now + self.draw_delay()).max(self.last[link]);
        self.last[link] = at;
        self.links[link].push_back(parcel);
        self.schedule(at, Event::Arrive { from, to });
    }

    fn arrive(&mut self, from: SiteId, to: SiteId) {
        let link = from.index() * self.places.len() + to.index();
        let Some(parcel) = self.links[link].pop_front() else { return };
        let now = self.now;
        let place = self.place(to);
        place.heard[from.index()] = now;
        let (Some(member), Parcel::Frame(frame)) = (&place.member, parcel) else { return };
        let frame = *frame;
        if member.keeps(&frame) {
            place.kept.push_back((from, frame));
            return;
        }
        self.step(to, MemberInput::Deliver { from, frame });
    }

    /// Before anything else happens at a site: whether it still may grant.
    fn check_lease(&mut self, site: SiteId) {
        let place = &self.places[site.index()];
        let valid = self.leases.get(&(site, place.life)).is_some_and(|&until| self.now < until);
        if place.member.is_none() || place.leased == valid {
            return;
        }
        self.place(site).leased = valid;
        self.change(site, epoch::Input::Lease(valid));
    }

    /// Catches up with what had to wait.
    fn catch_up(&mut self, site: SiteId) {
        let may_grant = |storm: &Self| storm.member(site).is_some_and(Member::may_grant);
        while may_grant(self) && !self.places[site.index()].pending.is_empty() {
            let input = self.place(site).pending.remove(0);
            self.step(site, MemberInput::Local(input));
        }
        while self.member(site).is_some_and(|member| {
            self.places[site.index()].kept.front().is_some_and(|(_, frame)| !member.keeps(frame))
        }) {
            let Some((from, frame)) = self.place(site).kept.pop_front() else { break };
            self.step(site, MemberInput::Deliver { from, frame });
        }
    }

    /// Tells the protocol, now or when it may go on.
    fn tell(&mut self, site: SiteId, input: InputOf<P>) {
        self.place(site).pending.push(input);
        self.catch_up(site);
    }

    fn change(&mut self, site: SiteId, input: epoch::Input<Cluster>) {
        self.step(site, MemberInput::Change(input));
        self.catch_up(site);
    }

    fn step(&mut self, site: SiteId, input: MemberInput<P::Message, P::Timer>) {
        let mut out = Vec::new();
        let Some(member) = &mut self.place(site).member else { return };
        if let Err(fault) = member.step(input, &mut out) {
            let detail = format!("{site} refused a correct site's message: {fault}");
            self.oracle.violate("understanding", detail);
        }
        self.write_down(site);
        for effect in out {
            self.carry_out(site, effect);
        }
    }

    fn carry_out(&mut self, site: SiteId, effect: MemberEffect<P::Message, P::Timer>) {
        let life = self.places[site.index()].life;
        match effect {
            MemberEffect::Send { to, frame, serves } => {
                self.report.messages += 1;
                if let Some(number) = serves.and_then(|claim| self.oracle.number(claim)) {
                    self.report.charges[number as usize] += 1;
                }
                self.send(site, to, Parcel::Frame(Box::new(frame)));
            }
            MemberEffect::Local(Effect::Grant { claim, fence, units }) => {
                self.granted(site, claim, fence, &units);
            }
            MemberEffect::Local(Effect::Reject { claim, reason }) => {
                let detail = format!("{claim} was refused: {reason}");
                self.oracle.violate("claims", detail);
            }
            MemberEffect::Local(Effect::Revoke { claim }) => {
                self.oracle.violate("claims", format!("{claim} was taken back"));
            }
            MemberEffect::Local(Effect::Arm { timer, min, max }) => {
                let nanos = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(1 << 60);
                let after = self.times.between(nanos(min), nanos(max));
                let armed = self.sequence + 1;
                self.place(site).timers.insert(timer, armed);
                self.schedule(self.now + after, Event::Fire { site, life, timer, armed });
            }
            MemberEffect::Local(Effect::Disarm { timer }) => {
                self.place(site).timers.remove(&timer);
            }
            MemberEffect::Propose(record) => {
                self.place(site).proposal = Some(record);
                self.propose(site);
            }
            MemberEffect::Installed => {
                let place = self.place(site);
                place.timers.clear();
                place.kept.clear();
                self.inherit(site);
                self.wait_for_departed(site);
            }
            MemberEffect::Local(Effect::Send { .. })
            | MemberEffect::Resumed
            | MemberEffect::Kept(_) => {}
            MemberEffect::Done { number } => self.answered(site, number),
            MemberEffect::Departed => self.place(site).departed = true,
        }
    }

    /// Clients of the last life go on with this one where the epoch has confirmed what they have;
    /// what nobody has any more is given back.
    fn inherit(&mut self, site: SiteId) {
        let Some(member) = self.member(site) else { return };
        // As the epoch begins: what is granted since has its client.
        let record = member.epochs().record();
        let told = record.surveys.iter().flat_map(|survey| survey.of(site));
        let held = told.filter(|(_, told)| told.held.is_some());
        let held: Vec<Stamp> = held.map(|(claim, _)| claim).collect();
        let clients = self.clients_of(site);
        for claim in held {
            let its = |&client: &usize| {
                self.clients[client].is_some_and(|live| live.claim == claim && live.held)
            };
            if clients.iter().any(its) {
                continue;
            }
            let release = Input::Release { claim, part: None };
            let pending = &mut self.place(site).pending;
            if !pending.contains(&release) {
                pending.push(release);
            }
        }
        self.adopt(site);
    }

    /// Clients of the last life renew with this one as soon as it can vouch for what they have.
    /// Until then they go by the lease of the last.
    fn adopt(&mut self, site: SiteId) {
        let life = self.places[site.index()].life;
        if self.leases.get(&(site, life)).is_none_or(|&until| until <= self.now) {
            return;
        }
        for client in self.clients_of(site) {
            let Some(live) = self.clients[client].filter(|live| live.held && live.life != life)
            else {
                continue;
            };
            if self.goes_on(site, live.claim)
                && let Some(live) = &mut self.clients[client]
            {
                live.life = life;
            }
        }
    }

    /// Whether the life that a site has now is known to hold a claim, of whatever life.
    fn goes_on(&self, site: SiteId, claim: Stamp) -> bool {
        self.member(site).is_some_and(|member| {
            member.epochs().phase() != Phase::Outside && member.claims().contains_key(&claim)
        })
    }

    /// Starts to wait for the leases of those who departed.
    fn wait_for_departed(&mut self, site: SiteId) {
        let place = &self.places[site.index()];
        let Some(member) = &place.member else { return };
        let life = place.life;
        let since: Vec<u64> = member.epochs().record().quarantine.keys().copied().collect();
        // T_s (1 + rho) / (1 - rho), and a little.
        let early = if self.rules.slips(Slip::WaitsSinceTheSilence) { SILENCE } else { 0 };
        let wait = LEASE / 99 * 101 + DELAY - early;
        for epoch in since {
            if self.place(site).waits_for.insert(epoch) {
                let at = self.now + self.local(site, wait);
                self.schedule(at, Event::Over { site, life, epoch });
            }
        }
    }

    fn propose(&mut self, site: SiteId) {
        let life = self.places[site.index()].life;
        let Some(member) = self.member(site) else { return };
        let known = member.epochs().record().epoch;
        self.place(site).proposal.take_if(|record| record.epoch <= known);
        let Some(record) = self.places[site.index()].proposal.clone() else { return };
        if self.reaches_store(site) {
            let at = self.now + self.draw_delay();
            self.schedule(at, Event::Propose { site, life, record });
        }
    }

    fn renew(&mut self, site: SiteId, life: u64, epoch: u64, sent: Time) {
        let member = self.store.members.get(&site) == Some(&life);
        if member && self.store.epoch == epoch || self.rules.slips(Slip::RenewsTheDeparted) {
            let at = self.now + self.draw_delay();
            self.schedule(at, Event::Renewed { site, life, sent });
        } else {
            self.send_store(site, life);
        }
    }

    fn send_store(&mut self, site: SiteId, life: u64) {
        if self.reaches_store(site) {
            let at = self.now + self.draw_delay();
            let record = Arc::clone(&self.store);
            self.schedule(at, Event::Learn { site, life, record });
        }
    }

    fn beat(&mut self, site: SiteId) {
        let next = self.now + self.local(site, BEAT);
        self.schedule(next, Event::Beat { site });
        if self.places[site.index()].departed {
            self.end_life(site);
            self.begin_life(site);
        }
        let Some(member) = self.member(site) else { return };
        let (life, epoch) = (self.places[site.index()].life, member.epochs().record().epoch);
        let outside = member.epochs().phase() == Phase::Outside;
        let members: Vec<SiteId> = member.epochs().record().members.keys().copied().collect();
        if self.reaches_store(site) {
            let at = self.now + self.draw_delay();
            self.schedule(at, Event::Renew { site, life, epoch, sent: self.now });
        }
        self.propose(site);
        for to in self.sites().filter(|&to| to != site).collect::<Vec<_>>() {
            self.send(site, to, Parcel::Ping);
        }
        if outside {
            let others: Vec<SiteId> = members.iter().copied().filter(|&to| to != site).collect();
            if !others.is_empty() {
                let i = self.weather.below(others.len() as u64);
                let to = others[usize::try_from(i).expect("a small number")];
                let join = self.member(site).expect("it lives").join();
                self.send(site, to, Parcel::Frame(Box::new(join)));
            }
        }
        let silence = self.local(site, SILENCE);
        let place = &self.places[site.index()];
        let silent =
            |other: &SiteId| *other != site && place.heard[other.index()] + silence < self.now;
        let suspects: SiteSet = members.iter().copied().filter(silent).collect();
        // Who hears from few is itself the one who is cut off.
        let heard = self.sites().filter(|site| !silent(site)).count();
        let most = 2 * heard > self.places.len();
        let suspects = if most { suspects } else { SiteSet::new() };
        // It is about lives: said again in every epoch.
        if suspects != place.suspects || !suspects.is_empty() {
            self.place(site).suspects = suspects.clone();
            self.change(site, epoch::Input::Suspect(suspects));
        }
    }

    /// Everything was asked for, and nobody has had anything to do for a while.
    fn is_over(&mut self) -> bool {
        let idle =
            self.remaining == 0 && self.clients.iter().all(Option::is_none) && self.ops.are_done();
        if !idle {
            self.quiet = None;
        } else if self.quiet.is_none() {
            self.quiet = Some(self.now);
        }
        let rested = self.quiet.is_some_and(|since| self.now > since + 15 * LEASE);
        rested
            || self.remaining == 0 && self.now > self.last_claim + 300 * LEASE
            || self.now > self.last_claim + 2_000 * LEASE
    }

    fn finish(mut self) -> Report {
        let living = || self.places.iter().filter_map(|place| place.member.as_ref());
        // A person has to set values that are held back because too many sites were lost at once.
        let sure = P::PROFILE.serves != Service::Semaphore || self.is_sure();
        let restless = living().filter(|m| !m.is_at_rest() || !m.may_grant()).count();
        let restless = if sure { restless } else { 0 };
        let mut wrong = Vec::new();
        if P::PROFILE.serves == Service::Semaphore && sure {
            wrong.extend(self.judge_values());
        }
        if self.remaining > 0 && sure {
            wrong.push(("progress", "nobody could claim for a long time".to_owned()));
        }
        if restless > 0 {
            wrong.push(("rest", format!("{restless} sites are not idle after the last release")));
        }
        if !self.store.quarantine.is_empty() {
            wrong.push(("rest", "units are withheld for ever".to_owned()));
        }
        let idle: Option<Vec<Vec<Unit>>> =
            living().map(|member| member.protocol().and_then(P::idle_units)).collect();
        if let Some(idle) = idle.filter(|_| restless == 0) {
            let all = usable(&self.store.plan);
            let here = idle.iter().map(Vec::len).sum::<usize>() as u64;
            if here != all {
                wrong.push(("units", format!("{here} of {all} units are left")));
            }
        }
        for (property, detail) in wrong {
            self.oracle.violate(property, detail);
        }
        self.report.close(&self.oracle);
        self.report
    }
}
