//! Verdicts of the checker on what the papers assume and claim, with protocols chosen by name.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod law;
mod liveness;
mod sentences;
mod unordered;

use kofm_core::{Cluster, Demand, Grouping, Kind, PoolId, Service, SiteId};
use kofm_sim::chosen::{Found, explore};
use kofm_sim::world::Script;

/// The protocol of this name.
fn kind(name: &str) -> Kind {
    Kind::named(name).unwrap()
}

/// Amounts of one pool to choose from.
fn amounts(most: u32) -> Vec<Demand> {
    (1..=most).map(|k| Demand::one(PoolId(0), k)).collect()
}

/// The script of a case of this kind; the last site adds to semaphores once.
fn script(kind: Kind, sites: u16, most: u32, rounds: u32) -> Script {
    let script = Script::new(sites, rounds, amounts(most));
    if kind.profile().serves == Service::Semaphore {
        let adds = (1..=sites).map(|site| u32::from(site == sites)).collect();
        return Script { adds, amounts: amounts(1), ..script };
    }
    script
}

/// Groups by their members, and pairs of processes that compete, all from 1; each process has a
/// resource of its own besides.
fn groups(processes: u16, groups: &[&[u16]], rivals: &[(u16, u16)]) -> Cluster {
    let mut needs: Vec<Vec<u32>> = (0..u32::from(processes)).map(|i| vec![i]).collect();
    for (resource, &(a, b)) in (u32::from(processes)..).zip(rivals) {
        needs[usize::from(a - 1)].push(resource);
        needs[usize::from(b - 1)].push(resource);
    }
    let sites = |list: &&[u16]| list.iter().map(|&p| SiteId(p - 1)).collect();
    let grouping = Grouping::new(needs, groups.iter().map(sites).collect()).unwrap();
    Cluster::of_groups(grouping)
}

fn find(kind: Kind, cluster: &Cluster, script: &Script, limit: u64) -> Found {
    explore(kind, cluster, script, limit, &mut |_| {})
}

/// The property that is violated.
fn violated(found: &Found) -> Option<&'static str> {
    found.violation.as_ref().map(|(violation, _)| violation.property)
}
