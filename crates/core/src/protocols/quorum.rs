//! Ask a few arbiters; any that would be too many meet at one of them.
//!
//! # Idea
//!
//! A claim asks the arbiters in its site's request set, and is held once all of them, or as many as
//! the set says, have granted. An arbiter grants no more than M units, oldest claim first. When an
//! older claim arrives late, the arbiter asks the youngest claimants for as many grants back as it
//! takes: whoever does not hold yet gives its grant back and waits again.
//!
//! # Source
//!
//! Baldoni 1994 (k-out-of-M in O(N^(M/(M+1))) messages), which is Maekawa 1985 with M = 1. The
//! listing has faults: [`quorum_as_printed`](super::quorum_as_printed) keeps them.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | claimant | arbiter | here is my claim |
//! | `Grant` | arbiter | claimant | as far as I am concerned, you may |
//! | `Inquire` | arbiter | claimant | an older claim came: do you hold yet? |
//! | `Yield` | claimant | arbiter | no; have it back, and remember me |
//! | `Reduce` | holder | arbiter | I keep only so much |
//! | `Release` | claimant | arbiter | this claim is over, held or not |
//!
//! Every message names its claim and pool; grants are numbered for each claim and arbiter, and
//! `Inquire` and `Yield` say which grant they mean. A holder does not answer an `Inquire`: its
//! `Release` will. A site that is an arbiter of its own claims needs no messages for that.
//!
//! # Cost
//!
//! Let R be the request set, without the site itself. Every claim costs 3|R| messages: request,
//! grant, release. A recall costs three more: inquire, yield, and the second grant. One arrival
//! recalls at most M grants at an arbiter, so on average over all claims no more than (3+3M)|R| are
//! spent; but a single claim has no bound, since every older arrival can recall it once more. The
//! paper says at most 5|R|: it leaves out the second grant, and that one claim may recall several
//! and be recalled several times. Runs come to 3.0 to 3.3 times |R| on average.
//!
//! # Assumes
//!
//! Reliable first-in first-out links. Sites do not crash, but in the threshold form (a crash budget
//! in [`Arbitration`](crate::quorums::Arbitration)) that many arbiters may fall silent for ever.
//! A claim there asks the whole group and is held with fewer grants; the dead need no care.
//!
//! # Why it is safe
//!
//! Suppose claims are held that are too many for a pool. Then some M + 1 of them are, or fewer, and
//! their sets, less the grants that they did without, have an arbiter in common. Each of them
//! counted a grant of that arbiter when it became held. A counted grant stands in the arbiter's
//! books: it is struck out only by a yield, after which it is not counted, or by a release, after
//! which the claim is not held. So that arbiter has granted more than M units, which it never does.
//!
//! Progress: the oldest claim that waits is first in every queue, nobody older is left to recall
//! its grants, and every grant in its way is either given back, or its claim is held and ends. One
//! stamp serves all pools, so all arbiters agree who is oldest, and no circle can form.
//!
//! # Differs from the paper
//!
//! An arbiter never waits inside a handler: as printed two arbiters that wait for each other's
//! yield deadlock. Messages name claim and grant: as printed a late inquire makes a claimant yield
//! what it is about to use. One stamp per claim, where the listing takes one per message. After a
//! release everything that fits is granted, and nothing that does not. Grants are recalled only if
//! the older claim does not fit beside them, and only enough of them. The site's own arbiter is
//! no special case. Clocks travel with every message. Any `min(N, M+1)` sets meet, where the
//! printed condition says nothing for N ≤ M. Beyond the paper: several claims per site, parts given
//! back, withdrawal, demands for several pools, and enough grants instead of all.

