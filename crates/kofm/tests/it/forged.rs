//! Frames that no honest site sends, to the peer port of a running cluster.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::BytesMut;
use kofm_core::SiteId;
use kofm_net::config::Config;
use kofm_net::wire::{Call, Frame, Hello, MAX_BODY, VERSION, Who};

use crate::harness::{Cluster, LONG};

fn who(name: &str, incarnation: u64) -> Who {
    Who { name: name.into(), incarnation, life: 7, port: 1 }
}

/// One connection to a peer port.
struct Stranger(TcpStream, BytesMut);

impl Stranger {
    fn new(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self(stream, BytesMut::new())
    }

    fn call(port: u16, to: &str) -> Self {
        let mut stranger = Self::new(port);
        stranger.send(&Frame::Call(Call {
            cluster: "test".into(),
            to: to.into(),
            who: who("stranger", 1),
        }));
        assert_eq!(stranger.next(), Frame::Welcome);
        stranger
    }

    fn send(&mut self, frame: &Frame) {
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        self.0.write_all(&out).unwrap();
    }

    fn next(&mut self) -> Frame {
        self.until_closed().expect("the site does not hang up")
    }

    /// The next frame; nothing once the site has hung up.
    fn until_closed(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = Frame::decode(&mut self.1, MAX_BODY).unwrap() {
                return Some(frame);
            }
            let mut bytes = [0; 4096];
            let read = self.0.read(&mut bytes).unwrap();
            if read == 0 {
                return None;
            }
            self.1.extend_from_slice(&bytes[..read]);
        }
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// The question `Learn` with this record.
fn learn(epoch: u64, body: &[u8]) -> Vec<u8> {
    let mut question = vec![3];
    varint(epoch, &mut question);
    varint(body.len() as u64, &mut question);
    question.extend_from_slice(body);
    question
}

#[test]
fn a_forged_record_changes_nothing_at_any_site() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    cluster.members(0, 3);
    for (site, epoch) in [(0, u64::MAX), (1, u64::MAX - 1), (2, 1 << 30), (0, 1 << 62)] {
        let mut stranger = Stranger::call(cluster.peers[site], &format!("s{site}"));
        stranger.send(&Frame::Note(learn(epoch, b"owned").into()));
        let Frame::Note(_) = stranger.next() else { panic!("a question has an answer") };
    }
    for site in 0..3 {
        cluster.members(site, 3);
        assert!(cluster.run(site, &["run", "gpu:2", "--", "true"]).status.success());
        let promises = fs::read(cluster.state_dir(site).join("promises")).unwrap();
        assert!(!promises.windows(5).any(|it| it == b"owned"), "site {site} wrote it down");
    }
    // And the sites start again.
    for site in 0..3 {
        cluster.kill(site);
    }
    for site in 0..3 {
        cluster.restart(site);
    }
    cluster.members(1, 3);
}

#[test]
fn a_message_that_cannot_be_decoded_ends_its_session_with_a_reason() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    cluster.members(0, 3);
    // A false s0 takes the place of the true one.
    cluster.kill(0);
    cluster.members(1, 2);
    let config = Config::parse(&fs::read_to_string(&cluster.configs[1]).unwrap()).unwrap();
    let hello = Hello {
        oldest: VERSION,
        newest: VERSION,
        cluster: "test".into(),
        from: SiteId(0),
        to: SiteId(1),
        who: who("s0", 9),
        known: 0,
        received: 0,
        table: config.table(),
    };
    let greet = || {
        let mut stranger = Stranger::new(cluster.peers[1]);
        stranger.send(&Frame::Hello(hello.clone()));
        let answer = stranger.next();
        (stranger, answer)
    };
    let (mut stranger, answer) = greet();
    assert!(matches!(answer, Frame::Hello(_)), "{answer:?}");
    stranger.send(&Frame::Welcome);
    assert_eq!(stranger.next(), Frame::Welcome);
    // `Payload::Change` with three bytes that are no message.
    stranger.send(&Frame::Data { seq: 0, ack: 0, payload: vec![4, 3, 0xff, 0xff, 0xff].into() });
    while stranger.until_closed().is_some() {}
    let (_, answer) = greet();
    let Frame::Refuse(refuse) = answer else { panic!("{answer:?}") };
    assert!(refuse.text.contains("cannot be decoded"), "{}", refuse.text);
    assert!(cluster.run(1, &["run", "gpu:2", "--", "true"]).status.success());
}
