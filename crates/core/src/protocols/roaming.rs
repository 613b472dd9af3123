//! Units live where they are used.
//!
//! # Idea
//!
//! Every unit is owned by one site or on its way to one. A site grants from the units it owns,
//! without a message; a claim that its site cannot serve sends out *wants*, one per unit that it
//! lacks. A want stays with a unit until that unit is free for it, and goes where the unit goes;
//! idle units serve wants and own claims in the order of their stamps.
//!
//! # Source
//!
//! Ours. Tokens as in Raynal 1990 (RR-1342), §7, a queue that travels with the token as in Suzuki
//! and Kasami 1985, and asks that run after it as in Naimi and Trehel 1987.
//!
//! # Messages
//!
//! There is one message: all that a step has to say to one site, by pool.
//!
//! | part | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `units`, `served` | owner | claimant | these are yours now, for these wants |
//! | `wants` | owner | next owner | these want what goes with them |
//! | `asks` | claimant | switchboard, then owners | wants in search of units |
//! | `arrived`, `done` | claimant | switchboard | these units are here, these wants are over |
//! | `stock` | anybody | switchboard | what the sender has |
//!
//! Each pool has a *switchboard* at one site, a different one for each pool. It knows about where
//! units are, because it passes on the asks that move them. It grants nothing and need not be
//! right: an ask that finds no unit follows the trail of the one that was there.
//!
//! # Cost
//!
//! Nothing for a claim that its site can serve. Otherwise, for one unit, an ask to the switchboard,
//! one from there, and the unit: 3 messages, 2 where one of the three is the switchboard. From 8
//! sites and 2 units on, a fourth tells the switchboard of the arrival; then it keeps asks back
//! until their turn has nearly come. An ask that runs after a unit costs a message for each site
//! on the trail, at most n−1 while the unit stays. A unit that is released goes straight to the
//! oldest who wants it: one message per hand-over.
//!
//! # Assumes
//!
//! Reliable first-in first-out links between sites that do not crash. What to do when one leaves is
//! `resume`. On other topologies than the full one its messages are routed.
//!
//! # Why it is safe
//!
//! Units are conserved: only the owner uses a unit or gives it away, and then it is the owner no
//! more. Fences grow per unit, because the clock travels with it.
//!
//! Wants are conserved too. A claim's wants and the units of its site together are as many as it
//! asks for, counting only wants as old as itself; when a unit leaves, its site wants it back in
//! the same message if a claim there now lacks it. A want rests at a site that owns a unit for it:
//! no claim has more wants at a site than that owns units, and those that would be too many go with
//! the units that leave. An ask is kept back only behind an older claim: at a site to which that
//! claim brings a unit, or at the switchboard until that claim is served.
//!
//! So look at the oldest claim that waits. Nobody keeps its asks back; where they rest, and at its
//! own site, it is first for every unit that becomes idle, also for those that others have
//! gathered; and what it has nobody takes. It is granted once the present holders release. Only
//! finitely many claims are older than any claim, so everybody's turn comes.
//!
//! # What does not bounce
//!
//! A claim does not ask for units that its site has in use, if those and what is due cover all
//! that waits there: it waits for them. So with demand everywhere units stay where they are, and
//! move only to even out queues. Ranking all wants of a site by its oldest claim, or guessing from
//! afar what it still lacks, makes units bounce or claims starve: a want has the stamp of its own
//! claim, and only its own site changes their number.
//!
//! # Differs from the sources
//!
//! Many units, demands for several of several pools; withdrawal: a want whose claim is gone brings
//! a unit all the same, for the next one. A unit goes to the oldest of those who want it, instead
//! of the first to ask. That is less than the order that `permission` keeps: a claim that its own
//! site can serve passes older ones that wait elsewhere, though never one that is owed its units.