mod arbiter;
mod ballot;
pub mod rules;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use self::arbiter::{Arbiter, Ruling};
use self::ballot::Ballot;
use self::rules::{Rules, Slip, Sound};
use crate::epoch::Survey;
use crate::parts::SiteSet;
use crate::protocol::{Blocker, EffectsOf, PeerFault, Price, Profile, Protocol, SURVIVES, Service};
use crate::quorums::{RequestSet, RequestSets, Terms};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// The protocol at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quorum<R = Sound> {
    me: SiteId,
    sites: u16,
    pools: Arc<[Units]>,
    /// Whom this site asks, by pool.
    sets: Arc<[RequestSet]>,
    /// Own claims.
    claims: BTreeMap<Stamp, Ballot>,
    /// The books of this site as an arbiter, by pool.
    arbiters: Vec<Arbiter>,
    rules: PhantomData<R>,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Here is a claim.
    Request {
        /// The claim.
        claim: Stamp,
        /// The pool it is about.
        pool: PoolId,
        /// What it asks of it.
        units: Units,
    },
    /// As far as this arbiter is concerned, the claim may be held.
    Grant {
        /// The claim.
        claim: Stamp,
        /// The pool.
        pool: PoolId,
        /// How many times this arbiter has granted it, with this one.
        attempt: u32,
    },
    /// The grant is wanted back, unless the claim is held.
    Inquire {
        /// The claim.
        claim: Stamp,
        /// The pool.
        pool: PoolId,
        /// Which grant.
        attempt: u32,
        /// The claim that it is wanted for.
        older: Stamp,
    },
    /// Here it is; the claim waits again.
    Yield {
        /// The claim.
        claim: Stamp,
        /// The pool.
        pool: PoolId,
        /// Which grant.
        attempt: u32,
    },
    /// A holder has given back a part.
    Reduce {
        /// The claim.
        claim: Stamp,
        /// The pool.
        pool: PoolId,
        /// What it keeps, which is less than before and not nothing.
        units: Units,
    },
    /// The claim has nothing of the pool and wants nothing of it any more.
    Release {
        /// The claim.
        claim: Stamp,
        /// The pool.
        pool: PoolId,
    },
}

impl<R: Rules> Protocol for Quorum<R> {
    const NAME: &'static str = "quorum";
    const PROFILE: Profile = Profile {
        source: "Baldoni 1994, corrected, non-blocking",
        summary: "asks a request set of arbiters; many sites, few units",
        serves: Service::Pool,
        as_printed: false,
        full_service: true,
        gathers: false,
        arbitrated: true,
        price,
        survives: SURVIVES,
    };

    type Message = Message;
    type Timer = ();

