//! How often a waiting claim is passed: at most 2ℓ(2n−3) times.

use kofm_core::Cluster;
use kofm_core::protocols::tree::{Rules, Sound, Tree};
use kofm_sim::healing::{Bare, Shape};
use kofm_sim::rng::Rng;
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;

/// The most that a claim was passed, for each number of sites, with the bound.
fn passed<R: Rules>(seeds: u64) {
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let sites = u16::try_from(rng.between(2, 9)).unwrap();
        let units = u32::try_from(rng.between(1, 6)).unwrap();
        let shape = [Shape::Path, Shape::Star, Shape::Random][(seed % 3) as usize];
        let spans = [Span::Exponential(1.0), Span::Uniform(0.5, 1.5), Span::Constant(1.0)];
        let delay = spans[usize::try_from(rng.below(3)).unwrap()];
        let topology = shape.tree(sites, &mut rng);
        let setup = Setup {
            k: (1, u32::try_from(rng.between(1, units.into())).unwrap()),
            requests: 150,
            think: Span::Exponential(0.2),
            hold: Span::Exponential(0.2),
            delay,
            seed,
            ..Setup::new(Cluster { topology, ..Cluster::new(sites, units) })
        };
        let report = run::<Tree<R>, _>(&setup, &mut Blind);
        assert!(report.is_clean(), "{setup:?}: {:?}", report.violations);
        let bound = 2 * units * (2 * u32::from(sites) - 3);
        assert!(report.overtaken_max <= bound, "{} > {bound}: {setup:?}", report.overtaken_max);
    }
}

#[test]
fn a_claim_is_passed_at_most_2l_2n_minus_3_times() {
    passed::<Sound>(1_200);
    passed::<Bare>(1_200);
}
