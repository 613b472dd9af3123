//! The static store's decisions, as plain values: a register of one record per epoch.
//!
//! # Idea
//!
//! Every configured member is a voter. The successor of epoch e is agreed on as in Paxos: a
//! proposer collects promises for a ballot from a majority, then has a record accepted by a
//! majority; it takes over whatever was accepted before it. Each epoch is an instance of its own.
//!
//! A voter answers a beat in epoch e only while it has accepted no successor of e.
//!
//! # Why it is safe
//!
//! Two majorities share a voter. Where a successor was accepted by one and a beat was answered by
//! another, the shared voter answered the beat first: the beat began before the successor was
//! chosen. So no beat that begins later succeeds.
//!
//! Promises and acceptances are on disk before they are answered. A ballot names the life of its
//! proposer, so no two proposals share one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::store::{Pulse, Record};

/// Sites whose pulses a voter remembers.
const MAX_PULSES: usize = 4096;

/// The order of proposals: a round, then who, in which life.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub(crate) struct Ballot {
    pub round: u64,
    pub site: u16,
    pub incarnation: u64,
}

/// What voters are asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Question {
    /// The site lives, if the epoch is still this one.
    Beat { epoch: u64, pulse: Pulse },
    /// Promise to accept nothing older for the successor of this epoch.
    Prepare { epoch: u64, ballot: Ballot },
    /// Accept this record as the successor of the epoch before it.
    Accept { ballot: Ballot, record: Record },
    /// This record was chosen.
    Learn { record: Record },
}

/// What they answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// A beat counts; what each site last said.
    Beats(Vec<Pulse>),
    /// A beat does not count: a successor was accepted here, and may have been chosen.
    Pending,
    /// Promised; what was accepted before.
    Promise(Option<(Ballot, Record)>),
    /// Accepted.
    Accepted,
    /// A newer ballot was promised.
    Outbid(Ballot),
    /// There is a later epoch.
    Moved(Record),
    /// The voter knows an earlier epoch only, and wants to learn.
    Behind,
    /// Learnt.
    Learned,
    /// The voter could not make it durable.
    Failed,
}

/// One voter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Register {
    /// What must survive a crash.
    pub durable: Durable,
    /// Only hints: a voter that forgets them makes nobody unsafe.
    pulses: BTreeMap<String, Pulse>,
}

/// What a voter must not forget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Durable {
    /// The latest record that is known to be chosen.
    pub known: Record,
    promised: Ballot,
    accepted: Option<(Ballot, Record)>,
}

impl Durable {
    /// The round that was promised.
    pub(crate) const fn round(&self) -> u64 {
        self.promised.round
    }
}

impl Register {
    /// A voter as it was, after a crash.
    pub(crate) const fn restored(durable: Durable) -> Self {
        Self { durable, pulses: BTreeMap::new() }
    }

    /// Answers. Where `durable` has changed, it has to be on disk before the answer leaves.
    pub(crate) fn answer(&mut self, question: Question) -> Reply {
        let state = &mut self.durable;
        let epoch = match &question {
            Question::Beat { epoch, .. } | Question::Prepare { epoch, .. } => *epoch,
            Question::Accept { record, .. } => record.epoch.saturating_sub(1),
            Question::Learn { record } => {
                if record.epoch > state.known.epoch {
                    *state = Durable { known: record.clone(), ..Durable::default() };
                }
                return Reply::Learned;
            }
        };
        if epoch < state.known.epoch {
            return Reply::Moved(state.known.clone());
        }
        if epoch > state.known.epoch {
            return Reply::Behind;
        }
        match question {
            Question::Beat { .. } if state.accepted.is_some() => Reply::Pending,
            Question::Beat { pulse, .. } => {
                self.note(pulse);
                Reply::Beats(self.pulses.values().cloned().collect())
            }
            Question::Prepare { ballot, .. } if ballot < state.promised => {
                Reply::Outbid(state.promised)
            }
            Question::Prepare { ballot, .. } => {
                state.promised = ballot;
                Reply::Promise(state.accepted.clone())
            }
            Question::Accept { ballot, .. } if ballot < state.promised => {
                Reply::Outbid(state.promised)
            }
            Question::Accept { ballot, record } => {
                state.promised = ballot;
                state.accepted = Some((ballot, record));
                Reply::Accepted
            }
            Question::Learn { .. } => Reply::Learned,
        }
    }

