//! The lean way in: framed postcard on an upgraded HTTP connection, many calls at once.
//!
//! A client sends `GET /v1/fast` with `upgrade: kofm/1`. From then on both sides send frames: a
//! length (4 bytes, little endian), then a number and what is said. Answers carry the number of
//! their question and come in any order. It does what `POST /v1/requests`, `GET /v1/requests/…`,
//! renew and release do, and nothing else.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::api::{self, Answer, Call, Code, Hold, State, Submit, Units, Want};
use crate::site::Site;

/// What the upgrade is called.
pub(crate) const UPGRADE: &str = "kofm/1";
/// The longest frame of a client.
const MAX_CALL: usize = 64 << 10;
/// The longest frame of a site: a lease of a million units.
const MAX_ANSWER: usize = 64 << 20;
/// Calls of one connection that may be open.
const MAX_OPEN: usize = 4096;
/// Open calls from which on a client collects them.
const CROWD: usize = 16;
/// Room that is kept for what is said next.
const MAX_KEPT: usize = 64 << 10;

/// An answer that is not there yet is kept back for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A call of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum FastCall<'a> {
    Submit {
        want: Cow<'a, Want>,
        ttl_ms: Option<u64>,
        wait_ms: Option<u64>,
        id: Option<Cow<'a, str>>,
        owner: Option<Cow<'a, str>>,
        reason: Option<Cow<'a, str>>,
    },
    Watch {
        #[serde(borrow)]
        id: Cow<'a, str>,
        wait_ms: u64,
    },
    Cancel(#[serde(borrow)] Cow<'a, str>),
    Renew(#[serde(borrow)] Cow<'a, str>),
    Release(#[serde(borrow)] Cow<'a, str>),
}

/// What comes of it. It shares what it says with the site's books.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FastAnswer {
    Done,
    Request {
        id: Arc<str>,
        state: State,
        cause: Option<Cow<'static, str>>,
        lease: Option<FastLease>,
    },
    Lease(FastLease),
    Error {
        code: Code,
        message: String,
    },
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastLease {
    /// Who has it may renew and release.
    pub id: Arc<str>,
    /// Names of the units, by pool.
    pub units: Arc<Units>,
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
        Self { id: id.into(), units: Arc::new(units), fence, ttl_ms, expires_in_ms }
    }
}

impl FastCall<'_> {
    fn into_call(self) -> Call {
        match self {
            Self::Submit { want, ttl_ms, wait_ms, id, owner, reason } => {
                let spec = Submit {
                    want: want.into_owned(),
                    ttl: ttl_ms.map(Duration::from_millis),
                    wait: wait_ms.map(Duration::from_millis),
                    id: id.map(Cow::into_owned),
                    owner: owner.map(Cow::into_owned),
                    reason: reason.map(Cow::into_owned),
                };
                Call::Submit { spec, fresh: false, hold: Hold::Lease, patience: Some(PATIENCE) }
            }
            Self::Watch { id, wait_ms } => {
                Call::Watch { id: id.into_owned(), wait: Duration::from_millis(wait_ms) }
            }
            Self::Cancel(id) => Call::Cancel(id.into_owned()),
            Self::Renew(id) => Call::Renew(id.into_owned()),
            Self::Release(id) => Call::Release(id.into_owned()),
        }
    }
}

