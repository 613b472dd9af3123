//! The lean way in: framed postcard on an upgraded HTTP connection, many calls at once.
//!
//! A client sends `GET /v1/fast` with `upgrade: kofm/1`. From then on both sides send frames: a
//! length (4 bytes, little endian), then a number and what is said. Answers carry the number of
//! their question and come in any order. It does what `POST /v1/requests`, `GET /v1/requests/…`,
//! renew and release do, and nothing else.
//!
//! The site does the calls of one connection in their order, except those that another site has to
//! answer. So a client need not wait for the answer to a release before its next call: the site
//! does the release first.
#![expect(missing_docs, reason = "docs/WIRE.md and the HTTP API describe the same calls")]

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Code, Lease, State, Units, Want};

/// The name of the upgrade in HTTP.
pub const UPGRADE: &str = "kofm/1";
/// The longest frame of a client.
pub const MAX_CALL: usize = 64 << 10;
/// The longest frame of a site: a lease of a million units.
pub const MAX_ANSWER: usize = 64 << 20;
/// Calls of one connection that may be open.
pub const MAX_OPEN: usize = 4096;
/// Room that is kept for what is said next.
pub const MAX_KEPT: usize = 64 << 10;

/// A call of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FastCall<'a> {
    Submit {
        want: Cow<'a, Want>,
        ttl_ms: Option<u64>,
        wait_ms: Option<u64>,
        id: Option<Cow<'a, str>>,
        owner: Option<Cow<'a, str>>,
        reason: Option<Cow<'a, str>>,
    },
    Watch {
        #[serde(borrow)]
        id: Cow<'a, str>,
        wait_ms: u64,
    },
    Cancel(#[serde(borrow)] Cow<'a, str>),
    Renew(#[serde(borrow)] Cow<'a, str>),
    Release(#[serde(borrow)] Cow<'a, str>),
    /// The client that made the call of this number over the same connection waits no more.
    Abandon(u64),
}

/// The result of a call. It shares its text with the site's books.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FastAnswer {
    Done,
    Request {
        id: Arc<str>,
        state: State,
        cause: Option<Cow<'static, str>>,
        lease: Option<FastLease>,
    },
    Lease(FastLease),
    Error {
        code: Code,
        message: String,
    },
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastLease {
    /// Who has it may renew and release.
    pub id: Arc<str>,
    /// Names of the units, by pool.
    pub units: Arc<Units>,
    /// Larger than that of every earlier lease of one of these units.
    pub fence: u64,
    /// How long it lives without a renewal.
    pub ttl_ms: u64,
    /// How long it still lives without a renewal.
    pub expires_in_ms: u64,
}

impl FastLease {
    /// The part of a lease that a fast client needs.
    pub fn new(lease: Lease) -> Self {
        let Lease { id, units, fence, ttl_ms, expires_in_ms, .. } = lease;
        Self { id: id.into(), units: Arc::new(units), fence, ttl_ms, expires_in_ms }
    }
}

/// Frames on their way out. Callers put frames in and never wait; one task writes all that are
/// there at once.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    count: usize,
    pub closed: bool,
}

impl Frames {
    /// Says whether the writer has to be woken.
    pub fn put(&mut self, frame: &impl Serialize) -> bool {
        put(frame, &mut self.bytes);
        self.count += 1;
        self.count == 1
    }

    /// Swaps what is there for an empty buffer; says how many frames it is.
    pub fn take(&mut self, bytes: &mut Vec<u8>) -> usize {
        bytes.clear();
        bytes.shrink_to(MAX_KEPT);
        std::mem::swap(&mut self.bytes, bytes);
        std::mem::take(&mut self.count)
    }
}

pub fn put(value: &impl Serialize, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; 4]);
    let bytes = postcard::to_extend(value, std::mem::take(out));
    *out = bytes.expect("plain values have an encoding");
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The first frame and its length; the length is checked before anything is allocated for it.
pub fn peek<'a, T: Deserialize<'a>>(
    buffer: &'a [u8],
    limit: usize,
) -> io::Result<Option<(usize, T)>> {
    let Some(header) = buffer.first_chunk() else { return Ok(None) };
    let length = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
    if length > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is too long"));
    }
    let Some(body) = buffer.get(4..4 + length) else { return Ok(None) };
    let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, "malformed frame");
    let value = postcard::from_bytes(body).map_err(malformed)?;
    Ok(Some((4 + length, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(bytes: &[u8]) -> io::Result<Option<(usize, (u64, FastCall<'_>))>> {
        peek(bytes, MAX_CALL)
    }

    #[test]
    fn frames_are_read_whole_or_refused() {
        let mut out = Vec::new();
        put(&(7_u64, FastCall::Release("x".into())), &mut out);
        for length in 0..out.len() {
            assert!(matches!(first(&out[..length]), Ok(None)), "{length} bytes");
        }
        out.push(0);
        let Some((length, (7, FastCall::Release(id)))) = first(&out).unwrap() else {
            panic!("{out:?}")
        };
        assert_eq!((length, &*id), (out.len() - 1, "x"));
        for wrong in [&[255, 255, 255, 255][..], &[1, 0, 0, 0, 255][..], &[2, 0, 0, 0, 0, 99][..]] {
            assert!(first(wrong).is_err(), "{wrong:?}");
        }
    }
}
