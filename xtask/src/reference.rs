//! The means of `permission` and `permission-lazy` beside the reference, cell by cell.

use std::process::ExitCode;

use kofm_core::{Cluster, Kind, SiteId};
use kofm_sim::chosen::simulate;
use kofm_sim::seeded::Setup;
use kofm_sim::span::Span;

const DATA: &str = include_str!("../data/raynal-1990.csv");

/// How far a mean may be off, in percent.
const TOLERANCE: f64 = 3.0;

/// Prints the table; fails where a cell is further off than the tolerance.
pub(crate) fn run() -> ExitCode {
    println!("messages per grant and mean wait; (difference to the reference in percent)\n");
    println!(
        "{:<8} {:>5} {:>5} {:<7} {:>26} {:>28}",
        "demand", "sites", "units", "load", "permission", "permission-lazy"
    );
    let mut off = 0;
    for line in DATA.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let cell = Cell::parse(line);
        let basic = cell.measure(Kind::Permission, cell.reference[0], cell.reference[1]);
        let lazy = cell.measure(Kind::PermissionLazy, cell.reference[2], cell.reference[3]);
        off += u32::from(basic.off) + u32::from(lazy.off);
        let Cell { demand, sites, units, load, .. } = cell;
        println!("{demand:<8} {sites:>5} {units:>5} {load:<7} {} {}", basic.text, lazy.text);
    }
    println!("\n{off} means are off by more than {TOLERANCE} percent");
    if off == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

struct Cell<'a> {
    demand: &'a str,
    sites: u16,
    units: u32,
    load: &'a str,
    think: f64,
    hold: f64,
    /// Messages and wait of `permission`, then of `permission-lazy`.
    reference: [f64; 4],
}

struct Measured {
    text: String,
    off: bool,
}

impl<'a> Cell<'a> {
    fn parse(line: &'a str) -> Self {
        let fields: Vec<&str> = line.split(',').collect();
        let [demand, sites, units, load, think, hold, m1, w1, m2, w2] = fields[..] else {
            panic!("ten fields in {line}");
        };
        let number = |text: &str| text.parse::<f64>().expect("the data are numbers");
        Self {
            demand,
            sites: sites.parse().expect("a number of sites"),
            units: units.parse().expect("a number of units"),
            load,
            think: number(think),
            hold: number(hold),
            reference: [m1, w1, m2, w2].map(number),
        }
    }

    fn measure(&self, kind: Kind, messages: f64, wait: f64) -> Measured {
        let long = self.demand == "long";
        let setup = Setup {
            k: (1, if long { 1 } else { self.units }),
            requests: 50_000,
            think: Span::Exponential(self.think),
            hold: Span::Exponential(self.hold),
            long: if long { vec![(SiteId(0), 50.0)] } else { Vec::new() },
            ..Setup::new(Cluster::new(self.sites, self.units))
        };
        let report = simulate(kind, &setup);
        let (m, w) = (report.messages_per_grant().mean, report.wait_mean());
        let percent = |ours: f64, theirs: f64| 100.0 * (ours / theirs - 1.0);
        let (dm, dw) = (percent(m, messages), percent(w, wait));
        Measured {
            text: format!("{m:>7.2} ({dm:>+4.1})  w {w:>6.2} ({dw:>+4.1})"),
            off: dm.abs() > TOLERANCE || dw.abs() > TOLERANCE || !report.is_clean(),
        }
    }
}
