//! The rota: gangs that are fixed in the configuration and share their members by the algorithm of
//! Cheng et al., over the same links as everything else.
//!
//! Each site is one process of the algorithm, and whoever joins for it at this site is its client,
//! one after the other. A gang works when every member has claimed, and lets go when every member
//! is done; both barriers are the protocol's own.
//!
//! The algorithm does not survive a process that dies. So it begins anew with every epoch that has
//! other lives of its sites, without the gangs that miss a member, and not before everything that
//! was granted before is certainly over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use kofm_core::epoch::Record;
use kofm_core::{Clock, Cluster, Demand, GroupId, Grouping, Kind, SiteId, Stamp, Unit, Units};
use serde::{Deserialize, Serialize};
use tracing::{error, info};

use super::{Core, MAX_TTL, MIN_TTL, Responder, Timer, millis};
use crate::api::{self, Answer, Code, JoinCall, Joined};
use crate::boottime::Moment;
use crate::config::{ROTA, RotaConfig};
use crate::engine::{self, Engine, Move, Outcome};
use crate::links::Payload;
use crate::plan::Plan;

/// Clients of one site that may wait for their turn.
const MAX_SITTERS: usize = 64;
/// The shortest time between two looks.
const LOOK: Duration = Duration::from_millis(50);

pub(super) struct Rota {
    config: RotaConfig,
    /// The gangs that miss nobody, in the order of their numbers.
    gangs: Vec<String>,
    resources: Vec<String>,
    grouping: Grouping,
    engine: Box<dyn Engine>,
    /// The epoch in which it began, and the lives of its sites.
    since: u64,
    lives: BTreeMap<SiteId, u64>,
    /// From when on claims are made.
    from: Option<Moment>,
    sitters: VecDeque<Sitter>,
    /// Other sites where somebody sits for a gang, and gangs for which it was said that somebody
    /// does here: one that is not all there claims nothing, and so holds up nobody.
    here: BTreeSet<(String, SiteId)>,
    said: BTreeSet<String>,
    /// When it is looked at again.
    timer: Option<(Moment, u64)>,
}

/// A client that speaks for this site's process.
struct Sitter {
    token: String,
    /// The gang it wants to work for; any that has its turn where there is none.
    gang: Option<String>,
    run: String,
    ttl: Duration,
    heard: Moment,
    claim: Option<Stamp>,
    work: Option<Work>,
    /// Why it has to stop.
    lost: Option<String>,
    waiting: Option<(JoinCall, Responder)>,
}

struct Work {
    gang: String,
    units: Vec<String>,
    fence: u64,
    lease: String,
}

/// What sites say to each other about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Word {
    /// The protocol speaks.
    Protocol(Vec<u8>),
    /// A member of this gang is not heard of any more.
    Lost { gang: String, member: String },
    /// Somebody sits here for a gang, or nobody does any more.
    Here { gang: String, here: bool },
}

