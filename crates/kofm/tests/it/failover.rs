//! Clients that know several addresses move on when a site does not answer.

use std::process::Stdio;

use crate::harness::{Cluster, Proxy, command, exit_code, free_port, temp_dir, until};

fn port(http: &str) -> u16 {
    http.rsplit_once(':').unwrap().1.parse().unwrap()
}

#[test]
fn a_dead_address_is_skipped_and_all_dead_ones_are_named() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 1\n");
    let dead = [free_port(), free_port()].map(|port| format!("http://127.0.0.1:{port}"));
    let list = format!("{}, {}", dead[0], cluster.http[1]);
    let output = command(&list, &["acquire", "gpu", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lease: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let id = lease["id"].as_str().unwrap();
    for args in [&["status"][..], &["members"], &["renew", id], &["release", id]] {
        let output = command(&list, args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let output = command(&dead.join(","), &["acquire", "gpu"]).output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(dead.iter().all(|address| text.contains(address)), "{text}");
}

#[test]
fn a_running_command_keeps_its_lease_when_its_address_is_cut() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 1\n");
    let proxy = Proxy::new(port(&cluster.http[0]));
    let list = format!("http://127.0.0.1:{},{}", proxy.port, cluster.http[1]);
    let dir = temp_dir();
    // Much longer than the lease lives without a renewal.
    let script = "touch started; sleep 6; exit 5";
    let args = ["run", "gpu", "--ttl", "2s", "--", "sh", "-c", script];
    let mut command = command(&list, &args);
    let mut wrapper = command.current_dir(&dir).stderr(Stdio::null()).spawn().unwrap();
    until("it runs", || dir.join("started").exists());
    proxy.cut(true);
    assert_eq!(exit_code(&mut wrapper), 5);
    // Released through the other site as well.
    assert_eq!(cluster.pool(0, "gpu")["free"], 1);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_waiting_client_continues_at_another_site() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 1\n");
    let holder = cluster.json(1, &["acquire", "gpu", "--ttl", "5m", "--json"]);
    let list = cluster.http.join(",");
    let args = ["acquire", "gpu", "--json"];
    let mut command = command(&list, &args);
    let mut waiter = command.stdout(Stdio::piped()).spawn().unwrap();
    until("it waits", || cluster.pool(1, "gpu")["waiting"] == 1);
    let id = cluster.json(1, &["queue", "--json"])[0]["id"].as_str().unwrap().to_owned();
    cluster.kill(0);
    until("it waits at another site", || {
        assert!(waiter.try_wait().unwrap().is_none(), "the client gave up");
        let queue = cluster.run(1, &["queue", "--json"]);
        let queue: serde_json::Value = serde_json::from_slice(&queue.stdout).unwrap_or_default();
        queue[0]["id"] == id.as_str() && queue[0]["site"] != "s0"
    });
    assert!(cluster.run(1, &["release", holder["id"].as_str().unwrap()]).status.success());
    let output = waiter.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lease: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(lease["request"], id.as_str());
}

#[test]
fn a_request_is_cancelled_at_any_site() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 1\n");
    cluster.json(0, &["acquire", "gpu", "--ttl", "5m", "--json"]);
    let mut waiter = cluster.command(0, &["acquire", "gpu"]).stderr(Stdio::null()).spawn().unwrap();
    until("it waits", || cluster.pool(1, "gpu")["waiting"] == 1);
    let id = cluster.json(1, &["queue", "--json"])[0]["id"].as_str().unwrap().to_owned();
    let request = cluster.json(1, &["cancel", &id, "--json"]);
    assert_eq!(request["state"], "cancelled");
    assert_ne!(exit_code(&mut waiter), 0);
    assert_eq!(cluster.pool(1, "gpu")["waiting"], 0);
    assert_eq!(cluster.run(0, &["cancel", "no-such-request"]).status.code(), Some(65));
}

#[test]
fn a_request_whose_site_is_lost_is_granted_once_the_others_know() {
    let top = "site_lease = \"2s\"\n";
    let mut cluster = Cluster::start_as(3, top, "[pools]\ngpu = 2\n");
    let lost = cluster.json(0, &["acquire", "gpu", "--id", "job", "--ttl", "5m", "--json"]);
    cluster.kill(0);
    // At first the others cannot know whether the lost site will return with the request.
    let list = cluster.http[1..].join(",");
    let args = ["acquire", "gpu", "--id", "job", "--ttl", "5m", "--json"];
    let once = command(&list, &[&args[..], &["--wait", "0"]].concat()).output().unwrap();
    let output = command(&list, &args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lease: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(lease["request"], lost["request"]);
    assert!(matches!(once.status.code(), Some(0 | 69)), "{once:?}");
}
