//! Where the cluster's epoch is decided: one record, two verbs.
//!
//! A site may grant while its last successful [`Store::beat`] *began* less than its lease ago. A
//! beat succeeds only while the epoch is unchanged, and [`Store::swap`] replaces the record of one
//! epoch by that of the next. So once a swap has succeeded, whoever is not told of it stops by
//! itself within a lease, whatever the store thinks about time: no store is trusted with a clock.
//!
//! | store | who keeps the record |
//! | --- | --- |
//! | [`voters::Voters`] (default) | the configured members, by durable majority promises |
//! | [`etcd::Etcd`] | etcd, through its key-value API; its leases are not used |

pub(crate) mod etcd;
pub(crate) mod register;
pub(crate) mod voters;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

/// What is agreed on: the number of an epoch, and what it means, as bytes. Before the first swap
/// there is epoch 0, with an empty body.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub epoch: u64,
    pub body: Vec<u8>,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} ({} bytes)", self.epoch, self.body.len())
    }
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pulse {
    pub site: String,
    pub incarnation: u64,
    /// How many beats of this life have succeeded. A site that reaches the store, but not enough
    /// of it, does not look alive.
    pub count: u64,
    /// Whatever the site wants the others to know.
    pub note: Vec<u8>,
}

/// How a beat ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    /// The epoch is unchanged; what each site last said.
    Steady(Vec<Pulse>),
    /// There is a later one.
    Moved(Record),
}

/// How a swap ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Swap {
    /// The record is the new one.
    Done,
    /// Somebody else was faster; this is what stands now.
    Lost(Record),
}

/// The store did not decide. What was asked may or may not have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StoreError {
    /// Fewer than a majority answered, or etcd did not.
    #[error("{0}")]
    Unreachable(String),
    /// Several sites want to change the epoch at once; try again.
    #[error("others are changing the epoch at this moment")]
    Contended,
    /// What is kept there is not ours.
    #[error("{0}")]
    Nonsense(String),
}

/// An answer that comes later.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A store. Linearizable; nothing else is asked of it.
pub(crate) trait Store: Send + Sync + fmt::Debug {
    /// Replaces the record of the epoch before `next` by `next`.
    fn swap(&self, next: Record) -> Later<'_, Swap>;
    /// Says that a site lives, if the epoch is still `epoch`.
    fn beat(&self, epoch: u64, pulse: Pulse) -> Later<'_, Beat>;
}
