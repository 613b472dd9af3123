//! Baldoni 1994, condition (v): request sets after Singhal 1991, where no grant is recalled.
//!
//! # Idea
//!
//! Of each two sites one asks the other, and no third site decides between them. A site that is
//! asked grants unless its own claim is in use, or waits under an older stamp. If its own claim is
//! younger it lets the other one pass and waits for its release: the recovery that takes INQUIRE
//! and YIELD elsewhere happens inside the one site that both need, without a message.
//!
//! As printed, (v) says that the intersection of Ri and Rj is exactly {i} or {j}. That holds for
//! three sites at most: each site is then in the set of one other site at most, so N(N−1)/2 pairs
//! have at most N arbiters. What the recovery needs is less, and is what runs here: i is in Rj or j
//! is in Ri.
//!
//! # Source
//!
//! Baldoni 1994, conditions (iv) and (v); Singhal 1991 (A class of deadlock-free Maekawa-type
//! algorithms for mutual exclusion).
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | claimant | the sites of its set | may I? |
//! | `Grant` | asked site | claimant | I let you pass |
//! | `Release` | holder | the sites of its set | I have finished |
//!
//! # Cost
//!
//! 3(|R|−1) messages, where R has (N−1)/2 other sites on average: the paper's 3⌈(N−1)/2⌉, and never
//! more. `permission` takes 2(N−1) for one unit.
//!
//! # Assumes
//!
//! Reliable first-in first-out links, one claim of a site at a time. It is mutual exclusion: a
//! claim holds the pool alone, even if it asks for a part of it.
//!
//! # Why it is safe
//!
//! Let two sites hold the unit. One of them, j, has asked the other, i, and i has granted. If i
//! claimed before that grant, i did not hold the unit then and waits for j's release before it
//! does. If i claimed after it, likewise. So i holds the unit only after j's release.
//!
//! It is live: a claim waits for a site that asked it only if that site was granted under an older
//! stamp, or before the claim was made, which by Lamport's clock is the same; it waits for a site
//! that it asks only if that one holds the unit or has an older claim. The oldest claim waits for
//! holders only.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::parts::SiteSet;
use crate::protocol::{
    Blocker, EffectsOf, PeerFault, Price, Profile, Protocol, Rejection, Service,
};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// The protocol at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumAsPrintedSinghal {
    me: SiteId,
    sites: u16,
    units: Units,
    /// The own claim, and whether it holds the unit.
    claim: Option<(Stamp, bool)>,
    /// Asked sites that have not granted it.
    missing: SiteSet,
    /// Sites that were granted and have not released.
    passed: SiteSet,
    /// Claims of others that wait for the own one.
    waiting: BTreeMap<SiteId, Stamp>,
}

/// Messages between sites.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// May I?
    Request {
        /// The claim.
        claim: Stamp,
    },
    /// I let you pass.
    Grant {
        /// The claim.
        claim: Stamp,
    },
    /// I have finished.
    Release,
}

/// Whether i asks j: each site asks the next ones, half of all others.
const fn asks(i: SiteId, j: SiteId, sites: u16) -> bool {
    let distance = (j.0 + sites - i.0) % sites;
    2 * distance < sites && distance > 0 || 2 * distance == sites && i.0 < j.0
}

impl Protocol for QuorumAsPrintedSinghal {
    const NAME: &'static str = "quorum-as-printed-singhal";
    const PROFILE: Profile = Profile {
        source: "Baldoni 1994, (v); Singhal 1991",
        summary: "one unit: of each two sites one asks the other, and no grant is recalled",
        serves: Service::Pool,
        as_printed: true,
        full_service: false,
        gathers: false,
        arbitrated: false,
        price: |sites, _| Price { min: 3 * ((sites - 1) / 2), max: Some(3 * (sites / 2)) },
        survives: &["pause", "partition"],
    };

