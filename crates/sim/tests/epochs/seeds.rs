//! Many seeds of everything that can go wrong.

use kofm_core::epoch::{Rules, Sound};
use kofm_core::parts::Routed;
use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::permission_lazy::PermissionLazy;
use kofm_core::protocols::quorum::Quorum;
use kofm_core::protocols::roaming::Roaming;
use kofm_core::topology::{Graph, Topology};
use kofm_core::{Cluster, Protocol, SiteId, Units};
use kofm_sim::faults::Fault;
use kofm_sim::report::Report;
use kofm_sim::rng::Rng;
use kofm_sim::seeded::Setup;
use kofm_sim::span::Span;
use kofm_sim::storm::run;

/// A cluster, a load and faults, drawn from a seed, and whether sites that come back remember.
fn setup(seed: u64) -> (Setup, bool) {
    let mut rng = Rng::new(seed ^ 0x5EED);
    let mut pick = |low: u64, high: u64| u32::try_from(rng.between(low, high)).unwrap();
    let units = pick(1, 4);
    let mut cluster = Cluster::new(u16::try_from(pick(3, 5)).unwrap(), units);
    if pick(0, 3) == 0 {
        cluster.pools.push(Units(pick(1, 3)));
    }
    let path = (1..cluster.sites).map(|site| (SiteId(site - 1), SiteId(site)));
    cluster.topology = match pick(0, 7) {
        0 => Topology::Ring,
        1 => Topology::Tree,
        2 => Topology::Graph(Graph::new(cluster.sites, path.collect()).unwrap()),
        _ => Topology::Full,
    };
    let all = [
        Fault::Crash,
        Fault::Restart,
        Fault::Pause,
        Fault::Partition,
        Fault::OneWay,
        Fault::ClockRate,
    ];
    let mut faults: Vec<Fault> = all.into_iter().filter(|_| pick(0, 1) == 0).collect();
    if !faults.iter().any(|fault| fault.needs_epochs()) {
        faults.push(Fault::Restart);
    }
    let hold = [Span::Exponential(2.0), Span::Exponential(20.0), Span::Exponential(100.0)];
    let delay = [Span::Uniform(0.5, 1.5), Span::Exponential(1.0), Span::Exponential(5.0)];
    let memory = pick(0, 2) == 0;
    let setup = Setup {
        k: (1, pick(1, u64::from(units))),
        requests: 60,
        clients: pick(1, 3),
        think: Span::Exponential(20.0),
        hold: hold[pick(0, 2) as usize],
        patience: (pick(0, 2) == 0).then_some(Span::Exponential(50.0)),
        partial: pick(0, 1) == 0,
        delay: delay[pick(0, 2) as usize],
        faults,
        seed,
        ..Setup::new(cluster)
    };
    (setup, memory)
}

/// Everybody wants the same units for ever, and links are so slow that sites which renew their
/// leases are often believed dead.
fn slow(seed: u64) -> Setup {
    let mut rng = Rng::new(seed ^ 0x510E);
    let mut pick = |low: u64, high: u64| u32::try_from(rng.between(low, high)).unwrap();
    Setup {
        requests: 60,
        clients: 2,
        think: Span::Exponential(5.0),
        hold: Span::Exponential(200.0),
        delay: Span::Exponential(f64::from(pick(2, 8))),
        faults: vec![Fault::Restart, Fault::OneWay, Fault::ClockRate],
        seed,
        ..Setup::new(Cluster::new(u16::try_from(pick(3, 5)).unwrap(), pick(1, 2)))
    }
}

pub(crate) fn play_slow<P: Protocol, R: Rules>(seed: u64, rules: R) -> Report {
    run::<P, R>(&slow(seed), rules, false)
}

/// The same, where sites that come back remember.
pub(crate) fn play_slow_remembering<P: Protocol, R: Rules>(seed: u64, rules: R) -> Report {
    run::<P, R>(&slow(seed), rules, true)
}

pub(crate) fn play<P: Protocol, R: Rules>(seed: u64, rules: R) -> Report {
    let (setup, memory) = setup(seed);
    if setup.cluster.topology == Topology::Full || P::PROFILE.gathers {
        run::<P, R>(&setup, rules, memory)
    } else {
        run::<Routed<P>, R>(&setup, rules, memory)
    }
}

fn clean<P: Protocol>(seeds: u64) {
    let mut grants = 0;
    let first = std::env::var("FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in first..seeds {
        let report = play::<P, _>(seed, Sound);
        assert!(
            report.is_clean(),
            "{} seed {seed}: {:#?}, {} unserved",
            P::NAME,
            report.violations,
            report.unserved
        );
        grants += report.grants();
        let report = play_slow::<P, _>(seed, Sound);
        assert!(report.is_clean(), "{} seed {seed}, slow: {:#?}", P::NAME, report.violations);
        let report = play_slow_remembering::<P, _>(seed, Sound);
        assert!(report.is_clean(), "{} seed {seed}, memory: {:#?}", P::NAME, report.violations);
    }
    assert!(grants > seeds * 20, "{}: {grants} grants", P::NAME);
}

fn count() -> u64 {
    std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(250)
}

#[test]
fn permission_survives_everything() {
    clean::<Permission>(count());
}

#[test]
fn permission_lazy_survives_everything() {
    clean::<PermissionLazy>(count());
}

#[test]
fn quorum_survives_everything() {
    clean::<Quorum>(count());
}

#[test]
fn roaming_survives_everything() {
    clean::<Roaming>(count());
}
