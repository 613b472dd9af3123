//! The client's end of a fast connection.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustc_hash::FxHashMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::timeout;

use kofm_api::fast::{FastAnswer, FastCall, FastLease, Frames, MAX_ANSWER, MAX_OPEN, peek};

use crate::api::{self, Code, State, Submit};
use crate::{Client, ClientError, HEDGE};

/// Open calls that may wait for units; the others find a place, whoever waits.
const MAX_ASKING: usize = MAX_OPEN / 2;
/// Open calls from which on they are collected.
const CROWD: usize = 16;
/// Who leaves waits for so long for the last answers.
const LINGER: Duration = Duration::from_secs(5);

/// The client's side: one connection, shared by any number of tasks.
///
/// The site does the calls of a connection in their order, except those that another site has to
/// answer (a request with an id of the caller's own, and what comes of it). So a unit whose guard
/// was dropped is free for the next [`acquire`](Self::acquire) over the same connection. For
/// everybody else it is free when [`FastGuard::release`] has returned, or soon after a drop.
#[derive(Clone, Debug)]
pub struct FastClient(Arc<Handle>);

/// Ends the connection when nobody has it any more.
#[derive(Debug)]
struct Handle {
    line: Arc<Line>,
    /// Reaches the other sites of the cluster, where the caller gave their addresses.
    others: Option<Client>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.line.lock().left = true;
        self.line.wake.notify_one();
    }
}

/// What callers and the connection's task share.
#[derive(Debug)]
struct Line {
    calls: Mutex<Calls>,
    wake: Notify,
    /// Calls that may still be made; one is given back with every answer.
    open: Semaphore,
    /// Requests that may still wait for units.
    asking: Semaphore,
}

#[derive(Debug, Default)]
struct Calls {
    frames: Frames,
    /// Calls without an answer, and who waits for it.
    waiting: FxHashMap<u64, Option<oneshot::Sender<FastAnswer>>>,
    /// Calls that could not wait until they may be made. Others wait for them.
    debt: usize,
    next: u64,
    /// Nobody has the client any more.
    left: bool,
}

impl Calls {
    /// Says whether the writer has to be woken, and the number of the call.
    fn put(
        &mut self,
        call: &FastCall<'_>,
        reply: Option<oneshot::Sender<FastAnswer>>,
    ) -> (bool, u64) {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, reply);
        (self.frames.put(&(number, call)), number)
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call, and says its number and where the answer will be.
    async fn ask(
        &self,
        call: FastCall<'_>,
    ) -> Result<(u64, oneshot::Receiver<FastAnswer>), api::Error> {
        // Given back with the answer, whether somebody still waits for it or not.
        self.open.acquire().await.map_err(|_| gone())?.forget();
        let (reply, answer) = oneshot::channel();
        let mut calls = self.lock();
        if calls.frames.closed {
            return Err(gone());
        }
        let (wake, number) = calls.put(&call, Some(reply));
        drop(calls);
        if wake {
            self.wake.notify_one();
        }
        Ok((number, answer))
    }

    /// Makes a call whose answer nobody waits for, at once. If there are too many, calls that can
    /// wait are held back: so no more are open than [`MAX_OPEN`], and as many as the program has
    /// guards and requests in its hands.
    fn tell(&self, call: &FastCall<'_>) {
        let mut calls = self.lock();
        if calls.frames.closed {
            return;
        }
        if self.open.forget_permits(1) == 0 {
            calls.debt += 1;
        }
        let (wake, _) = calls.put(call, None);
        drop(calls);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Takes an answer in.
    fn hear(&self, number: u64, answer: FastAnswer) {
        let mut calls = self.lock();
        // Answers to what was not asked are nothing.
        let Some(reply) = calls.waiting.remove(&number) else { return };
        if calls.debt > 0 {
            calls.debt -= 1;
        } else {
            self.open.add_permits(1);
        }
        let last = calls.left && calls.waiting.is_empty();
        drop(calls);
        if let Some(Err(answer)) = reply.map(|reply| reply.send(answer)) {
            self.give_up(&answer);
        }
        if last {
            self.wake.notify_one();
        }
    }

    /// Gives back what came for somebody who does not wait any more.
    fn give_up(&self, answer: &FastAnswer) {
        if let FastAnswer::Request { id, state: State::Queued | State::Granted, .. } = answer {
            self.tell(&FastCall::Cancel(Cow::Borrowed(id)));
        }
    }
}

/// A request on its way to be granted. If its future is dropped, it is given up.
struct Wish<'a> {
    line: &'a Line,
    /// The call that is open.
    call: Option<(u64, oneshot::Receiver<FastAnswer>)>,
    /// It waits at the site, under this id.
    id: Option<Arc<str>>,
}