mod board;
mod check;
mod epoch;
mod pool;
mod queue;
mod rules;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use self::board::{Board, Placed};
pub use self::epoch::Survey;
use self::pool::Pool;
pub use self::pool::{Ask, Trail};
pub use self::rules::{Rules, Sound};
use crate::protocol::{Blocker, EffectsOf, PeerFault, Price, Profile, Protocol};
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
    /// Idle units that nobody at the sender needs.
    pub spare: u32,
    /// Units that the receiver owns from now on, with the moves they have made.
    pub units: Vec<(u32, u64)>,
    /// Whether the switchboard wants to hear of their arrival.
    pub note: bool,
    /// Wants of the receiver that the units serve.
    pub served: Vec<(Stamp, u32)>,
    /// Wants that go with the units.
    pub wants: Vec<(Stamp, u32)>,
    /// Wants in search of units.
    pub asks: Vec<Ask>,
    /// For the switchboard: units that the sender has.
    pub here: Vec<(u32, u64)>,
    /// For the switchboard: wants of the sender that are over.
    pub done: Vec<(Stamp, u32)>,
}

impl<R: Rules> Protocol for Roaming<R> {
    const NAME: &'static str = "roaming";
    const PROFILE: Profile = Profile {
        source: "ours, on Raynal 1990 §7 and Suzuki and Kasami 1985",
        summary: "units live where they are used; named units, locality, most pools",
        as_printed: false,
        full_service: true,
        gathers: false,
        arbitrated: false,
        price: |_| Price { min: 0, max: None },
        survives: &["pause", "partition"],
    };

    type Message = Message;
    type Timer = ();

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let pools = (0..).map(PoolId).zip(&cluster.pools);
        // With one unit the board cannot choose, and is right without.
        let notes = |units: Units| units.0 > 1 && cluster.sites >= R::NOTES_FROM;
        let pool = |(id, &units): (PoolId, &Units)| {
            Pool::new(id, units.0, cluster.sites, me, notes(units))
        };
        let pools = pools.map(pool).collect();
        Self { me, sites: cluster.sites, pools, claims: BTreeMap::new(), rules: PhantomData }
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
            let pool = self.touch(id, &mut turn);
            pool.queue.add(claim, units.0);
            pool.needs.entry(units.0).or_default().insert(claim);
            pool.needed += u64::from(units.0);
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
            pool.queue.take(claim, None);
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
                && pool.guests.is_empty()
                && pool.board.as_ref().is_none_or(Board::is_empty)
        };
        self.claims.is_empty() && self.pools.iter().all(idle)
    }

    fn audit(&self) {
        for pool in &self.pools {
            assert_eq!(pool.queue.idle(), pool.idle.len() as u64, "idle units are counted");
            for (claim, &wants) in &pool.wants {
                assert!(wants <= pool.count(), "every want of {claim} has a unit");
                assert_eq!(wants, pool.queue.units(*claim), "wants are in the queue");
            }
            for (&units, claims) in &pool.needs {
                let oldest = *claims.first().expect("no empty sets are kept");
                assert!(pool.covered(oldest) >= u64::from(units), "{oldest} is covered");
            }
        }
    }
}

/// What one step has to do and to say.
#[derive(Debug, Default)]
struct Turn {
    /// Pools that changed, with the fronts that their queues had before.
    touched: Vec<(PoolId, Option<Stamp>)>,
    /// Entries that are new in a queue.
    fresh: Vec<(PoolId, Stamp)>,
    /// Those of them that the switchboard need not hear of if they are served at once.
    quiet: Vec<(PoolId, Stamp)>,
    /// Units that were released.
    freed: Vec<(Unit, Stamp)>,
    /// Asks to deal with.
    asks: Vec<(PoolId, Ask)>,
    /// Units that leave, by pool and destination.
    leaving: BTreeMap<(PoolId, SiteId), u32>,
    /// Claims whose wants came home: the switchboard does not know better.
    returned: Vec<(PoolId, Stamp)>,
    /// Pools whose switchboard, which is here, has heard news.
    noted: Vec<PoolId>,
    /// The claim that was made in this step.
    claimed: Option<Stamp>,
    /// Pools in which own claims may lack something.
    short: Vec<PoolId>,
    /// What to say, by destination.
    letters: BTreeMap<SiteId, Letter>,
}

