//! HTTP/1.1 over one connection, one call at a time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// The longest head of an answer, line of a chunk, or trailer.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// Answers without a body that come before the one that counts.
const MAX_INTERIM: usize = 8;

/// A stream of bytes to a site: TCP, TLS or a Unix socket.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Why a call over a connection has no answer.
#[derive(Debug)]
pub(crate) enum Fault {
    Io(io::Error),
    /// The server closed the connection before the answer was complete.
    Closed,
    NotHttp,
    TooLong,
    /// The call cannot be written as HTTP.
    Call(&'static str),
    /// The answer is not one of a site; the text says whose it may be.
    Stranger(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        let closed = [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof];
        let closed = closed.contains(&error.kind()) || error.kind() == io::ErrorKind::BrokenPipe;
        if closed { Self::Closed } else { Self::Io(error) }
    }
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The connection can be used for another call.
    pub(crate) keep: bool,
}

pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    /// Bytes that were read and belong to what comes next.
    buffer: BytesMut,
}

/// The head of an answer.
struct Head {
    status: StatusCode,
    headers: HeaderMap,
    keep: bool,
}

impl Connection {
    pub(crate) fn new(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), buffer: BytesMut::new() }
    }

    /// The stream after an upgrade, and the bytes that came with the answer.
    #[cfg(feature = "fast")]
    pub(crate) fn into_parts(self) -> (Box<dyn Stream>, BytesMut) {
        (self.stream, self.buffer)
    }

    /// Returns false if the server has closed the connection, or sent what was not asked for.
    pub(crate) fn is_open(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        let read = Pin::new(&mut self.stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte));
        self.buffer.is_empty() && matches!(read, Poll::Pending)
    }

    /// Sends a call and reads its answer, with a body of `limit` bytes at most.
    pub(crate) async fn call(
        &mut self,
        head: &[u8],
        body: &[u8],
        limit: usize,
    ) -> Result<Answer, Fault> {
        let sent = self.send(head, body).await;
        // A server may answer, and close the connection, before it has read the whole call.
        let head = match (self.head().await, sent) {
            (Ok(head), _) => head,
            (Err(_), Err(error)) => return Err(error.into()),
            (Err(fault), Ok(())) => return Err(fault),
        };
        let Head { status, headers, mut keep } = head;
        let bodiless = status.is_informational()
            || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
        let body = if bodiless {
            Bytes::new()
        } else if has(&headers, TRANSFER_ENCODING, "chunked") {
            self.chunks(limit).await?
        } else if let Some(length) = headers.get(CONTENT_LENGTH) {
            let length = length.to_str().ok().and_then(|it| it.parse().ok());
            self.exactly(length.ok_or(Fault::NotHttp)?, limit).await?
        } else {
            keep = false;
            self.rest(limit).await?
        };
        Ok(Answer { status, headers, body, keep })
    }

    async fn send(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        // One packet for a small call.
        let mut call = Vec::with_capacity(head.len() + body.len());
        call.extend_from_slice(head);
        call.extend_from_slice(body);
        self.stream.write_all(&call).await?;
        self.stream.flush().await
    }

    /// Reads more bytes; the end of the stream is a fault.
    async fn more(&mut self) -> Result<(), Fault> {
        self.buffer.reserve(8 << 10);
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(Fault::Closed);
        }
        Ok(())
    }

    async fn head(&mut self) -> Result<Head, Fault> {
        for _ in 0..MAX_INTERIM {
            let (length, head) = loop {
                match parse(&self.buffer)? {
                    Some(it) => break it,
                    None if self.buffer.len() > MAX_HEAD => return Err(Fault::NotHttp),
                    None => self.more().await?,
                }
            };
            self.buffer.advance(length);
            let upgrade = head.status == StatusCode::SWITCHING_PROTOCOLS;
            if upgrade || !head.status.is_informational() {
                return Ok(head);
            }
        }
        Err(Fault::NotHttp)
    }

    async fn exactly(&mut self, length: usize, limit: usize) -> Result<Bytes, Fault> {
        if length > limit {
            return Err(Fault::TooLong);
        }
        while self.buffer.len() < length {
            self.more().await?;
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    async fn rest(&mut self, limit: usize) -> Result<Bytes, Fault> {
        loop {
            if self.buffer.len() > limit {
                return Err(Fault::TooLong);
            }
            match self.more().await {
                Ok(()) => {}
                Err(Fault::Closed) => return Ok(self.buffer.split().freeze()),
                Err(fault) => return Err(fault),
            }
        }
    }

    async fn chunks(&mut self, limit: usize) -> Result<Bytes, Fault> {
        let mut body = BytesMut::new();
        loop {
            let (skip, length) = loop {
                match httparse::parse_chunk_size(&self.buffer) {
                    Ok(httparse::Status::Complete(it)) => break it,
                    Ok(httparse::Status::Partial) if self.buffer.len() <= MAX_HEAD => {
                        self.more().await?;
                    }
                    Ok(httparse::Status::Partial) | Err(_) => return Err(Fault::NotHttp),
                }
            };
            self.buffer.advance(skip);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length == 0 {
                self.trailers().await?;
                return Ok(body.freeze());
            }
            let left = limit.saturating_sub(body.len());
            body.extend_from_slice(&self.exactly(length, left).await?);
            if *self.exactly(2, 2).await? != *b"\r\n" {
                return Err(Fault::NotHttp);
            }
        }
    }

    /// Skips the lines after the last chunk, up to an empty one.
    async fn trailers(&mut self) -> Result<(), Fault> {
        loop {
            match self.buffer.windows(2).position(|it| it == b"\r\n") {
                Some(end) => {
                    self.buffer.advance(end + 2);
                    if end == 0 {
                        return Ok(());
                    }
                }
                None if self.buffer.len() > MAX_HEAD => return Err(Fault::NotHttp),
                None => self.more().await?,
            }
        }
    }
}

/// The length and the fields of a head, if all of it is there.
fn parse(bytes: &[u8]) -> Result<Option<(usize, Head)>, Fault> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut fields);
    let parsed = answer.parse(bytes).map_err(|_| Fault::NotHttp)?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
    let mut headers = HeaderMap::with_capacity(answer.headers.len());
    for field in answer.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Fault::NotHttp)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| Fault::NotHttp)?;
        headers.append(name, value);
    }
    let keep = answer.version == Some(1) && !has(&headers, CONNECTION, "close");
    Ok(Some((length, Head { status: status.ok_or(Fault::NotHttp)?, headers, keep })))
}

