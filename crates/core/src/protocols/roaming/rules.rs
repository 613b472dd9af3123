//! The rules of the protocol by name, so that tests can leave one out.

use core::fmt::Debug;
use core::hash::Hash;

/// The rules that the checker varies: to see small worlds in which the switchboard is told of
/// arrivals, and to see that it finds what is wrong without a rule.
pub trait Rules: Clone + Debug + Eq + Hash + Send + 'static {
    /// The number of sites from which on the switchboard is told of arrivals.
    const NOTES_FROM: u16;
    /// Wants go with the units that leave.
    const WANTS_TRAVEL: bool = true;
    /// A site that still waits wants back the unit that it yields.
    const WANTS_BACK: bool = true;
    /// An ask that finds nothing is passed on.
    const FOLLOWS: bool = true;
    /// A claim is granted when all its pools allow it, not when one does.
    const ALL_POOLS: bool = true;
    /// What is given away is no longer owned.
    const LETS_GO: bool = true;
    /// Wants that came home are asked anew.
    const ASKS_ANEW: bool = true;
    /// An ask may wait behind a younger claim.
    const BEHIND_YOUNGER: bool = false;
}

/// The rules as they are meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {
    /// A note costs a message for each move, and lets the board keep asks until their turn has
    /// nearly come, instead of lining them up behind units that may be late. With few sites the
    /// board is right without.
    const NOTES_FROM: u16 = 0;
}