impl Rota {
    /// It begins, with these sites.
    pub(super) fn new(
        config: RotaConfig,
        me: SiteId,
        names: &[(SiteId, String)],
        alive: &BTreeMap<SiteId, u64>,
        since: u64,
    ) -> Self {
        let number = |name: &str| names.iter().find(|it| it.1 == name).map(|it| it.0);
        let is_there = |name: &String| number(name).is_some_and(|site| alive.contains_key(&site));
        let whole = config.gangs.iter().filter(|it| it.1.iter().all(is_there));
        let gangs: Vec<String> = whole.map(|it| it.0.clone()).collect();
        let sites = names.iter().map(|it| it.0.index() + 1).max().unwrap_or(1);
        let sites = u16::try_from(sites).unwrap_or(u16::MAX);
        let mut members: Vec<Vec<SiteId>> = Vec::new();
        for gang in &gangs {
            members.push(config.gangs[gang].iter().filter_map(|name| number(name)).collect());
        }
        let busy: BTreeSet<SiteId> = members.iter().flatten().copied().collect();
        let mut resources: Vec<String> = config.needs.values().flatten().cloned().collect();
        resources.sort_unstable();
        resources.dedup();
        let place = |name: &String| resources.binary_search(name).ok();
        let mut needs: Vec<Vec<u32>> = Vec::new();
        for site in (0..sites).map(SiteId) {
            let name = names.iter().find(|it| it.0 == site).map(|it| it.1.as_str());
            let list = name.and_then(|name| config.needs.get(name)).filter(|it| !it.is_empty());
            // Whoever takes no part, or needs nothing, has something that nobody else wants.
            let own = u32::try_from(resources.len()).unwrap_or(0) + u32::from(site.0);
            needs.push(match list.filter(|_| busy.contains(&site)) {
                Some(list) => {
                    list.iter().filter_map(place).filter_map(|it| u32::try_from(it).ok()).collect()
                }
                None => vec![own],
            });
            if !busy.contains(&site) {
                members.push(vec![site]);
            }
        }
        let grouping = Grouping::new(needs, members).expect("checked by the configuration");
        let cluster = Cluster {
            pools: vec![Units(grouping.resources())],
            groups: Some(grouping.clone()),
            ..Cluster::new(sites, 1)
        };
        let engine = engine::rota(config.protocol, me, &cluster);
        let engine = engine.expect("checked by the configuration");
        let process = |name: &String| config.gangs.values().flatten().any(|it| it == name);
        let lives = names.iter().filter(|it| process(&it.1));
        let lives = lives.filter_map(|it| Some((it.0, *alive.get(&it.0)?))).collect();
        Self {
            config,
            gangs,
            resources,
            grouping,
            engine,
            since,
            lives,
            from: None,
            sitters: VecDeque::new(),
            here: BTreeSet::new(),
            said: BTreeSet::new(),
            timer: None,
        }
    }

    /// The other members of a gang that can work.
    fn others(&self, gang: &str, me: SiteId) -> Vec<SiteId> {
        let place = self.gangs.iter().position(|name| name == gang);
        let group = place.and_then(|place| u16::try_from(place).ok()).map(GroupId);
        let members = group.map_or(&[][..], |group| self.grouping.members(group));
        members.iter().copied().filter(|&site| site != me).collect()
    }

    /// What a client may claim now.
    fn demand(&self, sitter: &Sitter, me: SiteId) -> Option<Demand> {
        if sitter.claim.is_some() || sitter.lost.is_some() {
            return None;
        }
        let Some(gang) = &sitter.gang else {
            let taken = self.sitters.iter().any(|it| it.claim.is_some());
            return (!taken).then(|| self.grouping.demand(me));
        };
        let place = self.gangs.iter().position(|it| it == gang)?;
        let taken = self.sitters.iter().any(|it| it.claim.is_some() && it.gang == sitter.gang);
        let here = |&site: &SiteId| self.here.contains(&(gang.clone(), site));
        if taken || !self.others(gang, me).iter().all(here) {
            return None;
        }
        Some(self.grouping.demand_for(me, GroupId(u16::try_from(place).ok()?)))
    }

    /// Whether this name is one of its gangs, or the rota itself.
    pub(super) fn knows(&self, name: &str) -> bool {
        name == ROTA || self.config.gangs.contains_key(name)
    }

    fn by_token(&mut self, token: &str) -> Option<&mut Sitter> {
        self.sitters.iter_mut().find(|it| it.token == token)
    }

    fn by_claim(&mut self, claim: Stamp) -> Option<&mut Sitter> {
        self.sitters.iter_mut().find(|it| it.claim == Some(claim))
    }

    /// Members of a gang that are not there, or for which nobody sits.
    fn missing(&self, gang: &str, me: SiteId, names: &[(SiteId, String)]) -> Vec<String> {
        let gone = |name: &&String| {
            let number = names.iter().find(|it| it.1 == **name).map(|it| it.0);
            let here = |site| site == me || self.here.contains(&(gang.to_owned(), site));
            number.is_none_or(|site| !self.lives.contains_key(&site) || !here(site))
        };
        self.config.gangs.get(gang).into_iter().flatten().filter(gone).cloned().collect()
    }

    fn unit_names(&self, units: &[Unit]) -> Vec<String> {
        let name = |unit: &Unit| self.resources.get(usize::try_from(unit.number).ok()?).cloned();
        units.iter().filter(|unit| unit.pool.0 == 0).filter_map(name).collect()
    }
}

