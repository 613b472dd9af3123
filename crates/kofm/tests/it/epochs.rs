//! Sites that die and come back, minorities, and pools that change while everything runs.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Cluster, command, exit_code, free_port, serve, signal, temp_dir, until};

#[test]
fn one_of_three_sites_is_killed_and_grants_go_on() {
    let pools = "[pools]\ngpu = 4\nslot = { units = 2, protocol = \"roaming\" }\n";
    let mut cluster = Cluster::start(3, pools);
    cluster.members(0, 3);
    // What it holds is kept back, and comes back.
    for pool in ["gpu", "slot"] {
        assert!(cluster.run(2, &["acquire", pool, "--ttl", "5m"]).status.success());
    }
    let http: Vec<String> = cluster.http[..2].to_vec();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = http
        .into_iter()
        .map(|http| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let args = ["run", "gpu", "slot", "--", "true"];
                    let output = command(&http, &args).output().unwrap();
                    assert!(output.status.success(), "{output:?}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    until("work is done", || done.load(Ordering::Relaxed) > 10);
    cluster.kill(2);
    cluster.members(0, 2);
    let before = done.load(Ordering::Relaxed);
    until("work goes on", || done.load(Ordering::Relaxed) > before + 20);
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().unwrap();
    }
    cluster.all_free("gpu");
    cluster.all_free("slot");
    // And it comes back by itself, as somebody else.
    cluster.restart(2);
    cluster.members(2, 3);
    assert!(cluster.run(2, &["run", "gpu:4", "slot:2", "--", "true"]).status.success());
    let history = cluster.json(0, &["history", "--json"]);
    assert!(history.as_array().unwrap().iter().any(|it| it["event"] == "epoch"));
}

#[test]
fn a_minority_grants_nothing_says_so_and_comes_back() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    cluster.members(0, 3);
    let lease = cluster.json(0, &["acquire", "gpu", "--ttl", "5m", "--json"]);
    assert!(lease["expires_in_ms"].as_u64().unwrap() <= 5000, "{lease}");
    cluster.kill(1);
    cluster.kill(2);
    until("it says that it has no majority", || {
        let members = cluster.json(0, &["members", "--json"]);
        members[0]["trouble"].as_str().is_some_and(|it| it.contains("no majority"))
    });
    let output = cluster.run(0, &["acquire", "gpu", "--wait", "100ms"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    // The site cannot promise a lease that it cannot vouch for, and does not say that it is over.
    let lease = lease["id"].as_str().unwrap();
    assert_eq!(cluster.run(0, &["renew", lease]).status.code(), Some(69));
    cluster.restart(1);
    cluster.members(0, 2);
    until("the lease goes on", || cluster.run(0, &["renew", lease]).status.success());
    assert!(cluster.run(0, &["release", lease]).status.success());
    assert!(cluster.run(0, &["run", "gpu:2", "--", "true"]).status.success());
}

#[test]
fn pools_change_at_all_sites_or_at_none_and_survive() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    cluster.members(1, 3);
    let set = |cluster: &Cluster, site: usize, args: &[&str]| {
        let args: Vec<&str> = ["pool", "set"].iter().chain(args).copied().collect();
        until("the pool is set", || {
            let output = cluster.run(site, &args);
            // An epoch may be changing for another reason.
            assert!(output.status.success() || output.status.code() != Some(64), "{output:?}");
            output.status.success()
        });
    };
    let units = |cluster: &Cluster, site: usize, name: &str| {
        let output = cluster.run(site, &["status", name, "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["pools"][0]["units"].as_u64()
    };
    set(&cluster, 1, &["board", "--units", "3", "--protocol", "roaming"]);
    for site in 0..3 {
        until("all know it", || units(&cluster, site, "board") == Some(3));
    }
    let lease = cluster.json(2, &["acquire", "gpu:2", "--ttl", "5m", "--json"]);
    set(&cluster, 2, &["gpu", "--units", "4"]);
    assert!(cluster.run(0, &["run", "gpu:2", "--", "true"]).status.success());
    set(&cluster, 0, &["gpu", "--units", "1"]);
    // Units are taken out in their turn: whoever comes later waits until the holder is done.
    let output = cluster.run(1, &["acquire", "gpu", "--wait", "300ms"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert_eq!(cluster.run(1, &["acquire", "gpu:2", "--wait", "0"]).status.code(), Some(65));
    assert!(cluster.run(2, &["release", lease["id"].as_str().unwrap()]).status.success());
    until("all know it", || (0..3).all(|site| units(&cluster, site, "gpu") == Some(1)));
    assert!(cluster.run(1, &["run", "gpu", "--", "true"]).status.success());
    // A pool in use is not moved to another protocol, nor removed.
    let lease = cluster.json(0, &["acquire", "board", "--ttl", "5m", "--json"]);
    let output = cluster.run(1, &["pool", "rm", "board"]);
    assert!(!output.status.success(), "{output:?}");
    assert!(cluster.run(0, &["release", lease["id"].as_str().unwrap()]).status.success());
    set(&cluster, 1, &["board", "--units", "3", "--protocol", "quorum"]);
    assert!(cluster.run(2, &["run", "board:3", "--", "true"]).status.success());
    // All of them die, and come back with what they had agreed on.
    for site in 0..3 {
        cluster.kill(site);
    }
    for site in 0..3 {
        cluster.restart(site);
    }
    cluster.members(0, 3);
    until("it is as small again", || units(&cluster, 0, "gpu") == Some(1));
    assert!(cluster.run(1, &["run", "board:3", "gpu", "--", "true"]).status.success());
    until("it is removed", || cluster.run(2, &["pool", "rm", "board"]).status.success());
    let output = cluster.run(0, &["acquire", "board", "--wait", "0"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
}

#[test]
fn changes_from_everywhere_wait_for_each_other() {
    let cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    let set = |number: usize| {
        let name = format!("pool-{number}");
        let args = ["pool", "set", &name, "--units", "3"];
        cluster.command(number % 3, &args).stdout(Stdio::null()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..12).map(set).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let list = cluster.json(1, &["pool", "ls", "--json"]);
    assert_eq!(list.as_array().unwrap().len(), 13, "{list}");
}

#[test]
fn a_file_that_has_changed_changes_the_cluster() {
    let first = "[pools]\ngpu = 2\nold = 1\n[semaphores]\nslots = 1\n";
    let cluster = Cluster::start(3, first);
    assert!(cluster.run(2, &["pool", "set", "extra", "--units", "3"]).status.success());
    let lease = cluster.json(1, &["acquire", "old", "--ttl", "5m", "--json"]);
    let text = fs::read_to_string(&cluster.configs[1]).unwrap();
    let changed = "[pools]\ngpu = 5\nfresh = 4\n[semaphores]\nslots = 1\nitems = 7\n";
    // A file with a mistake changes nothing.
    fs::write(&cluster.configs[1], text.replace(first, &changed.replace("= 4", "= \"four\"")))
        .unwrap();
    signal(&cluster.sites[1], "HUP");
    fs::write(&cluster.configs[1], text.replace(first, changed)).unwrap();
    until("it is read again", || {
        signal(&cluster.sites[1], "HUP");
        cluster.run(0, &["sem", "v", "items"]).status.success()
    });
    let units = |name: &str| {
        let output = cluster.run(2, &["status", name, "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["pools"][0]["units"].as_u64()
    };
    until("the epoch is seen everywhere", || units("fresh") == Some(4));
    // What the two files have in common, and what was made by command, stays.
    assert_eq!([units("gpu"), units("extra")], [Some(5), Some(3)]);
    // What could not be changed is tried again with the next signal.
    assert_eq!(units("old"), Some(1), "it is in use");
    assert!(cluster.run(1, &["release", lease["id"].as_str().unwrap()]).status.success());
    until("it is not in use any more", || {
        signal(&cluster.sites[1], "HUP");
        units("old").is_none()
    });
}

/// As with SIGHUP: what the file changes is changed, and what was changed by command stays.
#[test]
fn a_file_that_was_changed_while_its_site_was_down_changes_the_cluster() {
    for sites in [1, 2] {
        let first = "[pools]\ngpu = 2\nold = 1\n";
        let mut cluster = Cluster::start(sites, first);
        cluster.members(0, sites);
        assert!(cluster.run(0, &["pool", "set", "gpu", "--units", "4"]).status.success());
        let text = fs::read_to_string(&cluster.configs[0]).unwrap();
        fs::write(&cluster.configs[0], text.replace(first, "[pools]\ngpu = 2\nfresh = 3\n"))
            .unwrap();
        for _ in 0..2 {
            cluster.kill(0);
            cluster.restart(0);
            let units = || {
                let list = cluster.run(0, &["pool", "ls", "--json"]);
                let list: Value = serde_json::from_slice(&list.stdout).unwrap_or_default();
                let list = list.as_array().cloned().unwrap_or_default();
                let units = |it: &Value| (it["name"].to_string(), it["units"].as_u64());
                list.iter().map(units).collect::<Vec<_>>()
            };
            let expected = [("\"fresh\"".into(), Some(3)), ("\"gpu\"".into(), Some(4))];
            until("the pools are as the file says", || units() == expected);
        }
    }
}

#[test]
fn a_clean_stop_keeps_leases() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    cluster.members(1, 3);
    let lease = cluster.json(1, &["acquire", "gpu", "--ttl", "5m", "--json"]);
    let lease = lease["id"].as_str().unwrap().to_owned();
    signal(&cluster.sites[1], "TERM");
    // Twice: it shall not wait for the lease to end.
    signal(&cluster.sites[1], "TERM");
    cluster.sites[1].wait().unwrap();
    cluster.restart(1);
    cluster.members(1, 3);
    let output = cluster.run(0, &["renew", &lease]);
    assert!(output.status.success(), "{output:?}");
    assert!(cluster.run(0, &["release", &lease]).status.success());
    cluster.all_free("gpu");
}

/// Lets a site answer clients at the same place in its next life.
fn settle_down(cluster: &Cluster, site: usize) {
    let text = fs::read_to_string(&cluster.configs[site]).unwrap();
    let address = cluster.http[site].trim_start_matches("http://");
    fs::write(&cluster.configs[site], text.replace("127.0.0.1:0", address)).unwrap();
}

#[test]
fn a_command_runs_on_while_its_site_is_killed_and_comes_back() {
    let pools = "[pools]\ngpu = 2\nslot = { units = 2, protocol = \"roaming\" }\n";
    // Longer than a slow machine takes to start a site.
    let mut cluster = Cluster::start_as(3, "site_lease = \"20s\"\n", pools);
    cluster.members(1, 3);
    settle_down(&cluster, 1);
    let dir = temp_dir();
    let (begun, end) = (dir.join("begun"), dir.join("end"));
    let script = format!(
        "echo \"$KOFM_LEASE $KOFM_FENCE\" > {0}.new; mv {0}.new {0}; \
         until [ -e {1} ]; do sleep 0.05; done",
        begun.display(),
        end.display()
    );
    let args = ["run", "gpu", "slot:2", "--", "sh", "-c", &script];
    let mut run = Processes(vec![cluster.command(1, &args).spawn().unwrap()]);
    until("the command runs", || begun.exists());
    let told = fs::read_to_string(&begun).unwrap();
    let (lease, fence) = told.trim().split_once(' ').unwrap();
    let units = |cluster: &Cluster| {
        let leases = cluster.json(0, &["status", "--json"])["leases"].clone();
        let mine = leases
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["name"].as_str().is_some_and(|name| lease.starts_with(name)));
        let mine = mine.cloned();
        mine.map(|it| (it["fence"].to_string(), it["units"].clone()))
    };
    let before = units(&cluster).expect("it is held");
    assert_eq!(before.0, fence);
    cluster.kill(1);
    cluster.restart(1);
    cluster.members(1, 3);
    until("the new life has the lease", || units(&cluster).is_some());
    assert_eq!(units(&cluster), Some(before));
    // All of the one pool are in use, and of the other at least one.
    for want in ["slot", "gpu:2"] {
        let output = cluster.run(0, &["acquire", want, "--wait", "200ms"]);
        assert_eq!(output.status.code(), Some(124), "{output:?}");
    }
    until("it is renewed", || cluster.run(2, &["renew", lease]).status.success());
    assert!(run.0[0].try_wait().unwrap().is_none(), "the command was stopped");
    fs::write(&end, "").unwrap();
    assert_eq!(exit_code(&mut run.0[0]), 0);
    // What lay unused at the life that died is withheld, what was in use is not.
    assert!(cluster.run(0, &["run", "gpu", "slot:2", "--", "true"]).status.success());
    fs::remove_dir_all(dir).ok();
}

#[test]
fn a_lease_that_was_renewed_again_and_again_outlives_a_crash() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    cluster.members(1, 3);
    let lease = cluster.json(1, &["acquire", "gpu", "--ttl", "3s", "--json"]);
    let lease = lease["id"].as_str().unwrap().to_owned();
    let begun = Instant::now();
    until("its first term is long over", || {
        assert!(cluster.run(0, &["renew", &lease]).status.success());
        begun.elapsed().as_secs() >= 4
    });
    cluster.kill(1);
    cluster.restart(1);
    until("it is renewed in the next life", || {
        let output = cluster.run(1, &["renew", &lease]);
        // Never before does the site say that it is over.
        assert!(output.status.success() || output.status.code() == Some(69), "{output:?}");
        output.status.success()
    });
    assert!(cluster.run(0, &["release", &lease]).status.success());
    cluster.all_free("gpu");
}

#[test]
fn a_single_site_keeps_leases_and_changes_over_its_lives() {
    let pools = "[pools]\ngpu = 2\nboard = { units = 1, on_expiry = \"hold\" }\n\
                 rig = { units = 1, on_expiry = \"quarantine\" }\n";
    let mut cluster = Cluster::start_as(1, "site_lease = \"1s\"\n", pools);
    cluster.members(0, 1);
    let acquire = |cluster: &Cluster, want: &str, ttl: &str| {
        let lease = cluster.json(0, &["acquire", want, "--ttl", ttl, "--json"]);
        lease["id"].as_str().unwrap().to_owned()
    };
    let lease = acquire(&cluster, "gpu:2", "5m");
    let over = ["board", "rig"].map(|pool| acquire(&cluster, pool, "100ms"));
    let done = cluster.run(0, &["pool", "set", "gpu", "--units", "3"]);
    assert!(done.status.success(), "{done:?}");
    let count = |cluster: &Cluster| {
        ["board", "gpu", "rig"].map(|name| {
            let pool = cluster.pool(0, name);
            ["held", "free", "quarantined"].map(|what| pool[what].as_u64().unwrap())
        })
    };
    let kept = [[1, 0, 0], [2, 1, 0], [0, 0, 1]];
    until("a person must look at what was not renewed", || count(&cluster) == kept);
    for stop in ["STOP", "KILL", "TERM"] {
        signal(&cluster.sites[0], stop);
        if stop == "STOP" {
            // Longer than its lease: but nobody can have gone on without it.
            std::thread::sleep(Duration::from_millis(2500));
            signal(&cluster.sites[0], "CONT");
        } else {
            // Twice: it shall not wait for the lease to end.
            signal(&cluster.sites[0], stop);
            cluster.sites[0].wait().unwrap();
            cluster.restart(0);
            cluster.members(0, 1);
        }
        let output = cluster.run(0, &["renew", &lease]);
        assert!(output.status.success(), "{stop}: {output:?}");
        until("what lay unused is free again", || count(&cluster) == kept);
    }
    for lease in over.iter().chain([&lease]) {
        assert!(cluster.run(0, &["release", lease]).status.success());
    }
    for pool in ["board", "gpu", "rig"] {
        cluster.all_free(pool);
    }
}

#[test]
fn two_sites_wait_for_each_other_and_go_on() {
    let mut cluster = Cluster::start(2, "[pools]\ngpu = 2\n");
    assert!(cluster.run(0, &["run", "gpu:2", "--", "true"]).status.success());
    cluster.kill(1);
    cluster.restart(1);
    cluster.members(0, 2);
    assert!(cluster.run(1, &["run", "gpu:2", "--", "true"]).status.success());
}

/// `ROUNDS=100 cargo test -p kofm --test it how_long -- --ignored --nocapture`
#[test]
#[ignore = "measures; as long as it is told to"]
fn how_long_units_of_a_dead_site_are_kept() {
    let rounds = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let mut cluster = Cluster::start_as(3, "site_lease = \"2s\"\n", "[pools]\ngpu = 1\n");
    let mut times = Vec::new();
    for _ in 0..rounds {
        for site in 0..3 {
            cluster.members(site, 3);
        }
        cluster.json(2, &["acquire", "gpu", "--ttl", "5m", "--json"]);
        let waits = ["acquire", "gpu", "--ttl", "5m", "--json"];
        let waiter = cluster.command(0, &waits).stdout(Stdio::piped()).spawn().unwrap();
        until("it waits", || {
            let queue = cluster.json(0, &["queue", "--json"]);
            !queue.as_array().unwrap().is_empty()
        });
        let killed = Instant::now();
        cluster.kill(2);
        let output = waiter.wait_with_output().unwrap();
        times.push(killed.elapsed());
        let lease: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(cluster.run(1, &["release", lease["id"].as_str().unwrap()]).status.success());
        cluster.restart(2);
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "granted again after kill -9, {} times, site lease 2 s: median {:?}, 99th percentile \
         {:?}, most {:?}",
        times.len(),
        at(50),
        at(99),
        at(100)
    );
}

/// What ends with the test.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

#[test]
fn with_etcd_sites_come_and_go() {
    let dir = temp_dir();
    let (client, peer) = (free_port(), free_port());
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let etcd = Command::new("etcd")
        .arg("--data-dir")
        .arg(dir.join("etcd"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(etcd) = etcd else {
        println!("NOT RUN: there is no etcd here; install it: apt-get install etcd-server");
        return;
    };
    let mut processes = Processes(vec![etcd]);
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let start = |site: usize, members: &[usize]| {
        let members: Vec<String> =
            members.iter().map(|to| format!("s{to} = \"127.0.0.1:{}\"", ports[*to])).collect();
        let text = format!(
            "cluster = \"test\"\nsite = \"s{site}\"\nhttp = \"127.0.0.1:0\"\n\
             state_dir = {:?}\netcd = [\"{client}\"]\n[members]\n{}\n[pools]\ngpu = 2\n",
            dir.join(format!("state-{site}")),
            members.join("\n"),
        );
        let path = dir.join(format!("s{site}.toml"));
        fs::write(&path, text).unwrap();
        path
    };
    let first = start(0, &[0, 1]);
    let second = start(1, &[0, 1]);
    // Both look for etcd, and then for each other, before they answer clients.
    let second = std::thread::spawn(move || serve(&second));
    let (child, http) = serve(&first);
    processes.0.push(child);
    processes.0.push(second.join().unwrap().0);
    let granted = |http: &str, want: &str| {
        until("it is granted", || {
            let args = ["run", want, "--wait", "20s", "--", "true"];
            command(http, &args).output().unwrap().status.success()
        });
    };
    granted(&http, "gpu:2");
    // A site that nobody was told of.
    let (child, third) = serve(&start(2, &[2]));
    processes.0.push(child);
    granted(&third, "gpu:2");
    let members = || {
        let output = command(&http, &["members", "--json"]).output().unwrap();
        let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter().filter(|it| it["member"] == true).count()
    };
    until("three are in", || members() == 3);
    until("it is taken out", || {
        command(&http, &["members", "--remove", "s2"]).output().unwrap().status.success()
    });
    until("two are left", || members() == 2);
    granted(&http, "gpu:2");
    drop(processes);
    fs::remove_dir_all(dir).ok();
}
