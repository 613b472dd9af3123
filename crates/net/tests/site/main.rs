//! Sites in one process, over real sockets, through the library.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod change;
mod drain;
mod edge;
mod events;
mod fast;
mod names;
mod openapi;
mod pages;
mod rejoin;
mod rights;
mod usage;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kofm_core::{Kind, Service};
use kofm_net::api::{Code, OnExpiry, State, Submit};
use kofm_net::config::{Config, PoolConfig};
use kofm_net::{Access, Site};
use tokio::time::timeout;

const LONG: Duration = Duration::from_mins(1);

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
        !profile.as_printed && profile.full_service && profile.serves == Service::Pool
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
                    assert_eq!(u32::try_from(units.len()).unwrap(), (client + round) % 5 + 1);
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
        // Counted while they are used, and afterwards.
        assert_eq!(sites[2].unaccounted("gpu").await.unwrap(), [""; 0], "{kind:?}");
        for task in tasks {
            timeout(LONG, task).await.expect("nobody waits for ever").unwrap();
        }
        all_free(&sites[1]).await;
        assert_eq!(sites[0].unaccounted("gpu").await.unwrap(), [""; 0], "{kind:?}");
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

/// Units of `roaming` lie at all sites; who asks at one of them has a chance at each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_once_gets_what_is_free_elsewhere() {
    for kind in [Kind::Roaming, Kind::Permission, Kind::Quorum] {
        let sites = Site::start_together(3, pools(&[("gpu", pool(3, kind))])).await.unwrap();
        let once = Submit { wait: Some(Duration::ZERO), ..want(&[("gpu", 1)]) };
        for _ in 0..3 {
            let request = sites[0].submit(once.clone()).await.unwrap();
            assert_eq!(request.state, State::Granted, "{kind:?}");
        }
        // The members have counted: no timer ran out.
        for site in &sites {
            let error = site.submit(once.clone()).await.unwrap_err();
            assert_eq!(error.error, Code::Busy, "{kind:?}");
            let counted = "busy: pool `gpu` has 0 of 3 units free, 1 asked";
            let here = "busy: others at this site come first";
            let sure = [counted, here].iter().any(|text| error.message.contains(text));
            assert!(sure, "{kind:?}: {error}");
        }
    }
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
    assert_eq!(blocker.lease, alice.lease.as_ref().map(|lease| lease.name.clone()));
    let carol = sites[0].watch(&carol.id, Duration::ZERO).await.unwrap();
    assert_eq!(carol.position, Some(2), "{carol:?}");
    let (queue, _) = sites[1].queue().await.unwrap();
    let named = |place: usize| queue[place].blocked_by.iter().map(|it| it.owner.as_deref());
    assert!(named(0).eq([Some("alice")]), "{queue:?}");
    assert!(named(1).eq([Some("alice"), Some("bob")]), "{queue:?}");
    assert_eq!(queue[1].blocked_by[0].lease, alice.lease.as_ref().map(|lease| lease.name.clone()));

    let lease = alice.lease.unwrap();
    sites[2].release(&lease.id).await.unwrap();
    sites[1].release(&lease.id).await.unwrap();
    let bob = sites[0].watch(&bob.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(bob.state, State::Granted);
}

/// A protocol of named units knows little of what others wait for: their sites do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_ahead_elsewhere_is_named_too() {
    let table = pools(&[("gpu", pool(2, Kind::Roaming)), ("seat", pool(2, Kind::Roaming))]);
    let sites = Site::start_together(3, table).await.unwrap();
    let held = timeout(LONG, sites[0].acquire([("gpu", 2)])).await.unwrap().unwrap();
    let submit =
        |owner: &str| Submit { owner: Some(owner.into()), ..want(&[("gpu", 2), ("seat", 1)]) };
    let bob = sites[1].submit(submit("bob")).await.unwrap();
    let carol = sites[2].submit(submit("carol")).await.unwrap();
    let view = async |id: &str| sites[0].watch(id, Duration::ZERO).await.unwrap();
    let views = [view(&bob.id).await, view(&carol.id).await];
    // The one of the two that is behind hears of the other.
    let behind = views.iter().max_by_key(|it| it.position).unwrap();
    let ahead = views.iter().min_by_key(|it| it.position).unwrap();
    let named = |it: &kofm_net::api::Blocker| it.owner == ahead.owner && it.state == "queued";
    assert!(behind.blocked_by.iter().any(named), "{behind:?}");
    assert!(behind.blocked_by.iter().any(|it| it.state == "held"), "{behind:?}");
    drop(held);
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

