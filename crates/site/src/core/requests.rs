//! Requests: made, watched, ended.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kofm_core::{SiteId, Units};
use tracing::info;

use super::{
    Core, DEFAULT_TTL, MAX_HEALING_TTL, MAX_NAMED, MAX_NAMELESS, MAX_QUEUED, MAX_TTL, MAX_WATCH,
    MAX_WATCHERS, MIN_TTL, Mutant, Part, Request, Responder, SETTLE, TRY, Timer, Todo, Told,
    Watcher, millis,
};
use crate::api::{self, Answer, Code, Hold, Holder, State, Submit};
use crate::config::Scope;
use crate::ids::home_of;

impl Core {
    /// Takes an id; says when. Zero where there is such a request.
    pub(super) fn reserve(&mut self, id: String) -> u64 {
        if self.by_id.contains_key(id.as_str()) {
            return 0;
        }
        let now = self.now;
        if self.reserved.len() > 10_000 {
            self.reserved.retain(|_, (since, _)| now.since(*since) < Duration::from_secs(10));
        }
        let time = self.last_reserved + 1;
        let &mut (_, taken) = self.reserved.entry(id).or_insert((now, time));
        self.last_reserved = self.last_reserved.max(taken);
        taken
    }

    /// When an id was taken here, if that was before another site took it, or that only looks.
    pub(super) fn knows(&mut self, id: &str, taken: Option<(u64, SiteId)>) -> Option<u64> {
        if self.by_id.contains_key(id) || self.is_legacy_request(id) || self.has_let_go(id) {
            return Some(0);
        }
        let mine = self.reserved.get(id).map(|&(_, time)| time);
        let Some(theirs) = taken else { return mine };
        self.last_reserved = self.last_reserved.max(theirs.0);
        mine.filter(|&time| (time, self.me) < theirs)
    }

    pub(super) fn submit(
        &mut self,
        spec: Submit,
        fresh: bool,
        hold: Hold,
        patience: Option<Duration>,
        reply: Responder,
    ) {
        let told = if patience.is_some() { Told::AtTheEnd } else { Told::WhenSure };
        if let Some(id) = &spec.id {
            self.reserved.remove(id);
            if let Some(&key) = self.by_id.get(id.as_str()) {
                let over = self.requests.get(&key).is_none_or(|request| request.state.is_over());
                if !(fresh && over) {
                    if let Err(error) = self.check_again(key, &spec) {
                        return self.respond(reply, Err(error));
                    }
                    self.has_asked(key);
                    self.watch_key(key, patience.unwrap_or(SETTLE), told, reply);
                    return self.note_asker(key);
                }
                self.forget(key);
            } else if self.is_legacy_request(id) {
                return self.respond(reply, Err(recovering()));
            }
        }
        match self.check(&spec, hold) {
            Ok(want) => {
                let key = self.open(spec, want, hold);
                let settle = if self.requests[&key].once { TRY + SETTLE } else { SETTLE };
                self.todo.push_back(Todo::Claim(key));
                self.look_after(key);
                if let Some(patience) = patience {
                    // Who waits for the end may not have to wait at all.
                    self.settle();
                    self.watch_key(key, patience, told, reply);
                    self.note_asker(key);
                } else {
                    self.watch_key(key, settle, told, reply);
                    self.settle();
                }
                self.count_for(key);
            }
            Err(error) => {
                self.metrics.refused += 1;
                self.note_refusal(&spec, &error);
                self.respond(reply, Err(error));
                self.settle();
            }
        }
    }

    /// Whether somebody may ask again by the id of this request.
    fn check_again(&self, key: u64, spec: &Submit) -> Result<(), api::Error> {
        let Some(request) = self.requests.get(&key) else { return Ok(()) };
        if *request.asked != spec.want {
            let text = "there is a request with this id that asks for other units; choose another";
            return Err(api::Error::new(Code::Malformed, text));
        }
        if request.principal.is_some() && request.principal.as_deref() != spec.principal.as_deref()
        {
            let text = "another principal has a request with this id; choose another id";
            return Err(api::Error::new(Code::Forbidden, text));
        }
        if spec.wait == Some(Duration::ZERO) && request.state == State::Queued && !request.once {
            let text = "the request with this id waits; leave out `wait` to wait with it";
            return Err(api::Error::new(Code::Busy, text));
        }
        Ok(())
    }

