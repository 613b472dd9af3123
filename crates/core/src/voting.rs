//! Few voters decide the epochs of many members: a chain of single-decree Paxos instances.
//!
//! # Idea
//!
//! The decree of epoch e names the voters that decide epoch e+1, and nothing else does. So the
//! electorate of an instance is fixed before its first ballot: it stands in a decree that is chosen
//! already. No joint phase is needed, and any set of voters may follow any other.
//!
//! A proposer collects promises for a ballot from a majority of the electorate, then has a decree
//! accepted by a majority. It takes over the decree that was accepted with the largest ballot. A
//! voter answers a heartbeat in epoch e only while it has accepted no successor of e.
//!
//! A voter is a disk and not a name: each [`Register`] has a random [`DiskId`], made with its empty
//! file, and decrees name voters by it. A site that lost its disk comes back with another one,
//! which is no voter until a decree names it. An empty disk never answers for a lost one.
//!
//! # Why it is safe
//!
//! Two majorities of one electorate share a disk. If a successor was accepted by one majority and a
//! heartbeat was answered by another, the shared voter answered the heartbeat first: it began
//! before the successor was chosen. A heartbeat that begins later does not succeed. A disk that is
//! a voter for the first time in epoch e has never voted on epoch e+1, so it may begin empty.
//!
//! Promises and acceptances are on disk before they are answered. A ballot names the incarnation of
//! its proposer, so two proposals never share one.
//!
//! # What the driver owes
//!
//! A retired voter keeps its register and answers questions about its epoch with the later decree,
//! until a majority of the new voters has that decree on disk.

mod choose;
mod register;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

pub use self::choose::{Candidate, MAX_VOTERS, Wanted, choose};
pub use self::register::{
    Answer, Durable, Mistake, Next, Proposal, Question, Register, Rules, Sound,
};
use crate::types::SiteId;

/// The random name of the file in which a voter keeps its promises.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct DiskId(pub u128);

impl DiskId {
    /// Any disk of the site. Only before the first epoch, where no decree names one yet.
    pub const ANY: Self = Self(0);
}

/// The voters that decide the next epoch: a majority of these disks.
pub type Electorate = BTreeMap<SiteId, DiskId>;

/// The decision on one epoch: its number, who decides the next one, and what it says, as bytes.
/// Before the first decision there is epoch 0, with an empty body.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Decree {
    /// The epoch.
    pub epoch: u64,
    /// Who decides the next one. Empty where another authority does: etcd, or one process.
    pub voters: Electorate,
    /// What it says.
    pub body: Vec<u8>,
}

impl fmt::Debug for Decree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} ({} voters, {} bytes)", self.epoch, self.voters.len(), self.body.len())
    }
}

/// The order of proposals: a round, then the proposer and its incarnation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Ballot {
    /// Grows with each attempt.
    pub round: u64,
    /// The proposer.
    pub site: u16,
    /// Its incarnation.
    pub incarnation: u64,
}
