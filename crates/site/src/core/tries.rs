//! Requests with `wait` zero: the members count the units in use, and a request that cannot be
//! served fails.
//!
//! A site that lacks units asks every member how many units of each pool are held there, or are
//! due to requests that asked earlier. If fewer are left than the request needs, it fails as busy
//! after one round trip. If units are left, or a member does not answer, the request goes on until
//! [`super::TRY`] is over: units may be in transit.

use std::collections::{BTreeMap, BTreeSet};

use kofm_core::{SiteId, Stamp};

use super::{Asker, Core, Request};
use crate::api::{self, Answer, Call, Code, State, Want};

/// Requests of a site that may be counted for at the same time; others wait for [`super::TRY`].
const MAX_TRIES: usize = 1_000;

/// A request that is counted for.
pub(super) struct Try {
    epoch: u64,
    /// Members that have not answered.
    missing: BTreeSet<SiteId>,
    in_use: BTreeMap<String, u32>,
}

impl Core {
    /// Asks all members what is in use of the pools of a request that must not wait.
    pub(super) fn count_for(&mut self, key: u64) {
        let Some(request) = self.requests.get(&key) else { return };
        let waits = request.once && request.state == State::Queued && request.keeping.is_none();
        if !waits || self.tries.len() >= MAX_TRIES {
            return;
        }
        let (want, claim) = ((*request.asked).clone(), request.claim());
        let record = self.change.record();
        if !record.members.contains_key(&self.me) || record.epoch != self.installed {
            return;
        }
        // Sites that share none of the pools have nothing of them.
        let pools = want.keys().filter_map(|name| self.plan.pools.get(name));
        let sharing: BTreeSet<SiteId> =
            pools.flat_map(|it| self.plan.sites_of(&it.scope)).collect();
        let others = record.members.keys().copied().filter(|&site| site != self.me);
        let missing: BTreeSet<SiteId> = others.filter(|site| sharing.contains(site)).collect();
        if missing.iter().any(|&site| !self.links.is_up(site)) {
            return;
        }
        let in_use = self.in_use(&want, claim, Some(key));
        let one = Try { epoch: self.installed, missing: missing.clone(), in_use };
        self.tries.insert(key, one);
        let call = Call::InUse { want, claim };
        for site in missing {
            self.ask(site, &call, Asker::Try(key, site));
        }
        self.judge_try(key);
    }

    /// What is held here of each pool, or due to requests that asked before that claim.
    pub(super) fn in_use(
        &self,
        want: &Want,
        claim: Option<Stamp>,
        but: Option<u64>,
    ) -> BTreeMap<String, u32> {
        let count = |name: &String| {
            let place = *self.pool_by_name.get(name.as_str())?;
            let pool = &self.pools[place];
            // The units out of service are known to the site that asks.
            let served = |it: &&u32| !pool.withheld.contains(it) && !pool.out.contains_key(it);
            let held = pool.used.keys().filter(served).count();
            let due = |request: &Request| {
                let waits = request.state == State::Queued && !request.once;
                request.want.iter().find(|it| waits && it.0 == place).map_or(0, |it| it.1)
            };
            let earlier = pool.waiting.iter().take_while(|it| claim.is_none_or(|mine| it.0 < mine));
            let mut sum = held as u64;
            for it in earlier.filter(|it| but != Some(it.1)) {
                // None is left, however many claims follow.
                if sum >= u64::from(pool.config.units) {
                    break;
                }
                sum += self.requests.get(&it.1).map_or(0, |request| u64::from(due(request)));
            }
            Some((name.clone(), u32::try_from(sum).unwrap_or(u32::MAX)))
        };
        want.keys().filter_map(count).collect()
    }

    /// A member has counted.
    pub(super) fn on_try_answer(
        &mut self,
        key: u64,
        from: SiteId,
        answer: Result<Answer, api::Error>,
    ) {
        let Some(one) = self.tries.get_mut(&key) else { return };
        match answer {
            Ok(Answer::InUse { epoch, pools }) if epoch == one.epoch => {
                one.missing.remove(&from);
                for (name, units) in pools {
                    if let Some(sum) = one.in_use.get_mut(&name) {
                        *sum = sum.saturating_add(units);
                    }
                }
                self.judge_try(key);
            }
            // Too few to tell.
            _ => drop(self.tries.remove(&key)),
        }
    }

    /// When all have counted: ends the request if it cannot have what it asks for now.
    fn judge_try(&mut self, key: u64) {
        if !self.tries.get(&key).is_some_and(|it| it.missing.is_empty()) {
            return;
        }
        let Some(one) = self.tries.remove(&key) else { return };
        let waits = self.requests.get(&key).filter(|it| it.state == State::Queued);
        let Some(request) = waits.filter(|_| one.epoch == self.installed) else { return };
        let short = request.want.iter().find_map(|&(place, needs)| {
            let pool = &self.pools[place];
            let out = pool.out.keys().filter(|it| !pool.withheld.contains(it)).count();
            let gone = u32::try_from(pool.withheld.len() + out).unwrap_or(u32::MAX);
            let in_use = one.in_use.get(&*pool.name).copied().unwrap_or(0);
            let left = pool.config.units.saturating_sub(gone).saturating_sub(in_use);
            (left < needs).then(|| {
                let (name, units) = (&pool.name, pool.config.units);
                format!("busy: pool `{name}` has {left} of {units} units free, {needs} asked")
            })
        });
        if let Some(text) = short {
            self.refuse(key, Code::Busy, text);
        }
    }
}
// x