impl Wish<'_> {
    async fn ask(&mut self, call: FastCall<'_>) -> Result<FastAnswer, api::Error> {
        let call = self.line.ask(call).await?;
        let answer = (&mut self.call.insert(call).1).await;
        self.call = None;
        checked(answer)
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // Also if it was granted meanwhile.
            return self.line.tell(&FastCall::Cancel(Cow::Borrowed(&id)));
        }
        let Some((number, mut answer)) = self.call.take() else { return };
        // From here on an answer finds nobody, and is given up where it comes in.
        answer.close();
        match answer.try_recv() {
            Ok(answer) => self.line.give_up(&answer),
            Err(_) => self.line.tell(&FastCall::Abandon(number)),
        }
    }
}

impl FastClient {
    /// Speaks over an upgraded connection.
    pub(crate) fn new<S: AsyncRead + AsyncWrite + Send + 'static>(
        stream: S,
        buffer: BytesMut,
        others: Option<Client>,
    ) -> Self {
        let (open, asking) = (Semaphore::new(MAX_OPEN), Semaphore::new(MAX_ASKING));
        let line = Line { calls: Mutex::default(), wake: Notify::new(), open, asking };
        let line = Arc::new(line);
        let shared = Arc::clone(&line);
        tokio::spawn(async move {
            let (reader, writer) = tokio::io::split(stream);
            tokio::select! {
                ended = read_answers(reader, buffer, &shared) => ended.ok(),
                ended = write_calls(writer, &shared) => ended.ok(),
            };
            // Whoever still waits is told by the end of its channel.
            let mut calls = shared.lock();
            calls.frames.closed = true;
            calls.waiting.clear();
            shared.open.close();
            shared.asking.close();
        });
        Self(Arc::new(Handle { line, others }))
    }

    async fn call(&self, call: FastCall<'_>) -> Result<FastAnswer, api::Error> {
        let (_, answer) = self.0.line.ask(call).await?;
        checked(answer.await)
    }

    /// Waits for the units, and holds them until the guard is dropped, or for its time to live
    /// without a renewal. If this is given up, so is the request.
    pub async fn acquire(&self, spec: &Submit) -> Result<FastGuard, api::Error> {
        let line = &*self.0.line;
        let _slot = line.asking.acquire().await.map_err(|_| gone())?;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut call = FastCall::Submit {
            want: Cow::Borrowed(&spec.want),
            ttl_ms: spec.ttl.map(millis),
            wait_ms: spec.wait.map(millis),
            id: spec.id.as_deref().map(Cow::Borrowed),
            owner: spec.owner.as_deref().map(Cow::Borrowed),
            reason: spec.reason.as_deref().map(Cow::Borrowed),
        };
        let mut wish = Wish { line, call: None, id: None };
        loop {
            match wish.ask(call).await? {
                FastAnswer::Request { state: State::Granted, lease: Some(lease), .. } => {
                    wish.id = None;
                    return Ok(FastGuard { client: self.clone(), lease, released: false });
                }
                FastAnswer::Request { id, state: State::Queued, .. } => {
                    call = FastCall::Watch { id: Cow::Owned(id.to_string()), wait_ms: 30_000 };
                    wish.id = Some(id);
                }
                FastAnswer::Request { cause, .. } => {
                    wish.id = None;
                    let text = cause.unwrap_or(Cow::Borrowed("not granted"));
                    return Err(api::Error::new(Code::Busy, text));
                }
                FastAnswer::Done | FastAnswer::Lease(_) | FastAnswer::Error { .. } => {
                    return Err(wrong());
                }
            }
        }
    }

    /// Gives a lease back, also one of another client. Repeating it is harmless.
    pub async fn release(&self, lease: &str) -> Result<(), api::Error> {
        self.call(FastCall::Release(Cow::Borrowed(lease))).await.map(|_| ())
    }

    /// Renews a lease, also one of another client; says how long it lives now. If the site does not
    /// answer at once, or the connection is closed, the other sites are asked as well, where the
    /// [`Client`] that this connection comes from has their addresses.
    pub async fn renew(&self, lease: &str) -> Result<Duration, api::Error> {
        let here = self.renew_here(lease);
        let Some(others) = &self.0.others else { return here.await };
        tokio::pin!(here);
        let lost =
            |answer: &Result<Duration, api::Error>| matches!(answer, Err(error) if is_away(error));
        let known = timeout(HEDGE, &mut here).await;
        let there = async {
            let lease = others.renew(lease).await.map_err(|error| {
                if let ClientError::Refused(error) = error {
                    error
                } else {
                    api::Error::new(Code::Unreachable, error.to_string())
                }
            })?;
            Ok(Duration::from_millis(lease.expires_in_ms))
        };
        match known {
            Ok(answer) if !lost(&answer) => return answer,
            Ok(_) => return there.await,
            Err(_) => {}
        }
        tokio::pin!(there);
        tokio::select! {
            answer = &mut here => if lost(&answer) { there.await } else { answer },
            answer = &mut there => if lost(&answer) { here.await } else { answer },
        }
    }

    async fn renew_here(&self, lease: &str) -> Result<Duration, api::Error> {
        match self.call(FastCall::Renew(Cow::Borrowed(lease))).await? {
            FastAnswer::Lease(lease) => Ok(Duration::from_millis(lease.expires_in_ms)),
            FastAnswer::Done | FastAnswer::Request { .. } | FastAnswer::Error { .. } => {
                Err(wrong())
            }
        }
    }
}

