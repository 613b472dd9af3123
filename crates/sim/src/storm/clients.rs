//! What clients do, also when their site dies under them.

use kofm_core::epoch::{Member, MemberInput, Rules};
use kofm_core::{Demand, Input, Protocol, Service, SiteId, Stamp, Unit};

use super::{Event, Live, Storm};
use crate::seeded::draw_demand;
use crate::span::DELAY;

impl<P: Protocol, R: Rules> Storm<'_, P, R> {
    pub(super) fn clients_of(&self, site: SiteId) -> Vec<usize> {
        (site.index()..self.clients.len()).step_by(self.places.len()).collect()
    }

    pub(super) fn home(&self, client: usize) -> SiteId {
        SiteId(u16::try_from(client % self.places.len()).expect("below the number of sites"))
    }

    pub(super) fn think(&mut self, client: usize) {
        let site = self.home(client);
        let hot = self.setup.hot.iter().find(|entry| entry.0 == site).map_or(1.0, |entry| entry.1);
        let think = self.setup.think.scaled(1.0 / hot).draw(&mut self.times);
        self.schedule(self.now + think, Event::Claim { client });
    }

    pub(super) fn claim(&mut self, client: usize) {
        if P::PROFILE.serves == Service::Semaphore {
            return self.begin_op(client);
        }
        if self.remaining == 0 || self.clients[client].is_some() {
            return;
        }
        let site = self.home(client);
        let life = self.places[site.index()].life;
        let stamp = self.member(site).filter(|m| m.may_grant()).and_then(Member::next_stamp);
        let Some(claim) = stamp else {
            return self.schedule(self.now + 5 * DELAY, Event::Claim { client });
        };
        self.remaining -= 1;
        self.last_claim = self.now;
        self.report.requests += 1;
        let demand = draw_demand(self.setup, &mut self.demands);
        if self.oracle.number(claim).is_some() {
            self.oracle.violate("stamps", format!("{claim} was taken twice"));
        }
        let number = self.oracle.claimed(claim, &demand);
        self.report.charges.push(0);
        self.clients[client] = Some(Live { claim, life, number, issued: self.now, held: false });
        if let Some(patience) = self.setup.patience {
            let at = self.now + patience.draw(&mut self.times);
            self.schedule(at, Event::GiveUp { client, claim });
        }
        self.step(site, MemberInput::Local(Input::Claim { claim, demand }));
    }

    pub(super) fn granted(
        &mut self,
        site: SiteId,
        claim: Stamp,
        fence: kofm_core::Fence,
        units: &[Unit],
    ) {
        let life = self.places[site.index()].life;
        if self.leases.get(&(site, life)).is_none_or(|&until| until <= self.now) {
            self.oracle.violate("lease", format!("{claim} was granted without one"));
        }
        let plan = self.member(site).map(|member| &member.epochs().record().plan);
        let out = |unit: &&Unit| plan.is_some_and(|plan| plan.out.contains(unit));
        if let Some(unit) = units.iter().find(out) {
            self.oracle.violate("out of use", format!("{claim} was granted {unit}"));
        }
        let Some(number) = self.oracle.granted(claim, fence, units) else { return };
        let waits = |&client: &usize| {
            self.clients[client].is_some_and(|live| live.claim == claim && live.life == life)
        };
        let Some(client) = self.clients_of(site).into_iter().find(waits) else { return };
        let live = self.clients[client].as_mut().expect("it was found by its claim");
        live.held = true;
        self.report.waits.push(self.now - live.issued);
        self.report.granted.push(number);
        let long = self.setup.long.iter().find(|entry| entry.0 == site);
        let hold = self.setup.hold.scaled(long.map_or(1.0, |entry| entry.1));
        let hold = hold.draw(&mut self.times);
        if self.setup.partial && self.oracle.units(number) > 1 {
            self.schedule(self.now + hold / 2, Event::Release { client, claim, part: true });
        }
        self.schedule(self.now + hold, Event::Release { client, claim, part: false });
    }

    /// A holder has done its work; whoever lives tells its site.
    pub(super) fn release(&mut self, client: usize, claim: Stamp, part: bool) {
        let Some(live) = self.clients[client].filter(|live| live.claim == claim && live.held)
        else {
            return;
        };
        let part = part.then(|| Demand::one(self.oracle.first_pool(live.number), 1));
        self.oracle.released(live.number, part.as_ref());
        let site = self.home(client);
        if part.is_none() {
            self.clients[client] = None;
            self.think(client);
        }
        let same = self.places[site.index()].life == live.life;
        if same && self.member(site).is_some() || self.goes_on(site, claim) {
            self.tell(site, Input::Release { claim, part });
        }
    }

    pub(super) fn give_up(&mut self, client: usize, claim: Stamp) {
        let waits = |live: &Live| live.claim == claim && !live.held;
        let Some(live) = self.clients[client].filter(waits) else { return };
        let site = self.home(client);
        if !self.member(site).is_some_and(Member::may_grant) {
            let later = self.now + 5 * DELAY;
            return self.schedule(later, Event::GiveUp { client, claim });
        }
        self.oracle.ended(live.number);
        self.report.withdrawn += 1;
        self.clients[client] = None;
        self.think(client);
        self.tell(site, Input::Withdraw { claim });
    }

    /// What a life has granted ends with its lease, whether or not anybody is there to notice.
    pub(super) fn expire(&mut self, site: SiteId, life: u64) {
        if self.leases[&(site, life)] > self.now {
            // It was renewed.
            return;
        }
        let alive = self.places[site.index()].life == life && self.member(site).is_some();
        for client in self.clients_of(site) {
            let Some(live) = self.clients[client].filter(|live| live.life == life && live.held)
            else {
                continue;
            };
            self.oracle.released(live.number, None);
            self.clients[client] = None;
            self.think(client);
            if alive || self.goes_on(site, live.claim) {
                let release = Input::Release { claim: live.claim, part: None };
                self.place(site).pending.push(release);
            }
        }
    }
}
