//! Raynal 1990, §5.1, to the letter.
//!
//! # Idea
//!
//! The published listing, transcribed with its names, for the checker to refute. A user answers
//! "all free" to a request with a smaller stamp, because sites that skip each other do not exchange
//! clocks: with two sites and two units, three units are in use after 13 steps.
//!
//! Readings of it:
//!
//! - `user-first`: a user has priority whatever the stamps are. It counts itself and not what it
//!   has counted: three sites then count each other in a circle.
//! - none: a user answers a late request when it releases. That is safe.
//! - `type-by-type`, with several pools (§6): a site that has one type and waits for another lets a
//!   late request for the first wait, and two sites wait for each other.
//!
//! # Source
//!
//! Raynal 1990 (RR-1342), §5.1 and §6.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Req` | claimant | who is not known to be using | may I? |
//! | `Free` | everybody | claimant | so many units are free as far as I am concerned |
//!
//! # Cost
//!
//! 0 to 3(n−1) messages per claim.
//!
//! # Assumes
//!
//! First-in first-out links; one claim per site at a time. And still it is not safe.
//!
//! # Why it is safe
//!
//! It is not: see [`permission_lazy`](super::permission_lazy) for the repair.

use super::permission_as_printed::{Listing, Section};
use crate::readings::Fault;

/// The protocol.
pub type PermissionLazyAsPrinted = Listing<Lazy>;

/// §5.1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lazy;

impl Section for Lazy {
    const NAME: &'static str = "permission-lazy-as-printed";
    const SOURCE: &'static str = "Raynal 1990, §5.1, as printed";
    const SUMMARY: &'static str = "the published listing: over-allocates";
    const LAZY: bool = true;
    const PRINTED: &'static [Fault] = &[Fault::LateFree];
    const FAULTS: &'static [Fault] =
        &[Fault::LateFree, Fault::UserFirst, Fault::ClockPerType, Fault::TypeByType];
}
