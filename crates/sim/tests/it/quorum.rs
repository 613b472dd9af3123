//! The quorum protocol: everything that can happen, much of what may, and what it costs.

mod exhaustive;
mod mortal;
mod mutants;
mod prices;
mod printed;
mod seeds;

use kofm_core::quorums::{Arbitration, Construction};
use kofm_core::{Cluster, Demand, PoolId, Protocol, SiteId, Units};
use kofm_sim::exhaustive::explore;
use kofm_sim::world::Script;

/// One pool whose owner has a say in its sets.
fn arbitrated(sites: u16, units: u32, said: Arbitration) -> Cluster {
    Cluster { arbitration: [(PoolId(0), said)].into(), ..Cluster::new(sites, units) }
}

fn made_by(construction: Construction) -> Arbitration {
    Arbitration { construction: Some(construction), ..Arbitration::default() }
}

/// What the owner of a pool says who wants these sites to arbitrate, all of them.
fn group(sites: &[u16]) -> Arbitration {
    let arbiters = Some(sites.iter().copied().map(SiteId).collect());
    Arbitration { arbiters, ..made_by(Construction::Broadcast) }
}

/// Demands for each of these amounts of the first pool.
fn amounts(list: &[u32]) -> Vec<Demand> {
    list.iter().map(|&k| Demand::one(PoolId(0), k)).collect()
}

/// A demand for one unit of each of these pools.
fn one_of_each(pools: &[u16]) -> Demand {
    pools.iter().map(|&pool| (PoolId(pool), Units(1))).collect()
}

/// Claims by site, one at a time.
fn script(rounds: &[u32], demands: Vec<Demand>) -> Script {
    Script { rounds: rounds.to_vec(), ..Script::new(0, 0, demands) }
}

/// Explores everything: nothing is violated, and there are so many worlds.
#[track_caller]
fn pinned<P: Protocol>(cluster: &Cluster, script: &Script, count: u64) {
    let found = explore::<P>(cluster, script, 20_000_000, |_| {});
    if let Some((violation, steps)) = &found.violation {
        let lines: Vec<String> = steps.iter().map(kofm_sim::trace::Step::text).collect();
        panic!("{}: {}\n{}", violation.property, violation.detail, lines.join("\n"));
    }
    assert!(found.complete, "more than {} states", found.states);
    assert_eq!(found.states, count, "a change of behaviour");
}

/// Explores until something is violated: the property, and after how many steps.
fn violated<P: Protocol>(cluster: &Cluster, script: &Script) -> Option<(&'static str, usize)> {
    let found = explore::<P>(cluster, script, 3_000_000, |_| {});
    found.violation.map(|(violation, steps)| (violation.property, steps.len()))
}