impl Core {
    fn site_numbers(&self) -> Vec<(SiteId, String)> {
        (0..).map(SiteId).zip(self.members.iter().map(ToString::to_string)).collect()
    }

    /// Before the first epoch: nobody is there.
    pub(super) fn expect_rota(&mut self, config: &RotaConfig) {
        let names = self.site_numbers();
        self.rota = Some(Rota::new(config.clone(), self.me, &names, &BTreeMap::new(), 0));
    }

    /// An epoch is installed: the rota goes on if its sites do.
    pub(super) fn install_rota(&mut self, record: &Record<Plan>) {
        let Some(rota) = self.rota.take() else { return };
        let sites = record.plan.sites.iter();
        let names: Vec<(SiteId, String)> = sites.map(|it| (*it.0, it.1.0.clone())).collect();
        let next = Rota::new(rota.config.clone(), self.me, &names, &record.members, record.epoch);
        if rota.since > 0 && rota.lives == next.lives {
            self.rota = Some(rota);
            return;
        }
        let gone = rota.lives.keys().filter(|site| rota.lives.get(site) != next.lives.get(site));
        let gone: Vec<String> = gone.map(|&site| self.site_name(site)).collect();
        info!(epoch = record.epoch, "the fixed gangs start again");
        let mut sitters = rota.sitters;
        for sitter in &mut sitters {
            sitter.claim = None;
            if sitter.work.take().is_some() {
                let text = format!("member {} of the gang is lost", gone.join(", "));
                sitter.lost.get_or_insert(text);
            }
        }
        self.rota = Some(Rota { sitters, timer: rota.timer, ..next });
    }

    /// All members have installed it. Nobody was told that a lease is longer than a site's right to
    /// grant, so all that was granted is over when that of a site that died at this moment is.
    pub(super) fn resume_rota(&mut self) {
        let change = &self.change;
        let (epoch, wait) = (change.record().epoch, change.quarantine());
        let Some(rota) = self.rota.as_mut().filter(|it| it.from.is_none()) else { return };
        // In the first epoch of a cluster nothing was granted before.
        let wait = if epoch == 1 { Duration::ZERO } else { wait };
        rota.from = Some(self.now.after(wait));
        self.seat();
        self.rota_news();
    }

    /// This site begins another life: what it was in is over.
    pub(super) fn forget_rota(&mut self) {
        if let Some(rota) = &mut self.rota {
            (rota.since, rota.from) = (0, None);
            (rota.here, rota.said) = (BTreeSet::new(), BTreeSet::new());
            for sitter in &mut rota.sitters {
                sitter.claim = None;
            }
        }
    }

    /// Whoever works here must stop.
    pub(super) fn lose_rota(&mut self, cause: &str) {
        let sitters = self.rota.iter_mut().flat_map(|it| it.sitters.iter_mut());
        for sitter in sitters.filter(|it| it.work.is_some()) {
            sitter.lost.get_or_insert_with(|| cause.to_owned());
        }
        self.rota_news();
    }

    /// A client of this site's process is here, is still here, or is done.
    pub(super) fn join_rota(&mut self, call: &JoinCall, reply: Responder) {
        match self.sit(call) {
            Ok(()) if call.leave => self.respond(reply, Ok(Answer::Done)),
            Ok(()) => {
                self.seat();
                let rota = self.rota.as_mut();
                let sitter = rota.and_then(|rota| rota.by_token(&call.token));
                let early = |it: &&mut Sitter| it.work.is_none() && it.lost.is_none();
                let old = match sitter.filter(early) {
                    Some(sitter) if call.wait => sitter.waiting.replace((call.clone(), reply)),
                    Some(_) | None => Some((call.clone(), reply)),
                };
                if let Some((_, reply)) = old {
                    let answer = self.sitting(call);
                    self.respond(reply, answer);
                }
            }
            Err(error) => self.respond(reply, Err(error)),
        }
        self.look_at_rota();
    }

