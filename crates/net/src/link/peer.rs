//! The link to one peer: its session, the connection that stands, and which one has the say.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use kofm_core::SiteId;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use super::BATCH;
use super::connection::LinkError;
use kofm_site::links::LinkInfo;

use crate::boottime::{Boottime as _, Moment};
use crate::session::{Broken, Session};
use crate::wire::Frame;

/// The link to one peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: SiteId,
    pub(super) name: String,
    address: Mutex<String>,
    /// No process listens there, as far as was tried since the connection ended.
    pub(super) refused: AtomicBool,
    pub(super) state: Mutex<State>,
    /// Something is there to send.
    pub(super) wake: Notify,
    /// The number of the newest connection; older ones end themselves.
    pub(super) newest: watch::Sender<u64>,
    pub(super) resumes: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) session: Session,
    /// The connection that stands.
    pub(super) up: Option<u64>,
    /// When it came up, or the last one went down.
    pub(super) since: Moment,
    /// Why the session is over, if it is.
    pub(super) broken: Option<Broken>,
    /// What was last wrong with the connection.
    pub(super) trouble: Option<String>,
}

impl Link {
    pub(super) fn new(peer: SiteId, name: String, address: String) -> Self {
        let (session, since) = (Session::default(), Moment::now());
        let state = State { session, up: None, since, broken: None, trouble: None };
        Self {
            peer,
            name,
            address: Mutex::new(address),
            refused: AtomicBool::new(false),
            state: Mutex::new(state),
            wake: Notify::new(),
            newest: watch::Sender::new(0),
            resumes: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// Where the peer is dialled.
    pub(super) fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn move_to(&self, address: String) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, for the newest connection only.
    pub(super) fn lock_for(&self, number: u64) -> Result<MutexGuard<'_, State>, LinkError> {
        let state = self.lock();
        if *self.newest.borrow() == number { Ok(state) } else { Err(LinkError::Replaced) }
    }

    /// Takes the say from all connections so far.
    pub(super) fn take_say(&self) -> u64 {
        let _state = self.lock();
        self.next_connection()
    }

    /// Takes the say from all connections so far; called with the lock held.
    pub(super) fn next_connection(&self) -> u64 {
        self.newest.send_modify(|newest| *newest += 1);
        *self.newest.borrow()
    }

    pub(super) fn note(&self, trouble: &str) {
        let mut state = self.lock();
        if state.trouble.as_deref() != Some(trouble) {
            warn!(peer = self.peer.0, trouble, "no link");
            state.trouble = Some(trouble.to_owned());
        }
    }

    pub(super) fn is_up(&self) -> bool {
        let state = self.lock();
        state.up == Some(*self.newest.borrow())
    }

    pub(super) fn up(&self, number: u64) {
        let mut state = self.lock();
        if state.up.is_none() {
            state.since = Moment::now();
        }
        state.up = Some(number);
        state.trouble = None;
        self.resumes.fetch_add(1, Ordering::Relaxed);
        info!(peer = self.peer.0, "link up");
    }

    pub(super) fn down(&self, number: u64, why: &LinkError) -> bool {
        let mut state = self.lock();
        if state.up != Some(number) {
            return false;
        }
        (state.up, state.since) = (None, Moment::now());
        state.trouble = Some(why.to_string());
        info!(peer = self.peer.0, %why, "link down");
        true
    }

    /// Ends session and connection. The next session is with this life: an older one that is heard
    /// of late does not get in before it. Returns the connection number that this took.
    pub(super) fn restart(&self, incarnation: Option<u64>) -> u64 {
        let mut state = self.lock();
        let trouble = state.trouble.take();
        let session = Session::with(incarnation);
        let since = if state.up.is_some() { Moment::now() } else { state.since };
        *state = State { session, up: None, since, broken: None, trouble };
        self.next_connection()
    }

    pub(super) fn end(&self, why: Broken) {
        let mut state = self.lock();
        if state.up.is_some() || state.broken.is_none() {
            state.since = Moment::now();
        }
        state.broken.get_or_insert(why);
        state.up = None;
        self.next_connection();
    }

    /// Puts messages that were not sent into `out`; says how many wait to be acknowledged.
    pub(super) fn fill(&self, number: u64, out: &mut BytesMut) -> Result<u64, LinkError> {
        let mut state = self.lock_for(number)?;
        let mut count = 0;
        while out.len() < BATCH
            && let Some((seq, payload)) = state.session.pop()
        {
            let ack = state.session.tell();
            Frame::Data { seq, ack, payload }.encode(out);
            count += 1;
        }
        self.sent.fetch_add(count, Ordering::Relaxed);
        Ok(state.session.untold())
    }

    pub(super) fn info(&self) -> LinkInfo {
        let state = self.lock();
        LinkInfo {
            peer: self.peer,
            name: self.name.clone(),
            address: self.address(),
            up: state.up == Some(*self.newest.borrow()),
            since: state.since,
            incarnation: state.session.peer(),
            waiting: state.session.waiting(),
            broken: state.broken.map(|why| why.to_string()),
            trouble: state.trouble.clone(),
            resumes: self.resumes.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
        }
    }
}
