//! One site with one protocol in a cluster that changes.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::machine::{self, Epochs, Message, Phase};
use super::rules::{Rules, Sound};
use super::survey::{Book, Copy, Kept, LeaseKey, Paper, PaperPart, Record, Report, Standing};
use crate::protocol::{
    Effect, Effects, EffectsOf, Input, InputOf, PeerFault, Protocol, Rejection, step,
};
use crate::types::{Clock, Cluster, Demand, SiteId, Stamp, Unit};

/// A site: the machine, the protocol, and the books of its clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member<P, R = Sound> {
    epochs: Epochs<Cluster, R>,
    /// Nothing before the first epoch.
    protocol: Option<P>,
    clock: Clock,
    claims: BTreeMap<Stamp, Standing>,
    /// Whether these are the claims of the last life, until an epoch has confirmed them.
    remembers: bool,
}

/// What travels between members.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a report is large, and rare")]
pub enum Frame<M> {
    /// Of the machine.
    Change(Message<Cluster>),
    /// Of the protocol.
    Protocol {
        /// The sender's epoch.
        epoch: u64,
        /// The sender's clock.
        clock: Clock,
        /// What it says.
        message: M,
    },
}

/// What enters a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemberInput<M, T> {
    /// Of its clients and timers; only while it [may grant](Member::may_grant).
    Local(Input<M, T>),
    /// A frame arrives, unless it is one that the member [keeps](Member::keeps).
    Deliver {
        /// Who sent it.
        from: SiteId,
        /// What.
        frame: Frame<M>,
    },
    /// For the machine.
    Change(machine::Input<Cluster>),
}

/// What leaves a member, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "a report is large, and rare")]
pub enum MemberEffect<M, T> {
    /// Tell another site.
    Send {
        /// Whom.
        to: SiteId,
        /// What.
        frame: Frame<M>,
        /// The claim that this is charged to.
        serves: Option<Stamp>,
    },
    /// Of the protocol, but for what it sends: a grant, a rejection, a timer.
    Local(Effect<M, T>),
    /// Offer this to the store.
    Propose(Arc<Record<Cluster>>),
    /// A new epoch was installed: timers are forgotten.
    Installed,
    /// It has begun.
    Resumed,
    /// This life of the site is over, with all its claims.
    Departed,
    /// The clients of these leases may hear of them.
    Kept(Vec<LeaseKey>),
}

/// The effects of a member, by the protocol's name.
pub type MemberEffects<P> = Vec<MemberEffect<<P as Protocol>::Message, <P as Protocol>::Timer>>;
type MemberInputOf<P> = MemberInput<<P as Protocol>::Message, <P as Protocol>::Timer>;

impl<P: Protocol, R: Rules> Member<P, R> {
    /// A life of a site, before it is in any epoch.
    pub fn new(rules: R, me: SiteId, incarnation: u64, record: Arc<Record<Cluster>>) -> Self {
        let member = Self::remembering(rules, me, incarnation, record, BTreeMap::new());
        Self { remembers: false, ..member }
    }

    /// A life that remembers what its last one had granted. Whether it may go on with that, the
    /// next epoch says: what it has not confirmed is forgotten. That goes for a life that dies
    /// before it is in any epoch, too: what it remembered is not to be remembered by the next.
    pub fn remembering(
        rules: R,
        me: SiteId,
        incarnation: u64,
        record: Arc<Record<Cluster>>,
        claims: BTreeMap<Stamp, Standing>,
    ) -> Self {
        let epochs = Epochs::by(rules, me, incarnation, record);
        Self { epochs, protocol: None, clock: Clock::default(), claims, remembers: true }
    }

    /// The machine.
    pub const fn epochs(&self) -> &Epochs<Cluster, R> {
        &self.epochs
    }

    /// The protocol, from the first epoch on.
    pub const fn protocol(&self) -> Option<&P> {
        self.protocol.as_ref()
    }

    /// The clock.
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Forgets the fences, on which nothing depends; for the checker.
    pub const fn forget_fence(&mut self) {
        self.clock.fence = 0;
    }

    /// Its live claims.
    pub const fn claims(&self) -> &BTreeMap<Stamp, Standing> {
        &self.claims
    }

    /// Whether it takes inputs of clients and timers.
    pub fn may_grant(&self) -> bool {
        self.epochs.may_grant()
    }

    /// Whether a frame has to wait for the site's lease.
    pub fn keeps(&self, frame: &Frame<P::Message>) -> bool {
        matches!(frame, Frame::Protocol { epoch, .. } if self.epochs.keeps(*epoch))
    }

