//! `/v1/events` over real sockets: ids, and going on after a break, at any site.

use std::net::SocketAddr;
use std::time::Duration;

use kofm_net::Site;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::edge::{call, start};

/// A client that listens.
struct Listener {
    stream: BufReader<TcpStream>,
    last: String,
}

/// An event: its name and its data.
type Event = (String, Value);

impl Listener {
    /// Connects, and reads until the site has said where it stands.
    async fn connect(at: SocketAddr, path: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let text = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut it = Self { stream: BufReader::new(stream), last: String::new() };
        assert!(it.line().await.starts_with("HTTP/1.1 200"));
        while !it.line().await.is_empty() {}
        while it.last.is_empty() {
            it.read_field().await;
        }
        it
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }

    /// One field of an event; chunks of HTTP stand between them.
    async fn read_field(&mut self) -> Option<(String, String)> {
        let line = self.line().await;
        let (name, value) = line.split_once(':')?;
        let value = value.trim_start().to_owned();
        if name == "id" {
            self.last.clone_from(&value);
        }
        Some((name.to_owned(), value))
    }

    async fn next(&mut self) -> Event {
        // Comments that keep the connection alive are no events.
        timeout(crate::LONG, self.read_event()).await.expect("there is another event")
    }

    async fn read_event(&mut self) -> Event {
        let mut name = String::new();
        loop {
            match self.read_field().await {
                Some((field, value)) if field == "event" => name = value,
                Some((field, value)) if field == "data" => {
                    // The id comes in the same block, before or after the data.
                    let data = serde_json::from_str(&value).unwrap();
                    while !self.line_is_end().await {}
                    return (name, data);
                }
                Some(_) | None => {}
            }
        }
    }

    /// Whether an event ends here.
    async fn line_is_end(&mut self) -> bool {
        let line = self.line().await;
        if let Some(id) = line.strip_prefix("id:") {
            id.trim_start().clone_into(&mut self.last);
        }
        line.is_empty()
    }

    /// Requests of the next `count` events of a kind.
    async fn requests(&mut self, kind: &str, count: usize) -> Vec<String> {
        let mut list = Vec::new();
        while list.len() < count {
            let (name, data) = self.next().await;
            assert_ne!(name, "gap", "{data}");
            if name == kind {
                list.push(data["request"].as_str().unwrap().to_owned());
            }
        }
        list
    }
}

