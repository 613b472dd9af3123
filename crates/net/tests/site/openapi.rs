//! `/openapi.json` against the router: every operation is in it, and every answer that it lists
//! is given by some call. In a debug build a site panics at an answer that it does not list.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use kofm_core::Kind;
use kofm_net::{Access, Site};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::edge::{call, start};
use crate::{pool, pools};

const METHODS: [&str; 5] = ["get", "post", "put", "delete", "patch"];

/// An operation of the document.
struct Operation {
    method: String,
    path: String,
    value: Value,
}

impl Operation {
    fn id(&self) -> &str {
        self.value["operationId"].as_str().unwrap()
    }

    /// Its path with names that nothing has.
    fn place(&self) -> String {
        let path = self.path.replace("{name}", "none").replace("{id}", "none");
        path.replace("{unit}", "0").replace("{change}", "drain")
    }

    fn is_open(&self) -> bool {
        self.value["security"].as_array().unwrap().is_empty()
    }

    /// Statuses, and the error codes of each.
    fn answers(&self) -> BTreeSet<(u16, String)> {
        let mut set = BTreeSet::new();
        for (status, response) in self.value["responses"].as_object().unwrap() {
            let status: u16 = status.parse().unwrap();
            let codes = response["x-error-codes"].as_array().cloned().unwrap_or_default();
            // Answers that are not errors of the API have no code.
            let fleet = response["content"].to_string().contains("/FleetError");
            let plain = codes.is_empty() || fleet;
            set.extend(plain.then(|| (status, String::new())));
            set.extend(codes.iter().map(|code| (status, code.as_str().unwrap().to_owned())));
        }
        set
    }

    fn is_fleet(&self) -> bool {
        self.path == "/v1/pre-reboot" || self.path == "/v1/steady-state"
    }
}

async fn document(at: SocketAddr) -> (Value, Vec<Operation>) {
    let value = call(at, "GET", "/openapi.json", "", "").await.json();
    let mut list = Vec::new();
    for (path, methods) in value["paths"].as_object().unwrap() {
        for (method, it) in methods.as_object().unwrap() {
            let (method, path) = (method.clone(), path.clone());
            list.push(Operation { method, path, value: it.clone() });
        }
    }
    (value, list)
}

/// A site that asks for the token `right`.
async fn guarded() -> (Site, SocketAddr) {
    let sites = Site::start_together(1, pools(&[("gpu", pool(1, Kind::Roaming))])).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(kofm_net::http::serve(sites[0].clone(), listener, Access::token("right")));
    (sites[0].clone(), address)
}

