//! Leases whose site is gone: presented here, taken over, and kept back when they end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kofm_core::SiteId;
use kofm_core::Stamp;
use kofm_core::epoch::{Adopted, Input, LeaseKey, Paper, Phase, Record, Standing};
use tracing::info;

use super::keep::Facts;
use super::{Core, Lease, Part, Request, Responder, Status, Timer};
use crate::api::{self, Answer, Code, Hold, Holder, State};
use crate::boottime::Moment;
use crate::bounds::MAX_PAPERS;
use crate::paper::{LeasePaper, LeasePart, brief, runs};
use crate::plan::Plan;

/// Calls that present the same lease at the same time.
const MAX_CALLS: usize = 4;

/// A lease that was presented here and is not decided.
pub(super) struct Presented {
    giver: SiteId,
    paper: LeasePaper,
    /// The same for the epoch's machine.
    told: Paper,
    calls: Vec<(Moment, Responder)>,
    /// When it is forgotten.
    until: Moment,
}

/// What this site knows of a lease that it does not have.
enum Whereabouts {
    At(SiteId),
    Open(Paper),
    Over,
}

impl Core {
    /// The id of a lease that is about to be granted.
    pub(super) fn paper_id(&self, request: &Request, fence: u64) -> String {
        let heals = |part: &Part| crate::engine::heals(self.engines[part.engine].kind);
        let part = |part: &Part| {
            let running = &self.engines[part.engine];
            let units = part.numbers.iter().map(|(pool, numbers)| {
                (self.pools[running.pools[pool.index()]].name.to_string(), runs(numbers))
            });
            Some(LeasePart { claim: part.claim?, units: units.collect() })
        };
        let lives_on = request.hold == Hold::Lease && !request.parts.iter().any(heals);
        let parts = request.parts.iter().filter(|_| lives_on);
        let paper = LeasePaper {
            fence,
            epoch: self.epoch(),
            ttl_ms: super::millis(request.ttl),
            request: request.id.to_string(),
            named: request.named,
            owner: brief(request.owner.as_deref()),
            reason: brief(request.reason.as_deref()),
            principal: request.principal.as_ref().map(ToString::to_string),
            parts: parts.map(part).collect::<Option<_>>().unwrap_or_default(),
        };
        paper.id(self.me, &self.plan.key)
    }

    /// Renews a lease, or takes part in finding it a new site.
    pub(super) fn renew_or_adopt(&mut self, id: String, reply: Responder) {
        let known = self.by_lease.contains_key(id.as_str()) || self.is_legacy(&id);
        if known || api::is_lease_name(&id) {
            let answer = self.renew(&id);
            return self.respond(reply, answer);
        }
        let outside = self.change.epochs.phase() == Phase::Outside || self.installed == 0;
        if outside || self.stopped || self.draining || self.has_lapsed(self.now) {
            // It may be good where this site cannot look.
            return self.respond(reply, Err(moving()));
        }
        let Some((giver, paper)) = LeasePaper::read(&id, &self.plan.key) else {
            return self.respond(reply, Err(super::leases::gone()));
        };
        // A lease goes on at a site that shares its pools.
        let mut names = paper.parts.iter().flat_map(|part| part.units.keys());
        let foreign =
            |name: &String| self.plan.pools.get(name).is_some_and(|it| !self.shares(&it.scope));
        if names.any(foreign) {
            return self.respond(reply, Err(moving()));
        }
        match self.whereabouts(giver, &paper) {
            // The site that granted it has joined in an epoch that is not known here.
            Whereabouts::Over if paper.epoch > self.epoch() => {
                self.respond(reply, Err(moving()));
            }
            Whereabouts::Over => self.respond(reply, Err(super::leases::gone())),
            Whereabouts::At(site) => self.respond(reply, Err(self.moved(site))),
            Whereabouts::Open(told) => {
                let now = self.now;
                // A client has to hear soon whether it must try another site.
                let (until, again) =
                    (now.after(self.change.lease * 4), now.after(self.change.lease * 3 / 10));
                if self.presented.len() >= MAX_PAPERS {
                    return self.respond(reply, Err(moving()));
                }
                let fresh = || Presented { giver, paper, told, calls: Vec::new(), until };
                let entry = self.presented.entry(id).or_insert_with(fresh);
                entry.until = until;
                entry.calls.push((again, reply));
                if entry.calls.len() > MAX_CALLS {
                    let (_, oldest) = entry.calls.remove(0);
                    self.respond(oldest, Err(moving()));
                }
            }
        }
    }

    fn whereabouts(&self, giver: SiteId, paper: &LeasePaper) -> Whereabouts {
        let record = self.change.record();
        if let Some(home) = record.home_of(paper.lease(giver)) {
            return if home == self.me { Whereabouts::Over } else { Whereabouts::At(home) };
        }
        let Some(told) = paper.paper(giver, &record.plan) else { return Whereabouts::Over };
        // Another member may have it still; whether it answers is seen by all.
        let elsewhere = giver != self.me && record.members.contains_key(&giver);
        if elsewhere || record.may_adopt(&told) {
            Whereabouts::Open(told)
        } else {
            Whereabouts::Over
        }
    }

