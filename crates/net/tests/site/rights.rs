//! Principals over real sockets: 401 and 403, own and foreign leases, revocation at all sites.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kofm_net::Site;
use kofm_net::api::{Code, State, Submit};
use kofm_net::client::{Address, Client};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::edge::{Answered, call, start};

async fn ask(at: SocketAddr, token: &str, method: &str, path: &str, body: &str) -> Answered {
    let header = format!("authorization: Bearer {token}\r\n");
    call(at, method, path, &header, body).await
}

async fn principal(site: &Site, name: &str, rules: &[&str]) -> String {
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    site.create_token(name, rules).await.unwrap().token.unwrap()
}

#[tokio::test]
async fn each_path_needs_its_right() {
    let (sites, at) = start(2, 4).await;
    let admin = principal(&sites[0], "admin", &["admin:*"]).await;
    let ci = principal(&sites[1], "ci", &["read,acquire:gpu"]).await;
    let eye = principal(&sites[1], "eye", &["read:gpu"]).await;
    let nil = principal(&sites[0], "nil", &[]).await;
    let want = r#"{"want":{"gpu":1},"ttl":"1m","id":"job"}"#;
    for (path, status) in [("/v1/pools", 401), ("/v1/fast", 401), ("/healthz", 200)] {
        assert_eq!(call(at[0], "GET", path, "", "").await.status, status, "{path}");
        assert_eq!(ask(at[1], "wrong", "GET", path, "").await.status, status, "{path}");
    }
    let cases = [
        (&nil, "POST", "/v1/requests", want, 403, "`acquire` on pool `gpu`"),
        (&eye, "POST", "/v1/requests", want, 403, "principal `eye` lacks `acquire`"),
        (&nil, "GET", "/v1/pools/gpu", "", 403, "`read` on pool `gpu`"),
        (&ci, "PUT", "/v1/pools/gpu", r#"{"units":9}"#, 403, "`admin` on pool `gpu`"),
        (&ci, "PUT", "/v1/pools/gp%75", r#"{"units":9}"#, 403, "`admin` on pool `gpu`"),
        (&ci, "DELETE", "/v1/pools/gpu", "", 403, "`admin`"),
        (&ci, "PUT", "/v1/pools/gpu/quarantine/0", r#"{"reason":"x"}"#, 403, "`operate`"),
        (&ci, "GET", "/v1/tokens", "", 403, "`admin` on pattern `*`"),
        (&ci, "POST", "/v1/rules/ci", r#"{"allow":["admin:*"]}"#, 403, "`admin`"),
        (&ci, "PUT", "/v1/semaphores/s", r#"{"value":1}"#, 403, "`admin` on semaphore `s`"),
        (&ci, "POST", "/v1/semaphores/s/p", "{}", 403, "`acquire` on semaphore `s`"),
        (&ci, "POST", "/v1/gangs/g/start", "{}", 403, "`acquire` on gang `g`"),
        (&ci, "DELETE", "/v1/members/s0", "", 403, "`admin`"),
        (&ci, "POST", "/v1/requests", r#"{"want":{"gpu":1},"principal":"admin"}"#, 422, "field"),
        (&admin, "GET", "/v1/rules", "", 200, "acquire:gpu"),
        (&nil, "GET", "/v1/health", "", 200, ""),
    ];
    for (token, method, path, body, status, text) in cases {
        let answer = ask(at[1], token, method, path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert!(answer.body.contains(text), "{method} {path}: {}", answer.body);
    }
    let fleet = r#"{"client_params":{"id":"n","group":"gpu"}}"#;
    let header = format!("authorization: Bearer {eye}\r\nfleet-lock-protocol: true\r\n");
    assert_eq!(call(at[0], "POST", "/v1/pre-reboot", &header, fleet).await.status, 403);
}

#[tokio::test]
async fn a_lease_belongs_to_its_principal() {
    let (sites, at) = start(2, 4).await;
    let admin = principal(&sites[0], "admin", &["admin:*"]).await;
    let ci = principal(&sites[0], "ci", &["acquire:gpu"]).await;
    let bob = principal(&sites[0], "bob", &["read,acquire:*"]).await;
    let want = r#"{"want":{"gpu":1},"ttl":"1m","id":"job"}"#;
    let made = ask(at[0], &ci, "POST", "/v1/requests", want).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let lease = made.json()["lease"]["id"].as_str().unwrap().to_owned();
    assert_eq!(made.json()["principal"], "ci");
    // The id of another principal's request gives its lease away to nobody.
    for site in &at {
        let taken = ask(*site, &bob, "POST", "/v1/requests", want).await;
        assert_eq!(taken.status, 403, "{}", taken.body);
        let seen = ask(*site, &bob, "GET", "/v1/requests/job", "").await;
        assert_eq!(seen.status, 200);
        assert!(!seen.body.contains(&lease), "{}", seen.body);
        let seen = ask(*site, &bob, "GET", "/v1/leases", "").await;
        assert!(seen.body.contains("\"ci\"") && !seen.body.contains(&lease), "{}", seen.body);
        let own = ask(*site, &ci, "GET", "/v1/leases", "").await;
        let name = &own.json()[0]["name"];
        assert!(lease.starts_with(name.as_str().unwrap()), "{}", own.body);
        assert!(!own.body.contains(&lease), "lists have no secrets: {}", own.body);
        for (method, path) in [
            ("DELETE", format!("/v1/leases/{lease}")),
            ("DELETE", format!("/v1/leases/{}", name.as_str().unwrap())),
            ("POST", format!("/v1/leases/{lease}/renew")),
            ("DELETE", "/v1/requests/job".to_owned()),
        ] {
            let answer = ask(*site, &bob, method, &path, "").await;
            assert_eq!(answer.status, 403, "{method} {path}: {}", answer.body);
        }
    }
    let renewed = ask(at[1], &ci, "POST", &format!("/v1/leases/{lease}/renew"), "").await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    // A principal that sees no pool sees no lease.
    let blind = principal(&sites[1], "blind", &["acquire:other*"]).await;
    assert_eq!(ask(at[0], &blind, "GET", "/v1/leases", "").await.json(), json!([]));
    assert_eq!(ask(at[0], &blind, "GET", "/v1/pools", "").await.json(), json!([]));
    assert_eq!(ask(at[0], &blind, "GET", "/v1/requests/job", "").await.status, 403);
    let history = ask(at[1], &blind, "GET", "/v1/history", "").await;
    assert!(!history.body.contains("gpu"), "{}", history.body);
    let history = ask(at[1], &admin, "GET", "/v1/history", "").await;
    assert!(history.body.contains("\"principal\":\"ci\""), "{}", history.body);
    let path = format!("/v1/leases/{lease}");
    assert_eq!(ask(at[1], &ci, "DELETE", &path, "").await.status, 200);
    assert_eq!(ask(at[0], &ci, "DELETE", &path, "").await.status, 200, "again is harmless");
}

#[tokio::test]
async fn the_lean_protocol_needs_the_same_rights() {
    let (sites, at) = start(2, 4).await;
    principal(&sites[0], "admin", &["admin:*"]).await;
    let ci = principal(&sites[0], "ci", &["acquire:gpu"]).await;
    let eye = principal(&sites[0], "eye", &["read:gpu"]).await;
    let client = |at: SocketAddr, token: &str| {
        let address = Address::parse(&format!("http://{at}")).unwrap();
        let token = token.to_owned();
        async move { Client::new(address, Some(token)).fast().await }
    };
    let want = Submit { want: [("gpu".to_owned(), 1)].into(), ..Submit::default() };
    let fast = client(at[0], &ci).await.unwrap();
    let held = fast.acquire(&want).await.unwrap();
    let other = client(at[1], &eye).await.unwrap();
    let error = other.acquire(&want).await.unwrap_err().to_string();
    assert!(error.contains("lacks `acquire` on pool `gpu`"), "{error}");
    let lease = held.lease().id.to_string();
    let error = other.release(&lease).await.unwrap_err().to_string();
    assert!(error.contains("lacks `release-any` on pool `gpu`"), "{error}");
    held.release().await.unwrap();
    // A connection that is open does not outlive its token.
    sites[1].revoke_token("ci").await.unwrap();
    let error = fast.acquire(&want).await.unwrap_err().to_string();
    assert!(error.contains("token rejected"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_site_serves_a_revoked_token() {
    let (sites, at) = start(3, 4).await;
    principal(&sites[0], "admin", &["admin:*"]).await;
    let good = principal(&sites[0], "good", &["read:*"]).await;
    for round in 0..3 {
        let name = format!("old-{round}");
        let old = principal(&sites[round], &name, &["read:*"]).await;
        let (revoked, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let served = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for &site in &at {
            for token in [&old, &good] {
                let (revoked, stop) = (Arc::clone(&revoked), Arc::clone(&stop));
                let (token, served) = (token.clone(), Arc::clone(&served));
                let valid = token == good;
                tasks.push(tokio::spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let over = revoked.load(Ordering::SeqCst);
                        let status = ask(site, &token, "GET", "/v1/pools", "").await.status;
                        served.fetch_add(usize::from(status == 200), Ordering::SeqCst);
                        if valid {
                            assert_eq!(status, 200, "a valid client was refused");
                        } else {
                            assert!(!over || status == 401, "{site}: {status} after the return");
                        }
                    }
                }));
            }
        }
        while served.load(Ordering::SeqCst) < 30 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sites[(round + 1) % 3].revoke_token(&name).await.unwrap();
        revoked.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_and_a_poll_end_when_their_token_is_revoked() {
    let (sites, at) = start(2, 1).await;
    principal(&sites[0], "admin", &["admin:*"]).await;
    let old = principal(&sites[0], "old", &["read,acquire:*"]).await;
    let want = r#"{"want":{"gpu":1},"ttl":"10m","id":"held"}"#;
    assert_eq!(ask(at[0], &old, "POST", "/v1/requests", want).await.status, 200);
    let want = r#"{"want":{"gpu":1},"id":"waits"}"#;
    assert_eq!(ask(at[0], &old, "POST", "/v1/requests", want).await.status, 202);
    let (token, place) = (old.clone(), at[0]);
    let poll =
        tokio::spawn(
            async move { ask(place, &token, "GET", "/v1/requests/waits?wait=1m", "").await },
        );
    let mut stream = TcpStream::connect(at[0]).await.unwrap();
    let head = format!("host: localhost\r\nauthorization: Bearer {old}\r\n");
    let text = format!("GET /v1/events HTTP/1.1\r\n{head}\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while !seen.windows(4).any(|it| it == b"id: ") {
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..count]);
    }
    sites[1].revoke_token("old").await.unwrap();
    // Something happens that the client might have seen, and both calls end without it.
    sites[1].cancel("waits").await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(!rest.contains("event: cancelled"), "{rest}");
    let answer = poll.await.unwrap();
    assert_eq!(answer.status, 401, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_principal_cannot_fill_a_site() {
    let (sites, _) = start(1, 1).await;
    let long = "x".repeat(1000);
    let spec = |name: &str, id: String| Submit {
        want: [("gpu".to_owned(), 1)].into(),
        id: Some(id),
        owner: Some(long.clone()),
        reason: Some(long.clone()),
        principal: Some(name.to_owned()),
        ..Submit::default()
    };
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16_000 {
        let (site, spec) = (sites[0].clone(), spec("greedy", format!("{number}")));
        tasks.spawn(async move { site.submit(spec).await.map_err(|error| error.error) });
    }
    let ends = tasks.join_all().await;
    let good: Vec<_> = ends.iter().filter_map(|it| it.as_ref().ok()).collect();
    let refused = ends.iter().filter(|it| matches!(it, Err(Code::TooMany))).count();
    assert_eq!(good.len() + refused, 16_000);
    assert!(refused > 0 && good.len() > 5_000, "{} of 16,000 are in", good.len());
    // Another one is served, and so is the first when some of its requests have ended.
    assert_eq!(sites[0].submit(spec("modest", "m".into())).await.unwrap().state, State::Queued);
    let more = sites[0].submit(spec("greedy", "more".into())).await.unwrap_err();
    assert!(more.message.contains("principal `greedy`"), "{}", more.message);
    let waits = good.iter().find(|it| it.state == State::Queued).unwrap();
    sites[0].cancel(&waits.id).await.unwrap();
    assert!(sites[0].submit(spec("greedy", "more".into())).await.is_ok());
}
