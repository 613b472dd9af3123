//! The machine that changes epochs, at one site. No clock, no I/O, no protocols.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::conclude::conclude;
use super::leave::{Ticket, leavers};
use super::rules::{Rules, Slip, Sound};
use super::survey::{Copy, LeaseKey, Paper, Plan, Record, Report};
use crate::parts::SiteSet;
use crate::types::SiteId;

mod copies;

pub use copies::MAX_COPIES;
pub(super) use copies::majority;

/// What enters the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input<C> {
    /// A message of another site in the life that this site has its session with.
    Deliver {
        /// Who says it.
        from: SiteId,
        /// What.
        message: Message<C>,
    },
    /// This is in the store now, or was: the answer to a proposal, or read there, or heard from
    /// somebody who did.
    Decided(Arc<Record<C>>),
    /// The answer to [`Effect::Freeze`]: what this site has.
    Frozen(Report),
    /// The members that this site believes to be gone; replaces what it believed before.
    Suspect(SiteSet),
    /// This is what the members should share.
    Configure(C),
    /// Sites that departed with this epoch or before have no leases any more, for certain.
    Over(u64),
    /// Whether this site has the right to grant: its last renewal in the store is recent enough.
    Lease(bool),
    /// A holder presents a lease of a site that is gone, or seems to be. It is in the next report
    /// of this site, and forgotten with the next record: where that has decided nothing, and
    /// [may adopt](Record::may_adopt) it, it has to be presented again.
    Present(Paper),
    /// This site has granted these leases, which only a person may end, and their clients have not
    /// heard of them; or keepers should know more of them. The others are over. Where the epoch
    /// does not run, or changes, it has to be said again: see [`Epochs::is_kept`].
    Keep {
        /// The leases.
        copies: Vec<Copy>,
        /// Leases that are over.
        over: Vec<LeaseKey>,
    },
    /// The same of a claim that waited at such a site; see [`Record::may_queue`].
    Queue(Ticket),
    /// This site wants to be no member any more. From now on its answers to [`Effect::Freeze`] say
    /// what it hands over. It reports, and is not in the next record if another site is.
    Leave,
    /// A site that is no member wants to be one, with what it brings. For the site itself: send
    /// [`Message::Join`] to a member.
    Join {
        /// Who.
        site: SiteId,
        /// What it brings.
        report: Report,
    },
}

/// What sites say to each other. Links are reliable and first-in first-out between two lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message<C> {
    /// Freeze in this epoch and report.
    Freeze {
        /// The epoch that should end.
        epoch: u64,
    },
    /// Here is what I have; I do nothing until the next epoch.
    Report {
        /// The epoch in which it is true.
        epoch: u64,
        /// What.
        report: Report,
    },
    /// The store has this.
    Commit(Arc<Record<C>>),
    /// I have installed this epoch.
    Ready {
        /// Which.
        epoch: u64,
    },
    /// A change is needed, and it is yours to make.
    Wish {
        /// Members that seem to be gone, in which life.
        suspects: BTreeMap<SiteId, u64>,
        /// Sites that want to join.
        joins: BTreeMap<SiteId, Report>,
        /// What the members should share, where that should change.
        plan: Option<C>,
        /// Departed with this epoch or before: certainly over.
        over: u64,
        /// Clients have presented leases or claims that the next record may let go on.
        papers: bool,
        /// The sender wants to leave.
        leaves: bool,
    },
    /// I am no member and want to be one.
    Join(Report),
    /// Keep copies of these leases of mine; the others are over.
    Copies {
        /// The epoch in which it is true.
        epoch: u64,
        /// The leases.
        copies: Vec<Copy>,
        /// Those that are over.
        over: Vec<LeaseKey>,
    },
    /// I have copies of these leases of yours.
    Kept {
        /// The epoch in which I have.
        epoch: u64,
        /// The leases.
        leases: Vec<LeaseKey>,
    },
}

