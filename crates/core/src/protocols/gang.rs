//! Gangs: several sites get what each of them needs, and start together or not at all.
//!
//! # Idea
//!
//! A gang is one demand. Its leader asks, on the protocol that the pools use anyway, for all that
//! the members need and for one *seat* of each member, a pool of one unit that stands for the
//! member itself. So a gang and an ordinary demand for the same pool wait for each other in one
//! fair order, a member takes part in one gang at a time, gangs come and go without anybody being
//! told, and an idle gang costs nothing. What is added is a barrier: once everything is granted the
//! leader calls the members, and when all are there it lets all start; each says when it is done,
//! and only then is anything given back.
//!
//! Calling is needed although the seats are granted: a seat says that nobody else has the member,
//! not that the member is there.
//!
//! The demand of a claim names the *shares*: for each member and pool a number of units; see
//! [`Shares`]. A grant is given at the leader and, for the same claim, at each member, each with
//! its own share; each gives back its own. A demand that names pools and no shares is an ordinary
//! one.
//!
//! # Source
//!
//! kofm's own: the reduction of overlapping groups (Cheng et al. 1999) to one demand over several
//! pools.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Inner` | | | what the pools' protocol says |
//! | `Call` | leader | member | everything is here: are you? |
//! | `Here` | member | leader | I am |
//! | `Start` | leader | member | everybody is: this is your share |
//! | `Done` | member | leader | I have finished, or was told that it is off |
//! | `Off` | leader | member | it was called off |
//!
//! # Cost
//!
//! That of the pools' protocol for one claim, and 4(n−1) for n members of whom the leader is one.
//!
//! # Assumes
//!
//! What the pools' protocol assumes, and first-in first-out links.
//!
//! # Why it is safe
//!
//! Everything that a gang uses is held by one claim of the inner protocol from before the first
//! member is called until after the last one is done. So what is promised of that protocol is
//! promised of gangs: no more than there is, in order, and since a claim has one stamp for all its
//! pools, no circle of gangs that wait for each other. Two gangs with a common member want its
//! seat. A gang is called off only before the start, and then nobody has started.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::roaming::Roaming;
use crate::parts::SiteSet;
use crate::protocol::{
    Blocker, Effect, Effects, EffectsOf, PeerFault, Price, Profile, Protocol, Rejection, Service,
};
use crate::types::{Clock, Cluster, Demand, Fence, PoolId, SiteId, Stamp, Unit, Units};

/// How the demand of a gang is written: which pool numbers stand for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shares {
    pools: u16,
    sites: u16,
}

impl Shares {
    /// The numbers for a cluster; none where there are too many sites and pools.
    pub fn new(cluster: &Cluster) -> Option<Self> {
        let pools = u16::try_from(cluster.pools.len()).ok()?;
        let sites = cluster.sites;
        pools.checked_add(1)?.checked_mul(sites)?.checked_add(pools)?;
        Some(Self { pools, sites })
    }

    /// The pool of one unit that stands for a site.
    pub const fn seat(self, site: SiteId) -> PoolId {
        PoolId(self.pools + site.0)
    }

    /// Units of a pool for a member.
    pub const fn share(self, site: SiteId, pool: PoolId) -> PoolId {
        PoolId(self.pools + self.sites + site.0 * self.pools + pool.0)
    }

    /// What a number stands for: the member, if there is one, and the pool or the seat.
    fn meaning(self, pool: PoolId) -> Option<(Option<SiteId>, PoolId)> {
        let (pools, sites) = (self.pools, self.sites);
        if pool.0 < pools {
            return Some((None, pool));
        }
        let rest = pool.0 - pools;
        if rest < sites {
            return Some((Some(SiteId(rest)), pool));
        }
        let rest = rest - sites;
        (rest < sites * pools).then(|| (Some(SiteId(rest / pools)), PoolId(rest % pools)))
    }

    /// The members that a demand names.
    pub fn members(self, demand: &Demand) -> BTreeSet<SiteId> {
        demand.pools().filter_map(|pool| self.meaning(pool)?.0).collect()
    }

