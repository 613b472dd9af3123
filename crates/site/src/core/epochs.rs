//! The site in a cluster that changes: it drives the machine of [`kofm_core::epoch`].
//!
//! ```text
//!   store ──► lease, decisions ──┐
//!   links ──► who is gone ───────┼──► the machine ──► freeze, report, propose, install, resume
//!   peers ──► its messages ──────┘
//! ```
//!
//! Where all sites live in one process, or there is one, nobody is there to take them for dead, and
//! their right to grant does not run out. Their epochs change with what they share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kofm_core::SiteId;
use kofm_core::epoch::{Effect, Epochs, Input, LeaseKey, Message, Phase, Record};
use kofm_core::parts::SiteSet;
use kofm_core::voting::Wanted;
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use super::plans::Edit;
use super::{Core, Mutant, Responder, Timer};
use crate::api;
use crate::boottime::Moment;
use crate::bounds;
use crate::keeper::{self, News};
use crate::links::Payload;
use crate::paper::PaperKey;
use crate::plan::{self, Plan, kinds};
use crate::store;
use crate::tallies::Tallies;

/// How far clocks may differ in rate, in percent.
const RATE: u32 = 1;
/// What is added to every wait for somebody else's clock.
const MARGIN: Duration = Duration::from_millis(200);
/// A member whose connection is gone for longer is taken for dead, if its heartbeats are late or
/// its machine says that no process listens there.
const GONE: Duration = Duration::from_millis(200);
/// A heartbeat is late after this many tenths of a site lease: each is due after two, and is heard
/// of with one of this site, up to two later.
const LATE: u32 = 5;

/// The shortest silence after which a member is taken for dead, if leases are not shorter: a busy
/// machine is no dead one.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);

/// The lease of sites whose store cannot be out of their reach.
const FOR_EVER: Duration = Duration::from_hours(24 * 365 * 100);

/// The longest that a site does not look around.
const LOOK: Duration = Duration::from_millis(100);

/// What a site needs for epochs.
pub struct Change {
    pub(super) epochs: Epochs<Plan>,
    /// The site lease.
    pub(super) lease: Duration,
    /// Until when this site may grant.
    pub(super) leased: Option<Moment>,
    /// When a beat last succeeded.
    beaten: Option<Moment>,
    /// When the last beat that succeeded began: what it tells of others is not older.
    sampled: Moment,
    pub(super) trouble: Option<String>,
    /// Why grants cannot be written down as they must be.
    pub(super) unrecorded: Option<String>,
    /// The disk does not take what this site records.
    pub(super) disk: bool,
    /// The last sign of life of each site, and when it was new.
    pub(super) pulses: BTreeMap<String, (store::Pulse, Moment)>,
    /// Since when links to members are down.
    pub(super) down: BTreeMap<SiteId, Moment>,
    pub(super) suspects: SiteSet,
    /// When the leases of sites that departed with an epoch are certainly over.
    pub(super) quarantines: BTreeMap<u64, Moment>,
    pub(super) proposal: Option<Arc<Record<Plan>>>,
    /// A change of the plan that is under way, who waits for it, and until when.
    pub(super) planned: Option<(Plan, Option<Responder>, Moment)>,
    /// Changes that wait for it, or for the first epoch, with until when they do.
    pub(super) edits: VecDeque<(Edit, Responder, Moment)>,
    /// When this site began, or began to listen to what all others say.
    pub(super) started: Moment,
    listened: bool,
    /// Beats that were asked for out of turn, and when the last one was.
    nudges: (u64, Moment),
    pub(super) moved: Arc<BTreeMap<LeaseKey, SiteId>>,
    /// The site stops, and hands over what it has before that.
    pub(super) leaving: bool,
    pub(super) joined: Option<Moment>,
    /// When this process last began another incarnation.
    pub(super) renewed: Option<Moment>,
    /// Since when no member is left.
    pub(super) deserted: Option<Moment>,
    /// Some pool has more units than it should: they are taken out.
    pub(super) shrunk: bool,
    /// The requests that do that here.
    pub(super) drains: BTreeSet<u64>,
    /// Sites that nobody was told of may come.
    pub(super) joinable: bool,
    /// How many sites vote; none where sites do not decide.
    pub(super) wanted: Option<Wanted>,
    /// Nobody outside this process takes part in the decisions.
    pub(super) sole: bool,
    /// And nothing of the cluster is left after it.
    pub(super) whole: bool,
    pub(super) state: Option<Arc<dyn Births>>,
    me: watch::Sender<keeper::Standing>,
    proposals: mpsc::Sender<store::Record>,
    pub(super) running: watch::Sender<View>,
}

