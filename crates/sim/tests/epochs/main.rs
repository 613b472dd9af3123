//! Changes of epoch: every interleaving of small worlds, thousands of seeds of larger ones, and
//! bugs
//! on purpose.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod exhaustive;
mod keeps;
mod leaving;
mod mutants;
mod outages;
mod papers;
mod seeds;
