//! A site enters an epoch: what it reports of itself, how it takes over what the record says, and
//! what is left of it where the others went on without it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kofm_core::epoch::{Book, Epochs, Record, Report, Standing, Survey};
use kofm_core::parts::SiteSet;
use kofm_core::{Cluster, PoolId, Service, SiteId, Stamp, Unit};
use tracing::{error, info, warn};

use super::moves::Departure;
use super::{Core, Part, Pool, Running, Timer, Todo};
use crate::api::{self, Code, Hold, State};
use crate::engine;
use crate::names::Names;
use crate::plan::{Plan, rest};

/// Why a request has no place in an epoch, where nothing else is said.
const GONE: &str = "its pool was removed or made smaller";

/// Why a lease is not renewed after its protocol has begun again.
const BEGUN_AGAIN: &str = "the pools of its protocol were changed";

/// The units that are out of use and held all the same as an epoch begins, and where.
fn held_out(survey: &Survey, cluster: &Cluster) -> BTreeMap<Unit, SiteId> {
    let claims = survey.claims.iter().filter(|_| !cluster.out.is_empty());
    let held = claims.flat_map(|(claim, standing)| {
        standing.held.iter().flatten().map(|unit| (*unit, claim.site))
    });
    held.filter(|it| cluster.out.contains(&it.0)).collect()
}

impl Core {
    /// What a new life of this site brings.
    pub(super) fn first_report(&self) -> Report {
        let incarnation = self.change.epochs.incarnation();
        let legacy = self.legacy.clone().unwrap_or_default();
        let mut books =
            legacy.books(&self.change.record().plan.groups(), &|saved| self.kept_of_saved(saved));
        self.report_semaphores(&mut books);
        let mut clock = self.clock;
        clock.merge(legacy.clock);
        let remembers = self.legacy.is_some();
        Report { books, clock, remembers, ..Report::empty(incarnation) }
    }

    /// What this site has, for the others.
    pub(super) fn report(&self) -> Report {
        let mut books: Vec<Book> = self
            .engines
            .iter()
            .map(|running| Book {
                idle: Some(running.engine.idle_units().unwrap_or_else(|| running.names.idle())),
                lines: running.engine.lines(),
                ..Book::default()
            })
            .collect();
        self.report_semaphores(&mut books);
        let ended = self.todo.iter().filter_map(|todo| match todo {
            Todo::Undo(part) => Some(part),
            Todo::Claim(_)
            | Todo::Grant(_)
            | Todo::Move(..)
            | Todo::Names(..)
            | Todo::Numbers { .. }
            | Todo::Granted(..)
            | Todo::Rejected(..)
            | Todo::Take(_)
            | Todo::Leave(..)
            | Todo::Add(_)
            | Todo::Accounts { .. }
            | Todo::Revoked(..) => None,
        });
        let parts = self.requests.values().flat_map(|request| {
            let adopted = self.adopted_as(request);
            let kept = self.kept(request);
            request.parts.iter().map(move |part| (part, adopted, kept.clone()))
        });
        for (part, adopted, kept) in parts.chain(ended.map(|part| (part, None, None))) {
            let Some(claim) = part.claim else { continue };
            let units = part.numbers.iter().flat_map(|(&pool, numbers)| {
                numbers.iter().map(move |&number| Unit { pool, number })
            });
            let held = part.granted.then(|| units.collect());
            let kept = kept.filter(|_| part.granted);
            let standing = Standing { demand: part.demand.clone(), held, adopted, kept };
            if let Some(book) = books.get_mut(part.engine) {
                book.claims.insert(claim, standing);
            }
        }
        Report { books, clock: self.clock, leaves: self.handed(), ..Report::empty(0) }
    }

