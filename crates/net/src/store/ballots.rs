//! This site's vote: its register, the disk under it, and the heartbeats that it was told.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use kofm_core::SiteId;
use kofm_core::voting::{Answer, DiskId, Durable, Question, Register};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tracing::warn;

use super::ages::{Age, Ages, PAUSE};
use crate::link::Answers;
use crate::random;
use crate::store::{Pulse, Record};
use kofm_site::bounds::{self, Refusal};
use kofm_site::plan;

/// Questions that may wait for one voter's disk; further ones fail at once.
const MAX_QUESTIONS: usize = 256;
/// Sites whose heartbeats a voter remembers.
const MAX_PULSES: usize = 4096;

/// The question of a site to a voter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// The disk that is asked.
    pub to: DiskId,
    pub question: Question,
    /// What a site says of itself with its heartbeat.
    pub pulse: Option<Pulse>,
    /// Whether it wants to hear what each site last said.
    pub listens: bool,
    /// The writes of the disk of the site that asks.
    pub own: Age,
    /// The most that it has heard of the disk of the voter.
    pub seen: Age,
}

/// The answer of a voter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub answer: Answer,
    /// With the answer to a heartbeat of a site that listens: what each site last said.
    pub pulses: Vec<Pulse>,
    /// The writes of the voter's disk.
    pub own: Age,
    /// The most that it has heard of the disk of the site that asks.
    pub seen: Age,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        let (pulses, own, seen) = (Vec::new(), Age::default(), Age::default());
        Self { answer, pulses, own, seen }
    }
}

/// The contents of the file of promises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Promises {
    /// How often it was written.
    writes: u64,
    durable: Durable,
    /// The ages of other sites' disks that were heard of.
    heard: BTreeMap<String, Age>,
}

/// This site's vote.
#[derive(Debug)]
pub(crate) struct Ballots {
    /// As it is on the disk.
    register: Arc<Mutex<State>>,
    /// Held while something is written: no later write overtakes it.
    writer: Arc<tokio::sync::Mutex<()>>,
    /// None where the site keeps nothing: all voters live in one process, and die together.
    path: Option<PathBuf>,
    /// Questions that may wait for the disk at once.
    waiting: Arc<Semaphore>,
    /// The newest incarnation of each site in the record of an epoch.
    lives: Mutex<(u64, BTreeMap<String, u64>)>,
    /// What sites said in an epoch. Only hints: a voter that forgets them makes no site unsafe.
    /// They begin again with each epoch, so that none is left of a site that was replaced.
    pulses: Mutex<(u64, BTreeMap<String, Pulse>)>,
    /// Replaces the file of promises.
    write: fn(&Path, &Promises) -> io::Result<()>,
    ages: Ages,
}

#[derive(Debug)]
struct State {
    register: Register,
    known: Arc<Record>,
    /// How often the file was written, and when it was last.
    writes: u64,
    written: Instant,
}

impl State {
    fn new(durable: Durable, writes: u64) -> Self {
        let known = Arc::new(durable.known.clone());
        Self { register: Register::restored(durable), known, writes, written: Instant::now() }
    }

