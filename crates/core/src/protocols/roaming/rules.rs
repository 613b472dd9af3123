//! The rules of the protocol by name, so that tests can leave one out.

use core::fmt::Debug;
use core::hash::Hash;

/// The rules that the checker leaves out, to see that it finds what is wrong then.
pub trait Rules: Clone + Debug + Eq + Hash + Send + 'static {
    /// What the switchboard decided before it heard an ask goes before the claim that asked.
    const KEEPS_THE_PLAN: bool = true;
    /// A site serves in the order of the plan, not by the age of claims.
    const BY_PLAN: bool = true;
    /// Who counted on units that go to somebody else asks after all.
    const ASKS_LATE: bool = true;
    /// A claim over several pools takes them one after the other, in one order.
    const POOL_BY_POOL: bool = true;
    /// In its turn a claim lets older ones of its site go first.
    const ELDERS_FIRST: bool = true;
    /// What arrives and is not needed any more is kept.
    const KEEPS_SURPLUS: bool = true;
    /// Who gives up waiting lets go of what was gathered.
    const FREES_ON_WITHDRAW: bool = true;
    /// A claim is granted when all its pools allow it, not when one does.
    const ALL_POOLS: bool = true;
    /// Who has waited for long gets units that nobody needs, wherever they are.
    const SEEKS: bool = true;
    /// What is given away is no longer owned.
    const LETS_GO: bool = true;
    /// Of a unit that is out of use nobody knows as an epoch begins.
    const HIDES_WHAT_IS_OUT: bool = true;
    /// A unit that was taken out of the pool while it was held is gone when it is released.
    const DROPS_WHAT_IS_OUT: bool = true;
    /// A unit that is nowhere as a later epoch begins is dealt out.
    const DEALS_AGAIN: bool = true;
    /// Who waits as an epoch ends keeps its place in the next.
    const KEEPS_THE_QUEUE: bool = true;
}

/// The rules as they are meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {}
