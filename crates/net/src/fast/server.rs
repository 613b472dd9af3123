//! The site's end of a fast connection.

use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use kofm_site::fast::Outbox as _;

use kofm_api::fast::{FastAnswer, FastCall, Frames, MAX_CALL, MAX_OPEN, peek};

use super::into_call;
use crate::api::{Call, State};
use crate::gate::{Gate, Origin, Purpose};
use crate::http::Slot;

/// Answers on their way to one client, as many as it may have calls open.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    answers: Mutex<Answers>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Answers {
    frames: Frames,
    /// The connection's task waits for answers, and does not look by itself.
    asleep: bool,
    /// The site's keys of requests that wait, by the numbers of the calls that asked for them,
    /// which the client chooses. Those that are watched may be over.
    queued: BTreeMap<u64, u64>,
}

impl kofm_site::fast::Outbox for Outbox {
    fn put(&self, number: u64, answer: &FastAnswer) {
        let mut answers = self.lock();
        if !matches!(answer, FastAnswer::Request { state: State::Queued, .. }) {
            answers.queued.remove(&number);
        }
        if answers.frames.closed {
            return;
        }
        answers.frames.put(&(number, answer));
        if std::mem::take(&mut answers.asleep) {
            drop(answers);
            self.wake.notify_one();
        }
    }

    fn wait(&self, number: u64, key: u64, waits: &dyn Fn(u64) -> bool) -> bool {
        let mut answers = self.lock();
        if answers.frames.closed {
            return false;
        }
        if answers.queued.len() >= 2 * MAX_OPEN {
            answers.queued.retain(|_, key| waits(*key));
        }
        answers.queued.insert(number, key);
        true
    }

    fn waits_for(&self, number: u64) -> Option<u64> {
        self.lock().queued.get(&number).copied()
    }

    fn is_closed(&self) -> bool {
        self.lock().frames.closed
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the answers that are there; says how many. If there are none, the next one wakes.
    fn take(&self, bytes: &mut Vec<u8>) -> usize {
        let mut answers = self.lock();
        let count = answers.frames.take(bytes);
        answers.asleep = count == 0;
        count
    }

    /// Whether a request of the client waits.
    fn has_queued(&self) -> bool {
        !self.lock().queued.is_empty()
    }

    /// Nobody reads any more. Says which calls still wait.
    fn close(&self) -> Vec<u64> {
        let mut answers = self.lock();
        answers.frames = Frames::default();
        answers.frames.closed = true;
        answers.queued.keys().copied().collect()
    }
}

/// Answers one client until it leaves or says something wrong.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Send>(
    gate: Gate,
    from: (Option<&[u8]>, &Origin),
    slot: Option<Slot>,
    stream: S,
) {
    let site = gate.site.clone();
    let outbox = Arc::new(Outbox::default());
    if let Err(error) = converse(&gate, from, slot, stream, &outbox).await {
        tracing::debug!(%error, "fast client");
    }
    // Nobody else knows of the requests that wait: they go with their client.
    let left: Vec<_> = outbox.close().into_iter().map(|it| (it, Call::Abandon(it))).collect();
    if !left.is_empty() {
        site.call_many(left, &outbox);
    }
}

