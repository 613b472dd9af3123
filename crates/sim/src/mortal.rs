//! A cluster whose sites die, come back, and are wrongly believed dead: everything, as one value.
//!
//! The sites are [`Member`]s: a protocol with the machine that changes epochs. The store is one
//! register. There is no time; what time would guarantee is when something may happen: the leases
//! of
//! a life that is not in the store's record end at any moment, and only after that may somebody
//! hear that they are over.

mod keeps;
mod leave;
mod ops;
mod papers;
mod search;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kofm_core::epoch::{
    self, Adopted, Frame, LeaseKey, Member, MemberEffect, MemberEffects, MemberInput, Message,
    Phase, Record, Rules, Slip, Standing,
};
use kofm_core::parts::SiteSet;
use kofm_core::{
    Cluster, Demand, Effect, Input, PoolId, Protocol, Service, SiteId, Stamp, Unit, Units,
};

pub use search::{Finding, explore};

use crate::world::{Script, Timers, Violation};

/// What may go wrong, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Sites that die.
    pub crashes: u32,
    /// Sites that come back after that.
    pub restarts: u32,
    /// Whether they remember what was granted; otherwise they come back without memory.
    pub memory: bool,
    /// Sites that are believed dead while they live.
    pub doubts: u32,
    /// A new size of the first pool, asked for once.
    pub resize: Option<u32>,
    /// How often the first unit is taken out of use, or returned if it is.
    pub outages: u32,
    /// How often a lease is presented to a site. If never, leases end with the life that granted
    /// them, or go on with the next life of the same site.
    pub papers: u32,
    /// Sites that leave by themselves; each comes back in another life.
    pub leaves: u32,
    /// How often an operation on a semaphore is called again, at any site. If never, operations
    /// have no ids.
    pub repeats: u32,
    /// Whether only the first living site notices that others are gone or over: fewer worlds.
    pub calm: bool,
}

/// A claim as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// What it asks for, or still holds.
    pub demand: Demand,
    /// Its units where it is held.
    pub held: Option<Vec<Unit>>,
    /// The lease that it has, where leases are presented.
    pub lease: Option<LeaseKey>,
    /// The name that it was made with.
    pub origin: Stamp,
}

/// One site with its clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seat<P: Protocol, R: Rules> {
    /// Nothing where it is dead.
    pub member: Option<Member<P, R>>,
    /// Its present life, or its last.
    pub incarnation: u64,
    /// Whether its lease ended, and with it those of its clients.
    pub lapsed: bool,
    /// Timers that are armed.
    pub timers: BTreeSet<P::Timer>,
    /// Claims that its clients have still to make.
    pub rounds: u32,
    /// The time of the last claim, in whatever life.
    pub last: u64,
    /// Claims that are live.
    pub clients: BTreeMap<Stamp, Client>,
    /// Held claims whose client has not been told, has been told of another site, or is gone.
    pub orphans: BTreeMap<Stamp, LeaseKey>,
    /// Grants of which the clients have not heard: copies are made first.
    pub pending: BTreeMap<Stamp, LeaseKey>,
    /// Units that its clients have still to add to semaphores, one at a time.
    pub adds: u32,
    /// What its disk says of its account with semaphores.
    pub disk: Option<BTreeMap<PoolId, epoch::Account>>,
    /// What is written down for the next life: what clients held when the last one died, whether
    /// or not their leases have ended since.
    pub journal: BTreeMap<Stamp, Standing>,
}

/// What a dead life's clients still use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Ghost {
    site: SiteId,
    incarnation: u64,
    held: Vec<(Stamp, Client)>,
}

/// What belongs to no site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Common<R> {
    store: Arc<Record<Cluster>>,
    proposals: Vec<Arc<Record<Cluster>>>,
    ghosts: Vec<Ghost>,
    /// Clients of sites that left, by the names that their claims have at sites which have not
    /// installed the record.
    strays: BTreeMap<Stamp, Client>,
    /// What leases are presented with, of all grants so far; none where they never are.
    deck: Option<papers::Deck>,
    /// The promises that clients have, where only a person ends leases.
    promises: Option<keeps::Promises>,
    /// Operations of clients on semaphores, and whether with ids.
    ops: ops::Ops,
    named: bool,
    budget: Budget,
    rules: R,
    /// The largest size that each pool ever has.
    most: Vec<Units>,
}

type Queue<P> = VecDeque<Frame<<P as Protocol>::Message>>;

