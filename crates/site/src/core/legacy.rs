//! Leases that outlive their process: written down, and taken over by the next life.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use kofm_core::Unit;
use kofm_core::epoch::{Record, Standing};
use tracing::{error, info, warn};

use super::{Core, Lease, Part, Request, Status, Timer, Todo};
use crate::api::{self, Hold, Holder, OnExpiry, State, Want};
use crate::boottime::Moment;
use crate::engine;
use crate::journal::{Journal, Legacy, Saved, SavedPart};
use crate::plan::Plan;

/// How long a journal that is behind is left alone between two tries.
const REWRITE: Duration = Duration::from_millis(200);

impl Core {
    /// A lease as it is written down; none where nobody could go on with it.
    fn saved(&self, key: u64) -> Option<Saved> {
        let request = self.requests.get(&key)?;
        let lease = request.lease.as_ref()?;
        // A protocol that heals by itself counts on what a site had being over with its life.
        let heals = |part: &Part| engine::heals(self.engines[part.engine].kind);
        let over = lease.status == Status::Ghost;
        if over || request.hold != Hold::Lease || request.parts.iter().any(heals) {
            return None;
        }
        let part = |part: &Part| {
            let units = part.numbers.iter().flat_map(|(&pool, numbers)| {
                numbers.iter().map(move |&number| Unit { pool, number })
            });
            Some(SavedPart {
                protocol: self.engines[part.engine].group.id(),
                claim: part.claim?,
                demand: part.demand.clone(),
                counted: part.counted,
                units: units.collect(),
            })
        };
        let text = |text: &Option<Arc<str>>| text.as_ref().map(ToString::to_string);
        Some(Saved {
            lease: lease.id.to_string(),
            request: request.id.to_string(),
            want: Want::clone(&request.asked),
            owner: text(&request.owner),
            reason: text(&request.reason),
            principal: text(&request.principal),
            ttl: lease.ttl,
            fence: lease.fence,
            epoch: lease.epoch,
            expires: lease.expires.nanos(),
            since: lease.since.nanos(),
            parts: request.parts.iter().map(part).collect::<Option<_>>()?,
            adopted: lease.adopted.filter(|it| it.since > 0),
            kept: match lease.status {
                Status::Live | Status::Lapsed | Status::Ghost => None,
                Status::Held => Some(OnExpiry::Hold),
                Status::Quarantined => Some(OnExpiry::Quarantine),
            },
        })
    }

    /// Records a lease before its client is told of it. Returns false if the lease must be on the
    /// disk, and is not.
    pub(super) fn note_held(&mut self, key: u64) -> bool {
        let Some(journal) = &self.journal else { return true };
        let (synced, behind) = (journal.synced(), journal.is_behind());
        let Some(saved) = self.saved(key) else { return true };
        if behind {
            self.catch_up();
        } else {
            let written = self.journal.as_mut().map_or(Ok(()), |journal| journal.held(saved));
            self.check_journal(written);
        }
        !synced || !self.is_journal_behind()
    }

    /// Records a new end of a lease before its client is told of it, without a sync.
    pub(super) fn note_renewed(&mut self, key: u64) {
        let lease = self.requests.get(&key).and_then(|request| request.lease.as_ref());
        let (Some(lease), Some(journal)) = (lease, &mut self.journal) else { return };
        if journal.is_behind() {
            // The next file has it.
            return;
        }
        let written = journal.renewed(&lease.id, lease.expires.nanos());
        let long = journal.is_long();
        self.check_journal(written);
        if long && !self.is_journal_behind() {
            self.rewrite_journal();
        }
    }

    /// Records the end of a lease before its units move on.
    pub(super) fn note_over(&mut self, lease: &str) {
        let Some(journal) = &mut self.journal else { return };
        if journal.is_behind() {
            // It is not in the next file.
            return;
        }
        let written = journal.over(lease);
        let long = journal.is_long();
        self.check_journal(written);
        if long && !self.is_journal_behind() {
            self.rewrite_journal();
        }
    }

