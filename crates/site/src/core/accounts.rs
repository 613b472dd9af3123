//! P and V are kept by a few members, and on this site's disk, before their clients hear of them.
//!
//! The rules by which they outlive a site are in [`kofm_core::epoch::accounts`]. Here its calls
//! meet clients: a P has its units first and is kept then, a V is kept first and told to the
//! protocol then.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kofm_core::epoch::accounts::{Message, Outcome, Steps};
use kofm_core::epoch::{Account, Accounts, Books, Named, Op, Survey};
use kofm_core::{Demand, PoolId, SiteId};

use super::semaphores::{Semaphore, unknown};
use super::{Core, MAX_QUEUED, Responder, Todo};
use crate::api::{self, Answer, Code};
use crate::engine::Move;
use crate::links::Payload;
use crate::tallies::{self, Entry, What};

/// A call that waits for keepers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deal {
    /// P: the key of a taker.
    Take(u64),
    /// V: the key of an adder.
    Add(u64),
}

/// A V that is not answered.
pub(super) struct Adder {
    semaphore: usize,
    units: u32,
    id: Option<u128>,
    /// Missing where it gives back what a client had taken that left.
    reply: Option<Responder>,
    /// The keepers are asked who does it.
    asked: bool,
    /// It is in this site's account.
    gate: Option<Arc<Gate>>,
}

/// Answers a client when the keepers and the disk have what it asked for, whichever is later.
pub(super) struct Gate {
    left: AtomicU8,
    answer: Mutex<Option<(Responder, Answer)>>,
}

impl Gate {
    fn pass(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut slot = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((reply, answer)) = slot.take() {
                drop(slot);
                reply.answer(Ok(answer));
            }
        }
    }

    /// The keepers have it.
    pub(super) fn answer(&self, reply: Option<Responder>, answer: Answer) {
        let mut slot = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = reply.map(|reply| (reply, answer));
        drop(slot);
        self.pass();
    }
}

/// What may have happened when a site was left out in the middle of it.
pub(super) fn in_doubt() -> api::Error {
    let text = "this site was left out before enough others had heard of it: it may have been \
                done; call again with the same `id`, which does it once";
    api::Error::new(Code::Unreachable, text)
}

/// An id stands for one operation.
pub(super) fn other_use() -> api::Error {
    let text = "this `id` was used for another P or V; choose a new one for each";
    api::Error::new(Code::Malformed, text)
}

impl Core {
    /// The accounts of the semaphores of one protocol, for a site that is in an epoch.
    pub(super) fn accounts_of(&mut self, engine: usize) -> &mut Accounts<Deal> {
        let fresh = || Accounts::new(kofm_core::epoch::Sound, self.me);
        self.accounts.entry(engine).or_insert_with(fresh)
    }

    /// Writes an operation into this site's account. The gate opens when it is kept.
    pub(super) fn enter(&mut self, semaphore: usize, op: Op, deal: Deal, gate: &Arc<Gate>) {
        let (engine, key) = self.semaphores[semaphore].place();
        let mut steps = Steps::default();
        let accounts = self.accounts_of(engine);
        accounts.enter(op, deal, &mut steps);
        let own = accounts.own(op.pool);
        self.semaphores[semaphore].written = own;
        if let Some(tallies) = &self.tallies {
            let gate = Arc::clone(gate);
            let what = match op.id {
                Some(id) => What::Named(Named { id, change: op.change }),
                None => What::Nameless,
            };
            tallies.write(Entry { key, tally: own, what }, Box::new(move || gate.pass()));
        }
        self.follow(engine, steps);
    }

    /// A gate that the keepers open, and the disk where there is one.
    pub(super) fn gate(&self) -> Arc<Gate> {
        let left = AtomicU8::new(1 + u8::from(self.tallies.is_some()));
        Arc::new(Gate { left, answer: Mutex::default() })
    }

    /// What follows from accounts.
    pub(super) fn follow(&mut self, engine: usize, steps: Steps<Deal>) {
        let (epoch, protocol) = (self.epoch(), self.engines[engine].group.id());
        for (to, message) in steps.sends {
            self.metrics.copies_sent += 1;
            let message = postcard::to_stdvec(&message).unwrap_or_default();
            self.send(to, &Payload::Accounts { epoch, protocol, message });
        }
        for (deal, outcome) in steps.outcomes {
            self.hear(engine, deal, outcome);
        }
    }

