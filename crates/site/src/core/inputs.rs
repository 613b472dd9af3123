//! What comes in: from peers, from clients of this process, from other sites.

use std::sync::Arc;

use kofm_core::{Clock, SiteId};
use tracing::{debug, warn};

use super::plans::Edit;
use super::{Asker, Core, MAX_ASKS, Responder, Todo};
use crate::api::{self, Answer, Call, Code, Hold};
use crate::bounds;
use crate::engine::{Move, Refused};
use crate::input::{Command, PoolState};
use crate::links::{Event, Payload};
use crate::session::Broken;

impl Core {
    pub(super) fn on_link(&mut self, event: Event) {
        match event {
            Event::Messages { from, list } => {
                for payload in list {
                    self.on_payload(from, payload);
                    self.settle();
                }
            }
            Event::Up(peer) => {
                debug!(peer = peer.0, "up");
                self.found(peer);
                self.remind(peer);
            }
            Event::Down(peer) => {
                debug!(peer = peer.0, "down");
                self.miss(peer);
            }
            Event::PeerReset { peer, why } => self.on_peer_reset(peer, why),
        }
    }

    /// A peer has lost its memory, or this site could not keep what it owed to it. What the
    /// protocols know of each other does not fit any more: the link stays down until the epoch has
    /// changed, and whoever looks around notices.
    pub(super) fn on_peer_reset(&mut self, peer: SiteId, why: Broken) {
        let text = format!("site {}: {why}", self.site_name(peer));
        warn!("{text}");
        self.metrics.peer_resets += 1;
        let happening = self.happening("peer-reset", None);
        self.record(api::Happening { cause: Some(text.into()), ..happening });
    }

    pub(super) fn on_payload(&mut self, from: SiteId, payload: Payload) {
        match payload {
            Payload::Protocol { epoch, protocol, clock, message } => {
                self.metrics.messages_received += 1;
                if !self.admit(epoch) {
                    self.metrics.stale_messages += 1;
                } else if let Err(why) = bounds::clock(clock, self.clock) {
                    self.end_session(from, why);
                } else if let Some(engine) = self.engine_of(protocol) {
                    let input = Move::Deliver { from, clock, message };
                    self.todo.push_back(Todo::Move(engine, input));
                } else {
                    self.end_session(from, "a message of a protocol that is not in the table");
                }
            }
            Payload::Names { epoch, protocol, clock, message } => {
                self.metrics.messages_received += 1;
                if !self.admit(epoch) {
                    self.metrics.stale_messages += 1;
                } else if let Some(engine) = self.engine_of(protocol) {
                    self.todo.push_back(Todo::Numbers { from, engine, clock, message });
                } else {
                    self.end_session(from, "a message of a protocol that is not in the table");
                }
            }
            Payload::Accounts { epoch, protocol, message } => {
                if !self.admit(epoch) {
                    self.metrics.stale_messages += 1;
                } else if let Some(engine) =
                    self.engine_of(protocol).filter(|&engine| self.is_semaphore(engine))
                {
                    self.todo.push_back(Todo::Accounts { from, engine, message });
                } else {
                    self.end_session(from, "a message about semaphores of a protocol without any");
                }
            }
            Payload::Change { message } => self.on_change_message(from, &message),
            Payload::Waits { message } => self.on_waits(from, &message),
            Payload::Rota { since, clock, message } => self.on_rota(from, since, clock, &message),
            // The links take note of it.
            Payload::Twin { .. } => {}
            Payload::Ask { number, body } => match serde_json::from_slice(&body) {
                Ok(call) => self.on_call(call, Responder::Peer(from, number)),
                Err(_) => self.end_session(from, "a question that cannot be decoded"),
            },
            Payload::Answer { number, body } => {
                if let Some(asker) = self.asks.remove(&number) {
                    let answer = serde_json::from_slice(&body).unwrap_or_else(|_| {
                        Err(api::Error::new(
                            Code::Unreachable,
                            "the answer of the site cannot be read",
                        ))
                    });
                    match asker {
                        Asker::Caller(reply) => drop(reply.send(answer)),
                        Asker::Try(key, site) => self.on_try_answer(key, site, answer),
                    }
                }
            }
        }
    }

