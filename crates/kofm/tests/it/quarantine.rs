//! Single units that an operator takes out of use, and puts back.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::harness::{Cluster, KOFM, command, exit_code, get, until};

const GPUS: &str = "[pools.gpu]\nunits = [\"gpu-0\", \"gpu-1\", \"gpu-2\", \"gpu-3\"]\n";
const MORE: &str = "gpu-0,gpu-1,gpu-2,gpu-3,gpu-4";

/// A change, tried again while the epoch changes for another reason.
fn change(cluster: &Cluster, site: usize, args: &[&str]) -> Value {
    let mut pool = Value::Null;
    until("the change is made", || {
        let output = cluster.run(site, args);
        let again = [Some(69), Some(75)].contains(&output.status.code());
        assert!(output.status.success() || again, "{args:?}: {output:?}");
        pool = serde_json::from_slice(&output.stdout).unwrap_or_default();
        output.status.success()
    });
    pool
}

fn quarantine(cluster: &Cluster, site: usize, unit: &str, reason: &str) -> Value {
    change(cluster, site, &["pool", "quarantine", "gpu", unit, "--reason", reason, "--json"])
}

fn give_back(cluster: &Cluster, site: usize, unit: &str) -> Value {
    change(cluster, site, &["pool", "return", "gpu", unit, "--json"])
}

/// Held, free and quarantined, which are all units that there are; nothing is lost.
fn count(cluster: &Cluster, site: usize) -> [u64; 3] {
    let pool = cluster.pool(site, "gpu");
    let number = |field: &str| pool[field].as_u64().unwrap();
    let counts = ["held", "free", "quarantined"].map(number);
    assert_eq!(counts.iter().sum::<u64>(), number("units"), "{pool}");
    assert_eq!(pool["unaccounted"], Value::Null, "{pool}");
    counts
}

/// The same count by the metrics of all sites: what nobody holds or keeps is free.
fn measure(cluster: &Cluster) -> [u64; 2] {
    let sum = |name: &str| -> u64 {
        let site = |http: &String| {
            let text = get(http, "/metrics");
            let line = format!("{name}{{pool=\"gpu\"}} ");
            let value = text.lines().find_map(|it| it.strip_prefix(&line).map(str::to_owned));
            value.expect("the metric is there").parse::<u64>().unwrap()
        };
        cluster.http.iter().map(site).sum()
    };
    [sum("kofm_pool_units_held"), sum("kofm_pool_units_quarantined")]
}

fn acquire(cluster: &Cluster, site: usize, want: &str) -> (String, Vec<String>) {
    let lease = cluster.json(site, &["acquire", want, "--ttl", "5m", "--json"]);
    let units = lease["units"]["gpu"].as_array().unwrap().iter();
    let units = units.map(|it| it.as_str().unwrap().to_owned()).collect();
    (lease["id"].as_str().unwrap().to_owned(), units)
}

