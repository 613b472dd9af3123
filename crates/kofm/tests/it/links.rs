//! Links that are cut, and sites that forget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::{Cluster, Proxy, exit_code, until};

#[test]
fn a_link_that_is_cut_for_seconds_under_load_loses_nothing() {
    let mut proxy = None;
    let cluster = Cluster::start_with(3, "[pools]\ngpu = 4\nlicence = 2\n", |from, to, port| {
        // The lower number dials.
        if (from, to) == (0, 1) {
            let made = proxy.insert(Proxy::new(port));
            return made.port;
        }
        port
    });
    let (cluster, proxy) = (Arc::new(cluster), proxy.unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..6)
        .map(|number| {
            let (cluster, stop, done) =
                (Arc::clone(&cluster), Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let args = ["run", "gpu:2", "licence:1", "--", "true"];
                    let output = cluster.run(number % 3, &args);
                    assert!(output.status.success(), "{output:?}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    until("work is done", || done.load(Ordering::Relaxed) > 10);
    proxy.cut(true);
    until("the cut is seen", || {
        let members = cluster.json(0, &["members", "--json"]);
        members[1]["state"] == "away"
    });
    std::thread::sleep(Duration::from_secs(3));
    let before = done.load(Ordering::Relaxed);
    proxy.cut(false);
    until("work goes on", || done.load(Ordering::Relaxed) > before + 20);
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().unwrap();
    }
    cluster.all_free("gpu");
    cluster.all_free("licence");
}

#[test]
fn a_site_drains_on_term() {
    let mut cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let lease = cluster.json(0, &["acquire", "gpu", "--ttl", "5m", "--json"]);
    let mut waiting = cluster.command(0, &["acquire", "gpu"]);
    let mut waiting = waiting.stderr(std::process::Stdio::null()).spawn().unwrap();
    until("it waits", || cluster.pool(0, "gpu")["waiting"] == 1);
    crate::harness::signal(&cluster.sites[0], "TERM");
    assert_eq!(exit_code(&mut waiting), 69);
    assert!(cluster.run(0, &["release", lease["id"].as_str().unwrap()]).status.success());
    assert_eq!(exit_code(&mut cluster.sites[0]), 0);
}
