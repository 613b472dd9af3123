//! One site with one protocol in a cluster that changes.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::accounts::{self, Account, Accounts, Books, Op, Outcome, Steps};
use super::leave::Handed;
use super::machine::{self, Epochs, Message, Phase};
use super::rules::{Rules, Slip, Sound};
use super::survey::{Book, Copy, Kept, LeaseKey, Paper, PaperPart, Record, Report, Standing};
use crate::protocol::{
    Effect, Effects, EffectsOf, Input, InputOf, PeerFault, Protocol, Rejection, Service, step,
};
use crate::types::{Clock, Cluster, Demand, PoolId, SiteId, Stamp, Unit, Units};

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
    /// The names with which those of them were made that wait and have another one now.
    origins: BTreeMap<Stamp, Stamp>,
    /// Where the protocol serves semaphores: the accounts, and the calls that are not answered.
    accounts: Accounts<u64, R>,
    calls: BTreeMap<u64, Doing>,
    /// News for calls that wait until the epoch has begun.
    news: Vec<(u64, Outcome)>,
    /// Units that go back when the epoch has begun: calls for them were given up.
    returns: Vec<(PoolId, i64)>,
    /// The accounts on the disk of a site that comes back.
    disk: Option<BTreeMap<PoolId, Account>>,
}

/// A call of a P or V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// Its number: no two calls at one site have the same.
    pub number: u64,
    /// Its operation.
    pub op: Op,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Doing {
    op: Op,
    /// The claim of a P.
    claim: Option<Stamp>,
    /// Its client has given up, too late for it not to be done.
    left: bool,
}

