//! Pools with `on_expiry = "hold"`: units stay with their lease when its site is lost for good.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::harness::{Cluster, get, signal, until};

const POOLS: &str = "[pools]\nreboot = { units = 2, on_expiry = \"hold\" }\nother = 2\n";
/// The shortest that a busy machine can do with.
const TOP: &str = "site_lease = \"3s\"\n";

/// The status of a call as Zincati makes it.
fn fleet(cluster: &Cluster, site: usize, call: &str, node: &str) -> u16 {
    let body = format!("{{\"client_params\":{{\"id\":\"{node}\",\"group\":\"reboot\"}}}}");
    let mut stream = TcpStream::connect(cluster.http[site].trim_start_matches("http://")).unwrap();
    write!(
        stream,
        "POST /v1/{call} HTTP/1.1\r\nconnection: close\r\nhost: x\r\nfleet-lock-protocol: true\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Gets a slot, as a machine that asks until it has one.
fn take(cluster: &Cluster, site: usize, node: &str) {
    until("a slot is granted", || fleet(cluster, site, "pre-reboot", node) == 200);
}

/// Loses a site with its disk.
fn lose(cluster: &mut Cluster, site: usize) {
    cluster.kill(site);
    fs::remove_dir_all(cluster.state_dir(site)).unwrap();
}

fn leases(cluster: &Cluster, site: usize) -> Vec<Value> {
    let output = cluster.run(site, &["status", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    status["leases"].as_array().cloned().unwrap_or_default()
}

fn lease_of(cluster: &Cluster, site: usize, node: &str) -> Option<Value> {
    let owner = format!("fleetlock:reboot:{node}");
    leases(cluster, site).into_iter().find(|it| it["owner"] == owner.as_str())
}

/// Two of two slots are taken at a site that is lost with its disk. No other machine gets one until
/// an operator, who sees them at another site, releases it.
#[test]
fn a_reboot_slot_stays_taken_when_its_site_and_disk_are_lost() {
    let mut cluster = Cluster::start_as(3, TOP, POOLS);
    cluster.members(1, 3);
    for node in ["node-1", "node-2"] {
        take(&cluster, 1, node);
    }
    let before = ["node-1", "node-2"].map(|node| lease_of(&cluster, 0, node).unwrap());
    assert!(before.iter().all(|it| it["site"] == "s1"), "{before:?}");
    lose(&mut cluster, 1);
    cluster.members(0, 2);
    // Longer than anything that the lost site may have promised.
    let refused = |node: &str| {
        let status = fleet(&cluster, 2, "pre-reboot", node);
        assert_ne!(status, 200, "a third machine got a slot of two");
    };
    until("the leases go on at other sites", || {
        refused("node-3");
        leases(&cluster, 0).len() == 2
    });
    for old in &before {
        let node = old["owner"].as_str().unwrap().rsplit(':').next().unwrap();
        let now = lease_of(&cluster, 2, node).unwrap();
        for field in ["name", "units", "fence", "request", "owner", "reason"] {
            assert_eq!(now[field], old[field], "{field}");
        }
        assert_ne!(now["site"], "s1");
    }
    refused("node-4");
    assert_eq!(cluster.pool(0, "reboot")["held"], 2);
    // The other pool has its units back.
    until("other units are free", || cluster.pool(0, "other")["free"] == 2);
    // An operator, who knows that the first machine is gone for good.
    let name = before[0]["name"].as_str().unwrap();
    assert!(cluster.run(2, &["release", name]).status.success());
    take(&cluster, 2, "node-3");
    // The second machine is back, and says so where it can.
    until("a slot is given back", || fleet(&cluster, 0, "steady-state", "node-2") == 200);
    take(&cluster, 0, "node-4");
    assert_ne!(fleet(&cluster, 2, "pre-reboot", "node-5"), 200);
}

/// Without a majority no client is told that it has a slot, and no unit is lost.
#[test]
fn a_slot_is_not_granted_before_a_majority_has_it() {
    let cluster = Cluster::start_as(3, "site_lease = \"60s\"\n", POOLS);
    cluster.members(1, 3);
    let sent = |name: &str| -> u64 {
        let text = get(&cluster.http[0], "/metrics");
        let value = text.lines().find_map(|it| it.strip_prefix(name).map(str::to_owned));
        value.expect("the metric is there").trim().parse().unwrap()
    };
    assert!(cluster.run(0, &["run", "other", "--", "true"]).status.success());
    assert_eq!(sent("kofm_copy_messages_total "), 0, "other pools cost nothing");
    // Afterwards both slots lie at this site.
    assert!(cluster.run(0, &["run", "reboot:2", "--", "true"]).status.success());
    for site in [1, 2] {
        signal(&cluster.sites[site], "STOP");
    }
    let output = cluster.run(0, &["acquire", "reboot", "--wait", "1s"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("waits for copies: 1 of 2 sites have one"), "{told}");
    for site in [1, 2] {
        signal(&cluster.sites[site], "CONT");
    }
    // Nothing was lost: both units are there for others.
    until("both slots are granted", || {
        cluster.run(1, &["run", "reboot:2", "--wait", "10s", "--", "true"]).status.success()
    });
    let before = sent("kofm_copy_messages_total ");
    assert!(before > 0);
    let lease = cluster.json(0, &["acquire", "reboot", "--json"]);
    let copies = sent("kofm_copy_messages_total ") - before;
    println!("messages of a grant about copies: {copies}");
    assert_eq!(copies, 2, "one to each other voter");
    assert!(cluster.run(1, &["release", lease["id"].as_str().unwrap()]).status.success());
    cluster.all_free("reboot");
}
