//! A site that leaves the epoch: its requests and leases go on at other sites, each in its place.
//!
//! [`kofm_core::epoch::leave`] has the rules. The report of a site that leaves says which requests
//! it hands over, with all that their next sites have to know. The record names the next site of
//! each and the new names of their claims, also of claims that stay where they are. A lease keeps
//! its id, units and fence; from then on it counts as one that another site granted, so calls find
//! it by its id.
//!
//! From its report on the site answers calls about these requests with 503, so that the report has
//! all that clients were told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kofm_core::epoch::{Adopted, Handed, Input, LeaseKey, Moved, Phase, Record};
use kofm_core::{Demand, PoolId, ProtocolId, SiteId, Stamp, Unit};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::{Core, Lease, Mutant, Part, Request, Responder, Status, Timer, Todo, millis};
use crate::api::{self, Code, Hold, OnExpiry, State, Want};
use crate::boottime::Moment;
use crate::engine;
use crate::plan::Plan;

/// How long a site that stops waits for leases of `tree` pools, which end with it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a site that left says that its requests are elsewhere: longer than the others take to
/// install the record.
const REMEMBERED: Duration = Duration::from_millis(200);

/// Why a site leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Its process ends. It asked then.
    Stop(Moment),
    /// An operator drains it. It joins again, with nothing.
    Drain,
}

