//! Prints `roaming` beside `permission` on the same workloads, over the grid of the research note.
//!
//! `cargo run --release -p kofm-sim --example roaming_table [-- SITES [UNITS [SEED]]]`
//!
//! Every cell is the mean over five seeds, or one seed where it is named; but `most`, the messages
//! of the dearest claim, and `over`, how many younger claims passed one, are the largest of all.
//!
//! The workload, as far as the note tells it: one-way delay 1 (uniform 0.5..1.5), hold 5
//! (exponential), 1 or 2 units per claim, a closed load of about two clients per unit but at least
//! one per site. Each thinks so long that all together, if nobody had to wait, would use 0.1, 0.5
//! or 1.5 times what there is. With a hot site, 80 % of the demand is there. The waits of
//! `permission` come out as the note's, which are printed too, as are the note's two versions of
//! `roaming`.

use std::io::{Write, stdout};
use std::ops::RangeInclusive;

use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::roaming::Roaming;
use kofm_core::{Cluster, Protocol, SiteId};
use kofm_sim::report::Report;
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;

const SITES: [u16; 5] = [3, 5, 9, 17, 33];
const UNITS: [u32; 4] = [1, 3, 8, 32];
const LOADS: [(&str, f64); 3] = [("low", 0.1), ("mid", 0.5), ("heavy", 1.5)];
const HOLD: f64 = 5.0;

fn main() {
    let only: Vec<u32> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let wanted = |at: usize, value: u32| only.get(at).is_none_or(|&only| only == value);
    let mut misses = Vec::new();
    for (hot, name, notes) in [(false, "uniform", &UNIFORM), (true, "hot", &HOT)] {
        println!("{name} demand: messages per grant and mean wait");
        println!(
            "{:>2} {:>2} {:<5} | {:>6} {:>6} {:>6} {:>4} | {:>6} {:>4} {:>6} {:>6} {:>4} {:>5} | \
             note: Raynal, first, final",
            "n",
            "M",
            "load",
            "perm",
            "wait",
            "p99",
            "over",
            "roam",
            "most",
            "wait",
            "p99",
            "over",
            "w-rat"
        );
        let mut cells = notes.iter();
        for sites in SITES {
            for units in UNITS {
                for (load, factor) in LOADS {
                    let note = cells.next().expect("one row per cell");
                    if !wanted(0, sites.into()) || !wanted(1, units) {
                        continue;
                    }
                    let setup = workload(sites, units, factor, hot);
                    let seeds = only.get(2).map_or(1..=5, |&seed| seed.into()..=seed.into());
                    let base = measure::<Permission>(&setup, seeds.clone());
                    let ours = measure::<Roaming>(&setup, seeds);
                    println!("{sites:>2} {units:>2} {load:<5} | {}", row(&base, &ours, note));
                    stdout().flush().expect("standard output is there");
                    // The note's bound: an ask, n - 1 forwards and the unit, for each unit.
                    let bound = setup.k.1 * (u32::from(sites) + 1);
                    let found = judge(&base, &ours, note, bound);
                    let cell = format!("{name} {sites} {units} {load}");
                    misses.extend(found.into_iter().map(|miss| format!("{cell}: {miss}")));
                }
            }
        }
    }
    println!("\n{} misses", misses.len());
    for miss in misses {
        println!("{miss}");
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "few clients")]
fn workload(sites: u16, units: u32, load: f64, hot: bool) -> Setup {
    let mut setup = Setup::new(Cluster::new(sites, units));
    setup.k = (1, 2.min(units));
    let mean = f64::from(1 + setup.k.1) / 2.0;
    let n = f64::from(sites);
    let clients = (2.0 * f64::from(units) / n).round().max(1.0);
    let think = clients * n * HOLD * mean / (load * f64::from(units)) - HOLD;
    setup.requests = 6_000;
    setup.hold = Span::Exponential(HOLD);
    setup.clients = clients as u32;
    setup.think = Span::Exponential(think);
    // A client claims now here, now there; with a hot site, four times of five there.
    setup.wander = true;
    if hot {
        setup.hot = vec![(SiteId(0), 4.0 * (n - 1.0))];
    }
    setup
}

