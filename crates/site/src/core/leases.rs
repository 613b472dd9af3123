//! Leases: given, renewed, over.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kofm_core::Demand;
use tracing::{error, warn};

use super::requests::unknown_request;
use super::{Core, Lease, MAX_ENDED_LEASES, MAX_TTL, Mutant, Status, Timer, Todo};
use crate::api::{self, Answer, Code, Hold, OnExpiry, State};
use crate::boottime::Moment;
use crate::engine::Move;
use crate::ids::home_of;

impl Core {
    pub(super) fn grant(&mut self, key: u64) {
        let now = self.now;
        if self.has_lapsed(now) {
            // Its units stay with it until this site may grant again.
            self.todo.push_front(Todo::Grant(key));
            return self.check_lease(now);
        }
        let Some(request) = self.requests.get(&key) else { return };
        if request.state != State::Queued || request.orphan.is_some() {
            return;
        }
        let Some((mut fence, id)) = self.number_lease(key) else { return };
        let Some(request) = self.requests.get(&key) else { return };
        let epoch = self.epoch();
        if self.has(Mutant::FencesStandStill) {
            fence = 1;
        }
        let mut units: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for part in &request.parts {
            for (pool, numbers) in &part.numbers {
                units.insert(self.engines[part.engine].pools[pool.index()], numbers.clone());
            }
        }
        let names = Arc::new(self.units_view(&units));
        for (pool, numbers) in &units {
            for number in numbers {
                if let Some(other) = self.pools[*pool].used.insert(*number, key) {
                    self.metrics.conservation_errors += 1;
                    let pool = &self.pools[*pool].name;
                    error!(%pool, number, other, key, "a unit has two holders: this is a bug");
                }
            }
        }
        let Some(request) = self.requests.get_mut(&key) else { return };
        request.state = State::Granted;
        request.waited = now.since(request.submitted);
        if let Some(timer) = request.deadline.take() {
            self.timers.remove(&timer);
        }
        request.lease = Some(Box::new(Lease {
            id: Arc::clone(&id),
            name: api::lease_name(&id).into(),
            fence,
            epoch,
            ttl: request.ttl,
            expires: now,
            since: now,
            timer: None,
            status: Status::Live,
            names,
            units,
            adopted: None,
        }));
        self.queued -= 1;
        self.metrics.grants += 1;
        for (pool, _) in &request.want {
            self.pools[*pool].times.get_or_insert_default().wait.observe(request.waited);
        }
        self.by_lease.insert(id, key);
        self.note_waited(key);
        self.start_lease(key, now);
        if !self.note_held(key) {
            let cause = "this site cannot record the grant on its disk; try another site";
            return self.refuse(key, Code::Unreachable, cause);
        }
        let happening = self.happening("granted", Some(key));
        self.record(happening);
        self.tell(key, false);
    }

    /// Notes in the metrics how long a lease was held.
    pub(super) fn observe_hold(&mut self, key: u64, held: Option<Duration>) {
        let (Some(held), Some(request)) = (held, self.requests.get(&key)) else { return };
        for (pool, _) in &request.want {
            self.pools[*pool].times.get_or_insert_default().hold.observe(held);
        }
    }

