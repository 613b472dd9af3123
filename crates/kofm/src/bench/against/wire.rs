//! A TCP connection with a buffer of received bytes.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest message that a server of a measurement sends.
const MAX_MESSAGE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub(super) async fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// The next `count` bytes, which stay in the buffer.
    async fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        if count > MAX_MESSAGE {
            return Err(malformed("the server sent a message that is too long"));
        }
        while self.buffer.len() < count {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(&self.buffer[..count])
    }

    /// The next `count` bytes, removed from the buffer.
    pub(super) async fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        self.peek(count).await?;
        Ok(self.buffer.drain(..count).collect())
    }

    pub(super) async fn take_array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.peek(N).await?);
        self.buffer.drain(..N);
        Ok(bytes)
    }

    /// The bytes before the next CR LF, removed together with it.
    pub(super) async fn take_line(&mut self) -> io::Result<Vec<u8>> {
        let mut count = 2;
        loop {
            let bytes = self.peek(count).await?;
            if bytes.ends_with(b"\r\n") {
                let mut line = self.take(count).await?;
                line.truncate(count - 2);
                return Ok(line);
            }
            count += 1;
        }
    }
}

pub(super) fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
