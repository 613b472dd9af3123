//! A kofm site: everything that touches a network.
pub mod api;
mod boottime;
pub mod config;
pub mod duration;
mod engine;
mod incarnation;
mod link;
mod names;
mod random;
pub mod session;
pub mod wire;
pub use incarnation::{IdentityError, StateDir};
