//! Raynal 1992, Protocoles simples pour l'implémentation répartie des sémaphores.

use kofm_core::{Cluster, Fault};
use kofm_sim::world::Script;

use super::Verdict::{False, Repaired, True};
use super::{Paper, Sentence, breaks, read, usual};
use crate::{amounts, kind, script};

/// Three sites that take one unit each time and set their counters back by two.
fn resetting(
    name: &str,
    units: u32,
    adds: &[u32],
    rounds: u32,
    faults: &[Fault],
) -> Option<(&'static str, usize)> {
    let cluster = Cluster { reset: Some(2), ..read(Cluster::new(3, units), faults) };
    let script = Script { adds: adds.to_vec(), ..script(kind(name), 3, 1, rounds) };
    breaks(name, &cluster, &script)
}

pub(super) const PAPER: Paper = Paper {
    heading: "Raynal 1992",
    sentences: &[
        Sentence {
            section: "§2",
            claim: "the value is s0 + #V − #P and never negative, and P waits for its turn only",
            verdict: True,
            shown: || {
                for name in ["sem-token", "sem-permission", "sem-quorum"] {
                    assert_eq!(usual(name, 2, 1, 2, None), None, "{name}");
                }
            },
        },
        Sentence {
            section: "§3.2",
            claim: "a token on a tree carries np",
            verdict: True,
            shown: || assert_eq!(usual("sem-token-as-printed", 3, 1, 1, None), None),
        },
        Sentence {
            section: "§3.2",
            claim: "a token that goes round a ring forever carries np",
            verdict: True,
            shown: || {
                assert_eq!(usual("sem-token-as-printed", 3, 1, 1, Some(&[Fault::Ring])), None);
            },
        },
        Sentence {
            section: "§3.4",
            claim: "a claim waits for the permissions of its quorum",
            verdict: Repaired,
            shown: || {
                let name = "sem-quorum-as-printed";
                assert_eq!(usual(name, 3, 1, 1, None), Some(("progress", 6)));
                assert_eq!(usual(name, 3, 1, 1, Some(&[])), None);
            },
        },
        Sentence {
            section: "§3.5.1",
            claim: "with a token all sites acknowledge raz(x) before the token moves on",
            verdict: True,
            shown: || {
                let name = "sem-token-as-printed";
                let one = [0, 0, 1];
                assert_eq!(resetting(name, 1, &one, 1, &[]), None);
                let late = resetting(name, 1, &[1, 1, 1], 2, &[Fault::Unacknowledged]);
                assert_eq!(late, Some(("value", 15)));
            },
        },
        Sentence {
            section: "§3.5.1",
            claim: "with quorums raz(x) lowers the counts of all sites",
            verdict: Repaired,
            shown: || {
                let name = "sem-quorum-as-printed";
                let mixed = resetting(name, 2, &[0, 0, 1], 1, &[Fault::MixedScales]);
                assert_eq!(mixed, Some(("progress", 18)));
                assert_eq!(resetting("sem-quorum", 2, &[0, 0, 0], 1, &[]), None);
            },
        },
        Sentence {
            section: "§3.5.1",
            claim: "with quorums one variable vs can replace nv and np",
            verdict: False,
            shown: || {
                let found = usual("sem-quorum-as-printed", 3, 1, 2, Some(&[Fault::OneValue]));
                assert_eq!(found, Some(("progress", 10)));
            },
        },
        Sentence {
            section: "annex",
            claim: "a P waits until `attendus` is empty",
            verdict: Repaired,
            shown: || {
                let name = "sem-permission-as-printed";
                assert_eq!(usual(name, 2, 1, 1, None), Some(("value", 2)));
                assert_eq!(usual(name, 2, 1, 1, Some(&[])), None);
            },
        },
        Sentence {
            section: "annex",
            claim: "a request carries the clock",
            verdict: Repaired,
            shown: || {
                let name = "sem-permission-as-printed";
                let found = usual(name, 2, 1, 1, Some(&[Fault::StampedByClock]));
                assert_eq!(found, Some(("count", 5)));
            },
        },
        Sentence {
            section: "annex",
            claim: "P(S, k) takes k units at once",
            verdict: True,
            shown: || {
                let script = Script {
                    adds: vec![1, 1],
                    amounts: amounts(2),
                    ..Script::new(2, 1, amounts(2))
                };
                assert_eq!(breaks("sem-permission", &Cluster::new(2, 1), &script), None);
            },
        },
    ],
};

#[test]
fn hold() {
    PAPER.hold();
}
