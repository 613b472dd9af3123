//! The static store: the configured members vote. No service to run.
//!
//! What is decided is decided in [`super::register`]; here are the disk and the sockets. Votes
//! travel on connections of their own, beside the sessions of the sites: whoever must agree on who
//! is dead cannot wait for a session with the dead.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kofm_core::SiteId;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::bounds::{self, Refusal};
use crate::link::{Answers, Caller, Lives};
use crate::plan;
use crate::random;
use crate::store::register::{Ballot, Durable, Next, Proposal, Question, Register, Reply};
use crate::store::{Beat, Later, Pulse, Record, Store, StoreError, Swap};

/// Attempts at one swap before its caller hears of the crowd.
const ATTEMPTS: u32 = 8;
/// Questions that may wait for one voter's register; further ones fail at once.
const MAX_QUESTIONS: usize = 256;

/// This member's vote: its register, and the disk under it.
#[derive(Debug)]
pub(crate) struct Ballots {
    register: Arc<Mutex<Register>>,
    /// None where the site keeps nothing: all voters live in one process, and die together.
    path: Option<PathBuf>,
    /// Questions that may wait for the register at once.
    waiting: Arc<Semaphore>,
    /// The newest incarnation of each site in the record of an epoch.
    lives: Mutex<(u64, BTreeMap<String, u64>)>,
    /// Replaces the file of promises.
    write: fn(&Path, &Durable) -> io::Result<()>,
}

impl Ballots {
    /// Reads what this voter promised in its earlier lives.
    pub(crate) fn open(dir: Option<&Path>) -> io::Result<Self> {
        let path = dir.map(|dir| dir.join("promises"));
        let mut register = Register::default();
        if let Some(path) = &path {
            match fs::read(path) {
                Ok(bytes) => register = Register::restored(unpack(&bytes).ok_or_else(|| {
                    let text = "the promises of this voter are damaged: take its state_dir away, \
                                and let an operator make sure that no other voter is lost too";
                    io::Error::new(io::ErrorKind::InvalidData, text)
                })?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let register = Arc::new(Mutex::new(register));
        let waiting = Arc::new(Semaphore::new(MAX_QUESTIONS));
        Ok(Self { register, path, waiting, lives: Mutex::default(), write })
    }

    /// The record that its last life knew.
    pub(crate) fn recall(&mut self) -> &Record {
        let register = Arc::get_mut(&mut self.register).expect("no question has arrived yet");
        &register.get_mut().durable.known
    }

    /// Answers for this voter. Its promises are on disk before this returns.
    ///
    /// A caller may stop waiting at any time. A write that has begun goes on without its caller and
    /// keeps the register locked until it is done, so that no later write overtakes it.
    pub(crate) async fn decide(&self, question: Question) -> Reply {
        let Ok(slot) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return Reply::Failed;
        };
        let mut register = Arc::clone(&self.register).lock_owned().await;
        if let Question::Beat { .. } = question {
            return register.answer(question);
        }
        let mut next = register.clone();
        let reply = next.answer(question);
        let changed = next.durable != register.durable;
        let Some(path) = self.path.clone().filter(|_| changed) else {
            *register = next;
            return reply;
        };
        let write = self.write;
        let written = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            write(&path, &next.durable)?;
            *register = next;
            Ok(reply)
        });
        match written.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(reply) => reply,
            Err(error) => {
                warn!(%error, "cannot keep a promise on disk, so it is not given");
                Reply::Failed
            }
        }
    }

    /// Whether a peer's question has possible numbers, and a record that can be decoded. Nothing
    /// else reaches the register and the disk.
    async fn check(&self, from: &str, question: &Question) -> Result<(), Refusal> {
        let register = self.register.lock().await;
        let Durable { known, .. } = &register.durable;
        let promised = register.durable.round();
        match question {
            Question::Beat { pulse, .. } if pulse.site != from => {
                Err("a heartbeat of another site than its sender")
            }
            Question::Beat { epoch, pulse } => {
                bounds::epoch(*epoch, known.epoch)?;
                let mut lives = self.lives.lock().await;
                if lives.0 != known.epoch {
                    *lives = (known.epoch, lives_of(known));
                }
                let life = lives.1.get(&pulse.site).copied().unwrap_or(0);
                bounds::incarnation(pulse.incarnation, life)
            }
            Question::Prepare { epoch, ballot } => {
                bounds::epoch(*epoch, known.epoch)?;
                bounds::round(ballot.round, promised)
            }
            Question::Accept { ballot, record } => {
                bounds::round(ballot.round, promised)?;
                bounds::record(record, known.epoch).map(drop)
            }
            // Every peer is told of every record: only one that is new here is decoded.
            Question::Learn { record } if record.epoch <= known.epoch => Ok(()),
            Question::Learn { record } => bounds::record(record, known.epoch).map(drop),
        }
    }

    /// The latest record that this voter knows to be chosen.
    pub(crate) async fn known(&self) -> Record {
        self.register.lock().await.durable.known.clone()
    }
}

