//! End to end: real processes, real sockets, the commands that people type.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abuse;
mod audit;
mod bench;
mod disk;
mod doctor;
mod epochs;
mod failover;
mod forged;
mod gangs;
mod guard;
mod harness;
mod ids;
mod insecure;
mod join;
mod lab;
mod links;
mod output;
mod owned;
mod packages;
mod principals;
mod python;
mod quarantine;
mod scenarios;
mod semaphores;
mod systemd;
mod tree;
mod twins;
mod usage;
