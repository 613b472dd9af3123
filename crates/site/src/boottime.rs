//! The time that a site is told: it runs while the machine sleeps, and is never set.

pub use kofm_api::boottime::Moment;

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The clock of leases: every decision uses this one.
    pub boot: Moment,
    /// Milliseconds since 1970, for events and history only.
    pub wall_ms: u64,
}