    /// All that a demand comes to: pools, and the seats of its members.
    pub fn total(self, demand: &Demand) -> Demand {
        let seats = self.members(demand).into_iter().map(|site| (self.seat(site), Units(1)));
        let seat = |pool: PoolId| (self.pools..self.pools + self.sites).contains(&pool.0);
        let parts = demand.parts().filter_map(|(pool, units)| {
            let pool = self.meaning(pool)?.1;
            (!seat(pool)).then_some((pool, units))
        });
        parts.chain(seats).collect()
    }

    /// What a member gets: its share of the pools, and its seat.
    pub fn part(self, demand: &Demand, site: SiteId) -> Demand {
        let own = |(pool, units): (PoolId, Units)| {
            let (member, pool) = self.meaning(pool)?;
            (member == Some(site) && pool.0 < self.pools).then_some((pool, units))
        };
        demand.parts().filter_map(own).chain([(self.seat(site), Units(1))]).collect()
    }
}

/// What may be left out of the barrier, to see whether it is missed.
pub trait Rules: Clone + core::fmt::Debug + Eq + core::hash::Hash + Send + 'static {
    /// Members are called before the start.
    const CALL: bool = true;
    /// Nothing is given back before everybody is done.
    const WAIT_FOR_ALL: bool = true;
    /// Members are asked to take part only when everything is granted.
    const GRANT_FIRST: bool = true;
    /// A gang that is called off waits until its members know.
    const CALL_OFF: bool = true;
}

/// Nothing is left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {}

/// Gangs over a protocol for pools.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gang<P = Roaming, R = Sound> {
    inner: P,
    shares: Shares,
    /// Gangs that this site leads, from the claim until all is given back.
    led: BTreeMap<Stamp, Rally>,
    /// The gang that this site takes part in, led by another, and whether it has started.
    engaged: Option<(Stamp, bool)>,
    rules: core::marker::PhantomData<R>,
}

/// A gang as its leader knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rally {
    demand: Demand,
    /// Members but the leader.
    others: SiteSet,
    stage: Stage,
    /// Those that are there; after the start, those that are done, the leader among them.
    there: SiteSet,
    /// Units by name and the fence, once granted.
    grant: Option<(Fence, Vec<Unit>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Waiting,
    Calling,
    Started,
    Off,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message<M> {
    /// What the pools' protocol says.
    Inner(M),
    /// Everything is here: are you?
    Call(Stamp),
    /// I am.
    Here(Stamp),
    /// Everybody is.
    Start {
        /// The gang.
        claim: Stamp,
        /// That of the leader's claim.
        fence: Fence,
        /// The member's share.
        units: Vec<Unit>,
    },
    /// I have finished, or know that it is off.
    Done(Stamp),
    /// It was called off.
    Off(Stamp),
}

impl<P: Protocol, R: Rules> Gang<P, R> {
    /// Lets the inner protocol take a step, and does what its grants call for.
    fn wrap<T>(
        &mut self,
        out: &mut EffectsOf<Self>,
        step: impl FnOnce(&mut P, &mut EffectsOf<P>) -> T,
    ) -> T {
        let mut inner = Effects::at(out.clock());
        let result = step(&mut self.inner, &mut inner);
        out.set_clock(inner.clock());
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, clock, message, serves } => {
                    out.push(Effect::Send { to, clock, message: Message::Inner(message), serves });
                }
                Effect::Grant { claim, fence, units } => self.granted(claim, fence, units, out),
                Effect::Reject { claim, reason } => {
                    self.led.remove(&claim);
                    out.push(Effect::Reject { claim, reason });
                }
                Effect::Revoke { claim } => {
                    self.led.remove(&claim);
                    out.push(Effect::Revoke { claim });
                }
                Effect::Arm { timer, min, max } => out.push(Effect::Arm { timer, min, max }),
                Effect::Disarm { timer } => out.push(Effect::Disarm { timer }),
            }
        }
        result
    }

    fn granted(&mut self, claim: Stamp, fence: Fence, units: Vec<Unit>, out: &mut EffectsOf<Self>) {
        let Some(rally) = self.led.get_mut(&claim) else {
            return out.push(Effect::Grant { claim, fence, units });
        };
        rally.grant = Some((fence, units));
        if R::GRANT_FIRST {
            self.call(claim, out);
        }
        self.start(claim, out);
    }

    fn call(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let Some(rally) = self.led.get_mut(&claim) else { return };
        rally.stage = Stage::Calling;
        for member in rally.others.iter() {
            if R::CALL {
                out.send(member, claim, Message::Call(claim));
            } else {
                rally.there.insert(member);
            }
        }
    }

    /// Starts once everything is granted and everybody is there.
    fn start(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let (me, shares) = (self.me(), self.shares);
        let Some(rally) = self.led.get_mut(&claim).filter(|rally| rally.stage == Stage::Calling)
        else {
            return;
        };
        if rally.there != rally.others || (rally.grant.is_none() && R::GRANT_FIRST) {
            return;
        }
        rally.stage = Stage::Started;
        rally.there = SiteSet::new();
        let (fence, mut left) = rally.grant.clone().unwrap_or((Fence(0), Vec::new()));
        // The members take their shares of the named units, one after the other.
        let mut take = |site: SiteId| {
            let mut own = Vec::new();
            for (pool, units) in shares.part(&rally.demand, site).parts() {
                for number in 0..units.0 {
                    let named = left.iter().position(|unit| unit.pool == pool);
                    own.push(named.map_or(Unit { pool, number }, |place| left.remove(place)));
                }
            }
            own
        };
        let members = shares.members(&rally.demand);
        for &member in members.iter().filter(|&&member| member != me) {
            let units = take(member);
            out.send(member, claim, Message::Start { claim, fence, units });
        }
        let units = if members.contains(&me) { take(me) } else { Vec::new() };
        out.push(Effect::Grant { claim, fence, units });
    }

    /// Gives everything back once everybody is done.
    fn give_back(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let me = self.me();
        let Some(rally) = self.led.get(&claim) else { return };
        let all = rally.others.iter().all(|member| rally.there.contains(member));
        let over = match rally.stage {
            Stage::Waiting | Stage::Calling => false,
            Stage::Started => rally.there.contains(me) && (all || !R::WAIT_FOR_ALL),
            Stage::Off => all || !R::CALL_OFF,
        };
        if over {
            self.led.remove(&claim);
            self.wrap(out, |inner, out| inner.on_release(claim, None, out));
        }
    }

    fn led_by(&mut self, claim: Stamp, from: SiteId) -> Result<Option<&mut Rally>, PeerFault> {
        if claim.site != self.me() {
            return Err(PeerFault::ForeignClaim(claim));
        }
        match self.led.get_mut(&claim) {
            Some(rally) if !rally.others.contains(from) => {
                Err(PeerFault::Unexpected("said by somebody who is not a member"))
            }
            rally => Ok(rally),
        }
    }
}

