//! Datta, Devismes, Horn and Larmore 2009, self-stabilizing k-out-of-ℓ exclusion on tree networks.

use kofm_core::topology::Topology;
use kofm_core::{Cluster, Demand, Fault, PoolId};
use kofm_sim::world::Script;

use super::Verdict::{False, Repaired, True};
use super::{Paper, Sentence, breaks, read, usual};

/// A tree whose sites ask for these units, once or forever, with a reading of the listing.
fn tree(
    units: u32,
    asked: &[u32],
    endless: bool,
    faults: &[Fault],
) -> Option<(&'static str, usize)> {
    let sites = u16::try_from(asked.len()).unwrap();
    let cluster = Cluster { topology: Topology::Tree, ..Cluster::new(sites, units) };
    let own = |&k: &u32| match k {
        0 => Vec::new(),
        k => vec![(Demand::one(PoolId(0), k), 1)],
    };
    let own = asked.iter().map(own).collect();
    let script = Script { own, endless, timeless: true, ..Script::new(sites, 0, Vec::new()) };
    breaks("tree-as-printed", &read(cluster, faults), &script)
}

pub(super) const PAPER: Paper = Paper {
    heading: "Datta 2009",
    sentences: &[
        Sentence {
            section: "figure 2",
            claim: "with units alone, claims that hold some each wait forever",
            verdict: True,
            shown: || {
                let found = tree(5, &[0, 3, 3, 3, 3], false, &[Fault::NoPusher]);
                assert_eq!(found, Some(("progress", 14)));
            },
        },
        Sentence {
            section: "figure 3",
            claim: "with a pusher alone, a claim for two units is passed over forever",
            verdict: True,
            shown: || {
                let found = tree(3, &[1, 2, 1], true, &[Fault::NoPriority]);
                assert_eq!(found.unwrap().0, "progress");
            },
        },
        Sentence {
            section: "lines 66 to 72",
            claim: "the root counts what it holds after it has decided",
            verdict: Repaired,
            shown: || {
                let name = "tree-as-printed";
                assert_eq!(usual(name, 2, 1, 1, None), Some(("capacity", 16)));
                assert_eq!(usual(name, 2, 1, 1, Some(&[])), None);
                assert_eq!(usual("tree", 2, 1, 1, None), None);
            },
        },
        Sentence {
            section: "line 40",
            claim: "a priority token that the root passes on need not be counted",
            verdict: False,
            shown: || {
                let found = usual("tree-as-printed-priority", 2, 1, 1, None);
                assert_eq!(found.unwrap().0, "tokens");
            },
        },
    ],
};

#[test]
fn hold() {
    PAPER.hold();
}
