//! One step: what came in is taken down, then everything that can happen does, then all is said.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::board::Board;
use super::pool::{Came, Pool};
use super::{Message, Own, Part, Roaming, Rules};
use crate::protocol::EffectsOf;
use crate::types::{PoolId, SiteId, Stamp, Unit};

/// What one step has to do and to say.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Pools that changed, with the fronts that their queues had before.
    pub(super) touched: Vec<(PoolId, Option<Stamp>)>,
    /// Entries that are new in a queue.
    pub(super) fresh: Vec<(PoolId, Stamp)>,
    /// Claims of others that were sent here in this step.
    sent: Vec<(PoolId, Stamp)>,
    /// Pools whose claims were sent on since they changed.
    placed: BTreeSet<PoolId>,
    /// Asks of own claims that ended without units.
    pub(super) ended: Vec<(PoolId, Stamp, u32)>,
    /// Pools that have changed at all.
    seen: Vec<PoolId>,
    /// Pools whose switchboard, which is here, has heard news.
    pub(super) noted: Vec<PoolId>,
    /// The claim that was made in this step.
    pub(super) claimed: Option<Stamp>,
    /// Pools in which own claims may lack something.
    pub(super) short: Vec<PoolId>,
    /// Units that were released, with the claims that had them.
    pub(super) freed: Vec<(Unit, Stamp)>,
    /// Units that came, by pool and claim, from whom, and whether others wait for such.
    came: Vec<(PoolId, Came, bool)>,
    /// What to say, by destination.
    letters: BTreeMap<SiteId, Letter>,
}

/// How many claims of its own a site looks behind.
const REACH: usize = 8;

#[derive(Debug, Default)]
struct Letter {
    /// The claim that it is charged to.
    serves: Option<Stamp>,
    parts: BTreeMap<PoolId, Part>,
}

impl Turn {
    pub(super) fn part(&mut self, to: SiteId, pool: PoolId, serves: Stamp) -> &mut Part {
        let letter = self.letters.entry(to).or_default();
        letter.serves.get_or_insert(serves);
        letter.parts.entry(pool).or_insert_with(|| Part::new(pool))
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
    /// ones. Where units are scarce everywhere, it does with less: those that it has will be free
    /// as soon as others are.
    fn ambition(&self, claim: Stamp, units: u32) -> u32 {
        let due: u64 = self.due.values().map(|&due| u64::from(due)).sum();
        let elsewhere = u64::from(self.capacity - self.count()).saturating_sub(due);
        let covered = self.covered(claim);
        if !self.homing.is_empty() && self.needed * u64::from(units.min(2)) <= covered {
            return 0;
        }
        // Where units are scarce, those that lie here go away rather than wait for the others.
        let here = if self.homing.is_empty() { self.spare().min(units) } else { 0 };
        u32::try_from(elsewhere).unwrap_or(u32::MAX).min(units - here)
    }

    /// Whether own claims are covered without one of the units here.
    fn can_spare(&self) -> bool {
        self.needs.iter().all(|(&units, claims)| {
            let oldest = *claims.first().expect("no empty sets are kept");
            self.covered(oldest) > u64::from(units)
        })
    }

    /// Notes a claim of another site that the switchboard sent here.
    fn want(&mut self, claim: Stamp, count: u32) {
        *self.wants.entry(claim).or_default() += count;
        self.wanted += u64::from(count);
        self.queue.add(claim, count);
    }

    /// Takes a unit that nobody here uses out of the pool.
    pub(super) fn let_go(&mut self, unit: u32) {
        self.owned.remove(&unit);
        self.homing.remove(&unit);
    }
}

impl<R: Rules> Roaming<R> {
    pub(super) fn touch(&mut self, id: PoolId, turn: &mut Turn) -> &mut Pool {
        let pool = &mut self.pools[id.index()];
        if turn.touched.iter().all(|touched| touched.0 != id) {
            turn.touched.push((id, pool.queue.front().map(|front| front.0)));
        }
        if !turn.seen.contains(&id) {
            turn.seen.push(id);
        }
        pool
    }