/// Whether a header with a list of words has this word.
fn has(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let values = headers.get_all(name);
    let mut words = values.iter().filter_map(|it| it.to_str().ok()).flat_map(|it| it.split(','));
    words.any(|it| it.trim().eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to a call of a server that sends these pieces and closes the connection.
    async fn answer(pieces: &[&str]) -> Result<Answer, Fault> {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let pieces: Vec<String> = pieces.iter().map(ToString::to_string).collect();
        tokio::spawn(async move {
            for piece in pieces {
                theirs.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        Connection::new(ours).call(b"GET / HTTP/1.1\r\n\r\n", b"", 100).await
    }

    #[tokio::test]
    async fn bodies_of_every_form_are_read() {
        let length = ["HTTP/1.1 200 OK\r\ncontent-le", "ngth: 5\r\n\r\nhel", "lo"];
        let chunks = [
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n",
            "\r\n3;x=y\r\nhe",
            "l\r\n2\r\nlo\r\n0\r\ntrailer: 1\r",
            "\n\r\n",
        ];
        let end = ["HTTP/1.0 200 OK\r\n\r\nhel", "lo"];
        for (pieces, keep) in [(&length[..], true), (&chunks[..], true), (&end[..], false)] {
            let answer = answer(pieces).await.unwrap();
            assert_eq!((&answer.body[..], answer.keep), (&b"hello"[..], keep), "{pieces:?}");
        }
        let none = answer(&["HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"]).await.unwrap();
        assert_eq!((none.body.len(), none.keep), (0, false));
    }

    #[tokio::test]
    async fn broken_answers_are_faults() {
        let cut = ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell"];
        for text in cut {
            assert!(matches!(answer(&[text]).await, Err(Fault::Closed)), "{text}");
        }
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        for text in [
            "SSH-2.0-server\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\n".to_owned(),
            format!("{chunked}z\r\n"),
            format!("{chunked}2\r\nhello"),
        ] {
            assert!(matches!(answer(&[&text]).await, Err(Fault::NotHttp)), "{text}");
        }
        let long = "x".repeat(101);
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n".to_owned(),
            format!("HTTP/1.1 200 OK\r\n\r\n{long}"),
            format!("{chunked}65\r\n{long}\r\n0\r\n\r\n"),
            format!("{chunked}ffffffffffffffff\r\n"),
        ] {
            assert!(matches!(answer(&[&text]).await, Err(Fault::TooLong)), "{text}");
        }
    }

    #[tokio::test]
    async fn closed_connections_are_not_used_again() {
        let (ours, theirs) = tokio::io::duplex(100);
        let mut connection = Connection::new(ours);
        assert!(connection.is_open());
        drop(theirs);
        assert!(!connection.is_open());
    }
}