/// What leaves the machine, to be carried out in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<C> {
    /// Tell another site.
    Send {
        /// Whom.
        to: SiteId,
        /// What.
        message: Message<C>,
    },
    /// No protocol takes a step from now on, until `Resume`. To be answered at once with
    /// [`Input::Frozen`]: the live claims of the clients and the idle units of the protocols, as
    /// all effects before this one have left them. A site that is no member answers with what it
    /// would bring to [join](Message::Join).
    Freeze,
    /// Offer this to the store: it replaces the record with the epoch before, or nothing. The
    /// answer is [`Input::Decided`] with what the store then has.
    Propose(Arc<Record<C>>),
    /// Put all protocols in the state that this record says, and forget their timers. They say
    /// nothing yet.
    Install(Arc<Record<C>>),
    /// The protocols go on, in the record that was installed.
    Resume,
    /// This life is not in the record: it is over. Its leases are lost; the site may come back with
    /// a larger incarnation.
    Depart(Arc<Record<C>>),
    /// The loss of a minority of the keepers cannot lose these leases any more: their clients may
    /// hear of them, if this site may grant.
    Kept(Vec<LeaseKey>),
}

/// Where a site is in its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No member, or not any more.
    Outside,
    /// Protocols take steps.
    Running,
    /// It has reported, or is about to propose, and waits for a decision.
    Frozen,
    /// It has installed the record and waits until all members have.
    Installed,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Epochs<C, R = Sound> {
    me: SiteId,
    incarnation: u64,
    record: Arc<Record<C>>,
    phase: Phase,
    leased: bool,
    /// Whether this life was left out: nothing follows.
    departed: bool,
    /// Whether it left as it wanted to.
    left: bool,
    /// The newest epoch that each site has installed, as far as it has said.
    ready: BTreeMap<SiteId, u64>,
    /// Sites that asked for a report, and of which epoch; it may not be known here yet.
    asked: BTreeMap<SiteId, u64>,
    /// What this site has, while it is frozen.
    report: Option<Report>,
    wish: Wish<C>,
    /// Whom other members believe to be gone, by who says so.
    rumours: BTreeMap<SiteId, BTreeMap<SiteId, u64>>,
    /// The wish as it was passed on, and to whom.
    told: Option<(SiteId, u64, Wish<C>)>,
    /// The change that is being made here.
    change: Option<Change<C>>,
    /// Leases that holders have presented here since the last record.
    papers: Vec<Paper>,
    copies: copies::Copies,
    /// The same of claims that waited elsewhere.
    tickets: Vec<Ticket>,
    rules: R,
}

/// What this site wants to be different.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Wish<C> {
    suspects: BTreeMap<SiteId, u64>,
    joins: BTreeMap<SiteId, Report>,
    plan: Option<C>,
    over: u64,
    papers: bool,
    leaves: BTreeMap<SiteId, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Change<C> {
    asked: SiteSet,
    reports: BTreeMap<SiteId, Report>,
    proposed: Option<Arc<Record<C>>>,
}

impl<C: Plan> Epochs<C> {
    /// A site in this life, before or outside any epoch. `record` is what it knows of the store;
    /// where it is a member there, it installs it at the first input, [`Input::Decided`] of that
    /// record say.
    pub fn new(me: SiteId, incarnation: u64, record: Arc<Record<C>>) -> Self {
        Self::by(Sound, me, incarnation, record)
    }
}

impl<C: Plan, R: Rules> Epochs<C, R> {
    /// The same, by other rules.
    pub fn by(rules: R, me: SiteId, incarnation: u64, record: Arc<Record<C>>) -> Self {
        Self {
            me,
            incarnation,
            record,
            phase: Phase::Outside,
            leased: false,
            departed: false,
            left: false,
            ready: BTreeMap::new(),
            asked: BTreeMap::new(),
            report: None,
            wish: Wish {
                suspects: BTreeMap::new(),
                joins: BTreeMap::new(),
                plan: None,
                over: 0,
                papers: false,
                leaves: BTreeMap::new(),
            },
            rumours: BTreeMap::new(),
            told: None,
            change: None,
            papers: Vec::new(),
            copies: copies::Copies::default(),
            tickets: Vec::new(),
            rules,
        }
    }

    /// The site.
    pub const fn me(&self) -> SiteId {
        self.me
    }

    /// Its life.
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The rules that it plays by.
    pub(super) const fn rules(&self) -> R {
        self.rules
    }

    /// The newest record that it knows.
    pub const fn record(&self) -> &Arc<Record<C>> {
        &self.record
    }

