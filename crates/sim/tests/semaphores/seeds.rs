//! Thousands of seeded runs, judged by the oracle: value, count in every turn, one grant, progress,
//! rest; and the same seed gives the same run.

use kofm_core::parts::Routed;
use kofm_core::topology::Topology;
use kofm_core::{Cluster, Protocol, SiteId, Units, Visitor};
use kofm_sim::faults::Fault;
use kofm_sim::report::Report;
use kofm_sim::rng::Rng;
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;

use crate::for_sound;

/// Runs it on its topology.
fn report<P: Protocol>(setup: &Setup) -> Report {
    if setup.cluster.topology == Topology::Full {
        run::<P>(setup, &mut Blind)
    } else {
        run::<Routed<P>>(setup, &mut Blind)
    }
}

/// A setup drawn from its seed: everything that can vary, varies.
fn drawn(seed: u64) -> Setup {
    let mut rng = Rng::new(seed);
    let sites = u16::try_from(rng.between(1, 7)).unwrap();
    let mut cluster = Cluster::new(sites, u32::try_from(rng.between(0, 5)).unwrap());
    if rng.below(3) == 0 {
        cluster.pools.push(Units(u32::try_from(rng.between(0, 3)).unwrap()));
    }
    let shapes = [Topology::Full, Topology::Full, Topology::Ring, Topology::Tree];
    cluster.topology = shapes[usize::try_from(rng.below(4)).unwrap()].clone();
    let spans = [Span::Exponential(0.5), Span::Exponential(5.0), Span::Uniform(0.0, 30.0)];
    let mut span = || spans[usize::try_from(rng.below(3)).unwrap()];
    let (think, hold, delay) = (span(), span(), span());
    let faults = [Fault::Pause, Fault::Partition].into_iter().filter(|_| rng.below(3) == 0);
    Setup {
        faults: faults.collect(),
        k: (1, u32::try_from(rng.between(1, 6)).unwrap()),
        requests: 200,
        clients: u32::try_from(rng.between(1, 3)).unwrap(),
        think,
        hold,
        delay,
        patience: (rng.below(2) == 0).then_some(Span::Exponential(10.0)),
        partial: rng.below(2) == 0,
        hot: vec![(SiteId(0), 5.0)],
        seed,
        ..Setup::new(cluster)
    }
}

#[test]
fn thousands_of_seeds_break_nothing_and_leave_nobody_waiting() {
    #[derive(Clone, Copy)]
    struct Seeds;
    impl Visitor for Seeds {
        type Output = ();
        fn visit<P: Protocol>(self) {
            for seed in 0..2_000 {
                let setup = drawn(seed);
                let report = report::<P>(&setup);
                let name = P::NAME;
                assert!(report.is_clean(), "{name} {setup:?}: {:?}", report.violations);
                assert_eq!(report.grants() + report.withdrawn, report.requests, "{name} {setup:?}");
            }
        }
    }
    for_sound(Seeds);
}

#[test]
fn the_same_seed_gives_the_same_report() {
    #[derive(Clone, Copy)]
    struct Same;
    impl Visitor for Same {
        type Output = ();
        fn visit<P: Protocol>(self) {
            let setup = Setup { requests: 2_000, k: (1, 3), ..Setup::new(Cluster::new(4, 3)) };
            let json = |setup| report::<P>(setup).json().to_string();
            assert_eq!(json(&setup), json(&setup));
            assert_ne!(json(&setup), json(&Setup { seed: 2, ..setup.clone() }));
        }
    }
    for_sound(Same);
}
