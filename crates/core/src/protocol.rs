//! What a protocol is: one trait, one way in, effects out in order.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt::{self, Debug, Display};
use core::hash::Hash;
use core::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::epoch::Survey;
use crate::readings::Fault;
use crate::types::{Clock, Cluster, Demand, Fence, PoolId, SiteId, Stamp, Unit, Units};

/// A protocol at one site: a plain value with no clock, no I/O and no randomness.
///
/// Nobody calls the handlers but [`step`] and combinators that wrap a protocol.
pub trait Protocol: Clone + Debug + Eq + Hash + Send + 'static {
    /// The name users type.
    const NAME: &'static str;
    /// What it can do and what it costs.
    const PROFILE: Profile;

    /// What its sites say to each other.
    type Message: Clone + Debug + Ord + Hash + Serialize + DeserializeOwned + Send + 'static;
    /// Its timers. Arming one again replaces it.
    type Timer: Copy + Debug + Ord + Hash + Serialize + DeserializeOwned + Send + 'static;

    /// The protocol at `me`, at rest.
    fn new(me: SiteId, cluster: &Cluster) -> Self;

    /// The site's own number.
    fn me(&self) -> SiteId;
    /// Units in `pool`; `None` where it does not exist.
    fn capacity(&self, pool: PoolId) -> Option<Units>;

    /// The stamp that the next claim takes: from the site's clock, unless the protocol keeps its
    /// own. Every stamp of a site is newer than its last.
    fn next_stamp(&self, clock: Clock) -> Stamp {
        clock.next_stamp(self.me())
    }

    /// A client asks. The demand is feasible; the stamp is that of
    /// [`next_stamp`](Self::next_stamp).
    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>);
    /// A holder gives back a part, or with `None` all that is left. Where units have names, a part
    /// is those that the grant listed last. Unknown claims are ignored.
    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>);
    /// Somebody adds units to a semaphore; whoever shares pools is never told so. What is added is
    /// no more than [`room`](Self::room).
    fn on_add(&mut self, _demand: Demand, _out: &mut EffectsOf<Self>) {}
    /// A waiting claim is given up. Unknown and held claims are ignored.
    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>);
    /// A message arrives. `Err` means that nothing was changed and nothing said.
    fn on_message(
        &mut self,
        from: SiteId,
        message: Self::Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault>;
    /// An armed timer fires.
    fn on_timer(&mut self, _timer: Self::Timer, _out: &mut EffectsOf<Self>) {}

    /// What a waiting claim still waits for; empty for any other claim.
    fn explain(&self, claim: Stamp) -> Vec<Blocker>;
    /// Whether it has no claims, owes nothing and waits for nothing.
    fn is_at_rest(&self) -> bool;
    /// Asserts what must always hold locally.
    fn audit(&self) {}

    /// Whether messages go round for ever, also where nobody asks. Then a run ends with the last
    /// release, and timers are for what got lost: the checker lets them fire only where nothing
    /// else can happen and somebody waits.
    const PERPETUAL: bool = false;
    /// The faults that a reading of this listing may have: see [`crate::readings`].
    const FAULTS: &'static [Fault] = &[];
    /// A timer that is armed from the beginning and due at once.
    fn alarm(&self) -> Option<Self::Timer> {
        None
    }
    /// How many tokens of each kind there should be, for protocols that count theirs.
    fn expected_tokens(_cluster: &Cluster) -> Vec<u32> {
        Vec::new()
    }
    /// The tokens at this site. In a protocol for groups: the competitors, by number, over which
    /// this process has what both need.
    fn census(&self) -> Census {
        Census::default()
    }
    /// At the site that looks after tokens: whether the last count found them right.
    fn is_sound(&self) -> Option<bool> {
        None
    }
    /// The kinds of the tokens in a message.
    fn tokens_in(_message: &Self::Message) -> Vec<u32> {
        Vec::new()
    }
    /// Puts garbage into every variable but the list of claims, which is the clients'. Only called
    /// where [`Profile::survives`] names `arbitrary-start`.
    fn scramble(&mut self, _draw: &mut dyn FnMut() -> u64) {
        unreachable!("{} does not claim to survive this", Self::NAME)
    }
    /// The protocol at a site that starts again without its memory, in a cluster that went on.
    /// Where crashes are the epoch's business, that is a new site.
    fn reborn(me: SiteId, cluster: &Cluster) -> Self {
        Self::new(me, cluster)
    }
    /// The same as sites run it: without a bound that only keeps the checker's worlds finite.
    #[must_use]
    fn unbounded(self) -> Self {
        self
    }
    /// A message as a fault may leave it on a link from this site to `to`; none where there is no
    /// such link.
    fn garbage(&self, _to: SiteId, _draw: &mut dyn FnMut() -> u64) -> Option<Self::Message> {
        None
    }
    /// The named units that lie at this site unused; nothing where the protocol only counts.
    fn idle_units(&self) -> Option<Vec<Unit>> {
        None
    }
    /// The claims that wait for units which this site has or gets, by pool, in the order in which
    /// it serves them, each with its units; empty where claims go by their stamps everywhere.
    fn lines(&self) -> BTreeMap<PoolId, Vec<(Stamp, Units)>> {
        BTreeMap::new()
    }
    /// The protocol at `me` as an [epoch](crate::epoch) begins, from what its members know: all
    /// claims of the survey are as they were, and no more than its usable units are ever granted.
    ///
    /// As it stands here, the protocol forgets what is held: those units come back with the next
    /// epoch only. A protocol that runs in a site does better.
    fn resume(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        let mut rest = cluster.clone();
        for (pool, units) in (0..).map(PoolId).zip(&mut rest.pools) {
            *units = survey.usable(cluster, pool).saturating_sub(survey.held(pool));
        }
        Self::new(me, &rest)
    }
    /// All members have installed the epoch: the protocol may speak and grant.
    fn on_resume(&mut self, survey: &Survey, out: &mut EffectsOf<Self>) {
        let me = self.me();
        for (claim, standing) in survey.of(me).filter(|(_, standing)| standing.held.is_none()) {
            self.on_claim(claim, standing.demand.clone(), out);
        }
    }
    /// How much may still be added to a semaphore here before a counter is full.
    fn room(&self, _pool: PoolId) -> u64 {
        0
    }
    /// Whoever may take from a semaphore next, if it is a claim of this site: what it waits for is
    /// units, and nobody else.
    fn head(&self, _pool: PoolId) -> Option<Head> {
        None
    }
}

