//! Baldoni 1994, An O(N^(M/(M+1))) distributed algorithm for the k-out of-M resources allocation
//! problem.

use kofm_core::quorums::{Arbitration, RequestSets};
use kofm_core::{Cluster, PoolId, SiteId};

use super::Verdict::{False, Repaired, True};
use super::{Paper, Sentence, breaks, cost, usual};
use crate::{kind, script};

/// Whether these request sets are taken for this number of units.
fn meet(units: u32, sets: &[&[u16]]) -> bool {
    let sites = u16::try_from(sets.len()).unwrap();
    let sets = sets.iter().map(|set| set.iter().copied().map(SiteId).collect()).collect();
    let cluster = Cluster { sets: [(PoolId(0), sets)].into(), ..Cluster::new(sites, units) };
    RequestSets::check(&cluster).is_ok()
}

/// Figure 1: the seven sets of the Fano plane.
const FANO: &[&[u16]] =
    &[&[0, 1, 2], &[1, 3, 5], &[2, 3, 6], &[0, 3, 4], &[1, 4, 6], &[2, 4, 5], &[0, 5, 6]];

pub(super) const PAPER: Paper = Paper {
    heading: "Baldoni 1994",
    sentences: &[
        Sentence {
            section: "Theorem 1",
            claim: "the sets of any M + 1 sites have an arbiter in common",
            verdict: True,
            shown: || {
                assert!(meet(1, FANO) && !meet(2, FANO));
                assert!(meet(2, &[&[0, 1, 2], &[0, 1], &[0, 2]]));
            },
        },
        Sentence {
            section: "(iii)",
            claim: "the same where there are no M + 1 sites",
            verdict: Repaired,
            shown: || assert!(!meet(2, &[&[0], &[1]]) && meet(2, &[&[0], &[0, 1]])),
        },
        Sentence {
            section: "figure 2",
            claim: "an arbiter waits inside a handler",
            verdict: Repaired,
            shown: || {
                let found = usual("quorum-as-printed", 3, 2, 2, None);
                assert_eq!(found, Some(("progress", 13)));
                assert_eq!(usual("quorum", 2, 2, 1, None), None);
            },
        },
        Sentence {
            section: "figure 2",
            claim: "INQUIRE and YIELD need not name the request",
            verdict: False,
            shown: || {
                let said =
                    Arbitration { arbiters: Some(vec![SiteId(0)]), ..Arbitration::default() };
                let arbitration = [(PoolId(0), said)].into();
                let cluster = Cluster { arbitration, ..Cluster::new(3, 1) };
                let name = "quorum-as-printed-inquire";
                let found = breaks(name, &cluster, &script(kind(name), 3, 1, 2));
                assert_eq!(found, Some(("capacity", 18)));
            },
        },
        Sentence {
            section: "(v)",
            claim: "no grant is recalled if of each two sites one asks the other",
            verdict: True,
            shown: || assert_eq!(usual("quorum-as-printed-singhal", 3, 1, 2, None), None),
        },
        Sentence {
            section: "(v)",
            claim: "a claim then costs at most 3⌈(N−1)/2⌉ messages",
            verdict: True,
            shown: || {
                let (_, max) = cost("quorum-as-printed-singhal", &Cluster::new(6, 1), 1);
                assert_eq!(max, 9);
            },
        },
    ],
};

#[test]
fn hold() {
    PAPER.hold();
}
