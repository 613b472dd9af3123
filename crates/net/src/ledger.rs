//! The ledger: every lease, wait, expiry, refusal and change at one site, kept on disk for a
//! configured time and size.
//!
//! The core hands rows over under a lock that is never held while the disk works. A thread writes
//! what has come together some times a second, and waits for the disk once a second: a crash loses
//! at most that. If the disk does not take rows they are dropped and counted, and granting goes on.
//! Questions are answered by threads of their own, from the files.

mod rows;
mod segments;
mod sums;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::error;

pub(crate) use self::segments::Limits;
use self::segments::{Segment, Store};
pub(crate) use self::sums::Sum;
use crate::api::{Answer, Happening, LedgerAsk, Selection};

/// Rows that wait for the disk at most; more are dropped.
const MAX_INBOX: usize = 200_000;
/// How long rows come together before they are written.
const BATCH: Duration = Duration::from_millis(200);
/// How long written rows may wait for the disk to keep them.
const SYNC: Duration = Duration::from_secs(1);
/// Questions that may wait or be answered at once.
const MAX_ASKS: usize = 32;

/// What to do with an answer.
type Reply = Box<dyn FnOnce(Answer) + Send>;

/// The ledger of one site. Dropping it waits until all is written.
pub(crate) struct Ledger {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    site: Arc<str>,
    inbox: Mutex<Inbox>,
    wake: Condvar,
    bytes: AtomicU64,
    dropped: AtomicU64,
    asks: AtomicU64,
}

#[derive(Default)]
struct Inbox {
    rows: Vec<Happening>,
    asks: Vec<(LedgerAsk, Reply)>,
    closed: bool,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("site", &self.shared.site).finish_non_exhaustive()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.shared.inbox().closed = true;
        self.shared.wake.notify_one();
        // The next process that opens the directory finds all of it.
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("the thread that writes the history has panicked");
        }
    }
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Opens the ledger in a directory; in memory without one.
    pub(crate) fn open(dir: Option<&Path>, site: &str, limits: Limits) -> io::Result<Self> {
        let store = Store::open(dir, limits)?;
        let shared = Arc::new(Shared {
            site: site.into(),
            inbox: Mutex::default(),
            wake: Condvar::new(),
            bytes: AtomicU64::new(store.bytes()),
            dropped: AtomicU64::new(0),
            asks: AtomicU64::new(0),
        });
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("kofm-ledger".into());
        let thread = Some(thread.spawn(move || work(&worker, store))?);
        Ok(Self { shared, thread })
    }

    /// Keeps a row.
    pub(crate) fn note(&self, happening: &Happening) {
        let mut inbox = self.shared.inbox();
        if inbox.rows.len() >= MAX_INBOX {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let idle = inbox.rows.is_empty();
        inbox.rows.push(happening.clone());
        drop(inbox);
        if idle {
            self.shared.wake.notify_one();
        }
    }

    /// Answers a question about all that was noted before, on another thread. Returns false if too
    /// many are asked.
    pub(crate) fn ask(&self, ask: LedgerAsk, reply: Reply) -> bool {
        if self.shared.asks.fetch_add(1, Ordering::Relaxed) >= MAX_ASKS as u64 {
            self.shared.asks.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.shared.inbox().asks.push((ask, reply));
        self.shared.wake.notify_one();
        true
    }

    /// Bytes that are kept, and rows that were dropped because the disk did not take them.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.shared.bytes.load(Ordering::Relaxed), self.shared.dropped.load(Ordering::Relaxed))
    }
}

