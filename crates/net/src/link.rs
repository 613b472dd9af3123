//! Links: one TCP connection per pair of sites, under a session that outlives it.
//!
//! Tasks here only move frames. The site pushes into a session and never waits; a writer sends what
//! is there; a reader hands over what comes. The session's lock is held for a few instructions,
//! never across I/O.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kofm_core::{Clock, SiteId};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

use crate::random;
use crate::session::{ACK_EVERY, Arrival, Broken, Session};
use crate::wire::{Frame, Hello, MAX_BODY, MAX_GREETING, Refuse, RefuseCode, VERSION, WireError};

/// At least one frame per this time goes each way.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A connection without a frame for this long is dead, whatever TCP says.
const SILENCE: Duration = Duration::from_secs(5);
/// How long an acknowledgement may wait for a message to travel with.
const ACK_DELAY: Duration = Duration::from_millis(20);
const GREETING: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Greetings in progress at once; more are turned away.
const GREETINGS: usize = 64;
/// What a writer takes out of the session at once.
const BATCH: usize = 256 << 10;

/// What one Data frame carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Payload {
    /// A protocol speaks.
    Protocol { engine: u16, clock: Clock, message: Vec<u8> },
    /// Numbers of anonymous units move.
    Names { engine: u16, clock: Clock, message: Vec<u8> },
    /// A site asks, on behalf of a client.
    Ask { number: u64, body: Vec<u8> },
    /// And is answered.
    Answer { number: u64, body: Vec<u8> },
}

/// What links tell the site.
#[derive(Debug)]
pub(crate) enum Event {
    /// Messages, in order.
    Messages { from: SiteId, list: Vec<Payload> },
    /// A connection stands.
    Up(SiteId),
    /// It is gone; the session waits for the next one.
    Down(SiteId),
    /// `PeerReset`: the session is over. The peer has forgotten what it promised, or this site
    /// could not keep what it owed. The epoch change belongs where this arrives.
    PeerReset { peer: SiteId, why: Broken },
}

/// Who this site is, as it says in its greeting.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub cluster: String,
    pub me: SiteId,
    pub incarnation: u64,
    pub table: u64,
}

/// All links of a site.
#[derive(Debug)]
pub(crate) struct Mesh {
    identity: Identity,
    links: BTreeMap<SiteId, Link>,
    events: mpsc::Sender<Event>,
    stop: watch::Sender<bool>,
    /// Links that stand.
    standing: watch::Sender<usize>,
    /// Every protocol heals from lost messages and from peers without memory.
    healing: AtomicBool,
}

/// The link to one peer.
#[derive(Debug)]
struct Link {
    peer: SiteId,
    address: String,
    state: Mutex<State>,
    /// Something is there to send.
    wake: Notify,
    /// The number of the newest connection; older ones end themselves.
    newest: watch::Sender<u64>,
    resumes: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

#[derive(Debug)]
struct State {
    session: Session,
    up: bool,
    /// Why the session is over, if it is.
    broken: Option<Broken>,
    /// What was last wrong with the connection.
    trouble: Option<String>,
}

/// How a link is, for people.
#[derive(Clone, Debug)]
pub(crate) struct LinkInfo {
    pub peer: SiteId,
    pub address: String,
    pub up: bool,
    pub incarnation: Option<u64>,
    pub waiting: usize,
    pub broken: Option<String>,
    pub trouble: Option<String>,
    pub resumes: u64,
    pub sent: u64,
    pub received: u64,
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "in a greeting, any frame but the expected one is refused, those to come too"
)]
impl Mesh {
    /// Starts listening and dialling. `peers` are all other sites and their addresses.
    pub(crate) fn start(
        identity: Identity,
        peers: BTreeMap<SiteId, String>,
        listener: Option<TcpListener>,
    ) -> (Arc<Self>, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(256);
        let links = peers.into_iter().map(|(peer, address)| (peer, Link::new(peer, address)));
        let stop = watch::Sender::new(false);
        let standing = watch::Sender::new(0);
        let (links, healing) = (links.collect(), AtomicBool::new(false));
        let mesh = Arc::new(Self { identity, links, events, stop, standing, healing });
        if let Some(listener) = listener {
            tokio::spawn(Arc::clone(&mesh).listen(listener));
        }
        for &peer in mesh.links.keys() {
            if mesh.identity.me < peer {
                tokio::spawn(Arc::clone(&mesh).dial(peer));
            }
        }
        (mesh, receiver)
    }

