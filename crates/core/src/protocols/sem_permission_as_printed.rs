//! Raynal 1992, annex, to the letter.
//!
//! # Idea
//!
//! The published listing, transcribed with its names, for the checker to refute. The set of those
//! whose permission is awaited is never filled: nobody waits for anybody, and two sites take the
//! one unit there is in two steps. With that repaired, requests still carry the clock instead of
//! the stamp that was just taken, so that two sites permit each other. Each fault is a [`Fault`]
//! that can be left out, so that each can be shown alone.
//!
//! # Source
//!
//! Raynal 1992 (RR-1604), annex.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Requete` | claimant | everybody | may I take k? |
//! | `Permission` | everybody | claimant | you may |
//! | `Incr` | whoever adds | everybody | m more |
//!
//! # Cost
//!
//! P: 2(n−1) messages. V: n−1.
//!
//! # Assumes
//!
//! Reliable links; one claim per site at a time. And still it is not safe.
//!
//! # Why it is safe
//!
//! It is not: see [`sem_permission`](super::sem_permission) for the repair.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::parts::semaphores::{Out, Semaphore, at_least_one, check_added, missing, moved, room};
use crate::parts::{Semaphores, SiteSet};
use crate::protocol::{Blocker, Head, PeerFault, Price, Profile, Rejection, Service};
use crate::readings::{Fault, Faults};
use crate::types::{Cluster, PoolId, SiteId, Stamp, Units};

const PRINTED: &[Fault] = &[Fault::AwaitsNobody, Fault::StampedByClock];

/// The protocol.
pub type SemPermissionAsPrinted = Semaphores<Annex>;

/// The listing's variables, with its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Annex {
    i: SiteId,
    n: u16,
    pool: PoolId,
    s0: i64,
    /// The claim that is `dedans`, and what it takes.
    dedans: Option<(Stamp, Units)>,
    h: u64,
    dernier: u64,
    attendus: SiteSet,
    differe: BTreeMap<SiteId, (u64, Units)>,
    nv: i64,
    np: i64,
    faults: Faults,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A request.
    Requete {
        /// What it takes.
        k: Units,
        /// Its stamp, without the site.
        h: u64,
    },
    /// A permission.
    Permission,
    /// An addition.
    Incr {
        /// How much.
        m: Units,
    },
}

impl Semaphore for Annex {
    const NAME: &'static str = "sem-permission-as-printed";
    const PROFILE: Profile = Profile {
        source: "Raynal 1992, annex, as printed",
        summary: "the published listing: takes units that are not there",
        serves: Service::Semaphore,
        as_printed: true,
        full_service: false,
        gathers: false,
        arbitrated: false,
        price: |sites, _| Price { min: 2 * (sites - 1), max: Some(2 * (sites - 1)) },
        survives: &["pause", "partition"],
    };

    type Message = Message;

    const FAULTS: &'static [Fault] = PRINTED;

    fn new(me: SiteId, cluster: &Cluster, pool: PoolId) -> Self {
        Self {
            i: me,
            n: cluster.sites,
            pool,
            s0: i64::from(cluster.pools[pool.index()].0),
            dedans: None,
            h: 0,
            dernier: 0,
            attendus: SiteSet::new(),
            differe: BTreeMap::new(),
            nv: 0,
            np: 0,
            faults: Faults::new(cluster.reading.as_ref(), PRINTED),
        }
    }

    fn start_at(&mut self, value: i64) {
        self.s0 = value;
    }

    fn claim(&mut self, claim: Stamp, k: Units, out: &mut Out<'_, Message>) {
        if self.dedans.is_some() {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.dedans = Some((claim, k));
        self.dernier = self.h + 1;
        let h = if self.faults.has(Fault::StampedByClock) { self.h } else { self.dernier };
        for j in self.others() {
            out.send(j, claim, Message::Requete { k, h });
        }
        if !self.faults.has(Fault::AwaitsNobody) {
            self.attendus = self.others().collect();
        }
        self.go_on(out);
    }

    fn withdraw(&mut self, _claim: Stamp, _out: &mut Out<'_, Message>) {
        // The listing knows no withdrawal: the claim goes on.
    }

    fn add(&mut self, m: Units, out: &mut Out<'_, Message>) {
        self.nv += i64::from(m.0);
        for j in self.others() {
            out.send(j, None, Message::Incr { m });
        }
        self.go_on(out);
    }

    fn receive(
        &mut self,
        j: SiteId,
        message: Message,
        out: &mut Out<'_, Message>,
    ) -> Result<(), PeerFault> {
        match message {
            Message::Permission => {
                if !self.attendus.remove(j) && !self.faults.has(Fault::AwaitsNobody) {
                    return Err(PeerFault::Unexpected("a permission that was not asked for"));
                }
            }
            Message::Requete { k, h } => {
                if k.is_zero() || h >= crate::types::Clock::LIMIT {
                    return Err(PeerFault::Unexpected("a request that makes no sense"));
                }
                let np = moved(self.np, k.0.into())?;
                self.h = self.h.max(h);
                let priorite = self.dedans.is_some() && (self.dernier, self.i) < (h, j);
                if priorite {
                    self.differe.insert(j, (h, k));
                } else {
                    out.send(j, Stamp { time: h, site: j }, Message::Permission);
                    self.np = np;
                }
            }
            Message::Incr { m } => {
                check_added(m)?;
                self.nv = moved(self.nv, m.0.into())?;
            }
        }
        self.go_on(out);
        Ok(())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let Some((_, k)) = self.dedans.filter(|dedans| dedans.0 == claim) else {
            return Vec::new();
        };
        let units = at_least_one(missing(k, self.vs()));
        let blocker = |site| Blocker { site, pool: self.pool, units, claim: None };
        if self.attendus.is_empty() {
            return vec![blocker(self.i)];
        }
        self.attendus.iter().map(blocker).collect()
    }

    fn head(&self) -> Option<Head> {
        let (claim, k) = self.dedans.filter(|_| self.attendus.is_empty())?;
        Some(Head { claim, missing: missing(k, self.vs()), taken: Some(self.np) })
    }

    fn room(&self) -> u64 {
        room(self.nv)
    }

    fn is_at_rest(&self) -> bool {
        self.dedans.is_none() && self.differe.is_empty()
    }
}

impl Annex {
    fn vs(&self) -> i64 {
        self.s0 + self.nv - self.np
    }

    fn others(&self) -> impl Iterator<Item = SiteId> + use<> {
        let i = self.i;
        (0..self.n).map(SiteId).filter(move |&j| j != i)
    }

    /// The procedure P from where it waits.
    fn go_on(&mut self, out: &mut Out<'_, Message>) {
        let Some(Head { claim, missing: 0, .. }) = self.head() else { return };
        if let Some((_, k)) = self.dedans.take() {
            self.np += i64::from(k.0);
        }
        out.grant(claim);
        for (j, (h, k)) in core::mem::take(&mut self.differe) {
            out.send(j, Stamp { time: h, site: j }, Message::Permission);
            self.np += i64::from(k.0);
        }
    }
}
