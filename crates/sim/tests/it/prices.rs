//! Messages per claim: within the profile, over thousands of seeds, with both ends reached.

use kofm_core::topology::Topology;
use kofm_core::{Cluster, Kind};
use kofm_sim::chosen::simulate;
use kofm_sim::faults::Fault;
use kofm_sim::rng::Rng;
use kofm_sim::seeded::Setup;
use kofm_sim::span::Span;

/// The fewest and the most messages that a claim cost over many runs of a cluster of `sites`.
fn ends(kind: Kind, sites: u16, seeds: u64) -> (u32, u32) {
    let (mut min, mut max) = (u32::MAX, 0);
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let units = u32::try_from(rng.between(1, 8)).unwrap();
        let setup = Setup {
            k: (1, u32::try_from(rng.between(1, u64::from(units))).unwrap()),
            requests: 200,
            think: Span::Exponential([0.5, 5.0, 50.0][usize::try_from(rng.below(3)).unwrap()]),
            hold: Span::Exponential([0.5, 5.0, 20.0][usize::try_from(rng.below(3)).unwrap()]),
            long: vec![(kofm_core::SiteId(0), [1.0, 20.0][usize::try_from(rng.below(2)).unwrap()])],
            seed,
            ..Setup::new(Cluster::new(sites, units))
        };
        let price = (kind.profile().price)(sites.into(), units.into());
        let cost = simulate(kind, &setup).messages_per_grant();
        assert!(u64::from(cost.min) >= price.min, "{} {setup:?}: {cost:?}", kind.name());
        let within = price.max.is_none_or(|max| u64::from(cost.max) <= max);
        assert!(within, "{} {setup:?}: {cost:?}", kind.name());
        (min, max) = (min.min(cost.min), max.max(cost.max));
    }
    (min, max)
}

#[test]
fn no_claim_costs_less_or_more_than_its_protocol_says() {
    for kind in crate::kinds().filter(|kind| !kind.profile().as_printed) {
        for sites in [1, 2, 3, 5, 9] {
            ends(kind, sites, 300);
        }
    }
}

#[test]
fn a_mean_lies_between_the_least_and_the_most() {
    for &kind in Kind::ALL {
        let full = kind.profile().full_service;
        let patience = full.then_some(Span::Constant(2.0));
        let faults = if full { "crash,restart,partition" } else { "partition" };
        let faults = faults.split(',').filter(|name| kind.profile().survives(name));
        let faults: Vec<Fault> = faults.map(|name| name.parse().unwrap()).collect();
        let base = Setup { requests: 300, seed: 7, ..Setup::new(Cluster::new(5, 3)) };
        let setups = [
            base.clone(),
            Setup { patience, ..base.clone() },
            Setup { patience: patience.map(|_| Span::Exponential(5.0)), faults, ..base },
        ];
        for setup in setups {
            let report = simulate(kind, &setup);
            let cost = report.messages_per_grant();
            let mean = f64::from(cost.min) <= cost.mean && cost.mean <= f64::from(cost.max);
            assert!(mean, "{} {setup:?}: {cost:?}", kind.name());
            let apart = report.spread + report.in_vain();
            let served = (report.messages - apart) as f64;
            assert!(
                report.grants() == 0 || (cost.mean * report.grants() as f64 - served).abs() < 0.1
            );
            if report.withdrawn == 0 && report.unserved == 0 {
                assert_eq!(report.in_vain(), 0, "{} {setup:?}", kind.name());
            }
        }
    }
}

#[test]
fn permission_costs_from_two_to_three_messages_per_other_site() {
    assert_eq!(ends(Kind::Permission, 5, 1_000), (8, 12));
}

#[test]
fn permission_lazy_costs_from_nothing_to_three_messages_per_other_site() {
    assert_eq!(ends(Kind::PermissionLazy, 5, 1_000), (0, 12));
}

#[test]
fn with_one_unit_it_is_ricart_and_agrawala_exactly_two_messages_per_other_site() {
    for sites in [2, 3, 5, 9] {
        let setup = Setup { think: Span::Exponential(1.0), ..Setup::new(Cluster::new(sites, 1)) };
        let cost = simulate(Kind::Permission, &setup).messages_per_grant();
        let two = 2 * u32::from(sites - 1);
        assert_eq!((cost.min, cost.max), (two, two));
    }
}

#[test]
fn with_claims_for_one_unit_it_is_raymonds_multiple_entries() {
    // Raymond 1989: up to M sites inside at once, 2(n−1) to 3(n−1) messages per entry.
    let setup = Setup {
        think: Span::Exponential(1.0),
        hold: Span::Exponential(10.0),
        ..Setup::new(Cluster::new(6, 4))
    };
    let report = simulate(Kind::Permission, &setup);
    assert_eq!(report.max_in_use, 4);
    let cost = report.messages_per_grant();
    assert!(cost.min >= 10 && cost.max <= 15, "{cost:?}");
}

#[test]
fn gathering_beats_routed_round_trips_on_rings_and_trees() {
    for topology in [Topology::Ring, Topology::Tree] {
        let cluster = Cluster { topology, ..Cluster::new(15, 3) };
        let setup = Setup { k: (1, 3), requests: 3_000, ..Setup::new(cluster) };
        let cost = |kind| simulate(kind, &setup).messages_per_grant();
        let (gathered, routed) = (cost(Kind::Permission), cost(Kind::PermissionLazy));
        assert!(gathered.mean * 2.0 < routed.mean, "{gathered:?} {routed:?}");
    }
}