    /// The stamp that the next claim takes.
    pub fn next_stamp(&self) -> Option<Stamp> {
        self.protocol.as_ref().map(|protocol| protocol.next_stamp(self.clock))
    }

    /// What a new life of a site says to a member, to become one.
    pub fn join(&self) -> Frame<P::Message> {
        Frame::Change(Message::Join(self.report()))
    }

    /// Takes an input.
    pub fn step(
        &mut self,
        input: MemberInputOf<P>,
        out: &mut MemberEffects<P>,
    ) -> Result<(), PeerFault> {
        match input {
            MemberInput::Local(input) => self.run(input, out)?,
            MemberInput::Deliver { from, frame: Frame::Change(message) } => {
                self.change(machine::Input::Deliver { from, message }, out);
            }
            MemberInput::Deliver { from, frame: Frame::Protocol { epoch, clock, message } } => {
                let mut effects = Vec::new();
                let admitted = self.epochs.admit(epoch, &mut effects);
                self.carry_out(effects, out);
                if admitted {
                    self.run(Input::Deliver { from, clock, message }, out)?;
                }
            }
            MemberInput::Change(input) => self.change(input, out),
        }
        Ok(())
    }

    /// Has copies made of a held claim, before its client hears of it.
    pub fn keep(&mut self, claim: Stamp, lease: LeaseKey, out: &mut MemberEffects<P>) {
        let Some(standing) = self.claims.get_mut(&claim) else { return };
        let Some(units) = standing.held.clone() else { return };
        let facts = Vec::from([1]);
        standing.kept = Some(Kept { lease, facts: facts.clone() });
        let paper = Paper { lease, parts: Vec::from([PaperPart { book: 0, claim, units }]) };
        let copies = Vec::from([Copy { paper, facts }]);
        self.change(machine::Input::Keep { copies, over: Vec::new() }, out);
    }

    /// One step of the protocol, with the clients' books.
    fn run(&mut self, input: InputOf<P>, out: &mut MemberEffects<P>) -> Result<(), PeerFault> {
        let Some(protocol) = &mut self.protocol else { return Ok(()) };
        let over = if let Input::Release { claim, part: None } = &input {
            self.claims.get(claim)
        } else {
            None
        };
        let over = over.and_then(|standing| standing.kept.as_ref()).map(|kept| kept.lease);
        match &input {
            Input::Claim { claim, demand } => {
                self.claims.insert(*claim, Standing::waiting(demand.clone()));
            }
            Input::Release { claim, part } => give_back(&mut self.claims, *claim, part.as_ref()),
            Input::Withdraw { claim } => {
                if self.claims.get(claim).is_some_and(|standing| standing.held.is_none()) {
                    self.claims.remove(claim);
                }
            }
            Input::Add { .. } | Input::Deliver { .. } | Input::Fire { .. } => {}
        }
        let mut effects = Effects::default();
        step(protocol, &mut self.clock, input, &mut effects)?;
        self.emit(effects, out);
        if let Some(lease) = over {
            let over = Vec::from([lease]);
            self.change(machine::Input::Keep { copies: Vec::new(), over }, out);
        }
        Ok(())
    }

    fn emit(&mut self, mut effects: EffectsOf<P>, out: &mut MemberEffects<P>) {
        let epoch = self.epochs.record().epoch;
        for effect in effects.drain() {
            match &effect {
                Effect::Grant { claim, units, .. } => {
                    if let Some(standing) = self.claims.get_mut(claim) {
                        standing.held = Some(units.clone());
                    }
                }
                Effect::Reject { claim, .. } | Effect::Revoke { claim } => {
                    drop(self.claims.remove(claim));
                }
                Effect::Send { .. } | Effect::Arm { .. } | Effect::Disarm { .. } => {}
            }
            out.push(match effect {
                Effect::Send { to, clock, message, serves } => {
                    let frame = Frame::Protocol { epoch, clock, message };
                    MemberEffect::Send { to, frame, serves }
                }
                local @ (Effect::Grant { .. }
                | Effect::Reject { .. }
                | Effect::Revoke { .. }
                | Effect::Arm { .. }
                | Effect::Disarm { .. }) => MemberEffect::Local(local),
            });
        }
    }

    fn change(&mut self, input: machine::Input<Cluster>, out: &mut MemberEffects<P>) {
        let mut effects = Vec::new();
        self.epochs.step(input, &mut effects);
        self.carry_out(effects, out);
    }