/// What a site knows of tokens that should be conserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// The kind of each token that is here.
    pub tokens: Vec<u32>,
    /// Whether this site has counted and is content: then the cluster has what it should have.
    pub sure: bool,
    /// Changes with every circulation, at the site that begins them.
    pub circulation: u64,
}

/// The claim whose turn it is at a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Head {
    /// Which.
    pub claim: Stamp,
    /// Units that have to be added before it can be granted, as far as its site knows.
    pub missing: u64,
    /// All units ever taken, by its site's count. In its turn a site must know this exactly. None
    /// where the count was reset and the site cannot say.
    pub taken: Option<i64>,
}

/// The effects of a protocol, by its name instead of its types.
pub type EffectsOf<P> = Effects<<P as Protocol>::Message, <P as Protocol>::Timer>;
/// The inputs of a protocol, by its name instead of its types.
pub type InputOf<P> = Input<<P as Protocol>::Message, <P as Protocol>::Timer>;
/// One effect of a protocol, by its name instead of its types.
pub type EffectOf<P> = Effect<<P as Protocol>::Message, <P as Protocol>::Timer>;

/// What enters a protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input<M, T> {
    /// A client asks; the stamp comes from [`Protocol::next_stamp`].
    Claim {
        /// The claim's identity.
        claim: Stamp,
        /// What it asks for.
        demand: Demand,
    },
    /// A holder gives back.
    Release {
        /// Whose units.
        claim: Stamp,
        /// Which of them; all that are left where there is none.
        part: Option<Demand>,
    },
    /// A client gives up waiting.
    Withdraw {
        /// The claim that ends.
        claim: Stamp,
    },
    /// A client adds units to semaphores.
    Add {
        /// Which, and how many.
        demand: Demand,
    },
    /// A message arrives.
    Deliver {
        /// The site that sent it.
        from: SiteId,
        /// That site's clock when it did.
        clock: Clock,
        /// What it says.
        message: M,
    },
    /// A timer fires.
    Fire {
        /// Which.
        timer: T,
    },
}

/// What leaves a protocol. Whoever drives it carries out all effects, in order, before the next
/// input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect<M, T> {
    /// Tell another site.
    Send {
        /// To whom.
        to: SiteId,
        /// This site's clock at that moment.
        clock: Clock,
        /// What.
        message: M,
        /// The claim that this message is charged to.
        serves: Option<Stamp>,
    },
    /// The claim is held from now on.
    Grant {
        /// Which claim.
        claim: Stamp,
        /// Larger than the fence of every earlier grant that it could not coexist with.
        fence: Fence,
        /// Which units, where the protocol knows them by name; otherwise empty.
        units: Vec<Unit>,
    },
    /// The claim ends without a grant; nothing was or will be allocated.
    Reject {
        /// Which claim.
        claim: Stamp,
        /// Why.
        reason: Rejection,
    },
    /// A held claim is over, without its client having asked: its units may be somebody else's
    /// soon.
    Revoke {
        /// Which claim.
        claim: Stamp,
    },
    /// Call back after some time in this range; the driver picks.
    Arm {
        /// Which timer; an armed one is replaced.
        timer: T,
        /// Not before.
        min: Duration,
        /// Not after.
        max: Duration,
    },
    /// Forget a timer.
    Disarm {
        /// Which.
        timer: T,
    },
}

