//! A made-up network for the protocols of `kofm-core`.
//!
//! [`world`] is the cluster as a value; [`exhaustive`] tries everything that can happen in it;
//! [`seeded`] lets one thing after another happen in virtual time, drawn from a seed; [`trace`]
//! writes down what happened and runs it again. [`chosen`] does all that with a protocol which is
//! chosen at run time. [`sites`] runs whole sites, with their clients and faults.

pub mod chosen;
pub mod exhaustive;
pub mod fairness;
pub mod faults;
pub mod flushing;
mod gangs;
pub mod groups;
pub mod healing;
pub mod history;
mod idle;
pub mod lasso;
pub mod mortal;
pub mod oracle;
pub mod report;
pub mod rng;
pub mod script;
pub mod seeded;
pub mod sites;
pub mod span;
pub mod storm;
pub mod trace;
pub mod upkeep;
pub mod world;

use kofm_core::parts::Routed;
use kofm_core::topology::Topology;
use kofm_core::{Kind, Protocol, Visitor};

/// Calls `visitor` with the protocol as it runs on this topology: protocols that do not use the
/// shape of the network themselves are routed hop by hop.
pub fn visit_on<V: Visitor>(kind: Kind, topology: &Topology, visitor: V) -> V::Output {
    kind.visit(OnTopology { full: *topology == Topology::Full, visitor })
}

struct OnTopology<V> {
    full: bool,
    visitor: V,
}

impl<V: Visitor> Visitor for OnTopology<V> {
    type Output = V::Output;

    fn visit<P: Protocol>(self) -> V::Output {
        // Asked first, so that nobody is compiled with routes who never needs them.
        if const { !P::PROFILE.gathers } && !self.full {
            return self.visitor.visit::<Routed<P>>();
        }
        self.visitor.visit::<P>()
    }
}
