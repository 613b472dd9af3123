//! Datta 2009, where only the pusher's guard is as printed: everybody waits for ever.
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
pub type TreeAsPrintedPusher = TreeAsPrinted<Pusher>;

/// That reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pusher;

impl Reading for Pusher {
    const NAME: &'static str = "tree-as-printed-pusher";
    const SUMMARY: &'static str =
        "the published listing, otherwise repaired: the pusher spares the wrong ones";
    const PRINTED: &'static [Fault] = &[Fault::PriorityYields];
}
