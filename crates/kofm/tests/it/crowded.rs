//! More connections than a process has descriptors for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::harness::{Cluster, KOFM, LONG, until};

/// `kofm` with 300 descriptors, of which 200 are for clients.
fn limited() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 300; exec \"$0\" \"$@\"", KOFM]);
    command
}

#[test]
fn idle_connections_make_room_for_clients_and_other_sites() {
    let mut cluster = Cluster::start(2, "[pools]\ngpu = 2\n");
    cluster.members(0, 2);
    for site in 0..2 {
        cluster.kill(site);
    }
    for site in 0..2 {
        cluster.restart_by(site, limited);
    }
    cluster.members(0, 2);
    let address = cluster.http[0].strip_prefix("http://").unwrap().to_owned();
    let connect = || {
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    };
    // A client that waits for an answer stays connected.
    assert!(cluster.run(0, &["acquire", "gpu:2", "--ttl", "10m"]).status.success());
    let mut waiting = connect();
    let body = "{\"want\":{\"gpu\":1},\"id\":\"w\"}";
    let request = |head: &str, body: &str| {
        format!("{head} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    waiting.write_all(request("POST /v1/requests", body).as_bytes()).unwrap();
    let mut answer = [0; 12];
    waiting.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 202");
    let mut poll = connect();
    poll.write_all(request("GET /v1/requests/w?wait=1m", "").as_bytes()).unwrap();
    // Silent ones, and fast connections without a call.
    let silent: Vec<TcpStream> = (0..220).map(|_| connect()).collect();
    let (mut fast, mut resets) = (Vec::new(), 0);
    for number in 0..220 {
        // On a loaded machine the site has reset a new connection; the client tries again.
        let greet = || {
            let mut stream = TcpStream::connect(&address).ok()?;
            stream.set_read_timeout(Some(LONG)).ok()?;
            let upgrade = format!("connection: upgrade\r\nupgrade: {}", kofm_net::FAST_UPGRADE);
            write!(stream, "GET /v1/fast HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n\r\n").ok()?;
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).ok()?;
            assert_eq!(&answer, b"HTTP/1.1 101", "connection {number}");
            Some(stream)
        };
        fast.extend(greet().or_else(|| {
            resets += 1;
            greet()
        }));
        assert!(fast.len() > number && resets <= 5, "connection {number}, {resets} resets");
    }
    assert!(cluster.run(0, &["status"]).status.success());
    // Another site comes back, which takes new connections.
    cluster.kill(1);
    cluster.restart_by(1, limited);
    cluster.members(0, 2);
    assert!(cluster.run(0, &["cancel", "w"]).status.success());
    let mut text = [0; 12];
    poll.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"HTTP/1.1 200", "the poll was not cut off");
    drop((silent, fast));
    until("a client is served", || cluster.run(0, &["status"]).status.success());
}