    /// Queues a message for `to`. Never waits. Where it cannot be kept, the session is over and
    /// the site is told.
    pub(crate) fn send(&self, to: SiteId, payload: &Payload) -> Result<(), Broken> {
        let Some(link) = self.links.get(&to) else { return Ok(()) };
        let body = postcard::to_stdvec(payload).expect("payloads have an encoding");
        let mut state = link.lock();
        if state.broken.is_some() {
            // Said before; whoever waits for the peer goes on waiting.
            return Ok(());
        }
        let pushed = if body.len() + 32 > MAX_BODY {
            Err(Broken::Overflow)
        } else {
            state.session.push(Bytes::from(body))
        };
        drop(state);
        if pushed.is_err() && self.is_healing() {
            // One more lost message.
            return Ok(());
        }
        match pushed {
            Ok(()) => link.wake.notify_one(),
            Err(why) => link.end(why),
        }
        pushed
    }

    /// Says whether every protocol heals from lost messages and from peers without memory.
    pub(crate) fn set_healing(&self, healing: bool) {
        self.healing.store(healing, Ordering::Relaxed);
    }

    /// What was last said of that.
    pub(crate) fn is_healing(&self) -> bool {
        self.healing.load(Ordering::Relaxed)
    }

    /// Whether messages to `peer` go out now.
    pub(crate) fn is_up(&self, peer: SiteId) -> bool {
        self.links.get(&peer).is_some_and(|link| link.lock().up)
    }

    /// All links, for people.
    pub(crate) fn info(&self) -> Vec<LinkInfo> {
        self.links.values().map(Link::info).collect()
    }

    /// Ends all tasks, after a goodbye to the peers.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until all peers are connected.
    pub(crate) async fn connected(&self) {
        let all = self.links.len();
        self.standing.subscribe().wait_for(|&standing| standing == all).await.ok();
    }

    fn count_standing(&self) {
        let standing = self.links.values().filter(|link| link.lock().up).count();
        self.standing.send_replace(standing);
    }

    async fn stopped(&self) {
        // The sender lives as long as the mesh.
        self.stop.subscribe().wait_for(|&stop| stop).await.ok();
    }

