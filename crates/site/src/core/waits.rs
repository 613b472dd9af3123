//! Requests that outlive the site that they wait at: other members have copies of them.
//!
//! With every tick a site tells the members that keep copies what has begun to wait at it, and what
//! waits no more. A request that is granted within a tick costs nothing. When a member departs,
//! those that have copies say so in their reports, and the record has each claim again, in its
//! place, at the first of them: see [`kofm_core::epoch::leave`].
//!
//! The client may be gone with its site. A request that goes on at another site is granted when its
//! client has asked for it again, at any site; until then it only keeps its place, and it ends if
//! the client does not come. A client that asks for its request was not told of a grant.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kofm_core::epoch::{Input, Moved, Phase, Record, Ticket};
use kofm_core::{Demand, SiteId, Stamp};
use serde::{Deserialize, Serialize};

use super::{Core, Request, Timer, Todo};
use crate::api::{Hold, State};
use crate::boottime::Moment;
use crate::bounds::{MAX_FACTS, MAX_PAPERS};
use crate::links::Payload;
use crate::plan::Plan;

/// Requests of one site that others have copies of: those that wait longest.
const MAX_COPIES: usize = 2_000;
/// Members up to which all keep copies. Of more, the keepers of the epoch do, and the first two,
/// one of which makes the change if the other is lost.
const ALL: usize = 5;
/// How long a request waits for its client at another site.
const PATIENCE: Duration = Duration::from_secs(10);

/// A claim by its protocol and the stamp that it was made with.
type Place = (u16, Stamp);

/// The message of a site about the requests that wait at it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Told {
    epoch: u64,
    /// Earlier messages are void.
    all: bool,
    list: Vec<Waiting>,
    over: Vec<Place>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Waiting {
    place: Place,
    demand: Demand,
    /// The rest of its wait.
    wait_ms: Option<u64>,
    facts: Vec<u8>,
}

/// What this site tells others of its own requests.
#[derive(Debug, Default)]
pub(super) struct Telling {
    /// Nothing was told in this epoch.
    begins: bool,
    /// Requests that have begun to wait since the last tick.
    fresh: Vec<u64>,
    told: BTreeMap<u64, Place>,
    over: Vec<Place>,
}

impl Telling {
    /// The requests that others were told of in this epoch, each with its place.
    pub(super) fn list(&self) -> Vec<(u64, Place)> {
        self.told.iter().map(|(&key, &place)| (key, place)).collect()
    }
}

/// Copies of the requests of another site.
#[derive(Debug)]
pub(super) struct Copies {
    life: u64,
    list: BTreeMap<Place, (Waiting, Option<Moment>)>,
}

impl Core {
    /// The other members that keep copies of what waits here.
    fn copyists(&self) -> BTreeSet<SiteId> {
        let record = self.change.record();
        let members = record.members.keys().copied();
        let mut list: BTreeSet<SiteId> = if record.members.len() <= ALL {
            members.collect()
        } else {
            record.keepers().iter().chain(members.take(2)).collect()
        };
        list.remove(&self.me);
        list
    }

    /// A claim of a request has to wait.
    pub(super) fn note_waiting(&mut self, key: u64) {
        if !self.change.sole {
            self.telling.fresh.push(key);
        }
    }

    /// A request waits no more.
    pub(super) fn note_waited(&mut self, key: u64) {
        if let Some(place) = self.telling.told.remove(&key) {
            self.telling.over.push(place);
        }
    }

    /// An epoch has begun: copies of the one before are not used any more.
    pub(super) fn tell_all_that_waits(&mut self) {
        let fresh = self.keys_of(|request| request.state == State::Queued);
        self.telling = Telling { begins: true, fresh, ..Telling::default() };
    }

    /// The place of a request that others can go on with.
    fn place_of(&self, request: &Request) -> Option<Place> {
        let waits = request.state == State::Queued && request.part == 0 && !request.once;
        let part = request.parts.first().filter(|part| waits && !part.granted)?;
        if request.hold != Hold::Lease
            || request.parts.iter().any(|it| self.heals(it) || self.is_scoped(it))
        {
            return None;
        }
        let survey = self.change.record().surveys.get(part.engine)?;
        Some((u16::try_from(part.engine).ok()?, survey.origin(part.claim?)))
    }