    /// Puts everything in the state that a record says.
    pub(super) fn install(&mut self, record: &Arc<Record<Plan>>) {
        let change = &mut self.change;
        change.proposal = None;
        change.joined = None;
        change.deserted = None;
        change.down.clear();
        change.suspects = SiteSet::new();
        let over = self.now.after(change.quarantine());
        for &since in record.quarantine.keys() {
            change.quarantines.entry(since).or_insert(over);
        }
        if !record.quarantine.is_empty() {
            self.start_timer(over, Timer::Look);
        }
        self.reach_sites();
        // A protocol that heals by itself goes on, unless its pools are others now.
        let goes_on: Vec<bool> = record
            .plan
            .groups()
            .into_iter()
            .map(|group| {
                engine::heals(group.kind)
                    && self.plan.pools_of(group) == record.plan.pools_of(group)
            })
            .collect();
        for ((number, timer), key) in std::mem::take(&mut self.protocol_timers) {
            if goes_on.get(number) == Some(&true) {
                self.protocol_timers.insert((number, timer), key);
            } else {
                self.timers.remove(&key);
            }
        }
        let last = record.plan.sites.keys().max().map_or(0, |site| site.index() + 1);
        self.members = (0..last)
            .map(|number| {
                let site = u16::try_from(number).map(SiteId).ok();
                let known = site.and_then(|site| record.plan.sites.get(&site));
                known.map_or("?", |it| it.0.as_str()).into()
            })
            .collect();
        let stay = self.plan.stay(&record.plan);
        let before = std::mem::replace(&mut self.plan, record.plan.clone());
        self.install_engines(record, &before, &goes_on);
        self.installed = record.epoch;
        self.change.shrunk = record.plan.pools.values().any(|pool| pool.units > pool.target);
        // What was to be done in the old epoch is not done in the new one, but for the clients'
        // wishes, and by those that go on: without its beat a protocol would stand still for ever.
        self.todo.retain(|todo| match todo {
            Todo::Claim(_) | Todo::Undo(..) | Todo::Take(_) | Todo::Add(_) => true,
            Todo::Move(engine, _)
            | Todo::Granted(engine, ..)
            | Todo::Rejected(engine, ..)
            | Todo::Revoked(engine, _) => goes_on.get(*engine) == Some(&true),
            Todo::Leave(..)
            | Todo::Grant(_)
            | Todo::Names(..)
            | Todo::Numbers { .. }
            | Todo::Accounts { .. } => false,
        });

        self.rename_claims(record);
        self.trim(record, &stay, &goes_on);
        self.trim_semaphores(record);
        self.inherit(record);
        self.take_moved(record);
        self.take_waits(record);
        self.adopt(record);
        self.install_rota(record);
        let members: Vec<String> =
            record.members.keys().map(|&site| self.site_name(site)).collect();
        let text = format!("epoch {}: {}", record.epoch, members.join(", "));
        info!("{text}");
        self.metrics.epoch_changes += 1;
        // One site says so for all.
        if record.members.keys().next() == Some(&self.me) {
            let happening = self.happening("epoch", None);
            self.record(api::Happening { cause: Some(text.into()), ..happening });
            self.tell_quarantine(&before);
        }
    }

