//! Links: one TCP connection per pair of sites, under a session that outlives it.
//!
//! Tasks here only move frames. The site pushes into a session and never waits; a writer sends what
//! is there; a reader hands over what comes. The session's lock is held for a few instructions,
//! never across I/O.

mod accept;
mod caller;
mod connection;
mod lives;
mod peer;
mod traffic;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use kofm_core::SiteId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tracing::warn;

#[cfg(test)]
pub(crate) use self::caller::Caller;
pub(crate) use self::caller::Callers;
use self::connection::{Connection, LinkError};
pub(crate) use self::lives::Lives;
use self::peer::Link;
use crate::join::Registrar;
use crate::random;
use crate::session::{Broken, Greeting};
use crate::tls::Tls;
use crate::wire::{Frame, Hello, MAX_BODY, Versions, Who};
pub(crate) use kofm_site::links::{Event, LinkInfo, Links, Payload};

/// How long an acknowledgement may wait for a message to travel with.
const ACK_DELAY: Duration = Duration::from_millis(20);
/// Links of a site that each carry five signs of life per site lease and direction. With n times
/// as many each carries one n-th of that.
const FEW_LINKS: usize = 8;
const GREETING: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// What a site that comes back waits for, its clients wait for.
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// Greetings in progress at once: whoever comes takes the place of who has been silent for longest.
const GREETINGS: usize = 64;
/// Connections for questions outside the sessions.
const CALLERS: usize = 1024;
/// What a writer takes out of the session at once.
const BATCH: usize = 256 << 10;

/// Who this site is, as it says in its greeting.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub cluster: String,
    pub name: String,
    pub me: SiteId,
    pub lives: Arc<Lives>,
    pub table: u64,
    /// The versions of the wire that this site speaks.
    pub versions: Versions,
    /// A connection without a frame for this long is dead, whatever TCP says; a fifth of it is the
    /// longest that a site is silent.
    pub silence: Duration,
    /// The certificate with which it greets, if sites have some.
    pub tls: Option<Tls>,
    /// The names that sites have or had.
    pub roster: Arc<dyn Roster>,
    /// Whether the cluster knows better than the configuration where sites are.
    pub moves: bool,
    /// Takes in machines that show a code, if this site can.
    pub registrar: Option<Arc<Registrar>>,
}

/// The names of sites, as the cluster's record has them.
pub(crate) trait Roster: Send + Sync + std::fmt::Debug {
    /// Whether a site was removed from the cluster.
    fn is_removed(&self, name: &str) -> bool;
    /// Whether a site has or had this name.
    fn is_taken(&self, name: &str) -> bool;
    /// The sites that vote now, with their addresses.
    fn voters(&self) -> BTreeMap<String, String>;
}

/// Who answers questions that come outside the sessions.
pub(crate) trait Answers: Send + Sync + std::fmt::Debug {
    /// The answer to a question of the site `from`, when it is there.
    fn answer<'a>(
        &'a self,
        from: &'a str,
        question: Bytes,
    ) -> Pin<Box<dyn Future<Output = Vec<u8>> + Send + 'a>>;
}

/// The links as the core sees them.
pub(crate) struct Lines(pub Arc<Mesh>);

impl Links for Lines {
    fn send(&self, to: SiteId, payload: &Payload) -> Result<(), Broken> {
        self.0.send(to, payload)
    }

    fn is_up(&self, peer: SiteId) -> bool {
        self.0.is_up(peer)
    }

    fn is_refused(&self, peer: SiteId) -> bool {
        self.0.link(peer).is_some_and(|link| link.refused.load(Ordering::Relaxed))
    }

    fn reach(&self, peer: SiteId, name: String, address: String) {
        self.0.reach(peer, name, address);
    }

    fn reborn(&self, incarnation: u64) {
        self.0.reborn(incarnation);
    }

    fn end(&self, peer: SiteId, why: Broken) {
        if let Some(link) = self.0.link(peer) {
            link.end(why);
            self.0.count_standing();
        }
    }

    fn info(&self) -> Vec<LinkInfo> {
        self.0.info()
    }
}

