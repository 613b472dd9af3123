//! Faults that are put into the core on purpose, to see that the world of [`super::super::world`]
//! finds each of them. Outside tests there is none.

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
}

impl Core {
    /// Whether the core has this fault.
    #[cfg(test)]
    pub(crate) fn has(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// There are none outside tests.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the same call as in tests")]
    pub(crate) const fn has(&self, _: Mutant) -> bool {
        false
    }
}

#[cfg(test)]
impl Mutant {
    pub const ALL: [Self; 9] = [
        Self::SettlesWhileDraining,
        Self::LeasedFromTheAnswer,
        Self::EndsQuarantinesAtOnce,
        Self::GivesNoSlack,
        Self::PromisesBeyondTheSiteLease,
        Self::ForgetsWhatExpired,
        Self::KeepsCancelledClaims,
        Self::FencesStandStill,
        Self::ReusesBeforeBeat,
    ];
}
