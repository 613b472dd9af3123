//! How many clients may be connected: descriptors are kept back for other sites and for files, and
//! the connection that has been idle for longest makes room for a new one.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

use crate::boottime::{Boottime, Moment};

/// Clients that may be connected at once.
const MAX_CONNECTIONS: usize = 50_000;
/// Descriptors of a process that no client gets, or a third of all if that is less.
const RESERVED: usize = 512;

/// The connections of clients to all sites of this process: descriptors are the process's.
static ALL: LazyLock<Arc<Slots>> = LazyLock::new(|| Arc::new(Slots::new(limit())));

/// Connections that clients may have, by the descriptors that the process may open.
fn limit() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    (files - RESERVED.min(files / 3)).min(MAX_CONNECTIONS)
}

/// The connections that are open, by the order in which they came.
#[derive(Debug)]
pub(crate) struct Slots {
    limit: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    list: BTreeMap<u64, Arc<State>>,
}

#[derive(Debug)]
struct State {
    /// Since when no call is open; none while one is.
    idle: Mutex<Option<Moment>>,
    /// Calls that are open.
    calls: AtomicUsize,
    close: Notify,
}

/// The place of a connection; given back when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Slot(Arc<Place>);

#[derive(Debug)]
struct Place {
    number: u64,
    state: Arc<State>,
    slots: Arc<Slots>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.slots.lock().list.remove(&self.number);
    }
}

impl Slots {
    const fn new(limit: usize) -> Self {
        let open = Open { next: 0, list: BTreeMap::new() };
        Self { limit, open: Mutex::new(open) }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection that has come. If the last sixteenth of the places is in use, the
    /// connection that has been idle for longest is closed. None if all are in use.
    fn take(self: &Arc<Self>) -> Option<Slot> {
        let mut open = self.lock();
        if open.list.len() >= self.limit - self.limit / 16 {
            let since = |state: &State| *state.lock();
            let idle = open.list.values().filter_map(|it| Some((since(it)?, it)));
            // Asked once; it leaves the list when its task has ended.
            if let Some((_, state)) = idle.min_by_key(|it| it.0) {
                *state.lock() = None;
                state.close.notify_one();
            }
        }
        if open.list.len() >= self.limit {
            return None;
        }
        let number = open.next;
        open.next += 1;
        let idle = Mutex::new(Some(Moment::now()));
        let state = Arc::new(State { idle, calls: AtomicUsize::new(0), close: Notify::new() });
        open.list.insert(number, Arc::clone(&state));
        Some(Slot(Arc::new(Place { number, state, slots: Arc::clone(self) })))
    }
}

/// A place for a client that has connected; none if there is none left.
pub(crate) fn take() -> Option<Slot> {
    ALL.take()
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Option<Moment>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// A call has begun; the connection is in use until the value is dropped.
    pub(crate) fn begin(&self) -> Busy {
        self.0.state.calls.fetch_add(1, Ordering::SeqCst);
        *self.0.state.lock() = None;
        Busy(self.clone())
    }

    /// Waits until the connection has to make room for another one.
    pub(crate) async fn closed(&self) {
        self.0.state.close.notified().await;
    }
}

/// A connection in use.
#[derive(Debug)]
pub(crate) struct Busy(Slot);

impl Drop for Busy {
    fn drop(&mut self) {
        let state = &self.0.0.state;
        if state.calls.fetch_sub(1, Ordering::SeqCst) == 1 {
            *state.lock() = Some(Moment::now());
        }
    }
}

/// An answer during whose body the connection is in use.
pub(super) struct Answering {
    body: Body,
    _busy: Busy,
}

impl Answering {
    pub(super) const fn new(body: Body, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    async fn is_asked(slot: &Slot) -> bool {
        timeout(std::time::Duration::ZERO, slot.closed()).await.is_ok()
    }

    #[tokio::test]
    async fn the_longest_idle_connection_makes_room_and_a_busy_one_stays() {
        let slots = Arc::new(Slots::new(32));
        let busy = slots.take().unwrap();
        let _call = busy.begin();
        let first = slots.take().unwrap();
        let second = slots.take().unwrap();
        drop(first.begin());
        let others: Vec<Slot> = (0..27).map(|_| slots.take().unwrap()).collect();
        assert!(!is_asked(&second).await, "30 of 32 are in use");
        let more = slots.take().unwrap();
        assert!(is_asked(&second).await && !is_asked(&busy).await);
        let most = slots.take().unwrap();
        assert!(is_asked(&first).await || is_asked(&others[0]).await);
        assert!(slots.take().is_none(), "all are in use until one has left");
        drop((second, more, most));
        assert!(slots.take().is_some());
    }
}
