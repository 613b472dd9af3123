//! One claim as its site sees it: whom it asked, and who has granted.

use alloc::vec;
use alloc::vec::Vec;

use super::rules::{Rules, Slip};
use crate::quorums::RequestSet;
use crate::types::{Demand, PoolId, SiteId, Stamp};

/// A live claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ballot {
    /// What it asks for, or still holds.
    pub(super) demand: Demand,
    /// The votes in each of its pools, in their order; none once the claim is held, because then
    /// nothing that an arbiter says matters any more.
    votes: Vec<Votes>,
}

/// What the arbiters of one pool have said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Votes {
    pool: PoolId,
    /// How many grants stand, and how many are enough.
    granted: usize,
    enough: usize,
    /// One for each arbiter, in the order of the request set.
    seats: Vec<Seat>,
    /// For arbiters that took a grant back, the claim that they wanted it for.
    instead: Vec<(SiteId, Stamp)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Seat {
    /// How often this arbiter has granted.
    attempts: u32,
    /// Whether the last of these stands.
    granted: bool,
}

impl Ballot {
    /// A claim that nobody has granted yet.
    pub(super) fn new(demand: Demand, sets: &[RequestSet]) -> Self {
        let votes = demand.pools().map(|pool| {
            let set = &sets[pool.index()];
            Votes {
                pool,
                granted: 0,
                enough: set.grants,
                seats: vec![Seat::default(); set.arbiters.len()],
                instead: Vec::new(),
            }
        });
        let votes = votes.collect();
        Self { demand, votes }
    }

    /// It was held before.
    pub(super) fn hold(&mut self) {
        self.votes.clear();
    }

    pub(super) const fn is_held(&self) -> bool {
        self.votes.is_empty()
    }

    /// Whether the arbiter at `seat` can grant this attempt now. Links keep order, so attempts
    /// come one after the other.
    pub(super) fn may_grant(&self, pool: PoolId, seat: usize, attempt: u32) -> bool {
        let seat = self.seat(pool, seat);
        seat.is_none_or(|seat| !seat.granted && seat.attempts.checked_add(1) == Some(attempt))
    }

    /// Whether the arbiter at `seat` can ask for this attempt back now.
    pub(super) fn may_recall(&self, pool: PoolId, seat: usize, attempt: u32) -> bool {
        self.seat(pool, seat).is_none_or(|seat| seat.granted && seat.attempts == attempt)
    }

    /// The seat of a claim that waits.
    fn seat(&self, pool: PoolId, seat: usize) -> Option<Seat> {
        self.votes.iter().find(|votes| votes.pool == pool).map(|votes| votes.seats[seat])
    }

    /// Counts a grant; true where with it the claim is held.
    pub(super) fn grant<R: Rules>(&mut self, pool: PoolId, seat: usize, arbiter: SiteId) -> bool {
        let Some(votes) = self.votes.iter_mut().find(|votes| votes.pool == pool) else {
            return false;
        };
        votes.seats[seat].attempts += 1;
        votes.seats[seat].granted = true;
        votes.granted += 1;
        votes.instead.retain(|entry| entry.0 != arbiter);
        let short = usize::from(R::SLIP == Some(Slip::OneGrantShort));
        let mut enough = self.votes.iter().map(|votes| votes.granted + short >= votes.enough);
        let held = if R::SLIP == Some(Slip::OnePoolSuffices) {
            enough.any(|enough| enough)
        } else {
            enough.all(|enough| enough)
        };
        if held {
            self.votes.clear();
        }
        held
    }

    /// Gives a grant back for an older claim; false where the claim is held and keeps it.
    pub(super) fn give_back<R: Rules>(
        &mut self,
        pool: PoolId,
        seat: usize,
        arbiter: SiteId,
        older: Stamp,
    ) -> bool {
        let Some(votes) = self.votes.iter_mut().find(|votes| votes.pool == pool) else {
            return R::SLIP == Some(Slip::HolderYields);
        };
        votes.seats[seat].granted = false;
        votes.instead.push((arbiter, older));
        // As if it had not heard: the count is what decides.
        if R::SLIP != Some(Slip::CountsYielded) {
            votes.granted -= 1;
        }
        true
    }

    /// The arbiters that it waits for, by pool and seat, each with the claim that it took the grant
    /// back for, if it did.
    pub(super) fn missing<'a>(
        &'a self,
        sets: &'a [RequestSet],
    ) -> impl Iterator<Item = (PoolId, SiteId, Option<Stamp>)> + 'a {
        let short = self.votes.iter().filter(|votes| votes.granted < votes.enough);
        short.flat_map(|votes| {
            let arbiters = sets[votes.pool.index()].arbiters.iter().zip(&votes.seats);
            let silent = arbiters.filter(|(_, seat)| !seat.granted);
            silent.map(|(&arbiter, _)| {
                let instead = votes.instead.iter().find(|entry| entry.0 == arbiter);
                (votes.pool, arbiter, instead.map(|entry| entry.1))
            })
        })
    }

    /// Asserts its invariants.
    pub(super) fn audit(&self) {
        for votes in &self.votes {
            let granted = votes.seats.iter().filter(|seat| seat.granted).count();
            assert_eq!(granted, votes.granted, "the sum is kept");
        }
        let enough = self.votes.iter().all(|votes| votes.granted >= votes.enough);
        assert!(self.is_held() || !enough, "what has enough grants is held");
    }
}
