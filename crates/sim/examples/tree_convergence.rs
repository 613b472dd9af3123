//! From garbage in all memories and on all links: how the tree protocol heals.
//!
//! `cargo run --release -p kofm-sim --example tree_convergence [-- STARTS-PER-CELL]`
//!
//! Every variable is drawn at random and every link carries up to eight random messages; everybody
//! asks. The first table is the paper's protocol, repaired, on trees that are given, with a timeout
//! of two tours. The second is what sites run: the tree itself has to grow first, units are made
//! only when nobody can still use them, and a beat is 250 link delays.

use std::io::{Write, stdout};

use kofm_core::protocols::tree::{Rules, Sound};
use kofm_sim::healing::{Bare, Convergence, Shape, from_anywhere};

fn main() {
    let each: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(450);
    println!("the paper's protocol, repaired, on a given tree");
    let bare = table::<Bare>(each, &[(1, 1), (4, 2), (12, 4)]);
    println!("\nas sites run it");
    let sound = table::<Sound>(each / 3, &[(4, 2)]);
    println!("\n{} starts, {} healed", bare.0 + sound.0, bare.1 + sound.1);
}

fn table<R: Rules>(each: u64, sizes: &[(u32, u32)]) -> (u64, u64) {
    println!(
        "{:>3} {:<6} {:>5} {:>6} {:>6} | {:>22} | {:>17} | {:>17} | {:>6} {:>5}",
        "n",
        "shape",
        "ℓ,k",
        "starts",
        "healed",
        "circulations",
        "tours",
        "messages",
        "before",
        "after"
    );
    let (mut starts, mut healed) = (0, 0);
    for sites in [2u16, 3, 5, 8, 16, 32] {
        let shapes: &[Shape] = match sites {
            2 => &[Shape::Path],
            3 => &[Shape::Path, Shape::Star],
            _ => &[Shape::Path, Shape::Star, Shape::Random],
        };
        for &shape in shapes {
            for &size in sizes {
                let mut cell = Convergence::default();
                for seed in 0..each {
                    let report = from_anywhere::<R>(sites, shape, size, seed);
                    if let Some(violation) = report.violations.first() {
                        println!("{sites} {shape:?} {size:?}, seed {seed}: {violation:?}");
                    }
                    cell.add(&report);
                }
                row(sites, shape, size, &cell);
                starts += cell.starts;
                healed += cell.healed;
            }
        }
    }
    (starts, healed)
}

fn row(sites: u16, shape: Shape, (units, k): (u32, u32), cell: &Convergence) {
    let tour = 2.0 * f64::from(sites - 1);
    let (mean, p95, max) = cell.circulations();
    let (time, longest) = cell.time();
    let (messages, most) = cell.messages();
    println!(
        "{sites:>3} {:<6} {:>5} {:>6} {:>6} | {mean:>6.1} p95 {p95:>4} max {max:>3} | \
         {:>6.1} max {:>6.1} | {messages:>6.0} max {most:>6} | {:>6} {:>5}",
        shape.name(),
        format!("{units},{k}"),
        cell.starts,
        cell.healed,
        time / tour,
        longest / tour,
        cell.before,
        cell.after
    );
    stdout().flush().expect("standard output is there");
}