impl FastAnswer {
    pub(crate) fn new(answer: Result<Answer, api::Error>) -> Self {
        match answer {
            Ok(Answer::Request(request)) => {
                let api::Request { id, state, cause, lease, .. } = *request;
                let (id, cause) = (id.into(), cause.map(Cow::Owned));
                Self::Request { id, state, cause, lease: lease.map(FastLease::new) }
            }
            Ok(Answer::Lease(lease)) => Self::Lease(FastLease::new(*lease)),
            Ok(
                Answer::Done
                | Answer::Known(_)
                | Answer::Leases(_)
                | Answer::Queue(_)
                | Answer::Usage(_)
                | Answer::Counted(_)
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

/// Frames on their way out. Whoever has something to say puts it in and never waits; one task
/// writes what is there, however much that is, at once.
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
    count: usize,
    closed: bool,
}

impl Frames {
    /// Says whether the writer has to be woken.
    fn put(&mut self, frame: &impl Serialize) -> bool {
        put(frame, &mut self.bytes);
        self.count += 1;
        self.count == 1
    }

    /// Swaps what is there for an empty buffer; says how many frames it is.
    fn take(&mut self, bytes: &mut Vec<u8>) -> usize {
        bytes.clear();
        bytes.shrink_to(MAX_KEPT);
        std::mem::swap(&mut self.bytes, bytes);
        std::mem::take(&mut self.count)
    }
}

/// Answers on their way to one client, as many as it may have calls open.
#[derive(Debug)]
pub(crate) struct Outbox {
    frames: Mutex<Frames>,
    wake: Notify,
    /// Calls that may still come.
    open: Semaphore,
}

impl Outbox {
    fn new() -> Self {
        Self { frames: Mutex::default(), wake: Notify::new(), open: Semaphore::new(MAX_OPEN) }
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the call of that number.
    pub(crate) fn put(&self, number: u64, answer: &FastAnswer) {
        let mut frames = self.lock();
        if !frames.closed && frames.put(&(number, answer)) {
            drop(frames);
            self.wake.notify_one();
        }
    }

    /// Whether the client is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

/// Answers one client until it leaves or says something wrong.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Send>(site: Site, stream: S) {
    let (reader, writer) = tokio::io::split(stream);
    let outbox = Arc::new(Outbox::new());
    let ended = tokio::select! {
        ended = read_calls(&site, reader, &outbox) => ended,
        ended = write_answers(writer, &outbox) => ended,
    };
    *outbox.lock() = Frames { closed: true, ..Frames::default() };
    if let Err(error) = ended {
        tracing::debug!(%error, "fast client");
    }
}

async fn read_calls(
    site: &Site,
    mut reader: impl AsyncRead + Unpin,
    outbox: &Arc<Outbox>,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        let mut here = Vec::new();
        while let Some((length, (number, call))) = peek::<(u64, FastCall<'_>)>(&buffer, MAX_CALL)? {
            let call = call.into_call();
            buffer.advance(length);
            // Given back when the answer is written: what waits for a client is bounded.
            outbox.open.acquire().await.map_err(io::Error::other)?.forget();
            if site.is_local(&call) {
                here.push((number, call));
            } else {
                let (site, outbox) = (site.clone(), Arc::clone(outbox));
                tokio::spawn(async move {
                    outbox.put(number, &FastAnswer::new(site.call_anywhere(call).await));
                });
            }
            if outbox.open.available_permits() == 0 && !here.is_empty() {
                site.call_many(std::mem::take(&mut here), outbox).await?;
            }
        }
        if !here.is_empty() {
            site.call_many(here, outbox).await?;
        }
        buffer.reserve(4 << 10);
        if reader.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

async fn write_answers(mut writer: impl AsyncWrite + Unpin, outbox: &Outbox) -> io::Result<()> {
    let mut out = Vec::new();
    loop {
        let count = outbox.lock().take(&mut out);
        if count == 0 {
            outbox.wake.notified().await;
        } else {
            outbox.open.add_permits(count);
            writer.write_all(&out).await?;
        }
    }
}

fn put(value: &impl Serialize, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; 4]);
    let bytes = postcard::to_extend(value, std::mem::take(out));
    *out = bytes.expect("plain values have an encoding");
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The first frame and its length; the length is checked before anything is allocated for it.
fn peek<'a, T: Deserialize<'a>>(buffer: &'a [u8], limit: usize) -> io::Result<Option<(usize, T)>> {
    let Some(header) = buffer.first_chunk() else { return Ok(None) };
    let length = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
    if length > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is too long"));
    }
    let Some(body) = buffer.get(4..4 + length) else { return Ok(None) };
    let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, "malformed frame");
    let value = postcard::from_bytes(body).map_err(malformed)?;
    Ok(Some((4 + length, value)))
}

/// The client's side: one connection, shared by any number of tasks.
#[derive(Clone, Debug)]
pub struct FastClient(Arc<Handle>);

/// Ends the connection when nobody has it any more.
#[derive(Debug)]
struct Handle(Arc<Line>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().frames.closed = true;
        self.0.wake.notify_one();
    }
}

/// What callers and the connection's task share.
#[derive(Debug)]
struct Line {
    calls: Mutex<Calls>,
    wake: Notify,
    /// Calls that may still be made.
    open: Semaphore,
}

#[derive(Debug, Default)]
struct Calls {
    frames: Frames,
    waiting: HashMap<u64, oneshot::Sender<FastAnswer>>,
    next: u64,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FastClient {
    /// Speaks over an upgraded connection.
    pub(crate) fn new<S: AsyncRead + AsyncWrite + Send + 'static>(stream: S) -> Self {
        let (calls, wake, open) = (Mutex::default(), Notify::new(), Semaphore::new(MAX_OPEN));
        let line = Arc::new(Line { calls, wake, open });
        let shared = Arc::clone(&line);
        tokio::spawn(async move {
            let (reader, writer) = tokio::io::split(stream);
            tokio::select! {
                ended = read_answers(reader, &shared) => ended.ok(),
                ended = write_calls(writer, &shared) => ended.ok(),
            };
            // Whoever still waits is told by the end of its channel.
            let mut calls = shared.lock();
            calls.frames.closed = true;
            calls.waiting.clear();
        });
        Self(Arc::new(Handle(line)))
    }

