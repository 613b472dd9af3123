//! Semaphores: P waits for its turn and for units, V adds some.
//!
//! Nobody holds anything, so there are no leases: what was taken is taken, and a client that dies
//! after its P keeps it. A client that dies, or gives up, while it waits leaves nothing behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kofm_core::{Cluster, Demand, Kind, PoolId, Rejection, Service, Stamp, Units};
use tracing::error;

use super::{Core, MAX_QUEUED, Responder, Running, SETTLE, TRY, Timer, Todo, millis};
use crate::api::{self, Answer, Code, Head, SemaphoreShare, Taken};
use crate::boottime::Moment;
use crate::config::{MAX_SEMAPHORES, SemaphoreConfig};
use crate::engine::{self, Move};
use crate::names::Names;

/// Engines that a site has over its life: they have numbers of 16 bits between sites.
const MAX_ENGINES: usize = 60_000;

pub(crate) struct Semaphore {
    pub(crate) name: Arc<str>,
    config: SemaphoreConfig,
    engine: usize,
    id: PoolId,
    /// Units that clients of this site have added and taken.
    pub(crate) added: u64,
    pub(crate) taken: u64,
    /// Whoever waits here.
    pub(crate) waiting: BTreeSet<(Stamp, u64)>,
    pub(crate) gone: bool,
}

pub(super) struct Taker {
    semaphore: usize,
    units: u32,
    claim: Stamp,
    owner: Option<String>,
    /// Must not wait.
    once: bool,
    since: Moment,
    timer: Option<(Moment, u64)>,
    reply: Responder,
}

impl Responder {
    /// Whether nobody waits for the answer any more.
    fn is_gone(&self) -> bool {
        match self {
            Self::Local(reply) => reply.is_closed(),
            Self::Fast(_, answers) => answers.is_closed(),
            Self::Peer(..) => false,
        }
    }
}

impl Core {
    pub(super) fn is_semaphore(&self, engine: usize) -> bool {
        self.engines[engine].kind.profile().serves == Service::Semaphore
    }

    pub(super) fn add_semaphores(
        &mut self,
        kind: Kind,
        list: Vec<(String, SemaphoreConfig)>,
        open: bool,
    ) {
        let number = self.engines.len();
        let sites = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        let values: Vec<Units> = list.iter().map(|(_, it)| Units(it.value)).collect();
        let said = (0..).map(PoolId).zip(&list);
        let said = said.filter_map(|(id, (_, it))| Some((id, it.arbitration.clone()?)));
        let arbitration = said.collect();
        let cluster = Cluster { pools: values, arbitration, ..Cluster::new(sites, 1) };
        let engine = engine::start(kind, self.me, &cluster).expect("checked by the configuration");
        let first = self.semaphores.len();
        let count = list.len();
        for (id, (name, config)) in (0..).map(PoolId).zip(list) {
            let name: Arc<str> = name.into();
            self.semaphore_by_name.insert(Arc::clone(&name), self.semaphores.len());
            self.semaphores.push(Semaphore {
                name,
                config,
                engine: number,
                id,
                added: 0,
                taken: 0,
                waiting: BTreeSet::new(),
                gone: false,
            });
        }
        self.engines.push(Running {
            kind,
            engine,
            names: Names::new(self.me, sites, Vec::new()),
            pools: (first..first + count).collect(),
            open,
        });
    }

    /// Adds a semaphore while the site runs; it is opened when all sites have it. One of the same
    /// name, which was closed, gives way.
    pub(super) fn add_semaphore(
        &mut self,
        name: String,
        config: SemaphoreConfig,
    ) -> Result<(), api::Error> {
        let old = self.semaphore_by_name.get(name.as_str()).copied();
        let full = old.is_none() && self.semaphore_by_name.len() >= MAX_SEMAPHORES;
        if full || self.engines.len() >= MAX_ENGINES {
            let text = format!("{MAX_SEMAPHORES} semaphores, or {MAX_ENGINES} changes, are enough");
            return Err(api::Error::new(Code::TooMany, text));
        }
        if let Some(old) = old {
            self.semaphores[old].gone = true;
        }
        self.add_semaphores(config.protocol, vec![(name, config)], false);
        Ok(())
    }

