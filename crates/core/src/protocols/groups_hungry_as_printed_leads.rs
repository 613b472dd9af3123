//! Cheng et al. 1999, §5, in a reading of its own.
//!
//! # Idea
//!
//! A process informs a group only if it leads all groups of its competitors, as in the appendix.
//! Then a group waits for one that leads it and wants nothing.
//!
//! # Source
//!
//! Cheng, Wada, Inoue, Zhang and Noguchi 1999, §5.
//!
//! # Messages
//!
//! Those of [`groups_hungry_as_printed`](super::groups_hungry_as_printed).
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
//! It is not: see [`groups_hungry`](super::groups_hungry) for the repair.

use super::groups_hungry_as_printed::{GroupsHungryAsPrinted, Reading};

/// The variation in this reading.
pub type GroupsHungryAsPrintedLeads = GroupsHungryAsPrinted<Leads>;

/// This reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leads;

impl Reading for Leads {
    const NAME: &'static str = "groups-hungry-as-printed-leads";
    const SUMMARY: &'static str = "the published variation: a group waits for an idle one";
    const LEADS: bool = true;
}