/// References to parts of the document.
fn references(value: &Value, list: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            list.extend(map.get("$ref").map(|it| it.as_str().unwrap().to_owned()));
            map.values().for_each(|it| references(it, list));
        }
        Value::Array(all) => all.iter().for_each(|it| references(it, list)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_description_is_whole() {
    let (_sites, at) = start(1, 2).await;
    let (value, operations) = document(at[0]).await;
    // The paths of the contract, which no change of the table may drop.
    for (method, path) in [
        ("post", "/v1/requests"),
        ("get", "/v1/requests/{id}"),
        ("delete", "/v1/requests/{id}"),
        ("post", "/v1/leases/{id}/renew"),
        ("delete", "/v1/leases/{id}"),
        ("get", "/v1/leases"),
        ("get", "/v1/queue"),
        ("get", "/v1/members"),
        ("get", "/v1/history"),
        ("get", "/v1/usage"),
        ("get", "/v1/health"),
        ("get", "/v1/pools"),
        ("get", "/v1/pools/{name}"),
        ("put", "/v1/pools/{name}"),
        ("delete", "/v1/pools/{name}"),
        ("put", "/v1/semaphores/{name}"),
        ("post", "/v1/semaphores/{name}/p"),
        ("post", "/v1/semaphores/{name}/v"),
        ("get", "/v1/semaphores/{name}"),
        ("put", "/v1/gangs/{name}"),
        ("post", "/v1/gangs/{name}/start"),
        ("get", "/v1/gangs/{name}"),
        ("delete", "/v1/gangs/{name}"),
        ("get", "/v1/events"),
        ("post", "/v1/pre-reboot"),
        ("post", "/v1/steady-state"),
        ("get", "/metrics"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/openapi.json"),
        ("get", "/"),
    ] {
        assert!(value["paths"][path][method].is_object(), "{method} {path}");
    }
    let ids: BTreeSet<&str> = operations.iter().map(Operation::id).collect();
    assert_eq!(ids.len(), operations.len(), "two operations have one id");
    let mut list = Vec::new();
    references(&value, &mut list);
    assert!(list.len() > operations.len());
    for reference in list {
        let part = value.pointer(reference.strip_prefix('#').unwrap());
        assert!(part.is_some_and(Value::is_object), "{reference}");
    }
    for it in &operations {
        assert!(!it.value["summary"].as_str().unwrap().is_empty(), "{}", it.id());
        for (status, response) in it.value["responses"].as_object().unwrap() {
            let health = &response["headers"]["kofm-health"]["$ref"];
            assert_eq!(health, "#/components/headers/kofm-health", "{} {status}", it.id());
        }
        let names: Vec<&Value> =
            it.value["parameters"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
        let in_path = it.path.matches('{').count();
        assert!(names.len() >= in_path, "{}: {names:?}", it.id());
    }
    // The site sets it, so clients must not be offered it.
    let fields = &value["components"]["schemas"]["Submit"]["properties"];
    assert!(fields["want"].is_object() && fields["principal"].is_null(), "{fields}");
    assert_eq!(value["components"]["schemas"]["State"]["enum"][0], "queued");
    assert_eq!(value["components"]["securitySchemes"]["token"]["scheme"], "bearer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_description_has_the_operations_of_the_router_and_no_others() {
    let (_site, at) = guarded().await;
    let (_, operations) = document(at).await;
    let mut paths: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for it in &operations {
        paths.entry(&it.path).or_default().push(it);
    }
    for list in paths.into_values() {
        for method in METHODS {
            let name = method.to_uppercase();
            let known = list.iter().find(|it| it.method == method);
            let answer = call(at, &name, &list[0].place(), "", "").await;
            match known {
                // The credential is asked for behind the router, so there is a route.
                Some(it) if !it.is_open() => assert_eq!(answer.status, 401, "{}", it.id()),
                Some(it) if it.path.contains('{') => assert_eq!(answer.status, 404, "{}", it.id()),
                Some(it) => assert_eq!(answer.status, 200, "{}", it.id()),
                None => {
                    assert_eq!(answer.status, 405, "{name} {}", list[0].path);
                    assert_eq!(answer.json()["error"], "method");
                    let allowed = answer.header("allow").unwrap().to_ascii_lowercase();
                    assert!(list.iter().all(|it| allowed.contains(&it.method)), "{allowed}");
                    assert!(!allowed.contains(method), "{allowed}");
                }
            }
        }
    }
    let answer = call(at, "GET", "/v1/nowhere", "", "").await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (404, Some("not-found")));
}

/// The answers that were seen, by operation.
#[derive(Default)]
struct Seen(BTreeMap<String, BTreeSet<(u16, String)>>);

impl Seen {
    /// Calls, and notes the answer; the path may be that of the operation with names filled in.
    async fn ask(
        &mut self,
        at: SocketAddr,
        it: &Operation,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (u16, Value) {
        let method = it.method.to_uppercase();
        let endless = it.id() == "listenToEvents" || it.id() == "connectFast";
        let status = if endless { head(at, path, headers).await } else { 400 };
        let (status, value) = if status < 400 {
            (status, Value::Null)
        } else {
            let answer = call(at, &method, path, headers, body).await;
            if answer.status >= 400 && !answer.message().is_empty() {
                assert!(!answer.message().ends_with('.'), "{}", answer.body);
            }
            (answer.status, answer.json())
        };
        let code = if status >= 400 { value["error"].as_str().unwrap_or_default() } else { "" };
        self.0.entry(it.id().to_owned()).or_default().insert((status, code.to_owned()));
        (status, value)
    }
}

/// The status of an answer that may not end.
async fn head(at: SocketAddr, path: &str, headers: &str) -> u16 {
    let host = if headers.contains("host:") { "" } else { "host: localhost\r\n" };
    let mut stream = TcpStream::connect(at).await.unwrap();
    let text = format!("GET {path} HTTP/1.1\r\n{host}{headers}\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.unwrap();
    std::str::from_utf8(&start[9..]).unwrap().parse().unwrap()
}

const FLEET: &str = "fleet-lock-protocol: true\r\n";
const UPGRADE: &str = "connection: upgrade\r\nupgrade: kofm/1\r\n";

/// Calls, with the status and the error that each must give; `""` is an answer without an error.
/// They build on each other.
const CALLS: &[(&str, &str, &str, u16, &str)] = &[
    ("PUT", "/v1/pools/p", r#"{"units":1}"#, 200, ""),
    ("PUT", "/v1/pools/old", r#"{"units":1,"protocol":"permission"}"#, 200, ""),
    ("PUT", "/v1/pools/reboot", r#"{"units":1}"#, 200, ""),
    ("GET", "/v1/pools", "", 200, ""),
    ("GET", "/v1/pools/p", "", 200, ""),
    ("GET", "/v1/pools/none", "", 404, "unknown-pool"),
    ("POST", "/v1/requests", r#"{"want":{"p":1},"id":"a","ttl":"1h"}"#, 200, ""),
    ("POST", "/v1/requests", r#"{"want":{"p":1},"id":"b"}"#, 202, ""),
    ("POST", "/v1/requests", r#"{"want":{"none":1}}"#, 404, "unknown-pool"),
    ("POST", "/v1/requests", r#"{"want":{"p":9}}"#, 409, "infeasible"),
    ("POST", "/v1/requests", r#"{"want":{"p":1},"wait":0}"#, 409, "busy"),
    ("GET", "/v1/requests/a", "", 200, ""),
    ("GET", "/v1/requests/none", "", 404, "unknown-request"),
    ("DELETE", "/v1/requests/b", "", 200, ""),
    ("POST", "/v1/requests", r#"{"want":{"p":1},"wait":"5ms"}"#, 409, "timeout"),
    ("DELETE", "/v1/requests/none", "", 404, "unknown-request"),
    ("GET", "/v1/leases", "", 200, ""),
    ("GET", "/v1/leases?pool=none", "", 404, "unknown-pool"),
    ("GET", "/v1/queue", "", 200, ""),
    ("GET", "/v1/queue?pool=none", "", 404, "unknown-pool"),
    ("GET", "/v1/history", "", 200, ""),
    ("GET", "/v1/history?pool=never", "", 404, "unknown-pool"),
    ("GET", "/v1/usage", "", 200, ""),
    ("GET", "/v1/usage?pool=none", "", 404, "unknown-pool"),
    ("GET", "/v1/events", "", 200, ""),
    ("POST", "/v1/leases/none/renew", "", 410, "gone"),
    ("DELETE", "/v1/leases/none", "", 404, "unknown-request"),
    ("PUT", "/v1/pools/p", r#"{"units":1,"protocol":"permission"}"#, 409, "in-use"),
    ("DELETE", "/v1/pools/p", "", 409, "in-use"),
    ("DELETE", "/v1/pools/none", "", 404, "unknown-pool"),
    ("PUT", "/v1/pools/p/quarantine/0", r#"{"reason":"r"}"#, 200, ""),
    ("PUT", "/v1/pools/p/quarantine/7", r#"{"reason":"r"}"#, 404, "not-found"),
    ("PUT", "/v1/pools/none/quarantine/0", r#"{"reason":"r"}"#, 404, "unknown-pool"),
    ("PUT", "/v1/pools/old/quarantine/0", r#"{"reason":"r"}"#, 501, "unsupported"),
    ("DELETE", "/v1/pools/p/quarantine/0", "", 200, ""),
    ("DELETE", "/v1/pools/p/quarantine/0", "", 404, "not-found"),
    ("DELETE", "/v1/pools/none/quarantine/0", "", 404, "unknown-pool"),
    ("DELETE", "/v1/pools/old/quarantine/0", "", 501, "unsupported"),
    ("DELETE", "/v1/pools/old", "", 200, ""),
    ("POST", "/v1/pre-reboot", r#"{"client_params":{"id":"n","group":"default"}}"#, 200, ""),
    ("POST", "/v1/pre-reboot", r#"{"client_params":{"id":"m","group":"default"}}"#, 409, ""),
    ("POST", "/v1/pre-reboot", r#"{"client_params":{"id":"n","group":"x"}}"#, 404, ""),
    ("POST", "/v1/pre-reboot", r#"{"client_params":{"id":"a/b","group":"reboot"}}"#, 422, ""),
    ("POST", "/v1/pre-reboot", "{}", 400, ""),
    ("POST", "/v1/steady-state", r#"{"client_params":{"id":"n","group":"x"}}"#, 404, ""),
    ("POST", "/v1/steady-state", "{}", 400, ""),
    ("POST", "/v1/steady-state", r#"{"client_params":{"id":"n","group":"default"}}"#, 200, ""),
    ("GET", "/v1/semaphores", "", 200, ""),
    ("PUT", "/v1/semaphores/s", r#"{"value":1}"#, 200, ""),
    ("GET", "/v1/semaphores/s", "", 200, ""),
    ("GET", "/v1/semaphores/none", "", 404, "unknown-semaphore"),
    ("POST", "/v1/semaphores/s/p", "", 200, ""),
    ("POST", "/v1/semaphores/s/p", r#"{"wait":0}"#, 409, "busy"),
    ("POST", "/v1/semaphores/s/p", r#"{"wait":"20ms"}"#, 409, "timeout"),
    ("POST", "/v1/semaphores/none/p", "", 404, "unknown-semaphore"),
    ("POST", "/v1/semaphores/s/v", r#"{"m":4294967295}"#, 200, ""),
    ("POST", "/v1/semaphores/none/v", "", 404, "unknown-semaphore"),
    ("DELETE", "/v1/semaphores/s", "", 200, ""),
    ("DELETE", "/v1/semaphores/none", "", 404, "unknown-semaphore"),
    ("PUT", "/v1/gangs/g", r#"{"members":{"s0":{"p":1},"s1":{}}}"#, 200, ""),
    ("PUT", "/v1/gangs/g", r#"{"members":{"s0":{"none":1}}}"#, 404, "unknown-pool"),
    ("PUT", "/v1/gangs/g", r#"{"members":{"s0":{"p":2}}}"#, 409, "infeasible"),
    ("GET", "/v1/gangs", "", 200, ""),
    ("GET", "/v1/gangs/g", "", 200, ""),
    ("GET", "/v1/gangs/none", "", 404, "unknown-gang"),
    ("POST", "/v1/gangs/none/start", "", 404, "unknown-gang"),
    ("POST", "/v1/gangs/g/start", r#"{"wait":0}"#, 409, "busy"),
    ("POST", "/v1/gangs/g/start", r#"{"wait":"5ms"}"#, 409, "timeout"),
    ("POST", "/v1/gangs/g/start", r#"{"id":"c"}"#, 202, ""),
    ("DELETE", "/v1/requests/a", "", 200, ""),
    ("GET", "/v1/requests/c?wait=30s", "", 200, ""),
    ("POST", "/v1/gangs/g/start", r#"{"id":"c"}"#, 200, ""),
    ("DELETE", "/v1/requests/c", "", 200, ""),
    ("POST", "/v1/gangs/none/join", r#"{"member":"s0","token":"t"}"#, 404, "unknown-gang"),
    ("POST", "/v1/gangs/g/join", r#"{"member":"s0","token":"t"}"#, 202, ""),
    ("POST", "/v1/gangs/g/join", r#"{"member":"s0","token":"u"}"#, 409, "in-use"),
    ("POST", "/v1/gangs/g/join", r#"{"member":"s0","token":"t","run":"x"}"#, 410, "gone"),
    ("PUT", "/v1/pools/q", r#"{"units":2}"#, 200, ""),
    ("PUT", "/v1/gangs/k", r#"{"members":{"s0":{"q":2}}}"#, 200, ""),
    ("PUT", "/v1/pools/q", r#"{"units":1}"#, 200, ""),
    ("POST", "/v1/gangs/k/start", "", 409, "infeasible"),
    ("POST", "/v1/gangs/k/join", r#"{"member":"s0","token":"t"}"#, 409, "infeasible"),
    ("DELETE", "/v1/pools/q", "", 200, ""),
    ("POST", "/v1/gangs/k/start", "", 404, "unknown-pool"),
    ("POST", "/v1/gangs/k/join", r#"{"member":"s0","token":"t"}"#, 404, "unknown-pool"),
    ("DELETE", "/v1/gangs/g", "", 200, ""),
    ("DELETE", "/v1/gangs/none", "", 404, "unknown-gang"),
    ("GET", "/v1/members", "", 200, ""),
    ("DELETE", "/v1/members/none", "", 404, "not-found"),
    ("DELETE", "/v1/members/s1", "", 501, "unsupported"),
    ("POST", "/v1/members/s1/drain", "", 200, ""),
    ("POST", "/v1/members/s0/drain", "", 409, "in-use"),
    ("POST", "/v1/members/s0/sell", "", 404, "not-found"),
    ("GET", "/v1/health", "", 200, ""),
    ("GET", "/v1/principal", "", 200, ""),
    ("GET", "/v1/backup", "", 200, ""),
    ("GET", "/v1/audit", "", 200, ""),
    ("GET", "/v1/tokens", "", 200, ""),
    ("GET", "/v1/rules", "", 200, ""),
    ("POST", "/v1/tokens", r#"{"name":"x","rules":["read:p"]}"#, 409, "in-use"),
    ("POST", "/v1/tokens", r#"{"name":"x","rules":["read:none","admin:*"]}"#, 404, "unknown-pool"),
    ("DELETE", "/v1/tokens/none", "", 404, "not-found"),
    ("POST", "/v1/rules/none", r#"{"allow":["read:p"]}"#, 404, "not-found"),
    ("POST", "/v1/rules/none", r#"{"allow":["read:none"]}"#, 404, "unknown-pool"),
    ("GET", "/metrics", "", 200, ""),
    ("GET", "/healthz", "", 200, ""),
    ("GET", "/livez", "", 200, ""),
    ("GET", "/readyz", "", 200, ""),
    ("GET", "/openapi.json", "", 200, ""),
    ("GET", "/", "", 200, ""),
    ("GET", "/console/main.js", "", 200, ""),
    ("GET", "/console/none", "", 404, "not-found"),
    ("GET", "/console/%ff", "", 422, "malformed"),
];

/// Answers that need a fault or a load that a test of seconds does not have. Other tests bring
/// about most of them in clusters that lose sites.
#[expect(clippy::match_same_arms, reason = "each has a cause of its own")]
fn needs_more(it: &Operation, (status, code): &(u16, String)) -> bool {
    match (it.id(), code.as_str()) {
        // No majority answers, so that rules or the state of others are not known.
        (_, "unreachable") => true,
        // More requests, changes or entries than a site takes on.
        (_, "too-many") => true,
        (_, "") if it.is_fleet() && *status == 429 => true,
        // The pool is changed, or the epoch changes, in the same moment.
        ("submitRequest" | "startGang" | "quarantineUnit" | "returnUnit", "in-use") => true,
        ("putGang" | "removeGang" | "revokeToken" | "changeRules", "in-use") => true,
        ("removeMember" | "putSemaphore" | "removeSemaphore" | "restoreBackup", "in-use") => true,
        ("putPool", "unknown-pool") | ("putSemaphore", "unknown-semaphore") => true,
        ("putGang", "unknown-gang") => true,
        // The site has no directory for its history, or the cluster has fixed gangs.
        ("listHistory" | "getUsage", "unsupported") => true,
        ("putGang" | "removeGang" | "startGang", "unsupported") => true,
        // Two leases of one name.
        ("releaseLease", "in-use") => true,
        // More units than the counter has.
        ("takeFromSemaphore" | "addToSemaphore", "infeasible") => true,
        // `crates/kofm/tests/it/join.rs` has such a cluster.
        ("removeMember", "") => true,
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_of_the_description_is_given() {
    let (_sites, at) = start(2, 1).await;
    let at = at[0];
    let (_, operations) = document(at).await;
    let mut seen = Seen::default();
    let mut wrong = Vec::new();
    for &(method, path, body, status, code) in CALLS {
        let it = operations.iter().find(|it| fits(it, method, path)).unwrap();
        let headers = if it.is_fleet() { FLEET } else { "" };
        let (answer, value) = seen.ask(at, it, path, headers, body).await;
        let found = if it.is_fleet() || code.is_empty() {
            ""
        } else {
            value["error"].as_str().unwrap_or_default()
        };
        if (answer, found) != (status, code) {
            wrong.push(format!("{method} {path} {body}: {answer} {value}, not {status} {code}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
    let find = |id: &str| operations.iter().find(|it| it.id() == id).unwrap();
    let fast = find("connectFast");
    assert_eq!(seen.ask(at, fast, "/v1/fast", UPGRADE, "").await.0, 101);
    let body = r#"{"want":{"p":1},"ttl":"1h"}"#;
    let (_, granted) = seen.ask(at, find("submitRequest"), "/v1/requests", "", body).await;
    let lease = granted["lease"]["id"].as_str().unwrap();
    let path = format!("/v1/leases/{lease}");
    seen.ask(at, find("renewLease"), &format!("{path}/renew"), "", "").await;
    seen.ask(at, find("releaseLease"), &path, "", "").await;
    let gang = r#"{"members":{"s0":{"p":1}}}"#;
    seen.ask(at, find("putGang"), "/v1/gangs/h", "", gang).await;
    let (join, path) = (find("joinGang"), "/v1/gangs/h/join");
    let mut body = json!({"member": "s0", "token": "t", "wait": "1s"});
    loop {
        let (status, joined) = seen.ask(at, join, path, "", &body.to_string()).await;
        if status == 200 {
            assert_eq!(joined["state"], "running", "{joined}");
            break;
        }
        assert_eq!(status, 202, "{joined}");
        (body["run"], body["confirm"]) = (joined["run"].clone(), joined["confirm"].clone());
    }
    let backup = call(at, "GET", "/v1/backup", "", "").await.body;
    seen.ask(at, find("restoreBackup"), "/v1/backup", "", &backup).await;

    // Every operation: a foreign page, an unknown parameter.
    for it in &operations {
        seen.ask(at, it, &it.place(), "host: evil.example\r\n", "").await;
        if it.method != "get" {
            let page = format!("origin: http://{at}\r\nhost: {at}\r\ncontent-type: text/plain\r\n");
            seen.ask(at, it, &it.place(), &page, "").await;
        }
        if !it.is_open() {
            let path = format!("{}?nonsense=1", it.place());
            let (status, value) = seen.ask(at, it, &path, "", "").await;
            assert_eq!(
                (status, value["error"].as_str().unwrap_or("malformed")),
                (422, "malformed")
            );
        }
    }
    with_tokens(&mut seen, &operations).await;
    stopping(&mut seen, &operations).await;

    let mut never = Vec::new();
    for it in &operations {
        let (listed, given) = (it.answers(), seen.0.remove(it.id()).unwrap_or_default());
        let rest = listed.difference(&given).filter(|answer| !needs_more(it, answer));
        never.extend(rest.map(|answer| format!("{} {answer:?}", it.id())));
        let other: Vec<_> = given.difference(&listed).collect();
        assert!(other.is_empty(), "{}: {other:?}", it.id());
    }
    assert_eq!(never, [""; 0], "answers that no call gives");
}

/// Whether a call is one of an operation.
fn fits(it: &Operation, method: &str, path: &str) -> bool {
    let path = path.split('?').next().unwrap();
    let (one, other): (Vec<&str>, Vec<&str>) =
        (it.path.split('/').collect(), path.split('/').collect());
    let same = |(one, other): (&&str, &&str)| one == other || one.starts_with('{');
    it.method.eq_ignore_ascii_case(method)
        && one.len() == other.len()
        && one.iter().zip(&other).all(same)
}

/// Credentials: missing ones, and principals with few rights.
async fn with_tokens(seen: &mut Seen, operations: &[Operation]) {
    let (_site, at) = guarded().await;
    for it in operations.iter().filter(|it| !it.is_open()) {
        assert_eq!(seen.ask(at, it, &it.place(), "", "").await.0, 401, "{}", it.id());
    }
    let right = "authorization: Bearer right\r\n";
    let find = |id: &str| operations.iter().find(|it| it.id() == id).unwrap();
    let body = r#"{"name":"ci","rules":["acquire:g*"]}"#;
    let (status, made) = seen.ask(at, find("createToken"), "/v1/tokens", right, body).await;
    assert_eq!(status, 200, "{made}");
    let token = made["token"].as_str().unwrap();
    let ci = format!("authorization: Bearer {token}\r\n{FLEET}");
    let renew = find("renewLease");
    assert_eq!(seen.ask(at, renew, "/v1/leases/none/renew", &ci, "").await.0, 404);
    let node = r#"{"client_params":{"id":"n","group":"gpu"}}"#;
    let none = r#"{"name":"no","rules":[]}"#;
    let (_, none) = seen.ask(at, find("createToken"), "/v1/tokens", right, none).await;
    let no = format!("authorization: Bearer {}\r\n{FLEET}", none["token"].as_str().unwrap());
    for id in ["takeRebootSlot", "releaseRebootSlot"] {
        let it = find(id);
        assert_eq!(seen.ask(at, it, &it.path, &no, node).await.0, 403);
    }
    let rules = r#"{"allow":["read:gpu"]}"#;
    assert_eq!(seen.ask(at, find("changeRules"), "/v1/rules/ci", right, rules).await.0, 200);
    assert_eq!(seen.ask(at, find("revokeToken"), "/v1/tokens/ci", right, "").await.0, 200);
}

/// A site that has stopped, and still answers.
async fn stopping(seen: &mut Seen, operations: &[Operation]) {
    let (sites, at) = start(1, 1).await;
    let at = at[0];
    let find = |id: &str| operations.iter().find(|it| it.id() == id).unwrap();
    sites[0].drain(std::time::Duration::ZERO).await;
    assert_eq!(seen.ask(at, find("getReadiness"), "/readyz", "", "").await.0, 503);
    sites[0].stop().await;
    let bodies = [
        ("submitRequest", r#"{"want":{"gpu":1}}"#),
        ("putPool", r#"{"units":1}"#),
        ("quarantineUnit", r#"{"reason":"r"}"#),
        ("putSemaphore", r#"{"value":1}"#),
        ("putGang", r#"{"members":{"s0":{"gpu":1}}}"#),
        ("joinGang", r#"{"member":"s0","token":"t"}"#),
        ("createToken", r#"{"name":"x","rules":["admin:*"]}"#),
        ("changeRules", r#"{"allow":["read:gpu"]}"#),
        ("takeRebootSlot", r#"{"client_params":{"id":"n","group":"gpu"}}"#),
        ("releaseRebootSlot", r#"{"client_params":{"id":"n","group":"gpu"}}"#),
    ];
    let backup = call(at, "GET", "/v1/backup", "", "").await.body;
    for it in operations.iter().filter(|it| it.answers().iter().any(|it| it.0 == 503)) {
        let body = bodies.iter().find(|body| body.0 == it.id()).map_or("", |body| body.1);
        let body = if it.id() == "restoreBackup" { backup.as_str() } else { body };
        let headers = if it.is_fleet() { FLEET } else { "" };
        let path = it.path.replace("{name}", "gpu");
        let path = if it.id() == "removePool" { path } else { it.place() };
        seen.ask(at, it, &path, headers, body).await;
    }
}
