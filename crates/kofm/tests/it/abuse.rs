//! Garbage, crowds and clients that do not read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use kofm_net::api::{self, Submit};
use kofm_net::client::{Address, Client};

use crate::harness::{Cluster, until};

/// The same bytes in every run.
fn garbage(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn garbage_on_every_port_changes_nothing() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 2\n");
    let http = cluster.http[0].strip_prefix("http://").unwrap().to_owned();
    let peer = format!("127.0.0.1:{}", cluster.peers[1]);
    for seed in 0..100 {
        let mut bytes = garbage(seed, 200);
        match seed % 5 {
            // A right header with a wrong body, a frame that is too long, a wrong version.
            0 => bytes.splice(0..5, *b"kofm\x02").for_each(drop),
            1 => bytes.splice(0..12, *b"kofm\x02\x04\0\0\xff\xff\xff\xff").for_each(drop),
            2 => bytes.splice(0..5, *b"kofm\x09").for_each(drop),
            3 => bytes.splice(0..24, *b"POST /v1/requests HTTP/1").for_each(drop),
            _ => {}
        }
        for address in [&http, &peer] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&bytes).ok();
        }
    }
    // Half-open connections that never say anything.
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(&peer).unwrap()).collect();
    let slow: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(&http).unwrap();
            stream
                .write_all(b"POST /v1/requests HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")
                .unwrap();
            stream
        })
        .collect();
    // A listener that never reads.
    let mut deaf = TcpStream::connect(&http).unwrap();
    deaf.write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    for _ in 0..20 {
        let output = cluster.run(0, &["run", "gpu:2", "--wait", "60s", "--", "true"]);
        assert!(output.status.success(), "{output:?}");
    }
    drop((silent, slow, deaf));
    cluster.all_free("gpu");
}

#[test]
fn a_long_body_is_refused() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 2\n");
    let http = cluster.http[0].strip_prefix("http://").unwrap().to_owned();
    let mut stream = TcpStream::connect(&http).unwrap();
    stream.write_all(b"POST /v1/requests HTTP/1.1\r\ncontent-length: 3000000\r\n\r\n").unwrap();
    stream.write_all(&vec![b' '; 2_000_000]).ok();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).ok();
    assert!(answer.starts_with(b"HTTP/1.1 422") || answer == [0; 12], "{answer:?}");
    assert!(cluster.run(0, &["status"]).status.success());
}

#[test]
fn events_of_all_sites_are_streamed() {
    let cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    let http = cluster.http[0].strip_prefix("http://").unwrap().to_owned();
    let mut stream = TcpStream::connect(&http).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains("text/event-stream") {
        let count = stream.read(&mut buffer).unwrap();
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    for site in 0..3 {
        assert!(cluster.run(site, &["run", "gpu:2", "--", "true"]).status.success());
    }
    let seen = |text: &str, event: &str, site: usize| {
        let site = format!("\"site\":\"s{site}\"");
        text.split("\n\n").any(|it| it.contains(event) && it.contains(&site))
    };
    let all = |text: &str| {
        (0..3).all(|site| seen(text, "event: granted", site) && seen(text, "event: released", site))
    };
    while !all(&text) {
        let count = stream.read(&mut buffer).unwrap();
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
}

/// A crowd for one unit; then it is cancelled, and nothing is left.
#[test]
fn a_crowd_of_waiters() {
    // KOFM_CROWD=100000 is the longer run.
    let crowd = std::env::var("KOFM_CROWD").map_or(12_000_u64, |text| text.parse().unwrap());
    let cluster = Cluster::start(2, "[pools]\ngpu = 1\n");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let clients: Vec<Client> = cluster
            .http
            .iter()
            .map(|http| Client::new(Address::parse(http).unwrap(), None))
            .collect();
        let spec = Submit { want: [("gpu".to_owned(), 1)].into(), ..Submit::default() };
        let long = Submit { ttl: Some(Duration::from_mins(10)), ..spec.clone() };
        let holder = clients[0].wait(clients[0].submit(&long).await.unwrap()).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..16 {
            let (client, spec) = (clients[worker % 2].clone(), spec.clone());
            tasks.spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..crowd / 16 {
                    let request = client.submit(&spec).await.unwrap();
                    assert_eq!(request.state, api::State::Queued);
                    ids.push(request.id);
                }
                (client, ids)
            });
        }
        let crowds = tasks.join_all().await;
        let pool: api::Pool = clients[1].get("/v1/pools/gpu").await.unwrap();
        assert_eq!((pool.held, pool.waiting), (1, crowd));
        let last = crowds[0].1.last().unwrap();
        let last = clients[1].watch(last, Duration::ZERO).await.unwrap();
        assert!(last.position.unwrap() > 1, "{last:?}");
        let mut tasks = tokio::task::JoinSet::new();
        for (client, ids) in crowds {
            tasks.spawn(async move {
                for id in ids {
                    client.cancel(&id).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
        clients[1].release(&holder.lease.unwrap().id).await.unwrap();
    });
    cluster.all_free("gpu");
    until("the unit can be had again", || {
        cluster.run(1, &["run", "gpu", "--wait", "10s", "--", "true"]).status.success()
    });
}
