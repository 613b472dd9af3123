//! What the core shows of itself.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kofm_core::Stamp;

use crate::api::{self, Answer, Hold, State, UsedUnit};
use crate::boottime::Moment;
use crate::core::{Core, Lease, MAX_LISTED, Pool, Request, Status, millis};
use crate::fast::{FastAnswer, FastLease};

/// Holders, and as many who asked earlier, that are named for a pool in a list of all that wait.
const FEW: usize = 4;
/// Waiting requests of one pool from which on it is a crowd.
const CROWD: usize = 256;

impl Core {
    /// Units by names.
    pub(super) fn units_view(&self, units: &BTreeMap<usize, Vec<u32>>) -> api::Units {
        let units = units.iter().map(|(&pool, numbers)| {
            let pool = &self.pools[pool];
            let names = numbers.iter().map(|&number| pool.config.unit_name(number)).collect();
            (pool.name.to_string(), names)
        });
        units.collect()
    }

    pub(super) fn lease_view(&self, request: &Request) -> Option<api::Lease> {
        let lease = request.lease.as_ref()?;
        let now = self.now;
        Some(api::Lease {
            id: lease.id.to_string(),
            name: lease.name.to_string(),
            request: request.id.to_string(),
            units: api::Units::clone(&lease.names),
            fence: lease.fence,
            ttl_ms: millis(lease.ttl),
            expires_in_ms: millis(self.expires_in(lease, now)),
            site: self.site.to_string(),
            epoch: lease.epoch,
            state: status_name(lease.status).to_owned(),
            owner: request.owner.as_ref().map(ToString::to_string),
            reason: request.reason.as_ref().map(ToString::to_string),
            held_ms: millis(now.since(lease.since)),
            principal: request.principal.as_ref().map(ToString::to_string),
        })
    }

    /// What a fast client is told of a request: nothing of others.
    pub(super) fn fast_view(&self, request: &Request) -> FastAnswer {
        let lease = request.lease.as_ref().map(|lease| FastLease {
            id: Arc::clone(&lease.id),
            units: Arc::clone(&lease.names),
            fence: lease.fence,
            ttl_ms: millis(lease.ttl),
            expires_in_ms: millis(self.expires_in(lease, self.now)),
        });
        let (id, cause) = (Arc::clone(&request.id), self.cause_view(request));
        FastAnswer::Request { id, state: request.state, cause, lease }
    }

    /// How long a holder may rely on its lease: never longer than on the site.
    pub(super) fn expires_in(&self, lease: &Lease, now: Moment) -> Duration {
        let left = lease.expires.since(now);
        self.promise(now).map_or(left, |promise| left.min(promise))
    }

    /// A request. In a crowd, those who just came are told their place only: who is in front of
    /// them takes longer to say the more there are.
    pub(super) fn request_view(&self, key: u64, request: &Request, brief: bool) -> api::Request {
        let queued = request.state == State::Queued;
        let waiting = |pool: usize| self.pools[pool].waiting.len();
        let crowd = brief && request.want.iter().any(|want| waiting(want.0) > CROWD);
        let (claim, blocked_by) = match (queued, crowd) {
            (true, false) => self.blockers(request),
            (true, true) => (request.claim(), Vec::new()),
            (false, _) => (None, Vec::new()),
        };
        let position = queued.then(|| 1 + claim.map_or(0, |claim| self.older(key, request, claim)));
        let now = self.now;
        let waited = if queued { now.since(request.submitted) } else { request.waited };
        api::Request {
            id: request.id.to_string(),
            state: request.state,
            want: api::Want::clone(&request.asked),
            owner: request.owner.as_ref().map(ToString::to_string),
            reason: request.reason.as_ref().map(ToString::to_string),
            position,
            blocked_by,
            lease: self.lease_view(request),
            cause: self.cause_view(request).map(Cow::into_owned),
            code: request.code,
            site: self.site.to_string(),
            waited_ms: millis(waited),
            claim: claim.map(api::claim),
            principal: request.principal.as_ref().map(ToString::to_string),
        }
    }