/// What some seeds have shown of a protocol.
struct Cell {
    /// Messages per grant, the mean over all.
    messages: f64,
    /// The dearest claim of all.
    most: u32,
    /// The wait, the mean over all.
    wait: f64,
    /// The wait of the slowest hundredth, the mean over all.
    slow: f64,
    /// How many younger claims passed one at the most.
    overtaken: u32,
    /// What went wrong.
    faults: Vec<String>,
}

fn measure<P: Protocol>(setup: &Setup, seeds: RangeInclusive<u64>) -> Cell {
    let report = |seed| run::<P>(&Setup { seed, ..setup.clone() }, &mut Blind);
    let reports: Vec<Report> = seeds.map(report).collect();
    let mean = |value: fn(&Report) -> f64| {
        reports.iter().map(value).sum::<f64>()
            / f64::from(u32::try_from(reports.len()).unwrap_or(1))
    };
    let faults = reports.iter().filter(|report| !report.is_clean());
    Cell {
        messages: mean(|report| report.messages_per_grant().mean),
        most: reports.iter().map(|report| report.messages_per_grant().max).max().unwrap_or(0),
        wait: mean(Report::wait_mean),
        slow: mean(|report| report.wait_at(990)),
        overtaken: reports.iter().map(|report| report.overtaken_max).max().unwrap_or(0),
        faults: faults
            .map(|report| format!("{:?}, {} unserved", report.violations, report.unserved))
            .collect(),
    }
}

fn row(base: &Cell, ours: &Cell, note: &[f64; 6]) -> String {
    let ratio = ours.wait / base.wait;
    let clean = if ours.faults.is_empty() { "" } else { " NOT CLEAN" };
    format!(
        "{:>6.2} {:>6.2} {:>6.1} {:>4} | {:>6.2} {:>4} {:>6.2} {:>6.1} {:>4} {ratio:>5.2} | \
         {:>5.2} w{:<5} {:>5.2} w{:<5} {:>5.2} w{}{clean}",
        base.messages,
        base.wait,
        base.slow,
        base.overtaken,
        ours.messages,
        ours.most,
        ours.wait,
        ours.slow,
        ours.overtaken,
        note[0],
        note[1],
        note[2],
        note[3],
        note[4],
        note[5],
    )
}

/// What is not as it should be.
fn judge(base: &Cell, ours: &Cell, note: &[f64; 6], bound: u32) -> Vec<String> {
    let mut misses = ours.faults.clone();
    let best = note[2].min(note[4]);
    if ours.messages > base.messages {
        misses.push(format!("{:.2} messages, permission {:.2}", ours.messages, base.messages));
    }
    let ratio = ours.wait / base.wait;
    if ratio > 1.3 {
        misses.push(format!("wait {ratio:.2} times permission's"));
    }
    // The note's numbers are rounded to a hundredth.
    if ours.messages > best * 1.05 + 0.005 {
        let above = (ours.messages / best - 1.0) * 100.0;
        misses.push(format!("{:.2} messages, {above:.0} % above {best:.2}", ours.messages));
    }
    if ours.most > bound {
        misses.push(format!("{} messages for one claim, not {bound}", ours.most));
    }
    misses
}

