//! Requests meet protocols: a claim for each part, steps, and what follows from them.

use kofm_core::{Demand, ProtocolId, Rejection, SiteId, Stamp, Unit};
use tracing::{error, info, warn};

use super::{Core, Part, Timer, Todo};
use crate::api::{self, Code, State};
use crate::engine::{self, Move, Outcome};
use crate::links::Payload;
use crate::names::{self};

impl Core {
    /// Sets the clock of a protocol going, where it has one.
    pub(super) fn set_alarm(&mut self, number: usize) {
        if let Some(timer) = self.engines[number].engine.alarm() {
            let key = self.start_timer(self.now, Timer::Protocol(number, timer.clone()));
            self.protocol_timers.insert((number, timer), key);
        }
    }

    /// Says when the tokens of a protocol that heals were found wrong, and when right again.
    fn watch_soundness(&mut self, number: usize) {
        let running = &mut self.engines[number];
        let sound = running.engine.is_sound();
        let before = std::mem::replace(&mut running.sound, sound);
        let event = match (before, sound) {
            (Some(true) | None, Some(false)) => "healing",
            (Some(false), Some(true)) => "healed",
            _ => return,
        };
        // Pools that were removed have left their places empty.
        let pools = running.pools.iter().filter_map(|&pool| self.pools.get(pool));
        let names: Vec<&str> = pools.map(|pool| &*pool.name).collect();
        if names.is_empty() {
            return;
        }
        let cause = format!("pools {}", names.join(", "));
        if event == "healed" {
            info!("{cause}: every unit is there once again");
        } else {
            warn!("{cause}: units are missing, doubled or not counted; this heals by itself");
        }
        let happening = self.happening(event, None);
        self.record(api::Happening { cause: Some(cause.into()), ..happening });
    }

    /// Garbles a pool's protocol, for tests.
    pub(super) fn scramble(&mut self, name: &str) -> Result<(), api::Error> {
        let pool = self.pool_by_name.get(name).copied();
        let number = pool.map(|pool| self.pools[pool].engine);
        let heals = |it: &usize| self.engines.get(*it).is_some_and(|it| engine::heals(it.kind));
        let Some(number) = number.filter(heals) else {
            let text = format!("there is no pool `{name}` whose protocol heals from that");
            return Err(api::Error::new(Code::UnknownPool, text));
        };
        warn!(pool = name, "garbage is put into the protocol's memory, as was asked");
        let random = &mut self.random;
        self.engines[number].engine.scramble(&mut || random.number());
        let happening = self.happening("corrupted", None);
        self.record(api::Happening { cause: Some(format!("pool {name}").into()), ..happening });
        self.watch_soundness(number);
        Ok(())
    }

    /// Carries out everything that follows, in order.
    pub(super) fn settle(&mut self) {
        while !self.stands_still()
            && let Some(todo) = self.todo.pop_front()
        {
            match todo {
                Todo::Claim(key) => self.claim(key),
                Todo::Take(key) => self.ask_for(key),
                Todo::Leave(engine, claim) => self.leave(engine, claim),
                Todo::Add(key) => self.add_now(key),
                Todo::Accounts { from, engine, message } => {
                    self.on_accounts(from, engine, &message);
                }
                Todo::Undo(part) => self.undo(&part),
                Todo::Grant(key) => self.grant(key),
                Todo::Move(engine, input) => self.step(engine, input),
                Todo::Names(engine, effect) => self.on_names_effect(engine, effect),
                Todo::Numbers { from, engine, clock, message } => {
                    self.on_names(from, engine, clock, &message);
                }
                Todo::Granted(engine, claim, units) => self.granted(engine, claim, &units),
                Todo::Rejected(engine, claim, reason) => self.rejected(engine, claim, &reason),
                Todo::Revoked(engine, claim) => self.revoked(engine, claim),
            }
        }
    }

