//! Semaphores: P waits for its turn and for units, V adds some.
//!
//! Nobody holds anything, so there are no leases: what was taken is taken, and a client that dies
//! after its P keeps it. A client that dies, or gives up, while it waits leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kofm_core::epoch::accounts::Steps;
use kofm_core::epoch::{Book, Op, Record, Standing, Survey, Tally};
use kofm_core::{Demand, Kind, PoolId, Rejection, Service, Stamp};
use tracing::error;

use super::accounts::{Deal, Gate, in_doubt, other_use};
use super::{Core, MAX_QUEUED, Responder, SETTLE, TRY, Timer, Todo, millis};
use crate::api::{self, Answer, Code, Head, SemaphoreShare, Taken};
use crate::boottime::Moment;
use crate::config::SemaphoreConfig;
use crate::engine::Move;
use crate::plan::{Plan, kinds};
use crate::tallies::{self, Tallies};

pub(crate) struct Semaphore {
    pub name: Arc<str>,
    config: SemaphoreConfig,
    engine: usize,
    id: PoolId,
    /// The value with which the epoch began.
    base: u64,
    /// This site's sums, in all its lives, as its disk has them.
    pub(super) written: Tally,
    /// Comes from the configuration, and no epoch has said so yet.
    expected: bool,
    /// Whoever waits here.
    pub waiting: BTreeSet<(Stamp, u64)>,
    pub gone: bool,
}

impl Semaphore {
    fn new(name: Arc<str>, config: SemaphoreConfig, engine: usize, id: PoolId) -> Self {
        Self {
            name,
            base: config.value.into(),
            config,
            engine,
            id,
            written: Tally::default(),
            expected: false,
            waiting: BTreeSet::new(),
            gone: false,
        }
    }

    pub(super) const fn id(&self) -> PoolId {
        self.id
    }

    /// Its protocol's place, and what its file calls it.
    pub(super) fn place(&self) -> (usize, tallies::Key) {
        (self.engine, (self.config.protocol.name().to_owned(), self.id))
    }
}

pub(super) struct Taker {
    semaphore: usize,
    units: u32,
    /// What its client calls it, and whether the keepers are asked who does it.
    id: Option<u128>,
    asked: bool,
    /// As soon as the site may ask.
    claim: Option<Stamp>,
    /// It has its units, and they are in this site's account.
    gate: Option<Arc<Gate>>,
    /// Its client has left after that.
    left: bool,
    owner: Option<String>,
    /// Must not wait.
    once: bool,
    since: Moment,
    timer: Option<(Moment, u64)>,
    reply: Option<Responder>,
}

impl Responder {
    /// Whether nobody waits for the answer any more.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Self::Local(reply) => reply.is_closed(),
            Self::Fast(_, outbox) => outbox.is_closed(),
            Self::Peer(..) => false,
        }
    }

    /// Answers a client of this site, from any thread.
    pub(super) fn answer(self, answer: Result<Answer, api::Error>) {
        match self {
            // A client that is gone needs no answer.
            Self::Local(reply) => drop(reply.send(answer)),
            Self::Fast(number, outbox) => outbox.put(number, &crate::fast::answer(answer)),
            Self::Peer(..) => {}
        }
    }
}

impl Core {
    pub(super) fn is_semaphore(&self, engine: usize) -> bool {
        self.engines[engine].kind.profile().serves == Service::Semaphore
    }

    /// P.
    pub(super) fn take(
        &mut self,
        key: u64,
        name: &str,
        (units, id): (u32, Option<u128>),
        wait: Option<Duration>,
        owner: Option<String>,
        reply: Responder,
    ) {
        let semaphore = match self.may_take(key, name, units, owner.as_deref(), &reply) {
            Ok(semaphore) => semaphore,
            Err(error) => return self.respond(reply, Err(error)),
        };
        let once = wait == Some(Duration::ZERO);
        let timer = wait.map(|wait| {
            let wait = if once { SETTLE } else { wait };
            self.start_timer(self.now.after(wait), Timer::Taker(key))
        });
        let since = self.now;
        let taker = Taker {
            semaphore,
            units,
            id,
            asked: false,
            claim: None,
            gate: None,
            left: false,
            owner,
            once,
            since,
            timer,
            reply: Some(reply),
        };
        self.takers.insert(key, taker);
        self.todo.push_back(Todo::Take(key));
    }

