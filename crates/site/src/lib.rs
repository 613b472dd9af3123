//! What decides in a kofm site: protocols, leases, requests, pools, gangs, epochs.
//!
//! The driver in `kofm-net` hands it what comes in; `kofm_sim::sites` does the same in tests.
#![expect(missing_docs, missing_debug_implementations, reason = "an inner part of `kofm-net`")]

pub mod api;
pub mod backup;
pub mod boottime;
pub mod bounds;
pub mod config;
pub mod core;
pub mod engine;
pub mod fast;
pub mod ids;
pub mod input;
pub mod journal;
pub mod keeper;
pub mod links;
pub mod metrics;
pub mod names;
pub mod paper;
pub mod plan;
pub mod random;
pub mod recovery;
pub mod rules;
pub mod session;
pub mod store;
pub mod tallies;
pub mod views;

pub use kofm_api::duration;
