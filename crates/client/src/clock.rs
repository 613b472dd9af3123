//! The clock of leases: it runs while the machine sleeps, and is never set.

pub use kofm_api::boottime::Moment;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// How a moment is read from the machine, and told to it.
pub trait Boottime {
    /// Now.
    fn now() -> Self;
    /// As the kernel wants it.
    fn timespec(self) -> Timespec;
}

impl Boottime for Moment {
    fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Self::from_nanos(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    fn timespec(self) -> Timespec {
        let secs = i64::try_from(self.nanos() / 1_000_000_000).unwrap_or(i64::MAX);
        let nanos = i64::try_from(self.nanos() % 1_000_000_000).unwrap_or(0);
        Timespec { tv_sec: secs, tv_nsec: nanos }
    }
}
