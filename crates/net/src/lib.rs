//! A kofm site: everything that touches a network.
mod incarnation;
pub mod session;
pub mod wire;
