//! Tokens, rules and their exit codes, with real processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::harness::{Cluster, KOFM, temp_dir, until};

fn run(cluster: &Cluster, site: usize, token: &str, args: &[&str]) -> Output {
    cluster.command(site, args).env("KOFM_TOKEN", token).output().unwrap()
}

fn made(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().trim().to_owned()
}

fn refused(output: &Output, text: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(77), "{said}");
    assert!(said.contains(text), "{said}");
}

#[test]
fn principals_hold_at_all_sites_and_over_restarts() {
    let mut cluster = Cluster::start(3, "[pools]\ngpu = 4\nlicence = 2\n");
    let home = temp_dir();
    let first = ["token", "create", "ci", "--allow", "read:*", "--allow", "acquire:gpu"];
    let output = cluster
        .command(0, &first)
        .env("XDG_STATE_HOME", &home)
        .env_remove("KOFM_TOKEN")
        .output()
        .unwrap();
    let ci = made(&output);
    // The administrator's token, which was made with it, is for this user only.
    let file = fs::read_dir(home.join("kofm")).unwrap().next().unwrap().unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let admin = fs::read_to_string(file.path()).unwrap().trim().to_owned();
    assert!(!output.stderr.windows(admin.len()).any(|it| it == admin.as_bytes()));
    let found = cluster.command(0, &["token", "ls"]).env("XDG_STATE_HOME", &home).output().unwrap();
    assert!(String::from_utf8_lossy(&found.stdout).contains("acquire:gpu"), "{found:?}");
    for site in 0..3 {
        refused(&cluster.run(site, &["status"]), "token missing");
        refused(&run(&cluster, site, &ci, &["acquire", "licence"]), "`acquire` on pool `licence`");
        refused(&run(&cluster, site, &ci, &["pool", "rm", "gpu"]), "`admin` on pool `gpu`");
        assert!(run(&cluster, site, &ci, &["run", "gpu", "--", "true"]).status.success());
    }
    let child = run(&cluster, 0, &ci, &["run", "gpu", "--", "sh", "-c", "echo [$KOFM_TOKEN]"]);
    assert!(made(&child).starts_with("[kofm_lease_L"), "{child:?}");
    let bob = made(&run(&cluster, 1, &admin, &["token", "create", "bob", "--allow", "acquire:*"]));
    let held = run(&cluster, 0, &ci, &["acquire", "gpu", "--ttl", "10m", "--json"]);
    let held: serde_json::Value = serde_json::from_slice(&held.stdout).unwrap();
    let lease = held["id"].as_str().unwrap();
    cluster.kill(0);
    cluster.restart(0);
    until("the site is back with its leases", || {
        run(&cluster, 0, &ci, &["renew", lease]).status.success()
    });
    for site in 0..3 {
        refused(&run(&cluster, site, &bob, &["release", lease]), "`release-any` on pool `gpu`");
    }
    assert!(run(&cluster, 2, &ci, &["release", lease]).status.success());
    assert!(run(&cluster, 2, &admin, &["allow", "ci", "acquire:licence"]).status.success());
    assert!(run(&cluster, 1, &ci, &["run", "licence", "--", "true"]).status.success());
    let remove = ["allow", "ci", "acquire:licence", "--remove", "--json"];
    assert!(run(&cluster, 0, &admin, &remove).status.success());
    refused(&run(&cluster, 1, &ci, &["run", "licence", "--", "true"]), "licence");
    assert!(run(&cluster, 1, &admin, &["token", "revoke", "ci"]).status.success());
    for site in 0..3 {
        refused(&run(&cluster, site, &ci, &["status"]), "token rejected");
    }
    for (args, code) in [
        (&["allow", "bob", "acquire:nope"][..], 65),
        (&["allow", "bob", "fly:gpu"], 64),
        (&["allow", "bob", "acquire"], 64),
        (&["allow", "carol", "read:*"], 65),
        (&["token", "revoke", "ci"], 65),
        (&["token", "revoke", "admin"], 75),
        (&["token", "create", "bob"], 75),
    ] {
        let output = run(&cluster, 0, &admin, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{output:?}");
    }
    fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_secure_cluster_is_open_to_its_user_only() {
    let home = temp_dir();
    let mut up = Command::new(KOFM)
        .args(["up", "--secure", "--sites", "2", "--http", "127.0.0.1:0", "--pool", "gpu=2"])
        .env("XDG_STATE_HOME", &home)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(up.stdout.take().unwrap()));
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        let http = line.split_whitespace().nth(1).unwrap();
        let ask = |home: &std::path::Path| {
            let mut command = crate::harness::command(http, &["status"]);
            command.env("XDG_STATE_HOME", home).env_remove("KOFM_TOKEN").output().unwrap()
        };
        until("the site answers its user", || ask(&home).status.success());
        refused(&ask(std::path::Path::new("/nonexistent")), "token missing");
    }
    crate::harness::signal(&up, "TERM");
    up.wait().unwrap();
    assert_eq!(fs::read_dir(home.join("kofm")).unwrap().count(), 0);
    fs::remove_dir_all(home).unwrap();
}
