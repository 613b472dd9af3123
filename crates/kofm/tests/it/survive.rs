//! Leases outlive the site that granted them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Cluster, command, exit_code, signal, temp_dir, until};

const POOLS: &str = "[pools]\ngpu = 6\nslot = { units = 6, protocol = \"roaming\" }\n\
                     disk = { units = 6, protocol = \"quorum\" }\n";
/// Longer than a slow machine takes to change the epoch.
const TOP: &str = "site_lease = \"8s\"\n";

/// Commands that hold units until they are told to end.
struct Jobs {
    list: Vec<Child>,
    dir: PathBuf,
}

impl Drop for Jobs {
    fn drop(&mut self) {
        for job in &mut self.list {
            job.kill().ok();
            job.wait().ok();
        }
        fs::remove_dir_all(&self.dir).ok();
    }
}

impl Jobs {
    /// Each asks the first of the addresses while it answers.
    fn start(addresses: &str, wants: &[&[&str]]) -> Self {
        let dir = temp_dir();
        let start = |(number, want): (usize, &&[&str])| {
            let script = format!(
                "echo \"$KOFM_FENCE\" > {0}/new-{number}; mv {0}/new-{number} {0}/begun-{number}; \
                 until [ -e {0}/end ]; do sleep 0.05; done",
                dir.display()
            );
            let args = [&["run"], *want, &["--", "sh", "-c", &script]].concat();
            command(addresses, &args).stderr(Stdio::null()).spawn().unwrap()
        };
        let list = wants.iter().enumerate().map(start).collect();
        let jobs = Self { list, dir };
        for number in 0..wants.len() {
            until("the command runs", || jobs.path("begun", number).exists());
        }
        jobs
    }

    fn path(&self, what: &str, number: usize) -> PathBuf {
        Path::new(&self.dir).join(format!("{what}-{number}"))
    }

    fn all_run(&mut self) {
        for job in &mut self.list {
            assert_eq!(job.try_wait().unwrap(), None, "a command was stopped");
        }
    }

    /// All end well.
    fn end(&mut self) {
        fs::write(self.dir.join("end"), "").unwrap();
        for job in &mut self.list {
            assert_eq!(exit_code(job), 0);
        }
    }
}

