//! `/v1/events`: what happens at all sites, as server-sent events that a client can resume.
//!
//! The id of an event is a position in the events of every site: the number of the next one, as
//! `s0:17,s1:4`. A client that presents its last id, at any site, gets what happened since, as far
//! as the sites remember it; an event `gap` says where they do not.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::extract::State as Shared;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{Answer, ApiError, App, Asked};
use crate::api::{Code, Error, Happening};
use crate::gate::{Caller, Gate, Origin, Purpose};
use crate::site::{Listening, Site};
use kofm_site::config::check_name;

/// Clients that may listen to events at once.
const MAX_LISTENERS: usize = 512;
/// Events on their way to one client; later ones wait at the site.
const ON_THE_WAY: usize = 64;
/// Answers of one site with which a listener may catch up: more than what a site remembers.
const MAX_ANSWERS: usize = 16;
/// The longest id of an event that is read.
const MAX_POSITION: usize = 16_384;
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    /// The id of the last event that the client has; what happened since comes first. The header
    /// `last-event-id`, which browsers send when they connect again, goes before it.
    after: Option<String>,
}

/// The number of the next event of each site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Position(BTreeMap<String, u64>);

impl Position {
    fn read(text: &str) -> Result<Self, Error> {
        let part = |part: &str| {
            let (site, number) = part.split_once(':')?;
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            let number = number.parse().ok().filter(|_| digits)?;
            check_name(site).is_ok().then(|| (site.to_owned(), number))
        };
        let short = Some(text).filter(|it| it.len() <= MAX_POSITION);
        let list: Option<BTreeMap<String, u64>> =
            short.and_then(|it| it.split(',').map(part).collect());
        list.map(Self).ok_or_else(|| {
            let text = "after: it is not the id of an event; it must be the `id` of the last event \
                        that was read, unchanged";
            Error::new(Code::Malformed, text)
        })
    }

    fn show(&self) -> String {
        let parts = self.0.iter().map(|(site, number)| format!("{site}:{number}"));
        parts.collect::<Vec<_>>().join(",")
    }
}