    fn replace(&mut self, register: Register) {
        if register.durable.known.epoch != self.known.epoch {
            self.known = Arc::new(register.durable.known.clone());
        }
        self.register = register;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here panics half way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ballots {
    /// Reads what this voter promised before. An empty disk gets a random name, which is on it
    /// before any other site hears of it.
    pub(crate) fn open(dir: Option<&Path>) -> io::Result<Self> {
        Self::open_by(dir, write)
    }

    fn open_by(
        dir: Option<&Path>,
        write: fn(&Path, &Promises) -> io::Result<()>,
    ) -> io::Result<Self> {
        let path = dir.map(|dir| dir.join("promises"));
        let durable = Durable::new(DiskId(u128::from_le_bytes(random::secret())));
        let writes = u64::from(path.is_some());
        let mut promises = Promises { writes, durable, heard: BTreeMap::new() };
        if let Some(path) = &path {
            match fs::read(path) {
                Ok(bytes) => {
                    promises = unpack(&bytes).ok_or_else(|| {
                        let text = "the promises of this voter are damaged, so this disk is lost: \
                                run `kofm member replace` for this site at another one, and \
                                start it with an empty state_dir";
                        io::Error::new(io::ErrorKind::InvalidData, text)
                    })?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir_all(path.parent().unwrap_or(path))?;
                    write(path, &promises)?;
                }
                Err(error) => return Err(error),
            }
        }
        let Promises { writes, durable, heard } = promises;
        Ok(Self {
            register: Arc::new(Mutex::new(State::new(durable, writes))),
            writer: Arc::default(),
            path,
            waiting: Arc::new(Semaphore::new(MAX_QUESTIONS)),
            lives: Mutex::default(),
            pulses: Mutex::default(),
            write,
            ages: Ages::new(heard),
        })
    }

    /// The latest record that this voter knows to be chosen.
    pub(crate) fn known(&self) -> Arc<Record> {
        Arc::clone(&lock(&self.register).known)
    }

    /// The latest record that may have been chosen, as far as this voter knows.
    pub(crate) fn newest(&self) -> Record {
        let state = lock(&self.register);
        let accepted = state.register.durable.accepted().map(|it| &it.1);
        accepted.filter(|it| it.epoch > state.known.epoch).unwrap_or(&state.known).clone()
    }

    /// The random name of this voter's disk.
    pub(crate) fn disk(&self) -> DiskId {
        lock(&self.register).register.durable.disk
    }

    /// The writes of this disk.
    pub(crate) fn age(&self) -> Age {
        let state = lock(&self.register);
        Age { disk: state.register.durable.disk, writes: state.writes }
    }

    /// The most that was heard of a site's disk.
    pub(crate) fn seen(&self, site: &str) -> Age {
        self.ages.of(site)
    }

    /// Hears the ages in a voter's reply. That of an older copy counts for nothing.
    pub(crate) fn believes(&self, site: &str, reply: &Reply) -> bool {
        self.ages.compare(site, self.age(), reply.seen);
        self.ages.hear(site, reply.own).is_ok()
    }

    /// Why this disk must not be used: it is an older copy.
    pub(crate) fn old(&self) -> Option<&str> {
        self.ages.old()
    }

    /// Writes the promises again if that was long ago, so that an older copy can be told.
    pub(crate) async fn count_on(&self) {
        let due = lock(&self.register).written.elapsed() >= PAUSE;
        if due && self.path.is_some() {
            let (disk, decree) = (DiskId::ANY, Record::clone(&self.known()));
            self.change(disk, Question::Learn { decree }, true).await;
        }
    }

    /// Answers for this voter. Its promises are on disk before this returns.
    ///
    /// A caller may stop waiting at any time. A write that has begun goes on without its caller.
    /// Heartbeats do not wait for the disk: they are answered from what is on it.
    pub(crate) async fn decide(&self, ask: Ask) -> Reply {
        let Ask { to, question, pulse, listens, .. } = ask;
        if self.old().is_some() {
            return Answer::Failed.into();
        }
        if let Question::Beat { .. } = question {
            let (answer, epoch) = {
                let mut state = lock(&self.register);
                (state.register.answer(to, question), state.known.epoch)
            };
            if answer != Answer::Stands {
                return answer.into();
            }
            let mut pulses = lock(&self.pulses);
            if pulses.0 != epoch {
                *pulses = (epoch, BTreeMap::new());
            }
            if let Some(it) = pulse {
                note(&mut pulses.1, it);
            }
            let heard = pulses.1.values().filter(|_| listens);
            return Reply { pulses: heard.cloned().collect(), ..answer.into() };
        }
        self.change(to, question, false).await.into()
    }

    /// Takes note of a record that was chosen. Returns whether it is on disk.
    pub(crate) async fn learn(&self, record: &Record) -> bool {
        if self.known().epoch >= record.epoch {
            return true;
        }
        let learn = Question::Learn { decree: record.clone() };
        self.change(DiskId::ANY, learn, false).await == Answer::Learned
    }

    /// Answers a question that may change what is on the disk, which is written then, or `always`.
    async fn change(&self, to: DiskId, question: Question, always: bool) -> Answer {
        let Ok(slot) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return Answer::Failed;
        };
        let writing = Arc::clone(&self.writer).lock_owned().await;
        let mut next = lock(&self.register).register.clone();
        let before = next.durable.clone();
        let answer = next.answer(to, question);
        let Some(path) = self.path.clone().filter(|_| always || next.durable != before) else {
            lock(&self.register).replace(next);
            return answer;
        };
        let writes = lock(&self.register).writes + 1;
        let heard = self.ages.heard();
        let promises = Promises { writes, durable: next.durable.clone(), heard };
        let (write, register) = (self.write, Arc::clone(&self.register));
        let written = tokio::task::spawn_blocking(move || {
            let _held = (slot, writing);
            write(&path, &promises)?;
            let mut state = lock(&register);
            state.replace(next);
            (state.writes, state.written) = (writes, Instant::now());
            Ok(answer)
        });
        match written.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(answer) => answer,
            Err(error) => {
                warn!(%error, "cannot keep a promise on disk, so it is not given");
                Answer::Failed
            }
        }
    }