    /// Makes the claim of the part that is next.
    pub(super) fn claim(&mut self, key: u64) {
        let Some(request) = self.requests.get(&key) else { return };
        if request.state != State::Queued {
            return;
        }
        if request.part == 0 {
            // The pools may have changed since it was asked for.
            let parts = self.parts_of(&request.want);
            if let Some(request) = self.requests.get_mut(&key) {
                request.parts = parts;
            }
        }
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(part) = request.parts.get_mut(request.part) else { return };
        // The stamp is taken here, with nothing between it and the step.
        let (engine, demand) = (part.engine, part.demand.clone());
        let claim = self.engines[engine].engine.next_stamp(self.clock);
        part.claim = Some(claim);
        let mut crowded = false;
        for pool in demand.pools() {
            let pool = &mut self.pools[self.engines[engine].pools[pool.index()]];
            crowded |= !pool.waiting.is_empty();
            pool.waiting.insert((claim, key));
        }
        self.by_claim.insert((engine, claim), key);
        let before = self.todo.len();
        self.step(engine, Move::Claim { claim, demand: demand.clone() });
        // Whoever has somebody in front waits for certain, and is told so at once. Grants stand in
        // the list of things to do, so they have to be looked for: at its end, for it may be long.
        let granted = |todo: &Todo| matches!(todo, Todo::Granted(_, it, _) if *it == claim);
        if self.todo.range(before..).any(granted) {
            return;
        }
        self.note_waiting(key);
        let running = &self.engines[engine];
        // A protocol of named units knows who is in front here; there may be free ones elsewhere.
        let knows = running.counts || running.names.is_alone();
        let in_front = || running.engine.explain(claim).iter().any(|it| it.claim.is_some());
        let sure = crowded || (knows && in_front());
        let once = self.requests.get(&key).is_some_and(|request| request.once);
        if sure && once {
            return self.refuse(key, Code::Busy, "busy: others at this site come first");
        }
        if self.engines[engine].counts {
            for (pool, units) in demand.parts() {
                self.engines[engine].names.hope(pool, claim, units.0, &mut self.effects);
            }
            self.take_names(engine);
        }
        if sure {
            self.tell(key, true);
        }
    }

    /// The units of one pool that are at this site: in leases, about to be, or idle.
    pub(super) fn counted(&self, name: &str) -> Vec<u32> {
        let Some(&place) = self.pool_by_name.get(name) else { return Vec::new() };
        let pool = &self.pools[place];
        let Some(running) = self.engines.get(pool.engine) else { return Vec::new() };
        let mut list: Vec<u32> = pool.used.keys().copied().collect();
        let queued = self.requests.values().filter(|request| request.state == State::Queued);
        let parts = queued.flat_map(|request| &request.parts);
        let parts = parts.filter(|part| part.engine == pool.engine);
        list.extend(parts.filter_map(|part| part.numbers.get(&pool.id)).flatten());
        let idle = running.engine.idle_units().unwrap_or_else(|| running.names.idle());
        list.extend(idle.iter().filter(|unit| unit.pool == pool.id).map(|unit| unit.number));
        list
    }

    /// A claim waits no more, and needs no numbers.
    fn stop_hoping(&mut self, engine: usize, claim: Stamp, demand: &Demand) {
        if self.engines[engine].counts {
            for pool in demand.pools() {
                self.engines[engine].names.cancel(pool, claim, &mut self.effects);
            }
            self.take_names(engine);
        }
    }

    pub(super) fn step(&mut self, number: usize, input: Move) {
        let running = &mut self.engines[number];
        let from = match &input {
            Move::Deliver { from, .. } => Some(*from),
            Move::Claim { .. }
            | Move::Release { .. }
            | Move::Withdraw { .. }
            | Move::Add { .. }
            | Move::Fire { .. } => None,
        };
        let result = running.engine.step(&mut self.clock, input, &mut self.outcomes);
        if let Err(refused) = result {
            if let Some(from) = from {
                self.refuse_message(from, &refused);
            } else {
                error!(%refused, "a protocol refused its own site");
            }
        }
        self.watch_soundness(number);
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for outcome in outcomes.drain(..) {
            self.carry_out(number, outcome);
        }
        self.outcomes = outcomes;
    }

