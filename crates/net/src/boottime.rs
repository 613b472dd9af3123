//! The clock of leases: it runs while the machine sleeps, and nobody sets it.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A moment on `CLOCK_BOOTTIME`. Never leaves the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Now.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Self(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

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

    /// As the kernel wants it.
    pub fn timespec(self) -> Timespec {
        let secs = i64::try_from(self.0 / 1_000_000_000).unwrap_or(i64::MAX);
        let nanos = i64::try_from(self.0 % 1_000_000_000).unwrap_or(0);
        Timespec { tv_sec: secs, tv_nsec: nanos }
    }
}

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// The clock of leases: every decision uses this one.
    pub boot: Moment,
    /// Milliseconds since 1970, for events and history only.
    pub wall_ms: u64,
}

impl Now {
    /// Reads both clocks.
    pub(crate) fn read() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        Self { boot: Moment::now(), wall_ms }
    }
}

/// An alarm that also rings after a sleep of the machine.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: AsyncFd<std::os::fd::OwnedFd>,
    /// When it rings; setting it later is left out, it is set again when it rings too early.
    armed: Option<Moment>,
}

impl Alarm {
    #[expect(deprecated, reason = "its successor is unsafe; this owns the file it registers")]
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self { timer: AsyncFd::new(timer)?, armed: None })
    }

    /// Rings not later than at `moment`.
    pub(crate) fn set(&mut self, moment: Option<Moment>) {
        let Some(moment) = moment else { return };
        if self.armed.is_some_and(|armed| armed <= moment) {
            return;
        }
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would disarm it.
        let value = Moment(moment.0.max(1)).timespec();
        let spec = Itimerspec { it_interval: never, it_value: value };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)
            .expect("a timer of our own takes any time");
        self.armed = Some(moment);
    }

    /// When it rings next.
    pub(crate) const fn rings(&self) -> Option<Moment> {
        self.armed
    }

    /// Waits until it rings.
    pub(crate) async fn ring(&mut self) {
        let Ok(mut ready) = self.timer.readable().await else { return };
        let mut count = [0; 8];
        match rustix::io::read(self.timer.get_ref(), &mut count) {
            Ok(_) => self.armed = None,
            Err(_) => ready.clear_ready(),
        }
    }
}
