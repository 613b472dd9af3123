//! Units live where they are used.
//!
//! # Idea
//!
//! Every unit is owned by one site or on its way to one. A site grants from the units it owns,
//! without a message. A claim that its site cannot serve asks the *switchboard* of the pool, a
//! site that knows where units are; that tells a site which has some to give them to the claim.
//! What a site has goes to the oldest first, be it a claim of its own or one that was sent there.
//!
//! # Source
//!
//! Ours. Tokens as in Raynal 1990 (RR-1342), §7; one who knows where they are, as the manager of
//! shared pages in Li and Hudak 1989.
//!
//! # Messages
//!
//! There is one message: all that a step has to say to one site, by pool.
//!
//! | part | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `asks` | claimant | switchboard | so many units lack |
//! | `wants` | switchboard | owner | give units to this claim |
//! | `units`, `served` | owner | claimant | these are yours now, for this claim |
//! | `came` | claimant | switchboard | they have arrived |
//! | `bounced` | owner | switchboard | there is no unit for this claim here |
//! | `units`, `home` | owner | switchboard | nobody here needs these, and they are scarce |
//! | `idle`, `spare` | owner | switchboard | nobody here needs these |
//! | `ended` | switchboard | claimant | nobody else has so many units |
//! | `seeks`, `sated` | claimant | switchboard | this claim has waited for long; no more |
//! | `seekers`, `forget` | switchboard | owner | the same, for those who may have units to spare |
//! | `units`, `found` | owner | claimant | these nobody needs here, and you seek some |
//! | `strayed` | claimant | switchboard | they have arrived |
//!
//! Each pool has its switchboard at another site. It grants nothing and holds no lock.
//!
//! # Cost
//!
//! Nothing for a claim that its site can serve. Otherwise an ask, a want, the units, and a note
//! that they came: 4 messages, or fewer where one of the sites is the switchboard. While claims
//! wait, units that nobody was sent for go to the switchboard, and cost 3: ask, units, home. A
//! unit that is released goes straight to the claim that was sent for it: one message per
//! hand-over. A claim that waits for more than a tenth of a second costs more: its site asks
//! whoever may have units to spare, which is two messages for each of them and four beside.
//!
//! # Assumes
//!
//! Reliable first-in first-out links between sites that do not crash. On other topologies than the
//! full one its messages are routed.
//!
//! # Why it is safe
//!
//! Units are conserved: only the owner uses a unit or gives it away, and then it is the owner no
//! more. Fences grow per unit, because the clock travels with it.
//!
//! Nobody is forgotten. A site is owed what its claims lack; that is at the switchboard, or with a
//! site that owns a unit for it. A site that is sent more claims than it owns units sends back the
//! youngest; one that yields gathered units to an older claim asks for them again. Whatever moves
//! is told to the switchboard, at the latest when it is released.
//!
//! So look at the oldest claim that waits. At the switchboard it waits for nobody, because claims
//! are kept there only while an older one has been sent and has not been served. Where it is sent
//! it is first for every unit that becomes idle, also for those that a younger one has gathered.
//! What it has nobody takes: at its own site others pass it only while it has or is owed all its
//! units apart from those that they use. It is granted once the present holders release. Only
//! finitely many claims are older than any claim, so everybody's turn comes.
//!
//! Nor does the oldest claim wait beside free units until a holder releases, who may keep his for
//! days: see `search`.
//!
//! # What order is kept
//!
//! A unit is given to the oldest claim that was sent for it, and reserved units are yielded to any
//! older claim that is sent, never to a younger one. Units that came for one claim are used for
//! it, past older claims of its site that wait for other units, which they asked for. Between
//! claims that wait for different units there is no order: one that its own site can serve passes
//! older ones elsewhere, for nothing; and one that fits behind a holder passes an older one that
//! does not. So how often a claim is overtaken has no bound but the holding times.
//!
//! # Differs from the sources
//!
//! Many units, demands for several of several pools, withdrawal: units come all the same for a
//! claim that is gone, and serve the next one.

mod board;
mod check;
mod epoch;
mod pool;
mod queue;
mod rules;
mod search;
mod turn;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use self::board::Board;
pub use self::pool::Came;
use self::pool::Pool;
pub use self::rules::{Rules, Sound};
pub use self::search::{Restless, Search};
use self::turn::Turn;
use crate::epoch::Survey;
use crate::protocol::{Blocker, EffectsOf, PeerFault, Price, Profile, Protocol, SURVIVES, Service};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Unit, Units};