/// The units of all leases by their fences, and the sites that have them.
fn leases(cluster: &Cluster, site: usize) -> BTreeMap<u64, (Value, String)> {
    let output = cluster.run(site, &["status", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let list = status["leases"].as_array().cloned().unwrap_or_default();
    let entry = |it: &Value| {
        let site = it["site"].as_str().unwrap_or_default().to_owned();
        (it["fence"].as_u64().unwrap_or_default(), (it["units"].clone(), site))
    };
    list.iter().filter(|it| it["state"] == "live").map(entry).collect()
}

fn units(leases: &BTreeMap<u64, (Value, String)>) -> BTreeMap<u64, Value> {
    leases.iter().map(|(fence, (units, _))| (*fence, units.clone())).collect()
}

#[test]
fn commands_run_on_when_the_site_that_they_use_is_killed_for_good() {
    let mut cluster = Cluster::start_as(3, TOP, POOLS);
    cluster.members(1, 3);
    let addresses = [1, 0, 2].map(|site| cluster.http[site].clone()).join(",");
    let wants: [&[&str]; 4] =
        [&["gpu:2"], &["slot:2", "gpu"], &["disk:3"], &["slot", "disk", "--ttl", "5m"]];
    let mut jobs = Jobs::start(&addresses, &wants);
    let before = leases(&cluster, 1);
    assert_eq!(before.len(), 4);
    assert!(before.values().all(|it| it.1 == "s1"), "{before:?}");
    cluster.kill(1);
    cluster.members(0, 2);
    until("all leases are at other sites", || {
        let now = leases(&cluster, 0);
        now.len() == 4 && now.values().all(|it| it.1 != "s1")
    });
    assert_eq!(units(&leases(&cluster, 0)), units(&before));
    // The units without a holder come back, and only those.
    until("the quarantine is over", || cluster.pool(0, "gpu")["free"] == 3);
    until("slots come back", || cluster.pool(2, "slot")["free"] == 3);
    until("disks come back", || cluster.pool(2, "disk")["free"] == 2);
    let output = cluster.run(2, &["acquire", "gpu:4", "--wait", "200ms"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(cluster.run(2, &["run", "gpu:3", "slot:3", "disk:2", "--", "true"]).status.success());
    jobs.all_run();
    assert_eq!(units(&leases(&cluster, 2)), units(&before));
    jobs.end();
    for pool in ["gpu", "slot", "disk"] {
        cluster.all_free(pool);
    }
}

/// The site comes back with its disk while its leases are elsewhere, and then those sites die.
#[test]
fn commands_outlive_one_site_after_the_other() {
    let mut cluster = Cluster::start_as(3, TOP, POOLS);
    cluster.members(1, 3);
    let addresses = [1, 0, 2].map(|site| cluster.http[site].clone()).join(",");
    let mut jobs = Jobs::start(&addresses, &[&["gpu:2", "slot"], &["disk:2"]]);
    let before = units(&leases(&cluster, 1));
    settle_down(&cluster);
    for site in [1, 0] {
        cluster.kill(site);
        until("all leases are at other sites", || {
            let now = leases(&cluster, 2);
            now.len() == 2 && now.values().all(|it| it.1 != format!("s{site}"))
        });
        jobs.all_run();
        cluster.restart(site);
        cluster.members(site, 3);
        assert_eq!(units(&leases(&cluster, site)), before);
    }
    jobs.all_run();
    jobs.end();
    for pool in ["gpu", "slot", "disk"] {
        cluster.all_free(pool);
    }
}

#[test]
fn a_lease_is_released_through_another_site_and_renewed_by_no_forged_id() {
    let mut cluster = Cluster::start_as(3, TOP, POOLS);
    cluster.members(1, 3);
    let lease = cluster.json(1, &["acquire", "gpu:2", "--ttl", "10m", "--json"]);
    let id = lease["id"].as_str().unwrap().to_owned();
    let other = cluster.json(1, &["acquire", "gpu", "--ttl", "10m", "--json"]);
    let other = other["id"].as_str().unwrap().to_owned();
    cluster.kill(1);
    cluster.members(0, 2);
    assert!(cluster.run(0, &["release", &id]).status.success());
    // Its client says it has no need of it any more: nothing brings it back.
    let renewed = |id: &str| cluster.run(2, &["renew", id]).status.code();
    let (start, end) = other.split_at(other.len() - 4);
    let end: String = end.chars().rev().collect();
    if end != other[other.len() - 4..] {
        assert_eq!(renewed(&format!("{start}{end}")), Some(76));
    }
    until("the other lease is renewed", || renewed(&other) == Some(0));
    until("released units come back", || cluster.pool(0, "gpu")["free"] == 5);
    assert_eq!(renewed(&id), Some(76));
    // By its name, from a site that never had it.
    let name = cluster.json(0, &["status", "--json"])["leases"][0]["name"].clone();
    assert!(cluster.run(0, &["release", name.as_str().unwrap()]).status.success());
    cluster.all_free("gpu");
}

/// As after a power cut: nothing closes the connections of the site, and nothing answers.
#[test]
fn commands_run_on_when_the_site_that_they_use_falls_silent_for_good() {
    let mut cluster = Cluster::start_as(3, TOP, POOLS);
    cluster.members(1, 3);
    let addresses = [1, 0, 2].map(|site| cluster.http[site].clone()).join(",");
    let wants: [&[&str]; 5] =
        [&["gpu:2"], &["slot:2", "gpu"], &["disk:3"], &["slot", "--ttl", "5m"], &["gpu", "disk"]];
    let mut jobs = Jobs::start(&addresses, &wants);
    let before = leases(&cluster, 1);
    assert_eq!(before.len(), 5);
    assert!(before.values().all(|it| it.1 == "s1"), "{before:?}");
    signal(&cluster.sites[1], "STOP");
    cluster.members(0, 2);
    until("all leases are at other sites", || {
        jobs.all_run();
        let now = leases(&cluster, 0);
        now.len() == 5 && now.values().all(|it| it.1 != "s1")
    });
    assert_eq!(units(&leases(&cluster, 0)), units(&before));
    // Longer than any promise of the site that is silent.
    until("the quarantine is over", || cluster.pool(0, "gpu")["free"] == 2);
    jobs.all_run();
    jobs.end();
    for pool in ["gpu", "slot", "disk"] {
        cluster.all_free(pool);
    }
    cluster.kill(1);
}

/// Sites are killed one after the other, and no command is stopped: `ROUNDS=200 cargo test -p kofm
/// --test it kill_after_kill -- --ignored --nocapture`.
#[test]
#[ignore = "minutes; run it after a change of leases or of epochs"]
fn no_command_is_stopped_by_kill_after_kill() {
    let rounds = std::env::var("ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(30);
    let mut cluster = Cluster::start(3, POOLS);
    cluster.members(1, 3);
    settle_down(&cluster);
    for site in 0..3 {
        cluster.kill(site);
        cluster.restart(site);
        cluster.members(site, 3);
    }
    let addresses = cluster.http.join(",");
    let wants: [&[&str]; 4] = [&["gpu:2"], &["slot:2", "gpu"], &["disk:3"], &["slot", "disk"]];
    let mut jobs = Jobs::start(&addresses, &wants);
    let before = units(&leases(&cluster, 0));
    for round in 0..rounds {
        let busy = |site: &usize| {
            let name = format!("s{site}");
            leases(&cluster, *site).values().filter(|it| it.1 == name).count()
        };
        let site = (0..3).max_by_key(busy).unwrap_or(0);
        let held = busy(&site);
        cluster.kill(site);
        cluster.members((site + 1) % 3, 2);
        cluster.restart(site);
        cluster.members(site, 3);
        jobs.all_run();
        until("all leases are known", || units(&leases(&cluster, site)) == before);
        println!("round {round}: s{site} was killed with {held} leases");
    }
    jobs.all_run();
    jobs.end();
    for pool in ["gpu", "slot", "disk"] {
        cluster.all_free(pool);
    }
}

/// The ids of all that wait, oldest first.
fn queue(cluster: &Cluster, site: usize) -> Vec<String> {
    let queue: Value =
        serde_json::from_slice(&cluster.run(site, &["queue", "--json"]).stdout).unwrap_or_default();
    let list = queue.as_array().cloned().unwrap_or_default();
    list.iter().map(|it| it["id"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn waiters_keep_their_order_when_their_site_is_killed() {
    waiters_keep_their_order(&["permission", "permission-lazy", "quorum"]);
}

#[test]
#[ignore = "fails: requests at different sites change places; the cause is not known"]
fn waiters_of_roaming_keep_their_order_when_their_site_is_killed() {
    waiters_keep_their_order(&["roaming"]);
}

/// Of a pool with one unit, at three sites, one of which is killed for good.
fn waiters_keep_their_order(protocols: &[&str]) {
    for protocol in protocols {
        let pools = format!("[pools]\nslot = {{ units = 1, protocol = \"{protocol}\" }}\n");
        let mut cluster = Cluster::start_as(3, TOP, &pools);
        cluster.members(1, 3);
        let addresses: Vec<String> = (0..3)
            .map(|first| [0, 1, 2].map(|it| cluster.http[(first + it) % 3].clone()).join(","))
            .collect();
        let mut jobs = Jobs::start(&addresses[0], &[&["slot"]]);
        let mut waiters = Vec::new();
        let mut order = Vec::new();
        for number in 0..6 {
            let id = format!("wait-{number}");
            let args = ["run", "slot", "--id", &id, "--", "true"];
            let mut waiter = command(&addresses[number % 3], &args);
            waiters.push(waiter.stderr(Stdio::null()).spawn().unwrap());
            order.push(id);
            until("it waits", || queue(&cluster, 0).len() == order.len());
        }
        // The copies of the last one are made with a tick.
        std::thread::sleep(Duration::from_millis(500));
        cluster.kill(1);
        cluster.members(0, 2);
        assert_eq!(queue(&cluster, 2), order, "{protocol}");
        jobs.all_run();
        jobs.end();
        for waiter in &mut waiters {
            assert_eq!(exit_code(waiter), 0, "{protocol}");
        }
    }
}

/// The order of claims counts within a pool. Every third id is of the same one.
fn by_pool(mut ids: Vec<String>) -> Vec<String> {
    ids.sort_by_key(|id| {
        id.rsplit('-').next().and_then(|it| it.parse::<u32>().ok()).map(|it| it % 3)
    });
    ids
}

/// Each site is stopped with SIGTERM and started again. Commands run on, and those that wait keep
/// their order.
#[test]
fn commands_and_waiters_go_on_through_a_rolling_restart() {
    roll(1);
}

/// `ROUNDS=50 cargo test -p kofm --test it rolling_restarts -- --ignored --nocapture`.
#[test]
#[ignore = "minutes; run it after a change of how sites leave"]
fn commands_and_waiters_go_on_through_many_rolling_restarts() {
    roll(std::env::var("ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(50));
}

fn roll(rounds: usize) {
    let mut cluster = Cluster::start_as(3, TOP, POOLS);
    cluster.members(1, 3);
    settle_down(&cluster);
    for site in 0..3 {
        cluster.kill(site);
        cluster.restart(site);
        cluster.members(site, 3);
    }
    let addresses: Vec<String> = (0..3)
        .map(|first| [0, 1, 2].map(|it| cluster.http[(first + it) % 3].clone()).join(","))
        .collect();
    let wants: [&[&str]; 3] = [&["gpu:6"], &["slot:6"], &["disk:6"]];
    let mut jobs = Jobs::start(&addresses[1], &wants);
    let before = units(&leases(&cluster, 0));
    let mut waiters = Vec::new();
    let mut order = Vec::new();
    for (number, pool) in ["gpu", "slot", "disk"].into_iter().cycle().take(9).enumerate() {
        // Each needs all units, so they are served one after the other.
        let (id, want) = (format!("wait-{number}"), format!("{pool}:6"));
        let args = ["run", &want, "--id", &id, "--", "true"];
        let waiter = command(&addresses[number / 3], &args);
        let waiter = { waiter }.stderr(Stdio::null()).spawn().unwrap();
        waiters.push(waiter);
        order.push(id);
        until("it waits", || queue(&cluster, 2).len() == order.len());
    }
    let places = by_pool(queue(&cluster, 0));
    for round in 0..rounds {
        for site in 0..3 {
            signal(&cluster.sites[site], "TERM");
            assert_eq!(exit_code(&mut cluster.sites[site]), 0);
            let other = (site + 1) % 3;
            jobs.all_run();
            until("the leases are known", || units(&leases(&cluster, other)) == before);
            until("the queue is known", || queue(&cluster, other).len() == 9);
            assert_eq!(by_pool(queue(&cluster, other)), places, "round {round}: s{site} left");
            cluster.restart(site);
            cluster.members(site, 3);
            assert_eq!(by_pool(queue(&cluster, site)), places, "round {round}: s{site} is back");
        }
    }
    for waiter in &mut waiters {
        assert_eq!(waiter.try_wait().unwrap(), None, "a waiter ended");
    }
    jobs.all_run();
    jobs.end();
    for waiter in &mut waiters {
        assert_eq!(exit_code(waiter), 0);
    }
    for pool in ["gpu", "slot", "disk"] {
        cluster.all_free(pool);
    }
}

/// Lets all sites answer clients at the same places in their next lives.
fn settle_down(cluster: &Cluster) {
    for (config, http) in cluster.configs.iter().zip(&cluster.http) {
        let text = fs::read_to_string(config).unwrap();
        let address = http.trim_start_matches("http://");
        let fixed = text.replace("http = \"127.0.0.1:0\"", &format!("http = \"{address}\""));
        fs::write(config, fixed).unwrap();
    }
}
