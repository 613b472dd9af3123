//! A semaphore whose P asks everybody for permission, and counts the permissions that it gives.
//!
//! # Idea
//!
//! P takes its turn by mutual exclusion: it asks every other site, and whoever has no older claim
//! of its own says yes at once, others say so when their older claims are over. In its turn a claim
//! waits until the semaphore has enough units. Nobody sends counts around: turns are served in the
//! order of their stamps, so that a site that says yes knows that the asker takes its units before
//! it does itself, and counts them as taken. V tells everybody.
//!
//! # Source
//!
//! Raynal 1992 (RR-1604), §3.3 and the annex, with two repairs: as printed nobody waits for
//! permissions, and requests carry the wrong stamp. See
//! [`sem_permission_as_printed`](super::sem_permission_as_printed).
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | claimant | everybody | may I take so many units? |
//! | `Permission` | everybody | claimant | nothing of mine is before you |
//! | `Withdraw` | claimant | everybody | do not count me, I have given up |
//! | `Incr` | whoever adds | everybody | there are so many more |
//!
//! # Cost
//!
//! P: 2(n−1) messages. V: n−1. A P that is withdrawn: n−1 more.
//!
//! # Assumes
//!
//! Reliable links between sites that do not crash; first-in first-out where claims are withdrawn.
//!
//! # Why it is safe
//!
//! Let a claim c of site i have its turn: the oldest of its site, permitted by all others. A claim
//! of another site j with an older stamp is over: j would not have permitted c otherwise. And i has
//! counted it, since it ended only after i permitted it, and i counts what it permits. A claim of j
//! with a younger stamp is not counted: i permits none while c waits, and before c was made it
//! could not permit one, because c would then have taken a younger stamp. So in its turn i has
//! counted exactly what was taken, and it knows of no more additions than were made: c is granted
//! only if there are enough units. Nobody else has its turn meanwhile, because of two claims the
//! older withholds its permission from the younger.
//!
//! A withdrawn claim was either counted or is still held up at each other site; the withdrawal
//! follows the request on its link, and undoes the one or the other. It also precedes every
//! permission that its site gives because of it, so nobody has its turn with a wrong count.
//!
//! # Order
//!
//! Strictly by stamp. Whoever has its turn waits for as many units as it takes, and everybody
//! younger waits behind it, even for units that are there: P(2) on a semaphore of 1 holds up P(1).
//! A program in which the V that the first one needs is made only after a smaller P behind it
//! stands still. That is the price of not starving anybody.
//!
//! # Differs from the paper
//!
//! Both repairs. Several claims per site, named by their stamps. A claim can be withdrawn without
//! waiting for its turn. Resets need no messages: only the difference of the two counters is ever
//! used, so each site lowers both whenever it likes; the single variable of §3.5.1 is the same
//! thing.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::parts::semaphores::{
    Out, Rules, SELDOM, Semaphore, Slip, Sound, at_least_one, check_added, check_claim, missing,
    moved, room,
};
use crate::parts::{Semaphores, SiteSet};
use crate::protocol::{Blocker, Head, PeerFault, Price, Profile, SURVIVES, Service};
use crate::types::{Cluster, PoolId, SiteId, Stamp, Units};

/// The protocol.
pub type SemPermission = Semaphores<ByPermission>;

/// One semaphore at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ByPermission<R = Sound> {
    me: SiteId,
    members: SiteSet,
    pool: PoolId,
    initial: i64,
    /// Units added, as far as heard here.
    added: i64,
    /// Units taken by own claims, and by those that this site let pass.
    taken: i64,
    /// Own claims that wait.
    claims: BTreeMap<Stamp, Own>,
    /// Requests of others that own older claims hold up.
    held_up: BTreeMap<Stamp, Units>,
    /// Counters are set back by this much once they have reached it.
    reset: i64,
    rules: PhantomData<R>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Own {
    units: Units,
    /// Who has not permitted it.
    missing: SiteSet,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// May this claim take its units?
    Request {
        /// The claim.
        claim: Stamp,
        /// What it takes.
        units: Units,
    },
    /// Nothing of the sender is before this claim.
    Permission {
        /// The claim.
        claim: Stamp,
    },
    /// This claim has given up and must not be counted.
    Withdraw {
        /// The claim.
        claim: Stamp,
        /// What it would have taken.
        units: Units,
    },
    /// Somebody has added units.
    Incr {
        /// How many.
        units: Units,
    },
}

