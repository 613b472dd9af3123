//! A semaphore whose P asks a few arbiters, and whose count of what was taken is the largest heard.
//!
//! # Idea
//!
//! P takes its turn by mutual exclusion with [`quorum`]: any two sites share an
//! arbiter, and an arbiter lets one claim through at a time. Each site remembers the largest number
//! of units taken that it has heard of. An arbiter's grant carries its number, and whoever has
//! taken its units says the new number when it gives its grants back. So the number is a version:
//! the largest among the arbiters of any site is the true one. V tells everybody.
//!
//! # Source
//!
//! Raynal 1992 (RR-1604), §3.4, with the call-back that it takes from Maekawa 1985 and three rules
//! that the text does not give. See [`sem_quorum_as_printed`](super::sem_quorum_as_printed).
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Turn` | claimant and arbiter | each other | one of [`quorum`], and a count |
//! | `Incr` | whoever adds | everybody | there are so many more |
//!
//! A grant and a release carry the count; a request, an inquiry and a grant that is given back
//! unused do not.
//!
//! # Cost
//!
//! Let Q be the request set. P: 3(|Q|−1) messages where nobody is in the way: request, grant,
//! release. A recall is three more: inquire, yield, and a second grant; a claim that arrives late
//! causes at most one at each arbiter, so that on average over all claims it is no more than
//! 6(|Q|−1). A single claim has no bound: every older one that arrives can recall it once more. V:
//! n−1.
//!
//! # Assumes
//!
//! Reliable links, first-in first-out where claims are withdrawn. Sites do not crash, but arbiters
//! may fall silent where the request sets were made for it.
//!
//! # Why it is safe
//!
//! Let a claim have its turn, and let b be the claim that took units last before it. Their sets
//! share an arbiter. Its grant to b stood until b's release, which said the new count; the grant
//! that counts for this turn came after that, and carried the count. No site ever hears of more
//! than was taken, so the largest count heard is exactly that. Additions that were heard are no
//! more than were made. One stamp orders claims at all arbiters, so nobody starves.
//!
//! # Order
//!
//! By stamp among claims that wait for arbiters: an older one that arrives late recalls the grants
//! of a younger, unless that has its turn already. Whoever has its turn keeps it until there are
//! enough units for it, and everybody else waits behind it, even for units that are there: P(2) on
//! a semaphore of 1 holds up P(1).
//!
//! # Differs from the paper
//!
//! Call-back. A count never replaces a larger one: as printed a grant that is given back unused, or
//! a late release at a site that is not its own arbiter, lowers the count and units are taken
//! twice. Clocks travel with every message. Several claims per site, and withdrawal. A reset is
//! counted, and every count says how many resets it has seen: as printed, counts from before and
//! after a reset are mixed and units are lost. With that, resets need no messages of their own. The
//! single variable of §3.5.1 would be wrong here: in it, additions and versions look the same.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use super::quorum::{self, Quorum};
use crate::parts::semaphores::{
    Out, Rules, Semaphore, Slip, Sound, at_least_one, check_added, missing, moved, room,
};
use crate::parts::{Semaphores, SiteSet};
use crate::protocol::{
    Blocker, Effect, Effects, Head, PeerFault, Profile, Protocol, SURVIVES, Service,
};
use crate::topology::Topology;
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// The protocol.
pub type SemQuorum = Semaphores<ByQuorum>;

/// One semaphore at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ByQuorum<R = Sound> {
    me: SiteId,
    members: SiteSet,
    pool: PoolId,
    initial: i64,
    /// Units added, as far as heard here, since the last reset.
    added: i64,
    /// The most units taken that this site has heard of.
    count: Count,
    /// Turns: a pool of one unit.
    turns: Quorum,
    /// Own claims that wait.
    claims: BTreeMap<Stamp, Units>,
    /// The own claim whose turn it is.
    turn: Option<Stamp>,
    /// Counters are set back by this much once they have reached it.
    reset: i64,
    rules: PhantomData<R>,
}

/// A number of units taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Count {
    /// Resets seen.
    pub resets: u32,
    /// Units taken since the last of them.
    pub taken: i64,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Whose turn it is.
    Turn {
        /// What claimants and arbiters say to each other.
        said: quorum::Message,
        /// What the sender has heard of, in a grant and a release.
        count: Option<Count>,
    },
    /// Somebody has added units.
    Incr {
        /// How many.
        units: Units,
    },
}

/// The one pool of the inner protocol.
const TURNS: PoolId = PoolId(0);

impl<R: Rules> Semaphore for ByQuorum<R> {
    const NAME: &'static str = "sem-quorum";
    const PROFILE: Profile = Profile {
        source: "Raynal 1992, §3.4, corrected; Maekawa 1985",
        summary: "a semaphore: P asks a request set of arbiters, V tells every site",
        serves: Service::Semaphore,
        as_printed: false,
        full_service: true,
        gathers: false,
        arbitrated: true,
        price: quorum::price,
        survives: SURVIVES,
    };

    type Message = Message;

    fn new(me: SiteId, cluster: &Cluster, pool: PoolId) -> Self {
        Self {
            me,
            members: cluster.all().collect(),
            pool,
            initial: i64::from(cluster.pools[pool.index()].0),
            added: 0,
            count: Count { resets: 0, taken: 0 },
            turns: Quorum::new(me, &one_turn(cluster, pool)),
            claims: BTreeMap::new(),
            turn: None,
            reset: cluster.reset.map_or(R::RESET, i64::from),
            rules: PhantomData,
        }
    }

    fn start_at(&mut self, value: i64) {
        self.initial = value;
    }

    fn claim(&mut self, claim: Stamp, units: Units, out: &mut Out<'_, Message>) {
        self.claims.insert(claim, units);
        self.inner(out, |turns, out| turns.on_claim(claim, Demand::one(TURNS, 1), out));
        self.settle(out);
    }

    fn withdraw(&mut self, claim: Stamp, out: &mut Out<'_, Message>) {
        if self.claims.remove(&claim).is_none() || R::SLIP == Some(Slip::WithdrawsInSilence) {
            return;
        }
        if self.turn != Some(claim) {
            self.inner(out, |turns, out| turns.on_withdraw(claim, out));
        } else if R::SLIP != Some(Slip::KeepsTheTurn) {
            self.turn = None;
            self.inner(out, |turns, out| turns.on_release(claim, None, out));
        }
        self.settle(out);
    }

    fn add(&mut self, units: Units, out: &mut Out<'_, Message>) {
        if R::SLIP != Some(Slip::AddsForOthers) {
            self.added += i64::from(units.0);
        }
        if R::SLIP != Some(Slip::AddsInSilence) {
            for site in self.members.iter().filter(|&site| site != self.me) {
                out.send(site, None, Message::Incr { units });
            }
        }
        self.settle(out);
    }

    fn receive(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut Out<'_, Message>,
    ) -> Result<(), PeerFault> {
        match message {
            Message::Turn { said, count } => {
                if counts(&said) != count.is_some() {
                    return Err(PeerFault::Unexpected("a count where none is said, or none"));
                }
                let before = (self.added, self.count);
                if let Some(count) = count {
                    self.hear(count)?;
                }
                // Heard first: what the inner protocol says at once carries it on.
                let result = self.inner(out, |turns, out| turns.on_message(from, said, out));
                if result.is_err() {
                    (self.added, self.count) = before;
                    return result;
                }
            }
            Message::Incr { units } => {
                check_added(units)?;
                let more = moved(self.added, units.0.into())?;
                if R::SLIP != Some(Slip::DeafInTurn) || self.turn.is_none() {
                    self.added = more;
                }
            }
        }
        self.settle(out);
        Ok(())
    }

    /// At the claim's own site: the arbiters that have not granted, and what is known of why. At an
    /// arbiter also for the claims of others.
    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let lacks = self.head().map(|head| at_least_one(head.missing));
        let here = |units, claim| Blocker { site: self.me, pool: self.pool, units, claim };
        match (self.turn, lacks) {
            (Some(turn), Some(units)) if turn == claim => vec![here(units, None)],
            (Some(turn), Some(units)) if self.claims.contains_key(&claim) => {
                vec![here(units, Some(turn))]
            }
            _ => {
                let blockers = self.turns.explain(claim).into_iter();
                blockers.map(|blocker| Blocker { pool: self.pool, ..blocker }).collect()
            }
        }
    }

    fn head(&self) -> Option<Head> {
        let claim = self.turn?;
        let units = self.claims.get(&claim).copied().unwrap_or(Units(u32::MAX));
        let resets = i64::from(self.count.resets).checked_mul(self.reset);
        Some(Head {
            claim,
            missing: missing(units, self.value()),
            taken: resets.and_then(|before| before.checked_add(self.count.taken)),
        })
    }

    fn room(&self) -> u64 {
        room(self.added)
    }

    fn is_at_rest(&self) -> bool {
        self.claims.is_empty() && self.turns.is_at_rest()
    }

    fn audit(&self) {
        if R::SLIP.is_some() {
            return;
        }
        self.turns.audit();
        assert!(self.turn.is_none_or(|turn| self.claims.contains_key(&turn)), "a turn is wanted");
        assert!(self.head().is_none_or(|head| head.missing > 0), "a turn waits for units only");
    }
}

impl<R: Rules> ByQuorum<R> {
    /// The units there are, as far as is known here.
    fn value(&self) -> i64 {
        self.initial + self.added - self.count.taken
    }

    /// Lets the inner protocol take a step, and passes on what it says.
    fn inner<T>(
        &mut self,
        out: &mut Out<'_, Message>,
        step: impl FnOnce(&mut Quorum, &mut Effects<quorum::Message, ()>) -> T,
    ) -> T {
        let mut effects = Effects::at(out.clock());
        let result = step(&mut self.turns, &mut effects);
        for effect in effects.drain() {
            match effect {
                Effect::Send { to, message: said, serves, .. } => {
                    let count = counts(&said).then_some(self.count);
                    out.send(to, serves, Message::Turn { said, count });
                }
                Effect::Grant { claim, .. } => self.turn = Some(claim),
                Effect::Reject { .. }
                | Effect::Revoke { .. }
                | Effect::Arm { .. }
                | Effect::Disarm { .. } => {
                    unreachable!("one unit of one pool is always feasible, and there are no timers")
                }
            }
        }
        out.set_clock(effects.clock());
        result
    }

    /// Takes over a count if it is larger.
    fn hear(&mut self, heard: Count) -> Result<(), PeerFault> {
        let implausible = PeerFault::Unexpected("a count that nobody can have");
        let ahead = i64::from(heard.resets) - i64::from(self.count.resets);
        let shift = ahead.checked_mul(self.reset).ok_or_else(|| implausible.clone())?;
        let (shift, resets) = if R::SLIP == Some(Slip::UncountedResets) {
            (0, self.count.resets)
        } else {
            (shift, self.count.resets.max(heard.resets))
        };
        // Both counts, and the additions, as after the later of the two resets.
        let (mine, theirs) = (shift.max(0), shift.min(0));
        let added = moved(self.added, -mine)?;
        let own = moved(self.count.taken, -mine)?;
        let taken = moved(heard.taken, theirs)?;
        if taken >= crate::parts::semaphores::LIMIT {
            return Err(implausible);
        }
        self.added = added;
        let last = R::SLIP == Some(Slip::BelievesTheLast);
        self.count = Count { resets, taken: if last { taken } else { own.max(taken) } };
        Ok(())
    }

    /// Serves whose turn it is, as far as there are units.
    fn settle(&mut self, out: &mut Out<'_, Message>) {
        while let Some(Head { claim, missing: 0, .. }) = self.head() {
            let units = self.claims.remove(&claim).expect("whose turn it is waits");
            if R::SLIP != Some(Slip::TakesUncounted) {
                self.count.taken += i64::from(units.0);
            }
            if self.count.taken >= self.reset {
                self.count.taken -= self.reset;
                self.count.resets += 1;
                self.added -= self.reset;
            }
            self.turn = None;
            out.grant(claim);
            self.inner(out, |turns, out| turns.on_release(claim, None, out));
        }
    }
}

/// Whether a message carries a count. A grant that is given back unused does not: its claimant may
/// have heard less than its arbiter.
const fn counts(said: &quorum::Message) -> bool {
    matches!(said, quorum::Message::Grant { .. } | quorum::Message::Release { .. })
}

/// The same cluster with one turn in the place of each semaphore: what is said of its arbiters must
/// be possible for that, whatever the values.
pub fn turns(cluster: &Cluster) -> Cluster {
    Cluster { pools: vec![Units(1); cluster.pools.len()], ..cluster.clone() }
}

/// The cluster as the inner protocol sees it: one pool of one unit, with the arbiters of `pool`.
pub fn one_turn(cluster: &Cluster, pool: PoolId) -> Cluster {
    let said = cluster.arbitration.get(&pool).cloned();
    let sets = cluster.sets.get(&pool).cloned();
    Cluster {
        sets: sets.map(|sets| (TURNS, sets)).into_iter().collect(),
        pools: vec![Units(1)],
        topology: Topology::Full,
        arbitration: said.map(|said| (TURNS, said)).into_iter().collect(),
        ..cluster.clone()
    }
}
