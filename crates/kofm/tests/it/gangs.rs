//! Gangs: members at several sites start together or not at all.

use std::process::{Command, Stdio};

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
    let mut first = member(0, "touch first; until test -e second; do sleep 0.1; done");
    until("it waits for the other", || {
        let queue = cluster.json(1, &["gang", "ls", "--json"]);
        queue[0]["state"] == "idle"
    });
    assert!(!dir.join("first").exists(), "nobody starts alone");
    let mut second = member(1, "touch second; until test -e first; do sleep 0.1; done");
    until("both run", || dir.join("first").exists() && dir.join("second").exists());
    assert_eq!(exit_code(&mut second), 0);
    assert_eq!(exit_code(&mut first), 0);
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
                 [gangs.two]\ns1 = \"gpu\"\ns2 = \"gpu\"\n\
                 [gangs.three]\ns0 = \"gpu\"\ns2 = \"gpu\"\n";
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
fn fixed_gangs_take_turns_and_a_lost_site_stops_its_gang() {
    let fixed = "[pools]\ngpu = 1\n[fixed_gangs]\nprotocol = \"groups-hungry\"\n\
                [fixed_gangs.needs]\ns0 = [\"board\"]\ns1 = [\"bench\"]\ns2 = [\"board\"]\n\
                [fixed_gangs.gangs]\nday = [\"s0\", \"s1\"]\nnight = [\"s1\", \"s2\"]\n";
    let mut cluster = Cluster::start(3, fixed);
    cluster.members(1, 3);
    let dir = temp_dir();
    let member = |cluster: &Cluster, gang: &str, site: usize, script: &str| {
        let name = format!("s{site}");
        let args = ["gang", "run", gang, "--as", &name, "--ttl", "3s", "--", "sh", "-c", script];
        let mut command = cluster.command(site, &args);
        command.current_dir(&dir).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Whoever makes a directory that is there already fails: two had the same at once.
    let alone = "mkdir $KOFM_UNITS_FIXED_GANGS && sleep 0.3 && rmdir $KOFM_UNITS_FIXED_GANGS";
    let mut children: Vec<_> = (0..3)
        .flat_map(|_| [("day", 0), ("night", 1), ("day", 1), ("night", 2)])
        .map(|(gang, site)| member(&cluster, gang, site, alone))
        .collect();
    for child in &mut children {
        assert_eq!(exit_code(child), 0);
    }
    let list = cluster.json(0, &["gang", "ls", "--json"]);
    assert_eq!(list[0]["name"], "day");
    assert_eq!(list[0]["members"]["s0"]["board"], 1);
    assert_eq!(list[0]["state"], "idle");
    let set = cluster.run(0, &["gang", "set", "day", "--member", "s0=gpu"]);
    assert_eq!(set.status.code(), Some(65));
    assert!(text(&set.stderr).contains("[fixed_gangs]"), "{}", text(&set.stderr));

    let first = member(&cluster, "day", 0, "touch first; sleep 60");
    let mut second = member(&cluster, "day", 1, "touch second; sleep 60");
    until("both work", || dir.join("first").exists() && dir.join("second").exists());
    cluster.kill(1);
    second.kill().unwrap();
    second.wait().unwrap();
    let lost = first.wait_with_output().unwrap();
    assert_eq!(lost.status.code(), Some(76), "{}", text(&lost.stderr));
    assert!(text(&lost.stderr).contains("s1"), "{}", text(&lost.stderr));
    cluster.restart(1);
    cluster.members(1, 3);
    let again = [member(&cluster, "night", 1, alone), member(&cluster, "night", 2, alone)];
    for mut child in again {
        assert_eq!(exit_code(&mut child), 0, "it starts again");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn fixed_gangs_of_groups_say_whose_turn_it_is() {
    let fixed = "[pools]\ngpu = 1\n[fixed_gangs]\nprotocol = \"groups\"\n[fixed_gangs.needs]\n\
                s0 = [\"board\"]\ns1 = [\"bench\"]\n[fixed_gangs.gangs]\n\
                both = [\"s0\", \"s1\"]\none = [\"s0\"]\n";
    let cluster = Cluster::start(2, fixed);
    cluster.members(1, 2);
    let wrong = cluster.run(0, &["gang", "run", "both", "--as", "s0", "--", "true"]);
    assert_eq!(wrong.status.code(), Some(65));
    let ready = |site: usize| {
        let name = format!("s{site}");
        let args = ["gang", "run", "--next", "--as", &name, "--", "sh", "-c", "echo $KOFM_GANG"];
        cluster.command(site, &args).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut turns = Vec::new();
    for _ in 0..4 {
        let other = ready(1);
        let mine = ready(0).wait_with_output().unwrap();
        assert!(mine.status.success(), "{}", text(&mine.stderr));
        turns.push(text(&mine.stdout).trim().to_owned());
        if turns.last().is_some_and(|turn| turn == "one") {
            // The other is ready still, and works with the next turn.
            let mine = ready(0).wait_with_output().unwrap();
            turns.push(text(&mine.stdout).trim().to_owned());
        }
        assert!(other.wait_with_output().unwrap().status.success());
    }
    let alternate = turns.windows(2).all(|pair| pair[0] != pair[1]);
    assert!(alternate, "strictly in turn: {turns:?}");
}

#[test]
fn nonsense_is_refused_with_its_reason() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 2\n");
    cluster.connected();
    let cases: [(&[&str], &str); 6] = [
        (&["--member", "s9=gpu:1"], "there is no site `s9`"),
        (&["--member", "s0=tpu:1"], "there is no pool `tpu`"),
        (&["--member", "s0=gpu:1", "--member", "s0=gpu:1"], "is given twice"),
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

/// Each member has a lock on a file while it lives.
#[test]
fn a_killed_guard_of_a_member_gives_nothing_away() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 2\n");
    let set = ["gang", "set", "pair", "--member", "s0=gpu:1", "--member", "s1=gpu:1"];
    assert!(cluster.run(0, &set).status.success());
    let dir = temp_dir();
    let script = "exec 9>$KOFM_MEMBER.lock; flock -n 9 || exit 99; touch $KOFM_MEMBER; sleep 1000";
    let args = ["gang", "run", "pair", "--here", "--ttl", "1m", "--", "sh", "-c", script];
    let mut command = cluster.command(0, &args);
    let mut wrapper = command.current_dir(&dir).stderr(Stdio::null()).spawn().unwrap();
    until("both run", || dir.join("s0").exists() && dir.join("s1").exists());
    let free = "for it in s0 s1; do flock -n $it.lock true || exit 99; done";
    let mut command = cluster.command(0, &["run", "gpu:2", "--", "sh", "-c", free]);
    let mut next = command.current_dir(&dir).stderr(Stdio::null()).spawn().unwrap();
    until("the next one waits", || cluster.pool(0, "gpu")["waiting"] == 1);
    let path = format!("/proc/{0}/task/{0}/children", wrapper.id());
    let guards = std::fs::read_to_string(path).unwrap();
    let guard = guards.split_whitespace().next().unwrap();
    assert!(Command::new("kill").args(["-KILL", guard]).status().unwrap().success());
    assert_eq!(exit_code(&mut wrapper), 71, "the wrapper says that a guard is gone");
    assert_eq!(exit_code(&mut next), 0, "nothing of the gang lives when the next starts");
    std::fs::remove_dir_all(dir).unwrap();
}