/// Everything.
#[derive(Clone, Debug)]
pub struct World<P: Protocol, R: Rules> {
    seats: Vec<Arc<Seat<P, R>>>,
    /// Sender × sites + receiver.
    links: Vec<Arc<Queue<P>>>,
    common: Arc<Common<R>>,
}

/// What may happen next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// A client of this site asks for the demand of this number.
    Claim(SiteId, usize),
    /// A holder gives everything back.
    Release(SiteId, Stamp),
    /// A waiting client gives up.
    Withdraw(SiteId, Stamp),
    /// A timer fires.
    Fire(SiteId, T),
    /// The oldest frame of a link arrives.
    Deliver(SiteId, SiteId),
    /// A site dies.
    Crash(SiteId),
    /// It comes back; or one that was left out begins a new life.
    Restart(SiteId),
    /// A new life finds no member of the last epoch alive, and offers the next.
    Revive(SiteId),
    /// A new life asks a member to let it in.
    Join(SiteId, SiteId),
    /// The first believes that the second is dead.
    Suspect(SiteId, SiteId),
    /// The store gets a proposal.
    Decide(usize),
    /// A site reads the store.
    Learn(SiteId),
    /// The lease of a site that was left out ends.
    Lapse(SiteId),
    /// The leases of a dead life end.
    LapseGhost(usize),
    /// A site has waited long enough for those who departed.
    Over(SiteId, u64),
    /// A site wants to leave.
    Leave(SiteId),
    /// A site asks for another size of the first pool.
    Resize(SiteId),
    /// A site asks for the first unit to be taken out of use, or to be returned.
    Outage(SiteId),
    /// A lease is presented to a site, at once or late.
    Present(usize, SiteId),
    /// A holder hears that its lease goes on at this site.
    Tell(SiteId, Stamp),
    /// A claim without a client ends.
    Expire(SiteId, Stamp),
    /// A client of this site takes units from a semaphore, or adds some: the demand of this number.
    Take(SiteId, usize),
    /// The same for units that are added.
    Add(SiteId, usize),
    /// A client that was not answered calls again, at this site.
    Repeat(usize, SiteId),
}

impl<P: Protocol, R: Rules> World<P, R> {
    /// All sites in the first epoch, at rest.
    pub fn new(cluster: &Cluster, script: &Script, budget: Budget, rules: R) -> Self {
        let members = cluster.all().map(|site| (site, 1)).collect();
        let store = Arc::new(Record::first(members, cluster.clone()));
        let seat = |me: SiteId| Seat {
            member: Some(Member::new(rules, me, 1, Arc::clone(&store))),
            incarnation: 1,
            lapsed: false,
            timers: BTreeSet::new(),
            rounds: script.rounds[me.index()],
            last: 0,
            clients: BTreeMap::new(),
            orphans: BTreeMap::new(),
            pending: BTreeMap::new(),
            adds: script.adds.get(me.index()).copied().unwrap_or(0),
            disk: budget.memory.then(BTreeMap::new),
            journal: BTreeMap::new(),
        };
        let keeps = !cluster.keeps.is_empty();
        let sites = usize::from(cluster.sites);
        let mut most = cluster.pools.clone();
        most[0] = most[0].max(Units(budget.resize.unwrap_or(0)));
        let mut world = Self {
            seats: cluster.all().map(seat).map(Arc::new).collect(),
            links: (0..sites * sites).map(|_| Arc::new(VecDeque::new())).collect(),
            common: Arc::new(Common {
                store,
                proposals: Vec::new(),
                ghosts: Vec::new(),
                strays: BTreeMap::new(),
                deck: (budget.papers > 0 || keeps).then(papers::Deck::default),
                promises: keeps.then(keeps::Promises::default),
                ops: ops::Ops::new(cluster),
                named: budget.repeats > 0,
                budget,
                rules,
                most,
            }),
        };
        for site in cluster.all() {
            let store = Arc::clone(&world.common.store);
            for input in [epoch::Input::Lease(true), epoch::Input::Decided(store)] {
                world.change(site, input).expect("nothing has happened yet");
            }
        }
        // Everybody is ready: the first epoch has begun.
        for from in cluster.all() {
            for to in cluster.others(from) {
                world.act(&Action::Deliver(from, to), script).expect("a site says it is ready");
            }
        }
        world
    }

    fn sites(&self) -> impl Iterator<Item = SiteId> + use<P, R> {
        (0..).map(SiteId).take(self.seats.len())
    }

    fn member(&self, site: SiteId) -> Option<&Member<P, R>> {
        self.seats[site.index()].member.as_ref()
    }

