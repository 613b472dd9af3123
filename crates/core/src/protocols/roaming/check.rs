//! What a message must be for this site to take it.

use alloc::collections::BTreeMap;

use super::{Message, Part, Roaming, Rules};
use crate::protocol::PeerFault;
use crate::types::{Clock, SiteId, Stamp};

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
        if !part.units.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(PeerFault::Unexpected("units out of order"));
        }
        for &(unit, hops) in part.units.iter().chain(&part.here) {
            if unit >= pool.capacity || hops >= Clock::LIMIT {
                return Err(PeerFault::Unexpected("a unit that does not exist"));
            }
        }
        if part.units.iter().any(|(unit, _)| pool.owned.contains_key(unit)) {
            return Err(PeerFault::Unexpected("a unit that is here"));
        }
        // What comes home for each own claim, all in all.
        let mut home: BTreeMap<Stamp, u64> = BTreeMap::new();
        let mut served = 0;
        for list in [&part.served, &part.wants] {
            if !list.is_sorted_by(|a, b| a.0 < b.0) {
                return Err(PeerFault::Unexpected("claims out of order"));
            }
        }
        for &(claim, count) in &part.served {
            if claim.site != self.me {
                return Err(PeerFault::ForeignClaim(claim));
            }
            served += u64::from(count);
            *home.entry(claim).or_default() += u64::from(count);
        }
        let units = part.units.len() as u64;
        if served > units || served < units && pool.desk != self.me {
            return Err(PeerFault::Unexpected("units that nobody wanted"));
        }
        for &(claim, count) in &part.wants {
            self.check_site(claim.site)?;
            if u64::from(count) > units || count == 0 {
                return Err(PeerFault::TooManyUnits(claim));
            }
            if claim.site == self.me {
                *home.entry(claim).or_default() += u64::from(count);
            }
        }
        for ask in &part.asks {
            self.check_site(ask.claim.site)?;
            if ask.count == 0 || ask.count > pool.capacity {
                return Err(PeerFault::TooManyUnits(ask.claim));
            }
            if ask.follow.is_none() && (ask.claim.site != from || pool.desk != self.me) {
                return Err(PeerFault::ForeignClaim(ask.claim));
            }
            if let Some((unit, trail)) = ask.follow {
                self.check_site(trail.site)?;
                if unit >= pool.capacity || trail.hops >= Clock::LIMIT {
                    return Err(PeerFault::Unexpected("a unit that does not exist"));
                }
            }
            if ask.claim.site == self.me {
                *home.entry(ask.claim).or_default() += u64::from(ask.count);
            }
        }
        for (claim, count) in home {
            if count == 0 || count > pool.due.get(&claim).map_or(0, |&due| u64::from(due)) {
                return Err(PeerFault::TooManyUnits(claim));
            }
        }
        Ok(())
    }

    fn check_site(&self, site: SiteId) -> Result<(), PeerFault> {
        if site.0 < self.sites { Ok(()) } else { Err(PeerFault::UnknownSite(site)) }
    }
}
