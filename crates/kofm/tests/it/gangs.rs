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
fn three_gangs_overlap_a_site_is_killed_and_no_gang_holds_a_part() {
    let gangs = "[pools]\ngpu = 2\n[gangs.one]\ns0 = \"gpu\"\ns1 = \"gpu\"\n\
                 [gangs.two]\ns1 = \"gpu\"\ns2 = \"gpu\"\n[gangs.three]\ns0 = \"gpu\"\ns2 = \"gpu\"\n";
    let mut cluster = Cluster::start(3, gangs);
    cluster.members(1, 3);
    let dir = temp_dir();
    let member = |cluster: &Cluster, gang: &str, site: usize, script: &str| {
        let name = format!("s{site}");
        let script = format!("touch {gang}-{name}; {script}");
        let args = ["gang", "run", gang, "--as", &name, "--ttl", "3s", "--", "sh", "-c", &script];
        let mut command = cluster.command(site, &args);
        command.current_dir(&dir).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started = |gang: &str, sites: [usize; 2]| {
        sites.iter().all(|site| dir.join(format!("{gang}-s{site}")).exists())
    };
    let (first, mut killed) =
        (member(&cluster, "one", 0, "sleep 60"), member(&cluster, "one", 1, "sleep 60"));
    until("the first runs", || started("one", [0, 1]));
    let waits = [member(&cluster, "two", 1, "true"), member(&cluster, "two", 2, "true")];
    let mut third = [member(&cluster, "three", 0, "true"), member(&cluster, "three", 2, "true")];
    until("the others wait", || {
        let list = cluster.json(0, &["gang", "ls", "--json"]);
        let states = list.as_array().unwrap().iter().map(|it| it["state"].clone());
        states.filter(|it| it == "queued").count() == 2
    });
    // The host dies with everything on it.
    cluster.kill(1);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let [mut dead, alone] = waits;
    dead.kill().unwrap();
    dead.wait().unwrap();
    let lost = first.wait_with_output().unwrap();
    assert_eq!(lost.status.code(), Some(76), "{}", text(&lost.stderr));
    let told = alone.wait_with_output().unwrap();
    assert!(text(&told.stderr).contains("s1"), "it is told why: {}", text(&told.stderr));
    for child in &mut third {
        assert_eq!(exit_code(child), 0, "a gang without the dead site runs");
    }
    assert!(started("three", [0, 2]));
    assert!(!dir.join("two-s2").exists(), "nobody starts with a part");
    cluster.all_free("gpu");
    cluster.restart(1);
    cluster.members(1, 3);
    for file in ["one-s0", "one-s1"] {
        std::fs::remove_file(dir.join(file)).unwrap();
    }
    let again = [member(&cluster, "one", 0, "true"), member(&cluster, "one", 1, "true")];
    for mut child in again {
        assert_eq!(exit_code(&mut child), 0, "the gang is still known, and runs again");
    }
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