    const fn link(&self, from: SiteId, to: SiteId) -> usize {
        from.index() * self.seats.len() + to.index()
    }

    /// Whether this life is in the store's record.
    fn is_in_store(&self, site: SiteId, incarnation: u64) -> bool {
        self.common.store.members.get(&site) == Some(&incarnation)
    }

    /// What may happen next.
    pub fn enabled(&self, script: &Script) -> Vec<Action<P::Timer>> {
        let mut list = Vec::new();
        for site in self.sites() {
            let seat = &self.seats[site.index()];
            match &seat.member {
                Some(member) => self.enabled_at(site, seat, member, script, &mut list),
                None if self.common.budget.restarts > 0 => list.push(Action::Restart(site)),
                None => {}
            }
        }
        self.enabled_papers(&mut list);
        for from in self.sites() {
            for to in self.sites() {
                let queue = &self.links[self.link(from, to)];
                if queue.front().is_some_and(|frame| self.can_take(to, frame)) {
                    list.push(Action::Deliver(from, to));
                }
            }
        }
        list.extend((0..self.common.proposals.len()).map(Action::Decide));
        for (i, ghost) in self.common.ghosts.iter().enumerate() {
            if !self.is_in_store(ghost.site, ghost.incarnation) {
                list.push(Action::LapseGhost(i));
            }
        }
        list
    }

    fn enabled_at(
        &self,
        site: SiteId,
        seat: &Seat<P, R>,
        member: &Member<P, R>,
        script: &Script,
        list: &mut Vec<Action<P::Timer>>,
    ) {
        if member.may_grant() && P::PROFILE.serves == Service::Semaphore {
            self.enabled_ops(site, seat, script, list);
        } else if member.may_grant() {
            if seat.rounds > 0 && seat.clients.len() < script.slots {
                list.extend((0..script.demands.len()).map(|i| Action::Claim(site, i)));
            }
            for (&claim, client) in &seat.clients {
                if client.held.is_some() {
                    list.push(Action::Release(site, claim));
                } else if script.withdraw && !seat.pending.contains_key(&claim) {
                    list.push(Action::Withdraw(site, claim));
                }
            }
            let fire = match script.timers {
                Timers::Any => true,
                Timers::Quiet => self.links.iter().all(|link| link.is_empty()),
                Timers::Never => false,
            };
            let timers = seat.timers.iter().filter(|_| fire);
            list.extend(timers.map(|&timer| Action::Fire(site, timer)));
        }
        self.enabled_to_leave(site, seat, list);
        let budget = &self.common.budget;
        if budget.crashes > 0 {
            list.push(Action::Crash(site));
        }
        let record = member.epochs().record();
        // Who is about to be told need not read.
        let told = |from: SiteId| {
            let mut frames = self.links[self.link(from, site)].iter();
            frames.any(|frame| matches!(frame, Frame::Change(Message::Commit(_))))
        };
        if self.common.store.epoch > record.epoch && !self.sites().any(told) {
            list.push(Action::Learn(site));
        }
        if member.epochs().phase() == Phase::Outside {
            if self.is_in_store(site, seat.incarnation) || seat.lapsed {
                // It will learn, or it was left out and begins anew.
                if seat.lapsed {
                    list.push(Action::Restart(site));
                }
                return;
            }
            let is_member = |m: &Member<P, R>| m.epochs().phase() != Phase::Outside;
            let others = || self.sites().filter(|&to| to != site && self.member(to).is_some());
            let mut members = others().filter(|&to| self.member(to).is_some_and(is_member));
            let to = members.next().or_else(|| others().next());
            list.extend(to.map(|to| Action::Join(site, to)));
            let lives = |(&other, &life): (&SiteId, &u64)| {
                let there = &self.seats[other.index()];
                there.member.is_some() && there.incarnation == life
            };
            let newest = record.epoch == self.common.store.epoch;
            if newest && self.common.proposals.is_empty() && !record.members.iter().any(lives) {
                list.push(Action::Revive(site));
            }
            return;
        }
        if !seat.lapsed && !self.is_in_store(site, seat.incarnation) {
            list.push(Action::Lapse(site));
        }
        let first = self.sites().find(|&first| {
            self.member(first).is_some_and(|m| m.epochs().phase() != Phase::Outside)
        });
        if budget.calm && first != Some(site) {
            return;
        }
        for (&other, &incarnation) in record.members.iter().filter(|entry| *entry.0 != site) {
            let there = &self.seats[other.index()];
            let gone = there.member.is_none() || there.incarnation != incarnation;
            if gone || budget.doubts > 0 {
                list.push(Action::Suspect(site, other));
            }
        }
        if let Some(&since) = record.quarantine.keys().next_back()
            && self.is_over(record, since)
        {
            list.push(Action::Over(site, since));
        }
        if budget.resize.is_some() && member.epochs().phase() == Phase::Running {
            list.push(Action::Resize(site));
        }
        // One after the other, as from one person.
        let settled = self.common.store.epoch == record.epoch && self.common.proposals.is_empty();
        if budget.outages > 0 && settled && member.epochs().phase() == Phase::Running {
            list.push(Action::Outage(site));
        }
    }