    /// The terms of all pools can be met: whoever makes a cluster has asked [`RequestSets::check`].
    fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self {
            me,
            sites: cluster.sites,
            pools: cluster.pools.clone().into(),
            sets: request_sets(me, cluster).into(),
            claims: BTreeMap::new(),
            arbiters: cluster.pools.iter().copied().map(Arbiter::new).collect(),
            rules: PhantomData,
        }
    }

    fn me(&self) -> SiteId {
        self.me
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.pools.get(pool.index()).copied()
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        self.claims.insert(claim, Ballot::new(demand.clone(), &self.sets));
        for (pool, units) in demand.parts() {
            self.tell_arbiters(pool, &Message::Request { claim, pool, units }, out);
        }
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let Some(ballot) = self.claims.get_mut(&claim).filter(|ballot| ballot.is_held()) else {
            return;
        };
        let before = ballot.demand.clone();
        let Some(left) = before.minus(part.unwrap_or(&before)) else { return };
        if left.is_empty() {
            self.claims.remove(&claim);
        } else {
            ballot.demand = left.clone();
        }
        for (pool, had) in before.parts() {
            let units = left.units(pool);
            if units.is_zero() {
                self.tell_arbiters(pool, &Message::Release { claim, pool }, out);
            } else if units < had {
                self.tell_arbiters(pool, &Message::Reduce { claim, pool, units }, out);
            }
        }
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        if self.claims.get(&claim).is_none_or(Ballot::is_held) {
            return;
        }
        let ballot = self.claims.remove(&claim).expect("it was there a moment ago");
        if R::SLIP == Some(Slip::WithdrawsInSilence) {
            return;
        }
        for pool in ballot.demand.pools() {
            self.tell_arbiters(pool, &Message::Release { claim, pool }, out);
        }
    }

    fn on_message(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        self.check(from, &message)?;
        match message {
            Message::Grant { claim, pool, .. } => self.on_grant(from, claim, pool, out),
            Message::Inquire { claim, pool, attempt, older } => {
                if self.on_inquire(from, claim, pool, older) {
                    out.send(from, claim, Message::Yield { claim, pool, attempt });
                }
            }
            Message::Request { pool, .. }
            | Message::Yield { pool, .. }
            | Message::Reduce { pool, .. }
            | Message::Release { pool, .. } => self.arbitrate(pool, &message, out),
        }
        Ok(())
    }

    /// At the claim's own site: the arbiters that have not granted, and whom they granted instead,
    /// as far as they have said. At an arbiter it also answers for the claims of others, which is
    /// where to ask on.
    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let Some(ballot) = self.claims.get(&claim) else { return self.granted_instead_of(claim) };
        let mut list = Vec::new();
        for (pool, site, instead) in ballot.missing(&self.sets) {
            if site == self.me {
                let here = self.granted_instead_of(claim);
                list.extend(here.into_iter().filter(|blocker| blocker.pool == pool));
            } else {
                list.push(Blocker { site, pool, units: self.pools[pool.index()], claim: instead });
            }
        }
        list
    }

    fn is_at_rest(&self) -> bool {
        self.claims.is_empty() && self.arbiters.iter().all(Arbiter::is_empty)
    }

    fn audit(&self) {
        if R::SLIP.is_none() {
            self.arbiters.iter().for_each(Arbiter::audit);
            self.claims.values().for_each(Ballot::audit);
        }
    }

    /// The sets are made for the units that may be used: with fewer units more of them have to
    /// meet.
    /// Each arbiter has in its books what it would have been asked by now.
    fn resume(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        let mut usable = cluster.clone();
        for (pool, units) in (0..).map(PoolId).zip(&mut usable.pools) {
            *units = survey.usable(cluster, pool).max(Units(1)).min(*units);
        }
        let mut fresh = Self::new(me, &usable);
        fresh.pools = cluster.pools.clone().into();
        for (pool, arbiter) in (0..).map(PoolId).zip(&mut fresh.arbiters) {
            let units = survey.usable(cluster, pool);
            let asks = |site: SiteId| {
                let sets = RequestSets::of_pool(&usable, pool);
                sets.is_ok_and(|sets| sets.of(site).arbiters.binary_search(&me).is_ok())
            };
            let sites: SiteSet = cluster.all().filter(|&site| asks(site)).collect();
            let claims = survey.claims.iter().filter(|(claim, standing)| {
                sites.contains(claim.site) && !standing.demand.units(pool).is_zero()
            });
            *arbiter = Arbiter::resume(
                units,
                claims.map(|(&c, s)| (c, s.demand.units(pool), s.held.is_some())),
            );
        }
        for (claim, standing) in survey.of(me) {
            let mut ballot = Ballot::new(standing.demand.clone(), &fresh.sets);
            if standing.held.is_some() {
                ballot.hold();
            }
            fresh.claims.insert(claim, ballot);
        }
        fresh
    }

    fn on_resume(&mut self, _survey: &Survey, out: &mut EffectsOf<Self>) {
        for pool in (0..).map(PoolId).take(self.arbiters.len()) {
            let rulings = self.arbiters[pool.index()].resumed::<R>();
            self.carry_out(pool, rulings, out);
        }
    }
}

impl<R: Rules> Quorum<R> {
    /// Sends a message to the arbiters of a pool; the one here reads it at once.
    fn tell_arbiters(&mut self, pool: PoolId, message: &Message, out: &mut EffectsOf<Self>) {
        let sets = Arc::clone(&self.sets);
        for &site in sets[pool.index()].arbiters.iter().filter(|&&site| site != self.me) {
            out.send(site, message.claim(), message.clone());
        }
        if sets[pool.index()].arbiters.binary_search(&self.me).is_ok() {
            self.arbitrate(pool, message, out);
        }
    }

