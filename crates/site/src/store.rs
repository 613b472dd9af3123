//! What a site says to the store of epochs, and hears from it.

use serde::{Deserialize, Serialize};

/// The agreed record: the number of an epoch, the voters of the next one, and its content as bytes.
pub type Record = kofm_core::voting::Decree;

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    pub site: String,
    pub incarnation: u64,
    /// How many beats of this life have succeeded. A site that reaches the store, but not enough
    /// of it, does not look alive.
    pub count: u64,
    /// What the site tells the other members.
    pub note: Vec<u8>,
}

/// How a beat ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The epoch is unchanged; what each site last said.
    Steady(Vec<Pulse>),
    /// There is a later one.
    Moved(Record),
}

/// How a swap ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The record is the new one.
    Done,
    /// Another proposer was faster; this is the record now.
    Lost(Record),
}

/// The store did not decide. What was asked may or may not have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
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
