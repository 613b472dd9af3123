//! The values of semaphores stay exact when sites die, stand still or lose their disks.

use std::fs;

use serde_json::Value;

use crate::harness::{Cluster, signal, until};

const SEMAPHORES: &str = "[semaphores]\nslots = 10\n[semaphores.items]\nvalue = 10\n\
                          protocol = \"sem-permission\"\n[semaphores.votes]\nvalue = 10\n\
                          protocol = \"sem-quorum\"\n";
const NAMES: [&str; 3] = ["slots", "items", "votes"];

/// The value of a semaphore; none while it is not known for certain.
fn value(cluster: &Cluster, site: usize, name: &str) -> Option<u64> {
    let output = cluster.run(site, &["sem", "ls", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).ok()?;
    let it = list.as_array()?.iter().find(|it| it["name"] == name)?.clone();
    it["unsure"].as_array().is_none_or(Vec::is_empty).then(|| it["value"].as_u64()).flatten()
}

fn all_are(cluster: &Cluster, sites: &[usize], due: u64) {
    for name in NAMES {
        for &site in sites {
            until("the value is known", || value(cluster, site, name).is_some());
            assert_eq!(value(cluster, site, name), Some(due), "{name} at s{site}");
        }
    }
}

fn p(cluster: &Cluster, site: usize, what: &str, more: &[&str]) -> Option<i32> {
    cluster.run(site, &[&["sem", "p", what], more].concat()).status.code()
}

fn take(cluster: &Cluster, site: usize, k: u64) {
    for name in NAMES {
        assert_eq!(p(cluster, site, &format!("{name}:{k}"), &["--wait", "60s"]), Some(0), "{name}");
    }
}

fn add(cluster: &Cluster, site: usize, m: u64) {
    for name in NAMES {
        let output = cluster.run(site, &["sem", "v", &format!("{name}:{m}")]);
        assert!(output.status.success(), "{name}: {output:?}");
    }
}

#[test]
fn a_killed_site_neither_zeroes_a_value_nor_inflates_it_when_its_disk_is_lost() {
    let mut cluster = Cluster::start(3, SEMAPHORES);
    cluster.members(0, 3);
    take(&cluster, 2, 3);
    add(&cluster, 2, 1);
    take(&cluster, 0, 1);
    all_are(&cluster, &[0, 1, 2], 7);
    cluster.kill(2);
    cluster.members(0, 2);
    all_are(&cluster, &[0, 1], 7);
    take(&cluster, 1, 2);
    fs::remove_dir_all(cluster.state_dir(2)).unwrap();
    cluster.restart(2);
    cluster.members(0, 3);
    all_are(&cluster, &[0, 1, 2], 5);
    // All that is left, and nothing more.
    take(&cluster, 2, 5);
    for name in NAMES {
        assert_eq!(p(&cluster, 0, name, &["--wait", "0"]), Some(75), "{name}");
    }
    add(&cluster, 1, 4);
    all_are(&cluster, &[0, 1, 2], 4);
}

#[test]
fn a_stopped_site_neither_zeroes_a_value_nor_inflates_it() {
    let cluster = Cluster::start(3, SEMAPHORES);
    cluster.members(0, 3);
    take(&cluster, 1, 4);
    signal(&cluster.sites[1], "STOP");
    cluster.members(0, 2);
    all_are(&cluster, &[0, 2], 6);
    take(&cluster, 2, 1);
    add(&cluster, 0, 2);
    signal(&cluster.sites[1], "CONT");
    cluster.members(1, 3);
    all_are(&cluster, &[0, 1, 2], 7);
    take(&cluster, 1, 7);
    all_are(&cluster, &[0, 1, 2], 0);
}

#[test]
fn a_call_with_the_same_id_counts_once_at_any_site() {
    let mut cluster = Cluster::start(3, SEMAPHORES);
    cluster.members(0, 3);
    for name in NAMES {
        let four = format!("{name}:4");
        for site in [0, 0, 1, 2] {
            let args = ["--id", "job-1", "--wait", "60s"];
            assert_eq!(p(&cluster, site, &four, &args), Some(0), "{name}");
            let v = cluster.run(site, &["sem", "v", name, "--id", "job-2"]);
            assert!(v.status.success(), "{name}: {v:?}");
        }
        // The same id for something else is a mistake.
        assert_eq!(p(&cluster, 1, name, &["--id", "job-1", "--wait", "60s"]), Some(65), "{name}");
        assert_eq!(p(&cluster, 1, name, &["--id", "job-2", "--wait", "60s"]), Some(65), "{name}");
    }
    all_are(&cluster, &[0, 1, 2], 7);
    cluster.kill(0);
    cluster.members(1, 2);
    for name in NAMES {
        // More than there is: it is known, so no call waits for units.
        let args = ["--id", "job-1", "--wait", "60s"];
        assert_eq!(p(&cluster, 2, &format!("{name}:4"), &args), Some(0), "{name}");
        let v = cluster.run(1, &["sem", "v", name, "--id", "job-2"]);
        assert!(v.status.success(), "{name}: {v:?}");
    }
    all_are(&cluster, &[1, 2], 7);
    let several = format!("{},{}", cluster.http[0], cluster.http[1]);
    // The first address is that of the dead site.
    for args in [["sem", "p", "slots:2"], ["sem", "v", "slots:2"]] {
        let output = crate::harness::command(&several, &args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    all_are(&cluster, &[1, 2], 7);
}

#[test]
fn a_cluster_that_loses_all_processes_at_once_counts_from_its_disks() {
    let mut cluster = Cluster::start(3, SEMAPHORES);
    cluster.members(0, 3);
    take(&cluster, 0, 1);
    take(&cluster, 1, 2);
    add(&cluster, 2, 5);
    for site in 0..3 {
        cluster.kill(site);
    }
    for site in 0..3 {
        cluster.restart(site);
    }
    cluster.members(0, 3);
    all_are(&cluster, &[0, 1, 2], 12);
}
