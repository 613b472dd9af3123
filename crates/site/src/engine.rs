//! A protocol chosen at run time: bytes in, bytes out.
//!
//! This is the one place where protocols lose their types. Everything else about them is in the
//! core, and the core is the same in checker, simulator and site.

use std::collections::BTreeMap;
use std::time::Duration;

use kofm_core::epoch::Survey;
use kofm_core::{
    Blocker, Clock, Cluster, Demand, Effect, Effects, EffectsOf, Head, Input, Kind, PeerFault,
    PoolId, Protocol, Rejection, Service, SiteId, Stamp, Unit, Units, Visitor, step,
};

/// What enters an engine.
#[derive(Debug)]
pub enum Move {
    Claim { claim: Stamp, demand: Demand },
    Release { claim: Stamp, part: Option<Demand> },
    Withdraw { claim: Stamp },
    Add { demand: Demand },
    Deliver { from: SiteId, clock: Clock, message: Vec<u8> },
    Fire { timer: Vec<u8> },
}

/// What leaves it, in order.
#[derive(Debug)]
pub enum Outcome {
    Send { to: SiteId, clock: Clock, message: Vec<u8> },
    Grant { claim: Stamp, units: Vec<Unit> },
    Reject { claim: Stamp, reason: Rejection },
    Revoke { claim: Stamp },
    Arm { timer: Vec<u8>, min: Duration, max: Duration },
    Disarm { timer: Vec<u8> },
}

/// A message that was refused. The protocol is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("malformed message")]
    Malformed,
    #[error("{0}")]
    Fault(PeerFault),
}

/// One protocol with all the pools that it shares.
pub trait Engine: Send {
    fn step(
        &mut self,
        clock: &mut Clock,
        input: Move,
        out: &mut Vec<Outcome>,
    ) -> Result<(), Refused>;
    fn next_stamp(&self, clock: Clock) -> Stamp;
    fn explain(&self, claim: Stamp) -> Vec<Blocker>;
    fn is_at_rest(&self) -> bool;
    /// A timer that is due at once.
    fn alarm(&self) -> Option<Vec<u8>>;
    /// Where tokens are looked after: whether the last count found them right.
    fn is_sound(&self) -> Option<bool>;
    /// Puts garbage into its memory; only where [`heals`] holds.
    fn scramble(&mut self, draw: &mut dyn FnMut() -> u64);
    /// How much may be added to a semaphore.
    fn room(&self, pool: PoolId) -> u64;
    /// Whose turn it is at a semaphore, where it is a claim of this site.
    fn head(&self, pool: PoolId) -> Option<Head>;
    /// Named units that lie here unused; nothing where the protocol only counts.
    fn idle_units(&self) -> Option<Vec<Unit>>;
    /// Who waits for units of this site, in order, where claims do not go by their stamps.
    fn lines(&self) -> BTreeMap<PoolId, Vec<(Stamp, Units)>>;
    /// All members have installed the epoch that it was resumed for.
    fn on_resume(&mut self, clock: &mut Clock, survey: &Survey, out: &mut Vec<Outcome>);
}

/// The engine for a protocol; `None` where it must not run in a site.
pub fn start(kind: Kind, me: SiteId, cluster: &Cluster, reborn: bool) -> Option<Box<dyn Engine>> {
    kind.visit_in_site(Start { me, cluster, reborn })
}

/// The engine for the groups of a rota; `None` where the protocol has no groups.
pub fn rota(kind: Kind, me: SiteId, cluster: &Cluster) -> Option<Box<dyn Engine>> {
    let start = Start { me, cluster, reborn: false };
    serves_rota(kind).then(|| kind.visit_in_site(start)).flatten()
}

/// Whether a rota may be run by it.
pub fn serves_rota(kind: Kind) -> bool {
    kind.profile().serves == Service::Group && runs_in_a_site(kind)
}

/// Whether it heals by itself from anything: lost messages and peers without memory are faults like
/// others to it.
pub fn heals(kind: Kind) -> bool {
    kind.profile().survives("arbitrary-start")
}

/// The engine for a protocol as an epoch begins.
pub fn resume(
    kind: Kind,
    me: SiteId,
    cluster: &Cluster,
    survey: &Survey,
) -> Option<Box<dyn Engine>> {
    kind.visit_in_site(Resume { me, cluster, survey })
}

/// In place of a protocol, at a site that does not share the pools of its group: it has no units
/// and grants none, and no other site has a reason to send it a message.
pub fn outside(me: SiteId) -> Box<dyn Engine> {
    Box::new(Outside(me))
}

struct Outside(SiteId);

impl Engine for Outside {
    fn step(&mut self, _: &mut Clock, input: Move, out: &mut Vec<Outcome>) -> Result<(), Refused> {
        match input {
            Move::Claim { claim, demand } => {
                let reason = demand.pools().next().map_or(Rejection::Empty, Rejection::UnknownPool);
                out.push(Outcome::Reject { claim, reason });
                Ok(())
            }
            Move::Deliver { .. } => Err(Refused::Malformed),
            Move::Release { .. } | Move::Withdraw { .. } | Move::Add { .. } | Move::Fire { .. } => {
                Ok(())
            }
        }
    }

    fn next_stamp(&self, clock: Clock) -> Stamp {
        Stamp { time: clock.time + 1, site: self.0 }
    }