    pub(super) fn carry_out(&mut self, engine: usize, outcome: Outcome) {
        match outcome {
            Outcome::Send { to, clock, message } if to == self.me => {
                let input = Move::Deliver { from: to, clock, message };
                self.todo.push_back(Todo::Move(engine, input));
            }
            Outcome::Send { to, .. }
                if engine::heals(self.engines[engine].kind) && !self.links.is_up(to) =>
            {
                // A message that would arrive late is worse than one that is lost.
            }
            Outcome::Send { to, clock, message } => {
                self.metrics.messages_sent += 1;
                let protocol = self.engines[engine].group.id();
                let epoch = self.epoch();
                self.send(to, &Payload::Protocol { epoch, protocol, clock, message });
            }
            Outcome::Grant { claim, units } => {
                self.todo.push_back(Todo::Granted(engine, claim, units));
            }
            Outcome::Reject { claim, reason } => {
                self.todo.push_back(Todo::Rejected(engine, claim, reason));
            }
            Outcome::Revoke { claim } => {
                self.todo.push_back(Todo::Revoked(engine, claim));
            }
            Outcome::Arm { timer, min, max } => {
                let moment = self.now.after(self.random.between(min, max));
                let key = self.start_timer(moment, Timer::Protocol(engine, timer.clone()));
                if let Some(old) = self.protocol_timers.insert((engine, timer), key) {
                    self.timers.remove(&old);
                }
            }
            Outcome::Disarm { timer } => {
                if let Some(old) = self.protocol_timers.remove(&(engine, timer)) {
                    self.timers.remove(&old);
                }
            }
        }
    }

    /// The place of the protocol with this number.
    pub(super) fn engine_of(&self, protocol: ProtocolId) -> Option<usize> {
        self.engines.iter().position(|it| it.group.id() == protocol)
    }

    pub(super) fn send(&mut self, to: SiteId, payload: &Payload) {
        if let Err(why) = self.links.send(to, payload) {
            self.on_peer_reset(to, why);
        }
    }

    pub(super) fn take_names(&mut self, engine: usize) {
        for effect in self.effects.drain(..) {
            self.todo.push_back(Todo::Names(engine, effect));
        }
    }

    pub(super) fn on_names_effect(&mut self, engine: usize, effect: names::Effect) {
        match effect {
            names::Effect::Send { to, message } => {
                self.metrics.messages_sent += 1;
                let message = postcard::to_stdvec(&message).unwrap_or_default();
                let (protocol, clock) = (self.engines[engine].group.id(), self.clock);
                let epoch = self.epoch();
                self.send(to, &Payload::Names { epoch, protocol, clock, message });
            }
            names::Effect::Named { claim, pool, numbers } => {
                let Some(&key) = self.by_claim.get(&(engine, claim)) else {
                    // Ended meanwhile, before it could be taken off the list.
                    self.engines[engine].names.free(pool, &numbers, &mut self.effects);
                    return self.take_names(engine);
                };
                if let Some(part) = self.part_of(key, claim) {
                    part.numbers.insert(pool, numbers);
                }
                self.advance(key, claim);
            }
        }
    }

    pub(super) fn part_of(&mut self, key: u64, claim: Stamp) -> Option<&mut Part> {
        let parts = &mut self.requests.get_mut(&key)?.parts;
        parts.iter_mut().find(|part| part.claim == Some(claim))
    }