    /// Where it is.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether protocols may take steps, and so grant: the epoch runs and the site's lease does.
    /// Otherwise clients wait, and messages of other sites stay where they are.
    pub fn may_grant(&self) -> bool {
        self.phase == Phase::Running && self.is_leased()
    }

    fn is_leased(&self) -> bool {
        self.leased || self.rules.slips(Slip::GrantsWithoutLease)
    }

    /// Whether a protocol's message of this epoch has to wait until the site has a lease again, or
    /// until the next epoch drops it.
    pub fn keeps(&self, epoch: u64) -> bool {
        let started = matches!(self.phase, Phase::Running | Phase::Installed);
        epoch == self.record.epoch && started && !self.is_leased()
    }

    /// Whether this life is in the newest record.
    pub fn is_member(&self) -> bool {
        self.is_in(&self.record)
    }

    fn is_in(&self, record: &Record<C>) -> bool {
        let member = record.members.get(&self.me);
        member == Some(&self.incarnation)
            || self.rules.slips(Slip::IgnoresIncarnation) && member.is_some()
    }

    /// Takes an input.
    pub fn step(&mut self, input: Input<C>, out: &mut Vec<Effect<C>>) {
        match input {
            Input::Deliver { from, message } => self.deliver(from, message, out),
            Input::Decided(record) => self.learn(record, out),
            Input::Frozen(report) => self.frozen(report, out),
            Input::Suspect(sites) => {
                let members = self.record.members.iter();
                let gone = members.filter(|(site, _)| sites.contains(**site));
                self.wish.suspects = gone.map(|(&site, &life)| (site, life)).collect();
            }
            Input::Configure(plan) => self.wish.plan = Some(plan),
            Input::Over(epoch) => self.wish.over = self.wish.over.max(epoch),
            Input::Lease(valid) => {
                self.leased = valid;
                self.try_resume(out);
            }
            Input::Present(paper) => self.present(paper),
            Input::Keep { copies, over } => self.keep(copies, &over, out),
            Input::Queue(ticket) => {
                if self.phase != Phase::Outside && !self.tickets.contains(&ticket) {
                    self.tickets.push(ticket);
                }
            }
            Input::Leave => {
                if self.phase != Phase::Outside {
                    self.wish.leaves.insert(self.me, self.incarnation);
                }
            }
            Input::Join { site, report } => self.wish_join(site, report),
        }
        self.pursue(out);
    }

    /// A protocol's message of this epoch has come, and is not one that the site
    /// [keeps](Self::keeps): whether to take it, or to drop it. Whoever sent it has seen
    /// everybody install the epoch, so it may have begun for this site too.
    pub fn admit(&mut self, epoch: u64, out: &mut Vec<Effect<C>>) -> bool {
        if self.rules.slips(Slip::IgnoresEpoch) {
            return self.phase == Phase::Running;
        }
        if epoch != self.record.epoch {
            return false;
        }
        if self.phase == Phase::Installed && self.is_leased() {
            self.resume(out);
        }
        self.phase == Phase::Running
    }

    fn deliver(&mut self, from: SiteId, message: Message<C>, out: &mut Vec<Effect<C>>) {
        match message {
            Message::Freeze { epoch } => self.on_freeze(from, epoch, out),
            Message::Report { epoch, report } => {
                let is_member = self.record.members.get(&from) == Some(&report.incarnation);
                let same = epoch == self.record.epoch || self.rules.slips(Slip::TakesOldReports);
                if let Some(change) = &mut self.change
                    && is_member
                    && same
                {
                    change.reports.insert(from, report);
                }
            }
            Message::Commit(record) => self.learn(record, out),
            Message::Ready { epoch } => {
                let known = self.ready.entry(from).or_default();
                *known = epoch.max(*known);
                self.try_resume(out);
            }
            Message::Wish { suspects, joins, plan, over, papers, leaves } => {
                self.rumours.insert(from, suspects);
                for (site, report) in joins {
                    self.wish_join(site, report);
                }
                if plan.is_some() {
                    self.wish.plan = plan;
                }
                self.wish.over = self.wish.over.max(over);
                self.wish.papers |= papers;
                if let Some(&life) = self.record.members.get(&from).filter(|_| leaves) {
                    self.wish.leaves.insert(from, life);
                }
            }
            Message::Join(report) => self.wish_join(from, report),
            Message::Copies { epoch, copies, over } => {
                self.on_copies(from, epoch, copies, &over, out);
            }
            Message::Kept { epoch, leases } => self.on_kept(from, epoch, &leases, out),
        }
    }

