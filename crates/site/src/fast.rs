//! What fast clients are told, and where it is put.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::api::{self, Answer, Code, State, Units};

/// Where the answers to one fast client go. It never waits.
pub trait Outbox: Send + Sync {
    /// Answers the call of that number.
    fn put(&self, number: u64, answer: &FastAnswer);
    /// The call of that number waits, for a request with this key. Now and then it asks which of
    /// them still do. False where the client is gone.
    fn wait(&self, number: u64, key: u64, waits: &dyn Fn(u64) -> bool) -> bool;
    /// The key of the request that the call of that number waits for.
    fn waits_for(&self, number: u64) -> Option<u64>;
    /// Whether the client is gone.
    fn is_closed(&self) -> bool;
}

/// What comes of it. It shares what it says with the site's books.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FastAnswer {
    Done,
    Request {
        id: Arc<str>,
        state: State,
        cause: Option<Cow<'static, str>>,
        lease: Option<FastLease>,
    },
    Lease(FastLease),
    Error {
        code: Code,
        message: String,
    },
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastLease {
    /// Who has it may renew and release.
    pub id: Arc<str>,
    /// Names of the units, by pool.
    pub units: Arc<Units>,
    /// Larger than that of every earlier lease of one of these units.
    pub fence: u64,
    /// How long it lives without a renewal.
    pub ttl_ms: u64,
    /// How long it still lives without a renewal.
    pub expires_in_ms: u64,
}

impl FastLease {
    fn new(lease: api::Lease) -> Self {
        let api::Lease { id, units, fence, ttl_ms, expires_in_ms, .. } = lease;
        Self { id: id.into(), units: Arc::new(units), fence, ttl_ms, expires_in_ms }
    }
}

impl FastAnswer {
    pub fn new(answer: Result<Answer, api::Error>) -> Self {
        match answer {
            Ok(Answer::Request(request)) => {
                let api::Request { id, state, cause, lease, .. } = *request;
                let (id, cause) = (id.into(), cause.map(Cow::Owned));
                Self::Request { id, state, cause, lease: lease.map(FastLease::new) }
            }
            Ok(Answer::Lease(lease)) => Self::Lease(FastLease::new(*lease)),
            Ok(
                Answer::Done
                | Answer::Known(_)
                | Answer::Holder(_)
                | Answer::Reserved(_)
                | Answer::Leases(_)
                | Answer::Queue(_)
                | Answer::Usage(_)
                | Answer::Counted(_)
                | Answer::Ahead { .. }
                | Answer::History(_)
                | Answer::UsageReport(_)
                | Answer::Taken(_)
                | Answer::Semaphores(_)
                | Answer::Gangs(_)
                | Answer::Rota(_)
                | Answer::Joined(_)
                | Answer::Events { .. },
            ) => Self::Done,
            Err(error) => Self::Error { code: error.error, message: error.message },
        }
    }
}