    pub(super) fn open_semaphore(&mut self, name: &str, new: bool) {
        let Some(&semaphore) = self.semaphore_by_name.get(name) else { return };
        let Semaphore { engine, ref config, .. } = self.semaphores[semaphore];
        let cause = Some(format!("{name} begins with {}", config.value));
        self.engines[engine].open = true;
        if new {
            let happening = self.happening("semaphore", None);
            self.record(api::Happening { cause, ..happening });
        }
    }

    /// A semaphore that was made with the site shares its engine; then all of them are closed for
    /// the moment that it takes.
    pub(super) fn close_semaphore(&mut self, name: &str) -> u64 {
        let Some(&semaphore) = self.semaphore_by_name.get(name) else { return 0 };
        let Semaphore { engine, ref waiting, .. } = self.semaphores[semaphore];
        self.engines[engine].open = false;
        waiting.len() as u64
    }

    /// Takes a semaphore off the list; says whether it was there. Whoever waits is told.
    pub(super) fn remove_semaphore(&mut self, name: &str) -> bool {
        let Some(semaphore) = self.semaphore_by_name.remove(name) else { return false };
        self.semaphores[semaphore].gone = true;
        let waiting: Vec<u64> = self.semaphores[semaphore].waiting.iter().map(|it| it.1).collect();
        for key in waiting {
            self.fail(key, unknown(name));
        }
        true
    }

    /// P.
    pub(super) fn take(
        &mut self,
        key: u64,
        name: &str,
        units: u32,
        wait: Option<Duration>,
        owner: Option<String>,
        reply: Responder,
    ) {
        let semaphore = match self.may_take(key, name, units, owner.as_deref(), &reply) {
            Ok(semaphore) => semaphore,
            Err(error) => return self.respond(reply, Err(error)),
        };
        let Semaphore { engine, id, .. } = self.semaphores[semaphore];
        let once = wait == Some(Duration::ZERO);
        let timer = wait.map(|wait| {
            let wait = if once { SETTLE } else { wait };
            self.start_timer(Moment::now().after(wait), Timer::Taker(key))
        });
        // The stamp is taken here, with nothing between it and the step.
        let claim = self.engines[engine].engine.next_stamp(self.clock);
        let since = Moment::now();
        let taker = Taker { semaphore, units, claim, owner, once, since, timer, reply };
        self.takers.insert(key, taker);
        self.taker_by_claim.insert((engine, claim), key);
        self.semaphores[semaphore].waiting.insert((claim, key));
        self.step(engine, Move::Claim { claim, demand: Demand::one(id, units) });
    }

