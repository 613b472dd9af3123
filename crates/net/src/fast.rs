//! The lean way in: framed postcard on an upgraded HTTP connection, many calls at once.
//!
//! A client sends `GET /v1/fast` with `upgrade: kofm/1`. From then on both sides send frames: a
//! length (4 bytes, little endian), then a number and what is said. Answers carry the number of
//! their question and come in any order. It does what `POST /v1/requests`, `GET /v1/requests/…`,
//! renew and release do, and nothing else.
//!
//! The site does the calls of one connection in their order, except those that another site has to
//! answer. So a release that is followed by another call needs nobody who waits for its answer: it
//! is done before what follows it.
//!
//! Here is what is said; [`client`] and [`server`] are the two ends.

mod client;
mod server;

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::client::{FastClient, FastGuard};
pub(crate) use self::server::{Outbox, serve};
use crate::api::{Call, Hold, Submit, Want};
pub(crate) use kofm_site::fast::FastAnswer;
pub use kofm_site::fast::FastLease;

/// What the upgrade is called.
pub(crate) const UPGRADE: &str = "kofm/1";
/// The longest frame of a client.
const MAX_CALL: usize = 64 << 10;
/// The longest frame of a site: a lease of a million units.
const MAX_ANSWER: usize = 64 << 20;
/// Calls of one connection that may be open.
const MAX_OPEN: usize = 4096;
/// Room that is kept for what is said next.
const MAX_KEPT: usize = 64 << 10;

/// An answer that is not there yet is kept back for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A call of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum FastCall<'a> {
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
    /// Whoever made the call of this number over the same connection waits no more.
    Abandon(u64),
}

impl FastCall<'_> {
    fn into_call(self) -> Call {
        match self {
            Self::Submit { want, ttl_ms, wait_ms, id, owner, reason } => {
                let spec = Submit {
                    want: want.into_owned(),
                    ttl: ttl_ms.map(Duration::from_millis),
                    wait: wait_ms.map(Duration::from_millis),
                    id: id.map(Cow::into_owned),
                    owner: owner.map(Cow::into_owned),
                    reason: reason.map(Cow::into_owned),
                    principal: None,
                };
                Call::Submit { spec, fresh: false, hold: Hold::Lease, patience: Some(PATIENCE) }
            }
            Self::Watch { id, wait_ms } => {
                Call::Watch { id: id.into_owned(), wait: Duration::from_millis(wait_ms) }
            }
            Self::Cancel(id) => Call::Cancel(id.into_owned()),
            Self::Renew(id) => Call::Renew(id.into_owned()),
            Self::Release(id) => Call::Release(id.into_owned()),
            Self::Abandon(number) => Call::Abandon(number),
        }
    }
}

/// Frames on their way out. Whoever has something to say puts it in and never waits; one task
/// writes what is there, however much that is, at once.
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
    count: usize,
    closed: bool,
}

impl Frames {
    /// Says whether the writer has to be woken.
    fn put(&mut self, frame: &impl Serialize) -> bool {
        put(frame, &mut self.bytes);
        self.count += 1;
        self.count == 1
    }

    /// Swaps what is there for an empty buffer; says how many frames it is.
    fn take(&mut self, bytes: &mut Vec<u8>) -> usize {
        bytes.clear();
        bytes.shrink_to(MAX_KEPT);
        std::mem::swap(&mut self.bytes, bytes);
        std::mem::take(&mut self.count)
    }
}

fn put(value: &impl Serialize, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; 4]);
    let bytes = postcard::to_extend(value, std::mem::take(out));
    *out = bytes.expect("plain values have an encoding");
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The first frame and its length; the length is checked before anything is allocated for it.
fn peek<'a, T: Deserialize<'a>>(buffer: &'a [u8], limit: usize) -> io::Result<Option<(usize, T)>> {
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

    #[test]
    fn frames_are_read_whole_or_refused() {
        let mut out = Vec::new();
        put(&(7_u64, FastCall::Release("x".into())), &mut out);
        let first = |bytes: &[u8]| {
            let found = peek::<(u64, FastCall<'_>)>(bytes, MAX_CALL)?;
            io::Result::Ok(found.map(|(length, (number, call))| (length, number, call.into_call())))
        };
        for length in 0..out.len() {
            assert!(matches!(first(&out[..length]), Ok(None)), "{length} bytes");
        }
        out.push(0);
        let Some((length, 7, Call::Release(id))) = first(&out).unwrap() else { panic!("{out:?}") };
        assert_eq!((length, id.as_str()), (out.len() - 1, "x"));
        for wrong in [&[255, 255, 255, 255][..], &[1, 0, 0, 0, 255][..], &[2, 0, 0, 0, 0, 99][..]] {
            assert!(first(wrong).is_err(), "{wrong:?}");
        }
    }
}
