//! A pool without requests, a site without clients and a process that shares nothing do not change
//! the verdict on a case.

use kofm_core::protocols::gang::Shares;
use kofm_core::quorums::Arbitration;
use kofm_core::{Cluster, Demand, Kind, PoolId, Service, SiteId, Units};
use kofm_sim::chosen::explore_expecting;
use kofm_sim::fairness::Clients;
use kofm_sim::world::Script;

use crate::{find, groups, kind, script, violated};

/// The most worlds of a case; a verdict is found before that, or none is.
const LIMIT: u64 = 400_000;

/// How large the case of a protocol is: sites, units, claims of each site, and arbiters where they
/// are not all sites.
fn case(kind: Kind) -> (u16, u32, u32, &'static [u16]) {
    match kind.name() {
        "quorum-as-printed" => (3, 2, 1, &[0, 1, 2]),
        "quorum-as-printed-inquire" => (3, 1, 2, &[0]),
        "sem-quorum-as-printed" => (3, 1, 2, &[0, 1, 2]),
        "quorum" | "sem-quorum" => (2, 1, 1, &[0, 1]),
        "tree-as-printed-pusher" => (2, 2, 1, &[]),
        "permission-lazy-as-printed" => (2, 2, 2, &[]),
        _ => (2, 1, 1, &[]),
    }
}

fn verdict(kind: Kind, more_sites: u16, more_pools: usize) -> Option<&'static str> {
    let (sites, units, rounds, arbiters) = case(kind);
    let mut cluster = Cluster::new(sites + more_sites, units);
    cluster.pools.extend(vec![Units(1); more_pools]);
    if !arbiters.is_empty() {
        let arbiters = Some(arbiters.iter().copied().map(SiteId).collect());
        let said = Arbitration { arbiters, ..Arbitration::default() };
        let pools = (0..).map(PoolId).take(cluster.pools.len());
        cluster.arbitration = pools.map(|pool| (pool, said.clone())).collect();
    }
    let mut script = script(kind, sites, units, rounds);
    script.rounds.extend(vec![0; usize::from(more_sites)]);
    if kind.profile().serves == Service::Gang {
        // Each of the first sites leads a gang of both.
        let shares = Shares::new(&cluster).unwrap();
        let gang = |leader: u16| -> Demand {
            let seats = (0..sites).map(|site| (shares.seat(SiteId(site)), Units(1)));
            seats.chain([(shares.share(SiteId(leader), PoolId(0)), Units(1))]).collect()
        };
        let own = (0..sites).map(|leader| vec![(gang(leader), rounds)]);
        let own = own.chain(vec![Vec::new(); usize::from(more_sites)]).collect();
        script = Script { own, rounds: vec![0; script.rounds.len()], ..script };
    }
    violated(&find(kind, &cluster, &script, LIMIT))
}

#[test]
fn a_pool_without_requests_does_not_change_a_verdict() {
    let mut tried = 0;
    for &kind in Kind::ALL {
        let profile = kind.profile();
        // The others know one pool only.
        if profile.serves == Service::Group || !profile.full_service {
            continue;
        }
        assert_eq!(verdict(kind, 0, 1), verdict(kind, 0, 0), "{}", kind.name());
        tried += 1;
    }
    assert!(tried >= 9, "{tried}");
}

#[test]
fn a_site_without_clients_does_not_change_a_verdict() {
    let mut faults = 0;
    for &kind in Kind::ALL.iter().filter(|kind| kind.profile().serves != Service::Group) {
        let alone = verdict(kind, 0, 0);
        assert_eq!(verdict(kind, 1, 0), alone, "{}", kind.name());
        assert!(alone.is_none() || kind.profile().as_printed, "{}", kind.name());
        faults += u32::from(alone.is_some());
    }
    assert!(faults >= 6, "{faults} of the listings have a fault in their case");
}

#[test]
fn a_process_that_shares_nothing_does_not_change_a_verdict() {
    let systems: [(u16, &[&[u16]], &[(u16, u16)]); 3] = [
        (3, &[&[1, 2], &[1, 3]], &[]),
        (3, &[&[1, 2], &[1, 3]], &[(2, 3)]),
        (4, &[&[1, 4], &[1, 2, 3]], &[]),
    ];
    for &kind in Kind::ALL.iter().filter(|kind| kind.profile().serves == Service::Group) {
        for (processes, members, rivals) in systems {
            let small = groups(processes, members, rivals);
            let alone = [processes + 1];
            let more: Vec<&[u16]> = members.iter().copied().chain([&alone[..]]).collect();
            let large = groups(processes + 1, &more, rivals);
            let broken = |cluster: &Cluster| {
                let script = Script::new(cluster.sites, 1, Vec::new());
                violated(&find(kind, cluster, &script, LIMIT))
            };
            assert_eq!(broken(&large), broken(&small), "{} {members:?}", kind.name());
        }
    }
}

/// The groups that are starved, with what clients owe.
fn starved(name: &str, cluster: &Cluster, clients: Clients) -> Vec<u16> {
    let endless = Script { endless: true, ..Script::new(cluster.sites, 1, Vec::new()) };
    let found = explore_expecting(kind(name), cluster, &endless, clients, LIMIT, &mut |_| {});
    let again = found.for_ever.expect("all worlds are seen and no promise is broken");
    assert_eq!(again.dead, [], "{name}");
    again.starved.iter().map(|group| group.0).collect()
}

#[test]
fn nor_does_it_change_who_starves() {
    let share: &[&[u16]] = &[&[1, 2], &[1, 3]];
    let with: &[&[u16]] = &[&[1, 2], &[1, 3], &[4]];
    for clients in [Clients::May, Clients::Arrive] {
        let small = starved("groups-hungry", &groups(3, share, &[]), clients);
        let large = starved("groups-hungry", &groups(4, with, &[]), clients);
        assert_eq!(small, large);
        let expected: &[u16] = if clients == Clients::May { &[0, 1] } else { &[] };
        assert_eq!(small, expected, "without the partners that are awaited, both may starve");
    }
    assert_eq!(starved("groups", &groups(3, share, &[]), Clients::Come), [0; 0]);
    assert_eq!(starved("groups", &groups(4, with, &[]), Clients::Come), [0; 0]);
}
