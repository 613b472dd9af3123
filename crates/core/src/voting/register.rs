//! One voter, and one attempt to have a decree chosen. No clock, no I/O.

use alloc::collections::BTreeSet;
use core::fmt::Debug;
use core::hash::Hash;

use serde::{Deserialize, Serialize};

use super::{Ballot, Decree, DiskId, Electorate};
use crate::types::SiteId;

/// A mistake that is easy to make. For the checker, not for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mistake {
    /// A proposer needs a majority of the voters that its own decree names.
    CountsNewVoters,
    /// A proposer counts answers of any disk.
    CountsAnybody,
    /// A site with an empty disk answers for the lost one.
    AnswersForLostDisk,
    /// A record counts as chosen as soon as one voter has accepted it.
    AcceptedIsChosen,
    /// Heartbeats are answered although a successor was accepted.
    BeatsThrough,
    /// What was accepted for the last epoch stays after the next was learnt.
    LearnKeeps,
    /// A voter that knows a later epoch answers heartbeats of an earlier one.
    StepsDown,
    /// A proposer proposes its own decree although another one was accepted.
    ForgetsBest,
    /// A voter accepts any ballot.
    ForgetsPromises,
}

/// The rules that voters and proposers play by.
pub trait Rules: Copy + Debug + Eq + Ord + Hash {
    /// Whether this mistake is in them.
    fn makes(self, mistake: Mistake) -> bool;
}

/// The rules as they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sound;

impl Rules for Sound {
    fn makes(self, _: Mistake) -> bool {
        false
    }
}

/// A question to a voter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Question {
    /// Does this epoch still stand?
    Beat {
        /// The epoch.
        epoch: u64,
    },
    /// Promise to accept nothing older for the successor of this epoch.
    Prepare {
        /// The epoch.
        epoch: u64,
        /// The ballot.
        ballot: Ballot,
    },
    /// Accept this decree as the successor of the epoch before it.
    Accept {
        /// The ballot.
        ballot: Ballot,
        /// The decree.
        decree: Decree,
    },
    /// This decree was chosen.
    Learn {
        /// The decree.
        decree: Decree,
    },
}

impl Question {
    /// The epoch whose successor is decided, or that is asked about.
    fn epoch(&self) -> u64 {
        match self {
            Self::Beat { epoch } | Self::Prepare { epoch, .. } => *epoch,
            Self::Accept { decree, .. } | Self::Learn { decree } => decree.epoch.saturating_sub(1),
        }
    }
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// The epoch stands.
    Stands,
    /// A successor was accepted here, and may have been chosen.
    Pending,
    /// Promised; what was accepted before.
    Promise(Option<(Ballot, Decree)>),
    /// Accepted.
    Accepted,
    /// A newer ballot was promised.
    Outbid(Ballot),
    /// There is a later epoch.
    Moved(Decree),
    /// The voter knows an earlier epoch only, and wants to learn.
    Behind,
    /// Learnt.
    Learned,
    /// This is another disk than the one that was asked.
    OtherDisk(DiskId),
    /// The voter could not make its answer durable.
    Failed,
}

/// The state that a voter must not forget.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Durable {
    /// The random name of this state.
    pub disk: DiskId,
    /// The latest decree that is known to be chosen.
    pub known: Decree,
    promised: Ballot,
    accepted: Option<(Ballot, Decree)>,
}

impl Durable {
    /// An empty disk.
    pub fn new(disk: DiskId) -> Self {
        Self { disk, ..Self::default() }
    }

    /// The round that was promised.
    pub const fn round(&self) -> u64 {
        self.promised.round
    }

    /// What was accepted for the next epoch.
    pub const fn accepted(&self) -> Option<&(Ballot, Decree)> {
        self.accepted.as_ref()
    }
}

/// One voter.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register<R = Sound> {
    /// What must survive a crash.
    pub durable: Durable,
    rules: R,
}

impl Register {
    /// A voter as it was before a crash, or an empty one.
    pub const fn restored(durable: Durable) -> Self {
        Self { durable, rules: Sound }
    }
}

impl<R: Rules> Register<R> {
    /// The same, by other rules.
    pub const fn by(rules: R, durable: Durable) -> Self {
        Self { durable, rules }
    }

