//! Sites that stop.

use std::time::Duration;

use kofm_core::Kind;
use kofm_net::Site;
use kofm_net::api::State;
use kofm_net::config::Config;
use tokio::time::timeout;

use crate::{LONG, all_free, pool, want};

/// One of the waiting requests has the unit of `x` and waits for `y`: when it is ended, its unit
/// must not be granted to the next request, which ends as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_grants_nothing_to_requests_that_wait() {
    let mut config = Config::single("one");
    config.pools.insert("x".into(), pool(1, Kind::Permission));
    config.pools.insert("y".into(), pool(1, Kind::PermissionLazy));
    let site = Site::start(config).await.unwrap();
    let held = site.acquire([("y", 1)]).await.unwrap();
    let mut watching = Vec::new();
    for units in [&[("x", 1), ("y", 1)][..]].into_iter().chain([&[("x", 1)][..]; 30]) {
        let request = site.submit(want(units)).await.unwrap();
        assert_eq!(request.state, State::Queued);
        let site = site.clone();
        watching.push(tokio::spawn(async move { site.watch(&request.id, LONG).await }));
    }
    let mut events = site.events();
    site.drain(Duration::ZERO).await;
    for task in watching {
        let request = timeout(LONG, task).await.unwrap().unwrap().unwrap();
        assert_eq!((request.state, request.lease), (State::Failed, None));
    }
    while let Ok(event) = events.try_recv() {
        assert_ne!(event.event, "granted", "{event:?}");
    }
    drop(held);
    all_free(&site).await;
}
