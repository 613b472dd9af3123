//! What a site knows of one pool: the units it owns, who wants them, what it is owed.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::board::Board;
use super::queue::Queue;
use super::search::Seeking;
use crate::types::{PoolId, SiteId, Stamp};

/// One pool at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pool {
    pub(super) id: PoolId,
    /// Units in the whole cluster, without those that are out of use.
    pub(super) capacity: u32,
    /// Their numbers are below this.
    pub(super) end: u32,
    /// The units that are out of use: unknown to everybody but to those who hold them.
    pub(super) out: BTreeSet<u32>,
    /// The units that this site owns.
    pub(super) owned: BTreeSet<u32>,
    /// Those of them that nobody uses, the least recently used first.
    pub(super) idle: VecDeque<u32>,
    /// Own claims that wait, and wants of others, oldest first. Invariant: it counts as many idle
    /// units as there are.
    pub(super) queue: Queue,
    /// Claims of others that the switchboard sent here, which are in the queue. Invariant: all in
    /// all no more than units are owned here, so that there is one for each.
    pub(super) wants: BTreeMap<Stamp, u32>,
    /// All of them.
    pub(super) wanted: u64,
    /// Own claims that wait, by the units that they ask for.
    pub(super) needs: BTreeMap<u32, BTreeSet<Stamp>>,
    /// The units that they ask for, all in all.
    pub(super) needed: u64,
    /// What own claims are owed: asked for, and not here. Invariant: with the owned units, what is
    /// owed up to each waiting claim is as much as it asks for.
    pub(super) due: BTreeMap<Stamp, u32>,
    /// Idle units that came for own claims which still wait. Invariant: no more than are idle.
    pub(super) got: BTreeMap<Stamp, u32>,
    /// Own claims whose units the switchboard has not heard of, or not whether they are used.
    pub(super) news: BTreeMap<(Stamp, SiteId), u32>,
    /// Units that go to the switchboard when nobody here needs them, with the claims that they
    /// came for.
    pub(super) homing: BTreeMap<u32, Stamp>,
    /// Who seeks.
    pub(super) seeking: Seeking,
    /// The site that has the pool's switchboard.
    pub(super) desk: SiteId,
    /// The switchboard, if it is at this site.
    pub(super) board: Option<Board>,
}

/// Units that came for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Came {
    /// The claim.
    pub claim: Stamp,
    /// The site that gave them.
    pub from: SiteId,
    /// How many.
    pub units: u32,
}

impl Pool {
    /// A pool of which nothing is here.
    pub(super) const fn new(id: PoolId, units: u32, desk: SiteId) -> Self {
        Self {
            id,
            capacity: units,
            end: units,
            out: BTreeSet::new(),
            owned: BTreeSet::new(),
            idle: VecDeque::new(),
            queue: Queue::new(),
            wants: BTreeMap::new(),
            wanted: 0,
            needs: BTreeMap::new(),
            needed: 0,
            due: BTreeMap::new(),
            got: BTreeMap::new(),
            news: BTreeMap::new(),
            homing: BTreeMap::new(),
            seeking: Seeking::new(),
            desk,
            board: None,
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

    /// An own claim waits from now on.
    pub(super) fn enter(&mut self, claim: Stamp, units: u32) {
        self.queue.add(claim, units);
        self.needs.entry(units).or_default().insert(claim);
        self.needed += u64::from(units);
    }

    /// Owns a unit from now on, idle.
    pub(super) fn own(&mut self, unit: u32) {
        self.owned.insert(unit);
        self.idle.push_back(unit);
        self.queue.grow(1);
    }

    /// How many units it owns.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.owned.len()).expect("a pool has fewer than 2^32 units")
    }

    /// Units that this site owns or is owed for claims up to this one.
    pub(super) fn covered(&self, claim: Stamp) -> u64 {
        u64::from(self.count()) + self.due_up_to(claim)
    }

    /// Units that this site is owed for claims up to this one.
    pub(super) fn due_up_to(&self, claim: Stamp) -> u64 {
        self.due.range(..=claim).map(|(_, &units)| u64::from(units)).sum()
    }

    /// Idle units that nobody here needs.
    pub(super) fn spare(&self) -> u32 {
        u32::try_from(self.queue.spare()).unwrap_or(u32::MAX)
    }

    /// Takes what came for a claim out of its account.
    pub(super) fn settle_due(&mut self, claim: Stamp, count: u32) {
        let due = self.due.get_mut(&claim).expect("checked: no more comes than is due");
        *due -= count;
        if *due == 0 {
            self.due.remove(&claim);
        }
    }

    /// Whether a claim gets all its units by what it asked for, without any other unit here.
    pub(super) fn is_provided(&self, claim: Stamp, units: u32) -> bool {
        let of = |list: &BTreeMap<Stamp, u32>| list.get(&claim).copied().unwrap_or_default();
        of(&self.got) + of(&self.due) >= units
    }

    /// Keeps no more units for claims than there are: the oldest keep theirs.
    pub(super) fn cut_got(&mut self) {
        let all: u64 = self.got.values().map(|&got| u64::from(got)).sum();
        let mut over = all.saturating_sub(self.queue.idle());
        while over > 0
            && let Some(mut last) = self.got.last_entry()
        {
            let cut = over.min(u64::from(*last.get()));
            over -= cut;
            *last.get_mut() -= u32::try_from(cut).expect("no more than it has");
            if *last.get() == 0 {
                last.remove();
            }
        }
    }

    /// A claim waits no more.
    pub(super) fn forget_need(&mut self, claim: Stamp, units: u32) {
        self.got.remove(&claim);
        let claims = self.needs.get_mut(&units).expect("a waiting claim is noted");
        claims.remove(&claim);
        self.needed -= u64::from(units);
        if claims.is_empty() {
            self.needs.remove(&units);
        }
    }

    /// Takes wants of another site away.
    pub(super) fn drop_wants(&mut self, claim: Stamp, count: u32) {
        let wants = self.wants.get_mut(&claim).expect("only wants that are here are taken");
        *wants -= count;
        self.wanted -= u64::from(count);
        if *wants == 0 {
            self.wants.remove(&claim);
        }
    }
}
