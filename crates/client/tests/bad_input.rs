//! Errors of the client at a wrong address, a server that is not a site, and other versions.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use kofm_client::api::{Code, Lease, Submit};
use kofm_client::{Address, Client, ClientError};

/// A server that answers each connection with these bytes.
fn server(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            // A part of the request is enough to know that it came.
            let _read = stream.read(&mut head);
            stream.write_all(answer).ok();
        }
    });
    address
}

/// An answer with this head and body.
fn http(status: &str, headers: &str, body: &str) -> &'static [u8] {
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}");
    text.into_bytes().leak()
}

fn json(status: &str, body: &str) -> &'static [u8] {
    http(status, "content-type: application/json\r\n", body)
}

fn client(address: &str) -> Client {
    Client::new(Address::parse(address).unwrap(), Some("secret-token".into()))
}

/// The error of an acquisition, which must be one sentence without the token.
async fn fails(client: &Client, texts: &[&str]) -> ClientError {
    let spec = Submit { want: [("gpu".to_owned(), 1)].into(), ..Submit::default() };
    let error = client.acquire(&spec).await.unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
    assert!(!text.contains("secret-token"), "{text}");
    for part in texts {
        assert!(text.contains(part), "{part}: {text}");
    }
    error
}

async fn fails_at(answer: &'static [u8], texts: &[&str]) -> ClientError {
    let address = server(answer).to_string();
    fails(&client(&address), texts).await
}

#[tokio::test]
async fn addresses_without_a_site_are_explained() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = fails(&client(&port.to_string()), &["no process listens", "start the site"]).await;
    assert!(matches!(error, ClientError::Unreachable(_)));
    fails(&client("kofm.invalid:7600"), &["host name is unknown", "check the address"]).await;
    fails(&client("unix:/none/kofm.sock"), &["socket does not exist"]).await;
    // 192.0.2.0/24 is for documentation; 255.255.255.255 is never a route of TCP.
    fails(&client("255.255.255.255:7600"), &["check the address"]).await;
}

#[tokio::test]
async fn wrong_schemes_and_ports_are_explained() {
    // A TLS server answers an HTTP request with an alert.
    fails_at(b"\x15\x03\x01\x00\x02\x02\x46", &["requires https://"]).await;
    fails_at(
        http("400 Bad Request", "", "Client sent an HTTP request to an HTTPS server."),
        &["requires TLS", "write https://"],
    )
    .await;
    let told = r#"{"error":"malformed","message":"this address speaks HTTPS: write https://"}"#;
    let error = fails_at(json("400 Bad Request", told), &["speaks HTTPS: write https://"]).await;
    assert!(matches!(error, ClientError::Unreachable(_)), "{error:?}");
    // The port for other sites closes the connection.
    fails_at(b"", &["closed the connection", "address of its peers", "check the address"]).await;
    fails_at(b"220 mail.example ESMTP\r\n", &["not HTTP", "write the site's `http` address"]).await;
}

#[tokio::test]
async fn other_servers_and_proxies_are_explained() {
    let html = "content-type: text/html\r\n";
    let other = http("200 OK", html, "<h1>Welcome</h1>");
    let error = fails_at(other, &["another server or a proxy", "status 200"]).await;
    assert!(matches!(error, ClientError::Unreachable(_)), "{error:?}");
    let gateway = "content-type: text/html\r\nvia: 1.1 squid\r\n";
    fails_at(
        http("502 Bad Gateway", gateway, "<h1>Bad Gateway</h1>"),
        &["a proxy (1.1 squid) answered with status 502", "check the proxy"],
    )
    .await;
    let login = http("407 Proxy Authentication Required", html, "");
    fails_at(login, &["requires its own login", "direct route"]).await;
    fails_at(http("404 Not Found", html, "nginx"), &["another server", "status 404"]).await;
}

#[tokio::test]
async fn another_address_is_used_instead_of_a_stranger() {
    let lease = r#"{"id":"L","request":"r","units":{"gpu":["0"]},"fence":1,"ttl_ms":60000,
        "expires_in_ms":60000,"site":"s0","epoch":1,"state":"live","held_ms":0,"later":1}"#;
    let list = format!("{{\"leases\":[{lease}]}}");
    let html = "content-type: text/html\r\n";
    let addresses = [server(http("502 Bad Gateway", html, "")), server(json("200 OK", &list))];
    let addresses = addresses.map(|it| Address::Tcp(it.to_string())).to_vec();
    let client = Client::of_several(addresses, None).unwrap();
    let leases: Vec<Lease> = client.list("/v1/leases").await.unwrap();
    assert_eq!((leases.len(), leases[0].fence), (1, 1));
}

#[tokio::test]
async fn older_and_newer_sites_are_explained() {
    let path = concat!(
        r#"{"error":"not-found","message":"there is nothing at /v1/requests; "#,
        r#"/openapi.json lists what there is"}"#
    );
    let error = fails_at(
        json("404 Not Found", path),
        &["does not know POST /v1/requests", "older than this client", "upgrade the site"],
    )
    .await;
    assert!(matches!(error, ClientError::Incompatible(_)));
    let field = r#"{"error":"malformed","message":"the body: unknown field `reason`"}"#;
    fails_at(
        json("422 Unprocessable Entity", field),
        &["older than this client", "unknown field `reason`", "upgrade the site"],
    )
    .await;
    let state = r#"{"id":"r","state":"promised","want":{}}"#;
    fails_at(
        json("200 OK", state),
        &["POST /v1/requests", "promised", "upgrade this client to the version of the site"],
    )
    .await;
    // A code of a later version means what its status means.
    let code = r#"{"error":"too-hot","message":"the room is too hot; open a window"}"#;
    let error = fails_at(json("409 Conflict", code), &["the room is too hot"]).await;
    let ClientError::Refused(refused) = error else { panic!("{error:?}") };
    assert_eq!(refused.error, Code::InUse);
}

#[tokio::test]
async fn refused_tokens_are_explained() {
    let told = concat!(
        r#"{"error":"unauthorized","message":"token rejected: it is neither a token of the "#,
        r#"cluster (revoked?) nor in the site's token_file; set KOFM_TOKEN to a valid one"}"#
    );
    let error = fails_at(
        json("401 Unauthorized", told),
        &["not allowed: token rejected", "revoked?", "set KOFM_TOKEN"],
    )
    .await;
    assert!(!error.to_string().contains('{'), "{error}");
    assert!(matches!(error, ClientError::Forbidden(_)));
    let told = r#"{"error":"forbidden","message":"principal `ci` lacks `acquire` on pool `gpu`"}"#;
    fails_at(json("403 Forbidden", told), &["principal `ci` lacks `acquire`"]).await;
}
