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
            Some(old) if old != incarnation => Err(Broken::Reset { old, new: incarnation }),
            Some(_) | None => Ok(()),
        }
    }

    /// A new connection to this incarnation, which expects message `expects` next.
    pub fn resume(&mut self, incarnation: u64, expects: u64) -> Result<(), Broken> {
        self.fits(incarnation, expects)?;
        self.peer = Some(incarnation);
        self.forget_before(expects);
        self.sent = expects;
        self.told = self.received;
        Ok(())
    }

    /// Goes on with a peer that [`Self::resume`] would not go on with: what was on its way is lost.
    /// Only where every protocol heals from that.
    pub fn start_over(&mut self, incarnation: u64, expects: u64) {
        let received = if self.peer == Some(incarnation) { self.received } else { 0 };
        *self = Self {
            peer: Some(incarnation),
            base: expects,
            sent: expects,
            received,
            told: received,
            ..Self::default()
        };
    }

    /// The next message to send on this connection, with its number.
    pub fn pop(&mut self) -> Option<(u64, Bytes)> {
        let seq = self.sent;
        let index = usize::try_from(seq - self.base).ok()?;
        let payload = self.queue.get(index)?.clone();
        self.sent += 1;
        Some((seq, payload))
    }

    /// What to acknowledge; from now on the peer counts as told.
    pub fn tell(&mut self) -> u64 {
        self.told = self.received;
        self.received
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
    pub const fn arrived(&mut self, seq: u64) -> Result<Arrival, Broken> {
        if seq < self.received {
            return Ok(Arrival::Duplicate);
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
mod tests {
    use super::*;

    fn message(n: u64) -> Bytes {
        Bytes::copy_from_slice(&n.to_le_bytes())
    }

    #[test]
    fn a_cut_connection_loses_and_repeats_nothing() {
        // Two sides, and a link that is cut after every possible number of deliveries.
        for cut in 0..12_usize {
            let (mut a, mut b) = (Session::default(), Session::default());
            a.resume(7, b.received()).unwrap();
            let mut got = Vec::new();
            for n in 0..10 {
                a.push(message(n)).unwrap();
            }
            for _ in 0..cut {
                if let Some((seq, payload)) = a.pop()
                    && b.arrived(seq) == Ok(Arrival::New)
                {
                    got.push(payload);
                }
                if cut % 2 == 0 {
                    a.acknowledged(b.tell()).unwrap();
                }
            }
            // Sent, and lost with the connection.
            a.pop();
            a.resume(7, b.received()).unwrap();
            while let Some((seq, payload)) = a.pop() {
                assert_eq!(b.arrived(seq), Ok(Arrival::New));
                got.push(payload);
            }
            a.acknowledged(b.tell()).unwrap();
            assert_eq!(got, (0..10).map(message).collect::<Vec<_>>(), "cut after {cut}");
            assert_eq!((a.waiting(), a.bytes), (0, 0));
        }
    }

    #[test]
    fn duplicates_are_dropped_and_gaps_are_the_end() {
        let mut session = Session::default();
        assert_eq!(session.arrived(0), Ok(Arrival::New));
        assert_eq!(session.arrived(0), Ok(Arrival::Duplicate));
        assert_eq!(session.arrived(2), Err(Broken::Gap { got: 2, expected: 1 }));
    }

    #[test]
    fn another_incarnation_is_another_peer() {
        let mut session = Session::default();
        session.resume(1, 0).unwrap();
        assert_eq!(session.resume(2, 0), Err(Broken::Reset { old: 1, new: 2 }));
    }

    #[test]
    fn a_peer_that_lost_its_disk_is_noticed_by_its_numbers() {
        let (mut a, mut b) = (Session::default(), Session::default());
        a.push(message(0)).unwrap();
        a.resume(1, 0).unwrap();
        let (seq, _) = a.pop().unwrap();
        b.arrived(seq).unwrap();
        a.acknowledged(b.tell()).unwrap();
        // The same number again, from nothing: it expects what it had acknowledged.
        assert!(matches!(a.resume(1, 0), Err(Broken::Lost { .. })));
        // And from its side: we expect what it never sent.
        assert!(matches!(Session::default().resume(1, b.received()), Err(Broken::Lost { .. })));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut session = Session::default();
        let big = Bytes::from(vec![0; MAX_BYTES]);
        session.push(big).unwrap();
        assert_eq!(session.push(message(1)), Err(Broken::Overflow));
        let mut session = Session::default();
        for _ in 0..MAX_MESSAGES {
            session.push(Bytes::new()).unwrap();
        }
        assert_eq!(session.push(Bytes::new()), Err(Broken::Overflow));
    }

    #[test]
    fn an_acknowledgement_of_what_was_not_sent_is_refused() {
        let mut session = Session::default();
        session.push(message(0)).unwrap();
        assert!(session.acknowledged(1).is_err());
    }
}