    async fn call(&self, call: FastCall<'_>) -> Result<FastAnswer, api::Error> {
        let gone = || api::Error::new(Code::Unreachable, "the site has closed the connection");
        let line = &self.0.0;
        let _slot = line.open.acquire().await.map_err(|_| gone())?;
        let (reply, answer) = oneshot::channel();
        let wake = {
            let mut calls = line.lock();
            if calls.frames.closed {
                return Err(gone());
            }
            let number = calls.next;
            calls.next += 1;
            calls.waiting.insert(number, reply);
            calls.frames.put(&(number, call))
        };
        if wake {
            line.wake.notify_one();
        }
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
            want: Cow::Borrowed(&spec.want),
            ttl_ms: spec.ttl.map(millis),
            wait_ms: spec.wait.map(millis),
            id: spec.id.as_deref().map(Cow::Borrowed),
            owner: spec.owner.as_deref().map(Cow::Borrowed),
            reason: spec.reason.as_deref().map(Cow::Borrowed),
        };
        loop {
            match self.call(call).await? {
                FastAnswer::Request { lease: Some(lease), .. } => return Ok(lease),
                FastAnswer::Request { id, state: State::Queued, .. } => {
                    call = FastCall::Watch { id: Cow::Owned(id.to_string()), wait_ms: 30_000 };
                }
                FastAnswer::Request { cause, .. } => {
                    let text = cause.unwrap_or(Cow::Borrowed("not granted"));
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
        self.call(FastCall::Release(Cow::Borrowed(lease))).await.map(|_| ())
    }

    /// Renews a lease; says how long it lives now.
    pub async fn renew(&self, lease: &str) -> Result<Duration, api::Error> {
        match self.call(FastCall::Renew(Cow::Borrowed(lease))).await? {
            FastAnswer::Lease(lease) => Ok(Duration::from_millis(lease.expires_in_ms)),
            FastAnswer::Done | FastAnswer::Request { .. } | FastAnswer::Error { .. } => {
                Err(api::Error::new(Code::Unreachable, "a wrong answer"))
            }
        }
    }
}

async fn read_answers(mut reader: impl AsyncRead + Unpin, line: &Line) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        while let Some((length, (number, answer))) = peek::<(u64, FastAnswer)>(&buffer, MAX_ANSWER)?
        {
            buffer.advance(length);
            let reply = line.lock().waiting.remove(&number);
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

async fn write_calls(mut writer: impl AsyncWrite + Unpin, line: &Line) -> io::Result<()> {
    let mut out = Vec::new();
    loop {
        let (count, closed) = {
            let mut calls = line.lock();
            (calls.frames.take(&mut out), calls.frames.closed)
        };
        if count > 0 {
            writer.write_all(&out).await?;
        } else if closed {
            return Ok(());
        } else {
            line.wake.notified().await;
            // In a crowd others have something to say, too, and it travels together. Few would only
            // wait for each other, and client and site take turns instead of working at once.
            if line.lock().waiting.len() >= CROWD {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_whole_or_refused() {
        let mut out = Vec::new();
        put(&(7_u64, FastCall::Release("x".into())), &mut out);
        let first = |bytes: &[u8]| {
            let found = peek::<(u64, FastCall<'_>)>(bytes, MAX_CALL)?;
            io::Result::Ok(found.map(|(length, (number, call))| (length, number, call.into_call())))
        };
        for length in 0..out.len() {
            assert!(matches!(first(&out[..length]), Ok(None)), "{length} bytes");
        }
        out.push(0);
        let Some((length, 7, Call::Release(id))) = first(&out).unwrap() else { panic!("{out:?}") };
        assert_eq!((length, id.as_str()), (out.len() - 1, "x"));
        for wrong in [&[255, 255, 255, 255][..], &[1, 0, 0, 0, 255][..], &[2, 0, 0, 0, 0, 99][..]] {
            assert!(first(wrong).is_err(), "{wrong:?}");
        }
    }
}
