//! Cheng et al. 1999, §5, in a reading of its own.
//!
//! # Idea
//!
//! A hungry process keeps a resource if one of its groups leads, whether that group wants to work
//! or not, as in the appendix. Then a group waits for a resource that is kept in the name of an
//! idle one.
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
pub type GroupsHungryAsPrintedKeeps = GroupsHungryAsPrinted<Keeps>;

/// This reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keeps;

impl Reading for Keeps {
    const NAME: &'static str = "groups-hungry-as-printed-keeps";
    const SUMMARY: &'static str =
        "the published variation: a group waits for an idle one, by its name";
    const KEEPS: bool = true;
}
