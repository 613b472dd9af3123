//! The lean way in: framed postcard on an upgraded HTTP connection, many calls at once.
//!
//! A client sends `GET /v1/fast` with `upgrade: kofm/1`. From then on both sides send frames: a
//! length (4 bytes, little endian), then a number and what is said. Answers carry the number of
//! their question and come in any order. It does what `POST /v1/requests`, `GET /v1/requests/…`,
//! renew and release do, and nothing else.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::api::{self, Answer, Call, Code, Hold, State, Submit};
use crate::site::Site;

/// What the upgrade is called.
pub(crate) const UPGRADE: &str = "kofm/1";
/// The longest frame of a client.
const MAX_CALL: usize = 64 << 10;
/// The longest frame of a site: a lease of a million units.
const MAX_ANSWER: usize = 64 << 20;
/// Calls of one connection that may be open.
const MAX_OPEN: usize = 4096;

/// An answer that is not there yet is kept back for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A call of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FastCall {
    Submit {
        want: Vec<(String, u32)>,
        ttl_ms: Option<u64>,
        wait_ms: Option<u64>,
        id: Option<String>,
        owner: Option<String>,
        reason: Option<String>,
    },
    Watch {
        id: String,
        wait_ms: u64,
    },
    Cancel(String),
    Renew(String),
    Release(String),
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FastAnswer {
    Done,
    Request { id: String, state: State, cause: Option<String>, lease: Option<FastLease> },
    Lease(FastLease),
    Error { code: Code, message: String },
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastLease {
    /// Who has it may renew and release.
    pub id: String,
    /// Names of the units, by pool.
    pub units: Vec<(String, Vec<String>)>,
    /// Larger than that of every earlier lease of one of these units.
    pub fence: u64,
    /// How long it lives without a renewal.
    pub ttl_ms: u64,
    /// How long it still lives without a renewal.
    pub expires_in_ms: u64,
}

impl FastLease {
    fn new(lease: api::Lease) -> Self {
        let api::Lease { id, units, fence, ttl_ms, expires_in_ms, .. } = lease;
        Self { id, units: units.into_iter().collect(), fence, ttl_ms, expires_in_ms }
    }
}

/// An answer with the number of its question, on its way to a client.
pub(crate) type Numbered = (u64, Result<Answer, api::Error>);

impl FastCall {
    fn into_call(self) -> Call {
        match self {
            Self::Submit { want, ttl_ms, wait_ms, id, owner, reason } => {
                let mut sum: BTreeMap<String, u32> = BTreeMap::new();
                for (pool, units) in want {
                    let entry = sum.entry(pool).or_insert(0);
                    *entry = entry.saturating_add(units);
                }
                let (ttl, wait) =
                    (ttl_ms.map(Duration::from_millis), wait_ms.map(Duration::from_millis));
                let spec = Submit { want: sum, ttl, wait, id, owner, reason };
                Call::Submit { spec, fresh: false, hold: Hold::Lease, patience: Some(PATIENCE) }
            }
            Self::Watch { id, wait_ms } => Call::Watch { id, wait: Duration::from_millis(wait_ms) },
            Self::Cancel(id) => Call::Cancel(id),
            Self::Renew(id) => Call::Renew(id),
            Self::Release(id) => Call::Release(id),
        }
    }
}

impl FastAnswer {
    fn new(answer: Result<Answer, api::Error>) -> Self {
        match answer {
            Ok(Answer::Request(request)) => {
                let api::Request { id, state, cause, lease, .. } = *request;
                Self::Request { id, state, cause, lease: lease.map(FastLease::new) }
            }
            Ok(Answer::Lease(lease)) => Self::Lease(FastLease::new(*lease)),
            Ok(
                Answer::Done
                | Answer::Known(_)
                | Answer::Leases(_)
                | Answer::Queue(_)
                | Answer::Usage(_)
                | Answer::Ahead { .. }
                | Answer::History(_)
                | Answer::Taken(_)
                | Answer::Semaphores(_)
                | Answer::Gangs(_)
                | Answer::Rota(_)
                | Answer::Joined(_)
                | Answer::Events { .. },
            ) => Self::Done,
            Err(error) => Self::Error { code: error.error, message: error.message },
        }
    }
}

/// Answers one client until it leaves or says something wrong.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Send>(site: Site, stream: S) {
    let (reader, writer) = tokio::io::split(stream);
    let (answers, receiver) = mpsc::channel(MAX_OPEN);
    let open = Arc::new(Semaphore::new(MAX_OPEN));
    let read = read_calls(&site, reader, answers, &open);
    let write = write_answers(writer, receiver, &open);
    let ended = tokio::select! {
        ended = read => ended,
        ended = write => ended,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "fast client");
    }
}

