//! `kofm` against wrong addresses, servers that are no sites, and other versions: one sentence
//! that says what to do, and the exit code of the contract.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use crate::harness::command;

/// A server that answers each connection with this head and body.
fn server(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}");
    raw(head.into_bytes())
}

fn raw(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            // A part of the request is enough to know that it came.
            let _read = stream.read(&mut head);
            stream.write_all(&answer).ok();
        }
    });
    address.to_string()
}

fn json(status: &str, body: &str) -> String {
    server(status, "content-type: application/json\r\n", body)
}

/// The command fails with one line on standard error, which has these parts.
fn fails(addr: &str, args: &[&str], code: i32, parts: &[&str]) {
    let output = command(addr, args).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?} at {addr}: {text}");
    assert!(output.stdout.is_empty(), "{args:?} at {addr}");
    assert_eq!(text.lines().count(), 1, "{text}");
    let line = text.trim_end();
    assert!(line.starts_with("kofm: ") && !line.ends_with('.'), "{line}");
    for part in parts {
        assert!(line.contains(part), "{part}: {line}");
    }
}

const ACQUIRE: &[&str] = &["acquire", "gpu", "--wait", "0"];

#[test]
fn a_wrong_address_or_server_is_explained_in_one_sentence() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let html = "content-type: text/html\r\n";
    let via = "content-type: text/html\r\nvia: 1.1 squid\r\n";
    for (addr, parts) in [
        (port, &["no process listens", "start the site"][..]),
        ("kofm.invalid:7600".to_owned(), &["host name is unknown", "check the address"]),
        (raw(b"\x15\x03\x01\x00\x02\x02\x46".to_vec()), &["requires https://"]),
        (raw(Vec::new()), &["closed the connection", "address of its peers"]),
        (server("200 OK", html, "<h1>Hello</h1>"), &["another server or a proxy", "status 200"]),
        (
            server("502 Bad Gateway", via, "<h1>No</h1>"),
            &["a proxy (1.1 squid)", "check the proxy"],
        ),
        (
            server("400 Bad Request", "", "Client sent an HTTP request to an HTTPS server."),
            &["requires TLS", "write https://"],
        ),
    ] {
        fails(&format!("http://{addr}"), ACQUIRE, 69, parts);
        fails(&format!("http://{addr}"), &["status"], 69, parts);
    }
}

#[test]
fn another_version_of_a_site_is_explained_in_one_sentence() {
    let path = r#"{"error":"not-found","message":"there is nothing at /v1/usage; look"}"#;
    let older = json("404 Not Found", path);
    fails(&older, &["usage"], 69, &["does not know GET /v1/usage", "older", "upgrade the site"]);
    let field = r#"{"error":"malformed","message":"the body: unknown field `owner`"}"#;
    let older = json("422 Unprocessable Entity", field);
    fails(&older, ACQUIRE, 69, &["older than this client", "upgrade the site"]);
    let newer = json("200 OK", r#"{"id":"r","state":"promised","want":{}}"#);
    fails(&newer, ACQUIRE, 69, &["promised", "upgrade this client"]);
    let code = r#"{"error":"too-hot","message":"the room is too hot; open a window"}"#;
    fails(&json("409 Conflict", code), ACQUIRE, 75, &["the room is too hot"]);
    let told = r#"{"error":"unauthorized","message":"token rejected: revoked; set KOFM_TOKEN"}"#;
    fails(&json("401 Unauthorized", told), ACQUIRE, 77, &["token rejected", "set KOFM_TOKEN"]);
}

#[test]
fn a_wrong_value_of_a_flag_is_wrong_usage() {
    // No site is asked.
    let nowhere = "http://127.0.0.1:1";
    for args in [
        &["usage", "--since", "foo"][..],
        &["usage", "--by", "colour"],
        &["history", "--since", "yesterday"],
        &["history", "--until", "2026-13-01"],
        &["history", "--limit", "0"],
        &["audit", "--since", "x"],
        &["acquire", "gpu", "--ttl", "x"],
    ] {
        let output = command(nowhere, args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {text}");
        assert!(text.contains(args[args.len() - 1]), "{args:?}: {text}");
    }
}