/// The protocol at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Roaming<R = Sound> {
    me: SiteId,
    sites: u16,
    pools: Vec<Pool>,
    /// Own claims, waiting and held.
    claims: BTreeMap<Stamp, Own>,
    rules: PhantomData<R>,
}

/// One of the site's own claims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Own {
    Waiting(Demand),
    /// Its units, as they were granted.
    Held(Vec<Unit>),
}

/// What sites say to each other: all that one step has for one site, by pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Message {
    /// One part per pool, in the order of the pools.
    pub parts: Vec<Part>,
}

/// What a message says of one pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Part {
    /// The pool.
    pub pool: PoolId,
    /// Units that the receiver owns from now on.
    pub units: Vec<u32>,
    /// Claims of the receiver that they are for.
    pub served: Vec<(Stamp, u32)>,
    /// Whether claims wait: then they go to the switchboard when the receiver does not need them.
    pub scarce: bool,
    /// From the switchboard: claims to give units to.
    pub wants: Vec<(Stamp, u32)>,
    /// From the switchboard: asks that ended, because nobody else has so many units.
    pub ended: Vec<(Stamp, u32)>,
    /// To the switchboard, like all that follows: units that claims of the sender lack.
    pub asks: Vec<(Stamp, u32)>,
    /// Claims that it sent and that the sender has no units for.
    pub bounced: Vec<(Stamp, u32)>,
    /// Units that have come for claims of the sender.
    pub came: Vec<Came>,
    /// Claims of the sender that released units, which are in this message.
    pub home: Vec<(Stamp, u32)>,
    /// Claims of the sender that released units, which are idle there.
    pub idle: Vec<(Stamp, u32)>,
    /// Idle units of the sender that nobody there needs.
    pub spare: u32,
    /// What it says of claims that have waited for long.
    pub search: Search,
}

impl Part {
    /// A part that says nothing.
    pub const fn new(pool: PoolId) -> Self {
        Self {
            pool,
            units: Vec::new(),
            served: Vec::new(),
            scarce: false,
            wants: Vec::new(),
            ended: Vec::new(),
            asks: Vec::new(),
            bounced: Vec::new(),
            came: Vec::new(),
            home: Vec::new(),
            idle: Vec::new(),
            spare: 0,
            search: Search::new(),
        }
    }

    /// Adds a unit, in order.
    fn add(&mut self, unit: u32) {
        let at = self.units.partition_point(|&other| other < unit);
        self.units.insert(at, unit);
    }

    /// Whether it says what only the switchboard wants to know.
    const fn is_news(&self) -> bool {
        !(self.asks.is_empty()
            && self.bounced.is_empty()
            && self.came.is_empty()
            && self.home.is_empty()
            && self.idle.is_empty()
            && !self.search.is_news())
    }
}

impl<R: Rules> Protocol for Roaming<R> {
    const NAME: &'static str = "roaming";
    const PROFILE: Profile = Profile {
        source: "ours, on Raynal 1990 §7 and Li and Hudak 1989",
        summary: "units live where they are used; named units, locality, most pools",
        serves: Service::Pool,
        as_printed: false,
        full_service: true,
        gathers: false,
        arbitrated: false,
        price: |_, _| Price { min: 0, max: None },
        survives: SURVIVES,
    };

