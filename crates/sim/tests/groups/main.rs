//! The tests of groups that share processes, and of gangs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
#![expect(clippy::wildcard_enum_match_arm, reason = "tests look at some variants only")]

mod exhaustive;
mod gangs;
mod mutants;
mod prices;
mod printed;
mod seeds;
mod topologies;
