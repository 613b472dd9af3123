//! End to end: real processes, real sockets, the commands that people type.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abuse;
mod audit;
mod bad_input;
mod bench;
mod browser;
mod console;
mod counts;
mod described;
mod disk;
mod docs;
mod doctor;
mod epochs;
mod failover;
mod forged;
mod gang_ends;
mod gangs;
mod guard;
mod harness;
mod hold;
mod https;
mod ids;
mod insecure;
mod join;
#[cfg(feature = "lab")]
mod lab;
mod links;
mod output;
mod owned;
mod packages;
mod papers;
mod principals;
mod python;
mod quarantine;
mod scale;
mod scenarios;
mod scopes;
mod semaphores;
mod survive;
mod systemd;
mod top;
mod tree;
mod twins;
mod usage;
mod wan;
