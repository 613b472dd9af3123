//! What goes wrong: sites die, pause and come back, links break, units are taken out of use.

use std::sync::Arc;

use kofm_core::epoch::{self, Member, Rules, Slip};
use kofm_core::parts::SiteSet;
use kofm_core::{PoolId, Protocol, SiteId, Unit};

use super::{EVERY, Event, LASTS, Storm};
use crate::faults::Fault;

impl<P: Protocol, R: Rules> Storm<'_, P, R> {
    pub(super) fn strike(&mut self, fault: Fault) {
        if self.remaining == 0 {
            return;
        }
        let next = self.now + EVERY.draw(&mut self.weather);
        self.schedule(next, Event::Strike { fault });
        let until = self.now + LASTS.draw(&mut self.weather);
        let site = SiteId(
            u16::try_from(self.weather.below(self.places.len() as u64)).expect("a small number"),
        );
        self.cuts.retain(|cut| cut.1 > self.now);
        match fault {
            Fault::Pause => {
                let place = self.place(site);
                place.paused = until.max(place.paused);
            }
            Fault::Partition | Fault::OneWay => {
                let half: SiteSet = self.sites().filter(|_| self.weather.below(2) == 0).collect();
                self.cuts.push((half, until, matches!(fault, Fault::OneWay)));
            }
            Fault::Crash | Fault::Restart => {
                let alive = self.places.iter().filter(|place| place.member.is_some()).count();
                let majority = 2 * (alive - 1) > self.places.len();
                if majority && self.member(site).is_some() && self.may_lose(site) {
                    self.crash(site);
                    let restarts = |fault: &Fault| matches!(fault, Fault::Restart);
                    if self.setup.faults.iter().any(restarts) {
                        self.schedule(until, Event::Restart { site });
                    }
                }
            }
            Fault::ClockRate | Fault::ArbitraryStart | Fault::Corrupt(_) => {}
        }
    }

    /// Whoever notices that a unit is broken, or whole again, says so to a site.
    pub(super) fn outage(&mut self) {
        if self.remaining == 0 {
            return;
        }
        let next = self.now + EVERY.draw(&mut self.outages) / 4;
        self.schedule(next, Event::Outage);
        let mut draw = |below: usize| {
            usize::try_from(self.outages.below(below as u64)).expect("below what was a usize")
        };
        let site = SiteId(u16::try_from(draw(self.places.len())).expect("a small number"));
        let pool = draw(self.setup.cluster.pools.len());
        let units = self.setup.cluster.pools[pool].0;
        let number = u32::try_from(draw(units as usize)).expect("below the units of a pool");
        let unit = Unit { pool: PoolId(u16::try_from(pool).expect("a small number")), number };
        if self.places[site.index()].paused > self.now {
            return;
        }
        self.check_lease(site);
        let Some(member) = self.member(site).filter(|member| member.may_grant()) else { return };
        let mut plan = member.epochs().record().plan.clone();
        if !plan.out.remove(&unit) {
            if plan.usable(unit.pool).is_none_or(|left| left.0 <= self.setup.k.1.min(units)) {
                return;
            }
            plan.out.insert(unit);
        }
        self.change(site, epoch::Input::Configure(plan));
    }

    pub(super) fn crash(&mut self, site: SiteId) {
        self.end_life(site);
        let memory = self.memory;
        let place = self.place(site);
        let member = place.member.take();
        place.journal.clear();
        // What a life brought and no epoch has confirmed is not its own to leave to the next one.
        let own = |member: &Member<P, R>| memory && member.protocol().is_some();
        if let Some(member) = member.filter(own) {
            let held = member.claims().iter().filter(|(_, told)| told.held.is_some());
            place.journal = held.map(|(&claim, told)| (claim, told.clone())).collect();
        }
        place.paused = 0;
    }

    /// Sessions end; waiting clients have nobody to wait for. Holders hold until their leases end.
    pub(super) fn end_life(&mut self, site: SiteId) {
        let sites = self.places.len();
        for other in 0..sites {
            self.links[site.index() * sites + other].clear();
            self.links[other * sites + site.index()].clear();
        }
        let place = self.place(site);
        place.pending.clear();
        place.kept.clear();
        place.timers.clear();
        place.proposal = None;
        place.departed = false;
        for client in self.clients_of(site) {
            if let Some(live) = self.clients[client].filter(|live| !live.held) {
                self.oracle.ended(live.number);
                self.report.withdrawn += 1;
                self.clients[client] = None;
                self.think(client);
            }
        }
    }

    pub(super) fn begin_life(&mut self, site: SiteId) {
        self.lose_disk(site);
        let (store, now, rules) = (Arc::clone(&self.store), self.now, self.rules);
        let place = self.place(site);
        if !rules.slips(Slip::ReusesIncarnation) {
            place.life += 1;
        }
        let life = place.life;
        let claims = std::mem::take(&mut place.journal);
        let record = Arc::clone(&store);
        let member = Member::remembering(rules, site, life, record, claims);
        place.member = Some(member.with_disk(place.disk.clone()));
        place.leased = false;
        place.heard.fill(now);
        place.suspects = SiteSet::new();
        place.waits_for.clear();
        self.lease(site, life, now);
        self.check_lease(site);
        self.change(site, epoch::Input::Decided(store));
    }
}
