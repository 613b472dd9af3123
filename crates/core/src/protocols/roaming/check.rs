//! What a message must be for this site to take it.

use alloc::collections::BTreeMap;

use super::board::Board;
use super::{Message, Part, Roaming, Rules};
use crate::protocol::PeerFault;
use crate::types::{SiteId, Stamp};

impl<R: Rules> Roaming<R> {
    /// Refuses what no correct site says, before anything is changed.
    pub(super) fn check(&self, from: SiteId, message: &Message) -> Result<(), PeerFault> {
        self.check_site(from)?;
        if from == self.me {
            return Err(PeerFault::UnknownSite(from));
        }
        if !message.parts.is_sorted_by(|a, b| a.pool < b.pool) {
            return Err(PeerFault::Unexpected("pools out of order"));
        }
        message.parts.iter().try_for_each(|part| self.check_part(from, part))
    }

    fn check_part(&self, from: SiteId, part: &Part) -> Result<(), PeerFault> {
        let pool = self.pools.get(part.pool.index());
        let pool = pool.ok_or(PeerFault::UnknownPool(part.pool))?;
        if !part.units.is_sorted_by(|a, b| a < b) {
            return Err(PeerFault::Unexpected("units out of order"));
        }
        for unit in &part.units {
            if !pool.has(*unit) {
                return Err(PeerFault::Unexpected("a unit that does not exist or is out of use"));
            }
            if pool.owned.contains(unit) {
                return Err(PeerFault::Unexpected("a unit that is here"));
            }
        }
        let lists = [&part.served, &part.wants, &part.ended, &part.asks, &part.bounced];
        let search = &part.search;
        let lists = lists.into_iter().chain([&part.home, &part.idle]);
        let lists = lists.chain([&search.found, &search.seekers]);
        for list in lists {
            if !list.is_sorted_by(|a, b| a.0 < b.0) {
                return Err(PeerFault::Unexpected("claims out of order"));
            }
            for &(claim, count) in list {
                self.check_site(claim.site)?;
                if count == 0 || count > pool.capacity {
                    return Err(PeerFault::TooManyUnits(claim));
                }
            }
        }
        let mut over: BTreeMap<Stamp, u64> = BTreeMap::new();
        for &(claim, count) in part.served.iter().chain(&part.ended) {
            if claim.site != self.me {
                return Err(PeerFault::ForeignClaim(claim));
            }
            *over.entry(claim).or_default() += u64::from(count);
        }
        for (claim, count) in over {
            if count > pool.due.get(&claim).map_or(0, |&due| u64::from(due)) {
                return Err(PeerFault::TooManyUnits(claim));
            }
        }
        let sum = |list: &[(Stamp, u32)]| list.iter().map(|&(_, n)| u64::from(n)).sum::<u64>();
        let units = sum(&part.served) + sum(&part.home) + sum(&search.found);
        if units != part.units.len() as u64 {
            return Err(PeerFault::Unexpected("units that nobody wanted"));
        }
        if let Some(&(claim, _)) = search.found.iter().find(|found| found.0.site != self.me) {
            return Err(PeerFault::ForeignClaim(claim));
        }
        let others = part.wants.iter().chain(&search.seekers).map(|entry| entry.0);
        if let Some(claim) = others.chain(search.forget.iter().copied()).find(|c| c.site == self.me)
        {
            return Err(PeerFault::ForeignClaim(claim));
        }
        search.forget.iter().try_for_each(|claim| self.check_site(claim.site))?;
        search.strayed.iter().try_for_each(|&(site, _)| self.check_site(site))?;
        let sent = part.wants.is_empty() && part.ended.is_empty();
        let told = search.seekers.is_empty() && search.forget.is_empty();
        if !(sent && told) && from != pool.desk {
            return Err(PeerFault::Unexpected("claims that the switchboard did not send"));
        }
        match &pool.board {
            Some(board) => check_news(board, pool.capacity, from, part),
            None if part.is_news() => Err(PeerFault::Unexpected("news for the switchboard")),
            None => Ok(()),
        }
    }

    fn check_site(&self, site: SiteId) -> Result<(), PeerFault> {
        if site.0 < self.sites { Ok(()) } else { Err(PeerFault::UnknownSite(site)) }
    }
}

/// What is told to the switchboard must fit what it knows.
fn check_news(board: &Board, capacity: u32, from: SiteId, part: &Part) -> Result<(), PeerFault> {
    let own = part.asks.iter().chain(&part.home).chain(&part.idle).map(|entry| entry.0);
    let came = part.came.iter().map(|came| came.claim);
    let search = part.search.seeks.map(|seeks| seeks.0).into_iter().chain(part.search.sated);
    if let Some(claim) = own.chain(came).chain(search).find(|claim| claim.site != from) {
        return Err(PeerFault::ForeignClaim(claim));
    }
    if !part.came.is_sorted_by(|a, b| a < b) {
        return Err(PeerFault::Unexpected("claims out of order"));
    }
    for came in &part.came {
        if came.units == 0 || !board.has_sent(came.claim, came.from, came.units.into()) {
            return Err(PeerFault::TooManyUnits(came.claim));
        }
    }
    let many = |count: u32| count == 0 || count > capacity;
    if let Some((claim, _)) = part.search.seeks.filter(|seeks| many(seeks.1)) {
        return Err(PeerFault::TooManyUnits(claim));
    }
    if part.search.strayed.iter().any(|&(site, count)| site == from || many(count)) {
        return Err(PeerFault::Unexpected("units that came from nowhere"));
    }
    for &(claim, count) in &part.bounced {
        if !board.has_sent(claim, from, count.into()) {
            return Err(PeerFault::TooManyUnits(claim));
        }
    }
    Ok(())
}