    fn may_take(
        &self,
        key: u64,
        name: &str,
        units: u32,
        owner: Option<&str>,
        reply: &Responder,
    ) -> Result<usize, api::Error> {
        if self.draining {
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
        if !self.engines[self.semaphores[semaphore].engine].open {
            let text = format!("semaphore `{name}` is being made; try again");
            return Err(api::Error::new(Code::InUse, text));
        }
        Ok(semaphore)
    }

    /// V.
    pub(super) fn add_units(&mut self, name: &str, units: u32) -> Result<Answer, api::Error> {
        let semaphore = self.open_one(name)?;
        if units == 0 {
            return Err(api::Error::new(Code::Malformed, "`m` is at least 1"));
        }
        let Semaphore { engine, id, .. } = self.semaphores[semaphore];
        if u64::from(units) > self.engines[engine].engine.room(id) {
            let text = format!("{units} more are too many for the counter of `{name}`");
            return Err(api::Error::new(Code::Infeasible, text));
        }
        self.semaphores[semaphore].added += u64::from(units);
        self.todo.push_back(Todo::Move(engine, Move::Add { demand: Demand::one(id, units) }));
        self.happened_to(semaphore, "added", units, None, Duration::ZERO);
        Ok(Answer::Done)
    }

    /// A claim has its units.
    pub(super) fn taken(&mut self, engine: usize, claim: Stamp) {
        let key = self.taker_by_claim.get(&(engine, claim)).copied();
        let Some(taker) = key.and_then(|key| self.forget_taker(key)) else {
            return error!(%claim, "units were taken that nobody waited for");
        };
        let semaphore = taker.semaphore;
        self.semaphores[semaphore].taken += u64::from(taker.units);
        if taker.reply.is_gone() {
            // It left before it had anything: what it would have taken is there for others.
            self.semaphores[semaphore].added += u64::from(taker.units);
            let demand = Demand::one(self.semaphores[semaphore].id, taker.units);
            return self.todo.push_back(Todo::Move(engine, Move::Add { demand }));
        }
        let waited = Moment::now().since(taker.since);
        let answer = Taken {
            name: self.semaphores[semaphore].name.to_string(),
            k: taker.units,
            state: "taken".to_owned(),
            waited_ms: millis(waited),
        };
        self.happened_to(semaphore, "taken", taker.units, taker.owner, waited);
        self.respond(taker.reply, Ok(Answer::Taken(answer)));
    }

    pub(super) fn not_taken(&mut self, engine: usize, claim: Stamp, reason: &Rejection) {
        let key = self.taker_by_claim.get(&(engine, claim)).copied();
        if let Some(taker) = key.and_then(|key| self.forget_taker(key)) {
            let error = api::Error::new(Code::Infeasible, reason.to_string());
            self.respond(taker.reply, Err(error));
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
        if !taker.once {
            let text = "its wait ran out; nothing was taken";
            return self.fail(key, api::Error::new(Code::Timeout, text));
        }
        let Semaphore { engine, id, ref waiting, .. } = self.semaphores[semaphore];
        let first = waiting.first().is_some_and(|it| it.0 == claim);
        let turn = self.engines[engine].engine.head(id).is_some_and(|head| head.claim == claim);
        // Before its turn nobody knows whether there are units: others may only be quicker.
        if first && !turn && Moment::now().since(since) < TRY {
            let timer = self.start_timer(Moment::now().after(TRY - SETTLE), Timer::Taker(key));
            if let Some(taker) = self.takers.get_mut(&key) {
                taker.timer = Some(timer);
            }
            return;
        }
        let text = "there are not enough units now; leave out `wait` to wait for them";
        self.fail(key, api::Error::new(Code::Busy, text));
    }

    /// Ends a P that has taken nothing.
    fn fail(&mut self, key: u64, error: api::Error) {
        let Some(taker) = self.forget_taker(key) else { return };
        let engine = self.semaphores[taker.semaphore].engine;
        self.todo.push_back(Todo::Move(engine, Move::Withdraw { claim: taker.claim }));
        self.respond(taker.reply, Err(error));
    }

    pub(super) fn end_all_takers(&mut self) {
        let keys: Vec<u64> = self.takers.keys().copied().collect();
        for key in keys {
            self.fail(key, api::Error::new(Code::Draining, "the site stops; nothing was taken"));
        }
    }

    fn forget_taker(&mut self, key: u64) -> Option<Taker> {
        let taker = self.takers.remove(&key)?;
        let semaphore = &mut self.semaphores[taker.semaphore];
        semaphore.waiting.remove(&(taker.claim, key));
        self.taker_by_claim.remove(&(semaphore.engine, taker.claim));
        if let Some(timer) = taker.timer {
            self.timers.remove(&timer);
        }
        Some(taker)
    }

    fn happened_to(
        &mut self,
        semaphore: usize,
        event: &str,
        units: u32,
        owner: Option<String>,
        waited: Duration,
    ) {
        let name = self.semaphores[semaphore].name.to_string();
        let happening = self.happening(event, None);
        let waited_ms = (event == "taken").then(|| millis(waited));
        let want = [(name, units)].into();
        self.record(api::Happening { want, owner, waited_ms, ..happening });
    }

    pub(super) fn semaphore_shares(&self) -> Vec<SemaphoreShare> {
        let now = Moment::now();
        let list = self.semaphores.iter().filter(|it| !it.gone);
        let share = |it: &Semaphore| SemaphoreShare {
            name: it.name.to_string(),
            protocol: it.config.protocol.name().to_owned(),
            first: it.config.value,
            added: it.added,
            taken: it.taken,
            waiting: it.waiting.len() as u64,
            head: self.engines[it.engine].engine.head(it.id).and_then(|head| {
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

pub(super) fn unknown(name: &str) -> api::Error {
    let text = format!("there is no semaphore `{name}`; GET /v1/semaphores lists them");
    api::Error::new(Code::UnknownSemaphore, text)
}
