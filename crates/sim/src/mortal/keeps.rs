//! Pools whose leases only a person ends: a client hears of its grant when there are copies of it,
//! and from then on no other client is granted its units until it or a person has released them.

use std::collections::BTreeMap;
use std::sync::Arc;

use kofm_core::epoch::{LeaseKey, Paper, PaperPart, Rules};
use kofm_core::{Protocol, SiteId, Stamp, Unit};

use super::World;
use super::papers::Deck;
use crate::world::Violation;

/// The promises that clients have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Promises {
    /// Grants so far.
    fences: u64,
    /// The units of each lease of which a client has heard, until they are released.
    units: BTreeMap<LeaseKey, Vec<Unit>>,
}

impl<P: Protocol, R: Rules> World<P, R> {
    /// A grant of which copies are made first.
    pub(super) fn hold_back(&mut self, site: SiteId, claim: Stamp) -> Result<(), Violation> {
        let common = Arc::make_mut(&mut self.common);
        let Some(promises) = &mut common.promises else { return Ok(()) };
        promises.fences += 1;
        let lease = LeaseKey { giver: site, fence: promises.fences };
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        seat.pending.insert(claim, lease);
        self.run(site, |member, out| {
            member.keep(claim, lease, out);
            Ok(())
        })
    }

    /// An epoch has begun: leases that are not kept are copied again.
    pub(super) fn keep_again(&mut self, site: SiteId) -> Result<(), Violation> {
        let pending = self.seats[site.index()].pending.clone();
        for (claim, lease) in pending {
            let member = self.member(site);
            if member.is_some_and(|member| member.epochs().is_kept(lease)) {
                self.tell_kept(site, lease)?;
            } else {
                self.run(site, |member, out| {
                    member.keep(claim, lease, out);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// The client of a lease that is kept hears of it.
    pub(super) fn tell_kept(&mut self, site: SiteId, lease: LeaseKey) -> Result<(), Violation> {
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        let Some(member) = seat.member.as_ref().filter(|it| it.may_grant()) else { return Ok(()) };
        let Some(claim) = seat.pending.iter().find(|it| *it.1 == lease).map(|it| *it.0) else {
            return Ok(());
        };
        let units = member.claims().get(&claim).and_then(|standing| standing.held.clone());
        let (Some(units), Some(client)) = (units, seat.clients.get_mut(&claim)) else {
            return Ok(());
        };
        seat.pending.remove(&claim);
        (client.held, client.lease) = (Some(units.clone()), Some(lease));
        let life = seat.incarnation;
        let common = Arc::make_mut(&mut self.common);
        if let Some(Deck(papers)) = &mut common.deck {
            let parts = Vec::from([PaperPart { book: 0, claim, units: units.clone() }]);
            papers.push((Paper { lease, parts }, life));
        }
        let Some(promises) = &mut common.promises else { return Ok(()) };
        let taken = |it: &(&LeaseKey, &Vec<Unit>)| it.1.iter().any(|unit| units.contains(unit));
        if let Some((other, _)) = promises.units.iter().find(taken) {
            let detail = format!("{lease:?} was granted, and {other:?} was not released");
            return Err(Violation::new("hold", detail));
        }
        promises.units.insert(lease, units);
        Ok(())
    }

    /// A person has released a lease of which no site knows more than its units, and answers for
    /// them.
    pub(super) fn release_unknown(&mut self, site: SiteId, claim: Stamp) {
        let standing = self.member(site).and_then(|member| member.claims().get(&claim));
        let unknown =
            standing.and_then(|it| it.kept.as_ref()).is_some_and(|it| it.facts.is_empty());
        let units = standing.filter(|_| unknown).and_then(|it| it.held.clone()).unwrap_or_default();
        if let Some(promises) = &mut Arc::make_mut(&mut self.common).promises {
            promises.units.retain(|_, promised| promised.iter().all(|it| !units.contains(it)));
        }
    }

    /// The client of a lease, or a person, has released it.
    pub(super) fn release_promise(&mut self, lease: Option<LeaseKey>) {
        let Some(lease) = lease else { return };
        if let Some(promises) = &mut Arc::make_mut(&mut self.common).promises {
            promises.units.remove(&lease);
        }
    }
}
