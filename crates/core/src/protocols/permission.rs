//! Ask everybody, count what they have.
//!
//! # Idea
//!
//! A claim asks every other site. A site answers with its own claims that are older and still
//! live, and says later when each of them ends. Once everybody has answered, the claim is granted
//! as soon as it fits behind all claims older than itself. Nobody decides for anybody else, and
//! every site that could be in the way has said so.
//!
//! # Source
//!
//! Raynal 1990 (RR-1342), §3 with the AND demands of §6 and the topologies of §5.2. With M = 1 it
//! is Ricart and Agrawala's mutual exclusion; with every demand for one unit it is Raymond's
//! multiple entries to a critical section.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | claimant | everybody | here is my claim; which of yours are older? |
//! | `Reply` | everybody | claimant | these, and I will say when they end |
//! | `Free` | holder | who counted it | this claim has given back so much |
//! | `Withdraw` | claimant | who has not answered | no answer needed any more |
//!
//! A site whose older claims fill a pool does not answer until they leave a unit: the answer could
//! not help before. That saves one message of three, and bounds every answer by M−1 claims.
//!
//! # Cost
//!
//! Per claim 2(n−1) to 3(n−1) messages: request, reply, and a free from each site that had an older
//! claim and room beside it. Exactly 2(n−1) with M = 1. On a tree, and on any graph through its
//! spanning tree, requests flood and replies are gathered on the way back: 2(n−1) messages, each
//! one hop, plus the frees. On a ring a request goes once around and gathers its answers: n
//! messages, plus the frees.
//!
//! # Assumes
//!
//! Reliable first-in first-out links between sites that do not crash. With one unit the order is
//! not needed; with two, a claim waits forever without it.
//!
//! # Why it is safe
//!
//! Let g be the youngest claim among those held. Every other holder u of the same pool is older.
//! When u's site answered g, either u existed, and the answer listed it, so g counted it until it
//! gave its units back; or u did not exist yet, and took a stamp above g's, because the request
//! had moved its clock. Claims of the same site are in the same queue. So g counted all others,
//! and it was granted when they and it fitted. The oldest waiting claim waits for nobody younger:
//! that is progress, and with stamps that follow the clocks, no starvation.
//!
//! # Differs from the paper
//!
//! Claims are named by their stamp and answers list claims instead of amounts, so that a site may
//! have several claims, give back parts and withdraw. The grant test also runs at the claim itself:
//! as printed, a cluster of one site never grants. One clock serves all pools: with a clock per
//! type, which §6 can be read as, two demands deadlock.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::epoch::Survey;
use crate::parts::ledger::{Ahead, Shrunk};
use crate::parts::{Ledger, SiteSet};
use crate::protocol::{Blocker, EffectsOf, PeerFault, Price, Profile, Protocol, SURVIVES, Service};
use crate::topology::Routes;
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// The protocol at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Permission {
    ledger: Ledger,
    routes: Routes,
    /// For each waiting claim, the neighbours that have not answered.
    unanswered: BTreeMap<Stamp, SiteSet>,
    /// Requests of others that this site has not answered.
    asked: BTreeMap<Stamp, Asked>,
}

/// A request that this site has to answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asked {
    /// The neighbour that it came from.
    from: SiteId,
    demand: Demand,
    /// Neighbours that it was passed on to and that have not answered.
    missing: SiteSet,
    /// Answers of others that travel with this site's own.
    gathered: Vec<Ahead>,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Which of your claims are older than this one?
    Request {
        /// The claim.
        claim: Stamp,
        /// The pools it is about, and what it asks of them.
        demand: Demand,
        /// On a ring, the answers so far.
        gathered: Vec<Ahead>,
    },
    /// These.
    Reply {
        /// The claim that was asked for.
        claim: Stamp,
        /// The older claims of the site that answers, and of those behind it.
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
        /// Whom this is for, where it has to be passed on.
        to: Vec<SiteId>,
    },
    /// A claim needs no answer any more.
    Withdraw {
        /// Which.
        claim: Stamp,
    },
}

impl Protocol for Permission {
    const NAME: &'static str = "permission";
    const PROFILE: Profile = Profile {
        source: "Raynal 1990, §3, §5.2 and §6",
        summary: "asks every site for each claim; few sites, anonymous units",
        serves: Service::Pool,
        as_printed: false,
        full_service: true,
        gathers: true,
        arbitrated: false,
        price: |sites, _| Price { min: 2 * (sites - 1), max: Some(3 * (sites - 1)) },
        survives: SURVIVES,
    };