/// What others in this process may see of the epoch.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub epoch: u64,
    pub incarnation: u64,
    pub granting: bool,
    /// Why it does not grant.
    pub trouble: Option<String>,
    /// The same in a word: `minority`, `changing` or `disk`.
    pub verdict: Option<&'static str>,
    /// The disk does not take the site's state.
    pub disk: bool,
    pub members: BTreeMap<SiteId, u64>,
    /// Sites that departed, with what is left of their quarantine when this was made.
    pub quarantined: BTreeMap<SiteId, Moment>,
    pub leased: Option<Moment>,
    /// The right to grant does not run out.
    pub sole: bool,
    /// It stops, and hands over what it has before that.
    pub leaving: bool,
    /// It has left the epoch, and other sites have what it had.
    pub left: bool,
    /// Where leases are that other sites granted, in the epoch that is installed here.
    pub moved: Arc<BTreeMap<LeaseKey, SiteId>>,
    /// What was agreed on, once this site has heard of anything.
    pub record: Option<Arc<Record<Plan>>>,
}

impl View {
    pub fn plan(&self) -> Option<&Plan> {
        self.record.as_ref().map(|record| &record.plan)
    }
}

/// Where the number of a site's life is kept.
pub trait Births: Send + Sync {
    /// Begins another life, durably, and says its number.
    fn next(&self) -> Result<u64, String>;
}

/// The doors between the core and its keeper.
pub struct Doors {
    pub me: watch::Sender<keeper::Standing>,
    pub proposals: mpsc::Sender<store::Record>,
    pub running: watch::Sender<View>,
    pub state: Option<Arc<dyn Births>>,
    pub joinable: bool,
    pub wanted: Option<Wanted>,
    pub sole: bool,
    pub whole: bool,
}

impl Change {
    pub(super) fn record(&self) -> &Record<Plan> {
        self.epochs.record()
    }

    pub fn new(
        me: SiteId,
        incarnation: u64,
        now: Moment,
        plan: Plan,
        lease: Duration,
        doors: Doors,
    ) -> Self {
        let nothing = Record {
            epoch: 0,
            members: BTreeMap::new(),
            lives: BTreeMap::new(),
            plan,
            quarantine: BTreeMap::new(),
            surveys: Vec::new(),
            moves: Vec::new(),
        };
        let Doors { me: standing, proposals, running, state, joinable, wanted, sole, whole } =
            doors;
        Self {
            epochs: Epochs::new(me, incarnation, Arc::new(nothing)),
            lease,
            leased: None,
            beaten: None,
            sampled: now,
            trouble: None,
            unrecorded: None,
            disk: false,
            pulses: BTreeMap::new(),
            down: BTreeMap::new(),
            suspects: SiteSet::new(),
            quarantines: BTreeMap::new(),
            proposal: None,
            planned: None,
            edits: VecDeque::new(),
            started: now,
            listened: true,
            nudges: (0, now),
            moved: Arc::default(),
            leaving: false,
            joined: None,
            renewed: None,
            deserted: None,
            shrunk: false,
            drains: BTreeSet::new(),
            joinable,
            wanted,
            sole,
            whole,
            state,
            me: standing,
            proposals,
            running,
        }
    }

    /// How long after an epoch began the leases of those who are not in it are certainly over.
    pub(super) fn quarantine(&self) -> Duration {
        self.lease * (100 + RATE) / (100 - RATE) + MARGIN
    }

    /// The note that travels with heartbeats of this site.
    pub(super) fn own_note(&self) -> Vec<u8> {
        self.me.borrow().note.clone()
    }

    /// Whether this site has to know what all others said, and says who is gone: it votes, or it
    /// would make the change.
    fn judges(&self) -> bool {
        let (me, record) = (self.epochs.me(), self.epochs.record());
        let voters = &record.plan.voters;
        self.wanted.is_none()
            || voters.is_empty()
            || voters.contains_key(&me)
            || record.members.keys().next() == Some(&me)
    }

