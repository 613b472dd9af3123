//! Semaphores of real processes.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{Cluster, KOFM, until};

const SEMAPHORES: &str = "[semaphores]\nslots = 2\n[semaphores.items]\nvalue = 0\n\
                          protocol = \"sem-permission\"\n[semaphores.votes]\nvalue = 1\n\
                          protocol = \"sem-quorum\"\n";

fn semaphore(cluster: &Cluster, site: usize, name: &str) -> Value {
    let list = cluster.json(site, &["sem", "ls", "--json"]);
    list.as_array().unwrap().iter().find(|it| it["name"] == name).unwrap().clone()
}

#[test]
fn p_and_v_across_sites_with_their_exit_codes() {
    let cluster = Cluster::start(3, SEMAPHORES);
    let code = |site: usize, args: &[&str]| cluster.run(site, args).status.code();
    for name in ["slots", "items", "votes"] {
        let first = semaphore(&cluster, 0, name)["value"].as_u64().unwrap();
        let more = format!("{name}:{}", first + 1);
        assert_eq!(code(0, &["sem", "p", &more, "--wait", "0"]), Some(75), "{name}");
        assert_eq!(code(1, &["sem", "p", &more, "--wait", "300ms"]), Some(124), "{name}");
        assert_eq!(code(2, &["sem", "v", name]), Some(0), "{name}");
        let taken = cluster.json(1, &["sem", "p", &more, "--wait", "60s", "--json"]);
        assert_eq!(taken["state"], "taken");
        assert_eq!(taken["k"].as_u64(), Some(first + 1));
        until("it is empty", || {
            let now = semaphore(&cluster, 2, name);
            now["value"] == 0 && now["waiting"] == 0
        });
    }
    for wrong in [
        &["sem", "p", "nobody", "--wait", "0"][..],
        &["sem", "v", "nobody"],
        &["sem", "p", "slots:0", "--wait", "0"],
        &["sem", "v", "slots:0"],
        &["sem", "v", "slots:4294967296"],
        &["sem", "v", "slots:-1"],
        &["sem", "p", ":1"],
        &["sem", "set", "slots", "--value", "4294967296"],
        &["sem", "set", "slots", "--value", "1", "--protocol", "permission"],
    ] {
        assert_eq!(code(0, wrong), Some(65), "{wrong:?}");
    }
    assert_eq!(code(0, &["sem", "p", "slots", "--wait", "soon"]), Some(64));
    assert_eq!(semaphore(&cluster, 1, "slots")["value"], 0);
}

#[test]
fn semaphores_are_made_and_set_anew_while_the_cluster_runs() {
    let cluster = Cluster::start(3, SEMAPHORES);
    let set = ["sem", "set", "fresh", "--value", "2", "--protocol", "sem-quorum"];
    assert!(cluster.run(1, &set).status.success(), "it waits for the first epoch, if it must");
    let made = semaphore(&cluster, 0, "fresh");
    assert_eq!((&made["value"], &made["protocol"]), (&2.into(), &"sem-quorum".into()));
    assert!(cluster.run(2, &["sem", "p", "fresh:2", "--wait", "60s"]).status.success());
    assert!(cluster.run(0, &["sem", "v", "fresh:5"]).status.success());
    until("five were added", || semaphore(&cluster, 1, "fresh")["value"] == 5);
    let anew = ["sem", "set", "fresh", "--value", "1"];
    assert!(cluster.run(0, &anew).status.success());
    until("it starts again", || semaphore(&cluster, 2, "fresh")["value"] == 1);
    assert!(cluster.run(1, &["sem", "rm", "fresh"]).status.success());
    assert_eq!(cluster.run(2, &["sem", "v", "fresh"]).status.code(), Some(65));
}

#[test]
fn whoever_waits_learns_who_is_at_the_head_and_what_it_lacks() {
    let cluster = Cluster::start(3, SEMAPHORES);
    for name in ["slots", "items", "votes"] {
        let value = semaphore(&cluster, 0, name)["value"].as_u64().unwrap();
        let (big, small) = (format!("{name}:{}", value + 3), format!("{name}:1"));
        let wait = |site, what: &str, owner| {
            let args = ["sem", "p", what, "--owner", owner];
            cluster.command(site, &args).stderr(Stdio::null()).spawn().unwrap()
        };
        let mut first = wait(1, &big, "big");
        until("it has its turn", || semaphore(&cluster, 2, name)["head"]["missing"] == 3);
        let mut second = wait(2, &small, "small");
        until("both wait", || semaphore(&cluster, 0, name)["waiting"] == 2);
        let said = cluster.run(2, &["explain", name]);
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(said.contains("big at "), "{said}");
        assert!(said.contains("lacks 3"), "{said}");
        assert_eq!(cluster.json(0, &["explain", name, "--json"])["head"]["missing"], 3);
        for child in [&mut first, &mut second] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        until("nobody waits", || semaphore(&cluster, 0, name)["waiting"] == 0);
    }
    assert_eq!(cluster.run(0, &["explain", "nobody"]).status.code(), Some(65));
}

#[test]
fn a_client_that_is_killed_while_it_waits_leaves_nothing_behind() {
    let cluster = Cluster::start(3, SEMAPHORES);
    for (site, name) in [(1, "slots"), (2, "items"), (0, "votes")] {
        let mut child = cluster.command(site, &["sem", "p", &format!("{name}:9")]).spawn().unwrap();
        until("it waits", || semaphore(&cluster, 0, name)["waiting"] == 1);
        until("it has its turn", || semaphore(&cluster, 0, name)["head"]["k"] == 9);
        child.kill().unwrap();
        child.wait().unwrap();
        until("it is gone", || semaphore(&cluster, 0, name)["waiting"] == 0);
        assert!(cluster.run(0, &["sem", "v", name]).status.success());
        assert!(cluster.run(1, &["sem", "p", name, "--wait", "60s"]).status.success());
    }
}

#[test]
fn the_example_of_producers_and_consumers_runs() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/producer_consumer.sh");
    let output = Command::new("sh")
        .arg(script)
        .env("KOFM", KOFM)
        .env("ITEMS", "4")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    // Two producers made four each, and somebody took every one.
    assert_eq!(text.matches(" put ").count(), 8, "{text}");
    assert_eq!(text.matches(" got ").count(), 8, "{text}");
    assert!(text.contains("8 put, 8 got, never more than 3 between"), "{text}");
}
