//! The rules of the protocol by name, so that tests can leave one out.

use core::fmt::Debug;
use core::hash::Hash;

/// The rules that the checker leaves out, to see that it finds what is wrong then.
pub trait Rules: Clone + Debug + Eq + Hash + Send + 'static {
    /// A site that still waits asks anew for the units that it yields.
    const WANTS_BACK: bool = true;
    /// A claim that finds no unit is sent back to the switchboard.
    const BOUNCES: bool = true;
    /// It is not sent there again before a unit has come there.
    const REMEMBERS_REFUSALS: bool = true;
    /// Unless a unit came while it was on its way.
    const EXCUSES_THE_EARLY: bool = true;
    /// What was asked for in vain is not counted on.
    const ENDS: bool = true;
    /// Units that a waiting claim has gathered are given to an older one.
    const YIELDS: bool = true;
    /// The switchboard hears of units that have come.
    const TELLS: bool = true;
    /// A claim at the switchboard may wait for a younger one.
    const BEHIND_YOUNGER: bool = false;
    /// Units that come too late for their claim are kept.
    const KEEPS_SURPLUS: bool = true;
    /// Who gives up waiting lets go of what was gathered.
    const FREES_ON_WITHDRAW: bool = true;
    /// A claim is granted when all its pools allow it, not when one does.
    const ALL_POOLS: bool = true;
    /// Who has waited for long gets units that nobody needs, wherever they are.
    const SEEKS: bool = true;
    /// The switchboard hears of units that went to who seeks.
    const TELLS_STRAYS: bool = true;
    /// Who seeks no more is forgotten.
    const FORGETS: bool = true;
    /// Who loses what it found seeks again.
    const SEEKS_AGAIN: bool = true;
    /// What is given away is no longer owned.
    const LETS_GO: bool = true;
    /// Of a unit that is out of use nobody knows as an epoch begins.
    const HIDES_WHAT_IS_OUT: bool = true;
    /// A unit that was taken out of the pool while it was held is gone when it is released.
    const DROPS_WHAT_IS_OUT: bool = true;
    /// A unit that is nowhere as a later epoch begins is dealt out.
    const DEALS_AGAIN: bool = true;
}

/// The rules as they are meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {}
