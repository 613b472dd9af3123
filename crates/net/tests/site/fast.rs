//! Fast connections.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_share_one_fast_connection() {
    let sites =
        Site::start_together(2, pools(&[("gpu", pool(3, Kind::Permission))])).await.unwrap();
    let clients = serve(&sites).await;
    let fast = [clients[0].fast().await.unwrap(), clients[1].fast().await.unwrap()];
    let mut tasks = tokio::task::JoinSet::new();
    let used: Arc<Mutex<HashSet<String>>> = Arc::default();
    for number in 0..40_usize {
        let (fast, used) = (fast.clone(), Arc::clone(&used));
        tasks.spawn(async move {
            for _ in 0..5 {
                let spec = want(&[("gpu", 1)]);
                let guard = fast[number % 2].acquire(&spec).await.unwrap();
                let lease = guard.lease();
                let unit = lease.units["gpu"][0].clone();
                assert!(used.lock().unwrap().insert(unit.clone()), "{unit} twice");
                fast[1 - number % 2].renew(&lease.id).await.unwrap();
                used.lock().unwrap().remove(&unit);
                // Through the other site: it passes it on. The guard releases again, to no harm.
                fast[1 - number % 2].release(&lease.id).await.unwrap();
            }
        });
    }
    timeout(LONG, tasks.join_all()).await.unwrap();
    let much = fast[0].acquire(&want(&[("gpu", 4)])).await;
    assert_eq!(much.unwrap_err().error, Code::Infeasible);
    let two = fast[0].acquire(&want(&[("gpu", 2)])).await.unwrap();
    let busy = Submit { wait: Some(Duration::ZERO), ..want(&[("gpu", 2)]) };
    assert_eq!(fast[0].acquire(&busy).await.unwrap_err().error, Code::Busy);
    fast[1].release(&two.lease().id).await.unwrap();
    all_free(&sites[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_whose_guard_is_dropped_is_free_for_the_next_call() {
    let mut config = Config::single("one");
    config.pools.insert("gpu".into(), PoolConfig::new(1));
    let site = Site::start(config).await.unwrap();
    let client = serve(std::slice::from_ref(&site)).await.remove(0);
    let [one, other] = [client.fast().await.unwrap(), client.fast().await.unwrap()];
    // It does not wait: if the unit is not free, it fails.
    let at_once = Submit { wait: Some(Duration::ZERO), ..want(&[("gpu", 1)]) };
    for round in 0..200 {
        let guard = one.acquire(&at_once).await.unwrap();
        if round % 10 == 0 {
            let error = other.acquire(&at_once).await.unwrap_err();
            assert_eq!(error.error, Code::Busy);
            assert!(guard.renew().await.unwrap() > Duration::ZERO);
        }
        drop(guard);
    }
    for _ in 0..50 {
        one.acquire(&at_once).await.unwrap().release().await.unwrap();
        other.acquire(&at_once).await.unwrap().release().await.unwrap();
    }
    // With an id of its own, too.
    for round in 0..50 {
        let named = Submit { id: Some(format!("round-{round}")), ..at_once.clone() };
        drop(one.acquire(&named).await.unwrap());
        drop(one.acquire(&at_once).await.unwrap());
    }
    // A connection that nobody has any more says the last word, too.
    let guard = other.acquire(&want(&[("gpu", 1)])).await.unwrap();
    drop((one, other));
    drop(guard);
    all_free(&site).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_request_that_nobody_waits_for_leaves_the_queue() {
    let sites = Site::start_together(2, pools(&[("gpu", PoolConfig::new(3))])).await.unwrap();
    let clients = serve(&sites).await;
    let fast = clients[0].fast().await.unwrap();
    let held = fast.acquire(&want(&[("gpu", 1)])).await.unwrap();
    let all = [want(&[("gpu", 3)]), Submit { id: Some("mine".into()), ..want(&[("gpu", 3)]) }];
    for spec in all {
        let (client, spec) = (fast.clone(), spec);
        let waiting = tokio::spawn(async move { client.acquire(&spec).await.is_ok() });
        while sites[0].queue().await.unwrap().0.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        // It would have been in front.
        let two = want(&[("gpu", 2)]);
        drop(timeout(LONG, fast.acquire(&two)).await.unwrap().unwrap());
    }
    while !sites[0].queue().await.unwrap().0.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    drop((held, fast));
    all_free(&sites[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_goes_with_its_fast_connection() {
    for count in [1, 2] {
        let pools = pools(&[("gpu", PoolConfig::new(3))]);
        connection_breaks(&Site::start_together(count, pools).await.unwrap()).await;
    }
}

async fn connection_breaks(sites: &[Site]) {
    let clients = serve(sites).await;
    let fast = clients[0].fast().await.unwrap();
    let held = fast.acquire(&want(&[("gpu", 1)])).await.unwrap();
    // All that runs in it ends with its runtime, without a word.
    let elsewhere = tokio::runtime::Runtime::new().unwrap();
    let dying = elsewhere.spawn({
        let client = clients[0].clone();
        async move { client.fast().await.unwrap() }
    });
    let dying = dying.await.unwrap();
    for number in 0..3 {
        let id = (number == 2).then(|| "mine".to_owned());
        let (client, spec) = (dying.clone(), Submit { id, ..want(&[("gpu", 3)]) });
        elsewhere.spawn(async move { client.acquire(&spec).await.is_ok() });
    }
    while sites[0].queue().await.unwrap().0.len() < 3 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    elsewhere.shutdown_background();
    // The one with an id of its own may be asked for again, over another connection.
    let left = timeout(LONG, async {
        loop {
            let (queue, _) = sites[0].queue().await.unwrap();
            if queue.len() < 2 {
                return queue;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let left = left.await.unwrap();
    assert_eq!(left.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), ["mine"]);
    drop(held);
    let again = Submit { id: Some("mine".into()), ..want(&[("gpu", 3)]) };
    drop(timeout(LONG, fast.acquire(&again)).await.unwrap().unwrap());
    drop((dying, fast));
    all_free(&sites[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impatient_fast_clients_leave_nothing_behind() {
    let kinds = [("gpu", pool(2, Kind::Roaming)), ("disk", pool(2, Kind::Permission))];
    let sites = Site::start_together(3, pools(&kinds)).await.unwrap();
    let clients = serve(&sites).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..30_u64 {
        let fast = clients[usize::try_from(number).unwrap() % 3].fast().await.unwrap();
        tasks.spawn(async move {
            let wants = [&[("gpu", 1)][..], &[("disk", 2)], &[("gpu", 2), ("disk", 1)]];
            for round in 0..40 {
                let spec = want(wants[usize::try_from(number + round).unwrap() % 3]);
                let patience = Duration::from_micros((number * 389 + round * 1_237) % 5_000);
                if let Ok(guard) = timeout(patience, fast.acquire(&spec)).await {
                    let guard = guard.unwrap();
                    if round % 2 == 0 {
                        guard.release().await.unwrap();
                    }
                }
            }
        });
    }
    timeout(LONG, tasks.join_all()).await.unwrap();
    all_free(&sites[0]).await;
}
