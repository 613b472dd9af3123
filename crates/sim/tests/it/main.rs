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