    pub(super) fn on_names(&mut self, from: SiteId, engine: usize, clock: Clock, message: &[u8]) {
        let Some(running) = self.engines.get_mut(engine) else {
            return self.end_session(from, "a message of a protocol that is not in the table");
        };
        let Ok(message) = postcard::from_bytes(message) else {
            return self.end_session(from, "a message about units that cannot be decoded");
        };
        if let Err(why) = bounds::clock(clock, self.clock) {
            return self.end_session(from, why);
        }
        if running.names.receive(from, message, &mut self.effects).is_none() {
            return self.fault(from, "units that do not exist or are somewhere else");
        }
        self.clock.merge(clock);
        self.take_names(engine);
    }

    pub(super) fn fault(&mut self, from: SiteId, what: &str) {
        self.metrics.peer_faults += 1;
        if self.faults.insert(from) {
            warn!(peer = from.0, what, "refused a message; said once per peer");
        }
    }

    /// A message that cannot be understood ends its session: what its sender believes to have said
    /// and what this site has heard differ from now on. The next epoch begins another session.
    pub(super) fn end_session(&mut self, from: SiteId, what: &'static str) {
        self.fault(from, what);
        let why = Broken::Nonsense(what);
        self.links.end(from, why);
        self.on_peer_reset(from, why);
        self.miss(from);
    }

    /// A protocol refused a message, and is as it was.
    pub(super) fn refuse_message(&mut self, from: SiteId, refused: &Refused) {
        match refused {
            Refused::Malformed => {
                self.end_session(from, "a message of a protocol that cannot be decoded");
            }
            Refused::Fault(fault) => self.fault(from, &fault.to_string()),
        }
    }

    pub(super) fn on_command(&mut self, command: Command) {
        match command {
            Command::Call { call, reply } => self.on_call(call, Responder::Local(reply)),
            Command::Calls { list, outbox } => {
                for (number, call) in list {
                    self.on_call(call, Responder::Fast(number, Arc::clone(&outbox)));
                }
            }
            Command::Ask { peer, call, reply } => self.ask(peer, &call, Asker::Caller(reply)),
            Command::Scramble { pool, reply } => {
                let done = self.scramble(&pool);
                reply.send(done).ok();
            }
            Command::Metrics(reply) => {
                reply.send(self.metrics_text()).ok();
            }
            Command::Pools(reply) => {
                let pools = self.pools.iter().filter(|pool| !pool.gone);
                let list = pools.map(|pool| PoolState {
                    name: pool.name.to_string(),
                    config: pool.config.clone(),
                    withheld: pool.withheld.clone(),
                    out: pool.out.clone(),
                });
                reply.send(list.collect()).ok();
            }
            Command::Told { ticket, answer } => {
                if let Some(reply) = self.historians.remove(&ticket) {
                    self.respond(reply, Ok(answer));
                }
            }
            Command::Drain => self.drain(),
            Command::Farewell(reply) => {
                self.farewell();
                reply.send(()).ok();
            }
        }
        self.settle();
    }