    fn hear(&mut self, engine: usize, deal: Deal, outcome: Outcome) {
        match (deal, outcome) {
            (Deal::Take(key), Outcome::Yours) => self.todo.push_back(Todo::Take(key)),
            (Deal::Add(key), Outcome::Yours) => self.todo.push_back(Todo::Add(key)),
            (Deal::Take(key), Outcome::Kept | Outcome::Recorded) => self.took(key),
            (Deal::Take(key), Outcome::Known(change)) => self.took_before(key, change),
            (Deal::Add(key), _) => {
                let Some(adder) = self.adders.remove(&key) else { return };
                let Adder { semaphore, units, reply, gate, .. } = adder;
                if let Outcome::Known(change) = outcome {
                    let same = change == i64::from(units);
                    let answer = if same { Ok(Answer::Done) } else { Err(other_use()) };
                    if let Some(reply) = reply {
                        self.respond(reply, answer);
                    }
                    return;
                }
                if outcome == Outcome::Kept {
                    let id = self.semaphores[semaphore].id();
                    self.step(engine, Move::Add { demand: Demand::one(id, units) });
                }
                if let Some(gate) = gate {
                    gate.answer(reply, Answer::Done);
                }
            }
        }
    }

    /// A message about accounts arrives.
    pub(super) fn on_accounts(&mut self, from: SiteId, engine: usize, message: &[u8]) {
        let Ok(message) = postcard::from_bytes::<Message>(message) else {
            return self.end_session(from, "a message about a semaphore that cannot be decoded");
        };
        let known = self.engines.get(engine).map_or(0, |it| it.pools.len());
        if message.pool().is_some_and(|pool| pool.index() >= known) {
            return self.fault(from, "a semaphore that does not exist");
        }
        let mut steps = Steps::default();
        match self.accounts_of(engine).receive(from, message, &mut steps) {
            Ok(()) => self.follow(engine, steps),
            Err(fault) => self.fault(from, &fault.to_string()),
        }
    }

    // V

    /// Takes a V on.
    pub(super) fn put_adder(
        &mut self,
        semaphore: usize,
        units: u32,
        id: Option<u128>,
        reply: Option<Responder>,
    ) {
        if self.adders.len() >= MAX_QUEUED
            && let Some(reply) = reply
        {
            let text = format!("{MAX_QUEUED} calls wait here; try again later");
            return self.respond(reply, Err(api::Error::new(Code::TooMany, text)));
        }
        let key = self.next_adder;
        self.next_adder += 1;
        self.adders.insert(key, Adder { semaphore, units, id, reply, asked: false, gate: None });
        self.todo.push_back(Todo::Add(key));
    }

    /// Adds units, or asks first whether that was done.
    pub(super) fn add_now(&mut self, key: u64) {
        let Some(adder) = self.adders.get(&key).filter(|it| it.gate.is_none()) else { return };
        let Adder { semaphore, units, id, asked, .. } = *adder;
        // A client that gave up before it was done may try again: it is done once.
        let gone = adder.reply.as_ref().is_some_and(Responder::is_gone);
        let state = &self.semaphores[semaphore];
        let (engine, pool) = (state.place().0, state.id());
        if gone && !asked {
            self.adders.remove(&key);
            return;
        }
        let deal = Deal::Add(key);
        if let Some(id) = id
            && !self.accounts_of(engine).is_for(pool, id, deal)
        {
            if !asked {
                self.adders.entry(key).and_modify(|it| it.asked = true);
                let mut steps = Steps::default();
                self.accounts_of(engine).ask(pool, id, deal, &mut steps);
                self.follow(engine, steps);
            }
            return;
        }
        let open = self.adders.values().filter(|it| it.semaphore == semaphore && it.gate.is_some());
        let open: u64 = open.map(|it| u64::from(it.units)).sum();
        if u64::from(units) + open > self.engines[engine].engine.room(pool) {
            let name = &self.semaphores[semaphore].name;
            let text = format!("{units} more are too many for the counter of `{name}`");
            return self.refuse_adder(key, api::Error::new(Code::Infeasible, text));
        }
        let gate = self.gate();
        self.adders.entry(key).and_modify(|it| it.gate = Some(Arc::clone(&gate)));
        self.happened_to(semaphore, "added", units, None, std::time::Duration::ZERO);
        let op = Op { pool, change: units.into(), id };
        self.enter(semaphore, op, deal, &gate);
    }

    /// Ends a V that was not done.
    fn refuse_adder(&mut self, key: u64, error: api::Error) {
        let Some(adder) = self.adders.remove(&key) else { return };
        let state = &self.semaphores[adder.semaphore];
        let (engine, pool) = (state.place().0, state.id());
        if let Some(id) = adder.id.filter(|_| adder.asked)
            && let Some(accounts) = self.accounts.get_mut(&engine)
        {
            let mut steps = Steps::default();
            accounts.give_up(pool, id, Deal::Add(key), &mut steps);
            self.follow(engine, steps);
        }
        if let Some(reply) = adder.reply {
            self.respond(reply, Err(error));
        }
    }