    fn install_engines(&mut self, record: &Record<Plan>, before: &Plan, goes_on: &[bool]) {
        let clusters = record.clusters();
        let mut old = std::mem::take(&mut self.engines);
        let mut alarms = Vec::new();
        let mut seen = BTreeSet::new();
        let empty = Survey::default();
        for (number, group) in record.plan.groups().into_iter().enumerate() {
            let kind = group.kind;
            let Some(cluster) = clusters.get(number) else { continue };
            let members = record.members.keys().copied();
            let sites: Vec<SiteId> = members.filter(|it| !cluster.absent.contains(*it)).collect();
            let first = sites.first() == Some(&self.me);
            let outside = cluster.absent.contains(self.me);
            let survey = record.surveys.get(number).unwrap_or(&empty);
            self.clock.merge(survey.clock);
            let kept = old.iter().position(|it| it.kind == kind && goes_on[number]);
            // Without pools it has nothing to do, and should not keep everybody busy. One that goes
            // on may have lost its beat while this site was left behind.
            let beats = self.protocol_timers.keys().any(|(engine, _)| *engine == number);
            let has_pools = record.plan.pools_of(group).iter().any(Option::is_some);
            if engine::heals(kind) && has_pools && !beats {
                alarms.push(number);
            }
            let engine = match kept.map(|place| old.swap_remove(place)) {
                Some(running) => Some(running.engine),
                None if engine::heals(kind) => {
                    // It finds out itself who is there.
                    let cluster = Cluster { absent: SiteSet::new(), ..cluster.clone() };
                    // Nothing of it can be in use where the epoch before, which this site was
                    // in, had no pool of it.
                    let known = self.installed + 1 == record.epoch;
                    let had_pools = before.pools_of(group).iter().any(Option::is_some);
                    let fresh = known && !had_pools && (record.epoch > 1 || !self.reborn);
                    engine::start(kind, self.me, &cluster, !fresh)
                }
                None if outside => Some(engine::outside(self.me)),
                None => engine::resume(kind, self.me, cluster, survey),
            };
            let Some(engine) = engine else { continue };
            if kind.profile().serves == Service::Semaphore {
                let pools = self.install_semaphores(number, kind, &record.plan, survey);
                let names = Names::resume(self.me, sites, Vec::new(), &empty);
                self.engines.push(Running::new(group, engine, names, pools));
                continue;
            }
            let held = held_out(survey, cluster);
            let mut pools = Vec::new();
            for (id, pool) in (0..).map(PoolId).zip(record.plan.pools_of(group)) {
                let Some((name, config)) = pool else {
                    pools.push(usize::MAX);
                    continue;
                };
                let place = self.pool_by_name.get(name.as_str()).copied();
                let place = place.unwrap_or_else(|| {
                    let name: Arc<str> = name.as_str().into();
                    self.pool_by_name.insert(Arc::clone(&name), self.pools.len());
                    self.pools.push(Pool::new(name, config.clone()));
                    self.pools.len() - 1
                });
                let state = &mut self.pools[place];
                let planned = record.plan.pools.get(&name);
                state.limit = planned.map_or(config.units, |it| it.target);
                let all = Unit { pool: id, number: 0 }..=Unit { pool: id, number: u32::MAX };
                let withheld = survey.withheld_units.range(all);
                state.withheld = withheld.map(|unit| unit.number).collect();
                state.closed = planned.is_some_and(|it| it.closed);
                state.out = planned.map(|it| it.out.clone()).unwrap_or_default();
                let mine = |number: &u32| {
                    let holder = held.get(&Unit { pool: id, number: *number });
                    holder.map_or(first, |&site| site == self.me)
                };
                state.keeps = state.out.keys().copied().filter(mine).collect();
                (state.engine, state.id, state.config) = (number, id, config);
                seen.insert(place);
                pools.push(place);
            }
            let names = if outside {
                Names::resume(self.me, vec![self.me], Vec::new(), &empty)
            } else {
                Names::resume(self.me, sites, cluster.pools.clone(), survey)
            };
            self.engines.push(Running::new(group, engine, names, pools));
        }
        for number in alarms {
            self.set_alarm(number);
        }
        for (place, pool) in self.pools.iter_mut().enumerate() {
            if !seen.contains(&place) && !pool.gone {
                pool.gone = true;
                pool.out.clear();
                self.pool_by_name.remove(&pool.name);
            }
        }
    }