/// Where a protocol puts its effects, with the site's clock at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effects<M, T> {
    clock: Clock,
    list: Vec<Effect<M, T>>,
}

impl<M, T> Default for Effects<M, T> {
    fn default() -> Self {
        Self::at(Clock::default())
    }
}

impl<M, T> Effects<M, T> {
    /// An empty list at the given time; combinators give one to what they wrap.
    pub const fn at(clock: Clock) -> Self {
        Self { clock, list: Vec::new() }
    }

    /// The site's clock.
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Takes over the time from an inner list; combinators do this after a step of what they wrap.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock.merge(clock);
    }

    /// Passes on an effect of something wrapped.
    pub fn push(&mut self, effect: Effect<M, T>) {
        self.list.push(effect);
    }

    /// Tells `to`; the message is charged to the claim that it serves.
    pub fn send(&mut self, to: SiteId, serves: impl Into<Option<Stamp>>, message: M) {
        self.list.push(Effect::Send { to, clock: self.clock, message, serves: serves.into() });
    }

    /// Grants units that have no names.
    pub fn grant(&mut self, claim: Stamp) {
        self.grant_named(claim, Vec::new());
    }

    /// Grants these units. The clock advances, so that a later grant that depends on this one has
    /// a larger fence.
    pub fn grant_named(&mut self, claim: Stamp, units: Vec<Unit>) {
        self.clock.fence += 1;
        self.list.push(Effect::Grant { claim, fence: Fence(self.clock.fence), units });
    }

    /// Refuses a claim for good.
    pub fn reject(&mut self, claim: Stamp, reason: Rejection) {
        self.list.push(Effect::Reject { claim, reason });
    }

    /// Takes back what a claim holds.
    pub fn revoke(&mut self, claim: Stamp) {
        self.list.push(Effect::Revoke { claim });
    }

    /// Asks to be called back after a time between `min` and `max`.
    pub fn arm(&mut self, timer: T, min: Duration, max: Duration) {
        self.list.push(Effect::Arm { timer, min, max });
    }

    /// Forgets a timer.
    pub fn disarm(&mut self, timer: T) {
        self.list.push(Effect::Disarm { timer });
    }

    /// What was said since the last drain, in order.
    pub fn drain(&mut self) -> alloc::vec::Drain<'_, Effect<M, T>> {
        self.list.drain(..)
    }

    /// The same without taking it out.
    pub fn as_slice(&self) -> &[Effect<M, T>] {
        &self.list
    }
}

/// The one place where inputs meet protocols.
///
/// It keeps the clock: a claim's stamp and every received time move it forward, every message sent
/// carries it. It rejects infeasible demands before the protocol sees them. On `Err`, neither the
/// protocol nor the clock has changed and there are no effects.
pub fn step<P: Protocol>(
    protocol: &mut P,
    clock: &mut Clock,
    input: InputOf<P>,
    out: &mut EffectsOf<P>,
) -> Result<(), PeerFault> {
    out.clock = *clock;
    match input {
        Input::Claim { claim, demand } => {
            assert_eq!(claim, protocol.next_stamp(*clock), "a claim takes the next stamp");
            // A protocol with a clock of its own leaves the site's alone.
            if claim == clock.next_stamp(claim.site) {
                out.clock.time = claim.time;
            }
            match feasible(protocol, &demand) {
                Ok(()) => protocol.on_claim(claim, demand, out),
                Err(reason) => out.reject(claim, reason),
            }
        }
        Input::Release { claim, part } => protocol.on_release(claim, part.as_ref(), out),
        Input::Withdraw { claim } => protocol.on_withdraw(claim, out),
        Input::Add { demand } => {
            let fits = |(pool, units): (_, Units)| u64::from(units.0) <= protocol.room(pool);
            assert!(demand.parts().all(fits), "nobody adds more than there is room for");
            protocol.on_add(demand, out);
        }
        Input::Deliver { from, clock, message } => {
            if !clock.is_plausible() {
                return Err(PeerFault::ClockTooFar);
            }
            out.clock.merge(clock);
            let said = out.list.len();
            protocol.on_message(from, message, out).inspect_err(|fault| {
                assert_eq!(out.list.len(), said, "refused with {fault:?}, yet said something");
            })?;
        }
        Input::Fire { timer } => protocol.on_timer(timer, out),
    }
    *clock = out.clock;
    if cfg!(debug_assertions) {
        protocol.audit();
    }
    Ok(())
}

