//! Any number of semaphores that share one protocol: what is said of one never concerns another.

use alloc::vec::Vec;
use core::fmt::{self, Debug};
use core::hash::Hash;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::epoch::Survey;
use crate::parts::SiteSet;
use crate::protocol::{Blocker, Effects, EffectsOf, Head, PeerFault, Profile, Protocol, Rejection};
use crate::readings::Fault;
use crate::types::{Clock, Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// No count of units gets here; a larger one is somebody's fault and is refused.
pub const LIMIT: i64 = 1 << 60;

/// One semaphore at one site: P takes units, in turn, as soon as there are enough; V adds some.
pub trait Semaphore: Clone + Debug + Eq + Hash + Send + 'static {
    /// The name users type.
    const NAME: &'static str;
    /// What it can do and what it costs.
    const PROFILE: Profile;
    /// What its sites say to each other.
    type Message: Clone + Debug + Ord + Hash + Serialize + DeserializeOwned + Send + 'static;

    /// Whether messages go round forever, also where no site has a claim.
    const PERPETUAL: bool = false;
    /// The faults that a reading of this listing may have.
    const FAULTS: &'static [Fault] = &[];

    /// The first step of a perpetual one.
    fn wake(&mut self, _out: &mut Out<'_, Self::Message>) {}
    /// The semaphore `pool` at `me`, with its first value.
    fn new(me: SiteId, cluster: &Cluster, pool: PoolId) -> Self;
    /// Another first value, before anything happens: what was left when an epoch began.
    fn start_at(&mut self, value: i64);
    /// P: a client takes units, as soon as it is its turn and there are enough.
    fn claim(&mut self, claim: Stamp, units: Units, out: &mut Out<'_, Self::Message>);
    /// A waiting client gives up. Unknown claims are ignored.
    fn withdraw(&mut self, claim: Stamp, out: &mut Out<'_, Self::Message>);
    /// V: a client adds units.
    fn add(&mut self, units: Units, out: &mut Out<'_, Self::Message>);
    /// A message arrives. `Err` means that nothing was changed and nothing said.
    fn receive(
        &mut self,
        from: SiteId,
        message: Self::Message,
        out: &mut Out<'_, Self::Message>,
    ) -> Result<(), PeerFault>;

    /// What a waiting claim waits for. Whose turn it is has no blocker but the units it lacks:
    /// those name its own site and no claim.
    fn explain(&self, claim: Stamp) -> Vec<Blocker>;
    /// The claim whose turn it is, where it is one of this site.
    fn head(&self) -> Option<Head>;
    /// How much may still be added here.
    fn room(&self) -> u64;
    /// Whether nobody waits, and it owes and expects nothing.
    fn is_at_rest(&self) -> bool;
    /// Asserts what must always hold locally.
    fn audit(&self) {}
}

/// Where a semaphore puts its effects.
#[derive(Debug)]
pub struct Out<'a, M> {
    pool: PoolId,
    effects: &'a mut Effects<About<M>, ()>,
}

impl<M> Out<'_, M> {
    /// Tells `to`; the message is charged to the claim that it serves.
    pub fn send(&mut self, to: SiteId, serves: impl Into<Option<Stamp>>, said: M) {
        self.effects.send(to, serves, About { pool: self.pool, said });
    }

    /// The claim has its units.
    pub fn grant(&mut self, claim: Stamp) {
        self.effects.grant(claim);
    }

    /// Refuses a claim for good.
    pub fn reject(&mut self, claim: Stamp, reason: Rejection) {
        self.effects.reject(claim, reason);
    }

    /// The site's clock.
    pub const fn clock(&self) -> Clock {
        self.effects.clock()
    }

    /// Takes over the time of a protocol that was wrapped.
    pub fn set_clock(&mut self, clock: Clock) {
        self.effects.set_clock(clock);
    }
}

/// A message and the semaphore that it is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct About<M> {
    /// Which semaphore.
    pub pool: PoolId,
    /// What is said of it.
    pub said: M,
}

impl<M: Debug> Debug for About<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.pool, self.said)
    }
}

/// All semaphores of one protocol at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Semaphores<S> {
    me: SiteId,
    members: SiteSet,
    /// With the value that each began with.
    list: Vec<(Units, S)>,
}

impl<S: Semaphore> Semaphores<S> {
    fn with<R>(
        &mut self,
        pool: PoolId,
        effects: &mut EffectsOf<Self>,
        act: impl FnOnce(&mut S, &mut Out<'_, S::Message>) -> R,
    ) -> Option<R> {
        let (_, semaphore) = self.list.get_mut(pool.index())?;
        Some(act(semaphore, &mut Out { pool, effects }))
    }
}

impl<S: Semaphore> Protocol for Semaphores<S> {
    const NAME: &'static str = S::NAME;
    const PROFILE: Profile = S::PROFILE;

    type Message = About<S::Message>;
    type Timer = ();

    const PERPETUAL: bool = S::PERPETUAL;
    const FAULTS: &'static [Fault] = S::FAULTS;

    fn alarm(&self) -> Option<()> {
        S::PERPETUAL.then_some(())
    }

    fn on_timer(&mut self, (): (), out: &mut EffectsOf<Self>) {
        for pool in (0..).map(PoolId).take(self.list.len()) {
            self.with(pool, out, Semaphore::wake);
        }
    }

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let pools = (0..).map(PoolId).zip(&cluster.pools);
        let list = pools.map(|(pool, &units)| (units, S::new(me, cluster, pool))).collect();
        Self { me, members: cluster.all().collect(), list }
    }

