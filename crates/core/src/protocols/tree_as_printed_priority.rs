//! Datta 2009, where only the count of the priority token is as printed: of two, one is missed.
//!
//! # Idea
//!
//! The same transcription as [`tree_as_printed`](super::tree_as_printed) with the other two faults
//! repaired, so that this one shows.
//!
//! # Source
//!
//! hal-00344193v4, algorithms 1 and 2.
//!
//! # Messages
//!
//! Those of [`tree_as_printed`](super::tree_as_printed).
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
//! It is not: see [`tree`](super::tree) for the repair.

use super::tree_as_printed::{Reading, TreeAsPrinted};
use crate::readings::Fault;

/// The listing with this fault alone.
pub type TreeAsPrintedPriority = TreeAsPrinted<Priority>;

/// That reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Priority;

impl Reading for Priority {
    const NAME: &'static str = "tree-as-printed-priority";
    const SUMMARY: &'static str =
        "the published listing, otherwise repaired: overlooks a second priority token";
    const PRINTED: &'static [Fault] = &[Fault::PassesUncounted];
    const START: Option<u8> = Some(2);
}