fn release(cluster: &Cluster, lease: &str) {
    assert!(cluster.run(0, &["release", lease]).status.success());
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn units_are_quarantined_idle_or_held_and_come_back() {
    let mut cluster = Cluster::start(3, GPUS);
    cluster.members(0, 3);
    let (lease, units) = acquire(&cluster, 2, "gpu");
    let held = units[0].clone();
    let idle = if held == "gpu-1" { "gpu-2" } else { "gpu-1" };

    let pool = quarantine(&cluster, 1, &held, "fan");
    let listed = json!([{"unit": held, "reason": "fan", "held": true}]);
    assert_eq!(pool["quarantine"], listed, "{pool}");
    assert_eq!(count(&cluster, 0), [1, 3, 0]);
    quarantine(&cluster, 0, idle, "ECC");
    quarantine(&cluster, 0, idle, "ECC errors");
    assert_eq!((count(&cluster, 2), measure(&cluster)), ([1, 2, 1], [1, 1]));

    // Nobody gets them, and who asks for more than the rest hears why.
    let (rest, others) = acquire(&cluster, 0, "gpu:2");
    assert!(!others.contains(&held) && !others.iter().any(|it| it == idle), "{others:?}");
    assert_eq!((count(&cluster, 1), measure(&cluster)), ([3, 0, 1], [3, 1]));
    let output = cluster.run(1, &["acquire", "gpu:3"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(said(&output).contains("ECC errors"), "{output:?}");
    assert_eq!(cluster.run(1, &["acquire", "gpu", "--wait", "0"]).status.code(), Some(75));

    // The holder keeps it until it is done.
    assert!(cluster.run(0, &["renew", &lease]).status.success());
    release(&cluster, &lease);
    assert_eq!((count(&cluster, 1), measure(&cluster)), ([2, 0, 2], [2, 2]));
    release(&cluster, &rest);
    assert_eq!((count(&cluster, 1), measure(&cluster)), ([0, 2, 2], [0, 2]));
    let (rest, again) = acquire(&cluster, 2, "gpu:2");
    assert!(!again.contains(&held) && !again.iter().any(|it| it == idle), "{again:?}");
    release(&cluster, &rest);

    // It outlives the site that made the change.
    cluster.kill(0);
    cluster.members(1, 2);
    cluster.restart(0);
    cluster.members(0, 3);
    // What the dead site may have had is kept back for a while, and then free.
    until("the rest is free", || count(&cluster, 0) == [0, 2, 2]);
    let text = cluster.run(1, &["status", "gpu"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("ECC errors") && text.contains("fan"), "{text}");

    give_back(&cluster, 2, &held);
    let pool = give_back(&cluster, 1, idle);
    assert_eq!(pool["quarantine"], Value::Null, "{pool}");
    until("all are free", || count(&cluster, 0) == [0, 4, 0]);
    assert_eq!(measure(&cluster), [0, 0]);
    let (all, units) = acquire(&cluster, 2, "gpu:4");
    assert_eq!(units.len(), 4);
    release(&cluster, &all);
    let history = cluster.json(1, &["history", "gpu", "--json"]);
    let told = |event: &str, unit: &str| {
        let units = json!({"gpu": [unit]});
        let mut list = history.as_array().unwrap().iter();
        list.any(|it| it["event"] == event && it["units"] == units && it["request"].is_null())
    };
    // What the killed site had seen is gone with it.
    assert!(told("returned", &held) && told("returned", idle), "{history}");
}

#[test]
fn who_waits_for_more_than_is_left_hears_of_it() {
    let cluster = Cluster::start(3, GPUS);
    cluster.members(0, 3);
    let (lease, units) = acquire(&cluster, 0, "gpu");
    let waiting = |site: usize, want: &str| {
        let mut command = cluster.command(site, &["acquire", want, "--json"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut all = waiting(1, "gpu:4");
    let queued = |count: u64| cluster.pool(0, "gpu")["waiting"].as_u64() == Some(count);
    until("it waits", || queued(1));
    let mut three = waiting(2, "gpu:3");
    let idle = if units[0] == "gpu-1" { "gpu-2" } else { "gpu-1" };
    let other = if units[0] == "gpu-3" { "gpu-0" } else { "gpu-3" };
    quarantine(&cluster, 2, idle, "ECC errors");
    assert_eq!(exit_code(&mut all), 65);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut all.stderr.take().unwrap(), &mut text).unwrap();
    assert!(text.contains("quarantined") && text.contains("ECC errors"), "{text}");
    // The other one goes on, and the pool with it.
    release(&cluster, &lease);
    assert_eq!(exit_code(&mut three), 0);
    let leases = cluster.json(0, &["status", "gpu", "--json"])["leases"].clone();
    release(&cluster, leases[0]["name"].as_str().unwrap());
    assert_eq!(count(&cluster, 1), [0, 3, 1]);

    // A pool that is made smaller loses others, and what is out stays out.
    change(&cluster, 1, &["pool", "set", "gpu", "--units", "2", "--json"]);
    until("it is smaller", || count(&cluster, 0) == [0, 1, 1]);
    quarantine(&cluster, 0, other, "fan");
    until("none is left", || count(&cluster, 2) == [0, 0, 2]);
    let output = cluster.run(0, &["acquire", "gpu"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(said(&output).contains("quarantined"), "{output:?}");
    let output = cluster.run(0, &["pool", "set", "gpu", "--units", "2", "--protocol", "quorum"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(said(&output).contains("return them"), "{output:?}");
    change(&cluster, 2, &["pool", "set", "gpu", "--units", MORE, "--json"]);
    until("it is larger", || count(&cluster, 0) == [0, 3, 2]);
    give_back(&cluster, 0, idle);
    give_back(&cluster, 0, other);
    let (all, units) = acquire(&cluster, 1, "gpu:5");
    assert_eq!(units.len(), 5);
    release(&cluster, &all);
}

#[test]
fn what_cannot_be_quarantined_is_said_and_changes_nothing() {
    let pools = "[pools]\nslot = 2\nseat = { units = 2, protocol = \"permission\" }\n";
    let cluster = Cluster::start(2, pools);
    cluster.members(0, 2);
    cluster.members(1, 2);
    let epoch = |cluster: &Cluster| cluster.json(0, &["members", "--json"])[0]["epoch"].clone();
    let before = epoch(&cluster);
    let long = "x".repeat(201);
    for (args, what) in [
        (&["quarantine", "nix", "0", "--reason", "r"][..], "no pool `nix`"),
        (&["quarantine", "slot", "2", "--reason", "r"], "its units are 0, 1"),
        (&["quarantine", "slot", "gpu-3", "--reason", "r"], "no unit `gpu-3`"),
        (&["quarantine", "slot", "0", "--reason", ""], "`reason` is 1 to 200"),
        (&["quarantine", "slot", "0", "--reason", &long], "`reason` is 1 to 200"),
        (&["quarantine", "slot", "0", "--reason", "a\u{7}"], "`reason` is 1 to 200"),
        (&["quarantine", "seat", "0", "--reason", "r"], "one by one in pools with `roaming`"),
        (&["quarantine", "slot", "../x", "--reason", "r"], "is not a name"),
        (&["return", "slot", "0"], "not quarantined"),
    ] {
        let args: Vec<&str> = ["pool"].iter().chain(args).copied().collect();
        let output = cluster.run(1, &args);
        assert_eq!(output.status.code(), Some(65), "{args:?}: {output:?}");
        assert!(said(&output).contains(what), "{args:?}: {output:?}");
    }
    let output = cluster.run(1, &["pool", "quarantine", "slot", "0"]);
    assert!(said(&output).contains("--reason"), "{output:?}");
    assert_eq!(epoch(&cluster), before);
    // The last one may go, too: then everybody is refused.
    for unit in ["0", "1"] {
        change(&cluster, 0, &["pool", "quarantine", "slot", unit, "--reason", "dust", "--json"]);
    }
    assert_eq!(cluster.run(1, &["acquire", "slot"]).status.code(), Some(65));
    change(&cluster, 1, &["pool", "return", "slot", "1", "--json"]);
    assert!(cluster.run(0, &["run", "slot", "--", "true"]).status.success());
}

#[test]
fn a_cluster_in_one_process_can_do_the_same() {
    let mut up = Command::new(KOFM)
        .args(["up", "--sites", "2", "--pool", "a=2", "--http", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(up.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    let http = line.split_whitespace().find(|it| it.starts_with("http")).unwrap_or_default();
    let run = |args: &[&str]| command(http, args).output().unwrap();
    let done = [
        run(&["pool", "quarantine", "a", "0", "--reason", "dust"]),
        run(&["acquire", "a", "--json"]),
        run(&["pool", "set", "a", "--units", "3"]),
        run(&["acquire", "a:2", "--wait", "0"]),
        run(&["pool", "return", "a", "0"]),
        run(&["acquire", "a:2", "--json"]),
    ];
    up.kill().unwrap();
    up.wait().unwrap();
    let codes = done.each_ref().map(|output| output.status.code());
    assert_eq!(codes, [Some(0), Some(0), Some(0), Some(75), Some(0), Some(0)], "{done:?}");
    let units = |output: &Output| {
        let lease: Value = serde_json::from_slice(&output.stdout).unwrap();
        lease["units"]["a"].clone()
    };
    assert_eq!(units(&done[1]), json!(["1"]));
    let mut rest: Vec<Value> = units(&done[5]).as_array().unwrap().clone();
    rest.sort_by_key(Value::to_string);
    assert_eq!(rest, [json!("0"), json!("2")]);
}
