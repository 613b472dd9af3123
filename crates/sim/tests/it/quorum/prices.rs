//! What a grant costs, in messages for each arbiter that is not the site itself.

use kofm_core::quorums::{Construction, RequestSets, Terms};
use kofm_core::{Cluster, Kind, PoolId};
use kofm_sim::chosen::simulate;
use kofm_sim::seeded::Setup;
use kofm_sim::span::Span;

use super::{arbitrated, made_by};

/// A row of the reference: sets, units per claim, and the means that another simulation of the
/// same protocol came to at 2.5 %, 25 % and full load.
struct Row {
    construction: Construction,
    sites: u16,
    units: u32,
    /// Members of a set.
    size: u32,
    most: u32,
    means: [f64; 3],
}

const fn row(
    construction: Construction,
    (sites, units, size): (u16, u32, u32),
    most: u32,
    means: [f64; 3],
) -> Row {
    Row { construction, sites, units, size, most, means }
}

const ROWS: [Row; 11] = [
    row(Construction::Projective, (7, 1, 3), 1, [3.00, 3.07, 3.00]),
    row(Construction::Projective, (31, 1, 6), 1, [3.01, 3.16, 3.00]),
    row(Construction::Grid, (25, 1, 9), 1, [3.01, 3.20, 3.00]),
    row(Construction::Uniform, (7, 2, 5), 2, [3.03, 3.17, 3.00]),
    row(Construction::Projective, (15, 2, 7), 2, [3.02, 3.22, 3.00]),
    row(Construction::Grid, (27, 2, 19), 2, [3.03, 3.10, 3.00]),
    row(Construction::Projective, (40, 2, 13), 1, [3.00, 3.20, 3.00]),
    row(Construction::Uniform, (9, 3, 7), 3, [3.03, 3.16, 3.00]),
    row(Construction::Projective, (31, 3, 15), 1, [3.00, 3.18, 3.00]),
    row(Construction::Uniform, (16, 4, 13), 1, [3.00, 3.19, 3.00]),
    row(Construction::Uniform, (20, 8, 18), 1, [3.00, 3.13, 3.00]),
];

/// Thinks so long that the claims together hold this share of the units.
fn think(row: &Row, load: f64) -> Span {
    let mean = f64::from(1 + row.most) / 2.0;
    Span::Exponential(f64::from(row.sites) * mean / (load * f64::from(row.units)))
}

#[test]
fn means_are_those_of_the_reference() {
    const SEEDS: u64 = 100;
    for row in ROWS {
        let cluster = arbitrated(row.sites, row.units, made_by(row.construction));
        let set = RequestSets::new(&Terms::of(&cluster, PoolId(0))).unwrap();
        assert!(set.sites().all(|site| set.of(site).arbiters.len() == row.size as usize));
        let loads = [think(&row, 0.025), think(&row, 0.25), Span::Constant(0.0)];
        for (think, expected) in loads.into_iter().zip(row.means) {
            let others = row.size - 1;
            let (mut sum, mut max) = (0.0, 0);
            for seed in 0..SEEDS {
                let (k, requests) = ((1, row.most), 300);
                let setup = Setup { k, requests, think, seed, ..Setup::new(cluster.clone()) };
                let report = simulate(Kind::Quorum, &setup);
                assert!(report.is_clean(), "{:?}", report.violations);
                let cost = report.messages_per_grant();
                assert!(cost.min >= 3 * others, "a claim has three messages for each arbiter");
                sum += cost.mean / f64::from(others) / SEEDS as f64;
                max = cost.max.max(max);
            }
            let max = f64::from(max) / f64::from(others);
            println!(
                "{:?} {} sites {} units: {sum:.3} (ref {expected}) max {max:.2}",
                row.construction, row.sites, row.units
            );
            let off = (sum / expected - 1.0).abs();
            assert!(off < 0.05, "{} sites, {} units: {sum:.3}", row.sites, row.units);
        }
    }
}

/// Without contention it is three messages for each arbiter, no more and no fewer.
#[test]
fn an_uncontended_claim_costs_three_for_each_arbiter() {
    for units in 1..=4 {
        for sites in 1..=40 {
            let cluster = Cluster::new(sites, units);
            let sets = RequestSets::new(&Terms::of(&cluster, PoolId(0))).unwrap();
            let others = |site| sets.of(site).arbiters.iter().filter(|&&a| a != site).count();
            let (least, most) = sets
                .sites()
                .map(others)
                .fold((usize::MAX, 0), |(low, high), n| (n.min(low), n.max(high)));
            for seed in 0..10 {
                let think = Span::Exponential(1_000_000.0);
                let setup = Setup { requests: 100, think, seed, ..Setup::new(cluster.clone()) };
                let cost = simulate(Kind::Quorum, &setup).messages_per_grant();
                assert!(
                    cost.min as usize >= 3 * least && cost.max as usize <= 3 * most,
                    "{sites} {units}"
                );
            }
        }
    }
}

#[test]
fn no_claim_is_cheaper_than_the_profile_says() {
    let price = Kind::Quorum.profile().price;
    for sites in (1..=60).chain([100, 133, 200]) {
        for units in 1..=6 {
            let sets = RequestSets::new(&Terms::new(sites, units)).unwrap();
            let others =
                |site| sets.of(site).arbiters.iter().filter(|&&a| a != site).count() as u64;
            let least = sets.sites().map(others).min().unwrap_or(0);
            assert!(
                price(sites.into(), units.into()).min <= 3 * least,
                "{sites} sites, {units} units"
            );
        }
    }
}

/// The paper says five for each arbiter at most. One claim of one unit beside older ones of all
/// units is recalled by each of them.
#[test]
fn five_for_each_arbiter_are_not_enough() {
    let most = |seed| {
        let setup = Setup {
            k: (1, 2),
            requests: 600,
            think: Span::Exponential(20.0),
            seed,
            ..Setup::new(Cluster::new(15, 2))
        };
        simulate(Kind::Quorum, &setup).messages_per_grant().max
    };
    assert!((0..20).map(most).max() > Some(5 * 6));
}