async fn read_calls(
    site: &Site,
    mut reader: impl AsyncRead + Unpin,
    answers: mpsc::Sender<Numbered>,
    open: &Arc<Semaphore>,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        let mut here = Vec::new();
        while let Some((number, call)) = take::<(u64, FastCall)>(&mut buffer, MAX_CALL)? {
            // Given back when the answer is written: an answer always finds room.
            let slot = open.acquire().await.map_err(io::Error::other)?;
            slot.forget();
            let call = call.into_call();
            if site.is_local(&call) {
                here.push((number, call));
            } else {
                let (site, answers) = (site.clone(), answers.clone());
                tokio::spawn(async move {
                    let answer = site.call_anywhere(call).await;
                    answers.send((number, answer)).await.ok();
                });
            }
            if open.available_permits() == 0 && !here.is_empty() {
                site.call_many(std::mem::take(&mut here), answers.clone()).await?;
            }
        }
        if !here.is_empty() {
            site.call_many(here, answers.clone()).await?;
        }
        buffer.reserve(4 << 10);
        if reader.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

async fn write_answers(
    mut writer: impl AsyncWrite + Unpin,
    mut answers: mpsc::Receiver<Numbered>,
    open: &Semaphore,
) -> io::Result<()> {
    let mut list = Vec::new();
    let mut out = BytesMut::new();
    while answers.recv_many(&mut list, 256).await > 0 {
        open.add_permits(list.len());
        for (number, answer) in list.drain(..) {
            put(&(number, FastAnswer::new(answer)), &mut out);
        }
        writer.write_all(&out).await?;
        out.clear();
    }
    Ok(())
}

fn put(value: &impl Serialize, out: &mut BytesMut) {
    let body = postcard::to_stdvec(value).expect("plain values have an encoding");
    out.put_u32_le(u32::try_from(body.len()).unwrap_or(u32::MAX));
    out.put_slice(&body);
}

/// Takes one frame; the length is checked before anything is allocated for it.
fn take<T: DeserializeOwned>(buffer: &mut BytesMut, limit: usize) -> io::Result<Option<T>> {
    let Some(header) = buffer.first_chunk() else { return Ok(None) };
    let length = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
    if length > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is too long"));
    }
    if buffer.len() < 4 + length {
        return Ok(None);
    }
    buffer.advance(4);
    let body = buffer.split_to(length);
    let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, "malformed frame");
    postcard::from_bytes(&body).map(Some).map_err(malformed)
}

