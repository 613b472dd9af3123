//! Semaphores of sites in one process, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use kofm_net::api::{Code, PutSemaphore, Semaphore, TakeSpec};
use kofm_net::client::{Address, Client};
use kofm_net::{Access, Site};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const LONG: Duration = Duration::from_mins(1);
const PROTOCOLS: [&str; 3] = ["sem-token", "sem-permission", "sem-quorum"];

async fn start(sites: usize) -> Vec<Site> {
    Site::start_together(sites, BTreeMap::new()).await.unwrap()
}

async fn set(site: &Site, name: &str, value: u64, protocol: &str) {
    let spec = PutSemaphore { value, protocol: Some(protocol.to_owned()) };
    site.put_semaphore(name, spec).await.unwrap();
}

fn take(k: u64) -> TakeSpec {
    TakeSpec { k, wait: None, owner: None, id: None }
}

fn soon(k: u64, wait: Duration) -> TakeSpec {
    TakeSpec { wait: Some(wait), ..take(k) }
}

/// Waits until all sites together say so.
async fn until(site: &Site, name: &str, what: impl Fn(&Semaphore) -> bool) -> Semaphore {
    let told = async {
        loop {
            let semaphore = site.semaphore(name).await.unwrap();
            if what(&semaphore) {
                return semaphore;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, told).await.expect("it comes to that")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_takes_what_is_not_there() {
    for protocol in PROTOCOLS {
        let sites = start(3).await;
        set(&sites[1], "s", 3, protocol).await;
        let there = Arc::new(AtomicI64::new(3));
        let mut tasks = Vec::new();
        for client in 0..9_u64 {
            let (sites, there) = (sites.clone(), Arc::clone(&there));
            tasks.push(tokio::spawn(async move {
                for round in 0..10 {
                    let k = 1 + (client + round) % 3;
                    let at = |n: u64| &sites[usize::try_from(n % 3).unwrap()];
                    at(client).p("s", take(k)).await.unwrap();
                    let k = i64::try_from(k).unwrap();
                    let left = there.fetch_sub(k, Ordering::SeqCst) - k;
                    assert!(left >= 0, "{protocol}: {left}");
                    tokio::task::yield_now().await;
                    there.fetch_add(k, Ordering::SeqCst);
                    // Anybody adds, anywhere.
                    at(client + round).v("s", k.unsigned_abs()).await.unwrap();
                }
            }));
        }
        for task in tasks {
            timeout(LONG, task).await.expect("nobody starves").unwrap();
        }
        let end = until(&sites[2], "s", |it| it.value == 3 && it.waiting == 0).await;
        assert_eq!((end.protocol.as_str(), end.head), (protocol, None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_over_takes_nothing() {
    for protocol in PROTOCOLS {
        let sites = start(3).await;
        set(&sites[0], "s", 1, protocol).await;
        let busy = sites[1].p("s", soon(2, Duration::ZERO)).await.unwrap_err();
        assert_eq!(busy.error, Code::Busy, "{protocol}");
        let late = sites[2].p("s", soon(2, Duration::from_millis(300))).await.unwrap_err();
        assert_eq!(late.error, Code::Timeout, "{protocol}");
        let taken = sites[1].p("s", soon(1, Duration::ZERO)).await.unwrap();
        assert_eq!((taken.k, taken.state.as_str()), (1, "taken"), "{protocol}");
        until(&sites[0], "s", |it| it.value == 0 && it.waiting == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_served_in_turn_and_shown() {
    for protocol in PROTOCOLS {
        let sites = start(3).await;
        set(&sites[0], "s", 1, protocol).await;
        let big = TakeSpec { owner: Some("ada".into()), ..take(3) };
        let site = sites[1].clone();
        let first = tokio::spawn(async move { site.p("s", big).await });
        let shown = until(&sites[2], "s", |it| it.head.is_some()).await;
        let head = shown.head.unwrap();
        assert_eq!((head.site.as_str(), head.owner.as_deref()), ("s1", Some("ada")), "{protocol}");
        assert_eq!((head.k, head.missing, shown.value), (3, 2, 1), "{protocol}");
        // There is one, and still nobody passes.
        let busy = sites[2].p("s", soon(1, Duration::ZERO)).await.unwrap_err();
        assert_eq!(busy.error, Code::Busy, "{protocol}");
        sites[0].v("s", 2).await.unwrap();
        timeout(LONG, first).await.unwrap().unwrap().unwrap();
        until(&sites[0], "s", |it| it.value == 0 && it.waiting == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_dropped_leaves_nothing_behind() {
    for protocol in PROTOCOLS {
        let sites = start(3).await;
        set(&sites[0], "s", 1, protocol).await;
        for site in &sites {
            let site = site.clone();
            let waits = tokio::spawn(async move { site.p("s", take(5)).await });
            until(&sites[0], "s", |it| it.waiting == 1).await;
            waits.abort();
            until(&sites[0], "s", |it| it.waiting == 0).await;
        }
        timeout(LONG, sites[1].p("s", take(1))).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_leaves_nothing_behind() {
    let sites = start(2).await;
    set(&sites[0], "s", 1, "sem-permission").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(kofm_net::http::serve(sites[1].clone(), listener, Access::open()));
    let mut client = TcpStream::connect(address).await.unwrap();
    let body = "{\"k\":4}";
    let text = format!(
        "POST /v1/semaphores/s/p HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(text.as_bytes()).await.unwrap();
    let shown = until(&sites[0], "s", |it| it.head.is_some()).await;
    assert_eq!(shown.head.unwrap().missing, 3);
    drop(client);
    until(&sites[0], "s", |it| it.waiting == 0).await;
    timeout(LONG, sites[0].p("s", take(1))).await.unwrap().unwrap();
    // And what was taken by a client that hangs up afterwards stays taken.
    let other = Client::new(Address::parse(&address.to_string()).unwrap(), None);
    sites[0].v("s", 2).await.unwrap();
    let spec = take(2);
    let path = "/v1/semaphores/s/p";
    let taken: serde_json::Value =
        other.call(hyper::Method::POST, path, Some(&spec), LONG).await.unwrap();
    assert_eq!(taken["state"], "taken");
    drop(other);
    until(&sites[0], "s", |it| it.value == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_refused_and_changes_nothing() {
    let sites = start(2).await;
    set(&sites[0], "s", 2, "sem-token").await;
    let site = &sites[1];
    let code = |error: kofm_net::api::Error| error.error;
    assert_eq!(code(site.p("s", take(0)).await.unwrap_err()), Code::Malformed);
    assert_eq!(code(site.p("s", take(1 << 32)).await.unwrap_err()), Code::Malformed);
    assert_eq!(code(site.p("t", take(1)).await.unwrap_err()), Code::UnknownSemaphore);
    assert_eq!(code(site.v("s", 0).await.unwrap_err()), Code::Malformed);
    assert_eq!(code(site.v("s", u64::MAX).await.unwrap_err()), Code::Malformed);
    assert_eq!(code(site.v("t", 1).await.unwrap_err()), Code::UnknownSemaphore);
    assert_eq!(code(site.remove_semaphore("t").await.unwrap_err()), Code::UnknownSemaphore);
    let put = |value, protocol: &str| PutSemaphore { value, protocol: Some(protocol.to_owned()) };
    for (name, spec) in [
        ("s", put(1 << 32, "sem-token")),
        ("s", put(1, "permission")),
        ("s", put(1, "sem-permission-as-printed")),
        ("a/b", put(1, "sem-token")),
    ] {
        let error = site.put_semaphore(name, spec).await.unwrap_err();
        assert_eq!(error.error, Code::Malformed, "{error}");
    }
    let same = site.semaphore("s").await.unwrap();
    assert_eq!((same.value, same.waiting), (2, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_is_set_anew_unless_somebody_waits() {
    let sites = start(3).await;
    set(&sites[0], "s", 0, "sem-quorum").await;
    let site = sites[2].clone();
    let waits = tokio::spawn(async move { site.p("s", take(2)).await });
    until(&sites[0], "s", |it| it.waiting == 1).await;
    let spec = PutSemaphore { value: 9, protocol: None };
    let error = sites[1].put_semaphore("s", spec.clone()).await.unwrap_err();
    assert_eq!(error.error, Code::InUse);
    assert_eq!(sites[1].remove_semaphore("s").await.unwrap_err().error, Code::InUse);
    sites[1].v("s", 2).await.unwrap();
    timeout(LONG, waits).await.unwrap().unwrap().unwrap();
    sites[1].put_semaphore("s", spec).await.unwrap();
    let new = until(&sites[0], "s", |it| it.value == 9).await;
    assert_eq!(new.protocol, "sem-quorum");
    timeout(LONG, sites[2].p("s", take(9))).await.unwrap().unwrap();
    sites[0].remove_semaphore("s").await.unwrap();
    assert_eq!(sites[1].v("s", 1).await.unwrap_err().error, Code::UnknownSemaphore);
}
