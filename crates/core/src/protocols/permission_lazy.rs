//! Do not ask whom you know to be using.
//!
//! # Idea
//!
//! As [`permission`](super::permission), but a claim does not ask a site of which a live claim is
//! already known in every pool it needs: that site has promised to say when it ends, and is asked
//! then. Where a request reaches a site that is *using* under a younger stamp, which skipping makes
//! possible, the answer counts that use and everything its site counted for it: the Slack rule.
//!
//! # Source
//!
//! Raynal 1990 (RR-1342), §5.1, corrected. The listing over-allocates with two sites and two units;
//! see [`permission_lazy_as_printed`](super::permission_lazy_as_printed).
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | claimant | who is not skipped | here is my claim; which of yours count? |
//! | `Reply` | who was asked | claimant | the older ones, and late ones: younger, but in use |
//! | `Free` | holder | who counted it | this claim has given back so much |
//! | `Withdraw` | claimant | who has not answered | no answer needed any more |
//!
//! # Cost
//!
//! 0 to 3(n−1) messages per claim. It pays with small demands on large pools that some sites hold
//! for long; elsewhere it saves a few messages in a hundred and costs a little waiting.
//!
//! # Assumes
//!
//! Reliable first-in first-out links between sites that do not crash. On other topologies than the
//! full one its messages are routed.
//!
//! # Why it is safe
//!
//! Let g be the youngest of the claims held, u another. If u's site was asked for g, u was listed,
//! or is younger, as in `permission`. If it was skipped, g relied on a live claim x of that site.
//! If u is x, it was counted. If not, and x had ended when u was made, then its `Free` and u's
//! request were on their way to g: they found g held, so u was late there and counted g and all
//! that g had counted. With several claims per site, x may go on beside u; so a site skips nobody
//! while it has another claim, every request says whether its site has another, nobody skips a site
//! that has said so, and a request from a skipped site makes the skipper ask back.
//!
//! "A user always has priority", which is the obvious repair of the listing, counts the user but
//! not what the user counted: three sites then count each other in a circle, and nobody the sum.
//! [`OkFirst`] keeps that rule for the checker to refute.
//!
//! # Its own clock
//!
//! Stamps count *rounds*, which only a request that arrives moves on, and within a round the site's
//! own claims. With the site's clock, where each claim counts as much as a message, a site that is
//! often granted without asking runs ahead of the others, and theirs come late: with three sites,
//! three units and one site that holds fifty times as long, waits double.
//!
//! # Differs from the paper
//!
//! The Slack rule; the paper's clock does not move on with a site's own claims at all, which gives
//! two claims of a site the same stamp; all pools of a demand are granted at once, because a site
//! that has one type and waits for another would put off a late request for ever; several claims
//! per site.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::epoch::Survey;
use crate::parts::ledger::{Ahead, Shrunk};
use crate::parts::{Ledger, SiteSet};
use crate::protocol::{Blocker, EffectsOf, PeerFault, Price, Profile, Protocol, SURVIVES, Service};
use crate::types::{Clock, Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// The protocol at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PermissionLazy<R = Slack> {
    ledger: Ledger,
    /// Everybody else who takes part.
    others: SiteSet,
    /// For each waiting claim, the sites that were asked and have not answered.
    unanswered: BTreeMap<Stamp, SiteSet>,
    /// The waiting claim that skipped somebody, and whom. It was alone when it was made, so there
    /// is one at most.
    skipping: Option<(Stamp, SiteSet)>,
    /// Requests of others that this site has not answered, with what they ask.
    asked: BTreeMap<Stamp, Demand>,
    /// The last time that a claim took, and the largest that a request brought.
    last: u64,
    heard: u64,
    /// Sites whose last request was not for their only claim: they may have more than is known.
    crowded: SiteSet,
    rule: PhantomData<R>,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Which of your claims does this one have to count?
    Request {
        /// The claim.
        claim: Stamp,
        /// The pools it is about, and what it asks of them.
        demand: Demand,
        /// Whether its site has no other claim.
        alone: bool,
    },
    /// These.
    Reply {
        /// The claim that was asked for.
        claim: Stamp,
        /// Claims of the site that answers.
        ahead: Vec<Ahead>,
    },
    /// A claim has given back units.
    Free {
        /// Which.
        claim: Stamp,
        /// What it gave back.
        part: Demand,
        /// What it still has.
        left: Demand,
    },
    /// A claim needs no answer any more.
    Withdraw {
        /// Which.
        claim: Stamp,
    },
}

/// What a late request has to count: the rule that the listing lacks.
pub trait LateRule: Clone + Debug + Eq + Hash + Send + 'static {
    /// Whether a late request counts what the user counted, beside the user itself.
    const COUNTS_COUNTED: bool;
}

/// The user, and everything that the user knew of when it was granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slack;

impl LateRule for Slack {
    const COUNTS_COUNTED: bool = true;
}

