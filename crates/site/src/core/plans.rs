//! Changes of what the cluster shares: pools, semaphores, gangs, sites. Each is an epoch with
//! another plan, one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use kofm_core::SiteId;
use kofm_core::epoch::Input;

use super::{Core, Pool, Responder, Todo};
use crate::api::{self, Answer, Code, Hold, MemberChange, Members, State, Submit};
use crate::backup::Backup;
use crate::boottime::Moment;
use crate::config::MAX_SEMAPHORES;
use crate::plan::{Plan, PlannedPool, PlannedSemaphore};
use crate::rules::{self, PrincipalChange};

/// Changes of the plan that may wait for each other.
const MAX_EDITS: usize = 64;

/// A change of the plan.
pub(super) enum Edit {
    /// Makes, changes or removes a pool.
    Pool(String, Option<PlannedPool>),
    /// Quarantines a unit of a pool for a reason, or returns it.
    Quarantine(String, String, Option<String>),
    /// Makes or removes a semaphore.
    Semaphore(String, Option<PlannedSemaphore>),
    /// Makes, changes or removes a gang.
    Gang(String, Members),
    /// Makes, changes or revokes a principal.
    Principal(String, PrincipalChange),
    /// Removes, replaces or drains a site.
    Member(String, MemberChange),
    /// Adds what a backup has and the plan lacks.
    Restore(String),
}

impl Core {
    /// Changes the plan as soon as the changes before this one are made.
    pub(super) fn edit(&mut self, edit: Edit, reply: Responder) {
        let change = &mut self.change;
        if change.edits.len() >= MAX_EDITS {
            let text = format!("{MAX_EDITS} changes wait already; try again later");
            return self.respond(reply, Err(api::Error::new(Code::TooMany, text)));
        }
        let until = self.now.after(change.lease * 2);
        change.edits.push_back((edit, reply, until));
        self.next_edit();
    }

    pub(super) fn next_edit(&mut self) {
        let now = self.now;
        loop {
            let change = &mut self.change;
            let ready = change.epochs.may_grant() && change.planned.is_none();
            let due = |it: &(Edit, Responder, Moment)| ready || it.2 <= now;
            let Some((edit, reply, _)) = change.edits.pop_front_if(|it| due(it)) else { return };
            if !ready {
                let text = "the epoch is changing, or this site has no majority; try again";
                self.respond(reply, Err(api::Error::new(Code::InUse, text)));
                continue;
            }
            let (me, links, sole) = (self.me, &self.links, change.sole);
            let away = |site: &&SiteId| sole && **site != me && !links.is_up(**site);
            if let Some(&site) = change.record().members.keys().find(away) {
                // Nobody is taken for dead here, so nothing can change without it.
                let text = format!("site {} has stopped, or does not answer", self.site_name(site));
                self.respond(reply, Err(api::Error::new(Code::Unreachable, text)));
                continue;
            }
            match edit {
                Edit::Pool(name, pool) => self.plan_pool(&name, pool, reply),
                Edit::Quarantine(pool, unit, reason) => {
                    let mut plan = self.plan.clone();
                    match plan.quarantine(&pool, &unit, reason) {
                        Ok(()) => self.change_plan(plan, Some(reply)),
                        Err(error) => self.respond(reply, Err(error)),
                    }
                }
                Edit::Semaphore(name, it) => self.plan_semaphore(&name, it, reply),
                Edit::Gang(name, members) => {
                    let mut plan = self.plan.clone();
                    plan.put_gang(name, members);
                    self.change_plan(plan, Some(reply));
                }
                Edit::Principal(name, change) => {
                    let mut plan = self.plan.clone();
                    match rules::change(&mut plan.principals, &name, change) {
                        Ok(()) => self.change_plan(plan, Some(reply)),
                        Err(error) => self.respond(reply, Err(error)),
                    }
                }
                Edit::Member(name, change) => self.plan_member(&name, change, reply),
                Edit::Restore(text) => {
                    let mut plan = self.plan.clone();
                    match Backup::read(&text).and_then(|backup| backup.restore(&mut plan)) {
                        Ok(()) => self.change_plan(plan, Some(reply)),
                        Err(error) => self.respond(reply, Err(error)),
                    }
                }
            }
        }
    }

