//! One step: what came in is taken down, then everything that can happen does, then all is said.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::board::{FEW, Gift};
use super::line::Place;
use super::pool::Pool;
use super::{Ask, Home, Message, Own, Part, Roaming, Rules, Want};
use crate::protocol::EffectsOf;
use crate::types::{PoolId, SiteId, Stamp, Unit};

/// What one step has to do and to say.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Pools that changed and have not been looked at.
    changed: Vec<PoolId>,
    /// Pools that have changed at all.
    seen: BTreeSet<PoolId>,
    /// Own claims that have come last in a line. The oldest asks first.
    joined: BTreeSet<(PoolId, Stamp)>,
    /// Pools of which units were released, that may lie idle now.
    pub(super) released: BTreeSet<PoolId>,
    /// What to say, by destination.
    letters: BTreeMap<SiteId, Letter>,
}

#[derive(Debug)]
struct Letter {
    /// The claim that it was begun for, and is charged to.
    serves: Option<Stamp>,
    parts: BTreeMap<PoolId, Part>,
}

impl Turn {
    pub(super) fn part(
        &mut self,
        to: SiteId,
        pool: PoolId,
        serves: impl Into<Option<Stamp>>,
    ) -> &mut Part {
        let new = || Letter { serves: serves.into(), parts: BTreeMap::new() };
        let letter = self.letters.entry(to).or_insert_with(new);
        letter.parts.entry(pool).or_insert_with(|| Part::new(pool))
    }

    pub(super) fn touch(&mut self, id: PoolId) {
        if !self.changed.contains(&id) {
            self.changed.push(id);
        }
        self.seen.insert(id);
    }
}

impl Pool {
    /// How many units this site has to have for a claim that has come last, and how many it should
    /// have, if it should ask: so many that the claim need not wait for those that are used here.
    fn ambition(&self, claim: Stamp) -> Option<(u32, u32)> {
        let units = self.line.units(claim);
        let sure = self.line.sure(self.owned.len());
        // It may as well wait for as many as are used here: others are no sooner free.
        if self.line.needed() * u64::from(units.min(2)) <= sure {
            return None;
        }
        let first = self.line.head().is_some_and(|(head, _)| head.claim == claim);
        let here = if first { self.idle.len() as u64 } else { 0 };
        let target = (sure + u64::from(units)).saturating_sub(here).max(units.into());
        let target = u32::try_from(target).unwrap_or(u32::MAX).min(self.reach);
        let crowded = sure >= CROWD && self.line.needed() > CROWD * sure;
        let must = if crowded && self.capacity > FEW { target } else { units };
        (u64::from(target) > sure).then_some((must, target))
    }

    /// Units go to a site, and with them decisions of which it has not heard.
    fn ship(&mut self, to: SiteId, serves: Option<Stamp>, units: Vec<u32>, turn: &mut Turn) {
        let along = self.along.remove(&to);
        let part = turn.part(to, self.id, serves);
        part.wants.extend(along.into_iter().flatten());
        part.units.extend(units);
    }
}

impl<R: Rules> Roaming<R> {
    /// An own claim waits for units of a pool.
    pub(super) fn join(&mut self, id: PoolId, claim: Stamp, units: u32, turn: &mut Turn) {
        self.pools[id.index()].line.join(claim, units);
        turn.joined.insert((id, claim));
        turn.touch(id);
    }

    /// Takes down what one site says of one pool.
    pub(super) fn receive(&mut self, from: SiteId, part: Part, turn: &mut Turn) {
        let id = part.pool;
        turn.touch(id);
        let pool = &mut self.pools[id.index()];
        if !part.units.is_empty() {
            pool.news = true;
            pool.owned.extend(&part.units);
            if R::KEEPS_SURPLUS || !pool.line.is_empty() {
                pool.idle.extend(&part.units);
            }
        }
        pool.seeking.watched = pool.seeking.watched.max(part.watch);
        for Want { claim, units, heard } in part.wants {
            self.want(id, heard, claim, units, turn);
        }
        if self.pools[id.index()].board.is_none() {
            return;
        }
        self.welcome(from, id, &part.home, turn);
        for &Ask { claim, units, most } in &part.asks {
            self.hear(id, claim, units, most, turn);
        }
        let board = self.pools[id.index()].board.as_mut().expect("it is here");
        board.note(from, part.spare);
        if let Some(claim) = part.sated {
            board.sate(claim);
        }
        if let Some(seek) = part.seeks {
            board.seek(seek);
        }
        self.share(id, turn);
    }

