//! Crashes, cuts and partitions, with the guards of the tree protocol and without.
//!
//! `cargo run --release -p kofm-sim --example tree_storm [-- RUNS-PER-CELL]`
//!
//! Twelve sites on random connected graphs share three units; in each run one thing happens, and is
//! undone later.

use std::io::{Write, stdout};

use kofm_core::Protocol;
use kofm_core::protocols::tree::Tree;
use kofm_sim::healing::{
    Blow, Guarded, Naive, NoLease, NoPart, NoQuorum, NoSettle, NoTaint, Storm,
};

fn main() {
    let runs: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1_000);
    println!(
        "{:<10} {:<12} {:>5} {:>7} {:>7} {:>8} {:>8}",
        "what", "guards", "runs", "unsafe", "healed", "grants", "revoked"
    );
    for blow in [Blow::Crash, Blow::RootCrash, Blow::Cut, Blow::Partition, Blow::Many] {
        cell::<Tree<Guarded>>(blow, "all", runs);
        cell::<Tree<NoQuorum>>(blow, "no quorum", runs);
        cell::<Tree<NoLease>>(blow, "no lease", runs);
        cell::<Tree<NoSettle>>(blow, "no settle", runs);
        cell::<Tree<NoTaint>>(blow, "no taint", runs);
        cell::<Tree<NoPart>>(blow, "no part", runs);
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
    stdout().flush().expect("standard output is there");
}