/// The user alone: over-allocates with three sites. For the checker, not for use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OkFirst;

impl LateRule for OkFirst {
    const COUNTS_COUNTED: bool = false;
}

impl<R: LateRule> Protocol for PermissionLazy<R> {
    const NAME: &'static str = "permission-lazy";
    const PROFILE: Profile = Profile {
        source: "Raynal 1990, §5.1, corrected",
        summary: "skips sites that are known to be using; few sites, long holds",
        serves: Service::Pool,
        as_printed: false,
        full_service: true,
        gathers: false,
        arbitrated: false,
        price: |sites, _| Price { min: 0, max: Some(3 * (sites - 1)) },
        survives: SURVIVES,
    };

    type Message = Message;
    type Timer = ();

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self {
            ledger: Ledger::new(me, cluster),
            others: cluster.others(me).collect(),
            unanswered: BTreeMap::new(),
            skipping: None,
            asked: BTreeMap::new(),
            last: 0,
            heard: 0,
            crowded: SiteSet::new(),
            rule: PhantomData,
        }
    }

    fn me(&self) -> SiteId {
        self.ledger.me()
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.ledger.capacity(pool)
    }

    fn next_stamp(&self, _clock: Clock) -> Stamp {
        let round = (self.heard / ROUND + 1) * ROUND;
        Stamp { time: round.max(self.last + 1), site: self.me() }
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        self.last = claim.time;
        let alone = self.ledger.claims().len() == 0;
        let others = self.others.iter();
        let may_skip =
            |&site: &SiteId| alone && !self.crowded.contains(site) && self.knows(site, &demand);
        let (skipped, asked): (Vec<_>, Vec<_>) = others.partition(may_skip);
        for &site in &asked {
            out.send(site, claim, Message::Request { claim, demand: demand.clone(), alone });
        }
        if !skipped.is_empty() {
            self.skipping = Some((claim, skipped.into_iter().collect()));
        }
        self.unanswered.insert(claim, asked.into_iter().collect());
        self.ledger.open(claim, demand);
        self.try_grant(claim, out);
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        if self.ledger.own(claim).is_some_and(|own| own.held) {
            self.give_back(claim, part, out);
        }
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        if let Some(unanswered) = self.stop_asking(claim) {
            for site in unanswered.iter() {
                out.send(site, claim, Message::Withdraw { claim });
            }
            self.give_back(claim, None, out);
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
            Message::Request { claim, demand, alone } => {
                self.heard = self.heard.max(claim.time);
                if alone {
                    self.crowded.remove(from);
                } else {
                    self.crowded.insert(from);
                }
                // A skipped site that asks may have more than is known of it.
                self.ask_skipped(from, out);
                self.ledger.note_asked(claim, &demand);
                self.asked.insert(claim, demand);
                self.try_answer(claim, out);
            }
            Message::Reply { claim, ahead } => {
                self.ledger.learn(&ahead);
                if let Some(unanswered) = self.unanswered.get_mut(&claim) {
                    unanswered.remove(from);
                    self.try_grant(claim, out);
                }
            }
            Message::Free { claim, part, left } => {
                self.ledger.forget(claim, &part, &left);
                if let Some(own) = self.skipping.as_ref().and_then(|s| self.ledger.own(s.0))
                    && !self.knows(from, &own.demand)
                {
                    self.ask_skipped(from, out);
                }
                self.grant_what_fits(&part, out);
            }
            Message::Withdraw { claim } => {
                if let Some(demand) = self.asked.remove(&claim) {
                    self.ledger.note_answered(claim, &demand);
                }
            }
        }
        Ok(())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let unanswered = self.unanswered.get(&claim);
        unanswered.map_or_else(Vec::new, |sites| self.ledger.explain(claim, sites))
    }

    fn is_at_rest(&self) -> bool {
        self.ledger.is_empty() && self.unanswered.is_empty() && self.asked.is_empty()
    }

    /// Everybody knows all claims, so nobody is asked.
    fn resume(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        let mut fresh = Self::new(me, cluster);
        fresh.ledger = Ledger::resume(me, cluster, survey);
        let waiting = fresh.ledger.claims().filter(|(_, own)| !own.held);
        fresh.unanswered = waiting.map(|(claim, _)| (claim, SiteSet::new())).collect();
        fresh.heard = survey.clock.time;
        for site in cluster.others(me).filter(|&site| survey.of(site).nth(1).is_some()) {
            fresh.crowded.insert(site);
        }
        fresh
    }

    fn on_resume(&mut self, _survey: &Survey, out: &mut EffectsOf<Self>) {
        let waiting: Vec<Stamp> = self.unanswered.keys().copied().collect();
        for claim in waiting {
            self.try_grant(claim, out);
        }
    }
}