    type Message = Message;
    type Timer = ();

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self {
            ledger: Ledger::new(me, cluster),
            routes: Routes::new(me, cluster),
            unanswered: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    fn me(&self) -> SiteId {
        self.ledger.me()
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.ledger.capacity(pool)
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        self.ledger.open(claim, demand.clone());
        let ask = self.routes.onward(self.me());
        for &site in &ask {
            let request = Message::Request { claim, demand: demand.clone(), gathered: Vec::new() };
            out.send(site, claim, request);
        }
        self.unanswered.insert(claim, ask.into_iter().collect());
        self.try_grant(claim, out);
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        if self.ledger.own(claim).is_some_and(|own| own.held) {
            self.give_back(claim, part, out);
        }
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        if let Some(unanswered) = self.unanswered.remove(&claim) {
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
            Message::Request { claim, demand, gathered } => {
                self.on_request(from, claim, demand, gathered, out);
            }
            Message::Reply { claim, ahead } => self.on_reply(from, claim, ahead, out),
            Message::Free { claim, part, left, to } => self.on_free(claim, &part, &left, to, out),
            Message::Withdraw { claim } => self.on_withdrawn(claim, out),
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
        let ledger = Ledger::resume(me, cluster, survey);
        let waiting = ledger.claims().filter(|(_, own)| !own.held);
        let unanswered = waiting.map(|(claim, _)| (claim, SiteSet::new())).collect();
        Self { ledger, routes: Routes::new(me, cluster), unanswered, asked: BTreeMap::new() }
    }

    fn on_resume(&mut self, _survey: &Survey, out: &mut EffectsOf<Self>) {
        let waiting: Vec<Stamp> = self.unanswered.keys().copied().collect();
        for claim in waiting {
            self.try_grant(claim, out);
        }
    }
}

impl Permission {
    fn on_request(
        &mut self,
        from: SiteId,
        claim: Stamp,
        demand: Demand,
        gathered: Vec<Ahead>,
        out: &mut EffectsOf<Self>,
    ) {
        let onward = if self.routes.is_ring() { Vec::new() } else { self.routes.onward(from) };
        for &site in &onward {
            let request = Message::Request { claim, demand: demand.clone(), gathered: Vec::new() };
            out.send(site, claim, request);
        }
        self.ledger.note_asked(claim, &demand);
        let missing = onward.into_iter().collect();
        self.asked.insert(claim, Asked { from, demand, missing, gathered });
        self.try_answer(claim, out);
    }

    fn on_reply(
        &mut self,
        from: SiteId,
        claim: Stamp,
        ahead: Vec<Ahead>,
        out: &mut EffectsOf<Self>,
    ) {
        if claim.site != self.me() {
            // Nobody waits for it where the claim was withdrawn meanwhile.
            if let Some(asked) = self.asked.get_mut(&claim) {
                asked.missing.remove(from);
                asked.gathered.extend(ahead);
                self.try_answer(claim, out);
            }
            return;
        }
        // Their sites will say when these end, whether or not the claim still waits.
        self.ledger.learn(&ahead);
        if let Some(unanswered) = self.unanswered.get_mut(&claim) {
            // On a ring the answer comes home from the other side.
            let asked = if self.routes.is_ring() { self.routes.successor() } else { from };
            unanswered.remove(asked);
            self.try_grant(claim, out);
        }
    }

    fn on_free(
        &mut self,
        claim: Stamp,
        part: &Demand,
        left: &Demand,
        mut to: Vec<SiteId>,
        out: &mut EffectsOf<Self>,
    ) {
        if !self.routes.is_full() {
            // An answer that is held up here and lists the claim must not arrive behind this.
            for asked in self.asked.values_mut() {
                forget_in(&mut asked.gathered, claim, part, left);
            }
            let here = to.iter().position(|&site| site == self.me());
            let Some(here) = here else { return self.pass_on(claim, part, left, &to, out) };
            to.remove(here);
            self.pass_on(claim, part, left, &to, out);
        }
        self.ledger.forget(claim, part, left);
        self.grant_what_fits(part, out);
    }

    fn on_withdrawn(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        if let Some(asked) = self.asked.remove(&claim) {
            self.ledger.note_answered(claim, &asked.demand);
            for site in asked.missing.iter() {
                out.send(site, claim, Message::Withdraw { claim });
            }
        } else if self.routes.is_ring() && self.routes.successor() != claim.site {
            out.send(self.routes.successor(), claim, Message::Withdraw { claim });
        }
    }

    /// Answers a request once everybody behind this site has, and its own older claims leave room.
    fn try_answer(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let Some(asked) = self.asked.get(&claim) else { return };
        if !asked.missing.is_empty() || !self.ledger.leaves_room(claim, &asked.demand) {
            return;
        }
        let Asked { from, demand, gathered: mut ahead, .. } =
            self.asked.remove(&claim).expect("it was there a moment ago");
        self.ledger.note_answered(claim, &demand);
        ahead.extend(self.ledger.list_older(claim, &demand));
        if !self.routes.is_ring() {
            out.send(from, claim, Message::Reply { claim, ahead });
        } else if self.routes.successor() == claim.site {
            out.send(claim.site, claim, Message::Reply { claim, ahead });
        } else {
            let request = Message::Request { claim, demand, gathered: ahead };
            out.send(self.routes.successor(), claim, request);
        }
    }

    fn try_grant(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let answered = self.unanswered.get(&claim).is_some_and(SiteSet::is_empty);
        if answered && self.ledger.fits(claim) {
            self.unanswered.remove(&claim);
            self.ledger.hold(claim);
            out.grant(claim);
        }
    }

    /// Gives back units of an own claim: tells who counted it, answers who had to wait for it.
    fn give_back(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let Some(Shrunk { part, left, tell }) = self.ledger.shrink(claim, part) else { return };
        if self.routes.is_full() {
            for (site, asker) in tell {
                let (part, left) = (part.clone(), left.clone());
                out.send(site, asker, Message::Free { claim, part, left, to: Vec::new() });
            }
        } else {
            let to: Vec<SiteId> = tell.into_keys().collect();
            self.pass_on(claim, &part, &left, &to, out);
        }
        for asker in self.ledger.answerable(&part) {
            self.try_answer(asker, out);
        }
        self.grant_what_fits(&part, out);
    }

    /// Sends a `Free` along the network, one message for all sites that lie the same way.
    fn pass_on(
        &self,
        claim: Stamp,
        part: &Demand,
        left: &Demand,
        to: &[SiteId],
        out: &mut EffectsOf<Self>,
    ) {
        let mut ways: BTreeMap<SiteId, Vec<SiteId>> = BTreeMap::new();
        for &site in to {
            ways.entry(self.routes.toward(site)).or_default().push(site);
        }
        for (way, to) in ways {
            let (part, left) = (part.clone(), left.clone());
            out.send(way, claim, Message::Free { claim, part, left, to });
        }
    }

    fn grant_what_fits(&mut self, pools: &Demand, out: &mut EffectsOf<Self>) {
        for claim in self.ledger.candidates(pools) {
            self.try_grant(claim, out);
        }
    }

    /// Refuses what no correct site says, before anything is changed.
    fn check(&self, from: SiteId, message: &Message) -> Result<(), PeerFault> {
        let direct = |claim: Stamp| {
            if self.routes.is_full() && claim.site != from {
                return Err(PeerFault::ForeignClaim(claim));
            }
            Ok(())
        };
        match message {
            Message::Request { claim, demand, gathered } => {
                direct(*claim)?;
                if self.asked.contains_key(claim) {
                    return Err(PeerFault::Unexpected("the same request twice"));
                }
                self.ledger.check_demand(*claim, demand)?;
                self.ledger.check(gathered)
            }
            Message::Reply { claim, ahead } => {
                let asked = if self.routes.is_ring() { self.routes.successor() } else { from };
                if self.unanswered.get(claim).is_some_and(|sites| !sites.contains(asked)) {
                    return Err(PeerFault::Unexpected("an answer that was not asked for"));
                }
                ahead.iter().try_for_each(|ahead| direct(ahead.claim))?;
                self.ledger.check(ahead)
            }
            Message::Free { claim, part, left: _, to } => {
                direct(*claim)?;
                to.iter().try_for_each(|&site| self.ledger.check_site(site))?;
                self.ledger.check_demand(*claim, part)
            }
            Message::Withdraw { claim } => {
                direct(*claim)?;
                self.ledger.check_site(claim.site)
            }
        }
    }
}

/// Takes what a claim gave back out of a list that has not arrived yet.
fn forget_in(list: &mut Vec<Ahead>, claim: Stamp, part: &Demand, left: &Demand) {
    for ahead in list.iter_mut().filter(|ahead| ahead.claim == claim) {
        if left.units(ahead.pool).is_zero() && !part.units(ahead.pool).is_zero() {
            ahead.units = Units::ZERO;
        } else {
            ahead.units = ahead.units.saturating_sub(part.units(ahead.pool));
        }
    }
    list.retain(|ahead| !ahead.units.is_zero());
}