/// What travels between members.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "few frames exist at once, most of a protocol")]
pub enum Frame<M> {
    /// Of the machine.
    Change(Message<Cluster>),
    /// About accounts of semaphores.
    Accounts {
        /// The sender's epoch.
        epoch: u64,
        /// The message.
        message: accounts::Message,
    },
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
    /// A client calls P or V; only while it may grant.
    Call(Call),
    /// The client of a call gives up; only while it may grant.
    GiveUp(u64),
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
    /// A call of P or V is answered: it was done.
    Done {
        /// The call.
        number: u64,
    },
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
        Self {
            epochs,
            protocol: None,
            clock: Clock::default(),
            claims,
            remembers: true,
            origins: BTreeMap::new(),
            accounts: Accounts::new(rules, me),
            calls: BTreeMap::new(),
            news: Vec::new(),
            returns: Vec::new(),
            disk: None,
        }
    }

    /// The same with the accounts on its disk, if there are any.
    #[must_use]
    pub fn with_disk(self, disk: Option<BTreeMap<PoolId, Account>>) -> Self {
        Self { disk, ..self }
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

    /// The accounts that it knows.
    pub const fn accounts(&self) -> &Accounts<u64, R> {
        &self.accounts
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
        match frame {
            Frame::Protocol { epoch, .. } | Frame::Accounts { epoch, .. } => {
                self.epochs.keeps(*epoch)
            }
            Frame::Change(_) => false,
        }
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
            MemberInput::Deliver { from, frame: Frame::Accounts { epoch, message } } => {
                let mut effects = Vec::new();
                let admitted = self.epochs.admit(epoch, &mut effects);
                self.carry_out(effects, out);
                if admitted {
                    let mut steps = Steps::default();
                    self.accounts.receive(from, message, &mut steps)?;
                    self.follow(steps, out);
                } else {
                    self.slip(from, epoch, message, out);
                }
            }
            MemberInput::Call(Call { number, op }) => {
                self.calls.insert(number, Doing { op, claim: None, left: false });
                let mut steps = Steps::default();
                match op.id {
                    Some(id) => self.accounts.ask(op.pool, id, number, &mut steps),
                    None => steps.outcomes.push((number, Outcome::Yours)),
                }
                self.follow(steps, out);
            }
            MemberInput::GiveUp(number) => self.give_up(number, out),
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

    /// What follows from accounts.
    fn follow(&mut self, steps: Steps<u64>, out: &mut MemberEffects<P>) {
        let epoch = self.epochs.record().epoch;
        for (to, message) in steps.sends {
            let frame = Frame::Accounts { epoch, message };
            out.push(MemberEffect::Send { to, frame, serves: None });
        }
        for (number, outcome) in steps.outcomes {
            self.hear(number, outcome, out);
        }
    }

    fn hear(&mut self, number: u64, outcome: Outcome, out: &mut MemberEffects<P>) {
        let Some(&Doing { op, claim, left }) = self.calls.get(&number) else { return };
        if outcome == Outcome::Yours {
            return self.proceed(number, op, claim, out);
        }
        self.calls.remove(&number);
        match outcome {
            Outcome::Kept if op.change > 0 && !self.slips(Slip::TellsBeforeKept) => {
                self.add(op.pool, op.change, out);
            }
            Outcome::Known(_) => self.withdraw(claim, out),
            Outcome::Kept | Outcome::Recorded | Outcome::Yours => {}
        }
        if !left {
            out.push(MemberEffect::Done { number });
        } else if op.id.is_none() && op.change < 0 {
            self.give_back(op.pool, -op.change, out);
        }
    }

    /// Does what a call wants, which is this site's to do.
    fn proceed(&mut self, number: u64, op: Op, claim: Option<Stamp>, out: &mut MemberEffects<P>) {
        if op.change > 0 {
            if self.slips(Slip::TellsBeforeKept) {
                self.add(op.pool, op.change, out);
            }
            return self.enter(number, op, out);
        }
        if claim.is_none()
            && let Some(claim) = self.next_stamp()
            && let Some(doing) = self.calls.get_mut(&number)
        {
            doing.claim = Some(claim);
            let demand = Demand::one(op.pool, units_of(op.change).0);
            self.run_own(Input::Claim { claim, demand }, out);
        }
    }

    fn enter(&mut self, number: u64, op: Op, out: &mut MemberEffects<P>) {
        let mut steps = Steps::default();
        self.accounts.enter(op, number, &mut steps);
        self.follow(steps, out);
    }

    /// A claim of a semaphore has its units.
    fn taken(&mut self, claim: Stamp, out: &mut MemberEffects<P>) -> bool {
        let Some((&number, doing)) = self.calls.iter_mut().find(|it| it.1.claim == Some(claim))
        else {
            return false;
        };
        doing.claim = None;
        let op = doing.op;
        self.claims.remove(&claim);
        if op.id.is_none_or(|id| self.accounts.is_for(op.pool, id, number)) {
            self.enter(number, op, out);
        } else {
            // A claim must not hold units while it waits for word of its id.
            self.add(op.pool, -op.change, out);
        }
        true
    }

    /// The protocol is told of units that are there again, or for the first time.
    fn add(&mut self, pool: PoolId, change: i64, out: &mut MemberEffects<P>) {
        let demand = Demand::one(pool, units_of(change).0);
        self.run_own(Input::Add { demand }, out);
    }

    /// Units go back that were taken for a client that had left.
    fn give_back(&mut self, pool: PoolId, change: i64, out: &mut MemberEffects<P>) {
        if !self.may_grant() {
            return self.returns.push((pool, change));
        }
        let number = self.calls.keys().next_back().map_or(0, |last| last + 1).max(RETURNS);
        let op = Op { pool, change, id: None };
        self.calls.insert(number, Doing { op, claim: None, left: true });
        self.enter(number, op, out);
    }

    fn give_up(&mut self, number: u64, out: &mut MemberEffects<P>) {
        let Some(doing) = self.calls.get_mut(&number) else { return };
        if self.accounts.is_open(number) || self.news.iter().any(|it| it.0 == number) {
            doing.left = true;
            return;
        }
        let Doing { op, claim, .. } = *doing;
        self.calls.remove(&number);
        self.withdraw(claim, out);
        if let Some(id) = op.id {
            let mut steps = Steps::default();
            self.accounts.give_up(op.pool, id, number, &mut steps);
            self.follow(steps, out);
        }
    }

    fn withdraw(&mut self, claim: Option<Stamp>, out: &mut MemberEffects<P>) {
        if let Some(claim) = claim {
            self.run_own(Input::Withdraw { claim }, out);
        }
    }

    /// Only messages of others are refused.
    fn run_own(&mut self, input: InputOf<P>, out: &mut MemberEffects<P>) {
        self.run(input, out).unwrap_or_else(|fault| unreachable!("{fault}"));
    }

    fn slips(&self, slip: Slip) -> bool {
        self.epochs.rules().slips(slip)
    }

    /// Takes a copy where it must not, for the checker.
    fn slip(
        &mut self,
        from: SiteId,
        epoch: u64,
        message: accounts::Message,
        out: &mut MemberEffects<P>,
    ) {
        let accounts::Message::Copy { number, .. } = message else { return };
        let known = self.epochs.record().epoch;
        let late = epoch == known && self.slips(Slip::AcksAfterReport);
        if late || epoch < known && self.slips(Slip::AcksOldEpoch) {
            let frame = Frame::Accounts { epoch, message: accounts::Message::Have { number } };
            out.push(MemberEffect::Send { to: from, frame, serves: None });
        }
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
                    self.origins.remove(claim);
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
        let mut taken = Vec::new();
        for effect in effects.drain() {
            if const { matches!(P::PROFILE.serves, Service::Semaphore) }
                && let Effect::Grant { claim, .. } = &effect
            {
                // After all that the protocol says in this step.
                taken.push(*claim);
                continue;
            }
            match &effect {
                Effect::Grant { claim, units, .. } => {
                    self.origins.remove(claim);
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
        for claim in taken {
            let known = self.taken(claim, out);
            debug_assert!(known, "units were taken that no call waited for");
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
                    self.origins.clear();
                    self.protocol = None;
                    if self.slips(Slip::NewLifeAnswers) {
                        let open = self.calls.keys().filter(|it| self.accounts.is_open(**it));
                        out.extend(open.map(|&number| MemberEffect::Done { number }));
                    }
                    // Whether an operation that was not kept is in the record is not for the next
                    // life to say: a client that calls it again asks the keepers.
                    self.accounts = Accounts::new(self.epochs.rules(), self.epochs.me());
                    self.calls.clear();
                    self.news.clear();
                    self.returns.clear();
                    out.push(MemberEffect::Departed);
                }
            }
        }
    }

    /// What it has, or would bring.
    pub fn report(&self) -> Report {
        let idle = self.protocol.as_ref().map_or_else(|| self.no_units(), P::idle_units);
        let lines = self.protocol.as_ref().map(P::lines).unwrap_or_default();
        let (claims, origins) = (self.claims.clone(), self.origins.clone());
        let accounts = match (P::PROFILE.serves, &self.protocol) {
            (Service::Semaphore, Some(_)) => Some(self.accounts.report()),
            (Service::Semaphore, None) => self.disk.as_ref().map(|disk| {
                let me = self.epochs.me();
                let own = disk.iter().map(|(&pool, it)| (pool, [(me, it.clone())].into()));
                own.collect::<Books>()
            }),
            (Service::Pool | Service::Group | Service::Gang, _) => None,
        };
        let book = Book { claims, idle, lines, origins, accounts };
        let handed = |claim: &Stamp| Handed { claims: Vec::from([(0, *claim)]), facts: Vec::new() };
        let leaves = self.epochs.leaves().then(|| self.claims.keys().map(handed).collect());
        Report {
            clock: self.clock,
            books: Vec::from([book]),
            remembers: self.remembers,
            leaves,
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
            .filter(|(claim, _)| {
                let name = survey.renamed.get(claim).unwrap_or(claim);
                self.protocol.is_some() && !survey.claims.contains_key(name)
            })
            .map(|(&claim, standing)| (claim, standing.clone()))
            .collect();
        self.remembers = false;
        self.claims = survey.of(me).map(|(claim, told)| (claim, told.clone())).collect();
        let mine = survey.origins.iter().filter(|(claim, _)| claim.site == me);
        self.origins = mine.map(|(&claim, &origin)| (claim, origin)).collect();
        self.protocol = Some(P::resume(me, cluster, survey));
        let mut steps = Steps::default();
        self.accounts.begin(&survey.keepers, survey.accounts(), &mut steps);
        self.news.extend(steps.outcomes);
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
        let mut steps = Steps::default();
        self.accounts.resume(&mut steps);
        self.follow(steps, out);
        for (number, outcome) in core::mem::take(&mut self.news) {
            self.hear(number, outcome, out);
        }
        for (pool, change) in core::mem::take(&mut self.returns) {
            self.give_back(pool, change, out);
        }
    }

    /// Whether it has nothing to do and owes nothing.
    pub fn is_at_rest(&self) -> bool {
        let runs = self.epochs.phase() == Phase::Running;
        let idle = self.calls.is_empty() && self.returns.is_empty();
        runs && idle && self.protocol.as_ref().is_some_and(P::is_at_rest)
    }
}

/// Numbers of calls that a member makes for itself begin here.
const RETURNS: u64 = 1 << 63;

fn units_of(change: i64) -> Units {
    Units(u32::try_from(change.unsigned_abs()).unwrap_or(u32::MAX))
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