/// Counts a listener while it listens.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) async fn events(
    Shared(app): Shared<App>,
    Extension(caller): Extension<Caller>,
    origin: Option<Extension<Origin>>,
    headers: HeaderMap,
    Asked(query): Asked<EventsQuery>,
) -> Answer {
    let last = headers.get("last-event-id").map(|it| it.to_str().unwrap_or_default());
    let last = last.or(query.after.as_deref()).filter(|it| !it.is_empty());
    let last = last.map(Position::read).transpose()?;
    let count = app.listeners.fetch_add(1, Ordering::Relaxed);
    let counted = Counted(app.listeners);
    if count >= MAX_LISTENERS {
        let text = format!("{MAX_LISTENERS} clients listen to events; try again later");
        return Err(ApiError(Error::new(Code::TooMany, text)));
    }
    let mut listening = app.site.all_events().await?;
    let mut position = Position(std::mem::take(&mut listening.next));
    let resumed = last.map(|it| it.0).unwrap_or_default();
    position.0.extend(resumed.clone());
    let (sender, receiver) = mpsc::channel(ON_THE_WAY);
    let origin = origin.map(|Extension(it)| it).unwrap_or_default();
    let shown = (Gate::token(&headers), origin);
    let teller = Teller { site: app.site, gate: app.gate, shown, caller, position, sender };
    tokio::spawn(async move {
        let _counted = counted;
        teller.run(resumed, listening).await;
    });
    let events = ReceiverStream::new(receiver);
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// Tells one client what happens, each event of a site once and in order.
struct Teller {
    site: Site,
    gate: Gate,
    /// The credential, which may be revoked while the client listens.
    shown: (Option<Vec<u8>>, Origin),
    caller: Caller,
    position: Position,
    sender: mpsc::Sender<Result<Event, Infallible>>,
}

/// The client is gone, or its credential was revoked.
struct Gone;

impl Teller {
    async fn run(mut self, resumed: BTreeMap<String, u64>, listening: Listening) {
        let Listening { mut here, mut elsewhere, followed, .. } = listening;
        let sender = self.sender.clone();
        let told = async {
            // A client that leaves before the first event knows where to go on.
            self.send(Event::default()).await?;
            for site in resumed.into_keys() {
                self.catch_up(&site, None).await?;
            }
            loop {
                let heard = tokio::select! {
                    heard = here.recv() => heard,
                    heard = elsewhere.recv() => heard,
                };
                match heard {
                    Ok(happening) => self.hear(&happening).await?,
                    // The next event of that site shows which ones are missing.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return Err::<(), _>(Gone),
                }
            }
        };
        tokio::select! {
            _ = told => {}
            () = sender.closed() => {}
        }
        // The other sites report as long as this value or another one of it lives.
        drop(followed);
    }

    async fn hear(&mut self, happening: &Happening) -> Result<(), Gone> {
        let next = self.position.0.get(&*happening.site).copied();
        if next.is_some_and(|next| happening.seq > next) {
            self.catch_up(&happening.site, Some(happening.seq)).await?;
        }
        self.tell(happening).await
    }

    /// Tells what happened at a site since the position. `missed`: an event that shows that
    /// something is missing; without it the site may be away, and tells later.
    async fn catch_up(&mut self, name: &str, missed: Option<u64>) -> Result<(), Gone> {
        for _ in 0..MAX_ANSWERS {
            let from = self.position.0.get(name).copied();
            let Some(told) = self.site.events_from(name, from).await else { break };
            let first = told.list.first().map_or(told.next, |it| it.seq);
            if told.gap && from != Some(first) {
                self.tell_gap(name, from.unwrap_or(0), first).await?;
            }
            self.position.0.insert(name.to_owned(), first);
            for happening in &told.list {
                self.tell(happening).await?;
            }
            if self.position.0.get(name) >= Some(&told.end) {
                return Ok(());
            }
        }
        if let Some(seq) = missed {
            let from = self.position.0.get(name).copied().unwrap_or(0);
            if from < seq {
                self.tell_gap(name, from, seq).await?;
            }
        }
        Ok(())
    }

    async fn tell_gap(&mut self, name: &str, from: u64, to: u64) -> Result<(), Gone> {
        self.position.0.insert(name.to_owned(), to);
        let message = format!(
            "events of site {name} are missing: the site has restarted, or remembers only later \
             ones; /v1/history may have them"
        );
        let data = json!({"site": name, "after": from, "next": to, "message": message});
        self.send(Event::default().event("gap").data(data.to_string())).await
    }

    /// Sends an event, unless it was sent before.
    async fn tell(&mut self, happening: &Happening) -> Result<(), Gone> {
        let next = self.position.0.entry(happening.site.to_string()).or_insert(happening.seq);
        if happening.seq < *next {
            return Ok(());
        }
        *next = happening.seq + 1;
        if self.caller.name.is_some() {
            let (token, origin) = &self.shown;
            let admitted = self.gate.admit(token.as_deref(), origin, Purpose::Normal).await;
            self.caller = admitted.map_err(|_| Gone)?;
        }
        if !self.caller.may_see(happening) {
            return Ok(());
        }
        let data = serde_json::to_string(happening).unwrap_or_default();
        self.send(Event::default().event(happening.event.clone()).data(data)).await
    }

    async fn send(&self, event: Event) -> Result<(), Gone> {
        self.sender.send(Ok(event.id(self.position.show()))).await.map_err(|_| Gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_written_and_nothing_else_is() {
        let position = Position([("s0".to_owned(), 17), ("a.b-c".to_owned(), u64::MAX)].into());
        assert_eq!(Position::read(&position.show()).unwrap(), position);
        let long = "s0:1,".repeat(MAX_POSITION);
        for wrong in ["", "7", "s0", "s0:", ":1", "s0:-1", "s0:+1", "s0:1,", "s 0:1", "é:1", &long]
        {
            assert_eq!(Position::read(wrong).unwrap_err().error, Code::Malformed, "{wrong}");
        }
    }
}