    /// Takes idle units that another site sent, but for those that were promised in the meantime,
    /// and those that somebody seeks.
    fn welcome(&mut self, from: SiteId, id: PoolId, home: &Home, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        let Some(board) = pool.board.as_mut().filter(|_| !home.units.is_empty()) else { return };
        let (gifts, kept) = board.came_home(from, self.me, home);
        let mut units = home.units.clone();
        let kept = units.split_off(units.len() - kept as usize);
        pool.owned.extend(&kept);
        pool.idle.extend(&kept);
        for (claim, _, count) in gifts {
            let gift = units.split_off(units.len() - count as usize);
            pool.ship(claim.site, Some(claim), gift, turn);
        }
        if !units.is_empty() {
            pool.ship(from, None, units, turn);
        }
    }

    /// The switchboard, which is here, decides an ask.
    fn hear(&mut self, id: PoolId, claim: Stamp, units: u32, most: u32, turn: &mut Turn) {
        let me = self.me;
        let spare = self.pools[id.index()].spare();
        let Some(board) = &mut self.pools[id.index()].board else { return };
        board.hear(claim.site);
        board.note(me, spare);
        let gifts = board.ensure(claim, units, most);
        self.tell(id, &gifts, turn);
    }

    /// Tells sites to give units to claims.
    pub(super) fn tell(&mut self, id: PoolId, gifts: &[Gift], turn: &mut Turn) {
        for &(claim, site, units) in gifts {
            let Some(board) = &self.pools[id.index()].board else { return };
            let heard = if R::KEEPS_THE_PLAN { board.heard(site) } else { u64::MAX };
            let has = board.units(site) + units;
            let want = Want { claim, units, heard };
            if site == self.me {
                self.want(id, heard, claim, units, turn);
                continue;
            }
            let pool = &mut self.pools[id.index()];
            let along = pool.along.get(&site).into_iter().flatten().map(|want| want.units);
            let coming = pool.line.wanted_by(site).saturating_sub(along.sum());
            if has <= coming {
                // All that it has will come from here.
                pool.along.entry(site).or_default().push(want);
            } else {
                turn.part(site, id, claim).wants.push(want);
            }
        }
    }

    /// Another site is to get units.
    fn want(&mut self, id: PoolId, heard: u64, claim: Stamp, units: u32, turn: &mut Turn) {
        let line = &mut self.pools[id.index()].line;
        let heard = if R::BY_PLAN { heard } else { line.asks_by_age(claim) };
        let place = line.want(heard, claim, units);
        turn.touch(id);
        self.cover(id, place, turn);
    }

    /// If quiet claims behind `place` counted on units which are gone, the oldest of them asks
    /// after all, for all of them.
    fn cover(&mut self, id: PoolId, place: Place, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        if let Some(short) = pool.line.uncovered(place, pool.owned.len())
            && R::ASKS_LATE
        {
            self.ask(id, short, 0, 0, turn);
        }
    }

    /// A waiting claim lets go of what it has taken.
    pub(super) fn let_go_of(&mut self, claim: Stamp, turn: &mut Turn) {
        let Some(Own::Waiting { taken, .. }) = self.claims.get_mut(&claim) else { return };
        for unit in core::mem::take(taken) {
            let pool = &mut self.pools[unit.pool.index()];
            pool.let_go_by(claim);
            pool.idle.push_back(unit.number);
            turn.touch(unit.pool);
        }
    }

    /// Ends every step: grants and gives what can be, asks for what lacks, says it all.
    pub(super) fn finish(&mut self, mut turn: Turn, out: &mut EffectsOf<Self>) {
        loop {
            while let Some(id) = turn.changed.pop() {
                self.settle(id, &mut turn, out);
            }
            if let Some((id, claim)) = turn.joined.pop_first() {
                self.consider(id, claim, &mut turn);
                continue;
            }
            for id in core::mem::take(&mut turn.released) {
                self.announce(id, &mut turn);
            }
            for id in core::mem::take(&mut turn.seen) {
                self.watch(id, &mut turn, out);
            }
            if turn.changed.is_empty() {
                break;
            }
        }
        for (to, letter) in turn.letters {
            let mut parts: Vec<Part> = letter.parts.into_values().collect();
            for part in &mut parts {
                let pool = &self.pools[part.pool.index()];
                if pool.desk == to {
                    part.spare = pool.spare();
                }
            }
            out.send(to, letter.serves, Message { parts });
        }
    }