/// Facts with which the next site of a request goes on with it.
#[derive(Debug, Serialize, Deserialize)]
struct Facts {
    request: String,
    named: bool,
    want: Want,
    owner: Option<String>,
    reason: Option<String>,
    principal: Option<String>,
    ttl_ms: u64,
    /// The rest of the time that it may wait for.
    wait_ms: Option<u64>,
    waited_ms: u64,
    /// The part that waits.
    part: usize,
    parts: Vec<PartFacts>,
    lease: Option<LeaseFacts>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PartFacts {
    protocol: ProtocolId,
    demand: Demand,
    claim: Option<Stamp>,
    granted: bool,
    counted: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct LeaseFacts {
    id: String,
    fence: u64,
    epoch: u64,
    /// The rest of its term.
    left_ms: u64,
    held_ms: u64,
    /// It is over, and its units are kept back by the policy of their pool.
    kept: Option<OnExpiry>,
}

fn text(text: Option<&Arc<str>>) -> Option<String> {
    text.map(ToString::to_string)
}

impl Core {
    /// The site stops: it takes no requests any more. Where other sites can go on with what it has,
    /// it leaves the epoch.
    pub(super) fn drain(&mut self) {
        self.draining = true;
        let change = &self.change;
        let others = change.record().members.len() > 1;
        let member = change.epochs.phase() != Phase::Outside && change.leased.is_some();
        if change.sole || !others || !member {
            return self.refuse_queued("the site stops");
        }
        self.end_all_takers();
        self.departure = Some(Departure::Stop(self.now));
        self.change.leaving = true;
        self.change.publish();
        self.try_to_leave();
    }

    /// Leaves the epoch, once nothing is left here that cannot go on elsewhere.
    pub(super) fn try_to_leave(&mut self) {
        let Some(departure) = self.departure else { return };
        let empty = !self.requests.values().any(|it| it.lease.is_some() || !it.state.is_over());
        if departure == Departure::Drain && empty {
            self.departure = None;
            return;
        }
        let (epochs, sole) = (&self.change.epochs, self.change.sole);
        let ready = epochs.phase() == Phase::Running && !epochs.leaves();
        let others = epochs.record().members.len() > 1;
        let patient = match departure {
            Departure::Stop(since) => self.now.since(since) < PATIENCE,
            Departure::Drain => true,
        };
        let stays = |request: &Request| {
            let Some(lease) = &request.lease else { return false };
            let heals = request.parts.iter().any(|part| self.heals(part));
            let scoped = request.parts.iter().any(|part| self.is_scoped(part));
            let here = lease.status == Status::Ghost || request.hold == Hold::Embedded;
            here || scoped || heals && patient
        };
        if ready && others && !sole && !self.stopped && !self.requests.values().any(|it| stays(it))
        {
            self.feed(Input::Leave);
        }
    }

    pub(super) fn heals(&self, part: &Part) -> bool {
        self.engines.get(part.engine).is_some_and(|it| engine::heals(it.kind))
    }

    /// Whether not all sites share its pools, so that not every site can go on with it.
    pub(super) fn is_scoped(&self, part: &Part) -> bool {
        self.engines.get(part.engine).is_some_and(|it| it.group.scope > 0)
    }

    /// Whether what this site does with its requests is in no report any more.
    pub(super) fn is_handing_over(&self) -> bool {
        let epochs = &self.change.epochs;
        epochs.leaves() && epochs.phase() == Phase::Frozen && !self.has(Mutant::ActsAfterItsReport)
    }

    /// The requests that go on elsewhere when this site leaves, oldest first.
    fn movable(&self) -> Vec<u64> {
        let rallies: BTreeSet<u64> = self.rallies.values().filter_map(|it| it.request).collect();
        let mut keys = self.keys_of(|request| {
            let waits = request.state == State::Queued && !request.once;
            let lease = request.lease.as_ref().is_some_and(|it| it.status != Status::Ghost);
            let bound = |part: &Part| self.heals(part) || self.is_scoped(part);
            let bound = request.parts.iter().any(bound);
            let claims = request.parts.iter().any(|part| part.claim.is_some());
            let lease = lease && !self.has(Mutant::HandsOverNoLease);
            request.hold == Hold::Lease && (waits || lease) && claims && !bound
        });
        keys.retain(|key| self.requests[key].lease.is_some() || !rallies.contains(key));
        keys
    }

    /// For the report of a site that leaves.
    pub(super) fn handed(&self) -> Option<Vec<Handed>> {
        if !self.change.epochs.leaves() {
            return None;
        }
        let list = self.movable().into_iter().map(|key| self.hand(&self.requests[&key]));
        Some(list.collect())
    }

    pub(super) fn hand(&self, request: &Request) -> Handed {
        let now = self.now;
        let part = |part: &Part| PartFacts {
            protocol: self.engines[part.engine].kind.id(),
            demand: part.demand.clone(),
            claim: part.claim,
            granted: part.granted,
            counted: part.counted,
        };
        let lease = request.lease.as_ref().map(|lease| LeaseFacts {
            id: lease.id.to_string(),
            fence: lease.fence,
            epoch: lease.epoch,
            left_ms: millis(lease.expires.since(now)),
            held_ms: millis(now.since(lease.since)),
            kept: match lease.status {
                Status::Live | Status::Lapsed | Status::Ghost => None,
                Status::Held => Some(OnExpiry::Hold),
                Status::Quarantined => Some(OnExpiry::Quarantine),
            },
        });
        let waited = now.since(request.submitted);
        let facts = Facts {
            request: request.id.to_string(),
            named: request.named,
            want: Want::clone(&request.asked),
            owner: text(request.owner.as_ref()),
            reason: text(request.reason.as_ref()),
            principal: text(request.principal.as_ref()),
            ttl_ms: millis(request.ttl),
            wait_ms: request.deadline.map(|it| millis(it.0.since(now))),
            waited_ms: millis(if lease.is_some() { request.waited } else { waited }),
            part: request.part,
            parts: request.parts.iter().map(part).collect(),
            lease,
        };
        let claims = request.parts.iter().filter_map(|part| {
            let book = u16::try_from(part.engine).ok()?;
            Some((book, part.claim?))
        });
        let claims = claims.collect();
        Handed { claims, facts: postcard::to_stdvec(&facts).unwrap_or_default() }
    }

    /// How the record shall know the lease of a request: if its site leaves, by its first site.
    pub(super) fn adopted_as(&self, request: &Request) -> Option<Adopted> {
        let lease = request.lease.as_ref()?;
        let leaves = self.change.epochs.leaves() && request.hold == Hold::Lease;
        let here = || Adopted { lease: self.key_of(lease), since: 0 };
        lease.adopted.or_else(|| leaves.then(here))
    }

    /// This site has left, without the requests that it handed over. Their clients ask elsewhere.
    pub(super) fn let_go(&mut self, record: &Record<Plan>) {
        let me = self.me;
        let moved: BTreeSet<(usize, Stamp)> = record
            .moves
            .iter()
            .filter(|it| it.from == me)
            .flat_map(|it| it.claims.iter().map(|it| (usize::from(it.0), it.1)))
            .collect();
        let mut ids = BTreeSet::new();
        for key in self.movable() {
            let request = &self.requests[&key];
            let mut claims = request.parts.iter().filter_map(|it| Some((it.engine, it.claim?)));
            if claims.all(|claim| moved.contains(&claim)) {
                ids.insert(Arc::clone(&request.id));
                self.leave_to_others(key);
            }
        }
        info!(requests = ids.len(), "left the epoch: other sites go on with what was here");
        self.moved_ids = (self.now, ids);
        self.change.moved = Arc::new(homes(record));
        let happening = self.happening("left", None);
        self.record(happening);
    }

    /// The others went on without this site. Requests of which they have copies go on there.
    pub(super) fn let_go_of_copied(&mut self, record: &Record<Plan>) {
        let mut ids = BTreeSet::new();
        for (key, (book, origin)) in self.telling.list() {
            let survey = record.surveys.get(usize::from(book));
            let waits = self.requests.get(&key).filter(|it| it.state == State::Queued);
            if let Some(request) =
                waits.filter(|_| survey.is_some_and(|it| it.placed(origin).is_some()))
            {
                ids.insert(Arc::clone(&request.id));
                self.leave_to_others(key);
            }
        }
        self.moved_ids = (self.now, ids);
    }

    /// Forgets a request that another site has. Clients that wait for its news ask there.
    fn leave_to_others(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let queued = request.state == State::Queued;
        let watchers = std::mem::take(&mut request.watchers);
        let timers = [request.deadline.take(), request.orphan.take()];
        let lease = request.lease.take();
        for part in std::mem::take(&mut request.parts) {
            if let Some(claim) = part.claim {
                self.by_claim.remove(&(part.engine, claim));
                self.leave_queue(key, claim, part.engine, &part.demand);
            }
        }
        self.queued -= usize::from(queued);
        for timer in timers.into_iter().flatten() {
            self.timers.remove(&timer);
        }
        if let Some(lease) = lease {
            self.drop_lease(key, &lease);
        }
        for watcher in watchers {
            self.timers.remove(&watcher.timer);
            self.respond(watcher.reply, Err(elsewhere()));
        }
        self.forget(key);
    }

    /// Whether another site has gone on with a request of this one just now.
    pub(super) fn has_let_go(&self, id: &str) -> bool {
        let (since, ids) = &self.moved_ids;
        ids.contains(id) && self.now.since(*since) < REMEMBERED
    }

    /// The end of a site that has left: it takes no step any more.
    pub(super) fn end_after_leaving(&mut self) {
        self.refuse_queued("the site stops");
        let all = self.requests.values_mut().flat_map(|it| std::mem::take(&mut it.watchers));
        let all: Vec<Responder> = all.map(|watcher| watcher.reply).collect();
        for reply in all {
            self.respond(reply, Err(elsewhere()));
        }
        self.stopped = true;
        self.rewrite_journal();
        self.change.publish();
    }

    /// Gives claims of this site the names that a record has for them.
    pub(super) fn rename_claims(&mut self, record: &Record<Plan>) {
        let all = record.surveys.iter().enumerate();
        let all = all.flat_map(|(engine, it)| it.renamed.iter().map(move |it| (engine, it)));
        let mine = all.filter(|(_, (old, _))| old.site == self.me);
        let names: BTreeMap<(usize, Stamp), Stamp> =
            mine.map(|(engine, (old, new))| ((engine, *old), *new)).collect();
        if names.is_empty() {
            return;
        }
        let mut keys = Vec::new();
        for (&key, request) in &mut self.requests {
            for part in &mut request.parts {
                let Some(old) = part.claim else { continue };
                let Some(&new) = names.get(&(part.engine, old)) else { continue };
                part.claim = Some(new);
                keys.push((part.engine, old, new, key));
            }
        }
        for &(engine, old, new, key) in &keys {
            self.by_claim.remove(&(engine, old));
            self.by_claim.insert((engine, new), key);
            for pool in self.pools.iter_mut().filter(|pool| pool.engine == engine) {
                if pool.waiting.remove(&(old, key)) {
                    pool.waiting.insert((new, key));
                }
            }
        }
        for todo in &mut self.todo {
            if let Todo::Undo(part) = todo
                && let Some(old) = part.claim
                && let Some(&new) = names.get(&(part.engine, old))
            {
                part.claim = Some(new);
            }
        }
        self.rename_takers(&names);
    }

    /// Goes on with what sites that have left hand over to this one.
    pub(super) fn take_moved(&mut self, record: &Record<Plan>) {
        let me = self.me;
        for moved in record.moves.iter().filter(|it| it.home == me) {
            match postcard::from_bytes::<Facts>(&moved.facts) {
                Ok(facts) => self.go_on_with(moved, &facts, record),
                Err(error) => {
                    warn!(%error, "a request that was handed over cannot be read; it ends");
                    let claims = moved.claims.iter();
                    let parts = claims.filter_map(|&(book, _, claim)| {
                        let engine = usize::from(book);
                        let it = record.surveys.get(engine)?.claims.get(&claim)?;
                        let (counted, granted) = (self.engines[engine].counts, it.held.is_some());
                        let (demand, numbers) = (it.demand.clone(), numbers_of(it.held.as_deref()));
                        Some(Part { engine, demand, claim: Some(claim), granted, counted, numbers })
                    });
                    self.todo.extend(parts.map(Todo::Undo).collect::<Vec<_>>());
                }
            }
        }
    }

    /// Goes on with a request that waited at a site which is lost, with what is left of its wait.
    pub(super) fn go_on_without_client(
        &mut self,
        moved: &Moved,
        wait_ms: Option<u64>,
        record: &Record<Plan>,
    ) {
        let Ok(mut facts) = postcard::from_bytes::<Facts>(&moved.facts) else { return };
        facts.wait_ms = wait_ms;
        // Its claim may have had another name when it was told.
        if let (Some(part), Some(it)) = (facts.parts.first_mut(), moved.claims.first()) {
            part.claim = Some(it.1);
        }
        let key = self.next_key;
        self.go_on_with(moved, &facts, record);
        if self.requests.get(&key).is_some_and(|it| it.state == State::Queued) {
            self.await_client(key);
        }
    }

    fn go_on_with(&mut self, moved: &Moved, facts: &Facts, record: &Record<Plan>) {
        let now = self.now;
        let key = self.next_key;
        self.next_key += 1;
        let (mut parts, mut lost) = (Vec::new(), false);
        for told in &facts.parts {
            let Some(engine) = self.engine_of(told.protocol) else {
                lost = true;
                continue;
            };
            let is_it =
                |it: &&(u16, Stamp, Stamp)| usize::from(it.0) == engine && Some(it.1) == told.claim;
            let name = moved.claims.iter().find(is_it).map(|it| it.2);
            let survey = record.surveys.get(engine);
            let known = name.and_then(|name| Some((name, survey?.claims.get(&name)?)));
            lost |= told.claim.is_some() && known.is_none();
            let demand = known.map_or(&told.demand, |it| &it.1.demand).clone();
            let numbers = numbers_of(known.and_then(|it| it.1.held.as_deref()));
            let (claim, granted) = (known.map(|it| it.0), told.granted && known.is_some());
            parts.push(Part { engine, demand, claim, granted, counted: told.counted, numbers });
        }
        let pools: Option<Vec<(usize, u32)>> = facts
            .want
            .iter()
            .map(|(name, &units)| Some((*self.pool_by_name.get(name.as_str())?, units)))
            .collect();
        if self.by_id.contains_key(facts.request.as_str()) {
            // Its client has asked here meanwhile.
            return self.todo.extend(parts.into_iter().map(Todo::Undo));
        }
        let id: Arc<str> = facts.request.as_str().into();
        let over = facts.lease.as_ref().is_some_and(|lease| lease.kept.is_some());
        let deadline = facts.wait_ms.map(|wait| {
            self.start_timer(now.after(Duration::from_millis(wait)), Timer::Deadline(key))
        });
        let request = Request {
            id: Arc::clone(&id),
            named: facts.named,
            want: pools.clone().unwrap_or_default(),
            asked: Arc::new(facts.want.clone()),
            owner: facts.owner.as_deref().map(Into::into),
            reason: facts.reason.as_deref().map(Into::into),
            principal: facts.principal.as_deref().map(Into::into),
            ttl: Duration::from_millis(facts.ttl_ms),
            hold: Hold::Lease,
            once: false,
            state: match &facts.lease {
                None => State::Queued,
                Some(_) if over => State::Expired,
                Some(_) => State::Granted,
            },
            cause: over.then(|| "a person must release the lease".into()),
            code: None,
            submitted: earlier(now, facts.waited_ms),
            waited: Duration::from_millis(facts.waited_ms),
            part: facts.part,
            parts: Vec::new(),
            lease: None,
            deadline,
            watchers: Vec::new(),
            doom: None,
            keeping: None,
            orphan: None,
        };
        self.queued += usize::from(facts.lease.is_none());
        self.by_id.insert(id, key);
        for part in &parts {
            let Some(claim) = part.claim else { continue };
            self.by_claim.insert((part.engine, claim), key);
            for pool in part.demand.pools().filter(|_| !part.granted) {
                let place = self.engines[part.engine].pools[pool.index()];
                self.pools[place].waiting.insert((claim, key));
            }
        }
        let ttl = request.ttl;
        let lease = facts.lease.as_ref();
        let lease = lease.map(|lease| self.go_on_with_lease(key, lease, ttl, &parts));
        let first = parts.iter().find_map(|part| Some((part.engine, part.claim?)));
        let lease = lease.map(|lease| {
            let standing =
                first.and_then(|(engine, claim)| record.surveys.get(engine)?.claims.get(&claim));
            Box::new(Lease { adopted: standing.and_then(|it| it.adopted), ..lease })
        });
        self.requests.insert(key, Box::new(Request { parts, lease, ..request }));
        if lost || pools.is_none() {
            let cause = "its pool was removed or made smaller";
            return match facts.lease {
                None => self.refuse(key, Code::Unreachable, cause),
                Some(_) => self.end(key, State::Expired, cause),
            };
        }
        if facts.lease.is_some() {
            self.note_held(key);
        }
        self.look_after(key);
        let happening = self.happening("moved", Some(key));
        let from = format!("site {} is not in the epoch any more", self.site_name(moved.from));
        self.record(api::Happening { cause: Some(from.into()), ..happening });
    }

    fn go_on_with_lease(
        &mut self,
        key: u64,
        told: &LeaseFacts,
        ttl: Duration,
        parts: &[Part],
    ) -> Lease {
        let now = self.now;
        let mut units: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let quarantines = told.kept == Some(OnExpiry::Quarantine);
        for part in parts {
            for (pool, numbers) in &part.numbers {
                let place = self.engines[part.engine].pools[pool.index()];
                units.entry(place).or_default().extend(numbers);
                let pool = &mut self.pools[place];
                pool.used.extend(numbers.iter().map(|&number| (number, key)));
                if quarantines && pool.config.on_expiry == OnExpiry::Quarantine {
                    pool.quarantined.extend(numbers);
                }
            }
        }
        // By a clock that may be faster than the one that measured it.
        let left = Duration::from_millis(told.left_ms + 1) * 102 / 100;
        let expires = now.after(if told.left_ms > 0 { left } else { Duration::ZERO });
        let live = told.kept.is_none();
        let end = expires.after(super::leases::slack(ttl));
        let timer = live.then(|| self.start_timer(end, Timer::Lease(key)));
        let id: Arc<str> = told.id.as_str().into();
        self.by_lease.insert(Arc::clone(&id), key);
        Lease {
            name: api::lease_name(&id).into(),
            fence: told.fence,
            epoch: told.epoch,
            ttl,
            expires,
            since: earlier(now, told.held_ms),
            timer,
            status: match told.kept {
                None | Some(OnExpiry::Release) => Status::Live,
                Some(OnExpiry::Hold) => Status::Held,
                Some(OnExpiry::Quarantine) => Status::Quarantined,
            },
            names: Arc::new(self.units_view(&units)),
            units,
            adopted: None,
            id,
        }
    }
}

/// Where leases are that other sites granted, by a record.
pub(super) fn homes(record: &Record<Plan>) -> BTreeMap<LeaseKey, SiteId> {
    let all = record.surveys.iter().flat_map(|survey| &survey.claims);
    all.filter_map(|(claim, it)| Some((it.adopted?.lease, claim.site))).collect()
}

fn numbers_of(units: Option<&[Unit]>) -> BTreeMap<PoolId, Vec<u32>> {
    let mut numbers: BTreeMap<PoolId, Vec<u32>> = BTreeMap::new();
    for unit in units.into_iter().flatten() {
        numbers.entry(unit.pool).or_default().push(unit.number);
    }
    numbers
}

/// The moment `ms` milliseconds before `now`.
const fn earlier(now: Moment, ms: u64) -> Moment {
    Moment::from_nanos(now.nanos().saturating_sub(ms.saturating_mul(1_000_000)))
}

/// The request or lease is at another site now.
pub(super) fn elsewhere() -> api::Error {
    let text = "this site leaves, and another one goes on with it: try again at another site";
    api::Error::new(Code::Unreachable, text)
}
