//! The HTTP edge over real sockets: health, browsers, credentials, unknown input.

use std::net::SocketAddr;

use kofm_core::Kind;
use kofm_net::{Access, Site};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::{pool, pools};

/// A status, the head in lower case, and the body.
pub(crate) struct Answered {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answered {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }

    pub(crate) fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// One call on a connection of its own; `headers` are whole lines.
pub(crate) async fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Answered {
    let host = if headers.contains("host:") { "" } else { "host: localhost\r\n" };
    let mut stream = TcpStream::connect(address).await.unwrap();
    let text = format!(
        "{method} {path} HTTP/1.1\r\n{host}{headers}connection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answered { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// Sites in one process, and where they answer.
pub(crate) async fn start(sites: usize, units: u32) -> (Vec<Site>, Vec<SocketAddr>) {
    let table = pools(&[("gpu", pool(units, Kind::Roaming))]);
    let sites = Site::start_together(sites, table).await.unwrap();
    let mut addresses = Vec::new();
    for site in &sites {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap());
        tokio::spawn(kofm_net::http::serve(site.clone(), listener, Access::open()));
    }
    (sites, addresses)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_has_a_verdict_on_health() {
    let (sites, addresses) = start(2, 2).await;
    sites[0].connected().await;
    let paths = ["/v1/pools", "/v1/pools/none", "/nowhere", "/", "/metrics", "/healthz"];
    for path in paths {
        let answer = call(addresses[0], "GET", path, "", "").await;
        assert_eq!(answer.header("kofm-health"), Some("ok"), "{path}: {}", answer.head);
    }
    let health = call(addresses[0], "GET", "/v1/health", "", "").await.json();
    assert_eq!((health["health"].as_str(), health["problems"][0].as_str()), (Some("ok"), None));

    sites[1].drain(std::time::Duration::ZERO).await;
    let answer = call(addresses[1], "GET", "/v1/health", "", "").await;
    assert_eq!(answer.header("kofm-health"), Some("draining"));
    let problem = &answer.json()["problems"][0];
    assert_eq!(problem["code"].as_str(), Some("draining"), "{problem}");
    assert!(problem["message"].as_str().unwrap().contains("s1"), "{problem}");
    assert!(!problem["action"].as_str().unwrap().is_empty());

    sites[1].stop().await;
    let missing = async {
        while sites[0].verdict() != "missing=s1" {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::LONG, missing).await.expect("the missing site is named");
    let answer = call(addresses[0], "GET", "/v1/health", "", "").await;
    assert_eq!(answer.header("kofm-health"), Some("missing=s1"));
    assert_eq!(answer.json()["problems"][0]["code"].as_str(), Some("missing"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_parameters_and_fields_are_named_and_refused() {
    let (_sites, addresses) = start(1, 2).await;
    for (method, path, body, named) in [
        ("GET", "/v1/leases?pol=gpu", "", "`pol`"),
        ("GET", "/v1/queue?pool=gpu&x=1", "", "`x`"),
        ("GET", "/v1/pools?limit=1", "", "`limit`"),
        ("GET", "/v1/requests/none?wat=1s", "", "`wat`"),
        ("POST", "/v1/requests?dry", r#"{"want":{"gpu":1}}"#, "`dry`"),
        ("POST", "/v1/requests", r#"{"want":{"gpu":1},"tll":"1s"}"#, "`tll`"),
        ("PUT", "/v1/pools/x", r#"{"units":1,"unit":2}"#, "`unit`"),
        ("POST", "/v1/semaphores/s/p", r#"{"q":1}"#, "`q`"),
        ("POST", "/v1/leases/L0-1/renew", r#"{"ttl":"1h"}"#, "`ttl`"),
    ] {
        let answer = call(addresses[0], method, path, "", body).await;
        assert_eq!(answer.status, 422, "{method} {path} {body}: {}", answer.body);
        assert!(answer.message().contains(named), "{method} {path}: {}", answer.body);
    }
    // The fields of a list have no names.
    for (method, path, body) in [
        ("POST", "/v1/requests", r#"[{"gpu":1},null,null,"id"]"#),
        ("POST", "/v1/gangs/g/start", "[null,null]"),
        ("POST", "/v1/leases/L0-1/renew", "[]"),
        ("DELETE", "/v1/leases/L0-1", "[]"),
        ("DELETE", "/v1/leases/L0-1", r#"{"force":true}"#),
    ] {
        let answer = call(addresses[0], method, path, "", body).await;
        assert_eq!(answer.status, 422, "{method} {path} {body}: {}", answer.body);
    }
    // A field that only sites set is not offered to clients.
    let body = r#"{"want":{"gpu":1},"principal":"root"}"#;
    let answer = call(addresses[0], "POST", "/v1/requests", "", body).await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    let text = "the body: unknown field `principal`; it must be one of id, owner, reason, ttl, \
                wait, want";
    assert_eq!(answer.message(), text);
    let known = call(addresses[0], "GET", "/v1/leases?pol=gpu", "", "").await.message();
    assert!(known.contains("pool"), "{known}");
    assert_eq!(call(addresses[0], "GET", "/v1/leases?pool=gpu", "", "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_and_rejected_tokens_are_told_apart() {
    let sites = Site::start_together(1, pools(&[("gpu", pool(1, Kind::Roaming))])).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let file = std::env::temp_dir().join(format!("kofm-edge-{}", std::process::id()));
    std::fs::write(&file, "right\n").unwrap();
    let access = Access::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    tokio::spawn(kofm_net::http::serve(sites[0].clone(), listener, access));
    for (header, status, text) in [
        ("", 401, "token missing"),
        ("authorization: Bearer wrong\r\n", 401, "token rejected"),
        ("authorization: Bearer right\r\n", 200, ""),
    ] {
        let answer = call(address, "GET", "/v1/pools", header, "").await;
        assert_eq!(answer.status, status, "{header}: {}", answer.body);
        assert!(answer.message().contains(text), "{header}: {}", answer.body);
        assert_eq!(answer.header("kofm-health"), Some("ok"));
        let asks = answer.header("www-authenticate").is_some();
        assert_eq!(asks, status == 401);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_page_changes_and_reads_nothing() {
    let (sites, addresses) = start(1, 4).await;
    let (address, want) = (addresses[0], r#"{"want":{"gpu":1}}"#);
    let own = format!("origin: http://{address}\r\nhost: {address}\r\n");
    for (headers, status) in [
        ("host: evil.example\r\n", 403),
        ("host: evil.example:7600\r\n", 403),
        ("origin: http://evil.example\r\n", 403),
        ("origin: null\r\ncontent-type: text/plain\r\n", 403),
        ("sec-fetch-site: cross-site\r\ncontent-type: application/json\r\n", 403),
        ("origin: http://evil.example\r\ncontent-type: application/json\r\n", 403),
        (&format!("{own}content-type: text/plain\r\n"), 415),
        (&format!("{own}content-type: application/x-www-form-urlencoded\r\n"), 415),
    ] {
        let answer = call(address, "POST", "/v1/requests", headers, want).await;
        assert_eq!(answer.status, status, "{headers}: {}", answer.body);
        assert!(!answer.message().is_empty());
    }
    for path in ["/v1/leases", "/metrics", "/"] {
        assert_eq!(call(address, "GET", path, "host: evil.example\r\n", "").await.status, 403);
    }
    let delete = "origin: http://evil.example\r\n";
    assert_eq!(call(address, "DELETE", "/v1/pools/gpu", delete, "").await.status, 403);
    assert!(sites[0].leases().await.unwrap().0.is_empty());

    // The site's own page, curl, and names without a dot.
    for headers in [
        &format!("{own}content-type: application/json; charset=utf-8\r\n"),
        "content-type: application/x-www-form-urlencoded\r\n",
        "host: [::1]:7600\r\n",
        "host: gpu-box:7600\r\n",
    ] {
        let answer = call(address, "POST", "/v1/requests", headers, want).await;
        assert_eq!(answer.status, 200, "{headers}: {}", answer.body);
    }
    let page = call(address, "GET", "/", "", "").await;
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("frame-ancestors 'none'") && policy.contains("default-src 'none'"));
    assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
    let files: Vec<&str> = page.body.split('"').filter(|it| it.starts_with("/console/")).collect();
    assert_eq!(files, ["/console/console.css", "/console/main.js"]);
    for path in files {
        assert_eq!(call(address, "GET", path, "", "").await.status, 200, "{path}");
    }
    assert_eq!(call(address, "GET", "/console/nothing.js", "", "").await.status, 404);
    let api = call(address, "GET", "/v1/pools", "", "").await;
    for answer in [&page, &api] {
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    assert_eq!(page.header("x-frame-options"), Some("deny"));
}