    pub(super) fn is_journal_behind(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_behind)
    }

    /// After a failed write only a new file with all leases can go on.
    pub(super) fn check_journal(&mut self, written: io::Result<()>) {
        match written {
            Err(error) => {
                warn!(%error, "a write to the file of leases failed: it is written as a whole");
                self.rewrite_journal();
            }
            // Another incarnation has begun its file, which the last one could not write.
            Ok(()) if self.rewrite_at.is_some() && !self.is_journal_behind() => {
                self.rewrite_at = None;
                self.change.unrecorded = None;
                self.change.publish();
            }
            Ok(()) => {}
        }
    }

    /// Writes a journal that is behind, at most once in [`REWRITE`].
    pub(super) fn catch_up(&mut self) {
        let due = self.rewrite_at.is_some_and(|moment| moment <= self.now);
        if due && self.is_journal_behind() {
            self.rewrite_journal();
        }
    }

    pub(super) fn rewrite_journal(&mut self) {
        let leases = self.all_saved();
        let Some(journal) = &mut self.journal else { return };
        let written = journal.rewrite(leases);
        let path = journal.path().display().to_string();
        let known = self.rewrite_at.is_some();
        self.rewrite_at = written.is_err().then(|| self.now.after(REWRITE));
        let effect = if journal.synced() {
            "this site grants nothing"
        } else {
            "a restart of this site loses its leases"
        };
        match written {
            Ok(()) if known => info!(%path, "leases are written down again"),
            Ok(()) => {}
            Err(_) if known => {}
            Err(error) => error!(
                %path, %error,
                "cannot write leases down: {effect} until the disk takes them; make room or \
                 repair it, the site tries again by itself"
            ),
        }
        let trouble = journal.is_behind() && journal.synced();
        let trouble = trouble.then(|| {
            format!("cannot write leases to {path}, so nothing is granted here: make room there")
        });
        if self.change.unrecorded != trouble {
            self.change.unrecorded = trouble;
            self.change.publish();
        }
    }

    fn all_saved(&self) -> Vec<Saved> {
        let granted = self.keys_of(|request| request.lease.is_some());
        granted.into_iter().filter_map(|key| self.saved(key)).collect()
    }

    /// Whether a lease of the last life may go on: it waits for the next epoch.
    pub(super) fn is_legacy(&self, lease: &str) -> bool {
        self.legacy.as_ref().is_some_and(|legacy| legacy.leases.contains_key(lease))
    }

    /// Whether such a lease came from the request with this id.
    pub(super) fn is_legacy_request(&self, id: &str) -> bool {
        let mut leases = self.legacy.iter().flat_map(|legacy| legacy.leases.values());
        leases.any(|saved| saved.request == id)
    }

    /// Whose a lease or request of the last life is.
    pub(super) fn legacy_holder(&self, id: &str) -> Option<Holder> {
        let mut leases = self.legacy.iter().flat_map(|legacy| legacy.leases.values());
        let is_it =
            |it: &&Saved| it.lease == id || it.request == id || api::lease_name(&it.lease) == id;
        let saved = leases.find(is_it)?;
        let pools = saved.want.keys().cloned().collect();
        Some(Holder { principal: saved.principal.clone(), pools })
    }

    /// Ids of leases of the last life with this name.
    pub(super) fn legacy_named(&self, name: &str) -> impl Iterator<Item = &str> {
        let leases = self.legacy.iter().flat_map(|legacy| legacy.leases.keys());
        leases.map(String::as_str).filter(move |id| api::lease_name(id) == name)
    }

    /// The holder of a lease of the last life, or of the request that it came from, does not need
    /// it any more. Returns false if there is none.
    pub(super) fn drop_legacy(&mut self, id: &str) -> bool {
        let Some(legacy) = &mut self.legacy else { return false };
        let count = legacy.leases.len();
        legacy.leases.retain(|lease, saved| lease != id && saved.request != id);
        legacy.leases.len() < count
    }

    /// The site stops: no protocol takes a step from now on, and the leases are written down.
    pub(super) fn farewell(&mut self) {
        if !self.stopped {
            self.refuse_queued("the site stops");
        }
        let now = self.now;
        // Only a member in good standing knows that what it has is its own.
        let good = !self.stands_still() && !self.has_lapsed(now);
        self.stopped = true;
        if !good || !self.todo.is_empty() {
            return;
        }
        if self.is_journal_behind() {
            self.rewrite_journal();
        }
        let leases = self.all_saved();
        let idle = self
            .engines
            .iter()
            .map(|it| (it.group.id(), it.engine.idle_units().unwrap_or_else(|| it.names.idle())));
        let idle = idle.collect();
        let (clock, count) = (self.clock, leases.len());
        if let Some(journal) = &mut self.journal {
            match journal.close(leases, clock, idle) {
                Ok(()) => info!(leases = count, "written down for the next start"),
                Err(error) => error!(%error, "cannot write the leases down"),
            }
        }
    }

    /// Takes the leases with which the next incarnation may go on out of the tables. Their units
    /// are withheld for this site until its lease is over, as after a crash.
    pub(super) fn carry_leases(&mut self) -> Legacy {
        let mut legacy = Legacy::default();
        (legacy.clock, legacy.timely) = (self.clock, true);
        for key in self.keys_of(|request| request.lease.is_some()) {
            let Some(saved) = self.saved(key) else { continue };
            legacy.leases.insert(saved.lease.clone(), saved);
            let lease = self.requests.get_mut(&key).and_then(|request| request.lease.take());
            if let Some(lease) = lease {
                self.drop_lease(key, &lease);
            }
            self.forget(key);
        }
        info!(leases = legacy.leases.len(), "this site joins again with its leases");
        legacy
    }

    /// Goes on with the leases of the last life that the cluster has confirmed.
    pub(super) fn inherit(&mut self, record: &Record<Plan>) {
        let Some(legacy) = self.legacy.take() else { return };
        let mut taken = BTreeSet::new();
        let now = self.now;
        for saved in legacy.leases.into_values() {
            let confirmed = saved.parts.iter().all(|part| {
                let engine = self.engine_of(part.protocol);
                let survey = engine.and_then(|engine| record.surveys.get(engine));
                let told = survey.and_then(|survey| survey.claims.get(&part.claim));
                told.is_some_and(|told| told.held.as_ref() == Some(&part.units))
            });
            let pools: Option<Vec<(usize, u32)>> = saved
                .want
                .iter()
                .map(|(name, &units)| Some((*self.pool_by_name.get(name.as_str())?, units)))
                .collect();
            let confirmed = confirmed && pools.is_some() && !saved.parts.is_empty();
            let key = self.next_key;
            self.next_key += 1;
            let mut request = request_of(&saved, pools.unwrap_or_default(), now);
            self.by_id.insert(Arc::clone(&request.id), key);
            self.shares.add(&request);
            if !confirmed {
                self.requests.insert(key, Box::new(request));
                self.end(key, State::Expired, "the other sites went on without its site");
                continue;
            }
            let mut units: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
            let mut parts = Vec::new();
            let mut adopted = None;
            for part in saved.parts {
                let Some(engine) = self.engine_of(part.protocol) else { continue };
                let told = record.surveys.get(engine);
                let told = told.and_then(|survey| survey.claims.get(&part.claim));
                adopted = adopted.or_else(|| told.and_then(|told| told.adopted));
                let mut numbers: BTreeMap<_, Vec<u32>> = BTreeMap::new();
                for unit in part.units {
                    numbers.entry(unit.pool).or_default().push(unit.number);
                    let place = self.engines[engine].pools[unit.pool.index()];
                    units.entry(place).or_default().push(unit.number);
                    self.pools[place].used.insert(unit.number, key);
                }
                self.by_claim.insert((engine, part.claim), key);
                taken.insert((engine, part.claim));
                parts.push(Part {
                    engine,
                    demand: part.demand,
                    claim: Some(part.claim),
                    granted: true,
                    counted: part.counted,
                    numbers,
                });
            }
            // After a restart of the machine the moments mean nothing, so the lease gets its whole
            // ttl, which is longer than its holder can count on.
            let expires = if legacy.timely || saved.kept.is_some() {
                Moment::from_nanos(saved.expires)
            } else {
                now.after(saved.ttl)
            };
            let end = expires.after(super::leases::slack(saved.ttl)).max(now);
            let live = saved.kept.is_none();
            let timer = live.then(|| self.start_timer(end, Timer::Lease(key)));
            for (&place, numbers) in &units {
                let pool = &mut self.pools[place];
                if !live && pool.config.on_expiry == OnExpiry::Quarantine {
                    pool.quarantined.extend(numbers);
                }
            }
            let lease: Arc<str> = saved.lease.into();
            self.by_lease.insert(Arc::clone(&lease), key);
            let lease = Lease {
                name: api::lease_name(&lease).into(),
                id: lease,
                fence: saved.fence,
                epoch: saved.epoch,
                ttl: saved.ttl,
                expires,
                since: Moment::from_nanos(saved.since).min(now),
                timer,
                status: match saved.kept {
                    None | Some(OnExpiry::Release) => Status::Live,
                    Some(OnExpiry::Hold) => Status::Held,
                    Some(OnExpiry::Quarantine) => Status::Quarantined,
                },
                names: Arc::new(self.units_view(&units)),
                units,
                adopted,
            };
            (request.part, request.parts) = (parts.len(), parts);
            request.lease = Some(Box::new(lease));
            self.requests.insert(key, Box::new(request));
            self.note_held(key);
            self.look_after(key);
        }
        info!(claims = taken.len(), "went on with leases of the last life");
        // What was confirmed and cannot be gone on with is given back.
        for (engine, survey) in record.surveys.iter().enumerate() {
            let mine = survey.of(self.me).filter(|(claim, _)| !taken.contains(&(engine, *claim)));
            // Leases that other lives had granted are taken over.
            let other = |standing: &Standing| standing.adopted.is_some_and(|it| it.since > 0);
            for (claim, standing) in mine.filter(|it| !other(it.1)) {
                let mut numbers: BTreeMap<_, Vec<u32>> = BTreeMap::new();
                for unit in standing.held.iter().flatten() {
                    numbers.entry(unit.pool).or_default().push(unit.number);
                }
                let counted = self.engines[engine].engine.idle_units().is_none();
                let (demand, claim) = (standing.demand.clone(), Some(claim));
                let granted = standing.held.is_some();
                let part = Part { engine, demand, claim, granted, counted, numbers };
                self.todo.push_back(Todo::Undo(part));
            }
        }
    }
}

/// The request of a lease that was written down, without its lease and the parts of its demand.
fn request_of(saved: &Saved, want: Vec<(usize, u32)>, now: Moment) -> Request {
    let live = saved.kept.is_none();
    Request {
        // Perhaps, and then it is asked for again.
        named: true,
        id: saved.request.as_str().into(),
        want,
        asked: Arc::new(saved.want.clone()),
        owner: saved.owner.as_deref().map(Into::into),
        reason: saved.reason.as_deref().map(Into::into),
        principal: saved.principal.as_deref().map(Into::into),
        ttl: saved.ttl,
        hold: Hold::Lease,
        once: false,
        state: if live { State::Granted } else { State::Expired },
        cause: (!live).then(|| "a person must release the lease".into()),
        code: None,
        doom: None,
        submitted: now,
        waited: Duration::ZERO,
        part: 0,
        parts: Vec::new(),
        lease: None,
        deadline: None,
        keeping: None,
        orphan: None,
        watchers: Vec::new(),
    }
}
