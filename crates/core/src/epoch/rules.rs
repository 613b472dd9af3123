//! What the checker may get wrong on purpose, to see that somebody notices.

use core::fmt::Debug;
use core::hash::Hash;

/// The rules that members play by.
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
    /// What a departed site had counts as free at once.
    SkipsQuarantine,
    /// When one quarantine is over, all are.
    EndsEveryQuarantine,
    /// The units of a departed site never come back.
    NeverEndsQuarantine,
    /// A member goes on as soon as it has the record.
    ResumesBeforeBarrier,
    /// A member takes protocol messages of any epoch.
    IgnoresEpoch,
    /// A member goes on after its report.
    ReportsAndGoesOn,
    /// A report leaves out claims that wait.
    LosesWaiting,
    /// A report leaves out claims that are held.
    LosesHeld,
    /// A proposer takes reports of any epoch.
    TakesOldReports,
    /// A proposer proposes before everybody has reported.
    ProposesTooEarly,
    /// A proposer goes on with its record before the store has taken it.
    ResumesUndecided,
    /// A member is taken for itself in whatever life it is.
    IgnoresIncarnation,
    /// A site that comes back calls itself as before.
    ReusesIncarnation,
    /// A member that is not in the record goes on.
    NeverDeparts,
    /// A site grants without a lease.
    GrantsWithoutLease,
    /// Clocks of the new epoch start where the reporting sites were.
    ClocksDoNotLeap,
}