    /// Takes down what one site says of one pool.
    pub(super) fn receive(&mut self, from: SiteId, part: Part, turn: &mut Turn) {
        let me = self.me;
        let id = part.pool;
        let mut over = Vec::new();
        let pool = self.touch(id, turn);
        if let Some(board) = &mut pool.board {
            for &Came { claim, from, units } in &part.came {
                (0..units).for_each(|_| board.moved(from, claim));
            }
            for &(claim, units) in &part.served {
                (0..units).for_each(|_| board.moved(from, claim));
            }
            for &(claim, units) in &part.home {
                (0..units).for_each(|_| board.released(claim, Some(me)));
            }
            for &(claim, units) in &part.idle {
                (0..units).for_each(|_| board.released(claim, None));
            }
            for &(claim, units) in &part.bounced {
                over.push((claim, board.bounced::<R>(from, claim, units)));
            }
            for &(claim, units) in &part.asks {
                board.hold(claim, units);
            }
            board.note(from, part.spare);
            turn.noted.push(id);
        }
        for &unit in &part.units {
            if R::KEEPS_SURPLUS || !pool.needs.is_empty() {
                pool.own(unit);
            }
        }
        let mut units = part.units.iter().copied();
        for (claim, count) in part.served {
            pool.settle_due(claim, count);
            if pool.queue.units(claim) > 0 {
                *pool.got.entry(claim).or_default() += count;
            }
            turn.short.push(id);
            if pool.board.is_none() {
                let came = Came { claim, from, units: count };
                turn.came.push((id, came, part.scarce));
                if part.scarce {
                    pool.homing.extend(units.by_ref().take(count as usize).map(|u| (u, claim)));
                }
            }
        }
        turn.ended.extend(part.ended.iter().map(|&(claim, count)| (id, claim, count)));
        for (claim, count) in part.wants {
            pool.want(claim, count);
            turn.fresh.push((id, claim));
            if !part.scarce {
                turn.sent.push((id, claim));
            }
        }
        for (claim, count) in over {
            self.end(id, claim, count, turn);
        }
        self.hear(from, id, part.search, turn);
    }

    /// Ends every step: grants and gives what can be, asks for what lacks, says it all.
    pub(super) fn finish(&mut self, mut turn: Turn, out: &mut EffectsOf<Self>) {
        loop {
            for id in core::mem::take(&mut turn.noted) {
                self.place(id, &mut turn);
                self.scout(id, &mut turn);
            }
            for (id, from) in core::mem::take(&mut turn.touched) {
                self.settle(id, from, &mut turn, out);
                self.bounce(id, &mut turn);
                self.give_seekers(id, &mut turn);
                let crowded = |board: &Board| board.is_crowded();
                if turn.placed.insert(id)
                    && self.pools[id.index()].board.as_ref().is_some_and(crowded)
                {
                    turn.noted.push(id);
                }
            }
            for (id, claim) in core::mem::take(&mut turn.fresh) {
                if self.pools[id.index()].queue.fits(claim) {
                    self.serve(id, claim, &mut turn, out);
                }
            }
            for (id, claim, count) in core::mem::take(&mut turn.ended) {
                if R::ENDS {
                    self.pools[id.index()].settle_due(claim, count);
                }
                turn.short.push(id);
            }
            self.cover(&mut turn);
            for i in 0..turn.seen.len() {
                self.watch(turn.seen[i], &mut turn, out);
            }
            if turn.touched.is_empty() && turn.noted.is_empty() && turn.ended.is_empty() {
                break;
            }
        }
        for (unit, claim) in core::mem::take(&mut turn.freed) {
            self.rest(unit, claim, &mut turn);
            self.pools[unit.pool.index()].tell(claim, &mut turn);
        }
        self.report(&mut turn);
        for (to, letter) in turn.letters {
            let mut parts: Vec<Part> = letter.parts.into_values().collect();
            for part in &mut parts {
                part.spare = self.pools[part.pool.index()].spare();
            }
            out.send(to, letter.serves, Message { parts });
        }
    }

