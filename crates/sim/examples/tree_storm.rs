//! Crashes, cuts and partitions, with the guards of the tree protocol and without.
//!
//! `cargo run --release -p kofm-sim --example tree_storm [-- RUNS-PER-CELL]`
//!
//! Twelve sites on random connected graphs share three units; in each run one thing happens, and is
//! undone later.

use kofm_core::Protocol;
use kofm_core::protocols::tree::Tree;
use kofm_sim::healing::{Blow, Guarded, Naive, NoQuorum, Storm};

fn main() {
    let runs: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(300);
    println!(
        "{:<10} {:<12} {:>5} {:>7} {:>7} {:>8} {:>8}",
        "what", "guards", "runs", "unsafe", "healed", "grants", "revoked"
    );
    for blow in [Blow::Crash, Blow::RootCrash, Blow::Cut, Blow::Partition, Blow::Many] {
        cell::<Tree<Guarded>>(blow, "all", runs);
        cell::<Tree<NoQuorum>>(blow, "no quorum", runs);
        cell::<Tree<Naive>>(blow, "none", runs);
    }
}

fn cell<P: Protocol>(blow: Blow, guards: &str, runs: u64) {
    let (mut bad, mut healed, mut grants, mut revoked) = (0, 0, 0, 0);
    for seed in 0..runs {
        let result = Storm::drawn(blow, seed).run::<P>();
        bad += u64::from(result.unsafe_grants > 0);
        healed += u64::from(result.healed);
        grants += result.grants;
        revoked += result.revoked;
    }
    let blow = format!("{blow:?}");
    println!("{blow:<10} {guards:<12} {runs:>5} {bad:>7} {healed:>7} {grants:>8} {revoked:>8}");
}