    type Message = Message;
    type Timer = Restless;

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self::begin(me, cluster, &Survey::default())
    }

    fn me(&self) -> SiteId {
        self.me
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.pools.get(pool.index()).map(|pool| Units(pool.capacity))
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        let mut turn = Turn::default();
        for (id, units) in demand.parts() {
            self.touch(id, &mut turn).enter(claim, units.0);
            turn.fresh.push((id, claim));
            turn.short.push(id);
        }
        self.claims.insert(claim, Own::Waiting(demand));
        turn.claimed = Some(claim);
        self.finish(turn, out);
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let Some(Own::Held(units)) = self.claims.get_mut(&claim) else { return };
        let freed = match part {
            None => core::mem::take(units),
            Some(part) => {
                let Some(freed) = split_last(units, part) else { return };
                freed
            }
        };
        if units.is_empty() {
            self.claims.remove(&claim);
        }
        let mut turn = Turn::default();
        for unit in freed {
            let pool = self.touch(unit.pool, &mut turn);
            if !pool.has(unit.number) && R::DROPS_WHAT_IS_OUT {
                // The pool was made smaller while it was in use, or this unit taken out of it.
                continue;
            }
            pool.idle.push_back(unit.number);
            pool.queue.grow(1);
            turn.freed.push((unit, claim));
        }
        self.finish(turn, out);
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let Some(Own::Waiting(demand)) = self.claims.get(&claim) else { return };
        let demand = demand.clone();
        self.claims.remove(&claim);
        let mut turn = Turn::default();
        for (id, units) in demand.parts() {
            let pool = self.touch(id, &mut turn);
            if R::FREES_ON_WITHDRAW {
                pool.queue.take(claim, None);
            }
            pool.forget_need(claim, units.0);
        }
        self.finish(turn, out);
    }

    fn on_message(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        self.check(from, &message)?;
        let mut turn = Turn::default();
        for part in message.parts {
            self.receive(from, part, &mut turn);
        }
        self.finish(turn, out);
        Ok(())
    }

    fn on_timer(&mut self, Restless(id): Restless, out: &mut EffectsOf<Self>) {
        let mut turn = Turn::default();
        if id.index() < self.pools.len() {
            self.seek(id, &mut turn);
        }
        self.finish(turn, out);
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let Some(Own::Waiting(demand)) = self.claims.get(&claim) else { return Vec::new() };
        let mut list = Vec::new();
        for id in demand.pools() {
            let pool = &self.pools[id.index()];
            if pool.queue.fits(claim) {
                continue;
            }
            let mut block = |site, units, claim| {
                list.push(Blocker { site, pool: id, units: Units(units), claim });
            };
            for (older, units) in pool.queue.older(claim) {
                block(older.site, units, Some(older));
            }
            for (&holder, own) in &self.claims {
                if let Own::Held(units) = own {
                    let held = units.iter().filter(|unit| unit.pool == id).count();
                    if held > 0 {
                        block(self.me, u32::try_from(held).unwrap_or(u32::MAX), Some(holder));
                    }
                }
            }
            let due = u32::try_from(pool.due_up_to(claim)).unwrap_or(u32::MAX);
            if due > 0 {
                block(pool.desk, due, None);
            }
        }
        list
    }

    fn is_at_rest(&self) -> bool {
        let idle = |pool: &Pool| {
            pool.queue.is_empty()
                && pool.due.is_empty()
                && pool.seeking.is_empty()
                && pool.board.as_ref().is_none_or(Board::is_empty)
        };
        self.claims.is_empty() && self.pools.iter().all(idle)
    }

    fn audit(&self) {
        for pool in &self.pools {
            assert_eq!(pool.queue.idle(), pool.idle.len() as u64, "idle units are counted");
            let got: u64 = pool.got.values().map(|&got| u64::from(got)).sum();
            assert!(got <= pool.queue.idle(), "what is kept is idle");
            assert!(pool.wanted <= u64::from(pool.count()), "every want has a unit");
            for (claim, &wants) in &pool.wants {
                assert_eq!(wants, pool.queue.units(*claim), "wants are in the queue");
            }
            for (&units, claims) in &pool.needs {
                let oldest = *claims.first().expect("no empty sets are kept");
                assert!(pool.covered(oldest) >= u64::from(units), "{oldest} is covered");
            }
        }
    }

    fn idle_units(&self) -> Option<Vec<Unit>> {
        Some(self.idle())
    }

    fn resume(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        Self::begin(me, cluster, survey)
    }

    fn on_resume(&mut self, _survey: &Survey, out: &mut EffectsOf<Self>) {
        self.go_on(out);
    }
}

/// Takes off the units that were listed last, pool by pool; nothing where there are not so many.
fn split_last(units: &mut Vec<Unit>, part: &Demand) -> Option<Vec<Unit>> {
    let has = |(id, count): (PoolId, Units)| {
        units.iter().filter(|unit| unit.pool == id).count() >= count.0 as usize
    };
    if !part.parts().all(has) {
        return None;
    }
    let mut freed = Vec::new();
    for (id, count) in part.parts() {
        for _ in 0..count.0 {
            let last = units.iter().rposition(|unit| unit.pool == id)?;
            freed.push(units.remove(last));
        }
    }
    Some(freed)
}
