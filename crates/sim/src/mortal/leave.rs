//! Members that leave by themselves: their clients go on at other sites, each in its place.

use std::collections::BTreeMap;
use std::sync::Arc;

use kofm_core::epoch::{LeaseKey, Phase, Record, Rules};
use kofm_core::{Cluster, Input, Protocol, SiteId, Stamp};

use super::{Action, Client, MemberInput, Seat, World};
use crate::world::Violation;

/// The lease of a claim whose client did not come along.
const fn no_owner(site: SiteId) -> LeaseKey {
    LeaseKey { giver: site, fence: 0 }
}

/// Whether the claim has come from a site that left, without its client.
pub(super) const fn is_unowned(lease: &LeaseKey) -> bool {
    lease.fence == 0
}

/// The new names of the claims that change theirs with a record.
fn names(record: &Record<Cluster>) -> BTreeMap<Stamp, Stamp> {
    let renamed = record.surveys.iter().flat_map(|survey| &survey.renamed);
    let moved = record.moves.iter().flat_map(|moved| &moved.claims);
    renamed.map(|(&old, &new)| (old, new)).chain(moved.map(|it| (it.1, it.2))).collect()
}

impl<P: Protocol, R: Rules> World<P, R> {
    pub(super) fn enabled_to_leave(
        &self,
        site: SiteId,
        seat: &Seat<P, R>,
        list: &mut Vec<Action<P::Timer>>,
    ) {
        let Some(member) = &seat.member else { return };
        let epochs = member.epochs();
        let may = self.common.budget.leaves > 0 && epochs.phase() != Phase::Outside;
        if may && !epochs.leaves() {
            list.push(Action::Leave(site));
        }
        if member.may_grant() {
            let unowned = seat.orphans.iter().filter(|it| is_unowned(it.1));
            list.extend(unowned.map(|(&claim, _)| Action::Expire(site, claim)));
        }
    }

    /// Ends a claim whose client did not come along.
    pub(super) fn end_unowned(&mut self, site: SiteId, claim: Stamp) -> Result<(), Violation> {
        let member = self.seats[site.index()].member.as_ref();
        let standing = member.and_then(|member| member.claims().get(&claim));
        let held = standing.is_some_and(|standing| standing.held.is_some());
        let input =
            if held { Input::Release { claim, part: None } } else { Input::Withdraw { claim } };
        self.step(site, MemberInput::Local(input))
    }

    /// Judges a record as it is decided: those who wait keep their order, and nothing is withheld
    /// for the sake of a site that left.
    pub(super) fn judge_leaving(&self, record: &Record<Cluster>) -> Result<(), Violation> {
        let quarantined = |site: SiteId| {
            record.quarantine.contains_key(&record.epoch)
                && record.quarantine[&record.epoch].sites.contains_key(&site)
        };
        if let Some(moved) = record.moves.iter().find(|it| quarantined(it.from)) {
            let detail = format!("{} left, and what it had is withheld", moved.from);
            return Err(Violation::new("leave", detail));
        }
        let old: BTreeMap<Stamp, Stamp> =
            names(record).into_iter().map(|it| (it.1, it.0)).collect();
        let waits = record.surveys.iter().flat_map(|survey| &survey.claims);
        let waits = waits.filter(|(_, standing)| standing.held.is_none());
        let origin = |claim: &Stamp| {
            let old = old.get(claim).unwrap_or(claim);
            self.seats[old.site.index()].clients.get(old).map(|client| client.origin)
        };
        let places: Vec<Stamp> = waits.filter_map(|(claim, _)| origin(claim)).collect();
        if !places.is_sorted() {
            let detail = format!("those who wait are to be served as {places:?}");
            return Err(Violation::new("places", detail));
        }
        Ok(())
    }

    /// A member has installed a record: its claims have new names, and clients of sites that left
    /// come to it.
    pub(super) fn take_moved(&mut self, site: SiteId) {
        let Some(member) = self.member(site) else { return };
        let record = Arc::clone(member.epochs().record());
        if record.moves.is_empty() && record.surveys.iter().all(|it| it.renamed.is_empty()) {
            return;
        }
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        for (old, new) in names(&record).into_iter().filter(|it| it.0.site == site) {
            if let Some(client) = seat.clients.remove(&old) {
                seat.clients.insert(new, client);
            }
            if let Some(lease) = seat.orphans.remove(&old) {
                seat.orphans.insert(new, lease);
            }
        }
        for moved in record.moves.iter().filter(|it| it.home == site) {
            for &(_, old, new) in &moved.claims {
                let client = self.find_moved(moved.from, old, new);
                let seat = Arc::make_mut(&mut self.seats[site.index()]);
                let mut surveys = record.surveys.iter();
                let Some(standing) = surveys.find_map(|it| it.claims.get(&new)) else { continue };
                match client.filter(|it| it.held.is_some() == standing.held.is_some()) {
                    Some(client) => drop(seat.clients.insert(new, client)),
                    None => drop(seat.orphans.insert(new, no_owner(moved.from))),
                }
            }
        }
    }

    /// The client of a claim that has moved, wherever it is.
    fn find_moved(&mut self, from: SiteId, old: Stamp, new: Stamp) -> Option<Client> {
        let seat = Arc::make_mut(&mut self.seats[from.index()]);
        if let Some(client) = seat.clients.remove(&old) {
            return Some(client);
        }
        let common = Arc::make_mut(&mut self.common);
        if let Some(client) = common.strays.remove(&new) {
            return Some(client);
        }
        let ghost = common.ghosts.iter_mut().find(|ghost| {
            ghost.site == from && ghost.held.iter().any(|(claim, _)| *claim == old)
        })?;
        let place = ghost.held.iter().position(|(claim, _)| *claim == old)?;
        let (_, client) = ghost.held.remove(place);
        common.ghosts.retain(|ghost| !ghost.held.is_empty());
        Some(client)
    }

    /// A site learns that it has left: its clients look for their new sites. Whether it has.
    pub(super) fn let_go(&mut self, site: SiteId) -> Result<bool, Violation> {
        let Some(member) = self.member(site) else { return Ok(false) };
        let record = Arc::clone(member.epochs().record());
        let departed = record.quarantine.get(&record.epoch);
        let departed = departed.is_some_and(|it| it.sites.contains_key(&site));
        let left = member.epochs().left() && !departed;
        if !left {
            return Ok(false);
        }
        let names = names(&record);
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        let clients = std::mem::take(&mut seat.clients);
        let common = Arc::make_mut(&mut self.common);
        for (claim, client) in clients {
            if let Some(&name) = names.get(&claim) {
                common.strays.insert(name, client);
            } else if !seat.lapsed && !record.moves.is_empty() {
                return Err(Violation::new("claims", format!("{claim} was lost")));
            }
        }
        Ok(true)
    }

    /// A site dies, or is left out, before clients that were to come to it have.
    pub(super) fn lose_strays(&mut self, site: SiteId) -> Vec<(Stamp, Client)> {
        let common = Arc::make_mut(&mut self.common);
        let lost = common.strays.extract_if(.., |name, _| name.site == site);
        lost.filter(|(_, client)| client.held.is_some()).collect()
    }
}
