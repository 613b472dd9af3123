//! Leases that outlive the life that granted them: presented, adopted, told, ended.
//!
//! A paper may arrive at any site at any time, also after its lease has ended, as a message that
//! was late. A holder that is told in time goes on at its new site.

use std::sync::Arc;

use kofm_core::epoch::{self, LeaseKey, Paper, PaperPart, Phase, Rules, Slip};
use kofm_core::{Protocol, SiteId, Stamp};

use super::{Action, Client, World};
use crate::world::Violation;

/// The papers of all grants so far, each with the life that gave it, by their fences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Deck(pub(super) Vec<(Paper, u64)>);

impl<P: Protocol, R: Rules> World<P, R> {
    /// The clients that use what they hold, with those of dead lives.
    pub(super) fn in_use(&self) -> impl Iterator<Item = &Client> {
        let seats = self.seats.iter().filter(|seat| !seat.lapsed);
        let held = self.common.ghosts.iter().flat_map(|ghost| &ghost.held).map(|it| &it.1);
        let strays = self.common.strays.values();
        seats.flat_map(|seat| seat.clients.values()).chain(held).chain(strays)
    }

    pub(super) fn is_in_use(&self, lease: LeaseKey) -> bool {
        self.in_use().any(|client| client.held.is_some() && client.lease == Some(lease))
    }

    pub(super) fn enabled_papers(&self, list: &mut Vec<Action<P::Timer>>) {
        let Some(Deck(papers)) = &self.common.deck else { return };
        for site in self.sites() {
            let seat = &self.seats[site.index()];
            let Some(member) = &seat.member else { continue };
            let epochs = member.epochs();
            if self.common.budget.papers > 0 && epochs.phase() != Phase::Outside {
                let fresh = papers.iter().enumerate().filter(|(_, (paper, life))| {
                    let own = paper.lease.giver == site && *life == seat.incarnation;
                    !own && !epochs.papers().contains(paper)
                });
                list.extend(fresh.map(|(number, _)| Action::Present(number, site)));
            }
            for (&claim, &lease) in &seat.orphans {
                let told = self.seats[site.index()].clients.values();
                let told = told.into_iter().any(|client| client.lease == Some(lease));
                let late = self.common.rules.slips(Slip::TakesLateAnswer);
                let adopted = member.claims().get(&claim).and_then(|it| it.adopted);
                let elsewhere = adopted.is_some_and(|it| it.since > 0);
                if elsewhere && !told && !seat.lapsed && (late || self.is_in_use(lease)) {
                    list.push(Action::Tell(site, claim));
                }
                if member.may_grant() && self.may_expire(site, claim, lease) {
                    list.push(Action::Expire(site, claim));
                }
            }
        }
    }

    /// Whether a site may end a claim without a client, so that its units are free.
    fn may_expire(&self, site: SiteId, claim: Stamp, lease: LeaseKey) -> bool {
        let rules = self.common.rules;
        let seat = &self.seats[site.index()];
        let Some(member) = &seat.member else { return false };
        let record = member.epochs().record();
        // A person frees units that no client uses.
        if self.common.promises.is_some() && self.is_in_use(lease) {
            return false;
        }
        let adopted = member.claims().get(&claim).and_then(|it| it.adopted);
        if let Some(adopted) = adopted.filter(|it| it.since > 0) {
            let withheld = record.quarantine.contains_key(&adopted.since);
            return !withheld || rules.slips(Slip::FreesAdopted);
        }
        // Its holder has gone to another site, or has said that it is done. A renewal in the store
        // after the end of the lease says that no other site had adopted it by then.
        let beats = self.is_in_store(site, seat.incarnation)
            && self.common.store.epoch == record.epoch
            || rules.slips(Slip::ReusesBeforeBeat);
        beats || !self.is_in_use(lease)
    }

