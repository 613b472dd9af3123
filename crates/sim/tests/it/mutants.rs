//! Protocols broken on purpose. Each must be caught; a harness that lets one live is worth nothing.
//!
//! | mutant | caught by |
//! | --- | --- |
//! | answers list no claims | checker, capacity |
//! | answers count one unit less | checker, capacity |
//! | ends are not announced | checker, progress |
//! | a part announced as everything | checker, capacity |
//! | units announced free at the grant | checker, capacity |
//! | requests to the last site are lost | checker, progress |
//! | withdrawal is ignored | checker, one grant |
//! | release is forgotten | checker, rest |
//! | granted at once | checker, rest |
//! | granted twice | checker, one grant |
//! | stamps ignore what was heard | checker, capacity |
//! | stamps run backwards | checker, capacity |
//! | "a user always has priority" (lazy) | checker, capacity, 26 steps, 3 sites |
//! | a crowded site is skipped (lazy) | checker, capacity |
//! | fences do not grow | oracle, fence |

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use kofm_core::protocols::permission::{self, Permission};
use kofm_core::protocols::permission_lazy::{self, OkFirst, PermissionLazy};
use kofm_core::{
    Blocker, Clock, Cluster, Demand, Effect, EffectOf, Effects, EffectsOf, Fence, PeerFault,
    PoolId, Profile, Protocol, SiteId, Stamp, Units,
};
use kofm_sim::exhaustive::explore;
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::world::Script;

use crate::exhaustive::ks;

/// How a protocol is broken. What is not said stays as it was.
trait Flaw<P: Protocol>: Clone + Debug + Eq + Hash + Send + 'static {
    /// Changes what the protocol says, or keeps it from saying it.
    fn effect(_inner: &P, effect: EffectOf<P>, out: &mut Vec<EffectOf<P>>) {
        out.push(effect);
    }
    /// Changes the stamp of a claim; `made` is how many there were.
    fn stamp(stamp: Stamp, _made: u64) -> Stamp {
        stamp
    }
    const IGNORES_WITHDRAWAL: bool = false;
    const IGNORES_RELEASE: bool = false;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Mutant<P, F> {
    inner: P,
    made: u64,
    flaw: PhantomData<F>,
}

impl<P: Protocol, F: Flaw<P>> Mutant<P, F> {
    fn wrap<R>(
        &mut self,
        out: &mut EffectsOf<P>,
        act: impl FnOnce(&mut P, &mut EffectsOf<P>) -> R,
    ) -> R {
        let mut inner = Effects::at(out.clock());
        let result = act(&mut self.inner, &mut inner);
        let mut bent = Vec::new();
        for effect in inner.drain() {
            F::effect(&self.inner, effect, &mut bent);
        }
        for effect in bent {
            out.push(effect);
        }
        out.set_clock(inner.clock());
        result
    }
}

impl<P: Protocol, F: Flaw<P>> Protocol for Mutant<P, F> {
    const NAME: &'static str = P::NAME;
    const PROFILE: Profile = P::PROFILE;
    type Message = P::Message;
    type Timer = P::Timer;

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self { inner: P::new(me, cluster), made: 0, flaw: PhantomData }
    }
    fn me(&self) -> SiteId {
        self.inner.me()
    }
    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.inner.capacity(pool)
    }
    fn next_stamp(&self, clock: Clock) -> Stamp {
        F::stamp(self.inner.next_stamp(clock), self.made)
    }
    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        self.made += 1;
        self.wrap(out, |inner, out| inner.on_claim(claim, demand, out));
    }
    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        if !F::IGNORES_RELEASE {
            self.wrap(out, |inner, out| inner.on_release(claim, part, out));
        }
    }
    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        if !F::IGNORES_WITHDRAWAL {
            self.wrap(out, |inner, out| inner.on_withdraw(claim, out));
        }
    }
    fn on_message(
        &mut self,
        from: SiteId,
        message: Self::Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        self.wrap(out, |inner, out| inner.on_message(from, message, out))
    }
    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        self.inner.explain(claim)
    }
    fn is_at_rest(&self) -> bool {
        self.inner.is_at_rest()
    }
}