    /// Asks for the units of a P.
    pub(super) fn ask_for(&mut self, key: u64) {
        let waits = |it: &&mut Taker| it.claim.is_none() && it.gate.is_none();
        let Some(taker) = self.takers.get_mut(&key).filter(waits) else { return };
        let (name, place, units) = (taker.id, taker.semaphore, taker.units);
        let asked = std::mem::replace(&mut taker.asked, name.is_some());
        let Semaphore { engine, id, .. } = self.semaphores[place];
        let deal = Deal::Take(key);
        if let Some(name) = name
            && !self.accounts_of(engine).is_for(id, name, deal)
        {
            if !asked {
                let mut steps = Steps::default();
                self.accounts_of(engine).ask(id, name, deal, &mut steps);
                self.follow(engine, steps);
            }
            return;
        }
        // The stamp is taken here, with nothing between it and the step.
        let claim = self.engines[engine].engine.next_stamp(self.clock);
        if let Some(taker) = self.takers.get_mut(&key) {
            taker.claim = Some(claim);
        }
        let demand = Demand::one(id, units);
        self.taker_by_claim.insert((engine, claim), key);
        self.semaphores[place].waiting.insert((claim, key));
        self.step(engine, Move::Claim { claim, demand });
    }

    fn may_take(
        &self,
        key: u64,
        name: &str,
        units: u32,
        owner: Option<&str>,
        reply: &Responder,
    ) -> Result<usize, api::Error> {
        if self.draining || self.drained {
            return Err(api::Error::new(Code::Draining, "this site stops; ask another one"));
        }
        if matches!(reply, Responder::Peer(..)) || self.takers.contains_key(&key) {
            let text = "a P is made at the site that its client asks";
            return Err(api::Error::new(Code::Unsupported, text));
        }
        if self.takers.len() >= MAX_QUEUED {
            let text = format!("{MAX_QUEUED} clients wait here; try again later");
            return Err(api::Error::new(Code::TooMany, text));
        }
        if owner.is_some_and(|text| text.len() > 1000 || text.chars().any(char::is_control)) {
            let text = "`owner` is up to 1000 bytes of printable text";
            return Err(api::Error::new(Code::Malformed, text));
        }
        if units == 0 {
            return Err(api::Error::new(Code::Malformed, "`k` is at least 1"));
        }
        self.open_one(name)
    }

    /// The semaphore of that name, where it can be used.
    fn open_one(&self, name: &str) -> Result<usize, api::Error> {
        let &semaphore = self.semaphore_by_name.get(name).ok_or_else(|| unknown(name))?;
        if self.tallies.as_ref().is_some_and(Tallies::has_failed) {
            let text = "this site's disk does not take what is done with semaphores; ask another";
            return Err(api::Error::new(Code::Unreachable, text));
        }
        Ok(semaphore)
    }

    /// V.
    pub(super) fn add_units(
        &mut self,
        name: &str,
        (units, id): (u32, Option<u128>),
        reply: Responder,
    ) {
        let checked = self.open_one(name).and_then(|semaphore| match units {
            0 => Err(api::Error::new(Code::Malformed, "`m` is at least 1")),
            _ => Ok(semaphore),
        });
        match checked {
            Ok(semaphore) => self.put_adder(semaphore, units, id, Some(reply)),
            Err(error) => self.respond(reply, Err(error)),
        }
    }

