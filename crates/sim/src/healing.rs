//! Experiments with the tree protocol: how it heals from garbage, from crashes and cuts, and what
//! it costs while nobody asks. Examples print them at full size, tests hold to them in small.

mod storm;

use std::time::Duration;

use kofm_core::protocols::tree::{Pace, Rules, Tree};
use kofm_core::topology::{Graph, Topology};
use kofm_core::{Cluster, SiteId};

pub use self::storm::{Blow, Storm, Weathered};
use crate::faults::Fault;
use crate::report::{Report, Stabilised};
use crate::rng::Rng;
use crate::seeded::{Blind, Setup, run};
use crate::span::{DELAY, Span};

/// The protocol of the paper, repaired: a tree that is given, tokens that never pause, no guards
/// for crashes, a timeout of two tours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bare;

impl Rules for Bare {
    const WATCHES: bool = false;
    const COALESCES: bool = false;
    const GATED: bool = false;
    const PARKS: bool = false;
    const SETTLE: bool = false;
    const LEASE: bool = false;
    const QUORUM: bool = false;

    fn pace(sites: u16) -> Pace {
        // Half a tour of n−1 links there and n−1 back, at one millisecond each.
        let beat = Duration::from_millis(u64::from(sites.max(2)) - 1);
        Pace { timeout: 3, gate: 1, ..Pace::new(beat, 2) }
    }
}

fn quick(sites: u16) -> Pace {
    Pace::new(Duration::from_millis(5), 1 + sites * 3 / 5)
}

macro_rules! guarded {
    ($($(#[$doc:meta])* $name:ident { $($guard:ident),* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name;

        impl Rules for $name {
            $(const $guard: bool = false;)*
            fn pace(sites: u16) -> Pace {
                quick(sites)
            }
        }
    )*};
}

guarded! {
    /// All guards, with beats as short as the links: for runs in which much happens in little time.
    Guarded {}
    /// The guards left out: a tree that grows, and the paper's protocol on it.
    Naive { PART, BUSY, TAINT, SETTLE, LEASE, QUORUM }
    /// All guards but the quorum.
    NoQuorum { QUORUM }
    /// All guards but the lease.
    NoLease { LEASE }
    /// All guards but the wait before units are made.
    NoSettle { SETTLE }
    /// All guards but the taint of circulations that met a change.
    NoTaint { TAINT }
    /// All guards but the mark of circulations that were begun again, and the wait for used units.
    NoPart { PART, BUSY }
}

/// The shape of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One after another, from the root.
    Path,
    /// Everybody beside the root.
    Star,
    /// Each below one of those before it.
    Random,
}

impl Shape {
    /// A tree of that shape.
    pub fn tree(self, sites: u16, rng: &mut Rng) -> Topology {
        let above = |site: u16, rng: &mut Rng| match self {
            Self::Path => site - 1,
            Self::Star => 0,
            Self::Random => u16::try_from(rng.below(site.into())).expect("below a small number"),
        };
        let edges = (1..sites).map(|site| (SiteId(above(site, rng)), SiteId(site))).collect();
        Topology::Graph(Graph::new(sites, edges).expect("every site hangs on one before it"))
    }

    /// For tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Star => "star",
            Self::Random => "random",
        }
    }
}

/// A run that begins anywhere, with everybody asking.
pub fn from_anywhere<R: Rules>(
    sites: u16,
    shape: Shape,
    (units, k): (u32, u32),
    seed: u64,
) -> Report {
    let topology = shape.tree(sites, &mut Rng::new(seed ^ 0x7EEE));
    let setup = Setup {
        k: (1, k),
        requests: 3 * u64::from(sites),
        think: Span::Exponential(2.0),
        faults: vec![Fault::ArbitraryStart],
        seed,
        ..Setup::new(Cluster { topology, ..Cluster::new(sites, units) })
    };
    run::<Tree<R>>(&setup, &mut Blind)
}

/// How often a claim was passed by younger ones, at most, in a run in which everybody asks again at
/// once: for one unit up to all of them.
pub fn passed<R: Rules>(sites: u16, shape: Shape, units: u32, seed: u64) -> u32 {
    let mut rng = Rng::new(seed);
    let spans = [Span::Exponential(1.0), Span::Uniform(0.5, 1.5), Span::Constant(1.0)];
    let delay = spans[usize::try_from(rng.below(3)).expect("one of three")];
    let topology = shape.tree(sites, &mut rng);
    let setup = Setup {
        k: (1, u32::try_from(rng.between(1, units.into())).expect("no more than the units")),
        requests: 40 * u64::from(sites),
        think: Span::Exponential(0.2),
        hold: Span::Exponential(0.2),
        delay,
        seed,
        ..Setup::new(Cluster { topology, ..Cluster::new(sites, units) })
    };
    let report = run::<Tree<R>>(&setup, &mut Blind);
    assert!(report.is_clean(), "{setup:?}: {:?}", report.violations);
    report.overtaken_max
}

/// What many runs from anywhere came to.
#[derive(Clone, Debug, Default)]
pub struct Convergence {
    /// Runs.
    pub starts: u64,
    /// Runs that came to rest with all tokens right, everybody served, nothing violated afterwards.
    pub healed: u64,
    /// Violations before all was right.
    pub before: u64,
    /// Violations after.
    pub after: u64,
    runs: Vec<Stabilised>,
}

impl Convergence {
    /// Adds a run.
    pub fn add(&mut self, report: &Report) {
        self.starts += 1;
        self.healed += u64::from(report.is_clean());
        self.before += report.violations_before;
        self.after += report.violation_count;
        self.runs.extend(report.stabilised);
    }

    /// Circulations: the mean, the most of 95 of 100 runs, and the most.
    pub fn circulations(&self) -> (f64, u64, u64) {
        let mut list: Vec<u64> = self.runs.iter().map(|run| run.circulations).collect();
        list.sort_unstable();
        let place = (list.len() * 95).div_ceil(100).saturating_sub(1);
        let at = |place: usize| list.get(place).copied().unwrap_or(0);
        (mean(&list), at(place), at(list.len().saturating_sub(1)))
    }

    /// Link delays: the mean and the most.
    pub fn time(&self) -> (f64, f64) {
        let list: Vec<u64> = self.runs.iter().map(|run| run.time).collect();
        let most = list.iter().copied().max().unwrap_or(0);
        (mean(&list) / DELAY as f64, most as f64 / DELAY as f64)
    }

    /// Messages: the mean and the most.
    pub fn messages(&self) -> (f64, u64) {
        let list: Vec<u64> = self.runs.iter().map(|run| run.messages).collect();
        (mean(&list), list.iter().copied().max().unwrap_or(0))
    }
}

fn mean(list: &[u64]) -> f64 {
    list.iter().sum::<u64>() as f64 / list.len().max(1) as f64
}

/// One claim after a long time in which nobody asked: messages per link delay before it, and how
/// long it waited.
pub fn idle<R: Rules>(topology: &Topology, sites: u16, units: u32, seed: u64) -> (f64, f64) {
    const QUIET: f64 = 5_000.0;
    let setup = Setup {
        requests: 1,
        think: Span::Uniform(QUIET, QUIET * 1.2),
        seed,
        ..Setup::new(Cluster { topology: topology.clone(), ..Cluster::new(sites, units) })
    };
    let report = run::<Tree<R>>(&setup, &mut Blind);
    // The first of all to have thought enough asks: soon after the shortest time.
    (report.messages as f64 / QUIET, report.wait_mean())
}
