//! etcd as a store, through the JSON gateway of its key-value API.
//!
//! Two keys and one per site: `epoch` has the number, `record` what it means, `beat/NAME` a site's
//! last sign of life. Every call is one transaction that looks at `epoch`. etcd's leases are not
//! used: some versions end them early.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::client::{Address, Client, Trust};
use crate::config::EtcdAuth;
use crate::store::{Beat, Later, Pulse, Record, Store, StoreError, Swap};

/// An etcd cluster.
#[derive(Debug)]
pub(crate) struct Etcd {
    prefix: String,
    endpoints: Vec<Client>,
    /// The member that answered last.
    last: AtomicUsize,
    patience: Duration,
    /// Name and password, and the endpoints with the token that etcd gave for them.
    user: Option<(String, String)>,
    identified: Mutex<Option<Vec<Client>>>,
}

impl Etcd {
    /// The record of `cluster`, kept at these members, `http://host:port` each. None of them is
    /// waited for longer than `patience`.
    pub(crate) fn new(
        cluster: &str,
        endpoints: &[String],
        auth: &EtcdAuth,
        patience: Duration,
    ) -> Result<Self, String> {
        let own = auth.own.as_ref().map(|it| (it.0.as_path(), it.1.as_path()));
        let trust = auth.ca.as_ref().map(|ca| Trust::read_with(ca, own));
        let trust = trust.transpose().map_err(|text| format!("etcd_auth: {text}"))?;
        let user = auth.user.as_ref().map(|(name, file)| {
            let password = std::fs::read_to_string(file);
            let wrong = |error| format!("etcd_auth: {}: {error}", file.display());
            Ok::<_, String>((name.clone(), password.map_err(wrong)?.trim_end().to_owned()))
        });
        let user = user.transpose()?;
        let parse = |text: &String| {
            Address::parse(text).map(|it| Client::new(it, None).with_trust(trust.clone()))
        };
        let endpoints: Vec<Client> = endpoints.iter().map(parse).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err("etcd needs at least one endpoint".into());
        }
        let prefix = format!("kofm/{cluster}/");
        let (last, identified) = (AtomicUsize::new(0), Mutex::default());
        Ok(Self { prefix, endpoints, last, patience, user, identified })
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

    /// Calls one member: the status and the body of its answer.
    async fn call(
        &self,
        client: &Client,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        let answer = client.raw(Method::POST, path, body, self.patience).await;
        answer.map_err(|error| format!("etcd: {error}"))
    }

    /// A client of one member that shows the token of this site's user; `fresh`: a new token,
    /// because those of etcd live for minutes.
    async fn identify(&self, number: usize, fresh: bool) -> Result<Client, String> {
        let client = &self.endpoints[number];
        let Some((name, password)) = &self.user else { return Ok(client.clone()) };
        let known = {
            let identified = self.identified.lock().unwrap_or_else(PoisonError::into_inner);
            identified.as_ref().map(|it| it[number].clone())
        };
        if let Some(known) = known.filter(|_| !fresh) {
            return Ok(known);
        }
        let body = json!({"name": name, "password": password}).to_string();
        let (status, answer) = self.call(client, "/v3/auth/authenticate", body.into()).await?;
        // Refusals of the gateway itself are not JSON.
        let text = String::from_utf8_lossy(&answer);
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        let Some(token) = answer["token"].as_str().filter(|_| status.is_success()) else {
            let why = answer["message"].as_str().unwrap_or_else(|| text.trim());
            return Err(format!(
                "etcd: it refuses user `{name}` ({status}: {why}); check user and password_file \
                 of [etcd_auth]"
            ));
        };
        let with_token = |it: &Client| it.clone().with_authorization(Some(token.to_owned()));
        let all: Vec<Client> = self.endpoints.iter().map(with_token).collect();
        let client = all[number].clone();
        *self.identified.lock().unwrap_or_else(PoisonError::into_inner) = Some(all);
        Ok(client)
    }

