//! Frames between sites: what is on the wire, and nothing else.
//!
//! A header of 16 bytes, then the body. The length is checked before anything is allocated, and
//! the checksum before the body is read. `docs/WIRE.md` is the specification.

use std::collections::BTreeMap;
use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kofm_core::SiteId;
use serde::{Deserialize, Serialize};

/// The newest version that this code speaks.
pub const VERSION: u8 = 6;
/// The oldest one. The header of each frame has it, so that an older site can read the Hello of a
/// newer one, which says which other versions that site speaks.
pub const OLDEST: u8 = 6;

/// The versions that a site speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub oldest: u8,
    /// The newest.
    pub newest: u8,
}

impl Versions {
    /// Those of this code.
    pub const OWN: Self = Self { oldest: OLDEST, newest: VERSION };

    /// The version that two sites speak with each other: the newest that both know.
    pub fn common(self, peer: Self) -> Option<u8> {
        let newest = self.newest.min(peer.newest);
        (newest >= self.oldest.max(peer.oldest)).then_some(newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { oldest, newest } = self;
        if oldest == newest { write!(f, "{newest}") } else { write!(f, "{oldest} to {newest}") }
    }
}
/// Bytes in front of each body.
pub const HEADER: usize = 16;
/// The longest body once a peer is known.
pub const MAX_BODY: usize = 16 << 20;
/// The longest body before that: a stranger cannot make a site allocate more.
pub const MAX_GREETING: usize = 4 << 10;

const MAGIC: [u8; 4] = *b"kofm";

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Who I am, and where our session stands.
    Hello(Hello),
    /// I go on with you.
    Welcome,
    /// I do not.
    Refuse(Refuse),
    /// One message of the session.
    Data {
        /// Its number.
        seq: u64,
        /// The number of the next message that the sender expects.
        ack: u64,
        /// What the session carries.
        payload: Bytes,
    },
    /// Nothing to say, but alive.
    Ack {
        /// The number of the next message that the sender expects.
        ack: u64,
    },
    /// The sender stops; nothing more will come.
    Bye,
    /// Instead of a greeting: I want to ask, outside any session.
    Call(Call),
    /// A question, or its answer.
    Note(Bytes),
    /// Instead of a greeting: I have a code, and want to become a site.
    Join(Join),
    /// The answer: what a new site needs, or why it cannot be one.
    Joined(Result<Admission, String>),
}

/// A machine that wants to become a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The secret of the invitation.
    pub secret: Vec<u8>,
    /// The name that the site should have.
    pub site: String,
    /// Where the others reach it.
    pub address: String,
    /// The request for its certificate, PEM.
    pub request: String,
    /// Seconds of Unix time by its clock.
    pub clock: u64,
}

/// All that a new site needs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The cluster's name.
    pub cluster: String,
    /// Its certificate, PEM.
    pub certificate: String,
    /// The certificate of the cluster's authority, PEM.
    pub authority: String,
    /// Its key, PEM: any site takes in the next machine.
    pub authority_key: String,
    /// The sites that vote, and their addresses.
    pub voters: BTreeMap<String, String>,
    /// The site lease in milliseconds.
    pub site_lease: u64,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It has a secret in it.
        f.debug_struct("Admission").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// The first frame of a connection for questions outside the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The cluster's name.
    pub cluster: String,
    /// The name of the site that is meant.
    pub to: String,
    /// The sender.
    pub who: Who,
}

/// The process that greets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// The name of its site.
    pub name: String,
    /// The incarnation of the site.
    pub incarnation: u64,
    /// A random number of this process: two that have one name and incarnation differ in it.
    pub life: u64,
    /// The port where it listens for other sites; 0 where it does not.
    pub port: u16,
}

/// The first frame in each direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The oldest version that the sender speaks.
    pub oldest: u8,
    /// The newest version that the sender speaks.
    pub newest: u8,
    /// The cluster's name.
    pub cluster: String,
    /// The sender.
    pub from: SiteId,
    /// Whom it means to talk to.
    pub to: SiteId,
    /// The sender's process.
    pub who: Who,
    /// The receiver's incarnation as the sender knows it; 0 where they never talked.
    pub known: u64,
    /// The number of the next message that the sender expects.
    pub received: u64,
    /// A digest of members, pools and protocols: they must be the same everywhere.
    pub table: u64,
}

/// Why a site does not go on with a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refuse {
    /// For programs.
    pub code: RefuseCode,
    /// For people.
    pub text: String,
}

/// Why a site does not go on with a peer, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefuseCode {
    /// No common version.
    Version,
    /// Another cluster, or another site than was meant.
    Address,
    /// Other members, pools or protocols.
    Table,
    /// An incarnation that is not the one of the session.
    Reset,
    /// Too many connections, or an earlier process of this site is still connected.
    Busy,
    /// Another process has this name.
    Twin,
}

