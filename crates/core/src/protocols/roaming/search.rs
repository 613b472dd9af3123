//! Nobody waits for long beside free units.
//!
//! A claim is sent to wait for units that somebody uses, or waits for those that its own site uses,
//! and that is usually right: others will not be free any sooner. But holders may keep theirs for
//! days, while elsewhere some are released of which nobody is told. So the oldest claim of a site
//! that has waited for [`PATIENCE`] *seeks*: its site tells the switchboard, which tells those that
//! have units nobody was sent for. Whoever of them has units that nobody there needs, now or later,
//! gives them to the oldest seeker, until it has what it lacks. Then it is *sated*, and everybody
//! forgets it, with the places that it was sent to.
//!
//! The switchboard knows of every idle unit where it is, as soon as nothing is on its way: sites
//! tell of what has come, at the latest when it is released. So nobody else need be told.
//!
//! A seeker only gets what is left over, so the order of the queues is as it was. Who seeks may be
//! given more than it lacks, by several sites at once: the rest lies idle at its site. But each
//! site gives it no more than it lacks: otherwise units would go to and fro between sites that have
//! not heard who is sated. If what it found is taken by somebody older, it seeks again.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::pool::Pool;
use super::turn::{Turn, merge};
use super::{Roaming, Rules};
use crate::protocol::EffectsOf;
use crate::types::{PoolId, SiteId, Stamp};

/// How long a claim waits where it was sent to before it seeks.
const PATIENCE: Duration = Duration::from_millis(100);

/// The oldest waiting claim of a pool has become restless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Restless(pub PoolId);

/// What a message says of those who seek.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Search {
    /// To the switchboard: a claim of the sender that seeks no more.
    pub sated: Option<Stamp>,
    /// To the switchboard, after that: a claim of the sender that lacks so many units.
    pub seeks: Option<(Stamp, u32)>,
    /// From the switchboard: claims that lack so many units.
    pub seekers: Vec<(Stamp, u32)>,
    /// From the switchboard: claims that seek no more, nor wait anywhere.
    pub forget: Vec<Stamp>,
    /// Claims of the receiver that sought, with how many of the units in this message are theirs.
    pub found: Vec<(Stamp, u32)>,
    /// To the switchboard: how many units came to the sender from which site, because it sought.
    pub strayed: Vec<(SiteId, u32)>,
}

impl Search {
    pub(super) const fn new() -> Self {
        Self {
            sated: None,
            seeks: None,
            seekers: Vec::new(),
            forget: Vec::new(),
            found: Vec::new(),
            strayed: Vec::new(),
        }
    }

    /// Whether it says what only the switchboard wants to know.
    pub(super) const fn is_news(&self) -> bool {
        self.seeks.is_some() || self.sated.is_some() || !self.strayed.is_empty()
    }
}

/// What a site knows of those who seek units of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seeking {
    /// The own claim that will seek when the timer fires.
    restless: Option<Stamp>,
    /// The own claim that seeks.
    own: Option<Stamp>,
    /// Whether units were given away since it did: they may be those that it found.
    lost: bool,
    /// Claims of others, with what they lack.
    others: BTreeMap<Stamp, u32>,
}

impl Seeking {
    pub(super) const fn new() -> Self {
        Self { restless: None, own: None, lost: false, others: BTreeMap::new() }
    }

    /// A unit was given away.
    pub(super) const fn note_loss(&mut self) {
        self.lost = self.own.is_some();
    }

    /// Each site seeks for one claim at a time.
    fn insert(&mut self, claim: Stamp, lack: u32) {
        self.others.retain(|other, _| other.site != claim.site);
        self.others.insert(claim, lack);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.own.is_none() && self.others.is_empty()
    }
}

impl Pool {
    /// The oldest own claim that units lack for, and how many.
    fn oldest_lack(&self) -> Option<(Stamp, u32)> {
        let (front, _) = self.queue.front().filter(|_| self.count() < self.capacity)?;
        let sizes = self.needs.iter();
        let first = sizes.filter_map(|(&units, set)| Some((*set.range(front..).next()?, units)));
        let (oldest, units) = first.min()?;
        let here = if oldest == front { self.spare() } else { 0 };
        Some((oldest, units.saturating_sub(here).max(1)))
    }
}

impl<R: Rules> Roaming<R> {
    /// Gives what nobody here needs to those who seek.
    pub(super) fn give_seekers(&mut self, id: PoolId, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        if !R::SEEKS || pool.queue.front().is_some() {
            return;
        }
        while let Some((&claim, &lack)) = pool.seeking.others.first_key_value() {
            let count = lack.min(pool.spare());
            if count == 0 {
                return;
            }
            if count == lack {
                pool.seeking.others.remove(&claim);
            } else {
                pool.seeking.others.insert(claim, lack - count);
            }
            let part = turn.part(claim.site, id, claim);
            for unit in pool.idle.drain(..count as usize).collect::<Vec<_>>() {
                pool.let_go(unit);
                part.add(unit);
            }
            merge(&mut part.search.found, claim, count);
            (0..count).for_each(|_| pool.queue.shrink());
            pool.cut_got();
            if let Some(board) = &mut pool.board {
                (0..count).for_each(|_| board.strayed(self.me, claim.site));
                turn.noted.push(id);
            }
            turn.short.push(id);
        }
    }