/// A lease that is released when this is dropped.
///
/// The drop waits for nothing, and works outside of a runtime, too: the release travels with
/// the next call of the connection, or through another site where the connection is closed and
/// the client has further addresses. Where it does not arrive, because the program ends before it
/// is sent, the lease ends with its time to live. A caller that has to know that the units are back
/// uses [`release`](Self::release).
///
/// Nothing renews the lease but [`renew`](Self::renew), which asks further sites if the site of the
/// connection does not answer: see [`Client::renews_after`].
#[derive(Debug)]
#[must_use = "the units are given back when this is dropped"]
pub struct FastGuard {
    client: FastClient,
    lease: FastLease,
    released: bool,
}

impl FastGuard {
    /// The lease as it was granted.
    pub const fn lease(&self) -> &FastLease {
        &self.lease
    }

    /// Renews the lease; says how long it lives now.
    pub async fn renew(&self) -> Result<Duration, api::Error> {
        self.client.renew(&self.lease.id).await
    }

    /// Gives the units back; when this returns without an error, they are.
    pub async fn release(mut self) -> Result<(), api::Error> {
        let line = &self.client.0.line;
        let (_, answer) = line.ask(FastCall::Release(Cow::Borrowed(&self.lease.id))).await?;
        self.released = true;
        checked(answer.await).map(|_| ())
    }
}

impl Drop for FastGuard {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        let Handle { line, others } = &*self.client.0;
        match others {
            Some(others) if line.lock().frames.closed => others.release_later(&self.lease.id),
            Some(_) | None => line.tell(&FastCall::Release(Cow::Borrowed(&self.lease.id))),
        }
    }
}

/// An answer as those who wait for it see it.
fn checked(
    answer: Result<FastAnswer, oneshot::error::RecvError>,
) -> Result<FastAnswer, api::Error> {
    match answer {
        Ok(FastAnswer::Error { code, message }) => Err(api::Error { error: code, message }),
        Ok(answer) => Ok(answer),
        Err(_) => Err(gone()),
    }
}

fn gone() -> api::Error {
    api::Error::new(Code::Unreachable, "the site has closed the connection")
}

/// Whether another site may answer better.
fn is_away(error: &api::Error) -> bool {
    error.error == Code::Unreachable
}

fn wrong() -> api::Error {
    api::Error::new(Code::Unreachable, "a wrong answer")
}

