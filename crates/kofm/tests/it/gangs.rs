//! Gangs: members at several sites start together or not at all.

use std::process::Stdio;

use crate::harness::{Cluster, exit_code, temp_dir, until};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn one_command_starts_all_members_with_their_shares() {
    let cluster = Cluster::start(3, "[pools]\ngpu = 4\nlicence = 1\n");
    cluster.connected();
    let set = ["gang", "set", "train", "--member", "s0=gpu:1", "--member", "s1=gpu:2,licence:1"];
    let made = cluster.run(2, &set);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let list = cluster.json(0, &["gang", "ls", "--json"]);
    assert_eq!(list[0]["members"]["s1"]["gpu"], 2);
    assert_eq!(list[0]["state"], "idle");

    let line = "echo $KOFM_GANG $KOFM_MEMBER $KOFM_UNITS_GPU $KOFM_UNITS_LICENCE";
    let apart = cluster.run(0, &["gang", "run", "train", "--", "sh", "-c", line]);
    assert_eq!(apart.status.code(), Some(64), "sites never run commands for others");
    let ran = cluster.run(0, &["gang", "run", "train", "--here", "--", "sh", "-c", line]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let mut lines: Vec<String> = text(&ran.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("train s0 ") && lines[1].starts_with("train s1 "), "{lines:?}");
    let units = |line: &str| line.split(' ').nth(2).unwrap_or_default().to_owned();
    let all = format!("{},{}", units(&lines[0]), units(&lines[1]));
    let mut all: Vec<&str> = all.split(',').collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 3, "no unit has two holders: {lines:?}");

    let failed = cluster.run(
        1,
        &[
            "gang",
            "run",
            "train",
            "--here",
            "--",
            "sh",
            "-c",
            "test $KOFM_MEMBER = s0 || exit 7; sleep 60",
        ],
    );
    assert_eq!(failed.status.code(), Some(7), "the others are stopped with the first that fails");
    cluster.all_free("gpu");
    assert!(cluster.run(1, &["gang", "rm", "train"]).status.success());
    assert_eq!(cluster.run(0, &["gang", "rm", "train"]).status.code(), Some(65));
}

#[test]
fn members_on_their_own_sites_meet_and_a_lost_one_stops_the_rest() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 2\n");
    cluster.connected();
    let set = ["gang", "set", "pair", "--member", "s0=gpu:1", "--member", "s1=gpu:1"];
    assert!(cluster.run(0, &set).status.success());
    let dir = temp_dir();
    let member = |site: usize, script: &str| {
        let name = format!("s{site}");
        let args = ["gang", "run", "pair", "--as", &name, "--ttl", "3s", "--", "sh", "-c", script];
        let mut command = cluster.command(site, &args);
        command.current_dir(&dir).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut first = member(0, "touch first; test -e second || sleep 60");
    until("it waits for the other", || {
        let queue = cluster.json(1, &["gang", "ls", "--json"]);
        queue[0]["state"] == "idle"
    });
    assert!(!dir.join("first").exists(), "nobody starts alone");
    let mut second = member(1, "touch second; until test -e first; do sleep 0.1; done");
    until("both run", || dir.join("first").exists() && dir.join("second").exists());
    assert_eq!(exit_code(&mut second), 0);
    first.kill().unwrap();
    first.wait().unwrap();
    cluster.all_free("gpu");

    let first = member(0, "touch third; sleep 60");
    let mut second = member(1, "touch fourth; sleep 60");
    until("both run again", || dir.join("third").exists() && dir.join("fourth").exists());
    second.kill().unwrap();
    second.wait().unwrap();
    let lost = first.wait_with_output().unwrap();
    assert_eq!(lost.status.code(), Some(76));
    assert!(text(&lost.stderr).contains("member s1"), "{}", text(&lost.stderr));
    cluster.all_free("gpu");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn nonsense_is_refused_with_its_reason() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 2\n");
    cluster.connected();
    let cases: [(&[&str], &str); 6] = [
        (&["--member", "s9=gpu:1"], "there is no site `s9`"),
        (&["--member", "s0=tpu:1"], "there is no pool `tpu`"),
        (&["--member", "s0=gpu:1", "--member", "s0=gpu:1"], "stands there twice"),
        (&["--member", "s0=gpu:3"], "which has 2"),
        (&["--member", "s0=gpu:1", "--member", "s1=gpu:2"], "3 units of pool `gpu` together"),
        (&["--member", "s0=gpu:0"], "write SITE=POOL:K"),
    ];
    for (members, reason) in cases {
        let args: Vec<&str> = ["gang", "set", "g"].iter().chain(members).copied().collect();
        let refused = cluster.run(0, &args);
        assert_eq!(refused.status.code(), Some(65), "{args:?}");
        assert!(text(&refused.stderr).contains(reason), "{}", text(&refused.stderr));
    }
    let unknown = cluster.run(0, &["gang", "run", "nobody", "--here", "--", "true"]);
    assert_eq!(unknown.status.code(), Some(65));
}
