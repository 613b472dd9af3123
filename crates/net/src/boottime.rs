//! The clock of leases: it runs while the machine sleeps, and nobody sets it.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

pub use kofm_client::{Boottime, Moment};
pub(crate) use kofm_site::boottime::Now;

/// One reading of both clocks.
pub(crate) fn read() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
    Now { boot: Moment::now(), wall_ms }
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
        let value = Moment::from_nanos(moment.nanos().max(1)).timespec();
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