    /// A fast client whose request waits may give it up before it is told its id, or be gone.
    fn note_asker(&mut self, key: u64) {
        let Some(request) = self.requests.get(&key) else { return };
        let last = request.watchers.last().map(|watcher| &watcher.reply);
        let Some(Responder::Fast(number, outbox)) = last else { return };
        let waits = |key| self.requests.get(&key).is_some_and(|it| it.state == State::Queued);
        if !outbox.wait(*number, key, &waits) && !request.named {
            self.end(key, State::Cancelled, "its client is gone");
        }
    }

    /// A fast client does not wait any more for what it asked for. If it is gone, others may ask
    /// for what has an id of its own.
    pub(super) fn abandon(&mut self, number: u64, reply: &Responder) {
        let Responder::Fast(_, outbox) = reply else { return };
        let Some(key) = outbox.waits_for(number) else { return };
        let Some(request) = self.requests.get(&key) else { return };
        if request.state == State::Queued && !(request.named && outbox.is_closed()) {
            self.end(key, State::Cancelled, "its client stopped waiting");
        }
    }

    pub(super) fn check(&self, spec: &Submit, hold: Hold) -> Result<Vec<(usize, u32)>, api::Error> {
        let malformed = |text: &str| Err(api::Error::new(Code::Malformed, text));
        if self.draining {
            return Err(api::Error::new(Code::Draining, "this site stops; ask another one"));
        }
        if self.drained {
            return Err(api::Error::new(Code::Draining, "this site is draining; ask another one"));
        }
        if self.queued >= MAX_QUEUED {
            let text = format!("{MAX_QUEUED} requests wait here; try again later");
            return Err(api::Error::new(Code::TooMany, text));
        }
        if spec.want.is_empty() || spec.want.values().any(|&units| units == 0) {
            return malformed("`want` names no units; write {\"want\":{\"gpu\":1}}");
        }
        if spec.want.len() > 64 {
            return malformed("`want` names more than 64 pools");
        }
        if spec.ttl.is_some_and(|ttl| !(MIN_TTL..=MAX_TTL).contains(&ttl)) {
            return malformed("`ttl` is from 100ms to 30 days");
        }
        let id = spec.id.as_deref().unwrap_or("x");
        if id.is_empty() || id.len() > 200 || id.contains(['/', '?', '#']) || !is_printable(id) {
            return malformed("`id` is up to 200 printable characters without / ? #");
        }
        if hold == Hold::Lease && home_of(id).is_some() {
            return malformed("ids like `R0-…` are the sites' own; choose another");
        }
        let texts = [&spec.owner, &spec.reason];
        if texts.into_iter().flatten().any(|text| text.len() > 1000 || !is_printable(text)) {
            return malformed("`owner` and `reason` are up to 1000 bytes of printable text");
        }
        let mut want = Vec::new();
        for (name, &units) in &spec.want {
            let Some(&pool) = self.pool_by_name.get(name.as_str()) else {
                if self.installed == 0 && self.change.joinable {
                    let text = "this site is not in the cluster yet; try again, or another site";
                    return Err(api::Error::new(Code::Unreachable, text));
                }
                return Err(api::Error::unknown_pool(name));
            };
            let pool_state = &self.pools[pool];
            if pool_state.closed {
                let text = format!("pool `{name}` is being changed; try again");
                return Err(api::Error::new(Code::InUse, text));
            }
            if !self.shares(&pool_state.config.scope) {
                return Err(self.shared_elsewhere(name, &pool_state.config.scope));
            }
            if pool_state.refuses(units) {
                return Err(api::Error::new(Code::Infeasible, pool_state.refusal(units)));
            }
            want.push((pool, units));
        }
        self.shares.check(spec)?;
        Ok(want)
    }

    /// Whether this site is one of those that share a pool.
    pub(super) fn shares(&self, scope: &Scope) -> bool {
        let name = self.plan.sites.get(&self.me).map_or("", |it| it.0.as_str());
        scope.is_all() || scope.has(name, self.plan.zone_of(self.me))
    }

