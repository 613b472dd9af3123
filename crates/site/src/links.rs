//! What sites say to each other, and how the core reaches them.

use kofm_core::{Clock, ProtocolId, SiteId};
use serde::{Deserialize, Serialize};

use crate::boottime::Moment;
use crate::session::Broken;

/// What one Data frame carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// A protocol speaks.
    Protocol { epoch: u64, protocol: ProtocolId, clock: Clock, message: Vec<u8> },
    /// Numbers of anonymous units move.
    Names { epoch: u64, protocol: ProtocolId, clock: Clock, message: Vec<u8> },
    /// A site asks, on behalf of a client.
    Ask { number: u64, body: Vec<u8> },
    /// And is answered.
    Answer { number: u64, body: Vec<u8> },
    /// The epoch changes.
    Change { message: Vec<u8> },
    /// The rota that began with this epoch speaks.
    Rota { since: u64, clock: Clock, message: Vec<u8> },
    /// Another process says that it is the receiver, and was refused.
    Twin { address: String },
    /// A site speaks about what was done with semaphores.
    Accounts { epoch: u64, protocol: ProtocolId, message: Vec<u8> },
    /// A site tells what waits at it.
    Waits { message: Vec<u8> },
}

/// What links tell the site.
#[derive(Debug)]
pub enum Event {
    /// Messages, in order.
    Messages { from: SiteId, list: Vec<Payload> },
    /// A connection stands.
    Up(SiteId),
    /// It is gone; the session waits for the next one.
    Down(SiteId),
    /// `PeerReset`: the session is over. The peer has forgotten what it promised, or this site
    /// could not keep what it owed. An epoch change follows.
    PeerReset { peer: SiteId, why: Broken },
}

/// The core's side of the links: reliable, ordered channels to other sites. A driver carries the
/// messages over TCP, a test's world carries them in memory.
pub trait Links: Send {
    /// Queues a message for `to` and never waits. An error ends the session with `to`.
    fn send(&self, to: SiteId, payload: &Payload) -> Result<(), Broken>;
    /// Whether a connection to `peer` stands.
    fn is_up(&self, peer: SiteId) -> bool;
    /// Whether the connection to `peer` is gone, and its machine says that no process listens
    /// there.
    fn is_refused(&self, _peer: SiteId) -> bool {
        true
    }
    /// Makes a link to a site, unless there is one.
    fn reach(&self, peer: SiteId, name: String, address: String);
    /// Starts empty sessions with all peers, as a new incarnation.
    fn reborn(&self, incarnation: u64);
    /// Ends the session with a peer that sent nonsense; the next epoch begins another.
    fn end(&self, peer: SiteId, why: Broken);
    /// The state of all links, for operators.
    fn info(&self) -> Vec<LinkInfo>;
}

/// How a link is, for people.
#[derive(Clone, Debug)]
pub struct LinkInfo {
    pub peer: SiteId,
    pub name: String,
    pub address: String,
    pub up: bool,
    /// When it came up or went down.
    pub since: Moment,
    pub incarnation: Option<u64>,
    pub waiting: usize,
    pub broken: Option<String>,
    pub trouble: Option<String>,
    pub resumes: u64,
    pub sent: u64,
    pub received: u64,
}