    fn sit(&mut self, call: &JoinCall) -> Result<(), api::Error> {
        let now = self.now;
        let lapsed = self.has_lapsed(now);
        let malformed = |text: String| Err(api::Error::new(Code::Malformed, text));
        if !(MIN_TTL..=MAX_TTL / 2).contains(&call.ttl) {
            return malformed("`ttl` is from 100ms to 15 days".to_owned());
        }
        let Some(rota) = &mut self.rota else {
            return malformed("this cluster has no [fixed_gangs]".to_owned());
        };
        let named = rota.config.protocol == Kind::GroupsHungry;
        if named == (call.name == ROTA) {
            let name = &call.name;
            return malformed(if named {
                "fixed gangs of groups-hungry are named: `kofm gang run GANG --as SITE`".to_owned()
            } else {
                format!(
                    "the fixed gangs take turns: `kofm gang run --next --as SITE`, without `{name}`"
                )
            });
        }
        if call.leave {
            self.stand_up(&call.token);
            return Ok(());
        }
        if let Some(sitter) = rota.by_token(&call.token) {
            if !lapsed {
                sitter.heard = now;
            }
            return Ok(());
        }
        if call.run.is_some() {
            let text = "this run of the gang is over: stop, and join again";
            return Err(api::Error::new(Code::Gone, text));
        }
        if rota.sitters.len() >= MAX_SITTERS {
            let text = format!("{MAX_SITTERS} clients of this member wait; try again later");
            return Err(api::Error::new(Code::TooMany, text));
        }
        rota.sitters.push_back(Sitter {
            token: call.token.clone(),
            gang: named.then(|| call.name.clone()),
            run: self.random.hex::<8>(),
            ttl: call.ttl,
            heard: now,
            claim: None,
            work: None,
            lost: None,
            waiting: None,
        });
        Ok(())
    }

    /// Where a client stands.
    fn sitting(&mut self, call: &JoinCall) -> Result<Answer, api::Error> {
        let now = self.now;
        let (names, promise) = (self.site_numbers(), self.promise(now));
        let rota = self.rota.as_mut();
        let place = rota.and_then(|it| it.sitters.iter().position(|s| s.token == call.token));
        let gone = |text: &str| api::Error::new(Code::Gone, text);
        let (Some(rota), Some(place)) = (&self.rota, place) else {
            return Err(gone("this run of the gang is over"));
        };
        let sitter = &rota.sitters[place];
        if let Some(cause) = &sitter.lost {
            return Err(gone(cause));
        }
        let missing = sitter.gang.as_ref().map(|gang| rota.missing(gang, self.me, &names));
        let work = sitter.work.as_ref();
        let left = work.map_or(Duration::ZERO, |_| sitter.ttl);
        let (units, fence, lease) = work.map_or((BTreeMap::new(), None, None), |work| {
            let units = [(ROTA.to_owned(), work.units.clone())].into();
            (units, Some(work.fence), Some(work.lease.clone()))
        });
        Ok(Answer::Joined(Box::new(Joined {
            gang: work.map_or_else(|| call.name.clone(), |work| work.gang.clone()),
            member: call.member.clone(),
            run: sitter.run.clone(),
            state: if work.is_some() { "running" } else { "waiting" }.to_owned(),
            missing: missing.unwrap_or_default(),
            units,
            fence,
            lease,
            ttl_ms: millis(sitter.ttl),
            expires_in_ms: millis(promise.map_or(left, |promise| left.min(promise))),
            confirm: None,
            failed: None,
        })))
    }

    /// A client is done, gives up, or is gone.
    fn stand_up(&mut self, token: &str) {
        let Some(rota) = &mut self.rota else { return };
        let place = rota.sitters.iter().position(|it| it.token == token);
        let Some(sitter) = place.and_then(|place| rota.sitters.remove(place)) else { return };
        if let Some((_, reply)) = sitter.waiting {
            let error = api::Error::new(Code::Gone, "given up");
            self.respond(reply, Err(error));
        }
        if let Some(claim) = sitter.claim {
            let input = match sitter.work {
                Some(_) => Move::Release { claim, part: None },
                None => Move::Withdraw { claim },
            };
            self.step_rota(input);
        }
        self.seat();
    }