#[derive(Debug, Default)]
struct Letter {
    /// The claim that it is charged to.
    serves: Option<Stamp>,
    parts: BTreeMap<PoolId, Part>,
}

impl Turn {
    fn part(&mut self, to: SiteId, pool: PoolId, serves: Stamp) -> &mut Part {
        let letter = self.letters.entry(to).or_default();
        letter.serves.get_or_insert(serves);
        letter.parts.entry(pool).or_insert_with(|| Part {
            pool,
            spare: 0,
            note: false,
            units: Vec::new(),
            served: Vec::new(),
            wants: Vec::new(),
            asks: Vec::new(),
            here: Vec::new(),
            done: Vec::new(),
        })
    }
}

impl Pool {
    /// What own claims lack, beyond what is here and what is due to claims no younger.
    fn lacks(&self) -> Vec<(Stamp, u32)> {
        let mut list: Vec<(Stamp, u32)> = Vec::new();
        for (&units, claims) in &self.needs {
            let oldest = *claims.first().expect("no empty sets are kept");
            let new = list.iter().filter(|lack| lack.0 <= oldest).map(|lack| u64::from(lack.1));
            let covered = self.covered(oldest) + new.sum::<u64>();
            let lack = u64::from(units).saturating_sub(covered);
            if lack > 0 {
                list.push((oldest, u32::try_from(lack).expect("no more than was asked")));
            }
        }
        list
    }

    /// What a new claim asks for: all that waits here, beyond what is here or due. Less would do,
    /// see `lacks`, but then a busy site would wait for its own few units while others have idle
    /// ones.
    fn ambition(&self, claim: Stamp, units: u32) -> u32 {
        let due: u64 = self.due.values().map(|&due| u64::from(due)).sum();
        let elsewhere = u64::from(self.capacity - self.count()).saturating_sub(due);
        let covered = self.covered(claim);
        let lack = self.needed.saturating_sub(covered);
        u32::try_from(lack.min(elsewhere)).unwrap_or(u32::MAX).min(units)
    }

    /// Tells the switchboard that wants came home; it must not wait for them.
    fn tell_done(&mut self, claim: Stamp, count: u32, turn: &mut Turn) {
        if !self.notes {
            return;
        }
        if let Some(board) = &mut self.board {
            board.arrived(&[], &[(claim, count)]);
            turn.noted.push(self.id);
        } else {
            let note = turn.part(self.desk, self.id, claim);
            merge(&mut note.done, claim, count);
        }
    }

    /// Keeps an ask until a unit arrives.
    fn keep(&mut self, ask: Ask) {
        match self.guests.get_mut(&ask.claim) {
            Some(guest) => guest.count = guest.count.saturating_add(ask.count),
            None => drop(self.guests.insert(ask.claim, ask)),
        }
    }

    fn forget_need(&mut self, claim: Stamp, units: u32) {
        let claims = self.needs.get_mut(&units).expect("a waiting claim is noted");
        claims.remove(&claim);
        self.needed -= u64::from(units);
        if claims.is_empty() {
            self.needs.remove(&units);
        }
    }
}

impl<R: Rules> Roaming<R> {
    fn touch(&mut self, id: PoolId, turn: &mut Turn) -> &mut Pool {
        let pool = &mut self.pools[id.index()];
        if turn.touched.iter().all(|touched| touched.0 != id) {
            turn.touched.push((id, pool.queue.front().map(|front| front.0)));
        }
        pool
    }

