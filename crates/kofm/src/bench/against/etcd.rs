//! A client of etcd, by version 3 of its API: gRPC on HTTP/2, as far as this needs it.
//!
//! Recipe, that of etcd's own `concurrency` package for k units: a session has a lease; one
//! transaction puts a key of the session and reads all keys; the units are held if the sum of k of
//! the keys that were created before is M − k at most. Otherwise wait until enough of those keys
//! are deleted: by a watch of the key before it if M = 1, of all keys if not. The keys of a client
//! that dies go with its lease. Clients are spread over the members.

use std::io;

use super::wire::{Wire, malformed};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first stream of a connection; that of the watches.
const WATCHES: u32 = 1;
/// Time for which a lease lives without its client, in seconds.
const TTL: u64 = 60;

/// A client of one pool.
#[derive(Debug)]
pub(super) struct Client {
    wire: Wire,
    stream: u32,
    /// The number of the latest watch.
    watch: u64,
    /// Messages of the stream of watches that have not been read.
    watched: Vec<u8>,
    prefix: String,
    key: String,
    lease: u64,
    units: u32,
}

/// A key that was created before, and its k.
#[derive(Debug)]
struct Earlier {
    key: Vec<u8>,
    revision: u64,
    k: u32,
}

impl Client {
    pub(super) async fn connect(
        address: &str,
        pool: &str,
        number: usize,
        units: u32,
    ) -> io::Result<Self> {
        let mut wire = Wire::connect(address).await?;
        // Windows as large as they may be, of each stream and of the connection.
        let window = 0x7fff_ffff_u32;
        let mut bytes = PREFACE.to_vec();
        let setting = [&4_u16.to_be_bytes()[..], &window.to_be_bytes()].concat();
        frame(SETTINGS, 0, 0, &setting, &mut bytes);
        frame(WINDOW_UPDATE, 0, 0, &(window - 65_535).to_be_bytes(), &mut bytes);
        frame(HEADERS, END_HEADERS, WATCHES, &headers("/etcdserverpb.Watch/Watch"), &mut bytes);
        wire.send(&bytes).await?;
        let mut client = Self {
            wire,
            stream: WATCHES,
            watch: 0,
            watched: Vec::new(),
            prefix: format!("{pool}/"),
            key: format!("{pool}/{number}"),
            lease: 0,
            units,
        };
        let mut ask = Vec::new();
        put_number(1, TTL, &mut ask);
        let answer = client.call("/etcdserverpb.Lease/LeaseGrant", &ask).await?;
        client.lease = find_number(&answer, 2)?;
        Ok(client)
    }

    pub(super) async fn acquire(&mut self, k: u32) -> io::Result<()> {
        let (revision, mut earlier) = self.put(k).await?;
        let mut from = revision;
        while earlier.iter().map(|it| it.k).sum::<u32>() + k > self.units {
            if self.units > 1 {
                let (first, end) = (self.prefix.clone(), successor(&self.prefix));
                self.watch(first.as_bytes(), Some(&end), from + 1).await?;
                while earlier.iter().map(|it| it.k).sum::<u32>() + k > self.units {
                    let deleted = self.deleted().await?;
                    earlier.retain(|it| !deleted.contains(&it.key));
                }
                self.unwatch().await?;
            } else if let Some(last) = earlier.last() {
                let key = last.key.clone();
                self.watch(&key, None, from + 1).await?;
                while !self.deleted().await?.contains(&key) {}
                self.unwatch().await?;
                let mut ask = range(&self.prefix);
                // Keys that were created before this one.
                put_number(13, revision - 1, &mut ask);
                let answer = self.call("/etcdserverpb.KV/Range", &ask).await?;
                from = find_number(find(&answer, 1)?, 3)?;
                earlier = keys(&answer, revision)?;
            }
        }
        Ok(())
    }

    pub(super) async fn release(&mut self) -> io::Result<()> {
        let mut ask = Vec::new();
        put_bytes(1, self.key.as_bytes(), &mut ask);
        let answer = self.call("/etcdserverpb.KV/DeleteRange", &ask).await?;
        if find_number(&answer, 2)? == 1 { Ok(()) } else { Err(malformed("etcd: no such key")) }
    }

