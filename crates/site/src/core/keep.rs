//! Leases in pools whose units only a person frees: copied before their clients hear of them.
//!
//! The epoch's machine knows who keeps copies, when there are enough, and how they are used if
//! this site is lost; its module `copies` says why that is safe. This module tells it of leases,
//! with all that another site needs to go on with them. Pools with another policy cost nothing.
//!
//! A lease that waits for copies is granted to its request by the protocol, and reported with it,
//! but has no holder yet: its request stays queued. Should the epoch change meanwhile, the record
//! has the lease, or the copies are made in the next epoch.

use std::sync::Arc;

use kofm_core::epoch::{Copy, Input, Kept, LeaseKey, MAX_COPIES, Paper, PaperPart, Phase};
use kofm_core::{PoolId, Unit};
use serde::{Deserialize, Serialize};

use super::{Core, Lease, Mutant, Part, Request, Status, Todo};
use crate::api::{Hold, OnExpiry, State};
use crate::engine;
use crate::journal::Saved;
use crate::paper::{LeasePaper, brief};
use crate::plan::PlannedPool;

/// The reason of a lease of which no site knows more than that it may be there.
const UNKNOWN: &str = "its site is gone, and too few others know which leases it had granted";

/// A lease that waits for copies.
pub(super) struct Keeping {
    fence: u64,
    id: Arc<str>,
}

/// All that another site needs to go on with a lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Facts {
    /// It was not renewed, and is kept for a person. Of two copies the one that says so is later:
    /// this is the first field for that.
    pub over: bool,
    pub id: String,
    /// Without its units, which are in the record.
    pub paper: LeasePaper,
}

impl Facts {
    fn pack(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// As they are in a record.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// Of a lease of which nothing is known but its fence.
    pub(super) fn unknown(id: String, request: String, lease: LeaseKey, epoch: u64) -> Self {
        let reason = Some(UNKNOWN.to_owned());
        let (owner, principal, parts) = (None, None, Vec::new());
        let (fence, ttl_ms, named) = (lease.fence, 0, false);
        let paper =
            LeasePaper { fence, epoch, ttl_ms, request, named, owner, reason, principal, parts };
        Self { over: true, id, paper }
    }

    fn of_saved(saved: &Saved) -> Self {
        let paper = LeasePaper {
            fence: saved.fence,
            epoch: saved.epoch,
            ttl_ms: super::millis(saved.ttl),
            request: saved.request.clone(),
            named: true,
            owner: brief(saved.owner.as_deref()),
            reason: brief(saved.reason.as_deref()),
            principal: saved.principal.clone(),
            parts: Vec::new(),
        };
        Self { over: saved.kept.is_some(), id: saved.lease.clone(), paper }
    }
}

impl Core {
    /// Whether there have to be copies of a lease for this request.
    fn is_copied(&self, request: &Request) -> bool {
        let keeps = |pool: usize| self.pools[pool].config.on_expiry != OnExpiry::Release;
        let heals = |part: &Part| engine::heals(self.engines[part.engine].kind);
        !self.change.sole
            && !self.has(Mutant::GrantsUncopied)
            && request.hold == Hold::Lease
            && request.want.iter().any(|it| keeps(it.0))
            && !request.parts.iter().any(heals)
    }

    /// The fence and the id of a lease that is about to be granted; nothing if it has to wait for
    /// copies. It is tried again when there are enough.
    pub(super) fn number_lease(&mut self, key: u64) -> Option<(u64, Arc<str>)> {
        let known = self.requests.get_mut(&key)?.keeping.take();
        let (fence, id) = if let Some(it) = known {
            (it.fence, it.id)
        } else {
            // Later than whatever this site has heard of, so later than the last use of any of
            // these units: a fence.
            self.clock.fence += 1;
            let fence = self.clock.fence;
            (fence, self.paper_id(&self.requests[&key], fence).into())
        };
        let lease = LeaseKey { giver: self.me, fence };
        if !self.is_copied(&self.requests[&key]) || self.change.epochs.is_kept(lease) {
            self.keeping.remove(&lease);
            return Some((fence, id));
        }
        self.keeping.insert(lease, key);
        self.uncopied.push(key);
        self.requests.get_mut(&key)?.keeping = Some(Keeping { fence, id });
        None
    }

    /// The lease of a request, as the record and keepers have it.
    pub(super) fn kept(&self, request: &Request) -> Option<Kept> {
        if !self.is_copied(request) {
            return None;
        }
        let (lease, id, epoch, over) = match (&request.keeping, &request.lease) {
            (Some(it), _) => {
                let lease = LeaseKey { giver: self.me, fence: it.fence };
                (lease, it.id.to_string(), self.epoch(), false)
            }
            (None, Some(it)) if it.status != Status::Ghost => {
                let over = matches!(it.status, Status::Held | Status::Quarantined);
                (self.key_of(it), it.id.to_string(), it.epoch, over)
            }
            (None, _) => return None,
        };
        let text = |text: &Option<Arc<str>>| brief(text.as_deref());
        let paper = LeasePaper {
            fence: lease.fence,
            epoch,
            ttl_ms: super::millis(request.ttl),
            request: request.id.to_string(),
            named: request.named,
            owner: text(&request.owner),
            reason: text(&request.reason),
            principal: request.principal.as_ref().map(ToString::to_string),
            parts: Vec::new(),
        };
        Some(Kept { lease, facts: Facts { over, id, paper }.pack() })
    }

