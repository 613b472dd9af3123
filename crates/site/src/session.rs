//! A session: reliable first-in first-out messages between two incarnations, over connections that
//! come and go.
//!
//! ```text
//!   queue:   base ........ sent ........ next          received: the next number expected
//!            acknowledged  on the wire   not yet sent
//! ```
//!
//! A plain value: no sockets, no clock. Messages are kept until the peer acknowledges them. After
//! a reconnect both say what they expect next, and what is missing is sent again; what comes
//! twice is dropped. A full queue, a gap or a number that cannot be are the end of the session:
//! nothing is ever skipped.

use std::collections::VecDeque;

use bytes::Bytes;

/// Messages that may wait for a peer.
pub const MAX_MESSAGES: usize = 1 << 18;
/// Bytes that may wait for a peer.
pub const MAX_BYTES: usize = 64 << 20;
/// Messages that may come in before they are acknowledged, whatever else there is to send.
pub const ACK_EVERY: u64 = 64;

/// One side of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// The peer's incarnation; none before the first contact.
    peer: Option<u64>,
    queue: VecDeque<Bytes>,
    bytes: usize,
    /// The number of the first message in the queue.
    base: u64,
    /// The number of the next message to send on this connection.
    sent: u64,
    /// The number of the next message to come.
    received: u64,
    /// What the peer was last told of `received`.
    told: u64,
    #[cfg(test)]
    slip: Option<Slip>,
}

/// What a peer says of itself when a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Its incarnation.
    pub incarnation: u64,
    /// Whom it believes to talk to; 0 where it has met nobody.
    pub known: u64,
    /// What it expects next of that one.
    pub received: u64,
}

/// Who has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visitor {
    /// The one that the session is with, or the first.
    Peer,
    /// A newer life of it: this session is over, another begins.
    Newer(Broken),
    /// An older life, whose last words were late. Not to be talked to.
    Past(Broken),
}

/// A mistake that is easy to make, to see that a test notices; there is none outside tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slip {
    /// Sends again all that was not acknowledged, and hands on what comes twice.
    ResendsWithoutDeduplication,
    /// What was sent is not kept for the next connection.
    ForgetsWhatWasSent,
    /// A new connection forgets what was not acknowledged.
    ForgetsUnacknowledged,
    /// A new connection goes on behind what was sent on the old one.
    ResendsNothing,
    /// Acknowledges one more than has come.
    AcknowledgesAhead,
    /// Goes on with whatever life of the peer.
    IgnoresIncarnation,
    /// A peer from the past is taken for a new life.
    WelcomesThePast,
    /// What a peer expects of an earlier life is taken for what it expects of this one.
    IgnoresWhoIsKnown,
}

/// What to do with a message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one.
    New,
    /// It was here before.
    Duplicate,
}

/// The session is over and cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The peer has been away, or slow, for too long.
    #[error("more than {MAX_MESSAGES} messages or {MAX_BYTES} bytes wait for the peer")]
    Overflow,
    /// The peer came back without memory.
    #[error("the peer was incarnation {old} and is now {new}")]
    Reset {
        /// Whom the session was with.
        old: u64,
        /// Who answers now.
        new: u64,
    },
    /// The peer expects a message that was never sent, or that it had acknowledged.
    #[error("the peer expects message {expects}, this site has {base} to {next}")]
    Lost {
        /// What it expects.
        expects: u64,
        /// The first that can be sent.
        base: u64,
        /// One more than the last.
        next: u64,
    },
    /// A message cannot be understood, so those after it have no meaning either.
    #[error("the peer sent {0}")]
    Nonsense(&'static str),
    /// A message is missing.
    #[error("message {got} came where {expected} was due")]
    Gap {
        /// What came.
        got: u64,
        /// What should have come.
        expected: u64,
    },
}

impl Session {
    /// With this incarnation of the peer and no other, where it is known.
    pub fn with(peer: Option<u64>) -> Self {
        Self { peer, ..Self::default() }
    }

    /// The peer's incarnation; none before the first contact.
    pub const fn peer(&self) -> Option<u64> {
        self.peer
    }

