//! A kofm site: everything that touches a network.
//!
//! ```text
//!  clients ── http ──┐                        ┌── link ── session ── TCP ── other sites
//!                    ├── one task: the site ──┤
//!  programs ── Site ─┘   protocols, clock,    └── link ── session ── TCP ── other sites
//!                        requests, leases
//! ```
//!
//! One value owns the protocols, and whoever brings a command carries it out, one at a time; other
//! tasks only move frames and calls through bounded queues.

mod access;
mod audit;
pub mod authority;
mod boottime;
pub mod config;
#[cfg(test)]
mod decoders;
pub mod exposure;
mod fast;
mod gate;
pub mod http;
pub mod https;
mod incarnation;
pub mod join;
mod ledger;
mod link;
mod random;
pub mod recover;
mod site;
mod store;
mod tls;
pub mod wire;

pub use access::Access;
pub use boottime::{Boottime, Moment};
pub use incarnation::{IdentityError, StateDir};
pub use kofm_api::fast::UPGRADE as FAST_UPGRADE;
pub use kofm_client as client;
pub use kofm_client::{FastClient, FastGuard, FastLease};
pub use kofm_site::config::ROTA as NEXT_GANG;
pub use kofm_site::rules::{Rule, Verb, lease_token};
pub use kofm_site::{api, duration, session};
pub use random::new_token;
pub use site::{Held, Site, StartError};
pub use tls::TlsConfig;