    /// A transaction at one member. If it is refused, the token may have expired: it is replaced
    /// once.
    async fn transact_at(
        &self,
        number: usize,
        body: &Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        let mut fresh = false;
        loop {
            let client = self.identify(number, fresh).await?;
            let answer = self.call(&client, "/v3/kv/txn", body.clone()).await?;
            if answer.0.is_success() || self.user.is_none() || fresh {
                return Ok(answer);
            }
            fresh = true;
        }
    }

    /// One transaction, at the first member that answers.
    async fn transact(&self, transaction: Value) -> Result<Value, StoreError> {
        let body = Bytes::from(transaction.to_string());
        let first = self.last.load(Ordering::Relaxed);
        let mut trouble = String::new();
        for turn in 0..self.endpoints.len() {
            let number = (first + turn) % self.endpoints.len();
            match self.transact_at(number, &body).await {
                Ok((status, answer)) if status.is_success() => {
                    self.last.store(number, Ordering::Relaxed);
                    let text = "the answer of etcd is not JSON";
                    return serde_json::from_slice(&answer)
                        .map_err(|_| StoreError::Nonsense(text.into()));
                }
                Ok((status, answer)) => {
                    trouble = format!("etcd: {status}: {}", String::from_utf8_lossy(&answer));
                }
                Err(error) => trouble = error,
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
    fn start(dir: &std::path::Path, port: u16, scheme: &str, more: &[String]) -> Option<Server> {
        let client = format!("{scheme}://127.0.0.1:{port}");
        let peer = format!("http://127.0.0.1:{}", free_port());
        let child = Command::new("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(dir)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}"), "--log-level", "error"])
            .args(more)
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

    fn not_run() {
        println!("NOT RUN: there is no etcd here; install it: apt-get install etcd-server");
    }

    /// The answer to the first heartbeat, when etcd has started.
    async fn first_beat(store: &Etcd) -> Beat {
        let mut tries = 0;
        loop {
            match store.beat(Arc::default(), pulse("a", 1), true).await {
                Ok(beat) => return beat,
                Err(error) => assert!(tries < 600, "etcd does not start: {error}"),
            }
            tries += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Certificates in a directory: of an authority, of etcd and of a site.
    fn certificates(dir: &std::path::Path) {
        use crate::authority;
        std::fs::create_dir_all(dir).unwrap();
        let pair = authority::create("etcd").unwrap();
        std::fs::write(dir.join("ca.pem"), &pair.public).unwrap();
        for name in ["etcd", "site"] {
            let made = authority::request("etcd", name).unwrap();
            let hosts = ["127.0.0.1".to_owned(), "localhost".to_owned()];
            let issued = authority::issue(&pair, "etcd", name, &hosts, &made.public).unwrap();
            std::fs::write(dir.join(format!("{name}.pem")), issued).unwrap();
            std::fs::write(dir.join(format!("{name}.key")), made.key).unwrap();
        }
        // Once it has users, etcd refuses certificates with a common name at its gateway.
        let ca = std::fs::read_to_string(dir.join("ca.pem")).unwrap();
        let issuer = rcgen::KeyPair::from_pem(&pair.key).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&ca, issuer).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let nameless = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(dir.join("nameless.pem"), nameless.pem()).unwrap();
        std::fs::write(dir.join("nameless.key"), key.serialize_pem()).unwrap();
    }

    #[tokio::test]
    async fn etcd_is_used_over_tls_with_a_user() {
        let dir = std::env::temp_dir().join(format!("kofm-etcd-tls-{}", std::process::id()));
        certificates(&dir);
        let path = |name: &str| dir.join(name);
        let flags =
            [("cert-file", "etcd.pem"), ("key-file", "etcd.key"), ("trusted-ca-file", "ca.pem")];
        let flags = flags.map(|(flag, file)| format!("--{flag}={}", path(file).display()));
        let flags = [&flags[..], &["--client-cert-auth".to_owned()]].concat();
        let port = free_port();
        let Some(server) = start(&path("data"), port, "https", &flags) else { return not_run() };
        let endpoints = [format!("https://127.0.0.1:{port}")];
        let patience = Duration::from_secs(5);
        let own = Some((path("site.pem"), path("site.key")));
        let tls = EtcdAuth { ca: Some(path("ca.pem")), own, user: None };
        let open = Etcd::new("lab", &endpoints, &tls, patience).unwrap();
        assert_eq!(first_beat(&open).await, Beat::Steady(vec![pulse("a", 1)]));
        // From now on etcd knows who may do what.
        for (what, body) in [
            ("user/add", json!({"name": "root", "password": "r"})),
            ("role/add", json!({"name": "root"})),
            ("user/grant", json!({"user": "root", "role": "root"})),
            ("user/add", json!({"name": "kofm", "password": "secret"})),
            ("role/add", json!({"name": "kofm"})),
            (
                "role/grant",
                json!({"name": "kofm", "perm": {"permType": "READWRITE",
                    "key": encode(b"kofm/lab/"), "range_end": encode(b"kofm/lab0")}}),
            ),
            ("user/grant", json!({"user": "kofm", "role": "kofm"})),
            ("enable", json!({})),
        ] {
            let call = format!("/v3/auth/{what}");
            let body = Bytes::from(body.to_string());
            let (status, answer) = open.call(&open.endpoints[0], &call, body).await.unwrap();
            assert!(status.is_success(), "{what}: {}", String::from_utf8_lossy(&answer));
        }
        let refused = open.beat(Arc::default(), pulse("a", 2), true).await;
        assert!(matches!(refused, Err(StoreError::Unreachable(_))), "{refused:?}");
        let with = |password: &str| {
            std::fs::write(path("password"), format!("{password}\n")).unwrap();
            let user = Some(("kofm".to_owned(), path("password")));
            let own = Some((path("nameless.pem"), path("nameless.key")));
            Etcd::new("lab", &endpoints, &EtcdAuth { own, user, ..tls.clone() }, patience).unwrap()
        };
        let wrong = with("wrong").beat(Arc::default(), pulse("a", 2), true).await;
        let Err(StoreError::Unreachable(text)) = wrong else { panic!("{wrong:?}") };
        assert!(text.contains("invalid user ID or password); check user"), "{text}");
        let store = with("secret");
        let beat = store.beat(Arc::default(), pulse("a", 2), true).await;
        assert_eq!(beat, Ok(Beat::Steady(vec![pulse("a", 2)])));
        // A token that etcd does not know any more is replaced.
        let stale = |it: &Client| it.clone().with_authorization(Some("gone.7".to_owned()));
        let stale = store.endpoints.iter().map(stale).collect();
        *store.identified.lock().unwrap() = Some(stale);
        assert_eq!(store.swap(record(1, b"x")).await, Ok(Swap::Done));
        // The authority of another etcd is not believed.
        certificates(&path("other"));
        let other = EtcdAuth { ca: Some(path("other").join("ca.pem")), ..tls.clone() };
        let other = Etcd::new("lab", &endpoints, &other, patience).unwrap();
        assert!(other.beat(Arc::default(), pulse("a", 3), true).await.is_err());
        drop(server);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test]
    async fn etcd_keeps_the_record() {
        let dir = std::env::temp_dir().join(format!("kofm-etcd-{}", std::process::id()));
        let port = free_port();
        let Some(server) = start(&dir, port, "http", &[]) else { return not_run() };
        let dead = format!("http://127.0.0.1:{}", free_port());
        let endpoints = [dead, format!("http://127.0.0.1:{port}")];
        let patience = Duration::from_secs(5);
        let store = Etcd::new("lab", &endpoints, &EtcdAuth::default(), patience).unwrap();
        let first = first_beat(&store).await;
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
