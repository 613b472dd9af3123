//! What the tree protocol costs while nobody asks, and how long the first claim after that waits.
//!
//! `cargo run --release -p kofm-sim --example tree_pace [-- SEEDS]`
//!
//! 32 sites share eight units. Unpaced, every token travels by itself and never rests.

use kofm_core::protocols::tree::{Rules, Sound};
use kofm_sim::healing::{Bare, Shape, idle};
use kofm_sim::rng::Rng;

fn main() {
    let seeds: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(200);
    println!("{:<7} {:>14} {:>14} {:>7}", "", "unpaced", "paced", "ratio");
    for shape in [Shape::Path, Shape::Star, Shape::Random] {
        let (bare, paced) = (mean::<Bare>(shape, seeds), mean::<Sound>(shape, seeds));
        let name = shape.name();
        let (less, longer) = (bare.0 / paced.0, paced.1 / bare.1);
        println!(
            "{name:<7} {:>14.3} {:>14.3} {less:>6.1}x messages per link delay",
            bare.0, paced.0
        );
        println!(
            "{:<7} {:>14.1} {:>14.1} {longer:>6.2}x link delays to a grant",
            "", bare.1, paced.1
        );
    }
}

fn mean<R: Rules>(shape: Shape, seeds: u64) -> (f64, f64) {
    let (mut messages, mut wait) = (0.0, 0.0);
    for seed in 0..seeds {
        let (rate, waited) = idle::<R>(&shape.tree(32, &mut Rng::new(seed)), 32, 8, seed);
        messages += rate / seeds as f64;
        wait += waited / seeds as f64;
    }
    (messages, wait)
}
