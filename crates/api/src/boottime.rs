//! The time that a site is told: it runs while the machine sleeps, and is never set.

use std::time::Duration;

/// A moment on `CLOCK_BOOTTIME`. Never leaves the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// So much later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long it is from `earlier` until this; zero where it is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds since the machine was started, for a process beside this one.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The moment that another process of this machine means.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }
}
