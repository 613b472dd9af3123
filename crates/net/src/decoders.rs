//! Every decoder of bytes that other processes choose, with bytes that no process should send: none
//! may panic, and what it takes for a value has the same encoding again.
//!
//! A bounded run in the tests; `cargo xtask fuzz decoders ROUNDS` for a long one. The seed is the
//! number of the round, so a failure is repeated by the same command.

use std::str::FromStr;

use bytes::BytesMut;
use kofm_api::fast::{FastAnswer, FastCall, MAX_CALL, peek};
use kofm_core::epoch::{self, Message, Report};
use kofm_core::voting::{Answer as VoterAnswer, DiskId, Question};
use kofm_core::{Clock, ProtocolId, SiteId};
use kofm_site::api::{Answer, Call};
use kofm_site::backup::Backup;
use kofm_site::bounds;
use kofm_site::links::Payload;
use kofm_site::paper::{LeasePaper, PaperKey};
use kofm_site::plan::{self, Plan};
use kofm_site::rules::{Network, Rule, lease_of};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::State;
use crate::authority;
use crate::config::Config;
use crate::join::Code;
use crate::store::ballots::{Ask, Reply};
use crate::store::{Pulse, Record};
use crate::tls::{key_of, uris};
use crate::wire::Frame;

/// A generator that gives the same numbers for the same seed.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        let often = [0, 1, 0x7f, 0x80, 0xff, b'"', b':', b'{'];
        if self.below(4) == 0 {
            often[self.below(often.len())]
        } else {
            self.next().to_le_bytes()[0]
        }
    }
}

/// Good bytes, a little or entirely wrong.
fn bend(seeds: &[Vec<u8>], rng: &mut Rng, bytes: &mut Vec<u8>) {
    bytes.clear();
    if rng.below(8) == 0 {
        let length = rng.below(80);
        bytes.extend((0..length).map(|_| rng.byte()));
        return;
    }
    bytes.extend_from_slice(&seeds[rng.below(seeds.len())]);
    for _ in 0..=rng.below(4) {
        let place = rng.below(bytes.len() + 1);
        match rng.below(6) {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, rng.byte()),
            2 if place < bytes.len() => drop(bytes.remove(place)),
            3 if place < bytes.len() => bytes[place] ^= 1 << rng.below(8),
            4 => {
                // The largest varint, and one that is too long.
                let large = [0xff; 11];
                let end = bytes.len().min(place + 1);
                bytes.splice(place..end, large[..=rng.below(11)].iter().copied());
            }
            _ => {
                let other = &seeds[rng.below(seeds.len())];
                let from = rng.below(other.len());
                bytes.truncate(place);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
}

fn packed<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).unwrap()
}