    /// A claim has its units.
    pub(super) fn taken(&mut self, engine: usize, claim: Stamp) {
        let Some(&key) = self.taker_by_claim.get(&(engine, claim)) else {
            if let Some(demand) = self.leaving.remove(&(engine, claim)) {
                self.step(engine, Move::Add { demand });
            } else {
                error!(%claim, "units were taken that nobody waited for");
            }
            return;
        };
        self.stop_waiting(key);
        let Some(taker) = self.takers.get(&key) else { return };
        let (place, units, name) = (taker.semaphore, taker.units, taker.id);
        let gone = taker.reply.as_ref().is_none_or(Responder::is_gone);
        let pool = self.semaphores[place].id;
        let deal = Deal::Take(key);
        let due = name.is_none_or(|name| self.accounts_of(engine).is_for(pool, name, deal));
        if !due || gone && name.is_none() {
            // Its client left before it had anything, or it must wait for word of its id: others
            // may have the units.
            if due {
                self.forget_taker(key);
            }
            return self.step(engine, Move::Add { demand: Demand::one(pool, units) });
        }
        let gate = self.gate();
        if let Some(taker) = self.takers.get_mut(&key) {
            taker.gate = Some(Arc::clone(&gate));
            if let Some(timer) = taker.timer.take() {
                self.timers.remove(&timer);
            }
        }
        let op = Op { pool, change: -i64::from(units), id: name };
        self.enter(place, op, deal, &gate);
    }

    /// A P is kept.
    pub(super) fn took(&mut self, key: u64) {
        let Some(taker) = self.forget_taker(key) else { return };
        let semaphore = taker.semaphore;
        let waited = self.now.since(taker.since);
        let answer = self.taken_by(&taker, millis(waited));
        self.happened_to(semaphore, "taken", taker.units, taker.owner, waited);
        let gone = taker.left || taker.reply.as_ref().is_none_or(Responder::is_gone);
        if gone && taker.id.is_none() {
            // Its client does not know, and will not ask.
            return self.put_adder(semaphore, taker.units, None, None);
        }
        if let Some(gate) = taker.gate {
            gate.answer(taker.reply, Answer::Taken(answer));
        }
    }

    /// A P with this id was done before.
    pub(super) fn took_before(&mut self, key: u64, change: i64) {
        let Some(taker) = self.takers.get(&key) else { return };
        let same = change == -i64::from(taker.units);
        let answer = Answer::Taken(self.taken_by(taker, 0));
        let reply = self.end_taker(key).and_then(|taker| taker.reply);
        if let Some(reply) = reply {
            self.respond(reply, if same { Ok(answer) } else { Err(other_use()) });
        }
    }

    fn taken_by(&self, taker: &Taker, waited_ms: u64) -> Taken {
        Taken {
            name: self.semaphores[taker.semaphore].name.to_string(),
            k: taker.units,
            state: "taken".to_owned(),
            waited_ms,
        }
    }

    pub(super) fn not_taken(&mut self, engine: usize, claim: Stamp, reason: &Rejection) {
        let key = self.taker_by_claim.get(&(engine, claim)).copied();
        if let Some(taker) = key.and_then(|key| self.forget_taker(key)) {
            let error = api::Error::new(Code::Infeasible, reason.to_string());
            if let Some(reply) = taker.reply {
                self.respond(reply, Err(error));
            }
        }
    }

    /// The client is gone, or does not want to wait any more.
    pub(super) fn give_up(&mut self, key: u64) {
        self.fail(key, api::Error::new(Code::Gone, "given up"));
    }

    /// The time of a P has come: its wait is over, or it must be known whether it would wait.
    pub(super) fn stop_taking(&mut self, key: u64) {
        let Some(taker) = self.takers.get_mut(&key) else { return };
        taker.timer = None;
        let (semaphore, claim, since) = (taker.semaphore, taker.claim, taker.since);
        let (name, once) = (taker.id, taker.once);
        let Semaphore { engine, id, .. } = self.semaphores[semaphore];
        let accounts = self.accounts.get(&engine);
        let elsewhere = name
            .is_some_and(|name| !accounts.is_some_and(|it| it.is_for(id, name, Deal::Take(key))));
        let young = once && self.now.since(since) < TRY;
        if elsewhere && !young {
            let text = "the call with this id is under way at another site; try again";
            return self.fail(key, api::Error::new(Code::Unreachable, text));
        }
        if !once {
            let text = "its wait ran out; nothing was taken";
            return self.fail(key, api::Error::new(Code::Timeout, text));
        }
        let Semaphore { engine, id, ref waiting, .. } = self.semaphores[semaphore];
        let first = waiting.first().is_none_or(|it| Some(it.0) == claim);
        let head = self.engines.get(engine).and_then(|it| it.engine.head(id));
        let turn = head.is_some_and(|head| Some(head.claim) == claim);
        // Before its turn nobody knows whether there are units: others may only be quicker.
        if (elsewhere || first && !turn) && young {
            let timer =
                self.start_timer(self.now.after(TRY.saturating_sub(SETTLE)), Timer::Taker(key));
            if let Some(taker) = self.takers.get_mut(&key) {
                taker.timer = Some(timer);
            }
            return;
        }
        let text = "there are not enough units now; leave out `wait` to wait for them";
        self.fail(key, api::Error::new(Code::Busy, text));
    }

