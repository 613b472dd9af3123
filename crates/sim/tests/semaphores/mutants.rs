//! Mistakes that are easy to make, each noticed.

use kofm_core::parts::Semaphores;
use kofm_core::parts::semaphores::{Rules, SELDOM, Semaphore, Slip};
use kofm_core::protocols::sem_permission::ByPermission;
use kofm_core::protocols::sem_quorum::ByQuorum;
use kofm_core::protocols::sem_token::ByToken;
use kofm_core::{Cluster, Protocol};
use kofm_sim::exhaustive::explore;
use kofm_sim::world::Script;

use crate::{adding, script};

macro_rules! slips {
    ($($name:ident $reset:expr;)*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name;
        impl Rules for $name {
            const SLIP: Option<Slip> = Some(Slip::$name);
            const RESET: i64 = $reset;
        }
    )*};
}

slips! {
    AddsInSilence SELDOM;
    AddsForOthers SELDOM;
    LetsPassUncounted SELDOM;
    TakesUncounted SELDOM;
    WithdrawsInSilence SELDOM;
    KeepsTheTurn SELDOM;
    NoAcknowledgement 2;
    Unsigned 2;
    UncountedResets 2;
    BelievesTheLast SELDOM;
    DeafInTurn SELDOM;
}

/// The property that breaks first, where clients do everything they may.
fn broken<S: Semaphore>(units: u32, script: &Script) -> &'static str {
    type Of<S> = Semaphores<S>;
    let sites = u16::try_from(script.rounds.len()).unwrap();
    let found = explore::<Of<S>>(&Cluster::new(sites, units), script, 5_000_000, |_| {});
    let what = std::any::type_name::<S>();
    let Some((violation, steps)) = found.violation else {
        panic!("{what} of {} is not caught in {} states", <Of<S> as Protocol>::NAME, found.states)
    };
    println!("{what}: {} after {} steps", violation.property, steps.len());
    violation.property
}

fn everything() -> Script {
    Script { slots: 2, withdraw: true, ..adding(&[1, 1], 1, 1, script(&[2, 2], 1, 2)) }
}

fn three() -> Script {
    adding(&[1, 1, 1], 1, 1, script(&[2, 1, 1], 1, 1))
}

#[test]
fn additions_that_are_lost() {
    assert_eq!(broken::<ByPermission<AddsInSilence>>(1, &everything()), "progress");
    assert_eq!(broken::<ByToken<AddsInSilence>>(1, &everything()), "progress");
    assert_eq!(broken::<ByQuorum<AddsInSilence>>(1, &everything()), "progress");
    assert_eq!(broken::<ByPermission<AddsForOthers>>(1, &everything()), "progress");
    assert_eq!(broken::<ByToken<AddsForOthers>>(1, &everything()), "progress");
    assert_eq!(broken::<ByQuorum<AddsForOthers>>(1, &everything()), "progress");
    assert_eq!(broken::<ByPermission<DeafInTurn>>(1, &everything()), "progress");
    assert_eq!(broken::<ByToken<DeafInTurn>>(1, &everything()), "progress");
    assert_eq!(broken::<ByQuorum<DeafInTurn>>(1, &everything()), "progress");
}

#[test]
fn units_that_are_not_counted() {
    assert_eq!(broken::<ByPermission<LetsPassUncounted>>(1, &everything()), "value");
    assert_eq!(broken::<ByPermission<TakesUncounted>>(1, &everything()), "value");
    assert_eq!(broken::<ByToken<TakesUncounted>>(1, &everything()), "value");
    assert_eq!(broken::<ByQuorum<TakesUncounted>>(1, &everything()), "value");
    assert_eq!(broken::<ByQuorum<BelievesTheLast>>(2, &three()), "value");
}

#[test]
fn claims_that_are_given_up_wrongly() {
    assert_eq!(broken::<ByPermission<WithdrawsInSilence>>(1, &everything()), "count");
    assert_eq!(broken::<ByQuorum<WithdrawsInSilence>>(1, &everything()), "progress");
    assert_eq!(broken::<ByPermission<KeepsTheTurn>>(1, &everything()), "progress");
    assert_eq!(broken::<ByToken<KeepsTheTurn>>(1, &everything()), "progress");
    assert_eq!(broken::<ByQuorum<KeepsTheTurn>>(1, &everything()), "progress");
}

#[test]
fn resets_that_are_not_sound() {
    assert_eq!(broken::<ByToken<NoAcknowledgement>>(1, &three()), "value");
    assert_eq!(broken::<ByToken<Unsigned>>(1, &three()), "value");
    assert_eq!(broken::<ByQuorum<UncountedResets>>(2, &three()), "value");
}