    fn receive(&mut self, from: SiteId, part: Part, turn: &mut Turn) {
        let (me, sites) = (self.me, self.sites);
        let pool = self.touch(part.pool, turn);
        if let Some(mut board) = pool.board.take() {
            board.note(from, part.spare);
            if pool.notes {
                board.arrived(&part.here, &part.done);
                board.arrived(&part.units, &part.served);
            }
            for &(unit, hops) in &part.here {
                if !pool.owned.contains_key(&unit) {
                    let trail = pool.trail(unit, sites).max(Trail { hops, site: from });
                    pool.trails.insert(unit, trail);
                }
            }
            pool.board = Some(board);
            turn.noted.push(part.pool);
        } else if let Some(&(claim, _)) = part.served.first()
            && pool.notes
        {
            if part.note {
                pool.restless.extend(part.units.iter().map(|unit| unit.0));
                let note = turn.part(pool.desk, part.pool, claim);
                note.here.extend_from_slice(&part.units);
                for &(claim, count) in &part.served {
                    merge(&mut note.done, claim, count);
                }
            } else {
                pool.fresh.extend(part.units.iter().map(|unit| unit.0));
            }
        }
        for (unit, hops) in part.units {
            pool.own(unit, hops);
        }
        for (claim, count) in part.served {
            pool.settle_due(claim, count);
            turn.short.push(part.pool);
        }
        for (claim, count) in part.wants {
            if claim.site == me {
                pool.settle_due(claim, count);
                pool.tell_done(claim, count, turn);
                turn.short.push(part.pool);
            } else {
                *pool.wants.entry(claim).or_default() += count;
                pool.queue.add(claim, count);
                turn.fresh.push((part.pool, claim));
            }
        }
        let spare = pool.spare();
        if let Some(board) = &mut pool.board {
            board.note(me, spare);
        }
        let guests = core::mem::take(&mut pool.guests);
        turn.asks.extend(guests.into_values().map(|ask| (part.pool, ask)));
        turn.asks.extend(part.asks.into_iter().map(|ask| (part.pool, ask)));
    }

    /// Ends every step: grants and gives what can be, asks for what lacks, says it all.
    fn finish(&mut self, mut turn: Turn, out: &mut EffectsOf<Self>) {
        loop {
            for id in core::mem::take(&mut turn.noted) {
                self.place(id, &mut turn);
            }
            while let Some((id, ask)) = turn.asks.pop() {
                self.seek(id, ask, &mut turn);
            }
            for (id, from) in core::mem::take(&mut turn.touched) {
                self.settle(id, from, &mut turn, out);
            }
            for (id, claim) in core::mem::take(&mut turn.fresh) {
                if self.pools[id.index()].queue.fits(claim) {
                    self.serve(id, claim, &mut turn, out);
                }
            }
            self.cover(&mut turn);
            if turn.asks.is_empty() && turn.touched.is_empty() && turn.noted.is_empty() {
                break;
            }
        }
        for (unit, claim) in core::mem::take(&mut turn.freed) {
            self.rest(unit, claim, &mut turn);
        }
        for (to, letter) in turn.letters {
            let mut parts: Vec<Part> = letter.parts.into_values().collect();
            for part in &mut parts {
                part.spare = self.pools[part.pool.index()].spare();
            }
            out.send(to, letter.serves, Message { parts });
        }
    }

    /// What becomes of a unit that was released and that nobody here needs.
    fn rest(&mut self, unit: Unit, claim: Stamp, turn: &mut Turn) {
        let me = self.me;
        let pool = &mut self.pools[unit.pool.index()];
        let number = unit.number;
        if pool.desk == me || pool.queue.front().is_some() || pool.queue.spare() == 0 {
            return;
        }
        if !pool.idle.contains(&number) {
            return;
        }
        if pool.restless.remove(&number) {
            pool.idle.retain(|&idle| idle != number);
            pool.queue.shrink();
            let hops = pool.owned.remove(&number).expect("idle units are owned") + 1;
            pool.trails.insert(number, Trail { hops, site: pool.desk });
            let part = turn.part(pool.desk, unit.pool, claim);
            let at = part.units.partition_point(|given| given.0 < number);
            part.units.insert(at, (number, hops));
        } else if pool.fresh.remove(&number) {
            let hops = pool.owned[&number];
            turn.part(pool.desk, unit.pool, claim).here.push((number, hops));
        }
    }