    fn moved(&self, site: SiteId) -> api::Error {
        let text = format!("the lease goes on at site {}: try again", self.site_name(site));
        api::Error::new(Code::Unreachable, text)
    }

    /// Whose a lease is, by its id.
    pub(super) fn paper_holder(&self, id: &str) -> Option<Holder> {
        LeasePaper::read(id, &self.plan.key).map(|it| it.1.holder())
    }

    /// The holder of a lease that was presented here has released it.
    pub(super) fn withdraw_paper(&mut self, id: &str) {
        for (_, reply) in self.presented.remove(id).into_iter().flat_map(|it| it.calls) {
            self.respond(reply, Err(super::leases::gone()));
        }
    }

    /// Has presented leases in the next report. Those that come within a tick share a change.
    pub(super) fn present_papers(&mut self) {
        let now = self.now;
        let mut late = Vec::new();
        self.presented.retain(|_, it| {
            late.extend(it.calls.extract_if(.., |call| call.0 <= now).map(|call| call.1));
            it.until > now || !it.calls.is_empty()
        });
        for reply in late {
            self.respond(reply, Err(moving()));
        }
        let known = self.change.epochs.papers();
        let fresh = self.presented.values().filter(|it| !known.contains(&it.told));
        let fresh: Vec<Paper> = fresh.map(|it| it.told.clone()).collect();
        for paper in fresh {
            self.feed(Input::Present(paper));
        }
    }

    /// Takes over what the record gives to this site, and answers holders that have waited for it.
    pub(super) fn adopt(&mut self, record: &Record<Plan>) {
        let over: Vec<u64> = self.keys_of(|request| {
            let lease = request.lease.as_ref().filter(|lease| lease.status == Status::Ghost);
            lease.is_some_and(|lease| !is_contested(record, lease.adopted))
        });
        for key in over {
            let request = &self.requests[&key];
            let (state, cause) = (request.state, request.cause.clone().unwrap_or_default());
            self.end(key, state, cause);
        }
        self.change.moved = Arc::new(super::moves::homes(record));
        let mut mine: BTreeMap<LeaseKey, Vec<(usize, Stamp, &Standing)>> = BTreeMap::new();
        for (engine, survey) in record.surveys.iter().enumerate() {
            for (claim, standing) in survey.of(self.me) {
                let known = self.by_claim.contains_key(&(engine, claim));
                let ends = || self.undoes(engine, claim);
                if let Some(adopted) = standing.adopted.filter(|_| !known && !ends()) {
                    mine.entry(adopted.lease).or_default().push((engine, claim, standing));
                }
            }
        }
        for (lease, claims) in mine {
            self.take_over(lease, &claims);
        }
        let ids: Vec<String> = self.presented.keys().cloned().collect();
        for id in ids {
            if self.by_lease.contains_key(id.as_str()) {
                // A site that has left has handed it over to this one.
                let calls = self.presented.remove(&id).into_iter().flat_map(|it| it.calls);
                for (_, reply) in calls.collect::<Vec<_>>() {
                    let answer = self.renew(&id);
                    self.respond(reply, answer);
                }
                continue;
            }
            let Some(entry) = self.presented.get(&id) else { continue };
            let found = self.whereabouts(entry.giver, &entry.paper);
            let error = match found {
                Whereabouts::Open(told) => {
                    if let Some(entry) = self.presented.get_mut(&id) {
                        entry.told = told;
                    }
                    continue;
                }
                Whereabouts::At(site) => self.moved(site),
                Whereabouts::Over => super::leases::gone(),
            };
            for (_, reply) in self.presented.remove(&id).into_iter().flat_map(|it| it.calls) {
                self.respond(reply, Err(error.clone()));
            }
        }
    }