    /// Lets the arbiter here act on a claimant's message, and carries out what it rules.
    fn arbitrate(&mut self, pool: PoolId, message: &Message, out: &mut EffectsOf<Self>) {
        let arbiter = &mut self.arbiters[pool.index()];
        let rulings = match *message {
            Message::Request { claim, units, .. } => arbiter.asked::<R>(claim, units),
            Message::Yield { claim, .. } => arbiter.yielded::<R>(claim),
            Message::Reduce { claim, units, .. } => arbiter.reduced::<R>(claim, units),
            Message::Release { claim, .. } => arbiter.released::<R>(claim),
            Message::Grant { .. } | Message::Inquire { .. } => {
                unreachable!("an arbiter says this, and is not told it")
            }
        };
        self.carry_out(pool, rulings, out);
    }

    /// Carries out what the arbiter here rules.
    fn carry_out(&mut self, pool: PoolId, rulings: Vec<Ruling>, out: &mut EffectsOf<Self>) {
        // A queue and no recursion: what an own claim gives back changes the books once more.
        let mut rulings = VecDeque::from(rulings);
        while let Some(Ruling { claim, attempt, recall_for }) = rulings.pop_front() {
            match recall_for {
                None if claim.site == self.me => self.on_grant(self.me, claim, pool, out),
                None => out.send(claim.site, claim, Message::Grant { claim, pool, attempt }),
                Some(older) if claim.site == self.me => {
                    if self.on_inquire(self.me, claim, pool, older) {
                        rulings.extend(self.arbiters[pool.index()].yielded::<R>(claim));
                    }
                }
                Some(older) => {
                    out.send(claim.site, claim, Message::Inquire { claim, pool, attempt, older });
                }
            }
        }
    }

    /// Counts a grant. A claim that is over, or held without it, has no use for it.
    fn on_grant(&mut self, arbiter: SiteId, claim: Stamp, pool: PoolId, out: &mut EffectsOf<Self>) {
        let Some(seat) = self.seat(pool, arbiter) else { return };
        let ballot = self.claims.get_mut(&claim);
        if ballot.is_some_and(|ballot| ballot.grant::<R>(pool, seat, arbiter)) {
            out.grant(claim);
        }
    }

    /// Whether a grant is given back. A claim that is over has released it already.
    fn on_inquire(&mut self, arbiter: SiteId, claim: Stamp, pool: PoolId, older: Stamp) -> bool {
        let Some(seat) = self.seat(pool, arbiter) else { return false };
        let ballot = self.claims.get_mut(&claim);
        ballot.is_some_and(|ballot| ballot.give_back::<R>(pool, seat, arbiter, older))
    }

    fn seat(&self, pool: PoolId, arbiter: SiteId) -> Option<usize> {
        self.sets[pool.index()].arbiters.binary_search(&arbiter).ok()
    }

    fn granted_instead_of(&self, claim: Stamp) -> Vec<Blocker> {
        let mut list = Vec::new();
        for (pool, arbiter) in (0..).map(PoolId).zip(&self.arbiters) {
            list.extend(arbiter.instead_of(claim).map(|(claim, units)| Blocker {
                site: self.me,
                pool,
                units,
                claim: Some(claim),
            }));
        }
        list
    }

