//! How a cluster goes on when sites die, leave or join, or when its pools change.
//!
//! # Idea
//!
//! Protocols are proved for sites that do not crash. So nothing crashes inside an *epoch*, and
//! every crash, join and change of configuration is a change of epoch. There is one mechanism for
//! all of them, and every protocol is started anew from what its members know:
//!
//! ```text
//!   freeze ──► report ──► commit ──► barrier ──► resume
//! ```
//!
//! A member that wants a change asks the others to report. Who reports has *frozen*: its protocols
//! take no step until a later epoch is decided, so that what it said stays true. A report is
//! what the site knows for certain and nobody else does: its own live claims and the named units
//! that lie with it. With the reports of all who are to stay, the proposer puts together the next
//! [`Record`] and offers it to the *store*, a register that takes it if nobody else was first.
//! Whoever learns of the record installs it, says so to all members, and resumes when all of them
//! have said so; until then a message of the new epoch could meet a site of the old one, which
//! would drop it.
//!
//! # What the record says
//!
//! Everything. From the same [`Survey`] every member starts its protocols with the same knowledge,
//! without one more message: who holds what, who waits, where idle units lie. Claims keep their
//! stamps, hence their identity and their place in the queue. Nothing depends on which protocol
//! wrote the survey; a pool changes its protocol by being resumed by another one.
//!
//! # What a departed site may still use
//!
//! A site that did not report may be alive and have granted anything that no survivor knows to have
//! itself. All of that is *withheld*: named units that nobody reported, and where units are only
//! counted, all that survivors do not hold. The pool runs on with the rest. A site's right to
//! grant is a lease that it must renew in the store, and that fails once the epoch has changed; the
//! driver waits until the leases of the departed have certainly ended and says [`Input::Over`].
//! That
//! wants another change, in which the units are free again.
//!
//! # Leases that outlive their site
//!
//! A holder whose site is gone presents its lease to a member, which has it in its next
//! [`Report`]. The next record lets the lease go on there, as a held claim of that member, if its
//! units are still withheld. All presentations are decided in the record, so no two members adopt
//! the same lease. Of two leases that name the same unit, the one with the larger fence goes on:
//! the site that granted them gave the unit away again only after the first one had ended for its
//! holder. For the same reason the units of an adopted lease that ends are not granted again before
//! the quarantine ends in which they were withheld: a holder with a larger fence may still come.
//! The driver sees to that, and to one thing more: a site grants the units of a lease that was not
//! renewed again only after a renewal in the store that began after the end of that lease. Such a
//! renewal says that up to then the lease cannot have been adopted.
//!
//! # Leases that only a person ends
//!
//! In some pools the units of a lease stay with it although its holder has fallen silent, until its
//! holder or a person releases it. That must be so too when the site that granted the lease is lost
//! with its disk. So its client hears of the grant only when enough members have copies:
//! `machine/copies.rs` has the rules, and says why they suffice. The units of a departed site are
//! withheld as ever; when the quarantine ends, a lease of which there is a copy goes on at a member
//! instead of being forgotten.
//!
//! # Members that leave
//!
//! A site that is about to stop [says so](Input::Leave), reports, and is not in the next record.
//! Its units go to members, claims that wait at it wait elsewhere in the same place, and nothing is
//! withheld. Claims of a site that died come back in their places where clients present
//! [tickets](Ticket) of them.
//!
//! # Semaphores
//!
//! Units that were taken from a semaphore do not come back by themselves, so there is nothing to
//! withhold, and a P or V must not be forgotten. Its client is answered when a majority of a few
//! [`keepers`] has it: see
//! [`accounts`].
//!
//! # Why it is safe
//!
//! Reports are for one epoch, and the store lets one record follow it. A member is frozen from its
//! report on until it learns of that record, so the record is true when it takes effect. What a
//! member did not report it cannot have: it may use only what it owns or was granted in its epoch.
//! What others had is withheld until they cannot use it any more. Messages carry their epoch and
//! are
//! dropped in any other, so nothing of the past has an effect on the future.
//!
//! # Why it goes on
//!
//! No step waits for a site that is suspected; the driver suspects whom it does not hear from.
//! Several proposers do no harm: the store takes one record, and the others start from there.
//!
//! # How it is driven
//!
//! [`Epochs`] is the machine alone: it decides when to freeze and when to go on, and has no
//! protocols in it. [`Member`] puts it together with one protocol; simulator and checker drive
//! that,
//! and whoever has several protocols at once does the same with them.

pub mod accounts;
mod adopt;
mod conclude;
pub mod keepers;
mod leave;
mod machine;
mod member;
mod order;
mod orphans;
mod rules;
mod survey;

pub use accounts::{Account, Accounts, Books, Named, Op, Tally};
pub use leave::{Handed, Moved, Ticket};
pub use machine::{Effect, Epochs, Input, MAX_COPIES, Message, Phase};
pub use member::{Call, Frame, Member, MemberEffect, MemberEffects, MemberInput};
pub(crate) use order::queue;
pub use rules::{Rules, Slip, Sound};
pub use survey::{
    Adopted, Book, Copy, Counts, Kept, LeaseKey, Paper, PaperPart, Plan, Quarantine, Record,
    Report, Standing, Survey, Withheld,
};