    fn me(&self) -> SiteId {
        self.me
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.list.get(pool.index()).map(|entry| entry.0)
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        for (pool, units) in demand.parts() {
            self.with(pool, out, |semaphore, out| semaphore.claim(claim, units, out));
        }
    }

    fn on_release(&mut self, _claim: Stamp, _part: Option<&Demand>, _out: &mut EffectsOf<Self>) {
        // What was taken is taken: there are no holders.
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        for pool in (0..).map(PoolId).take(self.list.len()) {
            self.with(pool, out, |semaphore, out| semaphore.withdraw(claim, out));
        }
    }

    fn on_add(&mut self, demand: Demand, out: &mut EffectsOf<Self>) {
        for (pool, units) in demand.parts() {
            self.with(pool, out, |semaphore, out| semaphore.add(units, out));
        }
    }

    fn on_message(
        &mut self,
        from: SiteId,
        message: Self::Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        if !self.members.contains(from) || from == self.me {
            return Err(PeerFault::UnknownSite(from));
        }
        let About { pool, said } = message;
        self.with(pool, out, |semaphore, out| semaphore.receive(from, said, out))
            .unwrap_or(Err(PeerFault::UnknownPool(pool)))
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        self.list.iter().flat_map(|(_, semaphore)| semaphore.explain(claim)).collect()
    }

    fn is_at_rest(&self) -> bool {
        self.list.iter().all(|(_, semaphore)| semaphore.is_at_rest())
    }

    fn audit(&self) {
        self.list.iter().for_each(|(_, semaphore)| semaphore.audit());
    }

    fn room(&self, pool: PoolId) -> u64 {
        self.list.get(pool.index()).map_or(0, |(_, semaphore)| semaphore.room())
    }

    /// The units that are certainly left are the first value of the epoch; who waited waits again.
    fn resume(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        let mut all = Self::new(me, cluster);
        for (pool, (_, semaphore)) in (0..).map(PoolId).zip(&mut all.list) {
            if let Some(value) = survey.value(pool) {
                semaphore.start_at(i64::try_from(value).unwrap_or(LIMIT).min(LIMIT));
            }
        }
        all
    }

    fn head(&self, pool: PoolId) -> Option<Head> {
        self.list.get(pool.index()).and_then(|(_, semaphore)| semaphore.head())
    }
}

/// How many more units there must be for a claim; none where there are enough.
pub(crate) fn missing(units: Units, value: i64) -> u64 {
    u64::try_from(i64::from(units.0).saturating_sub(value)).unwrap_or(0)
}

/// A blocker's units: never zero, and cut to what fits.
pub(crate) fn at_least_one(units: u64) -> Units {
    Units(u32::try_from(units).unwrap_or(u32::MAX).max(1))
}

/// How much may be added to a counter of additions.
pub(crate) fn room(added: i64) -> u64 {
    u64::try_from(LIMIT.saturating_sub(added)).unwrap_or(0)
}

/// A counter that moves by some units, if it stays within what is possible.
pub(crate) fn moved(counter: i64, by: i64) -> Result<i64, PeerFault> {
    let sum = counter.checked_add(by).filter(|sum| sum.unsigned_abs() < 2 * LIMIT.unsigned_abs());
    sum.ok_or(PeerFault::Unexpected("a counter is full"))
}

/// What may be wrong in a message about a claim.
pub(crate) fn check_claim(from: SiteId, claim: Stamp, units: Units) -> Result<(), PeerFault> {
    if claim.site != from {
        return Err(PeerFault::ForeignClaim(claim));
    }
    if units.is_zero() {
        return Err(PeerFault::TooManyUnits(claim));
    }
    Ok(())
}

/// Nobody adds nothing.
pub(crate) const fn check_added(units: Units) -> Result<(), PeerFault> {
    if units.is_zero() { Err(PeerFault::Unexpected("nothing is added")) } else { Ok(()) }
}

/// What the checker may get wrong on purpose, and when counters are reset.
pub trait Rules: Clone + Debug + Eq + Hash + Send + 'static {
    /// The one slip in them; none in those for use. A constant, so that it costs nothing.
    const SLIP: Option<Slip> = None;
    /// Counters are set back by this much once they have reached it: raz(x) of the paper.
    const RESET: i64 = SELDOM;
}

/// Often enough for 64 bits, and too seldom for anybody to notice.
pub const SELDOM: i64 = 1 << 40;

/// The rules as they should be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {}

/// A mistake that is easy to make. For the checker, not for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Slip {
    /// What is added here is not told to others.
    AddsInSilence,
    /// What is added here is not counted here.
    AddsForOthers,
    /// Whoever lets others pass does not count what they take.
    LetsPassUncounted,
    /// What is taken here is not counted here.
    TakesUncounted,
    /// A claim that was withdrawn is not taken back.
    WithdrawsInSilence,
    /// Whoever withdraws in its turn keeps those behind it waiting.
    KeepsTheTurn,
    /// A younger claim does not wait for an older one of its site.
    OvertakesAtHome,
    /// Nobody acknowledges a reset.
    NoAcknowledgement,
    /// Counters stop at zero where a reset takes them below.
    Unsigned,
    /// A reset is not counted, so that counts from before it pass for counts after it.
    UncountedResets,
    /// The last count heard replaces the largest.
    BelievesTheLast,
    /// Additions are not heard while somebody waits for units.
    DeafInTurn,
}
