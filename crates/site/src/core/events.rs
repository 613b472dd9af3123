//! What happened, and who wants to hear of it.

use std::sync::Arc;
use std::time::Duration;

use super::{Core, MAX_HISTORY, MAX_LISTENERS, MAX_WATCH, Responder, Timer, millis};
use crate::api::{self, Answer, Code, Events, LedgerAsk, Submit};
use crate::boottime::Moment;

/// Events in one answer; the next question fetches more.
const MAX_EVENTS: usize = 500;

/// Refusals that are written down each second: more say nothing new.
const MAX_REFUSALS: u32 = 10;
/// The longest name of a pool.
const MAX_NAME: usize = 64;

/// Somebody who waits for the next event.
pub(super) struct Listener {
    reply: Responder,
    timer: (Moment, u64),
}

impl Core {
    pub(super) fn record(&mut self, mut happening: api::Happening) {
        happening.seq = self.first_event + self.happened;
        // Nobody may be listening; who listens too slowly is told so.
        if self.events.receiver_count() > 0 {
            self.events.send(Arc::new(happening.clone())).ok();
        }
        if let Some(kept) = &self.kept {
            kept.note(&happening);
        }
        self.history.push_back(happening);
        self.happened += 1;
        if self.history.len() > MAX_HISTORY {
            self.history.pop_front();
        }
        for listener in std::mem::take(&mut self.listeners) {
            self.timers.remove(&listener.timer);
            let answer = self.events_from(self.next_event() - 1);
            self.respond(listener.reply, Ok(answer));
        }
    }

    /// Asks the history; its answer comes as a command.
    pub(super) fn ask_history(&mut self, ask: LedgerAsk, reply: Responder) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let Some(kept) = &self.kept else {
            let text = "this site keeps no history";
            return self.respond(reply, Err(api::Error::new(Code::Unsupported, text)));
        };
        if kept.ask(ticket, ask) {
            self.historians.insert(ticket, reply);
        } else {
            let text = "too many questions about the history at once; try again";
            self.respond(reply, Err(api::Error::new(Code::TooMany, text)));
        }
    }

    /// Writes down a request that was refused, unless that happens all the time.
    pub(super) fn note_refusal(&mut self, spec: &Submit, error: &api::Error) {
        let known = matches!(error.error, Code::Infeasible | Code::UnknownPool | Code::InUse);
        if !known || spec.want.keys().any(|pool| pool.len() > MAX_NAME) {
            return;
        }
        let now = self.now;
        if now.since(self.refusals.0) > Duration::from_secs(1) {
            self.refusals = (now, 0);
        }
        self.refusals.1 += 1;
        if self.refusals.1 > MAX_REFUSALS {
            return;
        }
        let happening = self.happening("refused", None);
        self.record(api::Happening {
            request: spec.id.as_deref().map(Into::into),
            owner: spec.owner.as_deref().map(Into::into),
            reason: spec.reason.as_deref().map(Into::into),
            principal: spec.principal.as_deref().map(Into::into),
            want: Arc::new(spec.want.clone()),
            cause: Some(error.message.clone().into()),
            ..happening
        });
    }

    /// The number of the next event.
    const fn next_event(&self) -> u64 {
        self.first_event + self.happened
    }

    /// What happened from an event on, or the next thing that happens.
    pub(super) fn listen(&mut self, from: Option<u64>, wait: Duration, reply: Responder) {
        let from = from.unwrap_or_else(|| self.next_event());
        let news = from != self.next_event();
        if news || wait.is_zero() || self.listeners.len() >= MAX_LISTENERS {
            let answer = self.events_from(from);
            return self.respond(reply, Ok(answer));
        }
        let moment = self.now.after(wait.min(MAX_WATCH));
        let timer = self.start_timer(moment, Timer::Listen);
        self.listeners.push(Listener { reply, timer });
    }

    /// Nothing happened for somebody in time.
    pub(super) fn stop_listening(&mut self, number: u64) {
        if let Some(place) = self.listeners.iter().position(|it| it.timer.1 == number) {
            let listener = self.listeners.swap_remove(place);
            let answer = self.events_from(self.next_event());
            self.respond(listener.reply, Ok(answer));
        }
    }

    fn events_from(&self, from: u64) -> Answer {
        let end = self.next_event();
        let oldest = end - self.history.len() as u64;
        // A larger number is of a site of this name that has lost its disk.
        let gap = from < oldest || from > end;
        let first = if gap { oldest } else { from };
        let skipped = usize::try_from(first - oldest).unwrap_or(usize::MAX);
        let list = self.history.iter().skip(skipped).take(MAX_EVENTS);
        let list: Vec<_> = list.cloned().collect();
        Answer::Events(Events { next: first + list.len() as u64, end, gap, list })
    }

    pub(super) fn happening(&self, event: &'static str, key: Option<u64>) -> api::Happening {
        let request = key.and_then(|key| self.requests.get(&key));
        let lease = request.and_then(|request| request.lease.as_ref());
        api::Happening {
            at_ms: self.wall_ms,
            seq: 0,
            event: event.into(),
            site: Arc::clone(&self.site),
            request: request.map(|request| Arc::clone(&request.id)),
            owner: request.and_then(|request| request.owner.clone()),
            reason: request.and_then(|request| request.reason.clone()),
            want: request.map(|request| Arc::clone(&request.asked)).unwrap_or_default(),
            units: Arc::clone(lease.map_or(&self.no_units, |lease| &lease.names)),
            lease: lease.map(|lease| Arc::clone(&lease.name)),
            fence: lease.map(|lease| lease.fence),
            waited_ms: request.map(|request| millis(request.waited)),
            held_ms: None,
            cause: None,
            principal: request.and_then(|request| request.principal.clone()),
        }
    }
}
