//! What fast clients are told, and where it is put.

use std::borrow::Cow;

pub use kofm_api::fast::{FastAnswer, FastLease};

use crate::api::{self, Answer};

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

/// An answer as a fast client is told it. It shares what it says with the site's books.
pub fn answer(answer: Result<Answer, api::Error>) -> FastAnswer {
    match answer {
        Ok(Answer::Request(request)) => {
            let api::Request { id, state, cause, lease, .. } = *request;
            let (id, cause) = (id.into(), cause.map(Cow::Owned));
            FastAnswer::Request { id, state, cause, lease: lease.map(FastLease::new) }
        }
        Ok(Answer::Lease(lease)) => FastAnswer::Lease(FastLease::new(*lease)),
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
            | Answer::InUse { .. }
            | Answer::History(_)
            | Answer::UsageReport(_)
            | Answer::Taken(_)
            | Answer::Semaphores(_)
            | Answer::Gangs(_)
            | Answer::Rota(_)
            | Answer::Joined(_)
            | Answer::Events(_),
        ) => FastAnswer::Done,
        Err(error) => FastAnswer::Error { code: error.error, message: error.message },
    }
}
