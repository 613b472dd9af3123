//! The static store: sites vote, and each record names the voters of the next epoch.
//!
//! What is decided is decided in [`kofm_core::voting`]; here are the sockets. Votes travel on
//! connections of their own, beside the sessions of the sites: sites that must agree on who is dead
//! cannot wait for a session with the dead.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kofm_core::SiteId;
use kofm_core::voting::{Answer, Ballot, DiskId, Electorate, Next, Proposal, Question};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::ages::Age;
pub(crate) use super::ballots::Ballots;
use super::ballots::{Ask, Reply, note};
use crate::link::{Callers, Lives};
use crate::random;
use crate::store::{Beat, Later, Pulse, Record, Store, StoreError, Swap};
use kofm_site::bounds::{self, Refusal};
use kofm_site::plan;

/// Attempts at one swap before its caller hears of the crowd.
const ATTEMPTS: u32 = 8;
/// Sites that are asked at once for a later record, where the voters do not answer.
const SEEKERS: usize = 3;

/// Whether a peer's answer has possible numbers, and records that can be decoded.
fn check_answer(answer: &Answer, known: u64) -> Result<(), Refusal> {
    match answer {
        Answer::Moved(record) => bounds::record(record, known).map(drop),
        Answer::Promise(Some((ballot, record))) => {
            bounds::round(ballot.round, u64::MAX)?;
            bounds::record(record, known).map(drop)
        }
        Answer::Outbid(ballot) => bounds::round(ballot.round, u64::MAX),
        Answer::Stands
        | Answer::Pending
        | Answer::Promise(None)
        | Answer::Accepted
        | Answer::Behind
        | Answer::Learned
        | Answer::OtherDisk(_)
        | Answer::Failed => Ok(()),
    }
}

/// A site that votes, or may know more.
#[derive(Clone, Debug)]
struct Voter {
    site: SiteId,
    disk: DiskId,
    /// Nothing for this site itself.
    name: Option<String>,
    address: String,
}

/// The sites that one record names.
#[derive(Debug, Default)]
struct Sites {
    epoch: u64,
    voters: Arc<Vec<Voter>>,
    /// All but this one.
    others: Arc<Vec<Voter>>,
}

/// The cluster's sites as a store.
#[derive(Debug)]
pub(crate) struct Voters {
    me: Arc<Ballots>,
    /// This site's name; empty where it is none yet, and its ballots are no vote.
    name: String,
    /// Who decides on the first epoch, and on all if records name no voters: names and addresses.
    founders: BTreeMap<SiteId, (String, String)>,
    callers: Arc<Callers>,
    sites: Mutex<Option<Sites>>,
    ballot: Ballot,
    round: AtomicU64,
    patience: Duration,
    /// Another process may have this site's name: then this one must not vote.
    lives: Option<Arc<Lives>>,
}

impl Voters {
    /// The store of the site `name`, `number` in this `incarnation`. No voter is waited for longer
    /// than `patience`.
    pub(crate) fn new(
        me: Arc<Ballots>,
        name: &str,
        founders: BTreeMap<SiteId, (String, String)>,
        callers: Arc<Callers>,
        (number, incarnation): (u16, u64),
        patience: Duration,
    ) -> Self {
        let ballot = Ballot { round: 0, site: number, incarnation };
        Self {
            me,
            name: name.to_owned(),
            founders,
            callers,
            sites: Mutex::default(),
            ballot,
            round: AtomicU64::new(1),
            patience,
            lives: None,
        }
    }

    /// As long as another process is taken for this site, nothing is asked of the voters.
    pub(crate) fn unless_twin(mut self, lives: Arc<Lives>) -> Self {
        self.lives = Some(lives);
        self
    }

    fn check_quiet(&self) -> Result<(), StoreError> {
        let old = self.me.old().map(ToOwned::to_owned);
        let quiet = old.or_else(|| self.lives.as_ref().and_then(|it| it.quiet()));
        quiet.map_or(Ok(()), |text| Err(StoreError::Unreachable(text)))
    }