    fn take_over(&mut self, lease: LeaseKey, claims: &[(usize, Stamp, &Standing)]) {
        let now = self.now;
        let is_it = |it: &Presented| it.paper.lease(it.giver) == lease;
        let id = self.presented.iter().find(|it| is_it(it.1)).map(|it| it.0.clone());
        let entry = id.as_ref().and_then(|id| self.presented.remove(id));
        let (paper, calls) = match entry {
            Some(Presented { paper, calls, .. }) => (Some(paper), calls),
            None => (None, Vec::new()),
        };
        let key = self.next_key;
        self.next_key += 1;
        let mut units: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let mut parts = Vec::new();
        for (engine, claim, standing) in claims {
            let mut numbers: BTreeMap<_, Vec<u32>> = BTreeMap::new();
            for unit in standing.held.iter().flatten() {
                numbers.entry(unit.pool).or_default().push(unit.number);
                let place = self.engines[*engine].pools[unit.pool.index()];
                units.entry(place).or_default().push(unit.number);
                self.pools[place].used.insert(unit.number, key);
            }
            self.by_claim.insert((*engine, *claim), key);
            parts.push(Part {
                engine: *engine,
                demand: standing.demand.clone(),
                claim: Some(*claim),
                granted: true,
                counted: self.engines[*engine].counts,
                numbers,
            });
        }
        let asked: api::Want = units
            .iter()
            .map(|(place, numbers)| {
                let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                (self.pools[*place].name.to_string(), count)
            })
            .collect();
        let want = units.iter();
        let want = want.map(|it| (*it.0, u32::try_from(it.1.len()).unwrap_or(u32::MAX)));
        let want: Vec<(usize, u32)> = want.collect();
        let kept = claims.iter().find_map(|it| it.2.kept.as_ref());
        let presented = paper.is_some();
        let known = presented || kept.is_some();
        // If no site knows it, the lease gets an id that no client has.
        let unknown = |core: &mut Self| {
            let id = core.random.id::<16>('L', core.me);
            let request = core.random.id::<8>('R', core.me);
            Facts::unknown(id, request, lease, core.epoch())
        };
        let facts = kept.and_then(|kept| Facts::read(&kept.facts));
        let facts = facts.unwrap_or_else(|| unknown(self));
        let paper = paper.unwrap_or(facts.paper);
        let id: Arc<str> = id.unwrap_or(facts.id).into();
        let lease = Lease {
            id: Arc::clone(&id),
            name: api::lease_name(&id).into(),
            fence: paper.fence,
            epoch: paper.epoch,
            ttl: paper.ttl(),
            expires: now,
            since: now,
            timer: None,
            status: Status::Live,
            names: Arc::new(self.units_view(&units)),
            units,
            adopted: claims.first().and_then(|it| it.2.adopted),
        };
        let request = Request {
            id: paper.request.as_str().into(),
            named: paper.named,
            want,
            asked: Arc::new(asked),
            owner: paper.owner.as_deref().map(Into::into),
            reason: paper.reason.as_deref().map(Into::into),
            principal: paper.principal.as_deref().map(Into::into),
            ttl: lease.ttl,
            hold: Hold::Lease,
            once: false,
            state: State::Granted,
            cause: None,
            code: None,
            doom: None,
            submitted: now,
            waited: Duration::ZERO,
            part: parts.len(),
            parts,
            lease: Some(Box::new(lease)),
            deadline: None,
            keeping: None,
            orphan: None,
            watchers: Vec::new(),
        };
        self.by_id.entry(Arc::clone(&request.id)).or_insert(key);
        self.by_lease.insert(id, key);
        self.shares.add(&request);
        self.requests.insert(key, Box::new(request));
        if !known {
            // Its holder has released it meanwhile, or is of an earlier life of this site.
            return self.end(key, State::Released, "its holder does not need it");
        }
        if facts.over && !presented {
            // Its holder has lost it: the policy of its pools says how it goes on.
            let timer = self.start_timer(now, Timer::Lease(key));
            if let Some(lease) = self.requests.get_mut(&key).and_then(|it| it.lease.as_mut()) {
                lease.timer = Some(timer);
            }
        } else {
            self.start_lease(key, now);
        }
        self.note_held(key);
        self.metrics.renewed += u64::from(presented);
        let happening = self.happening("adopted", Some(key));
        self.record(happening);
        let view = self.requests.get(&key).and_then(|request| self.lease_view(request));
        info!(request = %self.requests[&key].id, "took over a lease of a site that is gone");
        for (_, reply) in calls {
            let answer = view.clone().ok_or_else(super::leases::gone);
            self.respond(reply, answer.map(|it| Answer::Lease(Box::new(it))));
        }
    }

    /// Whether the claim is about to be given back.
    fn undoes(&self, engine: usize, claim: Stamp) -> bool {
        self.todo.iter().any(|todo| {
            matches!(todo, super::Todo::Undo(part)
                if part.engine == engine && part.claim == Some(claim))
        })
    }

    /// Keeps the units of a lease that ends, if another lease of them may still turn up. False if
    /// none can.
    pub(super) fn keep_ghost(&mut self, key: u64, state: State, cause: &str) -> bool {
        let record = Arc::clone(self.change.epochs.record());
        let Some(request) = self.requests.get_mut(&key) else { return false };
        let claims = request.parts.iter().any(|part| part.claim.is_some());
        let Some(lease) = request.lease.as_mut() else { return false };
        if !claims || !is_contested(&record, lease.adopted) {
            return false;
        }
        if lease.status == Status::Ghost {
            return true;
        }
        lease.status = Status::Ghost;
        request.state = state;
        request.cause = Some(cause.to_owned().into());
        if let Some(timer) = lease.timer.take() {
            self.timers.remove(&timer);
        }
        for (place, numbers) in &lease.units {
            self.pools[*place].quarantined.extend(numbers);
        }
        let id = Arc::clone(&lease.id);
        self.note_over(&id);
        self.tell(key, false);
        true
    }
}

/// Whether a lease with a larger fence may still come for the units of this one.
fn is_contested(record: &Record<Plan>, adopted: Option<Adopted>) -> bool {
    adopted.is_some_and(|it| record.quarantine.contains_key(&it.since))
}

/// It is not known now where the lease is.
fn moving() -> api::Error {
    let text = "the lease's site does not answer, and the others are about to take it over: try \
                again, also at another site";
    api::Error::new(Code::Unreachable, text)
}