    /// Serves all whose turn has come in a queue since its front was at `from`.
    fn settle(
        &mut self,
        id: PoolId,
        from: Option<Stamp>,
        turn: &mut Turn,
        out: &mut EffectsOf<Self>,
    ) {
        let passed: Vec<Stamp> = self.pools[id.index()].queue.passed(from).collect();
        for stamp in passed {
            self.serve(id, stamp, turn, out);
        }
        let queue = &self.pools[id.index()].queue;
        if let Some((front, _)) = queue.front()
            && front.site != self.me
            && queue.spare() > 0
        {
            let spare = u32::try_from(queue.spare()).unwrap_or(u32::MAX);
            self.give(id, front, spare, turn);
        }
    }

    /// Grants an own claim if all its pools allow it; gives another site what it wants.
    fn serve(&mut self, id: PoolId, stamp: Stamp, turn: &mut Turn, out: &mut EffectsOf<Self>) {
        if stamp.site != self.me {
            let units = self.pools[id.index()].queue.units(stamp);
            if units > 0 {
                self.give(id, stamp, units, turn);
            }
            return;
        }
        let Some(Own::Waiting(demand)) = self.claims.get(&stamp) else { return };
        let fits = |id: PoolId| self.pools[id.index()].queue.fits(stamp);
        let due = if R::ALL_POOLS { demand.pools().all(fits) } else { demand.pools().any(fits) };
        if !due {
            return;
        }
        let mut units = Vec::new();
        for (id, count) in demand.parts() {
            let pool = &mut self.pools[id.index()];
            pool.queue.serve(stamp, count.0);
            let taken = pool.idle.drain(..count.0 as usize);
            units.extend(taken.map(|number| Unit { pool: id, number }));
            pool.forget_need(stamp, count.0);
        }
        self.claims.insert(stamp, Own::Held(units.clone()));
        out.grant_named(stamp, units);
    }

    fn give(&mut self, id: PoolId, claim: Stamp, count: u32, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        pool.queue.serve(claim, count);
        pool.drop_wants(claim, count);
        let note = pool.notes && !turn.quiet.contains(&(id, claim));
        let part = turn.part(claim.site, id, claim);
        for unit in pool.idle.drain(..count as usize) {
            let hops = pool.owned.remove(&unit).expect("idle units are owned") + 1;
            if !R::LETS_GO {
                pool.owned.insert(unit, hops);
            }
            pool.trails.insert(unit, Trail { hops, site: claim.site });
            pool.fresh.remove(&unit);
            pool.restless.remove(&unit);
            let at = part.units.partition_point(|given| given.0 < unit);
            part.units.insert(at, (unit, hops));
        }
        merge(&mut part.served, claim, count);
        part.note |= note;
        turn.short.push(id);
        *turn.leaving.entry((id, claim.site)).or_default() += count;
    }

    /// Lets wants go with the units that leave, and asks for what own claims lack now.
    fn cover(&mut self, turn: &mut Turn) {
        if let Some(claim) = turn.claimed.take()
            && let Some(Own::Waiting(demand)) = self.claims.get(&claim)
        {
            let demand = demand.clone();
            for (id, units) in demand.parts() {
                let lack = self.pools[id.index()].ambition(claim, units.0);
                if lack > 0 {
                    *self.pools[id.index()].due.entry(claim).or_default() += lack;
                    self.ask(id, claim, lack, turn);
                }
            }
        }
        let leaving = core::mem::take(&mut turn.leaving);
        let mut short = core::mem::take(&mut turn.short);
        short.sort_unstable();
        short.dedup();
        for id in short {
            let away = leaving.range((id, SiteId(0))..=(id, SiteId(u16::MAX)));
            let away: Vec<(SiteId, u32)> = away.map(|(key, &count)| (key.1, count)).collect();
            if !away.is_empty() {
                self.send_along(id, &away, turn);
            }
            for (claim, lack) in self.pools[id.index()].lacks() {
                let came_home = turn.returned.contains(&(id, claim));
                if !R::WANTS_BACK && !away.is_empty() || !R::ASKS_ANEW && came_home {
                    continue;
                }
                *self.pools[id.index()].due.entry(claim).or_default() += lack;
                let rest = spread(claim, lack, &away, |to, count| {
                    merge(&mut turn.part(to, id, claim).wants, claim, count);
                });
                if rest > 0 {
                    self.ask(id, claim, rest, turn);
                }
            }
        }
    }