    /// Why a request ended, or what stands in its way beside the blockers.
    pub(super) fn cause_view(&self, request: &Request) -> Option<Cow<'static, str>> {
        let queued = request.state == State::Queued;
        let lacks = || self.lacks_copies(request);
        let obstacle = || self.obstacle().filter(|_| queued).or_else(lacks).map(Cow::Owned);
        request.cause.clone().or_else(obstacle)
    }

    /// Waiting requests of this site that are older and want one of the same pools.
    fn older(&self, key: u64, request: &Request, claim: Stamp) -> u64 {
        let older = |pool: usize| self.pools[pool].waiting.range(..(claim, key));
        match request.want.as_slice() {
            // The newest has all others in front, without counting them.
            [(pool, _)] if self.pools[*pool].waiting.last() == Some(&(claim, key)) => {
                self.pools[*pool].waiting.len() as u64 - 1
            }
            [(pool, _)] => older(*pool).count() as u64,
            want => {
                let mut keys: Vec<u64> =
                    want.iter().flat_map(|&(pool, _)| older(pool).map(|it| it.1)).collect();
                keys.sort_unstable();
                keys.dedup();
                keys.len() as u64
            }
        }
    }

    pub(super) fn blocker_view(&self, other: &Request, pool: usize) -> api::Blocker {
        let lease = other.lease.as_ref();
        let wanted = other.want.iter().find(|want| want.0 == pool).map_or(0, |want| want.1);
        let now = self.now;
        api::Blocker {
            site: self.site.to_string(),
            owner: other.owner.as_ref().map(ToString::to_string),
            reason: other.reason.as_ref().map(ToString::to_string),
            pool: self.pools[pool].name.to_string(),
            units: wanted,
            lease: lease.map(|lease| lease.name.to_string()),
            state: if lease.is_some() { "held" } else { "queued" }.to_owned(),
            expires_in_ms: lease.map(|lease| millis(self.expires_in(lease, now))),
        }
    }

    /// Leases in the order of their fences and requests, those after one of them.
    pub(super) fn leases(&self, after: Option<&(u64, String)>) -> Vec<api::Lease> {
        let place = |request: &Request| {
            let fence = request.lease.as_ref().map(|lease| lease.fence)?;
            let later = |last: &(u64, String)| (fence, &*request.id) > (last.0, &*last.1);
            after.is_none_or(later).then(|| (fence, Arc::clone(&request.id)))
        };
        let requests = self.requests.values().filter(|request| request.hold != Hold::Drain);
        let mut list: Vec<_> =
            requests.filter_map(|request| Some((place(request)?, request))).collect();
        list.sort_unstable_by(|one, two| one.0.cmp(&two.0));
        list.into_iter()
            .filter_map(|(_, request)| self.lease_view(request))
            .take(MAX_LISTED)
            // The id is its holder's secret.
            .map(|lease| api::Lease { id: String::new(), ..lease })
            .collect()
    }

    /// The requests that wait here, oldest first, those after a claim; without their blockers,
    /// which are costly.
    pub(super) fn queue(&self, after: Option<Stamp>) -> Vec<api::Request> {
        let mut waiting: Vec<_> = self.pools.iter().flat_map(|pool| &pool.waiting).collect();
        waiting.sort_unstable();
        waiting.dedup();
        waiting.retain(|it| after.is_none_or(|after| it.0 > after));
        waiting
            .into_iter()
            .filter_map(|&(claim, key)| {
                let request = self.requests.get(&key).filter(|it| it.hold != Hold::Drain)?;
                let now = self.now;
                Some(api::Request {
                    id: request.id.to_string(),
                    state: request.state,
                    want: api::Want::clone(&request.asked),
                    owner: request.owner.as_ref().map(ToString::to_string),
                    reason: request.reason.as_ref().map(ToString::to_string),
                    position: None,
                    blocked_by: Vec::new(),
                    lease: None,
                    cause: None,
                    code: None,
                    site: self.site.to_string(),
                    waited_ms: millis(now.since(request.submitted)),
                    claim: Some(api::claim(claim)),
                    principal: request.principal.as_ref().map(ToString::to_string),
                })
            })
            .take(MAX_LISTED)
            .collect()
    }

    /// The clients' requests that wait for a pool: one that takes units out of it is none.
    pub(super) fn waiting_for(&self, pool: &Pool) -> usize {
        if pool.limit == pool.config.units {
            return pool.waiting.len();
        }
        let request = |it: &&(Stamp, u64)| self.requests.get(&it.1);
        pool.waiting
            .iter()
            .filter(|it| request(it).is_some_and(|it| it.hold != Hold::Drain))
            .count()
    }

    /// What this site has of each pool; pools that it has nothing of are left out.
    pub(super) fn usage(&self) -> Vec<api::Usage> {
        let pools = self.pools.iter().filter(|pool| !pool.gone);
        let used = pools.filter(|pool| !pool.used.is_empty() || !pool.waiting.is_empty());
        used.map(|pool| api::Usage {
            pool: pool.name.to_string(),
            waiting: self.waiting_for(pool) as u64,
            units: pool
                .used
                .iter()
                .map(|(&number, key)| {
                    let request = self.requests.get(key);
                    let lease = request.and_then(|it| it.lease.as_ref());
                    UsedUnit {
                        number,
                        fence: lease.map_or(0, |lease| lease.fence),
                        quarantined: pool.quarantined.contains(&number),
                        drained: request.is_some_and(|it| it.hold == Hold::Drain),
                    }
                })
                .collect(),
        })
        .collect()
    }

    /// Who of this site is in the way of another site's claim.
    pub(super) fn ahead(&self, want: &api::Want, claim: Stamp) -> Answer {
        let mut list = Vec::new();
        let mut older = Vec::new();
        for name in want.keys() {
            let Some(&pool) = self.pool_by_name.get(name.as_str()) else { continue };
            let mut holders: Vec<u64> = self.pools[pool].used.values().copied().collect();
            holders.sort_unstable();
            holders.dedup();
            let waiting = self.pools[pool].waiting.iter().take_while(|it| it.0 < claim);
            let waiting: Vec<u64> = waiting.map(|it| it.1).collect();
            let keys = holders.iter().chain(&waiting).take(64);
            // What was taken out of a pool is not there to be waited for.
            let drain = |request: &Request| request.hold == Hold::Drain;
            let requests = keys.filter_map(|key| self.requests.get(key));
            let requests = requests.filter(|it| !drain(it) || it.lease.is_none());
            list.extend(requests.map(|request| self.blocker_view(request, pool)));
            let counts = |key: &u64| self.requests.get(key).is_some_and(|it| !drain(it));
            older.extend(waiting.into_iter().filter(counts));
        }
        older.sort_unstable();
        older.dedup();
        Answer::Ahead { list, older: older.len() as u64 }
    }
}

