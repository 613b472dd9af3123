//! Events of the whole cluster: those of this site, and what the others report while somebody
//! listens here.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use kofm_core::SiteId;
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use super::{EVENTS, Inner, PEER_PATIENCE, Site};
use crate::api::{Answer, Call, Error, Events, Happening};
use kofm_site::core::MAX_WATCH;

/// How long a site that does not answer is left alone.
const AGAIN: Duration = Duration::from_secs(1);

/// One long poll at each other site, for all who listen here. It ends with the last of them.
#[derive(Debug)]
pub(crate) struct Followed {
    events: broadcast::Sender<Arc<Happening>>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Where events come from; keeps the others reporting while it lives.
pub(crate) struct Listening {
    pub(crate) here: broadcast::Receiver<Arc<Happening>>,
    pub(crate) elsewhere: broadcast::Receiver<Arc<Happening>>,
    pub(crate) followed: Arc<Followed>,
    /// The number of the next event of each site that answers.
    pub(crate) next: BTreeMap<String, u64>,
}

impl Site {
    /// Events of all sites from now on.
    pub(crate) async fn all_events(&self) -> Result<Listening, Error> {
        let shared = || self.0.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let own = self.events();
        // Where the sites are now: what happens there from here on is not missed.
        let call = Call::Events { from: None, wait: Duration::ZERO };
        let mut answers = self.ask_all(&call).await;
        answers.push((self.0.config.me(), self.call(call).await?));
        let next = |(peer, answer)| {
            if let Answer::Events(events) = answer { Some((peer, events.next)) } else { None }
        };
        let now: BTreeMap<SiteId, u64> = answers.into_iter().filter_map(next).collect();
        let mut shared = shared();
        let followed = shared.upgrade().unwrap_or_else(|| {
            let events = broadcast::Sender::new(EVENTS);
            let follow = |peer| {
                let (site, events) = (Arc::downgrade(&self.0), events.clone());
                let from = now.get(&peer).copied();
                tokio::spawn(follow(site, peer, from, events)).abort_handle()
            };
            let tasks = self.peers().map(follow).collect();
            Arc::new(Followed { events, tasks })
        });
        *shared = Arc::downgrade(&followed);
        drop(shared);
        let next = now.into_iter().map(|(site, next)| (self.name_of(site), next)).collect();
        Ok(Listening { here: own, elsewhere: followed.events.subscribe(), followed, next })
    }

    /// What happened at a site from an event on; none if the site does not answer.
    pub(crate) async fn events_from(&self, name: &str, from: Option<u64>) -> Option<Events> {
        let call = Call::Events { from, wait: Duration::ZERO };
        let answer = if name == self.0.config.site {
            self.call(call).await
        } else {
            let peer = self.peers().find(|peer| self.name_of(*peer) == name)?;
            self.ask(peer, call, PEER_PATIENCE).await
        };
        if let Ok(Answer::Events(events)) = answer { Some(events) } else { None }
    }
}

async fn follow(
    site: Weak<Inner>,
    peer: SiteId,
    mut from: Option<u64>,
    events: broadcast::Sender<Arc<Happening>>,
) {
    while let Some(site) = site.upgrade().map(Site) {
        let call = Call::Events { from, wait: MAX_WATCH };
        if let Ok(Answer::Events(Events { next, list, .. })) =
            site.ask(peer, call, MAX_WATCH + PEER_PATIENCE).await
        {
            from = Some(next);
            for happening in list {
                // The last listener may just have left.
                events.send(Arc::new(happening)).ok();
            }
        } else {
            drop(site);
            tokio::time::sleep(AGAIN).await;
        }
    }
}