    fn send_along(&mut self, id: PoolId, away: &[(SiteId, u32)], turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        let owned = pool.count();
        let too_many = pool.wants.iter().filter(|want| *want.1 > owned);
        let too_many: Vec<(Stamp, u32)> = too_many.map(|(&c, &n)| (c, n - owned)).collect();
        for (claim, excess) in too_many {
            pool.drop_wants(claim, excess);
            pool.queue.take(claim, Some(excess));
            if !R::WANTS_TRAVEL {
                continue;
            }
            let rest = spread(claim, excess, away, |to, count| {
                merge(&mut turn.part(to, id, claim).wants, claim, count);
            });
            assert_eq!(rest, 0, "no more wants lose their unit than units leave");
        }
    }

    /// Sends wants of an own claim in search of units.
    fn ask(&mut self, id: PoolId, claim: Stamp, count: u32, turn: &mut Turn) {
        let board = self.pools[id.index()].desk;
        if turn.returned.contains(&(id, claim)) {
            // A claim has one want per unit: where every unit elsewhere has one, the rest can only
            // wait for a unit that is on its way here, or lost and made anew here.
            let pool = &self.pools[id.index()];
            let others = (0..pool.capacity).filter(|unit| !pool.owned.contains_key(unit));
            let away = others.filter(|&unit| pool.trail(unit, self.sites).site != self.me);
            let placed = u64::from(pool.due[&claim] - count);
            let probed = if away.count() as u64 > placed { self.probe(id) } else { None };
            let Some((unit, trail)) = probed else {
                let pool = &mut self.pools[id.index()];
                let unit = (0..pool.capacity).find(|unit| !pool.owned.contains_key(unit));
                let unit = unit.expect("a claim that lacks units does not own them all");
                let follow = Some((unit, pool.trail(unit, self.sites)));
                return pool.keep(Ask { claim, count, follow, note: true });
            };
            let ask = Ask { claim, count, follow: Some((unit, trail)), note: true };
            turn.part(trail.site, id, claim).asks.push(ask);
            return;
        }
        let ask = Ask { claim, count, follow: None, note: true };
        if board == self.me {
            turn.asks.push((id, ask));
        } else {
            turn.part(board, id, claim).asks.push(ask);
        }
    }

    /// A unit that is elsewhere by this site's own knowledge, another one each time.
    fn probe(&mut self, id: PoolId) -> Option<(u32, Trail)> {
        let (me, sites) = (self.me, self.sites);
        let pool = &mut self.pools[id.index()];
        let numbers = (pool.probed + 1..pool.capacity).chain(0..=pool.probed);
        let mut elsewhere = numbers.filter(|unit| !pool.owned.contains_key(unit));
        let found = elsewhere.find_map(|unit| {
            let trail = pool.trail(unit, sites);
            (trail.site != me).then_some((unit, trail))
        });
        if let Some((unit, _)) = found {
            pool.probed = unit;
        }
        found
    }

