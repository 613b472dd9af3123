//! Pools through the site's handle: how they are, and how they change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use kofm_core::{PoolId, SiteId};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{PEER_PATIENCE, Site, View, nonsense, stopped};
use crate::api::{self, Answer, Call, Code, Usage, UsedUnit};
use crate::config::{Config, MAX_POOLS, MAX_UNITS, PoolConfig, check_name, protocol_named};
use kofm_site::config::is_seat;
use kofm_site::core::return_first;
use kofm_site::input::{Command, PoolState};
use kofm_site::plan::{Plan, PlannedPool, PlannedSemaphore};

/// How often a unit is looked for before it is said to be lost, and how long it has meanwhile to
/// get from one site to another. In a busy pool it may well be under way each time but one.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

impl Site {
    /// All pools by name, counted over all sites; for those that do not answer, as they last said.
    pub async fn pools(&self) -> Result<(Vec<api::Pool>, Vec<String>), api::Error> {
        let (reply, answer) = oneshot::channel();
        self.command(Command::Pools(reply));
        let pools = answer.await.map_err(|_| stopped())?;
        let Answer::Usage(own) = self.call(Call::Usage).await? else { return Err(nonsense()) };
        let mut all = vec![own];
        let mut missing = Vec::new();
        let answers: BTreeMap<SiteId, Answer> =
            self.ask_all(&Call::Usage).await.into_iter().collect();
        let mut known = self.0.usage.lock().unwrap_or_else(PoisonError::into_inner);
        // What a site that departed had is kept back, and counted as such.
        known.retain(|peer, _| self.0.view.borrow().members.contains_key(peer));
        for peer in self.peers() {
            match answers.get(&peer) {
                Some(Answer::Usage(usage)) => {
                    known.insert(peer, usage.clone());
                }
                _ => missing.push(self.name_of(peer)),
            }
            all.extend(known.get(&peer).cloned());
        }
        drop(known);
        let mut list = count(pools, &all);
        list.retain(|pool| !is_seat(&pool.name));
        list.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((list, missing))
    }

    /// One pool, counted over all sites.
    pub async fn pool(&self, name: &str) -> Result<api::Pool, api::Error> {
        let (list, _) = self.pools().await?;
        list.into_iter()
            .find(|pool| pool.name == name)
            .ok_or_else(|| api::Error::unknown_pool(name))
    }

    /// Counts a pool while it is used: the units that are nowhere, or at two sites, each time that
    /// all sites are asked. One that is on its way arrives between two times.
    pub async fn unaccounted(&self, name: &str) -> Result<Vec<String>, api::Error> {
        let mut suspects = self.look(name).await?;
        for _ in 1..LOOKS {
            if suspects.is_empty() {
                break;
            }
            sleep(BETWEEN_LOOKS).await;
            let again = self.look(name).await?;
            suspects.retain(|unit| again.contains(unit));
        }
        if !suspects.is_empty() {
            warn!(pool = name, units = ?suspects, "units that are nowhere, or at two sites");
        }
        Ok(suspects)
    }

    /// Which units of a pool are not at exactly one site at this moment; nobody says so while a
    /// site does not answer.
    async fn look(&self, name: &str) -> Result<Vec<String>, api::Error> {
        let call = Call::Count(name.to_owned());
        let answers = self.ask_all(&call).await;
        if self.peers().any(|peer| answers.iter().all(|answer| answer.0 != peer)) {
            return Ok(Vec::new());
        }
        let mut seen = Vec::new();
        for answer in answers.into_iter().map(|answer| answer.1).chain([self.call(call).await?]) {
            let Answer::Counted(numbers) = answer else { return Err(nonsense()) };
            seen.extend(numbers);
        }
        let pools = self.pool_states().await?;
        let Some(pool) = pools.into_iter().find(|pool| pool.name == name) else {
            return Ok(Vec::new());
        };
        let out = pool.out.into_keys().collect();
        let wrong = misplaced(pool.config.units, seen, &pool.withheld, &out);
        Ok(wrong.into_iter().map(|number| pool.config.unit_name(number)).collect())
    }