    fn explain(&self, _: Stamp) -> Vec<Blocker> {
        Vec::new()
    }

    fn is_at_rest(&self) -> bool {
        true
    }

    fn alarm(&self) -> Option<Vec<u8>> {
        None
    }

    fn is_sound(&self) -> Option<bool> {
        None
    }

    fn scramble(&mut self, _: &mut dyn FnMut() -> u64) {}

    fn room(&self, _: PoolId) -> u64 {
        0
    }

    fn head(&self, _: PoolId) -> Option<Head> {
        None
    }

    fn idle_units(&self) -> Option<Vec<Unit>> {
        Some(Vec::new())
    }

    fn lines(&self) -> BTreeMap<PoolId, Vec<(Stamp, Units)>> {
        BTreeMap::new()
    }

    fn on_resume(&mut self, _: &mut Clock, _: &Survey, _: &mut Vec<Outcome>) {}
}

/// Whether sites run it: published listings with their faults do not.
pub fn runs_in_a_site(kind: Kind) -> bool {
    kind.runs_in_sites()
}

struct Start<'a> {
    me: SiteId,
    cluster: &'a Cluster,
    /// The site has lived before.
    reborn: bool,
}

impl Visitor for Start<'_> {
    type Output = Box<dyn Engine>;

    fn visit<P: Protocol>(self) -> Box<dyn Engine> {
        let make = if self.reborn { P::reborn } else { P::new };
        let protocol = make(self.me, self.cluster).unbounded();
        Box::new(Running::<P> { protocol, effects: Effects::default() })
    }
}

struct Resume<'a> {
    me: SiteId,
    cluster: &'a Cluster,
    survey: &'a Survey,
}

impl Visitor for Resume<'_> {
    type Output = Box<dyn Engine>;

    fn visit<P: Protocol>(self) -> Box<dyn Engine> {
        let protocol = P::resume(self.me, self.cluster, self.survey).unbounded();
        Box::new(Running::<P> { protocol, effects: Effects::default() })
    }
}

struct Running<P: Protocol> {
    protocol: P,
    /// Empty between steps; kept for its memory.
    effects: EffectsOf<P>,
}

impl<P: Protocol> Engine for Running<P> {
    fn step(
        &mut self,
        clock: &mut Clock,
        input: Move,
        out: &mut Vec<Outcome>,
    ) -> Result<(), Refused> {
        let input = match input {
            Move::Claim { claim, demand } => Input::Claim { claim, demand },
            Move::Release { claim, part } => Input::Release { claim, part },
            Move::Withdraw { claim } => Input::Withdraw { claim },
            Move::Add { demand } => Input::Add { demand },
            Move::Deliver { from, clock, message } => {
                let message = decode(&message)?;
                Input::Deliver { from, clock, message }
            }
            Move::Fire { timer } => Input::Fire { timer: decode(&timer)? },
        };
        step(&mut self.protocol, clock, input, &mut self.effects).map_err(Refused::Fault)?;
        out.extend(self.effects.drain().map(erase));
        Ok(())
    }

    fn next_stamp(&self, clock: Clock) -> Stamp {
        self.protocol.next_stamp(clock)
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        self.protocol.explain(claim)
    }

    fn is_at_rest(&self) -> bool {
        self.protocol.is_at_rest()
    }

    fn alarm(&self) -> Option<Vec<u8>> {
        self.protocol.alarm().map(|timer| encode(&timer))
    }

    fn is_sound(&self) -> Option<bool> {
        self.protocol.is_sound()
    }

    fn scramble(&mut self, draw: &mut dyn FnMut() -> u64) {
        self.protocol.scramble(draw);
    }

    fn room(&self, pool: PoolId) -> u64 {
        self.protocol.room(pool)
    }

    fn head(&self, pool: PoolId) -> Option<Head> {
        self.protocol.head(pool)
    }

    fn idle_units(&self) -> Option<Vec<Unit>> {
        self.protocol.idle_units()
    }

    fn lines(&self) -> BTreeMap<PoolId, Vec<(Stamp, Units)>> {
        self.protocol.lines()
    }

    fn on_resume(&mut self, clock: &mut Clock, survey: &Survey, out: &mut Vec<Outcome>) {
        let mut effects = Effects::at(*clock);
        self.protocol.on_resume(survey, &mut effects);
        clock.merge(effects.clock());
        out.extend(effects.drain().map(erase));
    }
}

fn erase<M: serde::Serialize, T: serde::Serialize>(effect: Effect<M, T>) -> Outcome {
    match effect {
        Effect::Send { to, clock, message, serves: _ } => {
            Outcome::Send { to, clock, message: encode(&message) }
        }
        // The lease's fence is taken later, when its units have names: see the site.
        Effect::Grant { claim, fence: _, units } => Outcome::Grant { claim, units },
        Effect::Reject { claim, reason } => Outcome::Reject { claim, reason },
        Effect::Revoke { claim } => Outcome::Revoke { claim },
        Effect::Arm { timer, min, max } => Outcome::Arm { timer: encode(&timer), min, max },
        Effect::Disarm { timer } => Outcome::Disarm { timer: encode(&timer) },
    }
}

fn encode(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("messages and timers are plain values")
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) | Err(_) => Err(Refused::Malformed),
    }
}
