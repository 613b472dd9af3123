//! Pools that change.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_of_a_cluster_in_one_process_can_change() {
    let sites =
        Site::start_together(3, pools(&[("gpu", pool(4, Kind::Permission))])).await.unwrap();
    let spec: kofm_net::api::PutPool =
        serde_json::from_str(r#"{"units":["x","y"],"on_expiry":"hold"}"#).unwrap();
    sites[1].put_pool("board", spec.clone()).await.unwrap();
    let lease = timeout(LONG, sites[2].acquire([("board", 2), ("gpu", 1)])).await.unwrap().unwrap();
    let mut units = lease.units()["board"].clone();
    units.sort();
    assert_eq!(units, ["x", "y"]);
    assert_eq!(sites[0].remove_pool("board").await.unwrap_err().error, Code::InUse);
    drop(lease);
    sites[0].remove_pool("board").await.unwrap();
    assert_eq!(sites[2].submit(want(&[("board", 1)])).await.unwrap_err().error, Code::UnknownPool);
    sites[2].put_pool("board", spec).await.unwrap();
    drop(timeout(LONG, sites[0].acquire([("board", 2)])).await.unwrap().unwrap());
    // Those that are there keep their names.
    let more = |text: &str| serde_json::from_str(text).unwrap();
    sites[0].put_pool("board", more(r#"{"units":3}"#)).await.unwrap();
    let lease = timeout(LONG, sites[1].acquire([("board", 3)])).await.unwrap().unwrap();
    let mut units = lease.units()["board"].clone();
    units.sort();
    assert_eq!(units, ["2", "x", "y"]);
    drop(lease);
    sites[0].put_pool("odd", more(r#"{"units":["1"]}"#)).await.unwrap();
    let refused = sites[0].put_pool("odd", more(r#"{"units":2}"#)).await.unwrap_err();
    assert_eq!(refused.error, Code::Malformed, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_made_smaller_drains() {
    let sites =
        Site::start_together(2, pools(&[("gpu", pool(8, Kind::Permission))])).await.unwrap();
    let units = |units: u32| serde_json::from_value(serde_json::json!({"units": units})).unwrap();
    let seven = sites[0].acquire([("gpu", 7)]).await.unwrap();
    sites[1].put_pool("gpu", units(6)).await.unwrap();
    // Nobody can ask for what will not be there, and what is held stays held.
    assert_eq!(sites[0].submit(want(&[("gpu", 7)])).await.unwrap_err().error, Code::Infeasible);
    let view = sites[1].pools().await.unwrap().0.remove(0);
    assert_eq!((view.units, view.held, view.free), (8, 7, 1));
    // Whoever comes now waits behind the change.
    let six = timeout(LONG, async {
        let waiting = sites[1].acquire([("gpu", 6)]);
        tokio::pin!(waiting);
        assert!(timeout(Duration::from_millis(200), &mut waiting).await.is_err());
        drop(seven);
        waiting.await.unwrap()
    });
    let six = six.await.unwrap();
    let view = sites[0].pools().await.unwrap().0.remove(0);
    assert_eq!((view.units, view.held, view.free), (6, 6, 0));
    // Larger again, and larger than it was, while it is used.
    sites[0].put_pool("gpu", units(8)).await.unwrap();
    let two = timeout(LONG, sites[0].acquire([("gpu", 2)])).await.unwrap().unwrap();
    sites[0].put_pool("gpu", units(9)).await.unwrap();
    let one = timeout(LONG, sites[1].acquire([("gpu", 1)])).await.unwrap().unwrap();
    let all = [&six, &two, &one].into_iter().flat_map(|lease| &lease.units()["gpu"]);
    assert_eq!(all.collect::<std::collections::BTreeSet<_>>().len(), 9);
    drop((six, two, one));
    all_free(&sites[0]).await;
    drop(timeout(LONG, sites[0].acquire([("gpu", 9)])).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_are_quarantined_in_one_process_too() {
    let three = Site::start_together(3, pools(&[("gpu", PoolConfig::new(2))])).await.unwrap();
    let mut config = Config::single("here");
    config.pools = pools(&[("gpu", PoolConfig::new(2))]);
    let alone = vec![Site::start(config).await.unwrap()];
    for sites in [three, alone] {
        let last = sites.last().unwrap();
        let held = timeout(LONG, last.acquire([("gpu", 1)])).await.unwrap().unwrap();
        let (unit, other) = if held.units()["gpu"] == ["0"] { ("0", "1") } else { ("1", "0") };
        sites[0].quarantine("gpu", unit, "fan".into()).await.unwrap();
        let view = sites[0].pool("gpu").await.unwrap();
        assert_eq!((view.held, view.free, view.quarantined), (1, 1, 0));
        drop(held);
        let free = timeout(LONG, last.acquire([("gpu", 1)])).await.unwrap().unwrap();
        assert_eq!(free.units()["gpu"], [other]);
        let view = sites[0].pool("gpu").await.unwrap();
        assert_eq!((view.held, view.free, view.quarantined), (1, 0, 1));
        last.return_unit("gpu", unit).await.unwrap();
        drop(timeout(LONG, sites[0].acquire([("gpu", 1)])).await.unwrap().unwrap());
        drop(free);
        all_free(last).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_made_smaller_again_keeps_what_is_out() {
    for kind in [Kind::Roaming, Kind::Permission] {
        let sites = Site::start_together(2, pools(&[("gpu", pool(4, kind))])).await.unwrap();
        let units =
            |units: u32| serde_json::from_value(serde_json::json!({"units": units})).unwrap();
        sites[0].put_pool("gpu", units(2)).await.unwrap();
        let two = timeout(LONG, sites[1].acquire([("gpu", 2)])).await.unwrap().unwrap();
        let waiting = sites[0].submit(want(&[("gpu", 1)])).await.unwrap();
        sites[1].put_pool("gpu", units(1)).await.unwrap();
        let wait = Duration::from_millis(200);
        assert_eq!(sites[0].watch(&waiting.id, wait).await.unwrap().state, State::Queued);
        drop(two);
        let granted = sites[0].watch(&waiting.id, LONG).await.unwrap();
        assert_eq!(granted.state, State::Granted);
        while sites[0].pool("gpu").await.unwrap().units != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(sites[0].remove_pool("gpu").await.unwrap_err().error, Code::InUse);
        sites[1].release(&granted.lease.unwrap().id).await.unwrap();
        sites[0].remove_pool("gpu").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_more_than_there_will_be_is_told() {
    let sites = Site::start_together(2, pools(&[("gpu", pool(4, Kind::Roaming))])).await.unwrap();
    let held = timeout(LONG, sites[0].acquire([("gpu", 3)])).await.unwrap().unwrap();
    let big = sites[1].submit(want(&[("gpu", 4)])).await.unwrap();
    let small = sites[1].submit(want(&[("gpu", 2)])).await.unwrap();
    let spec = serde_json::from_value(serde_json::json!({"units": 2})).unwrap();
    sites[0].put_pool("gpu", spec).await.unwrap();
    let big = sites[0].watch(&big.id, LONG).await.unwrap();
    assert_eq!((big.state, big.code), (State::Failed, Some(Code::Infeasible)), "{big:?}");
    // The claim that takes units out of the pool is not somebody who waits.
    assert_eq!(sites[0].pool("gpu").await.unwrap().waiting, 1);
    drop(held);
    let small = sites[0].watch(&small.id, LONG).await.unwrap();
    assert_eq!(small.state, State::Granted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_changes_without_a_site_that_has_stopped_and_the_rest_goes_on() {
    let sites = Site::start_together(3, pools(&[("gpu", pool(2, Kind::Roaming))])).await.unwrap();
    // The stopped one has no unit.
    let both = timeout(LONG, sites[0].acquire([("gpu", 2)])).await.unwrap().unwrap();
    sites[2].stop().await;
    let spec = || serde_json::from_value(serde_json::json!({"units": 3})).unwrap();
    let refused = sites[0].put_pool("gpu", spec()).await.unwrap_err();
    assert_eq!(refused.error, Code::Unreachable, "{refused}");
    assert!(refused.message.contains("s2"), "{refused}");
    drop(both);
    drop(timeout(LONG, sites[0].acquire([("gpu", 2)])).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_brought_about_elsewhere_is_not_again() {
    let sites = Site::start_together(2, pools(&[("gpu", pool(2, Kind::Roaming))])).await.unwrap();
    let from = sites[0].config().clone();
    let mut to = from.clone();
    let protocol = kofm_net::config::DEFAULT_SEMAPHORE;
    let slots = kofm_net::config::SemaphoreConfig { value: 3, protocol, arbitration: None };
    to.semaphores.insert("slots".into(), slots);
    to.pools.insert("fresh".into(), pool(1, Kind::Roaming));
    let reload = async |site: &Site| {
        let done = site.reload(&mut from.clone(), &to).await;
        assert!(done.len() == 2 && done.iter().all(|it| it.1.is_ok()), "{done:?}");
    };
    reload(&sites[0]).await;
    let take = kofm_net::api::TakeSpec { k: 2, wait: None, owner: None, id: None };
    timeout(LONG, sites[1].p("slots", take)).await.unwrap().unwrap();
    reload(&sites[1]).await;
    assert_eq!(sites[0].semaphore("slots").await.unwrap().value, 1);
}

/// Four units: Ann has two at s0, Ben two at s2. Bob asks for three at s1, then Carol for one at
/// s2. Where a change of epoch loses the order, Carol is served as soon as Ben releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_keeps_its_place_over_a_change() {
    // The second pool has its switchboard at s1, which promises both units of Ben to Bob.
    let table = pools(&[("a", pool(1, Kind::Roaming)), ("gpu", pool(4, Kind::Roaming))]);
    let sites = Site::start_together(3, table).await.unwrap();
    let ann = timeout(LONG, sites[0].acquire([("gpu", 2)])).await.unwrap().unwrap();
    let ben = timeout(LONG, sites[2].acquire([("gpu", 2)])).await.unwrap().unwrap();
    let bob = sites[1].submit(want(&[("gpu", 3)])).await.unwrap();
    // Bob's ask has reached s2 when he is seen to wait before Carol.
    let blocked = async {
        while sites[2].pool("gpu").await.unwrap().waiting == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, blocked).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let carol = sites[2].submit(want(&[("gpu", 1)])).await.unwrap();
    assert_eq!((bob.state, carol.state), (State::Queued, State::Queued));
    let spec = serde_json::from_value(serde_json::json!({"units": 1})).unwrap();
    sites[0].put_pool("other", spec).await.unwrap();
    drop(ben);
    let wait = Duration::from_millis(500);
    assert_eq!(sites[2].watch(&carol.id, wait).await.unwrap().state, State::Queued);
    drop(ann);
    for (site, request) in [(&sites[1], &bob), (&sites[2], &carol)] {
        assert_eq!(site.watch(&request.id, LONG).await.unwrap().state, State::Granted);
    }
}