/// Bytes that are no frame. The connection cannot go on: what follows has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The first bytes are not ours.
    #[error("no kofm frame")]
    Magic,
    /// A version that this code does not speak.
    #[error(
        "the peer speaks wire version {0}, this site {own}: install the same release at both",
        own = Versions::OWN
    )]
    Version(u8),
    /// A kind of frame that does not exist.
    #[error("unknown kind of frame {0}")]
    Kind(u8),
    /// Longer than allowed.
    #[error("a body of {length} bytes, {limit} are allowed")]
    Length {
        /// What the header says.
        length: u64,
        /// What is allowed here.
        limit: usize,
    },
    /// Damaged on the way.
    #[error("wrong checksum")]
    Checksum,
    /// The body does not fit its kind.
    #[error("malformed body")]
    Body,
}

impl Frame {
    const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Welcome => 2,
            Self::Refuse(_) => 3,
            Self::Data { .. } => 4,
            Self::Ack { .. } => 5,
            Self::Bye => 6,
            Self::Call(_) => 7,
            Self::Note(_) => 8,
            Self::Join(_) => 9,
            Self::Joined(_) => 10,
        }
    }

    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        let start = out.len();
        out.put_slice(&MAGIC);
        out.put_u8(OLDEST);
        out.put_u8(self.kind());
        out.put_u16_le(0);
        out.put_u64_le(0);
        match self {
            Self::Hello(hello) => put(hello, out),
            Self::Refuse(refuse) => put(refuse, out),
            Self::Data { seq, ack, payload } => {
                put(&(*seq, *ack), out);
                out.put_slice(payload);
            }
            Self::Ack { ack } => put(ack, out),
            Self::Call(call) => put(call, out),
            Self::Join(join) => put(join, out),
            Self::Joined(answer) => put(answer, out),
            Self::Note(body) => out.put_slice(body),
            Self::Welcome | Self::Bye => {}
        }
        let length = u32::try_from(out.len() - start - HEADER).expect("queued bodies are limited");
        out[start + 8..start + 12].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(&out[start..start + 12], &out[start + HEADER..]);
        out[start + 12..start + 16].copy_from_slice(&sum.to_le_bytes());
    }

    /// Takes one frame out of `buffer`; `None` where it is not complete yet.
    pub fn decode(buffer: &mut BytesMut, limit: usize) -> Result<Option<Self>, WireError> {
        // Strangers are refused at their first wrong byte, not when the header is full.
        let known = buffer.len().min(MAGIC.len());
        if buffer[..known] != MAGIC[..known] {
            return Err(WireError::Magic);
        }
        if buffer.len() < HEADER {
            return Ok(None);
        }
        if !(OLDEST..=VERSION).contains(&buffer[4]) {
            return Err(WireError::Version(buffer[4]));
        }
        let kind = buffer[5];
        if !(1..=10).contains(&kind) {
            return Err(WireError::Kind(kind));
        }
        let length = u32::from_le_bytes([buffer[8], buffer[9], buffer[10], buffer[11]]);
        let sum = u32::from_le_bytes([buffer[12], buffer[13], buffer[14], buffer[15]]);
        let Some(length) = usize::try_from(length).ok().filter(|&length| length <= limit) else {
            return Err(WireError::Length { length: length.into(), limit });
        };
        if buffer.len() < HEADER + length {
            buffer.reserve(HEADER + length - buffer.len());
            return Ok(None);
        }
        if checksum(&buffer[..12], &buffer[HEADER..HEADER + length]) != sum {
            return Err(WireError::Checksum);
        }
        buffer.advance(HEADER);
        Self::decode_body(kind, &buffer.split_to(length).freeze()).map(Some)
    }

    fn decode_body(kind: u8, body: &Bytes) -> Result<Self, WireError> {
        Ok(match kind {
            1 => Self::Hello(whole(body)?),
            2 => empty(body, Self::Welcome)?,
            3 => Self::Refuse(whole(body)?),
            4 => {
                let ((seq, ack), rest) = take::<(u64, u64)>(body)?;
                let start = body.len() - rest;
                Self::Data { seq, ack, payload: body.slice(start..) }
            }
            5 => Self::Ack { ack: whole(body)? },
            6 => empty(body, Self::Bye)?,
            7 => Self::Call(whole(body)?),
            8 => Self::Note(body.clone()),
            9 => Self::Join(whole(body)?),
            10 => Self::Joined(whole(body)?),
            _ => return Err(WireError::Kind(kind)),
        })
    }
}

fn put(value: &impl Serialize, out: &mut BytesMut) {
    let body = postcard::to_stdvec(value).expect("plain values have an encoding");
    out.put_slice(&body);
}

fn take<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<(T, usize), WireError> {
    let (value, rest) = postcard::take_from_bytes(body).map_err(|_| WireError::Body)?;
    Ok((value, rest.len()))
}

fn whole<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, WireError> {
    match take(body)? {
        (value, 0) => Ok(value),
        _ => Err(WireError::Body),
    }
}

