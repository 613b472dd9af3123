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
pub mod api;
mod audit;
pub mod authority;
mod boottime;
mod bounds;
pub mod client;
pub mod config;
pub mod duration;
mod engine;
pub mod exposure;
mod fast;
mod gate;
pub mod http;
mod incarnation;
pub mod join;
mod link;
mod names;
mod plan;
mod random;
mod rules;
pub mod session;
mod site;
mod store;
mod tls;
pub mod wire;

pub use access::Access;
pub use boottime::Moment;
pub use fast::{FastClient, FastGuard, FastLease};
pub use incarnation::{IdentityError, StateDir};
pub use rules::{Rule, Verb, make_token as new_token};
pub use site::{Held, Site, StartError};
pub use tls::TlsConfig;