    fn note(&mut self, pulse: Pulse) {
        let room = self.pulses.len() < MAX_PULSES;
        match self.pulses.get_mut(&pulse.site) {
            // Messages overtake each other; a newer life counts from nothing.
            Some(old) if (old.incarnation, old.count) <= (pulse.incarnation, pulse.count) => {
                *old = pulse;
            }
            None if room => {
                self.pulses.insert(pulse.site.clone(), pulse);
            }
            Some(_) | None => {}
        }
    }
}

/// One attempt to agree on the successor of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    majority: usize,
    ballot: Ballot,
    /// What to propose where nothing was accepted before; none only finishes what others began.
    own: Option<Record>,
    epoch: u64,
    best: Option<(Ballot, Record)>,
    promises: BTreeSet<usize>,
    accepts: BTreeSet<usize>,
    chosen: Option<Record>,
}

/// What a proposer does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait for more answers.
    Wait,
    /// Ask all voters.
    Ask(Question),
    /// This record is the successor. Tell all voters.
    Chosen(Record),
    /// Nothing was accepted by anybody, and there is nothing to propose.
    Nothing,
    /// A newer ballot is about: try again with a larger one.
    Outbid(Ballot),
    /// The epoch is over already.
    Moved(Record),
}

impl Proposal {
    /// Proposes `own` as the successor of `epoch`, and says what to ask first.
    pub(crate) fn new(
        voters: usize,
        ballot: Ballot,
        epoch: u64,
        own: Option<Record>,
    ) -> (Self, Question) {
        let proposal = Self {
            majority: voters / 2 + 1,
            ballot,
            own,
            epoch,
            best: None,
            promises: BTreeSet::new(),
            accepts: BTreeSet::new(),
            chosen: None,
        };
        (proposal, Question::Prepare { epoch, ballot })
    }

    /// A voter has answered.
    pub(crate) fn on_reply(&mut self, voter: usize, reply: Reply) -> Next {
        match reply {
            Reply::Promise(accepted) => self.on_promise(voter, accepted),
            Reply::Accepted => {
                self.accepts.insert(voter);
                match &self.chosen {
                    Some(record) if self.accepts.len() == self.majority => {
                        Next::Chosen(record.clone())
                    }
                    Some(_) | None => Next::Wait,
                }
            }
            Reply::Outbid(ballot) if ballot > self.ballot => Next::Outbid(ballot),
            Reply::Moved(record) if record.epoch > self.epoch => Next::Moved(record),
            Reply::Outbid(_)
            | Reply::Moved(_)
            | Reply::Beats(_)
            | Reply::Pending
            | Reply::Behind
            | Reply::Learned
            | Reply::Failed => Next::Wait,
        }
    }

    fn on_promise(&mut self, voter: usize, accepted: Option<(Ballot, Record)>) -> Next {
        self.promises.insert(voter);
        // What was accepted with the newest ballot may have been chosen: it goes on.
        if accepted.as_ref().map(|it| it.0) > self.best.as_ref().map(|it| it.0) {
            self.best = accepted;
        }
        if self.promises.len() < self.majority || self.chosen.is_some() {
            return Next::Wait;
        }
        let best = self.best.take().map(|it| it.1);
        let Some(record) = best.or_else(|| self.own.take()) else { return Next::Nothing };
        self.chosen = Some(record.clone());
        Next::Ask(Question::Accept { ballot: self.ballot, record })
    }
}

#[cfg(test)]
mod tests;
