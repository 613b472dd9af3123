//! The site's end of a fast connection.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore};

use super::{FastAnswer, FastCall, Frames, MAX_CALL, MAX_OPEN, peek};
use crate::site::Site;

/// Answers on their way to one client, as many as it may have calls open.
#[derive(Debug)]
pub(crate) struct Outbox {
    answers: Mutex<Answers>,
    wake: Notify,
    /// Calls that may still come.
    open: Semaphore,
}

#[derive(Debug, Default)]
struct Answers {
    frames: Frames,
    /// The site's keys of requests that wait, by the numbers of the calls that asked for them,
    /// which the client chooses.
    queued: BTreeMap<u64, u64>,
}

impl Outbox {
    fn new() -> Self {
        Self { answers: Mutex::default(), wake: Notify::new(), open: Semaphore::new(MAX_OPEN) }
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the call of that number.
    pub(crate) fn put(&self, number: u64, answer: &FastAnswer) {
        let mut answers = self.lock();
        answers.queued.remove(&number);
        if !answers.frames.closed && answers.frames.put(&(number, answer)) {
            drop(answers);
            self.wake.notify_one();
        }
    }

    /// The call of that number waits, for a request with this key.
    pub(crate) fn wait(&self, number: u64, key: u64) {
        let mut answers = self.lock();
        if !answers.frames.closed {
            answers.queued.insert(number, key);
        }
    }

    /// What the call of that number waits for, if it does.
    pub(crate) fn waits_for(&self, number: u64) -> Option<u64> {
        self.lock().queued.get(&number).copied()
    }

    /// Whether the client is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().frames.closed
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
    let closed = Frames { closed: true, ..Frames::default() };
    *outbox.lock() = Answers { frames: closed, ..Answers::default() };
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
                // What came before is done before.
                if !here.is_empty() {
                    site.call_many(std::mem::take(&mut here), outbox).await?;
                }
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
        let count = outbox.lock().frames.take(&mut out);
        if count == 0 {
            outbox.wake.notified().await;
        } else {
            outbox.open.add_permits(count);
            writer.write_all(&out).await?;
        }
    }
}