    /// How often a site looks around: what it notices late, everybody waits for.
    fn pause(&self) -> Duration {
        (self.lease / 20).min(LOOK)
    }

    /// How long a member may beat no more until it is taken for dead. A holder at that site goes on
    /// elsewhere, so the change must be made long before its promise ends, which is at most a lease
    /// after the last beat.
    fn silence(&self) -> Duration {
        (self.lease * 3 / 10).max(SHORTEST_SILENCE.min(self.lease))
    }

    fn is_leased(&self, now: Moment) -> bool {
        self.leased.is_some_and(|until| now < until)
    }

    /// The life in which a site was last seen, if that was lately.
    fn alive(&self, name: &str, now: Moment) -> Option<u64> {
        let (pulse, since) = self.pulses.get(name)?;
        (now.since(*since) < self.lease).then_some(pulse.incarnation)
    }

    /// Tells the keeper and whoever watches.
    pub(super) fn publish(&self) {
        let record = self.epochs.record();
        let outside = self.epochs.phase() == Phase::Outside;
        let known = Arc::clone(&self.me.borrow().record);
        let known = match record.epoch {
            0 => Arc::default(),
            epoch if epoch == known.epoch => known,
            _ => Arc::new(plan::decree(record)),
        };
        let now = keeper::Standing {
            record: known,
            incarnation: self.epochs.incarnation(),
            hurry: outside,
            nudge: self.nudges.0,
            // Whoever was taken out does not ask to be taken in again.
            note: if record.plan.sites.contains_key(&self.epochs.me()) {
                self.me.borrow().note.clone()
            } else {
                Vec::new()
            },
            listens: outside || self.judges(),
        };
        self.me.send_if_modified(|old| {
            let news = *old != now;
            *old = now;
            news
        });
        let phase = self.epochs.phase();
        let trouble = match phase {
            Phase::Running if self.epochs.may_grant() => {
                self.unrecorded.clone().map(|why| ("disk", why))
            }
            Phase::Running | Phase::Frozen | Phase::Installed if self.leased.is_none() => {
                let text = match &self.trouble {
                    Some(why) => format!("no majority, so nothing is granted here: {why}"),
                    None => "no majority, so nothing is granted here".to_owned(),
                };
                Some(("minority", text))
            }
            Phase::Outside if record.epoch == 0 => {
                let text = match &self.trouble {
                    Some(why) => format!("waits for the other sites: {why}"),
                    None => "waits for the other sites".to_owned(),
                };
                Some(("minority", text))
            }
            Phase::Outside if !record.plan.sites.contains_key(&self.epochs.me()) => {
                Some(("minority", "this site was taken out of the cluster".to_owned()))
            }
            Phase::Outside => Some(match &self.trouble {
                Some(why) => ("minority", format!("not in the cluster's epoch: {why}")),
                None => ("changing", "not in the cluster's epoch, asks to join".to_owned()),
            }),
            Phase::Running | Phase::Frozen | Phase::Installed => {
                Some(("changing", "the epoch is changing".to_owned()))
            }
        };
        let quarantined = record.quarantine.iter().flat_map(|(since, it)| {
            let until = self.quarantines.get(since).copied();
            it.sites.keys().filter_map(move |&site| Some((site, until?)))
        });
        self.running.send_replace(View {
            epoch: record.epoch,
            incarnation: self.epochs.incarnation(),
            granting: trouble.is_none(),
            verdict: trouble.as_ref().map(|it| it.0),
            trouble: trouble.map(|it| it.1),
            disk: self.disk,
            members: record.members.clone(),
            quarantined: quarantined.collect(),
            leased: self.leased,
            sole: self.sole,
            leaving: self.leaving,
            left: self.epochs.left(),
            moved: Arc::clone(&self.moved),
            record: Some(Arc::clone(record)),
        });
    }
}

impl Core {
    /// The epoch that messages of this site belong to.
    pub fn epoch(&self) -> u64 {
        self.change.epochs.record().epoch
    }

    /// Whether protocols must not take a step now.
    pub(super) fn stands_still(&self) -> bool {
        self.stopped || !self.change.epochs.may_grant()
    }

    /// Whether the right to grant has just run out, unnoticed so far.
    pub(super) fn has_lapsed(&self, now: Moment) -> bool {
        !self.change.is_leased(now)
    }

