//! Pools that only some sites share, zones, and what `kofm members` tells.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Cluster, KOFM, get, signal, until};

const POOLS: &str = "\
[pools]
all = 3
[pools.roam]
units = [\"r0\", \"r1\"]
sites = [\"s0\", \"s1\"]
[pools.perm]
units = 2
protocol = \"permission\"
sites = [\"s0\", \"s1\"]
[pools.quorum]
units = 2
protocol = \"quorum\"
sites = [\"s0\", \"s1\"]
";

/// The messages of protocols that a site has sent and received.
fn messages(cluster: &Cluster, site: usize) -> u64 {
    let text = get(&cluster.http[site], "/metrics");
    let value = |line: &str| line.rsplit(' ').next().and_then(|it| it.parse::<u64>().ok());
    let counts = |line: &&str| line.starts_with("kofm_messages_total");
    text.lines().filter(counts).filter_map(value).sum()
}

fn lease_of(answer: &Value) -> &Value {
    if answer["lease"].is_null() { answer } else { &answer["lease"] }
}

#[test]
fn a_site_that_does_not_share_a_pool_takes_no_part_in_it() {
    let mut cluster = Cluster::start(3, POOLS);
    for site in 0..3 {
        cluster.members(site, 3);
    }
    let before = messages(&cluster, 2);
    for round in 0..6 {
        for pool in ["roam:2", "perm:2", "quorum:2"] {
            let done = cluster.run(round % 2, &["run", pool, "--", "true"]);
            assert!(done.status.success(), "{pool}: {done:?}");
        }
    }
    assert_eq!(messages(&cluster, 2), before, "no message to or from s2");
    // A client may ask it all the same.
    for pool in ["roam", "perm", "quorum"] {
        let want = format!("{pool}:2");
        let held = cluster.json(2, &["acquire", &want, "--id", pool, "--ttl", "5m", "--json"]);
        let lease = lease_of(&held);
        assert!(["s0", "s1"].contains(&lease["site"].as_str().unwrap()), "{held}");
        let again = cluster.json(2, &["acquire", &want, "--id", pool, "--json"]);
        assert_eq!(lease_of(&again)["id"], lease["id"], "the same id is the same request");
        let id = lease["id"].as_str().unwrap().to_owned();
        assert!(cluster.run(2, &["renew", &id]).status.success());
        let busy = cluster.run(2, &["acquire", pool, "--wait", "0"]);
        assert_eq!(busy.status.code(), Some(75), "{busy:?}");
        assert!(cluster.run(2, &["release", &id]).status.success());
        cluster.all_free(pool);
    }
    assert_eq!(messages(&cluster, 2), before, "no message to or from s2");
    // A stopped site that does not share them delays none of their grants.
    let held = cluster.json(0, &["acquire", "roam:1", "--ttl", "5m", "--json"]);
    signal(&cluster.sites[2], "STOP");
    for round in 0..10 {
        for pool in ["roam:1", "perm:2", "quorum:2"] {
            let done = cluster.run(round % 2, &["run", pool, "--", "true"]);
            assert!(done.status.success(), "{pool}: {done:?}");
        }
    }
    signal(&cluster.sites[2], "CONT");
    cluster.members(0, 3);
    // Nothing of them is withheld when it dies.
    cluster.kill(2);
    cluster.members(0, 2);
    for pool in ["roam", "perm", "quorum"] {
        assert_eq!(cluster.pool(0, pool)["quarantined"], 0, "{pool}");
    }
    assert_eq!(cluster.pool(1, "roam")["held"], 1);
    let held = lease_of(&held);
    assert!(cluster.run(1, &["release", held["id"].as_str().unwrap()]).status.success());
    cluster.all_free("roam");
}

#[test]
fn the_sites_of_a_pool_change_only_while_it_is_idle() {
    let cluster = Cluster::start_as(3, "", "[pools]\ngpu = 2\n");
    for site in 0..3 {
        cluster.members(site, 3);
    }
    let set = |args: &[&str]| {
        let mut all = vec!["pool", "set", "gpu", "--units", "2", "--json"];
        all.extend(args);
        cluster.run(0, &all)
    };
    for (sites, why) in [
        (["--sites", "s0,nix"], "there is no site `nix` in the cluster; there are s0, s1, s2"),
        (["--zones", "eu"], "no site is in zone `eu`; no site has a zone"),
        (["--protocol", "tree"], ""),
    ] {
        let refused = if why.is_empty() {
            set(&["--protocol", "tree", "--sites", "s0"])
        } else {
            set(&sites)
        };
        assert!(!refused.status.success(), "{refused:?}");
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains(why) && text.trim().lines().count() == 1, "{text}");
    }
    let held = cluster.json(2, &["acquire", "gpu:2", "--ttl", "5m", "--json"]);
    let held = lease_of(&held);
    let refused = set(&["--sites", "s0,s1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is in use"), "{refused:?}");
    assert!(cluster.run(2, &["release", held["id"].as_str().unwrap()]).status.success());
    cluster.all_free("gpu");
    let done = set(&["--sites", "s0,s1"]);
    let pool: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(pool["sites"], serde_json::json!(["s0", "s1"]), "{done:?}");
    for site in 0..3 {
        let done = cluster.run(site, &["run", "gpu:2", "--", "true"]);
        assert!(done.status.success(), "{done:?}");
    }
    cluster.all_free("gpu");
    // Without the option it stays as it is; to all sites again.
    let pool: Value = serde_json::from_slice(&set(&[]).stdout).unwrap();
    assert_eq!(pool["sites"], serde_json::json!(["s0", "s1"]));
    let other = ["pool", "set", "other", "--units", "1", "--sites", "s2"];
    assert!(cluster.run(1, &other).status.success());
    let none = cluster.run(1, &["acquire", "gpu", "other", "--wait", "0"]);
    assert_eq!(none.status.code(), Some(65), "{none:?}");
    let pool: Value = serde_json::from_slice(&set(&["--sites", "all"]).stdout).unwrap();
    assert!(pool["sites"].is_null(), "{pool}");
    let both = cluster.run(0, &["run", "gpu", "other", "--", "true"]);
    assert!(both.status.success(), "{both:?}");
}

#[test]
fn zones_are_shown_and_pools_may_name_them() {
    let mut cluster = Cluster::start_each(
        3,
        |site| format!("zone = \"{}\"\n", ["eu", "us", "us"][site]),
        "[pools]\nall = 1\n[pools.local]\nunits = 2\nzones = [\"us\"]\n",
    );
    for site in 0..3 {
        cluster.members(site, 3);
    }
    let version = env!("CARGO_PKG_VERSION");
    until("every site knows zones and versions", || {
        let told = |site: usize| cluster.json(site, &["members", "--json"]);
        let right = |list: &Value, number: usize| {
            let it = &list[number];
            it["zone"] == ["eu", "us", "us"][number]
                && it["version"] == version
                && it["role"] == "voter"
                && it["health"] == "ok"
                && it["since_ms"].is_u64()
        };
        (0..3).all(|site| (0..3).all(|number| right(&told(site), number)))
    });
    let text = String::from_utf8(cluster.run(0, &["members"]).stderr).unwrap();
    assert!(text.contains("zone us has 2 of 3 voters"), "{text}");
    let held = cluster.json(0, &["acquire", "local:2", "--json"]);
    let held = lease_of(&held);
    assert!(["s1", "s2"].contains(&held["site"].as_str().unwrap()), "{held}");
    assert!(cluster.run(0, &["release", held["id"].as_str().unwrap()]).status.success());
    cluster.kill(1);
    cluster.members(0, 2);
    let list = cluster.json(0, &["members", "--json"]);
    assert_eq!((&list[1]["health"], &list[1]["role"]), (&"away".into(), &"voter".into()), "{list}");
    assert!(list[1]["advice"].as_str().unwrap().contains("kofm member replace s1"), "{list}");
    assert_eq!(list[1]["zone"], "us", "{list}");
    until("the zone grants all", || {
        cluster.run(0, &["run", "local:2", "--", "true"]).status.success()
    });
}

/// Sites of another release: the same program, told to speak other versions of the wire.
#[test]
fn releases_that_share_a_version_of_the_wire_share_a_cluster() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 3\n");
    for site in 0..3 {
        cluster.members(site, 3);
    }
    let speaks = |versions: &str| {
        let versions = versions.to_owned();
        move || {
            let mut command = Command::new(KOFM);
            command.env("KOFM_TEST_WIRE", versions);
            command
        }
    };
    // One site after the other is upgraded, under a lease.
    let held = cluster.json(1, &["acquire", "gpu:1", "--ttl", "5m", "--json"]);
    let id = lease_of(&held)["id"].as_str().unwrap().to_owned();
    for site in 0..3 {
        cluster.kill(site);
        cluster.restart_by(site, speaks("6..7"));
        for other in 0..3 {
            cluster.members(other, 3);
        }
        until("the lease goes on", || cluster.run(2, &["renew", &id]).status.success());
        let done = cluster.run(site, &["run", "gpu:2", "--", "true"]);
        assert!(done.status.success(), "{done:?}");
    }
    // One that is two releases ahead speaks no version of the first.
    cluster.kill(0);
    cluster.restart_by(0, speaks("6..6"));
    cluster.members(1, 3);
    cluster.kill(2);
    cluster.restart_by(2, speaks("7..8"));
    until("the older one says why", || {
        let text = cluster.json(0, &["members", "--json"]).to_string();
        text.contains("site s2 speaks wire version 7 to 8, and s0 6: upgrade s0")
    });
    assert!(cluster.run(1, &["release", &id]).status.success());
}