/// All links of a site.
#[derive(Debug)]
pub(crate) struct Mesh {
    identity: Identity,
    answers: Option<Arc<dyn Answers>>,
    callers: Arc<Semaphore>,
    links: RwLock<BTreeMap<SiteId, Arc<Link>>>,
    events: mpsc::Sender<Event>,
    stop: watch::Sender<bool>,
    /// Links that stand.
    standing: watch::Sender<usize>,
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "in a greeting, any frame but the expected one is refused, those to come too"
)]
impl Mesh {
    /// Starts listening and dialling. `peers` are all other sites, their names and addresses.
    pub(crate) fn start(
        identity: Identity,
        peers: BTreeMap<SiteId, (String, String)>,
        listener: Option<TcpListener>,
        answers: Option<Arc<dyn Answers>>,
    ) -> (Arc<Self>, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(256);
        let mesh = Arc::new(Self {
            identity,
            answers,
            callers: Arc::new(Semaphore::new(CALLERS)),
            links: RwLock::default(),
            events,
            stop: watch::Sender::new(false),
            standing: watch::Sender::new(0),
        });
        for (peer, (name, address)) in peers {
            mesh.reach(peer, name, address);
        }
        if let Some(listener) = listener {
            tokio::spawn(Arc::clone(&mesh).listen(listener));
        }
        (mesh, receiver)
    }

    /// Makes a link to a site, or takes note of its address.
    pub(crate) fn reach(self: &Arc<Self>, peer: SiteId, name: String, address: String) {
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(&peer) {
            // Listed addresses stay: a site may be reached in another way from here.
            if self.identity.moves {
                link.move_to(address);
            }
            return;
        }
        if peer == self.identity.me {
            return;
        }
        links.insert(peer, Arc::new(Link::new(peer, name, address)));
        if self.identity.me < peer {
            tokio::spawn(Arc::clone(self).dial(peer));
        }
    }