/// The property that breaks first, in a world where clients do everything they may.
fn broken<P: Protocol>(sites: u16, units: u32, script: &Script) -> (&'static str, usize) {
    let found = explore::<P>(&Cluster::new(sites, units), script, 20_000_000, |_| {});
    let (violation, steps) = found.violation.expect("a broken protocol is caught");
    (violation.property, steps.len())
}

fn small<F: Flaw<Permission>>() -> &'static str {
    let script = Script { withdraw: true, partial: true, ..Script::new(2, 2, ks(1, 2)) };
    broken::<Mutant<Permission, F>>(2, 2, &script).0
}

/// A mutant that changes what `permission` says.
macro_rules! says {
    ($name:ident, |$inner:ident, $effect:ident, $out:ident| $body:block) => {
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name;
        impl Flaw<Permission> for $name {
            fn effect(
                $inner: &Permission,
                $effect: EffectOf<Permission>,
                $out: &mut Vec<EffectOf<Permission>>,
            ) {
                $body
            }
        }
    };
}

use permission::Message;

says!(ListsNothing, |_inner, effect, out| {
    let mut effect = effect;
    if let Effect::Send { message: Message::Reply { ahead, .. }, .. } = &mut effect {
        ahead.clear();
    }
    out.push(effect);
});

says!(CountsOneLess, |_inner, effect, out| {
    let mut effect = effect;
    if let Effect::Send { message: Message::Reply { ahead, .. }, .. } = &mut effect {
        for ahead in ahead.iter_mut() {
            ahead.units = ahead.units.saturating_sub(Units(1));
        }
        ahead.retain(|ahead| !ahead.units.is_zero());
    }
    out.push(effect);
});

says!(AnnouncesNoEnd, |_inner, effect, out| {
    if !matches!(effect, Effect::Send { message: Message::Free { .. }, .. }) {
        out.push(effect);
    }
});

says!(AnnouncesEverything, |_inner, effect, out| {
    let mut effect = effect;
    if let Effect::Send { message: Message::Free { left, .. }, .. } = &mut effect {
        *left = Demand::from_iter([]);
    }
    out.push(effect);
});

says!(FreesAtTheGrant, |inner, effect, out| {
    let grant = match &effect {
        Effect::Grant { claim, .. } => Some(*claim),
        _ => None,
    };
    out.push(effect);
    if let Some(claim) = grant {
        let to = SiteId(1 - inner.me().0);
        let part = Demand::one(PoolId(0), 1);
        let message = Message::Free { claim, part, left: Demand::from_iter([]), to: Vec::new() };
        out.push(Effect::Send { to, clock: Clock::default(), message, serves: None });
    }
});

says!(LosesRequests, |_inner, effect, out| {
    let last = SiteId(1);
    let lost = matches!(&effect,
        Effect::Send { to, message: Message::Request { .. }, .. } if *to == last);
    if !lost {
        out.push(effect);
    }
});

says!(GrantsTwice, |_inner, effect, out| {
    if matches!(effect, Effect::Grant { .. }) {
        out.push(effect.clone());
    }
    out.push(effect);
});

says!(GrantsAtOnce, |_inner, effect, out| {
    // The request that goes out is taken for an answer that came in.
    match effect {
        Effect::Send { message: Message::Request { claim, .. }, .. } => {
            out.push(Effect::Grant { claim, fence: Fence(1), units: Vec::new() });
        }
        _ => out.push(effect),
    }
});