    /// Creates the key, and reads the keys that were created before; one transaction.
    async fn put(&mut self, k: u32) -> io::Result<(u64, Vec<Earlier>)> {
        let (mut put, mut first, mut second, mut ask) =
            <(Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
        put_bytes(1, self.key.as_bytes(), &mut put);
        put_bytes(2, k.to_string().as_bytes(), &mut put);
        put_number(3, self.lease, &mut put);
        put_bytes(2, &put, &mut first);
        put_bytes(1, &range(&self.prefix), &mut second);
        put_bytes(2, &first, &mut ask);
        put_bytes(2, &second, &mut ask);
        let answer = self.call("/etcdserverpb.KV/Txn", &ask).await?;
        let revision = find_number(find(&answer, 1)?, 3)?;
        let mut responses = fields(&answer)?.into_iter().filter(|it| it.0 == 3);
        let list = responses.next_back().ok_or_else(|| malformed("etcd: no list of keys"))?;
        Ok((revision, keys(find(list.1.bytes()?, 1)?, revision)?))
    }

    /// Watches keys for being deleted, from a revision on.
    async fn watch(&mut self, key: &[u8], end: Option<&[u8]>, from: u64) -> io::Result<()> {
        self.watch += 1;
        let (mut create, mut ask) = (Vec::new(), Vec::new());
        put_bytes(1, key, &mut create);
        if let Some(end) = end {
            put_bytes(2, end, &mut create);
        }
        put_number(3, from, &mut create);
        // Only deletions.
        put_bytes(5, &[0], &mut create);
        put_number(7, self.watch, &mut create);
        put_bytes(1, &create, &mut ask);
        self.send(WATCHES, 0, &ask).await
    }

    async fn unwatch(&mut self) -> io::Result<()> {
        let (mut cancel, mut ask) = (Vec::new(), Vec::new());
        put_number(1, self.watch, &mut cancel);
        put_bytes(2, &cancel, &mut ask);
        self.send(WATCHES, 0, &ask).await
    }

    /// Keys that the latest watch has seen deleted since the last call.
    async fn deleted(&mut self) -> io::Result<Vec<Vec<u8>>> {
        loop {
            if let Some(message) = message(&mut self.watched) {
                let mut list = Vec::new();
                let all = fields(&message)?;
                let number = all.iter().find(|it| it.0 == 2).map_or(0, |it| it.1.number());
                if number != self.watch {
                    continue;
                }
                for (_, event) in all.iter().filter(|it| it.0 == 11) {
                    list.push(find(find(event.bytes()?, 2)?, 1)?.to_vec());
                }
                if !list.is_empty() {
                    return Ok(list);
                }
            } else {
                self.receive().await?;
            }
        }
    }

    /// A call with one answer.
    async fn call(&mut self, path: &str, ask: &[u8]) -> io::Result<Vec<u8>> {
        self.stream += 2;
        let mut bytes = Vec::new();
        frame(HEADERS, END_HEADERS, self.stream, &headers(path), &mut bytes);
        frame(DATA, END_STREAM, self.stream, &prefixed(ask), &mut bytes);
        self.wire.send(&bytes).await?;
        let mut answer = Vec::new();
        loop {
            let (kind, flags, stream, body) = self.receive().await?;
            if stream != self.stream {
                continue;
            }
            if kind == DATA {
                answer.extend(body);
            }
            if kind == HEADERS && flags & END_STREAM > 0 {
                let why = || malformed(&format!("etcd: {path} failed"));
                return message(&mut answer).ok_or_else(why);
            }
        }
    }

    async fn send(&mut self, stream: u32, flags: u8, ask: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame(DATA, flags, stream, &prefixed(ask), &mut bytes);
        self.wire.send(&bytes).await
    }

    /// The next frame. Those of the connection are answered, those of watches are kept.
    async fn receive(&mut self) -> io::Result<(u8, u8, u32, Vec<u8>)> {
        let [a, b, c, kind, flags, stream @ ..] = self.wire.take_array::<9>().await?;
        let length = u32::from_be_bytes([0, a, b, c]);
        let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        let body = self.wire.take(usize::try_from(length).unwrap_or(usize::MAX)).await?;
        let mut answer = Vec::new();
        match kind {
            SETTINGS if flags & ACK == 0 => frame(SETTINGS, ACK, 0, &[], &mut answer),
            PING if flags & ACK == 0 => frame(PING, ACK, 0, &body, &mut answer),
            GOAWAY | RST_STREAM => return Err(malformed("etcd: the call was aborted")),
            DATA if stream == WATCHES => self.watched.extend(&body),
            HEADERS if stream == WATCHES && flags & END_STREAM > 0 => {
                return Err(malformed("etcd: the watch ended"));
            }
            _ => {}
        }
        if !answer.is_empty() {
            self.wire.send(&answer).await?;
        }
        Ok((kind, flags, stream, body))
    }
}

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    out.extend(&length[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(body);
}

/// Headers of a gRPC call, by HPACK without Huffman codes and without the dynamic table.
fn headers(path: &str) -> Vec<u8> {
    // POST and http are entries of the static table; so are the names of path and authority.
    let mut bytes = vec![0x83, 0x86];
    for (index, name, value) in [
        (4, "", path),
        (1, "", "localhost"),
        (0, "content-type", "application/grpc"),
        (0, "te", "trailers"),
    ] {
        bytes.push(index);
        for text in [name, value].into_iter().skip(usize::from(index > 0)) {
            bytes.push(u8::try_from(text.len()).unwrap_or(0x7f));
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// A message of gRPC: not compressed, its length, itself.
fn prefixed(ask: &[u8]) -> Vec<u8> {
    let length = u32::try_from(ask.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), ask].concat()
}

/// Takes the first whole message of gRPC out of what was received.
fn message(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(*bytes.get(1..)?.first_chunk()?);
    let end = usize::try_from(length).ok()?.checked_add(5)?;
    let message = bytes.get(5..end)?.to_vec();
    bytes.drain(..end);
    Some(message)
}

/// The first key after all that begin with a text.
fn successor(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn range(prefix: &str) -> Vec<u8> {
    let mut ask = Vec::new();
    put_bytes(1, prefix.as_bytes(), &mut ask);
    put_bytes(2, &successor(prefix), &mut ask);
    ask
}

/// The keys in an answer that were created before a revision, in that order.
fn keys(answer: &[u8], before: u64) -> io::Result<Vec<Earlier>> {
    let mut list = Vec::new();
    for (_, value) in fields(answer)?.iter().filter(|it| it.0 == 2) {
        let value = value.bytes()?;
        let k = std::str::from_utf8(find(value, 5)?).ok().and_then(|text| text.parse().ok());
        let k = k.ok_or_else(|| malformed("etcd: a value that is not a number"))?;
        let revision = find_number(value, 2)?;
        list.push(Earlier { key: find(value, 1)?.to_vec(), revision, k });
    }
    list.retain(|it| it.revision < before);
    list.sort_unstable_by_key(|it| it.revision);
    Ok(list)
}

/// A value of Protocol Buffers.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn number(self) -> u64 {
        if let Self::Number(number) = self { number } else { 0 }
    }

    fn bytes(self) -> io::Result<&'a [u8]> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(malformed("etcd: a number")) }
    }
}

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or(0));
}

