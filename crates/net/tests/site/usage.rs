//! History and usage of the whole cluster over HTTP.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::edge::{call, start};

async fn get(at: SocketAddr, path: &str) -> Value {
    let answer = call(at, "GET", path, "", "").await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

/// A lease of so many units, as an owner has it; released at once if `over`.
async fn lease(at: SocketAddr, owner: &str, units: u32, over: bool) {
    let body = json!({"want": {"gpu": units}, "owner": owner, "ttl": "5m"}).to_string();
    let made = call(at, "POST", "/v1/requests", "", &body).await;
    assert_eq!(made.status, 200, "{}", made.body);
    if over {
        let path = format!("/v1/leases/{}", made.json()["lease"]["id"].as_str().unwrap());
        assert_eq!(call(at, "DELETE", &path, "", "").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_site_tells_who_used_what() {
    let (sites, at) = start(3, 4).await;
    sites[0].connected().await;
    for (number, site) in at.iter().enumerate() {
        lease(*site, "alice", 2, true).await;
        lease(*site, "bob", 1, number > 0).await;
    }
    let refused = call(at[0], "POST", "/v1/requests", "", r#"{"want":{"gpu":9},"owner":"eve"}"#);
    assert_eq!(refused.await.status, 409);
    for site in &at {
        let rows = get(*site, "/v1/usage?by=owner&since=30d").await;
        let of = |owner: &str| {
            let row = rows.as_array().unwrap().iter().find(|row| row["owner"] == owner);
            row.unwrap_or_else(|| panic!("{owner}: {rows}")).clone()
        };
        assert_eq!((&of("alice")["leases"], &of("bob")["leases"]), (&json!(3), &json!(3)));
        assert_eq!(of("eve")["refused"], 1);
        assert!(of("alice")["wait_p50_ms"].is_u64() && of("alice")["hold_p95_ms"].is_u64());
        assert!(of("bob")["unit_hours"].as_f64().unwrap() > 0.0, "one is held still: {rows}");
        let pools = get(*site, "/v1/usage?by=pool").await;
        assert_eq!((&pools[0]["pool"], &pools[0]["leases"]), (&json!("gpu"), &json!(6)));
        let used = pools[0]["utilisation"].as_f64().unwrap();
        assert!(used > 0.0 && used <= 1.0, "{pools}");
        let units = get(*site, "/v1/usage?by=unit&pool=gpu&since=1h").await;
        assert_eq!(units.as_array().unwrap().len(), 4, "{units}");
        let leases: u64 =
            units.as_array().unwrap().iter().filter_map(|it| it["leases"].as_u64()).sum();
        assert_eq!(leases, 9, "each lease once for each of its units: {units}");
        // Events, selected.
        let mine = get(*site, "/v1/history?owner=alice&since=1h").await;
        let mine = mine.as_array().unwrap();
        assert!(mine.iter().all(|it| it["owner"] == "alice"));
        let count = |event: &str| mine.iter().filter(|it| it["event"] == event).count();
        assert_eq!((count("granted"), count("released")), (3, 3), "{mine:?}");
        let none = get(*site, "/v1/history?pool=gpu&owner=carol").await;
        assert_eq!(none, json!([]));
        let refused = get(*site, "/v1/history?event=refused").await;
        assert_eq!(
            (&refused[0]["owner"], &refused[0]["want"]),
            (&json!("eve"), &json!({"gpu": 9}))
        );
        let later = get(*site, "/v1/history?since=2999-01-01&limit=5").await;
        assert_eq!(later, json!({"history": []}));
        assert_ne!(get(*site, "/v1/history?until=2999-01-01T00:00:00Z").await, json!([]));
    }
    for path in [
        "/v1/usage?by=site",
        "/v1/usage?since=yesterday",
        "/v1/usage?owner=alice",
        "/v1/history?since=1",
        "/v1/history?until=2026-02-31x",
        "/v1/history?by=owner",
    ] {
        assert_eq!(call(at[0], "GET", path, "", "").await.status, 422, "{path}");
    }
    for path in ["/v1/usage?pool=nope", "/v1/history?pool=nope"] {
        assert_eq!(call(at[0], "GET", path, "", "").await.status, 404, "{path}");
    }
    let metrics = call(at[1], "GET", "/metrics", "", "").await.body;
    for line in [
        "kofm_request_wait_seconds_count{pool=\"gpu\"} 2",
        "kofm_lease_hold_seconds_count{pool=\"gpu\"} 2",
        "kofm_history_dropped_total 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}