    /// A grant gets a fence, and with it a paper.
    pub(super) fn number(&mut self, site: SiteId, claim: Stamp) {
        let common = Arc::make_mut(&mut self.common);
        let Some(Deck(papers)) = &mut common.deck else { return };
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        let Some(client) = seat.clients.get_mut(&claim) else { return };
        let lease = LeaseKey { giver: site, fence: papers.len() as u64 + 1 };
        client.lease = Some(lease);
        let units = client.held.clone().unwrap_or_default();
        let parts = Vec::from([PaperPart { book: 0, claim, units }]);
        papers.push((Paper { lease, parts }, seat.incarnation));
    }

    pub(super) fn present(&mut self, number: usize, site: SiteId) -> Result<(), Violation> {
        let common = Arc::make_mut(&mut self.common);
        common.budget.papers -= 1;
        let Some(Deck(papers)) = &common.deck else { return Ok(()) };
        let paper = papers[number].0.clone();
        self.change(site, epoch::Input::Present(paper))
    }

    /// A holder goes on at another site; the old one has its claim without it.
    pub(super) fn tell_holder(&mut self, site: SiteId, claim: Stamp) {
        let seat = Arc::make_mut(&mut self.seats[site.index()]);
        let Some(lease) = seat.orphans.remove(&claim) else { return };
        let standing = seat.member.as_ref().and_then(|member| member.claims().get(&claim));
        let Some(standing) = standing else { return };
        let (demand, held) = (standing.demand.clone(), standing.held.clone());
        seat.clients.insert(claim, Client { demand, held, lease: Some(lease), origin: claim });
        for other in self.sites().filter(|&other| other != site) {
            let seat = &self.seats[other.index()];
            let has = |it: &(&Stamp, &Client)| it.1.lease == Some(lease);
            let Some(claim) = seat.clients.iter().find(has).map(|it| *it.0) else { continue };
            let seat = Arc::make_mut(&mut self.seats[other.index()]);
            seat.clients.remove(&claim);
            seat.orphans.insert(claim, lease);
        }
        let common = Arc::make_mut(&mut self.common);
        for ghost in &mut common.ghosts {
            ghost.held.retain(|(_, client)| client.lease != Some(lease));
        }
        common.ghosts.retain(|ghost| !ghost.held.is_empty());
    }

    /// Whether the site keeps the units of a lease that its client has released.
    pub(super) fn keeps_released(&mut self, site: SiteId, claim: Stamp) -> bool {
        let seat = &self.seats[site.index()];
        let Some(member) = &seat.member else { return false };
        let lease = seat.clients.get(&claim).and_then(|client| client.lease);
        let adopted = member.claims().get(&claim).and_then(|it| it.adopted);
        let adopted = adopted.filter(|it| it.since > 0);
        let withheld = |since: u64| member.epochs().record().quarantine.contains_key(&since);
        let frees = self.common.rules.slips(Slip::FreesAdopted);
        let keeps = adopted.is_some_and(|it| withheld(it.since)) && !frees;
        if let Some(lease) = lease.filter(|_| keeps) {
            let seat = Arc::make_mut(&mut self.seats[site.index()]);
            seat.clients.remove(&claim);
            seat.orphans.insert(claim, lease);
        }
        keeps
    }

    /// No holder that is in time is told that its lease is over.
    pub(super) fn judge_refusals(
        &self,
        site: SiteId,
        presented: &[Paper],
    ) -> Result<(), Violation> {
        let (Some(member), Some(Deck(papers))) =
            (&self.seats[site.index()].member, &self.common.deck)
        else {
            return Ok(());
        };
        let record = member.epochs().record();
        for paper in presented {
            let life = papers.iter().find(|it| it.0 == *paper).map(|it| it.1);
            let lives = record.members.get(&paper.lease.giver) == life.as_ref();
            let open = lives || record.may_adopt(paper) || record.home_of(paper.lease).is_some();
            if !open && self.is_in_use(paper.lease) {
                let detail = format!("{site} refuses {:?}, which is in use", paper.lease);
                return Err(Violation::new("survival", detail));
            }
        }
        Ok(())
    }
}