    /// Ends what has no place in the new epoch.
    fn trim(&mut self, record: &Record<Plan>, stay: &[Vec<bool>], goes_on: &[bool]) {
        let known = |engine: usize, claim: Stamp| {
            record.surveys.get(engine).is_some_and(|survey| survey.claims.contains_key(&claim))
        };
        let trim = |part: &mut Part| {
            let Some(stay) = stay.get(part.engine) else { return };
            part.demand = rest(stay, &part.demand);
            part.numbers.retain(|pool, _| stay.get(pool.index()) == Some(&true));
        };
        // A protocol that heals begins again when its pools change, and knows of no claim then.
        let engines = &self.engines;
        let begins_again = |number: usize| {
            let heals = engines.get(number).is_some_and(|it| engine::heals(it.kind));
            heals && goes_on.get(number) == Some(&false)
        };
        for todo in &mut self.todo {
            if let Todo::Undo(part) = todo {
                trim(part);
                if begins_again(part.engine) {
                    part.claim = None;
                }
                // An engine that goes on still has the claim, although an incarnation that departed
                // reported none.
                let kept = goes_on.get(part.engine) == Some(&true);
                if part.claim.is_some_and(|claim| !kept && !known(part.engine, claim)) {
                    part.claim = None;
                }
            }
        }
        let mut ended = Vec::new();
        let mut again = Vec::new();
        let keys = self.keys_of(|_| true);
        for key in keys {
            let Some(request) = self.requests.get_mut(&key) else { continue };
            let mut lost = false;
            let last = request.parts.len();
            for (place, part) in request.parts.iter_mut().enumerate() {
                let Some(claim) = part.claim else { continue };
                trim(part);
                if begins_again(part.engine) {
                    part.claim = None;
                    self.by_claim.remove(&(part.engine, claim));
                    let waits = request.state == State::Queued && request.hold != Hold::Drain;
                    if waits && (place == request.part || place + 1 == last) {
                        (part.granted, request.part) = (false, place);
                        part.numbers.clear();
                        again.push(key);
                    } else if request.state == State::Granted && request.hold == Hold::Lease {
                        // Its units are made again, later than the longest lease is over.
                        request.doom = Some(BEGUN_AGAIN.to_owned());
                    } else {
                        lost = true;
                    }
                } else if !known(part.engine, claim) {
                    part.claim = None;
                    self.by_claim.remove(&(part.engine, claim));
                    lost = true;
                }
            }
            let pools = || request.want.iter().map(|want| (&self.pools[want.0], want.1));
            let gone = pools().any(|it| it.0.gone);
            // Nobody waits for units that are quarantined, or will be gone.
            let waits = request.state == State::Queued;
            let asks = waits && request.hold != Hold::Drain;
            let short = pools().find(|(pool, units)| asks && pool.refuses(*units));
            let (code, cause): (Code, Cow<'static, str>) = match short {
                Some((pool, units)) => (Code::Infeasible, pool.refusal(units).into()),
                None if gone => (Code::UnknownPool, GONE.into()),
                None => (Code::Unreachable, GONE.into()),
            };
            let open = waits || !request.parts.is_empty();
            if (lost || gone || short.is_some()) && open {
                ended.push((key, waits, code, cause));
            }
        }
        for (key, waits, code, cause) in ended {
            if waits {
                self.refuse(key, code, cause);
            } else {
                self.end(key, State::Expired, cause);
            }
        }
        self.todo.extend(again.into_iter().map(Todo::Claim));
        for pool in &mut self.pools {
            let requests = &self.requests;
            pool.waiting.retain(|(claim, key)| {
                let parts = requests.get(key).map(|request| request.parts.iter());
                parts.is_some_and(|mut parts| parts.any(|part| part.claim == Some(*claim)))
            });
        }
    }

    /// All members have the record: protocols go on.
    pub(super) fn resume(&mut self) {
        let change = &self.change;
        let record = Arc::clone(change.epochs.record());
        for number in 0..self.engines.len() {
            let Some(survey) = record.surveys.get(number) else { continue };
            if engine::heals(self.engines[number].kind) {
                continue;
            }
            let mut outcomes = Vec::new();
            self.engines[number].engine.on_resume(&mut self.clock, survey, &mut outcomes);
            for outcome in outcomes {
                self.carry_out(number, outcome);
            }
        }
        self.resume_accounts();
        self.tell_all_that_waits();
        let mut needs = Vec::new();
        let mut granted = Vec::new();
        for key in self.keys_of(|_| true) {
            let request = &self.requests[&key];
            for part in request.parts.iter().filter(|part| part.granted && part.counted) {
                let Some(claim) = part.claim else { continue };
                let missing = part.demand.parts().filter(|it| !part.numbers.contains_key(&it.0));
                needs.extend(missing.map(|(pool, units)| (part.engine, claim, pool, units)));
            }
            let all = !request.parts.is_empty() && request.part >= request.parts.len();
            if all && request.state == State::Queued {
                granted.push(key);
            }
        }
        // In the order of their claims, as they would have been served.
        needs.sort_unstable_by_key(|it| (it.1, it.2));
        for (engine, claim, pool, units) in needs {
            self.engines[engine].names.need(pool, claim, units.0, &mut self.effects);
            self.take_names(engine);
        }
        for key in granted {
            self.todo.push_back(Todo::Grant(key));
        }
        self.copy_what_is_new();
        // Before anybody who hears of a smaller pool can ask for what is to go.
        self.drain_pools();
        self.answer_plan();
        self.resume_rota();
    }