    /// Refuses what no correct site says, before anything is changed.
    fn check(&self, from: SiteId, message: &Message) -> Result<(), PeerFault> {
        let (claim, pool) = (message.claim(), message.pool());
        if from.0 >= self.sites || from == self.me {
            return Err(PeerFault::UnknownSite(from));
        }
        let Some(capacity) = self.capacity(pool) else {
            return Err(PeerFault::UnknownPool(pool));
        };
        let arbiter = &self.arbiters[pool.index()];
        let speaker = match message {
            Message::Grant { .. } | Message::Inquire { .. } => self.me,
            Message::Request { .. }
            | Message::Yield { .. }
            | Message::Reduce { .. }
            | Message::Release { .. } => from,
        };
        if claim.site != speaker {
            return Err(PeerFault::ForeignClaim(claim));
        }
        let known = arbiter.units(claim);
        let sense = |sane: bool, what| if sane { Ok(()) } else { Err(PeerFault::Unexpected(what)) };
        match *message {
            Message::Request { units, .. } => {
                sense(known.is_none(), "the same request twice")?;
                if units.is_zero() || units > capacity {
                    return Err(PeerFault::TooManyUnits(claim));
                }
                Ok(())
            }
            Message::Grant { attempt, .. } => {
                let may = |ballot: &Ballot, seat| ballot.may_grant(pool, seat, attempt);
                self.check_ruling(from, claim, pool, may)
            }
            Message::Inquire { attempt, older, .. } => {
                sense(older < claim, "a recall for a claim that is not older")?;
                let may = |ballot: &Ballot, seat| ballot.may_recall(pool, seat, attempt);
                self.check_ruling(from, claim, pool, may)
            }
            Message::Yield { attempt, .. } => {
                sense(arbiter.is_recalled(claim, attempt), "a yield that was not asked for")
            }
            Message::Reduce { units, .. } => {
                let had =
                    known.ok_or(PeerFault::Unexpected("less of a claim that is not known"))?;
                if units.is_zero() || units >= had {
                    return Err(PeerFault::TooManyUnits(claim));
                }
                Ok(())
            }
            Message::Release { .. } => sense(known.is_some(), "the end of a claim not known"),
        }
    }

    /// An arbiter of the set may speak, and of a claim that waits only what follows from what it
    /// said before.
    fn check_ruling(
        &self,
        from: SiteId,
        claim: Stamp,
        pool: PoolId,
        may: impl Fn(&Ballot, usize) -> bool,
    ) -> Result<(), PeerFault> {
        let seat = self.seat(pool, from);
        let seat = seat.ok_or(PeerFault::Unexpected("a ruling by a site that was not asked"))?;
        if self.claims.get(&claim).is_some_and(|ballot| !may(ballot, seat)) {
            return Err(PeerFault::Unexpected("a ruling out of turn"));
        }
        Ok(())
    }
}

impl Message {
    const fn claim(&self) -> Stamp {
        match *self {
            Self::Request { claim, .. }
            | Self::Grant { claim, .. }
            | Self::Inquire { claim, .. }
            | Self::Yield { claim, .. }
            | Self::Reduce { claim, .. }
            | Self::Release { claim, .. } => claim,
        }
    }

    const fn pool(&self) -> PoolId {
        match *self {
            Self::Request { pool, .. }
            | Self::Grant { pool, .. }
            | Self::Inquire { pool, .. }
            | Self::Yield { pool, .. }
            | Self::Reduce { pool, .. }
            | Self::Release { pool, .. } => pool,
        }
    }
}

/// The set of a site in each pool. An empty pool needs none: nothing can be asked of it.
pub(super) fn request_sets(me: SiteId, cluster: &Cluster) -> Vec<RequestSet> {
    let pools = (0..).map(PoolId).take(cluster.pools.len());
    let set = |pool: PoolId| {
        if cluster.pools[pool.index()].is_zero() {
            return RequestSet { arbiters: Vec::new(), grants: 0 };
        }
        let sets = RequestSets::of_pool(cluster, pool);
        sets.expect("the terms of a cluster's pools can be met").of(me)
    };
    pools.map(set).collect()
}

/// Three messages for each arbiter but the site itself, in the smallest set that is chosen for any
/// number of units: that for a single one. No bound under contention.
pub(super) fn price(sites: u64, _units: u64) -> Price {
    let sites = u16::try_from(sites).unwrap_or(u16::MAX);
    let smallest = RequestSets::new(&Terms::new(sites, 1)).ok().and_then(|sets| {
        let others = |site: SiteId| {
            sets.of(site).arbiters.iter().filter(|&&arbiter| arbiter != site).count()
        };
        sets.sites().map(others).min()
    });
    Price { min: 3 * smallest.unwrap_or(0) as u64, max: None }
}
