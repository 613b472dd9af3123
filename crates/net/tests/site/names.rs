//! Names of leases: lists, events and blockers show them, and operators release by them.

use serde_json::{Value, json};

use crate::edge::{call, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_show_the_name_and_never_the_id() {
    let (sites, at) = start(3, 1).await;
    sites[0].connected().await;
    let body = json!({"want": {"gpu": 1}, "ttl": "5m"}).to_string();
    let made = call(at[0], "POST", "/v1/requests", "", &body).await.json();
    let id = made["lease"]["id"].as_str().unwrap();
    let name = made["lease"]["name"].as_str().unwrap();
    assert!(id.starts_with(name) && id.len() >= name.len() + 16, "{made}");
    call(at[1], "POST", "/v1/requests", "", &body).await;
    for site in &at {
        for path in ["/v1/leases", "/v1/leases?limit=1", "/v1/queue", "/v1/history", "/v1/audit"] {
            let answer = call(*site, "GET", path, "", "").await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert!(!answer.body.contains(id), "{path}: {}", answer.body);
        }
        let list = call(*site, "GET", "/v1/leases", "", "").await.json();
        assert_eq!((&list[0]["name"], &list[0]["id"]), (&json!(name), &Value::Null));
        let list = call(*site, "GET", "/v1/queue", "", "").await.json();
        assert_eq!(list[0]["blocked_by"][0]["lease"], name, "{list}");
        let list = call(*site, "GET", "/v1/history", "", "").await.json();
        let granted = list.as_array().unwrap().iter().find(|it| it["event"] == "granted");
        assert_eq!(granted.unwrap()["lease"], name, "{list}");
    }
    // Any site releases by the name, and repeating it is harmless; it renews nothing.
    let path = format!("/v1/leases/{name}");
    let renewed = call(at[2], "POST", &format!("{path}/renew"), "", "").await;
    assert_eq!(renewed.status, 422, "{}", renewed.body);
    for _ in 0..2 {
        let released = call(at[2], "DELETE", &path, "", "").await;
        assert_eq!(released.status, 200, "{}", released.body);
    }
    let renewed = call(at[0], "POST", &format!("/v1/leases/{id}/renew"), "", "").await;
    assert_eq!(renewed.status, 410, "{}", renewed.body);
    assert_eq!(call(at[0], "DELETE", &format!("/v1/leases/{id}"), "", "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_what_was_never_a_lease_is_refused() {
    let (_sites, at) = start(2, 1).await;
    let made = call(at[0], "POST", "/v1/requests", "", r#"{"want":{"gpu":1}}"#).await.json();
    let request = made["id"].as_str().unwrap();
    for id in ["nope", "L0-00000000", "L1-00000000", "L7-00000000", request] {
        for site in &at {
            let answer = call(*site, "DELETE", &format!("/v1/leases/{id}"), "", "").await;
            assert_eq!(answer.status, 404, "{id}: {}", answer.body);
            assert_eq!(answer.json()["error"], "unknown-request");
        }
    }
    let text = call(at[0], "DELETE", &format!("/v1/leases/{request}"), "", "").await.message();
    assert!(text.contains("kofm cancel"), "{text}");
    // A lease that has ended may have had this id.
    let id = format!("L0-{}", "0".repeat(32));
    assert_eq!(call(at[1], "DELETE", &format!("/v1/leases/{id}"), "", "").await.status, 200);
}