    async fn listen(self: Arc<Self>, listener: TcpListener) {
        let greetings = Arc::new(Semaphore::new(GREETINGS));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stopped() => return,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a peer");
                    sleep(BACKOFF_MIN).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&greetings).try_acquire_owned() else {
                debug!(%from, "too many greetings at once");
                continue;
            };
            let mesh = Arc::clone(&self);
            tokio::spawn(async move {
                let greeted = timeout(GREETING, mesh.accept(stream)).await;
                drop(permit);
                match greeted {
                    Ok(Ok((peer, connection))) => mesh.run(peer, connection).await,
                    Ok(Err(error)) => warn!(%from, %error, "greeting"),
                    Err(_) => warn!(%from, "no greeting in time"),
                }
            });
        }
    }

    async fn dial(self: Arc<Self>, peer: SiteId) {
        let link = &self.links[&peer];
        let mut backoff = BACKOFF_MIN;
        loop {
            let greeted = tokio::select! {
                greeted = timeout(GREETING, self.connect(link)) => greeted,
                () = self.stopped() => return,
            };
            match greeted.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())) {
                Ok(connection) => {
                    backoff = BACKOFF_MIN;
                    self.run(peer, connection).await;
                }
                Err(error) => link.note(&error.to_string()),
            }
            if *self.stop.borrow() || link.lock().broken.is_some() {
                return;
            }
            tokio::select! {
                () = sleep(random::between(backoff / 2, backoff)) => {}
                () = self.stopped() => return,
            }
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// The greeting, as the one who dials.
    async fn connect(&self, link: &Link) -> Result<Connection, LinkError> {
        let stream = TcpStream::connect(&link.address).await?;
        let mut connection = Connection::new(stream)?;
        connection.send(&Frame::Hello(self.hello(link))).await?;
        let hello = match connection.greeting().await? {
            Frame::Hello(hello) => hello,
            Frame::Refuse(refuse) => return Err(LinkError::Refused(refuse.text)),
            frame => return Err(LinkError::unexpected(&frame)),
        };
        if hello.from != link.peer {
            return Err(LinkError::WrongPeer(hello.from));
        }
        if let Err(refuse) = self.check(link, &hello) {
            connection.send(&Frame::Refuse(refuse.clone())).await?;
            return Err(LinkError::Refuses(refuse.text));
        }
        self.bind(link, &hello)?;
        connection.send(&Frame::Welcome).await?;
        match connection.greeting().await? {
            Frame::Welcome => Ok(connection),
            Frame::Refuse(refuse) => Err(LinkError::Refused(refuse.text)),
            frame => Err(LinkError::unexpected(&frame)),
        }
    }

    /// The greeting, as the one who is dialled.
    async fn accept(&self, stream: TcpStream) -> Result<(SiteId, Connection), LinkError> {
        let mut connection = Connection::new(stream)?;
        let hello = match connection.greeting().await? {
            Frame::Hello(hello) => hello,
            frame => return Err(LinkError::unexpected(&frame)),
        };
        let Some(link) = self.links.get(&hello.from).filter(|link| link.peer < self.identity.me)
        else {
            let text = format!("site {} does not dial this one", hello.from.0);
            let refuse = Refuse { code: RefuseCode::Address, text };
            connection.send(&Frame::Refuse(refuse)).await?;
            return Err(LinkError::WrongPeer(hello.from));
        };
        if let Err(refuse) = self.check(link, &hello) {
            connection.send(&Frame::Refuse(refuse.clone())).await?;
            link.note(&refuse.text);
            return Err(LinkError::Refuses(refuse.text));
        }
        connection.send(&Frame::Hello(self.hello(link))).await?;
        match connection.greeting().await? {
            Frame::Welcome => {}
            Frame::Refuse(refuse) => {
                link.note(&format!("refused by the peer: {}", refuse.text));
                return Err(LinkError::Refused(refuse.text));
            }
            frame => return Err(LinkError::unexpected(&frame)),
        }
        self.bind(link, &hello)?;
        connection.send(&Frame::Welcome).await?;
        Ok((link.peer, connection))
    }

    fn hello(&self, link: &Link) -> Hello {
        let state = link.lock();
        Hello {
            oldest: VERSION,
            newest: VERSION,
            cluster: self.identity.cluster.clone(),
            from: self.identity.me,
            to: link.peer,
            incarnation: self.identity.incarnation,
            known: state.session.peer().unwrap_or(0),
            received: state.session.received(),
            table: self.identity.table,
        }
    }

    fn check(&self, link: &Link, hello: &Hello) -> Result<(), Refuse> {
        let refuse = |code, text: String| Err(Refuse { code, text });
        if hello.cluster != self.identity.cluster || hello.to != self.identity.me {
            let me = self.identity.me.0;
            let text = format!("this is site {me} of cluster {}", self.identity.cluster);
            return refuse(RefuseCode::Address, text);
        }
        if hello.oldest > VERSION || hello.newest < VERSION {
            return refuse(RefuseCode::Version, format!("this site speaks version {VERSION}"));
        }
        if hello.table != self.identity.table {
            let text = "the sites' configurations name other members, pools or protocols; \
                        make them the same";
            return refuse(RefuseCode::Table, text.to_owned());
        }
        if hello.known != 0 && hello.known != self.identity.incarnation {
            // The peer remembers an earlier life of this site. It will say so when it has read
            // this one's greeting; nothing is wrong with the session on this side.
            return Ok(());
        }
        if self.is_healing() {
            return Ok(());
        }
        let (broken, fits) = {
            let state = link.lock();
            let fits = state.session.fits(hello.incarnation, hello.received);
            (state.broken, fits)
        };
        if let Some(why) = broken {
            let text = format!("site {} does not go on with this peer: {why}", self.identity.me.0);
            return refuse(RefuseCode::Reset, text);
        }
        if let Err(why) = fits {
            let text = format!("site {} does not go on with this peer: {why}", self.identity.me.0);
            self.reset(link, why);
            return refuse(RefuseCode::Reset, text);
        }
        Ok(())
    }

    fn bind(&self, link: &Link, hello: &Hello) -> Result<(), LinkError> {
        if self.is_healing() {
            return self.bind_healing(link, hello);
        }
        let resumed = link.lock().session.resume(hello.incarnation, hello.received);
        resumed.inspect_err(|&why| self.reset(link, why))?;
        Ok(())
    }

    /// Goes on with whoever is there.
    fn bind_healing(&self, link: &Link, hello: &Hello) -> Result<(), LinkError> {
        // What a peer has received from an earlier life of this site says nothing about this one.
        let knows = hello.known == self.identity.incarnation;
        let expects = if knows { hello.received } else { 0 };
        let mut state = link.lock();
        state.broken = None;
        let Err(why) = state.session.resume(hello.incarnation, expects) else { return Ok(()) };
        state.session.start_over(hello.incarnation, expects);
        drop(state);
        let (events, peer) = (self.events.clone(), link.peer);
        tokio::spawn(async move { events.send(Event::PeerReset { peer, why }).await.is_ok() });
        Ok(())
    }

    /// The session is over: said once, to the one place that can do something about it.
    fn reset(&self, link: &Link, why: Broken) {
        let first = link.lock().broken.is_none();
        link.end(why);
        self.count_standing();
        if first {
            let (events, peer) = (self.events.clone(), link.peer);
            error!(peer = peer.0, %why, "does not go on with this peer");
            // The site may be busy; a task of its own waits for it.
            tokio::spawn(async move { events.send(Event::PeerReset { peer, why }).await.is_ok() });
        }
    }

    /// Moves frames until the connection ends.
    async fn run(&self, peer: SiteId, connection: Connection) {
        let link = &self.links[&peer];
        let mut number = 0;
        link.newest.send_modify(|newest| {
            *newest += 1;
            number = *newest;
        });
        let mut newest = link.newest.subscribe();
        link.up();
        self.count_standing();
        if self.events.send(Event::Up(peer)).await.is_err() {
            return;
        }
        let Connection { reader, writer, buffer } = connection;
        let ended = tokio::select! {
            ended = self.read(link, reader, buffer) => ended,
            ended = self.write(link, writer) => ended,
            _ = newest.wait_for(|&newest| newest != number) => Err(LinkError::Replaced),
        };
        let Err(why) = ended else { return };
        if let LinkError::Broken(broken) = why
            && !self.is_healing()
        {
            self.reset(link, broken);
        }
        // A newer connection has taken over where this one is not the newest.
        if *link.newest.borrow() == number {
            link.down(&why);
            self.count_standing();
            self.events.send(Event::Down(peer)).await.ok();
        }
    }

    async fn read(
        &self,
        link: &Link,
        mut reader: OwnedReadHalf,
        mut buffer: BytesMut,
    ) -> Result<(), LinkError> {
        loop {
            let mut frames = Vec::new();
            while let Some(frame) = Frame::decode(&mut buffer, MAX_BODY)? {
                frames.push(frame);
            }
            if !frames.is_empty() {
                self.hand_over(link, frames).await?;
            }
            buffer.reserve(16 << 10);
            let read = timeout(SILENCE, reader.read_buf(&mut buffer));
            if read.await.map_err(|_| LinkError::Silent)?? == 0 {
                return Err(LinkError::Closed);
            }
        }
    }

    /// Gives what came to the site. Taking it off the session and handing it over are one act, so
    /// that a connection that ends in between loses nothing.
    async fn hand_over(&self, link: &Link, frames: Vec<Frame>) -> Result<(), LinkError> {
        let permit = self.events.reserve().await.map_err(|_| LinkError::Stopped)?;
        let mut list = Vec::new();
        let mut state = link.lock();
        let mut result = Ok(());
        for frame in frames {
            result = accept_frame(&mut state.session, frame, &mut list);
            if result.is_err() {
                break;
            }
        }
        if !list.is_empty() {
            link.received.fetch_add(list.len() as u64, Ordering::Relaxed);
            permit.send(Event::Messages { from: link.peer, list });
        }
        let wake = state.session.untold() > 0;
        drop(state);
        if wake {
            link.wake.notify_one();
        }
        result
    }

    async fn write(&self, link: &Link, mut writer: OwnedWriteHalf) -> Result<(), LinkError> {
        let mut out = BytesMut::new();
        loop {
            let untold = link.fill(&mut out);
            if !out.is_empty() {
                writer.write_all(&out).await?;
                out.clear();
                continue;
            }
            let patience = match untold {
                0 => HEARTBEAT,
                1..ACK_EVERY => ACK_DELAY,
                _ => Duration::ZERO,
            };
            tokio::select! {
                biased;
                () = sleep(patience) => {}
                () = link.wake.notified() => continue,
                () = self.stopped() => {
                    Frame::Bye.encode(&mut out);
                    writer.write_all(&out).await?;
                    return Err(LinkError::Stopped);
                }
            }
            let ack = link.lock().session.tell();
            Frame::Ack { ack }.encode(&mut out);
            writer.write_all(&out).await?;
            out.clear();
        }
    }
}

