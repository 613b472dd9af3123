//! The tests of semaphores.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
#![expect(clippy::wildcard_enum_match_arm, reason = "tests look at some variants only")]

mod exhaustive;
#[path = "../it/laws.rs"]
mod laws;
mod mutants;
mod prices;
mod printed;
mod seeds;
#[path = "../it/walk.rs"]
mod walk;

use kofm_core::protocols::sem_permission::SemPermission;
use kofm_core::protocols::sem_permission_as_printed::SemPermissionAsPrinted;
use kofm_core::protocols::sem_quorum::SemQuorum;
use kofm_core::protocols::sem_quorum_as_printed::SemQuorumAsPrinted;
use kofm_core::protocols::sem_token::SemToken;
use kofm_core::{Cluster, Demand, PoolId, Protocol, Visitor};
use kofm_sim::exhaustive::explore;
use kofm_sim::world::Script;

/// Runs a law for every semaphore.
fn for_all<V: Visitor<Output = ()> + Copy>(law: V) {
    for_sound(law);
    law.visit::<SemPermissionAsPrinted>();
    law.visit::<SemQuorumAsPrinted>();
}

/// Runs it for those that are no published listings.
fn for_sound<V: Visitor<Output = ()> + Copy>(law: V) {
    law.visit::<SemToken>();
    law.visit::<SemPermission>();
    law.visit::<SemQuorum>();
}

/// Amounts of the first semaphore.
fn amounts(low: u32, high: u32) -> Vec<Demand> {
    (low..=high).map(|k| Demand::one(PoolId(0), k)).collect()
}

/// So many P at each site, each of an amount from `low` to `high`.
fn script(rounds: &[u32], low: u32, high: u32) -> Script {
    let sites = u16::try_from(rounds.len()).unwrap();
    Script { rounds: rounds.to_vec(), ..Script::new(sites, 0, amounts(low, high)) }
}

/// So many V at each site, each of an amount from `low` to `high`.
fn adding(adds: &[u32], low: u32, high: u32, script: Script) -> Script {
    Script { adds: adds.to_vec(), amounts: amounts(low, high), ..script }
}

/// Explores everything, finds nothing wrong, and sees so many states.
fn pinned<P: Protocol>(cluster: &Cluster, script: &Script, states: u64) {
    let found = explore::<P>(cluster, script, 20_000_000, |_| {});
    if let Some((violation, steps)) = &found.violation {
        for step in steps {
            println!("{}", step.text());
        }
        panic!("{}: {violation:?}", P::NAME);
    }
    assert!(found.complete, "{}", P::NAME);
    assert_eq!(found.states, states, "{}", P::NAME);
}

/// The property that breaks first, and after how many steps.
fn violated<P: Protocol>(cluster: &Cluster, script: &Script) -> Option<(&'static str, usize)> {
    let found = explore::<P>(cluster, script, 20_000_000, |_| {});
    found.violation.map(|(violation, steps)| (violation.property, steps.len()))
}
