//! What a site knows of one pool: the units it owns, and who waits for them.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::Want;
use super::board::Board;
use super::line::{Line, Place};
use super::search::Seeking;
use crate::types::{PoolId, SiteId, Stamp};

/// One pool at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pool {
    pub(super) id: PoolId,
    /// Units in the whole cluster, without those that are out of use.
    pub(super) capacity: u32,
    /// Those of them that are somewhere in this epoch. A departed site may still use the others.
    pub(super) reach: u32,
    /// The numbers of all are below this.
    pub(super) end: u32,
    /// The units that are out of use: unknown to everybody but to those who hold them.
    pub(super) out: BTreeSet<u32>,
    /// The units that this site owns.
    pub(super) owned: BTreeSet<u32>,
    /// Those of them that nobody uses, the least recently used first.
    pub(super) idle: VecDeque<u32>,
    /// Own claims that have units of this pool, and how many.
    pub(super) users: BTreeMap<Stamp, u32>,
    /// Who waits.
    pub(super) line: Line,
    /// Whether units have come of which the switchboard has not heard since that they are idle.
    pub(super) news: bool,
    /// Own claims that ask when the only unit of the pool goes to the switchboard's site.
    pub(super) riders: Vec<Stamp>,
    /// At the switchboard: decisions that travel with units, which go from here to the same site.
    pub(super) along: BTreeMap<SiteId, Vec<Want>>,
    /// Who seeks.
    pub(super) seeking: Seeking,
    /// The site that has the pool's switchboard.
    pub(super) desk: SiteId,
    /// The switchboard, if it is at this site.
    pub(super) board: Option<Board>,
    /// Those who waited in the last epoch come in their order. Nobody puts off an ask.
    pub(super) starting: bool,
}

impl Pool {
    /// A pool of which nothing is here.
    pub(super) const fn new(id: PoolId, units: u32, me: SiteId, desk: SiteId) -> Self {
        Self {
            id,
            capacity: units,
            reach: 0,
            end: units,
            out: BTreeSet::new(),
            owned: BTreeSet::new(),
            idle: VecDeque::new(),
            users: BTreeMap::new(),
            line: Line::new(me),
            news: false,
            riders: Vec::new(),
            along: BTreeMap::new(),
            seeking: Seeking::new(),
            desk,
            board: None,
            starting: false,
        }
    }

    /// Takes a unit out of use, before anybody has found it.
    pub(super) fn take_out(&mut self, unit: u32) {
        if unit < self.end && self.out.insert(unit) {
            self.capacity -= 1;
        }
    }

    /// Whether a unit of this number may be granted.
    pub(super) fn has(&self, unit: u32) -> bool {
        unit < self.end && !self.out.contains(&unit)
    }

    /// Idle units that nobody here waits for.
    pub(super) fn spare(&self) -> u32 {
        let idle = if self.line.is_empty() { self.idle.len() } else { 0 };
        u32::try_from(idle).unwrap_or(u32::MAX)
    }

    /// Whether the only unit of the pool goes from here to the switchboard's site soon: then an ask
    /// can go with it.
    pub(super) fn goes_to_desk(&self) -> bool {
        let desk = |(place, _): (Place, u32)| place.claim.site == self.desk;
        self.capacity == 1
            && self.board.is_none()
            && !self.starting
            && self.line.iter().take(SOON).any(desk)
    }

    /// An own claim has `units` more.
    pub(super) fn use_by(&mut self, claim: Stamp, units: u32) {
        *self.users.entry(claim).or_default() += units;
    }

    /// An own claim has one unit less.
    pub(super) fn let_go_by(&mut self, claim: Stamp) {
        if let Some(units) = self.users.get_mut(&claim) {
            *units -= 1;
            if *units == 0 {
                self.users.remove(&claim);
            }
        }
    }

    /// Takes idle units, the least recently used first.
    pub(super) fn draw(&mut self, count: u32) -> Vec<u32> {
        self.idle.drain(..count as usize).collect()
    }
}

/// How many are looked at for one of the switchboard's site. An ask that waits for more than two of
/// them would come late in the plan.
const SOON: usize = 2;