    pub(super) fn on_call(&mut self, call: Call, reply: Responder) {
        let touches = |call: &Call| {
            matches!(
                call,
                Call::Submit { .. }
                    | Call::Cancel(_)
                    | Call::Renew(_)
                    | Call::Release(_)
                    | Call::ReleaseRequest(_)
            )
        };
        if self.is_handing_over() && touches(&call) {
            return self.respond(reply, Err(super::moves::elsewhere()));
        }
        let answer = match call {
            Call::Submit { spec, fresh, hold, patience } => {
                return self.submit(spec, fresh, hold, patience, reply);
            }
            Call::Watch { id, wait } => return self.watch(&id, wait, reply),
            Call::Take { key, name, units, wait, owner, id } => {
                self.take(key, &name, (units, id), wait, owner, reply);
                return self.settle();
            }
            Call::Add { name, units, id } if !matches!(reply, Responder::Peer(..)) => {
                self.add_units(&name, (units, id), reply);
                return self.settle();
            }
            Call::Add { .. } => {
                let text = "a V is made at the site that its client asks";
                Err(api::Error::new(Code::Unsupported, text))
            }
            Call::Events { from, wait } => return self.listen(from, wait, reply),
            Call::Reserve(id) => Ok(Answer::Reserved(Some(self.reserve(id)))),
            Call::Unreserve(id) => {
                self.reserved.remove(&id);
                Ok(Answer::Done)
            }
            Call::Knows { id, taken } => Ok(Answer::Reserved(self.knows(&id, taken))),
            Call::Cancel(id) => self.cancel(&id),
            Call::Abandon(number) => {
                self.abandon(number, &reply);
                Ok(Answer::Done)
            }
            Call::Renew(id) => {
                self.renew_or_adopt(id, reply);
                return self.settle();
            }
            Call::Release(id) => self.release(&id),
            Call::ReleaseRequest(id) => self.release_request(&id),
            Call::Leases { after } => Ok(Answer::Leases(self.leases(after.as_ref()))),
            Call::Queue { after } => Ok(Answer::Queue(self.queue(after.map(api::stamp)))),
            Call::Usage => Ok(Answer::Usage(self.usage())),
            Call::Ahead { want, claim } => Ok(self.ahead(&want, claim)),
            Call::InUse { want, claim } => {
                Ok(Answer::InUse { epoch: self.installed, pools: self.in_use(&want, claim, None) })
            }
            Call::Ledger(ask) => return self.ask_history(ask, reply),
            Call::GiveUp(key) => {
                self.give_up(key);
                Ok(Answer::Done)
            }
            Call::Semaphores => Ok(Answer::Semaphores(self.semaphore_shares())),
            Call::Rota => Ok(Answer::Rota(self.rota_view())),
            Call::Gangs => Ok(Answer::Gangs(self.plan.gangs.clone())),
            Call::SetGang { name, members } => {
                return self.set_gang(name, members, reply);
            }
            Call::Join(call) if self.rota.as_ref().is_some_and(|it| it.knows(&call.name)) => {
                return self.join_rota(&call, reply);
            }
            Call::Join(call) => return self.join(&call, reply),
            Call::Count(name) => Ok(Answer::Counted(self.counted(&name))),
            Call::IsIdle(name) => Ok(Answer::Known(self.is_idle(&name))),
            Call::PlanSemaphore { name, semaphore } => {
                return self.edit(Edit::Semaphore(name, semaphore), reply);
            }
            Call::Plan { name, pool } => return self.edit(Edit::Pool(name, pool), reply),
            Call::Quarantine { pool, unit, reason } => {
                return self.edit(Edit::Quarantine(pool, unit, reason), reply);
            }
            Call::Principal { name, change } => {
                return self.edit(Edit::Principal(name, change), reply);
            }
            Call::Holder(id) => self.holder(&id),
            Call::Member { name, change } => {
                return self.edit(Edit::Member(name, change), reply);
            }
            Call::Restore(text) => return self.edit(Edit::Restore(text), reply),
        };
        self.respond(reply, answer);
        self.settle();
    }

    /// Whether nobody here holds or waits for a pool.
    fn is_idle(&self, name: &str) -> bool {
        self.pool_by_name.get(name).is_none_or(|&place| {
            // What takes units out of it goes with it.
            let wants = |request: &super::Request| {
                request.hold != Hold::Drain && request.want.iter().any(|it| it.0 == place)
            };
            let open =
                |request: &super::Request| !request.state.is_over() || request.lease.is_some();
            !self.requests.values().any(|it| open(it) && wants(it))
        })
    }

    pub(super) fn respond(&self, reply: Responder, answer: Result<Answer, api::Error>) {
        match reply {
            // A client that is gone needs no answer.
            Responder::Local(reply) => {
                reply.send(answer).ok();
            }
            Responder::Fast(number, outbox) => outbox.put(number, &crate::fast::answer(answer)),
            Responder::Peer(peer, number) => {
                let body = serde_json::to_vec(&answer).unwrap_or_default();
                self.links.send(peer, &Payload::Answer { number, body }).ok();
            }
        }
    }

    pub(super) fn ask(&mut self, peer: SiteId, call: &Call, asker: Asker) {
        if self.asks.len() >= MAX_ASKS {
            // Callers may have given up.
            let tries = &self.tries;
            self.asks.retain(|_, asker| match asker {
                Asker::Caller(reply) => !reply.is_closed(),
                Asker::Try(key, _) => tries.contains_key(key),
            });
        }
        let body = serde_json::to_vec(call).unwrap_or_default();
        let number = self.next_ask;
        let sent = self.asks.len() < MAX_ASKS
            && self.links.is_up(peer)
            && self.links.send(peer, &Payload::Ask { number, body }).is_ok();
        if sent {
            self.next_ask += 1;
            self.asks.insert(number, asker);
        } else {
            let text = format!("site {} does not answer now; try again", self.site_name(peer));
            let answer = Err(api::Error::new(Code::Unreachable, text));
            match asker {
                Asker::Caller(reply) => drop(reply.send(answer)),
                Asker::Try(key, site) => self.on_try_answer(key, site, answer),
            }
        }
    }
}
