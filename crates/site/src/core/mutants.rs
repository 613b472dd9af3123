//! Faults that are put into the core on purpose, to see that the simulator of whole sites finds
//! each of them. Without the feature `mutants`, which only tests have, there is none.

use super::Core;

/// A fault. The first one was seen at real sites; the others are easy to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A site that stops grants the next request after each one that it refuses.
    SettlesWhileDraining,
    /// The right to grant counts from the answer to a heartbeat, not from its beginning.
    LeasedFromTheAnswer,
    /// The units of departed sites are free at once.
    EndsQuarantinesAtOnce,
    /// A lease's units are free at the moment when its holder's clock may still show a rest.
    GivesNoSlack,
    /// A client may rely on its lease for longer than its site may grant.
    PromisesBeyondTheSiteLease,
    /// A lease that expires keeps its units.
    ForgetsWhatExpired,
    /// A request that is cancelled stays in its protocol's queue.
    KeepsCancelledClaims,
    /// All leases have the same fence.
    FencesStandStill,
    /// The units of an expired lease are granted again although the others may have gone on.
    ReusesBeforeBeat,
    /// No site has a copy of a lease that only a person may end.
    GrantsUncopied,
    /// A site that leaves answers calls that its report does not have.
    ActsAfterItsReport,
    /// A site that leaves hands over no lease, so that their units are free.
    HandsOverNoLease,
}

impl Core {
    /// Puts a fault into the core.
    ///
    /// # Panics
    ///
    /// If the crate was built without the feature `mutants`.
    pub fn mutate(&mut self, mutant: Mutant) {
        #[cfg(feature = "mutants")]
        {
            self.mutant = Some(mutant);
        }
        #[cfg(not(feature = "mutants"))]
        panic!("{mutant:?}: built without mutants");
    }

    /// Whether the core has this fault.
    #[cfg(feature = "mutants")]
    pub(crate) fn has(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// There are none outside tests.
    #[cfg(not(feature = "mutants"))]
    #[expect(clippy::unused_self, reason = "the same call as in tests")]
    pub(crate) const fn has(&self, _: Mutant) -> bool {
        false
    }
}

impl Mutant {
    /// Those that the seeds of whole sites under faults find.
    pub const ALL: [Self; 11] = [
        Self::SettlesWhileDraining,
        Self::LeasedFromTheAnswer,
        Self::EndsQuarantinesAtOnce,
        Self::GivesNoSlack,
        Self::PromisesBeyondTheSiteLease,
        Self::ForgetsWhatExpired,
        Self::KeepsCancelledClaims,
        Self::FencesStandStill,
        Self::ReusesBeforeBeat,
        Self::ActsAfterItsReport,
        Self::HandsOverNoLease,
    ];
}
