//! Cheng et al. 1999, §5, in a reading of its own.
//!
//! # Idea
//!
//! A process that has informed a group gives nothing away. Then two groups each hold what the other
//! needs: the deadlock of the paper's Figure 1.
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
pub type GroupsHungryAsPrintedHolds = GroupsHungryAsPrinted<Holds>;

/// This reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holds;

impl Reading for Holds {
    const NAME: &'static str = "groups-hungry-as-printed-holds";
    const SUMMARY: &'static str = "the published variation: groups deadlock";
    const HOLDS: bool = true;
}