    /// Ends a P that has taken nothing. An entry in the account stays there, and is given
    /// back when it is kept if its client cannot call again for it.
    fn fail(&mut self, key: u64, error: api::Error) {
        let Some(taker) = self.takers.get_mut(&key) else { return };
        let reply = if taker.gate.is_some() {
            taker.left = true;
            taker.reply.take()
        } else {
            self.end_taker(key).and_then(|taker| taker.reply)
        };
        if let Some(reply) = reply {
            self.respond(reply, Err(error));
        }
    }

    /// Takes a P that has taken nothing out of everything.
    fn end_taker(&mut self, key: u64) -> Option<Taker> {
        let taker = self.forget_taker(key)?;
        let Semaphore { engine, id, .. } = self.semaphores[taker.semaphore];
        if let Some(claim) = taker.claim {
            self.leaving.insert((engine, claim), Demand::one(id, taker.units));
            self.todo.push_back(Todo::Leave(engine, claim));
        }
        if let Some(name) = taker.id.filter(|_| taker.asked)
            && let Some(accounts) = self.accounts.get_mut(&engine)
        {
            let mut steps = Steps::default();
            accounts.give_up(id, name, Deal::Take(key), &mut steps);
            self.follow(engine, steps);
        }
        Some(taker)
    }

    /// Takes back a claim; what it got in the same moment is there for others.
    pub(super) fn leave(&mut self, engine: usize, claim: Stamp) {
        self.step(engine, Move::Withdraw { claim });
        let granted = |todo: &Todo| matches!(todo, Todo::Granted(_, it, _) if *it == claim);
        if !self.todo.iter().any(granted) {
            self.leaving.remove(&(engine, claim));
        }
    }

    pub(super) fn end_all_takers(&mut self) {
        // Those that have their units are answered as soon as they are kept.
        let waiting = self.takers.iter().filter(|it| it.1.gate.is_none());
        let mut keys: Vec<u64> = waiting.map(|it| *it.0).collect();
        keys.sort_unstable();
        for key in keys {
            self.fail(key, api::Error::new(Code::Draining, "the site stops; nothing was taken"));
        }
    }

    fn forget_taker(&mut self, key: u64) -> Option<Taker> {
        let claim = self.stop_waiting(key);
        let mut taker = self.takers.remove(&key)?;
        taker.claim = claim;
        if let Some(timer) = taker.timer {
            self.timers.remove(&timer);
        }
        Some(taker)
    }

    /// A P has no claim any more; says which it had.
    fn stop_waiting(&mut self, key: u64) -> Option<Stamp> {
        let taker = self.takers.get_mut(&key)?;
        let claim = taker.claim.take()?;
        let semaphore = &mut self.semaphores[taker.semaphore];
        semaphore.waiting.remove(&(claim, key));
        self.taker_by_claim.remove(&(semaphore.engine, claim));
        Some(claim)
    }

    pub(super) fn happened_to(
        &mut self,
        semaphore: usize,
        event: &'static str,
        units: u32,
        owner: Option<String>,
        waited: Duration,
    ) {
        let name = self.semaphores[semaphore].name.to_string();
        let happening = self.happening(event, None);
        let waited_ms = (event == "taken").then(|| millis(waited));
        let want = Arc::new([(name, units)].into());
        let owner = owner.map(Into::into);
        self.record(api::Happening { owner, want, waited_ms, ..happening });
    }