    fn plan_pool(&mut self, name: &str, pool: Option<PlannedPool>, reply: Responder) {
        let mut plan = self.plan.clone();
        let old = plan.pools.get_mut(name);
        if old.as_ref().is_some_and(|old| !old.closed && old.moves_to(pool.as_ref())) {
            let text = format!("pool `{name}` has just been changed by another call; try again");
            return self.respond(reply, Err(api::Error::new(Code::InUse, text)));
        }
        if let Some(old) = old
            && pool.as_ref().is_some_and(|pool| pool.closed)
        {
            old.closed = true;
            return self.change_plan(plan, Some(reply));
        }
        let old = plan.pools.get_mut(name).filter(|old| !old.out.is_empty());
        if let (Some(old), Some(new)) = (old, &pool)
            && old.protocol != new.protocol
        {
            let error = api::Error::new(Code::InUse, return_first(name));
            old.closed = false;
            self.change_plan(plan, None);
            return self.respond(reply, Err(error));
        }
        let refused = match pool.map(|it| it.wanted()) {
            Some(Some(config)) if plan.put(name, &config) => None,
            Some(Some(_)) => {
                let text = "pools are shared by 255 different sets of sites; share this one by one \
                            of those";
                Some((Code::TooMany, text.to_owned()))
            }
            Some(None) => {
                Some((Code::Malformed, "a protocol that this site does not run".to_owned()))
            }
            None if plan.pools.remove(name).is_none() => {
                Some((Code::UnknownPool, format!("there is no pool `{name}`")))
            }
            None => None,
        };
        match refused {
            Some((code, text)) => self.respond(reply, Err(api::Error::new(code, text))),
            None => self.change_plan(plan, Some(reply)),
        }
    }

    fn plan_semaphore(
        &mut self,
        name: &str,
        semaphore: Option<PlannedSemaphore>,
        reply: Responder,
    ) {
        let mut plan = self.plan.clone();
        let full = plan.semaphores.len() >= MAX_SEMAPHORES && !plan.semaphores.contains_key(name);
        let done = match semaphore.map(|it| it.config()) {
            Some(_) if full => Err((Code::TooMany, "there are too many semaphores; remove some")),
            Some(Some(config)) if plan.put_semaphore(name, &config) => Ok(()),
            Some(Some(_)) => Err((Code::TooMany, "too many semaphores were made in its life")),
            Some(None) => Err((Code::Malformed, "a protocol that this site does not run")),
            None if plan.semaphores.remove(name).is_some() => Ok(()),
            None => Err((Code::UnknownSemaphore, "there is no such semaphore")),
        };
        match done {
            Ok(()) => self.change_plan(plan, Some(reply)),
            Err((code, text)) => self.respond(reply, Err(api::Error::new(code, text))),
        }
    }

    /// Takes units out of pools that were made smaller, in their turn. The first member keeps them;
    /// when it dies, the next one does.
    pub(super) fn drain_pools(&mut self) {
        let change = &self.change;
        if !change.epochs.may_grant() {
            return;
        }
        if !change.shrunk && change.drains.is_empty() {
            return;
        }
        let members = &change.epochs.record().members;
        let first = |pool: &Pool| {
            let sites = self.plan.sites_of(&pool.config.scope);
            members.keys().find(|site| sites.contains(*site)) == Some(&self.me)
        };
        let first = |pool: &Pool| !pool.gone && first(pool);
        let shrunk = self.pools.iter().enumerate().filter(|it| it.1.config.units > it.1.limit);
        let mut wanted: BTreeMap<usize, u32> = BTreeMap::new();
        for (place, pool) in shrunk.filter(|it| first(it.1)) {
            // What is quarantined cannot be taken out: it is, already.
            let out = u32::try_from(pool.out.len()).unwrap_or(u32::MAX);
            let all = pool.config.units;
            let units = all.saturating_sub(pool.limit).min(all.saturating_sub(out));
            if units > 0 {
                wanted.insert(place, units);
            }
        }
        let mut over = Vec::new();
        for key in std::mem::take(&mut self.change.drains) {
            let Some(request) = self.requests.get(&key).filter(|it| !it.state.is_over()) else {
                continue;
            };
            self.change.drains.insert(key);
            let Some(&(place, units)) = request.want.first() else { continue };
            let kept = request.lease.as_ref().and_then(|lease| lease.units.get(&place));
            let out = |number: &u32| self.pools[place].out.contains_key(number);
            let whole = !kept.into_iter().flatten().any(out);
            // What is out stays out while more is taken: nobody else may get it meanwhile.
            match wanted.get_mut(&place) {
                Some(left) if whole && units <= *left => *left -= units,
                Some(_) | None => over.push(key),
            }
        }
        for key in over {
            self.end(key, State::Released, "the pool has changed again");
        }
        for (place, units) in wanted.into_iter().filter(|it| it.1 > 0) {
            let want = [(self.pools[place].name.to_string(), units)].into();
            let reason = Some("the pool was made smaller".to_owned());
            let spec = Submit { want, owner: Some("kofm".into()), reason, ..Submit::default() };
            let key = self.open(spec, vec![(place, units)], Hold::Drain);
            self.change.drains.insert(key);
            self.todo.push_back(Todo::Claim(key));
        }
    }

