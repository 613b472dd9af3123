//! Calls through the site's handle: to its own core, to other sites, to whoever knows the answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kofm_core::SiteId;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::input::Command;
use super::{PEER_PATIENCE, Site, expect_request, stopped};
use crate::api::{self, Answer, Call, Code};
use crate::fast::Outbox;

impl Site {
    pub(super) fn command(&self, command: Command) {
        self.0.desk.put(command);
    }

    pub(super) async fn call(&self, call: Call) -> Result<Answer, api::Error> {
        let (reply, answer) = oneshot::channel();
        self.command(Command::Call { call, reply });
        answer.await.map_err(|_| stopped())?
    }

    /// Whether the core can answer it alone.
    pub(crate) fn is_local(&self, call: &Call) -> bool {
        let home = match call {
            Call::Submit { spec, .. } if spec.id.is_none() => return true,
            Call::Take { .. } | Call::GiveUp(_) | Call::Add { .. } | Call::Abandon(_) => {
                return true;
            }
            Call::Renew(id) | Call::Release(id) => home_of(id),
            Call::Watch { id, .. } | Call::Cancel(id) if id.starts_with('R') => home_of(id),
            Call::Submit { .. }
            | Call::Reserve(_)
            | Call::Unreserve(_)
            | Call::Knows { .. }
            | Call::Watch { .. }
            | Call::Cancel(_)
            | Call::ReleaseRequest(_)
            | Call::Leases
            | Call::Queue
            | Call::Usage
            | Call::Events { .. }
            | Call::Ahead { .. }
            | Call::Semaphores
            | Call::Gangs
            | Call::Rota
            | Call::SetGang { .. }
            | Call::Join(_)
            | Call::History { .. }
            | Call::IsIdle(_)
            | Call::Count(_)
            | Call::Plan { .. }
            | Call::Quarantine { .. }
            | Call::PlanSemaphore { .. }
            | Call::Principal { .. }
            | Call::Holder(_)
            | Call::Leave(_) => None,
        };
        home == Some(self.0.config.me()) || self.peers().next().is_none()
    }

    /// Calls that the core can answer alone; the answers go to the outbox.
    pub(crate) fn call_many(&self, list: Vec<(u64, Call)>, outbox: &Arc<Outbox>) {
        self.command(Command::Calls { list, outbox: Arc::clone(outbox) });
    }

    /// A call that another site may have to answer.
    pub(crate) async fn call_anywhere(&self, call: Call) -> Result<Answer, api::Error> {
        match call {
            Call::Submit { spec, fresh, .. } => {
                self.submit_as(spec, fresh).await.map(|it| Answer::Request(Box::new(it)))
            }
            Call::Watch { id, wait } => {
                self.watch(&id, wait).await.map(|it| Answer::Request(Box::new(it)))
            }
            Call::Cancel(id) => self.cancel(&id).await.map(|it| Answer::Request(Box::new(it))),
            Call::Renew(id) => self.renew(&id).await.map(|it| Answer::Lease(Box::new(it))),
            Call::Release(id) => self.release(&id).await.map(|()| Answer::Done),
            call @ (Call::Count(_)
            | Call::Reserve(_)
            | Call::Unreserve(_)
            | Call::Knows { .. }
            | Call::Abandon(_)
            | Call::ReleaseRequest(_)
            | Call::Leases
            | Call::Queue
            | Call::Usage
            | Call::Events { .. }
            | Call::Ahead { .. }
            | Call::Take { .. }
            | Call::GiveUp(_)
            | Call::Add { .. }
            | Call::Semaphores
            | Call::Gangs
            | Call::Rota
            | Call::SetGang { .. }
            | Call::Join(_)
            | Call::History { .. }
            | Call::IsIdle(_)
            | Call::Plan { .. }
            | Call::Quarantine { .. }
            | Call::PlanSemaphore { .. }
            | Call::Principal { .. }
            | Call::Holder(_)
            | Call::Leave(_)) => self.call(call).await,
        }
    }

    pub(super) async fn request(&self, call: Call) -> Result<api::Request, api::Error> {
        expect_request(self.call(call).await?)
    }

    pub(super) async fn ask(
        &self,
        peer: SiteId,
        call: Call,
        wait: Duration,
    ) -> Result<Answer, api::Error> {
        let (reply, answer) = oneshot::channel();
        self.command(Command::Ask { peer, call, reply });
        let Ok(Ok(answer)) = timeout(wait, answer).await else {
            let text = format!("site {} does not answer; try again", self.name_of(peer));
            return Err(api::Error::new(Code::Unreachable, text));
        };
        answer
    }

    /// Asks all other sites at once; those that do not answer are left out.
    pub(super) async fn ask_all(&self, call: &Call) -> Vec<(SiteId, Answer)> {
        let peers = self.peers().filter(|&peer| self.0.mesh.is_up(peer));
        let tasks: Vec<_> = peers
            .map(|peer| {
                let (site, call) = (self.clone(), call.clone());
                (peer, tokio::spawn(async move { site.ask(peer, call, PEER_PATIENCE).await }))
            })
            .collect();
        let mut list = Vec::new();
        for (peer, task) in tasks {
            if let Ok(Ok(answer)) = task.await {
                list.push((peer, answer));
            }
        }
        list
    }

