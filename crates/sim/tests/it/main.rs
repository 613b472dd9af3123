//! The tests of protocols, generated from the list of protocols where they can be.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
#![expect(clippy::wildcard_enum_match_arm, reason = "tests look at some variants only")]

mod exhaustive;
mod laws;
mod mutants;
mod prices;
mod quorum;
mod scenarios;
mod second_opinion;
mod seeds;
mod traces;
mod walk;

use kofm_core::{Kind, Service, Visitor};

/// The protocols whose tests these are: semaphores have a target of their own.
fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.iter().copied().filter(|kind| kind.profile().serves == Service::Pool)
}

/// Runs a law for every one of them.
fn for_all<V: Visitor<Output = ()> + Copy>(law: V) {
    for kind in kinds() {
        kind.visit(law);
    }
}