/// Names those that hold what each request waits for, and those that asked for it earlier: some of
/// each, because everybody waits for the same few.
pub fn name_blockers(queue: &mut [api::Request], leases: &[api::Lease]) {
    let mut known: BTreeMap<String, (Vec<api::Blocker>, Vec<api::Blocker>)> = BTreeMap::new();
    for lease in leases {
        for (pool, units) in &lease.units {
            let (held, _) = known.entry(pool.clone()).or_default();
            if held.len() < FEW {
                held.push(api::Blocker {
                    site: lease.site.clone(),
                    owner: lease.owner.clone(),
                    reason: lease.reason.clone(),
                    pool: pool.clone(),
                    units: u32::try_from(units.len()).unwrap_or(u32::MAX),
                    lease: Some(lease.name.clone()),
                    state: "held".to_owned(),
                    expires_in_ms: Some(lease.expires_in_ms),
                });
            }
        }
    }
    for request in queue {
        let mut list = Vec::new();
        for (pool, &units) in &request.want {
            let (held, earlier) = known.entry(pool.clone()).or_default();
            list.extend(held.iter().chain(earlier.iter()).cloned());
            if earlier.len() < FEW {
                earlier.push(api::Blocker {
                    site: request.site.clone(),
                    owner: request.owner.clone(),
                    reason: request.reason.clone(),
                    pool: pool.clone(),
                    units,
                    lease: None,
                    state: "queued".to_owned(),
                    expires_in_ms: None,
                });
            }
        }
        list.sort_by_key(|it| it.state != "held");
        request.blocked_by = list;
    }
}

const fn status_name(status: Status) -> &'static str {
    match status {
        Status::Live | Status::Lapsed => "live",
        Status::Held => "held",
        Status::Quarantined | Status::Ghost => "quarantined",
    }
}
