//! Units live where they are used.
//!
//! # Idea
//!
//! Every unit is owned by one site or on its way to one. A site grants from the units it owns,
//! without a message. A claim that its site cannot serve asks the *switchboard* of the pool, a
//! site that decides who gives units to whom, one ask after the other. What was decided is the
//! *plan*: whoever is told to give units does so in its turn, and nobody reports that it was done.
//!
//! # Source
//!
//! Ours. Tokens as in Raynal 1990 (RR-1342), §7; one who knows where they are, and counts a page as
//! moved when it sends somebody for it, as the manager of shared pages in Li and Hudak 1989.
//!
//! # Messages
//!
//! There is one message: all that a step has to say to one site, by pool.
//!
//! | part | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `asks` | claimant | switchboard | this site has to have so many units for a claim |
//! | `wants` | switchboard | owner | give units to that site, for this claim |
//! | `units` | owner | claimant | these are yours now |
//! | `spare` | owner | switchboard | so many are idle here, and nobody here waits |
//! | `watch` | switchboard | owner | somebody would take idle units |
//! | `home` | owner | switchboard | here they are |
//! | `seeks`, `sated` | claimant | switchboard | this claim has waited for long; no more |
//!
//! Each pool has its switchboard at another site. It grants nothing and holds no lock.
//!
//! # Cost
//!
//! Nothing for a claim that its site can serve. Otherwise an ask, and a want and the units for each
//! site that gives some: 3 messages with one unit, never more; fewer where one of the sites is the
//! switchboard, which sends what it decided along with units that go the same way. A unit that is
//! released goes straight to the next claim: one message per hand-over. In pools of more than three
//! units the switchboard is told where some lie idle, and while some are scarce they are sent to
//! it.
//!
//! No claim of a pool with M units at n sites costs more than n + 4M: an ask; M wants, and M
//! messages with units; if it has waited for a tenth of a second, a seek and its end, n - 2 watches
//! and one more for each unit that came of them but the last, and M messages with such units.
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
//! # Why everybody's turn comes
//!
//! Let us look at one pool first. The plan is a sequence, and an ask is absolute: when it is
//! decided, its site has as many units as the claim needs, once all is done that was decided
//! before. A site serves in the order of the plan: a want goes before own claims that asked and had
//! not been heard when it was decided, and behind the others (`line`). What a site is given without
//! an ask, because it hopes or seeks, lies idle at the switchboard's site and is sent at once. So
//! whoever waits, waits for holders, for messages on their way, and for what was decided earlier.
//! Of all that is not done the first waits for holders only.
//!
//! Claims that did not ask count on units that are here, or that an earlier ask brings. They take
//! their turn with the wants, by age, behind that ask. If a want that goes before them takes what
//! they counted on, the oldest of them asks after all, and younger ones go behind that ask: once,
//! for who has asked keeps its place.
//!
//! A claim over several pools takes them one after the other, in the order of the pools. Whoever
//! has taken all it needs of the last pool holds it. So in the last pool everybody waits for
//! holders only, in the one before for those and for claims that wait in the last one, and so on.
//!
//! Nor does the oldest claim wait beside free units until a holder releases, who may keep his for
//! days: see `search`.
//!
//! # What order is kept
//!
//! That of the plan, in which the switchboard hears of claims. Units that a claim has gathered, and
//! that are not enough yet, go to whoever is before it in the plan, never to anybody behind it.
//! Claims of one site go by their stamps as long as they have not asked, and in its turn a claim
//! that has asked lets older ones of its site go first that can be served with what is there. So do
//! all that come to a site between two of its asks. A claim that its own site can serve passes
//! others elsewhere, for nothing.
//!
//! Why not by stamps everywhere? The stamp of a site that was quiet is old, whenever its claim was
//! made: it would pass all who have waited for hours. And a claim that is older than others which
//! have been decided, and not done, would have to be sent before each of them in every line at
//! once; where it is sent before some of them only, gathering claims wait for each other in a
//! circle: two sites with two units do, after six steps (`Rules::BY_PLAN`).
//!
//! # Differs from the sources
//!
//! Many units, demands for several of several pools, withdrawal: units come all the same for a
//! claim that is gone, and serve the next one.