    // Epochs

    /// The epoch begins with these accounts; calls hear of it when the site may speak.
    pub(super) fn begin_accounts(&mut self, engine: usize, survey: &Survey) {
        let mut steps = Steps::default();
        self.accounts_of(engine).begin(&survey.keepers, survey.accounts(), &mut steps);
        let news = steps.outcomes.into_iter();
        self.account_news.extend(news.map(|(deal, outcome)| (engine, deal, outcome)));
    }

    /// Makes the disk say what the record says: operations that are not in it were not done.
    pub(super) fn correct_disk(&mut self) {
        for place in 0..self.semaphores.len() {
            let (engine, key) = self.semaphores[place].place();
            let own = self.accounts_of(engine).own(key.1);
            let state = &mut self.semaphores[place];
            if state.gone || std::mem::replace(&mut state.written, own) == own {
                continue;
            }
            if let Some(tallies) = &self.tallies {
                tallies.write(Entry { key, tally: own, what: What::Record }, Box::new(|| ()));
            }
        }
    }

    /// All members have the epoch.
    pub(super) fn resume_accounts(&mut self) {
        let known = self.engines.len();
        let engines: Vec<usize> = self.accounts.range(..known).map(|it| *it.0).collect();
        for engine in engines {
            let mut steps = Steps::default();
            self.accounts_of(engine).resume(&mut steps);
            self.follow(engine, steps);
        }
        for (engine, deal, outcome) in std::mem::take(&mut self.account_news) {
            self.hear(engine, deal, outcome);
        }
    }

    /// Calls for semaphores that are gone.
    pub(super) fn trim_adders(&mut self) {
        let waits = |it: &Adder| it.gate.is_none() && self.semaphores[it.semaphore].gone;
        let mut keys: Vec<u64> =
            self.adders.iter().filter(|it| waits(it.1)).map(|it| *it.0).collect();
        keys.sort_unstable();
        for key in keys {
            let Some(adder) = self.adders.remove(&key) else { continue };
            let error = unknown(&self.semaphores[adder.semaphore].name);
            if let Some(reply) = adder.reply {
                self.respond(reply, Err(error));
            }
        }
    }

    /// This life is over. Whether its operations that were not kept were done, the next one does
    /// not know.
    pub(super) fn leave_accounts(&mut self) {
        if !self.accounts.is_empty() {
            self.earlier = Some(self.own_accounts());
        }
        self.accounts.clear();
        self.account_news.clear();
        let mut keys: Vec<u64> = self.adders.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            let Some(adder) = self.adders.get_mut(&key) else { continue };
            if adder.gate.is_none() {
                adder.asked = false;
                self.todo.push_back(Todo::Add(key));
            } else if let Some(reply) = self.adders.remove(&key).and_then(|it| it.reply) {
                self.respond(reply, Err(in_doubt()));
            }
        }
    }

    fn own_accounts(&self) -> BTreeMap<tallies::Key, Account> {
        let known = self.semaphores.iter().filter(|it| !it.gone).map(Semaphore::place);
        let account = |(engine, key): (usize, tallies::Key)| {
            let own = self.accounts.get(&engine)?.own_account(key.1)?.clone();
            Some((key, own))
        };
        known.filter_map(account).collect()
    }

    /// What this site can say of the accounts of one protocol: as a member what it knows of all, as
    /// a site that comes back what its disk says of its own.
    pub(super) fn books_of(&self, engine: usize, protocol: &str) -> Option<Books> {
        if let Some(accounts) = self.accounts.get(&engine) {
            return Some(accounts.report());
        }
        let earlier = self.earlier.as_ref()?.iter().filter(|it| it.0.0 == protocol);
        let own = |(key, account): (&tallies::Key, &Account)| {
            (key.1, BTreeMap::from([(self.me, account.clone())]))
        };
        Some(earlier.map(own).collect())
    }

    /// Units that each site has added and taken since the epoch began, as far as is known here.
    pub(super) fn since_begin(&self, engine: usize, pool: PoolId) -> Vec<(SiteId, u64, u64)> {
        let Some(accounts) = self.accounts.get(&engine) else { return Vec::new() };
        let record = self.change.record();
        let began = record.surveys.get(engine).and_then(|it| it.accounts().get(&pool));
        let share = |(site, account): (SiteId, &Account)| {
            let old = began.and_then(|it| it.get(&site)).map(|it| it.tally).unwrap_or_default();
            let added = account.tally.added.saturating_sub(old.added);
            (site, added, account.tally.taken.saturating_sub(old.taken))
        };
        accounts.of(pool).map(share).filter(|it| it.1 + it.2 > 0).collect()
    }
}