impl Link {
    fn new(peer: SiteId, address: String) -> Self {
        let state = State { session: Session::default(), up: false, broken: None, trouble: None };
        Self {
            peer,
            address,
            state: Mutex::new(state),
            wake: Notify::new(),
            newest: watch::Sender::new(0),
            resumes: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, trouble: &str) {
        let mut state = self.lock();
        if state.trouble.as_deref() != Some(trouble) {
            warn!(peer = self.peer.0, trouble, "no link");
            state.trouble = Some(trouble.to_owned());
        }
    }

    fn up(&self) {
        let mut state = self.lock();
        state.up = true;
        state.trouble = None;
        self.resumes.fetch_add(1, Ordering::Relaxed);
        info!(peer = self.peer.0, "link up");
    }

    fn down(&self, why: &LinkError) {
        let mut state = self.lock();
        state.up = false;
        state.trouble = Some(why.to_string());
        info!(peer = self.peer.0, %why, "link down");
    }

    fn end(&self, why: Broken) {
        let mut state = self.lock();
        state.broken.get_or_insert(why);
        state.up = false;
        drop(state);
        self.newest.send_modify(|newest| *newest += 1);
    }

    /// Puts messages that were not sent into `out`; says how many wait to be acknowledged.
    fn fill(&self, out: &mut BytesMut) -> u64 {
        let mut state = self.lock();
        let mut count = 0;
        while out.len() < BATCH
            && let Some((seq, payload)) = state.session.pop()
        {
            let ack = state.session.tell();
            Frame::Data { seq, ack, payload }.encode(out);
            count += 1;
        }
        self.sent.fetch_add(count, Ordering::Relaxed);
        state.session.untold()
    }

    fn info(&self) -> LinkInfo {
        let state = self.lock();
        LinkInfo {
            peer: self.peer,
            address: self.address.clone(),
            up: state.up,
            incarnation: state.session.peer(),
            waiting: state.session.waiting(),
            broken: state.broken.map(|why| why.to_string()),
            trouble: state.trouble.clone(),
            resumes: self.resumes.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
        }
    }
}

fn accept_frame(
    session: &mut Session,
    frame: Frame,
    list: &mut Vec<Payload>,
) -> Result<(), LinkError> {
    match frame {
        Frame::Data { seq, ack, payload } => {
            session.acknowledged(ack)?;
            // Decoded first: what cannot be read was never received.
            let payload = postcard::from_bytes(&payload).map_err(|_| LinkError::Payload)?;
            if session.arrived(seq)? == Arrival::New {
                list.push(payload);
            }
            Ok(())
        }
        Frame::Ack { ack } => Ok(session.acknowledged(ack)?),
        Frame::Bye => Err(LinkError::Bye),
        frame @ (Frame::Hello(_) | Frame::Welcome | Frame::Refuse(_)) => {
            Err(LinkError::unexpected(&frame))
        }
    }
}

#[derive(Debug)]
struct Connection {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    buffer: BytesMut,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Self { reader, writer, buffer: BytesMut::new() })
    }

    async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        self.writer.write_all(&out).await
    }

    /// One frame of a peer that is not known yet.
    async fn greeting(&mut self) -> Result<Frame, LinkError> {
        loop {
            if let Some(frame) = Frame::decode(&mut self.buffer, MAX_GREETING)? {
                return Ok(frame);
            }
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Err(LinkError::Closed);
            }
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("refused by the peer: {0}")]
    Refused(String),
    #[error("{0}")]
    Refuses(String),
    #[error("site {} answers there", .0.0)]
    WrongPeer(SiteId),
    #[error("{0} out of place")]
    Unexpected(&'static str),
    #[error("malformed message")]
    Payload,
    #[error("no sign of life for {} s", SILENCE.as_secs())]
    Silent,
    #[error("closed")]
    Closed,
    #[error("the peer has stopped")]
    Bye,
    #[error("a newer connection took over")]
    Replaced,
    #[error("this site stops")]
    Stopped,
}

impl LinkError {
    const fn unexpected(frame: &Frame) -> Self {
        Self::Unexpected(match frame {
            Frame::Hello(_) => "Hello",
            Frame::Welcome => "Welcome",
            Frame::Refuse(_) => "Refuse",
            Frame::Data { .. } => "Data",
            Frame::Ack { .. } => "Ack",
            Frame::Bye => "Bye",
        })
    }
}