    /// The number of the next message to come.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Messages that the peer has not acknowledged.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    #[cfg(test)]
    fn slips(&self, slip: Slip) -> bool {
        self.slip == Some(slip)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "in tests it is asked of the session")]
    const fn slips(&self, _: Slip) -> bool {
        false
    }

    /// What this life says when a connection begins.
    pub fn greeting(&self, me: u64) -> Greeting {
        let known = self.peer.unwrap_or(0);
        Greeting { incarnation: me, known, received: self.received }
    }

    /// Who it is that greets.
    pub fn meet(&self, greeting: &Greeting) -> Visitor {
        match self.check(greeting.incarnation) {
            Ok(()) => Visitor::Peer,
            Err(why) => {
                let past = self.peer > Some(greeting.incarnation);
                if past && !self.slips(Slip::WelcomesThePast) {
                    Visitor::Past(why)
                } else {
                    Visitor::Newer(why)
                }
            }
        }
    }

    /// What a peer expects of the life `me`: of another, it has only heard of.
    pub fn expected(&self, me: u64, greeting: &Greeting) -> u64 {
        let here = greeting.known == me || self.slips(Slip::IgnoresWhoIsKnown);
        if here { greeting.received } else { 0 }
    }

    fn next(&self) -> u64 {
        self.base + self.queue.len() as u64
    }

    /// Queues a message.
    pub fn push(&mut self, payload: Bytes) -> Result<(), Broken> {
        if self.queue.len() >= MAX_MESSAGES || self.bytes + payload.len() > MAX_BYTES {
            return Err(Broken::Overflow);
        }
        self.bytes += payload.len();
        self.queue.push_back(payload);
        Ok(())
    }

    /// Whether the session can go on with a peer that says so; see [`Self::resume`].
    pub fn fits(&self, incarnation: u64, expects: u64) -> Result<(), Broken> {
        self.check(incarnation)?;
        if expects < self.base || expects > self.next() {
            return Err(Broken::Lost { expects, base: self.base, next: self.next() });
        }
        Ok(())
    }

    /// Whether a session with this incarnation would be the same session.
    fn check(&self, incarnation: u64) -> Result<(), Broken> {
        match self.peer {
            Some(old) if old != incarnation && !self.slips(Slip::IgnoresIncarnation) => {
                Err(Broken::Reset { old, new: incarnation })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A new connection to this incarnation, which expects message `expects` next.
    pub fn resume(&mut self, incarnation: u64, expects: u64) -> Result<(), Broken> {
        self.fits(incarnation, expects)?;
        self.peer = Some(incarnation);
        if !self.slips(Slip::ResendsWithoutDeduplication) {
            self.forget_before(expects);
        }
        if self.slips(Slip::ForgetsUnacknowledged) {
            self.forget_before(self.sent);
        }
        if !self.slips(Slip::ResendsNothing) {
            self.sent = self.base;
        }
        self.told = self.received;
        Ok(())
    }

    /// The next message to send on this connection, with its number.
    pub fn pop(&mut self) -> Option<(u64, Bytes)> {
        let seq = self.sent;
        let index = usize::try_from(seq - self.base).ok()?;
        let payload = self.queue.get(index)?.clone();
        self.sent += 1;
        if self.slips(Slip::ForgetsWhatWasSent) {
            self.forget_before(self.sent);
        }
        Some((seq, payload))
    }

    /// What to acknowledge; from now on the peer counts as told.
    pub fn tell(&mut self) -> u64 {
        self.told = self.received;
        self.received + u64::from(self.slips(Slip::AcknowledgesAhead))
    }

    /// How many messages have come that the peer does not know to have arrived.
    pub const fn untold(&self) -> u64 {
        self.received - self.told
    }

    /// The peer expects message `ack` next.
    pub fn acknowledged(&mut self, ack: u64) -> Result<(), Broken> {
        if ack > self.sent {
            return Err(Broken::Lost { expects: ack, base: self.base, next: self.next() });
        }
        self.forget_before(ack);
        Ok(())
    }

    /// Message `seq` came.
    pub fn arrived(&mut self, seq: u64) -> Result<Arrival, Broken> {
        if seq < self.received {
            let repeats = self.slips(Slip::ResendsWithoutDeduplication);
            return Ok(if repeats { Arrival::New } else { Arrival::Duplicate });
        }
        if seq > self.received {
            return Err(Broken::Gap { got: seq, expected: self.received });
        }
        self.received += 1;
        Ok(Arrival::New)
    }

    fn forget_before(&mut self, ack: u64) {
        while self.base < ack {
            let Some(payload) = self.queue.pop_front() else { return };
            self.bytes -= payload.len();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod cuts;
#[cfg(test)]
mod tests;
