//! Events of the whole cluster: those of this site, and what the others report while somebody
//! listens here.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use kofm_core::SiteId;
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use super::{EVENTS, Inner, PEER_PATIENCE, Site};
use crate::api::{Answer, Call, Happening};
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
}

impl Site {
    /// Events of all sites from now on.
    pub(crate) async fn all_events(&self) -> Listening {
        let shared = || self.0.followed.lock().unwrap_or_else(PoisonError::into_inner);
        // Where the others are now: what happens there from here on is not missed.
        let here: BTreeMap<SiteId, u64> = if shared().strong_count() == 0 {
            let answers = self.ask_all(&Call::Events { after: None, wait: Duration::ZERO }).await;
            let next = |(peer, answer)| {
                if let Answer::Events { next, .. } = answer { Some((peer, next)) } else { None }
            };
            answers.into_iter().filter_map(next).collect()
        } else {
            BTreeMap::new()
        };
        let mut shared = shared();
        let followed = shared.upgrade().unwrap_or_else(|| {
            let events = broadcast::Sender::new(EVENTS);
            let follow = |peer| {
                let (site, events) = (Arc::downgrade(&self.0), events.clone());
                let after = here.get(&peer).copied();
                tokio::spawn(follow(site, peer, after, events)).abort_handle()
            };
            let tasks = self.peers().map(follow).collect();
            Arc::new(Followed { events, tasks })
        });
        *shared = Arc::downgrade(&followed);
        Listening { here: self.events(), elsewhere: followed.events.subscribe(), followed }
    }
}

async fn follow(
    site: Weak<Inner>,
    peer: SiteId,
    mut after: Option<u64>,
    events: broadcast::Sender<Arc<Happening>>,
) {
    while let Some(site) = site.upgrade().map(Site) {
        let call = Call::Events { after, wait: MAX_WATCH };
        if let Ok(Answer::Events { next, list }) =
            site.ask(peer, call, MAX_WATCH + PEER_PATIENCE).await
        {
            after = Some(next);
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