    /// How long a client may rely on this site: its right to grant, by a slower clock than ours.
    pub fn promise(&self, now: Moment) -> Option<Duration> {
        let left = match &self.change {
            _ if self.has(Mutant::PromisesBeyondTheSiteLease) => return None,
            change if change.whole => return None,
            // The next life waits for as long, whenever it begins.
            change if change.sole => change.lease,
            change => change.leased.map_or(Duration::ZERO, |until| until.since(now)),
        };
        Some(left * (100 - RATE) / (100 + RATE))
    }

    /// Why nothing is granted here now.
    pub fn obstacle(&self) -> Option<String> {
        self.change.running.borrow().trouble.clone()
    }

    /// Before the first epoch: an engine for each protocol, so that claims have a place to wait.
    pub(super) fn install_nothing(&mut self) {
        let numbers = kinds().into_iter().enumerate();
        for pool in &mut self.pools {
            let kind = numbers.clone().find(|it| it.1 == pool.config.protocol);
            pool.engine = kind.map_or(0, |it| it.0);
        }
    }

    /// Starts looking after the epoch.
    pub(super) fn watch_epochs(&mut self) {
        let moment = self.now.after(self.change.pause());
        self.start_timer(moment, Timer::Tick);
    }

    /// One input of the machine, and everything that follows.
    pub(super) fn feed(&mut self, input: Input<Plan>) {
        if self.stopped {
            return;
        }
        let change = &mut self.change;
        let mut effects = Vec::new();
        let before = Arc::clone(change.epochs.record());
        change.epochs.step(input, &mut effects);
        if change.epochs.record().epoch != before.epoch {
            // Nothing that a site said counts for the one that takes its place.
            let now = &change.epochs.record().plan;
            let number = |plan: &Plan, name: &str| plan.site_named(name).map(|it| it.0);
            change.pulses.retain(|name, _| {
                let old = number(&before.plan, name);
                old.is_none() || old == number(now, name)
            });
            // The keeper beats in the epoch that is known here, whoever is in it.
            change.publish();
            // A site that is no member must reach them all to become one.
            self.reach_sites();
        }
        self.carry_out_change(effects);
    }

    /// Makes links to all sites of the record.
    pub(super) fn reach_sites(&self) {
        for (&site, (name, address)) in &self.change.record().plan.sites {
            self.links.reach(site, name.clone(), address.clone());
        }
    }

