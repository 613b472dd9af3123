//! `kofm run` owns its command: units are free only when no process of the command runs.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Cluster, exit_code, signal, temp_dir, until};

/// With a cgroup where the system allows one, and with a subreaper alone.
const WAYS: [&str; 2] = ["", "off"];

fn read_pid(file: &Path) -> String {
    until("a process names itself", || {
        std::fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n'))
    });
    std::fs::read_to_string(file).unwrap().trim().to_owned()
}

fn alive(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit_once(") ").map(|it| it.1.starts_with(['Z', 'X']));
    state == Some(false)
}

fn send(signal: &str, pid: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), pid]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn units_stay_held_until_background_processes_end() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    for way in WAYS {
        let dir = temp_dir();
        // The process loses its parent, and leaves session and group.
        let script = "setsid sh -c 'echo $$ > pid; until test -e go; do sleep 0.05; done' & exit 3";
        let mut command = cluster.command(0, &["run", "gpu", "--", "sh", "-c", script]);
        let mut wrapper = command.current_dir(&dir).env("KOFM_CGROUP", way).spawn().unwrap();
        let pid = read_pid(&dir.join("pid"));
        for _ in 0..10 {
            let asked = cluster.run(0, &["acquire", "gpu", "--wait", "0"]);
            assert_eq!(asked.status.code(), Some(75), "held while {pid} runs");
            assert!(alive(&pid));
        }
        std::fs::write(dir.join("go"), "").unwrap();
        assert_eq!(exit_code(&mut wrapper), 3, "the exit code is the command's own");
        assert!(!alive(&pid));
        cluster.all_free("gpu");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn units_stay_held_when_only_the_first_process_is_killed() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    for way in WAYS {
        let dir = temp_dir();
        let script = "sh -c 'trap \"exit 0\" TERM; echo $$ > inner; while :; do sleep 0.05; \
                      done' & \
                      echo $$ > outer; wait; wait";
        let mut command = cluster.command(0, &["run", "gpu", "--", "sh", "-c", script]);
        let mut wrapper = command.current_dir(&dir).env("KOFM_CGROUP", way).spawn().unwrap();
        let (inner, outer) = (read_pid(&dir.join("inner")), read_pid(&dir.join("outer")));
        send("KILL", &outer);
        until("the first process is dead", || !alive(&outer));
        for _ in 0..10 {
            let asked = cluster.run(0, &["acquire", "gpu", "--wait", "0"]);
            assert_eq!(asked.status.code(), Some(75), "held while {inner} runs");
            assert!(alive(&inner));
        }
        // A signal for the command reaches the processes that are left.
        signal(&wrapper, "TERM");
        assert_eq!(exit_code(&mut wrapper), 137);
        assert!(!alive(&inner));
        cluster.all_free("gpu");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_lost_lease_stops_daemons_of_the_command() {
    let mut cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    for way in WAYS {
        let dir = temp_dir();
        let script = "setsid sh -c 'trap \"\" TERM; (setsid sh -c \"echo \\$\\$ > deaf; exec \
                      sleep 1000\" &)' & \
                      setsid sh -c 'trap \"touch told; exit\" TERM; echo $$ > daemon; while :; \
                      do sleep 0.05; done' & \
                      exit 0";
        let args = ["run", "gpu", "--ttl", "2s", "--", "sh", "-c", script];
        let mut command = cluster.command(0, &args);
        let mut wrapper = command.current_dir(&dir).env("KOFM_CGROUP", way).spawn().unwrap();
        let (deaf, daemon) = (read_pid(&dir.join("deaf")), read_pid(&dir.join("daemon")));
        cluster.kill(0);
        assert_eq!(exit_code(&mut wrapper), 76);
        assert!(!alive(&deaf) && !alive(&daemon));
        assert!(dir.join("told").exists(), "TERM comes before KILL");
        cluster.restart(0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_stopped_guard_does_not_let_the_command_outlive_the_lease() {
    let mut cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    for way in WAYS {
        let dir = temp_dir();
        let script =
            "setsid sleep 1000 & echo $! > inner; echo $$ > outer; echo $PPID > guard; wait";
        let args = ["run", "gpu", "--ttl", "2s", "--", "sh", "-c", script];
        let mut command = cluster.command(0, &args);
        command.current_dir(&dir).env("KOFM_CGROUP", way).stderr(Stdio::null());
        let mut wrapper = command.spawn().unwrap();
        let pids = ["inner", "outer", "guard"].map(|name| read_pid(&dir.join(name)));
        send("STOP", &pids[2]);
        cluster.kill(0);
        assert_eq!(exit_code(&mut wrapper), 76);
        assert!(pids.iter().all(|pid| !alive(pid)), "nothing is left");
        cluster.restart(0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn killing_every_process_of_kofm_kills_the_command() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let dir = temp_dir();
    let script = "echo $$ > outer; echo $PPID > guard; exec sleep 1000";
    let args = ["run", "gpu", "--ttl", "1m", "--", "sh", "-c", script];
    let mut command = cluster.command(0, &args);
    let mut wrapper = command.current_dir(&dir).stderr(Stdio::null()).spawn().unwrap();
    let (outer, guard) = (read_pid(&dir.join("outer")), read_pid(&dir.join("guard")));
    // Stopped, so that neither can act between the two signals.
    signal(&wrapper, "STOP");
    send("STOP", &guard);
    signal(&wrapper, "KILL");
    send("KILL", &guard);
    wrapper.wait().unwrap();
    until("the command is dead", || !alive(&outer));
    std::fs::remove_dir_all(dir).unwrap();
}