async fn serve(sites: &[Site]) -> Vec<kofm_net::client::Client> {
    let mut clients = Vec::new();
    for site in sites {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(kofm_net::http::serve(site.clone(), listener, Access::open()));
        let address = kofm_net::client::Address::parse(&address).unwrap();
        clients.push(kofm_net::client::Client::new(address, None));
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_of_the_client_is_renewed_until_it_is_dropped() {
    let mut config = Config::single("one");
    config.pools.insert("gpu".into(), PoolConfig::new(1));
    let site = Site::start(config).await.unwrap();
    let client = serve(std::slice::from_ref(&site)).await.remove(0);
    let spec = Submit { ttl: Some(Duration::from_millis(300)), ..want(&[("gpu", 1)]) };
    let guard = client.acquire(&spec).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(site.leases().await.unwrap().0[0].name, guard.lease().name);
    drop(guard);
    all_free(&site).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_answers_as_the_contract_says() {
    use hyper::Method;
    let table = pools(&[("gpu", pool(2, Kind::Permission)), ("reboot", pool(1, Kind::Permission))]);
    let sites = Site::start_together(2, table).await.unwrap();
    let clients = serve(&sites).await;
    let call = async |site: usize, method: &str, path: &str, body: &str| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let body = bytes::Bytes::copy_from_slice(body.as_bytes());
        let (status, answer) = clients[site].raw(method, path, body, LONG).await.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
        (status.as_u16(), json)
    };
    assert_eq!(call(0, "POST", "/v1/requests", r#"{"want":{"reboot":1}}"#).await.0, 200);
    let (status, granted) = call(0, "POST", "/v1/requests", r#"{"want":{"gpu":2}}"#).await;
    assert_eq!(status, 200, "{granted}");
    let lease = granted["lease"]["id"].as_str().unwrap().to_owned();
    let queued = call(1, "POST", "/v1/requests", r#"{"want":{"gpu":1},"wait":"10m"}"#).await;
    assert_eq!((queued.0, queued.1["state"].as_str()), (202, Some("queued")));
    let id = queued.1["id"].as_str().unwrap();
    let seen = call(0, "GET", &format!("/v1/requests/{id}"), "").await;
    let name = &granted["lease"]["name"];
    assert_eq!(seen.1["blocked_by"][0]["lease"], *name, "{}", seen.1);
    for (method, path, body, status, code) in [
        ("POST", "/v1/requests", r#"{"want":{"gpu":9}}"#, 409, "infeasible"),
        ("POST", "/v1/requests", r#"{"want":{"gpu":1},"wait":"0"}"#, 409, "busy"),
        ("POST", "/v1/requests", r#"{"want":{"nix":1}}"#, 404, "unknown-pool"),
        ("POST", "/v1/requests", "{", 422, "malformed"),
        ("POST", "/v1/requests", r#"{"want":{"gpu":-1}}"#, 422, "malformed"),
        ("POST", "/v1/requests", r#"{"want":{"gpu":"x"}}"#, 422, "malformed"),
        ("POST", "/v1/requests", r#"{"want":[]}"#, 422, "malformed"),
        ("POST", "/v1/requests", r#"{"want":{"gpu":1},"ttl":"x"}"#, 422, "malformed"),
        ("POST", "/v1/requests", "\u{fffd}\u{0}", 422, "malformed"),
        ("GET", "/v1/requests/none", "", 404, "unknown-request"),
        ("POST", "/v1/leases/none/renew", "", 410, "gone"),
        ("GET", "/v1/pools/none", "", 404, "unknown-pool"),
        ("GET", "/v1/leases?pool=none", "", 404, "unknown-pool"),
        ("GET", "/v1/queue?pool=none", "", 404, "unknown-pool"),
        ("GET", "/v1/history?pool=none", "", 404, "unknown-pool"),
        ("PUT", "/v1/pools/none/quarantine/0", r#"{"reason":"r"}"#, 404, "unknown-pool"),
        ("PUT", "/v1/pools/gpu/quarantine/0", "{}", 422, "malformed"),
        ("PUT", "/v1/pools/gpu/quarantine/0", r#"{"reason":"r"}"#, 501, "unsupported"),
        ("GET", "/v1/pools/gpu/quarantine/0", "", 405, "method"),
        ("GET", "/nowhere", "", 404, "not-found"),
        ("PATCH", "/v1/pools", "", 405, "method"),
    ] {
        let answer = call(1, method, path, body).await;
        let expected = (status, Some(code));
        assert_eq!((answer.0, answer.1["error"].as_str()), expected, "{method} {path} {body}");
        assert!(answer.1["message"].is_string());
    }
    assert_eq!(call(1, "POST", &format!("/v1/leases/{lease}/renew"), "").await.0, 200);
    for site in [1, 0] {
        assert_eq!(call(site, "DELETE", &format!("/v1/leases/{lease}"), "").await.0, 200);
    }
    let granted = call(0, "GET", &format!("/v1/requests/{id}?wait=30s"), "").await;
    assert_eq!(granted.1["state"].as_str(), Some("granted"));
    for path in ["/v1/leases", "/v1/queue", "/v1/members", "/v1/history", "/v1/pools"] {
        let answer = call(1, "GET", path, "").await;
        assert!(answer.0 == 200 && answer.1.is_array(), "{path}: {answer:?}");
    }
    // However much has happened elsewhere.
    let last = call(1, "GET", "/v1/history?pool=reboot&limit=1", "").await.1;
    assert_eq!(last["history"][0]["event"].as_str(), Some("granted"), "{last}");
    for path in ["/metrics", "/healthz", "/livez", "/readyz", "/openapi.json", "/"] {
        assert_eq!(call(1, "GET", path, "").await.0, 200, "{path}");
    }
    let pool = call(1, "GET", "/v1/pools/gpu", "").await.1;
    assert_eq!((pool["held"].as_u64(), pool["free"].as_u64()), (Some(1), Some(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_takes_its_reboot_slot_once_and_gives_it_back() {
    let sites = Site::start_together(2, pools(&[("reboot", pool(1, Kind::Permission))])).await;
    let sites = sites.unwrap();
    let mut addresses = Vec::new();
    for site in &sites {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap());
        tokio::spawn(kofm_net::http::serve(site.clone(), listener, Access::open()));
    }
    let call = async |site: usize, path: &str, node: &str, header: &str| {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let body = format!(r#"{{"client_params":{{"id":"{node}","group":"default"}}}}"#);
        let mut stream = tokio::net::TcpStream::connect(addresses[site]).await.unwrap();
        let text = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let right = "fleet-lock-protocol: true\r\n";
    assert_eq!(call(0, "/v1/pre-reboot", "a", "").await, 400);
    for _ in 0..2 {
        assert_eq!(call(0, "/v1/pre-reboot", "a", right).await, 200);
        assert_eq!(call(1, "/v1/pre-reboot", "a", right).await, 200);
        assert_eq!(call(1, "/v1/pre-reboot", "b", right).await, 409);
        assert_eq!(call(1, "/v1/steady-state", "a", right).await, 200);
        assert_eq!(call(1, "/v1/steady-state", "a", right).await, 200);
        assert_eq!(call(1, "/v1/pre-reboot", "b", right).await, 200);
        assert_eq!(call(0, "/v1/steady-state", "b", right).await, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_for_one_demand() {
    let table = pools(&[("gpu", pool(1, Kind::Roaming)), ("licence", pool(1, Kind::Roaming))]);
    let sites = Site::start_together(2, table).await.unwrap();
    let named = |id: &str, pool: &str| Submit { id: Some(id.into()), ..want(&[(pool, 1)]) };
    let first = sites[0].submit(named("x", "gpu")).await.unwrap();
    let again = sites[1].submit(named("x", "gpu")).await.unwrap();
    assert_eq!((again.state, again.lease.unwrap().id), (State::Granted, first.lease.unwrap().id));
    for site in &sites {
        let other = site.submit(named("x", "licence")).await.unwrap_err();
        assert_eq!(other.error, Code::Malformed, "{other}");
    }
    // Who does not want to wait is told at once, and the one who does waits on.
    let queued = sites[0].submit(named("y", "gpu")).await.unwrap();
    assert_eq!(queued.state, State::Queued);
    let once = Submit { wait: Some(Duration::ZERO), ..named("y", "gpu") };
    assert_eq!(sites[1].submit(once).await.unwrap_err().error, Code::Busy);
    assert_eq!(sites[0].queue().await.unwrap().0.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_is_used_everywhere_at_once_is_one_request() {
    let sites = Site::start_together(3, pools(&[("gpu", pool(9, Kind::Roaming))])).await.unwrap();
    for round in 0..100 {
        let named = || Submit { id: Some(format!("x{round}")), ..want(&[("gpu", 1)]) };
        let (first, second, third) = tokio::join!(
            sites[0].submit(named()),
            sites[1].submit(named()),
            sites[2].submit(named())
        );
        let leases: HashSet<String> = [first, second, third]
            .into_iter()
            .filter_map(|it| it.unwrap().lease)
            .map(|lease| lease.id)
            .collect();
        assert!(leases.len() <= 1, "{leases:?}");
        let request = sites[0].watch(&format!("x{round}"), LONG).await.unwrap();
        assert_eq!(sites[1].leases().await.unwrap().0.len(), 1);
        sites[2].release(&request.lease.unwrap().id).await.unwrap();
    }
    let own = Submit { id: Some("R1-mine".into()), ..want(&[("gpu", 1)]) };
    assert_eq!(sites[0].submit(own).await.unwrap_err().error, Code::Malformed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gangs_seats_are_nobody_elses() {
    let sites = Site::start_together(2, pools(&[("gpu", pool(2, Kind::Roaming))])).await.unwrap();
    for site in &sites {
        assert_eq!(site.submit(want(&[("@s0", 1)])).await.unwrap_err().error, Code::UnknownPool);
        assert_eq!(site.remove_pool("@s0").await.unwrap_err().error, Code::UnknownPool);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stops_waiting_at_once_holds_nothing() {
    let sites =
        Site::start_together(2, pools(&[("gpu", pool(1, Kind::Permission))])).await.unwrap();
    let held = timeout(LONG, sites[0].acquire([("gpu", 1)])).await.unwrap().unwrap();
    // Nobody has told it yet that it waits.
    assert!(timeout(Duration::from_millis(10), sites[1].acquire([("gpu", 1)])).await.is_err());
    drop(held);
    all_free(&sites[0]).await;
    drop(timeout(LONG, sites[0].acquire([("gpu", 1)])).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_is_used_from_anywhere_until_it_stops() {
    let mut config = Config::single("one");
    config.pools.insert("gpu".into(), PoolConfig::new(2));
    let site = Site::start(config).await.unwrap();
    // Many at the desk at once, in a runtime of their own; guards end where there is none.
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let site = site.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for round in 0..100 {
                    let held = runtime.block_on(site.acquire([("gpu", 1 + round % 2)])).unwrap();
                    assert_eq!(held.units()["gpu"].len(), 1 + round as usize % 2);
                    drop(held);
                }
            })
        })
        .collect();
    for thread in threads {
        tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
    }
    all_free(&site).await;
    let held = site.acquire([("gpu", 2)]).await.unwrap();
    let waiting = tokio::spawn({
        let site = site.clone();
        async move { site.acquire([("gpu", 1)]).await.map(|_| ()) }
    });
    while site.queue().await.unwrap().0.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    site.stop().await;
    // Whoever waits is told, and so is whoever comes later.
    assert_eq!(timeout(LONG, waiting).await.unwrap().unwrap().unwrap_err().error, Code::Draining);
    let later = timeout(LONG, site.acquire([("gpu", 1)])).await.unwrap();
    assert_eq!(later.unwrap_err().error, Code::Draining);
    drop(held);
}
