//! Calls of a site's core and their answers: the types of the HTTP API, and those between sites.

mod calls;
mod ledger;

pub use kofm_api::*;
use kofm_core::{SiteId, Stamp};

pub use self::calls::{
    Answer, Call, Events, Hold, Holder, JoinCall, SemaphoreShare, Usage, UsedUnit,
};
pub use self::ledger::{Buckets, By, Group, LedgerAsk, Report, Scope, Selection};

/// A claim as clients see it.
pub const fn claim(stamp: Stamp) -> Claim {
    Claim { time: stamp.time, site: stamp.site.0 }
}

/// The claim that clients see so.
pub const fn stamp(claim: Claim) -> Stamp {
    Stamp { time: claim.time, site: SiteId(claim.site) }
}