says!(FencesStandStill, |_inner, effect, out| {
    let mut effect = effect;
    if let Effect::Grant { fence, .. } = &mut effect {
        *fence = Fence(1);
    }
    out.push(effect);
});

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct IgnoresWithdrawal;
impl Flaw<Permission> for IgnoresWithdrawal {
    const IGNORES_WITHDRAWAL: bool = true;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ForgetsRelease;
impl Flaw<Permission> for ForgetsRelease {
    const IGNORES_RELEASE: bool = true;
}

/// Every site counts for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Deaf;
impl Flaw<Permission> for Deaf {
    fn stamp(stamp: Stamp, made: u64) -> Stamp {
        Stamp { time: made + 1, ..stamp }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Backwards;
impl Flaw<Permission> for Backwards {
    fn stamp(stamp: Stamp, made: u64) -> Stamp {
        Stamp { time: 1_000 - made, ..stamp }
    }
}

#[test]
fn wrong_answers_over_allocate() {
    assert_eq!(small::<ListsNothing>(), "capacity");
    let script = Script::new(2, 2, ks(1, 2));
    let less = broken::<Mutant<Permission, CountsOneLess>>(2, 3, &script);
    assert_eq!(less.0, "capacity");
}

#[test]
fn ends_that_are_announced_wrongly() {
    assert_eq!(small::<AnnouncesNoEnd>(), "progress");
    let script = Script { partial: true, ..Script::new(2, 2, ks(2, 3)) };
    assert_eq!(broken::<Mutant<Permission, AnnouncesEverything>>(2, 4, &script).0, "capacity");
    assert_eq!(small::<FreesAtTheGrant>(), "capacity");
}

#[test]
fn clients_who_are_not_heard() {
    assert_eq!(small::<IgnoresWithdrawal>(), "one grant");
    assert_eq!(small::<ForgetsRelease>(), "rest");
    assert_eq!(small::<LosesRequests>(), "progress");
}

#[test]
fn grants_that_are_not_due() {
    // One claim cannot over-allocate; two can, but a site that does not rest is found before.
    assert_eq!(small::<GrantsAtOnce>(), "rest");
    assert_eq!(small::<GrantsTwice>(), "one grant");
}

#[test]
fn stamps_that_are_not_lamports() {
    assert_eq!(small::<Deaf>(), "capacity");
    assert_eq!(small::<Backwards>(), "capacity");
}

#[test]
fn a_user_that_always_has_priority_over_allocates_with_three_sites() {
    let script = Script::new(3, 2, ks(1, 2));
    assert_eq!(broken::<PermissionLazy<OkFirst>>(3, 3, &script), ("capacity", 26));
    // With two sites it holds, which is why it looks right.
    let two = explore::<PermissionLazy<OkFirst>>(
        &Cluster::new(2, 3),
        &Script::new(2, 4, ks(1, 3)),
        1_000_000,
        |_| {},
    );
    assert!(two.complete && two.violation.is_none());
}

/// Every request says that its site has no other claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AlwaysAlone;
impl Flaw<PermissionLazy> for AlwaysAlone {
    fn effect(
        _inner: &PermissionLazy,
        mut effect: EffectOf<PermissionLazy>,
        out: &mut Vec<EffectOf<PermissionLazy>>,
    ) {
        if let Effect::Send { message: permission_lazy::Message::Request { alone, .. }, .. } =
            &mut effect
        {
            *alone = true;
        }
        out.push(effect);
    }
}

#[test]
fn a_crowded_site_that_is_skipped_over_allocates() {
    let script = Script { slots: 2, withdraw: true, ..Script::new(2, 2, ks(1, 2)) };
    let found = broken::<Mutant<PermissionLazy, AlwaysAlone>>(2, 2, &script);
    assert_eq!(found.0, "capacity");
}

#[test]
fn fences_that_stand_still_are_seen_by_the_oracle() {
    let setup = Setup { requests: 100, ..Setup::new(Cluster::new(3, 1)) };
    let report = run::<Mutant<Permission, FencesStandStill>>(&setup, &mut Blind);
    assert!(report.violations.iter().any(|v| v.starts_with("fence")), "{report:?}");
}
