//! Connections that come in: their first frame, and the answer to it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use kofm_core::SiteId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::connection::{Connection, LinkError};
use super::lives::Twin;
use super::peer::Link;
use super::{BACKOFF_MIN, GREETING, GREETINGS, Mesh, Payload, greeting};
use crate::session::Visitor;
use crate::wire::{Call, Frame, Hello, Join, Refuse, RefuseCode, Versions, Who};

/// Who has come.
enum Greeted {
    Peer(SiteId, Connection),
    Caller(String, Connection),
    /// One that has asked to become a site, and was answered.
    Machine,
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "in a handshake, any frame but the expected one is refused, those to come too"
)]
impl Mesh {
    pub(super) async fn listen(self: Arc<Self>, listener: TcpListener) {
        let mut greetings: VecDeque<oneshot::Sender<()>> = VecDeque::new();
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
            greetings.retain(|it| !it.is_closed());
            if greetings.len() >= GREETINGS {
                greetings.pop_front();
            }
            let (stay, evicted) = oneshot::channel();
            greetings.push_back(stay);
            let mesh = Arc::clone(&self);
            tokio::spawn(async move {
                let greeted = tokio::select! {
                    greeted = timeout(GREETING, mesh.accept(stream, from)) => greeted,
                    _ = evicted => return debug!(%from, "too many greetings at once"),
                };
                match greeted {
                    Ok(Ok(Greeted::Peer(peer, connection))) => mesh.run(peer, connection).await,
                    Ok(Ok(Greeted::Caller(who, connection))) => {
                        mesh.serve_caller(&who, connection).await;
                    }
                    Ok(Ok(Greeted::Machine)) => {}
                    Ok(Err(error)) => warn!(%from, %error, "greeting"),
                    Err(_) => warn!(%from, "no greeting in time"),
                }
            });
        }
    }

    /// Whether the certificate of a connection is that of this site.
    pub(super) fn check_key(&self, name: &str, connection: &Connection) -> Result<(), String> {
        match (&self.identity.tls, &connection.shown) {
            (Some(tls), Some(shown)) => tls.check(shown, name),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Whether to go on with this process: another one may have its name.
    pub(super) fn meet(
        &self,
        who: &Who,
        from: SocketAddr,
        connection: &mut Connection,
    ) -> Result<(), Refuse> {
        if let Err(text) = self.check_key(&who.name, connection) {
            return Err(Refuse { code: RefuseCode::Address, text });
        }
        if self.identity.roster.is_removed(&who.name) {
            let text = format!("site {} was removed from the cluster", who.name);
            return Err(Refuse { code: RefuseCode::Address, text });
        }
        if let Some(text) = self.identity.lives.quiet() {
            return Err(Refuse { code: RefuseCode::Busy, text: format!("it keeps quiet: {text}") });
        }
        match self.identity.lives.meet(who, from) {
            Ok(open) => {
                connection.open = Some(open);
                Ok(())
            }
            Err(Twin { refuse, news }) => {
                if let Some(address) = news {
                    let site = &who.name;
                    warn!(%site, %address, "refused another process that says it is this site");
                    let link = self.all_links().into_iter().find(|it| it.name == who.name);
                    if let Some(link) = link {
                        self.send(link.peer, &Payload::Twin { address }).ok();
                    }
                }
                Err(refuse)
            }
        }
    }

    /// The greeting, as the one who is dialled.
    async fn accept(&self, stream: TcpStream, from: SocketAddr) -> Result<Greeted, LinkError> {
        let mut connection = Connection::accept(stream, self.identity.tls.as_ref()).await?;
        let hello = match connection.greeting().await? {
            Frame::Hello(hello) => hello,
            Frame::Join(join) => return self.take_in(connection, &join, from).await,
            Frame::Call(call) => return self.accept_caller(connection, &call, from).await,
            frame => return Err(LinkError::unexpected(&frame)),
        };
        let Some(link) = self.link(hello.from).filter(|link| link.peer < self.identity.me) else {
            let text = format!("site {} does not dial this one", hello.from.0);
            let refuse = Refuse { code: RefuseCode::Address, text };
            connection.send(&Frame::Refuse(refuse)).await?;
            return Err(LinkError::WrongPeer(hello.who.name));
        };
        if hello.who.name != link.name {
            let text = format!("site {} is {}, not {}", link.peer.0, link.name, hello.who.name);
            let refuse = Refuse { code: RefuseCode::Address, text };
            connection.send(&Frame::Refuse(refuse)).await?;
            return Err(LinkError::WrongPeer(hello.who.name));
        }
        if let Err(refuse) = self.meet(&hello.who, from, &mut connection) {
            connection.send(&Frame::Refuse(refuse.clone())).await?;
            return Err(LinkError::Refuses(refuse.text));
        }
        if let Err(refuse) = self.check(&link, &hello) {
            connection.send(&Frame::Refuse(refuse.clone())).await?;
            link.note(&refuse.text);
            return Err(LinkError::Refuses(refuse.text));
        }
        // Of several greetings only the last may bind: the others are of the past.
        connection.number = link.take_say();
        connection.send(&Frame::Hello(self.hello(&link))).await?;
        match connection.greeting().await? {
            Frame::Welcome => {}
            Frame::Refuse(refuse) => {
                link.note(&format!("refused by the peer: {}", refuse.text));
                if refuse.code == RefuseCode::Twin {
                    self.identity.lives.refused(&refuse.text);
                }
                return Err(refuse.into());
            }
            frame => return Err(LinkError::unexpected(&frame)),
        }
        self.bind(&link, &hello, &mut connection)?;
        connection.send(&Frame::Welcome).await?;
        Ok(Greeted::Peer(link.peer, connection))
    }

    /// A machine shows the code of an invitation.
    async fn take_in(
        &self,
        mut connection: Connection,
        join: &Join,
        from: SocketAddr,
    ) -> Result<Greeted, LinkError> {
        let answer = match &self.identity.registrar {
            Some(registrar) => {
                let taken = join.site == self.identity.name;
                let roster = &self.identity.roster;
                let taken = taken || roster.is_taken(&join.site);
                registrar.admit(join, taken, &roster.voters()).await
            }
            None => Err("this site cannot make certificates: take a code from `kofm invite` at \
                         a site whose file has `ca_key`"
                .to_owned()),
        };
        match &answer {
            Ok(_) => info!(site = %join.site, %from, "made a certificate for a new site"),
            Err(why) => warn!(site = %join.site, %from, %why, "refused a machine"),
        }
        connection.send(&Frame::Joined(answer)).await?;
        Ok(Greeted::Machine)
    }

    async fn accept_caller(
        &self,
        mut connection: Connection,
        call: &Call,
        from: SocketAddr,
    ) -> Result<Greeted, LinkError> {
        let meant = call.cluster == self.identity.cluster && call.to == self.identity.name;
        if meant && self.answers.is_some() {
            if let Err(refuse) = self.meet(&call.who, from, &mut connection) {
                connection.send(&Frame::Refuse(refuse.clone())).await?;
                return Err(LinkError::Refuses(refuse.text));
            }
            connection.send(&Frame::Welcome).await?;
            return Ok(Greeted::Caller(call.who.name.clone(), connection));
        }
        let text = format!("this is {} of cluster {}", self.identity.name, self.identity.cluster);
        let refuse = Refuse { code: RefuseCode::Address, text };
        connection.send(&Frame::Refuse(refuse.clone())).await?;
        Err(LinkError::Refuses(refuse.text))
    }

    /// Answers questions, one after the other, until the caller goes away.
    async fn serve_caller(&self, who: &str, mut connection: Connection) {
        let Some(answers) = &self.answers else { return };
        let Ok(_slot) = self.callers.try_acquire() else { return };
        // A caller beats five times in a site lease.
        let silence = self.identity.silence * 2;
        loop {
            let note = tokio::select! {
                note = timeout(silence, connection.note()) => note,
                () = self.stopped() => return,
            };
            let Ok(Ok(question)) = note else { return };
            let removed = self.identity.roster.is_removed(who);
            if removed || self.check_key(who, &connection).is_err() {
                return;
            }
            let answer = Frame::Note(Bytes::from(answers.answer(who, question).await));
            if connection.send(&answer).await.is_err() {
                return;
            }
        }
    }

    /// Decides whether to go on with a peer. If its incarnation is newer than the session, restarts
    /// the session and returns the connection number that this took.
    pub(super) fn check(&self, link: &Link, hello: &Hello) -> Result<Option<u64>, Refuse> {
        let refuse = |code, text: String| Err(Refuse { code, text });
        let mut restarted = None;
        if hello.cluster != self.identity.cluster || hello.to != self.identity.me {
            let me = self.identity.me.0;
            let text = format!("this is site {me} of cluster {}", self.identity.cluster);
            return refuse(RefuseCode::Address, text);
        }
        let theirs = Versions { oldest: hello.oldest, newest: hello.newest };
        let ours = self.identity.versions;
        if ours.common(theirs).is_none() {
            let (me, peer) = (&self.identity.name, &link.name);
            let older = if theirs.newest < ours.oldest { peer } else { me };
            let text = format!(
                "site {me} speaks wire version {ours}, and {peer} {theirs}: upgrade {older}, one \
                 release after the other"
            );
            return refuse(RefuseCode::Version, text);
        }
        if hello.table != self.identity.table {
            let text = "the sites' configurations name other members, pools or protocols; \
                        make them the same";
            return refuse(RefuseCode::Table, text.to_owned());
        }
        // A peer that comes back without memory starts from nothing, and the site is told. One that
        // comes from the past is not talked to.
        let visitor = link.lock().session.meet(&greeting(hello));
        match visitor {
            Visitor::Peer => {}
            Visitor::Past(why) => return refuse(RefuseCode::Reset, why.to_string()),
            Visitor::Newer(why) => {
                restarted = Some(link.restart(Some(hello.who.incarnation)));
                self.tell_reset(link, why);
            }
        }
        let (broken, fits) = {
            let state = link.lock();
            let expects = state.session.expected(self.incarnation(), &greeting(hello));
            (state.broken, state.session.fits(hello.who.incarnation, expects))
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
        Ok(restarted)
    }
}