    /// Tells the others what has begun to wait here, and what waits no more.
    pub(super) fn tell_what_waits(&mut self) {
        if self.stopped || self.change.epochs.phase() != Phase::Running {
            return;
        }
        let Telling { begins, fresh, over, .. } = &mut self.telling;
        let (all, fresh, over) = (*begins, std::mem::take(fresh), std::mem::take(over));
        if fresh.is_empty() && over.is_empty() && !all {
            return;
        }
        self.telling.begins = false;
        let rallies: BTreeSet<u64> = self.rallies.values().filter_map(|it| it.request).collect();
        let mut list = Vec::new();
        for key in fresh.into_iter().filter(|key| !rallies.contains(key)) {
            let Some(request) = self.requests.get(&key) else { continue };
            let Some(place) = self.place_of(request) else { continue };
            if self.telling.told.len() >= MAX_COPIES || self.telling.told.contains_key(&key) {
                continue;
            }
            let handed = self.hand(request);
            let wait = request.deadline.map(|it| super::millis(it.0.since(self.now)));
            if handed.facts.len() <= MAX_FACTS {
                let demand = request.parts[0].demand.clone();
                list.push(Waiting { place, demand, wait_ms: wait, facts: handed.facts });
                self.telling.told.insert(key, place);
            }
        }
        if list.is_empty() && over.is_empty() && !all {
            return;
        }
        let told = Told { epoch: self.epoch(), all, list, over };
        let message = postcard::to_stdvec(&told).unwrap_or_default();
        for to in self.copyists() {
            self.send(to, &Payload::Waits { message: message.clone() });
        }
    }

    /// Another site tells what waits at it.
    pub(super) fn on_waits(&mut self, from: SiteId, message: &[u8]) {
        let told: Result<Told, _> = postcard::from_bytes(message);
        let small = |it: &Told| {
            let short = it.list.iter().all(|it| it.facts.len() <= MAX_FACTS);
            short && it.list.len() <= MAX_COPIES && it.over.len() <= MAX_PAPERS
        };
        let Some(told) = told.ok().filter(small) else {
            return self.end_session(from, "a message about requests that cannot be decoded");
        };
        let record = self.change.record();
        let Some(&life) = record.members.get(&from) else { return };
        if told.epoch != record.epoch {
            return;
        }
        let now = self.now;
        let copies =
            self.waits.entry(from).or_insert_with(|| Copies { life, list: BTreeMap::new() });
        if told.all || copies.life != life {
            *copies = Copies { life, list: BTreeMap::new() };
        }
        for place in told.over {
            copies.list.remove(&place);
        }
        for waiting in told.list {
            if copies.list.len() >= MAX_COPIES {
                break;
            }
            let until = waiting.wait_ms.map(|wait| now.after(Duration::from_millis(wait)));
            copies.list.insert(waiting.place, (waiting, until));
        }
    }

    /// Before this site reports: the claims of members that do not stay.
    pub(super) fn tickets(&self) -> Vec<Input<Plan>> {
        let stays = self.change.epochs.stays();
        let lost = |site: &SiteId| !stays.contains(site) || !self.links.is_up(*site);
        let lost = self.waits.iter().filter(|it| lost(it.0));
        let all = lost.flat_map(|(&giver, copies)| {
            copies.list.values().map(move |(waiting, _)| Ticket {
                giver,
                life: copies.life,
                book: waiting.place.0,
                origin: waiting.place.1,
                demand: waiting.demand.clone(),
            })
        });
        all.take(MAX_PAPERS).map(Input::Queue).collect()
    }

    /// Goes on with what waited at members that have departed, if the record gives it to this site.
    pub(super) fn take_waits(&mut self, record: &Record<Plan>) {
        let stays = |site: &SiteId, copies: &Copies| record.members.get(site) == Some(&copies.life);
        let gone = self.waits.extract_if(.., |site, copies| !stays(site, copies));
        let gone: Vec<(SiteId, Copies)> = gone.collect();
        let (me, now) = (self.me, self.now);
        for (from, copies) in gone {
            for ((book, origin), (waiting, until)) in copies.list {
                let engine = usize::from(book);
                let survey = record.surveys.get(engine);
                let claim = survey.and_then(|survey| survey.placed(origin));
                let mine = |claim: &Stamp| {
                    claim.site == me && !self.by_claim.contains_key(&(engine, *claim))
                };
                let Some(claim) = claim.filter(mine) else { continue };
                let claims = vec![(book, origin, claim)];
                let moved = Moved { from, home: me, claims, facts: waiting.facts };
                let rest = until.map(|until| super::millis(until.since(now)));
                self.go_on_without_client(&moved, rest, record);
            }
        }
    }

    /// Has a request wait for its client.
    pub(super) fn await_client(&mut self, key: u64) {
        let timer = self.start_timer(self.now.after(PATIENCE), Timer::Orphan(key));
        if let Some(request) = self.requests.get_mut(&key) {
            request.orphan = Some(timer);
        }
    }

    /// The client of a request has asked for it, so it is there.
    pub(super) fn has_asked(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(timer) = request.orphan.take() else { return };
        let granted = !request.parts.is_empty() && request.part >= request.parts.len();
        self.timers.remove(&timer);
        if granted && request.state == State::Queued {
            self.todo.push_back(Todo::Grant(key));
            self.settle();
        }
    }

    /// The client of a request whose site was lost has not come.
    pub(super) fn give_up_orphan(&mut self, key: u64) {
        let orphan = self.requests.get(&key).is_some_and(|it| it.orphan.is_some());
        if orphan {
            self.end(key, State::Cancelled, "its site was lost, and its client did not ask again");
        }
    }
}
