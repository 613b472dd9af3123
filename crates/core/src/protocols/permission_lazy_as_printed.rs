//! Raynal 1990, §5.1, to the letter.
//!
//! # Idea
//!
//! The published listing, transcribed with its names, for the checker to refute. A user answers
//! "all free" to a request with a smaller stamp, because sites that skip each other do not exchange
//! clocks: with two sites and two units, three units are in use after 13 steps.
//!
//! # Source
//!
//! Raynal 1990 (RR-1342), §5.1.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Req` | claimant | who is not known to be using | may I? |
//! | `Free` | everybody | claimant | so many units are free as far as I am concerned |
//!
//! # Cost
//!
//! 0 to 3(n−1) messages per claim.
//!
//! # Assumes
//!
//! First-in first-out links; one pool; one claim per site at a time. And still it is not safe.
//!
//! # Why it is safe
//!
//! It is not: see [`permission_lazy`](super::permission_lazy) for the repair.

use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::parts::SiteSet;
use crate::protocol::{
    Blocker, EffectsOf, PeerFault, Price, Profile, Protocol, Rejection, Service,
};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// The listing's local context, with its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PermissionLazyAsPrinted {
    i: SiteId,
    m: u32,
    scdem: bool,
    ok: bool,
    h: u64,
    maxh: u64,
    used: Vec<u32>,
    asked: SiteSet,
    delayed: SiteSet,
    k: u32,
    /// The claim that `scdem` or `ok` is about.
    claim: Option<Stamp>,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A request with the listing's own clock.
    Req {
        /// The clock.
        h: u64,
    },
    /// So many units are free.
    Free {
        /// How many.
        y: u32,
    },
}

impl Protocol for PermissionLazyAsPrinted {
    const NAME: &'static str = "permission-lazy-as-printed";
    const PROFILE: Profile = Profile {
        source: "Raynal 1990, §5.1, as printed",
        summary: "the published listing: over-allocates",
        serves: Service::Pool,
        as_printed: true,
        full_service: false,
        gathers: false,
        arbitrated: false,
        price: |sites, _| Price { min: 0, max: Some(3 * (sites - 1)) },
        survives: &["pause", "partition"],
    };

    type Message = Message;
    type Timer = ();

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self {
            i: me,
            m: cluster.pools[0].0,
            scdem: false,
            ok: false,
            h: 0,
            maxh: 0,
            used: vec![0; usize::from(cluster.sites)],
            asked: SiteSet::new(),
            delayed: SiteSet::new(),
            k: 0,
            claim: None,
        }
    }

    fn me(&self) -> SiteId {
        self.i
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        (pool == PoolId(0)).then_some(Units(self.m))
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        if self.claim.is_some() {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.claim = Some(claim);
        self.k = demand.units(PoolId(0)).0;
        self.h = self.maxh + 1;
        for j in self.others() {
            if self.used[j.index()] == 0 {
                self.ask(j, out);
            } else {
                self.asked.remove(j);
            }
        }
        self.scdem = true;
        self.test(out);
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        // The listing knows no partial release: the claim is over when all is given back.
        let whole = part.is_none_or(|part| part.units(PoolId(0)).0 == self.k);
        if self.claim != Some(claim) || !self.ok || !whole {
            return;
        }
        self.ok = false;
        self.claim = None;
        for j in core::mem::take(&mut self.delayed).iter() {
            out.send(j, None, Message::Free { y: self.k });
        }
    }

    fn on_withdraw(&mut self, _claim: Stamp, _out: &mut EffectsOf<Self>) {
        // The listing knows no withdrawal: the claim goes on.
    }

    fn on_message(
        &mut self,
        j: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        if j.index() >= self.used.len() || j == self.i {
            return Err(PeerFault::UnknownSite(j));
        }
        match message {
            Message::Req { h } => {
                if h >= crate::Clock::LIMIT {
                    return Err(PeerFault::ClockTooFar);
                }
                self.maxh = self.maxh.max(h);
                let prio = (self.scdem || self.ok) && (self.h, self.i) < (h, j);
                if prio {
                    if self.k != self.m {
                        out.send(j, None, Message::Free { y: self.m - self.k });
                    }
                    self.delayed.insert(j);
                } else {
                    out.send(j, None, Message::Free { y: self.m });
                }
            }
            Message::Free { y } => {
                let used = self.used[j.index()].checked_sub(y);
                self.used[j.index()] = used.ok_or(PeerFault::Unexpected("more freed than used"))?;
                if self.scdem && self.used[j.index()] == 0 && !self.asked.contains(j) {
                    self.ask(j, out);
                }
                self.test(out);
            }
        }
        Ok(())
    }

    fn explain(&self, _claim: Stamp) -> Vec<Blocker> {
        if !self.scdem {
            return Vec::new();
        }
        let using = self.others().filter(|j| self.used[j.index()] != 0);
        let blocker = |site: SiteId| Blocker {
            site,
            pool: PoolId(0),
            units: Units(self.used[site.index()]),
            claim: None,
        };
        using.map(blocker).collect()
    }

    fn is_at_rest(&self) -> bool {
        self.claim.is_none() && self.used.iter().all(|&used| used == 0) && self.delayed.is_empty()
    }
}

impl PermissionLazyAsPrinted {
    fn others(&self) -> impl Iterator<Item = SiteId> + use<> {
        let (me, n) = (self.i, self.used.len());
        (0..).map(SiteId).take(n).filter(move |&j| j != me)
    }

    fn ask(&mut self, j: SiteId, out: &mut EffectsOf<Self>) {
        self.used[j.index()] = self.m;
        self.asked.insert(j);
        out.send(j, self.claim, Message::Req { h: self.h });
    }

    fn test(&mut self, out: &mut EffectsOf<Self>) {
        let used: u64 = self.used.iter().map(|&used| u64::from(used)).sum();
        if let Some(claim) = self.claim
            && self.scdem
            && used + u64::from(self.k) <= u64::from(self.m)
        {
            self.scdem = false;
            self.ok = true;
            out.grant(claim);
        }
    }
}