/// Decodes by postcard. Returns whether it was a value; then it has the same encoding again.
fn unpacked<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> bool {
    let Ok(value) = postcard::from_bytes::<T>(bytes) else { return false };
    let again = packed(&value);
    let same = postcard::from_bytes::<T>(&again).map(|it| packed(&it));
    assert_eq!(same.as_deref(), Ok(&again[..]));
    true
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

struct Target {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    /// Whether the bytes were a value.
    decode: fn(&[u8]) -> bool,
    /// One round out of this number is run, because it is slow.
    every: u64,
}

fn frame(bytes: &[u8]) -> bool {
    // A right header and sum, so that bodies are reached.
    let mut buffer = BytesMut::new();
    let kind = bytes.first().copied().unwrap_or(0);
    let body = bytes.get(1..).unwrap_or_default();
    buffer.extend_from_slice(b"kofm");
    buffer.extend_from_slice(&[crate::wire::OLDEST, kind, 0, 0]);
    buffer.extend_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
    let mut sum = crc32fast::Hasher::new();
    sum.update(&buffer);
    sum.update(body);
    buffer.extend_from_slice(&sum.finalize().to_le_bytes());
    buffer.extend_from_slice(body);
    let Ok(Some(frame)) = Frame::decode(&mut buffer, 1 << 16) else { return false };
    let mut again = BytesMut::new();
    frame.encode(&mut again);
    assert_eq!(Frame::decode(&mut again, 1 << 16).unwrap(), Some(frame));
    true
}

fn record(bytes: &[u8]) -> bool {
    let told = Record { epoch: 7, body: bytes.to_vec(), ..Record::default() };
    drop(bounds::record(&told, 6));
    plan::unpack(bytes).is_ok()
}

fn change(bytes: &[u8]) -> bool {
    let Ok(message) = postcard::from_bytes::<Message<Plan>>(bytes) else { return false };
    let known = epoch::Record::first([(SiteId(0), 1)].into(), Plan::default());
    bounds::message(&message, SiteId(1), &known).ok();
    true
}

fn call(bytes: &[u8]) -> bool {
    let whole = [&u32::try_from(bytes.len()).unwrap().to_le_bytes()[..], bytes].concat();
    let limit = MAX_CALL;
    let answered = peek::<(u64, FastAnswer)>(&whole, limit).is_ok_and(|it| it.is_some());
    peek::<(u64, FastCall<'_>)>(&whole, limit).is_ok_and(|it| it.is_some()) || answered
}

fn words(bytes: &[u8]) -> bool {
    let text = text(bytes);
    lease_of(bytes).is_some()
        | Rule::from_str(&text).is_ok()
        | Network::from_str(&text).is_ok()
        | Code::from_str(&text).is_ok()
        | LeasePaper::read(&text, &PaperKey::default()).is_some()
}

fn certificate(bytes: &[u8]) -> bool {
    let der = bytes.into();
    uris(&der).len() + usize::from(key_of(&der).is_some()) > 0
}

fn targets() -> Vec<Target> {
    let learnt = plan::decree(&epoch::Record::first([(SiteId(0), 1)].into(), Plan::default()));
    let pulse = Pulse { site: "a".into(), incarnation: 1, count: 2, note: vec![1, 2] };
    let ask = |question| Ask {
        to: DiskId(9),
        question,
        pulse: Some(pulse.clone()),
        listens: true,
        own: crate::store::ages::Age::default(),
        seen: crate::store::ages::Age::default(),
    };
    let asks = vec![
        packed(&ask(Question::Beat { epoch: 3 })),
        packed(&ask(Question::Learn { decree: learnt.clone() })),
    ];
    let full = epoch::Record::first([(SiteId(0), 1), (SiteId(1), 2)].into(), Plan::default());
    let changes: [Message<Plan>; 3] = [
        Message::Freeze { epoch: 3 },
        Message::Join(Report::empty(2)),
        Message::Commit(full.into()),
    ];
    let payloads = [
        Payload::Ask { number: 3, body: vec![1, 2, 3] },
        Payload::Protocol {
            epoch: 1,
            protocol: ProtocolId(1),
            clock: Clock::default(),
            message: vec![0; 9],
        },
        Payload::Twin { address: "h:1".into() },
    ];
    let calls = [Call::Holder("L0-00".into()), Call::Count("gpu".into()), Call::Gangs];
    let (pair, made) = (authority::create("t").unwrap(), authority::request("t", "a").unwrap());
    let issued = authority::issue(&pair, "t", "a", &["h".to_owned()], &made.public).unwrap();
    let der = rustls::pki_types::pem::PemObject::from_pem_slice(issued.as_bytes());
    let der: rustls::pki_types::CertificateDer<'_> = der.unwrap();
    let fast = FastCall::Release("L0-abc".into());
    let granted =
        FastAnswer::Request { id: "x".into(), state: State::Queued, cause: None, lease: None };
    let file = include_str!("../../../examples/site.toml");
    let backup = serde_json::to_vec(&Backup::of("lab", &Plan::default())).unwrap();
    let target = |name, seeds, decode| Target { name, seeds, decode, every: 1 };
    let slow = |name, seeds, decode, every| Target { name, seeds, decode, every };
    let hello: Vec<Vec<u8>> = (0..9).map(|kind| vec![kind, 1, 1, b'a', 0, 2, 3]).collect();
    vec![
        target("frame", hello, frame as fn(&[u8]) -> bool),
        target("question", asks, unpacked::<Ask>),
        target("vote", vec![packed(&Reply::from(VoterAnswer::Stands))], unpacked::<Reply>),
        target("record", vec![learnt.body], record),
        target("change", changes.iter().map(packed).collect(), change),
        target("payload", payloads.iter().map(packed).collect(), unpacked::<Payload>),
        target("site call", calls.iter().map(packed).collect(), |bytes| {
            postcard::from_bytes::<Call>(bytes).is_ok()
        }),
        target("site answer", vec![vec![0], vec![1, 0], vec![2, 3, 4]], |bytes| {
            postcard::from_bytes::<Answer>(bytes).is_ok()
        }),
        target("fast call", vec![packed(&(7_u64, fast)), packed(&(7_u64, granted))], call),
        target("words", vec![b"read,acquire:gpu-*".into(), b"10.0.0.0/8".into()], words),
        slow("certificate", vec![der.to_vec()], certificate, 4),
        slow(
            "certificate request",
            vec![made.public.into_bytes()],
            |bytes| {
                let pair = authority::Pair { public: String::new(), key: String::new() };
                authority::issue(&pair, "t", "a", &[], &text(bytes)).is_ok()
            },
            8,
        ),
        slow("configuration", vec![file.into()], |it| Config::parse(&text(it)).is_ok(), 256),
        slow("backup", vec![backup], |bytes| Backup::read(&text(bytes)).is_ok(), 8),
        target("audit log", vec![b"{\"n\":1,\"at_ms\":2,\"hash\":\"00\"}".into()], |bytes| {
            crate::audit::is_entry(&text(bytes))
        }),
    ]
}

#[test]
fn decoders_refuse_what_is_no_value() {
    let rounds = std::env::var("KOFM_DECODERS").map(|text| text.parse().unwrap());
    let rounds: u64 = rounds.unwrap_or(20_000);
    let (mut executions, mut bytes) = (0_u64, Vec::new());
    for target in targets() {
        let (mut taken, mut runs) = (0, 0);
        for round in (0..rounds).step_by(usize::try_from(target.every).unwrap()) {
            let mut rng = Rng::new(round);
            bend(&target.seeds, &mut rng, &mut bytes);
            let decode = std::panic::catch_unwind(|| (target.decode)(&bytes));
            let Ok(value) = decode else { panic!("{}, round {round}: {bytes:?}", target.name) };
            taken += u64::from(value);
            runs += 1;
        }
        println!("{:20} {runs:>10} executions, {taken} values", target.name);
        executions += runs;
    }
    println!("{executions} executions");
}