    /// Whether a peer's question has possible numbers, and a record that can be decoded. Nothing
    /// else reaches the register and the disk.
    fn check(&self, from: &str, ask: &Ask) -> Result<(), Refusal> {
        let (known, promised) = {
            let state = lock(&self.register);
            (Arc::clone(&state.known), state.register.durable.round())
        };
        if let Some(pulse) = &ask.pulse {
            if pulse.site != from {
                return Err("a heartbeat of another site than its sender");
            }
            let mut lives = lock(&self.lives);
            if lives.0 != known.epoch {
                *lives = (known.epoch, lives_of(&known));
            }
            let life = lives.1.get(&pulse.site).copied().unwrap_or(0);
            bounds::incarnation(pulse.incarnation, life)?;
        }
        match &ask.question {
            Question::Beat { epoch } => bounds::epoch(*epoch, known.epoch),
            Question::Prepare { epoch, ballot } => {
                bounds::epoch(*epoch, known.epoch)?;
                bounds::round(ballot.round, promised)
            }
            Question::Accept { ballot, decree } => {
                bounds::round(ballot.round, promised)?;
                bounds::record(decree, known.epoch).map(drop)
            }
            // Every peer is told of every record: only one that is new here is decoded.
            Question::Learn { decree } if decree.epoch <= known.epoch => Ok(()),
            Question::Learn { decree } => bounds::record(decree, known.epoch).map(drop),
        }
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
                Ok(ask) => match self.check(from, &ask) {
                    Ok(()) => {
                        self.ages.compare(from, self.age(), ask.seen);
                        let (heard, own) = (self.ages.hear(from, ask.own), ask.own);
                        let mut reply = match heard {
                            Ok(()) => self.decide(ask).await,
                            Err(_) => Answer::Failed.into(),
                        };
                        reply.own = self.age();
                        reply.seen = heard.err().unwrap_or(own);
                        reply
                    }
                    Err(why) => {
                        warn!(from, why, "refused a question of a peer");
                        Answer::Failed.into()
                    }
                },
                Err(_) => Answer::Failed.into(),
            };
            postcard::to_stdvec(&reply).unwrap_or_default()
        })
    }
}

/// Keeps the newest pulse of each site.
pub(super) fn note(pulses: &mut BTreeMap<String, Pulse>, pulse: Pulse) {
    let room = pulses.len() < MAX_PULSES;
    match pulses.get_mut(&pulse.site) {
        // Messages overtake each other; a newer incarnation counts from nothing.
        Some(old) if (old.incarnation, old.count) <= (pulse.incarnation, pulse.count) => {
            *old = pulse;
        }
        None if room => {
            pulses.insert(pulse.site.clone(), pulse);
        }
        Some(_) | None => {}
    }
}

fn write(path: &Path, promises: &Promises) -> io::Result<()> {
    let body = postcard::to_stdvec(promises).map_err(io::Error::other)?;
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(&crc32fast::hash(&body).to_le_bytes())?;
    file.write_all(&body)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

fn unpack(bytes: &[u8]) -> Option<Promises> {
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

#[cfg(test)]
mod tests;