/// The client's side: one connection, shared by any number of tasks.
#[derive(Clone, Debug)]
pub struct FastClient(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    calls: mpsc::Sender<(FastCall, oneshot::Sender<FastAnswer>)>,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<FastAnswer>>>>;

impl FastClient {
    /// Speaks over an upgraded connection.
    pub(crate) fn new<S: AsyncRead + AsyncWrite + Send + 'static>(stream: S) -> Self {
        let (calls, receiver) = mpsc::channel(MAX_OPEN);
        tokio::spawn(async move {
            let (reader, writer) = tokio::io::split(stream);
            let waiting = Waiting::default();
            let read = read_answers(reader, &waiting);
            let write = write_calls(writer, receiver, &waiting);
            // Whoever still waits is told by the end of its channel.
            tokio::select! {
                ended = read => ended.ok(),
                ended = write => ended.ok(),
            }
        });
        Self(Arc::new(Shared { calls }))
    }

    async fn call(&self, call: FastCall) -> Result<FastAnswer, api::Error> {
        let gone = || api::Error::new(Code::Unreachable, "the site has closed the connection");
        let (reply, answer) = oneshot::channel();
        self.0.calls.send((call, reply)).await.map_err(|_| gone())?;
        let answer = answer.await.map_err(|_| gone())?;
        if let FastAnswer::Error { code, message } = answer {
            return Err(api::Error { error: code, message });
        }
        Ok(answer)
    }

    /// Waits for the units. The lease has to be renewed, and released.
    pub async fn acquire(&self, spec: &Submit) -> Result<FastLease, api::Error> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut call = FastCall::Submit {
            want: spec.want.iter().map(|(pool, units)| (pool.clone(), *units)).collect(),
            ttl_ms: spec.ttl.map(millis),
            wait_ms: spec.wait.map(millis),
            id: spec.id.clone(),
            owner: spec.owner.clone(),
            reason: spec.reason.clone(),
        };
        loop {
            match self.call(call).await? {
                FastAnswer::Request { lease: Some(lease), .. } => return Ok(lease),
                FastAnswer::Request { id, state: State::Queued, .. } => {
                    call = FastCall::Watch { id, wait_ms: 30_000 };
                }
                FastAnswer::Request { cause, .. } => {
                    let text = cause.unwrap_or_else(|| "not granted".into());
                    return Err(api::Error::new(Code::Busy, text));
                }
                FastAnswer::Done | FastAnswer::Lease(_) | FastAnswer::Error { .. } => {
                    return Err(api::Error::new(Code::Unreachable, "a wrong answer"));
                }
            }
        }
    }

    /// Gives a lease back.
    pub async fn release(&self, lease: &str) -> Result<(), api::Error> {
        self.call(FastCall::Release(lease.to_owned())).await.map(|_| ())
    }

    /// Renews a lease; says how long it lives now.
    pub async fn renew(&self, lease: &str) -> Result<Duration, api::Error> {
        match self.call(FastCall::Renew(lease.to_owned())).await? {
            FastAnswer::Lease(lease) => Ok(Duration::from_millis(lease.expires_in_ms)),
            FastAnswer::Done | FastAnswer::Request { .. } | FastAnswer::Error { .. } => {
                Err(api::Error::new(Code::Unreachable, "a wrong answer"))
            }
        }
    }
}

async fn read_answers(mut reader: impl AsyncRead + Unpin, waiting: &Waiting) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        while let Some((number, answer)) = take::<(u64, FastAnswer)>(&mut buffer, MAX_ANSWER)? {
            let reply = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
            if let Some(reply) = reply {
                reply.send(answer).ok();
            }
        }
        buffer.reserve(4 << 10);
        if reader.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

async fn write_calls(
    mut writer: impl AsyncWrite + Unpin,
    mut calls: mpsc::Receiver<(FastCall, oneshot::Sender<FastAnswer>)>,
    waiting: &Waiting,
) -> io::Result<()> {
    let (mut list, mut out, mut next) = (Vec::new(), BytesMut::new(), 0);
    while calls.recv_many(&mut list, 256).await > 0 {
        for (call, reply) in list.drain(..) {
            put(&(next, call), &mut out);
            waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(next, reply);
            next += 1;
        }
        writer.write_all(&out).await?;
        out.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_whole_or_refused() {
        let mut out = BytesMut::new();
        put(&(7_u64, FastCall::Release("x".into())), &mut out);
        let mut buffer = BytesMut::new();
        for &byte in &out {
            assert!(matches!(take::<(u64, FastCall)>(&mut buffer, MAX_CALL), Ok(None)));
            buffer.put_u8(byte);
        }
        let call = take::<(u64, FastCall)>(&mut buffer, MAX_CALL).unwrap();
        assert_eq!(call, Some((7, FastCall::Release("x".into()))));
        for wrong in [&[255, 255, 255, 255][..], &[1, 0, 0, 0, 255][..], &[2, 0, 0, 0, 0, 99][..]] {
            let mut buffer = BytesMut::from(wrong);
            assert!(take::<(u64, FastCall)>(&mut buffer, MAX_CALL).is_err(), "{wrong:?}");
        }
    }
}
