//! Sites that come back into the cluster.

use std::io;

use bytes::BytesMut;
use kofm_net::Site;
use kofm_net::config::Config;
use kofm_net::wire::{Frame, Hello, MAX_GREETING, Who};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::LONG;

/// The first frame of a connection.
async fn first_frame(stream: &mut TcpStream) -> io::Result<Frame> {
    let mut buffer = BytesMut::new();
    loop {
        if let Some(frame) = Frame::decode(&mut buffer, MAX_GREETING).map_err(io::Error::other)? {
            return Ok(frame);
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The next Hello that arrives; connections of voters are closed.
async fn next_hello(listener: &TcpListener) -> (TcpStream, Hello) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        if let Ok(Frame::Hello(hello)) = first_frame(&mut stream).await {
            return (stream, hello);
        }
    }
}

/// A peer that expects messages which this incarnation never sent cannot go on with it. The site is
/// not a member, so it loses nothing by another incarnation, which the peer accepts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_outside_with_a_broken_session_begins_another_incarnation() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = std::env::temp_dir().join(format!("kofm-rejoin-{}", std::process::id()));
    let mut config = Config::single("a");
    config.members = [("a", own), ("b", listener.local_addr().unwrap())]
        .map(|(name, address)| (name.to_owned(), address.to_string()))
        .into();
    config.state_dir = Some(dir.clone());
    let _site = Site::start(config).await.unwrap();
    let (mut stream, first) = next_hello(&listener).await;
    let answer = Hello {
        from: first.to,
        to: first.from,
        who: Who { name: "b".into(), incarnation: 1, life: 7, port: 0 },
        known: first.who.incarnation,
        received: 3,
        ..first.clone()
    };
    let mut out = BytesMut::new();
    Frame::Hello(answer).encode(&mut out);
    stream.write_all(&out).await.unwrap();
    assert!(matches!(first_frame(&mut stream).await.unwrap(), Frame::Refuse(_)));
    let later =
        async { while next_hello(&listener).await.1.who.incarnation == first.who.incarnation {} };
    timeout(LONG, later).await.expect("another incarnation dials");
    std::fs::remove_dir_all(dir).ok();
}
