//! Raynal 1990, A distributed solution to the k-out of-M resources allocation problem.

use kofm_core::topology::Topology;
use kofm_core::{Cluster, Demand, Fault, PoolId, Units};
use kofm_sim::world::Script;

use super::Verdict::{False, Repaired, True};
use super::{Paper, Sentence, breaks, cost, read, usual};

/// Two types of resource, and claims for either or both.
fn both(faults: &[Fault]) -> (Cluster, Script) {
    let cluster = Cluster { pools: vec![Units(1), Units(1)], ..Cluster::new(2, 1) };
    let one = |pool: u16| (PoolId(pool), Units(1));
    let demands = [vec![one(0)], vec![one(1)], vec![one(0), one(1)]];
    let demands = demands.map(|parts| parts.into_iter().collect::<Demand>()).to_vec();
    (read(cluster, faults), Script::new(2, 2, demands))
}

pub(super) const PAPER: Paper = Paper {
    heading: "Raynal 1990",
    sentences: &[
        Sentence {
            section: "§3",
            claim: "no more than M units are used, and every claim is served",
            verdict: True,
            shown: || {
                assert_eq!(usual("permission-as-printed", 2, 2, 2, None), None);
                assert_eq!(usual("permission", 2, 2, 2, None), None);
            },
        },
        Sentence {
            section: "§3",
            claim: "the test runs when an answer arrives: with one site",
            verdict: Repaired,
            shown: || {
                let alone = usual("permission-as-printed", 1, 1, 1, None);
                assert_eq!(alone, Some(("progress", 1)));
                assert_eq!(usual("permission", 1, 1, 1, None), None);
            },
        },
        Sentence {
            section: "§3",
            claim: "a claim costs 2(n−1) to 3(n−1) messages, with one client at each site",
            verdict: True,
            shown: || {
                let (min, max) = cost("permission", &Cluster::new(4, 4), 4);
                assert!(min == 6 && max <= 9, "{min} {max}");
            },
        },
        Sentence {
            section: "§3",
            claim: "with M = 1 it is Ricart and Agrawala's algorithm: 2(n−1) messages",
            verdict: True,
            shown: || assert_eq!(cost("permission", &Cluster::new(4, 1), 1), (6, 6)),
        },
        Sentence {
            section: "§5.1",
            claim: "a site that is known to be using need not be asked",
            verdict: Repaired,
            shown: || {
                let name = "permission-lazy-as-printed";
                assert_eq!(usual(name, 2, 2, 2, None), Some(("capacity", 13)));
                assert_eq!(usual(name, 2, 2, 2, Some(&[])), None);
                assert_eq!(usual("permission-lazy", 2, 2, 2, None), None);
            },
        },
        Sentence {
            section: "§5.1",
            claim: "a claim costs 0 to 3(n−1) messages, with one client at each site",
            verdict: True,
            shown: || {
                let (_, max) = cost("permission-lazy", &Cluster::new(4, 4), 4);
                assert!(max <= 9, "{max}");
            },
        },
        Sentence {
            section: "§5.2",
            claim: "on a ring a request goes around once and gathers its answers",
            verdict: True,
            shown: || {
                let ring = Cluster { topology: Topology::Ring, ..Cluster::new(5, 50) };
                assert_eq!(cost("permission", &ring, 1).0, 5);
            },
        },
        Sentence {
            section: "§6",
            claim: "claims for several types are served, with one clock for all types",
            verdict: True,
            shown: || {
                let (cluster, script) = both(&[]);
                assert_eq!(breaks("permission-as-printed", &cluster, &script), None);
            },
        },
        Sentence {
            section: "§6",
            claim: "each type has data structures of its own, its clock too",
            verdict: False,
            shown: || {
                let (cluster, script) = both(&[Fault::ClockPerType]);
                let found = breaks("permission-as-printed", &cluster, &script);
                assert_eq!(found, Some(("progress", 8)));
            },
        },
    ],
};

#[test]
fn hold() {
    PAPER.hold();
}
