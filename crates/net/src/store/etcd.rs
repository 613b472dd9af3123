//! etcd as a store, through the JSON gateway of its key-value API.
//!
//! Two keys and one per site: `epoch` has the number, `record` what it means, `beat/NAME` a site's
//! last sign of life. Every call is one transaction that looks at `epoch`. etcd's leases are not
//! used: some versions end them early.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::client::{Address, Client};
use crate::store::{Beat, Later, Pulse, Record, Store, StoreError, Swap};

/// An etcd cluster.
#[derive(Debug)]
pub(crate) struct Etcd {
    prefix: String,
    endpoints: Vec<Client>,
    /// The member that answered last.
    last: AtomicUsize,
    patience: Duration,
}

impl Etcd {
    /// The record of `cluster`, kept at these members, `http://host:port` each. None of them is
    /// waited for longer than `patience`.
    pub(crate) fn new(
        cluster: &str,
        endpoints: &[String],
        patience: Duration,
    ) -> Result<Self, String> {
        let parse = |text: &String| Address::parse(text).map(|it| Client::new(it, None));
        let endpoints: Vec<Client> = endpoints.iter().map(parse).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err("etcd needs at least one endpoint".into());
        }
        let prefix = format!("kofm/{cluster}/");
        Ok(Self { prefix, endpoints, last: AtomicUsize::new(0), patience })
    }

    fn key(&self, name: &str) -> String {
        encode(format!("{}{name}", self.prefix).as_bytes())
    }

    /// The condition that the epoch is still this one.
    fn unchanged(&self, epoch: u64) -> Value {
        let key = self.key("epoch");
        if epoch == 0 {
            json!({"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"})
        } else {
            let value = encode(epoch.to_string().as_bytes());
            json!({"key": key, "target": "VALUE", "result": "EQUAL", "value": value})
        }
    }

    fn read_record(&self) -> Value {
        json!([
            {"request_range": {"key": self.key("epoch")}},
            {"request_range": {"key": self.key("record")}},
        ])
    }

    /// One transaction, at whichever member answers.
    async fn transact(&self, transaction: Value) -> Result<Value, StoreError> {
        let body = Bytes::from(transaction.to_string());
        let first = self.last.load(Ordering::Relaxed);
        let mut trouble = String::new();
        for turn in 0..self.endpoints.len() {
            let number = (first + turn) % self.endpoints.len();
            let client = &self.endpoints[number];
            match client.raw(Method::POST, "/v3/kv/txn", body.clone(), self.patience).await {
                Ok((status, answer)) if status.is_success() => {
                    self.last.store(number, Ordering::Relaxed);
                    let text = "the answer of etcd is not JSON";
                    return serde_json::from_slice(&answer)
                        .map_err(|_| StoreError::Nonsense(text.into()));
                }
                Ok((status, answer)) => {
                    trouble = format!("etcd: {status}: {}", String::from_utf8_lossy(&answer));
                }
                Err(error) => trouble = format!("etcd: {error}"),
            }
        }
        Err(StoreError::Unreachable(trouble))
    }

    /// The record in the answer of a transaction that read it.
    fn record(answer: &Value) -> Result<Record, StoreError> {
        let nonsense = |what: &str| StoreError::Nonsense(format!("etcd: {what}"));
        let value = |place: usize| {
            let list = &answer["responses"][place]["response_range"]["kvs"];
            list[0]["value"].as_str().and_then(decode)
        };
        let Some(epoch) = value(0) else { return Ok(Record::default()) };
        let epoch = String::from_utf8(epoch).ok().and_then(|text| text.parse().ok());
        let epoch = epoch.ok_or_else(|| nonsense("the epoch is not a number"))?;
        let body = value(1).ok_or_else(|| nonsense("there is an epoch without a record"))?;
        Ok(Record { epoch, body, ..Record::default() })
    }
}

impl Store for Etcd {
    /// Each beat is a write to the disks of etcd.
    fn pace(&self) -> u32 {
        10
    }

