//! Bodies, paths and frames that nobody should send, to a site that must not care.
//!
//! A bounded run in the tests; `cargo xtask fuzz ROUNDS` for a long one. The seed is the round's
//! number, so a failure is repeated by the same command.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use kofm_net::config::PoolConfig;
use kofm_net::wire::Frame;
use kofm_net::{Access, Site};
use serde_json::{Value, json};

/// A generator that gives the same numbers for the same seed.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

fn rounds() -> u64 {
    std::env::var("KOFM_FUZZ").map_or(5_000, |text| text.parse().expect("KOFM_FUZZ is a number"))
}

/// A value that is a little or entirely wrong.
fn bend(value: &mut Value, rng: &mut Rng) {
    let strange = [
        json!(null),
        json!(-1),
        json!(0),
        json!(1),
        json!(4_294_967_296_u64),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("a\u{0}b"),
        json!("30s"),
        json!("9999999999999999h"),
        json!("-1s"),
        json!("../../x"),
        json!([]),
        json!({}),
        json!({"gpu": {"gpu": [[[]]]}}),
        json!(true),
        json!("x".repeat(5_000)),
    ];
    let whole = rng.below(3) == 0;
    match value {
        Value::Object(map) if !whole && !map.is_empty() => {
            let keys: Vec<String> = map.keys().cloned().collect();
            let key = rng.pick(&keys).clone();
            match rng.below(4) {
                0 => drop(map.remove(&key)),
                1 => {
                    map.insert(format!("{key}x"), rng.pick(&strange).clone());
                }
                _ => bend(map.get_mut(&key).unwrap(), rng),
            }
        }
        Value::Array(list) if !whole && !list.is_empty() => {
            let place = rng.below(list.len());
            bend(&mut list[place], rng);
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => *value = rng.pick(&strange).clone(),
    }
}

/// A call that is nearly right.
fn call(rng: &mut Rng) -> (&'static str, String, Vec<u8>) {
    let request = json!({"want": {"gpu": 1, "named": 1}, "ttl": "200ms", "wait": "1ms",
                         "id": "mine", "owner": "me", "reason": "why"});
    let pool = json!({"units": ["a", "b"], "protocol": "permission", "on_expiry": "hold"});
    let calls = [
        ("POST", "/v1/requests", request.clone()),
        ("POST", "/v1/requests", request),
        ("GET", "/v1/requests/mine?wait=1ms", Value::Null),
        ("DELETE", "/v1/requests/mine", Value::Null),
        ("POST", "/v1/leases/L0-00/renew", Value::Null),
        ("DELETE", "/v1/leases/L0-00", Value::Null),
        ("PUT", "/v1/pools/more", pool),
        ("DELETE", "/v1/pools/more", Value::Null),
        ("PUT", "/v1/pools/more/quarantine/0", json!({"reason": "r"})),
        ("DELETE", "/v1/pools/more/quarantine/0", Value::Null),
        ("PUT", "/v1/semaphores/s", json!({"value": 3, "protocol": "sem-token"})),
        ("POST", "/v1/semaphores/s/p", json!({"k": 2, "wait": "1ms"})),
        ("POST", "/v1/semaphores/s/v", json!({"m": 1})),
        ("PUT", "/v1/gangs/g", json!({"members": {"s0": {"gpu": 1}}})),
        ("DELETE", "/v1/gangs/g", Value::Null),
        ("GET", "/v1/history?limit=3", Value::Null),
        ("POST", "/v1/pre-reboot", json!({"client_params": {"id": "n", "group": "gpu"}})),
        ("POST", "/v1/steady-state", json!({"client_params": {"id": "n", "group": "gpu"}})),
    ];
    let (method, path, mut value) = rng.pick(&calls).clone();
    for _ in 0..rng.below(3) {
        bend(&mut value, rng);
    }
    let mut body = if value.is_null() { Vec::new() } else { value.to_string().into_bytes() };
    if rng.below(4) == 0 && !body.is_empty() {
        let place = rng.below(body.len());
        body[place] = u8::try_from(rng.below(256)).unwrap();
    }
    if rng.below(10) == 0 {
        body.truncate(rng.below(body.len() + 1));
    }
    let mut path = path.to_owned();
    if rng.below(6) == 0 {
        let tails = ["%00", "%ff", "/", "?wait=x", "?limit=-1", "&&&", "/../x", "%2f"];
        path.push_str(rng.pick::<&str>(&tails));
    }
    (method, path, body)
}

struct Http(SocketAddr, TcpStream);

impl Http {
    fn new(address: SocketAddr) -> Self {
        Self(address, TcpStream::connect(address).unwrap())
    }

    /// Says it, and reads the answer: status and body. A P may wait for ever, and is given up.
    fn call(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let waits = path.starts_with("/v1/semaphores/s/p");
        let patience = Duration::from_millis(if waits { 500 } else { 60_000 });
        self.1.set_read_timeout(Some(patience)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nfleet-lock-protocol: true\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        self.1.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        let head = loop {
            let mut byte = [0];
            let read = self.1.read(&mut byte);
            if waits && read.is_err() {
                *self = Self::new(self.0);
                return (0, Vec::new());
            }
            assert_eq!(read.unwrap(), 1, "the site hung up on {method} {path}");
            answer.push(byte[0]);
            if answer.ends_with(b"\r\n\r\n") {
                break String::from_utf8(answer).unwrap().to_ascii_lowercase();
            }
        };
        let status = head[9..12].parse().unwrap();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.1.read_exact(&mut body).unwrap();
        if head.contains("connection: close") {
            *self = Self::new(self.0);
        }
        (status, body)
    }
}

#[test]
fn wrong_calls_get_an_error_that_says_so_and_change_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let names = vec!["a".to_owned(), "b".to_owned()];
    let named = PoolConfig { names, ..PoolConfig::new(2) };
    let pools = BTreeMap::from([("gpu".to_owned(), PoolConfig::new(3)), ("named".into(), named)]);
    let (_site, address) = runtime.block_on(async {
        let site = Site::start_together(2, pools).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(kofm_net::http::serve(site[0].clone(), listener, Access::open()));
        (site, address)
    });
    let mut http = Http::new(address);
    for round in 0..rounds() {
        let mut rng = Rng::new(round);
        let (method, path, body) = call(&mut rng);
        let (status, answer) = http.call(method, &path, &body);
        let shown = String::from_utf8_lossy(&body);
        let said = || format!("round {round}: {method} {path} {shown}: {status}");
        assert_ne!(status, 500, "{}", said());
        if status >= 400 && status != 501 && !path.contains("reboot") && !path.contains("steady") {
            let error: Value = serde_json::from_slice(&answer).unwrap_or_default();
            let complete = error["error"].is_string() && error["message"].is_string();
            assert!(complete, "{}: {}", said(), String::from_utf8_lossy(&answer));
        }
        if round % 250 == 0 {
            let (_, pools) = http.call("GET", "/v1/pools", b"");
            for pool in serde_json::from_slice::<Vec<Value>>(&pools).unwrap() {
                let count = |field: &str| pool[field].as_u64().unwrap();
                let sum = count("held") + count("free") + count("quarantined");
                assert_eq!(sum, count("units"), "{}: {pool}", said());
            }
        }
    }
}

#[test]
fn wrong_frames_are_refused() {
    for round in 0..rounds() {
        let mut rng = Rng::new(round);
        let mut buffer = BytesMut::new();
        let length = rng.below(60);
        let body: Vec<u8> = (0..length).map(|_| u8::try_from(rng.below(256)).unwrap()).collect();
        if rng.below(2) == 0 {
            // A right header and sum, so that bodies are reached.
            buffer.put_slice(b"kofm\x06");
            buffer.put_slice(&[u8::try_from(rng.below(9)).unwrap(), 0, 0]);
            buffer.put_u32_le(u32::try_from(body.len()).unwrap());
            let mut sum = crc32fast::Hasher::new();
            sum.update(&buffer);
            sum.update(&body);
            buffer.put_u32_le(sum.finalize());
        }
        buffer.put_slice(&body);
        // Whatever is taken for a frame says the same again.
        if let Ok(Some(frame)) = Frame::decode(&mut buffer, 4096) {
            let mut again = BytesMut::new();
            frame.encode(&mut again);
            assert_eq!(Frame::decode(&mut again, 4096).unwrap(), Some(frame), "round {round}");
        }
    }
}
