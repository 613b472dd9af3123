//! Thousands of runs with everything at once.

use kofm_core::quorums::{Arbitration, Construction};
use kofm_core::{Cluster, Kind, Units};
use kofm_sim::chosen::simulate;
use kofm_sim::faults::Fault;
use kofm_sim::rng::Rng;
use kofm_sim::seeded::Setup;
use kofm_sim::span::Span;

use super::{arbitrated, made_by};

/// A cluster and a way to use it, drawn from the seed.
fn drawn(seed: u64) -> Setup {
    let mut rng = Rng::new(seed);
    let mut draw =
        |low: u32, high: u32| u32::try_from(rng.between(low.into(), high.into())).unwrap();
    let sites = u16::try_from(draw(1, 12)).unwrap();
    let pools: Vec<Units> = (0..draw(1, 3)).map(|_| Units(draw(1, 5))).collect();
    let most = pools.iter().map(|units| units.0).max().unwrap_or(1);
    let mut cluster = Cluster { pools, ..Cluster::new(sites, 1) };
    // Every other run leaves the sets to the protocol.
    if draw(0, 1) == 0 {
        let constructions = [
            Construction::Broadcast,
            Construction::Threshold,
            Construction::Uniform,
            Construction::Grid,
        ];
        let said = made_by(constructions[draw(0, 3) as usize]);
        let pools = (0..).map(kofm_core::PoolId).take(cluster.pools.len());
        cluster.arbitration = pools.map(|pool| (pool, said.clone())).collect();
    }
    let faults =
        [vec![], vec![Fault::Pause], vec![Fault::Partition], vec![Fault::Pause, Fault::Partition]];
    Setup {
        k: (1, most),
        requests: 150,
        clients: draw(1, 3),
        think: Span::Exponential([0.5, 5.0, 50.0][draw(0, 2) as usize]),
        patience: (draw(0, 1) == 0).then_some(Span::Exponential(20.0)),
        partial: draw(0, 1) == 0,
        faults: faults[draw(0, 3) as usize].clone(),
        seed,
        ..Setup::new(cluster)
    }
}

#[test]
fn five_thousand_runs_of_all_kinds() {
    let (mut grants, mut withdrawn) = (0, 0);
    for seed in 0..5_000 {
        let setup = drawn(seed);
        let report = simulate(Kind::Quorum, &setup);
        assert!(report.is_clean(), "{:?}\n{setup:?}", report.violations);
        grants += report.grants();
        withdrawn += report.withdrawn;
    }
    // Both ends of a claim were seen often.
    assert!(grants > 500_000 && withdrawn > 100_000, "{grants} grants, {withdrawn} withdrawn");
}

#[test]
fn large_spaces_under_load() {
    for (sites, units) in [(57, 1), (40, 2), (85, 3), (100, 2)] {
        for seed in 0..10 {
            let setup = Setup {
                k: (1, units),
                requests: 1_000,
                think: Span::Exponential(100.0),
                patience: Some(Span::Exponential(200.0)),
                partial: true,
                faults: vec![Fault::Pause, Fault::Partition],
                seed,
                ..Setup::new(Cluster::new(sites, units))
            };
            let report = simulate(Kind::Quorum, &setup);
            assert!(report.is_clean(), "{:?}\n{setup:?}", report.violations);
        }
    }
}

/// Nobody is left waiting in the threshold form, and units are used while grants are missing.
#[test]
fn a_threshold_serves_everybody() {
    for seed in 0..200 {
        let said = Arbitration { crashes: 2, ..made_by(Construction::Threshold) };
        let setup = Setup {
            k: (1, 2),
            requests: 300,
            partial: true,
            seed,
            ..Setup::new(arbitrated(9, 2, said))
        };
        let report = simulate(Kind::Quorum, &setup);
        assert!(report.is_clean(), "{:?}", report.violations);
    }
}
