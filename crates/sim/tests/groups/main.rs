//! The tests of groups that share processes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod exhaustive;
mod topologies;