mod board;
mod check;
mod crowd;
mod epoch;
mod line;
mod pool;
mod posts;
mod rules;
mod search;
mod turn;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use self::board::Board;
use self::pool::Pool;
pub use self::rules::{Rules, Sound};
pub use self::search::Restless;
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
    /// Own claims that got their units as the epoch began, and were not told.
    starts: Vec<(Stamp, Vec<Unit>)>,
    rules: PhantomData<R>,
}

/// One of the site's own claims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Own {
    /// It waits for units of the first pool that it has taken none of; or for the next epoch,
    /// because a pool has not so many in this one.
    Waiting { demand: Demand, taken: Vec<Unit>, aside: Option<PoolId> },
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
    /// From the switchboard, like all up to `asks`: claims to give units to.
    pub wants: Vec<Want>,
    /// Somebody would take so many idle units: they are to go to the switchboard.
    pub watch: u32,
    /// To the switchboard, like all that follows: what claims of the sender lack.
    pub asks: Vec<Ask>,
    /// Idle units that the switchboard's site owns from now on.
    pub home: Home,
    /// Idle units of the sender that nobody there waits for.
    pub spare: u32,
    /// A claim of the sender that seeks no more.
    pub sated: Option<Stamp>,
    /// A claim of the sender that has waited for long.
    pub seeks: Option<Seek>,
}

/// Idle units that a site sends to the switchboard.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Home {
    /// The units.
    pub units: Vec<u32>,
    /// How many are left there.
    pub left: u32,
    /// How many units the switchboard has told the site to give, as far as it has heard.
    pub told: u64,
}

/// An own claim asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ask {
    /// The claim.
    pub claim: Stamp,
    /// How many units its site has to have.
    pub units: u32,
    /// How many it would take, where others have idle ones.
    pub most: u32,
}

/// What the switchboard has decided: a site is to give units to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Want {
    /// The claim.
    pub claim: Stamp,
    /// How many.
    pub units: u32,
    /// How many asks of the site the switchboard had heard then.
    pub heard: u64,
}

/// An own claim has waited for long: it takes units that lie idle, wherever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Seek {
    /// The claim.
    pub claim: Stamp,
    /// How many units it and all that go before it lack.
    pub lack: u32,
    /// How many units the switchboard has told its site to give, as far as it has heard.
    pub told: u64,
}

