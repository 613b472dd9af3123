//! Gangs whose members run on their own machines: no member starts before all have confirmed, and
//! every member's exit code tells how the whole gang ended.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{Cluster, exit_code, signal, temp_dir, until};

fn pair() -> Cluster {
    let cluster = Cluster::start(2, "[pools]\ngpu = 2\n");
    let set = ["gang", "set", "pair", "--member", "s0=gpu:1", "--member", "s1=gpu:1"];
    assert!(cluster.run(0, &set).status.success());
    cluster
}

fn member(cluster: &Cluster, dir: &Path, site: usize, more: &[&str], script: &str) -> Child {
    let name = format!("s{site}");
    let args = ["gang", "run", "pair", "--as", &name, "--ttl", "3s"];
    let args: Vec<&str> =
        args.iter().chain(more).chain(&["--", "sh", "-c", script]).copied().collect();
    let mut command: Command = cluster.command(site, &args);
    command.current_dir(dir).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a member has written this on stderr.
fn says(child: &mut Child, text: &str) {
    let lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    let found = lines.map_while(Result::ok).any(|line| line.contains(text));
    assert!(found, "it ended without `{text}`");
}

fn ended(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_member_lost_between_grant_and_start_starts_none() {
    let cluster = pair();
    let dir = temp_dir();
    let mut second = member(&cluster, &dir, 1, &[], "touch second");
    says(&mut second, "waiting for s0");
    signal(&second, "STOP");
    let first = member(&cluster, &dir, 0, &["--wait", "12s"], "touch first");
    until("the units are granted", || cluster.pool(0, "gpu")["held"] == 2);
    second.kill().unwrap();
    second.wait().unwrap();
    let (code, text) = ended(first);
    assert_eq!(code, Some(124), "{text}");
    assert!(text.contains("waiting for s1"), "{text}");
    assert!(!dir.join("first").exists() && !dir.join("second").exists());
    cluster.all_free("gpu");

    // The gang starts with members that are there.
    let mut again =
        [member(&cluster, &dir, 0, &[], "touch first"), member(&cluster, &dir, 1, &[], "true")];
    for child in &mut again {
        assert_eq!(exit_code(child), 0);
    }
    assert!(dir.join("first").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn every_member_ends_with_the_code_of_the_first_that_fails() {
    let cluster = pair();
    let dir = temp_dir();
    let first = member(&cluster, &dir, 0, &[], "touch first; sleep 60");
    let second = member(&cluster, &dir, 1, &[], "until test -e first; do sleep 0.1; done; exit 3");
    let (code, text) = ended(second);
    assert_eq!(code, Some(3), "{text}");
    let (code, text) = ended(first);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("member s1 of gang pair ended with code 3"), "{text}");
    cluster.all_free("gpu");

    // A member that has ended well waits for the others.
    std::fs::remove_file(dir.join("first")).unwrap();
    let first = member(&cluster, &dir, 0, &[], "touch first");
    let second = "until test -e first; do sleep 0.1; done; sleep 1; exit 4";
    let second = member(&cluster, &dir, 1, &[], second);
    assert_eq!(ended(second).0, Some(4));
    let (code, text) = ended(first);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("member s1 of gang pair ended with code 4"), "{text}");
    cluster.all_free("gpu");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_member_whose_client_is_killed_makes_the_others_fail() {
    let cluster = pair();
    let dir = temp_dir();
    // The first has ended well when the second is lost.
    let first = member(&cluster, &dir, 0, &[], "touch first");
    let mut second = member(&cluster, &dir, 1, &[], "touch second; sleep 60");
    until("both have started", || dir.join("first").exists() && dir.join("second").exists());
    second.kill().unwrap();
    second.wait().unwrap();
    let (code, text) = ended(first);
    assert_eq!(code, Some(76), "{text}");
    assert!(text.contains("member s1"), "{text}");
    cluster.all_free("gpu");
    std::fs::remove_dir_all(dir).unwrap();
}