    fn carry_out(&mut self, effects: Vec<machine::Effect<Cluster>>, out: &mut MemberEffects<P>) {
        let mut todo = VecDeque::from(effects);
        while let Some(effect) = todo.pop_front() {
            match effect {
                machine::Effect::Send { to, message } => {
                    let frame = Frame::Change(message);
                    out.push(MemberEffect::Send { to, frame, serves: None });
                }
                machine::Effect::Propose(record) => out.push(MemberEffect::Propose(record)),
                machine::Effect::Freeze => {
                    let mut more = Vec::new();
                    self.epochs.step(machine::Input::Frozen(self.report()), &mut more);
                    todo.extend(more);
                }
                machine::Effect::Install(record) => self.install(&record, out),
                machine::Effect::Resume => self.resume(out),
                machine::Effect::Kept(leases) => out.push(MemberEffect::Kept(leases)),
                machine::Effect::Depart(_) => {
                    self.claims.clear();
                    self.protocol = None;
                    out.push(MemberEffect::Departed);
                }
            }
        }
    }

    /// What it has, or would bring.
    pub fn report(&self) -> Report {
        let idle = self.protocol.as_ref().map_or_else(|| self.no_units(), P::idle_units);
        let lines = self.protocol.as_ref().map(P::lines).unwrap_or_default();
        let book = Book { claims: self.claims.clone(), idle, lines, tallies: None };
        Report {
            clock: self.clock,
            books: Vec::from([book]),
            remembers: self.remembers,
            ..Report::empty(self.epochs.incarnation())
        }
    }

    /// No idle units, by name where they have names: of that the others must know, however
    /// little this life has.
    fn no_units(&self) -> Option<Vec<Unit>> {
        let clusters = self.epochs.record().clusters();
        let fresh = P::new(SiteId(0), clusters.first()?);
        fresh.idle_units().map(|_| Vec::new())
    }

    /// Puts the protocol in the state that the record says.
    fn install(&mut self, record: &Record<Cluster>, out: &mut MemberEffects<P>) {
        let me = self.epochs.me();
        let clusters = record.clusters();
        let (Some(cluster), Some(survey)) = (clusters.first(), record.surveys.first()) else {
            return;
        };
        self.clock.merge(survey.clock);
        // What is not in the survey ended with its pool, or was over before this life began.
        let ended: Vec<(Stamp, Standing)> = self
            .claims
            .iter()
            .filter(|(claim, _)| self.protocol.is_some() && !survey.claims.contains_key(claim))
            .map(|(&claim, standing)| (claim, standing.clone()))
            .collect();
        self.remembers = false;
        self.claims = survey.of(me).map(|(claim, told)| (claim, told.clone())).collect();
        self.protocol = Some(P::resume(me, cluster, survey));
        out.push(MemberEffect::Installed);
        for (claim, standing) in ended {
            let reason = why_ended(cluster, &standing.demand);
            out.push(MemberEffect::Local(Effect::Reject { claim, reason }));
        }
    }

    fn resume(&mut self, out: &mut MemberEffects<P>) {
        let record = Arc::clone(self.epochs.record());
        let Some(survey) = record.surveys.first() else { return };
        out.push(MemberEffect::Resumed);
        let Some(protocol) = &mut self.protocol else { return };
        let mut effects = Effects::at(self.clock);
        protocol.on_resume(survey, &mut effects);
        self.clock.merge(effects.clock());
        self.emit(effects, out);
    }

    /// Whether it has nothing to do and owes nothing.
    pub fn is_at_rest(&self) -> bool {
        let runs = self.epochs.phase() == Phase::Running;
        runs && self.protocol.as_ref().is_some_and(P::is_at_rest)
    }
}

fn give_back(claims: &mut BTreeMap<Stamp, Standing>, claim: Stamp, part: Option<&Demand>) {
    let Some(standing) = claims.get_mut(&claim).filter(|standing| standing.held.is_some()) else {
        return;
    };
    let Some(left) = standing.demand.minus(part.unwrap_or(&standing.demand)) else { return };
    if let (Some(units), Some(part)) = (&mut standing.held, part) {
        // A part is the units that the grant listed last.
        for (pool, count) in part.parts() {
            for _ in 0..count.0 {
                if let Some(last) = units.iter().rposition(|unit| unit.pool == pool) {
                    units.remove(last);
                }
            }
        }
    }
    standing.demand = left;
    if standing.demand.is_empty() {
        claims.remove(&claim);
    }
}

/// Why a claim has no place in a cluster any more.
fn why_ended(cluster: &Cluster, demand: &Demand) -> Rejection {
    for (pool, units) in demand.parts() {
        match cluster.usable(pool) {
            None => return Rejection::UnknownPool(pool),
            Some(capacity) if units > capacity => {
                return Rejection::TooMany { pool, units, capacity };
            }
            Some(_) => {}
        }
    }
    Rejection::Empty
}