    /// Finds a place for wants that came here in search of units.
    fn seek(&mut self, id: PoolId, mut ask: Ask, turn: &mut Turn) {
        let (me, sites) = (self.me, self.sites);
        let claim = ask.claim;
        let pool = self.touch(id, turn);
        if claim.site == me && (ask.follow.is_some() || pool.board.is_none()) {
            if let Some((unit, heard)) = ask.follow
                && !pool.owned.contains_key(&unit)
            {
                pool.trails.insert(unit, pool.trail(unit, sites).max(heard));
            }
            pool.settle_due(claim, ask.count);
            pool.tell_done(claim, ask.count, turn);
            turn.returned.push((id, claim));
            turn.short.push(id);
            let guests = core::mem::take(&mut pool.guests);
            turn.asks.extend(guests.into_values().map(|ask| (id, ask)));
            return;
        }
        if ask.follow.is_some() {
            let room = pool.count() - pool.wants.get(&claim).copied().unwrap_or_default();
            let taken = room.min(ask.count);
            if taken > 0 {
                *pool.wants.entry(claim).or_default() += taken;
                pool.queue.add(claim, taken);
                turn.fresh.push((id, claim));
                if !ask.note {
                    turn.quiet.push((id, claim));
                }
                ask.count -= taken;
            }
            if ask.count == 0 {
                return;
            }
            if pool.due_up_to(claim) > 0 || R::BEHIND_YOUNGER && !pool.due.is_empty() {
                return pool.keep(ask);
            }
        }
        let Some((unit, heard)) = ask.follow else { return self.route(id, ask, turn) };
        if pool.owned.contains_key(&unit) {
            // Every unit here has a want of this claim already: another one must do.
            let Some((unit, trail)) = self.probe(id) else {
                // The others come here too, or are lost and will be made anew here.
                return self.pools[id.index()].keep(ask);
            };
            ask.follow = Some((unit, trail));
            turn.part(trail.site, id, claim).asks.push(ask);
            return;
        }
        let trail = pool.trail(unit, sites).max(heard);
        pool.trails.insert(unit, trail);
        ask.follow = Some((unit, trail));
        if trail.site == me {
            // It is on its way here.
            return pool.keep(ask);
        }
        if R::FOLLOWS {
            turn.part(trail.site, id, claim).asks.push(ask);
        }
    }

    /// Lets the switchboard choose whom to ask, and when.
    fn route(&mut self, id: PoolId, ask: Ask, turn: &mut Turn) {
        let me = self.me;
        let pool = &mut self.pools[id.index()];
        let spare = pool.spare();
        let Some(board) = &mut pool.board else {
            turn.part(self.pools[id.index()].desk, id, ask.claim).asks.push(ask);
            return;
        };
        board.note(me, spare);
        board.hold(ask.claim, ask.count);
        self.place(id, turn);
    }

    /// Passes on the asks whose turn has nearly come.
    fn place(&mut self, id: PoolId, turn: &mut Turn) {
        let (me, sites) = (self.me, self.sites);
        let pool = &mut self.pools[id.index()];
        let Some(mut board) = pool.board.take() else { return };
        let place = |unit| match pool.owned.get(&unit) {
            Some(&hops) => Trail { hops, site: me },
            None => pool.trail(unit, sites),
        };
        let mut asks: BTreeMap<(Stamp, SiteId), Ask> = BTreeMap::new();
        for Placed { claim, unit, site, note } in board.place(|unit| place(unit).site) {
            let follow = Some((unit, place(unit)));
            let new = || Ask { claim, count: 0, follow, note };
            let ask = asks.entry((claim, site)).or_insert_with(new);
            ask.count += 1;
            ask.note |= note;
        }
        pool.board = Some(board);
        for ((claim, site), ask) in asks {
            if site == me {
                turn.asks.push((id, ask));
            } else {
                turn.part(site, id, claim).asks.push(ask);
            }
        }
    }
}

/// Shares out wants over the sites that units leave for, no more than units for each; says how
/// many are left. The claim's own site comes last: there it would only hear that it still wants.
fn spread(
    claim: Stamp,
    mut count: u32,
    away: &[(SiteId, u32)],
    mut attach: impl FnMut(SiteId, u32),
) -> u32 {
    for own in [false, true] {
        for &(site, units) in away.iter().filter(|away| (away.0 == claim.site) == own) {
            let part = units.min(count);
            if part > 0 {
                attach(site, part);
                count -= part;
            }
        }
    }
    count
}

/// Adds to a list that is sorted by claim.
fn merge(list: &mut Vec<(Stamp, u32)>, claim: Stamp, count: u32) {
    match list.binary_search_by_key(&claim, |entry| entry.0) {
        Ok(i) => list[i].1 += count,
        Err(i) => list.insert(i, (claim, count)),
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
