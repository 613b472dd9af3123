//! Frames of one connection: what is read is handed over, what the session has is written.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use kofm_core::SiteId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::connection::{Connection, LinkError, Reader, Writer};
use super::peer::Link;
use super::{ACK_DELAY, Event, Mesh, Payload, UNREADABLE, probe};
use crate::session::{ACK_EVERY, Arrival, Session};
use crate::wire::{Frame, MAX_BODY};

impl Mesh {
    /// Moves frames until the connection ends.
    pub(super) async fn run(&self, peer: SiteId, connection: Connection) {
        let Some(link) = self.link(peer) else { return };
        let link = &link;
        let number = connection.number;
        if *link.newest.borrow() != number {
            return;
        }
        link.refused.store(false, Ordering::Relaxed);
        let mut newest = link.newest.subscribe();
        link.up(number);
        self.count_standing();
        if self.events.send(Event::Up(peer)).await.is_err() {
            return;
        }
        let Connection { reader, writer, buffer, open: _open, .. } = connection;
        let ended = tokio::select! {
            ended = self.read(link, number, reader, buffer) => ended,
            ended = self.write(link, number, writer) => ended,
            _ = newest.wait_for(|&newest| newest != number) => Err(LinkError::Replaced),
        };
        let Err(why) = ended else { return };
        if let LinkError::Broken(broken) = why {
            self.reset(link, broken);
        }
        // Unless a newer connection has taken over.
        if link.down(number, &why) {
            self.count_standing();
            self.events.send(Event::Down(peer)).await.ok();
            if peer < self.identity.me {
                tokio::spawn(probe(Arc::clone(link)));
            }
        }
    }

    async fn read(
        &self,
        link: &Link,
        number: u64,
        mut reader: Reader,
        mut buffer: BytesMut,
    ) -> Result<(), LinkError> {
        loop {
            let mut frames = Vec::new();
            while let Some(frame) = Frame::decode(&mut buffer, MAX_BODY)? {
                frames.push(frame);
            }
            if !frames.is_empty() {
                self.hand_over(link, number, frames).await?;
            }
            buffer.reserve(16 << 10);
            if self.wait_for_bytes(link, &mut reader, &mut buffer).await? == 0 {
                return Err(LinkError::Closed);
            }
        }
    }

    /// Reads some bytes. A connection on which a message waits for its acknowledgement must not be
    /// silent for longer than a site lease, another one for longer in a large cluster.
    async fn wait_for_bytes(
        &self,
        link: &Link,
        reader: &mut Reader,
        buffer: &mut BytesMut,
    ) -> Result<usize, LinkError> {
        let silence = self.identity.silence;
        let mut waited = 0;
        let mut owed = false;
        loop {
            if let Ok(read) = timeout(silence, reader.read_buf(buffer)).await {
                return Ok(read?);
            }
            waited += 1;
            let owes = link.lock().session.waiting() > 0;
            // A message that was sent just now has not had its time.
            if owed && owes || waited >= self.calm() {
                return Err(LinkError::Silent);
            }
            owed = owes;
        }
    }

    /// Gives what came to the site. Taking it off the session and handing it over are one act, so
    /// that a connection that ends in between loses nothing.
    async fn hand_over(
        &self,
        link: &Link,
        number: u64,
        frames: Vec<Frame>,
    ) -> Result<(), LinkError> {
        let permit = self.events.reserve().await.map_err(|_| LinkError::Stopped)?;
        let mut list = Vec::new();
        let mut state = link.lock_for(number)?;
        let mut result = Ok(());
        for frame in frames {
            result = accept_frame(&mut state.session, frame, &mut list);
            if result.is_err() {
                break;
            }
        }
        list.retain(|payload| !self.is_about_a_twin(payload));
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

    /// Takes note where a peer says that it has refused a process of this site's name.
    fn is_about_a_twin(&self, payload: &Payload) -> bool {
        let Payload::Twin { address } = payload else { return false };
        let address: String = address.chars().filter(|it| !it.is_control()).take(64).collect();
        let news = self.identity.lives.rivalled(address.clone());
        if news {
            warn!(%address, "another process says it is this site, and was refused");
        }
        true
    }

    async fn write(&self, link: &Link, number: u64, mut writer: Writer) -> Result<(), LinkError> {
        let mut out = BytesMut::new();
        let mut stopped = pin!(self.stopped());
        let quiet = || self.identity.silence * self.calm() / 5;
        let mut pause = pin!(sleep(quiet()));
        // Setting the clock costs more than a message: as long as the pause is short, it stays so.
        let mut short = false;
        loop {
            let untold = link.fill(number, &mut out)?;
            if !out.is_empty() {
                writer.write_all(&out).await?;
                writer.flush().await?;
                out.clear();
                continue;
            }
            if untold > 0 && !short {
                pause.as_mut().reset(Instant::now() + ACK_DELAY);
                short = true;
            }
            if untold < ACK_EVERY {
                tokio::select! {
                        biased;
                        () = &mut pause => {}
                        () = link.wake.notified() => continue,
                        () = &mut stopped => {
                            Frame::Bye.encode(&mut out);
                            writer.write_all(&out).await?;
                writer.flush().await?;
                            return Err(LinkError::Stopped);
                        }
                    }
                pause.as_mut().reset(Instant::now() + quiet());
                if std::mem::take(&mut short) && untold == 0 {
                    // A message has acknowledged it all.
                    continue;
                }
            }
            let ack = link.lock_for(number)?.session.tell();
            Frame::Ack { ack }.encode(&mut out);
            writer.write_all(&out).await?;
            writer.flush().await?;
            out.clear();
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
            // Decoded first: a message that cannot be decoded ends the session. On the next
            // connection the peer would only send it again.
            let payload = postcard::from_bytes(&payload).map_err(|_| UNREADABLE)?;
            if session.arrived(seq)? == Arrival::New {
                list.push(payload);
            }
            Ok(())
        }
        Frame::Ack { ack } => Ok(session.acknowledged(ack)?),
        Frame::Bye => Err(LinkError::Bye),
        frame @ (Frame::Hello(_)
        | Frame::Welcome
        | Frame::Refuse(_)
        | Frame::Call(_)
        | Frame::Join(_)
        | Frame::Joined(_)
        | Frame::Note(_)) => Err(LinkError::unexpected(&frame)),
    }
}
