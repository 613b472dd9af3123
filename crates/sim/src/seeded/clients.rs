//! What clients do: think, claim, hold, release, or give up.

use kofm_core::{Demand, Input, Protocol, Service, SiteId, Stamp};

use super::setup::{draw_demand, draw_one, draw_site, factor};
use super::{Event, Live, Observer, Sim};
use crate::groups::Cast;
use crate::span::Time;

impl<P: Protocol> Sim<'_, P> {
    /// All clients of the group that this one acts for, where claims name a group.
    pub(super) fn troupe(&self, client: u32) -> Option<std::ops::Range<u32>> {
        let cast = self.cast.as_ref().filter(|cast| !cast.clients().is_empty())?;
        // A client beyond the last has nobody to act for.
        if client as usize >= cast.clients().len() {
            return Some(0..0);
        }
        Some(cast.troupe(cast.first(client)))
    }

    pub(super) fn home(&self, client: u32) -> SiteId {
        let played = self.cast.as_ref().and_then(|cast| cast.clients().get(client as usize));
        if let Some(&(site, _)) = played {
            return site;
        }
        self.homes[client as usize]
    }

    /// Thinks, and then claims; a group as soon as its last client is free.
    pub(super) fn think(&mut self, client: u32) {
        let mut client = client;
        if let Some(mut troupe) = self.troupe(client) {
            client = troupe.start;
            if troupe.any(|member| self.clients[member as usize].is_some()) {
                return;
            }
        }
        let mut factor = factor(&self.setup.hot, self.home(client));
        if self.setup.wander {
            self.homes[client as usize] = draw_site(self.setup, &mut self.times);
            factor = 1.0;
        }
        let think = self.setup.think.scaled(1.0 / factor).draw(&mut self.times);
        self.schedule(self.now + think, Event::Claim { client });
    }

    /// A client claims; where claims name a group, all its clients do.
    pub(super) fn claim(&mut self, client: u32, observer: &mut dyn Observer<P>) {
        let Some(troupe) = self.troupe(client) else { return self.claim_one(client, observer) };
        if self.remaining >= u64::from(troupe.end - troupe.start) {
            troupe.for_each(|member| self.claim_one(member, observer));
        }
    }

    pub(super) fn claim_one(&mut self, client: u32, observer: &mut dyn Observer<P>) {
        let site = self.home(client);
        let alone = self.troupe(client).is_none();
        let may = |cast: &mut Cast| !alone || cast.may_claim(site);
        if self.remaining == 0 || !self.cast.as_mut().is_none_or(may) {
            return;
        }
        self.remaining -= 1;
        self.report.requests += 1;
        let demand = match &self.cast {
            Some(cast) => cast.demand(client, site),
            None if P::PROFILE.serves == Service::Semaphore => {
                draw_one(self.setup, &mut self.demands)
            }
            None => draw_demand(self.setup, &mut self.demands),
        };
        let (total, demand) = match &self.gangs {
            Some(gangs) => gangs.draw(site, &demand, &mut self.demands),
            None => (demand.clone(), demand),
        };
        let (protocol, clock) = &self.sites[site.index()];
        let claim = protocol.next_stamp(*clock);
        let number = self.oracle.claimed(claim, &total);
        if let Some(gangs) = &mut self.gangs {
            gangs.claimed(claim, number, &demand);
        }
        self.report.charges.push(0);
        let live = Live { claim, number, issued: self.now, held: false };
        self.clients[client as usize] = Some(live);
        self.busy += 1;
        if let Some(patience) = self.setup.patience {
            let patience = patience.draw(&mut self.times);
            self.schedule(self.now + patience, Event::GiveUp { client, claim });
        }
        self.step(site, Input::Claim { claim, demand }, observer);
    }

    pub(super) fn release(
        &mut self,
        client: u32,
        claim: Stamp,
        part: bool,
        observer: &mut dyn Observer<P>,
    ) {
        // It may have been taken back.
        let has = |live: &Live| live.claim == claim;
        let Some(live) = self.clients[client as usize].filter(has) else { return };
        let part = part.then(|| Demand::one(self.oracle.first_pool(live.number), 1));
        if self.gangs.is_some() {
            self.part_done(claim);
        } else {
            self.oracle.released(live.number, part.as_ref());
        }
        let site = self.home(client);
        if part.is_none() {
            self.leave(client);
        }
        self.step(site, Input::Release { claim, part }, observer);
    }

    pub(super) fn give_up(&mut self, client: u32, claim: Stamp, observer: &mut dyn Observer<P>) {
        let waits = |live: &Live| live.claim == claim && !live.held;
        let Some(live) = self.clients[client as usize].filter(waits) else { return };
        self.oracle.ended(live.number);
        if let Some(gangs) = &mut self.gangs {
            gangs.ended(claim);
        }
        self.report.withdrawn += 1;
        self.leave(client);
        self.step(self.home(client), Input::Withdraw { claim }, observer);
    }

    /// A client's claim is over; it thinks about the next one.
    pub(super) fn leave(&mut self, client: u32) {
        if let Some(live) = self.clients[client as usize].take() {
            self.busy -= 1;
            if let Some(upkeep) = &mut self.upkeep {
                upkeep.left(live.number);
            }
        }
        self.think(client);
    }

    /// A member of a gang starts; its leader must have.
    pub(super) fn part_begun(&mut self, site: SiteId, claim: Stamp) {
        let gangs = self.gangs.as_mut().expect("only gangs have members");
        if let Err(violation) = gangs.begun(claim, site) {
            self.oracle.violate(violation.property, violation.detail);
        }
        let factor = factor(&self.setup.long, site);
        let hold = self.setup.hold.scaled(factor).draw(&mut self.times);
        self.schedule(self.now + hold, Event::Part { site, claim });
    }

    /// A member of a gang has finished; everything is given back with the last.
    pub(super) fn part_done(&mut self, claim: Stamp) {
        let gangs = self.gangs.as_mut().expect("only gangs have members");
        if let Some(number) = gangs.done(claim) {
            self.oracle.released(number, None);
        }
    }

    pub(super) fn granted(&mut self, site: SiteId, claim: Stamp, number: u32) {
        if let Some(gangs) = &mut self.gangs {
            gangs.started(claim);
        }
        let Some(client) = self.client_of(site, claim) else { return };
        let live = self.clients[client as usize].as_mut().expect("it was found by its claim");
        live.held = true;
        self.report.waits.push(self.now - live.issued);
        self.report.granted.push(number);
        let factor = factor(&self.setup.long, site);
        let hold = self.setup.hold.scaled(factor).draw(&mut self.times);
        if P::PROFILE.serves == Service::Semaphore {
            return self.taken(client, number, hold);
        }
        if self.setup.partial && self.gangs.is_none() && self.oracle.units(number) > 1 {
            let half = self.now + hold / 2;
            self.schedule(half, Event::Release { client, claim, part: true });
        }
        self.schedule(self.now + hold, Event::Release { client, claim, part: false });
    }

    /// Units were taken from a semaphore. Anybody may add them again: who does is drawn.
    pub(super) fn taken(&mut self, client: u32, number: u32, hold: Time) {
        self.clients[client as usize] = None;
        let (pool, mut units) = (self.oracle.first_pool(number), self.oracle.units(number));
        if self.setup.partial && units > 1 {
            units -= 1;
            let (site, demand) = (self.anywhere(), Demand::one(pool, 1));
            self.schedule(self.now + hold / 2, Event::Add { site, demand, client: None });
        }
        let units = u32::try_from(units).expect("a claim is for no more");
        let (site, demand) = (self.anywhere(), Demand::one(pool, units));
        self.schedule(self.now + hold, Event::Add { site, demand, client: Some(client) });
    }

    pub(super) fn anywhere(&mut self) -> SiteId {
        let site = self.times.below(self.setup.cluster.sites.into());
        SiteId(u16::try_from(site).expect("below the number of sites"))
    }

    pub(super) fn client_of(&self, site: SiteId, claim: Stamp) -> Option<u32> {
        if let Some(cast) = self.cast.as_ref().filter(|cast| !cast.clients().is_empty()) {
            let mine = (0..).zip(cast.clients()).filter(|(_, client)| client.0 == site);
            let has = |live: &Live| live.claim == claim;
            let mut mine = mine.map(|(client, _)| client);
            return mine
                .find(|&client: &u32| self.clients[client as usize].as_ref().is_some_and(has));
        }
        let all = u32::try_from(self.clients.len()).expect("fewer than 2^32 clients");
        let has = |live: &Live| live.claim == claim;
        let is = |client: &u32| self.clients[*client as usize].as_ref().is_some_and(has);
        if self.setup.wander {
            return (0..all).find(is);
        }
        (u32::from(site.0)..all).step_by(usize::from(self.setup.cluster.sites)).find(is)
    }
}
