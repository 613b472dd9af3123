//! Sites in one process, over real sockets, through the library.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kofm_core::Kind;
use kofm_net::Site;
use kofm_net::api::{Code, OnExpiry, State, Submit};
use kofm_net::config::{Config, PoolConfig};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

fn pool(units: u32, protocol: Kind) -> PoolConfig {
    PoolConfig { protocol, ..PoolConfig::new(units) }
}

fn pools(list: &[(&str, PoolConfig)]) -> BTreeMap<String, PoolConfig> {
    list.iter().map(|(name, pool)| ((*name).to_owned(), pool.clone())).collect()
}

fn want(list: &[(&str, u32)]) -> Submit {
    let want = list.iter().map(|(pool, units)| ((*pool).to_owned(), *units)).collect();
    Submit { want, ..Submit::default() }
}

/// The last releases may still be on their way.
async fn all_free(site: &Site) {
    let free = async {
        loop {
            let (pools, missing) = site.pools().await.unwrap();
            assert!(missing.is_empty());
            assert!(pools.iter().all(|it| it.held + it.free + it.quarantined == it.units));
            if pools.iter().all(|it| it.free == it.units && it.waiting == 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, free).await.expect("all is given back");
}

/// Every protocol that sites run.
fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.iter().copied().filter(|kind| {
        let profile = kind.profile();
        !profile.as_printed && profile.full_service
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_protocol_never_shows_a_unit_to_two_holders() {
    for kind in kinds() {
        let sites = Site::start_together(3, pools(&[("gpu", pool(5, kind))])).await.unwrap();
        let used: Arc<Mutex<HashSet<String>>> = Arc::default();
        let fences: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let mut tasks = Vec::new();
        for client in 0..9_u32 {
            let site = sites[client as usize % 3].clone();
            let (used, fences) = (Arc::clone(&used), Arc::clone(&fences));
            tasks.push(tokio::spawn(async move {
                for round in 0..20 {
                    let lease = site.acquire([("gpu", (client + round) % 5 + 1)]).await.unwrap();
                    let units = lease.units()["gpu"].clone();
                    assert_eq!(units.len() as u32, (client + round) % 5 + 1);
                    for unit in &units {
                        assert!(used.lock().unwrap().insert(unit.clone()), "{kind:?} {unit} twice");
                        let last = fences.lock().unwrap().insert(unit.clone(), lease.fence());
                        assert!(last < Some(lease.fence()), "{kind:?} {unit}: {last:?}");
                    }
                    tokio::task::yield_now().await;
                    for unit in &units {
                        assert!(used.lock().unwrap().remove(unit));
                    }
                }
            }));
        }
        for task in tasks {
            timeout(LONG, task).await.expect("nobody waits for ever").unwrap();
        }
        all_free(&sites[1]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demands_over_pools_of_several_protocols_neither_deadlock_nor_leak() {
    let kinds: Vec<Kind> = kinds().collect();
    let table: Vec<(String, PoolConfig)> =
        kinds.iter().map(|&kind| (format!("p-{}", kind.name()), pool(2, kind))).collect();
    let names: Vec<String> = table.iter().map(|it| it.0.clone()).collect();
    let sites = Site::start_together(3, table.into_iter().collect()).await.unwrap();
    let mut tasks = Vec::new();
    for client in 0..6_usize {
        let (site, names) = (sites[client % 3].clone(), names.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..10 {
                let want = names.iter().map(|name| (name.clone(), 1 + (round % 2)));
                let lease = site.acquire(want).await.unwrap();
                assert_eq!(lease.units().len(), names.len());
            }
        }));
    }
    for task in tasks {
        timeout(LONG, task).await.expect("nobody waits for ever").unwrap();
    }
    all_free(&sites[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_runs_out_and_a_cancel_leave_nothing_behind() {
    let table = pools(&[("a", pool(1, Kind::Permission)), ("b", pool(1, Kind::PermissionLazy))]);
    let sites = Site::start_together(2, table).await.unwrap();
    let held = sites[0].acquire([("b", 1)]).await.unwrap();

    // It gets a, and waits for b.
    let spec = Submit { wait: Some(Duration::from_millis(300)), ..want(&[("a", 1), ("b", 1)]) };
    let request = sites[1].submit(spec).await.unwrap();
    assert_eq!(request.state, State::Queued);
    let request = sites[1].watch(&request.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(request.state, State::Failed, "{request:?}");

    let request = sites[1].submit(want(&[("a", 1), ("b", 1)])).await.unwrap();
    let cancelled = sites[0].cancel(&request.id).await.unwrap();
    assert_eq!(cancelled.state, State::Cancelled);

    let busy = Submit { wait: Some(Duration::ZERO), ..want(&[("b", 1)]) };
    assert_eq!(sites[1].submit(busy.clone()).await.unwrap_err().error, Code::Busy);
    assert_eq!(sites[0].submit(busy).await.unwrap_err().error, Code::Busy);
    drop(held);
    let both = timeout(LONG, sites[1].acquire([("a", 1), ("b", 1)])).await.unwrap().unwrap();
    drop(both);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blockers_are_named_wherever_they_are() {
    let sites =
        Site::start_together(3, pools(&[("gpu", pool(2, Kind::Permission))])).await.unwrap();
    let submit = |owner: &str, units| Submit {
        owner: Some(owner.into()),
        reason: Some("training".into()),
        ..want(&[("gpu", units)])
    };
    let alice = sites[0].submit(submit("alice", 2)).await.unwrap();
    assert_eq!(alice.state, State::Granted);
    let bob = sites[1].submit(submit("bob", 1)).await.unwrap();
    let carol = sites[2].submit(submit("carol", 1)).await.unwrap();
    let bob = sites[2].watch(&bob.id, Duration::ZERO).await.unwrap();
    assert_eq!((bob.state, bob.position), (State::Queued, Some(1)));
    let blocker = &bob.blocked_by[0];
    assert_eq!(blocker.owner.as_deref(), Some("alice"), "{bob:?}");
    assert_eq!(blocker.reason.as_deref(), Some("training"));
    assert_eq!((blocker.site.as_str(), blocker.units), ("s0", 2));
    assert_eq!(blocker.lease, alice.lease.as_ref().map(|lease| lease.id.clone()));
    let carol = sites[0].watch(&carol.id, Duration::ZERO).await.unwrap();
    assert_eq!(carol.position, Some(2), "{carol:?}");

    let lease = alice.lease.unwrap();
    sites[2].release(&lease.id).await.unwrap();
    sites[1].release(&lease.id).await.unwrap();
    let bob = sites[0].watch(&bob.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(bob.state, State::Granted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_id_is_one_request_at_all_sites() {
    let sites =
        Site::start_together(3, pools(&[("gpu", pool(4, Kind::Permission))])).await.unwrap();
    let spec = Submit { id: Some("build-7".into()), ..want(&[("gpu", 1)]) };
    let (a, b, c) = tokio::join!(
        sites[0].submit(spec.clone()),
        sites[1].submit(spec.clone()),
        sites[2].submit(spec.clone())
    );
    let ids: HashSet<String> =
        [a, b, c].into_iter().map(|it| it.unwrap()).map(|request| request.site).collect();
    assert_eq!(ids.len(), 1, "all at one site");
    let request = sites[1].watch("build-7", LONG).await.unwrap();
    assert_eq!(request.state, State::Granted);
    assert_eq!(sites[2].pools().await.unwrap().0[0].held, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_follows_the_policy_of_each_pool() {
    let mut config = Config::single("one");
    for (name, on_expiry) in
        [("r", OnExpiry::Release), ("h", OnExpiry::Hold), ("q", OnExpiry::Quarantine)]
    {
        config.pools.insert(name.into(), PoolConfig { on_expiry, ..PoolConfig::new(2) });
    }
    let site = Site::start(config).await.unwrap();
    let ttl = Some(Duration::from_millis(200));
    let spec = Submit { ttl, ..want(&[("r", 2), ("h", 1), ("q", 1)]) };
    let request = site.submit(spec).await.unwrap();
    let lease = request.lease.unwrap();
    let renewed = site.renew(&lease.id).await.unwrap();
    assert!(renewed.expires_in_ms > 100);
    // Another client waits for what will be given back: no clock in this test but the site's.
    let all = timeout(LONG, site.acquire([("r", 2)])).await.unwrap().unwrap();
    assert_eq!(site.renew(&lease.id).await.unwrap_err().error, Code::Gone);
    let (pools, _) = site.pools().await.unwrap();
    let counts: Vec<_> =
        pools.iter().map(|it| (it.name.as_str(), it.held, it.free, it.quarantined)).collect();
    assert_eq!(counts, [("h", 1, 1, 0), ("q", 0, 1, 1), ("r", 2, 0, 0)]);
    drop(all);
    // A person acts.
    site.release(&lease.id).await.unwrap();
    let (pools, _) = site.pools().await.unwrap();
    assert!(pools.iter().all(|it| it.free == 2), "{pools:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_be_is_refused_at_once() {
    let site = Site::start_together(2, pools(&[("gpu", pool(4, Kind::Permission))])).await.unwrap();
    for (spec, code) in [
        (want(&[("gpu", 99)]), Code::Infeasible),
        (want(&[("nix", 1)]), Code::UnknownPool),
        (want(&[]), Code::Malformed),
        (want(&[("gpu", 0)]), Code::Malformed),
    ] {
        assert_eq!(site[0].submit(spec).await.unwrap_err().error, code);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_of_a_cluster_in_one_process_can_change() {
    let sites =
        Site::start_together(3, pools(&[("gpu", pool(4, Kind::Permission))])).await.unwrap();
    let spec: kofm_net::api::PutPool =
        serde_json::from_str(r#"{"units":["x","y"],"on_expiry":"hold"}"#).unwrap();
    sites[1].put_pool("board", spec.clone()).await.unwrap();
    let lease = timeout(LONG, sites[2].acquire([("board", 2), ("gpu", 1)])).await.unwrap().unwrap();
    assert_eq!(lease.units()["board"], ["x", "y"]);
    assert_eq!(sites[0].remove_pool("board").await.unwrap_err().error, Code::InUse);
    drop(lease);
    sites[0].remove_pool("board").await.unwrap();
    assert_eq!(sites[2].submit(want(&[("board", 1)])).await.unwrap_err().error, Code::UnknownPool);
    sites[2].put_pool("board", spec).await.unwrap();
    drop(timeout(LONG, sites[0].acquire([("board", 2)])).await.unwrap().unwrap());
}