    /// Tells the others for which gangs somebody sits here, and lets those claim who can.
    fn seat(&mut self) {
        let (me, now) = (self.me, self.now);
        let Some(rota) = self.rota.as_mut().filter(|it| it.from.is_some()) else { return };
        let waiting = rota.sitters.iter().filter(|it| it.lost.is_none());
        let named: BTreeSet<String> = waiting.filter_map(|it| it.gang.clone()).collect();
        let said = std::mem::replace(&mut rota.said, named.clone());
        let since = rota.since;
        let mut words = Vec::new();
        for gang in named.symmetric_difference(&said) {
            let word = Word::Here { gang: gang.clone(), here: named.contains(gang) };
            words.extend(rota.others(gang, me).into_iter().map(|site| (site, encode(&word))));
        }
        for (site, message) in words {
            let clock = self.clock;
            self.send(site, &Payload::Rota { since, clock, message });
        }
        while let Some(rota) = &mut self.rota {
            if rota.from.is_none_or(|from| now < from) {
                return;
            }
            let mut free = rota.sitters.iter().enumerate();
            let next = free.find_map(|(place, it)| Some((place, rota.demand(it, me)?)));
            let Some((place, demand)) = next else { return };
            let claim = rota.engine.next_stamp(self.clock);
            rota.sitters[place].claim = Some(claim);
            self.step_rota(Move::Claim { claim, demand });
        }
    }

    fn step_rota(&mut self, first: Move) {
        let mut todo = VecDeque::from([first]);
        while let Some(input) = todo.pop_front() {
            let Some(rota) = &mut self.rota else { return };
            let from = if let Move::Deliver { from, .. } = &input { Some(*from) } else { None };
            let since = rota.since;
            let mut outcomes = Vec::new();
            if let Err(refused) = rota.engine.step(&mut self.clock, input, &mut outcomes) {
                if let Some(from) = from {
                    self.refuse_message(from, &refused);
                } else {
                    error!(%refused, "the protocol of fixed gangs refused its own site");
                }
            }
            for outcome in outcomes {
                match outcome {
                    Outcome::Send { to, clock, message } if to == self.me => {
                        todo.push_back(Move::Deliver { from: to, clock, message });
                    }
                    Outcome::Send { to, clock, message } => {
                        self.metrics.messages_sent += 1;
                        let message = encode(&Word::Protocol(message));
                        self.send(to, &Payload::Rota { since, clock, message });
                    }
                    Outcome::Grant { claim, units } => self.work(claim, &units),
                    Outcome::Reject { claim, reason } => {
                        let sitter = self.rota.as_mut().and_then(|it| it.by_claim(claim));
                        if let Some(sitter) = sitter {
                            sitter.claim = None;
                            sitter.lost = Some(reason.to_string());
                        }
                    }
                    Outcome::Revoke { .. } | Outcome::Arm { .. } | Outcome::Disarm { .. } => {}
                }
            }
        }
        self.rota_news();
    }

    /// All members of a gang have everything.
    fn work(&mut self, claim: Stamp, units: &[Unit]) {
        self.clock.fence += 1;
        let fence = self.clock.fence;
        let lease = self.random.id::<16>('L', self.me);
        let Some(rota) = &mut self.rota else { return };
        let group = Grouping::group_of(units).map_or(usize::MAX, GroupId::index);
        let gang = rota.gangs.get(group).cloned().unwrap_or_default();
        let names = rota.unit_names(units);
        let Some(sitter) = rota.by_claim(claim) else { return };
        sitter.work = Some(Work { gang: gang.clone(), units: names, fence, lease });
        let happening = self.happening("gang", None);
        let cause = Some(format!("fixed gang {gang} works").into());
        self.record(api::Happening { cause, ..happening });
    }

    /// Answers those who wait and have heard something.
    fn rota_news(&mut self) {
        let sitters = self.rota.iter_mut().flat_map(|it| it.sitters.iter_mut());
        let news = sitters.filter(|it| it.work.is_some() || it.lost.is_some());
        let told: Vec<(JoinCall, Responder)> = news.filter_map(|it| it.waiting.take()).collect();
        for (call, reply) in told {
            let answer = self.sitting(&call);
            self.respond(reply, answer);
        }
        self.look_at_rota();
    }