    /// Lets a lease run from now on. Its units are given away a little later than it ends: the
    /// holder's clock may be slower.
    pub(super) fn start_lease(&mut self, key: u64, now: Moment) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(lease) = request.lease.as_mut() else { return };
        if request.hold != Hold::Lease {
            lease.expires = now.after(MAX_TTL);
            return;
        }
        let ttl = lease.ttl;
        lease.expires = now.after(ttl);
        let slack = if self.has(Mutant::GivesNoSlack) { Duration::ZERO } else { slack(ttl) };
        let timer = self.start_timer(now.after(ttl + slack), Timer::Lease(key));
        if let Some(lease) = self.requests.get_mut(&key).and_then(|it| it.lease.as_mut()) {
            lease.timer = Some(timer);
        }
    }

    pub(super) fn renew(&mut self, id: &str) -> Result<Answer, api::Error> {
        let now = self.now;
        if self.has_lapsed(now) {
            self.check_lease(now);
        }
        if self.is_legacy(id) {
            let text = "the site has come back, and is about to go on with its leases: try again";
            return Err(api::Error::new(Code::Unreachable, text));
        }
        if api::is_lease_name(id) {
            let text = format!(
                "`{id}` is the name of a lease; a lease is renewed by its id, \
                                which only its holder has"
            );
            return Err(api::Error::new(Code::Malformed, text));
        }
        let key = *self.by_lease.get(id).ok_or_else(gone)?;
        let lapsed = self.has_lapsed(now);
        let request = self.requests.get_mut(&key).ok_or_else(gone)?;
        let lease = request.lease.as_mut().ok_or_else(gone)?;
        if let Some(doom) = &request.doom {
            return Err(api::Error::new(Code::Gone, doom.clone()));
        }
        if lease.status != Status::Live || now >= lease.expires {
            return Err(gone());
        }
        if lapsed || self.stopped {
            // It has just come back, and a moment later it knows whether the lease is good.
            let text = "the site has no right to grant yet: try again";
            return Err(api::Error::new(Code::Unreachable, text));
        }
        let old = lease.timer.take();
        if let Some(old) = old {
            self.timers.remove(&old);
        }
        self.start_lease(key, now);
        self.note_renewed(key);
        self.metrics.renewed += 1;
        let request = &self.requests[&key];
        let lease = self.lease_view(request).ok_or_else(gone)?;
        Ok(Answer::Lease(Box::new(lease)))
    }

    /// Releases a lease by its id, or by its name as operators do. Repeating it is harmless.
    pub(super) fn release(&mut self, id: &str) -> Result<Answer, api::Error> {
        if let Some(&key) = self.by_lease.get(id) {
            self.end(key, State::Released, "released by the client");
        } else if api::is_lease_name(id) {
            self.release_named(id)?;
        } else {
            self.withdraw_paper(id);
            if !self.drop_legacy(id) && !is_lease_id(id) {
                return Err(unknown_lease(id));
            }
        }
        Ok(Answer::Done)
    }

    fn release_named(&mut self, name: &str) -> Result<(), api::Error> {
        let keys = self.keys_of_lease(name);
        let legacy: Vec<String> = self.legacy_named(name).map(str::to_owned).collect();
        match (keys.as_slice(), legacy.as_slice()) {
            ([key], []) => self.end(*key, State::Released, "released by its name"),
            ([], [id]) => {
                self.drop_legacy(id);
            }
            ([], []) if self.ended_leases.iter().any(|it| **it == *name) => {}
            ([], []) => return Err(unknown_lease(name)),
            (_, _) => {
                let text = format!(
                    "several leases have the name `{name}`; give one up with \
                                    `kofm cancel REQUEST`"
                );
                return Err(api::Error::new(Code::InUse, text));
            }
        }
        Ok(())
    }

    /// Requests whose leases have this name: one, but for a rare coincidence.
    pub(super) fn keys_of_lease(&self, name: &str) -> Vec<u64> {
        let named = self.by_lease.iter().filter(|(id, _)| api::lease_name(id) == name);
        named.map(|(_, key)| *key).collect()
    }

    pub(super) fn release_request(&mut self, id: &str) -> Result<Answer, api::Error> {
        if self.drop_legacy(id) {
            return Ok(Answer::Done);
        }
        let key = *self.by_id.get(id).ok_or_else(|| unknown_request(id))?;
        let lease = self.requests[&key].lease.as_ref().map(|lease| Arc::clone(&lease.id));
        let Some(lease) = lease else { return self.cancel(id) };
        self.release(&lease)
    }

    /// A lease was not renewed. Its holder may have presented it at another site, if the others
    /// have gone on without this one. A beat that begins now says that they have not.
    pub(super) fn expire(&mut self, key: u64) {
        let now = self.now;
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(lease) = request.lease.as_mut() else { return };
        if lease.status != Status::Live {
            return;
        }
        lease.timer = None;
        lease.status = Status::Lapsed;
        let (id, owner) = (&request.id, &request.owner);
        warn!(request = %id, ?owner, "a lease was not renewed in time");
        self.metrics.expired += 1;
        self.lapsed.push_back((now, key));
        if self.change.sole || self.has(Mutant::ReusesBeforeBeat) {
            self.end_lapsed(now);
        } else {
            self.nudge();
        }
    }

    /// Ends leases that were not renewed in time before a beat that has succeeded.
    pub(super) fn end_lapsed(&mut self, began: Moment) {
        while let Some(&(since, key)) = self.lapsed.front()
            && since <= began
            && self.end_expired(key)
        {
            self.lapsed.pop_front();
        }
    }

    /// Ends a lease that was not renewed. False if that has to wait.
    fn end_expired(&mut self, key: u64) -> bool {
        let stands_still = self.stands_still();
        let Some(request) = self.requests.get_mut(&key) else { return true };
        let Some(lease) = request.lease.as_mut() else { return true };
        if lease.status != Status::Lapsed {
            return true;
        }
        let pools = lease.units.keys();
        let policy = |pool: &usize| self.pools[*pool].config.on_expiry;
        let kept: Vec<(usize, OnExpiry)> = pools
            .map(|pool| (*pool, policy(pool)))
            .filter(|it| it.1 != OnExpiry::Release)
            .collect();
        if !kept.is_empty() && stands_still {
            // What its policy keeps back is sorted out when protocols take steps again.
            return false;
        }
        if kept.is_empty() {
            let doom = self.requests.get(&key).and_then(|request| request.doom.clone());
            let cause = doom.map_or(Cow::Borrowed("not renewed in time"), Cow::Owned);
            self.end(key, State::Expired, cause);
        } else {
            self.keep_back(key, &kept);
        }
        true
    }

    /// Keeps the units of some pools back from a lease that is over, and gives back the rest.
    pub(super) fn keep_back(&mut self, key: u64, kept: &[(usize, OnExpiry)]) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(lease) = request.lease.as_mut() else { return };
        let quarantine = kept.iter().any(|it| it.1 == OnExpiry::Quarantine);
        lease.status = if quarantine { Status::Quarantined } else { Status::Held };
        request.state = State::Expired;
        request.cause = Some("not renewed in time; a person must release the lease".into());
        for (pool, policy) in kept {
            if *policy == OnExpiry::Quarantine {
                self.pools[*pool].quarantined.extend(lease.units.get(pool).into_iter().flatten());
            }
        }
        let back: Vec<usize> = lease
            .units
            .keys()
            .copied()
            .filter(|pool| kept.iter().all(|it| it.0 != *pool))
            .collect();
        let id = Arc::clone(&lease.id);
        self.note_over(&id);
        for pool in back {
            self.give_back_pool(key, pool);
        }
        // The next life keeps back what is left, and so does another site.
        self.note_held(key);
        self.copy_again(key);
        let event = if quarantine { "quarantined" } else { "held" };
        let happening = self.happening(event, Some(key));
        self.record(happening);
    }

    /// Gives back all units of one pool of a lease.
    pub(super) fn give_back_pool(&mut self, key: u64, pool: usize) {
        let (engine, id) = (self.pools[pool].engine, self.pools[pool].id);
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(lease) = request.lease.as_mut() else { return };
        let Some(numbers) = lease.units.remove(&pool) else { return };
        Arc::make_mut(&mut lease.names).remove(&*self.pools[pool].name);
        let Some(part) = request.parts.iter_mut().find(|part| part.engine == engine) else {
            return;
        };
        let Some(claim) = part.claim else { return };
        let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let returned = Demand::one(id, count);
        part.numbers.remove(&id);
        part.demand = part.demand.minus(&returned).unwrap_or_else(|| part.demand.clone());
        for number in &numbers {
            self.pools[pool].used.remove(number);
            self.pools[pool].quarantined.remove(number);
        }
        if part.counted {
            self.engines[engine].names.free(id, &numbers, &mut self.effects);
            self.take_names(engine);
        }
        let part = Some(returned);
        self.todo.push_back(Todo::Move(engine, Move::Release { claim, part }));
    }

    pub(super) fn drop_lease(&mut self, key: u64, lease: &Lease) {
        self.by_lease.remove(&lease.id);
        self.ended_leases.push_back(Arc::clone(&lease.name));
        if self.ended_leases.len() > MAX_ENDED_LEASES {
            self.ended_leases.pop_front();
        }
        if let Some(timer) = lease.timer {
            self.timers.remove(&timer);
        }
        for (pool, numbers) in &lease.units {
            let pool = &mut self.pools[*pool];
            for number in numbers {
                if pool.used.get(number) == Some(&key) {
                    pool.used.remove(number);
                    pool.quarantined.remove(number);
                }
            }
        }
    }
}

/// The lease is over, for certain.
pub(super) fn gone() -> api::Error {
    api::Error::new(Code::Gone, "the lease is over: stop using its units, and ask again")
}

/// How much longer than its time a lease's units are kept from others.
pub(super) fn slack(ttl: Duration) -> Duration {
    ttl / 50 + Duration::from_millis(200)
}

/// Whether a text has the form of a lease's id.
fn is_lease_id(text: &str) -> bool {
    text.starts_with('L') && home_of(text).is_some()
}

fn unknown_lease(id: &str) -> api::Error {
    let text = if id.starts_with('R') && home_of(id).is_some() {
        format!("`{id}` is a request, not a lease; give it up with `kofm cancel {id}`")
    } else {
        format!("there is no lease `{id}`; `kofm status` lists the names of leases")
    };
    api::Error::new(Code::UnknownRequest, text)
}