    /// The others have gone on without this site: it starts again, as somebody else.
    pub(super) fn depart(&mut self, record: Arc<Record<Plan>>) {
        let left = self.change.epochs.left();
        if left {
            self.let_go(&record);
        } else {
            self.let_go_of_copied(&record);
        }
        if let (true, Some(Departure::Stop(_))) = (left, self.departure) {
            return self.end_after_leaving();
        }
        self.departure = None;
        let cause = if left {
            "this site was drained, and other sites go on with what it had"
        } else {
            "the other sites went on without this one"
        };
        warn!(epoch = record.epoch, "{cause}");
        let legacy = self.carry_leases();
        self.forget_all_copies();
        // Units that a client adds are added later; claims are made again. The engines of protocols
        // that heal go on in the next epoch with the claims they have, so these are given back.
        let engines = &self.engines;
        let heals = |number: usize| engines.get(number).is_some_and(|it| engine::heals(it.kind));
        self.todo.retain(|todo| todo.outlives_the_epoch(heals, |part| heals(part.engine)));
        self.by_claim.clear();
        for pool in &mut self.pools {
            pool.waiting.clear();
        }
        let mut waiting = Vec::new();
        for key in self.keys_of(|_| true) {
            let Some(request) = self.requests.get_mut(&key) else { continue };
            request.part = 0;
            for part in &mut request.parts {
                let held = Part {
                    engine: part.engine,
                    demand: part.demand.clone(),
                    claim: part.claim.take(),
                    granted: std::mem::take(&mut part.granted),
                    counted: part.counted,
                    numbers: std::mem::take(&mut part.numbers),
                };
                if held.claim.is_some() && heals(held.engine) {
                    self.todo.push_back(Todo::Undo(held));
                }
            }
            if request.state == State::Queued {
                waiting.push(key);
            }
        }
        for key in self.keys_of(|request| request.lease.is_some()) {
            self.end(key, State::Expired, cause);
        }
        self.lose_rota(cause);
        self.forget_rota();
        for pool in &mut self.pools {
            pool.used.clear();
            pool.quarantined.clear();
            pool.keeps.clear();
        }
        // The leases above ended with parts whose claims are among those already.
        self.todo.retain(|todo| todo.outlives_the_epoch(|_| true, |part| part.claim.is_some()));
        self.leaving.clear();
        self.ask_all_again();
        self.todo.extend(waiting.into_iter().map(Todo::Claim));
        if !self.begin_incarnation(record) {
            return;
        }
        self.legacy = Some(legacy);
        let happening = self.happening("departed", None);
        self.record(api::Happening { cause: Some(cause.into()), ..happening });
    }

    /// Begins another incarnation outside `record`, with new sessions. Returns false if its number
    /// cannot be stored.
    fn begin_incarnation(&mut self, record: Arc<Record<Plan>>) -> bool {
        let change = &mut self.change;
        let incarnation = match &change.state {
            Some(state) => match state.next() {
                Ok(incarnation) => incarnation,
                Err(error) => {
                    error!(%error, "cannot store another incarnation; this site stays outside");
                    return false;
                }
            },
            None => change.epochs.incarnation() + 1,
        };
        change.epochs = Epochs::new(self.me, incarnation, record);
        change.proposal = None;
        change.leased = None;
        change.joined = None;
        change.renewed = Some(self.now);
        self.links.reborn(incarnation);
        if let Some(journal) = &mut self.journal {
            let begun = journal.begin(incarnation);
            self.check_journal(begun);
        }
        true
    }

    /// Outside, with a session that cannot go on: members would refuse this incarnation forever,
    /// so another one is begun, at most once per site lease.
    pub(super) fn replace_broken_sessions(&mut self) {
        let change = &self.change;
        let early = change.renewed.is_some_and(|since| self.now.since(since) < change.lease);
        if early || self.links.info().iter().all(|link| link.broken.is_none()) {
            return;
        }
        warn!("a session with a peer is broken; this site begins another incarnation to join");
        let record = Arc::clone(change.epochs.record());
        if self.begin_incarnation(record) {
            self.change.publish();
        }
    }
}