/// Per cell: messages and wait of Raynal, of the first version, of the final version.
const UNIFORM: [[f64; 6]; 60] = [
    [4.06, 2.6, 1.57, 1.9, 1.58, 2.0],      // 3 1 low
    [4.29, 4.4, 1.59, 3.7, 1.53, 3.7],      // 3 1 mid
    [4.73, 8.3, 1.68, 8.1, 1.45, 8.2],      // 3 1 heavy
    [4.15, 2.5, 1.27, 1.4, 1.30, 1.5],      // 3 3 low
    [4.66, 4.6, 1.69, 4.0, 1.68, 4.3],      // 3 3 mid
    [5.46, 11.8, 2.20, 11.7, 1.77, 12.2],   // 3 3 heavy
    [4.37, 2.2, 0.32, 0.3, 0.28, 0.3],      // 3 8 low
    [5.15, 2.5, 1.21, 1.3, 1.28, 1.7],      // 3 8 mid
    [5.91, 8.6, 2.82, 9.9, 2.16, 11.5],     // 3 8 heavy
    [5.04, 2.3, 0.00, 0.0, 0.00, 0.0],      // 3 32 low
    [5.80, 2.4, 0.48, 0.3, 0.25, 0.1],      // 3 32 mid
    [6.00, 7.6, 4.70, 14.2, 9.67, 40.1],    // 3 32 heavy
    [8.09, 2.9, 2.29, 2.8, 2.31, 2.8],      // 5 1 low
    [8.46, 5.5, 2.43, 5.7, 2.30, 5.4],      // 5 1 mid
    [9.46, 13.8, 2.48, 13.8, 1.98, 13.8],   // 5 1 heavy
    [8.19, 2.7, 2.17, 2.1, 2.40, 2.4],      // 5 3 low
    [8.91, 4.9, 2.62, 4.5, 2.68, 5.6],      // 5 3 mid
    [10.18, 11.7, 3.22, 12.3, 2.80, 13.5],  // 5 3 heavy
    [8.49, 2.4, 1.03, 0.9, 0.96, 1.0],      // 5 8 low
    [9.74, 2.8, 2.27, 2.3, 2.08, 3.1],      // 5 8 mid
    [11.43, 8.5, 3.91, 10.6, 3.47, 12.9],   // 5 8 heavy
    [9.54, 2.4, 0.02, 0.0, 0.02, 0.0],      // 5 32 low
    [11.26, 2.5, 1.35, 0.8, 0.64, 0.5],     // 5 32 mid
    [11.99, 8.1, 6.58, 16.2, 9.43, 38.9],   // 5 32 heavy
    [16.12, 3.2, 3.38, 4.0, 3.32, 3.9],     // 9 1 low
    [16.68, 6.5, 3.50, 7.9, 3.27, 7.3],     // 9 1 mid
    [18.84, 24.4, 3.50, 23.5, 2.75, 23.5],  // 9 1 heavy
    [16.22, 2.9, 3.45, 3.1, 3.67, 3.5],     // 9 3 low
    [17.21, 5.5, 3.99, 6.1, 3.95, 7.5],     // 9 3 mid
    [19.35, 15.0, 4.59, 16.2, 4.03, 18.6],  // 9 3 heavy
    [16.59, 2.6, 2.37, 1.9, 2.15, 2.1],     // 9 8 low
    [18.31, 3.0, 3.64, 3.3, 3.12, 5.0],     // 9 8 mid
    [21.47, 9.1, 5.17, 11.5, 4.65, 13.6],   // 9 8 heavy
    [18.05, 2.6, 0.26, 0.2, 0.21, 0.2],     // 9 32 low
    [21.42, 2.6, 3.24, 1.8, 1.44, 1.5],     // 9 32 mid
    [23.88, 8.5, 7.99, 17.3, 10.38, 37.7],  // 9 32 heavy
    [32.12, 3.3, 4.81, 5.3, 4.75, 5.3],     // 17 1 low
    [32.87, 7.5, 4.99, 9.7, 4.74, 9.6],     // 17 1 mid
    [37.66, 45.6, 5.20, 46.8, 3.94, 43.9],  // 17 1 heavy
    [32.28, 3.1, 5.07, 4.3, 5.24, 4.8],     // 17 3 low
    [33.65, 7.0, 5.63, 8.2, 5.59, 11.0],    // 17 3 mid
    [38.63, 30.1, 6.73, 30.5, 5.67, 35.9],  // 17 3 heavy
    [32.66, 2.7, 3.97, 2.9, 3.52, 3.4],     // 17 8 low
    [34.82, 3.1, 5.13, 4.4, 4.35, 7.4],     // 17 8 mid
    [39.47, 9.2, 6.75, 11.9, 5.40, 15.5],   // 17 8 heavy
    [34.42, 2.7, 1.71, 1.2, 1.07, 1.1],     // 17 32 low
    [39.88, 2.7, 5.50, 2.8, 2.46, 3.4],     // 17 32 mid
    [46.22, 8.1, 9.11, 17.2, 12.08, 27.6],  // 17 32 heavy
    [64.14, 3.5, 6.86, 7.4, 6.95, 7.6],     // 33 1 low
    [65.21, 9.7, 7.21, 12.8, 6.88, 13.5],   // 33 1 mid
    [75.10, 84.3, 7.77, 87.6, 5.97, 82.3],  // 33 1 heavy
    [64.29, 3.2, 7.41, 5.9, 7.41, 6.6],     // 33 3 low
    [66.10, 8.1, 7.67, 11.9, 7.53, 16.4],   // 33 3 mid
    [76.93, 54.5, 10.28, 57.4, 9.13, 67.6], // 33 3 heavy
    [64.73, 2.8, 5.87, 4.2, 5.21, 4.8],     // 33 8 low
    [67.60, 3.6, 7.27, 5.9, 6.02, 12.1],    // 33 8 mid
    [77.62, 17.3, 9.47, 21.7, 7.23, 30.2],  // 33 8 heavy
    [66.67, 2.8, 3.77, 2.4, 2.56, 2.7],     // 33 32 low
    [74.15, 2.8, 7.08, 3.7, 3.76, 6.4],     // 33 32 mid
    [86.64, 8.4, 10.89, 17.5, 6.09, 14.1],  // 33 32 heavy
];
/// Per cell: messages and wait of Raynal, of the first version, of the final version.
const HOT: [[f64; 6]; 60] = [
    [4.03, 2.6, 0.74, 1.1, 0.73, 1.1],     // 3 1 low
    [4.14, 4.2, 0.73, 2.7, 0.71, 2.8],     // 3 1 mid
    [4.35, 7.9, 0.76, 7.0, 0.62, 7.0],     // 3 1 heavy
    [4.07, 2.5, 0.68, 0.9, 0.69, 0.9],     // 3 3 low
    [4.32, 4.3, 0.81, 3.1, 0.75, 3.1],     // 3 3 mid
    [4.72, 10.6, 1.05, 10.4, 0.74, 10.8],  // 3 3 heavy
    [4.18, 2.2, 0.19, 0.2, 0.19, 0.2],     // 3 8 low
    [4.60, 2.5, 0.68, 0.8, 0.64, 1.0],     // 3 8 mid
    [5.28, 7.5, 1.46, 7.7, 0.82, 8.0],     // 3 8 heavy
    [4.54, 2.3, 0.00, 0.0, 0.00, 0.0],     // 3 32 low
    [5.19, 2.4, 0.17, 0.1, 0.16, 0.1],     // 3 32 mid
    [5.91, 6.6, 2.32, 8.0, 2.98, 14.5],    // 3 32 heavy
    [8.03, 2.9, 0.78, 1.3, 0.77, 1.2],     // 5 1 low
    [8.19, 5.2, 0.80, 3.7, 0.73, 3.6],     // 5 1 mid
    [8.52, 12.0, 0.82, 11.5, 0.64, 11.7],  // 5 1 heavy
    [8.08, 2.7, 0.87, 1.1, 0.88, 1.1],     // 5 3 low
    [8.35, 4.6, 0.95, 3.2, 0.87, 3.2],     // 5 3 mid
    [8.83, 10.8, 1.10, 10.6, 0.75, 10.8],  // 5 3 heavy
    [8.20, 2.4, 0.45, 0.4, 0.43, 0.4],     // 5 8 low
    [8.70, 2.7, 0.86, 0.9, 0.82, 1.3],     // 5 8 mid
    [9.65, 7.5, 1.63, 7.9, 0.86, 8.3],     // 5 8 heavy
    [8.63, 2.4, 0.00, 0.0, 0.00, 0.0],     // 5 32 low
    [9.68, 2.5, 0.32, 0.2, 0.31, 0.3],     // 5 32 mid
    [11.24, 6.7, 2.26, 7.6, 1.34, 8.1],    // 5 32 heavy
    [16.04, 3.1, 0.81, 1.4, 0.78, 1.3],    // 9 1 low
    [16.24, 6.1, 0.83, 4.3, 0.76, 4.3],    // 9 1 mid
    [16.82, 20.4, 0.87, 18.8, 0.65, 18.7], // 9 1 heavy
    [16.09, 2.9, 0.98, 1.1, 0.93, 1.1],    // 9 3 low
    [16.37, 5.1, 1.02, 3.5, 0.90, 3.7],    // 9 3 mid
    [17.02, 13.0, 1.14, 12.6, 0.81, 14.2], // 9 3 heavy
    [16.21, 2.6, 0.72, 0.6, 0.72, 0.6],    // 9 8 low
    [16.76, 2.9, 0.98, 1.0, 1.00, 1.5],    // 9 8 mid
    [17.85, 7.3, 1.71, 7.7, 0.94, 8.1],    // 9 8 heavy
    [16.67, 2.6, 0.08, 0.1, 0.05, 0.0],    // 9 32 low
    [18.05, 2.6, 0.60, 0.4, 0.56, 0.6],    // 9 32 mid
    [20.69, 6.2, 2.29, 7.1, 1.05, 6.9],    // 9 32 heavy
    [32.05, 3.3, 0.82, 1.3, 0.86, 1.4],    // 17 1 low
    [32.28, 7.1, 0.85, 5.4, 0.77, 5.1],    // 17 1 mid
    [33.34, 33.2, 0.90, 34.9, 0.66, 37.2], // 17 1 heavy
    [32.09, 3.1, 1.04, 1.2, 1.11, 1.3],    // 17 3 low
    [32.46, 5.9, 1.10, 4.8, 0.99, 5.2],    // 17 3 mid
    [33.69, 23.4, 1.14, 22.1, 0.84, 25.5], // 17 3 heavy
    [32.22, 2.7, 0.91, 0.7, 0.95, 0.9],    // 17 8 low
    [32.76, 2.9, 1.13, 1.2, 1.21, 1.7],    // 17 8 mid
    [33.81, 7.1, 1.64, 6.9, 1.02, 8.7],    // 17 8 heavy
    [32.70, 2.7, 0.35, 0.2, 0.30, 0.2],    // 17 32 low
    [34.24, 2.7, 0.89, 0.6, 0.77, 0.9],    // 17 32 mid
    [37.56, 5.9, 2.42, 6.8, 1.07, 6.6],    // 17 32 heavy
    [64.05, 3.4, 0.85, 1.5, 0.81, 1.4],    // 33 1 low
    [64.31, 7.6, 0.88, 6.4, 0.78, 5.6],    // 33 1 mid
    [66.52, 68.0, 0.85, 69.8, 0.67, 71.8], // 33 1 heavy
    [64.11, 3.2, 1.06, 1.2, 1.14, 1.4],    // 33 3 low
    [64.48, 6.2, 1.10, 5.7, 0.96, 6.3],    // 33 3 mid
    [67.18, 44.4, 1.22, 44.4, 0.81, 51.9], // 33 3 heavy
    [64.23, 2.8, 1.13, 0.9, 1.23, 1.1],    // 33 8 low
    [64.88, 3.1, 1.22, 1.3, 1.21, 1.9],    // 33 8 mid
    [67.26, 14.2, 1.70, 13.0, 1.08, 15.9], // 33 8 heavy
    [64.69, 2.8, 0.70, 0.5, 0.61, 0.5],    // 33 32 low
    [66.64, 2.8, 1.07, 0.6, 1.02, 1.2],    // 33 32 mid
    [71.25, 6.4, 2.32, 6.8, 1.21, 7.2],    // 33 32 heavy
];
