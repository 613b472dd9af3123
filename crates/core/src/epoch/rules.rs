//! What the checker may get wrong on purpose, to see that somebody notices.

use core::fmt::Debug;
use core::hash::Hash;

/// The rules that members play by.
pub trait Rules: Copy + Debug + Eq + Hash + Send + 'static {
    /// The one slip in them; none in those for use.
    fn slip(self) -> Option<Slip>;

    /// Whether it is this one.
    fn slips(self, slip: Slip) -> bool {
        self.slip() == Some(slip)
    }
}

/// The rules as they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {
    fn slip(self) -> Option<Slip> {
        None
    }
}

/// The rules with one slip.
impl Rules for Slip {
    fn slip(self) -> Option<Slip> {
        Some(self)
    }
}

/// A mistake that is easy to make. For the checker, not for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// A member that has begun a new life is waited for to lead the change.
    FollowsTheDead,
    /// A life that was left out may join again.
    ReadmitsTheDeparted,
    /// What a departed site may use is withheld by number, where units have names.
    WithholdsByNumber,
    /// A new life goes on with what its last one had, whether or not that was kept for it.
    BelievesTheDead,
    /// What a new life brings back stays withheld, where units are only counted.
    WithholdsTwice,
    /// A lease counts from the store's answer. For the driver, like the next two.
    LeasesFromTheAnswer,
    /// The store renews the lease of whoever asks, in whatever epoch.
    RenewsTheDeparted,
    /// Whoever waits for the end of a lease counts from when its site fell silent, not from when
    /// it was left out.
    WaitsSinceTheSilence,
    /// A lease is adopted although members have its units.
    AdoptsWhatMembersHave,
    /// A lease that was presented to two members goes on at both.
    AdoptsTwice,
    /// Of two leases of a unit the one that was adopted first goes on.
    FirstPaperWins,
    /// A lease that a new life brings back stays beside the adopted one.
    DiskBesideAdopter,
    /// Units that a member had adopted are not withheld again when it departs.
    AdopterIsNotWithheld,
    /// The units of an adopted lease that ended are free at once. For the driver, like the next.
    FreesAdopted,
    /// A site grants the units of an expired lease again without another renewal in the store.
    ReusesBeforeBeat,
    /// A holder goes on with an answer that came after the end of its lease.
    TakesLateAnswer,
    /// A client hears of a grant before there are copies of it.
    PromisesUnkept,
    /// One keeper fewer than needed counts as enough.
    KeptByTooFew,
    /// A keeper takes and acknowledges copies after its report.
    AcksAfterReport,
    /// A keeper acknowledges copies of an epoch that is over.
    AcksOldEpoch,
    /// A lease of which there is a copy goes on beside what members have.
    CopyIsARight,
    /// Copies are forgotten when the quarantine of their site ends.
    CopyEndsWithQuarantine,
    /// Copies are complete however few keepers are left.
    CertainWithTooFew,
    /// Of two copies that name a unit, the one with the smaller fence goes on.
    OlderCopyWins,
    /// The leases that the last record has of a departed site are not looked at.
    RecordIsNoCopy,
    /// A site that comes back without memory is believed to have had nothing.
    BelievesTheForgetful,
    /// A member that leaves takes steps after its report.
    LeaverGoesOn,
    /// The units of a member that leaves are withheld, as if it had departed.
    LeaverIsWithheld,
    /// Where claims have moved, those that wait are numbered by their new sites.
    RanksByHome,
    /// A P or V is answered before keepers have it.
    AnswersAlone,
    /// Other sites are told of a V before keepers have it.
    TellsBeforeKept,
    /// A site that comes back without a disk is believed to have done nothing.
    BelievesTheWiped,
    /// The disk of a site that comes back counts for more than the record.
    DiskBeatsRecord,
    /// A life answers for operations of the one before.
    NewLifeAnswers,
    /// An operation is done again although one with its id was done.
    DoesAgain,
}