fn put_number(field: u64, number: u64, out: &mut Vec<u8>) {
    varint(field << 3, out);
    varint(number, out);
}

fn put_bytes(field: u64, bytes: &[u8], out: &mut Vec<u8>) {
    varint(field << 3 | 2, out);
    varint(bytes.len() as u64, out);
    out.extend(bytes);
}

fn take_varint(bytes: &mut &[u8]) -> io::Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or_else(short)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(short())
}

/// The fields of a message; numbers of a fixed width are not in what this reads.
fn fields(mut bytes: &[u8]) -> io::Result<Vec<(u64, Value<'_>)>> {
    let mut list = Vec::new();
    while !bytes.is_empty() {
        let tag = take_varint(&mut bytes)?;
        let number = take_varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Value::Number(number),
            2 => {
                let length = usize::try_from(number).map_err(|_| short())?;
                let (body, rest) = bytes.split_at_checked(length).ok_or_else(short)?;
                bytes = rest;
                Value::Bytes(body)
            }
            _ => return Err(malformed("etcd: an unknown type")),
        };
        list.push((tag >> 3, value));
    }
    Ok(list)
}

/// A field of a message; empty fields are not sent.
fn find(bytes: &[u8], field: u64) -> io::Result<&[u8]> {
    let found = fields(bytes)?.into_iter().find(|it| it.0 == field);
    found.map_or(Ok(&[]), |it| it.1.bytes())
}

/// A number in a message; zero is not sent.
fn find_number(bytes: &[u8], field: u64) -> io::Result<u64> {
    let found = fields(bytes)?.into_iter().find(|it| it.0 == field);
    Ok(found.map_or(0, |it| it.1.number()))
}

fn short() -> io::Error {
    malformed("etcd: a message that is too short")
}
