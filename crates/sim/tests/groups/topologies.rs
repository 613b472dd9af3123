//! The small systems that groups are tried on; processes and groups from 1 and a as in the paper,
//! from 0 here.

use kofm_core::{Cluster, Grouping, SiteId};

/// Groups by their members, and pairs of processes that compete, both from 1.
pub(crate) fn grouping(processes: u16, groups: &[&[u16]], rivals: &[(u16, u16)]) -> Grouping {
    // A resource of its own for everybody, and one for each pair.
    let mut needs: Vec<Vec<u32>> = (0..u32::from(processes)).map(|i| vec![i]).collect();
    for (resource, &(a, b)) in (u32::from(processes)..).zip(rivals) {
        needs[usize::from(a - 1)].push(resource);
        needs[usize::from(b - 1)].push(resource);
    }
    let sites = |list: &&[u16]| list.iter().map(|&p| SiteId(p - 1)).collect();
    Grouping::new(needs, groups.iter().map(sites).collect()).unwrap()
}

/// One of the twelve, by its name.
pub(crate) fn named(name: &str) -> Cluster {
    Cluster::of_groups(match name {
        "free" => grouping(2, &[&[1, 2]], &[]),
        "free3" => grouping(3, &[&[1, 2, 3]], &[]),
        "share" => grouping(3, &[&[1, 2], &[1, 3]], &[]),
        "fig1b" => grouping(3, &[&[1, 2], &[1, 3]], &[(2, 3)]),
        "pairs" => grouping(4, &[&[1, 2], &[3, 4]], &[(1, 3)]),
        "tri" => grouping(4, &[&[1, 2], &[1, 3], &[1, 4]], &[]),
        "ring" => grouping(4, &[&[1, 2], &[2, 3], &[3, 4], &[1, 4]], &[(1, 3), (2, 4)]),
        "hub" => grouping(5, &[&[1, 2], &[1, 3], &[4, 5]], &[(1, 4)]),
        "hub2" => grouping(5, &[&[4, 5], &[1, 2], &[1, 3]], &[(1, 4)]),
        "trio" => grouping(5, &[&[1, 2, 3], &[4, 5]], &[(1, 4)]),
        "fig1a" => grouping(6, &[&[1, 2], &[4, 5], &[3, 6]], &[(1, 6), (2, 4), (3, 5)]),
        "fig3" => grouping(6, &[&[1, 6], &[2, 3], &[3, 4], &[5, 6]], &[(1, 2), (4, 5)]),
        // Two more: for withdrawal of readiness.
        "can2" => grouping(3, &[&[1, 3], &[1, 2]], &[]),
        "can3" => grouping(4, &[&[1, 4], &[1, 2, 3]], &[]),
        _ => panic!("no topology {name}"),
    })
}

/// The report's twelve.
pub(crate) const TWELVE: [&str; 12] = [
    "free", "share", "fig1b", "pairs", "free3", "tri", "ring", "hub", "hub2", "trio", "fig1a",
    "fig3",
];
