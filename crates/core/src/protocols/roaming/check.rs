//! What a message must be for this site to take it.

use alloc::collections::BTreeSet;

use super::pool::Pool;
use super::{Home, Message, Part, Roaming, Rules};
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
        let mut seen = BTreeSet::new();
        for &unit in part.units.iter().chain(&part.home.units) {
            if !pool.has(unit) {
                return Err(PeerFault::Unexpected("a unit that does not exist or is out of use"));
            }
            if pool.owned.contains(&unit) || !seen.insert(unit) {
                return Err(PeerFault::Unexpected("a unit that is here"));
            }
        }
        let wants = part.wants.iter().map(|want| (want.claim, want.units));
        let asks = part.asks.iter().map(|ask| (ask.claim, ask.units));
        let most = part.asks.iter().map(|ask| (ask.claim, ask.most));
        let seeks = part.seeks.iter().map(|seek| (seek.claim, seek.lack));
        for (claim, units) in wants.chain(asks).chain(most).chain(seeks) {
            self.check_site(claim.site)?;
            if units == 0 || units > pool.reach {
                return Err(PeerFault::TooManyUnits(claim));
            }
        }
        self.check_decisions(from, pool, part)?;
        check_news(from, pool.board.is_some(), part)
    }

    /// What only the switchboard says.
    fn check_decisions(&self, from: SiteId, pool: &Pool, part: &Part) -> Result<(), PeerFault> {
        if part.wants.is_empty() && part.watch == 0 {
            return Ok(());
        }
        if from != pool.desk {
            return Err(PeerFault::Unexpected("decisions that are not the switchboard's"));
        }
        let mut wanted = part.wants.iter().map(|want| want.claim);
        if let Some(claim) = wanted.find(|claim| claim.site == self.me) {
            return Err(PeerFault::ForeignClaim(claim));
        }
        if part.wants.iter().any(|want| want.heard > pool.line.asked()) && R::KEEPS_THE_PLAN {
            return Err(PeerFault::Unexpected("asks that nobody made"));
        }
        Ok(())
    }

    fn check_site(&self, site: SiteId) -> Result<(), PeerFault> {
        if site.0 < self.sites { Ok(()) } else { Err(PeerFault::UnknownSite(site)) }
    }
}

/// What only the switchboard hears.
fn check_news(from: SiteId, is_desk: bool, part: &Part) -> Result<(), PeerFault> {
    let asks = part.asks.iter().map(|ask| ask.claim);
    let own = asks.chain(part.seeks.map(|seek| seek.claim)).chain(part.sated);
    let own: BTreeSet<Stamp> = own.collect();
    if let Some(&claim) = own.iter().find(|claim| claim.site != from) {
        return Err(PeerFault::ForeignClaim(claim));
    }
    let silent = own.is_empty() && part.home == Home::default() && part.spare == 0;
    if !(is_desk || silent) {
        return Err(PeerFault::Unexpected("news for the switchboard"));
    }
    Ok(())
}