    /// Makes a pool, or changes it.
    pub async fn put_pool(&self, name: &str, spec: api::PutPool) -> Result<(), api::Error> {
        let malformed = |text| api::Error::new(Code::Malformed, text);
        check_name(name).map_err(malformed)?;
        let (units, mut names) = match spec.units {
            api::UnitsSpec::Count(units) => (units, Vec::new()),
            api::UnitsSpec::Names(names) => (u32::try_from(names.len()).unwrap_or(0), names),
        };
        if !(1..=MAX_UNITS).contains(&units) {
            return Err(malformed(format!("units are 1 to {MAX_UNITS}")));
        }
        let mut seen = BTreeSet::new();
        for unit in &names {
            check_name(unit).map_err(malformed)?;
            if !seen.insert(unit) {
                return Err(malformed(format!("two units have the name `{unit}`")));
            }
        }
        let old = self.pool_states().await?.into_iter().find(|pool| pool.name == name);
        let old = old.map(|pool| pool.config);
        // Units keep their names; those that come are called by their numbers.
        if let Some(old) = old.as_ref().filter(|_| names.is_empty()) {
            let named = u32::try_from(old.names.len()).unwrap_or(u32::MAX);
            let comes = |name: &&String| name.parse().is_ok_and(|it| (named..units).contains(&it));
            if let Some(name) = old.names.iter().find(comes) {
                let text = format!("a unit is called `{name}` already; name them all: a,b,c");
                return Err(malformed(text));
            }
            names.clone_from(&old.names);
        }
        let protocol = match &spec.protocol {
            Some(name) => protocol_named(name).map_err(malformed)?,
            None => old.as_ref().map_or_else(crate::config::default_protocol, |old| old.protocol),
        };
        let on_expiry = spec.on_expiry.or_else(|| old.as_ref().map(|old| old.on_expiry));
        let mut scope = old.as_ref().map(|old| old.scope.clone()).unwrap_or_default();
        if let Some(sites) = spec.sites {
            scope.sites = sites.into_iter().collect();
        }
        if let Some(zones) = spec.zones {
            scope.zones = zones.into_iter().collect();
        }
        let arbitration = old.and_then(|old| old.arbitration);
        let arbitration = arbitration.filter(|_| protocol.profile().arbitrated);
        let on_expiry = on_expiry.unwrap_or_default();
        let pool = PoolConfig { units, names, protocol, on_expiry, arbitration, scope };
        self.set_pool(name, pool).await
    }

    /// Whether the sites that are to share a pool are in the cluster.
    fn check_scope(&self, name: &str, pool: &PoolConfig) -> Result<(), api::Error> {
        let malformed = |text| Err(api::Error::new(Code::Malformed, text));
        if let Err(text) = pool.check_scope(name) {
            return malformed(text);
        }
        let (view, scope) = (self.view(), &pool.scope);
        let Some(plan) = view.plan().filter(|_| !scope.is_all()) else { return Ok(()) };
        if let Some(site) = scope.sites.iter().find(|it| plan.site_named(it).is_none()) {
            let sites: Vec<&str> = plan.sites.values().map(|it| it.0.as_str()).collect();
            let text = format!(
                "sites: there is no site `{site}` in the cluster; there are {}",
                sites.join(", ")
            );
            return malformed(text);
        }
        let zones: BTreeSet<&str> = plan.facts.values().map(|it| it.zone.as_str()).collect();
        if let Some(zone) = scope.zones.iter().find(|it| !zones.contains(it.as_str())) {
            let zones: Vec<&str> = zones.into_iter().filter(|it| !it.is_empty()).collect();
            let known = if zones.is_empty() {
                "no site has a zone".to_owned()
            } else {
                format!("there are {}", zones.join(", "))
            };
            return malformed(format!("zones: no site is in zone `{zone}`; {known}"));
        }
        if plan.sites_of(scope).is_empty() {
            let text = "none of the sites in `sites` is in one of the `zones`; at least one must \
                        share the pool";
            return malformed(text.to_owned());
        }
        Ok(())
    }

    async fn pool_states(&self) -> Result<Vec<PoolState>, api::Error> {
        let (reply, answer) = oneshot::channel();
        self.command(Command::Pools(reply));
        answer.await.map_err(|_| stopped())
    }