    fn voter(&self, site: SiteId, disk: DiskId, name: &str, address: &str) -> Voter {
        let other = *name != *self.name;
        let name = other.then(|| name.to_owned());
        Voter { site, disk, name, address: address.to_owned() }
    }

    /// The voters that a record names, and all other sites in it.
    fn sites_of(&self, record: &Record) -> (Arc<Vec<Voter>>, Arc<Vec<Voter>>) {
        let mut kept = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sites) = kept.as_ref().filter(|it| it.epoch == record.epoch) {
            return (Arc::clone(&sites.voters), Arc::clone(&sites.others));
        }
        let plan = plan::unpack(&record.body).map(|it| it.plan).unwrap_or_default();
        let named = |(&site, &disk): (&SiteId, &DiskId)| {
            let (name, address) = plan.sites.get(&site)?;
            Some(self.voter(site, disk, name, address))
        };
        let mut voters: Vec<Voter> = record.voters.iter().filter_map(named).collect();
        let founders = self.founders.iter();
        let founders = founders.map(|(&site, it)| self.voter(site, DiskId::ANY, &it.0, &it.1));
        if record.voters.is_empty() {
            voters = founders.clone().collect();
        }
        let others =
            plan.sites.iter().map(|(&site, it)| self.voter(site, DiskId::ANY, &it.0, &it.1));
        let others = others.chain(founders).filter(|it| it.name.is_some()).collect();
        let (voters, others) = (Arc::new(voters), Arc::new(others));
        let (epoch, all) = (record.epoch, (Arc::clone(&voters), Arc::clone(&others)));
        *kept = Some(Sites { epoch, voters, others });
        all
    }

    async fn ask(
        me: &Ballots,
        callers: &Callers,
        voter: &Voter,
        mut ask: Ask,
        known: u64,
    ) -> Option<Reply> {
        let Some(name) = &voter.name else {
            if ask.to == DiskId::ANY {
                ask.to = me.disk();
            }
            return Some(me.decide(ask).await);
        };
        ask.seen = me.seen(name);
        let body = postcard::to_stdvec(&ask).ok()?;
        let answer = callers.of(name, &voter.address).ask(body).await.ok()?;
        let reply: Reply = postcard::from_bytes(&answer).ok()?;
        if !me.believes(name, &reply) {
            return None;
        }
        if let Err(why) = check_answer(&reply.answer, known) {
            warn!(peer = name, why, "refused an answer of a peer");
            return None;
        }
        Some(reply)
    }

    /// Asks these voters at once; answers come as they come, for at most `patience`.
    fn ask_all(
        &self,
        voters: &Arc<Vec<Voter>>,
        question: &Question,
        pulse: Option<(&Pulse, bool)>,
        known: &Arc<Record>,
    ) -> mpsc::Receiver<(SiteId, Reply)> {
        let (sender, receiver) = mpsc::channel(voters.len().max(1));
        for place in 0..voters.len() {
            let (voters, sender) = (Arc::clone(voters), sender.clone());
            let (me, callers) = (Arc::clone(&self.me), Arc::clone(&self.callers));
            let known = Arc::clone(known);
            let to = voters[place].disk;
            let listens = pulse.is_some_and(|it| it.1);
            let pulse = pulse.map(|it| it.0.clone());
            let (question, own) = (question.clone(), self.me.age());
            let ask = Ask { to, question, pulse, listens, own, seen: Age::default() };
            let patience = self.patience;
            tokio::spawn(async move {
                let voter = &voters[place];
                let asked = async {
                    let reply = Self::ask(&me, &callers, voter, ask.clone(), known.epoch).await?;
                    if reply.answer != Answer::Behind {
                        return Some(reply);
                    }
                    let epoch = known.epoch;
                    let decree = Record::clone(&known);
                    let learn = Ask {
                        to,
                        question: Question::Learn { decree },
                        pulse: None,
                        listens: false,
                        ..ask.clone()
                    };
                    Self::ask(&me, &callers, voter, learn, epoch).await?;
                    Self::ask(&me, &callers, voter, ask, epoch).await
                };
                if let Ok(Some(reply)) = timeout(patience, asked).await {
                    sender.send((voter.site, reply)).await.ok();
                }
            });
        }
        receiver
    }

    /// Tells the voters of the next epoch. They have it on disk before this returns, if a majority
    /// of them answers: the voters of the last epoch may go then.
    async fn hand_on(&self, record: &Arc<Record>, before: &Electorate) {
        self.me.learn(record).await;
        let question = Question::Learn { decree: Record::clone(record) };
        let (voters, _) = self.sites_of(record);
        let mut answers = self.ask_all(&voters, &question, None, record);
        if record.voters == *before {
            return;
        }
        let mut good = 0;
        while good <= voters.len() / 2
            && let Some((_, reply)) = answers.recv().await
        {
            good += usize::from(reply.answer == Answer::Learned);
        }
    }

    /// One attempt to have a successor of `epoch` chosen.
    async fn attempt(&self, epoch: u64, own: Option<Record>) -> Result<Next, StoreError> {
        let known = self.me.known();
        if known.epoch > epoch {
            return Ok(Next::Moved(Record::clone(&known)));
        }
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let ballot = Ballot { round, ..self.ballot };
        let (voters, _) = self.sites_of(&known);
        let electorate = voters.iter().map(|it| (it.site, it.disk)).collect();
        let (mut proposal, mut ask) = Proposal::new(electorate, ballot, epoch, own);
        loop {
            let mut answers = self.ask_all(&voters, &ask, None, &known);
            let mut good = 0;
            let next = loop {
                let Some((voter, reply)) = answers.recv().await else { break None };
                let answer = reply.answer;
                good += usize::from(matches!(answer, Answer::Promise(_) | Answer::Accepted));
                match proposal.on_answer(voter, answer) {
                    Next::Wait => {}
                    next @ (Next::Ask(_)
                    | Next::Chosen(_)
                    | Next::Nothing
                    | Next::Outbid(_)
                    | Next::Moved(_)) => break Some(next),
                }
            };
            match next {
                Some(Next::Ask(question)) => ask = question,
                Some(Next::Chosen(record)) => {
                    self.hand_on(&Arc::new(record.clone()), &known.voters).await;
                    return Ok(Next::Chosen(record));
                }
                Some(Next::Outbid(ballot)) => {
                    self.round.fetch_max(ballot.round.saturating_add(1), Ordering::Relaxed);
                    return Ok(Next::Outbid(ballot));
                }
                Some(Next::Moved(record)) => {
                    self.me.learn(&record).await;
                    return Ok(Next::Moved(record));
                }
                Some(next @ (Next::Wait | Next::Nothing)) => return Ok(next),
                None => return Err(too_few(good, voters.len())),
            }
        }
    }

    /// Proposes until a record is chosen, its own or another site's.
    async fn propose(&self, epoch: u64, own: Option<Record>) -> Result<Next, StoreError> {
        for attempt in 0..ATTEMPTS {
            match self.attempt(epoch, own.clone()).await? {
                Next::Outbid(by) => {
                    debug!(?by, attempt, "outbid");
                    let most = self.patience.min(Duration::from_millis(20 << attempt.min(6)));
                    sleep(random::between(Duration::ZERO, most)).await;
                }
                next @ (Next::Wait
                | Next::Ask(_)
                | Next::Chosen(_)
                | Next::Nothing
                | Next::Moved(_)) => return Ok(next),
            }
        }
        Err(StoreError::Contended)
    }

    /// Asks a few sites that are no voters for a later record: the voters that this site knows may
    /// all be gone, and others vote.
    pub(crate) async fn seek(&self, known: &Arc<Record>) -> Option<Record> {
        let (_, others) = self.sites_of(known);
        if others.is_empty() {
            return None;
        }
        let count = u64::try_from(others.len()).unwrap_or(1);
        let first = usize::try_from(random::number() % count).unwrap_or(0);
        let some = others.iter().cycle().skip(first).take(SEEKERS.min(others.len()));
        let some = Arc::new(some.cloned().collect());
        let question = Question::Beat { epoch: known.epoch };
        let mut answers = self.ask_all(&some, &question, None, known);
        while let Some((_, reply)) = answers.recv().await {
            if let Answer::Moved(record) = reply.answer
                && record.epoch > known.epoch
            {
                return Some(record);
            }
        }
        None
    }
}