    /// A frame of the protocol waits while the receiver's lease is over.
    fn can_take(&self, to: SiteId, frame: &Frame<P::Message>) -> bool {
        self.member(to).is_none_or(|member| !member.keeps(frame))
    }

    /// Whether nobody who departed by then can use anything any more.
    fn is_over(&self, record: &Record<Cluster>, since: u64) -> bool {
        let mut departed = record.quarantine.range(..=since).flat_map(|(_, kept)| &kept.sites);
        !departed.any(|(&site, &incarnation)| {
            let seat = &self.seats[site.index()];
            let lives = seat.member.is_some() && seat.incarnation == incarnation && !seat.lapsed;
            let ghost = |g: &Ghost| g.site == site && g.incarnation == incarnation;
            lives || self.common.ghosts.iter().any(ghost)
        })
    }

    /// Lets something happen.
    pub fn act(&mut self, action: &Action<P::Timer>, script: &Script) -> Result<(), Violation> {
        match *action {
            Action::Claim(site, number) => {
                let seat = Arc::make_mut(&mut self.seats[site.index()]);
                let demand = script.demands[number].clone();
                let stamp = seat.member.as_ref().and_then(Member::next_stamp);
                let claim = stamp.expect("a site that may grant has a protocol");
                seat.rounds -= 1;
                let origin = claim;
                let client = Client { demand: demand.clone(), held: None, lease: None, origin };
                seat.clients.insert(claim, client);
                if claim.time <= seat.last {
                    let detail = format!("{claim} after one of {}", seat.last);
                    return Err(Violation::new("stamps", detail));
                }
                seat.last = claim.time;
                self.step(site, MemberInput::Local(Input::Claim { claim, demand }))
            }
            Action::Release(site, claim) => {
                let client = self.seats[site.index()].clients.get(&claim);
                self.release_promise(client.and_then(|client| client.lease));
                if self.keeps_released(site, claim) {
                    return Ok(());
                }
                Arc::make_mut(&mut self.seats[site.index()]).clients.remove(&claim);
                self.step(site, MemberInput::Local(Input::Release { claim, part: None }))
            }
            Action::Withdraw(site, claim) => {
                Arc::make_mut(&mut self.seats[site.index()]).clients.remove(&claim);
                self.step(site, MemberInput::Local(Input::Withdraw { claim }))
            }
            Action::Fire(site, timer) => {
                Arc::make_mut(&mut self.seats[site.index()]).timers.remove(&timer);
                self.step(site, MemberInput::Local(Input::Fire { timer }))
            }
            Action::Deliver(from, to) => {
                let link = self.link(from, to);
                let frame = Arc::make_mut(&mut self.links[link]).pop_front();
                let frame = frame.expect("only full links deliver");
                if self.member(to).is_none() {
                    return Ok(());
                }
                self.step(to, MemberInput::Deliver { from, frame })
            }
            Action::Crash(site) => {
                self.crash(site);
                Ok(())
            }
            Action::Restart(site) => self.restart(site),
            Action::Join(site, to) => {
                let member = self.member(site).expect("only the living join");
                let report = member.report();
                self.change(to, epoch::Input::Join { site, report })
            }
            Action::Revive(site) => {
                let member = self.member(site).expect("only the living begin anew");
                let reports = BTreeMap::from([(site, member.report())]);
                let next = Arc::new(member.epochs().record().revived(&reports));
                Arc::make_mut(&mut self.common).proposals.push(next);
                Ok(())
            }
            Action::Suspect(site, other) => {
                let incarnation = self.seats[other.index()].incarnation;
                let alive = self.member(other).is_some();
                let member = self.member(site).expect("only the living suspect");
                let known = member.epochs().record().members.get(&other);
                if alive && known == Some(&incarnation) {
                    Arc::make_mut(&mut self.common).budget.doubts -= 1;
                }
                // Those that this site found dead before are dead still.
                let dead = |s: &SiteId| self.member(*s).is_none();
                let suspects: SiteSet = self.sites().filter(dead).chain([other]).collect();
                self.change(site, epoch::Input::Suspect(suspects))
            }
            Action::Decide(number) => {
                self.judge_leaving(&self.common.proposals[number])?;
                let common = Arc::make_mut(&mut self.common);
                common.store = common.proposals.remove(number);
                let epoch = common.store.epoch;
                common.proposals.retain(|proposal| proposal.epoch > epoch);
                self.judge_record()
            }
            Action::Learn(site) => {
                let store = Arc::clone(&self.common.store);
                self.change(site, epoch::Input::Decided(store))
            }
            Action::Lapse(site) => {
                let seat = Arc::make_mut(&mut self.seats[site.index()]);
                seat.lapsed = true;
                for client in seat.clients.values_mut().filter(|client| client.held.is_some()) {
                    client.held = None;
                }
                self.change(site, epoch::Input::Lease(false))
            }
            Action::LapseGhost(number) => {
                Arc::make_mut(&mut self.common).ghosts.remove(number);
                Ok(())
            }
            Action::Over(site, epoch) => self.change(site, epoch::Input::Over(epoch)),
            Action::Leave(site) => {
                Arc::make_mut(&mut self.common).budget.leaves -= 1;
                self.change(site, epoch::Input::Leave)
            }
            Action::Resize(site) => {
                let units = Arc::make_mut(&mut self.common).budget.resize.take();
                let mut plan = self.common.store.plan.clone();
                plan.pools[0] = Units(units.expect("it was allowed"));
                self.change(site, epoch::Input::Configure(plan))
            }
            Action::Outage(site) => {
                Arc::make_mut(&mut self.common).budget.outages -= 1;
                let mut plan = self.common.store.plan.clone();
                if !plan.out.remove(&FIRST) {
                    plan.out.insert(FIRST);
                }
                self.change(site, epoch::Input::Configure(plan))
            }
            Action::Present(number, site) => self.present(number, site),
            Action::Tell(site, claim) => {
                self.tell_holder(site, claim);
                Ok(())
            }
            Action::Take(site, number) => self.take(site, &script.demands[number]),
            Action::Add(site, number) => self.add(site, &script.amounts[number]),
            Action::Repeat(op, site) => self.repeat(op, site),
            Action::Expire(site, claim) => {
                let seat = Arc::make_mut(&mut self.seats[site.index()]);
                let lease = seat.orphans.remove(&claim);
                if lease.as_ref().is_some_and(leave::is_unowned) {
                    return self.end_unowned(site, claim);
                }
                self.release_promise(lease);
                self.release_unknown(site, claim);
                self.step(site, MemberInput::Local(Input::Release { claim, part: None }))
            }
        }
    }