impl<P: Protocol, R: Rules> Protocol for Gang<P, R> {
    const NAME: &'static str = "gang";
    const PROFILE: Profile = Profile {
        source: "kofm",
        summary: "several sites get what each needs, and start together; over roaming",
        serves: Service::Gang,
        as_printed: false,
        full_service: true,
        gathers: P::PROFILE.gathers,
        arbitrated: P::PROFILE.arbitrated,
        // As large as the gang: see the module.
        price: |_, _| Price { min: 0, max: None },
        // A barrier does not outlive its members. Sites run gangs as demands, and those do: see
        // `site/core/gangs.rs`.
        survives: &["pause", "partition"],
    };

    type Message = Message<P::Message>;
    type Timer = P::Timer;

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let shares = Shares::new(cluster).expect("checked by whoever made the cluster");
        let mut inner = cluster.clone();
        inner.pools.extend(cluster.all().map(|_| Units(1)));
        Self {
            inner: P::new(me, &inner),
            shares,
            led: BTreeMap::new(),
            engaged: None,
            rules: core::marker::PhantomData,
        }
    }

    fn me(&self) -> SiteId {
        self.inner.me()
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.inner.capacity(self.shares.meaning(pool)?.1)
    }

    fn next_stamp(&self, clock: Clock) -> Stamp {
        self.inner.next_stamp(clock)
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        let total = self.shares.total(&demand);
        for (pool, units) in total.parts() {
            let capacity = self.inner.capacity(pool).unwrap_or_default();
            if units > capacity {
                return out.reject(claim, Rejection::TooMany { pool, units, capacity });
            }
        }
        let members = self.shares.members(&demand);
        if !members.is_empty() {
            let others = members.into_iter().filter(|&member| member != self.me()).collect();
            let there = SiteSet::new();
            let stage = Stage::Waiting;
            self.led.insert(claim, Rally { demand, others, stage, there, grant: None });
            if !R::GRANT_FIRST {
                self.call(claim, out);
            }
        }
        self.wrap(out, |inner, out| inner.on_claim(claim, total, out));
        self.start(claim, out);
    }

    /// A share of a gang is given back whole.
    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let me = self.me();
        if let Some(rally) = self.led.get_mut(&claim) {
            if part.is_none() && rally.stage == Stage::Started {
                rally.there.insert(me);
                self.give_back(claim, out);
            }
        } else if self.engaged == Some((claim, true)) {
            if part.is_none() {
                self.engaged = None;
                out.send(claim.site, claim, Message::Done(claim));
            }
        } else if claim.site == me {
            self.wrap(out, |inner, out| inner.on_release(claim, part, out));
        }
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        match self.led.get_mut(&claim) {
            Some(rally) if rally.stage == Stage::Calling => {
                rally.stage = Stage::Off;
                rally.there = SiteSet::new();
                for member in rally.others.iter() {
                    out.send(member, claim, Message::Off(claim));
                }
                self.give_back(claim, out);
            }
            Some(rally) if rally.stage != Stage::Waiting => {}
            _ => {
                self.led.remove(&claim);
                self.wrap(out, |inner, out| inner.on_withdraw(claim, out));
            }
        }
    }

    fn on_message(
        &mut self,
        from: SiteId,
        message: Self::Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        let fault = |what| Err(PeerFault::Unexpected(what));
        match message {
            Message::Inner(message) => {
                return self.wrap(out, |inner, out| inner.on_message(from, message, out));
            }
            Message::Call(claim) | Message::Start { claim, .. } | Message::Off(claim)
                if claim.site != from =>
            {
                return Err(PeerFault::ForeignClaim(claim));
            }
            Message::Call(claim) => {
                if self.engaged.is_some() {
                    return fault("called while it takes part in another gang");
                }
                self.engaged = Some((claim, false));
                out.send(from, claim, Message::Here(claim));
            }
            Message::Start { claim, fence, units } => {
                if self.engaged != Some((claim, false)) && (R::CALL || self.engaged.is_some()) {
                    return fault("started without being called");
                }
                if units.iter().any(|unit| self.capacity(unit.pool).is_none()) {
                    return fault("a share of a pool that does not exist");
                }
                self.engaged = Some((claim, true));
                out.push(Effect::Grant { claim, fence, units });
            }
            Message::Off(claim) => {
                if self.engaged != Some((claim, false)) {
                    return fault("called off without being called");
                }
                self.engaged = None;
                out.send(from, claim, Message::Done(claim));
            }
            Message::Here(claim) => {
                let Some(rally) = self.led_by(claim, from)? else {
                    return fault("here for a gang that is over");
                };
                // Late where it was called off meanwhile: the member hears of that next.
                if rally.stage == Stage::Calling {
                    rally.there.insert(from);
                    self.start(claim, out);
                }
            }
            Message::Done(claim) => {
                let Some(rally) = self.led_by(claim, from)? else {
                    return fault("done with a gang that is over");
                };
                let ending = matches!(rally.stage, Stage::Started | Stage::Off);
                if !ending || !rally.there.insert(from) {
                    return fault("done with what was never begun");
                }
                self.give_back(claim, out);
            }
        }
        Ok(())
    }

    fn on_timer(&mut self, timer: Self::Timer, out: &mut EffectsOf<Self>) {
        self.wrap(out, |inner, out| inner.on_timer(timer, out));
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let Some(rally) = self.led.get(&claim).filter(|rally| rally.stage != Stage::Waiting) else {
            return self.inner.explain(claim);
        };
        let missing = |site: &SiteId| rally.stage == Stage::Calling && !rally.there.contains(*site);
        let seat = |site| Blocker {
            site,
            pool: self.shares.seat(site),
            units: Units(1),
            claim: Some(claim),
        };
        rally.others.iter().filter(missing).map(seat).collect()
    }

    fn is_at_rest(&self) -> bool {
        self.inner.is_at_rest() && self.led.is_empty() && self.engaged.is_none()
    }

    fn audit(&self) {
        self.inner.audit();
        for (claim, rally) in &self.led {
            assert_eq!(claim.site, self.me(), "a site leads gangs of its own");
            assert!(!rally.others.contains(self.me()), "the leader does not call itself");
        }
    }
}