    fn present(&mut self, paper: Paper) {
        if self.phase != Phase::Outside && !self.papers.contains(&paper) {
            self.papers.push(paper);
        }
    }

    /// The leases that were presented here since the last record.
    pub fn papers(&self) -> &[Paper] {
        &self.papers
    }

    /// The claims that were presented here since the last record.
    pub fn tickets(&self) -> &[Ticket] {
        &self.tickets
    }

    /// Whether this site has said that it [leaves](Input::Leave).
    pub fn leaves(&self) -> bool {
        self.wish.leaves.get(&self.me) == Some(&self.incarnation)
    }

    /// Whether it has left: the newest record was made from its last report, without it.
    pub const fn left(&self) -> bool {
        self.left
    }

    fn wish_join(&mut self, site: SiteId, report: Report) {
        let known = self.wish.joins.get(&site);
        if site != self.me && known.is_none_or(|known| known.incarnation < report.incarnation) {
            self.wish.joins.insert(site, report);
        }
    }

    fn on_freeze(&mut self, from: SiteId, epoch: u64, out: &mut Vec<Effect<C>>) {
        if epoch < self.record.epoch {
            let message = Message::Commit(Arc::clone(&self.record));
            out.push(Effect::Send { to: from, message });
        } else {
            self.asked.insert(from, epoch);
            self.answer(out);
        }
    }

    /// Reports to whoever asked, or freezes first.
    fn answer(&mut self, out: &mut Vec<Effect<C>>) {
        let epoch = self.record.epoch;
        self.asked.retain(|_, asked| *asked >= epoch);
        if self.phase == Phase::Outside || self.asked.values().all(|&asked| asked > epoch) {
            return;
        }
        let Some(report) = self.report.clone() else { return self.freeze(out) };
        for (to, _) in self.asked.extract_if(.., |_, asked| *asked == epoch) {
            let message = Message::Report { epoch, report: report.clone() };
            out.push(Effect::Send { to, message });
        }
    }

    fn freeze(&mut self, out: &mut Vec<Effect<C>>) {
        if self.report.is_none() && self.phase != Phase::Frozen {
            let slips = self.rules.slips(Slip::LeaverGoesOn) && self.leaves();
            if !slips && !self.rules.slips(Slip::ReportsAndGoesOn) {
                self.phase = Phase::Frozen;
            }
            out.push(Effect::Freeze);
        }
    }

    fn frozen(&mut self, mut report: Report, out: &mut Vec<Effect<C>>) {
        report.incarnation = self.incarnation;
        self.copies.tell(&mut report);
        if self.leaves() {
            // Its clients present theirs elsewhere.
            report.leaves.get_or_insert_default();
            report.papers.clear();
        } else {
            report.leaves = None;
            report.papers.clone_from(&self.papers);
            report.tickets.clone_from(&self.tickets);
        }
        for book in &mut report.books {
            match self.rules.slip() {
                Some(Slip::LosesWaiting) => book.claims.retain(|_, told| told.held.is_some()),
                Some(Slip::LosesHeld) => book.claims.retain(|_, told| told.held.is_none()),
                _ => {}
            }
        }
        if let Some(change) = &mut self.change {
            change.reports.insert(self.me, report.clone());
        }
        self.report = Some(report);
        self.answer(out);
    }