    fn crash(&mut self, site: SiteId) {
        let memory = self.common.budget.memory;
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        let mut ghost = end_life(site, seat, memory);
        let lapsed = std::mem::take(&mut seat.lapsed);
        seat.member = None;
        seat.timers.clear();
        seat.pending.clear();
        ghost.held.extend(self.lose_strays(site));
        let common = Arc::make_mut(&mut self.common);
        common.budget.crashes -= 1;
        if !ghost.held.is_empty() && !lapsed {
            common.ghosts.push(ghost);
            common.ghosts.sort_unstable();
        }
        for from in self.sites() {
            let link = self.link(from, site);
            self.links[link] = Arc::new(VecDeque::new());
        }
    }

    /// A new life. Sessions with the old one are over.
    fn restart(&mut self, site: SiteId) -> Result<(), Violation> {
        let store = Arc::clone(&self.common.store);
        let rules = self.common.rules;
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        if seat.member.is_none() {
            Arc::make_mut(&mut self.common).budget.restarts -= 1;
        }
        if !rules.slips(Slip::ReusesIncarnation) {
            seat.incarnation += 1;
        }
        seat.lapsed = false;
        seat.clients.clear();
        seat.orphans.clear();
        seat.pending.clear();
        let (life, claims) = (seat.incarnation, std::mem::take(&mut seat.journal));
        let member = if self.common.budget.memory {
            Member::remembering(rules, site, life, store, claims)
        } else {
            Member::new(rules, site, life, store)
        };
        let mut member = member.with_disk(seat.disk.clone());
        let lease = MemberInput::Change(epoch::Input::Lease(true));
        member.step(lease, &mut Vec::new()).expect("a lease is no message");
        seat.member = Some(member);
        for other in self.sites() {
            for link in [self.link(site, other), self.link(other, site)] {
                self.links[link] = Arc::new(VecDeque::new());
            }
        }
        self.change(site, epoch::Input::Decided(Arc::clone(&self.common.store)))
    }