    pub(super) fn on_rota(&mut self, from: SiteId, since: u64, clock: Clock, message: &[u8]) {
        self.metrics.messages_received += 1;
        let Ok((word, [])) = postcard::take_from_bytes(message) else {
            return self.end_session(from, "a message of fixed gangs that cannot be decoded");
        };
        let Some(rota) = self.rota.as_mut().filter(|it| it.since == since) else {
            self.metrics.stale_messages += 1;
            return;
        };
        match word {
            Word::Protocol(message) => {
                self.step_rota(Move::Deliver { from, clock, message });
                self.seat();
            }
            Word::Lost { gang, member } => {
                let works = |it: &&mut Sitter| it.work.as_ref().is_some_and(|it| it.gang == gang);
                if let Some(sitter) = rota.sitters.iter_mut().find(works) {
                    let text = format!("member {member} of the gang is lost: it was not heard of");
                    sitter.lost.get_or_insert(text);
                }
                self.rota_news();
            }
            Word::Here { gang, here: true } => {
                // Not without bound, whatever is said.
                if rota.others(&gang, self.me).contains(&from) {
                    rota.here.insert((gang, from));
                }
                self.seat();
            }
            Word::Here { gang, here: false } => {
                let sits = |it: &&mut Sitter| it.gang.as_ref() == Some(&gang) && it.work.is_none();
                let claimed = |it: &mut Sitter| it.claim.take();
                let claim = rota.sitters.iter_mut().filter(sits).find_map(claimed);
                rota.here.remove(&(gang, from));
                if let Some(claim) = claim {
                    self.step_rota(Move::Withdraw { claim });
                }
            }
        }
    }

    /// Looks for clients that are not heard of any more. The others of their gang are told at once;
    /// what they held is given back when whatever they ran is certainly over.
    pub(super) fn sweep_rota(&mut self) {
        let now = self.now;
        let Some(rota) = &mut self.rota else { return };
        rota.timer = None;
        let (mut lost, mut over) = (Vec::new(), Vec::new());
        for sitter in &mut rota.sitters {
            let silent = now.since(sitter.heard);
            if silent <= sitter.ttl {
                continue;
            }
            let works = sitter.work.as_ref().filter(|_| sitter.lost.is_none());
            if let Some(work) = works {
                lost.push(work.gang.clone());
                sitter.lost = Some("it was not heard of".to_owned());
            }
            if sitter.work.is_none() || silent > sitter.ttl * 2 {
                over.push(sitter.token.clone());
            }
        }
        let since = rota.since;
        for gang in lost {
            let group = self.rota.as_ref().map(|it| it.others(&gang, self.me)).unwrap_or_default();
            let message = encode(&Word::Lost { gang, member: self.site.to_string() });
            for site in group {
                let (clock, message) = (self.clock, message.clone());
                self.send(site, &Payload::Rota { since, clock, message });
            }
        }
        for token in over {
            self.stand_up(&token);
        }
        self.seat();
        self.look_at_rota();
    }

    /// Looks again when something is due, as long as somebody is here.
    fn look_at_rota(&mut self) {
        let now = self.now;
        let Some(rota) = self.rota.as_mut().filter(|it| !it.sitters.is_empty()) else { return };
        // When somebody may have been silent for too long, or claims may be made.
        let silent = rota.sitters.iter().map(|it| {
            let once = it.heard.after(it.ttl);
            if now <= once { once } else { it.heard.after(it.ttl * 2) }
        });
        let due = silent.chain(rota.from).filter(|&it| it > now).min();
        let due = due.unwrap_or(now).max(now.after(LOOK));
        if rota.timer.is_some_and(|it| it.0 <= due) {
            return;
        }
        if let Some(later) = rota.timer.take() {
            self.timers.remove(&later);
        }
        let timer = Some(self.start_timer(due, Timer::Rota));
        if let Some(rota) = &mut self.rota {
            rota.timer = timer;
        }
    }

    /// The gangs of the rota as this site sees them: whether they work.
    pub(super) fn rota_view(&self) -> Vec<(String, bool)> {
        let sitters = self.rota.iter().flat_map(|it| &it.sitters);
        let view = |it: &Sitter| {
            let gang = it.work.as_ref().map(|work| work.gang.clone()).or_else(|| it.gang.clone());
            gang.map(|gang| (gang, it.work.is_some()))
        };
        sitters.filter_map(view).collect()
    }
}

fn encode(word: &Word) -> Vec<u8> {
    postcard::to_stdvec(word).expect("a plain value")
}