    fn link(&self, peer: SiteId) -> Option<Arc<Link>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).get(&peer).cloned()
    }

    fn all_links(&self) -> Vec<Arc<Link>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// How many times longer than in a small cluster a connection without messages may be silent.
    /// With as many links at every site, all of them together carry a number of signs of life that
    /// grows with the number of sites, not with its square. Heartbeats say which sites live.
    fn calm(&self) -> u32 {
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner).len();
        u32::try_from(links / FEW_LINKS).unwrap_or(u32::MAX).max(1)
    }

    /// This site goes on as somebody else: with every peer it starts from nothing.
    pub(crate) fn reborn(&self, incarnation: u64) {
        self.identity.lives.set_incarnation(incarnation);
        for link in self.all_links() {
            let peer = link.lock().session.peer();
            link.restart(peer);
        }
        self.count_standing();
    }

    fn incarnation(&self) -> u64 {
        self.identity.lives.incarnation()
    }

    /// Queues a message for `to`. Never waits. Where it cannot be kept, the session is over and
    /// the site is told.
    pub(crate) fn send(&self, to: SiteId, payload: &Payload) -> Result<(), Broken> {
        let Some(link) = self.link(to) else { return Ok(()) };
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
        match pushed {
            Ok(()) => link.wake.notify_one(),
            Err(why) => link.end(why),
        }
        pushed
    }

    /// Whether messages to `peer` go out now.
    pub(crate) fn is_up(&self, peer: SiteId) -> bool {
        self.link(peer).is_some_and(|link| link.is_up())
    }

    /// All links, for people.
    pub(crate) fn info(&self) -> Vec<LinkInfo> {
        let twin = |mut info: LinkInfo| {
            info.trouble = self.identity.lives.twin_of(&info.name).or(info.trouble);
            info
        };
        self.all_links().iter().map(|link| twin(link.info())).collect()
    }

    /// Another process that has this one's name, for people.
    pub(crate) fn rival(&self) -> Option<String> {
        self.identity.lives.rival()
    }

    /// Ends all tasks, after a goodbye to the peers.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until all peers are connected.
    pub(crate) async fn connected(&self) {
        let all = self.all_links().len();
        self.standing.subscribe().wait_for(|&standing| standing == all).await.ok();
    }

    fn count_standing(&self) {
        let standing = self.all_links().iter().filter(|link| link.is_up()).count();
        self.standing.send_replace(standing);
    }

    async fn stopped(&self) {
        // The sender lives as long as the mesh.
        self.stop.subscribe().wait_for(|&stop| stop).await.ok();
    }

    async fn dial(self: Arc<Self>, peer: SiteId) {
        let Some(link) = self.link(peer) else { return };
        let mut backoff = BACKOFF_MIN;
        loop {
            let greeted = tokio::select! {
                greeted = timeout(GREETING, self.connect(&link)) => greeted,
                () = self.stopped() => return,
            };
            match greeted.unwrap_or_else(|_| Err(io::Error::from(ErrorKind::TimedOut).into())) {
                Ok(connection) => {
                    backoff = BACKOFF_MIN;
                    self.run(peer, connection).await;
                }
                Err(error) => {
                    link.refused.store(error.is_refusal(), Ordering::Relaxed);
                    if let LinkError::Twin(text) = &error {
                        self.identity.lives.refused(text);
                    }
                    link.note(&error.to_string());
                }
            }
            while self.identity.lives.quiet().is_some() && !*self.stop.borrow() {
                sleep(BACKOFF_MAX).await;
            }
            if *self.stop.borrow() {
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
        let tls = self.identity.tls.as_ref();
        let (mut connection, from) = Connection::dial(&link.address(), tls, &link.name).await?;
        // Taken before the Hello: if this site begins another incarnation before the answer comes,
        // the answer belongs to the old incarnation and must not bind the new sessions.
        connection.number = link.take_say();
        connection.send(&Frame::Hello(self.hello(link))).await?;
        let hello = match connection.greeting().await? {
            Frame::Hello(hello) => hello,
            Frame::Refuse(refuse) => return Err(refuse.into()),
            frame => return Err(LinkError::unexpected(&frame)),
        };
        if hello.from != link.peer || hello.who.name != link.name {
            return Err(LinkError::WrongPeer(hello.who.name));
        }
        if let Err(refuse) = self.meet(&hello.who, from, &mut connection) {
            connection.send(&Frame::Refuse(refuse.clone())).await?;
            return Err(LinkError::Refuses(refuse.text));
        }
        match self.check(link, &hello) {
            // The session was restarted for a newer incarnation of the peer. This connection goes
            // on with it, unless the right to bind was taken in between.
            Ok(Some(number)) if number == connection.number + 1 => connection.number = number,
            Ok(_) => {}
            Err(refuse) => {
                connection.send(&Frame::Refuse(refuse.clone())).await?;
                return Err(LinkError::Refuses(refuse.text));
            }
        }
        self.bind(link, &hello, &mut connection)?;
        connection.send(&Frame::Welcome).await?;
        match connection.greeting().await? {
            Frame::Welcome => Ok(connection),
            Frame::Refuse(refuse) => Err(refuse.into()),
            frame => Err(LinkError::unexpected(&frame)),
        }
    }

    fn hello(&self, link: &Link) -> Hello {
        let greeting = link.lock().session.greeting(self.incarnation());
        Hello {
            oldest: self.identity.versions.oldest,
            newest: self.identity.versions.newest,
            cluster: self.identity.cluster.clone(),
            from: self.identity.me,
            to: link.peer,
            who: Who { incarnation: greeting.incarnation, ..self.identity.lives.who() },
            known: greeting.known,
            received: greeting.received,
            table: self.identity.table,
        }
    }

    /// Binds the session to a new connection, if no newer one has taken the say since its greeting.
    fn bind(
        &self,
        link: &Link,
        hello: &Hello,
        connection: &mut Connection,
    ) -> Result<(), LinkError> {
        let mut state = link.lock_for(connection.number)?;
        let expects = state.session.expected(self.incarnation(), &greeting(hello));
        connection.number = link.next_connection();
        let resumed = state.session.resume(hello.who.incarnation, expects);
        drop(state);
        resumed.inspect_err(|&why| self.reset(link, why))?;
        Ok(())
    }

    /// The session is over: said once, to the one place that can do something about it.
    fn reset(&self, link: &Link, why: Broken) {
        let first = link.lock().broken.is_none();
        link.end(why);
        self.count_standing();
        if first {
            self.tell_reset(link, why);
        }
    }

    fn tell_reset(&self, link: &Link, why: Broken) {
        let (events, peer) = (self.events.clone(), link.peer);
        warn!(peer = peer.0, %why, "the session is over");
        // The site may be busy; a task of its own waits for it.
        tokio::spawn(async move { events.send(Event::PeerReset { peer, why }).await.is_ok() });
    }
}

/// Finds out whether a process listens where a peer was that would dial.
async fn probe(link: Arc<Link>) {
    let dialled = timeout(GREETING, TcpStream::connect(link.address())).await;
    let refused = matches!(dialled, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused);
    if !link.is_up() {
        link.refused.store(refused, Ordering::Relaxed);
    }
}

const fn greeting(hello: &Hello) -> Greeting {
    Greeting { incarnation: hello.who.incarnation, known: hello.known, received: hello.received }
}

const UNREADABLE: Broken = Broken::Nonsense("a message that cannot be decoded");

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::session::Session;
    use crate::store::voters::Ballots;

    #[derive(Debug)]
    struct Nobody;

    impl Roster for Nobody {
        fn is_removed(&self, _: &str) -> bool {
            false
        }

        fn is_taken(&self, _: &str) -> bool {
            false
        }

        fn voters(&self) -> BTreeMap<String, String> {
            BTreeMap::new()
        }
    }

    fn identity(incarnation: u64) -> Identity {
        Identity {
            cluster: "c".into(),
            name: "a".into(),
            me: SiteId(0),
            lives: Lives::new("a", incarnation, 0, Duration::from_secs(5)),
            table: 0,
            versions: Versions::OWN,
            silence: Duration::from_secs(5),
            tls: None,
            roster: Arc::new(Nobody),
            moves: false,
            registrar: None,
        }
    }

    /// The answer of site 1, in its incarnation 1, to a site that it knows in incarnation 3 and
    /// that has sent it three messages.
    fn answer(known: u64) -> Frame {
        Frame::Hello(Hello {
            oldest: Versions::OWN.oldest,
            newest: Versions::OWN.newest,
            cluster: "c".into(),
            from: SiteId(1),
            to: SiteId(0),
            who: Who { name: "b".into(), incarnation: 1, life: 7, port: 0 },
            known,
            received: 3,
            table: 0,
        })
    }

    async fn next_hello(listener: &TcpListener) -> (Connection, Hello) {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = Connection::new(stream).unwrap();
        let Frame::Hello(hello) = connection.greeting().await.unwrap() else {
            panic!("a site that dials sends Hello first");
        };
        (connection, hello)
    }

    #[tokio::test]
    async fn an_answer_to_an_earlier_incarnation_does_not_bind_a_later_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peers = BTreeMap::from([(SiteId(1), ("b".into(), address))]);
        let (mesh, _events) = Mesh::start(identity(3), peers, None, None);
        let (mut late, hello) = next_hello(&listener).await;
        assert_eq!(hello.who.incarnation, 3);
        mesh.reborn(4);
        late.send(&answer(3)).await.unwrap();
        // Where the site still takes the answer, the peer goes on with the session it knows.
        if matches!(late.greeting().await, Ok(Frame::Welcome)) {
            late.send(&Frame::Welcome).await.unwrap();
            late.send(&Frame::Ack { ack: 3 }).await.unwrap();
            while late.frame(MAX_BODY).await.is_ok() {}
        }
        assert_eq!(mesh.info()[0].broken, None);
        let (_connection, hello) = next_hello(&listener).await;
        assert_eq!(hello.who.incarnation, 4);
    }

    #[tokio::test]
    async fn a_newer_incarnation_of_the_peer_is_bound_by_its_first_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peers = BTreeMap::from([(SiteId(1), ("b".into(), address))]);
        let (mesh, _events) = Mesh::start(identity(3), peers, None, None);
        mesh.link(SiteId(1)).unwrap().lock().session = Session::with(Some(0));
        let (mut connection, _) = next_hello(&listener).await;
        connection.send(&answer(0)).await.unwrap();
        assert_eq!(connection.greeting().await.unwrap(), Frame::Welcome);
    }

    #[tokio::test]
    async fn whoever_says_nothing_keeps_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let ballots = Arc::new(Ballots::open(None).unwrap());
        let (_mesh, _events) =
            Mesh::start(identity(1), BTreeMap::new(), Some(listener), Some(ballots as _));
        let mut silent = Vec::new();
        for _ in 0..GREETINGS * 2 {
            silent.push(TcpStream::connect(&address).await.unwrap());
        }
        let lives = Lives::new("b", 1, 0, Duration::from_secs(5));
        let caller = Caller::new("c", "a", &address, lives);
        caller.ask(b"anything".to_vec()).await.unwrap();
        // The first has made way.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0);
    }
}