    // Epochs

    /// Before the first epoch: what the configuration says.
    pub(super) fn expect_semaphores(&mut self, plan: &Plan) {
        for (number, kind) in kinds().into_iter().enumerate() {
            for (id, it) in (0..).map(PoolId).zip(plan.semaphores_of(kind)) {
                let Some((name, config)) = it else { continue };
                let name: Arc<str> = name.into();
                self.semaphore_by_name.insert(Arc::clone(&name), self.semaphores.len());
                let semaphore = Semaphore::new(name, config, number, id);
                self.semaphores.push(Semaphore { expected: true, ..semaphore });
            }
        }
    }

    /// The semaphores of one protocol as an epoch has them: the place of each.
    pub(super) fn install_semaphores(
        &mut self,
        number: usize,
        kind: Kind,
        plan: &Plan,
        survey: &Survey,
    ) -> Vec<usize> {
        let mut places = Vec::new();
        for (id, it) in (0..).map(PoolId).zip(plan.semaphores_of(kind)) {
            let Some((name, config)) = it else {
                places.push(usize::MAX);
                continue;
            };
            let same = self.semaphore_by_name.get(name.as_str()).copied().filter(|&place| {
                let old = &self.semaphores[place];
                old.expected || (old.engine, old.id) == (number, id)
            });
            let place = same.unwrap_or_else(|| {
                let name: Arc<str> = name.into();
                self.semaphore_by_name.insert(Arc::clone(&name), self.semaphores.len());
                self.semaphores.push(Semaphore::new(name, config.clone(), number, id));
                self.semaphores.len() - 1
            });
            let key = (kind.name().to_owned(), id);
            let earlier = self.earlier.as_ref().and_then(|it| it.get(&key)).map(|it| it.tally);
            let semaphore = &mut self.semaphores[place];
            semaphore.base = survey.value(id).unwrap_or_else(|| config.value.into());
            (semaphore.engine, semaphore.id, semaphore.config) = (number, id, config);
            if semaphore.expected || same.is_none() {
                semaphore.written = earlier.unwrap_or_default();
            }
            semaphore.expected = false;
            places.push(place);
        }
        self.begin_accounts(number, survey);
        places
    }

    /// Ends what has no place in the new epoch, and lets the rest ask again where it must.
    pub(super) fn trim_semaphores(&mut self, record: &Record<Plan>) {
        self.leaving.clear();
        let installed: BTreeSet<usize> = self
            .engines
            .iter()
            .filter(|it| it.kind.profile().serves == Service::Semaphore)
            .flat_map(|it| it.pools.iter().copied())
            .collect();
        for (place, semaphore) in self.semaphores.iter_mut().enumerate() {
            if !installed.contains(&place) && !semaphore.gone {
                semaphore.gone = true;
                if self.semaphore_by_name.get(&semaphore.name) == Some(&place) {
                    self.semaphore_by_name.remove(&semaphore.name);
                }
            }
        }
        self.trim_adders();
        self.correct_disk();
        // Entries in the account are in the record.
        let waiting = self.takers.iter().filter(|it| it.1.gate.is_none());
        let keys: Vec<u64> = waiting.map(|it| *it.0).collect();
        for key in keys {
            let (semaphore, claim) = (self.takers[&key].semaphore, self.takers[&key].claim);
            let Semaphore { engine, ref name, gone, .. } = self.semaphores[semaphore];
            if gone {
                let error = unknown(name);
                self.fail(key, error);
                continue;
            }
            let survey = record.surveys.get(engine);
            let known = |claim| survey.is_some_and(|it| it.claims.contains_key(&claim));
            if claim.is_some_and(|claim| !known(claim)) {
                self.ask_again(key);
            }
        }
    }