    fn carry_out_change(&mut self, effects: Vec<Effect<Plan>>) {
        let news = !effects.is_empty();
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Send { to, message } => {
                    let copies = matches!(message, Message::Copies { .. } | Message::Kept { .. });
                    self.metrics.copy_messages += u64::from(copies);
                    self.tell_change(to, &message);
                }
                Effect::Freeze => {
                    // What this site has, as everything before has left it.
                    let outside = self.change.epochs.phase() == Phase::Outside;
                    let report = if outside { self.first_report() } else { self.report() };
                    let mut more = Vec::new();
                    for ticket in self.tickets() {
                        self.change.epochs.step(ticket, &mut more);
                    }
                    self.change.epochs.step(Input::Frozen(report), &mut more);
                    effects.extend(more);
                }
                Effect::Propose(record) => {
                    // Whoever is outside brings what its last life left: see `come_in`.
                    if self.change.epochs.phase() != Phase::Outside {
                        self.change.proposal = Some(record);
                    }
                    self.offer();
                }
                Effect::Install(record) => self.install(&record),
                Effect::Resume => self.resume(),
                Effect::Depart(record) => self.depart(record),
                Effect::Kept(leases) => self.on_kept(&leases),
            }
        }
        if news {
            self.change.publish();
        }
    }

    fn tell_change(&mut self, to: SiteId, message: &Message<Plan>) {
        let message = postcard::to_stdvec(message).unwrap_or_default();
        self.send(to, &Payload::Change { message });
    }

    /// Offers what is proposed to the store; again, where it did not answer.
    fn offer(&mut self) {
        let change = &mut self.change;
        let next = change.epochs.record().epoch + 1;
        let Some(record) = change.proposal.as_ref().filter(|it| it.epoch == next) else {
            change.proposal = None;
            return;
        };
        // A full queue has a proposal in it already; the next beat reminds us of this one.
        change.proposals.try_send(plan::decree(record)).ok();
    }

    pub(super) fn on_change_message(&mut self, from: SiteId, message: &[u8]) {
        let Ok(message) = postcard::from_bytes(message) else {
            return self.end_session(from, "a message about the epoch that cannot be decoded");
        };
        match bounds::message(&message, from, self.change.record()) {
            Ok(()) => self.feed(Input::Deliver { from, message }),
            Err(why) => self.end_session(from, why),
        }
    }

    /// Whether a message of a protocol belongs here.
    pub(super) fn admit(&mut self, epoch: u64) -> bool {
        let change = &mut self.change;
        if change.epochs.keeps(epoch) {
            // Taken when this site may take steps again.
            return true;
        }
        let mut effects = Vec::new();
        let admitted = change.epochs.admit(epoch, &mut effects);
        self.carry_out_change(effects);
        admitted
    }

    /// The store has said something.
    pub(super) fn on_news(&mut self, news: News) {
        let now = self.now;
        let mutant = self.has(Mutant::LeasedFromTheAnswer);
        let change = &mut self.change;
        match news {
            News::Beat { began, pulses } => {
                let from = if mutant { now } else { began };
                let until = from.after(if change.sole { FOR_EVER } else { change.lease });
                change.leased = change.leased.max(Some(until));
                change.beaten = Some(now);
                change.sampled = began;
                change.trouble = None;
                let record = Arc::clone(change.epochs.record());
                for pulse in pulses {
                    let site = record.plan.sites.iter().find(|it| it.1.0 == pulse.site);
                    let known = site.and_then(|it| record.lives.get(it.0)).copied();
                    if let Err(why) = bounds::incarnation(pulse.incarnation, known.unwrap_or(0)) {
                        warn!(site = %pulse.site, why, "refused a heartbeat");
                        continue;
                    }
                    let life = (pulse.incarnation, pulse.count);
                    let old = change.pulses.get(&pulse.site);
                    if old.is_none_or(|(old, _)| (old.incarnation, old.count) < life) {
                        change.pulses.insert(pulse.site.clone(), (pulse, now));
                    }
                }
                let valid = change.is_leased(now);
                self.feed(Input::Lease(valid));
                self.end_lapsed(began);
                self.offer();
                self.look_around();
                self.change.publish();
            }
            News::Decided(record) => match bounds::record(&record, change.record().epoch) {
                Ok(record) => self.feed(Input::Decided(Arc::new(record))),
                Err(refusal) => {
                    // A record of another version gets its own advice.
                    let why = plan::unpack(&record.body).err();
                    let why = why.unwrap_or_else(|| refusal.to_owned());
                    if change.trouble.as_ref() != Some(&why) {
                        error!(%why, "the store has a record that this site cannot read");
                    }
                    change.trouble = Some(why);
                    change.publish();
                }
            },
            News::Trouble(why) => {
                if change.trouble.as_ref() != Some(&why) {
                    warn!(%why, "no agreement in the store");
                }
                change.trouble = Some(why);
                change.publish();
            }
        }
        self.settle();
    }

    /// Notes whether the disk takes the site's state, for [`View::disk`].
    fn check_disk(&mut self) {
        let tallies = self.tallies.as_ref().is_some_and(Tallies::has_failed);
        self.change.disk = tallies || self.is_journal_behind();
        if self.change.running.borrow().disk != self.change.disk {
            self.change.publish();
        }
    }

    /// Every now and then: who is gone, what is over, who may join.
    pub(super) fn tick(&mut self) {
        let now = self.now;
        let change = &mut self.change;
        let again = now.after(change.pause());
        self.start_timer(again, Timer::Tick);
        self.check_disk();
        self.check_lease(now);
        self.catch_up();
        self.follow_drain();
        self.try_to_leave();
        self.tell_what_waits();
        self.look_around();
        self.present_papers();
        if !self.lapsed.is_empty() {
            self.nudge();
        }
        self.give_up_plan(now);
        self.next_edit();
        self.shrink();
        self.settle();
    }

    /// Stops granting when the site's right to do so has run out.
    pub(super) fn check_lease(&mut self, now: Moment) {
        let change = &mut self.change;
        if change.leased.is_none() || change.is_leased(now) {
            return;
        }
        change.leased = None;
        self.feed(Input::Lease(false));
        let cause = "the site cannot reach enough others to know that its leases are good";
        warn!("{cause}");
        let happening = self.happening("suspended", None);
        self.record(api::Happening { cause: Some(cause.into()), ..happening });
        // Leases stay: the other sites withhold their units until this site is certainly over, so a
        // lease whose own time is not over goes on if this site may grant again, or joins again.
        // What their holders were promised has ended.
        self.lose_rota(cause);
        self.change.publish();
    }

    /// Has the next beat at once, if the last one out of turn is long enough ago.
    pub(super) fn nudge(&mut self) {
        let (now, sole) = (self.now, self.change.sole);
        if sole {
            return self.end_lapsed(now);
        }
        let change = &mut self.change;
        let (count, last) = change.nudges;
        if now.since(last) >= change.lease / 20 {
            change.nudges = (count + 1, now);
            change.publish();
        }
    }

    /// A connection is gone: it is looked after when its time is over, not only every now and then.
    pub(super) fn miss(&mut self, site: SiteId) {
        let now = self.now;
        let change = &mut self.change;
        if change.record().members.contains_key(&site) {
            change.down.entry(site).or_insert(now);
            // Later than the time itself, which must be over.
            self.start_timer(now.after(GONE + Duration::from_millis(1)), Timer::Look);
        }
    }

    /// It is there again.
    pub(super) fn found(&mut self, site: SiteId) {
        self.change.down.remove(&site);
    }

    pub(super) fn look_around(&mut self) {
        let change = &self.change;
        if change.epochs.phase() == Phase::Outside {
            self.replace_broken_sessions();
            self.come_in();
        } else {
            if !change.sole {
                self.look_for_the_dead();
            }
            self.end_quarantines();
            self.take_in();
            self.drain_pools();
        }
    }

    fn look_for_the_dead(&mut self) {
        let now = self.now;
        let judges = self.change.judges();
        let change = &mut self.change;
        if judges && !change.listened {
            change.started = now;
        }
        change.listened = judges;
        let record = Arc::clone(change.epochs.record());
        change.down.retain(|site, _| record.members.contains_key(site));
        // Whoever cannot reach a majority knows nothing about the others.
        let sure =
            judges && change.beaten.is_some_and(|beaten| now.since(beaten) < change.lease / 2);
        let mut suspects = SiteSet::new();
        for (&site, &incarnation) in record.members.iter().filter(|it| *it.0 != self.me) {
            if self.links.is_up(site) {
                change.down.remove(&site);
            } else {
                change.down.entry(site).or_insert(now);
            }
            let down = change.down.get(&site).map(|&since| now.since(since));
            let name = record.plan.sites.get(&site).map_or("", |it| it.0.as_str());
            let pulse = change.pulses.get(name);
            let age = now.since(pulse.map_or(change.started, |it| it.1.max(change.started)));
            let silent = match pulse {
                // Counted up to the last beat of this site, not up to now: this site may have stood
                // still, and then it knows of no beat of any other.
                Some((pulse, since)) => {
                    let silence = change.sampled.since((*since).max(change.started));
                    silence > change.silence() || pulse.incarnation > incarnation
                }
                None => age > change.lease * 2,
            };
            // Its heartbeats count while a majority of the voters answers them. A link alone that
            // breaks proves nothing.
            let late = age > change.lease * LATE / 10;
            let gone = down.is_some_and(|it| it > GONE) && (late || self.links.is_refused(site));
            // Two that both live and do not reach each other: one of them has to go.
            let patience = if site > self.me { change.lease } else { change.lease * 2 };
            let cut = down.is_some_and(|it| it > patience);
            let removed = !record.plan.sites.contains_key(&site);
            if sure && (gone || cut || silent || removed) {
                suspects.insert(site);
            }
        }
        if suspects != change.suspects {
            let names: Vec<u16> = suspects.iter().map(|it| it.0).collect();
            info!(suspects = ?names, epoch = record.epoch, "members that seem to be gone");
            change.suspects = suspects.clone();
            self.feed(Input::Suspect(suspects));
        }
    }

    fn end_quarantines(&mut self) {
        let now = self.now;
        let at_once = self.has(Mutant::EndsQuarantinesAtOnce);
        let change = &mut self.change;
        let record = change.epochs.record();
        change.quarantines.retain(|since, _| record.quarantine.contains_key(since));
        let over =
            change.quarantines.iter().filter(|it| *it.1 <= now || at_once).map(|it| *it.0).max();
        if let Some(over) = over {
            // Said again as long as it is not seen to.
            for until in change.quarantines.values_mut().filter(|until| **until <= now) {
                *until = now.after(change.lease / 5);
            }
            self.feed(Input::Over(over));
        }
    }

    /// No member: asks to become one, or makes the first epoch, or the next one where no member is
    /// left.
    fn come_in(&mut self) {
        let now = self.now;
        let change = &mut self.change;
        let record = Arc::clone(change.epochs.record());
        let beaten = change.beaten.is_some_and(|beaten| now.since(beaten) < change.lease);
        if change.proposal.as_ref().is_some_and(|it| it.epoch == record.epoch + 1) || !beaten {
            return;
        }
        let sites = &record.plan.sites;
        let Some((name, _)) = sites.get(&self.me) else { return };
        let alive = |site: SiteId| {
            let name = sites.get(&site).map_or("", |it| it.0.as_str());
            change.alive(name, now)
        };
        // Whoever has the lowest number goes first.
        let rank = sites.keys().filter(|&&site| site < self.me && alive(site).is_some()).count();
        let turn = change.lease / 4 * u32::try_from(rank).unwrap_or(8);
        if record.epoch == 0 {
            let all = sites.keys().all(|&site| alive(site).is_some());
            let reached = sites.keys().all(|&site| site == self.me || self.links.is_up(site));
            let waited = now.since(change.started);
            if (all && reached && rank == 0) || waited > change.lease + turn {
                let here = |&site: &SiteId| {
                    let up = site == self.me || self.links.is_up(site);
                    Some((site, alive(site).filter(|_| up)?))
                };
                let mut members: BTreeMap<SiteId, u64> = sites.keys().filter_map(here).collect();
                members.insert(self.me, change.epochs.incarnation());
                let mut plan = record.plan.clone();
                self.note_facts(&mut plan);
                plan.voters = self.choose_voters(&plan, &members);
                plan.key = PaperKey::new(self.random.bytes());
                let change = &mut self.change;
                change.proposal = Some(Arc::new(Record::first(members, plan)));
                self.offer();
            }
            return;
        }
        let lives = |(site, incarnation): (&SiteId, &u64)| alive(*site) == Some(*incarnation);
        if record.members.iter().any(lives) {
            change.deserted = None;
            let reached = record.members.keys().all(|&it| it == self.me || self.links.is_up(it));
            let patience = change.lease / 4;
            let asked = change.joined.is_some_and(|it| now.since(it) < patience);
            if reached && !asked {
                change.joined = Some(now);
                let report = self.first_report();
                info!(site = %name, epoch = record.epoch, "asks to join");
                let me = self.me;
                for &to in record.members.keys().filter(|&&site| site != me) {
                    self.tell_change(to, &Message::Join(report.clone()));
                }
            }
            return;
        }
        // Those that have come back with another life need not be waited for.
        let dead = |(&site, &incarnation): (&SiteId, &u64)| {
            let name = sites.get(&site).map_or("", |it| it.0.as_str());
            let pulse = change.pulses.get(name);
            pulse.is_some_and(|(pulse, _)| pulse.incarnation > incarnation)
        };
        let sure = record.members.iter().all(dead);
        let since = *change.deserted.get_or_insert(now);
        let patience = if sure { turn } else { change.lease + turn };
        if now.since(since) >= patience {
            let report = self.first_report();
            let next = record.revived(&BTreeMap::from([(self.me, report)]));
            warn!(epoch = next.epoch, "no member is left: starting a new epoch from the record");
            self.change.proposal = Some(Arc::new(next));
            self.offer();
        }
    }

    /// A connection to a peer stands again: whatever it may have missed is said again.
    pub(super) fn remind(&mut self, peer: SiteId) {
        let change = &self.change;
        let record = Arc::clone(change.epochs.record());
        if record.epoch == 0 || change.epochs.phase() == Phase::Outside {
            return;
        }
        let epoch = record.epoch;
        self.tell_change(peer, &Message::Commit(record));
        self.tell_change(peer, &Message::Ready { epoch });
    }
}