impl<R: LateRule> PermissionLazy<R> {
    /// Whether a live claim of `site` is known in every pool of the demand.
    fn knows(&self, site: SiteId, demand: &Demand) -> bool {
        demand.pools().all(|pool| self.ledger.knows(site, pool))
    }

    /// Asks a site after all that a waiting claim has skipped.
    fn ask_skipped(&mut self, site: SiteId, out: &mut EffectsOf<Self>) {
        let Some((claim, skipped)) = &mut self.skipping else { return };
        let claim = *claim;
        if skipped.remove(site) {
            self.unanswered.entry(claim).or_default().insert(site);
            let demand = self.ledger.own(claim).expect("it waits").demand.clone();
            let alone = self.ledger.claims().len() == 1;
            out.send(site, claim, Message::Request { claim, demand, alone });
        }
    }

    /// The claim waits for answers no longer; says whose were missing, if it did wait.
    fn stop_asking(&mut self, claim: Stamp) -> Option<SiteSet> {
        self.skipping.take_if(|skipping| skipping.0 == claim);
        self.unanswered.remove(&claim)
    }

    fn try_answer(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let Some(demand) = self.asked.get(&claim) else { return };
        if !self.ledger.leaves_room(claim, demand) {
            return;
        }
        let late = self.late(claim, demand);
        let fits = |pool| {
            let older: Units = self.ledger.older(claim, pool).sum();
            let late = late.iter().filter(|late| late.pool == pool).map(|late| late.units);
            older + late.sum() < self.ledger.capacity(pool).unwrap_or_default()
        };
        if !demand.pools().all(fits) {
            return;
        }
        let demand = self.asked.remove(&claim).expect("it was there a moment ago");
        self.ledger.note_answered(claim, &demand);
        let mut ahead = self.ledger.list_older(claim, &demand);
        for late in &late {
            self.ledger.tell(late.claim, claim);
        }
        ahead.extend(late);
        out.send(claim.site, claim, Message::Reply { claim, ahead });
    }

    /// The claims held here that are younger than `claim` and that it has to count all the same.
    fn late(&self, claim: Stamp, demand: &Demand) -> Vec<Ahead> {
        let mut list = Vec::new();
        for (own, held) in self.ledger.claims().filter(|(own, held)| *own > claim && held.held) {
            for pool in demand.pools().filter(|&pool| !held.demand.units(pool).is_zero()) {
                let mut units = held.demand.units(pool);
                if R::COUNTS_COUNTED {
                    units += self.ledger.known_of_others(pool, claim.site);
                }
                list.push(Ahead { pool, claim: own, units, late: true });
            }
        }
        list
    }

    fn try_grant(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let answered = self.unanswered.get(&claim).is_some_and(SiteSet::is_empty);
        if answered && self.ledger.fits(claim) {
            self.stop_asking(claim);
            self.ledger.hold(claim);
            out.grant(claim);
        }
    }

    /// Gives back units of an own claim: tells who counted it, answers who had to wait for it.
    fn give_back(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let Some(Shrunk { part, left, tell }) = self.ledger.shrink(claim, part) else { return };
        for (site, asker) in tell {
            let (part, left) = (part.clone(), left.clone());
            out.send(site, asker, Message::Free { claim, part, left });
        }
        for asker in self.ledger.answerable(&part) {
            self.try_answer(asker, out);
        }
        self.grant_what_fits(&part, out);
    }

    fn grant_what_fits(&mut self, pools: &Demand, out: &mut EffectsOf<Self>) {
        for claim in self.ledger.candidates(pools) {
            self.try_grant(claim, out);
        }
    }

    /// Refuses what no correct site says, before anything is changed.
    fn check(&self, from: SiteId, message: &Message) -> Result<(), PeerFault> {
        let direct = |claim: Stamp| {
            if claim.site == from { Ok(()) } else { Err(PeerFault::ForeignClaim(claim)) }
        };
        match message {
            Message::Request { claim, demand, alone: _ } => {
                direct(*claim)?;
                if claim.time >= Clock::LIMIT {
                    return Err(PeerFault::ClockTooFar);
                }
                if self.asked.contains_key(claim) {
                    return Err(PeerFault::Unexpected("the same request twice"));
                }
                self.ledger.check_demand(*claim, demand)
            }
            Message::Reply { claim, ahead } => {
                if self.unanswered.get(claim).is_some_and(|sites| !sites.contains(from)) {
                    return Err(PeerFault::Unexpected("an answer that was not asked for"));
                }
                ahead.iter().try_for_each(|ahead| direct(ahead.claim))?;
                self.ledger.check(ahead)
            }
            Message::Free { claim, part, left: _ } => {
                direct(*claim)?;
                self.ledger.check_demand(*claim, part)
            }
            Message::Withdraw { claim } => direct(*claim),
        }
    }
}

/// Claims that a site can make in one round. One that makes more moves on to the next by itself.
const ROUND: u64 = 256;
