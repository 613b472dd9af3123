//! Nobody waits for long beside free units.
//!
//! A claim is sent to wait for units that somebody uses, or waits for those that its own site uses,
//! and that is usually right: others will not be free any sooner. But holders may keep theirs for
//! days, while elsewhere some are released of which nobody is told.
//!
//! In larger pools such a claim *hopes*: the switchboard gives its site idle units as soon as it
//! has some. And in all pools the oldest claim of a site that has waited for [`PATIENCE`]
//! *seeks*, once. For both the switchboard *watches* others: they send it idle units that nobody
//! there waits for, and do not keep any for a claim that lacks more. What was promised while it was
//! on its way to the switchboard goes back.
//!
//! Who seeks says how much it lacks, together with all that go before it, and is given as much.
//! That suffices: it has asked by then, so whatever is decided later goes behind it.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::board::Board;
use super::pool::Pool;
use super::turn::Turn;
use super::{Home, Roaming, Rules, Seek};
use crate::protocol::EffectsOf;
use crate::types::{PoolId, Stamp};

/// How long a claim waits where it was sent to before it seeks.
const PATIENCE: Duration = Duration::from_millis(100);

/// The oldest waiting claim of a pool has become restless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Restless(pub PoolId);

/// What a site knows of those who seek units of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seeking {
    /// The own claim that will seek when the timer fires.
    restless: Option<Stamp>,
    /// The own claim that seeks.
    own: Option<Stamp>,
    /// So many idle units go to the switchboard, because somebody hopes for some or seeks.
    pub(super) watched: u32,
}

impl Seeking {
    pub(super) const fn new() -> Self {
        Self { restless: None, own: None, watched: 0 }
    }

    /// Whether no own claim seeks.
    pub(super) const fn is_empty(&self) -> bool {
        self.own.is_none()
    }
}

impl Pool {
    /// Whether somebody would take idle units, as far as this site knows.
    pub(super) fn is_sought(&self) -> bool {
        let board = self.board.as_ref().is_some_and(Board::is_eager);
        self.seeking.watched > 0 || self.seeking.own.is_some() || board
    }
}

impl Pool {
    /// The timer of the last epoch is gone.
    pub(super) fn arm_again<R: Rules>(&self, out: &mut EffectsOf<Roaming<R>>) {
        if self.seeking.restless.is_some() {
            out.arm(Restless(self.id), PATIENCE, PATIENCE);
        }
    }
}

impl<R: Rules> Roaming<R> {
    /// Sees to it that the oldest claim that waits seeks in the end, and no longer than it waits;
    /// and that the switchboard hears of idle units where somebody seeks.
    pub(super) fn watch(&mut self, id: PoolId, turn: &mut Turn, out: &mut EffectsOf<Self>) {
        if !R::SEEKS {
            return;
        }
        let pool = &mut self.pools[id.index()];
        if let Some(claim) = pool.seeking.own
            && pool.line.units(claim) == 0
        {
            pool.seeking.own = None;
            if let Some(board) = &mut pool.board {
                board.sate(claim);
            } else {
                turn.part(pool.desk, id, claim).sated = Some(claim);
            }
        }
        if pool.seeking.own.is_none()
            && pool.seeking.restless.is_none()
            && let Some((claim, units)) = pool.line.oldest()
            && units < pool.reach
        {
            pool.seeking.restless = Some(claim);
            out.arm(Restless(id), PATIENCE, PATIENCE);
        }
        let spare = pool.spare();
        if spare == 0 {
            return;
        }
        if pool.board.is_some() {
            self.share(id, turn);
        } else if pool.seeking.watched > 0 {
            let count = pool.seeking.watched.min(spare);
            pool.seeking.watched -= count;
            let drawn = pool.draw(count);
            pool.line.part_with(count);
            for unit in &drawn {
                pool.owned.remove(unit);
            }
            let left = u32::try_from(pool.owned.len()).unwrap_or(u32::MAX);
            let home = Home { units: drawn, left, told: pool.line.told() };
            turn.part(pool.desk, id, None).home = home;
        }
    }

    /// A claim has waited for long: whoever may have units to spare is to hear of it.
    pub(super) fn seek(&mut self, id: PoolId, turn: &mut Turn) {
        let pool = &mut self.pools[id.index()];
        let Some(claim) = pool.seeking.restless.take() else { return };
        turn.touch(id);
        let Some((_, units)) = pool.line.oldest().filter(|oldest| oldest.0 == claim) else {
            return;
        };
        pool.seeking.own = Some(claim);
        if pool.line.is_quiet(claim) {
            // Nobody else is to go before it.
            self.ask(id, claim, units, 0, turn);
        }
        let pool = &mut self.pools[id.index()];
        let all = pool.line.before(claim) + u64::from(units);
        let lack = all.saturating_sub(pool.idle.len() as u64).clamp(1, pool.reach.into());
        let lack = u32::try_from(lack).unwrap_or(pool.reach);
        let seek = Seek { claim, lack, told: pool.line.told() };
        if let Some(board) = &mut pool.board {
            board.seek(seek);
            self.share(id, turn);
        } else {
            turn.part(pool.desk, id, claim).seeks = Some(seek);
        }
    }

    /// The switchboard, which is here, gives idle units to those who hope or seek, and tells others
    /// to send theirs.
    pub(super) fn share(&mut self, id: PoolId, turn: &mut Turn) {
        let me = self.me;
        let spare = self.pools[id.index()].spare();
        let Some(board) = &mut self.pools[id.index()].board else { return };
        if !board.is_eager() {
            return;
        }
        board.note(me, spare);
        let (gifts, asked) = board.scout(me);
        self.tell(id, &gifts, turn);
        for (claim, site, units) in asked {
            let part = turn.part(site, id, claim);
            part.watch = part.watch.max(units);
        }
        let Some(board) = &mut self.pools[id.index()].board else { return };
        let gifts = board.fulfil(me);
        let watched = board.watch(me);
        self.tell(id, &gifts, turn);
        for (site, units) in watched {
            // It serves all who hope, and nobody in particular.
            let part = turn.part(site, id, None);
            part.watch = part.watch.max(units);
        }
    }
}
