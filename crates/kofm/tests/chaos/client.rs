//! Clients inside the hosts: they ask, hold, renew, release, and write down what they saw.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kofm_net::{Boottime, Moment};
use kofm_sim::history::Hold;
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::lots::Lots;

/// How much of a lease a client counts on: clocks may differ in rate.
const CAREFUL: f64 = 0.98;

/// What clients share.
#[derive(Default)]
pub(crate) struct Seen {
    pub holds: Mutex<Vec<Hold>>,
    pub stop: AtomicBool,
    pub grants: AtomicU64,
    /// Calls whose end is not known.
    pub unknown: AtomicU64,
    /// Leases that were lost while their time was not over by the client's clock.
    pub lost: AtomicU64,
}

pub(crate) struct Client {
    pub space: String,
    pub site: usize,
    pub number: usize,
    pub address: SocketAddr,
    pub pools: BTreeMap<String, u32>,
    pub seen: Arc<Seen>,
}

/// One call; the connection is not kept.
pub(crate) fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
    patience: Duration,
) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1).min(patience))?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    let body = body.map(ToString::to_string).unwrap_or_default();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: site\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "no answer");
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n").ok_or_else(nonsense)?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).ok_or_else(nonsense)?;
    let body = &answer[end + 4..];
    let value = serde_json::from_slice(body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()));
    Ok((status, value))
}

impl Client {
    pub(crate) fn run(&self, mut lots: Lots) {
        Lab::enter(&self.space);
        while !self.seen.stop.load(Ordering::Relaxed) {
            if self.work(&mut lots).is_err() {
                self.seen.unknown.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(100 + lots.below(200)));
            }
        }
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, Value)> {
        call(self.address, method, path, body, Duration::from_secs(4))
    }

    /// One request, from asking to letting go.
    fn work(&self, lots: &mut Lots) -> io::Result<()> {
        let names: Vec<&String> = self.pools.keys().collect();
        let mut want = BTreeMap::new();
        for _ in 0..if lots.below(5) == 0 { 2 } else { 1 } {
            let name = names[usize::try_from(lots.below(names.len() as u64)).unwrap_or(0)];
            let most = u64::from(self.pools[name]).min(2);
            want.insert(name.clone(), u32::try_from(1 + lots.below(most)).unwrap_or(1));
        }
        let ttl = 500 + lots.below(3000);
        let body = json!({"want": want, "ttl": format!("{ttl}ms"), "wait": "10s"});
        let mut sent = Moment::now();
        let (status, mut request) = self.call("POST", "/v1/requests", Some(&body))?;
        if status != 200 && status != 202 {
            std::thread::sleep(Duration::from_millis(50 + lots.below(100)));
            return Ok(());
        }
        let id = request["id"].as_str().unwrap_or_default().to_owned();
        while request["state"] == "queued" {
            if self.seen.stop.load(Ordering::Relaxed) {
                self.call("DELETE", &format!("/v1/requests/{id}"), None)?;
                return Ok(());
            }
            sent = Moment::now();
            request = self.call("GET", &format!("/v1/requests/{id}?wait=2s"), None)?.1;
        }
        if request["state"] != "granted" {
            return Ok(());
        }
        self.hold(sent, &request["lease"], want, lots)
    }

    fn hold(
        &self,
        sent: Moment,
        lease: &Value,
        want: BTreeMap<String, u32>,
        lots: &mut Lots,
    ) -> io::Result<()> {
        let from = Moment::now();
        let id = lease["id"].as_str().unwrap_or_default().to_owned();
        let units = serde_json::from_value(lease["units"].clone()).unwrap_or_default();
        let mut until = sure_until(sent, lease);
        let mut hold = Hold {
            who: format!("s{}/c{}/{id}", self.site, self.number),
            want,
            units,
            fence: lease["fence"].as_u64().unwrap_or(0),
            from: from.nanos(),
            until: until.nanos(),
        };
        self.seen.grants.fetch_add(1, Ordering::Relaxed);
        let mut result = Ok(());
        let path = format!("/v1/leases/{id}");
        // Some holders die without a word.
        let silent = lots.below(20) == 0;
        let end = from.after(Duration::from_millis(lots.below(600)));
        let renews = lots.below(3);
        for _ in 0..renews {
            std::thread::sleep(Duration::from_millis(lots.below(300)));
            let sent = Moment::now();
            if sent >= until || silent {
                break;
            }
            match self.call("POST", &format!("{path}/renew"), None) {
                Ok((200, lease)) => until = until.max(sure_until(sent, &lease)),
                Ok((410, _)) => {
                    // What was promised holds all the same.
                    self.seen.lost.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Ok(_) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if result.is_ok() && !silent {
            let rest = end.since(Moment::now());
            std::thread::sleep(rest);
            let now = Moment::now();
            // From here on it may be over.
            let told = self.call("DELETE", &path, None);
            until = until.min(now);
            result = told.map(|_| ());
        }
        hold.until = until.nanos();
        self.seen.holds.lock().expect("no client panics").push(hold);
        result
    }
}

fn sure_until(sent: Moment, lease: &Value) -> Moment {
    let millis = lease["expires_in_ms"].as_u64().unwrap_or(0);
    sent.after(Duration::from_secs_f64(millis as f64 / 1000.0 * CAREFUL))
}