impl<R: Rules> Semaphore for ByPermission<R> {
    const NAME: &'static str = "sem-permission";
    const PROFILE: Profile = Profile {
        source: "Raynal 1992, §3.3 and annex, corrected",
        summary: "a semaphore: P asks every site, V tells every site; few sites",
        serves: Service::Semaphore,
        as_printed: false,
        full_service: true,
        gathers: false,
        arbitrated: false,
        price: |sites, _| Price { min: 2 * (sites - 1), max: Some(2 * (sites - 1)) },
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
            taken: 0,
            claims: BTreeMap::new(),
            held_up: BTreeMap::new(),
            reset: cluster.reset.map_or(R::RESET, i64::from),
            rules: PhantomData,
        }
    }

    fn start_at(&mut self, value: i64) {
        self.initial = value;
    }

    fn claim(&mut self, claim: Stamp, units: Units, out: &mut Out<'_, Message>) {
        self.tell_others(claim, &Message::Request { claim, units }, out);
        self.claims.insert(claim, Own { units, missing: self.others().collect() });
        self.settle(out);
    }

    fn withdraw(&mut self, claim: Stamp, out: &mut Out<'_, Message>) {
        let Some(Own { units, .. }) = self.claims.remove(&claim) else { return };
        if R::SLIP != Some(Slip::WithdrawsInSilence) {
            self.tell_others(claim, &Message::Withdraw { claim, units }, out);
        }
        if R::SLIP != Some(Slip::KeepsTheTurn) {
            self.let_pass(out);
        }
        self.settle(out);
    }

    fn add(&mut self, units: Units, out: &mut Out<'_, Message>) {
        if R::SLIP != Some(Slip::AddsForOthers) {
            self.added += i64::from(units.0);
        }
        if R::SLIP != Some(Slip::AddsInSilence) {
            self.tell_others(None, &Message::Incr { units }, out);
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
            Message::Request { claim, units } => {
                check_claim(from, claim, units)?;
                if self.held_up.contains_key(&claim) {
                    return Err(PeerFault::Unexpected("the same request twice"));
                }
                moved(self.taken, Self::counted(units))?;
                self.held_up.insert(claim, units);
                self.let_pass(out);
            }
            Message::Permission { claim } => {
                if claim.site != self.me {
                    return Err(PeerFault::ForeignClaim(claim));
                }
                // A claim that was withdrawn has no use for it.
                if let Some(own) = self.claims.get_mut(&claim)
                    && !own.missing.remove(from)
                {
                    return Err(PeerFault::Unexpected("a permission that was not asked for"));
                }
            }
            Message::Withdraw { claim, units } => {
                check_claim(from, claim, units)?;
                let undone = moved(self.taken, -Self::counted(units))?;
                if self.held_up.remove(&claim).is_none() {
                    self.taken = undone;
                }
            }
            Message::Incr { units } => {
                check_added(units)?;
                let more = moved(self.added, units.0.into())?;
                if R::SLIP != Some(Slip::DeafInTurn) || self.head().is_none() {
                    self.added = more;
                }
            }
        }
        self.settle(out);
        Ok(())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let Some(own) = self.claims.get(&claim) else { return Vec::new() };
        let lacks = at_least_one(missing(own.units, self.value()));
        let blocker = |site, claim| Blocker { site, pool: self.pool, units: lacks, claim };
        let mut list: Vec<Blocker> = own.missing.iter().map(|site| blocker(site, None)).collect();
        let (&first, oldest) = self.claims.first_key_value().expect("there is one");
        if first != claim {
            let units = at_least_one(missing(oldest.units, self.value()));
            list.push(Blocker { units, ..blocker(self.me, Some(first)) });
        } else if list.is_empty() {
            list.push(blocker(self.me, None));
        }
        list
    }

    fn head(&self) -> Option<Head> {
        let (&claim, own) = self.claims.first_key_value()?;
        own.missing.is_empty().then(|| Head {
            claim,
            missing: missing(own.units, self.value()),
            taken: (self.reset == SELDOM).then_some(self.taken),
        })
    }

    fn room(&self) -> u64 {
        room(self.added)
    }

    fn is_at_rest(&self) -> bool {
        self.claims.is_empty() && self.held_up.is_empty()
    }

    fn audit(&self) {
        if R::SLIP.is_some() {
            return;
        }
        let oldest = self.claims.first_key_value();
        let first = self.held_up.first_key_value();
        if let Some((claim, _)) = first {
            assert!(oldest.is_some_and(|own| own.0 < claim), "nobody is held up for nothing");
        }
        let lacks = oldest.is_none_or(|(_, own)| self.value() < i64::from(own.units.0));
        assert!(lacks || self.head().is_none(), "whose turn it is waits for units only");
    }
}

impl<R: Rules> ByPermission<R> {
    /// The units there are, as far as is known here. Below zero where claims that were let pass
    /// still wait for units.
    fn value(&self) -> i64 {
        self.initial + self.added - self.taken
    }

    fn others(&self) -> impl Iterator<Item = SiteId> + use<'_, R> {
        let me = self.me;
        self.members.iter().filter(move |&site| site != me)
    }

    fn tell_others(
        &self,
        serves: impl Into<Option<Stamp>>,
        said: &Message,
        out: &mut Out<'_, Message>,
    ) {
        let serves = serves.into();
        for site in self.others() {
            out.send(site, serves, said.clone());
        }
    }

    /// What a claim of another site counts here.
    fn counted(units: Units) -> i64 {
        if R::SLIP == Some(Slip::LetsPassUncounted) { 0 } else { units.0.into() }
    }

    /// Permits the requests that no own claim is older than.
    fn let_pass(&mut self, out: &mut Out<'_, Message>) {
        while let Some((&claim, &units)) = self.held_up.first_key_value()
            && self.claims.first_key_value().is_none_or(|(&own, _)| claim < own)
        {
            self.held_up.remove(&claim);
            self.taken += Self::counted(units);
            out.send(claim.site, claim, Message::Permission { claim });
        }
    }

    /// Serves own claims as far as it is their turn and there are units.
    fn settle(&mut self, out: &mut Out<'_, Message>) {
        while let Some(Head { claim, missing: 0, .. }) = self.next() {
            let own = self.claims.remove(&claim).expect("it is the first");
            if R::SLIP != Some(Slip::TakesUncounted) {
                self.taken += i64::from(own.units.0);
            }
            out.grant(claim);
            self.let_pass(out);
        }
        if self.added >= self.reset && self.taken >= self.reset {
            self.added -= self.reset;
            self.taken -= self.reset;
        }
    }

    fn next(&self) -> Option<Head> {
        if R::SLIP == Some(Slip::OvertakesAtHome) {
            let mut ready = self.claims.iter().filter(|(_, own)| own.missing.is_empty());
            let (&claim, own) = ready.next_back()?;
            return Some(Head { claim, missing: missing(own.units, self.value()), taken: None });
        }
        self.head()
    }
}