    /// Answers a question to the disk `to`. If `durable` has changed, it has to be on disk before
    /// the answer leaves.
    pub fn answer(&mut self, to: DiskId, question: Question) -> Answer {
        let state = &mut self.durable;
        let epoch = question.epoch();
        if let Question::Learn { decree } = question {
            if decree.epoch > state.known.epoch {
                state.known = decree;
                if !self.rules.makes(Mistake::LearnKeeps) {
                    state.promised = Ballot::default();
                    state.accepted = None;
                }
            }
            return Answer::Learned;
        }
        // Disks have names from the first decree on.
        let named = to == state.disk || to == DiskId::ANY && epoch == 0;
        if epoch < state.known.epoch {
            let beat = matches!(question, Question::Beat { .. });
            if beat && self.rules.makes(Mistake::StepsDown) {
                return Answer::Stands;
            }
            return Answer::Moved(state.known.clone());
        }
        if epoch > state.known.epoch {
            return Answer::Behind;
        }
        if !named && !self.rules.makes(Mistake::AnswersForLostDisk) {
            return Answer::OtherDisk(state.disk);
        }
        let late =
            |ballot: Ballot| ballot < state.promised && !self.rules.makes(Mistake::ForgetsPromises);
        match question {
            Question::Beat { .. } if state.accepted.is_some() => {
                if self.rules.makes(Mistake::BeatsThrough) {
                    Answer::Stands
                } else {
                    Answer::Pending
                }
            }
            Question::Beat { .. } => Answer::Stands,
            Question::Prepare { ballot, .. } | Question::Accept { ballot, .. } if late(ballot) => {
                Answer::Outbid(state.promised)
            }
            Question::Prepare { ballot, .. } => {
                state.promised = ballot;
                Answer::Promise(state.accepted.clone())
            }
            Question::Accept { ballot, decree } => {
                state.promised = ballot;
                state.accepted = Some((ballot, decree));
                Answer::Accepted
            }
            Question::Learn { .. } => Answer::Learned,
        }
    }
}

/// One attempt to agree on the successor of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proposal<R = Sound> {
    electorate: Electorate,
    ballot: Ballot,
    /// What to propose if nothing was accepted before; none only finishes what others began.
    own: Option<Decree>,
    epoch: u64,
    best: Option<(Ballot, Decree)>,
    promises: BTreeSet<SiteId>,
    accepts: BTreeSet<SiteId>,
    /// What is proposed.
    offered: Option<Decree>,
    rules: R,
}

/// The next step of a proposer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait for more answers.
    Wait,
    /// Ask all voters.
    Ask(Question),
    /// This decree is the successor. Tell all voters.
    Chosen(Decree),
    /// No voter has accepted anything, and there is nothing to propose.
    Nothing,
    /// A newer ballot is about: try again with a larger one.
    Outbid(Ballot),
    /// The epoch is over already.
    Moved(Decree),
}

impl Proposal {
    /// Proposes `own` as the successor of the epoch whose decree names this electorate, and says
    /// what to ask first.
    pub fn new(
        electorate: Electorate,
        ballot: Ballot,
        epoch: u64,
        own: Option<Decree>,
    ) -> (Self, Question) {
        Self::by(Sound, electorate, ballot, epoch, own)
    }
}

impl<R: Rules> Proposal<R> {
    /// The same, by other rules.
    pub fn by(
        rules: R,
        mut electorate: Electorate,
        ballot: Ballot,
        epoch: u64,
        own: Option<Decree>,
    ) -> (Self, Question) {
        if rules.makes(Mistake::CountsNewVoters)
            && let Some(own) = &own
        {
            electorate.clone_from(&own.voters);
        }
        let proposal = Self {
            electorate,
            ballot,
            own,
            epoch,
            best: None,
            promises: BTreeSet::new(),
            accepts: BTreeSet::new(),
            offered: None,
            rules,
        };
        (proposal, Question::Prepare { epoch, ballot })
    }

    /// What is proposed, once it is.
    pub const fn offered(&self) -> Option<&Decree> {
        self.offered.as_ref()
    }

    fn majority(&self) -> usize {
        self.electorate.len() / 2 + 1
    }

    /// A voter has answered.
    pub fn on_answer(&mut self, voter: SiteId, answer: Answer) -> Next {
        let counts = self.electorate.contains_key(&voter);
        if !counts && !self.rules.makes(Mistake::CountsAnybody) {
            return Next::Wait;
        }
        match answer {
            Answer::Promise(accepted) => self.on_promise(voter, accepted),
            Answer::Accepted => {
                let news = self.accepts.insert(voter);
                let enough =
                    if self.rules.makes(Mistake::AcceptedIsChosen) { 1 } else { self.majority() };
                match &self.offered {
                    Some(decree) if news && self.accepts.len() == enough => {
                        Next::Chosen(decree.clone())
                    }
                    Some(_) | None => Next::Wait,
                }
            }
            Answer::Outbid(ballot) if ballot > self.ballot => Next::Outbid(ballot),
            Answer::Moved(decree) if decree.epoch > self.epoch => Next::Moved(decree),
            Answer::Outbid(_)
            | Answer::Moved(_)
            | Answer::Stands
            | Answer::Pending
            | Answer::Behind
            | Answer::Learned
            | Answer::OtherDisk(_)
            | Answer::Failed => Next::Wait,
        }
    }

    fn on_promise(&mut self, voter: SiteId, accepted: Option<(Ballot, Decree)>) -> Next {
        self.promises.insert(voter);
        // What was accepted with the newest ballot may have been chosen: it goes on.
        if accepted.as_ref().map(|it| it.0) > self.best.as_ref().map(|it| it.0) {
            self.best = accepted;
        }
        if self.promises.len() < self.majority() || self.offered.is_some() {
            return Next::Wait;
        }
        let best = self.best.take().map(|it| it.1);
        let best = best.filter(|_| !self.rules.makes(Mistake::ForgetsBest));
        let Some(decree) = best.or_else(|| self.own.take()) else { return Next::Nothing };
        self.offered = Some(decree.clone());
        Next::Ask(Question::Accept { ballot: self.ballot, decree })
    }
}

#[cfg(test)]
mod tests;
