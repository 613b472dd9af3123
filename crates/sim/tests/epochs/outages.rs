//! A unit is taken out of use while it lies idle, is held or on its way, and comes back.

use kofm_core::epoch::Sound;
use kofm_core::protocols::roaming::{Roaming, Rules};
use kofm_core::topology::Topology;
use kofm_core::{Cluster, Protocol};
use kofm_sim::report::Report;
use kofm_sim::rng::Rng;
use kofm_sim::seeded::Setup;
use kofm_sim::span::Span;
use kofm_sim::storm::run_with_outages;
use kofm_sim::world::Timers;
use kofm_sim::{faults::Fault, mortal::Budget};

use crate::exhaustive::{CRASH, Case};

/// The first unit goes, and with two comes back.
const fn outages(outages: u32) -> Budget {
    Budget { crashes: 0, outages, calm: true, ..CRASH }
}

/// Meanwhile a site dies.
const DIES: Budget = Budget { crashes: 1, ..outages(2) };

#[test]
fn a_unit_is_taken_out_whatever_is_done_with_it() {
    Case(2, &[1, 2], &[1, 1, 0], outages(1)).holds::<Roaming>(10_028);
    Case(2, &[1], &[1, 1, 1], outages(1)).holds::<Roaming>(30_694);
    Case(3, &[1, 2], &[2, 1], outages(1)).holds::<Roaming>(2_743);
    // The last one: whoever waits is refused.
    Case(1, &[1], &[1, 1, 0], outages(1)).holds::<Roaming>(2_909);
}

#[test]
fn a_unit_is_taken_out_while_a_claim_seeks() {
    let (full, any) = (Topology::Full, Timers::Any);
    Case(2, &[1, 2], &[1, 1], outages(1)).holds_on::<Roaming>(full.clone(), any, 1_141);
    Case(1, &[1], &[1, 1, 0], outages(2)).holds_on::<Roaming>(full, any, 21_331);
}

#[test]
fn a_unit_comes_back_whatever_was_done_with_it() {
    Case(2, &[1, 2], &[1, 1, 0], outages(2)).holds::<Roaming>(87_244);
    Case(2, &[1, 2], &[2, 2], outages(2)).holds::<Roaming>(48_255);
    Case(1, &[1], &[2, 1], outages(3)).holds::<Roaming>(3_585);
}

/// Its holder may be the one that dies, and come back with it.
#[test]
fn a_unit_is_taken_out_and_a_site_dies() {
    let dies = Budget { crashes: 1, ..outages(1) };
    Case(2, &[1], &[1, 1, 0], dies).holds::<Roaming>(54_609);
    let comes_back = Budget { restarts: 1, memory: true, ..DIES };
    Case(1, &[1], &[1, 0], comes_back).holds::<Roaming>(75_011);
}

#[test]
#[ignore = "half a minute; run it after a change of epochs or of the protocol"]
fn a_unit_is_taken_out_and_comes_back_and_a_site_dies() {
    Case(2, &[1], &[1, 1, 0], DIES).holds::<Roaming>(483_880);
}

macro_rules! slips {
    ($($name:ident: $rule:ident;)*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name;
        impl Rules for $name {
            const $rule: bool = false;
        }
    )*};
}

slips! {
    GrantsWhatIsOut: HIDES_WHAT_IS_OUT;
    KeepsWhatIsReleased: DROPS_WHAT_IS_OUT;
    LosesWhatComesBack: DEALS_AGAIN;
}

/// What the checker finds; the seeds find something, too.
fn found<R: Rules>(rounds: &'static [u32]) -> &'static str {
    let worlds = Case(2, &[1], rounds, outages(2));
    let checked = worlds.explore::<Roaming<R>, _>(Sound, 300_000).violation;
    assert!((0..100).any(|seed| !play::<Roaming<R>>(seed).is_clean()), "no seed finds it");
    checked.map_or("nothing", |it| it.0.property)
}

#[test]
fn what_is_wrong_is_found() {
    assert_eq!(found::<GrantsWhatIsOut>(&[2, 1]), "out of use");
    assert_eq!(found::<KeepsWhatIsReleased>(&[2, 1]), "out of use");
    assert_eq!(found::<LosesWhatComesBack>(&[2, 1]), "progress");
    assert_eq!(found::<LosesWhatComesBack>(&[1, 0]), "units");
}

/// Units go and come back all the time, and everything else goes wrong too.
fn play<P: Protocol>(seed: u64) -> Report {
    let mut rng = Rng::new(seed ^ 0x0017);
    let mut pick = |low: u64, high: u64| u32::try_from(rng.between(low, high)).unwrap();
    let units = pick(2, 5);
    let all = [Fault::Crash, Fault::Restart, Fault::Pause, Fault::Partition, Fault::OneWay];
    let setup = Setup {
        k: (1, pick(1, u64::from(units) - 1)),
        requests: 60,
        clients: pick(1, 3),
        think: Span::Exponential(20.0),
        hold: [Span::Exponential(2.0), Span::Exponential(50.0)][pick(0, 1) as usize],
        patience: (pick(0, 2) == 0).then_some(Span::Exponential(50.0)),
        partial: pick(0, 1) == 0,
        delay: [Span::Uniform(0.5, 1.5), Span::Exponential(3.0)][pick(0, 1) as usize],
        faults: all.into_iter().filter(|_| pick(0, 2) == 0).collect(),
        seed,
        ..Setup::new(Cluster::new(u16::try_from(pick(2, 5)).unwrap(), units))
    };
    run_with_outages::<P, _>(&setup, Sound, pick(0, 1) == 0)
}

#[test]
fn units_go_and_come_back_in_storms() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(250);
    for seed in 0..seeds {
        let report = play::<Roaming>(seed);
        let (violations, unserved) = (&report.violations, report.unserved);
        assert!(report.is_clean(), "seed {seed}: {violations:#?}, {unserved} unserved");
    }
}
