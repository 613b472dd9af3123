//! What the checker may get wrong on purpose, to see that somebody notices.

use core::fmt::Debug;
use core::hash::Hash;

/// The rules that a site plays by.
pub trait Rules: Clone + Debug + Eq + Hash + Send + 'static {
    /// The one slip in them; none in those for use. A constant, so that it costs nothing.
    const SLIP: Option<Slip>;
}

/// The rules as they should be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {
    const SLIP: Option<Slip> = None;
}

/// A mistake that is easy to make. For the checker, not for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Slip {
    /// An arbiter never asks for a grant back.
    NeverRecalls,
    /// An arbiter asks for grants back when a claim arrives, and not again.
    RecallsOnArrival,
    /// An arbiter that granted a claim again believes that it has asked for that grant back too.
    RemembersRecall,
    /// A small claim is granted while an older one waits for more units, and keeps its grant.
    Overtakes,
    /// A claim that has ended makes room for the next, whatever that one asks for.
    GrantsUnchecked,
    /// A holder gives a grant back.
    HolderYields,
    /// A claim still counts a grant that it gave back.
    CountsYielded,
    /// A claim is held with one grant too few.
    OneGrantShort,
    /// A demand for several pools is held once one of them has granted.
    OnePoolSuffices,
    /// Giving back a part gives back all of it.
    ReducesToNothing,
    /// A withdrawn claim is not taken back from its arbiters.
    WithdrawsInSilence,
}