    fn swap(&self, next: Record) -> Later<'_, Swap> {
        Box::pin(async move {
            let put = |name: &str, value: &[u8]| {
                let (key, value) = (self.key(name), encode(value));
                json!({"request_put": {"key": key, "value": value}})
            };
            let answer = self
                .transact(json!({
                    "compare": [self.unchanged(next.epoch.saturating_sub(1))],
                    "success": [
                        put("epoch", next.epoch.to_string().as_bytes()),
                        put("record", &next.body),
                    ],
                    "failure": self.read_record(),
                }))
                .await?;
            if answer["succeeded"] == true {
                return Ok(Swap::Done);
            }
            // A call that seemed to fail may have been carried out, and then repeated.
            let record = Self::record(&answer)?;
            Ok(if record == next { Swap::Done } else { Swap::Lost(record) })
        })
    }

    fn beat(&self, record: Arc<Record>, pulse: Pulse, _: bool) -> Later<'_, Beat> {
        let epoch = record.epoch;
        Box::pin(async move {
            let value = postcard::to_stdvec(&pulse).unwrap_or_default();
            let key = self.key(&format!("beat/{}", pulse.site));
            // The byte after the slash ends the range.
            let (first, end) = (self.key("beat/"), self.key("beat0"));
            let answer = self
                .transact(json!({
                    "compare": [self.unchanged(epoch)],
                    "success": [
                        {"request_put": {"key": key, "value": encode(&value)}},
                        {"request_range": {"key": first, "range_end": end}},
                    ],
                    "failure": self.read_record(),
                }))
                .await?;
            if answer["succeeded"] != true {
                return Ok(Beat::Moved(Self::record(&answer)?));
            }
            let list = answer["responses"][1]["response_range"]["kvs"].as_array();
            let pulses = list
                .into_iter()
                .flatten()
                .filter_map(|entry| postcard::from_bytes(&decode(entry["value"].as_str()?)?).ok());
            Ok(Beat::Steady(pulses.collect()))
        })
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64, as the gateway wants bytes.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut three = [0; 4];
        three[1..=chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes(three);
        for place in 0..4 {
            let digit = usize::try_from(number >> (18 - 6 * place) & 63).unwrap_or(0);
            text.push(if place <= chunk.len() { DIGITS[digit].into() } else { '=' });
        }
    }
    text
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for chunk in digits.chunks(4) {
        let mut number = 0;
        for place in 0..4 {
            let digit = match chunk.get(place) {
                Some(digit) => DIGITS.iter().position(|it| it == digit)?,
                None => 0,
            };
            number = number << 6 | u32::try_from(digit).ok()?;
        }
        bytes.extend_from_slice(number.to_be_bytes().get(1..chunk.len())?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn bytes_survive_base64() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")] {
            assert_eq!(encode(plain.as_bytes()), coded);
        }
        let all: Vec<u8> = (0..=255).collect();
        for length in 0..all.len() {
            assert_eq!(decode(&encode(&all[..length])).as_deref(), Some(&all[..length]));
        }
        for bad in ["a", "====", "a===", "!!!!", "Zg=", "Z"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    struct Server(Child, std::path::PathBuf);

    impl Drop for Server {
        fn drop(&mut self) {
            self.0.kill().ok();
            self.0.wait().ok();
            std::fs::remove_dir_all(&self.1).ok();
        }
    }

    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    /// A member of its own; `None` where etcd is not installed.
    fn start(dir: &std::path::Path, port: u16) -> Option<Server> {
        let (client, peer) =
            (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", free_port()));
        let child = Command::new("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(dir)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}"), "--log-level", "error"])
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        Some(Server(child, dir.to_owned()))
    }

    fn record(epoch: u64, body: &[u8]) -> Record {
        Record { epoch, body: body.to_vec(), ..Record::default() }
    }

    fn pulse(site: &str, count: u64) -> Pulse {
        Pulse { site: site.into(), incarnation: 1, count, note: vec![0, 255] }
    }

    #[tokio::test]
    async fn etcd_keeps_the_record() {
        let dir = std::env::temp_dir().join(format!("kofm-etcd-{}", std::process::id()));
        let port = free_port();
        let Some(server) = start(&dir, port) else {
            println!("NOT RUN: there is no etcd here; install it: apt-get install etcd-server");
            return;
        };
        let dead = format!("http://127.0.0.1:{}", free_port());
        let endpoints = [dead, format!("http://127.0.0.1:{port}")];
        let store = Etcd::new("lab", &endpoints, Duration::from_secs(5)).unwrap();
        let mut tries = 0;
        let first = loop {
            match store.beat(Arc::default(), pulse("a", 1), true).await {
                Ok(beat) => break beat,
                Err(error) => assert!(tries < 600, "etcd does not start: {error}"),
            }
            tries += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        assert_eq!(first, Beat::Steady(vec![pulse("a", 1)]));
        let one = record(1, &[0, 1, 2, 255]);
        let other = record(1, b"other");
        assert_eq!(store.swap(one.clone()).await, Ok(Swap::Done));
        assert_eq!(store.swap(one.clone()).await, Ok(Swap::Done), "repeated");
        assert_eq!(store.swap(other).await, Ok(Swap::Lost(one.clone())));
        assert_eq!(
            store.beat(Arc::default(), pulse("b", 1), true).await,
            Ok(Beat::Moved(one.clone()))
        );
        let both = vec![pulse("a", 1), pulse("b", 2)];
        assert_eq!(
            store.beat(Arc::new(one.clone()), pulse("b", 2), true).await,
            Ok(Beat::Steady(both))
        );
        // Of many at once, one wins, and all hear of the same.
        let crowd = (0..8_u8).map(|n| store.swap(record(2, &[n])));
        let mut ends = Vec::new();
        for end in crowd.collect::<Vec<_>>() {
            ends.push(end.await.unwrap());
        }
        assert_eq!(ends.iter().filter(|end| **end == Swap::Done).count(), 1, "{ends:?}");
        // Its memory is its own affair; it comes back with it.
        drop(server);
    }
}