    /// Sees to it that the oldest claim that waits seeks in the end, and no longer than it waits.
    pub(super) fn watch(&mut self, id: PoolId, turn: &mut Turn, out: &mut EffectsOf<Self>) {
        if !R::SEEKS {
            return;
        }
        let pool = &self.pools[id.index()];
        if let Some(claim) = pool.seeking.own
            && (pool.queue.units(claim) == 0 || pool.queue.fits(claim))
        {
            self.sated(id, claim, turn);
        }
        let pool = &mut self.pools[id.index()];
        if (pool.seeking.own.is_none() || pool.seeking.lost && R::SEEKS_AGAIN)
            && pool.seeking.restless.is_none()
            && let Some((claim, _)) = pool.oldest_lack()
        {
            pool.seeking.restless = Some(claim);
            pool.seeking.lost = false;
            out.arm(Restless(id), PATIENCE, PATIENCE);
        }
    }

    /// A claim has waited for long: whoever may have units to spare is to hear of it.
    pub(super) fn seek(&mut self, id: PoolId, turn: &mut Turn) {
        let pool = self.touch(id, turn);
        let Some(claim) = pool.seeking.restless.take() else { return };
        let Some((oldest, lack)) = pool.oldest_lack().filter(|lack| lack.0 == claim) else {
            return;
        };
        if let Some(other) = pool.seeking.own.filter(|&own| own != oldest) {
            self.sated(id, other, turn);
        }
        let pool = &mut self.pools[id.index()];
        pool.seeking.own = Some(oldest);
        if pool.board.is_some() {
            self.note_seeker(id, oldest, lack, turn);
        } else {
            turn.part(pool.desk, id, oldest).search.seeks = Some((oldest, lack));
        }
    }

    /// An own claim seeks no more.
    fn sated(&mut self, id: PoolId, claim: Stamp, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        (pool.seeking.own, pool.seeking.lost) = (None, false);
        if pool.board.is_some() {
            self.note_sated(id, claim, turn);
        } else {
            turn.part(pool.desk, id, claim).search.sated = Some(claim);
        }
    }

    /// The switchboard hears who seeks, or seeks no more.
    fn note_seeker(&mut self, id: PoolId, claim: Stamp, lack: u32, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        let Some(board) = &mut pool.board else { return };
        board.seek(claim, lack);
        if claim.site != self.me {
            pool.seeking.insert(claim, lack);
        }
        turn.noted.push(id);
    }

    fn note_sated(&mut self, id: PoolId, claim: Stamp, turn: &mut Turn) {
        let Some(board) = &mut self.pools[id.index()].board else { return };
        let (told, ended) = board.sated(claim);
        for site in told.into_iter().filter(|&site| site != self.me && R::FORGETS) {
            turn.part(site, id, claim).search.forget.push(claim);
        }
        if claim.site != self.me {
            self.forget(id, claim, turn);
        }
        self.end(id, claim, ended, turn);
    }

    /// The switchboard tells the sites that have units which nobody was sent for who seeks.
    pub(super) fn scout(&mut self, id: PoolId, turn: &mut Turn) {
        let me = self.me;
        let Some(board) = &mut self.pools[id.index()].board else { return };
        for (claim, lack, site) in board.scout(me) {
            merge(&mut turn.part(site, id, claim).search.seekers, claim, lack);
        }
    }

    /// Tells a claim's site that some of what it asked for will not come.
    pub(super) fn end(&mut self, id: PoolId, claim: Stamp, count: u32, turn: &mut Turn) {
        if count == 0 {
            return;
        }
        if claim.site == self.me {
            turn.ended.push((id, claim, count));
        } else {
            merge(&mut turn.part(claim.site, id, claim).ended, claim, count);
        }
    }

    /// A claim seeks no more, nor waits here.
    fn forget(&mut self, id: PoolId, claim: Stamp, turn: &mut Turn) {
        let pool = self.touch(id, turn);
        pool.seeking.others.remove(&claim);
        let Some(&count) = pool.wants.get(&claim) else { return };
        pool.drop_wants(claim, count);
        pool.queue.take(claim, Some(count));
        self.send_back(id, claim, count, turn);
    }

    /// Takes down what a site says of those who seek. The units are here already.
    pub(super) fn hear(&mut self, from: SiteId, id: PoolId, search: Search, turn: &mut Turn) {
        let me = self.me;
        let pool = &mut self.pools[id.index()];
        if let Some(board) = &mut pool.board {
            for (origin, count) in search.strayed {
                (0..count).for_each(|_| board.strayed(origin, from));
            }
        }
        for (claim, count) in search.found {
            if pool.queue.units(claim) > 0 {
                *pool.got.entry(claim).or_default() += count;
            }
            turn.short.push(id);
            if let Some(board) = &mut pool.board {
                (0..count).for_each(|_| board.strayed(from, me));
            } else if from != pool.desk && R::TELLS_STRAYS {
                turn.part(pool.desk, id, claim).search.strayed.push((from, count));
            }
        }
        for (claim, lack) in search.seekers {
            pool.seeking.insert(claim, lack);
        }
        for claim in search.forget {
            self.forget(id, claim, turn);
        }
        if let Some(claim) = search.sated {
            self.note_sated(id, claim, turn);
        }
        if let Some((claim, lack)) = search.seeks {
            self.note_seeker(id, claim, lack, turn);
        }
    }
}
