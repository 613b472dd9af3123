//! Calls through the site's handle: to its own core, to other sites, to whoever knows the answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kofm_core::SiteId;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{PEER_PATIENCE, Site, expect_request, stopped};
use crate::api::{self, Answer, Call, Code, Holder, Submit, Want};
use crate::fast::Outbox;
use kofm_site::config::Scope;
use kofm_site::core::MAX_LISTED;
use kofm_site::ids::home_of;
use kofm_site::input::Command;
use kofm_site::paper::LeasePaper;
use kofm_site::plan::Plan;

/// How long the site that has a lease may take to answer, before the lease is also presented here.
const HOME_PATIENCE: Duration = Duration::from_millis(250);
/// How often and for how long a release is delivered to a site that does not answer.
const LATE_RELEASE: Duration = Duration::from_secs(1);
const LATE_RELEASES: u32 = 600;
/// Parts of a list that one site is asked for: more than it can have.
const MAX_PARTS: usize = 1000;
/// Releases that wait for their sites.
pub(super) const MAX_LATE: usize = 1000;

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
            Call::Submit { spec, .. } if spec.id.is_none() => {
                return matches!(self.home_of_demand(spec), Ok(None));
            }
            Call::Take { .. } | Call::GiveUp(_) | Call::Add { .. } | Call::Abandon(_) => {
                return true;
            }
            Call::Renew(id) | Call::Release(id) => self.home_of_lease(id),
            Call::Watch { id, .. } | Call::Cancel(id) if id.starts_with('R') => home_of(id),
            Call::Submit { .. }
            | Call::Reserve(_)
            | Call::Unreserve(_)
            | Call::Knows { .. }
            | Call::Watch { .. }
            | Call::Cancel(_)
            | Call::ReleaseRequest(_)
            | Call::Leases { .. }
            | Call::Queue { .. }
            | Call::Usage
            | Call::Events { .. }
            | Call::Ahead { .. }
            | Call::InUse { .. }
            | Call::Semaphores
            | Call::Gangs
            | Call::Rota
            | Call::SetGang { .. }
            | Call::Join(_)
            | Call::Ledger(_)
            | Call::IsIdle(_)
            | Call::Count(_)
            | Call::Plan { .. }
            | Call::Quarantine { .. }
            | Call::PlanSemaphore { .. }
            | Call::Principal { .. }
            | Call::Holder(_)
            | Call::Member { .. }
            | Call::Restore(_) => None,
        };
        home == Some(self.0.config.me()) || self.peers().next().is_none()
    }

    /// Calls that the core can answer alone; the answers go to the outbox.
    pub(crate) fn call_many(&self, list: Vec<(u64, Call)>, outbox: &Arc<Outbox>) {
        self.command(Command::Calls { list, outbox: Arc::clone(outbox) as _ });
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
            | Call::Leases { .. }
            | Call::Queue { .. }
            | Call::Usage
            | Call::Events { .. }
            | Call::Ahead { .. }
            | Call::InUse { .. }
            | Call::Take { .. }
            | Call::GiveUp(_)
            | Call::Add { .. }
            | Call::Semaphores
            | Call::Gangs
            | Call::Rota
            | Call::SetGang { .. }
            | Call::Join(_)
            | Call::Ledger(_)
            | Call::IsIdle(_)
            | Call::Plan { .. }
            | Call::Quarantine { .. }
            | Call::PlanSemaphore { .. }
            | Call::Principal { .. }
            | Call::Holder(_)
            | Call::Member { .. }
            | Call::Restore(_)) => self.call(call).await,
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
        self.ask_all_within(call, PEER_PATIENCE).await
    }

    /// The same, for answers that may take longer.
    async fn ask_all_within(&self, call: &Call, patience: Duration) -> Vec<(SiteId, Answer)> {
        self.ask_some(self.peers().collect(), call, patience).await
    }

    /// Asks these sites at once; those that do not answer are left out.
    pub(super) async fn ask_some(
        &self,
        peers: BTreeSet<SiteId>,
        call: &Call,
        patience: Duration,
    ) -> Vec<(SiteId, Answer)> {
        let peers = peers.into_iter().filter(|&peer| self.0.mesh.is_up(peer));
        let tasks: Vec<_> = peers
            .map(|peer| {
                let (site, call) = (self.clone(), call.clone());
                (peer, tokio::spawn(async move { site.ask(peer, call, patience).await }))
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
        self.gather_within(call, PEER_PATIENCE, part).await
    }

    /// The same for a list that sites tell in parts of up to `MAX_LISTED` entries. `key`: the last
    /// entry of a part, by which the next part is asked for.
    pub(super) async fn gather_parts<T, K>(
        &self,
        call: impl Fn(Option<K>) -> Call,
        part: impl Fn(Answer) -> Vec<T>,
        key: impl Fn(&T) -> Option<K>,
    ) -> Result<(Vec<T>, Vec<String>), api::Error> {
        let first = call(None);
        let (own, mut answers) = tokio::join!(self.call(first.clone()), self.ask_all(&first));
        answers.push((self.0.config.me(), own?));
        let mut missing: Vec<SiteId> =
            self.peers().filter(|peer| answers.iter().all(|it| it.0 != *peer)).collect();
        let mut list = Vec::new();
        for (site, answer) in answers {
            let mut entries = part(answer);
            for _ in 0..MAX_PARTS {
                let last = entries.last().filter(|_| entries.len() >= MAX_LISTED).and_then(&key);
                list.append(&mut entries);
                let Some(last) = last else { break };
                let call = call(Some(last));
                let answer = if site == self.0.config.me() {
                    self.call(call).await
                } else {
                    self.ask(site, call, PEER_PATIENCE).await
                };
                match answer {
                    Ok(answer) => entries = part(answer),
                    // Its entries so far are good; the answer names it as missing.
                    Err(_) => missing.push(site),
                }
            }
        }
        let missing = missing.into_iter().map(|site| self.name_of(site)).collect();
        Ok((list, missing))
    }

    pub(super) async fn gather_within<T>(
        &self,
        call: Call,
        patience: Duration,
        part: impl Fn(Answer) -> Vec<T>,
    ) -> Result<(Vec<T>, Vec<String>), api::Error> {
        let (own, answers) =
            tokio::join!(self.call(call.clone()), self.ask_all_within(&call, patience));
        let mut list = part(own?);
        let missing = self.peers().filter(|peer| answers.iter().all(|it| it.0 != *peer));
        let missing = missing.map(|peer| self.name_of(peer)).collect();
        for (_, answer) in answers {
            list.extend(part(answer));
        }
        Ok((list, missing))
    }

    /// Where a lease goes on: at the site that has adopted it, or at the one that granted it.
    fn home_of_lease(&self, id: &str) -> Option<SiteId> {
        let giver = home_of(id)?;
        let view = self.0.view.borrow();
        let Some(plan) = view.plan().filter(|_| !view.moved.is_empty()) else { return Some(giver) };
        let paper = LeasePaper::read(id, &plan.key);
        let moved = paper.and_then(|(giver, paper)| view.moved.get(&paper.lease(giver)).copied());
        Some(moved.unwrap_or(giver))
    }

    /// Whose a lease is, as its id says.
    pub(super) fn holder_by_id(&self, id: &str) -> Option<Holder> {
        let view = self.0.view.borrow();
        LeasePaper::read(id, &view.plan()?.key).map(|it| it.1.holder())
    }

    /// Sites that may have the lease of this name.
    fn homes_of_name(&self, name: &str) -> BTreeSet<SiteId> {
        let Some(giver) = home_of(name) else { return BTreeSet::new() };
        let view = self.0.view.borrow();
        let moved = view.moved.iter().filter(|it| it.0.giver == giver);
        moved.map(|it| *it.1).chain([giver]).collect()
    }

    /// Releases a lease by its name, where it is.
    async fn release_named(&self, name: &str) -> Result<(), api::Error> {
        let call = Call::Release(name.to_owned());
        let mut last = None;
        for home in self.homes_of_name(name) {
            let answer = if home == self.0.config.me() || !self.peers().any(|it| it == home) {
                self.call(call.clone()).await
            } else {
                self.ask(home, call.clone(), PEER_PATIENCE).await
            };
            match answer {
                Ok(_) => return Ok(()),
                // A site that may have it and does not answer counts for more than one without it.
                Err(error) if error.error == Code::UnknownRequest && last.is_some() => {}
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(stopped))
    }

    /// Renews a lease where it is. If that site does not answer at once, the lease is presented
    /// here as well: should the other site be dead, its next report decides.
    pub(super) async fn at_home_or_here(&self, id: &str) -> Result<Answer, api::Error> {
        let call = Call::Renew(id.to_owned());
        let me = self.0.config.me();
        let home = self.home_of_lease(id).filter(|&home| home != me && self.0.mesh.is_up(home));
        let Some(home) = home else { return self.present(id, call).await };
        let unsure = |answer: &Result<Answer, api::Error>| {
            answer.as_ref().is_err_and(|error| error.error == Code::Unreachable)
        };
        let there = self.ask(home, call.clone(), PEER_PATIENCE);
        tokio::pin!(there);
        match timeout(HOME_PATIENCE, &mut there).await {
            Ok(answer) if !unsure(&answer) => return answer,
            Ok(_) => return self.present(id, call).await,
            Err(_) => {}
        }
        let here = self.present(id, call);
        tokio::pin!(here);
        tokio::select! {
            answer = &mut there => if unsure(&answer) { here.await } else { answer },
            answer = &mut here => answer,
        }
    }

    /// Presents a lease here, or at a site that shares its pools.
    async fn present(&self, id: &str, call: Call) -> Result<Answer, api::Error> {
        match self.sharer_of(id) {
            Some(site) => self.ask(site, call, PEER_PATIENCE).await,
            None => self.call(call).await,
        }
    }

    /// The site that may go on with a lease whose site is gone, if this one does not share its
    /// pools.
    fn sharer_of(&self, id: &str) -> Option<SiteId> {
        let view = self.0.view.borrow();
        let (_, paper) = LeasePaper::read(id, &view.plan()?.key)?;
        drop(view);
        let names = paper.parts.iter().flat_map(|part| part.units.keys());
        let want = names.map(|name| (name.clone(), 1)).collect();
        self.home_of_demand(&Submit { want, ..Submit::default() }).ok().flatten()
    }

    /// Releases a lease where it is. If that site is gone, the release is delivered when it is
    /// back: nothing can be granted of its units before that.
    pub(super) async fn release_at_home(&self, id: &str) -> Result<(), api::Error> {
        if api::is_lease_name(id) {
            return self.release_named(id).await;
        }
        let call = Call::Release(id.to_owned());
        let me = self.0.config.me();
        let home = self.home_of_lease(id).filter(|&home| home != me);
        let Some(home) = home.filter(|home| self.peers().any(|peer| peer == *home)) else {
            return self.call(call).await.map(|_| ());
        };
        if self.0.mesh.is_up(home) {
            match self.ask(home, call.clone(), PEER_PATIENCE).await {
                Err(error) if error.error == Code::Unreachable => {}
                answer => return answer.map(|_| ()),
            }
        }
        let genuine = {
            let view = self.0.view.borrow();
            let plan = view.record.as_ref().map(|record| &record.plan);
            plan.is_some_and(|plan| LeasePaper::read(id, &plan.key).is_some())
        };
        let text = format!("site {} does not answer; try again", self.name_of(home));
        let busy = || api::Error::new(Code::Unreachable, text);
        if !genuine {
            return Err(busy());
        }
        let permit = Arc::clone(&self.0.late).try_acquire_owned().map_err(|_| busy())?;
        // It must not be presented any more; a renewal that came before may still be on its way.
        self.call(call.clone()).await?;
        let (inner, id) = (Arc::downgrade(&self.0), id.to_owned());
        tokio::spawn(async move {
            for _ in 0..LATE_RELEASES {
                tokio::time::sleep(LATE_RELEASE).await;
                let Some(site) = inner.upgrade().map(Site) else { break };
                let home = site.home_of_lease(&id).unwrap_or(home);
                let done = if home == site.0.config.me() {
                    site.call(call.clone()).await.is_ok()
                } else {
                    site.0.mesh.is_up(home)
                        && site.ask(home, call.clone(), PEER_PATIENCE).await.is_ok()
                };
                if done {
                    break;
                }
            }
            drop(permit);
        });
        Ok(())
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
        let home = home_of(id).filter(|home| self.0.mesh.is_up(*home));
        if let Some(home) = home.filter(|home| self.peers().any(|peer| peer == *home)) {
            match self.ask(home, call.clone(), wait).await {
                // It may have left since, and handed the request over.
                Err(error) if error.error == Code::UnknownRequest => {}
                answer => return answer,
            }
        }
        match self.first_of(id, None, &self.peers().collect()).await? {
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
        among: &BTreeSet<SiteId>,
    ) -> Result<Option<SiteId>, api::Error> {
        let call = Call::Knows { id: id.to_owned(), taken };
        let answers = self.ask_some(among.clone(), &call, PEER_PATIENCE).await;
        let known = answers.iter().filter_map(|(peer, answer)| {
            let Answer::Reserved(Some(time)) = answer else { return None };
            Some((*time, *peer))
        });
        if let Some((_, first)) = known.min() {
            return Ok(Some(first));
        }
        let answered: BTreeSet<SiteId> = answers.into_iter().map(|it| it.0).collect();
        let mut among = among.iter().copied();
        let silent = among.find(|peer| self.may_know(*peer) && !answered.contains(peer));
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

    /// The other sites that share a pool of a demand: the only ones that have requests for it.
    pub(super) fn sharing(&self, want: &Want) -> BTreeSet<SiteId> {
        let some = |plan: &Plan| {
            let scopes = want.keys().map(|name| plan.pools.get(name).map(|pool| &pool.scope));
            let scopes: Option<Vec<&Scope>> = scopes.collect();
            let scopes = scopes.filter(|list| list.iter().all(|scope| !scope.is_all()))?;
            let sites = scopes.into_iter().flat_map(|scope| plan.sites_of(scope));
            Some(sites.filter(|&site| site != self.0.config.me()).collect())
        };
        let some = self.0.view.borrow().plan().and_then(some);
        some.unwrap_or_else(|| self.peers().collect())
    }

    /// The site that takes a request, if this one does not share the pools. Requests with the same
    /// id go to the same site as long as it answers.
    pub(super) fn home_of_demand(&self, spec: &Submit) -> Result<Option<SiteId>, api::Error> {
        let me = self.0.config.me();
        let view = self.0.view.borrow();
        let Some(plan) = view.plan() else { return Ok(None) };
        let pools = spec.want.keys().filter_map(|name| Some((name, plan.pools.get(name)?)));
        let scoped: Vec<_> = pools.filter(|it| !it.1.scope.is_all()).collect();
        if scoped.is_empty() || view.epoch == 0 {
            return Ok(None);
        }
        let mut sites: BTreeSet<SiteId> = plan.sites.keys().copied().collect();
        for (_, pool) in &scoped {
            let sharing = plan.sites_of(&pool.scope);
            sites.retain(|site| sharing.contains(site));
        }
        if sites.contains(&me) {
            return Ok(None);
        }
        let names: Vec<&str> = scoped.iter().map(|it| it.0.as_str()).collect();
        let names = names.join(", ");
        if sites.is_empty() {
            let text = format!(
                "no site shares all of the pools {names}; a request must name pools that one site \
                 shares"
            );
            return Err(api::Error::new(Code::Infeasible, text));
        }
        let drains = |site: &SiteId| plan.draining.contains(site);
        let up = sites.iter().copied().filter(|site| {
            view.members.contains_key(site) && !drains(site) && self.0.mesh.is_up(*site)
        });
        let up: Vec<SiteId> = up.collect();
        let seed = spec.id.as_deref().unwrap_or_default();
        let hash = |text: &str| {
            text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        let seed = if seed.is_empty() { u64::from(me.0) } else { hash(seed) };
        let place = usize::try_from(seed % up.len().max(1) as u64).unwrap_or(0);
        if let Some(&home) = up.get(place) {
            return Ok(Some(home));
        }
        let all: Vec<&str> =
            sites.iter().filter_map(|it| Some(plan.sites.get(it)?.0.as_str())).collect();
        let text = format!(
            "only {} share pool {names}, and none of them answers; start one, or try again",
            all.join(", ")
        );
        Err(api::Error::new(Code::Unreachable, text))
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