    pub(super) fn granted(&mut self, engine: usize, claim: Stamp, units: &[Unit]) {
        if self.is_semaphore(engine) {
            return self.taken(engine, claim);
        }
        let Some(&key) = self.by_claim.get(&(engine, claim)) else {
            // Ended in the same moment.
            let release = Move::Release { claim, part: None };
            return self.todo.push_back(Todo::Move(engine, release));
        };
        let Some(part) = self.part_of(key, claim) else { return };
        part.granted = true;
        part.counted = units.is_empty();
        for unit in units {
            part.numbers.entry(unit.pool).or_default().push(unit.number);
        }
        let demand = part.demand.clone();
        self.leave_queue(key, claim, engine, &demand);
        if units.is_empty() {
            for (pool, units) in demand.parts() {
                self.engines[engine].names.need(pool, claim, units.0, &mut self.effects);
            }
            self.take_names(engine);
        } else {
            self.advance(key, claim);
        }
    }

    /// Goes on with the next part once this one is granted and has its numbers.
    pub(super) fn advance(&mut self, key: u64, claim: Stamp) {
        let Some(part) = self.part_of(key, claim) else { return };
        if part.numbers.len() < part.demand.parts().len() {
            return;
        }
        let Some(request) = self.requests.get_mut(&key) else { return };
        request.part += 1;
        if request.part < request.parts.len() {
            self.todo.push_back(Todo::Claim(key));
        } else {
            self.grant(key);
        }
    }

    pub(super) fn rejected(&mut self, engine: usize, claim: Stamp, reason: &Rejection) {
        if self.is_semaphore(engine) {
            return self.not_taken(engine, claim, reason);
        }
        if let Some(&key) = self.by_claim.get(&(engine, claim)) {
            // The protocol has forgotten the claim already.
            if let Some(part) = self.part_of(key, claim) {
                let demand = part.demand.clone();
                part.claim = None;
                self.leave_queue(key, claim, engine, &demand);
                self.stop_hoping(engine, claim, &demand);
            }
            self.by_claim.remove(&(engine, claim));
            self.refuse(key, Code::Infeasible, reason.to_string());
        }
    }

    /// The protocol has taken back what a claim held: its site is cut off from most others, who may
    /// be given the units soon.
    fn revoked(&mut self, engine: usize, claim: Stamp) {
        if let Some(key) = self.by_claim.remove(&(engine, claim)) {
            if let Some(part) = self.part_of(key, claim) {
                part.claim = None;
            }
            let held = self.requests.get(&key).is_some_and(|it| it.state == State::Granted);
            let cause = "taken back: this site cannot reach most of the others";
            if held {
                self.end(key, State::Expired, cause);
            } else {
                self.refuse(key, Code::Unreachable, cause);
            }
        }
    }

    /// Takes back one part of a demand: withdrawn where it waits, released where it is held.
    fn undo(&mut self, part: &Part) {
        let Some(claim) = part.claim else { return };
        let engine = part.engine;
        if !part.granted {
            self.stop_hoping(engine, claim, &part.demand);
            self.todo.push_back(Todo::Move(engine, Move::Withdraw { claim }));
            return;
        }
        // Numbers first: whoever is granted because of the release finds them here.
        if part.counted {
            let names = &mut self.engines[engine].names;
            for pool in part.demand.pools() {
                match part.numbers.get(&pool) {
                    Some(numbers) => names.free(pool, numbers, &mut self.effects),
                    None => names.cancel(pool, claim, &mut self.effects),
                }
            }
            self.take_names(engine);
        }
        self.todo.push_back(Todo::Move(engine, Move::Release { claim, part: None }));
    }

    pub(super) fn leave_queue(&mut self, key: u64, claim: Stamp, engine: usize, demand: &Demand) {
        for pool in demand.pools() {
            let running = self.engines.get(engine);
            let place = running.and_then(|running| running.pools.get(pool.index()));
            if let Some(pool) = place.and_then(|&place| self.pools.get_mut(place)) {
                pool.waiting.remove(&(claim, key));
            }
        }
    }
}