    /// An own claim that has come last asks, if it should.
    fn consider(&mut self, id: PoolId, claim: Stamp, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        if !pool.line.is_quiet(claim) {
            return;
        }
        match pool.ambition(claim) {
            Some(_) if pool.goes_to_desk() => pool.riders.push(claim),
            Some((units, most)) => self.ask(id, claim, units, most, turn),
            // Younger ones may have come last with it.
            None => {
                let place = pool.line.quiet_place(claim);
                self.cover(id, place, turn);
            }
        }
    }

    /// Serves all whose turn has come.
    fn settle(&mut self, id: PoolId, turn: &mut Turn, out: &mut EffectsOf<Self>) {
        while let Some((head, units)) = self.pools[id.index()].line.head() {
            let pool = &mut self.pools[id.index()];
            let own = head.claim.site == self.me;
            if own
                && R::ELDERS_FIRST
                && let Some((elder, units)) = pool.line.elder(head, pool.idle.len())
            {
                self.take(id, elder, units, turn, out);
                continue;
            }
            if units as usize <= pool.idle.len() {
                if own {
                    self.take(id, head.claim, units, turn, out);
                } else {
                    self.give(id, head, units, turn);
                }
                continue;
            }
            let parted = pool.capacity > FEW || pool.is_sought();
            if own || pool.idle.is_empty() || !parted {
                break;
            }
            let some = count(pool.idle.len());
            self.give(id, head, some, turn);
        }
    }

    /// An own claim takes its units of one pool, and goes on to the next.
    fn take(
        &mut self,
        id: PoolId,
        claim: Stamp,
        units: u32,
        turn: &mut Turn,
        out: &mut EffectsOf<Self>,
    ) {
        let pool = &mut self.pools[id.index()];
        pool.line.leave(claim);
        let drawn = pool.draw(units);
        pool.use_by(claim, units);
        let Some(Own::Waiting { demand, taken, .. }) = self.claims.get_mut(&claim) else { return };
        taken.extend(drawn.into_iter().map(|number| Unit { pool: id, number }));
        let next = demand.parts().find(|part| part.0 > id);
        if let Some((next, more)) = next.filter(|_| R::ALL_POOLS && R::POOL_BY_POOL) {
            self.join(next, claim, more.0, turn);
            return;
        }
        let units = core::mem::take(taken);
        self.claims.insert(claim, Own::Held(units.clone()));
        out.grant_named(claim, units);
    }

    /// Gives another site what it wants.
    fn give(&mut self, id: PoolId, place: Place, units: u32, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        pool.line.serve_want(place, units);
        let drawn = pool.draw(units);
        turn.joined.extend(pool.riders.drain(..).map(|claim| (id, claim)));
        if R::LETS_GO {
            for unit in &drawn {
                pool.owned.remove(unit);
            }
        }
        pool.ship(place.claim.site, Some(place.claim), drawn, turn);
    }

    /// A quiet claim asks that this site have so many units.
    pub(super) fn ask(&mut self, id: PoolId, claim: Stamp, units: u32, most: u32, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        // Whoever waits behind it counts on the same units.
        let units = units.max(pool.line.largest_quiet());
        let most = most.max(units);
        pool.line.ask(claim, units);
        // Others may go first now.
        turn.touch(id);
        if pool.board.is_some() {
            self.hear(id, claim, units, most, turn);
        } else {
            turn.part(pool.desk, id, claim).asks.push(Ask { claim, units, most });
        }
    }

    /// Tells the switchboard of units that came and are idle now, where it has many to choose from.
    fn announce(&mut self, id: PoolId, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        if pool.spare() == 0 || !pool.news {
            return;
        }
        pool.news = false;
        if pool.board.is_none() && pool.capacity > FEW {
            // Whom that will serve nobody knows.
            turn.part(pool.desk, id, None);
        }
    }
}

/// Where several units are here, and this many times as many are waited for, claims do not wait for
/// those of their own site: lines at all sites are to be about as long as each other.
const CROWD: u64 = 2;

pub(super) fn count(units: usize) -> u32 {
    u32::try_from(units).expect("a pool has fewer than 2^32 units")
}
