//! How fast the laboratory is: `cargo bench -p kofm-sim`.
//!
//! Prints a line per measurement. Nothing is asserted: machines differ, and so do days.

#![expect(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::time::Instant;

use kofm_core::{Cluster, Demand, Kind, PoolId};
use kofm_sim::chosen;
use kofm_sim::seeded::Setup;
use kofm_sim::span::Span;
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
        time_simulator(kind, &setup);
    }
    println!("\nsimulator, 1,000 sites, 8 units, 10,000 claims");
    for kind in sound() {
        let think = Span::Exponential(10_000.0);
        let setup = Setup { k: (1, 4), think, ..Setup::new(Cluster::new(1_000, 8)) };
        time_simulator(kind, &setup);
    }
    println!("\nchecker, 3 sites, 3 units, two claims per site, k 1..3, at most 15,000,000 states");
    for kind in sound() {
        time_checker(kind);
    }
    println!("\npeak memory {} MiB", peak_memory_mib());
}

fn time_simulator(kind: Kind, setup: &Setup) {
    let start = Instant::now();
    let report = chosen::simulate(kind, setup);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "  {:<20} {:>8.2} million events per second ({} events, {seconds:.2} s)",
        kind.name(),
        report.events as f64 / seconds / 1e6,
        report.events
    );
}

fn time_checker(kind: Kind) {
    let demands = (1..=3).map(|k| Demand::one(PoolId(0), k)).collect();
    let (cluster, script) = (Cluster::new(3, 3), Script::new(3, 2, demands));
    let start = Instant::now();
    let states = chosen::explore(kind, &cluster, &script, 15_000_000, &mut |_| {}).states;
    let rate = states as f64 / start.elapsed().as_secs_f64() / 1e3;
    println!("  {:<20} {rate:>8.0} thousand states per second ({states} states)", kind.name());
}

/// The most memory that this process had, where the system says so.
fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1_024
}