/// The thread that writes.
fn work(shared: &Arc<Shared>, mut store: Store) {
    let mut synced = Instant::now();
    loop {
        let mut inbox = shared.inbox();
        while inbox.rows.is_empty() && inbox.asks.is_empty() && !inbox.closed {
            if store.is_synced() {
                inbox = shared.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
            } else {
                let left = SYNC.saturating_sub(synced.elapsed());
                let waited = shared.wake.wait_timeout(inbox, left);
                inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
                if synced.elapsed() >= SYNC {
                    break;
                }
            }
        }
        if inbox.asks.is_empty() && !inbox.closed && !inbox.rows.is_empty() {
            let more = shared
                .wake
                .wait_timeout_while(inbox, BATCH, |inbox| inbox.asks.is_empty() && !inbox.closed);
            inbox = more.unwrap_or_else(PoisonError::into_inner).0;
        }
        let (rows, asks) = (std::mem::take(&mut inbox.rows), std::mem::take(&mut inbox.asks));
        let closed = inbox.closed;
        drop(inbox);
        if !rows.is_empty() {
            let lost = store.append(&rows, rows.last().map_or(0, |row| row.at_ms));
            shared.dropped.fetch_add(lost, Ordering::Relaxed);
            shared.bytes.store(store.bytes(), Ordering::Relaxed);
        }
        if !asks.is_empty() {
            let segments: Arc<[Segment]> = store.segments().into();
            for (ask, reply) in asks {
                let (segments, owner) = (Arc::clone(&segments), Arc::clone(shared));
                let answer = move || {
                    reply(answer(&owner.site, &segments, ask));
                    owner.asks.fetch_sub(1, Ordering::Relaxed);
                };
                let thread = thread::Builder::new().name("kofm-history".into());
                if let Err(error) = thread.spawn(answer) {
                    error!(%error, "no thread for a question about the history");
                    shared.asks.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        if closed {
            return store.seal();
        }
        if synced.elapsed() >= SYNC {
            store.sync();
            synced = Instant::now();
        }
    }
}

fn answer(site: &Arc<str>, segments: &[Segment], ask: LedgerAsk) -> Answer {
    match ask {
        LedgerAsk::History { selection, limit, before } => {
            Answer::History(latest(site, segments, &selection, limit, before.as_ref()))
        }
        LedgerAsk::Usage(scope) => {
            let (since, until) = (scope.since_ms, scope.until_ms);
            let mut sum = Sum::new(scope);
            if let Some(first) = segments.first() {
                sum.begins(first.first_ms);
            }
            // A lease that ends after the time may have been held within it.
            for segment in segments.iter().filter(|it| it.last_ms >= since) {
                segment.read(|view| sum.add(&view));
            }
            debug_assert!(since <= until, "the caller orders them");
            Answer::UsageReport(sum.report())
        }
    }
}

/// The latest rows that were asked for, or the latest before a place; the oldest first.
fn latest(
    site: &Arc<str>,
    segments: &[Segment],
    selection: &Selection,
    limit: usize,
    before: Option<&(u64, String, u64)>,
) -> Vec<Happening> {
    let mut found: BTreeMap<(u64, u64), Happening> = BTreeMap::new();
    let last = before.map(|(at_ms, name, seq)| {
        // Places are ordered by time, site and number.
        let seq = match name.as_str().cmp(site) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => *seq,
            std::cmp::Ordering::Greater => u64::MAX,
        };
        (*at_ms, seq)
    });
    for segment in segments.iter().rev() {
        let full = found.len() >= limit;
        let oldest = found.first_key_value().map_or(0, |it| it.0.0);
        // The wall clock may have been set back: every segment says which times it has.
        let skipped = segment.last_ms < selection.since_ms
            || selection.until_ms.is_some_and(|until| segment.first_ms > until)
            || last.is_some_and(|last| segment.first_ms > last.0)
            || full && segment.last_ms < oldest;
        if skipped {
            continue;
        }
        segment.read(|view| {
            let place = (view.at_ms, view.seq);
            let wanted = last.is_none_or(|last| place < last)
                && (found.len() < limit || found.first_key_value().is_some_and(|it| *it.0 < place));
            if wanted && selects(selection, &view) {
                found.insert(place, view.happening(site));
                if found.len() > limit {
                    found.pop_first();
                }
            }
        });
    }
    found.into_values().collect()
}

fn selects(selection: &Selection, view: &rows::View<'_>) -> bool {
    let Selection { since_ms, until_ms, pool, owner, event } = selection;
    view.at_ms >= *since_ms
        && until_ms.is_none_or(|until| view.at_ms <= until)
        && owner.as_ref().is_none_or(|owner| view.owner() == owner)
        && event.as_ref().is_none_or(|event| view.text(view.row.event) == event)
        && pool.as_ref().is_none_or(|pool| view.row.want.iter().any(|it| view.text(it.0) == pool))
}

#[cfg(test)]
mod tests;