    async fn set_pool(&self, name: &str, pool: PoolConfig) -> Result<(), api::Error> {
        let (units, protocol) = (pool.units, pool.protocol);
        self.check_scope(name, &pool)?;
        let pools = self.pool_states().await?;
        let state = pools.iter().find(|pool| pool.name == name);
        let old = state.map(|pool| &pool.config);
        // Which units there are may change only while nobody has one; more may come any time.
        let planned = |pool| PlannedPool::new(PoolId(0), pool);
        let moves = old.is_some_and(|old| planned(old).moves_to(Some(&planned(&pool))));
        if state.is_some_and(|it| it.config.protocol != protocol && !it.out.is_empty()) {
            return Err(api::Error::new(Code::InUse, return_first(name)));
        }
        if old.is_none() && pools.len() >= MAX_POOLS {
            let text = format!("there are {MAX_POOLS} pools");
            return Err(api::Error::new(Code::TooMany, text));
        }
        let others = pools.iter().filter(|it| it.name != name);
        let others: u64 = others.map(|it| u64::from(it.config.units)).sum();
        let sum = self.0.config.check_sum(others + u64::from(units));
        sum.map_err(|text| api::Error::new(Code::TooMany, text))?;
        self.plan(name, Some(pool), moves).await
    }

    /// Takes a unit out of use, or gives it another reason: nobody is granted it before it is
    /// returned. Whoever holds it keeps it, and it goes when it is released.
    pub async fn quarantine(
        &self,
        pool: &str,
        unit: &str,
        reason: String,
    ) -> Result<(), api::Error> {
        self.change_quarantine(pool, unit, Some(reason)).await
    }

    /// Puts a unit to use again that was quarantined.
    pub async fn return_unit(&self, pool: &str, unit: &str) -> Result<(), api::Error> {
        self.change_quarantine(pool, unit, None).await
    }

    async fn change_quarantine(
        &self,
        pool: &str,
        unit: &str,
        reason: Option<String>,
    ) -> Result<(), api::Error> {
        let (pool, unit) = (pool.to_owned(), unit.to_owned());
        self.next_epoch(Call::Quarantine { pool, unit, reason }).await
    }

    /// Changes a pool with the next epoch, at all sites or at none. One that is to go, or to move
    /// to another protocol, is closed first, and changed only if nobody uses it then.
    async fn plan(
        &self,
        name: &str,
        pool: Option<PoolConfig>,
        moves: bool,
    ) -> Result<(), api::Error> {
        let planned = pool.as_ref().map(|pool| PlannedPool::new(PoolId(0), pool));
        if moves {
            if planned.is_some() {
                self.wait_for_withheld(name).await?;
            }
            let view = self.view();
            let old = view.plan().and_then(|plan| plan.pools.get(name));
            let old = old.ok_or_else(|| api::Error::unknown_pool(name))?;
            let closed = PlannedPool { closed: true, ..old.clone() };
            self.next_epoch(Call::Plan { name: name.to_owned(), pool: Some(closed) }).await?;
            let call = Call::IsIdle(name.to_owned());
            let mut answers = self.ask_all(&call).await;
            answers.push((self.0.config.me(), self.call(call).await?));
            let idle = |site: &SiteId| {
                let answer = answers.iter().find(|it| it.0 == *site);
                matches!(answer, Some((_, Answer::Known(true))))
            };
            let used = !self.view().members.keys().all(idle);
            let withheld = planned.is_some() && self.withholds(name).await?;
            if used || withheld {
                let open = PlannedPool { closed: false, ..old.clone() };
                self.next_epoch(Call::Plan { name: name.to_owned(), pool: Some(open) }).await?;
                let text = if used {
                    format!(
                        "pool `{name}` is in use; release its leases, or wait until they end, then \
                         try again"
                    )
                } else {
                    format!(
                        "a site that is gone may still use units of pool `{name}`; try again when \
                         `kofm status {name}` shows them as free"
                    )
                };
                return Err(api::Error::new(Code::InUse, text));
            }
        }
        self.next_epoch(Call::Plan { name: name.to_owned(), pool: planned }).await
    }

    /// Whether a site that is gone may still use units of a pool.
    async fn withholds(&self, name: &str) -> Result<bool, api::Error> {
        let states = self.pool_states().await?;
        Ok(states.iter().any(|it| it.name == name && !it.withheld.is_empty()))
    }

    /// Waits until no site that is gone may use units of a pool, for as long as that usually takes.
    /// Its units get other numbers or other sites then, and nothing would withhold them.
    async fn wait_for_withheld(&self, name: &str) -> Result<(), api::Error> {
        let until = tokio::time::Instant::now() + self.0.config.site_lease * 3 / 2;
        while self.withholds(name).await? && tokio::time::Instant::now() < until {
            sleep(BETWEEN_LOOKS).await;
        }
        Ok(())
    }