/// Takes answers in; `buffer` has what was read already.
async fn read_answers(
    mut reader: impl AsyncRead + Unpin,
    mut buffer: BytesMut,
    line: &Line,
) -> io::Result<()> {
    loop {
        while let Some((length, (number, answer))) = peek::<(u64, FastAnswer)>(&buffer, MAX_ANSWER)?
        {
            buffer.advance(length);
            line.hear(number, answer);
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
        let (count, left, open) = {
            let mut calls = line.lock();
            (calls.frames.take(&mut out), calls.left, calls.waiting.len())
        };
        if count > 0 {
            writer.write_all(&out).await?;
        } else if !left {
            line.wake.notified().await;
            // In a crowd others have something to say, too, and it travels together. Few would only
            // wait for each other, and client and site take turns instead of working at once.
            if line.lock().waiting.len() >= CROWD {
                tokio::task::yield_now().await;
            }
        } else if open == 0 || timeout(LINGER, line.wake.notified()).await.is_err() {
            // Everything is answered: what came for nobody is given back, too.
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::task::JoinHandle;

    use kofm_api::fast::{MAX_CALL, put};

    use super::*;

    /// The other end of a client's connection.
    struct Peer {
        stream: DuplexStream,
        buffer: BytesMut,
    }

    impl Peer {
        fn new() -> (FastClient, Self) {
            let (ours, stream) = tokio::io::duplex(1 << 20);
            (FastClient::new(ours, BytesMut::new(), None), Self { stream, buffer: BytesMut::new() })
        }

        /// The next call; nothing when the client is gone.
        async fn next(&mut self) -> Option<(u64, FastCall<'static>)> {
            loop {
                let found = peek::<(u64, FastCall<'_>)>(&self.buffer, MAX_CALL).unwrap();
                let found = found.map(|(length, (number, call))| (length, number, own(call)));
                if let Some((length, number, call)) = found {
                    self.buffer.advance(length);
                    return Some((number, call));
                }
                if self.stream.read_buf(&mut self.buffer).await.unwrap() == 0 {
                    return None;
                }
            }
        }

        async fn submitted(&mut self) -> u64 {
            let Some((number, FastCall::Submit { .. })) = self.next().await else { panic!() };
            number
        }

        async fn answer(&mut self, number: u64, answer: &FastAnswer) {
            let mut out = Vec::new();
            put(&(number, answer), &mut out);
            self.stream.write_all(&out).await.unwrap();
        }

        /// Grants whatever is asked for next.
        async fn grant(&mut self) {
            let number = self.submitted().await;
            self.answer(number, &granted(&number.to_string())).await;
        }
    }

    fn own(call: FastCall<'_>) -> FastCall<'static> {
        match call {
            FastCall::Submit { want, ttl_ms, wait_ms, .. } => {
                let want = Cow::Owned(want.into_owned());
                FastCall::Submit { want, ttl_ms, wait_ms, id: None, owner: None, reason: None }
            }
            FastCall::Watch { id, wait_ms } => {
                FastCall::Watch { id: Cow::Owned(id.into_owned()), wait_ms }
            }
            FastCall::Cancel(id) => FastCall::Cancel(Cow::Owned(id.into_owned())),
            FastCall::Renew(id) => FastCall::Renew(Cow::Owned(id.into_owned())),
            FastCall::Release(id) => FastCall::Release(Cow::Owned(id.into_owned())),
            FastCall::Abandon(number) => FastCall::Abandon(number),
        }
    }

    fn request(id: &str, state: State) -> FastAnswer {
        FastAnswer::Request { id: id.into(), state, cause: None, lease: None }
    }

    fn granted(id: &str) -> FastAnswer {
        let (id, units) = (id.into(), Arc::default());
        let lease = FastLease { id: Arc::clone(&id), units, fence: 1, ttl_ms: 1, expires_in_ms: 1 };
        FastAnswer::Request { id, state: State::Granted, cause: None, lease: Some(lease) }
    }

    fn asking(client: &FastClient) -> JoinHandle<Result<FastGuard, api::Error>> {
        let client = client.clone();
        tokio::spawn(async move { client.acquire(&Submit::default()).await })
    }

    async fn acquire(client: &FastClient, peer: &mut Peer) -> FastGuard {
        let task = asking(client);
        peer.grant().await;
        task.await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn a_request_that_nobody_waits_for_is_given_up() {
        let (client, mut peer) = Peer::new();
        // Before it is answered; the grant was on its way.
        let task = asking(&client);
        let number = peer.submitted().await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(peer.next().await.unwrap().1, FastCall::Abandon(number));
        peer.answer(number, &granted("a")).await;
        assert_eq!(peer.next().await.unwrap().1, FastCall::Cancel("a".into()));
        // The same, and it waits.
        let task = asking(&client);
        let number = peer.submitted().await;
        task.abort();
        assert_eq!(peer.next().await.unwrap().1, FastCall::Abandon(number));
        peer.answer(number, &request("b", State::Queued)).await;
        assert_eq!(peer.next().await.unwrap().1, FastCall::Cancel("b".into()));
        // The same, and it is over: nothing is left to say.
        let task = asking(&client);
        let number = peer.submitted().await;
        task.abort();
        assert_eq!(peer.next().await.unwrap().1, FastCall::Abandon(number));
        peer.answer(number, &request("c", State::Cancelled)).await;
        // It is known to wait, and somebody looks.
        let task = asking(&client);
        let number = peer.submitted().await;
        peer.answer(number, &request("d", State::Queued)).await;
        let (_, watch) = peer.next().await.unwrap();
        assert_eq!(watch, FastCall::Watch { id: "d".into(), wait_ms: 30_000 });
        task.abort();
        assert_eq!(peer.next().await.unwrap().1, FastCall::Cancel("d".into()));
        // The answer is here, and was not looked at.
        let spec = Submit::default();
        let mut task = Box::pin(client.acquire(&spec));
        let number = tokio::select! {
            _ = &mut task => panic!("no answer"),
            number = peer.submitted() => number,
        };
        peer.answer(number, &granted("e")).await;
        while client.0.line.lock().waiting.contains_key(&number) {
            tokio::task::yield_now().await;
        }
        drop(task);
        assert_eq!(peer.next().await.unwrap().1, FastCall::Cancel("e".into()));
    }

    #[tokio::test]
    async fn releases_without_an_answer_hold_requests_back() {
        let (client, mut peer) = Peer::new();
        let mut guards = Vec::new();
        for _ in 0..MAX_OPEN + 10 {
            guards.push(acquire(&client, &mut peer).await);
        }
        let line = Arc::clone(&client.0.line);
        assert_eq!(line.open.available_permits(), MAX_OPEN);
        drop(guards);
        assert_eq!(line.lock().waiting.len(), MAX_OPEN + 10);
        assert_eq!(line.lock().debt, 10);
        let task = asking(&client);
        let mut asked = 0;
        for answered in 1..=MAX_OPEN + 10 {
            // Up to the tenth answer the debt is paid; with the next there is room.
            let (number, call) = peer.next().await.unwrap();
            asked += usize::from(matches!(call, FastCall::Submit { .. }));
            assert!(asked == 0 || answered > 11, "asked after {answered} answers");
            peer.answer(number, &FastAnswer::Done).await;
            tokio::task::yield_now().await;
        }
        while line.lock().debt > 0 {
            tokio::task::yield_now().await;
        }
        // What is left are the request and at most one release.
        assert!(line.lock().waiting.len() <= 2);
        task.abort();
    }

    #[tokio::test]
    async fn whoever_leaves_takes_nothing_along() {
        let (client, mut peer) = Peer::new();
        let held = acquire(&client, &mut peer).await;
        let id = Arc::clone(&held.lease().id);
        let task = asking(&client);
        let number = peer.submitted().await;
        task.abort();
        drop(client);
        std::thread::spawn(|| drop(held)).join().unwrap();
        let mut calls = [peer.next().await.unwrap(), peer.next().await.unwrap()];
        calls.sort_by_key(|call| matches!(call.1, FastCall::Release(_)));
        let [(abandon, first), (release, second)] = calls;
        assert_eq!(first, FastCall::Abandon(number));
        assert_eq!(second, FastCall::Release(Cow::Borrowed(&id)));
        peer.answer(release, &FastAnswer::Done).await;
        peer.answer(number, &granted("late")).await;
        peer.answer(abandon, &FastAnswer::Done).await;
        let (number, cancel) = peer.next().await.unwrap();
        assert_eq!(cancel, FastCall::Cancel("late".into()));
        peer.answer(number, &request("late", State::Released)).await;
        assert_eq!(peer.next().await, None);
    }

    #[tokio::test]
    async fn a_closed_connection_is_no_trouble_for_guards() {
        let (client, mut peer) = Peer::new();
        let guards = [acquire(&client, &mut peer).await, acquire(&client, &mut peer).await];
        let waiting = asking(&client);
        peer.submitted().await;
        drop(peer);
        assert_eq!(waiting.await.unwrap().unwrap_err().error, Code::Unreachable);
        let [first, second] = guards;
        assert_eq!(first.renew().await.unwrap_err().error, Code::Unreachable);
        assert_eq!(first.release().await.unwrap_err().error, Code::Unreachable);
        drop(second);
        let refused = client.acquire(&Submit::default()).await;
        assert_eq!(refused.unwrap_err().error, Code::Unreachable);
        assert!(client.0.line.lock().waiting.is_empty());
    }
}
