//! How often a waiting claim is passed by others, against the bound 2ℓ(2n−3) and the paper's
//! ℓ(2n−3)².
//!
//! `cargo run --release -p kofm-sim --example tree_waiting [-- SEEDS]`
//!
//! Everybody asks again at once, for one unit up to all of them.

use kofm_sim::healing::{Bare, Shape, passed};

fn main() {
    let seeds: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1_000);
    println!(
        "{:>3} {:>3} {:>6} {:>7} {:>9} {:>9}",
        "n", "ℓ", "runs", "passed", "2ℓ(2n−3)", "ℓ(2n−3)²"
    );
    for sites in [2u16, 3, 4, 8, 16] {
        for units in [1, 2, 3, 8] {
            let mut most = 0;
            for seed in 0..seeds {
                let shape = [Shape::Path, Shape::Star, Shape::Random][(seed % 3) as usize];
                most = most.max(passed::<Bare>(sites, shape, units, seed));
            }
            let side = 2 * u32::from(sites) - 3;
            let (bound, paper) = (2 * units * side, units * side * side);
            println!("{sites:>3} {units:>3} {seeds:>6} {most:>7} {bound:>9} {paper:>9}");
            assert!(most <= bound, "the bound does not hold");
        }
    }
}
