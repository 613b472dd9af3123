//! The audit log of a real process: its entries, its filters, and what it finds when it is changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use serde_json::Value;

use crate::harness::Cluster;

fn run(cluster: &Cluster, token: &str, args: &[&str]) -> Output {
    cluster.command(0, args).env("KOFM_TOKEN", token).output().unwrap()
}

fn entries(cluster: &Cluster, token: &str, args: &[&str]) -> Vec<Value> {
    let all: Vec<&str> = ["audit", "--json"].iter().chain(args).copied().collect();
    let output = run(cluster, token, &all);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_log_names_every_change_and_refusal_and_shows_tampering() {
    let mut cluster = Cluster::start(1, "[pools]\ngpu = 4\nlicence = 2\n");
    let made = |token: &str, args: &[&str]| {
        let output = run(&cluster, token, args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let home = crate::harness::temp_dir();
    let first = ["token", "create", "root", "--allow", "admin:*"];
    let mut first = cluster.command(0, &first);
    let root = first.env("XDG_STATE_HOME", &home).env_remove("KOFM_TOKEN").output().unwrap();
    let root = String::from_utf8(root.stdout).unwrap().trim().to_owned();
    fs::remove_dir_all(home).unwrap();
    let ci = made(&root, &["token", "create", "ci", "--allow", "acquire:gpu"]);
    made(&ci, &["run", "gpu:2", "--", "true"]);
    assert_eq!(run(&cluster, &ci, &["acquire", "licence"]).status.code(), Some(77));
    assert_eq!(run(&cluster, "wrong", &["status"]).status.code(), Some(77));
    assert_eq!(run(&cluster, &ci, &["audit"]).status.code(), Some(77));
    let rows = |args: &[&str]| {
        let row = |it: &Value| {
            let text = |name: &str| it[name].as_str().unwrap_or("-").to_owned();
            format!("{} {} {} {}", text("principal"), text("verb"), text("object"), text("result"))
        };
        entries(&cluster, &root, args).iter().map(row).collect::<Vec<String>>()
    };
    let all = rows(&[]);
    for expected in [
        "- admin root ok",
        "root admin ci ok",
        "ci acquire gpu ok",
        "ci release gpu ok",
        "ci acquire licence denied",
        "ci admin audit denied",
    ] {
        assert!(all.iter().any(|it| it == expected), "{expected}: {all:#?}");
    }
    assert!(all.iter().any(|it| it.starts_with("- read") && it.ends_with("denied")), "{all:#?}");
    assert!(rows(&["--principal", "ci"]).iter().all(|it| it.starts_with("ci ")));
    assert_eq!(rows(&["--pool", "licence"]), ["ci acquire licence denied"]);
    assert_eq!(rows(&["--since", "1h"]).len(), rows(&[]).len());
    assert_eq!(rows(&["--limit", "2"]).len(), 2);
    let text = made(&root, &["audit", "--since", "1h"]);
    assert!(text.contains("PRINCIPAL") && text.contains("127.0.0.1:"), "{text}");
    let path = cluster.state_dir(0).join("audit.log");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&cluster.state_dir(0)), 0o700);
    for file in fs::read_dir(cluster.state_dir(0)).unwrap() {
        let file = file.unwrap().path();
        let expected = if file.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&file), expected, "{}", file.display());
    }
    let good = fs::read_to_string(&path).unwrap();
    for secret in [&root, &ci] {
        assert!(!good.contains(secret.as_str()), "a token is in the log");
    }
    let verify = |cluster: &Cluster| run(cluster, &root, &["audit", "--verify"]);
    assert!(verify(&cluster).status.success());
    // The chain goes on in the site's next life.
    cluster.kill(0);
    cluster.restart(0);
    crate::harness::until("the site is back", || run(&cluster, &root, &["rules"]).status.success());
    assert!(verify(&cluster).status.success(), "{:?}", verify(&cluster));
    let good = fs::read_to_string(&path).unwrap();
    let without: String = good.split_inclusive('\n').filter(|it| !it.contains("licence")).collect();
    for changed in [good.replace("licence", "gpu"), without] {
        fs::write(&path, changed).unwrap();
        let output = verify(&cluster);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("audit.log line "), "{said}");
    }
    fs::write(&path, good).unwrap();
    assert!(verify(&cluster).status.success());
}