    /// Has the first member change the plan: one at a time, whoever asks.
    pub(super) async fn next_epoch(&self, call: Call) -> Result<(), api::Error> {
        let patience = self.0.config.site_lease * 4 + PEER_PATIENCE;
        // Before the first epoch there is nobody to ask; a site without a majority says so.
        let granting = |view: &View| view.granting;
        let soon = self.0.config.site_lease * 2;
        timeout(soon, self.0.view.subscribe().wait_for(granting)).await.ok();
        let first = self.view().members.keys().next().copied();
        let changed = match first.filter(|&first| first != self.0.config.me()) {
            Some(first) => self.ask(first, call, patience).await,
            None => self.call(call).await,
        };
        changed?;
        // What was changed there is seen here before it is said to be.
        let epoch = self.view().epoch;
        let here = |view: &View| view.epoch > epoch || view.granting;
        timeout(patience, self.0.view.subscribe().wait_for(here)).await.ok();
        Ok(())
    }

    pub(super) fn view(&self) -> View {
        self.0.view.borrow().clone()
    }

    /// Removes a pool that nobody uses.
    pub async fn remove_pool(&self, name: &str) -> Result<(), api::Error> {
        if is_seat(name) {
            return Err(api::Error::unknown_pool(name));
        }
        self.plan(name, None, true).await
    }

    /// Brings about what a configuration file changes of pools, semaphores and gangs against what
    /// was brought about before: what the two have in common stays as it is, whatever was changed
    /// by command. Says what came of each; what was refused is tried again the next time.
    pub async fn reload(
        &self,
        running: &mut Config,
        to: &Config,
    ) -> Vec<(String, Result<(), api::Error>)> {
        let mut list = Vec::new();
        let view = self.view();
        let none = Plan::default();
        // What another site's file has brought about already is not done again.
        let plan = view.plan().unwrap_or(&none);
        for (name, pool) in changes(&running.pools, &to.pools) {
            let now = plan.pools.get(&name).and_then(PlannedPool::wanted);
            let done = match pool.clone() {
                pool if pool == now => Ok(()),
                Some(pool) => self.set_pool(&name, pool).await,
                None => gone(self.remove_pool(&name).await),
            };
            list.push(note("pool", name, pool, &mut running.pools, done));
        }
        for (name, semaphore) in changes(&running.semaphores, &to.semaphores) {
            let now = plan.semaphores.get(&name).and_then(PlannedSemaphore::config);
            let done = match semaphore.clone() {
                semaphore if semaphore == now => Ok(()),
                Some(semaphore) => self.set_semaphore(&name, semaphore).await,
                None => gone(self.remove_semaphore(&name).await),
            };
            list.push(note("semaphore", name, semaphore, &mut running.semaphores, done));
        }
        for (name, members) in changes(&running.gangs, &to.gangs) {
            let done = match members.clone().map(api::GangMembers) {
                _ if members.as_ref() == plan.gangs.get(&name) => Ok(()),
                Some(members) => self.put_gang(&name, api::PutGang { members }).await,
                None => gone(self.remove_gang(&name).await),
            };
            list.push(note("gang", name, members, &mut running.gangs, done));
        }
        list
    }
}

type Named<T> = BTreeMap<String, T>;

/// What is new or different, and what is not there any more.
fn changes<T: Clone + PartialEq>(from: &Named<T>, to: &Named<T>) -> Vec<(String, Option<T>)> {
    let changed = to.iter().filter(|(name, value)| from.get(*name) != Some(value));
    let changed = changed.map(|(name, value)| (name.clone(), Some(value.clone())));
    let removed = from.keys().filter(|name| !to.contains_key(*name));
    changed.chain(removed.map(|name| (name.clone(), None))).collect()
}

/// Remembers a change that was brought about.
fn note<T>(
    kind: &str,
    name: String,
    value: Option<T>,
    running: &mut Named<T>,
    done: Result<(), api::Error>,
) -> (String, Result<(), api::Error>) {
    let what = format!("{kind} {name}{}", if value.is_none() { ", removed" } else { "" });
    if done.is_ok() {
        match value {
            Some(value) => running.insert(name, value),
            None => running.remove(&name),
        };
    }
    (what, done)
}