    type Message = Message;
    type Timer = ();

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self {
            me,
            sites: cluster.sites,
            units: cluster.pools.first().copied().unwrap_or(Units(1)),
            claim: None,
            missing: SiteSet::new(),
            passed: SiteSet::new(),
            waiting: BTreeMap::new(),
        }
    }

    fn me(&self) -> SiteId {
        self.me
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        (pool == PoolId(0)).then_some(self.units)
    }

    fn on_claim(&mut self, claim: Stamp, _demand: Demand, out: &mut EffectsOf<Self>) {
        if self.claim.is_some() {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.claim = Some((claim, false));
        self.missing = self.asked().collect();
        for site in self.missing.iter() {
            out.send(site, claim, Message::Request { claim });
        }
        self.test(out);
    }

    fn on_release(&mut self, claim: Stamp, _part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        if self.claim != Some((claim, true)) {
            return;
        }
        self.claim = None;
        for site in self.asked() {
            out.send(site, claim, Message::Release);
        }
        for (site, claim) in core::mem::take(&mut self.waiting) {
            self.pass(site, claim, out);
        }
    }

    fn on_withdraw(&mut self, _claim: Stamp, _out: &mut EffectsOf<Self>) {
        // The paper knows no withdrawal: the claim goes on.
    }

    fn on_message(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        if from.0 >= self.sites || from == self.me {
            return Err(PeerFault::UnknownSite(from));
        }
        match message {
            Message::Request { claim } => {
                let busy = self.passed.contains(from) || self.waiting.contains_key(&from);
                if claim.site != from || !asks(from, self.me, self.sites) || busy {
                    return Err(PeerFault::ForeignClaim(claim));
                }
                let behind = self.claim.is_some_and(|(own, held)| held || own < claim);
                if behind {
                    self.waiting.insert(from, claim);
                } else {
                    self.pass(from, claim, out);
                }
            }
            Message::Grant { claim } => {
                let mine = self.claim == Some((claim, false));
                if !mine || !self.missing.remove(from) {
                    return Err(PeerFault::Unexpected("a grant that was not asked for"));
                }
                self.test(out);
            }
            Message::Release => {
                if !self.passed.remove(from) {
                    return Err(PeerFault::Unexpected("a release of nothing"));
                }
                self.test(out);
            }
        }
        Ok(())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        if self.claim != Some((claim, false)) {
            return Vec::new();
        }
        let one = |site| Blocker { site, pool: PoolId(0), units: Units(1), claim: None };
        self.missing.iter().chain(self.passed.iter()).map(one).collect()
    }

    fn is_at_rest(&self) -> bool {
        self.claim.is_none() && self.passed.is_empty() && self.waiting.is_empty()
    }
}

impl QuorumAsPrintedSinghal {
    fn asked(&self) -> impl Iterator<Item = SiteId> + use<> {
        let (me, sites) = (self.me, self.sites);
        (0..sites).map(SiteId).filter(move |&site| asks(me, site, sites))
    }

    fn pass(&mut self, site: SiteId, claim: Stamp, out: &mut EffectsOf<Self>) {
        self.passed.insert(site);
        out.send(site, claim, Message::Grant { claim });
    }

    fn test(&mut self, out: &mut EffectsOf<Self>) {
        if let Some((claim, held)) = &mut self.claim
            && !*held
            && self.missing.is_empty()
            && self.passed.is_empty()
        {
            *held = true;
            out.grant(*claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_two_sites_one_asks_the_other() {
        for sites in 1..20 {
            let all = || (0..sites).map(SiteId);
            for (i, j) in all().flat_map(|i| all().map(move |j| (i, j))).filter(|(i, j)| i != j) {
                assert!(asks(i, j, sites) != asks(j, i, sites), "{sites} {i} {j}");
            }
            let sizes = all().map(|i| all().filter(|&j| asks(i, j, sites)).count());
            assert!(sizes.max() <= Some(usize::from(sites) / 2));
        }
    }

    /// (v) to the letter: no site is in the sets of two others.
    #[test]
    fn the_condition_to_the_letter_holds_for_three_sites_at_most() {
        let askers =
            |j: SiteId, sites: u16| (0..sites).map(SiteId).filter(|&i| asks(i, j, sites)).count();
        for sites in 2..20 {
            let letter = (0..sites).map(SiteId).all(|j| askers(j, sites) <= 1);
            assert_eq!(letter, sites <= 3, "{sites}");
            // However the sets are chosen: there are more pairs than sites.
            assert_eq!(sites * (sites - 1) / 2 > sites, sites > 3);
        }
    }
}