    /// The same for one of the last life.
    pub(super) fn kept_of_saved(&self, saved: &Saved) -> Option<Kept> {
        let pools = &self.change.record().plan.pools;
        let keeps = |name: &String| pools.get(name).is_some_and(PlannedPool::keeps);
        if !saved.want.keys().any(keeps) {
            return None;
        }
        let own = crate::ids::home_of(&saved.lease);
        let own = own.map(|giver| LeaseKey { giver, fence: saved.fence });
        let lease = saved.adopted.map(|it| it.lease).or(own)?;
        Some(Kept { lease, facts: Facts::of_saved(saved).pack() })
    }

    pub(super) fn key_of(&self, lease: &Lease) -> LeaseKey {
        let own = LeaseKey { giver: self.me, fence: lease.fence };
        lease.adopted.map_or(own, |it| it.lease)
    }

    fn copy(&self, key: u64) -> Option<Copy> {
        let request = self.requests.get(&key)?;
        let Kept { lease, facts } = self.kept(request)?;
        let units = |part: &Part| -> Vec<Unit> {
            let all = part.numbers.iter();
            let all = all.flat_map(|(&pool, numbers): (&PoolId, _)| {
                numbers.iter().map(move |&number| Unit { pool, number })
            });
            all.collect()
        };
        let part = |part: &Part| {
            let book = u16::try_from(part.engine).ok()?;
            Some(PaperPart { book, claim: part.claim?, units: units(part) })
        };
        let parts = request.parts.iter().filter_map(part).collect();
        Some(Copy { paper: Paper { lease, parts }, facts })
    }

    /// Keepers should know more of a lease than they do.
    pub(super) fn copy_again(&mut self, key: u64) {
        self.uncopied.push(key);
    }

    /// An epoch has begun: leases that neither the record nor a keeper has are copied.
    pub(super) fn copy_what_is_new(&mut self) {
        self.uncopied.clear();
        let new = |request: &Request| {
            let lease = request.lease.as_ref().filter(|it| it.status != Status::Ghost);
            let lease = lease.filter(|_| self.is_copied(request)).map(|it| self.key_of(it));
            lease.is_some_and(|lease| !self.change.epochs.is_kept(lease))
        };
        self.uncopied = self.keys_of(new);
    }

    /// A request ends: keepers need its lease no more.
    pub(super) fn forget_copies(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        if let Some(it) = request.keeping.take() {
            let lease = LeaseKey { giver: self.me, fence: it.fence };
            self.keeping.remove(&lease);
            self.uncopied_over.push(lease);
        } else if let Some(request) = self.requests.get(&key)
            && let Some(lease) = &request.lease
            && self.is_copied(request)
        {
            let lease = self.key_of(lease);
            self.uncopied_over.push(lease);
        }
    }

    /// This life is over, and its copies with it.
    pub(super) fn forget_all_copies(&mut self) {
        self.keeping.clear();
        for key in self.keys_of(|request| request.keeping.is_some()) {
            if let Some(request) = self.requests.get_mut(&key) {
                request.keeping = None;
            }
        }
        self.uncopied.clear();
        self.uncopied_over.clear();
    }

    /// Tells keepers all news at once.
    pub(super) fn tell_keepers(&mut self) {
        while !(self.uncopied.is_empty() && self.uncopied_over.is_empty())
            && self.change.epochs.phase() == Phase::Running
            && !self.stopped
        {
            let keys = std::mem::take(&mut self.uncopied);
            let copies = keys.into_iter().filter_map(|key| self.copy(key)).collect();
            let over = std::mem::take(&mut self.uncopied_over);
            self.feed(Input::Keep { copies, over });
            self.settle();
        }
    }

    /// There are enough copies of these leases.
    pub(super) fn on_kept(&mut self, leases: &[LeaseKey]) {
        let keys = leases.iter().filter_map(|lease| self.keeping.get(lease).copied());
        let keys: Vec<u64> = keys.collect();
        self.todo.extend(keys.into_iter().map(Todo::Grant));
    }

    /// Why a request waits that has its units, if it does.
    pub fn lacks_copies(&self, request: &Request) -> Option<String> {
        let fence = request.keeping.as_ref().filter(|_| request.state == State::Queued)?.fence;
        let epochs = &self.change.epochs;
        let lease = LeaseKey { giver: self.me, fence };
        let (needed, there) = epochs.copies_of(lease);
        if epochs.copied() >= MAX_COPIES && there <= 1 {
            return Some(format!(
                "this site has {MAX_COPIES} leases in pools with on_expiry `hold` or \
                 `quarantine`, and copies no more; ask another site"
            ));
        }
        let away = epochs.keepers();
        let away = away.iter().filter(|&site| site != self.me && !self.links.is_up(site));
        let away: Vec<String> = away.map(|site| self.site_name(site)).collect();
        let away = if away.is_empty() {
            String::new()
        } else {
            format!("; no connection to {}", away.join(", "))
        };
        Some(format!(
            "its units are there, and the grant waits for copies: {there} of {needed} sites have \
             one{away}"
        ))
    }
}
