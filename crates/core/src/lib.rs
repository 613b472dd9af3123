//! Protocols that share k units out of M among sites, as pure values.
#![no_std]

extern crate alloc;

pub mod parts;
mod protocol;
pub mod protocols;
pub mod quorums;
pub mod topology;
mod types;

pub use protocol::{
    Blocker, Effect, EffectOf, Effects, EffectsOf, Input, InputOf, PeerFault, Price, Profile,
    Protocol, Rejection, step,
};
pub use protocols::{Kind, Visitor};
pub use types::{Clock, Cluster, Demand, Fence, PoolId, SiteId, Stamp, Unit, Units};