fn too_few(good: usize, all: usize) -> StoreError {
    let need = all / 2 + 1;
    StoreError::Unreachable(format!("{good} of {all} voters agree, {need} are needed"))
}

impl Store for Voters {
    fn swap(&self, next: Record) -> Later<'_, Swap> {
        Box::pin(async move {
            self.check_quiet()?;
            let epoch = next.epoch.saturating_sub(1);
            if self.me.known().epoch < epoch {
                return Err(StoreError::Contended);
            }
            match self.propose(epoch, Some(next.clone())).await? {
                Next::Chosen(record) if record == next => Ok(Swap::Done),
                // A record that was accepted before an answer was lost may be ours.
                Next::Moved(record) if record == next => Ok(Swap::Done),
                Next::Chosen(record) | Next::Moved(record) => Ok(Swap::Lost(record)),
                Next::Wait | Next::Ask(_) | Next::Nothing | Next::Outbid(_) => {
                    Err(StoreError::Contended)
                }
            }
        })
    }

    fn beat(&self, record: Arc<Record>, pulse: Pulse, listens: bool) -> Later<'_, Beat> {
        Box::pin(async move {
            self.check_quiet()?;
            self.me.count_on().await;
            let epoch = record.epoch;
            // The site may have been told of an epoch by a peer, before any voter was.
            if !self.me.learn(&record).await {
                return Err(StoreError::Contended);
            }
            let known = self.me.known();
            if known.epoch > epoch {
                return Ok(Beat::Moved(Record::clone(&known)));
            }
            let (voters, _) = self.sites_of(&known);
            let question = Question::Beat { epoch };
            let mut answers = self.ask_all(&voters, &question, Some((&pulse, listens)), &known);
            let (mut good, mut pending, mut other) = (0, false, false);
            let mut pulses = BTreeMap::new();
            while let Some((_, reply)) = answers.recv().await {
                match reply.answer {
                    Answer::Stands => {
                        good += 1;
                        reply.pulses.into_iter().for_each(|it| note(&mut pulses, it));
                    }
                    Answer::Moved(record) if record.epoch > epoch => {
                        self.me.learn(&record).await;
                        return Ok(Beat::Moved(record));
                    }
                    Answer::Pending => pending = true,
                    Answer::OtherDisk(_) => other = true,
                    Answer::Moved(_)
                    | Answer::Promise(_)
                    | Answer::Accepted
                    | Answer::Outbid(_)
                    | Answer::Behind
                    | Answer::Learned
                    | Answer::Failed => {}
                }
                if good > voters.len() / 2 {
                    return Ok(Beat::Steady(pulses.into_values().collect()));
                }
            }
            if !pending {
                if let Some(record) = self.seek(&known).await {
                    self.me.learn(&record).await;
                    return Ok(Beat::Moved(record));
                }
                if other {
                    warn!("a voter has lost its disk: it counts as dead until it is replaced");
                }
                return Err(too_few(good, voters.len()));
            }
            // A site began to change the epoch and did not finish: it is finished here.
            match self.propose(epoch, None).await? {
                Next::Chosen(record) | Next::Moved(record) => Ok(Beat::Moved(record)),
                Next::Wait | Next::Ask(_) | Next::Nothing | Next::Outbid(_) => {
                    Err(StoreError::Contended)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;
