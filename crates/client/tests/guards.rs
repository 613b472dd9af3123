//! Guards of leases: when they say that a lease is lost, and what releasing returns.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use kofm_client::api::{Code, Submit};
use kofm_client::{Address, Client, ClientError, blocking};

const LEASE: &str = r#"{"id":"L","request":"r","units":{"gpu":["0"]},"fence":1,"ttl_ms":TTL,
    "expires_in_ms":TTL,"site":"s0","epoch":1,"state":"live","held_ms":0}"#;

/// A site that grants a lease and tells what it was asked. It answers renewals with this status, or
/// never.
fn site(ttl_ms: u32, renewal: Option<u16>) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (calls, heard) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, calls) = (stream.unwrap(), calls.clone());
            thread::spawn(move || answer_all(stream, ttl_ms, renewal, &calls));
        }
    });
    (address, heard)
}

fn answer_all(mut stream: TcpStream, ttl_ms: u32, renewal: Option<u16>, calls: &Sender<String>) {
    let lease = LEASE.replace("TTL", &ttl_ms.to_string());
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(call) = read_call(&mut reader) {
        calls.send(call.clone()).ok();
        let (status, body) = if call.starts_with("POST /v1/requests ") {
            let head = r#"{"id":"r","state":"granted","want":{"gpu":1},"site":"s0","waited_ms":0"#;
            (200, format!("{head},\"blocked_by\":[],\"lease\":{lease}}}"))
        } else if call.contains("/renew ") {
            match renewal {
                Some(200) => (200, lease.clone()),
                Some(status) => {
                    (status, r#"{"error":"gone","message":"the lease has ended"}"#.to_owned())
                }
                None => continue,
            }
        } else {
            (200, "{}".to_owned())
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n");
        let answer = format!("{head}content-length: {length}\r\n\r\n{body}");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The first line of a call; its head and body are skipped.
fn read_call(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut first = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(number) = line.strip_prefix("content-length: ") {
            length = number.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        if first.is_empty() {
            line.trim().clone_into(&mut first);
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    Some(first)
}

fn client(address: SocketAddr) -> Client {
    Client::new(Address::Tcp(address.to_string()), None)
}

fn spec() -> Submit {
    Submit { want: [("gpu".to_owned(), 1)].into(), ..Submit::default() }
}

/// Waits for a call that begins so.
fn hears(calls: &Receiver<String>, start: &str) {
    while !calls.recv_timeout(Duration::from_mins(1)).unwrap().starts_with(start) {}
}

#[tokio::test]
async fn a_refused_renewal_is_a_lost_lease() {
    let (address, calls) = site(300, Some(410));
    let lease = client(address).acquire(&spec()).await.unwrap();
    lease.lost().await;
    assert!(lease.is_lost());
    let error = lease.release().await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(it) if it.error == Code::Gone));
    hears(&calls, "DELETE /v1/leases/L ");
}

#[tokio::test]
async fn a_renewal_without_an_answer_loses_the_lease_when_its_time_is_over() {
    let (address, _calls) = site(300, None);
    let lease = client(address).acquire(&spec()).await.unwrap();
    // The call for the renewal is still open: it is given up after 15 s only.
    lease.lost().await;
    assert!(lease.is_lost());
}

#[tokio::test]
async fn a_renewed_lease_is_held_until_its_guard_is_dropped() {
    let (address, calls) = site(60_000, Some(200));
    let lease = client(address).acquire(&spec()).await.unwrap();
    let lost = lease.lost();
    assert!(!lease.is_lost());
    drop(lease);
    hears(&calls, "DELETE /v1/leases/L ");
    // Its future does not wait for a lease that has been released.
    lost.await;
}

#[test]
fn blocking_guards_renew_and_release() {
    let (address, calls) = site(6000, Some(200));
    let client = blocking::Client::new(client(address)).unwrap();
    let lease = client.acquire(&spec()).unwrap();
    assert_eq!(lease.lease().units["gpu"], ["0"]);
    hears(&calls, "POST /v1/leases/L/renew ");
    assert!(!lease.is_lost());
    lease.release().unwrap();
    hears(&calls, "DELETE /v1/leases/L ");
    let (address, _calls) = site(300, Some(410));
    let client = blocking::Client::of_several(vec![Address::Tcp(address.to_string())], None);
    let lease = client.unwrap().acquire(&spec()).unwrap();
    assert!(lease.wait_lost(Duration::from_mins(1)));
    let error = lease.release().unwrap_err();
    assert!(matches!(error, ClientError::Refused(it) if it.error == Code::Gone));
}
