//! Which protocols need links that keep the order: everything that can happen in small systems
//! whose links do not.

use kofm_core::{Cluster, Kind, Service};
use kofm_sim::world::Script;

use crate::{find, groups, script, violated};

/// The most worlds of a case.
const LIMIT: u64 = 600_000;

/// The first violation, and whether all worlds of all cases were seen.
type Verdict = (Option<&'static str>, bool);

fn first(kind: Kind, cases: impl Iterator<Item = (Cluster, Script)>) -> Verdict {
    let mut complete = true;
    for (cluster, script) in cases {
        let found = find(kind, &cluster, &Script { unordered: true, ..script }, LIMIT);
        println!("{} {:?}: {}", kind.name(), violated(&found), found.states);
        if let Some(fault) = violated(&found) {
            return (Some(fault), true);
        }
        complete &= found.complete;
    }
    (None, complete)
}

/// Where clients claim and release.
fn plain(kind: Kind) -> Verdict {
    if kind.profile().serves == Service::Group {
        let systems = [
            groups(3, &[&[1, 2], &[1, 3]], &[]),
            groups(3, &[&[1, 2], &[1, 3]], &[(2, 3)]),
            groups(4, &[&[1, 4], &[1, 2, 3]], &[]),
        ];
        let rounds = |cluster: Cluster| {
            let script = Script::new(cluster.sites, 2, Vec::new());
            (cluster, script)
        };
        return first(kind, systems.into_iter().map(rounds));
    }
    let cases = [(2, 1, 2), (2, 2, 2), (3, 1, 1), (3, 2, 1)];
    let case =
        |(sites, units, rounds)| (Cluster::new(sites, units), script(kind, sites, units, rounds));
    first(kind, cases.into_iter().map(case))
}

/// Where they also withdraw, release in parts, and have several claims at a site.
fn free(kind: Kind) -> Verdict {
    let partial = kind.profile().serves == Service::Pool;
    let case = Script { slots: 2, withdraw: true, partial, ..script(kind, 2, 2, 1) };
    let case = Script { rounds: vec![2, 1], ..case };
    first(kind, [(Cluster::new(2, 2), case)].into_iter())
}

#[test]
fn what_each_protocol_does_on_links_without_order() {
    let sound = Kind::ALL.iter().copied().filter(|kind| {
        let profile = kind.profile();
        !profile.as_printed && profile.serves != Service::Gang
    });
    let found: Vec<_> = sound
        .map(|kind| {
            let more = kind.profile().full_service.then(|| free(kind));
            (kind.name(), plain(kind), more)
        })
        .collect();
    // The property that is violated first: where clients claim and release; and where they also
    // withdraw, release in parts, and have several claims at a site. All worlds were seen where
    // nothing is.
    let all = |fault| (fault, true);
    let expected = [
        ("roaming", all(Some("idleness")), Some(all(Some("idleness")))),
        ("permission", all(Some("progress")), Some(all(Some("progress")))),
        ("permission-lazy", all(Some("progress")), Some(all(Some("progress")))),
        ("quorum", all(Some("understanding")), Some(all(Some("understanding")))),
        ("sem-token", all(None), Some(all(None))),
        ("sem-permission", all(None), Some(all(Some("count")))),
        ("sem-quorum", all(None), Some(all(Some("understanding")))),
        ("groups", all(Some("understanding")), None),
        ("groups-hungry", all(Some("progress")), None),
        ("tree", all(Some("tokens")), Some(all(Some("tokens")))),
    ];
    assert_eq!(found, expected);
}
