//! Where the core of a site sits, and how one gets at it.
//!
//! Whoever has a command leaves it in the tray. If nobody is at the desk, it sits down and carries
//! out what is there: a client that is served at once costs no change of tasks. If somebody is,
//! that one sees to it. So nobody waits for the core, which may be writing to a disk, unless the
//! tray is full; and commands of one client are carried out in their order. The site task does the
//! rest: it listens to the links, the keeper and the clock.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use crate::boottime::{Alarm, Moment, read};
use crate::link::Event;
use kofm_site::core::Core;
use kofm_site::input::{Command, Input};
use kofm_site::keeper::News;

/// Commands that one who sits down carries out; then the site task goes on.
const MAX_BATCH: usize = 64;
/// Commands in the tray from which on whoever brings another waits.
const MAX_TRAY: usize = 1024;

/// The desk of one site.
pub(super) struct Desk {
    tray: Mutex<Tray>,
    seat: Mutex<Seat>,
    /// Calls the site task.
    bell: Notify,
    /// Tells whoever waits for the end of the site.
    over: Notify,
    /// The core starts tasks now and then: they are the site's, whoever sits here.
    runtime: Handle,
}

#[derive(Default)]
struct Tray {
    commands: VecDeque<Command>,
    /// The site has stopped, or nobody has a handle to it any more.
    closed: bool,
}

/// The core, while the site runs.
struct Seat {
    core: Option<Core>,
    /// When the site task looks again by itself.
    alarm: Option<Moment>,
}

/// A core that panics in the hands of whoever sits there: the site task has to see it.
///
/// `kofm serve` and `kofm up` abort the process at a panic. A program that embeds a site decides
/// that for itself, so the library only ends the site: its calls fail, and [`Site::ended`] returns.
///
/// [`Site::ended`]: crate::Site::ended
struct Fall<'a>(&'a Notify);

impl Drop for Fall<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.notify_one();
        }
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl Desk {
    pub(super) fn new(core: Core) -> Self {
        Self {
            tray: Mutex::default(),
            seat: Mutex::new(Seat { core: Some(core), alarm: None }),
            bell: Notify::new(),
            over: Notify::new(),
            runtime: Handle::current(),
        }
    }

    fn tray(&self) -> MutexGuard<'_, Tray> {
        self.tray.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a command carried out: here and now, or soon by somebody else. Where the site has
    /// stopped it is dropped, which tells whoever waits for an answer.
    pub(super) fn put(&self, command: Command) {
        let mut tray = self.tray();
        if tray.closed {
            return;
        }
        tray.commands.push_back(command);
        let full = tray.commands.len() > MAX_TRAY;
        drop(tray);
        let seat = if full { self.seat.lock().map_err(Into::into) } else { self.seat.try_lock() };
        match seat {
            Ok(seat) => self.work(seat),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(seat)) => self.mourn(seat.into_inner()),
        }
    }

    fn work(&self, mut seat: MutexGuard<'_, Seat>) {
        let Some(core) = &mut seat.core else { return };
        let context = self.runtime.enter();
        let _fall = Fall(&self.bell);
        for _ in 0..MAX_BATCH {
            let Some(command) = self.tray().commands.pop_front() else { break };
            core.on_input(read(), Input::Command(command));
        }
        drop(context);
        let early = match (core.next_timer(), seat.alarm) {
            (Some(next), Some(alarm)) => next < alarm,
            (Some(_), None) => true,
            (None, _) => false,
        };
        drop(seat);
        // Whoever found the seat taken had left its command before: it is seen here.
        if early || !self.tray().commands.is_empty() {
            self.bell.notify_one();
        }
    }

    /// Ends the site task, and the core with it. What is in the tray is dropped.
    pub(super) fn close(&self) {
        let mut tray = self.tray();
        tray.closed = true;
        let commands = std::mem::take(&mut tray.commands);
        drop(tray);
        drop(commands);
        self.bell.notify_one();
        self.over.notify_waiters();
    }

    /// Waits until the desk is closed, by whatever.
    pub(super) async fn closed(&self) {
        loop {
            let over = self.over.notified();
            if self.tray().closed {
                return;
            }
            over.await;
        }
    }

    /// The core has panicked. Whoever waits for something is told by its end.
    fn mourn(&self, mut seat: MutexGuard<'_, Seat>) {
        seat.core = None;
        self.close();
    }

    /// The site task. It ends with the links, or when the desk is closed.
    pub(super) async fn attend(
        self: Arc<Self>,
        mut links: mpsc::Receiver<Event>,
        mut news: mpsc::Receiver<News>,
        mut alarm: Alarm,
    ) {
        let mut input = Input::Nothing;
        loop {
            match self.seat.lock() {
                Ok(mut seat) if !self.tray().closed => {
                    let Some(core) = &mut seat.core else { return };
                    core.on_input(read(), input);
                    alarm.set(core.next_timer());
                    seat.alarm = alarm.rings();
                    self.work(seat);
                }
                Ok(mut seat) => return seat.core = None,
                Err(seat) => return self.mourn(seat.into_inner()),
            }
            input = tokio::select! {
                event = links.recv() => event.map_or_else(|| {
                    self.close();
                    Input::Nothing
                }, Input::Link),
                Some(news) = news.recv() => Input::News(news),
                () = alarm.ring() => Input::Nothing,
                () = self.bell.notified() => Input::Nothing,
            };
        }
    }
}
