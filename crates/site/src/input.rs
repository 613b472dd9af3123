//! What comes to the core of a site.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kofm_core::SiteId;
use tokio::sync::oneshot;

use crate::api::{self, Answer, Call};
use crate::config::PoolConfig;
use crate::fast::Outbox;
use crate::keeper::News;
use crate::links::Event;

/// One thing that comes in.
pub enum Input {
    Command(Command),
    Link(Event),
    News(News),
    /// Time passes.
    Nothing,
}

/// What comes from clients.
pub enum Command {
    /// Calls of one fast client.
    Calls {
        list: Vec<(u64, Call)>,
        outbox: Arc<dyn Outbox>,
    },
    Call {
        call: Call,
        reply: oneshot::Sender<Result<Answer, api::Error>>,
    },
    Ask {
        peer: SiteId,
        call: Call,
        reply: oneshot::Sender<Result<Answer, api::Error>>,
    },
    Metrics(oneshot::Sender<String>),
    Pools(oneshot::Sender<Vec<PoolState>>),
    /// The history has answered a question.
    Told {
        ticket: u64,
        answer: Answer,
    },
    Drain,
    /// The last command: leases are written down, and nothing happens any more.
    Farewell(oneshot::Sender<()>),
    /// Garbles the memory of a pool's protocol, for tests.
    Scramble {
        pool: String,
        reply: oneshot::Sender<Result<(), api::Error>>,
    },
}

/// A pool as it is now.
pub struct PoolState {
    pub name: String,
    pub config: PoolConfig,
    /// Units that a departed site may still use.
    pub withheld: BTreeSet<u32>,
    /// Units that people have quarantined, and why.
    pub out: BTreeMap<u32, String>,
}