/// Takes in what the client says, and tells it what came of it. Who does not read its answers is
/// not listened to, so what waits for a client is bounded.
async fn converse(
    gate: &Gate,
    from: (Option<&[u8]>, &Origin),
    slot: Option<Slot>,
    stream: impl AsyncRead + AsyncWrite,
    outbox: &Arc<Outbox>,
) -> io::Result<()> {
    let mut stream = pin!(stream);
    let (mut buffer, mut out) = (BytesMut::new(), Vec::new());
    // Calls without an answer. While there are some, the connection makes no room for another.
    let (mut open, mut busy) = (0, None);
    loop {
        open += take_calls(gate, from, &mut buffer, MAX_OPEN - open, outbox).await?;
        let count = outbox.take(&mut out);
        if count > 0 {
            open -= count;
            stream.write_all(&out).await?;
            continue;
        }
        let used = open > 0 || outbox.has_queued();
        if used && busy.is_none() {
            busy = slot.as_ref().map(Slot::begin);
        } else if !used {
            busy = None;
        }
        let closed = async {
            match &slot {
                Some(slot) => slot.closed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            length = stream.read_buf(&mut buffer), if open < MAX_OPEN => {
                if length? == 0 {
                    return Ok(());
                }
            }
            () = outbox.wake.notified() => {}
            () = closed => return Ok(()),
        }
    }
}

/// Makes the calls that are there whole, as many as may be; says how many.
async fn take_calls(
    gate: &Gate,
    (token, origin): (Option<&[u8]>, &Origin),
    buffer: &mut BytesMut,
    limit: usize,
    outbox: &Arc<Outbox>,
) -> io::Result<usize> {
    let (mut count, mut here) = (0, Vec::new());
    let site = &gate.site;
    // Rights may have changed since the last calls.
    let caller = if buffer.is_empty() {
        None
    } else {
        Some(gate.admit(token, origin, Purpose::Normal).await)
    };
    while count < limit
        && let Some((length, (number, call))) = peek::<(u64, FastCall<'_>)>(buffer, MAX_CALL)?
    {
        let mut call = into_call(call);
        buffer.advance(length);
        count += 1;
        let limited = matches!(&caller, Some(Ok(caller)) if !caller.may_everything());
        if limited && !here.is_empty() {
            // The check must see the effect of earlier calls.
            site.call_many(std::mem::take(&mut here), outbox);
        }
        let allowed = match &caller {
            Some(Ok(caller)) if caller.name.is_none() => Ok(()),
            Some(Ok(caller)) => {
                let caller = caller.again();
                let allowed = gate.check_call(&caller, &mut call).await;
                gate.note_call(&caller, &origin.address, &call, allowed.is_ok());
                allowed
            }
            Some(Err(error)) => Err(error.clone()),
            None => Ok(()),
        };
        if let Err(error) = allowed {
            outbox.put(number, &kofm_site::fast::answer(Err(error)));
            continue;
        }
        if site.is_local(&call) {
            here.push((number, call));
            continue;
        }
        // What came before is done before.
        if !here.is_empty() {
            site.call_many(std::mem::take(&mut here), outbox);
        }
        let (site, outbox) = (site.clone(), Arc::clone(outbox));
        tokio::spawn(async move {
            outbox.put(number, &kofm_site::fast::answer(site.call_anywhere(call).await));
        });
    }
    if !here.is_empty() {
        site.call_many(here, outbox);
    }
    buffer.reserve(4 << 10);
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn request(state: State) -> FastAnswer {
        FastAnswer::Request { id: "x".into(), state, cause: None::<Cow<'_, str>>, lease: None }
    }

    #[test]
    fn what_still_waits_is_known_when_a_connection_ends() {
        let outbox = Outbox::default();
        for number in 0..4 {
            outbox.wait(number, number + 10, &|_| panic!("there are few"));
        }
        outbox.put(0, &request(State::Granted));
        outbox.put(1, &request(State::Queued));
        outbox.put(2, &FastAnswer::Done);
        assert_eq!(outbox.close(), [1, 3]);
        assert_eq!((outbox.waits_for(1), outbox.waits_for(2)), (Some(11), None));
        outbox.wait(4, 14, &|_| true);
        assert_eq!(outbox.waits_for(4), None, "no client would receive it");
    }

    #[test]
    fn what_is_over_is_not_kept() {
        let outbox = Outbox::default();
        for number in 0..100_000 {
            outbox.wait(number, number, &|key| key % 1000 == 0);
            outbox.put(number, &request(State::Queued));
            assert!(outbox.lock().queued.len() <= 2 * MAX_OPEN);
        }
        assert_eq!(outbox.waits_for(1000), Some(1000));
    }
}
