//! Protocols that share k units out of M among sites, as pure values.
//!
//! A protocol at one site is a struct: no clock, no I/O, no randomness. Inputs go in through
//! [`step`], effects come out in order. Whoever drives it keeps one rule: carry out *all* effects
//! of a step, in order, before the next step.
//!
//! ```
//! use kofm_core::protocols::permission::Permission;
//! use kofm_core::{Clock, Cluster, Demand, Effect, Effects, Input, PoolId, Protocol, SiteId, step};
//!
//! // Two sites share one pool of three units.
//! let cluster = Cluster::new(2, 3);
//! let mut sites = [0, 1].map(|n| (Permission::new(SiteId(n), &cluster), Clock::default()));
//! let mut out = Effects::default();
//!
//! // A client of site 0 asks for two of them.
//! let (protocol, clock) = &mut sites[0];
//! let claim = protocol.next_stamp(*clock);
//! let demand = Demand::one(PoolId(0), 2);
//! step(protocol, clock, Input::Claim { claim, demand }, &mut out)?;
//!
//! // Deliver what is sent until nothing is left; somewhere on the way the claim is granted.
//! let mut at = SiteId(0);
//! let mut granted = false;
//! while !granted {
//!     for effect in out.drain().collect::<Vec<_>>() {
//!         match effect {
//!             Effect::Send { to, clock: sent, message, .. } => {
//!                 let (protocol, clock) = &mut sites[to.index()];
//!                 let input = Input::Deliver { from: at, clock: sent, message };
//!                 step(protocol, clock, input, &mut out)?;
//!                 at = to;
//!             }
//!             Effect::Grant { claim: which, .. } => granted = which == claim,
//!             _ => {}
//!         }
//!     }
//! }
//! # Ok::<(), kofm_core::PeerFault>(())
//! ```
//!
//! Where to go from here: [`Protocol`] is the trait, [`protocols`] the list, [`parts`] what
//! protocols share, [`quorums`] request sets, [`epoch`] how a cluster changes.
#![no_std]

extern crate alloc;

pub mod epoch;
mod grouping;
pub mod parts;
mod protocol;
pub mod protocols;
pub mod quorums;
pub mod readings;
pub mod topology;
mod types;
pub mod voting;

pub use grouping::{Copied, GroupId, Grouping, GroupingError};
pub use protocol::{
    Blocker, Census, Effect, EffectOf, Effects, EffectsOf, Head, Input, InputOf, PeerFault, Price,
    Profile, Protocol, Rejection, SURVIVES, Service, step,
};
pub use protocols::{Kind, ProtocolId, Visitor};
pub use readings::Fault;
pub use types::{Clock, Cluster, Demand, Fence, PoolId, SiteId, Stamp, Unit, Units};