    /// The claims of this life are void.
    pub(super) fn ask_all_again(&mut self) {
        let takers = self.takers.iter();
        let mut keys: Vec<_> = takers.map(|(&key, taker)| (taker.claim, key)).collect();
        keys.sort_unstable();
        self.leave_accounts();
        for (_, key) in keys {
            let Some(taker) = self.takers.get_mut(&key) else { continue };
            taker.asked = false;
            if taker.gate.is_none() {
                if taker.claim.is_none() {
                    self.todo.push_back(Todo::Take(key));
                }
                self.ask_again(key);
            } else if let Some(reply) = self.forget_taker(key).and_then(|taker| taker.reply) {
                self.respond(reply, Err(in_doubt()));
            }
        }
    }

    /// Claims of takers have other names in the epoch that begins.
    pub(super) fn rename_takers(&mut self, names: &BTreeMap<(usize, Stamp), Stamp>) {
        for (&key, taker) in &mut self.takers {
            let semaphore = &mut self.semaphores[taker.semaphore];
            let Some(old) = taker.claim else { continue };
            let Some(&new) = names.get(&(semaphore.engine, old)) else { continue };
            taker.claim = Some(new);
            self.taker_by_claim.remove(&(semaphore.engine, old));
            self.taker_by_claim.insert((semaphore.engine, new), key);
            semaphore.waiting.remove(&(old, key));
            semaphore.waiting.insert((new, key));
        }
    }

    fn ask_again(&mut self, key: u64) {
        let Some(taker) = self.takers.get_mut(&key) else { return };
        if let Some(claim) = taker.claim.take() {
            let semaphore = &mut self.semaphores[taker.semaphore];
            semaphore.waiting.remove(&(claim, key));
            self.taker_by_claim.remove(&(semaphore.engine, claim));
            self.todo.push_back(Todo::Take(key));
        }
    }

    /// What this site knows of semaphores, for the others.
    pub(super) fn report_semaphores(&self, books: &mut [Book]) {
        for (number, kind) in kinds().into_iter().enumerate() {
            if kind.profile().serves != Service::Semaphore {
                continue;
            }
            let Some(book) = books.get_mut(number) else { continue };
            book.accounts = self.books_of(number, kind.name());
        }
        for taker in self.takers.values() {
            let Semaphore { engine, id, .. } = self.semaphores[taker.semaphore];
            if let (Some(claim), Some(book)) = (taker.claim, books.get_mut(engine)) {
                let standing = Standing::waiting(Demand::one(id, taker.units));
                book.claims.insert(claim, standing);
            }
        }
    }

    /// Sites that may have taken more than is known.
    fn unsure(&self, engine: usize) -> Vec<String> {
        let survey = self.change.record().surveys.get(engine);
        let counts = survey.and_then(|survey| survey.counts.as_ref());
        let unsure = counts.into_iter().flat_map(|counts| counts.unsure.iter());
        unsure.map(|site| self.site_name(site)).collect()
    }

    /// The sums of clients of this site, in all its lives.
    pub(crate) fn own_tally(&self, it: &Semaphore) -> Tally {
        self.accounts.get(&it.engine).map(|accounts| accounts.own(it.id)).unwrap_or_default()
    }

    pub(super) fn semaphore_shares(&self) -> Vec<SemaphoreShare> {
        let now = self.now;
        let list = self.semaphores.iter().filter(|it| !it.gone);
        let share = |it: &Semaphore| SemaphoreShare {
            name: it.name.to_string(),
            protocol: it.config.protocol.name().to_owned(),
            epoch: self.installed,
            first: it.base,
            sites: self.since_begin(it.engine, it.id),
            unsure: self.unsure(it.engine),
            waiting: it.waiting.len() as u64,
            head: self.engines.get(it.engine).and_then(|engine| {
                let head = engine.engine.head(it.id)?;
                let key = self.taker_by_claim.get(&(it.engine, head.claim))?;
                let taker = self.takers.get(key)?;
                Some(Head {
                    site: self.site.to_string(),
                    owner: taker.owner.clone(),
                    k: taker.units,
                    missing: head.missing,
                    waited_ms: millis(now.since(taker.since)),
                })
            }),
        };
        list.map(share).collect()
    }
}

pub fn unknown(name: &str) -> api::Error {
    let text = format!("there is no semaphore `{name}`; `kofm sem ls` lists them");
    api::Error::new(Code::UnknownSemaphore, text)
}