fn feasible<P: Protocol>(protocol: &P, demand: &Demand) -> Result<(), Rejection> {
    if demand.is_empty() {
        return Err(Rejection::Empty);
    }
    let semaphore = P::PROFILE.serves == Service::Semaphore;
    if semaphore && demand.parts().len() > 1 {
        return Err(Rejection::OnePool);
    }
    for (pool, units) in demand.parts() {
        let capacity = protocol.capacity(pool).ok_or(Rejection::UnknownPool(pool))?;
        // What a semaphore has not got, somebody may add.
        if units > capacity && !semaphore {
            return Err(Rejection::TooMany { pool, units, capacity });
        }
    }
    Ok(())
}

/// Why a claim was refused. Definite: nothing was or will be allocated for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Rejection {
    /// It asks for nothing.
    Empty,
    /// It names a pool that does not exist.
    UnknownPool(PoolId),
    /// It asks for more than the pool has.
    TooMany {
        /// The pool.
        pool: PoolId,
        /// What was asked.
        units: Units,
        /// What there is.
        capacity: Units,
    },
    /// This protocol takes one claim per site at a time (published listings only).
    OneAtATime,
    /// This protocol takes one pool per demand (published listings, semaphores).
    OnePool,
}

impl Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the demand names no units"),
            Self::UnknownPool(pool) => write!(f, "there is no pool {pool}"),
            Self::TooMany { pool, units, capacity } => {
                write!(f, "{units} units asked of pool {pool}, which has {capacity}")
            }
            Self::OneAtATime => write!(f, "one claim per site at a time"),
            Self::OnePool => write!(f, "one pool per demand"),
        }
    }
}

/// A message that no correct site sends. The receiver has refused it and is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PeerFault {
    /// A clock that no honest site can have reached.
    ClockTooFar,
    /// A site that does not exist.
    UnknownSite(SiteId),
    /// A pool that does not exist.
    UnknownPool(PoolId),
    /// A claim that the sender cannot speak for.
    ForeignClaim(Stamp),
    /// More units than the pool has, or than were claimed.
    TooManyUnits(Stamp),
    /// A message that makes no sense at this point.
    Unexpected(&'static str),
}

impl Display for PeerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClockTooFar => write!(f, "a clock beyond {}", Clock::LIMIT),
            Self::UnknownSite(site) => write!(f, "unknown site {site}"),
            Self::UnknownPool(pool) => write!(f, "unknown pool {pool}"),
            Self::ForeignClaim(claim) => write!(f, "claim {claim} is not the sender's"),
            Self::TooManyUnits(claim) => write!(f, "more units than claim {claim} can have"),
            Self::Unexpected(what) => write!(f, "{what}"),
        }
    }
}

/// One thing that a waiting claim waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Blocker {
    /// The site to look at.
    pub site: SiteId,
    /// The pool in question.
    pub pool: PoolId,
    /// How many of its units are there, or may be there as far as is known.
    pub units: Units,
    /// The claim that has them; none where the site has not answered yet.
    pub claim: Option<Stamp>,
}

/// What a protocol can do and what it costs: data, held to by tests.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Where it comes from.
    pub source: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// What its numbered pools are.
    pub serves: Service,
    /// A published listing with its faults: for checker and simulator, never for a site.
    pub as_printed: bool,
    /// Takes several claims per site, withdrawal, and for pools several of them per demand.
    pub full_service: bool,
    /// Uses the topology itself; others are routed hop by hop.
    pub gathers: bool,
    /// Asks arbiters: a pool may say which, and how their request sets are made.
    pub arbitrated: bool,
    /// Messages per claim on a fully connected cluster, one claim per site at a time.
    pub price: fn(sites: u64, units: u64) -> Price,
    /// Faults that it survives, by the simulator's names: those that only delay by itself, the
    /// others as a member of [epochs](crate::epoch).
    pub survives: &'static [&'static str],
}

impl Profile {
    /// Whether it survives this fault.
    pub const fn survives(&self, fault: &str) -> bool {
        let mut at = 0;
        while at < self.survives.len() {
            if same(self.survives[at].as_bytes(), fault.as_bytes()) {
                return true;
            }
            at += 1;
        }
        false
    }
}

/// Whether two names are the same; `==` is not there yet when constants are computed.
const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// What a protocol shares among sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Units that are held and given back.
    Pool,
    /// Counters: a claim takes units for good, anybody adds some. A pool's size is the value that
    /// its semaphore begins with.
    Semaphore,
    /// Groups of processes that work together; see [`Grouping`](crate::Grouping).
    Group,
    /// Units of pools for several sites at once, which start together; see
    /// `gang`.
    Gang,
}

/// What a protocol survives that can [resume](Protocol::resume) in a new epoch.
pub const SURVIVES: &[&str] = &["pause", "partition", "crash", "restart", "one-way", "clock-rate"];

/// The fewest and the most messages that a claim can cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Never fewer.
    pub min: u64,
    /// Never more; none where contention has no bound.
    pub max: Option<u64>,
}