/// Makes a request at a site, and cancels it.
async fn work(site: &Site, id: &str) {
    let want = [("gpu".to_owned(), 1)].into();
    let spec = kofm_net::api::Submit { want, id: Some(id.to_owned()), ..Default::default() };
    site.submit(spec).await.unwrap();
    site.cancel(id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_on_where_it_was_at_any_site() {
    let (sites, at) = start(3, 9).await;
    sites[0].connected().await;
    let mut one = Listener::connect(at[0], "/v1/events", "").await;
    let begin = one.last.clone();
    for (number, site) in sites.iter().enumerate() {
        work(site, &format!("a{number}")).await;
    }
    let mut first = one.requests("granted", 3).await;
    first.sort();
    assert_eq!(first, ["a0", "a1", "a2"]);
    // The client goes on after the last event that it read.
    let last = one.last.clone();
    drop(one);
    for (number, site) in sites.iter().enumerate() {
        work(site, &format!("b{number}")).await;
        work(site, &format!("c{number}")).await;
    }
    // At another site, by the header or by the query, and with a listener there already or not.
    let headers = format!("last-event-id: {last}\r\n");
    let query = format!("/v1/events?after={last}");
    let both = format!("/v1/events?after={begin}");
    for (site, path, headers) in
        [(1, "/v1/events", &headers), (2, &query, &String::new()), (0, &both, &headers)]
    {
        let mut two = Listener::connect(at[site], path, headers).await;
        let mut missed = two.requests("granted", 6).await;
        missed.sort();
        assert_eq!(missed, ["b0", "b1", "b2", "c0", "c1", "c2"], "{path} {headers}");
    }
    // From the beginning, each event once and in its site's order; then what comes.
    let mut all = Listener::connect(at[1], &both, "").await;
    let mut all_of: Vec<(u64, String)> = Vec::new();
    let mut granted = all.requests("granted", 9).await;
    granted.sort();
    let expected = ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"];
    assert_eq!(granted, expected);
    for (number, site) in sites.iter().enumerate() {
        work(site, &format!("d{number}")).await;
    }
    while all_of.len() < 6 {
        let (name, data) = all.next().await;
        let request = data["request"].as_str().unwrap_or_default();
        if request.starts_with('d')
            && (name == "granted" || name == "cancelled" || name == "released")
        {
            all_of.push((data["seq"].as_u64().unwrap(), request.to_owned()));
        }
    }
    for number in 0..3 {
        let name = format!("d{number}");
        let of: Vec<u64> = all_of.iter().filter(|it| it.1 == name).map(|it| it.0).collect();
        assert!(of.is_sorted() && of.len() == 2, "{all_of:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_that_is_too_large_is_said() {
    let (sites, at) = start(2, 9).await;
    sites[0].connected().await;
    let one = Listener::connect(at[0], "/v1/events", "").await;
    let last = one.last.clone();
    drop(one);
    // More than a site remembers, at one site only.
    for number in 0..1200 {
        work(&sites[1], &format!("x{number}")).await;
    }
    work(&sites[0], "y").await;
    let mut two = Listener::connect(at[0], &format!("/v1/events?after={last}"), "").await;
    let (mut gaps, mut own, mut count) = (Vec::new(), 0, 0);
    while own == 0 || count < 1000 || gaps.is_empty() {
        let (name, data) = two.next().await;
        match (name.as_str(), data["site"].as_str().unwrap()) {
            ("gap", site) => gaps.push((site.to_owned(), data)),
            (_, "s0") => own += usize::from(data["request"] == "y"),
            (_, _) => count += 1,
        }
    }
    let [(site, data)] = gaps.as_slice() else { panic!("{gaps:?}") };
    assert_eq!(site, "s1", "the other site's events are whole");
    let (after, next) = (data["after"].as_u64().unwrap(), data["next"].as_u64().unwrap());
    assert!(after < next && data["message"].as_str().unwrap().contains("/v1/history"), "{data}");
    // The position after the gap leads to no gap.
    let mut three = Listener::connect(at[1], &format!("/v1/events?after={}", two.last), "").await;
    work(&sites[1], "z").await;
    let mut heard = Vec::new();
    while heard.last().is_none_or(|it| it != "z") {
        let (name, data) = three.next().await;
        assert_ne!(name, "gap", "{data}");
        heard.push(data["request"].as_str().unwrap_or_default().to_owned());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_that_is_none_is_refused() {
    let (_sites, at) = start(1, 1).await;
    for wrong in ["7", "s0", "s0:x", "s0:1,", "s0:99999999999999999999"] {
        let answer = call(at[0], "GET", &format!("/v1/events?after={wrong}"), "", "").await;
        assert_eq!((answer.status, &answer.json()["error"]), (422, &"malformed".into()), "{wrong}");
        assert!(answer.message().contains("`id` of the last event"), "{}", answer.body);
        let header = format!("last-event-id: {wrong}\r\n");
        assert_eq!(call(at[0], "GET", "/v1/events", &header, "").await.status, 422);
    }
    // A site that is not there any more is passed over.
    let mut one = Listener::connect(at[0], "/v1/events?after=gone:5", "").await;
    let put = call(at[0], "PUT", "/v1/pools/new", "", r#"{"units":1}"#);
    timeout(Duration::from_mins(1), put).await.unwrap();
    assert_eq!(one.next().await.0, "epoch");
}
