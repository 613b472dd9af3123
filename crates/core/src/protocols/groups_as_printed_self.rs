//! Cheng et al. 1999, appendix, where a process has to inform itself too.
//!
//! # Idea
//!
//! The same transcription as [`groups_as_printed`](super::groups_as_printed), but "every member has
//! informed" includes the process itself, and whoever informs all has informed itself. Then nobody
//! works unprepared; but a process that has informed one group will not inform another, whichever
//! goes first, and three processes stand still after 6 steps.
//!
//! # Source
//!
//! Cheng, Wada, Inoue, Zhang and Noguchi 1999, appendix.
//!
//! # Messages
//!
//! Those of [`groups_as_printed`](super::groups_as_printed).
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
//! It is not: see [`groups`](super::groups) for the repair.

use super::groups_as_printed::{GroupsAsPrinted, Own, Reading};

/// The listing in this reading.
pub type GroupsAsPrintedSelf = GroupsAsPrinted<Everybody>;

/// This reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Everybody;

impl Reading for Everybody {
    const NAME: &'static str = "groups-as-printed-self";
    const SUMMARY: &'static str = "the published listing, self included: deadlocks";
    const BLOCKING: bool = true;
    const OWN: Own = Own::Informed;
}
