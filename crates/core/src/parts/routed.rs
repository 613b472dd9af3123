//! Any protocol on any connected network: messages go hop by hop.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::epoch::Survey;
use crate::protocol::{
    Blocker, Census, Effect, Effects, EffectsOf, Head, PeerFault, Profile, Protocol,
};
use crate::topology::{Routes, Topology};
use crate::types::{Clock, Cluster, Demand, PoolId, SiteId, Stamp, Unit, Units};

/// A protocol that believes every site to be its neighbour, and the routes that make it so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Routed<P> {
    inner: P,
    routes: Routes,
    sites: u16,
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hop<M> {
    from: SiteId,
    to: SiteId,
    serves: Option<Stamp>,
    message: M,
}

impl<P: Protocol> Routed<P> {
    /// Lets the inner protocol take a step, and sends what it says on its way.
    fn wrap<R>(
        &mut self,
        out: &mut EffectsOf<Self>,
        step: impl FnOnce(&mut P, &mut EffectsOf<P>) -> R,
    ) -> R {
        let mut inner = Effects::at(out.clock());
        let result = step(&mut self.inner, &mut inner);
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, clock, message, serves } => {
                    let hop = Hop { from: self.inner.me(), to, serves, message };
                    out.push(Effect::Send {
                        to: self.routes.toward(to),
                        clock,
                        message: hop,
                        serves,
                    });
                }
                Effect::Grant { claim, fence, units } => {
                    out.push(Effect::Grant { claim, fence, units });
                }
                Effect::Reject { claim, reason } => out.push(Effect::Reject { claim, reason }),
                Effect::Revoke { claim } => out.push(Effect::Revoke { claim }),
                Effect::Arm { timer, min, max } => out.push(Effect::Arm { timer, min, max }),
                Effect::Disarm { timer } => out.push(Effect::Disarm { timer }),
            }
        }
        out.set_clock(inner.clock());
        result
    }
}

impl<P: Protocol> Protocol for Routed<P> {
    const NAME: &'static str = P::NAME;
    const PROFILE: Profile = P::PROFILE;

    type Message = Hop<P::Message>;
    type Timer = P::Timer;

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let full = Cluster { topology: Topology::Full, ..cluster.clone() };
        Self { inner: P::new(me, &full), routes: Routes::new(me, cluster), sites: cluster.sites }
    }

    fn me(&self) -> SiteId {
        self.inner.me()
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.inner.capacity(pool)
    }

    fn next_stamp(&self, clock: Clock) -> Stamp {
        self.inner.next_stamp(clock)
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        self.wrap(out, |inner, out| inner.on_claim(claim, demand, out));
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        self.wrap(out, |inner, out| inner.on_release(claim, part, out));
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        self.wrap(out, |inner, out| inner.on_withdraw(claim, out));
    }

    fn on_add(&mut self, demand: Demand, out: &mut EffectsOf<Self>) {
        self.wrap(out, |inner, out| inner.on_add(demand, out));
    }

    fn on_message(
        &mut self,
        _from: SiteId,
        hop: Self::Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        for site in [hop.from, hop.to] {
            if site.0 >= self.sites {
                return Err(PeerFault::UnknownSite(site));
            }
        }
        if hop.to == self.me() {
            return self.wrap(out, |inner, out| inner.on_message(hop.from, hop.message, out));
        }
        out.send(self.routes.toward(hop.to), hop.serves, hop);
        Ok(())
    }

    fn on_timer(&mut self, timer: Self::Timer, out: &mut EffectsOf<Self>) {
        self.wrap(out, |inner, out| inner.on_timer(timer, out));
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        self.inner.explain(claim)
    }

    fn is_at_rest(&self) -> bool {
        self.inner.is_at_rest()
    }

    fn audit(&self) {
        self.inner.audit();
    }

    fn census(&self) -> Census {
        self.inner.census()
    }

    fn unbounded(self) -> Self {
        Self { inner: self.inner.unbounded(), ..self }
    }

    fn idle_units(&self) -> Option<Vec<Unit>> {
        self.inner.idle_units()
    }

    fn lines(&self) -> BTreeMap<PoolId, Vec<(Stamp, Units)>> {
        self.inner.lines()
    }

    fn resume(me: SiteId, cluster: &Cluster, survey: &Survey) -> Self {
        let full = Cluster { topology: Topology::Full, ..cluster.clone() };
        let inner = P::resume(me, &full, survey);
        Self { inner, routes: Routes::new(me, cluster), sites: cluster.sites }
    }

    fn on_resume(&mut self, survey: &Survey, out: &mut EffectsOf<Self>) {
        self.wrap(out, |inner, out| inner.on_resume(survey, out));
    }

    fn room(&self, pool: PoolId) -> u64 {
        self.inner.room(pool)
    }

    fn head(&self, pool: PoolId) -> Option<Head> {
        self.inner.head(pool)
    }
}