fn empty(body: &[u8], frame: Frame) -> Result<Frame, WireError> {
    if body.is_empty() { Ok(frame) } else { Err(WireError::Body) }
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(header);
    sum.update(body);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who() -> Who {
        Who { name: "a".into(), incarnation: 300, life: 9, port: 7700 }
    }

    fn samples() -> Vec<(&'static str, Frame)> {
        let hello = Hello {
            oldest: 5,
            newest: 5,
            cluster: "lab".into(),
            from: SiteId(0),
            to: SiteId(2),
            who: who(),
            known: 0,
            received: 5,
            table: 0x0102_0304_0506_0708,
        };
        let refuse = Refuse { code: RefuseCode::Reset, text: "no".into() };
        vec![
            (
                "6b6f666d060100001a00000021d4ad5f0505036c616200020161ac0209943c00\
                 05888e98a8c0e0808101",
                Frame::Hello(hello),
            ),
            ("6b6f666d0602000000000000fd661cc1", Frame::Welcome),
            ("6b6f666d0603000004000000d599806103026e6f", Frame::Refuse(refuse)),
            (
                "6b6f666d0604000005000000d5af4dcd0780016869",
                Frame::Data { seq: 7, ack: 128, payload: Bytes::from_static(b"hi") },
            ),
            ("6b6f666d060500000100000047e5b65f09", Frame::Ack { ack: 9 }),
            ("6b6f666d0606000000000000ee425335", Frame::Bye),
            (
                "6b6f666d060700000d0000002ff0f181036c616201620161ac0209943c",
                Frame::Call(Call { cluster: "lab".into(), to: "b".into(), who: who() }),
            ),
            ("6b6f666d0608000002000000b89bb6056869", Frame::Note(Bytes::from_static(b"hi"))),
        ]
    }

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for byte in bytes {
            write!(text, "{byte:02x}").unwrap();
        }
        text
    }

    #[test]
    fn frames_look_as_documented() {
        for (golden, frame) in samples() {
            let mut out = BytesMut::new();
            frame.encode(&mut out);
            assert_eq!(hex(&out), golden, "{frame:?}");
            assert!(include_str!("../../../docs/WIRE.md").contains(golden), "{golden}");
            assert_eq!(Frame::decode(&mut out, MAX_BODY), Ok(Some(frame)));
            assert!(out.is_empty());
        }
    }

    #[test]
    fn a_frame_may_come_byte_by_byte() {
        for (_, frame) in samples() {
            let mut whole = BytesMut::new();
            frame.encode(&mut whole);
            let mut buffer = BytesMut::new();
            for (i, byte) in whole.iter().enumerate() {
                assert_eq!(Frame::decode(&mut buffer, MAX_BODY), Ok(None), "byte {i}");
                buffer.put_u8(*byte);
            }
            assert_eq!(Frame::decode(&mut buffer, MAX_BODY), Ok(Some(frame)));
        }
    }

    #[test]
    fn sites_of_two_releases_speak_the_newest_version_that_both_know() {
        let of = |oldest, newest| Versions { oldest, newest };
        for (a, b, common) in [
            (of(5, 5), of(5, 5), Some(5)),
            (of(5, 5), of(5, 6), Some(5)),
            (of(5, 6), of(6, 7), Some(6)),
            (of(5, 7), of(6, 6), Some(6)),
            (of(5, 5), of(6, 6), None),
            (of(6, 7), of(8, 9), None),
        ] {
            assert_eq!((a.common(b), b.common(a)), (common, common), "{a} and {b}");
        }
    }

    #[test]
    fn a_long_body_is_refused_before_it_is_read() {
        let mut buffer = BytesMut::new();
        buffer.put_slice(b"kofm\x06\x04\0\0\xff\xff\xff\xff\0\0\0\0");
        let error = Frame::decode(&mut buffer, MAX_BODY).unwrap_err();
        assert!(matches!(error, WireError::Length { .. }), "{error}");
        assert!(buffer.capacity() < 1024);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for (_, frame) in samples() {
            let mut whole = BytesMut::new();
            frame.encode(&mut whole);
            for bit in 0..whole.len() * 8 {
                let mut damaged = whole.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let decoded = Frame::decode(&mut damaged, MAX_BODY);
                assert!(!matches!(decoded, Ok(Some(_))), "bit {bit} of {frame:?}");
            }
        }
    }

    #[test]
    fn garbage_never_panics() {
        // A fixed sequence: the same bytes in every run.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..20_000_u32 {
            let mut buffer = BytesMut::new();
            if round % 2 == 0 {
                // A right header in front, so that bodies are reached.
                let kind = u8::try_from(next() % 8 + 1).unwrap();
                let body: Vec<u8> = (0..next() % 40).map(|_| next().to_le_bytes()[0]).collect();
                buffer.put_slice(b"kofm\x06");
                buffer.put_slice(&[kind, 0, 0]);
                buffer.put_u32_le(u32::try_from(body.len()).unwrap());
                let sum = checksum(&buffer[..12], &body);
                buffer.put_u32_le(sum);
                buffer.put_slice(&body);
            } else {
                (0..next() % 64).for_each(|_| buffer.put_u8(next().to_le_bytes()[0]));
            }
            drop(Frame::decode(&mut buffer, MAX_GREETING));
        }
    }
}
