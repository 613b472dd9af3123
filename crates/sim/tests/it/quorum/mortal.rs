//! The threshold form: arbiters fall silent at any moment, and nobody has to do anything about it.

use kofm_core::protocols::quorum::Quorum;
use kofm_core::quorums::{Arbitration, Construction};
use kofm_core::{
    Blocker, Cluster, Demand, EffectsOf, PeerFault, PoolId, Profile, Protocol, Rejection, SiteId,
    Stamp, Units,
};

use super::{amounts, arbitrated, group, pinned, script, violated};

/// A protocol where the last `DEATHS` of the first three sites die when their client claims. So
/// the script says who may die, and the checker tries when.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Mortal<P, const DEATHS: u16> {
    inner: P,
    dead: bool,
}

impl<P: Protocol, const DEATHS: u16> Protocol for Mortal<P, DEATHS> {
    const NAME: &'static str = P::NAME;
    const PROFILE: Profile = P::PROFILE;

    type Message = P::Message;
    type Timer = P::Timer;

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self { inner: P::new(me, cluster), dead: false }
    }

    fn me(&self) -> SiteId {
        self.inner.me()
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.inner.capacity(pool)
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        if (3 - DEATHS..3).contains(&self.me().0) {
            self.dead = true;
            out.reject(claim, Rejection::OneAtATime);
        } else {
            self.inner.on_claim(claim, demand, out);
        }
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        self.inner.on_release(claim, part, out);
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        self.inner.on_withdraw(claim, out);
    }

    fn on_message(
        &mut self,
        from: SiteId,
        message: Self::Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        if self.dead { Ok(()) } else { self.inner.on_message(from, message, out) }
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        self.inner.explain(claim)
    }

    fn is_at_rest(&self) -> bool {
        self.dead || self.inner.is_at_rest()
    }

    fn audit(&self) {
        self.inner.audit();
    }
}

/// A group that survives one death.
fn threshold(sites: u16, units: u32, members: &[u16]) -> Cluster {
    let construction = Some(Construction::Threshold);
    arbitrated(sites, units, Arbitration { construction, crashes: 1, ..group(members) })
}

#[test]
fn two_of_three_arbiters_with_one_dying() {
    let demands = || amounts(&[1]);
    // The group is the same for all, so that it may be any of them.
    let apart = threshold(5, 1, &[0, 1, 2]);
    pinned::<Mortal<Quorum, 1>>(&apart, &script(&[0, 0, 1, 1, 1], demands()), 52_571);
    pinned::<Mortal<Quorum, 1>>(&apart, &script(&[0, 0, 1, 2, 1], demands()), 754_524);
    // Arbiters that claim themselves, and one that dies.
    let together = threshold(3, 1, &[0, 1, 2]);
    pinned::<Mortal<Quorum, 1>>(&together, &script(&[2, 2, 1], demands()), 364_333);
}

#[test]
#[ignore = "half a minute"]
fn two_of_three_arbiters_with_one_dying_at_length() {
    let cluster = threshold(5, 1, &[0, 1, 2]);
    pinned::<Mortal<Quorum, 1>>(&cluster, &script(&[0, 0, 1, 2, 2], amounts(&[1])), 14_631_635);
}

#[test]
fn three_of_four_arbiters_with_one_dying() {
    let cluster = threshold(6, 2, &[0, 1, 2, 3]);
    pinned::<Mortal<Quorum, 1>>(
        &cluster,
        &script(&[0, 0, 1, 0, 1, 1], amounts(&[1, 2])),
        1_558_368,
    );
}

#[test]
fn two_deaths_in_three_are_too_many() {
    let cluster = threshold(5, 1, &[0, 1, 2]);
    let script = script(&[0, 1, 1, 1, 1], amounts(&[1]));
    assert_eq!(violated::<Mortal<Quorum, 2>>(&cluster, &script), Some(("progress", 7)));
}

#[test]
fn without_a_budget_one_death_is_too_many() {
    let said = group(&[0, 1, 2]);
    let script = script(&[0, 0, 1, 1, 0], amounts(&[1]));
    let stuck = violated::<Mortal<Quorum, 1>>(&arbitrated(5, 1, said), &script);
    assert_eq!(stuck, Some(("progress", 7)));
}
