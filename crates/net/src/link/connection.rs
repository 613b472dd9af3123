//! One TCP connection, frame by frame, and why it ended.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::lives::Open;
use crate::session::Broken;
use crate::tls::{Shown, Tls};
use crate::wire::{Frame, MAX_BODY, MAX_GREETING, Refuse, RefuseCode, WireError};

pub(super) type Reader = Box<dyn AsyncRead + Send + Sync + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Sync + Unpin>;

pub(super) struct Connection {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    /// What the peer's certificate shows; nothing where sites have no certificates.
    pub(super) shown: Option<Shown>,
    pub(super) buffer: BytesMut,
    /// Its place among the connections of its link.
    pub(super) number: u64,
    /// Its process counts as connected while this is kept.
    pub(super) open: Option<Open>,
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "any frame but the expected one is refused, those to come too"
)]
impl Connection {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Self::of(Box::new(reader), Box::new(writer), None))
    }

    fn of(reader: Reader, writer: Writer, shown: Option<Shown>) -> Self {
        Self { reader, writer, shown, buffer: BytesMut::new(), number: 0, open: None }
    }

    /// A connection to the site `name`, whose certificate must say so.
    pub(super) async fn dial(
        address: &str,
        tls: Option<&Tls>,
        name: &str,
    ) -> Result<(Self, SocketAddr), LinkError> {
        let stream = TcpStream::connect(address).await?;
        let from = stream.peer_addr()?;
        let Some(tls) = tls else { return Ok((Self::new(stream)?, from)) };
        stream.set_nodelay(true)?;
        let (stream, shown) = tls.connect(stream).await?;
        if let Err(why) = tls.check(&shown, name) {
            return Err(LinkError::Refuses(format!("the site at {address}: {why}")));
        }
        let (reader, writer) = tokio::io::split(stream);
        Ok((Self::of(Box::new(reader), Box::new(writer), Some(shown)), from))
    }

    /// A connection that a peer made.
    pub(super) async fn accept(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Self> {
        let Some(tls) = tls else { return Self::new(stream) };
        stream.set_nodelay(true)?;
        let (stream, shown) = tls.accept(stream).await?;
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self::of(Box::new(reader), Box::new(writer), Some(shown)))
    }

    pub(super) async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        self.writer.write_all(&out).await?;
        self.writer.flush().await
    }

    /// One question or answer.
    pub(super) async fn note(&mut self) -> Result<Bytes, LinkError> {
        match self.frame(MAX_BODY).await? {
            Frame::Note(body) => Ok(body),
            frame => Err(LinkError::unexpected(&frame)),
        }
    }

    /// One frame of a peer that is not known yet.
    pub(super) async fn greeting(&mut self) -> Result<Frame, LinkError> {
        self.frame(MAX_GREETING).await
    }

    pub(super) async fn frame(&mut self, limit: usize) -> Result<Frame, LinkError> {
        loop {
            if let Some(frame) = Frame::decode(&mut self.buffer, limit)? {
                return Ok(frame);
            }
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Err(LinkError::Closed);
            }
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("refused by the peer: {0}")]
    Refused(String),
    #[error("{0}")]
    Twin(String),
    #[error("{0}")]
    Refuses(String),
    #[error("site {0} answers there")]
    WrongPeer(String),
    #[error("{0} out of place")]
    Unexpected(&'static str),
    #[error("no sign of life")]
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

impl From<Refuse> for LinkError {
    fn from(refuse: Refuse) -> Self {
        let Refuse { code, text } = refuse;
        if code == RefuseCode::Twin { Self::Twin(text) } else { Self::Refused(text) }
    }
}

impl LinkError {
    /// Whether no process listens there.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    pub(super) const fn unexpected(frame: &Frame) -> Self {
        Self::Unexpected(match frame {
            Frame::Hello(_) => "Hello",
            Frame::Welcome => "Welcome",
            Frame::Refuse(_) => "Refuse",
            Frame::Data { .. } => "Data",
            Frame::Ack { .. } => "Ack",
            Frame::Bye => "Bye",
            Frame::Call(_) => "Call",
            Frame::Note(_) => "Note",
            Frame::Join(_) => "Join",
            Frame::Joined(_) => "Joined",
        })
    }
}
