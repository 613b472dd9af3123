//! Pages of lists over HTTP: every entry once, in order, until there is no `next`.

use serde_json::{Value, json};

use crate::edge::{call, start};

/// All pages of a list, each of `limit` entries but the last.
async fn pages(at: std::net::SocketAddr, name: &str, limit: usize) -> Vec<Vec<Value>> {
    let mut list = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/v1/{name}?limit={limit}{after}");
        let answer = call(at, "GET", &path, "", "").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let page = answer.json();
        let entries = page[name].as_array().unwrap().clone();
        let next = page["next"].as_str().map(str::to_owned);
        assert!(next.is_none() || entries.len() == limit, "{path}: {page}");
        list.push(entries);
        match next {
            Some(next) => after = format!("&after={next}"),
            None => return list,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_have_every_entry_once() {
    let (sites, at) = start(3, 5).await;
    sites[0].connected().await;
    for number in 0..9 {
        let body = json!({"want": {"gpu": 1}, "ttl": "5m", "id": format!("r{number}")});
        let made = call(at[number % 3], "POST", "/v1/requests", "", &body.to_string()).await;
        assert!(made.status == 200 || made.status == 202, "{}", made.body);
    }
    for (name, key, count) in [
        ("leases", "request", 5),
        ("queue", "id", 4),
        ("members", "site", 3),
        ("history", "seq", 5),
    ] {
        let whole = call(at[0], "GET", &format!("/v1/{name}"), "", "").await.json();
        let whole = whole.as_array().unwrap();
        assert!(whole.len() >= count, "{name}: {whole:?}");
        let keys = |list: &[Value]| {
            let key = |it: &Value| format!("{} {}", it["site"], it[key]);
            list.iter().map(key).collect::<Vec<String>>()
        };
        for limit in [1, 2, whole.len(), whole.len() + 1] {
            let mut parts = pages(at[1], name, limit).await;
            if name == "history" {
                parts.reverse();
            }
            let (mut all, mut expected) = (keys(&parts.concat()), keys(whole));
            if name == "leases" {
                // The whole list is in the order of the sites.
                all.sort();
                expected.sort();
            }
            assert_eq!(all, expected, "{name} by {limit}");
        }
    }
    let latest = call(at[2], "GET", "/v1/history?limit=1", "", "").await.json();
    let whole = call(at[2], "GET", "/v1/history", "", "").await.json();
    assert_eq!(latest["history"][0], *whole.as_array().unwrap().last().unwrap());
    // A page that follows is of the pool that is asked for, too.
    let page = call(at[0], "GET", "/v1/leases?pool=gpu&limit=2", "", "").await.json();
    let path = format!("/v1/leases?pool=gpu&after={}", page["next"].as_str().unwrap());
    let rest = call(at[0], "GET", &path, "", "").await.json();
    assert_eq!(rest["leases"].as_array().map(Vec::len), Some(3), "{rest}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_limit_or_cursor_is_refused() {
    let (_sites, at) = start(1, 2).await;
    let long = format!("after={}", "5b".repeat(5000));
    for name in ["leases", "queue", "members", "history"] {
        for query in [
            "limit=0",
            "limit=-1",
            "limit=x",
            "limit=",
            "limit=1.5",
            "limit=99999999999999999999",
            "after=",
            "after=x",
            "after=5b5d",
            "after=7b7d",
            "limit=1&after=%00",
            "limit=1&limit=2",
            &long,
        ] {
            let answer = call(at[0], "GET", &format!("/v1/{name}?{query}"), "", "").await;
            assert_eq!(answer.status, 422, "{name}?{query}: {}", answer.body);
            assert_eq!(answer.json()["error"], "malformed", "{name}?{query}");
        }
        let answer = call(at[0], "GET", &format!("/v1/{name}?limit=1000000"), "", "").await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        assert!(answer.json()["next"].is_null());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_is_cut_says_where_it_goes_on() {
    // More than one site tells of itself in one answer.
    const WAITING: usize = 5_100;
    let (sites, at) = start(2, 1).await;
    sites[0].connected().await;
    let _held = sites[1].acquire([("gpu", 1)]).await.unwrap();
    let ask = async |site: &kofm_net::Site| {
        let spec = kofm_net::api::Submit { want: [("gpu".into(), 1)].into(), ..Default::default() };
        site.submit(spec).await.unwrap();
    };
    ask(&sites[0]).await;
    for _ in 0..WAITING / 100 {
        let tasks = (0..100).map(|_| {
            let site = sites[0].clone();
            tokio::spawn(async move { ask(&site).await })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    }
    let cut = call(at[1], "GET", "/v1/queue?pool=gpu", "", "").await;
    let mut ids: Vec<String> = Vec::new();
    let add = |list: &Value, ids: &mut Vec<String>| {
        let list = list.as_array().unwrap();
        ids.extend(list.iter().map(|it| it["id"].as_str().unwrap().to_owned()));
    };
    add(&cut.json(), &mut ids);
    assert_eq!(ids.len(), 5000);
    let mut link = cut.header("link").map(str::to_owned);
    while let Some(place) = link {
        let path = place.strip_prefix('<').unwrap().strip_suffix(">; rel=\"next\"").unwrap();
        assert!(path.starts_with("/v1/queue?pool=gpu&after="), "{path}");
        let page = call(at[0], "GET", path, "", "").await;
        add(&page.json()["queue"], &mut ids);
        link = page.header("link").map(str::to_owned);
        assert_eq!(link.is_some(), !page.json()["next"].is_null());
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!((count, ids.len()), (WAITING + 1, WAITING + 1), "each once");
    // The client reads all by itself.
    let address = kofm_net::client::Address::Tcp(at[1].to_string());
    let client = kofm_net::client::Client::new(address, None);
    let list: Vec<kofm_net::api::Request> = client.list("/v1/queue?pool=gpu").await.unwrap();
    assert_eq!(list.len(), WAITING + 1);
    let places: Vec<u64> = list.iter().map(|it| it.position.unwrap()).collect();
    assert_eq!(places, (1..=WAITING as u64 + 1).collect::<Vec<_>>());
}