    /// A record that the store has, or had.
    fn learn(&mut self, record: Arc<Record<C>>, out: &mut Vec<Effect<C>>) {
        let starts = record.epoch == self.record.epoch && self.phase == Phase::Outside;
        if record.epoch <= self.record.epoch && !(starts && self.is_member()) {
            return;
        }
        let ours = self.change.take().and_then(|change| change.proposed);
        let was_member = self.phase != Phase::Outside;
        let leaves = self.leaves();
        self.record = Arc::clone(&record);
        self.rumours.clear();
        self.told = None;
        self.report = None;
        self.papers.clear();
        self.copies = copies::Copies::begin(&record);
        self.tickets.clear();
        self.wish.papers = false;
        self.ready.retain(|_, ready| *ready >= record.epoch);
        if ours.is_some_and(|ours| ours == record) {
            self.tell_members(&Message::Commit(Arc::clone(&record)), out);
        }
        if self.is_member() {
            self.install(out);
        } else if (was_member || self.record.lives.get(&self.me) >= Some(&self.incarnation))
            && !self.departed
            && !self.rules.slips(Slip::NeverDeparts)
        {
            let life = (&self.me, &self.incarnation);
            let missed =
                self.record.quarantine.values().any(|it| it.sites.get(life.0) == Some(life.1));
            self.left = leaves && !missed;
            self.phase = Phase::Outside;
            self.departed = true;
            out.push(Effect::Depart(record));
        }
        self.answer(out);
    }

    fn install(&mut self, out: &mut Vec<Effect<C>>) {
        self.phase = Phase::Installed;
        out.push(Effect::Install(Arc::clone(&self.record)));
        self.tell_members(&Message::Ready { epoch: self.record.epoch }, out);
        self.try_resume(out);
    }

    fn tell_members(&self, message: &Message<C>, out: &mut Vec<Effect<C>>) {
        for &to in self.record.members.keys().filter(|&&site| site != self.me) {
            out.push(Effect::Send { to, message: message.clone() });
        }
    }

    /// Goes on when all members have installed the record.
    fn try_resume(&mut self, out: &mut Vec<Effect<C>>) {
        let epoch = self.record.epoch;
        let is_ready = |site: &SiteId| {
            *site == self.me || self.ready.get(site).is_some_and(|&ready| ready >= epoch)
        };
        let early = self.rules.slips(Slip::ResumesBeforeBarrier);
        let all = early || self.record.members.keys().all(is_ready);
        if self.phase == Phase::Installed && all && self.is_leased() {
            self.resume(out);
        }
    }

    fn resume(&mut self, out: &mut Vec<Effect<C>>) {
        self.phase = Phase::Running;
        out.push(Effect::Resume);
    }

    /// Makes a change that is wanted, or passes on the wish to whoever should.
    fn pursue(&mut self, out: &mut Vec<Effect<C>>) {
        self.forget_fulfilled();
        if self.phase == Phase::Outside {
            return self.found(out);
        }
        let leader = self.leader();
        if self.change.is_none() && leader != self.me {
            self.pass_on(leader, out);
            return;
        }
        if self.change.is_none() {
            if !self.wants_change() {
                return;
            }
            self.freeze(out);
            let report = self.report.clone();
            let reports = report.map(|report| (self.me, report)).into_iter().collect();
            self.change = Some(Change { asked: SiteSet::new(), reports, proposed: None });
        }
        // A change that was begun is finished, wanted or not: others have frozen.
        let epoch = self.record.epoch;
        for site in self.stays() {
            if let Some(change) = &mut self.change
                && site != self.me
                && change.asked.insert(site)
            {
                out.push(Effect::Send { to: site, message: Message::Freeze { epoch } });
            }
        }
        self.try_propose(out);
    }

    /// Who makes a change: the first of those who stay.
    fn leader(&self) -> SiteId {
        let first = if self.rules.slips(Slip::FollowsTheDead) {
            let suspects = self.suspects();
            self.record.members.keys().copied().find(|&site| !suspects.contains(site))
        } else {
            self.stays().first().copied()
        };
        first.unwrap_or(self.me)
    }

    /// Where no member is left that could make a change, whoever wants to be one does. All that the
    /// lives before had is withheld until their leases are over.
    fn found(&mut self, out: &mut Vec<Effect<C>>) {
        if self.departed || self.is_member() || !self.stays().is_empty() {
            return;
        }
        let empty = Change { asked: SiteSet::new(), reports: BTreeMap::new(), proposed: None };
        self.change.get_or_insert(empty);
        if self.report.is_some() {
            self.try_propose(out);
        } else {
            out.push(Effect::Freeze);
        }
    }