    pub(super) async fn gather<T>(
        &self,
        call: Call,
        part: impl Fn(Answer) -> Vec<T>,
    ) -> Result<(Vec<T>, Vec<String>), api::Error> {
        let mut list = part(self.call(call.clone()).await?);
        let answers = self.ask_all(&call).await;
        let missing = self.peers().filter(|peer| answers.iter().all(|it| it.0 != *peer));
        let missing = missing.map(|peer| self.name_of(peer)).collect();
        for (_, answer) in answers {
            list.extend(part(answer));
        }
        Ok((list, missing))
    }

    /// Calls the site that a lease's id names.
    pub(super) async fn at_home(&self, id: &str, call: Call) -> Result<Answer, api::Error> {
        match home_of(id).filter(|&home| home != self.0.config.me()) {
            Some(home) if self.peers().any(|peer| peer == home) => {
                self.ask(home, call, PEER_PATIENCE).await
            }
            Some(_) | None => self.call(call).await,
        }
    }

    /// Calls the site that knows a request: this one, the one that its id names, or any.
    pub(super) async fn anywhere(
        &self,
        id: &str,
        call: Call,
        wait: Duration,
    ) -> Result<Answer, api::Error> {
        let unknown = match self.call(call.clone()).await {
            Err(error) if error.error == Code::UnknownRequest => error,
            answer => return answer,
        };
        if let Some(home) = home_of(id).filter(|home| self.peers().any(|peer| peer == *home)) {
            return self.ask(home, call, wait).await;
        }
        match self.first_of(id, None).await? {
            Some(peer) => self.ask(peer, call, wait).await,
            None => Err(unknown),
        }
    }

    /// The site that has a request, or took its id first. Fails if no site says so, and one that
    /// may have the request does not answer.
    pub(super) async fn first_of(
        &self,
        id: &str,
        taken: Option<(u64, SiteId)>,
    ) -> Result<Option<SiteId>, api::Error> {
        let answers = self.ask_all(&Call::Knows { id: id.to_owned(), taken }).await;
        let known = answers.iter().filter_map(|(peer, answer)| {
            let Answer::Reserved(Some(time)) = answer else { return None };
            Some((*time, *peer))
        });
        if let Some((_, first)) = known.min() {
            return Ok(Some(first));
        }
        let answered: BTreeSet<SiteId> = answers.into_iter().map(|it| it.0).collect();
        let silent = self.peers().find(|peer| self.may_know(*peer) && !answered.contains(peer));
        match silent {
            Some(peer) => {
                let name = self.name_of(peer);
                let text = format!(
                    "site {name} does not answer, and may have request `{id}`; try again, or ask \
                     there"
                );
                Err(api::Error::new(Code::Unreachable, text))
            }
            None => Ok(None),
        }
    }

    /// Whether another site may have requests whose leases are good: it is in the epoch, or its
    /// quarantine is not over, or this site knows of no epoch.
    fn may_know(&self, peer: SiteId) -> bool {
        let view = self.0.view.borrow();
        let Some(record) = view.record.as_ref().filter(|record| record.epoch > 0) else {
            return true;
        };
        let departed = record.quarantine.values().any(|it| it.sites.contains_key(&peer));
        record.members.contains_key(&peer) || departed
    }

    /// All other sites: those of the epoch's plan, or of the configuration before there is one.
    pub(super) fn peers(&self) -> impl Iterator<Item = SiteId> + use<> {
        let me = self.0.config.me();
        let planned = self.0.view.borrow().plan().map(|plan| plan.sites.keys().copied().collect());
        let planned: Vec<SiteId> = planned.unwrap_or_default();
        let config = &self.0.config;
        let list: Vec<SiteId> = if planned.is_empty() {
            config.members.keys().filter_map(|name| config.number_of(name)).collect()
        } else {
            planned
        };
        list.into_iter().filter(move |&it| it != me)
    }

    pub(super) fn name_of(&self, site: SiteId) -> String {
        let view = self.0.view.borrow();
        let planned = view.plan().and_then(|plan| Some(plan.sites.get(&site)?.0.clone()));
        let config = &self.0.config;
        let names = || config.members.keys().find(|name| config.number_of(name) == Some(site));
        planned.or_else(|| names().cloned()).unwrap_or_default()
    }

    /// Makes a call whose answer nobody waits for.
    pub(super) fn tell(&self, call: Call) {
        let (reply, _) = oneshot::channel();
        self.command(Command::Call { call, reply });
    }
}

/// Whether it is the id of a lease, which no client can guess, or of a request that a site made.
pub(crate) fn is_given_id(id: &str) -> bool {
    home_of(id).is_some()
}

/// The site whose id this is, if it is one that a site has made.
pub(super) fn home_of(id: &str) -> Option<SiteId> {
    let (home, _) = id.strip_prefix(['L', 'R'])?.split_once('-')?;
    home.parse().ok().map(SiteId)
}