    fn change(&mut self, site: SiteId, input: epoch::Input<Cluster>) -> Result<(), Violation> {
        self.step(site, MemberInput::Change(input))
    }

    fn step(
        &mut self,
        site: SiteId,
        input: MemberInput<P::Message, P::Timer>,
    ) -> Result<(), Violation> {
        self.run(site, |member, out| {
            let result = member.step(input, out);
            result.map_err(|fault| Violation::new("understanding", format!("{site}: {fault}")))
        })
    }

    /// Lets a site do something, and carries out what follows.
    fn run(
        &mut self,
        site: SiteId,
        act: impl FnOnce(&mut Member<P, R>, &mut MemberEffects<P>) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let deck = self.common.deck.clone();
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        let member = seat.member.as_mut().expect("only the living take steps");
        let presented = member.epochs().papers().to_vec();
        let mut out = Vec::new();
        act(member, &mut out)?;
        member.forget_fence();
        ops::write_down(seat, self.common.budget.memory);
        let mut sends = Vec::new();
        let (mut departed, mut inherited) = (false, false);
        let (mut granted, mut held_back, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let (mut done, mut resumed) = (Vec::new(), false);
        for effect in out {
            if matches!(effect, MemberEffect::Installed) {
                self.take_moved(site);
            }
            let seat = Arc::make_mut(&mut self.seats[site.index()]);
            match effect {
                MemberEffect::Send { to, mut frame, .. } => {
                    if let Frame::Protocol { clock, .. } = &mut frame {
                        clock.fence = 0;
                    }
                    sends.push((to, frame));
                }
                MemberEffect::Local(Effect::Grant { claim, .. })
                    if self.common.promises.is_some() && !seat.lapsed =>
                {
                    held_back.push(claim);
                }
                MemberEffect::Local(effect) => {
                    local(seat, &effect, &self.common.store.plan)?;
                    if let (Effect::Grant { claim, .. }, Some(_)) = (&effect, &deck) {
                        granted.push(*claim);
                    }
                }
                MemberEffect::Propose(record) => {
                    let common = Arc::make_mut(&mut self.common);
                    let late = record.epoch != common.store.epoch + 1;
                    if !late && !common.proposals.contains(&record) {
                        common.proposals.push(record);
                    }
                }
                MemberEffect::Installed => {
                    seat.timers.clear();
                    inherited = true;
                }
                MemberEffect::Resumed => resumed = true,
                MemberEffect::Done { number } => done.push(number),
                MemberEffect::Departed => departed = true,
                MemberEffect::Kept(leases) => kept.extend(leases),
            }
        }
        let left = departed && self.let_go(site)?;
        if departed && !left {
            drop(self.lose_strays(site));
        }
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        if departed {
            let ghost = (deck.is_some() && !seat.lapsed)
                .then(|| end_life(site, seat, self.common.budget.memory));
            seat.clients.clear();
            seat.orphans.clear();
            seat.pending.clear();
            seat.timers.clear();
            seat.lapsed = true;
            if let Some(ghost) = ghost.filter(|ghost| !ghost.held.is_empty()) {
                let common = Arc::make_mut(&mut self.common);
                common.ghosts.push(ghost);
                common.ghosts.sort_unstable();
            }
        }
        for claim in granted {
            self.number(site, claim);
        }
        for number in done {
            self.answered(number)?;
        }
        if inherited {
            self.inherit(site);
            self.judge_refusals(site, &presented)?;
        }
        for (to, frame) in sends {
            // A session is between two lives: what is meant for an earlier one goes nowhere.
            if self.member(to).is_some() {
                let link = self.link(site, to);
                Arc::make_mut(&mut self.links[link]).push_back(frame);
            }
        }
        if resumed {
            self.keep_again(site)?;
        }
        for claim in held_back {
            self.hold_back(site, claim)?;
        }
        for lease in kept {
            self.tell_kept(site, lease)?;
        }
        Ok(())
    }

    /// Clients of the last life go on with this one where the epoch has confirmed what they have.
    fn inherit(&mut self, site: SiteId) {
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        let Some(member) = &seat.member else { return };
        let mut taken = Vec::new();
        let unowned = seat.orphans.iter().filter(|it| leave::is_unowned(it.1));
        let unowned = unowned.filter(|it| member.claims().contains_key(it.0));
        let mut orphans: BTreeMap<_, _> = unowned.map(|(&claim, &lease)| (claim, lease)).collect();
        for (&claim, Standing { demand, held, adopted, .. }) in member.claims() {
            let known = seat.clients.contains_key(&claim) || orphans.contains_key(&claim);
            if held.is_none() || known {
                continue;
            }
            let lease = adopted.map(|it| it.lease);
            if let Some(it) = adopted.filter(|it| it.since > 0) {
                orphans.insert(claim, it.lease);
            } else {
                let known = seat.orphans.get(&claim);
                if let Some(&lease) = known {
                    orphans.insert(claim, lease);
                    continue;
                }
                let (demand, held) = (demand.clone(), held.clone());
                seat.clients.insert(claim, Client { demand, held, lease, origin: claim });
                taken.push(claim);
            }
        }
        seat.orphans = orphans;
        if taken.is_empty() {
            return;
        }
        let common = Arc::make_mut(&mut self.common);
        for ghost in &mut common.ghosts {
            ghost.held.retain(|(claim, ..)| !taken.contains(claim));
        }
        common.ghosts.retain(|ghost| !ghost.held.is_empty());
    }

    /// The promises that can be judged in one world.
    pub fn judge(&self, enabled: &[Action<P::Timer>]) -> Result<(), Violation> {
        let mut units: BTreeSet<Unit> = BTreeSet::new();
        let mut held: BTreeMap<_, u64> = BTreeMap::new();
        let mut count = |demand: &Demand, named: &[Unit]| {
            for (pool, units) in demand.parts() {
                *held.entry(pool).or_default() += u64::from(units.0);
            }
            named.iter().copied().find(|&unit| !units.insert(unit))
        };
        let mut twice = None;
        let mut known = BTreeSet::new();
        for client in self.in_use() {
            // A holder that has heard of another site is still in the books of its old one.
            if client.lease.is_none_or(|lease| known.insert(lease))
                && let Some(named) = &client.held
            {
                twice = twice.or_else(|| count(&client.demand, named));
            }
        }
        if let Some(unit) = twice {
            return Err(Violation::new("exclusion", format!("{unit} is in use twice")));
        }
        // While a pool shrinks, what is in use leaves it when it is released.
        for (pool, in_use) in held {
            let all = u64::from(self.common.most[pool.index()].0);
            if in_use > all {
                let detail = format!("{in_use} units of {pool} are in use, which has {all}");
                return Err(Violation::new("capacity", detail));
            }
        }
        for seat in self.seats.iter().filter(|seat| !seat.lapsed) {
            let Some(member) = &seat.member else { continue };
            for (claim, client) in &seat.clients {
                let known = member.claims().get(claim);
                let untold = seat.pending.contains_key(claim);
                let same = known.is_some_and(|known| {
                    let told = known.held == client.held || untold && client.held.is_none();
                    known.demand == client.demand && told
                });
                if !same {
                    let detail = format!("{claim} is {client:?} for its client, not {known:?}");
                    return Err(Violation::new("claims", detail));
                }
            }
            let claims = seat.clients.len() + seat.orphans.len();
            if P::PROFILE.serves != Service::Semaphore
                && member.may_grant()
                && member.claims().len() != claims
            {
                return Err(Violation::new("claims", "a claim has no client".to_owned()));
            }
        }
        let stirs = |action: &Action<P::Timer>| !matches!(action, Action::Crash(_));
        if enabled.iter().any(stirs) { Ok(()) } else { self.judge_rest() }
    }

    /// When nothing can happen any more, everybody was served and nothing is missing.
    fn judge_rest(&self) -> Result<(), Violation> {
        if P::PROFILE.serves == Service::Semaphore {
            return self.judge_ops_at_rest();
        }
        let has = |seat: &Seat<P, R>| !seat.clients.is_empty() || !seat.orphans.is_empty();
        let waits = self.seats.iter().any(|seat| has(seat));
        let living = || self.seats.iter().filter_map(|seat| seat.member.as_ref());
        if waits || living().any(|member| !member.may_grant()) {
            return Err(Violation::new("progress", "nothing can happen, and somebody waits"));
        }
        if !living().all(Member::is_at_rest) {
            return Err(Violation::new(
                "rest",
                "no claims and no messages, yet a site is not idle",
            ));
        }
        if !self.common.store.quarantine.is_empty() {
            return Err(Violation::new("rest", "units are withheld for ever"));
        }
        let idle: Option<Vec<Vec<Unit>>> =
            living().map(|member| member.protocol().and_then(P::idle_units)).collect();
        if let Some(idle) = idle.filter(|idle| !idle.is_empty()) {
            let plan = &self.common.store.plan;
            let all = usable(plan);
            let here = idle.iter().map(Vec::len).sum::<usize>() as u64;
            if idle.iter().flatten().any(|unit| plan.out.contains(unit)) {
                return Err(Violation::new("out of use", "a unit that is out lies idle"));
            }
            if here != all {
                return Err(Violation::new("units", format!("{here} of {all} units are left")));
            }
        }
        Ok(())
    }
}

/// The end of a life: what its clients still use. With memory, the next life is left what it had.
fn end_life<P: Protocol, R: Rules>(site: SiteId, seat: &mut Seat<P, R>, memory: bool) -> Ghost {
    let clients = std::mem::take(&mut seat.clients).into_iter();
    let held: Vec<(Stamp, Client)> = clients.filter(|(_, client)| client.held.is_some()).collect();
    seat.journal.clear();
    seat.orphans.clear();
    if memory {
        let member = seat.member.as_ref();
        let standing = |(claim, client): &(Stamp, Client)| {
            let known = member.and_then(|member| member.claims().get(claim)?.adopted);
            let adopted = known.or_else(|| client.lease.map(|lease| Adopted { lease, since: 0 }));
            let kept = member.and_then(|member| member.claims().get(claim)?.kept.clone());
            let (demand, held) = (client.demand.clone(), client.held.clone());
            (*claim, Standing { demand, held, adopted, kept })
        };
        seat.journal = held.iter().map(standing).collect();
    }
    Ghost { site, incarnation: seat.incarnation, held }
}

/// The unit that is taken out of use.
const FIRST: Unit = Unit { pool: PoolId(0), number: 0 };

/// All units that may be granted.
pub(crate) fn usable(plan: &Cluster) -> u64 {
    let pools = (0..).map(PoolId).take(plan.pools.len());
    pools.filter_map(|pool| plan.usable(pool)).map(|units| u64::from(units.0)).sum()
}

/// What the clients of a site see.
fn local<P: Protocol, R: Rules>(
    seat: &mut Seat<P, R>,
    effect: &Effect<P::Message, P::Timer>,
    plan: &Cluster,
) -> Result<(), Violation> {
    match effect {
        Effect::Grant { claim, .. } if seat.lapsed => {
            return Err(Violation::new("lease", format!("{claim} was granted without one")));
        }
        Effect::Grant { claim, units, .. } => {
            let client = seat.clients.get_mut(claim).filter(|client| client.held.is_none());
            let Some(client) = client else {
                let detail = format!("{claim} was granted, not waiting");
                return Err(Violation::new("one grant", detail));
            };
            client.held = Some(units.clone());
            let plan = seat.member.as_ref().map(|member| &member.epochs().record().plan);
            let out = |unit: &&Unit| plan.is_some_and(|plan| plan.out.contains(unit));
            if let Some(unit) = units.iter().find(out) {
                let detail = format!("{claim} was granted {unit}");
                return Err(Violation::new("out of use", detail));
            }
        }
        Effect::Revoke { claim } => drop(seat.clients.remove(claim)),
        Effect::Reject { claim, .. } => {
            let client = seat.clients.remove(claim);
            let fits =
                |(pool, units): (PoolId, Units)| plan.usable(pool).is_some_and(|all| units <= all);
            if client.is_some_and(|client| client.demand.parts().all(fits)) {
                return Err(Violation::new("claims", format!("{claim} was lost")));
            }
        }
        Effect::Arm { timer, .. } => drop(seat.timers.insert(*timer)),
        Effect::Disarm { timer } => drop(seat.timers.remove(timer)),
        Effect::Send { .. } => {}
    }
    Ok(())
}

/// A control message, by its name.
pub(crate) fn name(message: &Message<Cluster>) -> &'static str {
    match message {
        Message::Freeze { .. } => "freeze",
        Message::Report { .. } => "report",
        Message::Commit(_) => "commit",
        Message::Ready { .. } => "ready",
        Message::Wish { .. } => "wish",
        Message::Join(_) => "join",
        Message::Copies { .. } => "copies",
        Message::Kept { .. } => "kept",
    }
}