    /// Lets the switchboard send on the claims whose turn has come.
    fn place(&mut self, id: PoolId, turn: &mut Turn) {
        let me = self.me;
        let pool = &mut self.pools[id.index()];
        let front = pool.queue.front().map(|front| front.0);
        let (units, spare) = (pool.count(), pool.spare());
        let Some(board) = pool.board.as_mut().filter(|board| board.is_crowded()) else { return };
        board.made(me, units);
        board.note(me, spare);
        let placed = board.place(R::BEHIND_YOUNGER);
        let capacity = pool.capacity;
        for (claim, count) in board.end_superfluous(capacity) {
            if claim.site == me {
                turn.ended.push((id, claim, count));
            } else {
                merge(&mut turn.part(claim.site, id, claim).ended, claim, count);
            }
        }
        let scarce = board.is_crowded();
        for ((claim, site), count) in placed {
            if site == me {
                pool.want(claim, count);
                turn.fresh.push((id, claim));
                turn.sent.push((id, claim));
                if turn.touched.iter().all(|touched| touched.0 != id) {
                    turn.touched.push((id, front));
                }
            } else {
                let part = turn.part(site, id, claim);
                part.scarce |= scarce;
                merge(&mut part.wants, claim, count);
            }
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
            && (R::YIELDS || self.pools[id.index()].needs.is_empty())
        {
            let spare = u32::try_from(queue.spare()).unwrap_or(u32::MAX);
            self.give(id, front, spare, turn);
        }
        while let Some((stamp, units)) = self.next_to_pass(id) {
            if stamp.site == self.me {
                self.grant(stamp, out);
            } else {
                self.give(id, stamp, units, turn);
            }
        }
    }

    /// Who may pass claims of this site that cannot have all their units yet, and do not need those
    /// that are here: they asked for others.
    fn next_to_pass(&self, id: PoolId) -> Option<(Stamp, u32)> {
        let pool = &self.pools[id.index()];
        let mut spare = pool.queue.spare();
        for (stamp, units) in pool.queue.behind().take(REACH) {
            let fits = u64::from(units) <= spare;
            if spare == 0 || stamp.site != self.me {
                return fits.then_some((stamp, units)).filter(|_| spare > 0);
            }
            if fits && self.may_pass(stamp, id) {
                return Some((stamp, units));
            }
            if !pool.is_provided(stamp, units) {
                return None;
            }
            let got = pool.got.get(&stamp).copied().unwrap_or_default();
            spare = spare.saturating_sub(got.into());
        }
        None
    }

    /// Whether an own claim waits for no other pool than this one.
    fn may_pass(&self, claim: Stamp, id: PoolId) -> bool {
        let Some(Own::Waiting(demand)) = self.claims.get(&claim) else { return false };
        demand.pools().all(|other| other == id || self.pools[other.index()].queue.fits(claim))
    }

    /// Grants an own claim if all its pools allow it; gives another site what it wants.
    fn serve(&mut self, id: PoolId, stamp: Stamp, turn: &mut Turn, out: &mut EffectsOf<Self>) {
        if stamp.site != self.me {
            let gathers = !self.pools[id.index()].needs.is_empty();
            if !R::YIELDS && gathers {
                return;
            }
            let units = self.pools[id.index()].queue.units(stamp);
            if units > 0 {
                self.give(id, stamp, units, turn);
            }
            return;
        }
        let Some(Own::Waiting(demand)) = self.claims.get(&stamp) else { return };
        let fits = |id: PoolId| self.pools[id.index()].queue.fits(stamp);
        let due = if R::ALL_POOLS { demand.pools().all(fits) } else { demand.pools().any(fits) };
        if due {
            self.grant(stamp, out);
        }
    }

    fn grant(&mut self, stamp: Stamp, out: &mut EffectsOf<Self>) {
        let Some(Own::Waiting(demand)) = self.claims.get(&stamp) else { return };
        let mut units = Vec::new();
        for (id, count) in demand.parts() {
            let pool = &mut self.pools[id.index()];
            pool.queue.serve(stamp, count.0);
            let taken = pool.idle.drain(..count.0 as usize);
            units.extend(taken.map(|number| Unit { pool: id, number }));
            pool.forget_need(stamp, count.0);
            pool.cut_got();
        }
        self.claims.insert(stamp, Own::Held(units.clone()));
        out.grant_named(stamp, units);
    }

    fn give(&mut self, id: PoolId, claim: Stamp, count: u32, turn: &mut Turn) {
        let me = self.me;
        let pool = &mut self.pools[id.index()];
        // Who was sent here in this step did not have to wait for it.
        let waited = !turn.sent.contains(&(id, claim));
        pool.queue.serve(claim, count);
        pool.drop_wants(claim, count);
        pool.cut_got();
        pool.seeking.note_loss();
        let scarce = match &mut pool.board {
            Some(board) => {
                (0..count).for_each(|_| board.moved(me, claim));
                board.is_crowded()
            }
            None => waited,
        };
        let part = turn.part(claim.site, id, claim);
        part.scarce |= scarce;
        for unit in pool.idle.drain(..count as usize).collect::<Vec<_>>() {
            if R::LETS_GO {
                pool.let_go(unit);
            }
            part.add(unit);
        }
        merge(&mut part.served, claim, count);
        turn.short.push(id);
        if turn.touched.iter().all(|touched| touched.0 != id) {
            let front = pool.queue.front().map(|front| front.0);
            turn.touched.push((id, front));
        }
        if pool.board.is_some() {
            turn.noted.push(id);
        }
    }

    /// Sends back the youngest of the claims that this site has no unit for.
    fn bounce(&mut self, id: PoolId, turn: &mut Turn) {
        loop {
            let pool = &mut self.pools[id.index()];
            if pool.wanted <= u64::from(pool.count()) {
                break;
            }
            let excess = pool.wanted - u64::from(pool.count());
            let (&claim, &count) = pool.wants.last_key_value().expect("there are wants");
            // All of it, unless nobody older is there: units of one claim should come together.
            let alone = pool.wants.len() == 1;
            let some = u32::try_from(excess).unwrap_or(count).min(count);
            let count = if alone { some } else { count };
            pool.drop_wants(claim, count);
            pool.queue.take(claim, Some(count));
            if R::BOUNCES {
                self.send_back(id, claim, count, turn);
            }
        }
    }

    /// Tells the switchboard that a claim was sent here in vain.
    pub(super) fn send_back(&mut self, id: PoolId, claim: Stamp, count: u32, turn: &mut Turn) {
        let me = self.me;
        let pool = &mut self.pools[id.index()];
        if let Some(board) = &mut pool.board {
            let ended = board.bounced::<R>(me, claim, count);
            turn.noted.push(id);
            self.end(id, claim, ended, turn);
        } else {
            merge(&mut turn.part(pool.desk, id, claim).bounced, claim, count);
        }
    }

    /// Asks for what own claims lack now.
    fn cover(&mut self, turn: &mut Turn) {
        if let Some(claim) = turn.claimed.take()
            && let Some(Own::Waiting(demand)) = self.claims.get(&claim)
        {
            let demand = demand.clone();
            for (id, units) in demand.parts() {
                let lack = self.pools[id.index()].ambition(claim, units.0);
                self.ask(id, claim, lack, turn);
            }
        }
        let mut short = core::mem::take(&mut turn.short);
        short.sort_unstable();
        short.dedup();
        for id in short {
            for (claim, lack) in self.pools[id.index()].lacks() {
                if R::WANTS_BACK || turn.letters.is_empty() {
                    self.ask(id, claim, lack, turn);
                }
            }
        }
    }

    fn ask(&mut self, id: PoolId, claim: Stamp, count: u32, turn: &mut Turn) {
        if count == 0 {
            return;
        }
        let pool = &mut self.pools[id.index()];
        *pool.due.entry(claim).or_default() += count;
        if let Some(board) = &mut pool.board {
            board.hold(claim, count);
            turn.noted.push(id);
        } else {
            merge(&mut turn.part(pool.desk, id, claim).asks, claim, count);
        }
    }

    /// What becomes of a unit that was released and that nobody here needs.
    fn rest(&mut self, unit: Unit, claim: Stamp, turn: &mut Turn) {
        let id = unit.pool;
        let pool = &mut self.pools[id.index()];
        let unit = unit.number;
        if pool.queue.spare() == 0 || !pool.idle.contains(&unit) {
            return;
        }
        let needed = pool.queue.front().is_some();
        if needed && (!pool.can_spare() || pool.wanted >= u64::from(pool.count())) {
            return;
        }
        if let Some(board) = &mut pool.board {
            board.released(claim, None);
        } else if needed || pool.homing.contains_key(&unit) {
            let came_for = pool.homing.get(&unit).copied().unwrap_or(claim);
            pool.idle.retain(|&idle| idle != unit);
            pool.queue.shrink();
            pool.cut_got();
            pool.let_go(unit);
            let part = turn.part(pool.desk, id, claim);
            part.add(unit);
            merge(&mut part.home, came_for, 1);
        } else if pool.news.range((claim, SiteId(0))..=(claim, SiteId(u16::MAX))).next().is_some() {
            merge(&mut turn.part(pool.desk, id, claim).idle, claim, 1);
        }
    }

    /// Tells the switchboards what has come: at once where it matters, otherwise when it is
    /// released.
    fn report(&mut self, turn: &mut Turn) {
        for (id, came, scarce) in core::mem::take(&mut turn.came) {
            let uses = self.uses(came.claim, id);
            let pool = &mut self.pools[id.index()];
            *pool.news.entry((came.claim, came.from)).or_default() += came.units;
            if !R::TELLS {
                pool.news.clear();
            } else if scarce || !uses || !pool.needs.is_empty() {
                pool.tell(came.claim, turn);
            }
        }
        for id in core::mem::take(&mut turn.seen) {
            if !self.pools[id.index()].needs.is_empty() {
                while let Some((&(claim, _), _)) = self.pools[id.index()].news.first_key_value() {
                    self.pools[id.index()].tell(claim, turn);
                }
            }
        }
    }

    /// Whether a claim holds units of a pool, so that there will be a release to tell of.
    fn uses(&self, claim: Stamp, id: PoolId) -> bool {
        match self.claims.get(&claim) {
            Some(Own::Held(units)) => units.iter().any(|unit| unit.pool == id),
            Some(Own::Waiting(_)) | None => false,
        }
    }
}

impl Pool {
    /// Tells the switchboard of the units that came for a claim.
    fn tell(&mut self, claim: Stamp, turn: &mut Turn) {
        let news: Vec<(SiteId, u32)> = self
            .news
            .range((claim, SiteId(0))..=(claim, SiteId(u16::MAX)))
            .map(|(&(_, from), &units)| (from, units))
            .collect();
        for (from, units) in news {
            self.news.remove(&(claim, from));
            if from != self.desk {
                let part = turn.part(self.desk, self.id, claim);
                let came = Came { claim, from, units };
                let at = part.came.partition_point(|other| *other < came);
                part.came.insert(at, came);
            }
        }
    }
}

/// Adds to a list that is sorted by claim.
pub(super) fn merge(list: &mut Vec<(Stamp, u32)>, claim: Stamp, count: u32) {
    match list.binary_search_by_key(&claim, |entry| entry.0) {
        Ok(i) => list[i].1 += count,
        Err(i) => list.insert(i, (claim, count)),
    }
}
