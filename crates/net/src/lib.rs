//! A kofm site: everything that touches a network.
mod boottime;
pub mod duration;
mod engine;
mod incarnation;
mod link;
mod names;
mod random;
pub mod session;
pub mod wire;
pub use incarnation::{IdentityError, StateDir};