    /// Tells the leader what is wanted, and when that is wanted no more.
    fn pass_on(&mut self, leader: SiteId, out: &mut Vec<Effect<C>>) {
        let now = (leader, self.record.epoch, self.wish.clone());
        let news = self.told.as_ref() != Some(&now);
        if news && (self.told.is_some() || self.wants_change()) {
            let leaves = self.leaves();
            let Wish { suspects, joins, plan, over, papers, .. } = self.wish.clone();
            let message = Message::Wish { suspects, joins, plan, over, papers, leaves };
            out.push(Effect::Send { to: leader, message });
            self.told = Some(now);
        }
    }

    /// Whom this site or another member believes to be gone.
    fn suspects(&self) -> SiteSet {
        let all = self.rumours.values().chain([&self.wish.suspects]).flatten();
        let members = &self.record.members;
        let gone = all.filter(|(site, life)| members.get(site) == Some(life));
        gone.map(|(&site, _)| site).filter(|&site| site != self.me).collect()
    }

    /// The members that are to stay in the life that they have.
    pub fn stays(&self) -> Vec<SiteId> {
        let newer = |site: SiteId, incarnation: u64| {
            site == self.me && incarnation != self.incarnation
                || self.wish.joins.get(&site).is_some_and(|report| report.incarnation > incarnation)
        };
        let suspects = self.suspects();
        let members = self.record.members.iter();
        let stay = members
            .filter(|&(&site, &incarnation)| !suspects.contains(site) && !newer(site, incarnation));
        stay.map(|(&site, _)| site).collect()
    }

    fn forget_fulfilled(&mut self) {
        let record = &self.record;
        self.wish.papers |= self.papers.iter().any(|paper| record.may_adopt(paper))
            || self.tickets.iter().any(|ticket| record.may_queue(ticket));
        self.wish.leaves.retain(|site, life| record.members.get(site) == Some(life));
        let readmits = self.rules.slips(Slip::ReadmitsTheDeparted);
        let lives = if readmits { &record.members } else { &record.lives };
        self.wish.suspects.retain(|site, life| record.members.get(site) == Some(life));
        self.wish
            .joins
            .retain(|site, report| lives.get(site).is_none_or(|&known| known < report.incarnation));
        self.wish.plan.take_if(|plan| *plan == record.plan);
        if record.quarantine.keys().all(|&since| since > self.wish.over) {
            self.wish.over = 0;
        }
    }

    fn wants_change(&self) -> bool {
        let over = self.record.quarantine.keys().any(|&since| since <= self.wish.over);
        !self.suspects().is_empty()
            || !self.wish.joins.is_empty()
            || self.wish.plan.is_some()
            || self.wish.papers
            || self.may_leave()
            || over && !self.rules.slips(Slip::NeverEndsQuarantine)
    }

    /// Whether a site wants to leave and another would be left.
    fn may_leave(&self) -> bool {
        let stays = self.stays();
        let leaves = |site: &SiteId| self.wish.leaves.contains_key(site);
        stays.iter().any(leaves) && (!stays.iter().all(leaves) || !self.wish.joins.is_empty())
    }

    /// Proposes the next record once everybody who is to stay has reported.
    fn try_propose(&mut self, out: &mut Vec<Effect<C>>) {
        let stays = self.stays();
        let Some(change) = &self.change else { return };
        let mut reports: BTreeMap<SiteId, &Report> = BTreeMap::new();
        for site in stays {
            match change.reports.get(&site) {
                Some(report) => drop(reports.insert(site, report)),
                None if self.rules.slips(Slip::ProposesTooEarly) => {}
                None => return,
            }
        }
        if self.phase == Phase::Outside {
            reports.extend(change.reports.iter().map(|(&site, report)| (site, report)));
        }
        reports.extend(self.wish.joins.iter().map(|(&site, report)| (site, report)));
        // What moves is named by the pools of one plan.
        let moves = !leavers(&reports).is_empty();
        let plan = self.wish.plan.as_ref().filter(|_| !moves).unwrap_or(&self.record.plan);
        let next = Arc::new(conclude(&self.record, &reports, plan, self.wish.over, self.rules));
        if change.proposed.as_ref() != Some(&next) {
            out.push(Effect::Propose(Arc::clone(&next)));
            if let Some(change) = &mut self.change {
                change.proposed = Some(Arc::clone(&next));
            }
            if self.rules.slips(Slip::ResumesUndecided) {
                self.record = next;
                self.change = None;
                self.report = None;
                self.install(out);
            }
        }
    }
}
