//! Cheng, Wada, Inoue, Zhang and Noguchi 1999, distributed resource allocation among overlapping
//! groups.

use kofm_core::{Cluster, GroupId, Grouping, SiteId};
use kofm_sim::world::Script;

use super::Verdict::{False, Repaired, True};
use super::{Paper, Sentence, breaks};
use crate::groups;

fn rounds(name: &str, cluster: &Cluster, rounds: u32) -> Option<(&'static str, usize)> {
    breaks(name, cluster, &Script::new(cluster.sites, rounds, Vec::new()))
}

/// Two groups that share a process: Figure 2, players and their master.
fn share() -> Cluster {
    groups(3, &[&[1, 2], &[1, 3]], &[])
}

fn figure9() -> Cluster {
    groups(4, &[&[1, 2], &[2, 3], &[3, 4], &[1, 4]], &[(1, 3), (2, 4)])
}

/// Figure 5 with these arcs, each from a process to the one that goes first.
fn figure5(arcs: [(u16, u16); 4]) -> Cluster {
    let rivals = [(1, 3), (2, 4), (4, 5), (2, 6)];
    let cluster = groups(6, &[&[1, 2], &[3, 4], &[5, 6]], &rivals);
    let mut grouping: Grouping = cluster.groups.unwrap();
    for (from, to) in arcs {
        grouping = grouping.with_arc((SiteId(to - 1), None), (SiteId(from - 1), None)).unwrap();
    }
    Cluster::of_groups(grouping)
}

pub(super) const PAPER: Paper = Paper {
    heading: "Cheng 1999",
    sentences: &[
        Sentence {
            section: "figure 2",
            claim: "a process works for one of its groups at a time",
            verdict: True,
            shown: || assert_eq!(rounds("groups", &share(), 2), None),
        },
        Sentence {
            section: "figure 4",
            claim: "without groups of several, arcs without a cycle suffice",
            verdict: True,
            shown: || {
                let three = groups(3, &[&[1], &[2], &[3]], &[(1, 2), (1, 3), (2, 3)]);
                assert_eq!(rounds("groups", &three, 1), None);
            },
        },
        Sentence {
            section: "figure 5 (a)",
            claim: "groups deadlock if the arcs between two of them disagree",
            verdict: True,
            shown: || {
                let found = rounds("groups", &figure5([(3, 1), (2, 4), (4, 5), (6, 2)]), 1);
                assert_eq!(found.unwrap().0, "progress");
            },
        },
        Sentence {
            section: "figure 5 (b)",
            claim: "groups deadlock if the arcs among them form a cycle",
            verdict: True,
            shown: || {
                let found = rounds("groups", &figure5([(1, 3), (2, 4), (4, 5), (6, 2)]), 1);
                assert_eq!(found.unwrap().0, "progress");
            },
        },
        Sentence {
            section: "§3.3",
            claim: "a work costs at most 3m + n(n−1) messages",
            verdict: False,
            shown: || {
                // Figure 9: two members, each with one competitor; our barrier takes n(n−1).
                let grouping = figure9().groups.unwrap();
                let (_, max) = grouping.price(GroupId(0));
                assert!(max - 2 > 3 * 2 + 2, "{max}");
            },
        },
        Sentence {
            section: "§5",
            claim: "a process that has informed a group may give away a fork",
            verdict: Repaired,
            shown: || {
                let found = rounds("groups-hungry-as-printed", &figure9(), 1);
                assert_eq!(found, Some(("resources", 7)));
                assert_eq!(rounds("groups-hungry", &share(), 1), None);
            },
        },
        Sentence {
            section: "appendix",
            claim: "a process informs a group though another of its own groups leads",
            verdict: Repaired,
            shown: || {
                let found = rounds("groups-as-printed-self", &share(), 2);
                assert_eq!(found.unwrap().0, "progress");
                assert_eq!(rounds("groups", &share(), 2), None);
            },
        },
    ],
};

#[test]
fn hold() {
    PAPER.hold();
}
