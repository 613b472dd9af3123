//! Baldoni 1994, figure 2, read so that it does not stand still.
//!
//! # Idea
//!
//! The same transcription as [`quorum_as_printed`](super::quorum_as_printed), but a site whose
//! handler waits still answers as a claimant. It gets further, and then two sites use what one may:
//! an `Inquire` that was slow belongs to a request that is over; its receiver yields for the next
//! one, the arbiter takes that for the answer to a newer `Inquire`, and a grant is used twice. With
//! one arbiter for three sites that takes 18 steps.
//!
//! # Source
//!
//! Baldoni 1994, figure 2.
//!
//! # Messages
//!
//! Those of [`quorum_as_printed`](super::quorum_as_printed).
//!
//! # Cost
//!
//! The same.
//!
//! # Assumes
//!
//! The same.
//!
//! # Why it is safe
//!
//! It is not: see [`quorum`](super::quorum) for the repair.

use super::quorum_as_printed::{Fault, QuorumAsPrinted, Reading};

/// The listing with a `select` that lets the claimant's messages through.
pub type QuorumAsPrintedInquire = QuorumAsPrinted<Open>;

/// That reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Open;

impl Reading for Open {
    const NAME: &'static str = "quorum-as-printed-inquire";
    const SUMMARY: &'static str = "the published listing, read kindly: over-allocates";
    const FAULTS: &'static [Fault] = &[Fault::Untagged];
}
