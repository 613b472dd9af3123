//! One site dies at any moment and may come back, and everything that can follow.

use kofm_core::epoch::{Rules, Sound};
use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::quorum::Quorum;
use kofm_core::protocols::roaming::Roaming;
use kofm_core::{Cluster, Demand, PoolId, Protocol};
use kofm_sim::mortal::{Budget, Finding, explore};
use kofm_sim::world::Script;

pub(crate) fn look<P: Protocol, R: Rules>(
    units: u32,
    k: &[u32],
    rounds: [u32; 3],
    budget: Budget,
    limit: u64,
) -> Finding {
    let demands = k.iter().map(|&k| Demand::one(PoolId(0), k)).collect();
    let script = Script { rounds: rounds.to_vec(), ..Script::new(3, 1, demands) };
    explore::<P, R>(&Cluster::new(3, units), &script, budget, limit)
}

fn fine<P: Protocol>(units: u32, k: &[u32], rounds: [u32; 3], budget: Budget) -> u64 {
    let found = look::<P, Sound>(units, k, rounds, budget, 20_000_000);
    if let Some((violation, way)) = &found.violation {
        panic!("{}: {}\n{}", violation.property, violation.detail, way.join("\n"));
    }
    assert!(found.complete);
    println!(
        "{} {units} {k:?} {rounds:?} {budget:?}: {} states {} transitions",
        P::NAME,
        found.states,
        found.transitions
    );
    found.states
}

const CRASH: Budget = Budget { crashes: 1, restarts: 0, doubts: 0, resize: None };

#[test]
fn a_site_dies() {
    fine::<Permission>(1, &[1], [1, 1, 0], CRASH);
    fine::<Quorum>(1, &[1], [1, 1, 0], CRASH);
    fine::<Roaming>(1, &[1], [1, 1, 0], CRASH);
}