impl Answers for Ballots {
    fn answer<'a>(
        &'a self,
        from: &'a str,
        question: Bytes,
    ) -> Pin<Box<dyn Future<Output = Vec<u8>> + Send + 'a>> {
        Box::pin(async move {
            let reply = match postcard::from_bytes(&question) {
                Ok(question) => match self.check(from, &question).await {
                    Ok(()) => self.decide(question).await,
                    Err(why) => {
                        warn!(from, why, "refused a question of a peer");
                        Reply::Failed
                    }
                },
                Err(_) => Reply::Failed,
            };
            postcard::to_stdvec(&reply).unwrap_or_default()
        })
    }
}

fn write(path: &Path, durable: &Durable) -> io::Result<()> {
    let body = postcard::to_stdvec(durable).map_err(io::Error::other)?;
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(&crc32fast::hash(&body).to_le_bytes())?;
    file.write_all(&body)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

fn unpack(bytes: &[u8]) -> Option<Durable> {
    let (sum, body) = bytes.split_first_chunk::<4>()?;
    let good = crc32fast::hash(body) == u32::from_le_bytes(*sum);
    good.then(|| postcard::from_bytes(body).ok()).flatten()
}

/// The newest incarnation of each site, by name.
fn lives_of(record: &Record) -> BTreeMap<String, u64> {
    let Ok(record) = plan::unpack(&record.body) else { return BTreeMap::new() };
    let life = |(site, it): (&SiteId, &(String, String))| {
        Some((it.0.clone(), record.lives.get(site).copied()?))
    };
    record.plan.sites.iter().filter_map(life).collect()
}

/// Whether a peer's answer has possible numbers, and records that can be decoded.
fn check_reply(reply: &Reply, known: u64) -> Result<(), Refusal> {
    match reply {
        Reply::Moved(record) => bounds::record(record, known).map(drop),
        Reply::Promise(Some((ballot, record))) => {
            bounds::round(ballot.round, u64::MAX)?;
            bounds::record(record, known).map(drop)
        }
        Reply::Outbid(ballot) => bounds::round(ballot.round, u64::MAX),
        Reply::Beats(_)
        | Reply::Pending
        | Reply::Promise(None)
        | Reply::Accepted
        | Reply::Behind
        | Reply::Learned
        | Reply::Failed => Ok(()),
    }
}

/// One member that votes.
#[derive(Debug)]
enum Voter {
    Me(Arc<Ballots>),
    Peer(Box<Caller>),
}

impl Voter {
    async fn ask(&self, question: Question, known: u64) -> Option<Reply> {
        match self {
            Self::Me(ballots) => Some(ballots.decide(question).await),
            Self::Peer(caller) => {
                let body = postcard::to_stdvec(&question).ok()?;
                let answer = caller.ask(body).await.ok()?;
                let reply = postcard::from_bytes(&answer).ok()?;
                if let Err(why) = check_reply(&reply, known) {
                    warn!(why, "refused an answer of a peer");
                    return None;
                }
                Some(reply)
            }
        }
    }
}

/// The members of a cluster as a store.
#[derive(Debug)]
pub(crate) struct Voters {
    me: Arc<Ballots>,
    all: Arc<[Voter]>,
    ballot: Ballot,
    round: AtomicU64,
    patience: Duration,
    /// Another process may have this site's name: then this one must not vote.
    lives: Option<Arc<Lives>>,
}

impl Voters {
    /// A store of these voters, and of this site, `number` in this `incarnation`, if it `votes`.
    /// None of them is waited for longer than `patience`.
    pub(crate) fn new(
        me: Arc<Ballots>,
        votes: bool,
        others: Vec<Caller>,
        number: u16,
        incarnation: u64,
        patience: Duration,
    ) -> Self {
        let others = others.into_iter().map(|it| Voter::Peer(Box::new(it)));
        let own = votes.then(|| Voter::Me(Arc::clone(&me)));
        let all = own.into_iter().chain(others).collect();
        let ballot = Ballot { round: 0, site: number, incarnation };
        Self { me, all, ballot, round: AtomicU64::new(1), patience, lives: None }
    }

    /// As long as another process is taken for this site, nothing is asked of the voters.
    pub(crate) fn unless_twin(mut self, lives: Arc<Lives>) -> Self {
        self.lives = Some(lives);
        self
    }

    fn check_quiet(&self) -> Result<(), StoreError> {
        let quiet = self.lives.as_ref().and_then(|it| it.quiet());
        quiet.map_or(Ok(()), |text| Err(StoreError::Unreachable(text)))
    }

    fn majority(&self) -> usize {
        self.all.len() / 2 + 1
    }

    /// Asks all voters at once; answers come as they come, for at most `patience`.
    fn ask_all(&self, question: &Question, known: &Record) -> mpsc::Receiver<(usize, Reply)> {
        let (sender, receiver) = mpsc::channel(self.all.len().max(1));
        for number in 0..self.all.len() {
            let (voters, sender) = (Arc::clone(&self.all), sender.clone());
            let (question, known) = (question.clone(), known.clone());
            let patience = self.patience;
            tokio::spawn(async move {
                let asked = async {
                    let reply = voters[number].ask(question.clone(), known.epoch).await?;
                    if reply != Reply::Behind {
                        return Some(reply);
                    }
                    let epoch = known.epoch;
                    voters[number].ask(Question::Learn { record: known }, epoch).await?;
                    voters[number].ask(question, epoch).await
                };
                if let Ok(Some(reply)) = timeout(patience, asked).await {
                    sender.send((number, reply)).await.ok();
                }
            });
        }
        receiver
    }

    async fn learn(&self, record: &Record) {
        self.me.decide(Question::Learn { record: record.clone() }).await;
    }

    /// One attempt to have a successor of `epoch` chosen.
    async fn attempt(&self, epoch: u64, own: Option<Record>) -> Result<Next, StoreError> {
        let known = self.me.known().await;
        if known.epoch > epoch {
            return Ok(Next::Moved(known));
        }
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let ballot = Ballot { round, ..self.ballot };
        let (mut proposal, mut ask) = Proposal::new(self.all.len(), ballot, epoch, own);
        loop {
            let mut answers = self.ask_all(&ask, &known);
            let mut good = 0;
            let next = loop {
                let Some((voter, reply)) = answers.recv().await else { break None };
                good += usize::from(matches!(reply, Reply::Promise(_) | Reply::Accepted));
                match proposal.on_reply(voter, reply) {
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
                    self.learn(&record).await;
                    drop(self.ask_all(&Question::Learn { record: record.clone() }, &known));
                    return Ok(Next::Chosen(record));
                }
                Some(Next::Outbid(ballot)) => {
                    self.round.fetch_max(ballot.round.saturating_add(1), Ordering::Relaxed);
                    return Ok(Next::Outbid(ballot));
                }
                Some(Next::Moved(record)) => {
                    self.learn(&record).await;
                    return Ok(Next::Moved(record));
                }
                Some(next @ (Next::Wait | Next::Nothing)) => return Ok(next),
                None => return Err(self.too_few(good)),
            }
        }
    }

    fn too_few(&self, good: usize) -> StoreError {
        let (all, need) = (self.all.len(), self.majority());
        let text = format!("{good} of {all} members agree, {need} are needed");
        StoreError::Unreachable(text)
    }

    /// Proposes until something is chosen, by whomever.
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

    /// What this voter knows, once it has come as far as its site. A site is told of an epoch by
    /// whoever had it chosen, who may be gone before any voter is: then it is found out here.
    async fn known(&self, epoch: u64) -> Result<Record, StoreError> {
        let mut known = self.me.known().await;
        while known.epoch < epoch {
            self.propose(known.epoch, None).await?;
            let next = self.me.known().await;
            if next.epoch == known.epoch {
                return Err(StoreError::Contended);
            }
            known = next;
        }
        Ok(known)
    }
}

impl Store for Voters {
    fn swap(&self, next: Record) -> Later<'_, Swap> {
        Box::pin(async move {
            self.check_quiet()?;
            let epoch = next.epoch.saturating_sub(1);
            self.known(epoch).await?;
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

    fn beat(&self, epoch: u64, pulse: Pulse) -> Later<'_, Beat> {
        Box::pin(async move {
            self.check_quiet()?;
            let known = self.known(epoch).await?;
            if known.epoch > epoch {
                return Ok(Beat::Moved(known));
            }
            let mut answers = self.ask_all(&Question::Beat { epoch, pulse }, &known);
            let (mut good, mut pending) = (0, false);
            let mut pulses: Vec<Pulse> = Vec::new();
            while let Some((_, reply)) = answers.recv().await {
                match reply {
                    Reply::Beats(list) => {
                        good += 1;
                        merge(&mut pulses, list);
                    }
                    Reply::Moved(record) if record.epoch > epoch => {
                        self.learn(&record).await;
                        return Ok(Beat::Moved(record));
                    }
                    Reply::Pending => pending = true,
                    Reply::Moved(_)
                    | Reply::Promise(_)
                    | Reply::Accepted
                    | Reply::Outbid(_)
                    | Reply::Behind
                    | Reply::Learned
                    | Reply::Failed => {}
                }
                if good >= self.majority() {
                    return Ok(Beat::Steady(pulses));
                }
            }
            if !pending {
                return Err(self.too_few(good));
            }
            // Somebody began to change the epoch and did not finish: it is finished here.
            match self.propose(epoch, None).await? {
                Next::Chosen(record) | Next::Moved(record) => Ok(Beat::Moved(record)),
                Next::Wait | Next::Ask(_) | Next::Nothing | Next::Outbid(_) => {
                    Err(StoreError::Contended)
                }
            }
        })
    }
}

/// Keeps the newest pulse of each site.
fn merge(pulses: &mut Vec<Pulse>, list: Vec<Pulse>) {
    for pulse in list {
        match pulses.iter_mut().find(|it| it.site == pulse.site) {
            Some(old) if (old.incarnation, old.count) < (pulse.incarnation, pulse.count) => {
                *old = pulse;
            }
            Some(_) => {}
            None => pulses.push(pulse),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[tokio::test]
    async fn sites_go_on_in_an_epoch_that_no_voter_was_told_of() {
        let voter = || Arc::new(Ballots::open(None).unwrap());
        let (first, second) = (voter(), voter());
        let ballot = Ballot { round: 7, site: 2, incarnation: 1 };
        let one = Record { epoch: 1, body: b"one".to_vec() };
        // The third site has it chosen, tells the first, and is gone.
        for voter in [&first, &second] {
            voter.decide(Question::Prepare { ballot, epoch: 0 }).await;
            let reply = voter.decide(Question::Accept { ballot, record: one.clone() }).await;
            assert_eq!(reply, Reply::Accepted);
        }
        let mut store = Voters::new(Arc::clone(&first), true, vec![], 0, 1, Duration::from_secs(1));
        store.all = [first, second, voter()].map(Voter::Me).into_iter().collect();
        let pulse = Pulse { site: "a".into(), incarnation: 1, count: 0, note: Vec::new() };
        assert_eq!(store.beat(1, pulse.clone()).await, Ok(Beat::Steady(vec![pulse])));
        let two = Record { epoch: 2, body: b"two".to_vec() };
        assert_eq!(store.swap(two).await, Ok(Swap::Done));
    }

    async fn ask(voter: &Ballots, question: &Question) -> Reply {
        let question = postcard::to_stdvec(question).unwrap();
        let answer = voter.answer("b", question.into()).await;
        postcard::from_bytes(&answer).unwrap()
    }

    fn record(epoch: u64) -> Record {
        let plan = plan::Plan {
            sites: BTreeMap::from([(SiteId(0), ("b".into(), "h:1".into()))]),
            ..plan::Plan::default()
        };
        let mut record = kofm_core::epoch::Record::first([(SiteId(0), 5)].into(), plan);
        record.epoch = epoch;
        Record { epoch, body: plan::pack(&record) }
    }

    #[tokio::test]
    async fn forged_records_ballots_and_beats_change_nothing() {
        let dir = std::env::temp_dir().join(format!("kofm-forged-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let voter = Ballots::open(Some(&dir)).unwrap();
        assert_eq!(ask(&voter, &Question::Learn { record: record(3) }).await, Reply::Learned);
        let (before, disk) = (voter.register.lock().await.clone(), fs::read(dir.join("promises")));
        let ballot = |round| Ballot { round, site: 0, incarnation: 1 };
        let owned = |epoch| Record { epoch, body: b"owned".to_vec() };
        let pulse = |incarnation| Pulse { site: "b".into(), incarnation, count: 0, note: vec![] };
        for forged in [
            Question::Learn { record: owned(4) },
            Question::Learn { record: owned(u64::MAX - 1) },
            Question::Learn { record: record(u64::MAX) },
            Question::Learn { record: record(1 << 40) },
            Question::Learn { record: Record { epoch: 5, ..record(4) } },
            Question::Accept { ballot: ballot(1), record: owned(4) },
            Question::Accept { ballot: ballot(u64::MAX), record: record(4) },
            Question::Prepare { epoch: 3, ballot: ballot(u64::MAX) },
            Question::Beat { epoch: 3, pulse: pulse(1 << 63) },
            Question::Beat { epoch: 3, pulse: pulse(100_000) },
            Question::Beat { epoch: 3, pulse: Pulse { site: "a".into(), ..pulse(6) } },
        ] {
            assert_eq!(ask(&voter, &forged).await, Reply::Failed, "{forged:?}");
            assert_eq!(*voter.register.lock().await, before, "{forged:?}");
            assert_eq!(fs::read(dir.join("promises")).unwrap(), *disk.as_ref().unwrap());
        }
        let honest = Question::Beat { epoch: 3, pulse: pulse(6) };
        assert_eq!(ask(&voter, &honest).await, Reply::Beats(vec![pulse(6)]));
        let honest = Question::Accept { ballot: ballot(2), record: record(4) };
        assert_eq!(ask(&voter, &honest).await, Reply::Accepted);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn forged_answers_are_refused() {
        let ballot = Ballot { round: 1, site: 0, incarnation: 1 };
        let owned = Record { epoch: 4, body: b"owned".to_vec() };
        for forged in [
            Reply::Moved(owned.clone()),
            Reply::Moved(record(u64::MAX)),
            Reply::Promise(Some((ballot, owned))),
            Reply::Outbid(Ballot { round: u64::MAX, ..ballot }),
        ] {
            assert!(check_reply(&forged, 3).is_err(), "{forged:?}");
        }
        assert!(check_reply(&Reply::Moved(record(4)), 3).is_ok());
    }

    /// Whether writes of round 1 may reach the disk, and how many writes are done.
    static OPEN: AtomicBool = AtomicBool::new(false);
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    const FIRST: Ballot = Ballot { round: 1, site: 0, incarnation: 1 };

    /// A disk on which the write of the first promise takes until `OPEN`.
    fn slow_write(path: &Path, durable: &Durable) -> io::Result<()> {
        let mut first = Register::default();
        first.answer(Question::Prepare { ballot: FIRST, epoch: 0 });
        while *durable == first.durable && !OPEN.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        write(path, durable)?;
        WRITTEN.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    #[tokio::test]
    async fn a_later_promise_does_not_overtake_a_slow_write() {
        let dir = std::env::temp_dir().join(format!("kofm-slow-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut voter = Ballots::open(Some(&dir)).unwrap();
        voter.write = slow_write;
        let voter = Arc::new(voter);
        // A caller loses its patience during the write.
        let question = Question::Prepare { ballot: FIRST, epoch: 0 };
        let asked = timeout(Duration::from_millis(50), voter.decide(question));
        assert!(asked.await.is_err());
        let ballot = Ballot { round: 2, ..FIRST };
        let question = Question::Prepare { ballot, epoch: 0 };
        let mut expected = Register::default();
        let promise = expected.answer(question.clone());
        let later = tokio::spawn({
            let voter = Arc::clone(&voter);
            async move { voter.decide(question).await }
        });
        for _ in 0..100 {
            if later.is_finished() {
                break;
            }
            sleep(Duration::from_millis(1)).await;
        }
        OPEN.store(true, Ordering::SeqCst);
        assert_eq!(later.await.unwrap(), promise);
        while WRITTEN.load(Ordering::SeqCst) < 2 {
            sleep(Duration::from_millis(1)).await;
        }
        let mut again = Ballots::open(Some(&dir)).unwrap();
        let stored = Arc::get_mut(&mut again.register).unwrap().get_mut().durable.clone();
        assert_eq!(stored, expected.durable);
        fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test]
    async fn a_voter_refuses_more_questions_than_it_can_keep_waiting() {
        let voter = Arc::new(Ballots::open(None).unwrap());
        let locked = voter.register.lock().await;
        let ask = |round| {
            let voter = Arc::clone(&voter);
            let ballot = Ballot { round, ..FIRST };
            tokio::spawn(async move { voter.decide(Question::Prepare { ballot, epoch: 0 }).await })
        };
        let waiting: Vec<_> = (1..).take(MAX_QUESTIONS).map(ask).collect();
        while voter.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(1).await.unwrap(), Reply::Failed);
        drop(locked);
        for question in waiting {
            assert_ne!(question.await.unwrap(), Reply::Failed);
        }
        assert_eq!(voter.waiting.available_permits(), MAX_QUESTIONS);
    }

    #[tokio::test]
    async fn a_voter_that_was_killed_keeps_its_promises() {
        let dir = std::env::temp_dir().join(format!("kofm-promises-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let first = Arc::new(Ballots::open(Some(&dir)).unwrap());
        let store = Voters::new(Arc::clone(&first), true, vec![], 0, 1, Duration::from_secs(1));
        let one = Record { epoch: 1, body: b"one".to_vec() };
        assert_eq!(store.swap(one.clone()).await, Ok(Swap::Done));
        let late = Record { epoch: 1, body: b"late".to_vec() };
        assert_eq!(store.swap(late).await, Ok(Swap::Lost(one.clone())));
        drop((store, first));
        let again = Arc::new(Ballots::open(Some(&dir)).unwrap());
        assert_eq!(again.known().await, one);
        let store = Voters::new(again, true, vec![], 0, 2, Duration::from_secs(1));
        let pulse = Pulse { site: "a".into(), incarnation: 2, count: 0, note: Vec::new() };
        assert_eq!(store.beat(0, pulse.clone()).await, Ok(Beat::Moved(one)));
        assert_eq!(store.beat(1, pulse.clone()).await, Ok(Beat::Steady(vec![pulse])));
        fs::write(dir.join("promises"), "garbage").unwrap();
        assert!(Ballots::open(Some(&dir)).is_err());
        fs::remove_dir_all(dir).unwrap();
    }
}