    /// Says which units were quarantined or returned since the last plan.
    pub(super) fn tell_quarantine(&mut self, old: &Plan) {
        let mut told = Vec::new();
        for (name, pool) in &self.plan.pools {
            // What was so when this site began is no news.
            let Some(before) = old.pools.get(name) else { continue };
            let Some(&place) = self.pool_by_name.get(name.as_str()) else { continue };
            let changed =
                |(number, reason): &(&u32, &String)| before.out.get(number) != Some(reason);
            for (&number, reason) in pool.out.iter().filter(changed) {
                let unit = self.pools[place].config.unit_name(number);
                told.push(("quarantined", name.clone(), format!("{unit}: {reason}"), unit));
            }
            for &number in before.out.keys().filter(|number| !pool.out.contains_key(number)) {
                let unit = self.pools[place].config.unit_name(number);
                told.push(("returned", name.clone(), unit.clone(), unit));
            }
        }
        for (event, pool, cause, unit) in told {
            let (want, units) = ([(pool.clone(), 1)].into(), [(pool, vec![unit])].into());
            let (want, units) = (Arc::new(want), Arc::new(units));
            let happening = self.happening(event, None);
            self.record(api::Happening { want, units, cause: Some(cause.into()), ..happening });
        }
    }

    /// Begins an epoch with another plan. Nothing else is planned, and the site may grant.
    pub(super) fn change_plan(&mut self, plan: Plan, reply: Option<Responder>) {
        let change = &mut self.change;
        if plan == self.plan {
            if let Some(reply) = reply {
                self.respond(reply, Ok(Answer::Done));
            }
            return;
        }
        change.planned = Some((plan.clone(), reply, self.now.after(change.lease * 4)));
        self.feed(Input::Configure(plan));
        self.settle();
    }

    /// Answers whoever waits for a change of the plan that has come true.
    pub(super) fn answer_plan(&mut self) {
        let change = &mut self.change;
        let record = Arc::clone(change.epochs.record());
        if let Some((_, Some(reply), _)) = change.planned.take_if(|it| it.0 == record.plan) {
            self.respond(reply, Ok(Answer::Done));
        }
    }

    pub(super) fn give_up_plan(&mut self, now: Moment) {
        let change = &mut self.change;
        let record = Arc::clone(change.epochs.record());
        if let Some((_, reply, _)) = change.planned.take_if(|it| it.2 <= now) {
            let text = "no majority of the sites could be asked in time; look again whether the \
                        change was made";
            if let Some(reply) = reply {
                self.respond(reply, Err(api::Error::new(Code::Unreachable, text)));
            }
            self.feed(Input::Configure(record.plan.clone()));
        }
    }
}

/// Why a pool with quarantined units does not move to a protocol that cannot keep them back.
pub fn return_first(pool: &str) -> String {
    format!("units of pool `{pool}` are quarantined; return them before it changes its protocol")
}