    /// Why a request for a pool is not taken here.
    fn shared_elsewhere(&self, pool: &str, scope: &Scope) -> api::Error {
        let sites = self.plan.sites_of(scope);
        let names: Vec<String> = sites.iter().map(|&site| self.site_name(site)).collect();
        let text = match &names[..] {
            [] => format!("none of the sites that share pool `{pool}` is in the cluster"),
            names => format!(
                "pool `{pool}` is shared by {} only; ask one of these sites",
                names.join(", ")
            ),
        };
        api::Error::new(Code::Unreachable, text)
    }

    pub(super) fn open(&mut self, spec: Submit, want: Vec<(usize, u32)>, hold: Hold) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        let named = spec.id.is_some() && hold != Hold::Embedded;
        let id: Arc<str> = match spec.id {
            Some(id) => id.into(),
            None => self.random.id::<8>('R', self.me).into(),
        };
        // Pools that heal make the units of a dead site anew after a while: its leases end before.
        let heals = want.iter().any(|it| crate::engine::heals(self.pools[it.0].config.protocol));
        let ttl = spec.ttl.unwrap_or(DEFAULT_TTL);
        let once = spec.wait == Some(Duration::ZERO);
        let deadline = spec.wait.map(|wait| {
            let wait = if once { TRY } else { wait };
            self.start_timer(self.now.after(wait), Timer::Deadline(key))
        });
        if *self.asked != spec.want {
            self.asked = Arc::new(spec.want);
        }
        let request = Request {
            id: Arc::clone(&id),
            named,
            // Made when it claims.
            parts: Vec::new(),
            want,
            asked: Arc::clone(&self.asked),
            owner: spec.owner.map(Into::into),
            reason: spec.reason.map(Into::into),
            principal: spec.principal.map(Into::into),
            ttl: if heals { ttl.min(MAX_HEALING_TTL) } else { ttl },
            hold,
            once,
            state: State::Queued,
            cause: None,
            code: None,
            submitted: self.now,
            waited: Duration::ZERO,
            part: 0,
            lease: None,
            deadline,
            watchers: Vec::new(),
            doom: None,
            keeping: None,
            orphan: None,
        };
        self.shares.add(&request);
        self.requests.insert(key, Box::new(request));
        self.by_id.insert(id, key);
        self.queued += 1;
        self.metrics.submitted += 1;
        key
    }

    pub(super) fn watch(&mut self, id: &str, wait: Duration, reply: Responder) {
        match self.by_id.get(id) {
            Some(&key) => {
                self.has_asked(key);
                self.watch_key(key, wait, Told::News, reply);
            }
            None => self.respond(reply, Err(self.unknown(id))),
        }
    }

    /// Why a request is not known here.
    fn unknown(&self, id: &str) -> api::Error {
        if self.has_let_go(id) {
            super::moves::elsewhere()
        } else if self.is_legacy_request(id) {
            recovering()
        } else {
            unknown_request(id)
        }
    }

    pub(super) fn watch_key(&mut self, key: u64, wait: Duration, told: Told, reply: Responder) {
        let queued = self.requests.get(&key).is_some_and(|it| it.state == State::Queued);
        if !queued || wait.is_zero() {
            return self.answer_submitted(key, told, reply);
        }
        let moment = self.now.after(wait.min(MAX_WATCH));
        let timer = self.start_timer(moment, Timer::Watch(key));
        let Some(request) = self.requests.get_mut(&key) else { return };
        request.watchers.push(Watcher { reply, timer, told });
        if request.watchers.len() > MAX_WATCHERS {
            let oldest = request.watchers.remove(0);
            self.timers.remove(&oldest.timer);
            self.answer_submitted(key, oldest.told, oldest.reply);
        }
    }

    /// Answers somebody who submitted or watches: to who submitted, a try that failed is an error.
    fn answer_submitted(&self, key: u64, told: Told, reply: Responder) {
        let Some(request) = self.requests.get(&key) else {
            return self.respond(reply, Err(unknown_request("?")));
        };
        if told != Told::News && request.once && request.state == State::Failed {
            let text = if let Some(why) = self.obstacle() {
                format!("not now: {why}")
            } else {
                let cause = request.cause.as_deref().unwrap_or("busy");
                format!("{cause}; leave out `wait` to queue for them")
            };
            return self.respond(reply, Err(api::Error::new(Code::Busy, text)));
        }
        if told != Told::News && request.state == State::Failed {
            let cause = request.cause.clone().unwrap_or_default();
            let error = api::Error::new(request.code.unwrap_or(Code::Unreachable), cause);
            return self.respond(reply, Err(error));
        }
        if let Responder::Fast(number, outbox) = reply {
            return outbox.put(number, &self.fast_view(request));
        }
        let view = self.request_view(key, request, told != Told::News);
        self.respond(reply, Ok(Answer::Request(Box::new(view))));
    }

    pub(super) fn answer_watcher(&mut self, key: u64, number: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(place) = request.watchers.iter().position(|it| it.timer.1 == number) else {
            return;
        };
        let watcher = request.watchers.swap_remove(place);
        self.answer_submitted(key, watcher.told, watcher.reply);
    }

    /// Tells everybody who watches, or only those who submitted.
    pub(super) fn tell(&mut self, key: u64, only_submitted: bool) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let (told, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut request.watchers)
            .into_iter()
            .partition(|watcher| watcher.told == Told::WhenSure || !only_submitted);
        request.watchers = rest;
        for watcher in told {
            self.timers.remove(&watcher.timer);
            self.answer_submitted(key, watcher.told, watcher.reply);
        }
        if !only_submitted {
            self.tell_rally(key);
        }
    }

    pub(super) fn cancel(&mut self, id: &str) -> Result<Answer, api::Error> {
        let key = *self.by_id.get(id).ok_or_else(|| self.unknown(id))?;
        match self.requests.get(&key).map(|request| request.state) {
            Some(State::Queued) => self.end(key, State::Cancelled, "cancelled by the client"),
            Some(State::Granted) => self.end(key, State::Released, "its request was cancelled"),
            Some(State::Released | State::Expired | State::Cancelled | State::Failed) | None => {}
        }
        self.answer_request(key)
    }

    pub(super) fn answer_request(&self, key: u64) -> Result<Answer, api::Error> {
        let request = self.requests.get(&key).ok_or_else(|| unknown_request("?"))?;
        Ok(Answer::Request(Box::new(self.request_view(key, request, true))))
    }

    /// A wait has run out.
    pub(super) fn run_out(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        request.deadline = None;
        let (code, cause) =
            if request.once { (Code::Busy, "busy") } else { (Code::Timeout, "its wait ran out") };
        if request.state == State::Queued {
            let lacks = self.requests.get(&key).and_then(|request| self.lacks_copies(request));
            self.refuse(key, code, lacks.map_or(Cow::Borrowed(cause), Cow::Owned));
        }
    }

    /// Ends a request that waits, or that cannot have what it was granted.
    pub(super) fn refuse(&mut self, key: u64, code: Code, cause: impl Into<Cow<'static, str>>) {
        if let Some(request) = self.requests.get_mut(&key) {
            request.code = Some(code);
        }
        self.end(key, State::Failed, cause);
    }

    /// Ends a request, whatever it has or waits for.
    pub(super) fn end(&mut self, key: u64, state: State, cause: impl Into<Cow<'static, str>>) {
        let cause = cause.into();
        self.forget_copies(key);
        if self.keep_ghost(key, state, &cause) {
            return;
        }
        self.tries.remove(&key);
        self.note_waited(key);
        let Some(request) = self.requests.get_mut(&key) else { return };
        let (was, named) = (request.state, request.named);
        if !was.is_over() {
            self.shares.take(request);
        }
        request.state = state;
        request.cause = Some(cause.clone());
        let parts = std::mem::take(&mut request.parts);
        let (lease, deadline) = (request.lease.take(), request.deadline.take());
        let orphan = request.orphan.take();
        let now = self.now;
        let held = lease.as_ref().map(|lease| now.since(lease.since));
        if was == State::Queued {
            request.waited = now.since(request.submitted);
            self.queued -= 1;
        }
        for timer in deadline.into_iter().chain(orphan) {
            self.timers.remove(&timer);
        }
        if let Some(lease) = &lease {
            self.drop_lease(key, lease);
            self.note_over(&lease.id);
        }
        for part in parts {
            if let Some(claim) = part.claim {
                self.by_claim.remove(&(part.engine, claim));
                self.leave_queue(key, claim, part.engine, &part.demand);
            }
            let kept = match state {
                State::Expired => self.has(Mutant::ForgetsWhatExpired),
                State::Cancelled => self.has(Mutant::KeepsCancelledClaims),
                State::Queued | State::Granted | State::Released | State::Failed => false,
            };
            if !kept {
                self.todo.push_back(Todo::Undo(part));
            }
        }
        self.metrics.ended(state);
        self.observe_hold(key, held);
        let mut happening = self.happening(state_name(state), Some(key));
        if let Some(lease) = lease {
            (happening.units, happening.fence) = (lease.names, Some(lease.fence));
            happening.lease = Some(lease.name);
        }
        happening.held_ms = held.map(millis);
        happening.cause = Some(cause);
        self.record(happening);
        self.tell(key, false);
        let (ended, most) = if named {
            (&mut self.ended, MAX_NAMED)
        } else {
            (&mut self.ended_nameless, MAX_NAMELESS)
        };
        ended.push_back(key);
        if ended.len() > most
            && let Some(old) = ended.pop_front()
        {
            self.forget(old);
        }
    }

    /// A part for each protocol whose pools are wanted.
    pub(super) fn parts_of(&self, want: &[(usize, u32)]) -> Vec<Part> {
        let mut engines: Vec<usize> = want.iter().map(|want| self.pools[want.0].engine).collect();
        engines.sort_unstable();
        engines.dedup();
        let demand = |engine: usize| {
            let pools = want.iter().map(|&(pool, units)| (&self.pools[pool], Units(units)));
            pools.filter(|it| it.0.engine == engine).map(|(pool, units)| (pool.id, units)).collect()
        };
        let part = |engine: usize| Part {
            engine,
            demand: demand(engine),
            claim: None,
            granted: false,
            counted: false,
            numbers: BTreeMap::new(),
        };
        engines.into_iter().map(part).collect()
    }

    /// Whose a lease or request is.
    pub(super) fn holder(&self, id: &str) -> Result<Answer, api::Error> {
        let key = self.by_lease.get(id).or_else(|| self.by_id.get(id)).copied();
        let named = || self.keys_of_lease(id).first().copied();
        let key = key.or_else(|| named().filter(|_| api::is_lease_name(id)));
        if let Some(request) = key.and_then(|key| self.requests.get(&key)) {
            let pools = request.asked.keys().cloned().collect();
            let principal = request.principal.as_ref().map(ToString::to_string);
            return Ok(Answer::Holder(Holder { principal, pools }));
        }
        let known = self.legacy_holder(id).or_else(|| self.paper_holder(id));
        known.map(Answer::Holder).ok_or_else(|| unknown_request(id))
    }

    pub(super) fn forget(&mut self, key: u64) {
        let Some(request) = self.requests.remove(&key) else { return };
        if !request.state.is_over() {
            self.shares.take(&request);
        }
        if self.by_id.get(&request.id) == Some(&key) {
            self.by_id.remove(&request.id);
        }
    }

    /// Ends all requests that wait. Every request is ended before a protocol takes the next step: a
    /// claim that is granted because another one was withdrawn has no request then, so no client is
    /// told of it.
    pub(super) fn refuse_queued(&mut self, why: &'static str) {
        let queued = self.keys_of(|request| request.state == State::Queued);
        info!(queued = queued.len(), "draining");
        for key in queued {
            self.refuse(key, Code::Draining, why);
            if self.has(Mutant::SettlesWhileDraining) {
                self.settle();
            }
        }
        self.end_all_takers();
        self.settle();
    }

    /// The keys of the requests that `select` accepts, oldest first.
    pub(super) fn keys_of(&self, select: impl Fn(&Request) -> bool) -> Vec<u64> {
        let selected = self.requests.iter().filter(|it| select(it.1));
        let mut keys: Vec<u64> = selected.map(|it| *it.0).collect();
        keys.sort_unstable();
        keys
    }
}

const fn state_name(state: State) -> &'static str {
    match state {
        State::Queued => "queued",
        State::Granted => "granted",
        State::Released => "released",
        State::Expired => "expired",
        State::Cancelled => "cancelled",
        State::Failed => "failed",
    }
}

fn is_printable(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

pub(super) fn unknown_request(id: &str) -> api::Error {
    let text = format!("there is no request `{id}`, or it ended long ago");
    api::Error::new(Code::UnknownRequest, text)
}

fn recovering() -> api::Error {
    let text = "the site has come back, and is about to go on with this request's lease: try again";
    api::Error::new(Code::Unreachable, text)
}
