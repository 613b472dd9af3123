//! Two processes that say they are the same site.

use std::fs;
use std::process::Child;

use serde_json::Value;

use crate::harness::{Cluster, command, free_port, serve, temp_dir, until};

/// A process that ends with the test.
struct Copy(Child, String, u16);

impl Drop for Copy {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A second process of a site: its configuration was copied to another machine, which has ports
/// and a `state_dir` of its own.
fn copy(cluster: &Cluster, site: usize) -> Copy {
    let port = free_port();
    let dir = temp_dir();
    let text = fs::read_to_string(&cluster.configs[site]).unwrap();
    let listen = format!("listen = \"127.0.0.1:{}\"", cluster.peers[site]);
    let state = format!("\"{}\"", cluster.state_dir(site).display());
    assert!(text.contains(&listen) && text.contains(&state));
    let text = text.replace(&listen, &format!("listen = \"127.0.0.1:{port}\""));
    let text = text.replace(&state, &format!("\"{}\"", dir.join("state").display()));
    let path = dir.join("copy.toml");
    fs::write(&path, text).unwrap();
    let (child, http) = serve(&path);
    Copy(child, http, port)
}

fn trouble(http: &str, site: &str) -> String {
    let output = command(http, &["members", "--json"]).output().unwrap();
    let members: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let members = members.as_array().cloned().unwrap_or_default();
    let row = members.into_iter().find(|it| it["site"] == site).unwrap_or_default();
    row["trouble"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_copied_configuration_is_refused_and_both_processes_name_each_other() {
    let cluster = Cluster::start(3, "[pools]\ngpu = 2\n");
    cluster.members(0, 3);
    cluster.members(2, 3);
    // The first site dials all others, the last one dials none.
    for site in [0, 2] {
        let name = format!("s{site}");
        let held = cluster.run(site, &["acquire", "gpu:2", "--ttl", "5m", "--json"]);
        assert!(held.status.success(), "{held:?}");
        let held: Value = serde_json::from_slice(&held.stdout).unwrap();
        let copy = copy(&cluster, site);
        let (mine, theirs) = (format!(":{}", cluster.peers[site]), format!(":{}", copy.2));
        until("the copy names the first process", || trouble(&copy.1, &name).contains(&mine));
        until("and is named by it", || trouble(&cluster.http[site], &name).contains(&theirs));
        until("and by others", || trouble(&cluster.http[1], &name).contains(&theirs));
        let text = command(&cluster.http[1], &["members"]).output().unwrap().stdout;
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(&theirs), "{text}");
        // Nothing is granted twice, and the first process keeps what it has.
        let args = ["acquire", "gpu:1", "--wait", "2s"];
        let output = command(&copy.1, &args).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        let lease = held["lease"]["id"].as_str().or_else(|| held["id"].as_str()).unwrap();
        let renewed = cluster.run(site, &["renew", lease]);
        assert!(renewed.status.success(), "{renewed:?}");
        assert!(cluster.run(site, &["release", lease]).status.success());
        drop(copy);
        assert!(cluster.run(1, &["run", "gpu:2", "--", "true"]).status.success());
    }
}