impl Part {
    /// A part that says nothing.
    pub const fn new(pool: PoolId) -> Self {
        Self {
            pool,
            units: Vec::new(),
            wants: Vec::new(),
            watch: 0,
            asks: Vec::new(),
            home: Home { units: Vec::new(), left: 0, told: 0 },
            spare: 0,
            sated: None,
            seeks: None,
        }
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
        price: |sites, units| Price {
            min: 0,
            max: Some(if units == 1 { 3 } else { sites + 4 * units }),
        },
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
        self.wait(claim, demand, &mut turn);
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
            let pool = &mut self.pools[unit.pool.index()];
            pool.let_go_by(claim);
            if !pool.has(unit.number) && R::DROPS_WHAT_IS_OUT {
                // The pool was made smaller while it was in use, or this unit taken out of it.
                continue;
            }
            pool.idle.push_back(unit.number);
            turn.touch(unit.pool);
            turn.released.insert(unit.pool);
        }
        self.finish(turn, out);
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let Some(Own::Waiting { demand, .. }) = self.claims.get(&claim) else { return };
        let mut turn = Turn::default();
        for id in demand.pools() {
            self.pools[id.index()].line.leave(claim);
            turn.touch(id);
        }
        if R::FREES_ON_WITHDRAW {
            self.let_go_of(claim, &mut turn);
        }
        self.claims.remove(&claim);
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
        let Some(Own::Waiting { demand, aside, .. }) = self.claims.get(&claim) else {
            return Vec::new();
        };
        let mut list = Vec::new();
        if let Some(pool) = *aside {
            let site = self.pools[pool.index()].desk;
            list.push(Blocker { site, pool, units: demand.units(pool), claim: None });
        }
        for id in demand.pools() {
            let pool = &self.pools[id.index()];
            if pool.line.units(claim) == 0 {
                continue;
            }
            let mut block = |site, units, claim| {
                list.push(Blocker { site, pool: id, units: Units(units), claim });
            };
            for (place, units) in pool.line.iter().take_while(|entry| entry.0.claim != claim) {
                block(place.claim.site, units, Some(place.claim));
            }
            for (&user, &units) in pool.users.iter().filter(|it| *it.0 != claim) {
                block(self.me, units, Some(user));
            }
            let owned = u32::try_from(pool.owned.len()).unwrap_or(u32::MAX);
            let lack = pool.line.units(claim).saturating_sub(owned);
            if lack > 0 {
                block(pool.desk, lack, None);
            }
        }
        list
    }

    fn is_at_rest(&self) -> bool {
        let idle = |pool: &Pool| {
            pool.line.is_empty()
                && pool.seeking.is_empty()
                && pool.board.as_ref().is_none_or(Board::is_empty)
        };
        self.claims.is_empty() && self.pools.iter().all(idle)
    }

    fn idle_units(&self) -> Option<Vec<Unit>> {
        Some(self.idle())
    }

    fn lines(&self) -> BTreeMap<PoolId, Vec<(Stamp, Units)>> {
        self.all_lines()
    }

    fn audit(&self) {
        for pool in &self.pools {
            let mut known: Vec<u32> = pool.idle.iter().copied().collect();
            let mut users: BTreeMap<Stamp, u32> = BTreeMap::new();
            for (&claim, own) in &self.claims {
                let (Own::Waiting { taken: units, .. } | Own::Held(units)) = own;
                let here = units.iter().filter(|unit| unit.pool == pool.id);
                here.clone().for_each(|_| *users.entry(claim).or_default() += 1);
                known.extend(here.map(|unit| unit.number));
            }
            assert_eq!(pool.users, users, "claims that have units of the pool");
            known.sort_unstable();
            assert!(known.is_sorted_by(|a, b| a < b), "a unit is idle or with one claim");
            let mut owned = pool.owned.iter().filter(|unit| pool.has(**unit));
            let lost = owned.find(|unit| known.binary_search(unit).is_err());
            assert_eq!(lost, None, "who has lost this unit?");
            pool.line.audit();
            if let Some(board) = &pool.board {
                board.audit();
            }
        }
    }

    fn resume(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        Self::begin(me, cluster, survey)
    }

    fn on_resume(&mut self, survey: &Survey, out: &mut EffectsOf<Self>) {
        self.go_on(survey, out);
    }
}

impl<R: Rules> Roaming<R> {
    /// A claim waits from now on, for its first pool.
    fn wait(&mut self, claim: Stamp, demand: Demand, turn: &mut Turn) {
        let all: Vec<(PoolId, Units)> = demand.parts().collect();
        let lacks = |part: &&(PoolId, Units)| self.pools[part.0.index()].reach < part.1.0;
        // Who wants more than there is lets everybody pass.
        let aside = all.iter().find(lacks).map(|part| part.0);
        let first = if R::POOL_BY_POOL { 1 } else { all.len() };
        self.claims.insert(claim, Own::Waiting { demand, taken: Vec::new(), aside });
        if aside.is_some() {
            return;
        }
        for &(id, units) in all.iter().take(first) {
            self.join(id, claim, units.0, turn);
        }
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
