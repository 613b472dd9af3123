//! What clusters of many sites cost while they are idle: a table, printed on demand.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Cluster, get};

/// How long an idle cluster is watched.
const WATCHED: Duration = Duration::from_secs(20);

/// Bytes that the loopback interface of this network namespace has carried.
fn loopback_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap();
    let line = text.lines().find(|line| line.trim_start().starts_with("lo:")).unwrap();
    line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).unwrap()
}

/// Seconds of processor time that a process has used.
fn processor(child: &Child) -> f64 {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = |place: usize| fields[place].parse::<u32>().unwrap();
    f64::from(ticks(11) + ticks(12)) / 100.0
}

fn memory_kib(child: &Child) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).unwrap()
}

fn descriptors(child: &Child) -> u64 {
    fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count() as u64
}

fn members(cluster: &Cluster, site: usize) -> usize {
    let text = get(&cluster.http[site], "/v1/members");
    let body = text.split("\r\n\r\n").nth(1).unwrap_or_default();
    let list: Value = serde_json::from_str(body).unwrap_or_default();
    let list = list.as_array().cloned().unwrap_or_default();
    list.iter().filter(|it| it["member"] == true).count()
}

fn wait(condition: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_mins(10), "waited in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

/// `SITES=3,9,31` chooses the sizes. In a network namespace of its own the bytes are those of the
/// cluster alone: `unshare --net sh -c 'ip link set lo up; …'`.
#[test]
#[ignore = "a measurement, of minutes"]
fn how_much_idle_clusters_cost() {
    let sizes = std::env::var("SITES").unwrap_or_else(|_| "3,9".to_owned());
    println!(
        "| sites | time to form | bytes/s | processor | memory of a site | descriptors, most | \
         death noticed |\n\
         | --- | --- | --- | --- | --- | --- | --- |"
    );
    for size in sizes.split(',') {
        let size: usize = size.parse().unwrap();
        let start = Instant::now();
        let mut cluster = Cluster::begin(size, "[pools]\ngpu = 8\n");
        wait(|| members(&cluster, 0) == size);
        let ready = |site: usize| get(&cluster.http[site], "/readyz").contains(" 200 ");
        wait(|| (0..size).all(ready));
        let formed = start.elapsed();
        std::thread::sleep(Duration::from_secs(5));
        let sum = |sites: &[Child]| sites.iter().map(processor).sum::<f64>();
        let before = (loopback_bytes(), sum(&cluster.sites), Instant::now());
        std::thread::sleep(WATCHED);
        let time = before.2.elapsed().as_secs_f64();
        let bytes = (loopback_bytes() - before.0) as f64 / time;
        let used = (sum(&cluster.sites) - before.1) / time;
        let memory = cluster.sites.iter().map(memory_kib).sum::<u64>() / size as u64;
        let most = cluster.sites.iter().map(descriptors).max().unwrap();
        let done = cluster.run(size / 2, &["run", "gpu:8", "--", "true"]);
        assert!(done.status.success(), "{done:?}");
        cluster.kill(size - 1);
        let noticed = wait(|| members(&cluster, 0) == size - 1);
        println!(
            "| {size} | {:.1} s | {bytes:.0} | {:.1} % | {:.1} MiB | {most} | {:.2} s |",
            formed.as_secs_f64(),
            used * 100.0,
            memory as f64 / 1024.0,
            noticed.as_secs_f64()
        );
    }
}
