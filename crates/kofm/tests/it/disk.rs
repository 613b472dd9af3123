//! Sites whose disk is full for a while.

use std::fs::File;
use std::process::Command;

use crate::harness::{Cluster, KOFM, command, get, signal, until};

/// Lets a process write no byte to any file, or lifts that again.
fn fill_disk(process: u32, full: bool) {
    let limit = if full { "--fsize=0:" } else { "--fsize=unlimited:" };
    let status = Command::new("prlimit").args(["--pid", &process.to_string(), limit]).status();
    assert!(status.unwrap().success());
}

/// One site that is told of a full disk by an error, not by a signal.
fn start(durability: &str) -> Cluster {
    let top = format!("site_lease = \"1s\"\ndurability = \"{durability}\"\n");
    let mut cluster = Cluster::start_as(1, &top, "[pools]\ngpu = 8\n");
    cluster.members(0, 1);
    signal(&cluster.sites[0], "TERM");
    cluster.sites[0].wait().unwrap();
    // Its log is on the same disk.
    let log = File::create(cluster.state_dir(0).join("log")).unwrap();
    cluster.restart_by(0, || {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", KOFM]).stderr(log);
        command
    });
    cluster.members(0, 1);
    cluster
}

fn acquire(cluster: &Cluster) -> String {
    let lease = cluster.json(0, &["acquire", "gpu", "--ttl", "10m", "--json"]);
    lease["id"].as_str().unwrap().to_owned()
}

fn is_ready(cluster: &Cluster) -> bool {
    get(&cluster.http[0], "/readyz").starts_with("HTTP/1.1 200")
}

/// All of these leases, and no other, are there after a crash.
fn outlive_a_crash(mut cluster: Cluster, leases: &[String]) {
    cluster.kill(0);
    cluster.restart(0);
    cluster.members(0, 1);
    for lease in leases {
        let output = cluster.run(0, &["renew", lease]);
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(cluster.pool(0, "gpu")["held"], leases.len());
}

#[test]
fn a_full_disk_stops_grants_that_must_be_durable_while_it_is_full() {
    let cluster = start("grant");
    let mut leases = vec![acquire(&cluster), acquire(&cluster)];
    let over = acquire(&cluster);
    let site = cluster.sites[0].id();
    fill_disk(site, true);
    for _ in 0..3 {
        let output = cluster.run(0, &["acquire", "gpu", "--wait", "200ms"]);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
    }
    assert!(!is_ready(&cluster));
    let text = get(&cluster.http[0], "/readyz");
    assert!(text.contains("leases"), "{text}");
    // A lease may end meanwhile.
    assert!(command(&cluster.http[0], &["release", &over]).status().unwrap().success());
    fill_disk(site, false);
    until("the site is ready again", || is_ready(&cluster));
    leases.push(acquire(&cluster));
    outlive_a_crash(cluster, &leases);
}

#[test]
fn after_a_full_disk_leases_outlive_a_crash_again() {
    let cluster = start("none");
    let mut leases = vec![acquire(&cluster)];
    let over = acquire(&cluster);
    let site = cluster.sites[0].id();
    let file = cluster.state_dir(0).join("leases");
    fill_disk(site, true);
    leases.push(acquire(&cluster));
    assert!(cluster.run(0, &["release", &over]).status.success());
    assert!(is_ready(&cluster));
    assert!(!file.exists(), "a file that says too little is gone");
    fill_disk(site, false);
    until("the leases are written down again", || file.exists());
    outlive_a_crash(cluster, &leases);
}
