//! The statements of each paper in the order of its text, in our words, each with its test.
//!
//! `docs/papers.md` has the same tables: a test compares them.

mod baldoni_1994;
mod cheng_1999;
mod datta_2009;
mod raynal_1990;
mod raynal_1992;

use std::path::Path;

use kofm_core::{Cluster, Fault};
use kofm_sim::chosen::simulate;
use kofm_sim::seeded::Setup;
use kofm_sim::span::Span;
use kofm_sim::world::Script;

use crate::{find, kind, script, violated};

/// The verdict on a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It holds as printed.
    True,
    /// It does not hold, and nothing that is close to it does.
    False,
    /// It does not hold as printed; what kofm runs instead does.
    Repaired,
}

/// A statement of a paper.
struct Sentence {
    section: &'static str,
    /// The statement, in our words.
    claim: &'static str,
    verdict: Verdict,
    /// Shows the verdict, or panics.
    shown: fn(),
}

/// A paper by the heading of its chapter in `docs/papers.md`.
struct Paper {
    heading: &'static str,
    sentences: &'static [Sentence],
}

impl Sentence {
    fn row(&self) -> String {
        let verdict = match self.verdict {
            Verdict::True => "true",
            Verdict::False => "false",
            Verdict::Repaired => "repaired",
        };
        format!("| {} | {} | {verdict} |", self.section, self.claim)
    }
}

impl Paper {
    /// Every statement has the verdict that is written beside it.
    fn hold(&self) {
        for sentence in self.sentences {
            println!("{}", sentence.row());
            (sentence.shown)();
        }
    }
}

const PAPERS: [&Paper; 5] = [
    &raynal_1990::PAPER,
    &raynal_1992::PAPER,
    &baldoni_1994::PAPER,
    &cheng_1999::PAPER,
    &datta_2009::PAPER,
];

/// The cluster with a reading of its listing.
fn read(cluster: Cluster, faults: &[Fault]) -> Cluster {
    Cluster { reading: Some(faults.iter().copied().collect()), ..cluster }
}

/// The property that a protocol breaks first in this cluster, after how many steps; none if all
/// states were seen and nothing is broken.
fn breaks(name: &str, cluster: &Cluster, script: &Script) -> Option<(&'static str, usize)> {
    let found = find(kind(name), cluster, script, 2_000_000);
    assert!(found.complete || found.violation.is_some(), "{name}: {} states", found.states);
    let lasso = found.lasso.as_ref().map(|run| run.prefix);
    let steps = found.violation.as_ref().map_or(0, |(_, lines)| lines.len());
    violated(&found).map(|property| (property, lasso.unwrap_or(steps)))
}

/// The same for this number of sites with `rounds` claims each, for every amount.
fn usual(
    name: &str,
    sites: u16,
    units: u32,
    rounds: u32,
    faults: Option<&[Fault]>,
) -> Option<(&'static str, usize)> {
    let cluster = Cluster::new(sites, units);
    let cluster = match faults {
        Some(faults) => read(cluster, faults),
        None => cluster,
    };
    breaks(name, &cluster, &script(kind(name), sites, units, rounds))
}

/// The cheapest and the dearest claim of several runs with one client at each site.
fn cost(name: &str, cluster: &Cluster, k: u32) -> (u32, u32) {
    let (mut min, mut max) = (u32::MAX, 0);
    for (seed, think) in (0..20).zip([0.5, 5.0, 200.0].into_iter().cycle()) {
        let think = Span::Exponential(think);
        let setup = Setup { k: (1, k), requests: 200, think, seed, ..Setup::new(cluster.clone()) };
        let cost = simulate(kind(name), &setup).messages_per_grant();
        (min, max) = (min.min(cost.min), max.max(cost.max));
    }
    (min, max)
}

#[test]
fn the_page_has_every_statement_with_its_verdict() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/papers.md");
    let page = std::fs::read_to_string(page).unwrap();
    for paper in PAPERS {
        let chapter = page.split("\n## ").find(|chapter| chapter.starts_with(paper.heading));
        let chapter = chapter.unwrap_or_else(|| panic!("no chapter {}", paper.heading));
        let mark = "| section | statement, in our words | verdict |\n| --- | --- | --- |\n";
        let (_, table) = chapter.split_once(mark).unwrap_or_else(|| panic!("{}", paper.heading));
        let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        let expected: Vec<String> = paper.sentences.iter().map(Sentence::row).collect();
        assert_eq!(rows, expected, "{}: write\n{}", paper.heading, expected.join("\n"));
    }
}