/// What somebody has removed by command need not be removed.
fn gone(removed: Result<(), api::Error>) -> Result<(), api::Error> {
    let unknown = [Code::UnknownPool, Code::UnknownSemaphore, Code::UnknownGang];
    removed.or_else(|error| if unknown.contains(&error.error) { Ok(()) } else { Err(error) })
}

/// The units that were not seen exactly once, apart from those that are kept back. Those that are
/// quarantined may be with their holders still.
fn misplaced(
    units: u32,
    seen: Vec<u32>,
    withheld: &BTreeSet<u32>,
    out: &BTreeSet<u32>,
) -> Vec<u32> {
    let mut times: BTreeMap<u32, u32> = BTreeMap::new();
    for number in seen {
        *times.entry(number).or_default() += 1;
    }
    let wrong = |number: &u32| match times.get(number) {
        Some(1) => false,
        Some(_) => !withheld.contains(number),
        None => !withheld.contains(number) && !out.contains(number),
    };
    (0..units).filter(wrong).collect()
}

/// Counts pools over what all sites say. A unit that two of them name moved while they were
/// asked: the larger fence is the newer.
fn count(pools: Vec<PoolState>, all: &[Vec<Usage>]) -> Vec<api::Pool> {
    let mut used: BTreeMap<&str, BTreeMap<u32, UsedUnit>> = BTreeMap::new();
    let mut waiting: BTreeMap<&str, u64> = BTreeMap::new();
    for usage in all.iter().flatten() {
        *waiting.entry(&usage.pool).or_default() += usage.waiting;
        let pool = used.entry(&usage.pool).or_default();
        for unit in &usage.units {
            let entry = pool.entry(unit.number).or_insert(*unit);
            if entry.fence < unit.fence {
                *entry = *unit;
            }
        }
    }
    let view = |PoolState { name, config, withheld, out, .. }: PoolState| {
        let pool = used.get(name.as_str());
        let with = |number: &u32| pool.and_then(|pool| pool.get(number));
        let quarantine = out.iter().map(|(number, reason)| api::Quarantined {
            unit: config.unit_name(*number),
            reason: reason.clone(),
            held: with(number).is_some_and(|unit| !unit.drained),
        });
        let quarantine = quarantine.collect();
        // Whoever holds one that is out still counts as holding it.
        let kept: BTreeSet<u32> = withheld.into_iter().chain(out.into_keys()).collect();
        let kept = kept.iter().filter(|number| with(number).is_none()).count();
        let kept = u32::try_from(kept).unwrap_or(u32::MAX);
        // A pool that was made smaller may still have holders of units that are gone.
        let most = usize::try_from(config.units.saturating_sub(kept)).unwrap_or(usize::MAX);
        let used: Vec<&UsedUnit> = pool.into_iter().flat_map(BTreeMap::values).take(most).collect();
        let number = |which: &dyn Fn(&UsedUnit) -> bool| {
            u32::try_from(used.iter().filter(|unit| which(unit)).count()).unwrap_or(u32::MAX)
        };
        let (drained, quarantined) =
            (number(&|unit| unit.drained), number(&|unit| unit.quarantined));
        let held = number(&|unit| !unit.drained && !unit.quarantined);
        let units = config.units - drained;
        api::Pool {
            units,
            held,
            free: units - held - quarantined - kept,
            quarantined: quarantined + kept,
            waiting: waiting.get(name.as_str()).copied().unwrap_or(0),
            protocol: config.protocol.name().to_owned(),
            on_expiry: config.on_expiry,
            names: config.names,
            sites: config.scope.sites.into_iter().collect(),
            zones: config.scope.zones.into_iter().collect(),
            unaccounted: Vec::new(),
            quarantine,
            name,
        }
    };
    pools.into_iter().map(view).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_are_nowhere_or_at_two_sites_are_found() {
        let kept = BTreeSet::from([4]);
        let none = BTreeSet::new();
        assert_eq!(misplaced(5, vec![3, 0, 2, 1], &kept, &none), [0_u32; 0]);
        assert_eq!(misplaced(5, vec![3, 0, 3], &kept, &none), [1, 2, 3]);
        // A quarantined one is with its holder or nowhere, but not at two sites.
        assert_eq!(misplaced(3, vec![0, 1], &none, &BTreeSet::from([1, 2])), [0_u32; 0]);
        assert_eq!(misplaced(3, vec![0, 1, 1], &none, &BTreeSet::from([1, 2])), [1]);
    }
}
