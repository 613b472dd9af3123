//! Raynal 1990 §3, as printed.
//!
//! # Idea
//!
//! The published listing, with its own variables: each site counts in `used` what the others use at
//! most, and enters when that leaves enough. It is right for two sites and more. A site that is
//! alone is never granted, since the test runs only when an answer arrives.
//!
//! | the listing | [`permission`](super::permission) |
//! | --- | --- |
//! | `used_i[j]` | the claims of site j in the ledger of site i, listed instead of counted |
//! | `delayed_i` | the claims that counted one of ours and get a `Free` when it ends |
//! | `prio_i` | the order of the line of a pool: claims by stamp |
//! | `maxh_i`, `h_i` | the site's clock, merged with every message |
//! | `scdem_i`, `ok_i` | a claim waits, or is held |
//! | statement XX | an answer counts a claim once |
//!
//! # Source
//!
//! Raynal 1990, §3.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Req` | claimant | every other site | what do you use? |
//! | `Free` | asked site | claimant | this number of units is not used here, or not any more |
//!
//! # Cost
//!
//! 2(n−1) to 3(n−1).
//!
//! # Assumes
//!
//! More than one site, one claim at a time.
//!
//! # Why it is safe
//!
//! `used_i[j]` is never less than what site j uses: it grows by M with every request, and an answer
//! lowers it by what the site does not use. See [`permission`](super::permission) for liveness.

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
pub struct PermissionAsPrinted {
    i: SiteId,
    m: u32,
    scdem: bool,
    ok: bool,
    h: u64,
    maxh: u64,
    used: Vec<u32>,
    delayed: SiteSet,
    k: u32,
    /// The claim that `scdem` or `ok` is about.
    claim: Option<Stamp>,
}

/// The messages of the listing.
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

impl Protocol for PermissionAsPrinted {
    const NAME: &'static str = "permission-as-printed";
    const PROFILE: Profile = Profile {
        source: "Raynal 1990, §3, as printed",
        summary: "the published listing: never grants to a site that is alone",
        serves: Service::Pool,
        as_printed: true,
        full_service: false,
        gathers: false,
        arbitrated: false,
        price: |sites, _| Price { min: 2 * (sites - 1), max: Some(3 * (sites - 1)) },
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
            self.used[j.index()] += self.m;
            out.send(j, claim, Message::Req { h: self.h });
        }
        self.scdem = true;
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
                // Statement XX: the first answer to this site told it already what is used here.
                if !prio || self.delayed.contains(j) {
                    out.send(j, None, Message::Free { y: self.m });
                } else {
                    if self.k != self.m {
                        out.send(j, None, Message::Free { y: self.m - self.k });
                    }
                    self.delayed.insert(j);
                }
            }
            Message::Free { y } => {
                let used = self.used[j.index()].checked_sub(y);
                self.used[j.index()] = used.ok_or(PeerFault::Unexpected("more freed than used"))?;
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

impl PermissionAsPrinted {
    fn others(&self) -> impl Iterator<Item = SiteId> + use<> {
        let (me, n) = (self.i, self.used.len());
        (0..).map(SiteId).take(n).filter(move |&j| j != me)
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
