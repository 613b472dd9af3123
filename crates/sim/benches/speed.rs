//! How fast the laboratory is: `cargo bench -p kofm-sim`.
//!
//! Prints a line per measurement. Nothing is asserted: machines differ, and so do days.

#![expect(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::time::Instant;

use kofm_core::topology::Topology;
use kofm_core::{Cluster, Demand, Kind, PoolId, Protocol, Visitor};
use kofm_sim::exhaustive::explore;
use kofm_sim::report::Report;
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;
use kofm_sim::visit_on;
use kofm_sim::world::Script;

fn main() {
    // `cargo test --benches` passes flags of the test harness; there is nothing to test here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let sound = || Kind::ALL.iter().copied().filter(|kind| !kind.profile().as_printed);
    println!("simulator, 9 sites, 8 units, k 1..8, 100,000 claims");
    for kind in sound() {
        let setup = Setup { k: (1, 8), requests: 100_000, ..Setup::new(Cluster::new(9, 8)) };
        simulate(kind, &setup);
    }
    println!("\nsimulator, 1,000 sites, 8 units, 10,000 claims");
    for kind in sound() {
        let think = Span::Exponential(10_000.0);
        let setup = Setup { k: (1, 4), think, ..Setup::new(Cluster::new(1_000, 8)) };
        simulate(kind, &setup);
    }
    println!("\nchecker, 3 sites, 3 units, two claims per site, k 1..3, at most 15,000,000 states");
    for kind in sound() {
        kind.visit(Check);
    }
    println!("\npeak memory {} MiB", peak_memory_mib());
}

fn simulate(kind: Kind, setup: &Setup) {
    struct Run<'a>(&'a Setup);
    impl Visitor for Run<'_> {
        type Output = Report;
        fn visit<P: Protocol>(self) -> Report {
            run::<P, _>(self.0, &mut Blind)
        }
    }
    let start = Instant::now();
    let report = visit_on(kind, &Topology::Full, Run(setup));
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "  {:<20} {:>8.2} million events per second ({} events, {seconds:.2} s)",
        kind.name(),
        report.events as f64 / seconds / 1e6,
        report.events
    );
}

struct Check;

impl Visitor for Check {
    type Output = ();
    fn visit<P: Protocol>(self) {
        let demands = (1..=3).map(|k| Demand::one(PoolId(0), k)).collect();
        let (cluster, script) = (Cluster::new(3, 3), Script::new(3, 2, demands));
        let start = Instant::now();
        let found = explore::<P>(&cluster, &script, 15_000_000, |_| {});
        let seconds = start.elapsed().as_secs_f64();
        let rate = found.states as f64 / seconds / 1e3;
        let states = found.states;
        println!("  {:<20} {rate:>8.0} thousand states per second ({states} states)", P::NAME);
    }
}

/// The most memory that this process had, where the system says so.
fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1_024
}
